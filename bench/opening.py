"""What a participant of a new channel costs: CPU and bytes of log, for channels of 10, 100 and 1,000."""

from __future__ import annotations

import asyncio
import time

from antiphon import Hub
from antiphon.core.codec import encode_envelope
from bench.figures import Figure

SIZES = (10, 100, 1000)
ROUNDS = 5


async def opening(size: int) -> tuple[float, float]:
    """The CPU seconds and the bytes of log for each participant, at the best of some rounds."""
    async with Hub.open("memory:") as hub:
        host = await hub.register("host")
        guests = [f"guest-{number}" for number in range(1, size)]
        for guest in guests:
            await hub.register(guest)
        spent = []
        for _ in range(ROUNDS):
            began = time.process_time()
            channel = await host.open(type="discussion", target=guests)
            spent.append(time.process_time() - began)
        stored = sum(len(encode_envelope(envelope)) for envelope in await hub.log(channel.channel_id))
    return min(spent) / size, stored / size


def figures() -> list[Figure]:
    """Measure. An opening is linear if a participant among 1,000 costs no more than one among 10."""
    costs = {size: asyncio.run(opening(size)) for size in SIZES}
    found = []
    for size, (cpu, stored) in costs.items():
        found.append(Figure(f"opening a channel of {size:,}, for each participant", cpu * 1e6, "µs CPU"))
        found.append(Figure("… in the log", stored, "bytes"))
    few, many = costs[SIZES[0]], costs[SIZES[-1]]
    against = f"a participant among {SIZES[-1]:,} against one among {SIZES[0]}"
    found.append(Figure(f"{against}, CPU", many[0] / few[0], "×", at_most=1.25))
    found.append(Figure(f"{against}, bytes", many[1] / few[1], "×", at_most=1.25))
    return found
