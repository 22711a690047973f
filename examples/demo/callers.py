"""The customers at the counter: at a terminal with `antiphon run`, and over HTTP with `antiphon serve`.

Rule 1: both commands are run as a user runs them, as processes on the file that is left of the kill.
Rule 2: no process is left behind, also on errors.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import beats
import story
from play import PATIENCE, DemoFailed

FILE = Path(__file__).with_name("counter.py")
CONVERSATION = "terminal"
"""The conversation in which `antiphon run` speaks, and which goes on over HTTP."""
WORTH_TELLING = ("user_message", "tool_usage", "tool_response", "ai_message", "done")

Tell = Callable[[beats.AnyBeat], None]


class Callers:
    """Two visits to one counter, in one conversation."""

    def __init__(self, url: str, tell: Tell, *, pace: float) -> None:
        self._url, self._tell, self._pace = url, tell, pace

    async def run(self) -> None:
        """Come to the counter, then write to it."""
        await self._come()
        await self._write()

    async def _come(self) -> None:
        said = [word for text in story.AT_THE_COUNTER for word in ("--message", text)]
        async with command("run", str(FILE), "--store", self._url, "--json", *said) as process:
            self._tell(beats.Commanded("run", FILE.name))
            while line := await _line(process):
                await self._told("run", json.loads(line))
            code = await process.wait()
        if code:
            raise DemoFailed(f"antiphon run ended with exit code {code}")

    async def _write(self) -> None:
        import httpx2

        async with command("serve", str(FILE), "--store", self._url, "--json", "--port", "0") as process:
            begun = json.loads(await _line(process))
            url, shown = begun["url"], {"authorization": f"Bearer {begun['token']}"}
            self._tell(beats.Commanded("serve", FILE.name, url))
            question = {"text": story.BY_LETTER, "thread_id": CONVERSATION}
            await self._told("serve", {"event": "user_message", "agent": "user", "text": story.BY_LETTER})
            async with (
                httpx2.AsyncClient(base_url=url, headers=shown, trust_env=False, timeout=PATIENCE) as http,
                http.stream("POST", f"/agents/{story.COUNTER}/stream_invoke", json=question) as answer,
            ):
                await self._follow(answer.aiter_lines())
            process.send_signal(signal.SIGTERM)
            code = await process.wait()
        if code:
            raise DemoFailed(f"antiphon serve ended with exit code {code}")

    async def _follow(self, lines: AsyncIterator[str]) -> None:
        event = ""
        async for line in lines:
            field, _, value = line.partition(": ")
            if field == "event":
                event = value
            elif field == "data":
                await self._told("serve", {"event": event, **json.loads(value)})

    async def _told(self, way: str, told: dict[str, str]) -> None:
        if told["event"] not in WORTH_TELLING:
            return
        if self._pace:
            await asyncio.sleep(self._pace)
        self._tell(beats.Heard(way, told["event"], told["agent"], told.get("text", ""), told.get("tool", "")))


@asynccontextmanager
async def command(*words: str) -> AsyncIterator[Process]:
    """A command of ours as a process that is gone at the end."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "antiphon", *words, stdin=PIPE, stdout=PIPE)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _line(process: Process) -> bytes:
    assert process.stdout is not None, "it was started with a pipe"
    try:
        async with asyncio.timeout(PATIENCE):
            return await process.stdout.readline()
    except TimeoutError:
        raise DemoFailed(f"a command said nothing for {PATIENCE:g} seconds") from None
