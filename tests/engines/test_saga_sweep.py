"""A crash at every write of a run that is undone, before it and after it: each booking is cancelled once, in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from antiphon import Agent, Envelope, Hub, Reply, Request, ScriptedModel, calls, says, tool
from antiphon.core.protection_events import EV_ONCE_REGISTERED
from antiphon.guards.saga import saga_memory_of
from antiphon.testing import ManualClock, canonical_digest
from tests.engines.test_sweep import AFTER, BEFORE, Died, MortalStore
from tests.support.trips import STEPS, TripWorld
from tests.support.waiting import NEVER_COMES, let_others_run, soon


class Life:
    """The processes of one run, one after the other over one store."""

    def __init__(self, world: TripWorld, agent: Agent) -> None:
        self.world, self._agent = world, agent
        self.clock = ManualClock()
        self.store = MortalStore(self.clock)

    async def lived(self) -> list[Envelope]:
        """The log of the run when everything is undone, in as many lives as it takes."""
        others = asyncio.all_tasks()
        for _ in range(3):
            try:
                return await self._live()
            except Died:
                mine = asyncio.all_tasks() - others
                for task in mine:
                    task.cancel()
                await asyncio.gather(*mine, return_exceptions=True)
                self.store.dead, self.store.fatal = False, None
        raise AssertionError("it did not survive")

    async def _live(self) -> list[Envelope]:
        hub = await Hub.over(self.store, clock=self.clock)
        ann = await hub.register("ann", kind="human")
        await hub.register(self._agent)
        channel = await ann.open(target="bob", key="trip", say="Book")
        await self._until(lambda: channel.state.turn_count >= 2 or channel.state.ended)
        await channel.abort()
        await self._until(lambda: saga_memory_of(channel._live.fold).finished, seconds=1)
        log = await hub.log(channel.channel_id)
        await hub.close()
        return log

    async def _until(self, condition: Callable[[], bool], *, seconds: float = 0) -> None:
        """Wait; a channel that the dead hub was about to look at is given to the next one after a while."""
        async with asyncio.timeout(NEVER_COMES):
            while not condition() or self.store.dead:
                if self.store.dead:
                    raise Died
                self.clock.advance(seconds)
                await let_others_run(3)


def trip() -> Life:
    world, script = TripWorld(), TripWorld().booking()

    async def model(request: Request) -> Reply:
        return script[len(request.exchange) // 2]  # type: ignore[return-value]

    return Life(world, Agent("bob", model=model, tools=[world.book]))


async def uncrashed() -> tuple[str, int]:
    life = trip()
    log = await soon(life.lived())
    return canonical_digest(log), life.store.appends


@pytest.mark.parametrize("when", [BEFORE, AFTER])
async def test_a_crash_at_every_write_cancels_each_booking_once_and_in_order(when: str) -> None:
    digest, appends = await uncrashed()
    assert appends >= 25
    for place in range(1, appends + 1):
        life = trip()
        life.store.fatal = place, when
        log = await soon(life.lived())
        assert life.store.fatal is None, f"it did not die at append {place}"
        world = life.world
        assert world.order == list(reversed(STEPS)), f"another order after a crash {when} append {place}"
        assert set(world.cancelled) == {f"{key}:c" for key in world.booked}
        assert len(world.booked) == len(STEPS)
        assert max(world.calls.values()) <= 2
        assert canonical_digest(log) == digest, f"another story after a crash {when} append {place}"


class PaidOnce:
    """A tool that is called twice for one order, and a bank that honours keys."""

    def __init__(self) -> None:
        self.paid: dict[str, int] = {}
        self.calls = 0

        @tool(once=("order",))
        async def pay(order: int, idempotency_key: str, memo: str = "") -> str:
            self.calls += 1
            self.paid.setdefault(idempotency_key, order)
            return f"paid {order}"

        self.pay = pay

    def agent(self) -> Agent:
        both = [calls("pay", {"order": 7, "memo": memo}) for memo in ("first", "second")]
        model = ScriptedModel([both, calls("pay", {"order": 7, "memo": "third"}), says("Paid.")], by="position")
        return Agent("bob", model=model, tools=[self.pay])


@pytest.mark.parametrize("when", [BEFORE, AFTER])
async def test_a_crash_at_every_write_pays_an_order_once(when: str) -> None:
    async def paid(store: MortalStore, clock: ManualClock, bank: PaidOnce) -> list[Envelope]:
        hub = await Hub.over(store, clock=clock)
        ann = await hub.register("ann", kind="human")
        await hub.register(bank.agent())
        channel = await ann.open(target="bob", key="pay", say="Pay")
        async with asyncio.timeout(NEVER_COMES):
            while channel.state.turn_count < 2:
                if store.dead:
                    raise Died
                await let_others_run(1)
        log = await hub.log(channel.channel_id)
        await hub.close()
        return log

    async def lives(store: MortalStore, clock: ManualClock, bank: PaidOnce) -> list[Envelope]:
        others = asyncio.all_tasks()
        for _ in range(3):
            try:
                return await paid(store, clock, bank)
            except Died:
                mine = asyncio.all_tasks() - others
                for task in mine:
                    task.cancel()
                await asyncio.gather(*mine, return_exceptions=True)
                store.dead, store.fatal = False, None
        raise AssertionError("it did not survive")

    clock = ManualClock()
    store = MortalStore(clock)
    await soon(lives(store, clock, PaidOnce()))
    for place in range(1, store.appends + 1):
        clock, bank = ManualClock(), PaidOnce()
        mortal = MortalStore(clock)
        mortal.fatal = place, when
        log = await soon(lives(mortal, clock, bank))
        assert mortal.fatal is None
        assert (len(bank.paid), sum(each.event_type == EV_ONCE_REGISTERED for each in log)) == (1, 1), place
        assert bank.calls <= 2
