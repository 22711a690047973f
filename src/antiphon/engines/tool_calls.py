"""Makes the tool calls of one attempt at a turn, or reads their results from its journal.

Rule 1: a call that has a result in the journal is not made again. If the attempt asks for another call at its index,
        the turn fails with `idempotency_conflict`.
Rule 2: a call is on disk before it leaves, and its result before the next call leaves.
Rule 3: a call that was in flight when its process died goes by the class of its tool: `keyed` (with the same key) and
        `natural` are made again, `unsafe` is reconciled or waits for a person.
Rule 4: which handoff of a message counts is decided before the results are recorded. The result of an unsafe
        call alone does not wait for that: it is kept as soon as the tool returns, and written with the next write.
        Losing it would cost more than a handoff that is recorded and does not count.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import msgspec

from antiphon.agents.call_results import NO_USAGE, Handoff, NotDone, ToolOutcome, ToolResult, Usage, decode_outcome
from antiphon.agents.intents import TRANSFER_PREFIX
from antiphon.agents.progress import CallTool, SettledHandoffs
from antiphon.agents.signature import INJECT_CHANNEL, INJECT_CONTEXT
from antiphon.agents.team import HandoffRefusal, settle_handoffs
from antiphon.agents.tool import BadArguments, Tool, bind_call, unknown_tool_result
from antiphon.agents.turn_channel import CallerContext, TurnChannel, merge_context_changes
from antiphon.core.codec import Malformed, as_type, digest_of, plain_data
from antiphon.core.conversation_events import EV_CONVERSATION_REFUSED, ConversationRefused
from antiphon.core.envelope import Json, match_name
from antiphon.core.execution_events import (
    EV_CALL_DOUBTED,
    EV_CALL_FAILED,
    EV_CALL_FINISHED,
    EV_CALL_STARTED,
    CallDoubted,
    CallFailed,
    CallFinished,
    CallStarted,
)
from antiphon.core.ruleset import ConversationHandoffs
from antiphon.core.turns import idempotency_key
from antiphon.engines.environment import TurnRun
from antiphon.engines.journal import CallInDoubt, TurnFailedError, TurnJournal, agent_in_journal
from antiphon.engines.tool_invocation import InjectedValues, call_tool, reconcile_call
from antiphon.engines.tracing import CallSpan
from antiphon.guards.run_limits import OTHERS_HAVE_TURN, HopLimit
from antiphon.hub.clock import DeadlineExceeded
from antiphon.hub.known_secrets import redact_text


class PreparedCall(msgspec.Struct, frozen=True):
    """A tool call that can leave."""

    wanted: CallTool
    tool: Tool
    arguments: Json
    key: str
    in_flight: bool
    """Whether it has left once before, and its result is unknown."""


async def resolve_tool_calls(journal: TurnJournal, wanted: Sequence[CallTool]) -> SettledHandoffs:
    """The results of these calls, made or recorded. Their changes to the context are added to the run's."""
    known: dict[int, ToolOutcome] = {}
    ready: list[PreparedCall] = []
    for place, each in enumerate(wanted):
        found = (
            _recorded_outcome(journal, each)
            or _refuse_beyond_limit(journal, each, place, count=len(wanted))
            or _prepare_call(journal, each)
        )
        if isinstance(found, PreparedCall):
            ready.append(found)
        else:
            known[each.index] = found
    ready = await _reconcile_unsafe(journal, ready, known)
    if ready:
        known |= await _make_calls(journal, ready)
    run = journal.run
    settled = _settle_handoffs(journal, wanted, known, made=ready)
    for each in wanted:
        outcome = known[each.index]
        if outcome.context is not None:
            run.context = merge_context_changes(run.context, outcome.context)
        run.audience = run.audience if outcome.audience is None else outcome.audience
    return settled


def _settle_handoffs(
    journal: TurnJournal,
    wanted: Sequence[CallTool],
    found: Mapping[int, ToolOutcome],
    *,
    made: Sequence[PreparedCall],
) -> SettledHandoffs:
    """Decide which handoff counts, and keep the results that waited for the decision."""
    run, first = journal.run, wanted[0]
    results = tuple(found[each.index].returned for each in wanted)
    if run.live.ruleset.traits.handoffs is not None:
        results = tuple(map(_as_briefing, results))
    refusal = _handoff_refusals(run)
    settled = settle_handoffs(run.team, first.path, results, hops=first.hops, refusal=refusal)
    returned = dict(zip((each.index for each in wanted), settled.results, strict=True))
    places = {each.index: place for place, each in enumerate(wanted)}
    for each in made:
        outcome, result = found[each.wanted.index], returned[each.wanted.index]
        if _awaits_settlement(each, outcome.returned):
            _keep_outcome(journal, each, msgspec.structs.replace(outcome, returned=result))
        if isinstance(refusal, _RefusedHandoffs) and result.declined:
            handoff = results[places[each.wanted.index]].handoff
            if handoff is not None and handoff in refusal.refused:
                journal.keep(EV_CONVERSATION_REFUSED, refusal.refused[handoff])
    return settled


