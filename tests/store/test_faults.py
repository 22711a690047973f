"""Faults that are dealt on purpose hit as many appends as was asked for, however many are under way."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from antiphon.core.errors import OutcomeUnknown, StoreUnavailable
from antiphon.store.memory_store import MemoryStore
from antiphon.store.protocol import Appended, Store
from antiphon.store.sqlite import SqliteStore
from antiphon.testing import Faults, with_faults
from antiphon.testing.store_fixtures import text_batch


@pytest.mark.parametrize("count", [8, 9, 10])
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_each_append_has_a_number_of_its_own(path: Path, kind: str, count: int) -> None:
    inner: Store = MemoryStore() if kind == "memory" else await SqliteStore.open(path)
    faults = Faults(lose_reply_every=3, fail_every=4)
    store = with_faults(inner, faults)
    names = [f"c{number}" for number in range(1, count + 1)]
    outcomes = await asyncio.gather(
        *(store.append(name, text_batch(name, 1), expected=0) for name in names), return_exceptions=True
    )
    lost = [name for name, outcome in zip(names, outcomes, strict=True) if isinstance(outcome, OutcomeUnknown)]
    failed = [name for name, outcome in zip(names, outcomes, strict=True) if isinstance(outcome, StoreUnavailable)]
    assert lost == [f"c{number}" for number in range(3, count + 1, 3)]
    assert failed == ["c4", "c8"]
    assert outcomes.count(Appended(1, 1)) == count - len(lost) - len(failed)
    assert (faults.appends, faults.lost_replies) == (count, len(lost))
    assert await store.names() == sorted(set(names) - set(failed))
    await store.close()
