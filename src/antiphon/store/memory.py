"""The store that forgets: the reference that every other store is compared with.

Rule 1: records are kept as bytes and decoded anew for every reader, so that nobody can change what is recorded.
Rule 2: no method waits once it has begun to look or to change, so each is one step for everybody else.
Rule 3: what a call costs depends on what it is given, never on the length of a log.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right, insort
from collections.abc import AsyncIterator, Mapping, Sequence
from itertools import islice

import msgspec

from antiphon.core.codec import encode
from antiphon.core.envelope import Envelope
from antiphon.core.erasing import tombstone
from antiphon.core.errors import StoreGone, StoreRefused
from antiphon.core.instants import NEVER, Instant
from antiphon.core.instants import after as later
from antiphon.core.state import ENDED
from antiphon.store.bell import Bell
from antiphon.store.now import SystemNow
from antiphon.store.prepared import PreparedBatch, prepare_batch
from antiphon.store.protocol import (
    SKEW,
    Appended,
    ChannelRow,
    Due,
    Lease,
    Now,
    Page,
    Position,
    Snapshot,
    StoreCaps,
    TailBatch,
)
from antiphon.store.records import (
    MAX_RECORD,
    PAGE_BYTES,
    check_number,
    check_position,
    check_stretch,
    judged,
    opened,
    place_of,
)
from antiphon.store.rows import check_ended, erased_row, rebuilt, row_after

TAIL_AT_ONCE = 1000


class _Channel:
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
        return opened(self.row.channel_id, sequence, self.records[sequence - 1])

    def last_of_page(self, after: int, limit: int) -> int:
        """The last sequence of the page behind `after`."""
        last, size = after, 0
        for place in range(after, min(self.head, after + limit)):
            size += len(self.records[place])
            if size > PAGE_BYTES and last > after:
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
        else:
            self.places, self.records = prepared.places, prepared.records

    def erase(self) -> None:
        left = [tombstone(self.envelope(place)) for place in range(1, self.head + 1)]
        self.records = [encode(envelope) for envelope in left]
        self.places = {envelope.envelope_id: envelope.sequence for envelope in left}
        self.row, self.acknowledged, self.snapshot = erased_row(self.row), {}, None

    def show(self, row: ChannelRow) -> None:
        if row.due != self.row.due:
            self.held_until = NEVER
        self.row = row
        for participant in row.participants:
            self.acknowledged.setdefault(participant, 0)

    def is_done_for(self, participant: str) -> bool:
        return self.row.status in ENDED and self.acknowledged[participant] >= self.head


class MemoryStore:  # noqa: PLR0904  # a whole store is one flat protocol
    """A store in memory. Each is a store of its own, and survives nothing."""

    def __init__(self, tenant: str = "default", clock: Now | None = None) -> None:
        self.tenant = tenant
        self._clock = clock or SystemNow()
        self._channels: dict[str, _Channel] = {}
        self._names: list[str] = []
        self._places: list[tuple[str, int]] = []
        self._leases: dict[str, Lease] = {}
        self._attended: tuple[Instant, Instant] = (NEVER, NEVER)
        """Since when hubs have been open without a break, and until when that was noted."""
        self._bell = Bell()
        self._closed = False

    @property
    def caps(self) -> StoreCaps:
        """It takes what the others take, and keeps it as long as the process lives."""
        return StoreCaps(survives="nothing", max_envelope_bytes=MAX_RECORD, many_hubs=False)

    async def append(
        self, channel: str, batch: Sequence[Envelope], *, expected: int, due: Instant | None = None
    ) -> Appended:
        """Record a batch at `expected`."""
        batch = tuple(batch)  # a long one is prepared in slices, and may be changed meanwhile
        prepared = await prepare_batch(channel, batch, expected)
        log = self._known(channel) or _Channel(channel)
        if log.head or expected or not prepared.sound:  # in an empty log nothing is found, envelope by envelope
            appended = judged(batch, expected=expected, head=log.head, find=log.find)
            if appended.duplicate:
                return appended
        if not log.head:
            self._channels[channel] = log
            insort(self._names, channel)
        appended = Appended(log.head + 1, log.head + len(batch))
        log.record(prepared)
        self._places.extend(prepared.tail)
        row = log.row
        for envelope in prepared.moving:
            row = row_after(row, envelope)
        if due is not None:
            row = msgspec.structs.replace(row, due=due)
        if row is not log.row:
            log.show(row)
        self._bell.ring()
        return appended

    async def read(self, channel: str, *, after: int = 0, limit: int = 1000) -> Page:
        """The envelopes behind `after`."""
        check_stretch(after, limit)
        log = self._known(channel)
        if log is None:
            return Page([], more=False)
        last = log.last_of_page(after, limit)
        return Page([log.envelope(place) for place in range(after + 1, last + 1)], more=last < log.head)

    async def head(self, channel: str) -> int:
        """The last sequence of a channel."""
        log = self._known(channel)
        return log.head if log else 0

    async def find(self, channel: str, ids: Sequence[str]) -> Mapping[str, Envelope]:
        """The recorded envelopes of these ids."""
        log = self._known(channel)
        if log is None:
            return {}
        return {envelope_id: found for envelope_id in ids if (found := log.find(envelope_id)) is not None}

    async def names(self, *, after: str = "", limit: int = 1000) -> list[str]:
        """The channels that have a log."""
        check_number("limit", limit, least=1)
        self._check_open()
        first = bisect_right(self._names, after)
        return self._names[first : first + limit]

    async def erase(self, channel: str) -> int:
        """Replace every record of an ended channel by its tombstone."""
        log = self._known(channel)
        if log is None:
            return 0
        check_ended(channel, log.row)
        log.erase()
        return log.head

    def tail(self, *, cursor: str | None = None) -> AsyncIterator[TailBatch]:
        """Everything appended behind the cursor, then live."""
        end = len(self._places)
        return self._tail(end if cursor is None else min(place_of(cursor), end))

    async def _tail(self, place: int) -> AsyncIterator[TailBatch]:
        while not self._closed:
            rung = self._bell.rung
            fresh = self._places[place : place + TAIL_AT_ONCE]
            if fresh:
                place += len(fresh)
                yield TailBatch([self._channels[name].envelope(at) for name, at in fresh], str(place))
            else:
                await self._bell.wait(rung)

    async def put_snapshot(self, channel: str, snapshot: Snapshot) -> None:
        """Keep a fold of a channel that has a log, as far as that goes."""
        log = self._known(channel)
        if log is not None and 0 < snapshot.sequence <= log.head:
            log.snapshot = snapshot

    async def get_snapshot(self, channel: str) -> Snapshot | None:
        """The fold that was kept last."""
        log = self._known(channel)
        return log.snapshot if log else None

    async def channels(
        self, *, status: str | None = None, participant: str | None = None, after: str = "", limit: int = 100
    ) -> list[ChannelRow]:
        """Rows in order of channel id, behind `after`."""
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
        """One row of the listing."""
        log = self._known(channel)
        return log.row if log else None

    async def mark(self, channel: str, *, status: str | None = None, due: Instant | None = None) -> None:
        """Change what a listing shows of a channel."""
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
        """The acknowledged position in each channel that may still hold something for this participant."""
        self._check_open()
        logs = ((name, self._channels[name]) for name in self._names)
        return [
            Position(name, log.acknowledged[participant])
            for name, log in logs
            if participant in log.acknowledged and not log.is_done_for(participant)
        ]

    async def acknowledge(self, participant: str, channel: str, sequence: int) -> None:
        """Move a position forward, at most to the head."""
        check_position(participant, channel, sequence)
        log = self._known(channel)
        if log is not None and participant in log.acknowledged:
            log.acknowledged[participant] = max(min(sequence, log.head), log.acknowledged[participant])

    async def rebuild(self) -> None:
        """Make the listing anew from the logs."""
        self._check_open()
        for log in self._channels.values():
            log.show(rebuilt(log.row, map(log.envelope, range(1, log.head + 1))))

    async def lease(self, name: str, owner: str, ttl: float) -> Lease | None:
        """Take or renew; None while somebody else holds it."""
        self._check_open()
        now, held = self._clock.now(), self._leases.get(name)
        if held is not None and held.owner != owner and now < held.until <= later(now, ttl + SKEW):
            return None
        epoch = 1 if held is None else held.epoch + (held.owner != owner)
        self._leases[name] = lease = Lease(name, owner, epoch, later(now, ttl))
        return lease

    async def release(self, lease: Lease) -> None:
        """Let go, if it is still held in this epoch."""
        self._check_open()
        held = self._leases.get(lease.name)
        if held is not None and held.epoch == lease.epoch:
            self._leases[lease.name] = msgspec.structs.replace(held, until=NEVER)

    async def take_due(self, owner: str, *, now: Instant, limit: int, ttl: float) -> list[Due]:
        """Channels due at `now`, earliest first."""
        check_number("limit", limit, least=1)
        self._check_open()
        clock = self._clock.now()
        free = [
            (log.row.due, name)
            for name, log in self._channels.items()
            if NEVER < log.row.due <= now and not clock < log.held_until <= later(clock, ttl + SKEW)
        ]
        taken = [Due(name, at) for at, name in sorted(free)[:limit]]
        for due in taken:
            self._channels[due.channel_id].held_until = later(clock, ttl)
        return taken

    async def attend(self, ttl: float) -> Instant:
        """Note that a hub is open; since when one has been, without a break."""
        self._check_open()
        now, (since, until) = self._clock.now(), self._attended
        since = since if now <= until <= later(now, ttl + SKEW) else now
        self._attended = since, later(now, ttl)
        return since

    async def next_due(self) -> Instant:
        """The earliest instant at which `take_due` may give a channel."""
        self._check_open()
        logs = (log for log in self._channels.values() if log.row.due)
        return min((max(log.row.due, log.held_until) for log in logs), default=NEVER)

    async def gone(self) -> StoreGone:
        """Wait until cancelled: memory is not lost while the process runs."""
        never: asyncio.Future[StoreGone] = asyncio.get_running_loop().create_future()
        return await never

    async def close(self) -> None:
        """Forget nothing yet, but take and give nothing any more."""
        self._closed = True
        self._bell.ring()

    def _known(self, channel: str) -> _Channel | None:
        self._check_open()
        return self._channels.get(channel)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreRefused("the store is closed")
