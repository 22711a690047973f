"""Makes the tool calls of one attempt at a turn, or reads their results from its journal.

Rule 1: a call is on disk before it leaves, and its result before the next call leaves.
Rule 2: a call that was in flight when its process died goes by the class of its tool: `keyed` (with the same key) and
        `natural` are made again, `unsafe` is reconciled or waits for a person.
Rule 3: while a call of a message waits for a person, the others run. The message is answered when all have an outcome.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import msgspec

from antiphon.agents.call_results import NO_USAGE, NotDone, ToolOutcome, ToolResult, failed_result
from antiphon.agents.progress import CallDenied, CallTool, SettledHandoffs
from antiphon.agents.signature import INJECT_CHANNEL, INJECT_CONTEXT
from antiphon.agents.turn_channel import CallerContext, TurnChannel, merge_context_changes
from antiphon.core.codec import plain_data
from antiphon.core.execution_events import (
    CUT_OFF_CLASSES,
    EV_CALL_DOUBTED,
    EV_CALL_FAILED,
    EV_CALL_FINISHED,
    CallDoubted,
    CallFailed,
    CallFinished,
    FailureClass,
)
from antiphon.engines.attempt_ends import AwaitsApproval, CallInDoubt
from antiphon.engines.call_approvals import approval_requests, note_parameters
from antiphon.engines.call_handoffs import settle_message
from antiphon.engines.cut_calls import LateResult, cut_class
from antiphon.engines.journal import TurnJournal
from antiphon.engines.once_calls import RepeatedCall, is_registered, register_once
from antiphon.engines.prepared_calls import (
    PreparedCall,
    awaits_settlement,
    count_failure,
    permitted_call,
    prepare_call,
    recorded_outcome,
    refuse_beyond_limit,
    started_entry,
)
from antiphon.engines.saga_steps import keep_step_outcome, register_steps
from antiphon.engines.tool_invocation import InjectedValues, call_tool, late_result, reconcile_call
from antiphon.engines.tracing import CallSpan
from antiphon.hub.clock import DeadlineExceeded, Timeout, shorter_time
from antiphon.hub.known_secrets import redact_text

NO_LONGER_KNOWN = "Not called: an earlier call with the same values has had a result, which is gone. Call it again."


async def resolve_tool_calls(journal: TurnJournal, wanted: Sequence[CallTool]) -> SettledHandoffs:
    """The results of these calls, made or recorded. Their changes to the context are added to the run's."""
    known: dict[int, ToolOutcome] = {}
    ready: list[PreparedCall] = []
    for place, each in enumerate(wanted):
        found = (
            recorded_outcome(journal, each)
            or refuse_beyond_limit(journal, each, place, count=len(wanted))
            or prepare_call(journal, each)
        )
        if isinstance(found, PreparedCall):
            ready.append(found)
        else:
            known[each.index] = found
    ready = await _reconcile_unsafe(journal, ready, known)
    if ready:
        known |= await _make_calls(journal, ready)
    run = journal.run
    waiting = [each.call.name for each in wanted if journal.calls.awaits_approval(each.index)]
    if waiting:
        raise AwaitsApproval(", ".join(waiting))
    made = [each for each in ready if journal.calls.denial(each.wanted.index) is None]
    if any(outcome.returned.target is not None or outcome.returned.finish is not None for outcome in known.values()):
        settled = settle_message(journal, wanted, known, made=made, keep=_keep_outcome)
    else:
        settled = SettledHandoffs(tuple(known[each.index].returned for each in wanted))
    final = next((denial for each in wanted if (denial := journal.calls.denial(each.index)) and denial.final), None)
    if final is not None:
        settled = msgspec.structs.replace(settled, denied=CallDenied(final.denied, final.answer))
    for each in wanted:
        outcome = known[each.index]
        if outcome.context is not None:
            run.context = merge_context_changes(run.context, outcome.context)
        run.audience = run.audience if outcome.audience is None else outcome.audience
    return settled


