"""How many tools one message may call, and how many tasks one turn may give."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from antiphon import (
    Agent,
    Answered,
    Hub,
    Limits,
    Reply,
    Request,
    ScriptedModel,
    TurnChannel,
    UsageError,
    calls,
    says,
    tool,
)
from antiphon.agents.team import DEFAULT_TURN_LIMITS
from antiphon.agents.tool import Tool
from antiphon.core.events import EV_TASK_STARTED
from antiphon.core.execution_events import EV_CALL_FAILED, EV_CALL_FINISHED, EV_CALL_STARTED
from antiphon.testing import ManualClock
from tests.support.given_tasks import Kept, asking, echo, giver, words
from tests.support.waiting import soon

LOOK = calls("look")


def counting(made: list[str]) -> Tool:
    @tool(name="look")
    async def look() -> str:
        """Look."""
        made.append("look")
        return "saw"

    return look


def texts(request: Request) -> list[str]:
    return [item.text for item in request.exchange if isinstance(item, Answered)]


@pytest.mark.parametrize(
    ("asked", "most", "limits"),
    [
        (5, 3, Limits(tool_calls=3)),
        (3, 3, Limits(tool_calls=3)),
        (130, 128, DEFAULT_TURN_LIMITS),
        (2000, 128, DEFAULT_TURN_LIMITS),
    ],
)
async def test_calls_beyond_the_limit_of_a_message_are_not_made_and_each_has_a_result(
    asked: int, most: int, limits: Limits
) -> None:
    made: list[str] = []
    model = ScriptedModel([[LOOK] * asked, says("Enough.")])
    async with Hub.open("memory:") as hub:
        reply = await Agent("bob", model, tools=[counting(made)], limits=limits).invoke("go", hub=hub)
        log = await hub.log(reply.channel_id)
    assert (reply.text, reply.stopped, len(made)) == ("Enough.", None, most)
    refused = f"Not called: the message asks for {asked} tools, and the limit is {most}; ask for the others next."
    assert texts(model.requests[1]) == ["saw"] * most + [refused] * (asked - most)
    tools = [each.event_data["index"] for each in log if each.event_type == EV_CALL_STARTED][1:-1]
    assert sorted(tools) == list(range(1, asked + 1)), "every call is recorded"
    ends = Counter(each.event_type for each in log if each.event_data.get("index") in tools)
    assert (ends[EV_CALL_FINISHED], ends[EV_CALL_FAILED]) == (most, asked - most)


async def test_the_next_message_has_the_whole_limit_again() -> None:
    made: list[str] = []
    model = ScriptedModel([[LOOK] * 3, [LOOK] * 2, says("Enough.")])
    async with Hub.open("memory:") as hub:
        await Agent("bob", model, tools=[counting(made)], limits=Limits(tool_calls=2)).invoke("go", hub=hub)
    assert len(made) == 4


async def test_the_limit_of_whoever_is_asked_holds_for_its_team() -> None:
    made: list[str] = []
    below = Agent("below", ScriptedModel([[LOOK] * 3, says("Enough.")]), tools=[counting(made)])
    lead = Agent("lead", ScriptedModel([calls("transfer_to_below")]), agents=[below], limits=Limits(tool_calls=1))
    async with Hub.open("memory:") as hub:
        assert (await lead.invoke("go", hub=hub)).agent == "below"
    assert len(made) == 1


# Tasks

TOO_MANY = "UsageError: this turn has given 2 tasks, the limit (Limits.tasks); do it without another"


async def test_a_turn_gives_so_many_tasks_and_no_more() -> None:
    worker = Agent("worker", echo)
    tasks = [calls("delegate_to_worker", {"task": text}) for text in "abc"]
    model = ScriptedModel([tasks[:1], tasks[1:], says("Enough.")])
    async with Hub.open("memory:") as hub:
        boss = Agent("boss", model, tools=giver(worker).tools, limits=Limits(tasks=2))
        reply = await boss.invoke("go", hub=hub)
        assert (reply.text, reply.stopped) == ("Enough.", None)
        assert texts(model.requests[2]) == ["re: a", "re: b", TOO_MANY]
        assert await words(hub, reply.channel_id) == ["started", "completed"] * 2


async def test_many_tasks_of_one_tool_are_refused_one_by_one() -> None:
    worker, refused = Agent("worker", echo), list[str]()

    @tool
    async def ask(channel: TurnChannel) -> str:
        """Ask often."""
        answers = await asyncio.gather(
            *(channel.delegate(worker, f"task {number}") for number in range(40)), return_exceptions=True
        )
        refused.extend(str(each) for each in answers if isinstance(each, UsageError))
        return f"{len(answers) - len(refused)} done"

    async with Hub.open("memory:") as hub:
        reply = await soon(giver(ask).invoke("go", hub=hub))
        log = await hub.log(reply.channel_id)
    assert reply.text == "32 done"
    assert refused == ["this turn has given 32 tasks, the limit (Limits.tasks); do it without another"] * 8
    assert sum(each.event_type == EV_TASK_STARTED for each in log) == 32


async def test_tasks_are_counted_on_after_a_restart_and_none_twice() -> None:
    inside, gate = asyncio.Event(), asyncio.Event()
    kept = Kept(ManualClock())

    async def slow(request: Request) -> Reply:
        if request.history[-1].text == "b":
            inside.set()
            await gate.wait()
        return await echo(request)

    @tool(timeout=None)
    async def ask(channel: TurnChannel) -> str:
        """Ask three times."""
        answers = [(await channel.delegate(worker, text)).text for text in "ab"]
        try:
            await channel.delegate(worker, "c")
        except UsageError as error:
            answers.append(f"UsageError: {error}")
        return ", ".join(answers)

    worker = Agent("worker", slow)
    boss = Agent("boss", asking(calls("ask")), tools=[ask], limits=Limits(tasks=2))
    first = await kept.hub()
    invoked = asyncio.create_task(boss.invoke("go", thread_id="t", hub=first, message_id="m"))
    await soon(inside.wait())
    invoked.cancel()
    await soon(first.close())
    gate.set()
    second = await kept.hub()
    reply = await soon(boss.invoke("go", thread_id="t", hub=second, message_id="m"))
    assert reply.text == f"re: a, re: b, {TOO_MANY}"
    assert (await words(second, reply.channel_id)).count("started") == 2
    await second.close()


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        ({"tool_calls": 0}, "tool_calls is 0; give a number of calls, 1 or more"),
        ({"tool_calls": True}, "tool_calls is True"),
        ({"tasks": -1}, "tasks is -1; give a number of tasks of one turn, 0 or more"),
        ({"tasks": "many"}, "tasks is 'many'"),
    ],
)
def test_a_limit_that_is_none_is_refused(limits: dict[str, int], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        Limits(**limits)


async def test_an_agent_may_be_kept_from_giving_tasks() -> None:
    script = asking(calls("delegate_to_worker", {"task": "x"}))
    boss = Agent("boss", script, tools=giver(Agent("worker", echo)).tools, limits=Limits(tasks=0))
    async with Hub.open("memory:") as hub:
        reply = await boss.invoke("go", hub=hub)
        assert reply.text == "UsageError: this turn has given 0 tasks, the limit (Limits.tasks); do it without another"
        assert await words(hub, reply.channel_id) == []
