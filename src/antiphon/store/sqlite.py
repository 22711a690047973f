"""The embedded store: one SQLite file, owned by one hub, synced before anything is acknowledged.

Rule 1: nothing here waits for the disk. One thread writes, another reads, and this class only asks them.
Rule 2: one hub owns the file, and its one writing connection is the only one that moves the log into the file.
Rule 3: every key and every query names the tenant.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Concatenate, ParamSpec, Self, TypedDict, TypeVar, Unpack

from antiphon.core.envelope import Envelope
from antiphon.core.errors import LogCorrupt, StoreError, StoreGone, StoreRefused
from antiphon.core.instants import Instant
from antiphon.store import sqlite_erase as erasing
from antiphon.store import sqlite_index as index
from antiphon.store import sqlite_leases as leases
from antiphon.store import sqlite_reads as reads
from antiphon.store.bell import Bell
from antiphon.store.now import SystemNow
from antiphon.store.ownership import Ownership, checked_place, take_ownership
from antiphon.store.protocol import (
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
from antiphon.store.records import MAX_RECORD, check_number, check_position, check_stretch, place_of, records_in_slices
from antiphon.store.sqlite_appends import Append
from antiphon.store.sqlite_connection import Connect, Connection, connect
from antiphon.store.sqlite_identity import FileIdentity
from antiphon.store.sqlite_line import tell
from antiphon.store.sqlite_schema import SETTLE_AFTER, Database, Synchronous
from antiphon.store.sqlite_writer import GROUP, Writer

T = TypeVar("T")
P = ParamSpec("P")

Job = Callable[Concatenate[Connection, str, P], T]
"""Something to do with a connection, for a tenant."""

TAIL_AT_ONCE = 1000


class SqliteOptions(TypedDict, total=False):
    """How a file is opened; what is left out is safe."""

    tenant: str
    clock: Now
    connect: Connect
    synchronous: Synchronous
    """FULL unless told otherwise: an acknowledged envelope survives a power failure."""
    settle_after: int
    """About how many pages may wait beside the file before they are moved into it."""
    exclusive: bool
    """Whether to own the file; without that, only compare-and-set keeps two hubs apart."""
    read_only: bool
    """Read beside the owner, and change nothing."""


class SqliteStore:  # noqa: PLR0904  # a whole store is one flat protocol
    """A store in a SQLite file. Open it with `SqliteStore.open`."""

    def __init__(self, database: Database, tenant: str, clock: Now, *, ownership: Ownership | None) -> None:
        self.tenant = tenant
        self.path = database.path
        self._database = database
        self._clock = clock
        self._ownership = ownership
        self._loop = asyncio.get_running_loop()
        self._identity = FileIdentity(database.path, on_loss=partial(tell, self._loop, self._lost))
        self._gone = asyncio.Event()
        self._bell = Bell()
        self._reader: reads.Reader | None = None
        self._writer: Writer | None = None
        self._closed = False

    @classmethod
    async def open(cls, path: str | os.PathLike[str], **options: Unpack[SqliteOptions]) -> Self:
        """Open a file, creating it if need be. `StoreRefused` says why it cannot be used, and what to do."""
        read_only = options.get("read_only", False)
        place = checked_place(path, read_only=read_only)
        owns = options.get("exclusive", True) and not read_only
        store = cls(
            Database(
                place,
                options.get("connect", connect),
                options.get("synchronous", "FULL"),
                options.get("settle_after", SETTLE_AFTER),
            ),
            options.get("tenant", "default"),
            options.get("clock") or SystemNow(),
            ownership=take_ownership(place) if owns else None,
        )
        try:
            await store._start(read_only=read_only)
        except BaseException:
            await store.close()
            raise
        return store

    @property
    def caps(self) -> StoreCaps:
        """What it survives depends on how it is synced; one hub owns it, unless it was opened otherwise."""
        survives = self._database.survives
        return StoreCaps(survives=survives, max_envelope_bytes=MAX_RECORD, many_hubs=self._ownership is None)

    async def append(
        self, channel: str, batch: Sequence[Envelope], *, expected: int, due: Instant | None = None
    ) -> Appended:
        """Record a batch at `expected`, together with whatever else waits to be recorded."""
        batch = tuple(batch)  # it is looked at again in another thread
        records = await records_in_slices(channel, batch)
        done: asyncio.Future[Appended] = self._loop.create_future()
        self._writing().append(Append(channel, batch, records, expected, due, done))
        return await done

    async def read(self, channel: str, *, after: int = 0, limit: int = 1000) -> Page:
        """The envelopes behind `after`, checked against the hash chain."""
        check_stretch(after, limit)
        return await self._read(reads.read_page, reads.Stretch(channel, after, limit))

    async def head(self, channel: str) -> int:
        """The last sequence of a channel."""
        return await self._read(reads.read_head, channel)

    async def find(self, channel: str, ids: Sequence[str]) -> Mapping[str, Envelope]:
        """The recorded envelopes of these ids."""
        return await self._read(reads.read_envelopes, channel, ids=ids)

    async def names(self, *, after: str = "", limit: int = 1000) -> list[str]:
        """The channels that have a log."""
        check_number("limit", limit, least=1)
        return await self._read(index.read_names, after, limit=limit)

    async def erase(self, channel: str) -> int:
        """Replace every record of an ended channel by its tombstone, and overwrite what was there in every file."""
        writing = self._writing()
        tombstones = await self._read(erasing.tombstones_of, channel)
        if tombstones:
            bury = partial(erasing.bury, tenant=self.tenant, channel=channel, tombstones=tombstones)
            await writing.run(bury, channel=channel, forget=True)
            await writing.run_outside(erasing.sweep)
        return len(tombstones)

    def tail(self, *, cursor: str | None = None) -> AsyncIterator[TailBatch]:
        """Everything appended behind the cursor, then live."""
        if cursor is not None:
            return self._tail(place_of(cursor))
        if self._writer is None and not self._closed:
            return self._tail(self._reading().run(reads.last_position))
        return self._tail(self._writer.last if self._writer else 0)

    async def _tail(self, start: int | asyncio.Future[int]) -> AsyncIterator[TailBatch]:
        follower = reads.Follower(start if isinstance(start, int) else await start)
        while not self._closed:
            rung, before = self._bell.rung, follower.position
            envelopes = await self._read(follower.read, limit=TAIL_AT_ONCE)
            if envelopes:
                yield TailBatch(envelopes, str(follower.position))
            elif follower.position == before:
                await self._bell.wait(rung)

    async def put_snapshot(self, channel: str, snapshot: Snapshot) -> None:
        """Keep a fold of a channel that has a log, as far as that goes."""
        put = partial(index.put_snapshot, tenant=self.tenant, channel=channel, snapshot=snapshot)
        await self._writing().run(put, channel=channel)

    async def get_snapshot(self, channel: str) -> Snapshot | None:
        """The fold that was kept last."""
        return await self._read(index.read_snapshot, channel)

    async def channels(
        self, *, status: str | None = None, participant: str | None = None, after: str = "", limit: int = 100
    ) -> list[ChannelRow]:
        """Rows in order of channel id, behind `after`."""
        check_number("limit", limit, least=1)
        return await self._read(index.read_rows, index.Wanted(status, participant, after, limit))

    async def row(self, channel: str) -> ChannelRow | None:
        """One row of the listing."""
        return await self._read(index.read_row, channel)

    async def mark(self, channel: str, *, status: str | None = None, due: Instant | None = None) -> None:
        """Change what a listing shows of a channel."""
        change = partial(index.mark, tenant=self.tenant, change=index.Mark(channel, status, due))
        await self._writing().run(change, channel=channel, forget=status is not None)

    async def positions(self, participant: str) -> list[Position]:
        """The acknowledged position in each channel that may still hold something for this participant."""
        if self._writer is not None:
            with suppress(StoreError):  # what is queued goes first; if it cannot be written now, it lags
                await self._writing().run(_nothing)
        return await self._read(index.read_positions, participant)

    async def acknowledge(self, participant: str, channel: str, sequence: int) -> None:
        """Move a position forward with one of the next commits, at most to the head."""
        check_position(participant, channel, sequence)
        self._writing().acknowledge(participant, channel, sequence)

    async def rebuild(self) -> None:
        """Make the listing anew from the logs, channel by channel. One whose log is damaged is listed as it was."""
        self._writing()  # who may not write is refused, even if there is nothing to make anew
        now, after = self._clock.now(), ""
        while names := await self.names(after=after, limit=GROUP):
            await asyncio.gather(*(self._rebuild(name, now) for name in names))
            after = names[-1]

    async def _rebuild(self, channel: str, now: Instant) -> None:
        job = partial(index.rebuild, tenant=self.tenant, channel=channel, now=now)
        with suppress(LogCorrupt):  # its reader will say so
            await self._writing().run(job, channel=channel, forget=True)

    async def lease(self, name: str, owner: str, ttl: float) -> Lease | None:
        """Take or renew; None while somebody else holds it."""
        return await self._write(leases.take_lease, name, claim=leases.Claim(owner, self._clock.now(), ttl))

    async def release(self, lease: Lease) -> None:
        """Let go, if it is still held in this epoch."""
        await self._write(leases.release_lease, lease)

    async def take_due(self, owner: str, *, now: Instant, limit: int, ttl: float) -> list[Due]:
        """Channels due at `now`, earliest first."""
        check_number("limit", limit, least=1)
        claim = leases.Claim(owner, self._clock.now(), ttl)
        return await self._write(leases.take_due, now, claim=claim, limit=limit)

    async def attend(self, ttl: float) -> Instant:
        """Note that a hub is open; since when one has been, without a break."""
        return await self._write(leases.attend, self._clock.now(), ttl=ttl)

    async def next_due(self) -> Instant:
        """The earliest instant at which `take_due` may give a channel."""
        return await self._read(leases.read_next_due)

    async def gone(self) -> StoreGone:
        """Wait until the file was deleted, replaced or moved away.

        An idle store notices it within about a second; one that is open to read only, with its next read.
        """
        await self._gone.wait()
        refusal = self._identity.refusal()
        assert refusal is not None, "calls are refused before the loss is reported"
        return refusal

    def _lost(self) -> None:
        self._gone.set()
        self._bell.ring()

    async def close(self) -> None:
        """Write what is queued, move the log into the file, and let go of everything."""
        self._closed = True
        self._bell.ring()
        if self._reader is not None:
            await self._reader.stop()
        if self._writer is not None:
            await self._writer.stop()
        if self._ownership is not None:
            self._ownership.release()

    async def _start(self, *, read_only: bool) -> None:
        if not read_only:
            self._writer = Writer(self._database, self._identity, self.tenant, committed=self._bell.ring)
            await self._writer.start()
        self._reader = reads.Reader(self._database, self._identity)
        await self._reader.start()

    async def _read(self, job: Job[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._reading().run(lambda connection: job(connection, self.tenant, *args, **kwargs))

    async def _write(self, job: Job[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._writing().run(lambda connection: job(connection, self.tenant, *args, **kwargs))

    def _reading(self) -> reads.Reader:
        if self._closed or self._reader is None:
            raise StoreRefused(f"{self.path} is closed")
        return self._reader

    def _writing(self) -> Writer:
        if self._closed:
            raise StoreRefused(f"{self.path} is closed")
        if self._writer is None:
            raise StoreRefused(f"{self.path} is open to read only; let its hub write")
        return self._writer


def _nothing(_: Connection) -> None:
    """Only wait for one's turn."""
