"""Calls of tools with `once`: one of them runs, and the others are answered with its result.

Rule 1: what makes calls the same is a digest. The call that runs is registered under an id derived from it, in the log
        of its channel, or in a channel of the hub's own for the whole store. Of two at once one is recorded.
Rule 2: a call is registered when its start is on disk, and before it leaves. If its process ends, the call itself goes
        on when its turn is run again: no other takes its place while that turn is owed.
Rule 3: a call that has failed has no result: the next call is registered behind it, and runs.
Rule 4: if the turn of the first call is over and its result is unknown, a keyed tool is called again with the key of
        the first, a natural one is called again, and an unsafe one is not.
Rule 5: no call waits longer for another than its own tool may take. Then the model reads that it was not made.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Literal

import msgspec

from antiphon.agents.call_results import ToolOutcome, ToolResult, decode_outcome
from antiphon.agents.tool import Tool
from antiphon.agents.tool_options import DEFAULT_TOOL_SECONDS
from antiphon.core.canonical import call_key
from antiphon.core.codec import Malformed, as_type
from antiphon.core.envelope import OPERATORS, Envelope, Instant, Json, add_seconds, derived_id
from antiphon.core.errors import Denied, OutcomeUnknown, StoreUnavailable, UnknownChannel
from antiphon.core.event_data import data_of
from antiphon.core.evolve import evolve
from antiphon.core.execution_events import CUT_OFF_CLASSES, CallFailed, CallFinished
from antiphon.core.protection_events import EV_ONCE_REGISTERED, OnceRegistered
from antiphon.core.state import State
from antiphon.core.step import hub_draft, owed_turn
from antiphon.core.turns import EMPTY_CALL_RECORD, CallRecord, journal_of
from antiphon.engines.attempt_ends import TurnFencedError
from antiphon.engines.engine import wait_for_others
from antiphon.engines.journal import TurnJournal
from antiphon.engines.prepared_calls import PreparedCall
from antiphon.hub.admission import RecordDraft
from antiphon.hub.live import Channels, LiveChannel
from antiphon.store.paging import all_envelopes, log_page_reader

logger = logging.getLogger("antiphon.engine")

ONCE_LEDGER = "once"
"""The ledger in which calls are registered that are made once in a whole store."""
LOOK_SECONDS = 0.2
"""How often a waiting call looks at the log of another process."""
STORE_RETRY_SECONDS = 1.0

CallPosition = tuple[str, str, int]
"""The channel of a call, its turn, and its place in it."""
FirstCallStatus = Literal["done", "failed", "unknown", "in_doubt", "in_flight"]

IN_DOUBT = "Not called: an earlier call of {} with the same values is in doubt, and a person decides about it."
IN_FLIGHT = "Not called: an earlier call of {} with the same values has not returned yet. Try again later."
UNKNOWN = (
    "Not called: an earlier call of {} with the same values was cut off, and it is not known whether it took effect."
)


class RepeatedCall(msgspec.Struct, frozen=True):
    """A call that does not run, because another one has."""

    outcome: ToolOutcome
    first: str
    """The call that has run."""
    behind: int = 0
    """The number behind its registration, if it is not known whether it took effect; 0 otherwise."""
    key: str = ""
    """Its idempotency key."""


class FirstCall(msgspec.Struct, frozen=True):
    """The call that is registered, as far as it is known."""

    status: FirstCallStatus
    result: Json = msgspec.field(default_factory=dict)


def once_digest(tool: Tool, args: Json) -> str:
    """What calls of a tool with `once` have in common that are the same."""
    options, properties = tool.protections, tool.parameters.get("properties")
    known = properties if isinstance(properties, dict) else {}
    defaults = {name: each["default"] for name, each in known.items() if isinstance(each, dict) and "default" in each}
    values = {name: args[name] for name in options.once if name in args}
    return call_key(tool.name, values, unordered=options.unordered, defaults=defaults)


def registration_id(digest: str, number: int) -> str:
    """The id of the registration of a call; the next number is used when the one before has no result."""
    return derived_id(EV_ONCE_REGISTERED, digest, str(number))


async def register_once(journal: TurnJournal, ready: PreparedCall, *, behind: int = 0) -> PreparedCall | RepeatedCall:
    """The call, if it is the one that runs, with the idempotency key for it; otherwise its answer.

    `behind` is the number of the first registration that counts.
    """
    return await _registration_of(journal, ready).settle(behind)


async def is_registered(journal: TurnJournal, ready: PreparedCall) -> bool:
    """Whether a call that was in flight had been registered, and so may have left."""
    registration = _registration_of(journal, ready)
    log = await registration.find_log()
    return await is_registered_in(log, registration.digest, registration.position)


async def has_result(journal: TurnJournal, ready: PreparedCall) -> bool:
    """Whether an earlier call that is the same has a result, with which this one will be answered."""
    registration = _registration_of(journal, ready)
    log = await registration.find_log()
    for number in count():
        wanted = registration_id(registration.digest, number)
        found = (await log.log.deps.store.find(log.state.channel_id, [wanted])).get(wanted)
        if found is None:
            return False
        holder = as_type(found.event_data, OnceRegistered)
        first = await look_at_first(journal.run.environment.channels, holder)
        if first.status != "failed":
            return first.status == "done" and _position_of(holder) != registration.position
    raise AssertionError("count() does not end")


async def is_registered_in(log: LiveChannel, digest: str, position: CallPosition) -> bool:
    """Whether a call is registered in this log as one that runs."""
    store = log.log.deps.store
    for number in count():
        wanted = registration_id(digest, number)
        found = (await store.find(log.state.channel_id, [wanted])).get(wanted)
        if found is None:
            return False
        if _position_of(as_type(found.event_data, OnceRegistered)) == position:
            return True
    raise AssertionError("count() does not end")


def _registration_of(journal: TurnJournal, ready: PreparedCall) -> _Registration:
    started = journal.calls.record(ready.wanted.index).started
    args = ready.wanted.call.args if started is None or started.args is None else started.args
    return _Registration(journal, ready, once_digest(ready.tool, args))


def _position_of(registered: OnceRegistered) -> CallPosition:
    return registered.channel, registered.turn, registered.index


@dataclass
class _Registration:
    """One call on its way to being the one that runs."""

    journal: TurnJournal
    ready: PreparedCall
    digest: str

    async def settle(self, behind: int) -> PreparedCall | RepeatedCall:
        key = self.ready.key
        log = await self.find_log()
        for number in count(behind):
            holder = await self._offer(log, number, key)
            if _position_of(holder) == self.position:
                return msgspec.structs.replace(self.ready, key=holder.key)
            first = await self._await_first(holder)
            match first.status:
                case "failed":
                    key = self.ready.key
                case "unknown" if self.ready.tool.idempotency != "unsafe":
                    key = holder.key  # the other side knows the first call by it, if it has taken effect
                case "unknown":
                    return msgspec.structs.replace(self._answer(holder, first), behind=number + 1, key=holder.key)
                case _:
                    return self._answer(holder, first)
        raise AssertionError("count() does not end")

    async def find_log(self) -> LiveChannel:
        """Where its registration is recorded."""
        run = self.journal.run
        if self.ready.tool.protections.once_scope == "channel":
            return run.live
        return await run.environment.ledgers.find(ONCE_LEDGER, run.state.run_id)

    async def _offer(self, log: LiveChannel, number: int, key: str) -> OnceRegistered:
        """The registration under this number: of this call, if there was none."""
        environment, tool = self.journal.run.environment, self.ready.tool
        channel_id, turn_id, index = self.position
        own = OnceRegistered(self.digest, tool.name, channel_id, turn_id, index, key)
        draft = hub_draft(EV_ONCE_REGISTERED, data_of(own), audience=[OPERATORS])
        draft = replace(draft, envelope_id=registration_id(self.digest, number))
        while True:
            try:
                recorded = await log.submit(RecordDraft(draft, environment.new_id), draft=draft)
                if recorded is None:
                    raise TurnFencedError("the channel has ended")
                return as_type(recorded.event_data, OnceRegistered)
            except Denied as denied:
                if denied.reason != "conflict":
                    raise
                known = await log.log.deps.store.find(log.state.channel_id, [draft.envelope_id])
                return as_type(known[draft.envelope_id].event_data, OnceRegistered)
            except (OutcomeUnknown, StoreUnavailable) as error:
                logger.warning("a call of %s waits for the store: %s", tool.name, error)
                clock = environment.clock
                await clock.wait(asyncio.Event(), add_seconds(clock.now(), STORE_RETRY_SECONDS))

    @property
    def position(self) -> CallPosition:
        return self.journal.run.channel_id, self.journal.turn_id, self.ready.wanted.index

    async def _await_first(self, holder: OnceRegistered) -> FirstCall:
        """The registered call when it has a result, or cannot get one; it is waited for no longer than a call takes."""
        environment, tool = self.journal.run.environment, self.ready.tool
        clock = environment.clock
        until = add_seconds(clock.now(), tool.timeout or DEFAULT_TOOL_SECONDS)
        with environment.feed.watching(holder.channel) as grown:
            while True:
                grown.clear()
                first = await look_at_first(environment.channels, holder)
                if first.status != "in_flight" or clock.now() >= until:
                    return first
                await self._wait(holder, grown, min(until, add_seconds(clock.now(), LOOK_SECONDS)))

    async def _wait(self, holder: OnceRegistered, grown: asyncio.Event, until: Instant) -> None:
        journal = self.journal
        waiting = journal.run.environment.clock.wait(grown, until)
        if (holder.channel, holder.turn) == (journal.run.channel_id, journal.turn_id):
            await waiting  # a call of the same message
        else:
            await wait_for_others(waiting, holder.channel)

    def _answer(self, holder: OnceRegistered, first: FirstCall) -> RepeatedCall:
        name = f"{holder.channel} {holder.turn}#{holder.index}"
        if first.status == "done":
            outcome = decode_outcome(first.result)
            if not isinstance(outcome, ToolOutcome):
                raise Malformed("malformed", f"the call {name} is not recorded as the call of a tool")
            return RepeatedCall(ToolOutcome(ToolResult(outcome.returned.text)), name)
        texts = {"in_doubt": IN_DOUBT, "in_flight": IN_FLIGHT}
        text = texts.get(first.status, UNKNOWN).format(self.ready.tool.name)
        return RepeatedCall(ToolOutcome(ToolResult(text, failed=True)), name)


async def look_at_first(channels: Channels, holder: OnceRegistered) -> FirstCall:
    """What the logs say of a registered call, also those of another process."""
    try:
        live = await channels.get(holder.channel)
    except UnknownChannel:
        return FirstCall("unknown")
    entries, state = await _read_since(channels, live, _turn_sequence(holder.turn))
    record = journal_of(entries, holder.turn).get(holder.index, EMPTY_CALL_RECORD)
    return _status_of(record, state, holder)


def _status_of(record: CallRecord, state: State, holder: OnceRegistered) -> FirstCall:
    match record.outcome:
        case CallFinished(result=result):
            return FirstCall("done", result)
        case CallFailed(failure=failure) if failure in CUT_OFF_CLASSES:
            return FirstCall("unknown")
        case CallFailed():
            return FirstCall("failed")
        case None:
            turn = owed_turn(state, holder.turn)
            if turn is None:
                return FirstCall("unknown")
            return FirstCall("in_doubt" if holder.index in turn.doubts else "in_flight")


async def _read_since(channels: Channels, live: LiveChannel, after: int) -> tuple[Sequence[Envelope], State]:
    """The envelopes behind `after`, and the state with all of them. The fold in memory may be older than the log."""
    state, entries = live.state, []
    async for envelope in all_envelopes(log_page_reader(channels.deps.store, state.channel_id), after):
        entries.append(envelope)
        if envelope.sequence > state.sequence:
            state = evolve(state, envelope)
    return entries, state


def _turn_sequence(turn_id: str) -> int:
    sequence = turn_id.partition("/")[0]
    return int(sequence) if sequence.isdecimal() else 0
