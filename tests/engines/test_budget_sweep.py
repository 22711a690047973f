"""A crash at every write of runs with budgets: no sum is too low, none above the cap, and each call counts once."""

from __future__ import annotations

import asyncio
import os
from collections import Counter

import pytest

from antiphon import Agent, Budget, CostVelocityMonitor, Envelope, Hub
from antiphon.core.execution_events import EV_CALL_STARTED
from antiphon.core.protection_events import EV_RUN_CHARGED, EV_RUN_SETTLED
from antiphon.runtime.agent import channel_of
from antiphon.testing import ManualClock
from tests.engines.crashing_workflows import until_death
from tests.engines.test_sweep import AFTER, BEFORE, Died, MortalStore
from tests.support.inspection import logs_from
from tests.support.priced_calls import CENT, PricedModel, call_of, cost_of, lead_of, of_type, taken
from tests.support.waiting import soon

PROOF = os.environ.get("ANTIPHON_PROOF") == "1"


async def story(provider: PricedModel, store: MortalStore, clock: ManualClock) -> list[list[Envelope]]:
    """A lead gives four tasks of 30 cents each, and a dollar is there. Returns the logs of the run."""
    hub, agent = await Hub.over(store, clock=clock), lead_of(provider, 4, Budget(dollars="1"), CostVelocityMonitor())
    await agent.invoke("Go", thread_id="t", hub=hub, message_id="m")
    logs = await logs_from(hub, (await channel_of(hub, agent, "t")).channel_id)
    await hub.close()
    return logs


@pytest.mark.parametrize("when", [BEFORE, AFTER])
async def test_a_crash_at_every_write_keeps_the_run_within_its_budget(when: str) -> None:
    """The sum of a run is never below what its calls have cost, nor above the cap; each call is counted once."""
    clock = ManualClock()
    store, place, found = MortalStore(clock), 0, 0
    await soon(story(PricedModel(30 * CENT), store, clock))
    for place in range(1, store.appends + 1, 1 if PROOF else 2):
        clock, provider = ManualClock(), PricedModel(30 * CENT)
        store = MortalStore(clock)
        store.fatal = place, when
        try:
            logs = await soon(until_death(story(provider, store, clock), store))  # type: ignore[arg-type]
        except Died:
            store.dead, store.fatal, found = False, None, found + 1
            logs = await soon(story(provider, store, clock))
        log, *tasks = logs
        charged = Counter(map(call_of, of_type(log, EV_RUN_CHARGED)))
        assert cost_of(tasks) <= taken(log) <= 100 * CENT, f"after a crash {when} append {place}"
        assert set(charged.values()) <= {1}
        assert 2 * 30 * CENT <= cost_of(tasks) <= 3 * 30 * CENT
        left = Counter(data["turn"] for task in tasks for data in of_type(task, EV_CALL_STARTED))
        assert provider.asked <= sum(left.values())
    assert place > 30
    assert found > 10


async def tenants(provider: PricedModel, store: MortalStore, clock: ManualClock) -> list[list[Envelope]]:
    """Four channels ask for 30 cents each, and the hub has a dollar. Returns their logs, that of the ledger first."""
    hub = await Hub.over(store, clock=clock)
    agent = Agent("bob", model=provider, guards=[Budget(dollars="1", scope="tenant")])
    asked = [agent.invoke("Go", thread_id=f"t{number}", hub=hub, message_id="m") for number in range(4)]
    replies = await asyncio.gather(*asked)
    logs = [await hub.log("system:spend"), *[await hub.log(reply.channel_id) for reply in replies]]
    await hub.close()
    return logs


@pytest.mark.parametrize("when", [BEFORE, AFTER])
async def test_a_crash_at_every_write_keeps_the_hub_within_its_budget(when: str) -> None:
    clock = ManualClock()
    store, found = MortalStore(clock), 0
    await soon(tenants(PricedModel(30 * CENT), store, clock))
    for place in range(1, store.appends + 1, 1 if PROOF else 2):
        clock, provider = ManualClock(), PricedModel(30 * CENT)
        store = MortalStore(clock)
        store.fatal = place, when
        try:
            ledger, *channels = await soon(until_death(tenants(provider, store, clock), store))  # type: ignore[arg-type]
        except Died:
            store.dead, store.fatal, found = False, None, found + 1
            ledger, *channels = await soon(tenants(provider, store, clock))
        most = {call_of(data): int(str(data["most"])) for data in of_type(ledger, EV_RUN_CHARGED)}
        cost = {call_of(data): int(str(data.get("cost", 0))) for data in of_type(ledger, EV_RUN_SETTLED)}
        booked = sum((most | cost).values())
        assert cost_of(channels) <= booked <= 100 * CENT, f"after a crash {when} append {place}"
        assert len(most) == len(of_type(ledger, EV_RUN_CHARGED)) >= len(cost)
        assert cost_of(channels) >= 2 * 30 * CENT
    assert found > 10
