"""What every worker shares: how it is asked, what it measures, and the one line it prints.

Standard library only, for a worker runs where either ours or the peers are installed, never both.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path

NOT_COUNTED = "Not counted: once this is heard, everybody listens."


@dataclass(frozen=True)
class Asked:
    """What a worker is to do: `python -m bench.peers.with_… WORK STORE COUNT FOLDER`."""

    work: str
    store: str
    count: int
    folder: Path


def asked() -> Asked:
    """What the command line says."""
    work, store, count, folder = sys.argv[1:]
    return Asked(work, store, int(count), Path(folder))


class Stopwatch:
    """Runs from when it is made. CPU is that of the whole process, its threads included."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()
        self.wall, self.cpu = 0.0, 0.0

    def stop(self) -> None:
        self.wall, self.cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu

    def tell(self, done: int, *, stored: int = 0) -> None:
        """Print the line. `stored` is in bytes, when it was asked for."""
        print(json.dumps({"done": done, "wall": self.wall, "cpu": self.cpu, "stored": stored}))


class Heard:
    """Counts what a recipient is given, and lets somebody wait for a number of them."""

    def __init__(self) -> None:
        self._count, self._wanted = 0, 0
        self._reached = asyncio.Event()

    def one(self) -> None:
        self._count += 1
        if self._count == self._wanted:
            self._reached.set()

    async def reach(self, count: int) -> None:
        """Wait until so many have come in all."""
        if self._count < count:
            self._wanted = count
            self._reached.clear()
            await self._reached.wait()


def size_of(folder: Path) -> int:
    """The bytes of all files in a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
