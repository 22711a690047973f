"""One hub owns a file, for as long as it lives and no longer; and nobody's locks are lost to whoever is refused."""

# ruff: noqa: ASYNC220  # a test may wait for its own files and processes

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from antiphon.core.errors import StoreError, StoreRefused
from antiphon.store.sqlite import SqliteStore
from antiphon.store.sqlite_files import is_owned_here, owner_process, prepare_database_path, take_ownership
from antiphon.store.verification import verify_store
from antiphon.testing.store_fixtures import text_batch, whole_log
from tests.support.unprivileged import needs_permissions, opened


async def refusal(path: Path, *, read_only: bool = False) -> str:
    with pytest.raises(StoreRefused) as caught:
        await SqliteStore.open(path, read_only=read_only)
    return str(caught.value)


def beside(path: Path) -> set[str]:
    return {file.name for file in path.parent.iterdir()}


def looked_at_by_another_program(path: Path) -> int:
    """How many envelopes a plain SQLite client sees, which tidies up at its end if it thinks that it is alone."""
    script = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); print(c.execute('SELECT count(*) FROM log')"
    script += ".fetchone()[0]); c.close()"
    done = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True, check=True)
    return int(done.stdout)


# Locks


async def looked_at(path: Path) -> None:
    await (await SqliteStore.open(path, read_only=True)).close()


async def refused(path: Path) -> None:
    await refusal(path)


async def asked_for_its_owner(path: Path) -> None:
    assert owner_process(str(path)) == str(os.getpid())


@pytest.mark.parametrize("meanwhile", [refused, looked_at, asked_for_its_owner])
async def test_a_hub_keeps_its_locks_whoever_else_comes(path: Path, meanwhile: object) -> None:
    assert callable(meanwhile)
    store = await SqliteStore.open(path)
    await store.append("c", text_batch("c", 1), expected=0)
    await meanwhile(path)
    assert looked_at_by_another_program(path) == 1
    assert "team.db-wal" in beside(path)
    for sequence in range(2, 6):
        await store.append("c", text_batch("c", sequence), expected=sequence - 1)
    assert looked_at_by_another_program(path) == 5
    await store.close()


async def test_hard_links_are_refused(path: Path) -> None:
    await (await SqliteStore.open(path)).close()
    other = path.with_name("other.db")
    other.hardlink_to(path)
    for name in (path, other):
        assert "2 names" in await refusal(name)
        assert "2 names" in await refusal(name, read_only=True)
    other.unlink()
    await (await SqliteStore.open(path)).close()


# Processes


FORKING = """
import asyncio, os, sys, time
from antiphon.store.sqlite_files import is_owned_here
from antiphon.store.sqlite import SqliteStore

async def serve():
    store = await SqliteStore.open(sys.argv[1])
    child = os.fork()
    if child == 0:
        assert not is_owned_here(sys.argv[1])
        print("forked", flush=True)
        sys.stdin.readline()
        os._exit(0)
    assert is_owned_here(sys.argv[1])
    await asyncio.sleep(60)

asyncio.run(serve())
"""


