"""A clock that is set, forward or back, fails no turn, and neither hurries nor freezes what is expected."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from antiphon import EV_TEXT, Agent, Channel, Hub, Limits, Reply, Request, says, tool
from antiphon.engines.local import LEASE_SECONDS
from antiphon.store.sqlite import SqliteStore
from antiphon.testing import ManualClock, ScriptedModel, calls
from tests.support.hub_places import Place
from tests.support.waiting import let_others_run, soon

JUMPS = [7200, -7200]


class Thinking:
    """A model that answers when it may."""

    def __init__(self) -> None:
        self.asked, self.may_answer = asyncio.Event(), asyncio.Event()

    async def __call__(self, request: Request) -> Reply:
        self.asked.set()
        await self.may_answer.wait()
        return says("done")


@pytest.fixture
async def hub(place: Place, clock: ManualClock) -> AsyncIterator[Hub]:
    hub = await place.hub(clock)
    yield hub
    await hub.close()


async def asked(hub: Hub, agent: Agent, kind: str = "conversation", **knobs: object) -> Channel:
    await hub.register(agent)
    ann = await hub.register("ann")
    channel = await ann.open(type=kind, target=agent.name, knobs=knobs)
    await channel.send("Well?")
    return channel


async def texts(hub: Hub, channel: Channel) -> list[object]:
    log = await hub.log(channel.channel_id)
    return [each.event_data["text"] for each in log if each.event_type == EV_TEXT]


async def failures(hub: Hub, channel: Channel) -> list[object]:
    log = await hub.log(channel.channel_id)
    return [each.event_data["reason"] for each in log if each.event_type == "antiphon.turn.failed"]


async def pass_time(clock: ManualClock, seconds: float, step: float = 10) -> None:
    for _ in range(int(seconds / step)):
        await clock.advance(step)


@pytest.mark.parametrize("mine", [False, True])
@pytest.mark.parametrize("kind", ["conversation", "consulting", "discussion"])
@pytest.mark.parametrize("jump", JUMPS)
async def test_a_turn_in_progress_goes_on(hub: Hub, clock: ManualClock, jump: float, kind: str, mine: bool) -> None:
    """Also if what is expected is the user's own word: a correction of the clock is no time that passes."""
    model = Thinking()
    expected = [{"name": "turn_within", "seconds": 300, "handler": "fail"}] if mine else []
    channel = await asked(hub, Agent("bob", model=model), kind, expectations=expected)
    await soon(model.asked.wait())
    await clock.advance(50)
    await clock.set(jump)
    await clock.advance(50)
    assert await failures(hub, channel) == []
    model.may_answer.set()
    async with asyncio.timeout(10):
        while await texts(hub, channel) != ["Well?", "done"]:
            await let_others_run(1)


@pytest.mark.parametrize("jump", JUMPS)
async def test_a_model_has_its_time_and_no_more(hub: Hub, clock: ManualClock, jump: float) -> None:
    model = Thinking()
    channel = await asked(hub, Agent("bob", model=model, limits=Limits(model_seconds=100)))
    await soon(model.asked.wait())
    await clock.advance(50)
    await clock.set(jump)
    await clock.advance(49)
    assert await failures(hub, channel) == []
    await pass_time(clock, 2, step=1)
    async with asyncio.timeout(10):
        while await failures(hub, channel) != ["model_timeout"]:
            await let_others_run(1)


@pytest.mark.parametrize("jump", JUMPS)
async def test_a_tool_has_its_time_and_no_more(hub: Hub, clock: ManualClock, jump: float) -> None:
    inside = asyncio.Event()

    @tool(timeout=100)
    async def wait() -> str:
        """Wait."""
        inside.set()
        await asyncio.Event().wait()
        return ""

    model = ScriptedModel([calls("wait"), says("done")])
    channel = await asked(hub, Agent("bob", model=model, tools=[wait]))
    await soon(inside.wait())
    await clock.advance(50)
    await clock.set(jump)
    await clock.advance(49)
    assert len(model.requests) == 1
    await pass_time(clock, 2, step=1)
    async with asyncio.timeout(10):
        while await texts(hub, channel) != ["Well?", "done"]:
            await let_others_run(1)


@pytest.mark.parametrize("first", [False, True])
async def test_a_clock_that_is_set_back_freezes_nothing(hub: Hub, clock: ManualClock, first: bool) -> None:
    """Neither what is expected already, nor what is expected from then on."""
    await hub.register("bob")
    ann = await hub.register("ann")
    channel = await ann.open(type="discussion", target="bob")
    before = (await channel.send("Well?")).created_at
    if first:
        await clock.set(-7200)
    else:
        bobs = await (await hub.register("eve")).open(type="discussion", target="bob")
        await clock.set(-7200)
        assert (await channel.set_context(still="here")).created_at >= before
        channel = bobs
    await pass_time(clock, 590)
    assert channel.state.status == "active"
    await pass_time(clock, 30)
    assert channel.state.close_reason == "expectation_violated:turn_within"
    stamps = [each.created_at for each in await hub.log(channel.channel_id)]
    assert stamps == sorted(stamps)


