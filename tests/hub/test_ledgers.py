"""Ledgers: what several channels and hubs count together, and that they never count beyond a limit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import ClassVar

import msgspec
import pytest

from antiphon import Deny, Envelope, Hub, State
from antiphon.core.envelope import OPERATORS
from antiphon.core.guard import LedgerEntry
from antiphon.core.state import RelatedFact
from antiphon.guards import named_guards
from antiphon.testing import ManualClock
from tests.support.kept_store import KeptStore
from tests.support.waiting import soon

TAKEN = "tests.taken"
CAP = 1000


class Sum(msgspec.Struct, frozen=True):
    """What was taken in all."""

    total: int = 0


class CapLedger(msgspec.Struct, frozen=True):
    """Takes no more than the cap, and writes nothing down of 0."""

    name: ClassVar[str] = "tests_cap"
    memory: ClassVar[type] = Sum
    hears: ClassVar[frozenset[str]] = frozenset({TAKEN})

    def evolve(self, memory: Sum, envelope: Envelope) -> Sum:
        return Sum(memory.total + int(str(envelope.event_data["amount"])))

    def answer(self, memory: Sum, state: State, offer: Envelope) -> Deny | Sequence[RelatedFact]:
        amount = int(str(offer.event_data["amount"]))
        if memory.total + amount > CAP:
            return Deny("budget", f"{memory.total} of {CAP} are taken")
        return [RelatedFact(TAKEN, offer.event_data, (OPERATORS,))] if amount else []


@pytest.fixture(autouse=True)
def _cap_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(named_guards.LEDGER_GUARDS, "cap", (__name__, "CapLedger"))


@asynccontextmanager
async def hub_over(store: KeptStore, clock: ManualClock) -> AsyncIterator[Hub]:
    hub = await Hub.over(store, clock=clock, engine=None)
    try:
        yield hub
    finally:
        await hub.close()


@pytest.fixture
async def hubs() -> AsyncIterator[list[Hub]]:
    """Two hubs over one store object."""
    clock = ManualClock()
    store = KeptStore(clock=clock)
    async with hub_over(store, clock) as one, hub_over(store, clock) as other:
        yield [one, other]


async def offered(hub: Hub, amount: int, key: str, ledger: str = "cap", run: str = "") -> Deny | None:
    return await hub.core.ledgers.offer(LedgerEntry(ledger, TAKEN, {"amount": amount}), run=run, key=key)


async def taken(hub: Hub) -> list[object]:
    return [each.event_data["amount"] for each in await hub.log("system:cap") if each.event_type == TAKEN]


async def test_what_is_offered_at_once_never_exceeds_the_cap(hubs: list[Hub]) -> None:
    answers = await soon(asyncio.gather(*(offered(hubs[number % 2], 30, f"call {number}") for number in range(100))))
    assert sum(answer is None for answer in answers) == 33
    assert await taken(hubs[0]) == [30] * 33
    assert {answer.detail for answer in answers if answer is not None} == {"990 of 1000 are taken"}


async def test_a_repeated_offer_is_counted_once_in_every_hub(hubs: list[Hub]) -> None:
    for hub in (*hubs, *hubs):
        assert await offered(hub, 400, "the same call") is None
    assert await offered(hubs[1], 600, "another") is None
    assert await offered(hubs[0], 400, "the same call") is None
    assert await offered(hubs[0], 1, "one more") == Deny("budget", "1000 of 1000 are taken", guard=CapLedger.name)
    assert await taken(hubs[0]) == [400, 600]


async def test_an_offer_of_which_nothing_is_recorded_costs_no_write(hubs: list[Hub]) -> None:
    assert await offered(hubs[0], 1, "first") is None
    before = await hubs[0].core.store.head("system:cap")
    for number in range(10):
        assert await offered(hubs[0], 0, f"nothing {number}") is None
    assert await hubs[0].core.store.head("system:cap") == before


async def test_the_next_hub_goes_on_from_what_was_taken() -> None:
    clock = ManualClock()
    store = KeptStore(clock=clock)
    async with hub_over(store, clock) as hub:
        assert await offered(hub, 900, "first") is None
    async with hub_over(store, clock) as hub:
        assert await offered(hub, 900, "first") is None
        assert await offered(hub, 101, "second") == Deny("budget", "900 of 1000 are taken", guard=CapLedger.name)
        assert await offered(hub, 100, "third") is None
