"""The reference store keeps every promise, and forgets nothing while it lives."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import cast

import pytest

from antiphon.core.envelope import Envelope
from antiphon.core.errors import Conflict, IdReused, UsageError
from antiphon.store.memory_store import MemoryStore
from antiphon.store.protocol import Appended, Store
from antiphon.store.records import ENVELOPES_PER_SLICE
from antiphon.store.verification import VerificationReport, verify_store
from antiphon.testing.store_checks import STORE_CHECKS, check_order_of_writes
from antiphon.testing.store_fixtures import OpenStore, new_id, text_batch

Spoil = Callable[[list[Envelope]], list[Envelope]]


async def opened() -> MemoryStore:
    return MemoryStore()


@pytest.mark.parametrize("check", STORE_CHECKS)
async def test_it_is_a_store(check: OpenStore) -> None:
    await check(opened)


async def test_two_stores_share_nothing() -> None:
    one, other = MemoryStore(), MemoryStore()
    await one.append("c", text_batch("c", 1), expected=0)
    assert await other.head("c") == 0
    assert await other.channels() == []


async def test_an_append_costs_the_same_at_any_length() -> None:
    store = MemoryStore()

    async def cost(start: int) -> float:
        batches = [text_batch("c", sequence) for sequence in range(start + 1, start + 501)]
        began = time.process_time()
        for place, batch in enumerate(batches):
            await store.append("c", batch, expected=start + place)
        return time.process_time() - began

    short = await cost(0)
    await store.append("c", text_batch("c", *range(501, 50_001)), expected=500)
    assert await cost(50_000) < 5 * short + 0.01


async def most_calls_at_once(work: Awaitable[object]) -> int:
    """How many functions are called at most between two chances for others to have the event loop."""
    called, marks = [0], list[int]()

    def count(_frame: object, event: str, _argument: object) -> None:
        called[0] += event == "call"

    async def others() -> None:
        while True:
            marks.append(called[0])
            await asyncio.sleep(0)

    beside = asyncio.create_task(others())
    await asyncio.sleep(0)
    before = sys.getprofile()
    sys.setprofile(count)
    try:
        await work
    finally:
        sys.setprofile(before)
        beside.cancel()
    marks.append(called[0])
    return max(later - earlier for earlier, later in pairwise(marks))


async def test_a_long_batch_does_not_hold_the_event_loop() -> None:
    """A fork is one: what is done for each envelope is done for a slice of them at once."""
    store, batch = MemoryStore(), text_batch("c", *range(1, 20_001))
    assert await most_calls_at_once(store.append("c", batch, expected=0)) < 5 * ENVELOPES_PER_SLICE
    assert (await store.read("c", after=19_999)).envelopes == batch[-1:]


async def test_a_long_batch_that_loses_against_another_changes_nothing() -> None:
    store, batch, other = MemoryStore(), text_batch("c", *range(1, 3001)), text_batch("c", 1)
    append = asyncio.create_task(store.append("c", batch, expected=0))
    await asyncio.sleep(0)  # it has begun, and lets others go first
    await store.append("c", other, expected=0)
    with pytest.raises(Conflict):
        await append
    assert (await store.read("c")).envelopes == other
    assert await store.find("c", [batch[0].envelope_id]) == {}


@pytest.mark.parametrize(
    ("spoilt", "error"),
    [
        (lambda batch: [*batch[:-1], replace(batch[-1], envelope_id=batch[0].envelope_id)], IdReused),
        (lambda batch: [*batch[:-1], replace(batch[-1], sequence=1)], UsageError),
    ],
    ids=["an id twice", "a wrong sequence"],
)
async def test_a_long_batch_with_a_fault_is_refused(spoilt: Spoil, error: type[Exception]) -> None:
    store = MemoryStore()
    with pytest.raises(error):
        await store.append("c", spoilt(text_batch("c", *range(1, 3001))), expected=0)
    assert await store.head("c") == 0


async def test_a_batch_that_is_no_batch_of_this_channel_is_refused() -> None:
    store = MemoryStore()
    for channel, batch in (("c", []), ("c", text_batch("other", 1)), ("c", text_batch("c", 7))):
        with pytest.raises(UsageError):
            await store.append(channel, batch, expected=0)
    assert await store.head("c") == 0


async def test_verify_counts() -> None:
    store = MemoryStore()
    for _ in range(3):
        channel = new_id()
        await store.append(channel, text_batch(channel, 1, 2), expected=0)
    assert await verify_store(store) == VerificationReport(3, 6, [])


class UnorderedStore:
    """A memory store whose appends are recorded after the writes that follow them, as by a pool of connections."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    async def append(self, channel: str, batch: Sequence[Envelope], *, expected: int) -> Appended:
        async def late() -> Appended:
            for _ in range(3):
                await asyncio.sleep(0)
            return await self._store.append(channel, batch, expected=expected)

        return await asyncio.shield(asyncio.ensure_future(late()))


async def test_a_store_that_writes_out_of_order_is_noticed() -> None:
    async def unordered() -> Store:
        return cast(Store, UnorderedStore(MemoryStore()))

    with pytest.raises(AssertionError, match="G12"):
        await check_order_of_writes(unordered)
