"""A database file that is deleted, replaced or moved away under an open store is noticed: nothing is acknowledged."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from antiphon import Hub, StoreGone
from antiphon.core.errors import OutcomeUnknown, StoreRefused, StoreUnavailable
from antiphon.store import sqlite_writer
from antiphon.store.sqlite import SqliteStore
from antiphon.store.sqlite_connection import FileIdentity, SqliteConnection, SqlValues, connect_sqlite
from antiphon.testing.store_fixtures import text_batch, whole_log

Change = Callable[[Path], None]
PATIENCE = 30.0


def _deleted(path: Path) -> None:
    path.unlink()


def _deleted_with_its_log(path: Path) -> None:
    for part in (path, wal(path), path.with_name("team.db-shm")):
        part.unlink()


def _moved(path: Path) -> None:
    path.rename(path.with_name("elsewhere.db"))


def _moved_and_linked(path: Path) -> None:
    path.rename(path.with_name("elsewhere.db"))
    path.symlink_to(path.with_name("elsewhere.db"))


def _moved_with_its_directory(path: Path) -> None:
    path.parent.rename(path.parent.with_name("elsewhere"))


def _replaced_by_a_copy(path: Path) -> None:
    shutil.copy(path, path.with_name("copy.db"))
    path.with_name("copy.db").replace(path)


def _replaced_by_an_empty_file(path: Path) -> None:
    path.unlink()
    path.touch()


def _log_deleted(path: Path) -> None:
    wal(path).unlink()


def _log_replaced(path: Path) -> None:
    shutil.copy(wal(path), path.with_name("copy"))
    path.with_name("copy").replace(wal(path))


OF_THE_FILE = [
    _deleted,
    _deleted_with_its_log,
    _moved,
    _moved_and_linked,
    _moved_with_its_directory,
    _replaced_by_a_copy,
    _replaced_by_an_empty_file,
]
OF_THE_LOG = [_log_deleted, _log_replaced]


def wal(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data" / "team.db"


@pytest.mark.parametrize("change", [*OF_THE_FILE, *OF_THE_LOG])
async def test_nothing_is_acknowledged_any_more(path: Path, change: Change) -> None:
    store = await SqliteStore.open(path)
    await store.append("c", text_batch("c", 1), expected=0)
    change(path)
    for expected in (1, 2):
        with pytest.raises(StoreGone, match="deleted, replaced or moved away") as gone:
            await store.append("c", text_batch("c", expected + 1), expected=expected)
        assert str(path) in str(gone.value)
        assert "open the hub again" in str(gone.value)
    with pytest.raises(StoreGone):
        await store.lease("name", "owner", 1.0)
    with pytest.raises(StoreGone):
        await store.read("c")
    await store.close()


@pytest.mark.parametrize("change", OF_THE_FILE)
async def test_a_read_notices_it_too(path: Path, change: Change) -> None:
    store = await SqliteStore.open(path)
    await store.append("c", text_batch("c", 1), expected=0)
    change(path)
    with pytest.raises(StoreGone):
        await store.head("c")
    await store.close()


async def test_a_file_that_comes_back_is_used_by_the_next_store_only(path: Path) -> None:
    store = await SqliteStore.open(path)
    batch = text_batch("c", 1)
    await store.append("c", batch, expected=0)
    _moved(path)
    with pytest.raises(StoreGone):
        await store.append("c", text_batch("c", 2), expected=1)
    path.with_name("elsewhere.db").rename(path)
    for call in (store.append("c", text_batch("c", 2), expected=1), store.read("c")):
        with pytest.raises(StoreGone):
            await call
    await store.close()
    again = await SqliteStore.open(path)
    assert (await whole_log(again, "c"))[:1] == batch
    await again.close()


@pytest.mark.parametrize("change", OF_THE_LOG)
async def test_what_was_acknowledged_survives_the_loss_of_the_log_beside_the_file(path: Path, change: Change) -> None:
    store = await SqliteStore.open(path)
    batch = text_batch("c", 1)
    await store.append("c", batch, expected=0)
    assert wal(path).stat().st_size > 0
    change(path)
    with pytest.raises(StoreGone):
        await store.append("c", text_batch("c", 2), expected=1)
    wal(path).unlink(missing_ok=True)
    copied = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    assert copied.execute("SELECT count(*) FROM log WHERE seq = 1").fetchone() == (1,)
    copied.close()
    await store.close()
    again = await SqliteStore.open(path)
    assert (await whole_log(again, "c"))[:1] == batch
    await again.close()


async def test_it_is_logged_once(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = await SqliteStore.open(path)
    _deleted(path)
    for _ in range(3):
        with pytest.raises(StoreGone):
            await store.append("c", text_batch("c", 1), expected=0)
    await store.close()
    [entry] = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert entry.name == "antiphon.store"
    assert str(path) in entry.getMessage()


class _Failing:
    """A connection of which one statement fails, so that the store opens the file again."""

    def __init__(self, inner: SqliteConnection, fails: list[str]) -> None:
        self._inner, self._fails = inner, fails
        self.executemany, self.close = inner.executemany, inner.close

    def execute(self, sql: str, parameters: SqlValues = (), /) -> object:
        if self._fails and sql.startswith(self._fails[0]):
            self._fails.pop()
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR
            raise error
        return self._inner.execute(sql, parameters)


async def test_a_connection_that_is_opened_again_does_not_take_another_file(path: Path) -> None:
    fails: list[str] = []
    store = await SqliteStore.open(path, connect=lambda at, read_only: _Failing(connect_sqlite(at, read_only), fails))
    await store.append("c", text_batch("c", 1), expected=0)
    other = await SqliteStore.open(path.with_name("other.db"))
    await other.close()
    path.with_name("other.db").replace(path)
    fails.append("INSERT")
    for error in (OutcomeUnknown, StoreGone, StoreGone):
        with pytest.raises(error):
            await store.append("c", text_batch("c", 2), expected=1)
    await store.close()
    left = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)  # without the log of the file that was there
    assert left.execute("SELECT count(*) FROM log").fetchone() == (0,)
    left.close()


async def test_a_hub_whose_store_is_gone_closes(path: Path) -> None:
    hub = await Hub.open(f"sqlite:///{path}")
    ann = await hub.register("ann")
    await hub.register("ben")
    channel = await ann.open(target="ben")
    path.unlink()
    with pytest.raises(StoreGone):
        await channel.send("not recorded")
    async with asyncio.timeout(PATIENCE):
        await hub.close()


async def test_a_hub_says_so_to_whoever_sends(path: Path) -> None:
    async with Hub.open(f"sqlite:///{path}") as hub:
        ann = await hub.register("ann")
        await hub.register("bob")
        channel = await ann.open(type="conversation", target="bob")
        await channel.send("one")
        _deleted(path)
        for _ in range(2):
            with pytest.raises(StoreGone):
                await channel.send("two")


CHILD = """
import asyncio, sys
from antiphon import Hub, StoreGone

