"""A fault at the n-th operation, for every n.

Rule 1: an append is acknowledged and there, or it failed with an error of ours that tells the caller what to do.
Rule 2: a caller that was told to try again sends the same envelopes again, and never meets a conflict with itself.
Rule 3: once the fault is lifted the same store object works at once. Only a store that never opened is opened again.

A workload lives three times on one file: from nothing, so that it migrates; on what a killed process left behind, so
that it recovers; and on what was closed in good order. Each time it opens, appends, reads, snapshots, checkpoints and
closes. A dry run counts the operations that a kind of fault can hit; the sweep then hits them one by one, once and
from there on.

Short reads are dealt for the logs only. SQLite takes a short read of the database file itself for zeros and says
nothing, so no program above it can notice; and there is no disk that does it, other than with a truncated file.
"""

from __future__ import annotations

import asyncio
import itertools
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

import apsw

from antiphon.core.envelope import Envelope
from antiphon.core.errors import LogCorrupt, OutcomeUnknown, StoreRefused, StoreUnavailable
from antiphon.store.protocol import Snapshot
from antiphon.store.sqlite import SqliteStore
from antiphon.store.sqlite_connection import ConnectSqlite, SqliteCursor, SqlValues
from tests.faults.append_ledger import Ledger, contents, faults, integrity, missing, places_of, stamped
from tests.faults.apsw_connection import COUNTED, ApswConnection, failure, translated

FILE = "log.db"
CHANNELS = ("one", "two")
APPENDS = (
    ("one", (200,)),
    ("two", (200, 40)),
    ("one", (6000,)),
    ("one", (900, 900, 900)),
    ("two", (40,)),
    ("one", (200,)),
)
"""Channels, and the sizes of the texts that one batch brings them."""
SETTLE_AFTER = 20
PATIENCE = 30
"""Seconds until a call that does not return is a finding. Nothing here waits for them."""
CLEAR = (StoreUnavailable, OutcomeUnknown, LogCorrupt)
NUMBERS = itertools.count()
T = TypeVar("T")

EVERYWHERE = frozenset({"open", "read", "read log", "write", "truncate", "sync", "delete", "size", "access", "lock"})
KINDS: dict[str, frozenset[str]] = {
    "ioerr": EVERYWHERE,
    "full": frozenset({"write"}),
    "busy": frozenset({"lock", "begin"}),
    "short_read": frozenset({"read log"}),
    "sync": frozenset({"sync"}),
    "answer_lost": frozenset({"commit"}),
}
"""Which operations each kind of fault hits.

`begin` and `commit` are statements, or both are one that is a transaction by itself; an answer is lost after it.
"""

IOERR = {
    "read": apsw.SQLITE_IOERR_READ,
    "read log": apsw.SQLITE_IOERR_READ,
    "write": apsw.SQLITE_IOERR_WRITE,
    "truncate": apsw.SQLITE_IOERR_TRUNCATE,
    "sync": apsw.SQLITE_IOERR_FSYNC,
    "delete": apsw.SQLITE_IOERR_DELETE,
    "size": apsw.SQLITE_IOERR_FSTAT,
    "access": apsw.SQLITE_IOERR_ACCESS,
    "lock": apsw.SQLITE_IOERR_LOCK,
}


class Trap:
    """Counts the operations a kind of fault can hit, and springs at the n-th: once, or from there on until lifted."""

    def __init__(self, kind: str, nth: int = 0, *, lasting: bool = False) -> None:
        self.kind, self.nth, self.lasting = kind, nth, lasting
        self.seen, self.sprung, self.lifted = 0, 0, False
        self.connections: set[object] = set()
        """Those that are open behind it."""

    def springs(self, operation: str) -> bool:
        if self.lifted or operation not in KINDS[self.kind]:
            return False
        self.seen += 1
        hit = self.seen == self.nth or (self.lasting and 0 < self.nth < self.seen)
        self.sprung += hit
        return hit

    def check(self, operation: str) -> None:
        """Fail the operation if it is its turn."""
        if self.springs(operation):
            raise self.error(operation)

    def error(self, operation: str) -> apsw.Error:
        match self.kind:
            case "full":
                return failure(apsw.FullError, apsw.SQLITE_FULL, "database or disk is full")
            case "busy":
                return failure(apsw.BusyError, apsw.SQLITE_BUSY, "database is locked")
            case _ if operation == "open":
                return failure(apsw.CantOpenError, apsw.SQLITE_CANTOPEN, "unable to open database file")
            case _:
                return failure(apsw.IOError, IOERR.get(operation, apsw.SQLITE_IOERR), "disk I/O error")


