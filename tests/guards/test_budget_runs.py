"""Budgets on real hubs: many calls at once, several hubs, tasks, tenants, and a crash at every write."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from antiphon import (
    Agent,
    AgentReply,
    Answered,
    Approval,
    Budget,
    CostVelocityMonitor,
    Hub,
    Limits,
    Reply,
    Request,
    Usage,
    calls,
    delegate,
    says,
)
from antiphon.core.execution_events import (
    EV_APPROVAL_REQUESTED,
    EV_CALL_FAILED,
    EV_CALL_FINISHED,
    EV_CALL_RETRIED,
)
from antiphon.core.protection_events import EV_BUDGET_CHANGED, EV_COST_EXCEEDED, EV_RUN_CHARGED, EV_RUN_SETTLED
from antiphon.testing import ManualClock
from tests.support.given_tasks import Kept
from tests.support.inspection import logs_from
from tests.support.kept_store import KeptStore
from tests.support.priced_calls import CENT, PricedModel, asking_all, cost_of, lead_of, of_type, taken
from tests.support.waiting import NEVER_COMES, let_others_run, soon


async def until_recorded(
    hub: Hub, channel_id: str, event_type: str, *, clock: ManualClock | None = None, count: int = 1
) -> list[dict[str, object]]:
    """What is recorded of a type, as soon as there are so many. Time passes meanwhile, if there is a clock."""
    async with asyncio.timeout(NEVER_COMES):
        while len(found := of_type(await hub.log(channel_id), event_type)) < count:
            await let_others_run()
            if clock is not None:
                await clock.advance(1)
    return found


async def until_waiting(hub: Hub) -> list[Approval]:
    """What waits for a person, as soon as anything does."""
    async with asyncio.timeout(NEVER_COMES):
        while not (found := await hub.approvals()):
            await let_others_run()
    return found


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    async with Hub.open("memory:", clock=ManualClock()) as hub:
        yield hub


@asynccontextmanager
async def hubs_over(store: KeptStore, clock: ManualClock, count: int) -> AsyncIterator[list[Hub]]:
    hubs = [await Hub.over(store, clock=clock) for _ in range(count)]
    try:
        yield hubs
    finally:
        for each in hubs:
            await each.close()


# At once


async def test_a_hundred_tasks_at_once_stay_within_the_budget_of_their_run(hub: Hub) -> None:
    provider = PricedModel(CENT)
    reply = await soon(lead_of(provider, 100, Budget(dollars="0.30")).invoke("Go", hub=hub))
    assert (provider.asked, provider.peak) == (30, 30 * CENT)
    assert reply.text.count("found") == 30
    assert reply.text.count("denied:budget") == 70
    log, *tasks = await logs_from(hub, reply.channel_id)
    assert len(of_type(log, EV_RUN_CHARGED)) == len(of_type(log, EV_RUN_SETTLED)) == 30
    assert cost_of(tasks) == taken(log) == 30 * CENT
    denied = [data for task in tasks for data in of_type(task, EV_BUDGET_CHANGED)]
    assert Counter(str(data["op"]) for data in denied) == {"deny": 70}
    assert of_type(tasks[-1], EV_CALL_RETRIED) == []


async def test_what_tasks_have_not_used_is_there_for_others(hub: Hub) -> None:
    """Ten reservations of ten cents each are the whole dollar, and each call costs one cent."""
    provider = PricedModel(10 * CENT, CENT)
    agent = lead_of(provider, 10, Budget(dollars="1"))
    replies = [await soon(agent.invoke("Go", thread_id="t", hub=hub)) for _ in range(2)]
    assert [reply.text.count("found") for reply in replies] == [10, 9]  # ten cents are spent by then
    assert taken(await hub.log(replies[0].channel_id)) == 19 * CENT


async def test_a_task_inside_a_task_counts_in_the_same_run(hub: Hub) -> None:
    provider = PricedModel(CENT)
    leaf = Agent("leaf", model=provider)

    async def middle_model(request: Request) -> Reply:
        asked = any(isinstance(item, Answered) for item in request.exchange)
        return says("done", usage=Usage(cost=CENT)) if asked else calls("delegate_to_leaf", {"task": "Go"})

    helper = Agent("helper", model=middle_model, tools=[delegate(leaf)])
    limits = Limits(tasks=9, tool_calls=9)
    guards = [Budget(model_calls=4, tool_calls=20)]
    lead = Agent("lead", model=asking_all(3), tools=[delegate(helper)], guards=guards, limits=limits)  # type: ignore[arg-type]
    reply = await soon(lead.invoke("Go", hub=hub))
    log = await hub.log(reply.channel_id)
    counted = Counter(str(data["kind"]) for data in of_type(log, EV_RUN_CHARGED))
    assert (counted["model"], reply.stopped) == (3, "denied:budget")
    assert provider.asked == 0  # lead and the three helpers have used up the calls


async def test_agents_count_for_themselves_in_a_run(hub: Hub) -> None:
    provider = PricedModel(CENT)
    agent = lead_of(provider, 10, Budget(model_calls=3, scope="agent"))
    reply = await soon(agent.invoke("Go", hub=hub))
    assert (provider.asked, reply.text.count("found"), reply.stopped) == (3, 3, None)  # lead has asked its own twice
    [first, *_] = of_type((await logs_from(hub, reply.channel_id))[-1], EV_BUDGET_CHANGED)
    assert (first["op"], first["scope"]) == ("deny", "agent:helper")


# Of a hub


async def test_channels_of_two_hubs_share_the_budget_of_a_tenant() -> None:
    clock = ManualClock()
    store, provider = KeptStore(clock=clock), PricedModel(CENT)
    guards = [Budget(dollars="0.30", scope="tenant"), CostVelocityMonitor(dollars_per_hour="0.40", scope="tenant")]
    async with hubs_over(store, clock, 2) as hubs:

        async def ask(number: int) -> AgentReply:
            agent = Agent(f"bob{number % 2}", model=provider, guards=guards)
            return await agent.invoke("Go", thread_id=f"t{number}", hub=hubs[number % 2])

        replies = await soon(asyncio.gather(*(ask(number) for number in range(100))))
        assert Counter(reply.stopped for reply in replies) == {None: 30, "denied:budget": 70}
        assert (provider.asked, provider.peak) == (30, 30 * CENT)
        log = await hubs[0].log("system:spend")
        assert len(of_type(log, EV_RUN_CHARGED)) == len(of_type(log, EV_RUN_SETTLED)) == 30
        denied = next(reply for reply in replies if reply.stopped)
        [event] = of_type(await hubs[1].log(denied.channel_id), EV_BUDGET_CHANGED)
        assert (event["op"], event["scope"], event.get("unit", "")) == ("deny", "tenant", "")
        assert of_type(await hubs[1].log(denied.channel_id), EV_COST_EXCEEDED) == []


async def test_the_velocity_of_a_tenant_is_that_of_its_channels(hub: Hub) -> None:
    provider = PricedModel(CENT)
    guards = [CostVelocityMonitor(dollars_per_hour="0.05", scope="tenant")]
    agent = Agent("bob", model=provider, guards=guards)
    replies = [await soon(agent.invoke("Go", thread_id=f"t{number}", hub=hub)) for number in range(7)]
    assert [reply.stopped for reply in replies] == [None] * 5 + ["denied:budget"] * 2
    [event] = of_type(await hub.log(replies[-1].channel_id), EV_COST_EXCEEDED)
    assert (event["scope"], event["action"], event["ceiling"]) == ("tenant", "deny", 5 * CENT)


async def test_a_budget_of_a_tenant_leaves_that_of_the_tier_in_place(hub: Hub) -> None:
    guards = [Budget(dollars="900", scope="tenant")]
    agent = Agent("bob", model=PricedModel(2_000_000), guards=guards, tier="interactive")
    reply = await soon(agent.invoke("Go", hub=hub))
    assert reply.stopped == "denied:budget"
    [failed] = of_type(await hub.log(reply.channel_id), EV_CALL_FAILED)
    assert str(failed["error"]).startswith("budget: the call may cost $2.00, and $0.00 of $1.00")


# What follows


async def test_a_call_beyond_the_budget_leaves_when_a_person_has_allowed_it(hub: Hub) -> None:
    provider = PricedModel(CENT)
    ann, dana = await hub.register("ann", kind="human"), await hub.register("dana", kind="human", roles=["finance"])
    await hub.register(Agent("bob", model=provider))
    channel = await ann.open(target="bob", knobs={"guards": [Budget(dollars="0.01")], "tier": "regulated"})
    for _ in range(2):
        await channel.send("Go")
    [request] = await until_recorded(hub, channel.channel_id, EV_APPROVAL_REQUESTED)
    [event] = of_type(await hub.log(channel.channel_id), EV_BUDGET_CHANGED)
    why = "budget: the call may cost $0.01, and $0.01 of $0.01 are spent or reserved in this run"
    assert (request["why"], request["guard"], request["approvers"]) == (why, "budget", ["finance"])
    assert (request["most"], provider.asked) == (CENT, 1)
    assert (event["op"], event["need"], event["spent"], event["cap"]) == ("ask", CENT, CENT, CENT)
    [approval] = await until_waiting(hub)
    await dana.decide(approval.approval_id, "approve")
    await until_recorded(hub, channel.channel_id, EV_CALL_FINISHED, count=2)
    assert (provider.asked, taken(await hub.log(channel.channel_id))) == (2, 2 * CENT)
    await channel.send("Go")
    await until_recorded(hub, channel.channel_id, EV_APPROVAL_REQUESTED, count=2)
    assert provider.asked == 2


async def test_a_task_beyond_the_budget_of_its_run_waits_for_a_person_too(hub: Hub) -> None:
    provider = PricedModel(CENT)
    lead = lead_of(provider, 2, Budget(dollars="0.01", then="ask"))
    ann, dana = await hub.register("ann", kind="human"), await hub.register("dana", kind="human")
    await hub.register(lead)
    channel = await ann.open(target="lead", knobs={"guards": lead.guards})
    await channel.send("Go")
    [approval] = await until_waiting(hub)
    assert (approval.agent, provider.asked) == ("helper", 1)
    await dana.decide(approval.approval_id, "approve")
    await until_recorded(hub, channel.channel_id, "ag2.task.completed", count=2)
    assert (provider.asked, taken(await hub.log(channel.channel_id))) == (2, 2 * CENT)


async def test_a_call_that_times_out_is_booked_as_it_was_reserved() -> None:
    clock = ManualClock()

    class Silent(PricedModel):
        async def __call__(self, request: Request) -> Reply:
            await asyncio.Event().wait()
            raise AssertionError

    async with Hub.open("memory:", clock=clock) as hub:
        agent = Agent("bob", model=Silent(30 * CENT), guards=[Budget(dollars="1")], limits=Limits(model_seconds=5))
        ann = await hub.register("ann")
        await hub.register(agent)
        channel = await ann.open(target="bob", knobs={"guards": agent.guards})
        await channel.send("Go")
        failed = await until_recorded(hub, channel.channel_id, EV_CALL_FAILED, clock=clock)
        assert [(each["cost"], each["tokens"], each["failure"]) for each in failed] == [(30 * CENT, 150, "timeout")]
        assert taken(await hub.log(channel.channel_id)) == 30 * CENT


# Crashes


async def test_a_reservation_that_is_lost_in_a_crash_is_booked_in_full(tmp_path: Path) -> None:
    """In a file. The call is made again by the next process, and reserves anew: the first one may have been paid."""
    clock = ManualClock()
    place = Kept(clock, tmp_path / "run.db")
    provider = PricedModel(30 * CENT, 20 * CENT)
    hanging = asyncio.Event()

    async def hangs(request: Request) -> Reply:
        hanging.set()
        await asyncio.Event().wait()
        raise AssertionError

    hangs.most_usage = provider.most_usage  # type: ignore[attr-defined]
    guards, limits = [Budget(dollars="1")], Limits(model_seconds=60)
    hub = await place.hub()
    ann = await hub.register("ann")
    await hub.register(Agent("bob", model=hangs, limits=limits))
    channel = await ann.open(target="bob", knobs={"guards": guards, "expectations": []})
    await channel.send("Go")
    await soon(hanging.wait())
    await soon(hub.close())
    hub = await place.hub()
    assert taken(await hub.log(channel.channel_id)) == 30 * CENT
    [expired] = await until_recorded(hub, channel.channel_id, EV_BUDGET_CHANGED, clock=clock)
    assert (expired["op"], expired["need"], expired["tokens"]) == ("expire", 30 * CENT, 150)
    await hub.register(Agent("bob", model=provider, limits=limits))
    await until_recorded(hub, channel.channel_id, EV_CALL_FINISHED)
    assert taken(await hub.log(channel.channel_id)) == 50 * CENT
    assert len(of_type(await hub.log(channel.channel_id), EV_BUDGET_CHANGED)) == 1
    await hub.close()


async def test_a_reservation_of_a_tenant_that_is_lost_is_booked_in_full() -> None:
    clock = ManualClock()
    place, asked = Kept(clock), asyncio.Event()
    provider = PricedModel(30 * CENT)

    async def hangs(request: Request) -> Reply:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    hangs.most_usage = provider.most_usage  # type: ignore[attr-defined]
    hub = await place.hub()
    guards = [Budget(dollars="0.50", scope="tenant"), CostVelocityMonitor(dollars_per_hour="0.50", scope="tenant")]
    invoking = asyncio.ensure_future(Agent("bob", model=hangs, guards=guards).invoke("Go", hub=hub))
    await soon(asked.wait())
    await soon(hub.close())
    await asyncio.gather(invoking, return_exceptions=True)
    hub = await place.hub()
    [expired] = await until_recorded(hub, "system:spend", EV_BUDGET_CHANGED, clock=clock)
    assert (expired["op"], expired["scope"], expired["need"]) == ("expire", "tenant", 30 * CENT)
    other = Agent("cyd", model=provider, guards=guards)
    assert (await soon(other.invoke("Go", hub=hub))).stopped == "denied:budget"
    await clock.advance(7200)  # the windows are empty, and the budget is not
    assert (await soon(other.invoke("Go", hub=hub))).stopped == "denied:budget"
    assert provider.asked == 0
    await hub.close()