async def main():
    async with Hub.open(f"sqlite:///{sys.argv[1]}") as hub:
        ann = await hub.register("ann")
        await hub.register("bob")
        channel = await ann.open(type="conversation", target="bob")
        for line in sys.stdin:
            try:
                await channel.send(line.strip())
            except StoreGone as gone:
                print("refused", gone, flush=True)
            else:
                print("acknowledged", flush=True)

asyncio.run(main())
"""


async def test_a_process_whose_file_was_deleted_acknowledges_nothing(path: Path) -> None:
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CHILD, str(path), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert child.stdin is not None
    assert child.stdout is not None

    async def answer(text: str) -> str:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(f"{text}\n".encode())
        return (await asyncio.wait_for(child.stdout.readline(), 30)).decode()

    assert await answer("one") == "acknowledged\n"
    os.unlink(path)
    for text in ("two", "three"):
        said_by_child = await answer(text)
        assert said_by_child.startswith("refused")
        assert str(path) in said_by_child
    child.stdin.close()
    assert await asyncio.wait_for(child.wait(), 30) == 0
    assert not path.exists()


@pytest.mark.parametrize("size", [None, 0])
async def test_a_log_without_its_file_is_not_made_a_new_store(path: Path, size: int | None) -> None:
    store = await SqliteStore.open(path)
    await store.append("c", text_batch("c", 1), expected=0)
    kept = path.with_name("kept"), path.with_name("kept-wal")
    shutil.copy(path, kept[0])
    shutil.copy(wal(path), kept[1])
    await store.close()
    path.unlink()
    shutil.copy(kept[1], wal(path))
    if size == 0:
        path.touch()
    before = wal(path).read_bytes()
    with pytest.raises(StoreRefused, match=r"team\.db-wal holds .* put .* back"):
        await SqliteStore.open(path)
    assert wal(path).read_bytes() == before
    shutil.copy(kept[0], path)
    again = await SqliteStore.open(path)
    assert await again.head("c") == 1
    await again.close()


@pytest.mark.parametrize("change", [*OF_THE_FILE, *OF_THE_LOG])
async def test_an_idle_store_notices_it_by_itself(path: Path, change: Change) -> None:
    store = await SqliteStore.open(path)
    other = await SqliteStore.open(path.parent.with_name("other.db"))
    batch = text_batch("c", 1)
    await store.append("c", batch, expected=0)
    gone, not_gone = (asyncio.ensure_future(each.gone()) for each in (store, other))
    change(path)
    error = await asyncio.wait_for(gone, PATIENCE)
    assert isinstance(error, StoreGone)
    assert str(path) in str(error)
    with pytest.raises(StoreGone):
        await store.read("c")
    assert not not_gone.done()
    not_gone.cancel()
    for each in (store, other):
        await each.close()


@pytest.mark.parametrize("change", OF_THE_LOG)
async def test_an_idle_store_that_lost_its_log_saves_what_was_acknowledged(path: Path, change: Change) -> None:
    store = await SqliteStore.open(path)
    await store.append("c", text_batch("c", 1), expected=0)
    change(path)
    await asyncio.wait_for(store.gone(), PATIENCE)
    with pytest.raises(StoreGone):  # behind the look of the same thread
        await store.lease("name", "owner", 1.0)
    left = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    assert left.execute("SELECT count(*) FROM log").fetchone() == (1,)
    left.close()
    await store.close()


class _Looks:
    """Counts how often a store looks at its file."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._real = FileIdentity.has_file
        self._loop = asyncio.get_running_loop()
        self._looks: asyncio.Queue[None] = asyncio.Queue()
        patch.setattr(FileIdentity, "has_file", lambda identity: self._counted(identity))
        patch.setattr(sqlite_writer, "FILE_CHECK_SECONDS", 0.001)

    def _counted(self, identity: FileIdentity) -> bool:
        self._loop.call_soon_threadsafe(self._looks.put_nowait, None)
        return self._real(identity)

    async def some(self) -> None:
        """Return when the store has looked a few times more."""
        for _ in range(self._looks.qsize() + 5):
            await asyncio.wait_for(self._looks.get(), PATIENCE)


