"""What the hub costs on top of its store, with real syncs, both measured in the same run.

The bare store appends the same envelopes without a hub. Short rounds of both alternate, and take turns in going
first, so that a busy disk or machine slows both; the median pair of rounds counts.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from antiphon import EV_TEXT, Channel, Envelope, Hub
from antiphon.hub.clock import SystemClock, TimeOrderedIds
from antiphon.store.protocol import Store
from antiphon.store.sqlite import SqliteStore
from bench.figures import Figure

TEXT = "x" * 200
Work = Callable[[int], Awaitable[None]]
"""Sends or appends so many envelopes, one after the other."""


def bare(store: Store, channel: str) -> Work:
    """Appends to one channel of the bare store."""
    new_id, clock, head = TimeOrderedIds(), SystemClock(), 0

    async def append(count: int) -> None:
        nonlocal head
        for _ in range(count):
            envelope = Envelope(
                new_id(), channel, "alice", None, EV_TEXT, {"text": TEXT}, created_at=clock.now(), sequence=head + 1
            )
            await store.append(channel, [envelope], expected=head)
            head += 1

    return append


def through(channel: Channel) -> Work:
    """Sends through the hub."""

    async def send(count: int) -> None:
        for _ in range(count):
            await channel.send(TEXT)

    return send


async def rate(workers: list[Work], each: int) -> tuple[float, float]:
    """Envelopes a second, and CPU seconds an envelope, when all work at once."""
    wall, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(work(each) for work in workers))
    count = len(workers) * each
    return count / (time.perf_counter() - wall), (time.process_time() - cpu) / count


async def compare(ours: list[Work], theirs: list[Work], *, each: int, rounds: int) -> tuple[float, float, float, float]:
    """Median rates of both, the median ratio of a pair of rounds, and the CPU an envelope costs more through us."""
    pairs = []
    await rate(ours, each)
    await rate(theirs, each)
    for _ in range(rounds // 2):
        mine = await rate(ours, each)
        pairs.append((mine, await rate(theirs, each)))
        bare = await rate(theirs, each)
        pairs.append((await rate(ours, each), bare))
    return (
        statistics.median(mine for (mine, _), _ in pairs),
        statistics.median(bare for _, (bare, _) in pairs),
        statistics.median(mine / bare for (mine, _), (bare, _) in pairs),
        statistics.median(mine - bare for (_, mine), (_, bare) in pairs),
    )


async def measure(folder: Path) -> list[Figure]:
    """The three comparisons."""
    store = await SqliteStore.open(folder / "bare.db")
    async with Hub.open(f"sqlite:///{folder / 'hub.db'}") as hub:
        alice, _ = await hub.register("alice"), await hub.register("bob")
        channels = [await alice.open(type="conversation", target="bob") for _ in range(64)]
        names = TimeOrderedIds()  # the hub's channels have names of this length
        many = await compare(list(map(through, channels)), [bare(store, names()) for _ in range(64)], each=60, rounds=8)
        one = await compare([through(channels[0])], [bare(store, names())], each=100, rounds=80)
        crowd = await compare([through(channels[1])] * 64, list(map(through, channels)), each=60, rounds=8)
    await store.close()
    return [
        Figure("64 senders, 64 channels, through the hub", many[0], "envelopes/s"),
        Figure("64 senders, 64 channels, bare store", many[1], "envelopes/s"),
        Figure("… hub against bare store", many[2], "×", note="0.6 × is enough, whatever the CPU"),
        Figure("… CPU the hub adds to an envelope", many[3] * 1e6, "µs", at_most=None if many[2] >= 0.6 else 60),
        Figure("one sender through the hub", one[0], "envelopes/s"),
        Figure("one sender, bare store", one[1], "envelopes/s"),
        Figure("… hub against bare store", one[2], "×", at_least=0.8),
        Figure("64 senders on one channel", crowd[0], "envelopes/s"),
        Figure("… against 64 channels", crowd[2], "×", at_least=0.5),
    ]


def figures() -> list[Figure]:
    """Measure in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(measure(Path(folder)))
