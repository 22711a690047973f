"""The calls that a saga undoes, as the logs have them: what they were called with, and what became of them.

Rule 1: the log of the run is read on, not again. Those of tasks are read once no turn of theirs runs any more.
Rule 2: a call without a recorded outcome may have taken effect, unless it never left.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from antiphon.agents.call_results import ToolOutcome, decode_outcome
from antiphon.agents.compensation import find_tool
from antiphon.agents.tool_options import DEFAULT_TOOL_SECONDS
from antiphon.core.call_permits import OUTCOME_TYPES, call_position
from antiphon.core.codec import Malformed
from antiphon.core.envelope import NEVER, Envelope, Instant, Json, add_seconds
from antiphon.core.errors import UnknownChannel
from antiphon.core.execution_events import (
    CUT_OFF_CLASSES,
    EV_CALL_CLEARED,
    EV_CALL_FAILED,
    EV_CALL_FINISHED,
    EV_CALL_STARTED,
    CallFailed,
    CallFinished,
)
from antiphon.core.saga_events import SAGA_STRUCTS, StepStatus
from antiphon.core.sagas import CallRef, SagaStep, SagaSteps, steps_of
from antiphon.core.turns import EMPTY_CALL_RECORD, CallRecord, journal_of
from antiphon.engines.environment import TurnEnvironment
from antiphon.engines.once_calls import ONCE_LEDGER, is_registered_in, once_digest
from antiphon.guards.saga import saga_memory_of
from antiphon.hub.live import LiveChannel
from antiphon.store.paging import all_envelopes, log_page_reader

CALL_TYPES = frozenset({EV_CALL_STARTED, EV_CALL_FINISHED, EV_CALL_FAILED, EV_CALL_CLEARED})


class UndoneCall(msgspec.Struct, frozen=True):
    """A call that is to be undone."""

    speaker: str
    """Whose turn it was made in."""
    agent: str
    """Who of the speaker's team made it: `support/billing`; the speaker itself, if it is not another."""
    args: Json | None
    """None if they are not recorded any more."""
    result: str
    """What it returned, as the model read it; "" if that is not known."""
    key: str
    running_until: Instant
    """Until when another process may still run it; `NEVER` if it has an outcome."""


