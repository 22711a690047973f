"""What the guards of a tier cost, on top of a channel without any: an envelope, and a call of a model or a tool.

Both are measured in turn, in many short rounds, and the least of each counts: whatever else a machine does makes a
round longer, and none shorter. Beside that stands what the guards take alone, asked about a turn that is in the log:
the rest is what is prepared, recorded and waited for because of them.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable

from antiphon import Agent, Channel, Hub, Reply, Request, calls, says, tool
from antiphon.core.envelope import Envelope, Json
from antiphon.core.execution_events import EV_CALL_FINISHED, EV_CALL_STARTED, EV_TURN_CLAIMED
from antiphon.core.ruleset import Fold, Ruleset
from bench.figures import Figure

ROUNDS, MESSAGES = 30, 200
REPLAYS = 100
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

    async def last_turn(self) -> list[Envelope]:
        """What the last turn has recorded, from its first call on."""
        log = await self.hub.log(self.work.channel_id)
        return log[-1 - [each.event_type for each in reversed(log)].index(EV_TURN_CLAIMED) :]

    async def ruleset(self) -> Ruleset:
        """The rules of the channel in which calls are made."""
        return (await self.hub.core.live(self.work.channel_id)).ruleset


def seconds_of_rules(ruleset: Ruleset, before: Fold, turn: list[Envelope]) -> float:
    """The CPU seconds that rules take for each call of a turn, if they are asked all that a journal asks them."""
    guards, spent = ruleset.calls, []
    for _ in range(REPLAYS):
        fold, began = before, time.process_time()
        for envelope in turn:
            if envelope.event_type == EV_CALL_STARTED:
                guards.asks(fold, envelope)
                allowed = guards.permit(fold, envelope)
                envelope = allowed if isinstance(allowed, Envelope) else envelope
            fold = ruleset.fold(fold, envelope)
            ruleset.notices(fold, envelope)
            if envelope.event_type == EV_CALL_STARTED:
                ruleset.due(fold)
            elif envelope.event_type == EV_CALL_FINISHED:
                guards.settles(fold, envelope)
        spent.append(time.process_time() - began)
    return min(spent) / CALLS_PER_TURN


async def seconds_of_guards(plain: Bench, guarded: Bench) -> float:
    """The CPU seconds that the guards take for each call by themselves."""
    turn, log = await guarded.last_turn(), await guarded.hub.log(guarded.work.channel_id)
    spent = []
    for rules in (await plain.ruleset(), await guarded.ruleset()):
        before = rules.fold_all(rules.begin(guarded.work.channel_id), log[: -len(turn)])
        spent.append(seconds_of_rules(rules, before, turn))
    return spent[1] - spent[0]


async def alternating(rounds: int, *works: Callable[[], Awaitable[float]]) -> list[float]:
    """The least of each, measured in turn."""
    least = [float("inf") for _ in works]
    for _ in range(rounds):
        gc.collect()
        for place, work in enumerate(works):
            least[place] = min(least[place], await work())
    return least


async def measured() -> tuple[list[float], list[float], float]:
    """An envelope and a call, each without guards and with those of a tier, and the guards alone, in seconds."""
    async with Hub.open("memory:") as hub:
        plain, guarded = Bench(hub, {}, "plain"), Bench(hub, GUARDED, "guarded")
        await plain.open()
        await guarded.open()
        await alternating(3, plain.messages, guarded.messages, plain.calls, guarded.calls)
        envelopes = await alternating(ROUNDS, plain.messages, guarded.messages)
        made = await alternating(ROUNDS, plain.calls, guarded.calls)
        alone = await seconds_of_guards(plain, guarded)
    return envelopes, made, alone


def figures() -> list[Figure]:
    """Measure."""
    (plain, guarded), (plain_call, guarded_call), alone = asyncio.run(measured())
    return [
        Figure("an envelope in a channel without guards, memory store", plain * 1e6, "µs CPU"),
        Figure("… what the guards of a tier add", (guarded - plain) * 1e6, "µs CPU", at_most=40.0),
        Figure("a call of a model or a tool in a channel without guards", plain_call * 1e6, "µs CPU"),
        Figure("… what the guards of a tier add", (guarded_call - plain_call) * 1e6, "µs CPU", at_most=60.0),
        Figure("… what the guards take of that by themselves", alone * 1e6, "µs CPU"),
    ]


if __name__ == "__main__":
    for figure in figures():
        print(f"{figure.name}: {figure.shown} {figure.bar}")
