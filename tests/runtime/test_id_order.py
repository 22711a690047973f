"""Ids that the hub gives sort in log order, from the first envelope on."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon import (
    Agent,
    AgentTarget,
    Envelope,
    FromSpeaker,
    Hub,
    Reply,
    Request,
    TerminateTarget,
    Transition,
    TransitionGraph,
    TurnChannel,
    calls,
    delegate,
    says,
    set_context,
    tool,
)
from antiphon.core.envelope import id_after, uuid7
from antiphon.hub import clock
from tests.support.given_tasks import asking, echo, results

milliseconds = st.integers(0, 2**48 - 2)
bits = st.integers(0, 2**74 - 1)


@given(st.tuples(milliseconds, bits), st.tuples(milliseconds, bits))
def test_an_id_sorts_behind_the_newest(drawn: tuple[int, int], newest: tuple[int, int]) -> None:
    found = id_after(uuid7(*drawn), uuid7(*newest))
    assert found > uuid7(*newest)
    assert uuid.UUID(found).version == 7
    if uuid7(*drawn) > uuid7(*newest):
        assert found == uuid7(*drawn)


def given_by_hub(log: list[Envelope]) -> list[str]:
    """The ids that are not derived from what a sender or a task is known by."""
    return [each.envelope_id for each in log if uuid.UUID(each.envelope_id).version == 7]


def check_sorted(log: list[Envelope], *, derived: int = 0) -> None:
    found = given_by_hub(log)
    assert found == sorted(found)
    assert len(set(found)) == len(found) == len(log) - derived


@tool
async def note(what: str, channel: TurnChannel) -> str:
    """Note something."""
    await set_context(channel, what=what)
    return "noted"


async def busy(request: Request) -> Reply:
    """Calls a tool twice, and then answers."""
    return says("done") if len(results(request)) == 2 else calls("note", {"what": "x"})


@pytest.mark.parametrize("kind", ["conversation", "discussion", "consulting"])
async def test_a_channel_of_people(kind: str) -> None:
    async with Hub.open() as hub:
        ann = await hub.register("ann")
        ben = await hub.register("ben", accept=lambda invite: True)
        channel = await ann.open(type=kind, target="ben", ttl=60)
        await channel.send("one")
        held = await ben.channel(channel.channel_id)
        await held.send("two")
        await channel.close()
        check_sorted(await hub.log(channel.channel_id))
        check_sorted(await hub.log("system:registry"))


async def test_a_workflow_of_agents_with_tools() -> None:
    graph = TransitionGraph(
        initial_speaker="one",
        transitions=[
            Transition(FromSpeaker("one"), AgentTarget("two")),
            Transition(FromSpeaker("two"), TerminateTarget("over")),
        ],
        default_target=TerminateTarget("over"),
    )
    async with Hub.open() as hub:
        ann = await hub.register("ann")
        for name in ("one", "two"):
            await hub.register(Agent(name, model=busy, tools=[note]))
        channel = await ann.open(type="workflow", target=["one", "two"], knobs={"graph": graph.to_dict()})
        assert await channel.closed(timeout=30) == "over"
        check_sorted(await hub.log(channel.channel_id))


async def test_threads_with_message_ids_and_tasks() -> None:
    async with Hub.open() as hub:
        worker = Agent("worker", model=echo)
        boss = Agent("boss", model=asking(calls(delegate(worker).name, {"task": "x"})), tools=[delegate(worker)])
        reply = await boss.invoke("go", thread_id="t", message_id="m", hub=hub)
        log = await hub.log(reply.channel_id)
        tasks = sum(each.event_type.startswith("ag2.task.") for each in log)
        assert tasks
        check_sorted(log, derived=tasks + 1)
        [child] = [row.channel_id for row in await hub.channels() if row.channel_id != reply.channel_id]
        check_sorted(await hub.log(child))


async def test_across_a_restart_with_a_clock_that_was_set_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path}/team.db"
    async with Hub.open(url) as hub:
        ann = await hub.register("ann")
        await hub.register("ben")
        channel = await ann.open(target="ben")
        for number in range(300):  # so that it is taken up from a snapshot
            await channel.send(f"before {number}")
    now = clock.time.time_ns()
    monkeypatch.setattr(clock.time, "time_ns", lambda: now - 10**9 * 86_400)
    async with Hub.open(url) as hub:
        ann = await hub.register("ann")
        held = await ann.channel(channel.channel_id)
        for number in range(3):
            await held.send(f"after {number}")
        check_sorted(await hub.log(channel.channel_id))
