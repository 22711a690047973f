"""A process is killed in the middle of its work. Everything it was told is recorded, is there afterwards."""

import asyncio
import subprocess
import sys
import tempfile
from pathlib import Path

from antiphon import EV_TEXT, Hub

ENOUGH = 50


async def talk(url: str) -> None:
    """Send as fast as the disk allows, and say so after each acknowledgement. Ends only by being killed."""
    async with Hub.open(url) as hub:
        channel = await (await hub.register("alice")).open(target=(await hub.register("bob")).name)
        print(channel.channel_id, flush=True)
        number = 0
        while True:
            number += 1
            await channel.send(f"message {number}")
            print(f"message {number}", flush=True)


def killed_while_talking(url: str) -> tuple[str, list[str]]:
    """The channel a child talked in, and every message it had an acknowledgement for when it was killed."""
    child = subprocess.Popen([sys.executable, __file__, url], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    channel_id = child.stdout.readline().strip()
    acknowledged = [child.stdout.readline().strip() for _ in range(ENOUGH)]
    child.kill()
    rest, _ = child.communicate()
    return channel_id, acknowledged + rest.split("\n")[:-1]  # the last line may be cut off


async def look(url: str, channel_id: str, acknowledged: list[str]) -> None:
    async with Hub.open(url) as hub:
        log = await hub.log(channel_id)
        recorded = [envelope.event_data["text"] for envelope in log if envelope.event_type == EV_TEXT]
        print("killed after", len(acknowledged), "acknowledgements")
        print(len(set(acknowledged) - set(recorded)), "acknowledged messages lost")
        print(len(recorded) - len(set(recorded)), "messages recorded twice")
        print("numbered without a gap:", [envelope.sequence for envelope in log] == list(range(1, len(log) + 1)))

        alice = await hub.register("alice")  # known to the store: this attaches to her again
        channel = await alice.channel(channel_id)
        envelope = await channel.send("As I was saying …")
        print("the conversation goes on right behind:", envelope.sequence == len(log) + 1)


def main() -> None:
    if len(sys.argv) > 1:
        asyncio.run(talk(sys.argv[1]))
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder) / 'team.db'}"
        channel_id, acknowledged = killed_while_talking(url)
        asyncio.run(look(url, channel_id, acknowledged))


main()
