"""What is no task: refused in words that a model reads, with the turn going on and nothing recorded."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from antiphon import Agent, Hub, ScriptedModel, TurnChannel, UsageError, delegate, tool
from antiphon.testing import ManualClock
from tests.support.given_tasks import echo, giver, tasks, words
from tests.support.waiting import soon


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    async with Hub.open("memory:", clock=ManualClock()) as hub:
        yield hub


async def refused_by(hub: Hub, agent: object, text: object = "look", ttl: object = None) -> str:
    """What a model is told whose tool gives a task that cannot be given; the turn goes on, and nothing is recorded."""

    @tool
    async def ask(channel: TurnChannel) -> str:
        """Ask."""
        return (await channel.delegate(agent, text, ttl=ttl)).text  # type: ignore[arg-type]  # on purpose

    reply = await soon(giver(ask).invoke("go", hub=hub))
    assert await words(hub, reply.channel_id) == []
    assert await tasks(hub) == []
    return reply.text


async def test_nobody_gives_itself_a_task(hub: Hub) -> None:
    told = await refused_by(hub, Agent("boss", model=echo))
    assert told == "UsageError: 'boss' cannot give itself a task; give it to another agent"


async def test_who_decides_on_invitations_is_given_none(hub: Hub) -> None:
    agent = Agent("worker", model=echo)
    await hub.register(agent, accept=lambda invite: True)
    told = await refused_by(hub, agent)
    assert told == "UsageError: 'worker' decides on its invitations itself, so it cannot be given a task"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("worker", "another agent is registered as 'worker' in this hub; give this agent another name"),
        ("Worker", "'Worker' differs from 'worker' only in case"),
        ("carol", "somebody whom code drives is registered as 'carol' in this hub; give this agent another name"),
        ("user", "somebody whom code drives is registered as 'user' in this hub; give this agent another name"),
    ],
)
async def test_a_name_that_somebody_else_has_is_refused(hub: Hub, name: str, why: str) -> None:
    await hub.register(Agent("worker", model=ScriptedModel(["other"])))
    await hub.register("carol")
    assert why in await refused_by(hub, Agent(name, model=echo))


@pytest.mark.parametrize("agent", [None, 7, "worker", echo, Agent])
async def test_only_an_agent_is_given_a_task(hub: Hub, agent: object) -> None:
    told = await refused_by(hub, agent)
    assert told.startswith("UsageError: ")
    assert told.endswith("cannot be given a task; give an Agent")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "the task for 'worker' is ''; say what is to be done, as a text"),
        (None, "the task for 'worker' is None; say what is to be done, as a text"),
        (b"look", "the task for 'worker' is b'look'; say what is to be done, as a text"),
        ("a\x00b", "the task for 'worker' cannot be given: a text contains a NUL character"),
        ("\ud800", "the task for 'worker' cannot be given: a text contains half a surrogate pair at position 0"),
        ("x" * 300_000, "the task for 'worker' cannot be given: it has 300011 bytes; the limit is 262144"),
    ],
)
async def test_a_task_is_a_text(hub: Hub, text: object, why: str) -> None:
    assert await refused_by(hub, Agent("worker", model=echo), text) == f"UsageError: {why}"


@pytest.mark.parametrize("ttl", [0, -1, "5", True, float("nan"), float("inf"), 10**12])
async def test_a_time_to_live_is_a_number_of_seconds(hub: Hub, ttl: object) -> None:
    told = await refused_by(hub, Agent("worker", model=echo), ttl=ttl)
    assert told.startswith(f"UsageError: ttl is {ttl!r}; give a number of seconds above 0")


@pytest.mark.parametrize("agent", [None, "worker", Agent])
def test_only_of_an_agent_a_tool_is_made(agent: object) -> None:
    with pytest.raises(UsageError, match="cannot be given tasks; give an Agent"):
        delegate(agent)  # type: ignore[arg-type]  # on purpose


@pytest.mark.parametrize("ttl", [0, -1, True, "60", float("nan")])
def test_a_time_that_is_none_is_refused_where_the_tool_is_made(ttl: float) -> None:
    with pytest.raises(UsageError, match="ttl of tasks for 'helper' is"):
        delegate(Agent("helper", model=echo), ttl=ttl)


def test_a_tool_that_gives_tasks_says_what_it_is_for() -> None:
    worker = Agent("worker", model=echo, description="Knows bees.")
    made = delegate(worker)
    assert (made.name, list(made.arguments.__struct_fields__), made.timeout) == ("delegate_to_worker", ["task"], None)
    assert made.description == "Have worker do something, and get a report. Say all that it needs to know. Knows bees."
    assert delegate(worker, name="ask").name == "ask"


async def test_a_call_that_is_over_gives_no_tasks(hub: Hub) -> None:
    kept: list[TurnChannel] = []

    @tool
    async def keep(channel: TurnChannel) -> str:
        """Keep it."""
        kept.append(channel)
        return "kept"

    await soon(giver(keep).invoke("go", hub=hub))
    with pytest.raises(UsageError, match="the call is over, and with it the time to give tasks"):
        await kept[0].delegate(Agent("worker", model=echo), "look")
    assert await tasks(hub) == []
