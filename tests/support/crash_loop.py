"""A process that takes several turns at once and may be ended by one of them, or from outside, again and again.

`python -m tests.support.crash_loop PATH TURNS SECONDS SPEED CRASHES [--kill | --harmless]`: each turn asks a model that
takes SECONDS. With `--kill` there is one more turn, whose tool ends the process; with `--harmless` that tool returns.
The clock runs SPEED times as fast as time does, so that pauses are short. It writes `ready` when every message is
recorded, and `done` when each turn has its answer, or waits for a person.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path
from time import time

from antiphon import Agent, Channel, Hub, Limits, Reply, Request, calls, says, tool
from antiphon.core.envelope import NEVER, Instant, to_datetime, to_instant
from antiphon.runtime.agent import channel_of

AGENT = "clerk"
KILL = "kill"
LONGEST_LIFE = 300
PROOF = os.environ.get("ANTIPHON_PROOF") == "1"
SPEED = 1.0 if PROOF else 20.0
CRASHES = 10 if PROOF else 4
EPOCH = 1_790_000_000.0
"""Where a fast clock shows the right time."""


class FastClock:
    """A clock that runs faster than time, and shows the same in every process."""

    def __init__(self, speed: float) -> None:
        self._speed = speed

    def drift(self) -> float:
        return 0.0

    def now(self) -> Instant:
        return to_instant(datetime.fromtimestamp(EPOCH + (time() - EPOCH) * self._speed, UTC))

    async def wait(self, wake: asyncio.Event, until: Instant) -> None:
        left = None
        if until != NEVER:
            left = max(0.0, (to_datetime(until) - to_datetime(self.now())).total_seconds() / self._speed)
        try:
            async with asyncio.timeout(left):
                await wake.wait()
        except TimeoutError:
            return


def start_crash_loop(
    path: Path, turns: int, seconds: float, *flags: str, speed: float = SPEED, crashes: int = CRASHES
) -> subprocess.Popen[bytes]:
    """This module as a process of its own."""
    numbers = [str(turns), str(seconds), str(speed), str(crashes)]
    command = [sys.executable, "-m", "tests.support.crash_loop", str(path), *numbers, *flags]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def agent(seconds: float, crashes: int, *, deadly: bool) -> Agent:
    @tool(idempotency="natural")
    async def end() -> str:
        """End the process."""
        if deadly:
            os._exit(9)
        return "nothing happens"

    async def model(request: Request) -> Reply:
        if request.messages[0].text == KILL:
            return says("I live.") if request.exchange else calls("end")
        await asyncio.sleep(seconds)
        return says("fine")

    return Agent(AGENT, model=model, tools=[end], limits=Limits(crashes=crashes, model_seconds=None))


def say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


async def settled(hub: Hub, channel: Channel) -> None:
    """Return when the channel is owed nothing that will still be run."""
    async with aclosing(hub.subscribe(channel.channel_id)) as envelopes:
        async for _ in envelopes:
            if all(turn.suspended for turn in channel.state.owed):
                return


async def main(path: str, turns: int, seconds: float, *, speed: float, crashes: int, flag: str) -> None:
    clerk = agent(seconds, crashes, deadly=flag == "--kill")
    async with Hub.open(f"sqlite:///{path}", clock=FastClock(speed)) as hub:
        channels = []
        for text in [*(f"t{number}" for number in range(turns)), *([KILL] if flag else [])]:
            channel = await channel_of(hub, clerk, text)
            await channel.send(text, message_id="m")
            channels.append(channel)
        say("ready")
        for channel in channels:
            await settled(hub, channel)
        say("done")


if __name__ == "__main__":
    signal.alarm(LONGEST_LIFE)
    place, number, length, factor, most, *flags = sys.argv[1:]
    asyncio.run(
        main(place, int(number), float(length), speed=float(factor), crashes=int(most), flag=(flags or [""])[0])
    )
