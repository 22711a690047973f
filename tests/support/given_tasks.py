"""Short ways to have tasks given, and to tell what was recorded of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from antiphon import Agent, Answered, Envelope, Hub, Reply, Request, Usage, calls, delegate, says
from antiphon.agents.messages import Model
from antiphon.agents.tool import Tool
from antiphon.engines.local import LocalEngine
from antiphon.store.protocol import Store
from antiphon.store.urls import open_store
from antiphon.testing import ManualClock
from tests.support.kept_store import KeptStore

GIVER = "boss"
Told = tuple[str, dict[str, object]]


def used(input_tokens: int = 0, output_tokens: int = 0) -> dict[str, object]:
    """A usage as it is recorded."""
    recorded: dict[str, object] = msgspec.to_builtins(Usage(input_tokens, output_tokens))
    return recorded


def results(request: Request) -> list[str]:
    """What the tools have answered in this turn."""
    return [item.text for item in request.exchange if isinstance(item, Answered)]


def asking(*wanted: Reply) -> Model:
    """A model that asks for these tools in one message, and then says what they answered. It remembers nothing."""

    async def model(request: Request) -> Reply | list[Reply]:
        answers = results(request)
        return says(" | ".join(answers)) if answers else list(wanted)

    return model


async def echo(request: Request) -> Reply:
    """Answers the last message with itself."""
    return says(f"re: {request.history[-1].text}")


def waiting(inside: asyncio.Event, gate: asyncio.Event) -> Callable[[Request], Awaitable[Reply]]:
    """A model that says when it was asked, and answers when the gate opens."""

    async def model(request: Request) -> Reply:
        inside.set()
        await gate.wait()
        return await echo(request)

    return model


def giver(*tools: object, script: Model | None = None, name: str = GIVER, **args: object) -> Agent:
    """An agent that calls the first of these tools, and says what it answered. An agent among them is given a task."""
    made = [delegate(each) if isinstance(each, Agent) else each for each in tools]
    first = made[0]
    assert isinstance(first, Tool), "somebody is given something"
    wanted = args or ({"task": "look"} if "task" in str(first.parameters) else {})
    return Agent(name, model=script or asking(calls(first.name, wanted)), tools=made)


async def of_tasks(hub: Hub, channel_id: str) -> list[Told]:
    """What a channel's log says of tasks: the last word of the event, and its data, with `t1`, `t2` … for their ids."""
    return told_of(await hub.log(channel_id))


def told_of(log: list[Envelope]) -> list[Told]:
    names: dict[object, str] = {}
    told: list[Told] = []
    for envelope in log:
        if envelope.event_type.startswith("ag2.task."):
            name = names.setdefault(envelope.event_data["task"], f"t{len(names) + 1}")
            told.append((envelope.event_type.removeprefix("ag2.task."), {**envelope.event_data, "task": name}))
    return told


async def words(hub: Hub, channel_id: str) -> list[str]:
    """Only the last words of the events."""
    return [word for word, _ in await of_tasks(hub, channel_id)]


async def ends(hub: Hub, channel_id: str) -> list[object]:
    """How the tasks of a channel ended: `completed`, or the reason for which they came to nothing."""
    found = [(word, data) for word, data in await of_tasks(hub, channel_id) if "usage" in data]
    return [data.get("reason", word) for word, data in found]


async def tasks(hub: Hub) -> list[tuple[str, str]]:
    """The status of every task's channel, and the reason it ended for."""
    return [(row.status, row.close_reason) for row in await hub.channels() if row.type == "consulting"]


class Kept(msgspec.Struct):
    """A store that outlives its hubs, each of which gives what is under way only a moment when it closes."""

    clock: ManualClock
    file: Path | None = None
    store: Store | None = None

    async def hub(self, grace: float = 0.01) -> Hub:
        store: Store
        if self.file is not None:
            store = await open_store(f"sqlite:///{self.file}", tenant="default", clock=self.clock)
        else:
            self.store = store = self.store or KeptStore(clock=self.clock)
        return await Hub.over(store, clock=self.clock, engine=LocalEngine(store, self.clock, grace=grace))