async def _reconcile_unsafe(
    journal: TurnJournal, ready: list[PreparedCall], settled: dict[int, ToolOutcome]
) -> list[PreparedCall]:
    """The calls that may leave. An unsafe one that was in flight is reconciled, or waits for a person."""
    unsettled = []
    for each in ready:
        if not each.in_flight or each.tool.idempotency != "unsafe":
            continue
        if each.tool.protections.once and not await is_registered(journal, each):
            continue  # it was about to leave, or waited for another call
        outcome = await _reconcile(journal, each)
        if isinstance(outcome, ToolOutcome):
            settled[each.wanted.index] = outcome
        elif not isinstance(outcome, NotDone):
            unsettled.append((each, "it was under way when its process ended"))
    await _record_doubts(journal, unsettled)
    return [each for each in ready if each.wanted.index not in settled]


async def _reconcile(journal: TurnJournal, ready: PreparedCall) -> ToolOutcome | NotDone | None:
    """The result that `reconcile` finds, or that the call did not take effect; None if neither is known."""
    if ready.tool.reconcile is None:
        return None
    channel = _turn_channel(journal, ready, ready.tool.reconcile_injected)
    given = _injected_values(journal, ready, channel)
    try:
        async with journal.run.timers.within(ready.tool.timeout):
            outcome = await reconcile_call(ready.tool, ready.arguments, given)
    except DeadlineExceeded:
        return None
    if isinstance(outcome, NotDone):
        return outcome
    if outcome.failed:
        return None
    return _keep_outcome(journal, ready, _outcome_with_writes(outcome, channel))


async def _record_doubts(journal: TurnJournal, doubted: Sequence[tuple[PreparedCall, str]]) -> None:
    if not doubted:
        return
    doubts = (
        CallDoubted(journal.turn_id, each.wanted.index, each.tool.name, each.wanted.path[-1], why)
        for each, why in doubted
    )
    await journal.write(EV_CALL_DOUBTED, *doubts)
    raise CallInDoubt(", ".join(each.tool.name for each, _ in doubted))


async def _make_calls(journal: TurnJournal, ready: Sequence[PreparedCall]) -> dict[int, ToolOutcome]:
    """The results of calls that leave now, all at once. If one goes wrong, no other is left running behind.

    A call that is denied has its result at once; one that waits for a person has none.
    """
    leaving = [each for each in ready if not journal.calls.awaits_approval(each.wanted.index)]
    denied: dict[int, ToolOutcome] = {}
    if leaving:
        if journal.run.live.ruleset.calls.asked:
            note_parameters(journal, leaving)
        wanted = any(each.tool.protections.approval for each in leaving)
        requests = await approval_requests(journal, leaving) if wanted else []
        asked = {request.index for request in requests}
        if any(each.tool.compensate is not None for each in leaving):
            denied = await register_steps(journal, [each for each in leaving if each.wanted.index not in asked])
            leaving = [each for each in leaving if each.wanted.index not in denied]
        departing = [started_entry(journal, each) for each in leaving if each.wanted.index not in asked]
        await journal.start(*departing, requests=requests)
    permitted: list[PreparedCall] = []
    for each in leaving:
        allowed = permitted_call(journal, each)
        if isinstance(allowed, PreparedCall):
            permitted.append(allowed)
        elif allowed is not None:
            denied[each.wanted.index] = allowed
    return denied | (await _run_calls(journal, permitted) if permitted else {})


async def _run_calls(journal: TurnJournal, ready: Sequence[PreparedCall]) -> dict[int, ToolOutcome]:
    batch = _CallBatch(journal, len(ready))
    if len(ready) == 1:
        outcomes: list[ToolOutcome | str | BaseException] = [await batch.run(ready[0])]
    else:
        outcomes = list(await asyncio.gather(*map(batch.run, ready), return_exceptions=True))
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    pairs = list(zip(ready, outcomes, strict=True))
    await _record_doubts(journal, [(each, why) for each, why in pairs if isinstance(why, str)])
    return {each.wanted.index: outcome for each, outcome in pairs if isinstance(outcome, ToolOutcome)}


