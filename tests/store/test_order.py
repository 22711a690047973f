"""What is asked first is done first, on every store: also when nobody waits in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from antiphon.store.memory_store import MemoryStore
from antiphon.store.protocol import Appended, Snapshot, Store
from antiphon.store.sqlite import SqliteStore
from antiphon.testing.store_fixtures import opening_envelopes, text_batch

EARLY, LATE = "2030-01-01T00:00:00.000000Z", "2031-01-01T00:00:00.000000Z"


@pytest.fixture(params=["memory", "sqlite"])
async def any_store(request: pytest.FixtureRequest, path: Path) -> AsyncIterator[Store]:
    store: Store = MemoryStore() if request.param == "memory" else await SqliteStore.open(path)
    await store.append("c", opening_envelopes("c", "alice", "bob"), expected=0)
    yield store
    await store.close()


async def due(store: Store) -> str:
    row = await store.row("c")
    assert row is not None
    return row.due


async def test_an_append_is_not_overtaken_by_what_came_before_it(any_store: Store) -> None:
    await asyncio.gather(
        any_store.mark("c", due=EARLY), any_store.append("c", text_batch("c", 3), expected=2, due=LATE)
    )
    assert await due(any_store) == LATE


async def test_a_mark_is_not_overtaken_by_what_came_before_it(any_store: Store) -> None:
    await asyncio.gather(
        any_store.append("c", text_batch("c", 3), expected=2, due=LATE), any_store.mark("c", due=EARLY)
    )
    assert await due(any_store) == EARLY


async def test_many_of_both_take_turns(any_store: Store) -> None:
    calls: list[object] = []
    for sequence in range(3, 23):
        calls += [
            any_store.append("c", text_batch("c", sequence), expected=sequence - 1, due=EARLY),
            any_store.mark("c", due=LATE),
            any_store.put_snapshot("c", Snapshot(sequence, "v", b"fold")),
            any_store.put_snapshot("c", Snapshot(sequence + 1, "v", b"too early")),
        ]
    outcomes = await asyncio.gather(*calls)
    assert outcomes[::4] == [Appended(sequence, sequence) for sequence in range(3, 23)]
    assert await due(any_store) == LATE
    assert await any_store.get_snapshot("c") == Snapshot(22, "v", b"fold")
