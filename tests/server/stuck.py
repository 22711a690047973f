"""An agent whose tools do not stop. Each says in a file that it has begun, and does not get stuck a second time."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from pathlib import Path

from antiphon import Agent, Answered, Reply, Request, calls, says, tool

LEDGER = Path(os.environ["ANTIPHON_TEST_LEDGER"])
HOUR = 3600


def again(name: str) -> bool:
    """Whether this was called before."""
    called = name in LEDGER.read_text().split() if LEDGER.exists() else False
    with LEDGER.open("a", encoding="utf-8") as ledger:
        ledger.write(f"{name}\n")
    return called


@tool(timeout=None)
async def swallow() -> str:
    """Go on, although it is cancelled."""
    if again("swallow"):
        return "swallowed"
    while True:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(HOUR)


@tool(timeout=None)
def sleep() -> str:
    """Sleep in a thread."""
    if not again("sleep"):
        time.sleep(HOUR)
    return "slept"


@tool(timeout=None)
async def block() -> str:
    """Hold the event loop."""
    if not again("block"):
        time.sleep(HOUR)  # noqa: ASYNC251  # that is what this is about
    return "blocked"


@tool(timeout=None)
async def pool() -> str:
    """Keep a thread of the event loop's own."""
    if not again("pool"):
        await asyncio.to_thread(time.sleep, HOUR)
    return "pooled"


async def model(request: Request) -> Reply:
    """Calls the tool that it is told to, and says what came of it."""
    results = [item.text for item in request.exchange if isinstance(item, Answered)]
    return says(results[-1]) if results else calls(request.history[-1].text)


agents = Agent("support", model, tools=[swallow, sleep, block, pool])
