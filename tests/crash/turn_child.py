"""The process that is killed while its agent takes a turn: four model calls, six tool calls, one of them a payment.

It is told by its arguments where the file is, where the servers are, and which turn to take. Every life does the same:
open the hub, find or open the thread, say the message if it is not there yet, and wait for the answer. It writes lines
to its standard output: `ready` when the hub is open, and `done` when the answer is recorded.

`--no-journal` lets the engine forget what calls came to, as a control.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from contextlib import aclosing
from functools import partial
from typing import Any
from weakref import WeakSet

from antiphon import EV_TEXT, Agent, Hub, Reply, Request, calls, says, tool
from antiphon.agents.tool import Tool
from antiphon.core import execution_events
from antiphon.core.events import EV_TURN_FAILED
from antiphon.engines.journal import TurnJournal
from antiphon.runtime.agent import channel_of

AGENT = "clerk"
NATURAL = ("look_up", "stock", "notify", "ship", "file")
LONGEST_LIFE = 120
"""After so many seconds it ends by itself, should nobody be left to end it."""


def say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


async def post(port: int, place: str, body: dict[str, Any], key: str = "") -> dict[str, Any]:
    """Ask one of the servers."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    text = json.dumps(body).encode()
    head = f"POST {place} HTTP/1.0\r\nContent-Length: {len(text)}\r\nIdempotency-Key: {key}\r\n\r\n"
    writer.write(head.encode() + text)
    answer = await reader.read()
    writer.close()
    found: dict[str, Any] = json.loads(answer.partition(b"\r\n\r\n")[2])
    return found


def clerk(port: int, run: str) -> Agent:
    """The agent, whose model and tools are all on the other side of a socket."""

    async def model(request: Request) -> Reply | list[Reply]:
        messages = [[message.role, message.text] for message in request.messages]
        answer = await post(port, "/model", {"run": run, "messages": messages})
        return [calls(name, args) for name, args in answer["calls"]] or says(answer["text"])

    @tool
    async def pay(order: str, cents: int, memo: str, idempotency_key: str) -> str:
        """Pay for an order."""
        body = {"order": order, "cents": cents, "memo": memo}
        return str((await post(port, "/pay", body, idempotency_key))["text"])

    tools = [pay, *map(partial(natural, port, run), NATURAL)]
    return Agent(AGENT, model=model, system_prompt="You see to orders.", tools=tools)


def natural(port: int, run: str, name: str) -> Tool:
    """A tool that may be called again."""

    async def call(note: str) -> str:
        return str((await post(port, f"/tool/{name}", {"run": run, "note": note}))["text"])

    return tool(call, name=name, description=f"Do what {name} says.")


def forget_calls() -> None:
    """Let a turn write its claim and its end, and nothing in between."""
    claim, claimed = TurnJournal.claim, WeakSet[TurnJournal]()

    async def only_claim(notes: TurnJournal, *_: object, **__: object) -> None:
        if notes not in claimed:
            claimed.add(notes)
            await claim(notes)

    TurnJournal.keep = lambda notes, event_type, event: None
    TurnJournal.claim = TurnJournal.start = TurnJournal.write = only_claim


def shorten_pauses() -> None:
    """Attempt a turn again almost at once after a crash: kills are to fall into turns, not into pauses."""
    execution_events.FIRST_CRASH_PAUSE_SECONDS = 0.01


async def main(path: str, port: int, run: str) -> None:
    agent = clerk(port, run)
    async with Hub.open(f"sqlite:///{path}") as hub:
        say("ready")
        channel = await channel_of(hub, agent, run)
        await channel.send(f"Please see to order {run}.", message_id="m1")
        async with aclosing(hub.subscribe(channel.channel_id)) as envelopes:
            async for envelope in envelopes:
                if envelope.event_type == EV_TURN_FAILED or (envelope.event_type, envelope.sender_id) == (
                    EV_TEXT,
                    AGENT,
                ):
                    break
        say("done")


if __name__ == "__main__":
    signal.alarm(LONGEST_LIFE)
    shorten_pauses()
    if "--no-journal" in sys.argv:
        forget_calls()
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
