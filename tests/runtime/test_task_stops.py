"""What becomes of tasks whose hub is closed, whose turn is cut off, or whose process ends in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from antiphon import Agent, Hub, Usage, calls, says, tool
from antiphon.agents.tool import Tool
from antiphon.core.events import EV_CALL_STARTED
from antiphon.testing import ManualClock
from tests.hub.gates import soon, turns
from tests.runtime.giving import Kept, asking, giver, words

SPENT = Usage(3, 4)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def hub(clock: ManualClock) -> AsyncIterator[Hub]:
    async with Hub.open("memory:", clock=clock) as hub:
        yield hub


# A hub that is closed


@pytest.mark.parametrize("depth", [1, 3])
async def test_closing_waits_for_the_call_of_a_task_and_not_for_those_who_wait_for_the_task(
    clock: ManualClock, depth: int
) -> None:
    """The call ends at once here, so that the whole grace, a minute, would be waited for nothing but each other."""
    inside, gate = asyncio.Event(), asyncio.Event()
    kept = Kept(clock)

    @tool(timeout=None)
    async def look() -> str:
        """Look."""
        inside.set()
        await gate.wait()
        return "saw"

    agent = Agent("last", model=lambda request: says("Seen.") if request.exchange else calls("look"), tools=[look])
    for number in range(depth):
        agent = giver(agent, name=f"boss{number}")
    hub = await kept.hub(grace=60)
    asked = asyncio.create_task(agent.invoke("go", thread_id="t", hub=hub, message_id="m"))
    await soon(inside.wait())
    closing = asyncio.create_task(hub.close())
    await turns(100)
    assert not closing.done(), "the call of the task is given time"
    gate.set()
    await soon(closing)
    asked.cancel()
    hub = await kept.hub()
    reply = await soon(agent.invoke("go", thread_id="t", hub=hub, message_id="m"))
    assert reply.text == "Seen."
    assert await words(hub, reply.channel_id) == ["started", "progress", "completed"]
    await hub.close()


def gated(name: str, inside: asyncio.Event, gate: asyncio.Event) -> Tool:
    """A tool that returns when its gate opens."""

    @tool(name=name, timeout=None)
    async def look() -> str:
        """Look."""
        inside.set()
        await gate.wait()
        return "saw"

    return look


async def test_closing_gives_time_to_a_call_beside_one_that_waits_for_a_task(clock: ManualClock) -> None:
    here, there = (asyncio.Event(), asyncio.Event()), (asyncio.Event(), asyncio.Event())
    kept = Kept(clock)
    worker = Agent("worker", asking(calls("peek")), tools=[gated("peek", *there)])
    script = asking(calls("delegate_to_worker", {"task": "x"}), calls("look"))
    boss = giver(worker, gated("look", *here), script=script)
    hub = await kept.hub(grace=60)
    asked = asyncio.create_task(boss.invoke("go", thread_id="t", hub=hub, message_id="m"))
    await soon(here[0].wait())
    await soon(there[0].wait())
    closing = asyncio.create_task(hub.close())
    there[1].set()
    done, _ = await asyncio.wait({closing}, timeout=0.3)
    assert not done, "the turn of the task was stopped, and a call beside it goes on"
    here[1].set()
    await soon(closing)
    asked.cancel()
    hub = await kept.hub()
    reply = await soon(boss.invoke("go", thread_id="t", hub=hub, message_id="m"))
    assert reply.text == "saw | saw"
    log = await hub.log(reply.channel_id)
    started = [each.event_data["name"] for each in log if each.event_type == EV_CALL_STARTED]
    assert started.count("look") == 1, "its result was kept"
    assert started.count("delegate_to_worker") == 2
    await hub.close()
