"""Appends that wait together are committed together, and one that fails costs no other."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from antiphon.core.errors import Conflict, IdReused, UsageError
from antiphon.store import sqlite_writer
from antiphon.store.protocol import Appended
from antiphon.store.sqlite import SqliteStore
from antiphon.store.sqlite_commits import MAX_ROWS_PER_INSERT
from antiphon.store.sqlite_connection import SqliteConnection, SqliteCursor, SqlValues, connect_sqlite
from antiphon.store.verification import verify_store
from antiphon.testing.store_fixtures import new_id, opening_envelopes, text_batch

SENDERS = 64
EACH = 20


class Counted:
    """A connection that counts its commits."""

    def __init__(self, inner: SqliteConnection, counts: Counter[str]) -> None:
        self._inner, self._counts = inner, counts
        self._inside = False

    def execute(self, sql: str, parameters: SqlValues = ()) -> SqliteCursor:
        if sql == "BEGIN IMMEDIATE":
            self._inside = True
        elif sql in ("COMMIT", "ROLLBACK"):
            self._inside = False
        if sql == "COMMIT" or (sql.startswith("INSERT INTO log") and not self._inside):
            self._counts["commits"] += 1
        return self._inner.execute(sql, parameters)

    def executemany(self, sql: str, parameters: list[SqlValues]) -> object:
        return self._inner.executemany(sql, parameters)

    def close(self) -> None:
        self._inner.close()


@pytest.fixture
def counts() -> Counter[str]:
    return Counter()


@pytest.fixture
async def counted(path: Path, counts: Counter[str]) -> SqliteStore:
    return await SqliteStore.open(path, connect=lambda place, read: Counted(connect_sqlite(place, read), counts))


async def test_many_senders_share_few_commits(counted: SqliteStore, counts: Counter[str]) -> None:
    async def send(channel: str) -> None:
        for sequence in range(1, EACH + 1):
            await counted.append(channel, text_batch(channel, sequence), expected=sequence - 1)

    counts.clear()
    await asyncio.gather(*(send(new_id()) for _ in range(SENDERS)))
    assert counts["commits"] < SENDERS * EACH / 10
    report = await verify_store(counted)
    assert (report.channels, report.envelopes, report.problems) == (SENDERS, SENDERS * EACH, [])
    await counted.close()


async def test_one_sender_commits_once_an_append(counted: SqliteStore, counts: Counter[str]) -> None:
    await counted.append("c", text_batch("c", 1), expected=0)
    counts.clear()
    for sequence in range(2, 12):
        await counted.append("c", text_batch("c", sequence), expected=sequence - 1)
    assert counts["commits"] == 10
    await counted.close()


async def together(store: SqliteStore, *appends: tuple[str, list[object], int]) -> list[object]:
    return await asyncio.gather(
        *(store.append(channel, batch, expected=expected) for channel, batch, expected in appends),
        return_exceptions=True,
    )


@pytest.mark.parametrize("opened", [False, True], ids=["plain", "with openings"])
async def test_bad_appends_in_a_group_leave_the_good_ones_alone(store: SqliteStore, opened: bool) -> None:
    first = text_batch("old", 1)
    await store.append("old", first, expected=0)
    await store.append("good", text_batch("good", 1), expected=0)
    last = [("new", opening_envelopes("new", "alice"), 0)] if opened else []
    outcomes = await together(
        store,
        ("good", text_batch("good", 2), 1),
        ("old", [text_batch("old", 2)[0], *first], 1),
        ("old", first, 0),
        ("old", text_batch("old", 9), 8),
        ("old", text_batch("old", 5), 1),
        ("good", text_batch("good", 3), 2),
        *last,
    )
    good, reused, repeated, stale, misstamped, next_good = outcomes[:6]
    assert good == Appended(2, 2)
    assert next_good == Appended(3, 3)
    assert isinstance(reused, IdReused)
    assert repeated == Appended(1, 1, duplicate=True)
    assert isinstance(stale, Conflict)
    assert stale.head == 1
    assert isinstance(misstamped, UsageError)
    assert outcomes[6:] == [Appended(1, 2)] * len(last)
    assert await store.head("old") == 1
    assert (await verify_store(store)).problems == []


async def test_appends_to_one_channel_may_follow_each_other_in_a_group(store: SqliteStore) -> None:
    appends = [("c", text_batch("c", sequence), sequence - 1) for sequence in range(1, 11)]
    outcomes = await together(store, *appends)
    assert outcomes == [Appended(sequence, sequence) for sequence in range(1, 11)]
    assert (await verify_store(store)).problems == []


async def test_a_batch_larger_than_a_group_is_one_batch(store: SqliteStore) -> None:
    size = 3 * max(MAX_ROWS_PER_INSERT, sqlite_writer.MAX_GROUP_ROWS)
    assert await store.append("c", text_batch("c", *range(1, size + 1)), expected=0) == Appended(1, size)
    more = text_batch("c", *range(size + 1, 2 * size + 1))
    assert await store.append("c", more, expected=size) == Appended(size + 1, 2 * size)
    assert (await verify_store(store)).problems == []


async def test_a_full_group_of_plain_appends_is_one_commit(counted: SqliteStore, counts: Counter[str]) -> None:
    channels = [new_id() for _ in range(sqlite_writer.MAX_GROUP_ROWS)]
    for channel in channels:
        await counted.append(channel, text_batch(channel, 1), expected=0)
    counts.clear()
    await together(counted, *((channel, text_batch(channel, 2), 1) for channel in channels))
    assert counts["commits"] <= 3
    await counted.close()


async def test_heads_that_are_forgotten_are_read_again(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.store.sqlite_commits.MAX_CACHED_HEADS", 2)
    channels = [new_id() for _ in range(5)]
    for sequence in range(1, 4):
        for channel in channels:
            appended = await store.append(channel, text_batch(channel, sequence), expected=sequence - 1)
            assert appended == Appended(sequence, sequence)
    assert (await verify_store(store)).problems == []
