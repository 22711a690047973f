"""Whether costs stay flat: in the length of a channel, in closed channels, in live channels."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from antiphon import (
    EV_CHANNEL_CLOSED,
    EV_TEXT,
    Channel,
    Envelope,
    Hub,
    Participant,
)
from antiphon.core.events import EV_CHANNEL_CREATED, EV_CHANNEL_OPENED
from antiphon.hub.clock import SystemClock, TimeOrderedIds
from antiphon.store.sqlite import SqliteStore
from bench.figures import Figure

TEXT = "x" * 200
LONG, SHORT = 100_000, 100
CLOSED_CHANNELS, EACH = 10_000, 100
NewId = Callable[[], str]


async def fill(channel: Channel, count: int) -> None:
    """Say so many things, quickly: what waits together is one batch."""
    for left in range(count, 0, -SHORT):
        await asyncio.gather(*(channel.send(TEXT) for _ in range(min(left, SHORT))))


async def timed(channel: Channel, count: int) -> float:
    began = time.perf_counter()
    for _ in range(count):
        await channel.send(TEXT)
    return (time.perf_counter() - began) / count


async def cost_of_length(alice: Participant) -> tuple[Figure, str]:
    """A post to a long channel against one to a short channel, in alternating rounds."""
    long = await alice.open(type="conversation", target="bob")
    await fill(long, LONG)
    ratios = []
    for _ in range(15):
        short = await alice.open(type="conversation", target="bob")
        await fill(short, SHORT)
        before = await timed(short, 100)
        ratios.append(await timed(long, 100) / before)
    ratio = statistics.median(ratios)
    return Figure(f"a post at {LONG:,} envelopes against one at {SHORT}", ratio, "×", at_most=1.15), long.channel_id


async def first_touch(url: str, channel_id: str) -> Figure:
    """Loading a long channel in a hub that has just been opened."""
    async with Hub.open(url) as hub:
        alice = await hub.register("alice")
        began = time.perf_counter()
        await alice.channel(channel_id)
        spent = time.perf_counter() - began
    return Figure(f"first touch of a channel of {LONG:,}", spent * 1e3, "ms", at_most=50)


async def live_channels(alice: Participant) -> Figure:
    """The total rate over 1,000 channels against that over 10, one sender each."""
    rates: dict[int, list[float]] = {10: [], 1000: []}
    crowds = {size: [await alice.open(type="conversation", target="bob") for _ in range(size)] for size in rates}
    for _ in range(5):
        for size, channels in crowds.items():
            each = 4000 // size
            began = time.perf_counter()
            await asyncio.gather(*(timed(channel, each) for channel in channels))
            rates[size].append(size * each / (time.perf_counter() - began))
    ratio = statistics.median(rates[1000]) / statistics.median(rates[10])
    return Figure("1,000 live channels against 10, in total", ratio, "×", at_least=1.0)


def closed_channel(channel: str, new_id: NewId, at: str) -> list[Envelope]:
    """A whole conversation that has ended."""
    people = [{"name": "alice", "kind": "service"}, {"name": "bob", "kind": "service"}]
    created = {"type": "conversation", "creator": "alice", "participants": people}
    said = [("alice", EV_TEXT, {"text": TEXT})] * (EACH - 3)
    script = [
        ("hub", EV_CHANNEL_CREATED, created),
        ("hub", EV_CHANNEL_OPENED, {}),
        *said,
        ("hub", EV_CHANNEL_CLOSED, {"reason": "done"}),
    ]
    return [
        Envelope(new_id(), channel, sender, None, kind, data, created_at=at, sequence=place)
        for place, (sender, kind, data) in enumerate(script, 1)
    ]


async def opening_over_closed(folder: Path) -> Figure:
    """Opening a hub over many channels that have ended."""
    path, new_id, clock = folder / "closed.db", TimeOrderedIds(), SystemClock()
    store = await SqliteStore.open(path)
    for start in range(0, CLOSED_CHANNELS, 200):
        names = [f"closed-{number}" for number in range(start, start + 200)]
        logs = [closed_channel(name, new_id, clock.now()) for name in names]
        await asyncio.gather(*(store.append(n, log, expected=0) for n, log in zip(names, logs, strict=True)))
    await store.close()
    spent = []
    for _ in range(3):
        began = time.perf_counter()
        hub = await Hub.open(f"sqlite:///{path}")
        spent.append(time.perf_counter() - began)
        await hub.close()
    name = f"opening over {CLOSED_CHANNELS:,} closed channels, {CLOSED_CHANNELS * EACH:,} envelopes"
    return Figure(name, max(spent), "s", at_most=0.5)


async def measure(folder: Path) -> list[Figure]:
    url = f"sqlite:///{folder / 'hub.db'}"
    async with Hub.open(url) as hub:
        alice, _ = await hub.register("alice"), await hub.register("bob")
        length, channel_id = await cost_of_length(alice)
        live = await live_channels(alice)
    touch = await first_touch(url, channel_id)
    return [length, touch, await opening_over_closed(folder), live]


def figures() -> list[Figure]:
    """Measure in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(measure(Path(folder)))
