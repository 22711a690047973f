"""What cannot be used is refused at once, with a sentence that says what to do, and is left as it was."""

# ruff: noqa: ASYNC221  # a test may wait for its own files and processes

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from antiphon.core.errors import OutcomeUnknown, StoreGone, StoreRefused, StoreUnavailable
from antiphon.store import sqlite_files, sqlite_schema
from antiphon.store.protocol import Appended
from antiphon.store.sqlite import SqliteStore
from antiphon.store.sqlite_connection import SqliteConnection, SqliteCursor, SqlValues, connect_sqlite
from antiphon.testing.store_fixtures import text_batch


async def refusal(path: Path, *, read_only: bool = False) -> str:
    with pytest.raises(StoreRefused) as caught:
        await SqliteStore.open(path, read_only=read_only)
    assert str(path) in str(caught.value) or str(path.parent) in str(caught.value)
    return str(caught.value)


def changed(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


async def test_a_file_that_is_no_database(path: Path) -> None:
    path.write_bytes(b"once upon a time " * 100)
    assert "no database" in await refusal(path)
    assert path.read_bytes() == b"once upon a time " * 100


async def test_a_database_of_another_program(path: Path) -> None:
    changed(path, "CREATE TABLE notes (text)")
    before = path.read_bytes()
    assert "another program" in await refusal(path)
    assert path.read_bytes() == before


async def test_a_database_that_another_program_has_claimed(path: Path) -> None:
    changed(path, "PRAGMA application_id = 7")
    assert "another program" in await refusal(path)


async def test_a_newer_database(path: Path) -> None:
    await (await SqliteStore.open(path)).close()
    changed(path, "PRAGMA user_version = 99")
    assert "upgrade" in await refusal(path)
    assert "upgrade" in await refusal(path, read_only=True)


async def test_an_older_database_is_not_migrated_by_a_reader(path: Path) -> None:
    path.touch()
    assert "there is no store in it" in await refusal(path, read_only=True)


async def test_a_directory(path: Path) -> None:
    path.mkdir()
    assert "is a directory" in await refusal(path)


async def test_a_directory_that_is_missing(tmp_path: Path) -> None:
    assert "does not exist" in await refusal(tmp_path / "missing" / "team.db")
    assert not (tmp_path / "missing").exists()


async def test_nothing_to_read(path: Path) -> None:
    assert "nothing to read" in await refusal(path, read_only=True)
    assert not path.exists()


async def test_a_place_that_may_not_be_written() -> None:
    """Not even the superuser makes files there."""
    assert "cannot be written" in await refusal(Path("/proc/team.db"))


@pytest.mark.parametrize("path", ["", ":memory:", "a\0b"])
async def test_no_path_at_all(path: str) -> None:
    with pytest.raises(StoreRefused, match="no path"):
        await SqliteStore.open(path)


async def test_a_second_hub(store: SqliteStore, path: Path) -> None:
    said_why = await refusal(path)
    assert str(os.getpid()) in said_why
    assert "PostgreSQL" in said_why
    await store.append("c", text_batch("c", 1), expected=0)


async def test_a_second_hub_in_another_process(store: SqliteStore, path: Path) -> None:
    script = "import asyncio, sys; from antiphon.store.sqlite import SqliteStore as S; asyncio.run(S.open(sys.argv[1]))"
    done = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"process {os.getpid()}" in done.stderr


async def test_a_closed_store_can_be_opened_again(path: Path) -> None:
    for _ in range(3):
        await (await SqliteStore.open(path)).close()


async def test_a_refused_store_gives_up_its_lock(path: Path) -> None:
    path.write_bytes(b"once upon a time " * 100)
    await refusal(path)
    path.unlink()
    await (await SqliteStore.open(path)).close()


async def test_syncing_that_is_not_in_force(path: Path) -> None:
    def lax(place: str, read_only: bool) -> SqliteConnection:
        return Altered(connect_sqlite(place, read_only), {"PRAGMA synchronous = FULL": "PRAGMA synchronous = OFF"})

    with pytest.raises(StoreRefused, match="synced at level 0"):
        await SqliteStore.open(path, connect=lax)


async def test_each_migration_says_its_number() -> None:
    for number, statements in enumerate(sqlite_schema.migrations(), 1):
        assert f"PRAGMA user_version = {number};" in statements
    assert f"PRAGMA application_id = {sqlite_files.APPLICATION_ID};" in sqlite_schema.migrations()[0]


class Altered:
    """A connection that runs other statements than it is given, or fails instead; and counts."""

    def __init__(self, inner: SqliteConnection, instead: dict[str, str | sqlite3.Error]) -> None:
        self._inner, self._instead = inner, instead

    def execute(self, sql: str, parameters: SqlValues = ()) -> SqliteCursor:
        other = self._instead.get(sql, sql)
        if isinstance(other, sqlite3.Error):
            raise other
        return self._inner.execute(other, parameters)

    def executemany(self, sql: str, parameters: list[SqlValues]) -> object:
        return self._inner.executemany(sql, parameters)

    def close(self) -> None:
        self._inner.close()


def failure(code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("it was told to fail")
    error.sqlite_errorcode = code
    return error


async def test_a_commit_that_fails_is_unknown_and_the_store_recovers(path: Path) -> None:
    instead: dict[str, str | sqlite3.Error] = {}
    store = await SqliteStore.open(path, connect=lambda place, read: Altered(connect_sqlite(place, read), instead))
    instead["COMMIT"] = failure(sqlite3.SQLITE_IOERR)
    batch = text_batch("c", 1)
    with pytest.raises(OutcomeUnknown):
        await store.append("c", batch, expected=0)
    instead.clear()
    assert await store.append("c", batch, expected=0) == Appended(1, 1)
    await store.close()


async def test_a_commit_that_fails_only_in_its_answer_is_recognised(path: Path) -> None:
    class LosesAnswers(Altered):
        def execute(self, sql: str, parameters: SqlValues = ()) -> SqliteCursor:
            cursor = super().execute(sql, parameters)
            if lost and (sql == "COMMIT" or sql.startswith("INSERT INTO log")):
                lost.pop()
                raise failure(sqlite3.SQLITE_IOERR)
            return cursor

    lost: list[int] = []
    store = await SqliteStore.open(path, connect=lambda place, read: LosesAnswers(connect_sqlite(place, read), {}))
    for sequence in range(1, 4):
        batch = text_batch("c", sequence)
        lost.append(1)
        with pytest.raises(OutcomeUnknown):
            await store.append("c", batch, expected=sequence - 1)
        repeated = await store.append("c", batch, expected=sequence - 1)
        assert repeated == Appended(sequence, sequence, duplicate=True)
    await store.close()


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        (sqlite3.SQLITE_FULL, "no room left"),
        (sqlite3.SQLITE_BUSY, "locked by another process"),
        (sqlite3.SQLITE_IOERR, "told to fail"),
    ],
)
async def test_a_failure_before_the_commit_has_recorded_nothing(path: Path, code: int, sentence: str) -> None:
    instead: dict[str, str | sqlite3.Error] = {}
    store = await SqliteStore.open(path, connect=lambda place, read: Altered(connect_sqlite(place, read), instead))
    instead["BEGIN IMMEDIATE"] = failure(code)
    with pytest.raises(StoreUnavailable, match=sentence):
        await store.append("c", text_batch("c", 1), expected=0)
    instead.clear()
    assert await store.head("c") == 0
    assert await store.append("c", text_batch("c", 1), expected=0) == Appended(1, 1)
    await store.close()


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (sqlite3.SQLITE_FULL, StoreUnavailable),
        (sqlite3.SQLITE_BUSY, StoreUnavailable),
        (sqlite3.SQLITE_IOERR, OutcomeUnknown),
    ],
)
async def test_a_statement_that_commits_itself_may_have_done_so(path: Path, code: int, kind: type[Exception]) -> None:
    class Failing(Altered):
        def execute(self, sql: str, parameters: SqlValues = ()) -> SqliteCursor:
            if failing and sql.startswith("INSERT INTO log"):
                raise failure(failing.pop())
            return super().execute(sql, parameters)

    failing: list[int] = []
    store = await SqliteStore.open(path, connect=lambda place, read: Failing(connect_sqlite(place, read), {}))
    await store.append("c", text_batch("c", 1), expected=0)
    failing.append(code)
    batch = text_batch("c", 2)
    with pytest.raises(kind):
        await store.append("c", batch, expected=1)
    assert await store.append("c", batch, expected=1) == Appended(2, 2)
    await store.close()


async def test_a_file_that_was_taken_away_is_not_started_anew(path: Path) -> None:
    instead: dict[str, str | sqlite3.Error] = {}
    store = await SqliteStore.open(path, connect=lambda place, read: Altered(connect_sqlite(place, read), instead))
    await store.append("c", text_batch("c", 1), expected=0)
    instead["BEGIN IMMEDIATE"] = failure(sqlite3.SQLITE_IOERR)
    with pytest.raises(StoreUnavailable):
        await store.append("d", text_batch("d", 1), expected=0)
    instead.clear()
    for file in path.parent.glob("team.db*"):
        if not file.name.endswith("-owner"):
            file.unlink()
    path.touch()
    with pytest.raises(StoreGone):
        await store.append("d", text_batch("d", 1), expected=0)
    await store.close()
    assert path.stat().st_size == 0
