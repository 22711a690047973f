"""Two walks through the package on a SQLite file, both after a first pass that warms every cache.

`python -m tests.support.traced_walks` prints how many functions and files each one passes.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from antiphon import EV_TEXT, Agent, Envelope, Hub, tool
from antiphon.runtime.subscriptions import follow_channel
from antiphon.testing import ScriptedModel, calls, says
from tests.support.call_trace import PACKAGE, CallTrace, record_calls


@tool
async def look_up(order: str) -> str:
    """Look an order up."""
    return f"order {order} is on its way"


async def trace_send(folder: Path) -> CallTrace:
    """`channel.send` until it returns."""
    with record_calls() as trace:
        async with Hub.open(f"sqlite:///{folder}/send.db") as hub:
            ann, _ = await hub.register("ann"), await hub.register("bob")
            channel = await ann.open(type="conversation", target=["bob"])
            await channel.send("first")
            trace.on()
            await channel.send("second")
            trace.off()
        return trace


async def trace_turn(folder: Path) -> CallTrace:
    """A message, an agent's turn with one tool call, and its answer, which the sender reads.

    It is read by a subscription: the position of an inbox is written by a thread of its own, at any time.
    """
    model = ScriptedModel([calls("look_up", {"order": "7"}), says("On its way.")] * 2)
    with record_calls() as trace:
        async with Hub.open(f"sqlite:///{folder}/turn.db") as hub:
            ann = await hub.register("ann", kind="human")
            await hub.register(Agent("bob", model=model, tools=[look_up]))
            channel = await ann.open(type="conversation", target=["bob"])
            live = await hub.core.live(channel.channel_id)
            log = follow_channel(hub.core, live, reader="ann", after=0, max_lag=None)
            await channel.send("Where is order 7?")
            await _answer_of_bob(log)
            trace.on()
            await channel.send("And now?")
            await _answer_of_bob(log)
            trace.off()
        return trace


async def _answer_of_bob(log: AsyncIterator[Envelope]) -> None:
    async for envelope in log:
        if envelope.sender_id == "bob" and envelope.event_type == EV_TEXT:
            return


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for walk in (trace_send, trace_turn):
            trace = asyncio.run(walk(Path(folder)))
            print(f"{walk.__name__}: {len(trace.functions)} functions in {len(trace.files)} files")
            for file in trace.files:
                lines = len((PACKAGE / file).read_text(encoding="utf-8").splitlines())
                names = [name for where, name in trace.functions if where == file]
                print(f"  {file} ({lines} lines): {', '.join(names)}")


if __name__ == "__main__":
    main()