class _CallBatch:
    """Calls that leave together."""

    def __init__(self, journal: TurnJournal, count: int) -> None:
        self._journal, self._remaining = journal, count

    async def run(self, ready: PreparedCall) -> ToolOutcome | str:
        """The result of a call; the reason why it is unknown, if it is."""
        wanted = ready.wanted
        with self._journal.run.trace.tool_call(wanted.path, wanted.call) as span:
            return await self._run_in_span(ready, span)

    async def _run_in_span(self, ready: PreparedCall, span: CallSpan) -> ToolOutcome | str:
        journal, run, index = self._journal, self._journal.run, ready.wanted.index
        if ready.tool.protections.once:
            entered = await self._enter_once(ready)
            if isinstance(entered, ToolOutcome):
                return entered
            ready = entered
        channel = _turn_channel(journal, ready, ready.tool.injected)
        given = _injected_values(journal, ready, channel)
        run.in_progress[index] = channel
        failure: FailureClass = "error"
        telling = late_result.set(LateResult(run, index, ready.tool.name) if ready.until else None)
        progress = ""
        seconds = shorter_time(run.environment.clock, ready.tool.timeout, run.on_clock(ready.until))
        try:
            async with _time_of_call(journal, ready, channel, seconds=seconds):
                returned, progress = await _called_tool(journal, ready, given)
            if returned.failed:
                # Before the model reads it: what it reads now and what the journal gives back must be the same.
                returned = msgspec.structs.replace(returned, text=redact_text(returned.text))
                span.failed("tool_error")
        except DeadlineExceeded as error:
            span.failed("timeout")
            await _give_up_tasks(channel, "timed_out")
            late = f"{error}; it may have taken effect all the same"
            if ready.tool.idempotency == "unsafe":
                outcome = await _reconcile(journal, ready)
                return outcome if isinstance(outcome, ToolOutcome) else late
            returned, failure = (
                ToolResult(f"{ready.tool.name}: {late}", failed=True),
                cut_class(run.live.ruleset, ready.tool.timeout, seconds),
            )
        finally:
            late_result.reset(telling)
            if channel is not None:
                channel.over = True
            del run.in_progress[index]
        await _give_up_tasks(channel, "given_up")  # tasks that the tool itself waits for no more
        self._remaining -= 1
        if channel is not None and channel.tasks.usage != NO_USAGE:
            returned = msgspec.structs.replace(returned, usage=channel.tasks.usage)
        tool_outcome = ToolOutcome(returned) if returned.failed else _outcome_with_writes(returned, channel)
        if not awaits_settlement(ready, returned):
            _keep_outcome(journal, ready, tool_outcome, failure=failure, progress=progress)
        if self._remaining or ready.tool.protections.once:  # calls may wait for this result
            await journal.write()
        return tool_outcome

    async def _enter_once(self, ready: PreparedCall) -> PreparedCall | ToolOutcome:
        """The call, if it is the one that runs; otherwise its answer, which is kept."""
        registered = await register_once(self._journal, ready)
        while isinstance(registered, RepeatedCall):
            found: ToolOutcome | NotDone | None = None
            if registered.behind:
                found = await _reconcile(self._journal, msgspec.structs.replace(ready, key=registered.key))
            if not isinstance(found, NotDone):
                if found is None:
                    found = _keep_repeated(self._journal, ready, registered)
                self._remaining -= 1
                if self._remaining:
                    await self._journal.write()
                return found
            registered = await register_once(self._journal, ready, behind=registered.behind)
        if ready.wanted.index in self._journal.answered:  # the earlier result was erased meanwhile
            return _keep_outcome(self._journal, ready, ToolOutcome(failed_result(NO_LONGER_KNOWN)))
        return registered


