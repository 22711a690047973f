"""Kill a process that is sending, at random moments, again and again, and audit what its file holds."""

from __future__ import annotations

import asyncio
import json
import os
import random
import selectors
import signal
import subprocess
import sys
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from antiphon import EV_TEXT, Hub
from tests.crash.sender_child import SENDERS

LONGEST_START = 30.0


@dataclass
class Killing:
    """What was acknowledged over all the lives of the process, and what was found in the end."""

    kills: int = 0
    acknowledged: dict[tuple[str, int], int] = field(default_factory=dict)
    """Sender and number to the sequence that was reported."""
    slowest_start: float = 0.0
    envelopes: int = 0
    lost: int = 0
    doubled: int = 0
    gaps: int = 0
    misplaced: int = 0

    @property
    def sound(self) -> bool:
        return not (self.lost or self.doubled or self.gaps or self.misplaced)


def kill_again_and_again(path: Path, kills: int, seed: int) -> Killing:
    """Start, let it send, kill; so many times. Then audit."""
    killing, chance = Killing(), random.Random(seed)
    for _ in range(kills):
        _one_life(path, killing, chance.uniform(0.0, 0.25))
    asyncio.run(audit(path, killing))
    return killing


def _one_life(path: Path, killing: Killing, seconds: float) -> None:
    numbers = {name: _next_number(killing, name) for name in SENDERS}
    command = [sys.executable, "-m", "tests.crash.sender_child", str(path), json.dumps(numbers)]
    began = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        reader = Lines(process.stdout.fileno())
        while not reader.saw("ready"):
            assert process.poll() is None, "the process ended before it was ready"
            reader.read(LONGEST_START)
        killing.slowest_start = max(killing.slowest_start, time.monotonic() - began)
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            reader.read(left)
        process.send_signal(signal.SIGKILL)
        process.wait()
        reader.read_rest()
    assert process.returncode == -signal.SIGKILL
    killing.kills += 1
    for line in reader.lines:
        if line.startswith("ack "):
            _, sender, number, sequence = line.split()
            killing.acknowledged[sender, int(number)] = int(sequence)


def _next_number(killing: Killing, sender: str) -> int:
    """The first number that was not acknowledged: it may be recorded, and is sent again."""
    return sum(1 for name, _ in killing.acknowledged if name == sender)


class Lines:
    """Whole lines from a pipe; what a killed process wrote in part is dropped, it was not reported."""

    def __init__(self, descriptor: int) -> None:
        self.lines: list[str] = []
        self._descriptor, self._rest = descriptor, b""
        self._selector = selectors.DefaultSelector()
        self._selector.register(descriptor, selectors.EVENT_READ)

    def read(self, seconds: float) -> bool:
        if not self._selector.select(seconds):
            return False
        chunk = os.read(self._descriptor, 65_536)
        *whole, self._rest = (self._rest + chunk).split(b"\n")
        self.lines.extend(line.decode() for line in whole)
        return bool(chunk)

    def read_rest(self) -> None:
        while self.read(0.0):
            pass
        self._selector.close()

    def saw(self, line: str) -> bool:
        return line in self.lines


async def audit(path: Path, killing: Killing) -> None:
    """Compare what was acknowledged with what is there."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    async with Hub.open(f"sqlite:///{path}") as hub:
        for row in await hub.channels():
            log = await hub.log(row.channel_id)
            killing.envelopes += len(log)
            killing.gaps += [envelope.sequence for envelope in log] != list(range(1, len(log) + 1))
            for envelope in log:
                if envelope.event_type == EV_TEXT:
                    number = int(str(envelope.event_data["text"]).rsplit(" ", 1)[1])
                    found[envelope.sender_id].append(number)
                    reported = killing.acknowledged.get((envelope.sender_id, number), envelope.sequence)
                    killing.misplaced += reported != envelope.sequence
    for numbers in found.values():
        killing.doubled += len(numbers) - len(set(numbers))
        killing.misplaced += numbers != sorted(numbers)
    there = {(sender, number) for sender, numbers in found.items() for number in numbers}
    killing.lost = len(killing.acknowledged.keys() - there)
