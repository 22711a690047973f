"""The reference store keeps every promise, and forgets nothing while it lives."""

from __future__ import annotations

import time

import pytest

from antiphon.core.errors import UsageError
from antiphon.store.memory import MemoryStore
from antiphon.store.verify import Report, verify_store
from antiphon.testing.checks import STORE_CHECKS
from antiphon.testing.envelopes import OpenStore, new_id, said


async def opened() -> MemoryStore:
    return MemoryStore()


@pytest.mark.parametrize("check", STORE_CHECKS)
async def test_it_is_a_store(check: OpenStore) -> None:
    await check(opened)


async def test_two_stores_share_nothing() -> None:
    one, other = MemoryStore(), MemoryStore()
    await one.append("c", said("c", 1), expected=0)
    assert await other.head("c") == 0
    assert await other.channels() == []


async def test_an_append_costs_the_same_at_any_length() -> None:
    store = MemoryStore()

    async def cost(start: int) -> float:
        batches = [said("c", sequence) for sequence in range(start + 1, start + 501)]
        began = time.process_time()
        for place, batch in enumerate(batches):
            await store.append("c", batch, expected=start + place)
        return time.process_time() - began

    short = await cost(0)
    await store.append("c", said("c", *range(501, 50_001)), expected=500)
    assert await cost(50_000) < 5 * short + 0.01


async def test_a_batch_that_is_no_batch_of_this_channel_is_refused() -> None:
    store = MemoryStore()
    for channel, batch in (("c", []), ("c", said("other", 1)), ("c", said("c", 7))):
        with pytest.raises(UsageError):
            await store.append(channel, batch, expected=0)
    assert await store.head("c") == 0


async def test_verify_counts() -> None:
    store = MemoryStore()
    for _ in range(3):
        channel = new_id()
        await store.append(channel, said(channel, 1, 2), expected=0)
    assert await verify_store(store) == Report(3, 6, [])
