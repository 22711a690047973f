"""The five steps that every agent begins with, and the one for its intents.

Rule 1: who is active is settled once, when the turn begins: whom a person addresses, then whoever answered last, then
        the one that was asked. From there on only tools change it.
Rule 2: every call gets a result. Of several handoffs in one message the first that is possible wins.
Rule 3: `return_direct` ends a turn only if every call of the message has it and succeeded; otherwise the model reads
        all results, errors too.
Rule 4: a limit ends the turn with its name, and with what there is so far.
"""

from __future__ import annotations

from collections.abc import Generator

from msgspec.structs import replace

from antiphon.agents.calling import Returned
from antiphon.agents.handing import settled
from antiphon.agents.intents import call_of, matching
from antiphon.agents.messages import Answered, Asked, Exchange, Objected, Reply, Request
from antiphon.agents.preamble import dated, preceded
from antiphon.agents.progress import Progress
from antiphon.agents.scene import Scene
from antiphon.agents.steps import ANSWERED, Exit, Step, Steps
from antiphon.agents.team import Team
from antiphon.agents.wanted import AskModel, CallTool, Enter, Entered, Given, Wanted

EMPTY_REPLY = "empty_reply"
INVALID_OUTPUT = "invalid_output"
MAX_HANDOFFS = "max_handoffs"
MAX_MODEL_CALLS = "max_model_calls"
MAX_STEPS = "max_steps"
MAX_TOKENS = "max_tokens"
LIMITS = frozenset({EMPTY_REPLY, INVALID_OUTPUT, MAX_HANDOFFS, MAX_MODEL_CALLS, MAX_STEPS, MAX_TOKENS})
"""How a turn may be stopped that has an answer all the same, though a partial one."""

BETWEEN_RESULTS = "\n\n"
"""Separates the results of several `return_direct` tools in one answer."""

Working = Generator[Wanted, Given, Progress]
Results = tuple[Returned, ...]


def render_system_prompt(scene: Scene, progress: Progress) -> Working:
    """Find out what the active agent is told, and shown of what was said before; unless another one is to answer."""
    if _goes_elsewhere(scene, progress):
        return progress
    entered = yield Enter(progress.index, progress.path)
    assert isinstance(entered, Entered), "who enters is told and shown something"
    if entered.summarised is not None:
        usage = progress.usage + entered.summarised.usage
        progress = replace(progress, index=progress.index + 1, usage=usage)
    return replace(progress, system=entered.system, history=entered.history, past=entered.past)


def _goes_elsewhere(scene: Scene, progress: Progress) -> bool:
    """Whether the turn is about to be routed to somebody else, so that nobody would read this prompt."""
    if progress.routed or scene.team.route(progress.heard, progress.stored) == scene.member.path:
        return False
    return scene.member.steps.step("current_active_agent").work is current_active_agent


def current_active_agent(scene: Scene, progress: Progress) -> Progress:
    """Settle who handles the turn, and complete what that one is told."""
    if not progress.routed:
        place = scene.team.route(progress.heard, progress.stored)
        progress = replace(progress, routed=True, path=place)
        if place != scene.member.path:
            return progress
    system = preceded(progress.system, progress.lead, helps=scene.member.helps and scene.member.calls_tools)
    if scene.member.dated:
        system = dated(system, scene.manner.date)
    return progress if system == progress.system else replace(progress, system=system)


def match_intents(scene: Scene, progress: Progress) -> Progress:
    """What a person said, if it is a phrase that is known, is answered, or calls what it stands for, at once."""
    if progress.asked or progress.exchange or progress.heard is None:
        return progress
    tools = scene.member.tools
    known = [intent for intent in scene.member.intents if intent.tool is None or intent.tool in tools]
    intent = matching(known, scene.team.meant(progress.heard))
    if intent is None:
        return progress
    if intent.answer is not None:
        return replace(progress, answer=intent.answer)
    return replace(progress, reply=Reply("", (call_of(intent),)))


def continue_conversation(scene: Scene, progress: Progress) -> Progress:
    """Nothing: a place between routing and the model for steps of your own."""
    return progress


def call_model(scene: Scene, progress: Progress) -> Working:
    """Ask the model. Words are the answer, if they have the shape that is wanted; once they may be put right."""
    if progress.asked >= scene.team.limits.model_calls:
        return _stopped(progress, MAX_MODEL_CALLS)
    reply = yield AskModel(progress.index, _request(scene, progress), progress.path)
    assert isinstance(reply, Reply), "a model is answered by a reply"
    if not scene.member.calls_tools:  # it was told of none
        reply = replace(reply, calls=())
    progress = replace(
        progress,
        reply=reply,
        index=progress.index + 1,
        asked=progress.asked + 1,
        usage=progress.usage + reply.usage,
        partial=reply.text or progress.partial,
    )
    return progress if reply.calls else _answered(scene, progress, reply)


