"""The agents of a server that is stopped again and again: what they do is written down in a file, line by line."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from antiphon import Agent, Asked, Reply, Request, calls, says, tool

LEDGER = Path(os.environ["ANTIPHON_TEST_LEDGER"])
PAUSE = float(os.environ.get("ANTIPHON_TEST_PAUSE", "0.02"))


def note(line: str) -> None:
    with LEDGER.open("a", encoding="utf-8") as ledger:
        ledger.write(line)


@tool
async def pay(order: str, idempotency_key: str) -> str:
    """Pay, which takes a moment."""
    note(f"{order} {idempotency_key}\n")
    await asyncio.sleep(PAUSE)
    return f"paid {order}"


async def model(request: Request) -> Reply:
    """Pays three times for what it is asked, and says so."""
    await asyncio.sleep(PAUSE)
    done = sum(isinstance(item, Asked) for item in request.exchange)
    order = request.messages[0].text if not request.history else request.history[-1].text
    return calls("pay", {"order": f"{order}-{done}"}) if done < 3 else says(f"Paid {order}.")


agents = Agent("support", model, tools=[pay])
