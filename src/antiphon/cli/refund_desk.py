"""The refund desk of `antiphon demo`: an agent with a scripted model, as a file for `antiphon serve`.

Rule 1: the model decides by its request alone, so another process can resume the turn.
Rule 2: every call of the model or a tool is reported to the process that runs the demo, which also plays the bank. A
        call whose result is read from the journal is not made, and so not reported.
"""

from __future__ import annotations

import asyncio
import os

import msgspec

from antiphon.agents.call_results import Reply
from antiphon.agents.messages import Request, calls, says
from antiphon.agents.tool import tool
from antiphon.runtime.agent import Agent

PORT_VARIABLE, LOOPBACK = "ANTIPHON_DEMO_PORT", "127.0.0.1"
DESK = "support"


class CallReport(msgspec.Struct, frozen=True):
    """A call that is being made by a process."""

    process: int
    name: str
    what: str  # what a tool found, or is to do; which tool the model wants, empty with its final answer
    key: str = ""  # the idempotency key of a payment


async def report(name: str, what: str, key: str = "") -> str:
    """Report a call that is being made; the bank's answer if it is a payment, or else what was reported."""
    reader, writer = await asyncio.open_connection(LOOPBACK, int(os.environ[PORT_VARIABLE]))
    try:
        writer.write(msgspec.json.encode(CallReport(os.getpid(), name, what, key)) + b"\n")
        answer = (await reader.readline()).decode().strip()
        return answer if key else what
    finally:
        writer.close()


async def model(request: Request) -> Reply:
    """Find the order, refund it, file the receipt, answer: the next step follows from the results so far."""
    done = request.exchange[-1].text if request.exchange else ""
    steps = {"charged twice": "refund", "confirmed": "file_receipt", "filed": ""}
    wanted = next((step for sign, step in steps.items() if sign in done), "find_order")
    await report("model", wanted)
    return calls(wanted, {"order": 7}) if wanted else says("Your 42 euros for order 7 are refunded.")


@tool
async def find_order(order: int) -> str:
    """Look an order up."""
    return await report("find_order", f"order {order}, charged twice, 42 euros")


@tool
async def refund(order: int, idempotency_key: str) -> str:
    """Have the bank pay an order back."""
    return await report("refund", f"42 euros for order {order}", idempotency_key)


@tool
async def file_receipt(order: int) -> str:
    """File the receipt of a refund."""
    return await report("file_receipt", f"receipt of order {order} filed")


agents = [Agent(DESK, model=model, tools=[find_order, refund, file_receipt])]
