"""A crash at every write of turns whose tool or model fails: breakers open once, one call tries, and they close."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import reduce
from itertools import pairwise

import pytest

from antiphon import (
    Agent,
    Answered,
    CircuitBreaker,
    Envelope,
    Hub,
    Limits,
    ModelUnavailable,
    Reply,
    Request,
    TurnFailed,
    calls,
    says,
    tool,
)
from antiphon.core.protection_events import EV_BREAKER_CHANGED
from antiphon.guards.breaker_memory import BreakerMemory
from antiphon.testing import ManualClock
from tests.engines.crashing_workflows import until_death
from tests.engines.test_sweep import AFTER, BEFORE, Died, MortalStore
from tests.support.waiting import soon

STEP = 1 if os.environ.get("ANTIPHON_PROOF") == "1" else 3
ALLOWED = {("closed", "open"), ("open", "half_open"), ("half_open", "open"), ("half_open", "closed")}


class World:
    """What lies behind the tool and the model: it is down, and then it is not."""

    def __init__(self) -> None:
        self.down, self.reached = True, 0
        self.reached_while_down = 0

    def reach(self) -> None:
        self.reached += 1
        self.reached_while_down += self.down

    def reader(self) -> Agent:
        """Calls a tool that fails six times while it is down; then once."""

        @tool(idempotency="natural")
        async def fetch(page: int) -> str:
            self.reach()
            if self.down:
                raise ConnectionError("down")
            return f"page {page}"

        async def model(request: Request) -> Reply:
            page = sum(isinstance(item, Answered) for item in request.exchange)
            return says("Done.") if page == (6 if self.down else 1) else calls("fetch", {"page": page})

        return Agent("bob", model=model, tools=[fetch], guards=[CircuitBreaker()])

    def talker(self) -> Agent:
        """Is asked by its model once a turn."""

        async def far(request: Request) -> Reply:
            self.reach()
            if self.down:
                raise ModelUnavailable("down")
            return says("here")

        return Agent("bob", model=far, guards=[CircuitBreaker()], limits=Limits(model_attempts=1))


async def failing_tool(world: World, store: MortalStore, clock: ManualClock) -> list[Envelope]:
    """A turn in which a tool fails, and after the cooldown one in which it works. Returns the log."""
    hub, agent = await Hub.over(store, clock=clock), world.reader()
    await agent.invoke("Read.", thread_id="t", hub=hub, message_id="m1")
    world.down = False
    await clock.advance(34)
    reply = await agent.invoke("Read again.", thread_id="t", hub=hub, message_id="m2")
    log = await hub.log(reply.channel_id)
    await hub.close()
    return log


async def failing_model(world: World, store: MortalStore, clock: ManualClock) -> list[Envelope]:
    """Seven turns whose model is down, and after the cooldown one in which it answers. Returns the ledger."""
    hub, agent = await Hub.over(store, clock=clock), world.talker()
    for number in range(7):
        with suppress(TurnFailed):
            await agent.invoke("Well?", thread_id=f"t{number}", hub=hub, message_id="m")
    world.down = False
    await clock.advance(34)
    await agent.invoke("Well?", thread_id="last", hub=hub, message_id="m")
    if changes_of(await hub.log("system:breakers"))[-1][1] != "closed":
        # What became of the call that tried is lost with its process: its lease ends, and the next one tries.
        await clock.advance(121)
        await clock.advance(67)
        reply = await agent.invoke("Well?", thread_id="very last", hub=hub, message_id="m")
        assert reply.text == "here"
    log = await hub.log("system:breakers")
    await hub.close()
    return log


def changes_of(log: list[Envelope]) -> list[tuple[str, str]]:
    data = [each.event_data for each in log if each.event_type == EV_BREAKER_CHANGED]
    return [(str(each["source"]), str(each["target"])) for each in data]


def check_changes(log: list[Envelope], why: str) -> None:
    """Opened once by five failures, tried by one call at a time, closed by a success."""
    changes = changes_of(log)
    assert set(changes) <= ALLOWED, why
    assert all(before[1] == after[0] for before, after in pairwise(changes)), why
    assert changes.count(("closed", "open")) == 1, why
    assert changes[-1] == ("half_open", "closed"), why
    first = next(each.event_data for each in log if each.event_type == EV_BREAKER_CHANGED)
    assert first["counts"] == {"transport": 5}, why


@pytest.mark.parametrize("when", [BEFORE, AFTER])
async def test_a_crash_at_every_write_neither_loses_nor_repeats_the_failures_of_a_tool(when: str) -> None:
    clock = ManualClock()
    store, found = MortalStore(clock), 0
    await soon(failing_tool(World(), store, clock))
    for place in range(1, store.appends + 1, STEP):
        clock, world = ManualClock(), World()
        store = MortalStore(clock)
        store.fatal = place, when
        why = f"after a crash {when} append {place}"
        try:
            log = await soon(until_death(failing_tool(world, store, clock), store))  # type: ignore[arg-type]
        except Died:
            store.dead, store.fatal, found = False, None, found + 1
            log = await soon(failing_tool(world, store, clock))
        check_changes(log, why)
        assert world.reached_while_down <= 5 + 1, why  # what was in flight is made again
        heard = [each for each in log if each.event_type in CircuitBreaker.hears]
        memory = reduce(CircuitBreaker(transport=1).evolve, heard, BreakerMemory())
        assert memory.breaker("tool:fetch").status == "closed", why
    assert found > 5


@pytest.mark.parametrize("when", [BEFORE, AFTER])
async def test_a_crash_at_every_write_leaves_the_breaker_of_a_model_to_all(when: str) -> None:
    """A failure may be lost between the channel and the ledger. No breaker is stuck, and none lets two calls try."""
    clock = ManualClock()
    store, found = MortalStore(clock), 0
    await soon(failing_model(World(), store, clock))
    for place in range(1, store.appends + 1, STEP):
        clock, world = ManualClock(), World()
        store = MortalStore(clock)
        store.fatal = place, when
        why = f"after a crash {when} append {place}"
        try:
            log = await soon(until_death(failing_model(world, store, clock), store))  # type: ignore[arg-type]
        except Died:
            store.dead, store.fatal, found = False, None, found + 1
            log = await soon(failing_model(world, store, clock))
        check_changes(log, why)
        assert world.reached_while_down <= 5 + 2, why
    assert found > 5
