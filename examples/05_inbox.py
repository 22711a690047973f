"""An inbox remembers its place. What was being handled when the process stopped comes again; nothing else does."""

import asyncio
import tempfile
from pathlib import Path

from antiphon import EV_TEXT, Hub


async def first_day(url: str) -> None:
    async with Hub.open(url) as hub:
        depot = await hub.register("depot")
        bob = await hub.register("bob")
        channel = await depot.open(target="bob")
        for number in (1, 2, 3, 4):
            await channel.send(f"parcel {number}")

        handled = []
        async for envelope in bob.inbox():
            if envelope.event_type != EV_TEXT:
                continue
            if envelope.event_data["text"] == "parcel 3":
                break  # the day ends before this one is handled: it is not acknowledged
            handled.append(envelope.event_data["text"])
        print("handled:", ", ".join(handled))
        print("still in the inbox:", await bob.pending())


async def second_day(url: str) -> None:
    async with Hub.open(url) as hub:
        bob = await hub.register("bob")
        handled = []
        async for envelope in bob.inbox():
            handled.append(envelope.event_data["text"])
            if await bob.pending() == 1:  # this one; asking for the next acknowledges it
                break
        print("after the restart:", ", ".join(handled))


with tempfile.TemporaryDirectory() as folder:
    where = f"sqlite:///{Path(folder) / 'parcels.db'}"
    asyncio.run(first_day(where))
    asyncio.run(second_day(where))
