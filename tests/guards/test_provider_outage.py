"""A provider is down for a minute while two hundred runs begin: what its breaker and the retry budget let through."""

from __future__ import annotations

import asyncio

import pytest

from antiphon import Agent, Hub, Reply, Request, TurnFailed
from antiphon.core.envelope import Instant, seconds_between
from antiphon.core.execution_events import EV_CALL_RETRIED, EV_CALL_STARTED
from antiphon.core.protection_events import EV_BREAKER_CHANGED, EV_RETRY_DENIED
from antiphon.testing import ManualClock
from tests.guards.breaker_desk import Provider, changes_in, events_in
from tests.support.waiting import soon

RUNS = 200
OUTAGE_SECONDS = 60.0
TICK = 0.3
"""A run begins with each, so that all of them begin within the outage."""
FLOOR = 20 + 6
RATIO = 0.1


class Outage:
    """Two hundred runs of one agent, one after the other, of which none waits for another."""

    def __init__(self, guards: list[object]) -> None:
        self.provider, self.clock = Provider(), ManualClock()
        self.asked_at: list[Instant] = []
        """When the provider was asked while it was down."""
        failing = self.provider.named("far")

        async def far(request: Request) -> Reply:
            if self.provider.down:
                self.asked_at.append(self.clock.now())
            return await failing(request)

        self.agent = Agent("bob", model=far, guards=guards)  # type: ignore[arg-type]
        self.ends: list[str] = []
        self.asked_in_outage = 0

    async def run(self, hub: Hub) -> None:
        runs: list[asyncio.Task[None]] = []
        for _ in range(RUNS):
            runs.append(asyncio.create_task(self._one_run(hub)))
            await self.clock.advance(TICK)
        self.asked_in_outage, self.provider.down = self.provider.asked, False
        while not all(run.done() for run in runs):
            await self.clock.advance(TICK)
            await asyncio.sleep(0)
        await asyncio.gather(*runs)

    async def _one_run(self, hub: Hub) -> None:
        try:
            reply = await self.agent.invoke("Go", hub=hub)
            self.ends.append(reply.stopped or reply.text)
        except TurnFailed as failed:
            self.ends.append(failed.reason)

    async def instants(self, hub: Hub, event_type: str) -> list[str]:
        """When this was recorded, in all channels."""
        logs = [await events_in(hub, row.channel_id, event_type) for row in await hub.channels()]
        return sorted(each.created_at for log in logs for each in log)


async def check_retries(outage: Outage, hub: Hub) -> int:
    """In no minute there are more retries than the bucket allows. Returns how many there were."""
    firsts, retries = await outage.instants(hub, EV_CALL_STARTED), await outage.instants(hub, EV_CALL_RETRIED)
    assert len(firsts) == RUNS
    for first in retries:
        within = [each for each in retries if 0 <= seconds_between(first, each) <= 60]
        begun = [each for each in firsts if 0 <= seconds_between(first, each) <= 60]
        assert len(within) <= FLOOR + RATIO * len(begun)
    return len(retries)


@pytest.mark.parametrize("guards", [["breaker", "retry_budget"], ["retry_budget"], ["breaker"]], ids="+".join)
async def test_an_outage_of_a_minute_is_not_answered_with_a_storm(guards: list[object]) -> None:
    outage = Outage(guards)
    async with Hub.open("memory:", clock=outage.clock) as hub:
        await soon(outage.run(hub))
        if "retry_budget" in guards:
            retries = await check_retries(outage, hub)
            assert retries <= 0.2 * RUNS + FLOOR
        if "breaker" in guards:
            changes = await changes_in(hub, "system:breakers")
            assert changes[0] == ("model:far", "closed", "open")
            log = await hub.log("system:breakers")
            opened = next(each for each in log if each.event_type == EV_BREAKER_CHANGED)
            assert opened.event_data["counts"] == {"transport": 5}
            probes = sum(target == "half_open" for _, _, target in changes)
            # What was permitted when it opened is on its way, and cannot be called back. Then only what tries leaves.
            later = [at for at in outage.asked_at if seconds_between(opened.created_at, at) > 2 * TICK]
            assert len(later) == probes <= 2
            assert outage.asked_in_outage <= 0.1 * RUNS
            assert outage.ends.count("denied:breaker_open") > 0.5 * RUNS
            assert outage.ends.count("model_error") <= 5
        else:
            denied = await outage.instants(hub, EV_RETRY_DENIED)
            assert outage.ends.count("denied:retry_budget") == len(denied) > 0.5 * RUNS
            assert outage.asked_in_outage <= RUNS + FLOOR + RATIO * RUNS
