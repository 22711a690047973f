"""The embedded store: one SQLite file, owned by one hub, synced before anything is acknowledged.

Rule 1: no call blocks the event loop: one thread writes, another reads, and this class queues work for them.
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

from antiphon.core.envelope import Envelope, Instant
from antiphon.core.errors import LogCorrupt, StoreError, StoreGone, StoreRefused
from antiphon.store import sqlite_erase as erasing
from antiphon.store import sqlite_index as index
from antiphon.store import sqlite_reads as reads
from antiphon.store.protocol import (
    Appended,
    ChannelRow,
    Due,
    Durability,
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
    MAX_RECORD_BYTES,
    TAIL_BATCH_ENVELOPES,
    LeaseClaim,
    WakeUp,
    check_number,
    check_position,
    check_read_range,
    cursor_position,
    encode_records_in_slices,
)
from antiphon.store.sqlite_commits import Append
from antiphon.store.sqlite_connection import ConnectSqlite, FileIdentity, SqliteConnection, call_on_loop, connect_sqlite
from antiphon.store.sqlite_files import Ownership, prepare_database_path, take_ownership
from antiphon.store.sqlite_schema import DEFAULT_SETTLE_PAGES, SqliteDatabase, Synchronous
from antiphon.store.sqlite_writer import MAX_GROUP_ROWS, SqliteWriter

T = TypeVar("T")
P = ParamSpec("P")

ConnectionJob = Callable[Concatenate[SqliteConnection, str, P], T]
"""A function of a connection and a tenant."""


class StoreOptions(TypedDict, total=False):
    """How a file is opened. Every default is the safe choice."""

    tenant: str
    clock: TimeSource
    connect: ConnectSqlite
    synchronous: Synchronous
    """FULL by default: an acknowledged envelope survives a power failure."""
    settle_after: int
    """About how many pages the write-ahead log may hold before it is moved into the file."""
    exclusive: bool
    """Whether to own the file; without that, only compare-and-set keeps two hubs apart."""
    read_only: bool
    """Read beside the owner, and change nothing."""


class SqliteStore:  # noqa: PLR0904  # a whole store is one flat protocol
    """A store in a SQLite file; `store.protocol` documents its methods. Open it with `SqliteStore.open`."""

    def __init__(
        self, database: SqliteDatabase, tenant: str, clock: TimeSource, *, ownership: Ownership | None
    ) -> None:
        self.tenant = tenant
        self.path = database.path
        self._database = database
        self._clock = clock
        self._ownership = ownership
        self._loop = asyncio.get_running_loop()
        self._identity = FileIdentity(database.path, on_loss=partial(call_on_loop, self._loop, self._lost))
        self._gone = asyncio.Event()
        self._wake_up = WakeUp()
        self._reader: reads.SqliteReader | None = None
        self._writer: SqliteWriter | None = None
        self._closed = False

    @classmethod
    async def open(cls, path: str | os.PathLike[str], **options: Unpack[StoreOptions]) -> Self:
        """Open a file, and create it if it is missing. `StoreRefused` says why it cannot be used, and what to do."""
        read_only = options.get("read_only", False)
        place = prepare_database_path(path, read_only=read_only)
        owns = options.get("exclusive", True) and not read_only
        store = cls(
            SqliteDatabase(
                place,
                options.get("connect", connect_sqlite),
                options.get("synchronous", "FULL"),
                options.get("settle_after", DEFAULT_SETTLE_PAGES),
            ),
            options.get("tenant", "default"),
            options.get("clock") or SystemTimeSource(),
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
        """`survives` follows from `synchronous`; `many_hubs` is true without `exclusive`."""
        survives: Durability = "process" if self._database.synchronous == "NORMAL" else "power"
        return StoreCaps(survives=survives, max_envelope_bytes=MAX_RECORD_BYTES, many_hubs=self._ownership is None)

    async def append(
        self, channel: str, batch: Sequence[Envelope], *, expected: int, due: Instant | None = None
    ) -> Appended:
        """Record a batch at `expected`, in one commit with other appends that are queued."""
        batch = tuple(batch)  # it is read again in another thread
        records = await encode_records_in_slices(channel, batch)
        done: asyncio.Future[Appended] = self._loop.create_future()
        self._writing().append(Append(channel, batch, records, expected, due, done))
        return await done

    async def read(self, channel: str, *, after: int = 0, limit: int = 1000) -> Page:
        check_read_range(after, limit)
        return await self._read(reads.read_page, channel, after=after, limit=limit)

    async def head(self, channel: str) -> int:
        return await self._read(reads.read_head, channel)

    async def find(self, channel: str, ids: Sequence[str]) -> Mapping[str, Envelope]:
        return await self._read(reads.read_envelopes, channel, ids=ids)

    async def names(self, *, after: str = "", limit: int = 1000) -> list[str]:
        check_number("limit", limit, least=1)
        return await self._read(index.read_names, after, limit=limit)

    async def erase(self, channel: str) -> int:
        """Replace every record of an ended channel by its tombstone, and overwrite the content in every file."""
        writing = self._writing()
        tombstones = await self._read(erasing.tombstone_rows_of, channel)
        if tombstones:
            bury = partial(erasing.write_tombstones, tenant=self.tenant, channel=channel, tombstones=tombstones)
            await writing.run(bury, channel=channel, forget=True)
            await writing.run(erasing.sweep_erased, outside=True)
        return len(tombstones)

    def tail(self, *, cursor: str | None = None) -> AsyncIterator[TailBatch]:
        if cursor is not None:
            return self._tail(cursor_position(cursor))
        if self._writer is None and not self._closed:
            return self._tail(self._reading().run(reads.read_last_position))
        return self._tail(self._writer.last if self._writer else 0)

    async def _tail(self, start: int | asyncio.Future[int]) -> AsyncIterator[TailBatch]:
        follower = reads.TailFollower(start if isinstance(start, int) else await start)
        while not self._closed:
            generation, before = self._wake_up.generation, follower.position
            envelopes = await self._read(follower.read, limit=TAIL_BATCH_ENVELOPES)
            if envelopes:
                yield TailBatch(envelopes, str(follower.position))
            elif follower.position == before:
                await self._wake_up.wait(generation)

    async def put_snapshot(self, channel: str, snapshot: Snapshot) -> None:
        put = partial(index.put_snapshot, tenant=self.tenant, channel=channel, snapshot=snapshot)
        await self._writing().run(put, channel=channel)

    async def get_snapshot(self, channel: str) -> Snapshot | None:
        return await self._read(index.read_snapshot, channel)

    async def channels(
        self, *, status: str | None = None, participant: str | None = None, after: str = "", limit: int = 100
    ) -> list[ChannelRow]:
        check_number("limit", limit, least=1)
        return await self._read(index.read_rows, after, limit=limit, status=status, participant=participant)

    async def row(self, channel: str) -> ChannelRow | None:
        return await self._read(index.read_row, channel)

    async def mark(self, channel: str, *, status: str | None = None, due: Instant | None = None) -> None:
        change = partial(index.change_row, tenant=self.tenant, channel=channel, status=status, due=due)
        await self._writing().run(change, channel=channel, forget=status is not None)

    async def positions(self, participant: str) -> list[Position]:
        if self._writer is not None:
            with suppress(StoreError):  # queued acknowledgements go first; if they cannot be written now, they lag
                await self._writing().run(lambda _: None)
        return await self._read(index.read_positions, participant)

    async def acknowledge(self, participant: str, channel: str, sequence: int) -> None:
        check_position(participant, channel, sequence)
        self._writing().acknowledge(participant, channel, sequence)

    async def rebuild(self) -> None:
        """Rebuild the listing from the logs, channel by channel. A channel with a damaged log keeps its row."""
        self._writing()  # a store open to read only refuses, even if there is no channel to rebuild
        now, after = self._clock.now(), ""
        while names := await self.names(after=after, limit=MAX_GROUP_ROWS):
            await asyncio.gather(*(self._rebuild(name, now) for name in names))
            after = names[-1]

    async def _rebuild(self, channel: str, now: Instant) -> None:
        job = partial(index.rebuild_listed_row, tenant=self.tenant, channel=channel, now=now)
        with suppress(LogCorrupt):  # reading the channel reports it
            await self._writing().run(job, channel=channel, forget=True)

    async def lease(self, name: str, owner: str, ttl: float) -> Lease | None:
        return await self._write(index.take_lease, name, claim=LeaseClaim(owner, self._clock.now(), ttl))

    async def release(self, lease: Lease) -> None:
        await self._write(index.release_lease, lease)

    async def take_due(self, owner: str, *, now: Instant, limit: int, ttl: float) -> list[Due]:
        check_number("limit", limit, least=1)
        claim = LeaseClaim(owner, self._clock.now(), ttl)
        return await self._write(index.take_due, now, claim=claim, limit=limit)

    async def attend(self, ttl: float) -> Instant:
        return await self._write(index.note_attendance, LeaseClaim("", self._clock.now(), ttl))

    async def next_due(self) -> Instant:
        return await self._read(index.read_next_due)

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
        self._wake_up.notify()

    async def close(self) -> None:
        """Write what is queued, move the write-ahead log into the file, and release everything."""
        self._closed = True
        self._wake_up.notify()
        if self._reader is not None:
            await self._reader.stop()
        if self._writer is not None:
            await self._writer.stop()
        if self._ownership is not None:
            self._ownership.release()

    async def _start(self, *, read_only: bool) -> None:
        if not read_only:
            self._writer = SqliteWriter(self._database, self._identity, self.tenant, committed=self._wake_up.notify)
            await self._writer.start()
        self._reader = reads.SqliteReader(self._database, self._identity)
        await self._reader.start()

    async def _read(self, job: ConnectionJob[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._reading().run(lambda connection: job(connection, self.tenant, *args, **kwargs))

    async def _write(self, job: ConnectionJob[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._writing().run(lambda connection: job(connection, self.tenant, *args, **kwargs))

    def _reading(self) -> reads.SqliteReader:
        if self._closed or self._reader is None:
            raise StoreRefused(f"{self.path} is closed")
        return self._reader

    def _writing(self) -> SqliteWriter:
        if self._closed:
            raise StoreRefused(f"{self.path} is closed")
        if self._writer is None:
            raise StoreRefused(f"{self.path} is open to read only; let its hub write")
        return self._writer