def _as_briefing(result: ToolResult) -> ToolResult:
    """The result whose summary, if it hands a conversation over, is for the next agent, and no answer to the people."""
    if result.handoff is None or result.handoff.briefing:
        return result
    return msgspec.structs.replace(result, handoff=msgspec.structs.replace(result.handoff, briefing=True))


class _RefusedHandoffs:
    """Says why a handoff is not possible in a routed conversation, and keeps what was refused."""

    def __init__(self, run: TurnRun, handoffs: ConversationHandoffs) -> None:
        self._run, self._handoffs = run, handoffs
        self.refused: dict[Handoff, ConversationRefused] = {}

    def __call__(self, handoff: Handoff) -> str | None:
        live, speaker = self._run.live, self._run.agent.name
        memory = live.ruleset.adapter_memory(live.fold)
        target, phase = handoff.target, handoff.phase
        found = self._handoffs.objection(memory, live.state, speaker=speaker, target=target, phase=phase)
        if found is None:
            self.refused.pop(handoff, None)
            return None
        self.refused[handoff] = ConversationRefused(speaker, target, found.reason, phase)
        return found.advice


def _handoff_refusals(run: TurnRun) -> HandoffRefusal:
    """Says why a handoff is not possible in this channel, in words for a model; None if it is."""
    live = run.live
    if live.ruleset.traits.handoffs is not None:
        return _RefusedHandoffs(run, live.ruleset.traits.handoffs)
    limit = next((guard for guard in live.ruleset.guards if isinstance(guard, HopLimit)), HopLimit())

    def refusal(handoff: Handoff) -> str | None:
        state = live.state
        if not run.ends_in_packet:
            return f"Nobody can be handed anything in a {state.type} channel; answer yourself."
        target = match_name(handoff.target, state.participants)
        if target is None:
            known = ", ".join(state.participants)
            return f"Nobody called {handoff.target!r} takes part here; there are: {known}."
        why = limit.refusal(state, run.agent.name, target)
        if why == OTHERS_HAVE_TURN:
            return "Others have the turn together with you, so that you cannot give it away; answer yourself."
        return None if why is None else f"There have been {limit.most} handoffs in a row, the limit; answer yourself."

    return refusal


def _awaits_settlement(ready: PreparedCall, returned: ToolResult) -> bool:
    return returned.target is not None and ready.tool.idempotency != "unsafe"


def _recorded_outcome(journal: TurnJournal, wanted: CallTool) -> ToolOutcome | None:
    """The recorded result of this call. Another call in its place is a conflict, and nothing runs."""
    entry = journal.call_record(wanted.index)
    if entry.started is not None and journal.note_difference(wanted.index, digest_of_call(wanted)):
        detail = f"call {wanted.index} was {entry.started.name}, and is {wanted.call.name} with other arguments"
        raise TurnFailedError("idempotency_conflict", detail)
    match entry.outcome:
        case CallFinished(result=result):
            outcome = decode_outcome(result)
            if not isinstance(outcome, ToolOutcome):
                raise Malformed("malformed", f"call {wanted.index} is not recorded as the call of a tool")
            return outcome
        case CallFailed(error=error, usage=usage):
            return ToolOutcome(ToolResult(error, failed=True, usage=as_type(usage, Usage)))
        case None:
            return None


def _refuse_beyond_limit(journal: TurnJournal, wanted: CallTool, place: int, *, count: int) -> ToolOutcome | None:
    """The result of a call beyond the limit of one message; None if the call is within it.

    A call that has left before is within it: it may have left under another limit, and has an effect to account for.
    """
    most = journal.run.team.limits.tool_calls
    if place < most or journal.call_record(wanted.index).started is not None:
        return None
    why = f"Not called: the message asks for {count} tools, and the limit is {most}; ask for the others next."
    return _refuse_call(journal, wanted, ToolResult(why, failed=True))


