"""The store in memory: the reference that every other store is compared with.

Rule 1: records are kept as bytes and decoded for every reader, so that no reader can change them.
Rule 2: no method awaits between its first look and its last change, so each is atomic.
Rule 3: the cost of a call depends on its arguments, never on the length of a log.
Rule 4: a batch is prepared before the store is looked at, in slices that do not hold the event loop: a fork is one
        batch as long as its log.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right, insort
from collections.abc import AsyncIterator, Mapping, Sequence
from itertools import islice

import msgspec

from antiphon.core.codec import encode_envelope
from antiphon.core.envelope import NEVER, Envelope, Instant
from antiphon.core.errors import StoreGone, StoreRefused
from antiphon.core.redaction import tombstone_of
from antiphon.core.state import ENDED_STATUSES
from antiphon.store.protocol import (
    Appended,
    ChannelRow,
    Due,
    Lease,
    Page,
    Position,
    Snapshot,
    StoreCaps,
    SystemTimeSource,
    TailBatch,
    TimeSource,
)
from antiphon.store.records import (
    ENVELOPES_PER_SLICE,
    MAX_PAGE_BYTES,
    MAX_RECORD_BYTES,
    ROW_EVENT_TYPES,
    TAIL_BATCH_ENVELOPES,
    LeaseClaim,
    WakeUp,
    check_channel_ended,
    check_number,
    check_position,
    check_read_range,
    cursor_position,
    decode_record,
    encode_records_in_slices,
    erased_row,
    rebuild_row,
    resolve_append,
    row_after_batch,
)


class PreparedBatch(msgspec.Struct):
    """A batch with its records and its part of each index."""

    records: list[bytes]
    places: dict[str, int]
    """The sequence of each id."""
    tail: list[tuple[str, int]]
    """The channel and the sequence of each envelope."""
    moving: list[Envelope]
    """The envelopes that change the row of the channel."""
    sound: bool = True
    """Whether no id is given twice, and all carry the sequences that they will have."""


async def prepare_batch(channel: str, batch: Sequence[Envelope], expected: int) -> PreparedBatch:
    """Prepare a batch to be recorded behind `expected`; refused if it could not be read back."""
    prepared = PreparedBatch(await encode_records_in_slices(channel, batch), {}, [], [])
    for begin in range(0, len(batch), ENVELOPES_PER_SLICE):
        _index_slice(prepared, batch[begin : begin + ENVELOPES_PER_SLICE], expected + begin)
        if len(batch) > ENVELOPES_PER_SLICE:
            await asyncio.sleep(0)
    prepared.sound &= len(prepared.places) == len(batch)
    return prepared


def _index_slice(prepared: PreparedBatch, part: Sequence[Envelope], before: int) -> None:
    for sequence, envelope in enumerate(part, before + 1):
        prepared.places[envelope.envelope_id] = sequence
        prepared.tail.append((envelope.channel_id, sequence))
        prepared.sound &= envelope.sequence == sequence
        if envelope.event_type in ROW_EVENT_TYPES:
            prepared.moving.append(envelope)


class _MemoryChannel:
    """One channel: its log, and what is derived from it."""

    def __init__(self, channel_id: str) -> None:
        self.records: list[bytes] = []
        self.places: dict[str, int] = {}
        self.row = ChannelRow(channel_id)
        self.acknowledged: dict[str, int] = {}
        self.held_until: Instant = NEVER
        self.snapshot: Snapshot | None = None

    @property
    def head(self) -> int:
        return len(self.records)

    def envelope(self, sequence: int) -> Envelope:
        return decode_record(self.row.channel_id, sequence, self.records[sequence - 1])

    def last_of_page(self, after: int, limit: int) -> int:
        """The last sequence of the page behind `after`."""
        last, size = after, 0
        for place in range(after, min(self.head, after + limit)):
            size += len(self.records[place])
            if size > MAX_PAGE_BYTES and last > after:
                break
            last += 1
        return last

    def find(self, envelope_id: str) -> Envelope | None:
        place = self.places.get(envelope_id)
        return None if place is None else self.envelope(place)

    def record(self, prepared: PreparedBatch) -> None:
        if self.records:
            self.places.update(prepared.places)
            self.records.extend(prepared.records)
        else:  # adopted: to copy a long batch would hold the event loop
            self.places, self.records = prepared.places, prepared.records

    def erase(self) -> None:
        left = [tombstone_of(self.envelope(place)) for place in range(1, self.head + 1)]
        self.records = [encode_envelope(envelope) for envelope in left]
        self.places = {envelope.envelope_id: envelope.sequence for envelope in left}
        self.row, self.acknowledged, self.snapshot = erased_row(self.row), {}, None

    def show(self, row: ChannelRow) -> None:
        if row.due != self.row.due:
            self.held_until = NEVER
        self.row = row
        for participant in row.participants:
            self.acknowledged.setdefault(participant, 0)

    def is_done_for(self, participant: str) -> bool:
        return self.row.status in ENDED_STATUSES and self.acknowledged[participant] >= self.head


class MemoryStore:  # noqa: PLR0904  # a whole store is one flat protocol
    """A store in memory; `store.protocol` documents its methods. Each is a store of its own, and survives nothing."""

    def __init__(self, tenant: str = "default", clock: TimeSource | None = None) -> None:
        self.tenant = tenant
        self._clock = clock or SystemTimeSource()
        self._channels: dict[str, _MemoryChannel] = {}
        self._names: list[str] = []
        self._places: list[tuple[str, int]] = []
        self._leases: dict[str, Lease] = {}
        self._attended: tuple[Instant, Instant] = (NEVER, NEVER)
        """Since when hubs have been open without a break, and until when the attendance lasts."""
        self._wake_up = WakeUp()
        self._closed = False

    @property
    def caps(self) -> StoreCaps:
        """It survives nothing, and accepts what the other stores accept."""
        return StoreCaps(survives="nothing", max_envelope_bytes=MAX_RECORD_BYTES, many_hubs=False)

    async def append(
        self, channel: str, batch: Sequence[Envelope], *, expected: int, due: Instant | None = None
    ) -> Appended:
        batch = tuple(batch)  # a long one is prepared in slices, and its caller may change the list meanwhile
        prepared = await prepare_batch(channel, batch, expected)
        log = self._known(channel) or _MemoryChannel(channel)
        if log.head or expected or not prepared.sound:  # in an empty log no id needs to be looked up
            appended = resolve_append(batch, expected=expected, head=log.head, find=log.find)
            if appended.duplicate:
                return appended
        if not log.head:
            self._channels[channel] = log
            insort(self._names, channel)
        appended = Appended(log.head + 1, log.head + len(batch))
        log.record(prepared)
        self._places.extend(prepared.tail)
        row = row_after_batch(log.row, prepared.moving, due)
        if row is not log.row:
            log.show(row)
        self._wake_up.notify()
        return appended

    async def read(self, channel: str, *, after: int = 0, limit: int = 1000) -> Page:
        check_read_range(after, limit)
        log = self._known(channel)
        if log is None:
            return Page([], more=False)
        last = log.last_of_page(after, limit)
        return Page([log.envelope(place) for place in range(after + 1, last + 1)], more=last < log.head)

    async def head(self, channel: str) -> int:
        log = self._known(channel)
        return log.head if log else 0

    async def find(self, channel: str, ids: Sequence[str]) -> Mapping[str, Envelope]:
        log = self._known(channel)
        if log is None:
            return {}
        return {envelope_id: found for envelope_id in ids if (found := log.find(envelope_id)) is not None}

    async def names(self, *, after: str = "", limit: int = 1000) -> list[str]:
        check_number("limit", limit, least=1)
        self._check_open()
        first = bisect_right(self._names, after)
        return self._names[first : first + limit]

    async def erase(self, channel: str) -> int:
        log = self._known(channel)
        if log is None:
            return 0
        check_channel_ended(channel, log.row)
        log.erase()
        return log.head

    def tail(self, *, cursor: str | None = None) -> AsyncIterator[TailBatch]:
        end = len(self._places)
        return self._tail(end if cursor is None else min(cursor_position(cursor), end))

    async def _tail(self, place: int) -> AsyncIterator[TailBatch]:
        while not self._closed:
            generation = self._wake_up.generation
            fresh = self._places[place : place + TAIL_BATCH_ENVELOPES]
            if fresh:
                place += len(fresh)
                yield TailBatch([self._channels[name].envelope(at) for name, at in fresh], str(place))
            else:
                await self._wake_up.wait(generation)

    async def put_snapshot(self, channel: str, snapshot: Snapshot) -> None:
        log = self._known(channel)
        if log is not None and 0 < snapshot.sequence <= log.head:
            log.snapshot = snapshot

    async def get_snapshot(self, channel: str) -> Snapshot | None:
        log = self._known(channel)
        return log.snapshot if log else None

    async def channels(
        self, *, status: str | None = None, participant: str | None = None, after: str = "", limit: int = 100
    ) -> list[ChannelRow]:
        check_number("limit", limit, least=1)
        self._check_open()
        names = islice(self._names, bisect_right(self._names, after), None)
        rows = (self._channels[name].row for name in names)
        wanted = (
            row
            for row in rows
            if status in (None, row.status) and (participant is None or participant in row.participants)
        )
        return list(islice(wanted, limit))

    async def row(self, channel: str) -> ChannelRow | None:
        log = self._known(channel)
        return log.row if log else None

    async def mark(self, channel: str, *, status: str | None = None, due: Instant | None = None) -> None:
        if log := self._known(channel):
            row = log.row
            log.show(
                msgspec.structs.replace(
                    row,
                    status=row.status if status is None else status,
                    due=row.due if due is None else due,
                )
            )

    async def positions(self, participant: str) -> list[Position]:
        self._check_open()
        logs = ((name, self._channels[name]) for name in self._names)
        return [
            Position(name, log.acknowledged[participant])
            for name, log in logs
            if participant in log.acknowledged and not log.is_done_for(participant)
        ]

    async def acknowledge(self, participant: str, channel: str, sequence: int) -> None:
        check_position(participant, channel, sequence)
        log = self._known(channel)
        if log is not None and participant in log.acknowledged:
            log.acknowledged[participant] = max(min(sequence, log.head), log.acknowledged[participant])

    async def rebuild(self) -> None:
        self._check_open()
        for log in self._channels.values():
            log.show(rebuild_row(log.row, map(log.envelope, range(1, log.head + 1))))

    async def lease(self, name: str, owner: str, ttl: float) -> Lease | None:
        self._check_open()
        lease = LeaseClaim(owner, self._clock.now(), ttl).lease(name, self._leases.get(name))
        if lease is not None:
            self._leases[name] = lease
        return lease

    async def release(self, lease: Lease) -> None:
        self._check_open()
        held = self._leases.get(lease.name)
        if held is not None and held.epoch == lease.epoch:
            self._leases[lease.name] = msgspec.structs.replace(held, until=NEVER)

    async def take_due(self, owner: str, *, now: Instant, limit: int, ttl: float) -> list[Due]:
        check_number("limit", limit, least=1)
        self._check_open()
        claim = LeaseClaim(owner, self._clock.now(), ttl)
        free = [
            (log.row.due, name)
            for name, log in self._channels.items()
            if NEVER < log.row.due <= now and not claim.now < log.held_until <= claim.latest_until
        ]
        taken = [Due(name, at) for at, name in sorted(free)[:limit]]
        for due in taken:
            self._channels[due.channel_id].held_until = claim.until
        return taken

    async def attend(self, ttl: float) -> Instant:
        self._check_open()
        claim = LeaseClaim("", self._clock.now(), ttl)
        since = claim.attended_since(*self._attended)
        self._attended = since, claim.until
        return since

    async def next_due(self) -> Instant:
        self._check_open()
        logs = (log for log in self._channels.values() if log.row.due)
        return min((max(log.row.due, log.held_until) for log in logs), default=NEVER)

    async def gone(self) -> StoreGone:
        """Wait until cancelled: memory is not lost while the process runs."""
        never: asyncio.Future[StoreGone] = asyncio.get_running_loop().create_future()
        return await never

    async def close(self) -> None:
        """Refuse every further call."""
        self._closed = True
        self._wake_up.notify()

    def _known(self, channel: str) -> _MemoryChannel | None:
        self._check_open()
        return self._channels.get(channel)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreRefused("the store is closed")
