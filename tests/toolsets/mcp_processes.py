"""Where the servers of these tests are, and what they leave behind."""

import asyncio
import gc
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Unpack

from antiphon import MCPServer
from antiphon.agents.tool import Tool
from antiphon.testing.manual_clock import let_tasks_run
from antiphon.toolsets.mapping import ToolFailed
from antiphon.toolsets.mcp import MCPOptions

SERVER = str(Path(__file__).parent / "mcp_server.py")
SECONDS = 30.0
"""After which something hangs. Nothing that is right takes so long."""
PAUSE = 0.005


class Place:
    """A server of these tests, and what it has written down."""

    def __init__(self, tmp_path: Path) -> None:
        self.ledger = tmp_path / "ledger"
        self.env = {"LEDGER": str(self.ledger)}

    def stdio(self, **options: Unpack[MCPOptions]) -> MCPServer:
        return MCPServer.stdio(sys.executable, SERVER, env=self.env, **options)

    @contextmanager
    def listening(self, *words: str, port: int = 0) -> Iterator["Listening"]:
        """The server as a process that listens to HTTP."""
        process = subprocess.Popen(
            [sys.executable, SERVER, "http", str(port), *words],
            env={**os.environ, **self.env},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        with process:
            try:
                yield Listening(process, int(process.stdout.readline()))
            finally:
                process.kill()

    async def noted(self, line: str, times: int = 1) -> None:
        """Return when the server has written this down so often."""
        await eventually(lambda: self.lines().count(line) >= times, f"{line} should have been noted {times} times")

    def lines(self) -> list[str]:
        return self.ledger.read_text().splitlines() if self.ledger.exists() else []


class Listening:
    """A process that listens to HTTP."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process, self.port = process, port
        self.url = f"http://127.0.0.1:{port}/mcp"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@asynccontextmanager
async def nothing_left() -> AsyncIterator[None]:
    """Fails if a task, a process or a file is left over from what is done within."""
    gc.collect()
    files = open_files()
    tasks = asyncio.all_tasks()
    processes = children()
    yield
    gc.collect()
    await eventually(lambda: asyncio.all_tasks() == tasks, f"no task should be left: {asyncio.all_tasks() - tasks}")
    await eventually(lambda: open_files() == files, f"no file should be left: {files} became {open_files()}")
    assert children() == processes, "no process should be left"


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def children() -> list[str]:
    own = Path(f"/proc/self/task/{os.getpid()}/children")
    return own.read_text().split()


async def eventually(condition: Callable[[], bool], promise: str) -> None:
    """Return when this is so, which another process may have to see to; if it never is, the promise is broken."""
    for _ in range(int(SECONDS / PAUSE)):
        if condition():
            return
        await asyncio.sleep(PAUSE)
    raise AssertionError(promise)


async def failure(call: Awaitable[object]) -> str:
    """What the one who calls is told of what went wrong, in bounded time."""
    try:
        async with asyncio.timeout(SECONDS):
            await call
    except ToolFailed as failed:
        return str(failed)
    raise AssertionError("the call should have failed")


async def returned(tool: Tool, **arguments: object) -> str:
    """What the tool returns, in bounded time."""
    async with asyncio.timeout(SECONDS):
        value = tool.function(**arguments)
        assert isinstance(value, Awaitable)
        return str(await value)


def named(server: MCPServer, name: str) -> Tool:
    return next(tool for tool in server.tools if tool.name == name)


async def dead(pid: int) -> None:
    """Return when the process is gone, and whoever reads from it has had the chance to see it."""

    def is_gone() -> bool:
        return not Path(f"/proc/{pid}").exists()

    await eventually(is_gone, f"the process {pid} should be gone")
    await let_tasks_run()
