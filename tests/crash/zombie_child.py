"""One of two processes that share a file, though a file is meant for one, and run the same agent.

Its arguments are the path, its own name, and flags. With `--ask` it puts the question. With `--stop` its model stops
the whole process right before it returns the answer, and goes on when somebody wakes it. With `--deaf` it does not
notice that its lease is lost; with `--early` it does not either, and stops right before it asks for a tool; with
`--no-fence` nothing at all stops it, as a control. To its standard output it writes, before it stops, until when its
lease lasts; and the answer, when it sees one in the log. Then it ends.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import aclosing
from pathlib import Path

from antiphon import EV_TEXT, Agent, Hub, Reply, Request, calls, says, tool
from antiphon.core import turns
from antiphon.engines import turn
from antiphon.engines.local import LocalEngine
from antiphon.hub.clock import SystemClock, TimeOrderedIds
from antiphon.runtime.agent import channel_of
from antiphon.store.sqlite import SqliteStore

AGENT, THREAD = "clerk", "t"
LEASE = 1.5
"""The seconds that a lease lasts."""
LONGEST_LIFE = 300
"""After so many seconds it ends by itself, should nobody be left to end it."""


@tool
async def look_up(order: str) -> str:
    """Look up an order."""
    return f"{order} is there"


def clerk(name: str, engine: LocalEngine, *, stops_at: int | None) -> Agent:
    async def model(request: Request) -> Reply:
        if len(request.exchange) == stops_at:
            lease = engine._lease_keeper._lease
            os.write(1, f"{lease.until if lease else 'lost'}\n".encode())
            os.kill(os.getpid(), signal.SIGSTOP)
        return says(f"answered by {name}") if request.exchange else calls("look_up", {"order": "o1"})

    return Agent(AGENT, model=model, tools=[look_up])


def go_deaf() -> None:
    """Run on though the lease is lost. Only the log is left to refuse what comes of it."""
    LocalEngine._on_lease_lost = lambda engine: None


def take_the_fence_away() -> None:
    """Let the log take whatever comes of a turn that was lost, as if its answer were another one."""
    new_id = TimeOrderedIds()
    turns._check_claim = lambda state, claim: None
    turn.derived_id = lambda *parts: new_id()


async def main(path: Path, name: str, flags: list[str]) -> None:
    stops_at = (0 if "--early" in flags else 2) if "--stop" in flags else None
    store = await SqliteStore.open(path, exclusive=False)
    engine = LocalEngine(store, SystemClock(), lease=LEASE)
    agent = clerk(name, engine, stops_at=stops_at)
    hub = await Hub.over(store, engine=engine)
    channel = await channel_of(hub, agent, THREAD)
    if "--ask" in flags:
        await channel.send("Where is o1?")
    async with aclosing(hub.subscribe(channel.channel_id)) as envelopes:
        async for envelope in envelopes:
            if envelope.event_type == EV_TEXT and envelope.sender_id == AGENT:
                os.write(1, f"{envelope.event_data['text']}\n".encode())
                break
    await hub.close()


if __name__ == "__main__":
    signal.alarm(LONGEST_LIFE)
    if {"--deaf", "--early", "--no-fence"} & set(sys.argv):
        go_deaf()
    if "--no-fence" in sys.argv:
        take_the_fence_away()
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:]))
