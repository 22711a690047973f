"""Handles the effects of one attempt at a turn: asks the model, calls tools, renders prompts, runs steps.

Rule 1: an effect that has a result in the journal is not repeated. If the attempt asks for something else now, a
        model's recorded reply is used and the difference noted; for a tool the turn fails.
Rule 2: a call is on disk before it leaves, and its result before the next call leaves.
Rule 3: a prompt is rendered anew for each attempt, and a sync step is run anew: both must give the same each time.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from inspect import isawaitable

from antiphon.agents.call_results import Reply, StepChanges, SummaryOutcome, one_reply
from antiphon.agents.history import ShownHistory, SummarisedTranscript, as_summarising
from antiphon.agents.progress import (
    STEP_FIELDS,
    AskModel,
    CallDenied,
    Effect,
    EffectResult,
    MemberPath,
    PreparedPrompt,
    PreparePrompt,
    Progress,
    RunStep,
    changes_between,
)
from antiphon.agents.team import Member, SystemPrompt, format_member_path
from antiphon.core.codec import Malformed, as_type, check_json, digest_of, plain_data
from antiphon.core.execution_events import EV_CALL_FINISHED, CallFinished, CallStarted
from antiphon.core.text import describe_error
from antiphon.core.turns import TurnFailure
from antiphon.core.views import Message, View
from antiphon.engines.attempt_ends import TurnFailedError
from antiphon.engines.journal import TurnJournal, agent_in_journal, call_failure, recordable_data, recorded_result
from antiphon.engines.model_calls import (
    NoModelAnswer,
    RetriedModelCall,
    ask_model,
    deadline_of_guards,
    finished_call,
    start_model_call,
)
from antiphon.engines.reservations import reserving_summary
from antiphon.engines.tool_calls import resolve_tool_calls
from antiphon.engines.user_code import call_contained, run_contained

SUMMARY_CALL = "summary"
STEP_CALL_PREFIX = "step:"
"""Precedes the name of a user-defined step in the journal."""


class EffectHandler:
    """Handles the effects of one attempt."""

    def __init__(self, journal: TurnJournal, default_view: View) -> None:
        self._journal, self._run, self._default_view = journal, journal.run, default_view

    async def handle(self, wanted: Effect) -> EffectResult:
        """The result of an effect."""
        if len(self._run.team.members) > 1:
            self._journal.active = format_member_path(_effect_path(wanted))
        match wanted:
            case AskModel():
                return await ask_model(self._journal, wanted)
            case PreparePrompt():
                return await self._prepare_prompt(wanted)
            case RunStep():
                self._release_slot()
                return await self._run_step(wanted)
            case tuple():  # the tool calls of one message
                self._release_slot()
                return await resolve_tool_calls(self._journal, wanted)

    def _release_slot(self) -> None:
        """Give up the place to ask a model: what follows may wait for another turn, which may need the place."""
        self._run.environment.limit.release_slot(self._run.attempt.job.job_id)

    # Prompts

    async def _prepare_prompt(self, wanted: PreparePrompt) -> PreparedPrompt | CallDenied:
        """The prompt and the history of this member. One that becomes active again is shown the same history."""
        team = self._run.team
        member = team.members[wanted.path]
        owner = team.lead if member.declaration.memory is None else member
        shown, made = self._run.shown.get(owner.path), None
        if shown is None:
            showing = await self._shown_history(wanted, owner)
            if isinstance(showing, CallDenied):
                return showing
            shown, made = showing
            shown = await self._with_briefing(shown, owner)
            self._run.shown[owner.path] = shown
        system = await self._system_prompt(member, shown.messages)
        return PreparedPrompt(system, shown.messages, shown.past, None if made is None else Reply("", usage=made.usage))

    async def _with_briefing(self, shown: ShownHistory, owner: Member) -> ShownHistory:
        """The history behind what the agent that handed the conversation over has told the speaker, if one has."""
        run, view = self._run, owner.declaration.memory or self._default_view
        if run.live.ruleset.traits.handoffs is None:
            return shown
        briefing = (await run.read_history(view.named)).briefing_before(run.turn.shown_until)
        return shown if briefing is None else ShownHistory([Message("user", briefing), *shown.messages], shown.past)

    async def _shown_history(
        self, wanted: PreparePrompt, owner: Member
    ) -> tuple[ShownHistory, SummaryOutcome | None] | CallDenied:
        """The history that a memory shows, and the summary that was made for it."""
        view, run = owner.declaration.memory or self._default_view, self._run
        history, before = await run.read_history(view.named), run.turn.shown_until
        if view.named not in run.before:
            run.before[view.named] = history.messages_before(before, people=run.people, meant=run.team.read)
        messages, past = run.before[view.named]
        summarising = as_summarising(view)
        if summarising is None:
            return ShownHistory(call_contained(lambda: view.shown(messages)), past), None
        last = history.summary_before(run.turn.sequence, format_member_path(owner.path))
        due = summarising.due(messages, last)
        if due is None:
            return ShownHistory(summarising.with_summary(messages, last), past), None
        made = await self._summarise(wanted, owner, view=summarising, messages=messages, due=due)
        if isinstance(made, CallDenied):
            return made
        return ShownHistory(summarising.with_summary(messages, made.summary), past), made

    async def _summarise(
        self,
        wanted: PreparePrompt,
        owner: Member,
        *,
        view: SummarisedTranscript,
        messages: Sequence[Message],
        due: Sequence[Message],
    ) -> SummaryOutcome | CallDenied:
        """The summary that is made in this turn: a call of its own, recorded or made now."""
        journal, run, index = self._journal, self._run, wanted.index
        recorded = recorded_result(journal, index, SUMMARY_CALL, kind=SummaryOutcome)
        if recorded is not None:
            return recorded
        limits = owner.declaration.limits
        call = CallStarted(run.turn_id, index, SUMMARY_CALL, digest_of(due), agent=agent_in_journal(wanted.path))
        if run.live.ruleset.calls.asked:
            call = reserving_summary(journal, call, due=due, limits=limits)
        started = await start_model_call(journal, call)
        if isinstance(started, CallDenied):
            return started
        until = deadline_of_guards(call, started)
        asking = RetriedModelCall(journal, wanted, model=view.summarise, limits=limits, until=until)
        try:
            reply = await asking.answer(lambda: _call_summariser(view, due, f"the summary of {run.caller(owner.path)}"))
        except NoModelAnswer as error:
            if error.denied is not None:
                return CallDenied(error.denied.denied, error.denied.answer)
            raise error.as_failure(journal, index, "summary_error") from error
        try:
            summary = view.summary_of(messages, reply.text, format_member_path(owner.path))
            check_json(summary.text)
            result = recordable_data(SummaryOutcome(summary, reply.usage), "the summary")
            made = as_type(result, SummaryOutcome)
        except Exception as error:
            detail = str(error) if isinstance(error, Malformed) else describe_error(error)
            raise call_failure(self._journal, index, TurnFailure("summary_error", detail)) from error
        journal.keep(EV_CALL_FINISHED, finished_call(journal, index, result, usage=reply.usage))
        return made

    async def _system_prompt(self, member: Member, shown: Sequence[Message]) -> str:
        prompt = member.declaration.system_prompt
        if isinstance(prompt, str):
            return prompt
        await self._journal.claim()  # before any user code runs
        return await _render_prompt(prompt, shown, f"the system prompt of {self._run.caller(member.path)}")

    # User-defined steps

    async def _run_step(self, wanted: RunStep) -> StepChanges | CallDenied:
        journal = self._journal
        if not wanted.waits:
            await journal.claim()
            return await self._step_changes(wanted)
        name, path = f"{STEP_CALL_PREFIX}{wanted.name}", wanted.progress.path
        recorded = recorded_result(journal, wanted.index, name, kind=StepChanges)
        if recorded is not None:
            return recorded
        started = await start_model_call(
            journal, CallStarted(journal.turn_id, wanted.index, name, digest_of(name), agent=agent_in_journal(path))
        )
        if isinstance(started, CallDenied):
            return started
        try:
            changes = await self._step_changes(wanted)
            check_json(plain_data(changes))
            result = recordable_data(changes, "what it changes")
        except (Malformed, TypeError) as error:
            raise call_failure(
                self._journal, wanted.index, TurnFailure("step_error", f"{wanted.name}: {error}")
            ) from error
        except TurnFailedError as failing:
            raise call_failure(journal, wanted.index, failing.failure) from failing
        journal.keep(EV_CALL_FINISHED, CallFinished(journal.turn_id, wanted.index, result))
        return as_type(result, StepChanges)

    async def _step_changes(self, wanted: RunStep) -> StepChanges:
        """The changes the step makes. An error of the step fails the turn with its message."""

        async def run() -> object:
            given = wanted.function(wanted.progress)
            return await given if wanted.waits and isawaitable(given) else given

        before = wanted.progress.detached()  # the step may change what it is given in place
        try:
            name = f"step {wanted.name!r} of {self._run.caller(wanted.progress.path)}"
            after = await run_contained(run, name, wanted.function)
        except Exception as error:
            raise TurnFailedError("step_error", f"{wanted.name}: {describe_error(error)}") from error
        if not wanted.waits and inspect.iscoroutine(after):
            after.close()  # it is never awaited
            raise TurnFailedError(
                "step_error", f"{wanted.name}: it returned something to await; make it an async function"
            )
        if after is None:
            return StepChanges()
        if not isinstance(after, Progress):
            raise TurnFailedError(
                "step_error", f"{wanted.name}: it returned {type(after).__name__}, not the progress, or None"
            )
        _check_step_changes(wanted, after)
        return changes_between(before, after)


def _effect_path(wanted: Effect) -> MemberPath:
    """The place in the team of the agent that wants an effect."""
    match wanted:
        case AskModel(path=path) | PreparePrompt(path=path):
            return path
        case RunStep(progress=progress):
            return progress.path
        case tuple():  # the tool calls of one message
            return wanted[0].path


async def _call_summariser(view: SummarisedTranscript, due: Sequence[Message], name: str) -> Reply:
    async def run() -> object:
        given = view.summarise(due)
        return await given if isawaitable(given) else given

    value = await run_contained(run, name, view.summarise)
    reply = Reply(value) if isinstance(value, str) else one_reply(value)
    if not reply.text:
        raise ValueError("the summary is empty")
    return reply


async def _render_prompt(prompt: SystemPrompt, shown: Sequence[Message], name: str) -> str:
    """The system prompt. An error of the user's function fails the turn with its message."""
    assert not isinstance(prompt, str), "a text needs no rendering"

    async def render() -> object:
        rendered = prompt(shown)
        return await rendered if isawaitable(rendered) else rendered

    try:
        text = await run_contained(render, name, prompt)
    except Exception as error:
        raise TurnFailedError("prompt_error", describe_error(error)) from error
    if not isinstance(text, str):
        raise TurnFailedError("prompt_error", f"the system prompt is {type(text).__name__}, not a text")
    return text


def _check_step_changes(wanted: RunStep, after: Progress) -> None:
    """A step that changes a field it may not change fails the turn."""
    fields = (name for name in Progress.__struct_fields__ if name not in STEP_FIELDS)
    wrong = next((name for name in fields if getattr(after, name) != getattr(wanted.progress, name)), None)
    if wrong is not None:
        detail = f"{wanted.name}: it changed {wrong}; a step can change: {', '.join(STEP_FIELDS)}"
        raise TurnFailedError("step_error", detail)
