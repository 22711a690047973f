"""What the guards of a tier cost, on top of a channel without any: an envelope, and a call of a model or a tool.

Both are measured in turn, in short rounds, so that a machine that gets slower meanwhile is slower for both.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable

from antiphon import Agent, Channel, Hub, Reply, Request, calls, says, tool
from antiphon.core.envelope import Json
from bench.figures import Figure

ROUNDS, MESSAGES = 30, 200
TURNS, LOOK_UPS = 10, 20
CALLS_PER_TURN = 2 * LOOK_UPS + 1
"""Each look-up is asked for by a call of the model, and the last one answers."""
GENEROUS: Json = {"name": "budget", "model_calls": 10**9, "tool_calls": 10**9, "tokens": 10**12, "dollars": "1000000"}
"""The limits of a tier would end a benchmark; these count in the same way."""
GUARDED: Json = {"tier": "batch", "guards": [GENEROUS, {"name": "cost_velocity", "dollars_per_hour": "1000000"}]}


@tool
async def look_up(page: int) -> str:
    """Look a page up."""
    return f"page {page}"


async def reader(request: Request) -> Reply:
    """Looks up one page after the other, then answers."""
    place = sum(1 for item in request.messages if item.role == "tool")
    return says(f"Read {place} pages.") if place >= LOOK_UPS else calls("look_up", {"page": place})


class Bench:
    """A channel with these knobs, and what a round in it costs."""

    def __init__(self, hub: Hub, knobs: Json, name: str) -> None:
        self.hub, self.knobs, self.name = hub, knobs, name
        self.talk: Channel
        self.work: Channel

    async def open(self) -> None:
        ann, bob = await self.hub.register(f"ann-{self.name}"), await self.hub.register(f"bob-{self.name}")
        self.talk = await ann.open(target=bob.agent_id, knobs=self.knobs)
        agent = Agent(f"reader-{self.name}", model=reader, tools=[look_up])
        await self.hub.register(agent)
        self.work = await ann.open(target=agent.name, knobs=self.knobs)

    async def messages(self) -> float:
        """The CPU seconds of an envelope."""
        began = time.process_time()
        for number in range(MESSAGES):
            await self.talk.send(f"Message number {number} of this round, which says nothing new.")
        return (time.process_time() - began) / MESSAGES

    async def calls(self) -> float:
        """The CPU seconds of a call, with all that is recorded of it."""
        began = time.process_time()
        for number in range(TURNS):
            sent = await self.work.send(f"Read book {number}.")
            async for envelope in self.hub.subscribe(self.work.channel_id, after=sent.sequence):
                if envelope.causation_id == sent.envelope_id and envelope.event_type == "ag2.msg.text":
                    break
        return (time.process_time() - began) / (TURNS * CALLS_PER_TURN)


async def alternating(rounds: int, *works: Callable[[], Awaitable[float]]) -> list[float]:
    """The median of each, measured in turn."""
    spent: list[list[float]] = [[] for _ in works]
    for _ in range(rounds):
        for place, work in enumerate(works):
            spent[place].append(await work())
    return [statistics.median(each) for each in spent]


async def measured() -> tuple[list[float], list[float]]:
    """An envelope and a call, each without guards and with those of a tier, in seconds."""
    async with Hub.open("memory:") as hub:
        plain, guarded = Bench(hub, {}, "plain"), Bench(hub, GUARDED, "guarded")
        await plain.open()
        await guarded.open()
        await alternating(3, plain.messages, guarded.messages, plain.calls, guarded.calls)
        envelopes = await alternating(ROUNDS, plain.messages, guarded.messages)
        made = await alternating(ROUNDS // 3, plain.calls, guarded.calls)
    return envelopes, made


def figures() -> list[Figure]:
    """Measure."""
    (plain, guarded), (plain_call, guarded_call) = asyncio.run(measured())
    return [
        Figure("an envelope in a channel without guards, memory store", plain * 1e6, "µs CPU"),
        Figure("… what the guards of a tier add", (guarded - plain) * 1e6, "µs CPU", at_most=40.0),
        Figure("a call of a model or a tool in a channel without guards", plain_call * 1e6, "µs CPU"),
        Figure("… what the guards of a tier add", (guarded_call - plain_call) * 1e6, "µs CPU", at_most=60.0),
    ]


if __name__ == "__main__":
    for figure in figures():
        print(f"{figure.name}: {figure.shown} {figure.bar}")