class SagaCalls:
    """The steps of one saga, and their calls."""

    def __init__(self, environment: TurnEnvironment, live: LiveChannel) -> None:
        self._environment, self._live = environment, live
        self._cursor = max(0, saga_memory_of(live.fold).first - 1)
        self._steps: SagaSteps = {}
        self._entries: dict[str, list[Envelope]] = {}
        """The journal entries of the calls, by channel."""

    async def read(self) -> SagaSteps:
        """The steps as they are now, each with its outcome, if there is one."""
        root = self._live.state.channel_id
        store, entries = self._environment.channels.deps.store, self._entries.setdefault(root, [])
        async for envelope in all_envelopes(log_page_reader(store, root), self._cursor):
            self._cursor = envelope.sequence
            if envelope.event_type in SAGA_STRUCTS:
                self._steps = steps_of((envelope,), self._steps)
            elif envelope.event_type in CALL_TYPES and self._is_step(root, envelope):
                entries.append(envelope)
        return {name: await self._with_outcome(step) for name, step in self._steps.items()}

    def forget_tasks(self) -> None:
        """Read the logs of tasks again: their turns have ended only now."""
        root = self._live.state.channel_id
        self._entries = {channel: entries for channel, entries in self._entries.items() if channel == root}

    async def call_of(self, step: SagaStep) -> UndoneCall:
        """The call of a step."""
        record, speaker = await self._record_of(step.call), step.call.turn.partition("/")[2]
        started = record.started
        if started is None:
            return UndoneCall(speaker, speaker, None, "", "", NEVER)
        until = NEVER
        if record.outcome is None:
            until = self._latest_end(step, speaker, await self._started_at(step.call))
        return UndoneCall(speaker, started.agent or speaker, started.args, _result_text(record), started.key, until)

    def _is_step(self, channel: str, entry: Envelope) -> bool:
        turn, index = call_position(entry)
        call = CallRef(channel, turn, index)
        return call.step_in(self._live.state.channel_id) in self._steps

    async def _with_outcome(self, step: SagaStep) -> SagaStep:
        if step.outcome is not None:
            return step
        record = await self._record_of(step.call)
        status = await self._status_of(step, record)
        return replace(step, outcome=status, committed=await self._committed(step.call))

    async def _status_of(self, step: SagaStep, record: CallRecord) -> StepStatus | None:
        match record.outcome:
            case CallFinished(first=first):
                return "repeated" if first else "done"
            case CallFailed(failure=failure) if failure in CUT_OFF_CLASSES:
                return "unknown"
            case CallFailed():
                return "failed"
            case None if record.started is None:
                return "failed"  # it never left
            case None:
                return "unknown" if await self._may_have_left(step, record) else "repeated"

    async def _may_have_left(self, step: SagaStep, record: CallRecord) -> bool:
        """Whether a call in flight may have left: one that is made once has not, before it is registered."""
        speaker, started = step.call.turn.partition("/")[2], record.started
        tool = find_tool(self._environment.agents, step.tool, speaker=speaker)
        if tool is None or not tool.protections.once or started is None:
            return True
        if tool.protections.once_scope == "store":
            log = await self._environment.ledgers.find(ONCE_LEDGER, self._live.state.channel_id)
        else:
            log = await self._environment.channels.get(step.call.channel)
        position = step.call.channel, step.call.turn, step.call.index
        return await is_registered_in(log, once_digest(tool, started.args or {}), position)

    def _latest_end(self, step: SagaStep, speaker: str, started_at: Instant) -> Instant:
        tool = find_tool(self._environment.agents, step.tool, speaker=speaker)
        seconds = DEFAULT_TOOL_SECONDS if tool is None else tool.timeout or DEFAULT_TOOL_SECONDS
        return add_seconds(started_at, seconds) if started_at else NEVER

    async def _record_of(self, call: CallRef) -> CallRecord:
        entries = await self._entries_of(call.channel)
        return journal_of(entries, call.turn).get(call.index, EMPTY_CALL_RECORD)

    async def _started_at(self, call: CallRef) -> Instant:
        return _last_of(await self._entries_of(call.channel), call, frozenset({EV_CALL_STARTED})).created_at

    async def _committed(self, call: CallRef) -> int:
        """Where the outcome stands, if it stands in the log of the run."""
        if call.channel != self._live.state.channel_id:
            return 0
        return _last_of(await self._entries_of(call.channel), call, OUTCOME_TYPES).sequence

    async def _entries_of(self, channel: str) -> list[Envelope]:
        known = self._entries.get(channel)
        if known is None:
            known = self._entries[channel] = await self._read_task(channel)
        return known

    async def _read_task(self, channel: str) -> list[Envelope]:
        environment = self._environment
        try:
            await environment.channels.get(channel)
        except UnknownChannel:  # its process ended before it was made
            return []
        read = log_page_reader(environment.channels.deps.store, channel)
        return [
            each async for each in all_envelopes(read) if each.event_type in CALL_TYPES and self._is_step(channel, each)
        ]


def _last_of(entries: Iterable[Envelope], call: CallRef, types: frozenset[str]) -> Envelope:
    """The last entry of these types about a call; an empty envelope if there is none."""
    found = Envelope()
    for each in entries:
        if each.event_type in types and call_position(each) == (call.turn, call.index):
            found = each
    return found


def _result_text(record: CallRecord) -> str:
    if not isinstance(record.outcome, CallFinished):
        return ""
    try:
        outcome = decode_outcome(record.outcome.result)
    except Malformed:
        return ""
    return outcome.returned.text if isinstance(outcome, ToolOutcome) else ""
