"""User code that holds the event loop: it is named while it does, with what it should do instead."""

from __future__ import annotations

import asyncio
import gc
import logging
import re
import threading
import weakref
from collections.abc import AsyncIterator, Callable

import pytest

from antiphon import Agent, Hub, Progress, Reply, Request, ScriptedModel, calls, says, tool
from antiphon.engines import user_code
from antiphon.engines.user_code import LoopWatch
from tests.support.waiting import let_others_run


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    async with Hub.open("memory:") as hub:
        yield hub


class Told(logging.Handler):
    """Lets code go on as soon as a line of the log says so."""

    def __init__(self, held: Callable[[str], bool]) -> None:
        super().__init__()
        self._held, self.lines, self.go = held, list[str](), threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
        if self._held(record.getMessage()):
            self.go.set()


Blocks = Callable[[], object]


def with_a_tool(blocks: Blocks) -> Agent:
    @tool
    async def work() -> str:
        """Work."""
        blocks()
        return "worked"

    return Agent("bob", ScriptedModel([calls("work"), says("Fine.")]), tools=[work])


def with_what_a_tool_returns(blocks: Blocks) -> Agent:
    async def later() -> str:
        blocks()
        return "worked"

    @tool
    def work() -> object:
        """Work."""
        return later()

    return Agent("bob", ScriptedModel([calls("work"), says("Fine.")]), tools=[work])


def with_an_async_prompt(blocks: Blocks) -> Agent:
    async def prompt(_shown: object) -> str:
        blocks()
        return "Be brief."

    return Agent("bob", ScriptedModel([says("Fine.")]), system_prompt=prompt)


def with_a_prompt(blocks: Blocks) -> Agent:
    def prompt(_shown: object) -> str:
        blocks()
        return "Be brief."

    return Agent("bob", ScriptedModel([says("Fine.")]), system_prompt=prompt)


def with_a_model(blocks: Blocks) -> Agent:
    def model(_request: Request) -> Reply:
        blocks()
        return says("Fine.")

    return Agent("bob", model)  # which works, and holds the loop


class Asked:
    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks

    async def __call__(self, request: Request) -> Reply:
        self._blocks()
        return says("Fine.")


def with_an_async_model(blocks: Blocks) -> Agent:
    return Agent("bob", Asked(blocks))


def with_a_step(blocks: Blocks) -> Agent:
    def look(_progress: Progress) -> None:
        blocks()

    return Agent("bob", ScriptedModel([says("Fine.")]), patcher=lambda steps: steps.insert_before("call_model", look))


TO_THREAD = "`await asyncio.to_thread(…)`"
AWAIT = f"await what takes long, or run it with {TO_THREAD}"
SHORTEN = f"make it shorter, or an `async def` that runs what takes long with {TO_THREAD}"


@pytest.mark.parametrize(
    ("named", "made", "advice"),
    [
        (
            "tool 'work'",
            with_a_tool,
            f"await what takes long, run it with {TO_THREAD}, or declare the tool with `def`, which runs in a thread",
        ),
        ("tool 'work'", with_what_a_tool_returns, AWAIT),
        ("the system prompt", with_an_async_prompt, AWAIT),
        ("the system prompt", with_a_prompt, SHORTEN),
        ("the model", with_an_async_model, AWAIT),
        ("the model", with_a_model, SHORTEN),
        ("step 'look'", with_a_step, SHORTEN),
    ],
)
async def test_code_that_holds_the_event_loop_is_named_while_it_does(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, named: str, made: Callable[[Blocks], Agent], advice: str
) -> None:
    monkeypatch.setattr("antiphon.engines.user_code.LOOP_SAMPLE_SECONDS", 0.01)
    monkeypatch.setattr("antiphon.engines.user_code.HELD_LOOP_SECONDS", 0.1)
    told = Told(lambda line: line.startswith(f"{named} of ") and "has held the event loop" in line)
    heard: list[bool] = []
    logger = logging.getLogger("antiphon.engine")
    logger.addHandler(told)
    try:
        # which blocks, as nothing should that runs on the loop
        reply = await made(lambda: heard.append(told.go.wait(20))).invoke("go", hub=hub)
    finally:
        logger.removeHandler(told)
    assert heard == [True], "it was named before it had returned"
    name = f"{named} of agent 'bob' in channel {reply.channel_id}"
    first, last = (line for line in told.lines if line.startswith(name))
    assert re.match(re.escape(name) + r" has held the event loop for \d+\.\d seconds, ", first)
    assert first.endswith(f"; {advice}")
    assert re.match(re.escape(name) + r" held the event loop for \d+\.\d seconds", last)


async def test_code_that_lets_others_go_on_is_not_named(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much it works, as long as it does not hold the loop: here it runs through many samples."""
    monkeypatch.setattr("antiphon.engines.user_code.LOOP_SAMPLE_SECONDS", 0.002)
    monkeypatch.setattr("antiphon.engines.user_code.HELD_LOOP_SECONDS", 0.5)
    told = Told(lambda line: True)

    @tool
    async def work() -> str:
        """Work."""
        await let_others_run(5000)
        return "worked"

    logger = logging.getLogger("antiphon.engine")
    logger.addHandler(told)
    try:
        bob = Agent("bob", ScriptedModel([calls("work"), says("Fine.")]), tools=[work])
        await bob.invoke("go", hub=hub)
    finally:
        logger.removeHandler(told)
    assert told.lines == []


def test_a_loop_that_ended_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread waits for the next turn, which may never come, and holds nothing of the last one."""
    watch, looked, rests = LoopWatch(), threading.Event(), threading.Event()

    class Some(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            if looked.is_set() and not self.is_set():
                rests.set()
            return super().wait(timeout)

    def look(loop: asyncio.AbstractEventLoop) -> None:
        looked.set()

    monkeypatch.setattr(user_code, "LOOP_SAMPLE_SECONDS", 0)
    monkeypatch.setattr(watch, "_some", Some())
    monkeypatch.setattr(watch, "_look", look)

    async def turn() -> None:
        with watch.watching():
            while not looked.is_set():
                await let_others_run(1)

    loop = asyncio.new_event_loop()
    kept = weakref.ref(loop)
    loop.run_until_complete(turn())
    loop.close()
    del loop
    assert rests.wait(5)
    gc.collect()
    assert kept() is None
