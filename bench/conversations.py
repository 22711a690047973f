"""What routed conversations cost: a message routed and answered, many conversations on a disk, and the 1,000th handoff.

The floor for conversations on a disk is the bare store: the same envelopes in the same batches, appended without a hub.
Rounds of both alternate, so that their ratio says more than either number.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from itertools import count
from pathlib import Path

from antiphon import (
    Agent,
    Channel,
    ConversationRouter,
    Envelope,
    Hub,
    Reply,
    Request,
    RoutingConditions,
    RoutingRule,
    calls,
    get_conversation_state,
    says,
)
from antiphon.agents.messages import Model
from antiphon.core.events import EV_PACKET
from antiphon.store.sqlite import SqliteStore
from bench.figures import Figure

INTENTS = ("billing", "support", "other")
MESSAGES, WARM_UP, CROWD, CROWD_MESSAGES, ROUNDS = 1000, 50, 64, 4, 5
HANDOFFS, WINDOW = 1000, 20
CONVERSATIONS = 200


async def answer(request: Request) -> Reply:
    """Answers at once."""
    return says("It has three books.")


def router() -> ConversationRouter:
    """Two rules and a default."""
    rules = [RoutingRule(name, RoutingConditions(intents={name})) for name in INTENTS[:2]]
    return ConversationRouter(rules, default_agent_id="triage")


async def desk(hub: Hub, conversations: int) -> list[Channel]:
    """So many conversations with three agents."""
    ann = await hub.register("ann")
    names = (*INTENTS[:2], "triage")
    for name in names:
        await hub.register(Agent(name, model=answer, system_prompt="Be brief."))
    knobs = {"router": router().to_dict()}
    return [await ann.open(type="routed", target=list(names), knobs=knobs) for _ in range(conversations)]


async def wait_for_answer(log: AsyncIterator[Envelope], message: Envelope) -> None:
    """Read on until the answer to a message, which hands nothing over."""
    async for envelope in log:
        mine = envelope.event_type == EV_PACKET and envelope.causation_id == message.envelope_id
        if mine and not envelope.event_data["routing"].get("target"):
            return


async def talk(hub: Hub, channel: Channel, messages: int) -> None:
    """Send so many messages, each when the one before is answered."""
    async with aclosing(hub.subscribe(channel.channel_id, after=channel.state.sequence)) as log:
        for number in range(messages):
            message = await channel.send(f"What {number}?", intent=INTENTS[number % 3])
            await wait_for_answer(log, message)


async def routed() -> float:
    """The CPU seconds of a message that is routed to one of three agents and answered."""
    async with Hub.open("memory:") as hub:
        [channel] = await desk(hub, 1)
        await talk(hub, channel, WARM_UP)
        began = time.process_time()
        await talk(hub, channel, MESSAGES)
        return (time.process_time() - began) / MESSAGES


async def burst(hub: Hub, channels: list[Channel]) -> float:
    """Messages answered in a second, in all conversations at once."""
    began = time.perf_counter()
    await asyncio.gather(*(talk(hub, channel, CROWD_MESSAGES) for channel in channels))
    return len(channels) * CROWD_MESSAGES / (time.perf_counter() - began)


async def floor(store: SqliteStore, names: count[int]) -> float:
    """What the bare store does with the envelopes of those messages, in batches as the hub appends them."""
    body = {"text": "It has three books.", "intent": "billing"}

    async def append(channel: str) -> None:
        done = 0
        for _ in range(CROWD_MESSAGES):
            for size in (2, 2, 2):
                batch = [
                    Envelope(
                        f"{channel}-{done + place}", channel, "ann", None, "bench.row", body,
                        created_at="2026-01-01T00:00:00.000000Z", sequence=done + place + 1,
                    )
                    for place in range(size)
                ]  # fmt: skip
                await store.append(channel, batch, expected=done)
                done += size

    began = time.perf_counter()
    await asyncio.gather(*(append(f"c{next(names)}") for _ in range(CROWD)))
    return CROWD * CROWD_MESSAGES / (time.perf_counter() - began)


async def crowd(folder: Path) -> tuple[float, float]:
    """Messages a second of 64 conversations on a synced SQLite file, and the ratio to the bare store."""
    names = count()
    store = await SqliteStore.open(folder / "bare.db")
    async with Hub.open(f"sqlite:///{folder / 'hub.db'}") as hub:
        channels = await desk(hub, CROWD)
        await burst(hub, channels)
        pairs = [(await burst(hub, channels), await floor(store, names)) for _ in range(ROUNDS)]
    await store.close()
    return statistics.median(ours for ours, _ in pairs), statistics.median(ours / bare for ours, bare in pairs)


class Alternating:
    """A model of an agent that hands a message over, unless it was handed to it."""

    def __init__(self, name: str) -> None:
        self._other = "right" if name == "left" else "left"
        self._handed = name == "right"

    async def __call__(self, request: Request) -> Reply:
        self._handed = not self._handed
        if not self._handed:
            return says("Done.")
        return calls("handoff_conversation", {"target": self._other, "reason": "yours", "summary": "as discussed"})


async def handoffs() -> tuple[float, float]:
    """The CPU seconds of an early handoff, and of the last of a thousand in one conversation."""
    async with Hub.open("memory:") as hub:
        ann = await hub.register("ann")
        for name in ("left", "right"):
            await hub.register(Agent(name, model=Alternating(name), system_prompt=name, without=["current_date"]))
        knobs = {"router": ConversationRouter(default_agent_id="left").to_dict()}
        channel = await ann.open(type="routed", target=["left", "right"], knobs=knobs)
        spent: list[float] = []
        async with aclosing(hub.subscribe(channel.channel_id)) as log:
            for number in range(HANDOFFS + WINDOW):
                began = time.process_time()
                await wait_for_answer(log, await channel.send(f"Again {number}."))
                spent.append(time.process_time() - began)
        assert get_conversation_state(channel).handoff_count == HANDOFFS + WINDOW
        return statistics.median(spent[5 : 5 + WINDOW]), statistics.median(spent[-WINDOW:])


def follows_orders(name: str) -> Model:
    """A model that answers messages that end with the agent's name, and hands others over to the agent named there."""

    async def model(request: Request) -> Reply:
        wanted = request.messages[-1].text.split()[-1]
        if wanted == name:
            return says("Done.")
        return calls("handoff_conversation", {"target": wanted, "reason": "yours", "summary": "as discussed"})

    return model