async def test_a_channel_that_is_opened_while_the_clock_is_wrong_keeps_time(hub: Hub, clock: ManualClock) -> None:
    """What is expected again and again, in a channel whose log is ahead of the clock, is expected in time."""
    await hub.register("bob")
    ann = await hub.register("ann")
    channel = await ann.open(type="consulting", target="bob")
    await channel.send("Well?")
    await clock.set(-7200)
    other = await ann.open(type="consulting", target="bob", ttl=86_400)
    await other.send("And here?")
    for each in (channel, other):
        assert each.state.status == "active"
    await pass_time(clock, 610)
    for each in (channel, other):
        assert each.state.close_reason == "expectation_violated:reply_within"


async def test_set_back_and_forward_again_nothing_is_late(hub: Hub, clock: ManualClock) -> None:
    model = Thinking()
    channel = await asked(hub, Agent("bob", model=model, limits=Limits(model_seconds=None)), "discussion")
    await soon(model.asked.wait())
    for jump in (-7200, 7200, 7200, -7200):
        await clock.advance(60)
        await clock.set(jump)
    assert channel.state.status == "active"
    model.may_answer.set()
    async with asyncio.timeout(10):
        while "done" not in await texts(hub, channel):
            await let_others_run(1)


async def test_forward_the_extension_is_recorded_with_its_reason(hub: Hub, clock: ManualClock) -> None:
    await hub.register("bob")
    channel = await (await hub.register("ann")).open(type="discussion", target="bob")
    await clock.set(7200)
    async with asyncio.timeout(10):
        while (last := (await hub.log(channel.channel_id))[-1]).event_type != "antiphon.deadline.extended":
            await let_others_run(1)
    assert last.event_data == {"since": clock.now(), "reason": "clock", "expectation": "turn_within"}


async def test_set_back_while_no_hub_was_open_time_goes_on(place: Place, clock: ManualClock) -> None:
    hub = await place.hub(clock, engine=None)
    await hub.register(Agent("bob", model=ScriptedModel([])))
    channel = await (await hub.register("ann")).open(target="bob")
    await channel.send("Well?")
    await hub.close()
    clock.set(-7200)
    hub = await place.hub(clock)
    model = Thinking()
    await hub.register(Agent("bob", model=model, limits=Limits(model_seconds=None)))
    again = await (await hub.register("ann")).channel(channel.channel_id)
    await soon(model.asked.wait())
    await pass_time(clock, 620)
    assert await failures(hub, again) == ["deadline"]
    await hub.close()


@pytest.mark.parametrize("jump", JUMPS)
async def test_an_owner_that_lives_is_not_taken_for_dead(clock: ManualClock, tmp_path: Path, jump: float) -> None:
    """Two hubs share a file, and both could run the turn."""
    hubs, models = [], [Thinking(), Thinking()]
    for _ in models:
        store = await SqliteStore.open(tmp_path / "team.db", clock=clock, exclusive=False)
        hubs.append(await Hub.over(store, clock=clock))
    channel = await asked(hubs[0], Agent("bob", model=models[0]))
    await soon(models[0].asked.wait())
    await hubs[1].register(Agent("bob", model=models[1]))
    await pass_time(clock, 2 * LEASE_SECONDS, step=0.5)
    await clock.set(jump)
    await pass_time(clock, 4 * LEASE_SECONDS, step=0.5)
    assert not models[1].asked.is_set()
    models[0].may_answer.set()
    async with asyncio.timeout(10):
        while await texts(hubs[0], channel) != ["Well?", "done"]:
            await let_others_run(1)
    log = await hubs[0].log(channel.channel_id)
    assert [each.event_type for each in log].count("antiphon.turn.claimed") == 1
    for hub in hubs:
        await hub.close()


async def test_an_owner_that_died_before_the_clock_was_set_back_is_dead(clock: ManualClock, tmp_path: Path) -> None:
    stopped = ManualClock()
    store = await SqliteStore.open(tmp_path / "team.db", clock=stopped, exclusive=False)
    dead = await Hub.over(store, clock=stopped)
    mind = Thinking()
    channel = await asked(dead, Agent("bob", model=mind))
    await soon(mind.asked.wait())
    store = await SqliteStore.open(tmp_path / "team.db", clock=clock, exclusive=False)
    alive = await Hub.over(store, clock=clock)
    await clock.set(-7200)
    await alive.register(Agent("bob", model=ScriptedModel([says("done")])))
    async with asyncio.timeout(20):
        while await texts(alive, channel) != ["Well?", "done"]:
            await clock.advance(0.5)
    mind.may_answer.set()
    await alive.close()
    await dead.close()
