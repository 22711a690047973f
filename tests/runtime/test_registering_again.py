"""An agent that is registered again: its new definition holds from the next turn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from antiphon import (
    EV_TEXT,
    Agent,
    AntiphonError,
    Channel,
    Envelope,
    Hub,
    Participant,
    Reply,
    Request,
    UsageError,
    says,
)
from antiphon.engines.local import LocalEngine
from antiphon.hub.clock import SystemClock
from antiphon.store.memory_store import MemoryStore
from tests.support.waiting import soon


class Model:
    """Says its own name, when it may, and remembers whether it was closed."""

    def __init__(self, name: str) -> None:
        self.name, self.asked, self.may = name, asyncio.Event(), asyncio.Event()
        self.may.set()
        self.closed, self.is_closed = 0, asyncio.Event()

    async def __call__(self, request: Request) -> Reply:
        self.asked.set()
        await self.may.wait()
        assert not self.closed, "it is used after it was closed"
        return says(self.name)

    async def close(self) -> None:
        self.closed += 1
        self.is_closed.set()


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    async with Hub.open("memory:") as hub:
        yield hub


async def between(hub: Hub) -> Channel:
    """A channel of ann with the agent bob."""
    ann = await hub.register("ann")
    return await ann.open(target="bob")


async def answer(hub: Hub, channel: Channel, text: str) -> str:
    """What bob answers."""
    sent = await channel.send(text)
    return await answer_after(hub, channel, sent)


async def answer_after(hub: Hub, channel: Channel, sent: Envelope) -> str:
    async def found() -> str:
        async for each in hub.subscribe(channel.channel_id, after=sent.sequence):
            if (each.sender_id, each.event_type) == ("bob", EV_TEXT):
                return str(each.event_data["text"])
        raise AssertionError("the channel ended without an answer")

    return await soon(found())


async def test_the_new_definition_holds_from_the_next_turn_and_handles_stay_valid(hub: Hub) -> None:
    old, new = Model("old"), Model("new")
    bob = await hub.register(Agent("bob", old))
    channel = await between(hub)
    assert await answer(hub, channel, "who?") == "old"
    again = await hub.register(Agent("bob", new))
    assert isinstance(again, Participant)
    assert (again.name, again.kind) == ("bob", "agent")
    assert await answer(hub, channel, "who?") == "new"
    assert (await bob.channel(channel.channel_id)).channel_id == channel.channel_id
    await soon(old.is_closed.wait())
    assert (old.closed, new.closed) == (1, 0)


async def test_a_turn_in_progress_ends_with_the_definition_it_began_with(hub: Hub) -> None:
    old, new = Model("old"), Model("new")
    old.may.clear()
    await hub.register(Agent("bob", old))
    channel = await between(hub)
    sent = await channel.send("who?")
    await soon(old.asked.wait())
    await hub.register(Agent("bob", new))
    later = await channel.send("and now?")
    for _ in range(20):
        await asyncio.sleep(0)
    assert old.closed == 0, "a turn still needs it"
    old.may.set()
    assert await answer_after(hub, channel, sent) == "old"
    await soon(old.is_closed.wait())
    texts = []
    async for each in hub.subscribe(channel.channel_id, after=later.sequence):
        if (each.sender_id, each.event_type) == ("bob", EV_TEXT):
            texts.append(each.event_data["text"])
        if len(texts) == 2:
            break
    assert texts == ["old", "new"]


async def test_a_model_that_the_new_definition_or_another_agent_has_is_not_closed(hub: Hub) -> None:
    shared, own = Model("shared"), Model("own")
    await hub.register(Agent("bob", shared))
    await hub.register(Agent("bob", shared, system_prompt="Be brief."))
    await hub.register(Agent("cleo", shared))
    await hub.register(Agent("bob", own))
    await hub.register(Agent("bob", Model("last")))
    await soon(own.is_closed.wait())
    assert shared.closed == 0
    channel = await between(hub)
    assert await answer(hub, channel, "who?") == "last"


async def test_the_same_object_may_be_registered_again(hub: Hub) -> None:
    model = Model("bob")
    bob = Agent("bob", model)
    await asyncio.gather(hub.register(bob), hub.register(bob))
    await hub.register(bob)
    channel = await between(hub)
    assert await answer(hub, channel, "who?") == "bob"
    assert model.closed == 0


async def test_a_definition_that_holds_again_keeps_its_models(hub: Hub) -> None:
    old, new = Model("old"), Model("new")
    old.may.clear()
    first = Agent("bob", old)
    await hub.register(first)
    channel = await between(hub)
    sent = await channel.send("who?")
    await soon(old.asked.wait())
    await hub.register(Agent("bob", new))
    await hub.register(first)
    old.may.set()
    assert await answer_after(hub, channel, sent) == "old"
    await soon(new.is_closed.wait())
    assert await answer(hub, channel, "who?") == "old"
    assert old.closed == 0


async def test_closing_the_hub_closes_the_models_of_every_definition_once() -> None:
    old, new = Model("old"), Model("new")
    old.may.clear()
    store, clock = MemoryStore(), SystemClock()
    hub = await Hub.over(store, clock=clock, engine=LocalEngine(store, clock, grace=0.05))
    await hub.register(Agent("bob", old))
    channel = await between(hub)
    await channel.send("who?")
    await soon(old.asked.wait())
    await hub.register(Agent("bob", new))
    await hub.close()
    assert (old.closed, new.closed) == (1, 1)


async def test_a_definition_that_cannot_be_used_replaces_none(hub: Hub) -> None:
    model = Model("bob")
    await hub.register(Agent("bob", model))
    with pytest.raises(UsageError, match="accept is 7"):
        await hub.register(Agent("bob", Model("other")), accept=7)
    channel = await between(hub)
    assert await answer(hub, channel, "who?") == "bob"


@pytest.mark.parametrize("kind", ["human", "service"])
async def test_an_agent_replaces_nobody_else(hub: Hub, kind: str) -> None:
    await hub.register("bob", kind=kind)
    with pytest.raises(UsageError, match="'bob' is registered in this hub already"):
        await hub.register(Agent("bob", Model("bob")))


@pytest.mark.parametrize("kind", [None, "agent", "human"])
async def test_a_bare_name_does_not_replace_an_agent(hub: Hub, kind: str | None) -> None:
    await hub.register(Agent("bob", Model("bob")))
    with pytest.raises(UsageError, match="'bob' is registered in this hub already"):
        await hub.register("bob", kind=kind)
    channel = await between(hub)
    assert await answer(hub, channel, "who?") == "bob"


async def test_an_agent_does_not_replace_one_that_code_drives(hub: Hub) -> None:
    await hub.register("bob", kind="agent")
    with pytest.raises(UsageError, match="'bob' is registered in this hub already"):
        await hub.register(Agent("bob", Model("bob")))


@pytest.mark.parametrize("steps", range(6))
async def test_an_agent_is_not_registered_in_a_hub_that_closes_meanwhile(steps: int, tmp_path: Path) -> None:
    hub = await Hub.open(f"sqlite:///{tmp_path}/team.db")
    await hub.register("ann")
    model = Model("bob")
    registering = asyncio.ensure_future(hub.register(Agent("bob", model=model)))
    for _ in range(steps):
        await asyncio.sleep(0)
    outcome, _ = await asyncio.gather(registering, hub.close(), return_exceptions=True)
    assert isinstance(outcome, AntiphonError) or model.closed
    assert [task.get_name() for task in asyncio.all_tasks() if "bob" in task.get_name()] == []
