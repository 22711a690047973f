"""Use a hub as a busy day would, then look whether it gives everything back."""

from __future__ import annotations

import asyncio
import gc
import os
import time
import tracemalloc
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from antiphon import Envelope, Hub, Participant

WARM_UP = 0.25
"""The share of the work after which the base is taken: by then every cache has been filled once."""


@dataclass(frozen=True)
class Footprint:
    """What a process holds."""

    files: int
    tasks: int
    traced: int
    """Bytes that Python has allocated."""


@dataclass
class Soak:
    """Before, after, and how much was done in between."""

    before: Footprint
    after: Footprint
    after_close: Footprint
    channels: int
    envelopes: int
    seconds: float

    @property
    def growth(self) -> int:
        return self.after.traced - self.before.traced


def footprint() -> Footprint:
    gc.collect()
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    return Footprint(len(os.listdir("/proc/self/fd")), len(tasks), tracemalloc.get_traced_memory()[0])


async def soak(folder: Path, *, rounds: int, seconds: float = 0.0) -> Soak:
    """Open channels, talk, listen, leave, and close: so many rounds at least, and for so long at least."""
    tracemalloc.start()
    began = time.monotonic()
    hub = await Hub.open(f"sqlite:///{folder / 'soak.db'}")
    alice, bob = await hub.register("alice"), await hub.register("bob")
    done = 0
    before: Footprint | None = None
    while done < rounds or time.monotonic() - began < seconds:
        await one_round(hub, alice, bob)
        done += 1
        if before is None and done >= rounds * WARM_UP and time.monotonic() - began >= seconds * WARM_UP:
            before = footprint()
    after = footprint()
    await hub.close()
    closed = footprint()
    tracemalloc.stop()
    assert before is not None, "the soak was too short to take a base"
    return Soak(before, after, closed, done * CHANNELS, done * CHANNELS * (SAID + 6), time.monotonic() - began)


CHANNELS, SAID = 8, 10


async def one_round(hub: Hub, alice: Participant, bob: Participant) -> None:
    await asyncio.gather(*(one_channel(hub, alice) for _ in range(CHANNELS)))
    inbox = bob.inbox()
    for _ in range(await bob.pending()):
        await anext(inbox)
    await close(inbox)


async def one_channel(hub: Hub, alice: Participant) -> None:
    channel = await alice.open(type="conversation", target="bob", ttl=3600)
    stalled, listening = hub.subscribe(channel.channel_id), hub.subscribe(channel.channel_id, participant="bob")
    await anext(stalled)
    for number in range(SAID):
        await channel.send(f"line {number}")
        await anext(listening)
    await close(stalled)
    await close(listening)
    await channel.close("done")


async def close(reading: AsyncIterator[Envelope]) -> None:
    await reading.aclose()  # type: ignore[attr-defined]  # every reader of a hub is an async generator
