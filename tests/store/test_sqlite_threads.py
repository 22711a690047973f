"""The threads behind a store: nothing ends them too early, nothing waits for one that never began."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest

from antiphon.core.errors import LogCorrupt, OutcomeUnknown, StoreUnavailable, UsageError
from antiphon.store.protocol import Appended
from antiphon.store.sqlite import SqliteStore
from antiphon.store.sqlite_connection import SqliteConnection, SqliteCursor, SqlValues, connect_sqlite
from antiphon.testing.store_fixtures import opening_envelopes, text_batch


@pytest.mark.parametrize(
    ("participant", "channel", "sequence"), [("alice", "c", "2"), ("alice", "c", None), (["alice"], "c", 1)]
)
async def test_a_bad_acknowledgement_ends_nothing(
    store: SqliteStore, participant: str, channel: str, sequence: int
) -> None:
    await store.append("c", opening_envelopes("c", "alice"), expected=0)
    await store.acknowledge("alice", "c", 1)
    with pytest.raises(UsageError, match="not"):
        await store.acknowledge(participant, channel, sequence)
    await store.acknowledge("\udcff", "c", 1)
    async with asyncio.timeout(10):
        assert await store.append("c", text_batch("c", 3), expected=2) == Appended(3, 3)
        assert [each.sequence for each in await store.positions("alice")] == [1]


@pytest.mark.parametrize("started", [0, 1])
async def test_a_thread_that_cannot_be_started_is_told_of(
    path: Path, monkeypatch: pytest.MonkeyPatch, started: int
) -> None:
    start, left = threading.Thread.start, [True] * started

    def rarely(thread: threading.Thread) -> None:
        if not left:
            raise RuntimeError("can't start new thread")
        left.pop()
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", rarely)
        async with asyncio.timeout(10):
            with pytest.raises(StoreUnavailable, match="no thread can be started"):
                await SqliteStore.open(path)
    await (await SqliteStore.open(path)).close()


class Forgetful:
    """A connection that runs out of memory before or after a statement."""

    def __init__(self, inner: SqliteConnection, before: list[str], after: list[str]) -> None:
        self._inner, self._before, self._after = inner, before, after

    def execute(self, sql: str, parameters: SqlValues = ()) -> SqliteCursor:
        self._fail(self._before, sql)
        cursor = self._inner.execute(sql, parameters)
        self._fail(self._after, sql)
        return cursor

    def executemany(self, sql: str, parameters: list[SqlValues]) -> object:
        self._fail(self._before, sql)
        return self._inner.executemany(sql, parameters)

    def close(self) -> None:
        self._inner.close()

    @staticmethod
    def _fail(at: list[str], sql: str) -> None:
        if at and sql.strip().startswith(at[0]):
            at.pop()
            raise MemoryError


@pytest.mark.parametrize(("statement", "head"), [("COMMIT", 0), ("INSERT INTO log", 1)])
async def test_a_commit_that_ends_without_memory_is_unknown(path: Path, statement: str, head: int) -> None:
    after: list[str] = []
    store = await SqliteStore.open(path, connect=lambda place, read: Forgetful(connect_sqlite(place, read), [], after))
    if head:
        await store.append("c", text_batch("c", 1), expected=0)
    after.append(statement)
    batch = text_batch("c", head + 1)
    with pytest.raises(OutcomeUnknown, match="MemoryError"):
        await store.append("c", batch, expected=head)
    assert await store.head("c") == head + 1
    assert await store.append("c", batch, expected=head) == Appended(head + 1, head + 1, duplicate=True)
    await store.close()


@pytest.mark.parametrize("statement", ["BEGIN", "INSERT INTO log", "INSERT INTO channel", "SELECT"])
async def test_no_memory_before_the_commit_is_nobodys_fault(path: Path, statement: str) -> None:
    before: list[str] = []
    store = await SqliteStore.open(path, connect=lambda place, read: Forgetful(connect_sqlite(place, read), before, []))
    before.append(statement)
    batch = opening_envelopes("c", "alice")
    outcomes = await asyncio.gather(
        store.append("c", batch, expected=0),
        store.append("d", text_batch("d", 7), expected=6),
        return_exceptions=True,
    )
    assert not before
    assert not any(isinstance(outcome, LogCorrupt) for outcome in outcomes)
    assert isinstance(outcomes[0], StoreUnavailable)
    assert await store.head("c") == 0
    assert await store.append("c", batch, expected=0) == Appended(1, 2)
    await store.close()


async def test_a_reader_that_does_not_end_is_told_of(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = await SqliteStore.open(path, settle_after=1)
    await store.append("c", text_batch("c", 1), expected=0)
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM log").fetchall()
        with caplog.at_level(logging.WARNING, "antiphon.store"):
            for sequence in (2, 3):
                await store.append("c", text_batch("c", sequence), expected=sequence - 1)
        assert "beside the file for now: a process has been reading" in caplog.text
    caplog.clear()
    for sequence in (4, 5):
        await store.append("c", text_batch("c", sequence), expected=sequence - 1)
    await store.close()
    assert "beside the file" not in caplog.text