def _keep_repeated(journal: TurnJournal, ready: PreparedCall, repeated: RepeatedCall) -> ToolOutcome:
    """The answer of a call that another one has been made for."""
    outcome = repeated.outcome
    if outcome.returned.failed:
        return _keep_outcome(journal, ready, outcome)
    finished = CallFinished(journal.turn_id, ready.wanted.index, plain_data(outcome), first=repeated.first)
    journal.keep(EV_CALL_FINISHED, finished)
    keep_step_outcome(journal, ready, "repeated")
    return outcome


async def _called_tool(journal: TurnJournal, ready: PreparedCall, given: InjectedValues) -> tuple[ToolResult, str]:
    """The result of a call, and the digest of what it has reached, if its tool says so."""
    called = await call_tool(ready.tool, ready.arguments, given)
    if called.complaint:
        journal.warn("progress_key", ready.wanted.path, f"the tool {ready.tool.name!r}: {called.complaint}")
    return called.returned, called.progress


def _time_of_call(
    journal: TurnJournal, ready: PreparedCall, channel: TurnChannel | None, *, seconds: float | None
) -> Timeout:
    """The time that a call may take. That of its tool stands still while it waits for tasks that wait for a person."""
    run = journal.run
    if channel is None or ready.until:
        return run.timers.within(seconds)
    return run.timers.within(seconds, lambda: channel.tasks.wait_for_person(run.live.state))


def _keep_outcome(
    journal: TurnJournal,
    ready: PreparedCall,
    outcome: ToolOutcome,
    *,
    failure: FailureClass = "error",
    progress: str = "",
) -> ToolOutcome:
    index, returned, can_be_undone = ready.wanted.index, outcome.returned, ready.tool.compensate is not None
    if returned.failed and not returned.declined:
        usage = plain_data(returned.usage) if returned.usage != NO_USAGE else {}
        is_cut_off = failure in CUT_OFF_CLASSES
        kind = failure if is_cut_off and ready.tool.is_accounted else count_failure(journal, failure)
        failed = CallFailed(journal.turn_id, index, returned.text, usage=usage, failure=kind)
        journal.keep(EV_CALL_FAILED, failed)
        if can_be_undone:
            keep_step_outcome(journal, ready, "unknown" if is_cut_off else "failed")
    else:
        reached = progress if journal.run.live.ruleset.calls.asked else ""
        finished = CallFinished(journal.turn_id, index, plain_data(outcome), progress=reached)
        journal.keep(EV_CALL_FINISHED, finished)
        if can_be_undone:
            keep_step_outcome(journal, ready, "done")
    return outcome


def _turn_channel(journal: TurnJournal, ready: PreparedCall, injected: Mapping[str, str]) -> TurnChannel | None:
    """The channel for a function that is given it, or the context; None for any other."""
    if {INJECT_CHANNEL, INJECT_CONTEXT}.isdisjoint(injected.values()):
        return None
    run = journal.run
    caller = CallerContext(
        run.team.members[ready.wanted.path],
        run.environment.clock.now,
        run.environment.delegates,
        run.turn,
        ready.key,
        journal.given_tasks,
        run.team.limits.tasks,
    )
    return TurnChannel(run.state, run.team.lead.name, run.judge, before=run.context, caller=caller)


async def _give_up_tasks(channel: TurnChannel | None, reason: str) -> None:
    if channel is not None:
        channel.over = True
        await channel.tasks.give_up(reason)


def _injected_values(journal: TurnJournal, ready: PreparedCall, channel: TurnChannel | None) -> InjectedValues:
    caller = journal.run.caller(ready.wanted.path)
    context = {} if channel is None else channel.context_vars
    return InjectedValues(channel=channel, context=context, idempotency_key=ready.key, caller=caller)


def _outcome_with_writes(returned: ToolResult, channel: TurnChannel | None) -> ToolOutcome:
    """The outcome of a call that has not failed, with what it wrote to its channel."""
    if channel is None:
        return ToolOutcome(returned)
    written = channel.written
    return ToolOutcome(returned, written if written.set or written.delete else None, channel.audience)