def call_tools(scene: Scene, progress: Progress) -> Working:
    """Call what the model asked for; then the turn ends, somebody else becomes active, or the model is asked again."""
    reply = progress.reply
    if reply is None or not reply.calls:
        return progress
    index, path, hops = progress.index, progress.path, progress.hops
    wanted = tuple(CallTool(index + place, call, path, hops) for place, call in enumerate(reply.calls))
    results = yield wanted
    assert isinstance(results, tuple), "tools are answered by as many results"
    one = settled(scene.team, path, results, hops=hops, refusal=scene.manner.refusal)
    pairs = zip(reply.calls, one.results, strict=True)
    done = (call.name for call, result in pairs if result.declined or not result.failed)
    usage = sum((result.usage for result in results), progress.usage)
    progress = replace(progress, index=index + len(wanted), tools=(*progress.tools, *done), usage=usage)
    ended = _ended(scene, progress, one.results)
    if ended is not None:
        return ended
    progress = replace(progress, reply=None, exchange=progress.exchange + _exchanged(reply, one.results))
    if one.place is not None:
        return replace(progress, path=one.place, routed=True, hops=hops + 1, repairs=0)
    if one.at_limit and progress.refused:
        return _stopped(progress, MAX_HANDOFFS)
    return replace(progress, refused=progress.refused + one.at_limit)


def has_calls(progress: Progress) -> bool:
    """Whether the last reply asks for tools."""
    return progress.reply is not None and bool(progress.reply.calls)


CALLS = Exit("call_tools", has_calls, "calls")

FIVE = Steps(
    (
        Step("render_system_prompt", exits=(Exit("current_active_agent"),), work=render_system_prompt),
        Step("current_active_agent", exits=(Exit("continue_conversation"),), work=current_active_agent),
        Step("continue_conversation", exits=(Exit("call_model"),), work=continue_conversation),
        Step("call_model", exits=(ANSWERED, CALLS, Exit("call_model")), work=call_model),
        Step("call_tools", exits=(ANSWERED, Exit("call_model")), work=call_tools),
    )
)
"""The steps of an agent."""


def with_intents(steps: Steps) -> Steps:
    """The same, with a step that matches intents before anything else is done."""
    rows = list(steps.rows)
    at = steps.names.index("continue_conversation")
    rows[at - 1] = replace(rows[at - 1], exits=(Exit("match_intents"),))
    exits = (ANSWERED, CALLS, Exit("continue_conversation"))
    return Steps((*rows[:at], Step("match_intents", exits=exits, work=match_intents), *rows[at:]))


def _request(scene: Scene, progress: Progress) -> Request:
    output = scene.team.output_at(progress.path)
    return Request(
        progress.system,
        progress.history,
        progress.exchange,
        scene.member.offered,
        progress.past,
        None if output is None else output.schema,
        progress.asked,
    )


def _answered(scene: Scene, progress: Progress, reply: Reply) -> Progress:
    output = scene.team.output_at(progress.path)
    complaint = None if output is None else output.complaint(reply.text)
    if reply.cut and (complaint is not None or output is None):
        return replace(progress, answer=reply.text, stopped=MAX_TOKENS)
    if complaint is None:
        return replace(progress, answer=reply.text, stopped=None if reply.text else EMPTY_REPLY)
    if progress.repairs:
        return replace(progress, answer=reply.text, stopped=INVALID_OUTPUT)
    corrected: Exchange = (Asked(reply.text, ()), Objected(complaint))
    return replace(progress, repairs=1, exchange=progress.exchange + corrected)


def judged(team: Team, progress: Progress) -> Progress:
    """How a turn ends: by itself, or stopped if its answer, whoever found it, has not the shape that is wanted."""
    if progress.handoff is not None or progress.stopped not in (None, EMPTY_REPLY, INVALID_OUTPUT, MAX_TOKENS):
        return progress
    if progress.stopped == MAX_TOKENS and progress.answer in ("", progress.partial):  # nobody has put it right
        return progress
    if progress.stopped == EMPTY_REPLY and not progress.answer:
        return progress
    output = team.output_at(progress.path)
    fits = output is None or output.complaint(progress.answer or "") is None
    return replace(progress, stopped=None if fits else INVALID_OUTPUT)


def _stopped(progress: Progress, limit: str) -> Progress:
    return replace(progress, answer=progress.partial, stopped=limit)


def _ended(scene: Scene, progress: Progress, results: Results) -> Progress | None:
    """How the turn ends with these results; None if it goes on."""
    reply = progress.reply
    assert reply is not None, "somebody has asked for tools"
    finish = next((result.finish for result in results if result.finish is not None), None)
    if finish is not None:
        return replace(progress, answer=reply.text or finish.reason, finish=finish.reason)
    moved = next((result for result in results if result.target is not None), None)
    if moved is not None:
        outside = moved.handoff if moved.target not in scene.member.reach else None
        return None if outside is None else replace(progress, answer=reply.text or outside.summary, handoff=outside)
    answer = _direct_answer(scene, reply, results)
    return None if answer is None else replace(progress, answer=answer)


def _direct_answer(scene: Scene, reply: Reply, results: Results) -> str | None:
    """The results as the answer, in call order; None unless every call of the message is direct and succeeded."""
    direct = all(scene.member.is_direct(call.name) for call in reply.calls)
    if not direct or any(result.failed for result in results):
        return None
    return BETWEEN_RESULTS.join(result.text for result in results if result.text)


def _exchanged(reply: Reply, results: Results) -> Exchange:
    answers = (Answered(call, result.text, result.failed) for call, result in zip(reply.calls, results, strict=True))
    return (Asked(reply.text, reply.calls, reply.thinking), *answers)