class FaultyVFS(apsw.VFS):
    """The system's own VFS, with a trap in front of it. It never sleeps."""

    def __init__(self, name: str, trap: Trap) -> None:
        super().__init__(name, "")
        self.name, self.trap = name, trap

    def xOpen(self, name: apsw.URIFilename | str | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802  # SQLite's name
        self.trap.check("open")
        return FaultyFile(self.trap, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        self.trap.check("delete")
        super().xDelete(filename, syncdir)

    def xAccess(self, pathname: str, flags: int) -> bool:  # noqa: N802
        self.trap.check("access")
        return super().xAccess(pathname, flags)

    def xSleep(self, microseconds: int) -> int:  # noqa: N802
        return microseconds


class FaultyFile(apsw.VFSFile):
    """One open file behind a trap."""

    def __init__(self, trap: Trap, name: apsw.URIFilename | str | None, flags: list[int]) -> None:
        self.read = "read" if flags[0] & apsw.SQLITE_OPEN_MAIN_DB else "read log"
        super().__init__("", name, flags)
        self.trap = trap

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802
        if self.trap.springs(self.read):
            if self.trap.kind != "short_read":
                raise self.trap.error(self.read)
            amount //= 2
        return super().xRead(amount, offset)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        self.trap.check("write")
        super().xWrite(data, offset)

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        self.trap.check("truncate")
        super().xTruncate(newsize)

    def xSync(self, flags: int) -> None:  # noqa: N802
        self.trap.check("sync")  # the disk under a test needs no sync of its own

    def xFileSize(self) -> int:  # noqa: N802
        self.trap.check("size")
        return super().xFileSize()

    def xLock(self, level: int) -> None:  # noqa: N802
        self.trap.check("lock")
        super().xLock(level)


class FaultyConnection:
    """A connection through a faulty VFS, whose own statements can fail too."""

    def __init__(self, inner: ApswConnection, trap: Trap) -> None:
        self._inner, self._trap = inner, trap
        trap.connections.add(self)

    def execute(self, sql: str, values: SqlValues = ()) -> SqliteCursor:
        verb = sql.split(maxsplit=1)[0].upper()
        alone = not self._inner.in_transaction and verb in COUNTED
        if (alone or verb == "BEGIN") and self._trap.springs("begin"):
            raise translated(self._trap.error("begin"))
        result = self._inner.execute(sql, values)
        if (alone or verb == "COMMIT") and self._trap.springs("commit"):
            raise translated(self._trap.error("commit"))
        return result

    def executemany(self, sql: str, rows: Iterable[SqlValues]) -> object:
        return self._inner.executemany(sql, rows)

    def close(self) -> None:
        self._inner.close()
        self._trap.connections.discard(self)


@contextmanager
def trapped(trap: Trap) -> Iterator[ConnectSqlite]:
    """A `connect` with the trap behind it, for as long as the block lasts."""
    vfs = FaultyVFS(f"faulty-{next(NUMBERS)}", trap)

    def connect(path: str, read_only: bool) -> FaultyConnection:
        inner = ApswConnection(path, vfs=vfs.name, read_only=read_only)
        return FaultyConnection(inner, trap)

    try:
        yield connect
    finally:
        vfs.unregister()


@dataclass(slots=True)
class Waiting:
    """An append that failed so far; every repetition is the same call."""

    batch: list[Envelope]
    expected: int
    doubtful: bool = False
    """Whether a failure left open if it was recorded. Before that, the store has said that it was not."""


@dataclass
class Run:
    """One workload under one trap."""

    path: Path
    trap: Trap
    connect: ConnectSqlite
    ledger: Ledger = field(default_factory=Ledger)
    heads: Counter[str] = field(default_factory=Counter)
    waiting: dict[str, Waiting] = field(default_factory=dict)
    errors: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    async def work(self) -> None:
        """The whole workload: three lives of a store, then the audit."""
        for life, end in (("first", self.kill), ("second", self.close), ("third", self.close)):
            store = await self.opened()
            if store is None:
                return
            for name, act in self.acts(store, life):
                await self.guarded(f"{life} {name}", act)
            await self.settle(store, life)
            await end(store, life)
        await self.audit()

    async def close(self, store: SqliteStore, life: str) -> None:
        await self.guarded(f"{life} close", store.close)
        self.violations += [f"{life}: a connection was left open" for _ in self.trap.connections]

    async def kill(self, store: SqliteStore, life: str) -> None:
        """End a life as a killed process does: the files stay as they are, and nothing is tidied up."""
        left = {path: path.read_bytes() for path in (self.path, Path(f"{self.path}-wal"))}
        await self.close(store, life)
        for path, data in left.items():
            path.write_bytes(data)

    async def opened(self) -> SqliteStore | None:
        """Open the store, the second time without the fault if need be."""
        try:
            return await self.limited(SqliteStore.open(self.path, connect=self.connect, settle_after=SETTLE_AFTER))
        except (StoreRefused, StoreUnavailable, OutcomeUnknown) as error:
            self.errors[f"open {type(error).__name__}"] += 1
        except Exception as error:
            self.violate("open", error)
        self.trap.lifted = True
        try:
            return await self.limited(SqliteStore.open(self.path, connect=self.connect, settle_after=SETTLE_AFTER))
        except Exception as error:
            self.violate("open again", error)
            return None

    def acts(self, store: SqliteStore, life: str) -> Iterator[tuple[str, Callable[[], Awaitable[object]]]]:
        for turn, (channel, sizes) in enumerate(APPENDS):
            yield f"append {turn}", partial(self.append, store, channel, f"{life}/{turn}", sizes)
            if turn % 3 == 2:
                yield f"read {turn}", partial(self.read, store, channel)
        snapshot = Snapshot(sequence=1, version="1", blob=b"fold" * 300)
        yield "put snapshot", partial(store.put_snapshot, CHANNELS[0], snapshot)
        yield "get snapshot", partial(store.get_snapshot, CHANNELS[0])
        yield "lease", partial(store.lease, "lead", "owner", 5)
        yield "channels", store.channels

    async def guarded(self, name: str, act: Callable[[], Awaitable[object]]) -> None:
        """Do one thing, which may fail clearly."""
        try:
            await self.limited(act())
        except CLEAR as error:
            self.errors[f"{name.split()[1]} {type(error).__name__}"] += 1
        except Exception as error:
            self.violate(name, error)

    async def append(self, store: SqliteStore, channel: str, name: str, sizes: Sequence[int]) -> None:
        """Append a new batch, or first the one that failed before it."""
        if channel not in self.waiting:
            drafts = [self.ledger.draft(channel, f"{name}/{place}", size) for place, size in enumerate(sizes)]
            self.waiting[channel] = Waiting(stamped(drafts, self.heads[channel]), self.heads[channel])
        call = self.waiting[channel]
        try:
            appended = await store.append(channel, call.batch, expected=call.expected)
        except OutcomeUnknown:
            call.doubtful = True
            raise
        self.ledger.acknowledge(call.batch, appended)
        if appended.duplicate and not call.doubtful:
            self.violations.append(f"{name}: recorded, though the store had said that nothing was")
        if appended.first != call.expected + 1:
            self.violations.append(f"{name}: acknowledged at {appended}, expected {call.expected}")
        self.heads[channel] = appended.last
        del self.waiting[channel]

    async def read(self, store: SqliteStore, channel: str) -> None:
        """Whatever a read gives while a fault is about, it holds what was acknowledged."""
        found = await contents(store, [channel])
        sent, acknowledged = self.ledger.sent, self.ledger.acknowledged
        known = {one: at for one, at in acknowledged.items() if sent[one].channel_id == channel}
        self.violations += missing(places_of(found), known) + faults(found, sent)

    async def settle(self, store: SqliteStore, life: str) -> None:
        """Once a fault is over, what failed is repeated and works at the first attempt, and so does something new."""
        if not self.trap.sprung:
            return
        self.trap.lifted = True
        for channel in CHANNELS:
            if channel in self.waiting:
                await self.sure(f"{life} repeat", partial(self.append, store, channel, life, ()))
            await self.sure(f"{life} renew", partial(self.append, store, channel, f"{life}/renewed", (300,)))
            await self.sure(f"{life} reread", partial(self.read, store, channel))

    async def sure(self, name: str, act: Callable[[], Awaitable[object]]) -> None:
        """Do one thing, which may not fail."""
        try:
            await self.limited(act())
        except Exception as error:
            self.violate(name, error)

    async def limited(self, act: Awaitable[T]) -> T:
        async with asyncio.timeout(PATIENCE):
            return await act

    async def audit(self) -> None:
        """What a restart finds, with another SQLite and without any fault."""
        ledger = self.ledger
        try:
            store = await SqliteStore.open(self.path)
            found = await contents(store, ledger.channels)
            await store.close()
        except Exception as error:
            self.violate("audit", error)
            return
        places = places_of(found)
        self.violations += [f"lost: {what}" for what in missing(places, ledger.acknowledged)]
        self.violations += [f"unsettled: {channel}" for channel in self.waiting]
        self.violations += faults(found, ledger.sent) + integrity(self.path)

    def violate(self, what: str, error: Exception) -> None:
        last = traceback.extract_tb(error.__traceback__)[-1]
        self.violations.append(f"{what}: {type(error).__name__}: {error} ({Path(last.filename).name}:{last.lineno})")


async def run(path: Path, trap: Trap) -> Run:
    """One workload in an empty folder, with this trap set."""
    with trapped(trap) as connect:
        one = Run(path, trap, connect)
        await one.work()
    return one