async def short_conversations() -> float:
    """The CPU seconds of a conversation: it is opened, has three messages and two handoffs, and is closed."""
    names = ("triage", "billing", "support")
    knobs = {"router": ConversationRouter(default_agent_id=names[0]).to_dict()}
    async with Hub.open("memory:") as hub:
        ann = await hub.register("ann")
        for name in names:
            await hub.register(Agent(name, model=follows_orders(name), system_prompt="Be brief."))

        async def hold_one() -> None:
            channel = await ann.open(type="routed", target=list(names), knobs=knobs)
            async with aclosing(hub.subscribe(channel.channel_id)) as log:
                for name in names:
                    await wait_for_answer(log, await channel.send(f"This is for {name}"))
            assert get_conversation_state(channel).handoff_count == 2
            await channel.close()

        await hold_one()
        began = time.process_time()
        for _ in range(CONVERSATIONS):
            await hold_one()
        return (time.process_time() - began) / CONVERSATIONS


def figures() -> list[Figure]:
    """Measure."""
    with tempfile.TemporaryDirectory() as folder:
        many, ratio = asyncio.run(crowd(Path(folder)))
    early, late = asyncio.run(handoffs())
    return [
        Figure(
            f"a message routed to one of three agents and answered, mean of {MESSAGES:,}, memory store",
            min(asyncio.run(routed()) for _ in range(3)) * 1e3,
            "ms CPU",
            at_most=0.7,
            note="RoomKit: 2.3 to 3.5 ms CPU",
        ),
        Figure(f"messages answered in {CROWD} conversations, SQLite, synced", many, "messages/s", at_least=1000),
        Figure("… against the bare store with the same envelopes", ratio, "×"),
        Figure(
            "a conversation of three messages and two handoffs, memory store",
            min(asyncio.run(short_conversations()) for _ in range(3)) * 1e3,
            "ms CPU",
            note="RoomKit: 15.7 to 17.9 ms CPU",
        ),
        Figure("a handoff, the 10th of a conversation", early * 1e3, "ms CPU", note="RoomKit: 6.8 ms"),
        Figure(f"… the {HANDOFFS:,}th against it", late / early, "×", at_most=1.2, note="RoomKit: 4.7 × after 800"),
    ]
