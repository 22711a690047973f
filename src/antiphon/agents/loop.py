"""One agent's turn: the loop over its steps, and the steps that every agent begins with.

Rule 1: nothing here waits or calls. Every contact with the world is yielded as an effect to the driver, which sends
        back its result: a plain driver, one that streams, one that reads a journal and a test drive this one loop.
Rule 2: a call is known by its index. Indices follow from the results alone, so a turn that runs again asks for the
        same things at the same indices. A new `yield` that takes an index would shift those of turns in progress.
Rule 3: a turn goes from step to step by the table of the active agent. When the active agent changes, the table of the
        next one is begun.
Rule 4: the active agent is settled once, when the turn begins: the one a person addresses, then the one that answered
        last, then the one that was asked. From there on only tools change it.
Rule 5: `return_direct` ends a turn only if every call of the message has it and succeeded; otherwise the model reads
        all results, errors too.
Rule 6: a limit ends the turn with its name, and with the partial answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator

import msgspec
from msgspec.structs import replace

from antiphon.agents.call_results import NO_USAGE, Handoff, Reply, StepChanges, ToolResult, Usage
from antiphon.agents.intents import call_of_intent, find_intent
from antiphon.agents.messages import Answered, Asked, Objected, Request, TurnExchange
from antiphon.agents.progress import (
    DENIED_PREFIX,
    EMPTY_REPLY,
    INVALID_OUTPUT,
    MAX_HANDOFFS,
    MAX_MODEL_CALLS,
    MAX_STEPS,
    MAX_TOKENS,
    TOO_MANY_HANDOFFS,
    AskModel,
    CallDenied,
    CallTool,
    Effect,
    EffectResult,
    MemberPath,
    PreparedPrompt,
    PreparePrompt,
    Progress,
    RunStep,
    SettledHandoffs,
    apply_changes,
)
from antiphon.agents.steps import ANSWERED_EXIT, Exit, Step, Steps
from antiphon.agents.team import Member, Team

MAX_EXTRA_STEPS = 1000
"""How many steps a turn may take, beside those that its model calls need, before it is taken for one without end."""
STEPS_PER_MODEL_CALL = 8


class TurnResult(msgspec.Struct, frozen=True):
    """The result of a turn."""

    text: str
    stopped: str | None = None
    """The named limit that ended it; None if it ended by itself."""
    handoff: Handoff | None = None
    finish: str | None = None
    """Why there is nothing left to do."""
    usage: Usage = NO_USAGE
    tools: tuple[str, ...] = ()
    """The tools that were called and did not fail, in the order the models named them."""
    path: MemberPath = ()
    """The member that answered, below the lead; empty if the lead did."""


LEAD_HEADING = "SUPERVISOR SYSTEM PROMPT:"
SUBAGENT_HEADING = "SUBAGENT SYSTEM PROMPT:"
DATE_LABEL = "Current date:"


def add_lead_preamble(system: str, lead: str | None, *, helps: bool) -> str:
    """The prompt of an agent that works for a lead, with what that means before it."""
    if lead is None or system.startswith(LEAD_HEADING):
        return system
    way_out = " If you are not sure, call `request_help` and say why." if helps else ""
    preamble = f"You are a specialist who works for {lead}. Keep to your own part.{way_out}"
    return f"{LEAD_HEADING}\n{preamble}\n\n{SUBAGENT_HEADING}\n{system}"


def add_current_date(system: str, date: str) -> str:
    """The prompt with the day, unless it says so already."""
    if not date or date in system or DATE_LABEL.lower() in system.lower():
        return system
    return f"{system}\n\n{DATE_LABEL} {date}" if system else f"{DATE_LABEL} {date}"


class StepContext(msgspec.Struct, frozen=True):
    """The team, its active member, and the day on which the turn was assigned."""

    team: Team
    member: Member
    date: str = ""


BETWEEN_RESULTS = "\n\n"
"""Separates the results of several `return_direct` tools in one answer."""

StepGenerator = Generator[Effect, EffectResult, Progress]
ToolResults = tuple[ToolResult, ...]


def render_system_prompt(context: StepContext, progress: Progress) -> StepGenerator:
    """Render the prompt and the history of the active agent, unless another one is to answer."""
    if _is_routed_elsewhere(context, progress):
        return progress
    entered = yield PreparePrompt(progress.index, progress.path)
    if isinstance(entered, CallDenied):
        return _stop_denied(progress, entered)
    assert isinstance(entered, PreparedPrompt), "a prompt is answered by a prepared prompt"
    if entered.summarised is not None:  # whether one is due depends on `recent_n`: changing it shifts the indices
        usage = progress.usage + entered.summarised.usage
        progress = replace(progress, index=progress.index + 1, usage=usage)
    return replace(progress, system=entered.system, history=entered.history, past=entered.past)


def _is_routed_elsewhere(context: StepContext, progress: Progress) -> bool:
    """Whether the turn is about to be routed to another agent, so that this prompt would not be used."""
    if progress.routed or context.team.route(progress.heard, progress.last_active) == context.member.path:
        return False
    return context.member.declaration.steps.step("current_active_agent").work == "current_active_agent"


def current_active_agent(context: StepContext, progress: Progress) -> Progress:
    """Settle which agent handles the turn, and complete its prompt."""
    if not progress.routed:
        place = context.team.route(progress.heard, progress.last_active)
        progress = replace(progress, routed=True, path=place)
        if place != context.member.path:
            return progress
    system = add_lead_preamble(
        progress.system, context.member.lead, helps=context.member.helps and context.member.calls_tools
    )
    if context.member.dated:
        system = add_current_date(system, context.date)
    return progress if system == progress.system else replace(progress, system=system)


def match_intents(context: StepContext, progress: Progress) -> Progress:
    """What a person said, if it is a phrase that is known, is answered, or calls what it stands for, at once."""
    if progress.asked or progress.exchange or progress.heard is None:
        return progress
    tools = context.member.tools
    known = [intent for intent in context.member.declaration.intents if intent.tool is None or intent.tool in tools]
    intent = find_intent(known, context.team.without_mention(progress.heard))
    if intent is None:
        return progress
    if intent.answer is not None:
        return replace(progress, answer=intent.answer)
    return replace(progress, reply=Reply("", (call_of_intent(intent),)))


def continue_conversation(context: StepContext, progress: Progress) -> Progress:
    """Nothing: a place between routing and the model for steps of your own."""
    return progress


def call_model(context: StepContext, progress: Progress) -> StepGenerator:
    """Ask the model. Words are the answer, if they have the shape that is wanted; once they may be put right."""
    if progress.asked >= context.team.limits.model_calls:
        return _stop_at_limit(progress, MAX_MODEL_CALLS)
    reply = yield AskModel(progress.index, _model_request(context, progress), progress.path)
    if isinstance(reply, CallDenied):
        return _stop_denied(replace(progress, index=progress.index + 1), reply)
    assert isinstance(reply, Reply), "a model is answered by a reply"
    if not context.member.calls_tools:  # it was told of none
        reply = replace(reply, calls=())
    progress = replace(
        progress,
        reply=reply,
        index=progress.index + 1,
        asked=progress.asked + 1,
        usage=progress.usage + reply.usage,
        partial=reply.text or progress.partial,
    )
    return progress if reply.calls else _accept_reply(context, progress, reply)


def call_tools(context: StepContext, progress: Progress) -> StepGenerator:
    """Call what the model asked for; then the turn ends, another agent becomes active, or the model is asked again."""
    reply = progress.reply
    if reply is None or not reply.calls:
        return progress
    index, path, hops = progress.index, progress.path, progress.hops
    wanted = tuple(CallTool(index + place, call, path, hops) for place, call in enumerate(reply.calls))
    settled = yield wanted
    assert isinstance(settled, SettledHandoffs), "tool calls are answered by settled results"
    pairs = list(zip(reply.calls, settled.results, strict=True))
    done = (call.name for call, result in pairs if result.declined or not result.failed)
    usage = sum((result.usage for result in settled.results), progress.usage)
    progress = replace(progress, index=index + len(wanted), tools=(*progress.tools, *done), usage=usage)
    if settled.denied is not None:
        return _stop_denied(progress, settled.denied)
    ended = _end_with_results(context, progress, settled.results)
    if ended is not None:
        return ended
    answers = (Answered(call, result.text, result.failed) for call, result in pairs)
    exchange = (*progress.exchange, Asked(reply.text, reply.calls, reply.thinking), *answers)
    progress = replace(progress, reply=None, exchange=exchange)
    if settled.place is not None:
        return replace(progress, path=settled.place, routed=True, hops=hops + 1, repairs=0)
    too_many = any(result.declined == TOO_MANY_HANDOFFS for result in settled.results)
    if too_many and progress.refused:
        return _stop_at_limit(progress, MAX_HANDOFFS)
    return replace(progress, refused=progress.refused + too_many)


def has_calls(progress: Progress) -> bool:
    """Whether the last reply asks for tools."""
    return progress.reply is not None and bool(progress.reply.calls)


CALLS_EXIT = Exit("call_tools", has_calls, "calls")

BUILTIN_STEPS: dict[str, Callable[[StepContext, Progress], Progress | StepGenerator]] = {
    step.__name__: step
    for step in (
        render_system_prompt,
        current_active_agent,
        match_intents,
        continue_conversation,
        call_model,
        call_tools,
    )
}
"""The functions of the built-in steps, by name. Every contact with the world is yielded."""


def _builtin_step(name: str, *exits: Exit) -> Step:
    return Step(name, exits=exits, work=name)


DEFAULT_STEPS = Steps(
    (
        _builtin_step("render_system_prompt", Exit("current_active_agent")),
        _builtin_step("current_active_agent", Exit("continue_conversation")),
        _builtin_step("continue_conversation", Exit("call_model")),
        _builtin_step("call_model", ANSWERED_EXIT, CALLS_EXIT, Exit("call_model")),
        _builtin_step("call_tools", ANSWERED_EXIT, Exit("call_model")),
    )
)
"""The steps of an agent."""


def with_intents(steps: Steps) -> Steps:
    """The same, with a step that matches intents before anything else is done."""
    rows = list(steps.rows)
    at = steps.names.index("continue_conversation")
    rows[at - 1] = replace(rows[at - 1], exits=(Exit("match_intents"),))
    matching = _builtin_step("match_intents", ANSWERED_EXIT, CALLS_EXIT, Exit("continue_conversation"))
    return Steps((*rows[:at], matching, *rows[at:]))


def _model_request(context: StepContext, progress: Progress) -> Request:
    output = context.team.output_at(progress.path)
    return Request(
        progress.system,
        progress.history,
        progress.exchange,
        context.member.offered,
        progress.past,
        None if output is None else output.schema,
        progress.asked,
    )


def _accept_reply(context: StepContext, progress: Progress, reply: Reply) -> Progress:
    output = context.team.output_at(progress.path)
    complaint = None if output is None else output.complaint(reply.text)
    if reply.cut and (complaint is not None or output is None):
        return replace(progress, answer=reply.text, stopped=MAX_TOKENS)
    if complaint is None:
        return replace(progress, answer=reply.text, stopped=None if reply.text else EMPTY_REPLY)
    if progress.repairs:
        return replace(progress, answer=reply.text, stopped=INVALID_OUTPUT)
    corrected: TurnExchange = (Asked(reply.text, ()), Objected(complaint))
    return replace(progress, repairs=1, exchange=progress.exchange + corrected)


def check_final_output(team: Team, progress: Progress) -> Progress:
    """How a turn ends: by itself, or stopped if its answer does not have the shape that is wanted."""
    if progress.handoff is not None or progress.stopped not in (None, EMPTY_REPLY, INVALID_OUTPUT, MAX_TOKENS):
        return progress
    if progress.stopped == MAX_TOKENS and progress.answer in ("", progress.partial):  # no step has replaced it
        return progress
    if progress.stopped == EMPTY_REPLY and not progress.answer:
        return progress
    output = team.output_at(progress.path)
    fits = output is None or output.complaint(progress.answer or "") is None
    return replace(progress, stopped=None if fits else INVALID_OUTPUT)


def _stop_at_limit(progress: Progress, limit: str) -> Progress:
    return replace(progress, answer=progress.partial, stopped=limit)


def _stop_denied(progress: Progress, denied: CallDenied) -> Progress:
    stopped = f"{DENIED_PREFIX}{denied.reason}"
    return replace(progress, answer=denied.answer or progress.partial, stopped=stopped, reply=None)


def _end_with_results(context: StepContext, progress: Progress, results: ToolResults) -> Progress | None:
    """How the turn ends with these results; None if it goes on."""
    reply = progress.reply
    assert reply is not None, "a model has asked for tools"
    finish = next((result.finish for result in results if result.finish is not None), None)
    if finish is not None:
        return replace(progress, answer=reply.text or finish.reason, finish=finish.reason)
    moved = next((result for result in results if result.target is not None), None)
    if moved is not None:
        outside = moved.handoff if moved.target not in context.member.reach else None
        if outside is None:
            return None
        said = reply.text or ("" if outside.briefing else outside.summary)
        return replace(progress, answer=said, handoff=outside)
    direct = all(context.member.is_direct(call.name) for call in reply.calls)
    if not direct or any(result.failed for result in results):
        return None
    return replace(progress, answer=BETWEEN_RESULTS.join(result.text for result in results if result.text))


TurnGenerator = Generator[Effect, EffectResult, TurnResult]


def take_turn(team: Team, progress: Progress, date: str = "") -> TurnGenerator:
    """Go from step to step until it is known what the turn ends with."""
    member = team.members[progress.path]
    step = member.declaration.steps.rows[0]
    for _ in range(MAX_EXTRA_STEPS + STEPS_PER_MODEL_CALL * team.limits.model_calls):
        progress = yield from _take_step(step, StepContext(team, member, date), progress)
        if progress.stopped is not None and progress.stopped.startswith(
            DENIED_PREFIX
        ):  # no step follows, not even one of the user's
            return turn_result_of(progress)
        if progress.path != member.path:
            member = team.members[progress.path]
            step = member.declaration.steps.rows[0]
        elif (following := member.declaration.steps.following(step, progress)) is not None:
            step = following
        else:
            if progress.answer is None:  # it is the partial text, and the turn is stopped if there is none
                progress = replace(progress, answer=progress.partial, stopped=None if progress.partial else EMPTY_REPLY)
            return turn_result_of(check_final_output(team, progress))
    text = progress.partial if progress.answer is None else progress.answer
    return turn_result_of(replace(progress, answer=text, stopped=progress.stopped or MAX_STEPS))


def _take_step(step: Step, context: StepContext, progress: Progress) -> Generator[Effect, EffectResult, Progress]:
    if step.work is not None:
        outcome = BUILTIN_STEPS[step.work](context, progress)
        return outcome if isinstance(outcome, Progress) else (yield from outcome)
    assert step.function is not None, "a step has been checked to do something"
    wanted = RunStep(progress.index, step.name, step.function, progress.detached())
    changes = yield wanted
    if isinstance(changes, CallDenied):
        return _stop_denied(progress, changes)
    assert isinstance(changes, StepChanges), "a step is answered by what it changes"
    after = apply_changes(progress, changes)
    if after.answer is None:  # with the answer goes all that the turn would have ended with
        after = replace(after, handoff=None, finish=None, stopped=None)
    answered_by_step = step.name if progress.answer is None else progress.answered_by_step
    return replace(
        after,
        index=progress.index + wanted.waits,  # an async step takes an index, a sync one none
        answered_by_step=answered_by_step if after.answer is not None else "",
    )


def turn_result_of(progress: Progress) -> TurnResult:
    """The result of a turn with this progress."""
    return TurnResult(
        progress.answer or "",
        progress.stopped,
        progress.handoff,
        progress.finish,
        progress.usage,
        progress.tools,
        progress.path[1:],
    )


HandleEffect = Callable[[Effect], Awaitable[EffectResult]]
"""Handles an effect, and returns its result."""


async def drive(turn: TurnGenerator, perform: HandleEffect) -> TurnResult:
    """Take a turn to its end."""
    try:
        wanted = next(turn)
        while True:
            wanted = turn.send(await perform(wanted))
    except StopIteration as end:
        said: TurnResult = end.value
        return said
