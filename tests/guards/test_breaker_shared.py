"""The breakers that channels and hubs share: one call tries, however many want to, and what is lost in a crash."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from antiphon import Agent, Deny, Hub, Reply, Request, TurnFailed, says
from antiphon.core.envelope import Json
from antiphon.core.guard import LedgerEntry
from antiphon.core.protection_events import EV_BREAKER_CHANGED, EV_BREAKER_COUNTED
from antiphon.guards.breaker import CircuitBreaker
from antiphon.guards.breaker_ledger import BREAKER_REASON, EV_BREAKER_ASKED, STOPPED_REASON
from antiphon.store.protocol import StoreCaps
from antiphon.store.sqlite import SqliteStore
from antiphon.testing import ManualClock
from tests.guards.breaker_desk import Provider, changes_in, data_in, outcome_of
from tests.support.kept_store import KeptStore
from tests.support.waiting import let_others_run, soon, wait_until

LEDGER = "system:breakers"
SCOPE = "model:far"
OPENS = (SCOPE, "closed", "open")
TRIES = (SCOPE, "open", "half_open")
CLOSES = (SCOPE, "half_open", "closed")


class ManyHubsStore(KeptStore):
    """A store in memory that several hubs share."""

    @property
    def caps(self) -> StoreCaps:
        return msgspec.structs.replace(super().caps, many_hubs=True)


@asynccontextmanager
async def two_hubs(tmp_path: Path | None, clock: ManualClock) -> AsyncIterator[list[Hub]]:
    """Two hubs on one store: in memory, or in one file."""
    if tmp_path is None:
        store = ManyHubsStore(clock=clock)
        stores = [store, store]
    else:
        stores = [await SqliteStore.open(tmp_path / "team.db", clock=clock, exclusive=False) for _ in range(2)]  # type: ignore[misc]
    hubs = [await Hub.over(store, clock=clock, engine=None) for store in stores]
    try:
        yield hubs
    finally:
        for hub in hubs:
            await hub.close()


async def asked(hub: Hub, call: str, **more: object) -> Deny | None:
    data: Json = {"scope": SCOPE, "call": call, **more}
    return await hub.core.ledgers.offer(
        LedgerEntry("breakers", EV_BREAKER_ASKED, data, repeatable=True), run="", key=f"asked {call}"
    )


async def counted(hub: Hub, clock: ManualClock, call: str, failure: str = "", **more: object) -> None:
    data: Json = {"scope": SCOPE, "call": call, "channel": call, "attempt": 1, "began": clock.now(), **more}
    if failure:
        data |= {"failure": failure, "total": 1, "rows": [[clock.now()[:19], 1]]}
    await hub.core.ledgers.offer(LedgerEntry("breakers", EV_BREAKER_COUNTED, data), run="", key=f"counted {call}")


async def open_breaker(hub: Hub, clock: ManualClock) -> None:
    for number in range(5):
        await counted(hub, clock, f"failing {number}", "transport")
    assert (await changes_in(hub, LEDGER))[-1][2] == "open"


@pytest.mark.parametrize("shared", ["memory", "sqlite"])
async def test_of_a_hundred_calls_in_two_hubs_one_tries(tmp_path: Path, shared: str) -> None:
    clock = ManualClock()
    async with two_hubs(tmp_path if shared == "sqlite" else None, clock) as hubs:
        await open_breaker(hubs[0], clock)
        early = await soon(asyncio.gather(*(asked(hubs[number % 2], f"early {number}") for number in range(10))))
        assert {denial.reason for denial in early if denial is not None} == {BREAKER_REASON}
        assert None not in early
        await clock.advance(33)
        answers = await soon(asyncio.gather(*(asked(hubs[number % 2], f"call {number}") for number in range(100))))
        assert answers.count(None) == 1
        assert await changes_in(hubs[0], LEDGER) == [OPENS, TRIES]
        await counted(hubs[1], clock, f"call {answers.index(None)}")
        assert await changes_in(hubs[0], LEDGER) == [OPENS, TRIES, CLOSES]
        assert await soon(asyncio.gather(*(asked(hub, "after") for hub in hubs))) == [None, None]


async def test_of_a_hundred_turns_in_as_many_channels_one_tries() -> None:
    clock, gate = ManualClock(), asyncio.Event()
    async with Hub.open("memory:", clock=clock) as hub:
        provider = Provider()
        failing = provider.named("far")

        async def far(request: Request) -> Reply:
            if provider.down:
                return await failing(request)
            provider.asked += 1
            await gate.wait()
            return says("here")

        agent = Agent("bob", model=far, guards=[CircuitBreaker()])
        for _ in range(2):
            await outcome_of(agent, hub, clock)
        provider.down, provider.asked = False, 0
        await clock.advance(33)
        turns = [asyncio.create_task(agent.invoke("Go", hub=hub)) for _ in range(100)]
        await wait_until(lambda: sum(turn.done() for turn in turns) == 99)
        assert provider.asked == 1
        gate.set()
        replies = await soon(asyncio.gather(*turns))
        assert sorted(reply.stopped or reply.text for reply in replies) == ["denied:breaker_open"] * 99 + ["here"]
        assert await changes_in(hub, LEDGER) == [OPENS, TRIES, CLOSES]


async def test_a_probe_that_its_caller_ends_lets_the_next_call_try() -> None:
    clock = ManualClock()
    async with Hub.open("memory:", clock=clock, engine=None) as hub:
        await open_breaker(hub, clock)
        await clock.advance(33)
        assert await asked(hub, "first") is None
        assert isinstance(await asked(hub, "second"), Deny)
        await counted(hub, clock, "first", "neutral")
        assert await asked(hub, "third") is None
        changes = await data_in(hub, LEDGER, EV_BREAKER_CHANGED)
        assert [(each["target"], each["reason"], each["epoch"], each["trips"]) for each in changes[1:]] == [
            ("half_open", "probe", 1, 1),
            ("open", "probe_cancelled", 1, 1),
            ("half_open", "probe", 1, 1),
        ]


async def test_a_probe_that_never_returns_loses_its_lease_at_its_deadline() -> None:
    clock = ManualClock()
    async with Hub.open("memory:", clock=clock, engine=None) as hub:
        await open_breaker(hub, clock)
        await clock.advance(33)
        assert await asked(hub, "first") is None
        await clock.advance(119)
        assert isinstance(await asked(hub, "second"), Deny)
        await clock.advance(2)
        assert isinstance(await asked(hub, "third"), Deny)
        last = (await data_in(hub, LEDGER, EV_BREAKER_CHANGED))[-1]
        assert (last["target"], last["reason"], last["epoch"], last["trips"]) == ("open", "lease_expired", 2, 2)
        assert isinstance(await asked(hub, "first"), Deny)  # made again after a crash, and too late by now
        await clock.advance(66)
        assert await asked(hub, "fourth") is None
        assert isinstance(await asked(hub, "first"), Deny)


async def test_a_late_success_of_one_epoch_does_not_close_the_next() -> None:
    clock = ManualClock()
    async with Hub.open("memory:", clock=clock, engine=None) as hub:
        await open_breaker(hub, clock)
        await clock.advance(33)
        assert await asked(hub, "first") is None
        left_at = clock.now()
        await clock.advance(121)
        assert isinstance(await asked(hub, "second"), Deny)  # the lease is over: the next epoch
        await counted(hub, clock, "first", began=left_at)
        await clock.advance(66)
        assert await asked(hub, "third") is None
        await counted(hub, clock, "first", began=left_at, attempt=2)
        assert (await changes_in(hub, LEDGER))[-1] == TRIES
        await counted(hub, clock, "third")
        assert (await changes_in(hub, LEDGER))[-1] == CLOSES


async def test_a_breaker_stays_open_over_a_restart() -> None:
    clock = ManualClock()
    store = KeptStore(clock=clock)
    hub = await Hub.over(store, clock=clock, engine=None)
    await open_breaker(hub, clock)
    await hub.close()
    hub = await Hub.over(store, clock=clock, engine=None)
    assert isinstance(await asked(hub, "early"), Deny)
    await clock.advance(33)
    assert await asked(hub, "first") is None
    assert isinstance(await asked(hub, "second"), Deny)
    assert await asked(hub, "first") is None  # begun again after a crash: it is the same call
    await hub.close()


async def test_a_success_between_failures_of_other_channels_ends_their_row() -> None:
    clock = ManualClock()
    async with Hub.open("memory:", clock=clock, engine=None) as hub:
        for number in range(3):
            await counted(hub, clock, f"failing {number}", "transport")
            await clock.advance(1)
        await counted(hub, clock, "fine")
        await clock.advance(1)
        for number in range(4, 7):
            await counted(hub, clock, f"failing {number}", "transport")
            await clock.advance(1)
        # One that was not reported at once, because nothing had failed then, ends it too.
        await counted(hub, clock, "failing 7", "transport", passed={"transport": clock.now()})
        await counted(hub, clock, "failing 8", "transport")  # ten calls would be enough for their share to count
        assert await changes_in(hub, LEDGER) == []


async def test_an_attempt_is_counted_once() -> None:
    clock = ManualClock()
    async with Hub.open("memory:", clock=clock, engine=None) as hub:
        for number in range(10):
            data: Json = {"scope": SCOPE, "call": "c", "channel": "c", "attempt": 1, "failure": "transport", "total": 1}
            entry = LedgerEntry("breakers", EV_BREAKER_COUNTED, {**data, "began": clock.now(), "rows": []})
            await hub.core.ledgers.offer(entry, run="", key=f"report {number}")
        assert len(await data_in(hub, LEDGER, EV_BREAKER_COUNTED)) == 1


async def test_a_stopped_breaker_wants_a_person_who_allows_a_call() -> None:
    clock = ManualClock()
    async with Hub.open("memory:", clock=clock, engine=None) as hub:
        await open_breaker(hub, clock)
        for number in range(5):
            await clock.advance(301)
            assert await asked(hub, f"probe {number}") is None
            await counted(hub, clock, f"probe {number}", "transport")
        assert (await changes_in(hub, LEDGER))[-1] == (SCOPE, "open", "stopped")
        await clock.advance(10**6)
        denial = await asked(hub, "another")
        assert denial is not None
        assert (denial.reason, "a person must allow the next call" in denial.detail) == (STOPPED_REASON, True)
        assert await asked(hub, "allowed", approved=True) is None
        assert isinstance(await asked(hub, "another"), Deny)
        await counted(hub, clock, "allowed")
        assert (await changes_in(hub, LEDGER))[-1] == CLOSES


async def test_a_cancelled_turn_gives_its_lease_back_in_time() -> None:
    clock, waiting = ManualClock(), asyncio.Event()
    async with Hub.open("memory:", clock=clock) as hub:
        provider = Provider()
        failing = provider.named("far")

        async def far(request: Request) -> Reply:
            if not provider.down and "hang" in request.messages[-1][1]:
                await waiting.wait()
            return await failing(request)

        agent = Agent("bob", model=far, guards=[CircuitBreaker()])
        for _ in range(2):
            await outcome_of(agent, hub, clock)
        provider.down = False
        await clock.advance(33)
        hanging = asyncio.create_task(agent.invoke("hang", hub=hub, thread_id="t"))
        await let_others_run(100)
        channel = await agent.channel("t", hub)
        await channel.cancel()
        with pytest.raises(TurnFailed):
            await soon(hanging)
        assert await outcome_of(agent, hub, clock) == "denied:breaker_open"
        await clock.advance(121)
        await clock.advance(66)
        assert await outcome_of(agent, hub, clock) == "here"