async def test_a_log_that_goes_with_the_last_connection_is_not_missed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = _Looks(monkeypatch)
    fails: list[str] = []
    store = await SqliteStore.open(path, connect=lambda at, read_only: _Failing(connect_sqlite(at, read_only), fails))
    await store.append("c", text_batch("c", 1), expected=0)
    fails.append("SELECT")
    with pytest.raises(StoreUnavailable):
        await store.head("c")
    fails.append("INSERT")
    with pytest.raises(OutcomeUnknown):
        await store.append("c", text_batch("c", 2), expected=1)
    assert not wal(path).exists()
    await looks.some()
    await store.append("c", text_batch("c", 2), expected=1)
    assert await store.head("c") == 2
    await store.close()


async def test_a_file_that_cannot_be_looked_at_for_a_moment_is_not_given_up(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await SqliteStore.open(path)
    await store.append("c", text_batch("c", 1), expected=0)
    real = os.lstat
    failed = asyncio.Event()
    loop = asyncio.get_running_loop()

    def lstat(place: str) -> os.stat_result:
        if place != str(path):
            return real(place)
        loop.call_soon_threadsafe(failed.set)
        raise PermissionError(13, "Permission denied", place)

    with monkeypatch.context() as patch:
        patch.setattr(os, "lstat", lstat)
        with pytest.raises(OutcomeUnknown, match="cannot be looked at"):
            await asyncio.wait_for(store.append("c", text_batch("c", 2), expected=1), PATIENCE)
        failed.clear()
        await asyncio.wait_for(failed.wait(), PATIENCE)  # it also looks when it is idle
    assert await store.head("c") == 2
    await store.append("c", text_batch("c", 3), expected=2)
    await store.close()
