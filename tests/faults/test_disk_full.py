"""A disk without room: nothing is acknowledged that is not there, and work goes on once there is room again."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import apsw
import pytest

from antiphon.core.envelope import Envelope
from antiphon.core.errors import OutcomeUnknown, StoreRefused, StoreUnavailable
from antiphon.store.sqlite import SqliteStore
from antiphon.store.sqlite_connection import ConnectSqlite, SqliteConnection, SqliteCursor, SqlValues
from antiphon.store.sqlite_connection import connect_sqlite as plainly
from tests.faults.append_ledger import Ledger, contents, faults, integrity, missing, places_of, stamped
from tests.faults.apsw_connection import connects_through, failure

POINTS = 50 if os.environ.get("ANTIPHON_PROOF") == "1" else 5
CHANNEL, SIZE, ENDLESS = "channel", 900, 1000
PLENTY = 1 << 30
ROOT = Path(__file__).parents[2]


@dataclass
class Filled:
    """What a store did on a disk that became full and was freed."""

    acknowledged: int = 0
    refusals: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


async def fill_and_free(
    path: Path, free: Callable[[], None], connect: ConnectSqlite = plainly, settle_after: int = 4000
) -> Filled:
    """Append until there is no room, make room, and go on with the same store."""
    filled, ledger = Filled(), Ledger()
    try:
        store = await SqliteStore.open(path, connect=connect, settle_after=settle_after)
    except (StoreRefused, StoreUnavailable) as error:
        filled.refusals.append(f"open {type(error).__name__}")
        free()
        store = await SqliteStore.open(path, connect=connect, settle_after=settle_after)
    else:
        await fill(store, ledger, filled)
        free()
    unsettled = [one for name, one in ledger.sent.items() if name not in ledger.acknowledged]
    for draft in [*unsettled, ledger.draft(CHANNEL, "afterwards", SIZE)]:
        await append(store, ledger, draft)
    await store.close()
    filled.acknowledged = len(ledger.acknowledged)
    filled.wrong = await audited(path, ledger)
    return filled


async def fill(store: SqliteStore, ledger: Ledger, filled: Filled) -> None:
    """Append until one envelope is refused, and then insist a little."""
    while not filled.refusals:
        assert len(ledger.sent) < ENDLESS, "the disk never became full"
        draft = ledger.draft(CHANNEL, f"{len(ledger.sent)}", SIZE)
        for _ in range(3):
            try:
                await append(store, ledger, draft)
                break
            except (StoreUnavailable, OutcomeUnknown) as error:
                filled.refusals.append(f"append {type(error).__name__}")


async def append(store: SqliteStore, ledger: Ledger, draft: Envelope) -> None:
    expected = len(ledger.acknowledged)
    batch = stamped([draft], expected)
    ledger.acknowledge(batch, await store.append(CHANNEL, batch, expected=expected))


async def audited(path: Path, ledger: Ledger) -> list[str]:
    store = await SqliteStore.open(path)
    found = await contents(store, ledger.channels)
    await store.close()
    return missing(places_of(found), ledger.acknowledged) + faults(found, ledger.sent) + integrity(path)


def spread(low: int, high: int) -> list[int]:
    """`POINTS` numbers from low to high."""
    return [low + (high - low) * place // (POINTS - 1) for place in range(POINTS)]


def check(outcomes: Sequence[Filled]) -> None:
    assert [one.wrong for one in outcomes if one.wrong] == []
    assert all(one.refusals for one in outcomes), "a disk never became full"
    refused = {what for one in outcomes for what in one.refusals}
    assert any(what.startswith("append") for what in refused), f"only {refused}"
    assert sum(one.acknowledged for one in outcomes) > 5 * POINTS, "hardly anything was ever recorded"


# SQLite's own limit


class LimitedConnection:
    """A connection whose file may have so many pages as the limit says at each BEGIN."""

    def __init__(self, inner: SqliteConnection, pages: Callable[[], int]) -> None:
        self._inner, self._pages = inner, pages

    def execute(self, sql: str, values: SqlValues = ()) -> SqliteCursor:
        if sql.startswith("BEGIN"):
            self._inner.execute(f"PRAGMA max_page_count = {self._pages()}")
        return self._inner.execute(sql, values)

    def executemany(self, sql: str, rows: Iterable[SqlValues]) -> object:
        return self._inner.executemany(sql, rows)

    def close(self) -> None:
        self._inner.close()


async def test_no_more_pages(tmp_path: Path) -> None:
    async def at(most: int) -> Filled:
        limits = [most]

        def connect(path: str, read_only: bool) -> LimitedConnection:
            return LimitedConnection(plainly(path, read_only), lambda: limits[-1])

        return await fill_and_free(tmp_path / f"{most}.db", lambda: limits.append(PLENTY), connect)

    check([await at(most) for most in spread(1, 90)])


# A small disk


class SmallDisk(apsw.VFS):
    """The system's own VFS, with room for so many bytes in all files together. What is there can be overwritten."""

    def __init__(self, name: str, room: int) -> None:
        super().__init__(name, "")
        self.name, self.room = name, room
        self.sizes: dict[str, int] = {}

    def free(self) -> None:
        self.room = PLENTY

    def xOpen(self, name: apsw.URIFilename | str | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802  # SQLite's name
        return SmallFile(self, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        super().xDelete(filename, syncdir)
        self.sizes.pop(filename, None)


class SmallFile(apsw.VFSFile):
    """One file of a small disk."""

    def __init__(self, disk: SmallDisk, name: apsw.URIFilename | str | None, flags: list[int]) -> None:
        super().__init__("", name, flags)
        self.disk = disk
        self.path = name.filename() if isinstance(name, apsw.URIFilename) else str(name)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        before, after = self.disk.sizes.get(self.path, 0), offset + len(data)
        if after > before:
            if sum(self.disk.sizes.values()) + after - before > self.disk.room:
                raise failure(apsw.FullError, apsw.SQLITE_FULL, "database or disk is full")
            self.disk.sizes[self.path] = after
        super().xWrite(data, offset)

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        super().xTruncate(newsize)
        self.disk.sizes[self.path] = newsize

    def xSync(self, flags: int) -> None:  # noqa: N802
        """The disk under a test needs no sync of its own."""


@pytest.mark.parametrize("settle_after", [10, 4000])
async def test_no_more_bytes(tmp_path: Path, settle_after: int) -> None:
    async def at(room: int) -> Filled:
        disk = SmallDisk(f"small-{room}", room)
        try:
            connect = connects_through(disk.name)
            return await fill_and_free(tmp_path / f"{room}.db", disk.free, connect, settle_after)
        finally:
            disk.unregister()

    check([await at(room) for room in spread(0, 500_000)])


# The operating system's limit


def test_no_larger_files(tmp_path: Path) -> None:
    """In a process of its own, because the limit holds for all of one."""
    command = [sys.executable, "-c", "from tests.faults.test_disk_full import limited; limited()", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    check([Filled(**one) for one in json.loads(done.stdout)])


def limited() -> None:
    """What the process does: one store after the other, with files that cannot grow beyond a size."""
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)

    def set_limit(size: int) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, most))

    outcomes = []
    for size in spread(20_000, 400_000):
        set_limit(size)
        path = Path(sys.argv[1]) / f"{size}.db"
        outcomes.append(asyncio.run(fill_and_free(path, lambda: set_limit(most))))
    print(json.dumps([asdict(one) for one in outcomes]))
