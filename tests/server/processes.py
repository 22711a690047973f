"""Servers as processes: begun, looked at from outside, and stopped."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from antiphon.server.limits import DEFAULT_SERVER_LIMITS, ServerLimits
from tests.support.served_hub import PATIENCE

ROOT = Path(__file__).resolve().parent.parent.parent
MEBIBYTE = 1024 * 1024


class Process:
    """A server that runs on its own."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self._process, self.port = process, port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def peak(self) -> int:
        """The most memory it ever held, in bytes."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) * 1024

    def open_files(self) -> int:
        return len(list(Path(f"/proc/{self._process.pid}/fd").iterdir()))

    def signal(self, number: signal.Signals = signal.SIGTERM) -> None:
        self._process.send_signal(number)

    async def ended(self) -> int:
        """Its exit code, once it has one."""
        async with asyncio.timeout(PATIENCE):
            return await self._process.wait()

    async def stop(self) -> int:
        self.signal()
        return await self.ended()


@asynccontextmanager
async def process(limits: ServerLimits = DEFAULT_SERVER_LIMITS, *, url: str = "memory:") -> AsyncIterator[Process]:
    """A server in a process, with an agent called support and somebody called bob."""
    async with started("-m", "tests.server.server_child", url, msgspec.json.encode(limits).decode()) as begun:
        yield begun


@asynccontextmanager
async def started(*command: str) -> AsyncIterator[Process]:
    """A process of this interpreter that says first on which port, or where, it listens."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, *command, cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=None
    )
    assert child.stdout is not None
    try:
        async with asyncio.timeout(PATIENCE):
            first = (await child.stdout.readline()).decode()
        found = re.search(r"(\d+)\D*$", first.partition('", "agents')[0].partition('","agents')[0])
        assert found is not None, f"it said {first!r}"
        yield Process(child, int(found[1]))
    finally:
        if child.returncode is None:
            child.kill()
        await child.communicate()
