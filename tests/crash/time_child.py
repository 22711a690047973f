"""A process whose wall clock is wrong: by how much it begins with, and by how much it is set, it is told.

It asks an agent something in a channel of each type, or goes on with those that the store holds, and writes lines to
its standard output: `asked` when a model is asked, and a JSON document when every channel has an answer or a failure.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import aclosing
from typing import Any

from antiphon import (
    Agent,
    AgentTarget,
    FromSpeaker,
    Hub,
    Reply,
    Request,
    TerminateTarget,
    Transition,
    TransitionGraph,
    says,
)
from antiphon.core.envelope import Instant, add_seconds
from antiphon.hub.clock import SystemClock

LONGEST_LIFE = 60
GRAPH = TransitionGraph(
    initial_speaker="ann",
    transitions=[Transition(FromSpeaker("ann"), AgentTarget("bob"))],
    default_target=TerminateTarget("done"),
)
TYPES: dict[str, dict[str, object]] = {
    "conversation": {},
    "consulting": {},
    "discussion": {},
    "workflow": {"graph": GRAPH.to_dict()},
}
OVER = ("ag2.packet", "ag2.msg.text", "antiphon.turn.failed")


class WrongClock(SystemClock):
    """The machine's clock, off by some time from the beginning, and set to another one later."""

    def __init__(self, wrong_by: float) -> None:
        super().__init__()
        self._wrong_by, self.set_by = wrong_by, 0.0

    def now(self) -> Instant:
        return add_seconds(super().now(), self._wrong_by + self.set_by)

    def drift(self) -> float:
        return super().drift() + self.set_by


def say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


async def end_of(hub: Hub, channel_id: str) -> None:
    """Wait until an agent has answered in a channel, or failed."""
    async with aclosing(hub.subscribe(channel_id)) as envelopes:
        async for envelope in envelopes:
            if envelope.event_type in OVER and envelope.sender_id != "ann":
                return


async def live(url: str, plan: dict[str, Any]) -> None:
    clock = WrongClock(plan["wrong_by"])
    never = asyncio.Event()

    async def answers(request: Request) -> Reply:
        say("asked")
        clock.set_by = plan["set_by"]
        await asyncio.sleep(plan["thinks"])
        return says("done")

    async def hangs(request: Request) -> Reply:
        await never.wait()
        return says("too late")

    async with Hub.open(url, clock=clock) as hub:
        ann = await hub.register("ann")
        known = [row.channel_id for row in await hub.channels() if row.participants[-1] != "mute"]
        await hub.register(Agent("bob", model=answers))
        await hub.register(Agent("mute", model=hangs))
        if not known:
            channels = [await ann.open(type=kind, target="bob", knobs=TYPES[kind]) for kind in TYPES]
            mine = [{"name": "turn_within", "seconds": plan["hangs"], "handler": "fail"}] if plan["hangs"] else []
            if mine:
                channels.append(await ann.open(target="mute", knobs={"expectations": mine}))
            for channel in channels:
                await channel.send("Well?")
            known = [channel.channel_id for channel in channels]
        await asyncio.gather(*(end_of(hub, each) for each in known))
        logs = [await hub.log(each) for each in known]
        say(json.dumps([[[each.event_type, each.event_data, each.created_at] for each in log] for log in logs]))


async def main() -> None:
    async with asyncio.timeout(LONGEST_LIFE):
        await live(sys.argv[1], json.loads(sys.argv[2]))


if __name__ == "__main__":
    asyncio.run(main())
