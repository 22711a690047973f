"""Leaving a turn that is followed: early, on an error, or because the hub closes. It goes on without whoever left."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing

import pytest

from antiphon import Agent, Denied, FinalStateEvent, Hub, Reply, Request, TokenEvent, UsageError, says
from antiphon.testing import ManualClock
from antiphon.testing.manual_clock import wait_until
from tests.support.waiting import let_others_run, soon

BOTH = pytest.mark.parametrize("tokens", [False, True], ids=["whole", "tokens"])


class Speaker:
    """A model that says one word, and the rest when it may."""

    def __init__(self) -> None:
        self.started, self.go = asyncio.Event(), asyncio.Event()

    async def __call__(self, request: Request) -> Reply:
        self.started.set()
        await self.go.wait()
        return says("one two")

    async def stream(self, request: Request) -> AsyncIterator[str | Reply]:
        yield "one"
        yield await self(request)


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    async with Hub.open("memory:", clock=ManualClock()) as hub:
        yield hub


@pytest.fixture(autouse=True)
def nothing_is_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    gc.collect()
    assert [record.getMessage() for record in caplog.get_records("call") if record.levelno >= logging.ERROR] == []


def unheard(hub: Hub) -> bool:
    feed = hub.core.feed
    return not feed._token_subscribers and not feed._watchers


async def answered(agent: Agent, hub: Hub) -> str:
    """What the turn that nobody follows any more came to."""
    return (await soon(agent.invoke("hi", thread_id="t", hub=hub, message_id="m"))).text


async def test_whoever_leaves_in_the_middle_of_the_tokens_leaves_cleanly(hub: Hub) -> None:
    model = Speaker()
    agent = Agent("bob", model=model)
    stream = agent.stream_invoke("hi", thread_id="t", hub=hub, message_id="m", tokens=True)
    async with aclosing(stream) as events:  # type: ignore[type-var]  # it is a generator
        async for event in events:
            assert event == TokenEvent("bob", "one")
            break
    assert unheard(hub)
    model.go.set()
    assert await answered(agent, hub) == "one two"


async def test_whoever_breaks_off_leaves_nothing_behind(hub: Hub) -> None:
    model = Speaker()
    agent = Agent("bob", model=model)
    async for _ in agent.stream_invoke("hi", thread_id="t", hub=hub, message_id="m", tokens=True):
        break
    gc.collect()
    await wait_until(lambda: unheard(hub), "nobody listens any more")
    model.go.set()
    assert await answered(agent, hub) == "one two"


@BOTH
async def test_whoever_is_cancelled_leaves_cleanly(hub: Hub, tokens: bool) -> None:
    model = Speaker()
    agent = Agent("bob", model=model)

    async def consume() -> None:
        async for _ in agent.stream_invoke("hi", thread_id="t", hub=hub, message_id="m", tokens=tokens):
            pass

    consuming = asyncio.create_task(consume())
    await soon(model.started.wait())
    consuming.cancel()
    with pytest.raises(asyncio.CancelledError):
        await soon(consuming)
    await wait_until(lambda: unheard(hub), "nobody listens any more")
    model.go.set()
    assert await answered(agent, hub) == "one two"


async def test_an_invocation_that_is_cancelled_leaves_cleanly(hub: Hub) -> None:
    model = Speaker()
    agent = Agent("bob", model=model)
    asking = asyncio.create_task(agent.invoke("hi", thread_id="t", hub=hub, message_id="m"))
    await soon(model.started.wait())
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await soon(asking)
    assert unheard(hub)
    model.go.set()
    assert await answered(agent, hub) == "one two"


async def test_whole_events_may_be_left_early_too(hub: Hub) -> None:
    model = Speaker()
    model.go.set()
    agent = Agent("bob", model=model)
    stream = agent.stream_invoke("hi", thread_id="t", hub=hub)
    async with aclosing(stream) as events:  # type: ignore[type-var]  # it is a generator
        async for _ in events:
            break
    assert unheard(hub)


@BOTH
async def test_a_refusal_arrives_as_it_is(hub: Hub, tokens: bool) -> None:
    events = Agent("bob", model=Speaker()).stream_invoke("\x00", hub=hub, tokens=tokens)
    with pytest.raises(Denied, match="NUL"):
        await anext(events)
    assert unheard(hub)


async def test_a_model_that_breaks_off_ends_the_stream_with_what_it_said(hub: Hub) -> None:
    class Broken(Speaker):
        async def stream(self, request: Request) -> AsyncIterator[str | Reply]:
            yield "one"
            raise ConnectionError("gone")

    events = [event async for event in Agent("bob", model=Broken()).stream_invoke("hi", hub=hub, tokens=True)]
    assert events[0] == TokenEvent("bob", "one")
    assert isinstance(events[-1], FinalStateEvent)
    assert (events[-1].stopped, events[-1].detail) == ("model_error", "ConnectionError: gone")


async def test_a_hub_that_closes_interrupts_nobody_s_own_work() -> None:
    hub = await Hub.open("memory:", clock=ManualClock())
    model, busy, go_on = Speaker(), asyncio.Event(), asyncio.Event()
    done: list[object] = []

    async def consume() -> None:
        async for event in Agent("bob", model=model).stream_invoke("hi", hub=hub, tokens=True):
            busy.set()
            await go_on.wait()
            done.append(event)

    consuming = asyncio.create_task(consume())
    await soon(busy.wait())
    hub.core.engine._grace = 0.0  # type: ignore[union-attr]  # its turn does not end by itself
    await soon(hub.close())
    await let_others_run()
    assert not consuming.done()
    go_on.set()
    with pytest.raises(UsageError, match="closed while the agent was answering"):
        await soon(consuming)
    assert done == [TokenEvent("bob", "one")]
