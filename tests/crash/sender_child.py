"""The process that is killed: eight senders in four conversations, each acknowledgement reported at once.

It is told by its arguments where the file is, and which number each sender goes on from. It writes lines to its
standard output: `ready`, then `ack SENDER NUMBER SEQUENCE` for each message the hub has taken.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys

from antiphon import Channel, Hub, Participant

SENDERS = [f"s{number}" for number in range(8)]


def say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


async def send_for_ever(channel: Channel, sender: str, number: int) -> None:
    while True:
        sent = await channel.send(f"{sender} says {number}", message_id=f"{sender}-{number}")
        say(f"ack {sender} {number} {sent.sequence}")
        number += 1


async def conversation(hub: Hub, one: Participant, other: Participant) -> str:
    """The id of the conversation these two have; a new one if they have none."""
    rows = await hub.channels(status="active", participant=one.name)
    if rows:
        return rows[0].channel_id
    return (await one.open(type="conversation", target=other.name)).channel_id


async def main(path: str, numbers: dict[str, int]) -> None:
    async with Hub.open(f"sqlite:///{path}") as hub:
        people = [await hub.register(name) for name in SENDERS]
        work = []
        for one, other in zip(people[::2], people[1::2], strict=True):
            channel_id = await conversation(hub, one, other)
            for person in (one, other):
                work.append(send_for_ever(await person.channel(channel_id), person.name, numbers.get(person.name, 0)))
        say("ready")
        await asyncio.gather(*work)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], json.loads(sys.argv[2])))
