"""A process dies while a letter is being printed, and nothing can tell whether it was. So a person is asked.

The tool is declared unsafe: it must not be called again on a guess. Its turn waits, however long it takes.
"""

import asyncio
import logging
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from antiphon import Agent, Hub, Reply, Request, TurnFailed, calls, says, tool


@tool(idempotency="unsafe")
async def print_letter(to: str) -> str:
    """Print a letter and put it in the post."""
    os._exit(1)  # the printer may have been faster


async def model(request: Request) -> Reply:
    return says("Your letter is in the post.") if request.exchange else calls("print_letter", {"to": "Ann"})


secretary = Agent("secretary", model=model, tools=[print_letter])


async def ask(hub: Hub) -> str:
    """Always under the same message id: however often it is asked, it is said once."""
    reply = await secretary.invoke("Write to Ann, please.", thread_id="dana", hub=hub, message_id="letter")
    return reply.text


async def die(url: str) -> None:
    async with Hub.open(url) as hub:
        await ask(hub)


async def settle(url: str) -> None:
    async with Hub.open(url) as hub:
        try:
            await ask(hub)
        except TurnFailed as waiting:
            print(f"{waiting.reason}: {waiting.detail}")
        print("a person looks into the tray: the letter is there")
        channel = await secretary.channel("dana", hub)
        [turn] = channel.state.owed
        await channel.settle(turn.turn_id, turn.doubts[0], result="printed")
        print("secretary:", await ask(hub))


def main() -> None:
    if len(sys.argv) > 1:
        asyncio.run(die(sys.argv[1]))
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder) / 'team.db'}"
        done = subprocess.run([sys.executable, __file__, url], check=False)
        print("the first process ended with", done.returncode)
        logging.getLogger("antiphon").setLevel(logging.ERROR)  # a hub also warns of a turn that waits for a person
        asyncio.run(settle(url))


main()