async def test_a_child_process_does_not_keep_the_file(path: Path) -> None:
    script = [sys.executable, "-c", FORKING, str(path)]
    with subprocess.Popen(script, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as hub:
        assert hub.stdout is not None
        assert hub.stdout.readline() == "forked\n"
        assert f"process {hub.pid}" in await refusal(path)
        hub.send_signal(signal.SIGKILL)
        hub.wait()
        await (await SqliteStore.open(path)).close()


async def test_the_owner_is_this_process(store: SqliteStore, path: Path) -> None:
    said_why = await refusal(path)
    assert f"another hub of this process ({os.getpid()})" in said_why
    assert "PostgreSQL, which this version does not have yet" in said_why
    assert is_owned_here(str(path))
    await store.close()
    assert not is_owned_here(str(path))
    assert owner_process(str(path)) is None


async def test_removing_the_lock_file_makes_no_second_owner_here(store: SqliteStore, path: Path) -> None:
    Path(f"{path}-owner").unlink()
    assert "of this process" in await refusal(path)
    await store.append("c", text_batch("c", 1), expected=0)


# The file that carries the lock


async def test_a_link_is_not_followed_to_another_file(path: Path) -> None:
    precious = path.with_name("precious.txt")
    precious.write_text("my thesis")
    Path(f"{path}-owner").symlink_to(precious)
    assert "team.db-owner cannot be written (it is a link" in await refusal(path)
    assert precious.read_text() == "my thesis"


async def test_a_hard_link_is_not_written_through(path: Path) -> None:
    precious = path.with_name("precious.txt")
    precious.write_text("my thesis")
    Path(f"{path}-owner").hardlink_to(precious)
    assert "no file of its own" in await refusal(path)
    assert precious.read_text() == "my thesis"


def test_a_lock_on_a_file_that_was_removed_is_taken_anew(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody removes the file after it was opened and before it is locked."""
    import fcntl

    plainly, removed = fcntl.flock, []

    def late(descriptor: int, how: int) -> None:
        if not removed:
            removed.append(os.unlink(f"{path}-owner"))
        plainly(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", late)
    ownership = take_ownership(prepare_database_path(path, read_only=False))
    monkeypatch.undo()
    assert removed
    assert Path(f"{path}-owner").read_text() == f"{os.getpid()}\n"
    script = "import sys; from antiphon.store.sqlite_files import take_ownership; take_ownership(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True, check=False)
    assert "owned by another hub" in done.stderr
    ownership.release()


@pytest.mark.parametrize("kind", ["no database", "another program's", "another program's, not settled", "claimed"])
async def test_nothing_is_left_beside_a_file_that_is_not_ours(path: Path, kind: str) -> None:
    if kind == "no database":
        path.write_bytes(b"once upon a time " * 100)
    connection = sqlite3.connect(path) if kind != "no database" else None
    if connection is not None:
        connection.execute("PRAGMA journal_mode = WAL" if "settled" in kind else "PRAGMA user_version")
        connection.execute("PRAGMA application_id = 7" if kind == "claimed" else "CREATE TABLE notes (text)")
        connection.commit()
    before, content = beside(path), path.read_bytes()
    assert "another program" in (why := await refusal(path)) or "no database" in why
    assert (beside(path), path.read_bytes()) == (before, content)
    if connection is not None:
        connection.close()


async def test_what_stood_there_before_a_refusal_stays(path: Path) -> None:
    path.write_bytes(b"once upon a time " * 100)
    Path(f"{path}-owner").write_text("17\n")
    await refusal(path)
    assert f"{path.name}-owner" in beside(path)


# Places


def test_places_that_cannot_be_a_store(tmp_path: Path) -> None:
    (tmp_path / "round").symlink_to(tmp_path / "about")
    (tmp_path / "about").symlink_to(tmp_path / "round")
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    reasons = {"round": "circle", "n" * 300: "too long", "file/team.db": "Not a directory", "pipe": "no regular file"}
    for name, why in reasons.items():
        for read_only in (False, True):
            with pytest.raises(StoreRefused, match=why) as caught:
                prepare_database_path(tmp_path / name, read_only=read_only)
            assert str(tmp_path) in str(caught.value)
    assert beside(tmp_path / "file") == {"round", "about", "file", "pipe"}


@needs_permissions
def test_a_directory_that_may_not_be_entered(tmp_path: Path) -> None:
    (tmp_path / "shut").mkdir(mode=0o000)
    try:
        for how in ("read", "write"):
            said_why = opened(tmp_path / "shut" / "team.db", how)
            assert said_why.startswith(f"StoreRefused: {tmp_path}/shut/team.db cannot be reached (Permission denied)")
    finally:
        (tmp_path / "shut").chmod(0o700)


async def test_a_link_to_the_file_is_the_file(store: SqliteStore, path: Path) -> None:
    link = path.with_name("link.db")
    link.symlink_to(path)
    assert str(path) in await refusal(link)


# Permissions


@pytest.fixture
async def filled(path: Path) -> Path:
    """A store with one envelope, closed in good order."""
    store = await SqliteStore.open(path)
    await store.append("c", text_batch("c", 1), expected=0)
    await store.close()
    return path


@needs_permissions
@pytest.mark.parametrize("suffix", ["", "-wal", "-shm"])
async def test_a_part_that_may_not_be_written_is_named_with_its_owner(filled: Path, suffix: str) -> None:
    part = Path(f"{filled}{suffix}")
    part.touch()
    part.chmod(0o444)
    said_why = opened(filled, "write")
    assert said_why.startswith(f"StoreRefused: {part} cannot be written by you: it belongs to {part.owner()}")
    part.chmod(0o644)
    assert opened(filled, "write") == "head 1"


@needs_permissions
async def test_a_file_that_may_only_be_read_is_read_and_leaves_nothing(filled: Path) -> None:
    before = beside(filled)
    for file, folder in ((0o444, 0o755), (0o444, 0o555), (0o644, 0o555)):
        filled.chmod(file)
        filled.parent.chmod(folder)
        assert opened(filled, "read") == "head 1"
        filled.parent.chmod(0o755)
    assert beside(filled) == before


@needs_permissions
async def test_a_missing_permission_is_named(filled: Path) -> None:
    filled.chmod(0o000)
    assert "team.db may not be read by you" in opened(filled, "read")
    filled.chmod(0o444)
    Path(f"{filled}-wal").write_bytes(b"something that was committed")
    assert "you must be able to write it and its directory" in opened(filled, "read")
    Path(f"{filled}-wal").chmod(0o000)
    assert "team.db-wal may not be read by you" in opened(filled, "read")


@needs_permissions
async def test_beside_a_hub_a_file_that_may_only_be_read_is_read_with_its_log(store: SqliteStore, path: Path) -> None:
    for sequence in (1, 2):
        await store.append("c", text_batch("c", sequence), expected=sequence - 1)
    path.chmod(0o444)
    assert opened(path, "read") == "head 2"


async def test_reading_leaves_nothing_where_nothing_was(filled: Path) -> None:
    before = beside(filled)
    readers = [await SqliteStore.open(filled, read_only=True) for _ in range(2)]
    for reader in readers:
        assert (await verify_store(reader)).problems == []
        await reader.close()
    assert beside(filled) == before


async def test_a_reader_moves_no_log_that_it_found(path: Path) -> None:
    """The hub was killed: what it had committed stays where it is until a hub comes."""
    store = await SqliteStore.open(path)
    await store.append("c", text_batch("c", 1), expected=0)
    left = {name: (path.parent / name).read_bytes() for name in ("team.db", "team.db-wal")}
    await store.close()
    for name, content in left.items():
        (path.parent / name).write_bytes(content)
    reader = await SqliteStore.open(path, read_only=True)
    assert await reader.head("c") == 1
    await reader.close()
    assert {name: (path.parent / name).read_bytes() for name in left} == left


async def test_a_still_reader_notices_a_hub_that_begins(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without locks it believes nothing that it reads once somebody writes; and then it reads beside the hub."""
    monkeypatch.setattr("antiphon.store.sqlite_schema.read_mode_of", lambda path: "immutable")
    reader = await SqliteStore.open(filled, read_only=True)
    assert len(await whole_log(reader, "c")) == 1
    hub = await SqliteStore.open(filled)
    await hub.append("c", text_batch("c", 2), expected=1)
    with pytest.raises(StoreError, match="began to write"):
        await reader.head("c")
    monkeypatch.undo()
    assert await reader.head("c") == 2
    await hub.close()
    await reader.close()


async def test_many_readers_and_a_hub_come_and_go(filled: Path) -> None:
    async def read() -> int:
        reader = await SqliteStore.open(filled, read_only=True)
        head = await reader.head("c")
        await reader.close()
        return head

    for sequence in range(2, 8):
        hub = await SqliteStore.open(filled)
        early = [asyncio.create_task(read()) for _ in range(3)]
        await hub.append("c", text_batch("c", sequence), expected=sequence - 1)
        late = asyncio.create_task(read())
        assert set(await asyncio.gather(*early)) <= {sequence - 1, sequence}
        assert await late == sequence
        await hub.close()
        assert await read() == sequence
    assert beside(filled) == {"team.db", "team.db-owner"}


async def test_a_file_whose_making_was_cut_off_is_made_anew(tmp_path: Path) -> None:
    """The journal beside it says what it was before: empty. What stands in the file itself is in pieces."""
    making, path = tmp_path / "making.db", tmp_path / "team.db"
    connection = sqlite3.connect(making, isolation_level=None)
    connection.executescript("PRAGMA cache_size = 1; BEGIN; CREATE TABLE log (body)")
    connection.executemany("INSERT INTO log VALUES (?)", [("x" * 3000,)] * 200)
    written, journal = making.read_bytes(), making.with_name("making.db-journal").read_bytes()
    connection.close()
    assert written
    assert journal
    path.write_bytes(b"torn" + written[4:])
    path.with_name("team.db-journal").write_bytes(journal)
    with pytest.raises(StoreRefused, match="was left half made"):
        await SqliteStore.open(path, read_only=True)
    store = await SqliteStore.open(path)
    assert await store.names() == []
    await store.close()
    assert not path.with_name("team.db-journal").exists()