def _prepare_call(journal: TurnJournal, wanted: CallTool) -> PreparedCall | ToolOutcome:
    """The call, ready to leave; without such a tool or with wrong arguments, the result the model reads."""
    run, name = journal.run, wanted.call.name
    tools = run.team.members[wanted.path].tools
    tool = tools.get(name) or _find_transfer_tool(name, tools)
    if tool is None:
        return _refuse_call(journal, wanted, unknown_tool_result(name, tools))
    try:
        arguments = bind_call(tool, wanted.call)
    except BadArguments as error:
        return _refuse_call(journal, wanted, ToolResult(redact_text(str(error)), failed=True))
    key = idempotency_key(run.state, run.turn, wanted.index, tool=name, tenant=run.environment.tenant)
    return PreparedCall(wanted, tool, arguments, key, journal.call_record(wanted.index).in_flight)


def _refuse_call(journal: TurnJournal, wanted: CallTool, returned: ToolResult) -> ToolOutcome:
    """The result of a call that cannot be made; one that has left before fails the turn instead."""
    if journal.call_record(wanted.index).in_flight:
        detail = f"call {wanted.index} was under way when its process ended, and cannot be made now: {returned.text}"
        raise TurnFailedError("call_lost", detail)
    journal.keep(EV_CALL_STARTED, _call_started(journal, wanted))
    journal.keep(EV_CALL_FAILED, CallFailed(journal.turn_id, wanted.index, returned.text))
    return ToolOutcome(returned)


def _call_started(journal: TurnJournal, wanted: CallTool, key: str = "") -> CallStarted:
    call, agent = wanted.call, agent_in_journal(wanted.path)
    return CallStarted(journal.turn_id, wanted.index, call.name, digest_of_call(wanted), call.args, key, agent)


async def _reconcile_unsafe(
    journal: TurnJournal, ready: list[PreparedCall], settled: dict[int, ToolOutcome]
) -> list[PreparedCall]:
    """The calls that may leave. An unsafe one that was in flight is reconciled, or waits for a person."""
    unsettled = []
    for each in ready:
        if not each.in_flight or each.tool.idempotency != "unsafe":
            continue
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
    """The results of calls that leave now, all at once. If one goes wrong, no other is left running behind."""
    await journal.start([_call_started(journal, each.wanted, each.key) for each in ready])
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
        channel = _turn_channel(journal, ready, ready.tool.injected)
        given = _injected_values(journal, ready, channel)
        run.in_progress[index] = channel
        try:
            async with run.timers.within(ready.tool.timeout):
                returned = await call_tool(ready.tool, ready.arguments, given)
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
            returned = ToolResult(f"{ready.tool.name}: {late}", failed=True)
        finally:
            if channel is not None:
                channel.over = True
            del run.in_progress[index]
        await _give_up_tasks(channel, "given_up")  # tasks that the tool itself waits for no more
        self._remaining -= 1
        if channel is not None and channel.tasks.usage != NO_USAGE:
            returned = msgspec.structs.replace(returned, usage=channel.tasks.usage)
        tool_outcome = ToolOutcome(returned) if returned.failed else _outcome_with_writes(returned, channel)
        if not _awaits_settlement(ready, returned):
            _keep_outcome(journal, ready, tool_outcome)
        if self._remaining:  # this result must not wait for the calls still in progress
            await journal.write()
        return tool_outcome


def _keep_outcome(journal: TurnJournal, ready: PreparedCall, outcome: ToolOutcome) -> ToolOutcome:
    index, returned = ready.wanted.index, outcome.returned
    if returned.failed and not returned.declined:
        usage = plain_data(returned.usage) if returned.usage != NO_USAGE else {}
        journal.keep(EV_CALL_FAILED, CallFailed(journal.turn_id, index, returned.text, usage=usage))
    else:
        journal.keep(EV_CALL_FINISHED, CallFinished(journal.turn_id, index, plain_data(outcome)))
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


def _find_transfer_tool(name: str, tools: Mapping[str, Tool]) -> Tool | None:
    """The tool that transfers to the agent in this name, in any case."""
    found = match_name(name, [each for each in tools if each.startswith(TRANSFER_PREFIX)])
    return None if found is None else tools[found]


def _outcome_with_writes(returned: ToolResult, channel: TurnChannel | None) -> ToolOutcome:
    """The outcome of a call that has not failed, with what it wrote to its channel."""
    if channel is None:
        return ToolOutcome(returned)
    written = channel.written
    return ToolOutcome(returned, written if written.set or written.delete else None, channel.audience)


def digest_of_call(wanted: CallTool) -> str:
    """The digest of a tool call."""
    return digest_of([wanted.call.name, wanted.call.args])
