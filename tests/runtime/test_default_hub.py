"""The hub of the process: who opens and closes it, one event loop at a time, and nothing kept of those that ended."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import weakref
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from antiphon import Agent, Hub, Reply, Request, ScriptedModel, UsageError, calls, says
from antiphon.runtime import shared_hub
from tests.support.waiting import soon


class Slow:
    """A model that answers when it may."""

    def __init__(self) -> None:
        self.started, self.go = asyncio.Event(), asyncio.Event()

    async def __call__(self, request: Request) -> Reply:
        self.started.set()
        await self.go.wait()
        return says("at last")


async def echo(request: Request) -> Reply:
    return says(f"re: {request.messages[-1].text}")


def elsewhere(work: Callable[[], object]) -> object:
    """What this comes to in a thread of its own."""
    outcome: list[object] = []

    def run() -> None:
        try:
            outcome.append(work())
        except Exception as error:
            outcome.append(error)

    running = threading.Thread(target=run)
    running.start()
    running.join(10)
    return outcome[0]


async def cancelled(work: Awaitable[object], model: Slow) -> None:
    """Cancel this once the model has been asked."""
    asking = asyncio.ensure_future(work)
    await soon(model.started.wait())
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await soon(asking)


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "memory":
        return ""
    url = f"sqlite:///{tmp_path / 'team.db'}"
    monkeypatch.setenv("ANTIPHON_STORE", url)
    return url


# Two event loops


async def test_a_second_event_loop_is_refused_while_the_first_uses_the_memory() -> None:
    model = Slow()
    asking = asyncio.create_task(Agent("slow", model=model).invoke("hi", thread_id="two loops"))
    await soon(model.started.wait())
    other = Agent("quick", model=echo)
    refusal = elsewhere(lambda: asyncio.run(other.invoke("hi")))
    assert isinstance(refusal, UsageError)
    assert "hub=" in str(refusal)

    async def with_a_hub() -> str:
        async with Hub.open("memory:") as hub:
            return (await other.invoke("hi", hub=hub)).text

    assert elsewhere(lambda: asyncio.run(with_a_hub())) == "re: hi"
    model.go.set()
    assert (await soon(asking)).text == "at last"
    assert (await asyncio.to_thread(lambda: asyncio.run(other.invoke("hi")))).text == "re: hi"


async def test_a_tool_that_asks_in_a_loop_of_its_own_is_told_so_and_called_once() -> None:
    asked: list[str] = []

    def research(question: str) -> str:
        asked.append(question)
        return asyncio.run(Agent("inner", model=echo).invoke(question)).text

    model = ScriptedModel([calls("research", {"question": "why"}), "I could not."])
    reply = await soon(Agent("outer", model=model, tools=[research]).invoke("go"))
    assert (reply.text, asked) == ("I could not.", ["why"])
    told = model.requests[1].exchange[-1].text
    assert "another event loop" in told


def test_an_event_loop_that_ended_without_closing_anything_is_in_nobody_s_way() -> None:
    loop = asyncio.new_event_loop()
    context = shared_hub.default_hub()
    loop.run_until_complete(context.__aenter__())
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    assert asyncio.run(Agent("quick", model=echo).invoke("hi")).text == "re: hi"
    assert not shared_hub._shared_hubs


# Nothing is kept


def test_nothing_is_kept_of_an_event_loop_that_ended(url: str) -> None:
    agent = Agent("quick", model=echo)
    loops: list[weakref.ref[asyncio.AbstractEventLoop]] = []

    async def three() -> None:
        loops.append(weakref.ref(asyncio.get_running_loop()))
        await asyncio.gather(*(agent.invoke(text) for text in "abc"))

    for _ in range(3):
        asyncio.run(three())
        assert not shared_hub._shared_hubs
    gc.collect()
    assert [loop() for loop in loops] == [None] * 3


async def test_an_error_in_opening_is_everybody_s_and_the_next_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = Agent("quick", model=echo)
    with monkeypatch.context() as there:
        there.setenv("ANTIPHON_STORE", "sqlite:////nowhere/at/all.db")
        errors = await asyncio.gather(agent.invoke("a"), agent.invoke("b"), return_exceptions=True)
    assert ["does not exist" in str(error) for error in errors] == [True, True]
    assert not shared_hub._shared_hubs
    assert (await agent.invoke("c")).text == "re: c"


# Leaving early


async def test_whoever_is_cancelled_does_not_wait_for_the_closing(url: str) -> None:
    model = Slow()
    agent = Agent("slow", model=model)
    await cancelled(agent.invoke("hi", thread_id="early", message_id="m"), model)
    [shared] = shared_hub._shared_hubs.values()
    assert shared.unused.is_set()
    assert not shared.owner_task.done()
    again = asyncio.create_task(agent.invoke("hi", thread_id="early", message_id="m"))
    model.go.set()
    assert (await soon(again)).text == "at last"
    assert shared.owner_task.done()
    assert not shared_hub._shared_hubs


async def test_whoever_is_cancelled_leaves_the_hub_to_the_others() -> None:
    model = Slow()
    agent = Agent("slow", model=model)
    other = asyncio.create_task(agent.invoke("hi"))
    await cancelled(agent.invoke("hi"), model)
    model.go.set()
    assert (await soon(other)).text == "at last"


async def test_whoever_leaves_a_stream_does_not_wait_for_the_closing() -> None:
    model = ScriptedModel([calls("nothing"), "done"])
    events = Agent("bob", model=model).stream_invoke("hi")
    async for _ in events:
        break
    [shared] = shared_hub._shared_hubs.values()
    await soon(events.aclose())  # type: ignore[attr-defined]  # it is a generator
    assert shared.unused.is_set()
    await soon(asyncio.shield(shared.owner_task))
    assert not shared_hub._shared_hubs


@pytest.mark.parametrize("waits", [True, False], ids=["in the end", "left behind"])
def test_the_end_of_the_event_loop_closes_it_at_once(url: str, waits: bool) -> None:
    def ask(model: Slow) -> Awaitable[Reply]:
        return Agent("slow", model=model).invoke("hi", thread_id=f"the end {waits}", message_id="m")

    async def end() -> None:
        model = Slow()
        if waits:
            await cancelled(ask(model), model)
        else:
            asking = asyncio.ensure_future(ask(model))
            await soon(model.started.wait())
            assert not asking.done()

    async def again() -> str:
        model = Slow()
        model.go.set()
        return (await soon(ask(model))).text

    with contextlib.closing(asyncio.new_event_loop()) as clock:
        began = clock.time()
        asyncio.run(end())
        assert clock.time() - began < 4
    assert not shared_hub._shared_hubs
    assert asyncio.run(again()) == "at last"
