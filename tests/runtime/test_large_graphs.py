"""Graphs that take long to check: nothing else waits for them, and they are done after a counted number of steps."""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import ClassVar

import pytest

from antiphon import (
    AgentsTarget,
    AgentTarget,
    BranchFailed,
    ContextEquals,
    ContextIn,
    ContextThreshold,
    Envelope,
    FromSpeaker,
    Hub,
    Participant,
    RulesInvalid,
    State,
    ToolCalled,
    Transition,
    TransitionGraph,
    register_condition,
)
from antiphon.core.ruleset import ChannelRoster
from antiphon.orchestration.graph_checks import find_graph_faults

PEOPLE = ["ann", "bob", "eve"]
MOST_HELD = 0.05


def rules(count: int, when: Callable[[int], object], then: Callable[[int], object] | None = None) -> TransitionGraph:
    to = then or (lambda number: AgentTarget(PEOPLE[number % 3]))
    table = [Transition(when(number), to(number)) for number in range(count)]  # type: ignore[arg-type]
    return TransitionGraph("ann", table, AgentTarget("ann"))


@register_condition
@dataclass(frozen=True)
class Whim:
    """A condition that cannot be looked into."""

    name: ClassVar[str] = "whim_of_large_graphs"
    number: int

    def evaluate(self, state: State, envelope: Envelope) -> bool:
        return True


def big(number: int) -> list[object]:
    return [number, [{"n": place} for place in range(400)]]


GRAPHS: dict[str, Callable[[], TransitionGraph]] = {
    "a key for each rule": lambda: rules(800, lambda number: ContextEquals(f"k{number}", number)),
    "keys and values": lambda: rules(
        800, lambda number: FromSpeaker(PEOPLE[number % 3]) & ContextEquals(f"k{number % 40}", number)
    ),
    "thresholds": lambda: rules(800, lambda number: ContextThreshold("k", ">" if number % 2 else "<=", number)),
    "lists": lambda: rules(400, lambda number: ContextIn("k", [f"v{each}" for each in range(number, number + 200)])),
    "large values": lambda: rules(40, lambda number: ContextEquals("k", big(number))),
    "tools": lambda: rules(800, lambda number: ToolCalled(f"t{number}") & ContextEquals(f"k{number % 20}", 1)),
    "groups": lambda: rules(
        100, lambda number: ContextEquals(f"k{number}", 1), lambda number: AgentsTarget(PEOPLE[: 2 + number % 2])
    ),
    "failing groups": lambda: rules(
        100,
        lambda number: BranchFailed() & ContextEquals(f"k{number}", 1),
        lambda number: AgentsTarget(PEOPLE[: 2 + number % 2]),
    ),
    "whims": lambda: rules(800, Whim),
}


@pytest.mark.parametrize("made", GRAPHS.values(), ids=GRAPHS)
def test_a_check_is_bounded_by_its_budget(made: Callable[[], TransitionGraph]) -> None:
    """In seconds of this thread alone, and far above what it takes; without bounds it would be minutes, or for ever."""
    graph = made()
    roster = ChannelRoster(dict.fromkeys(PEOPLE, "agent"), frozenset({"eve"}))
    before = time.thread_time()
    found = find_graph_faults(graph, roster, budget=2000)
    assert time.thread_time() - before < 3
    assert "not_explored" in [each.code for each in found]
    assert find_graph_faults(graph, roster, budget=2000) == found


@asynccontextmanager
async def held() -> AsyncIterator[list[float]]:
    """The longest stretch, in seconds of processor time, in which the event loop ran nothing else; and how many."""
    longest = [0.0, 0.0]

    async def tick() -> None:
        last = time.thread_time()
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()
            longest[:] = max(longest[0], now - last), longest[1] + 1
            last = now

    gc.collect()
    gc.freeze()  # what other tests have left is not counted
    task = asyncio.create_task(tick())
    await asyncio.sleep(0)  # its first tick
    try:
        yield longest
        await asyncio.sleep(0)  # its last
    finally:
        task.cancel()
        gc.unfreeze()


@asynccontextmanager
async def hub_of_three() -> AsyncIterator[tuple[Hub, Participant]]:
    async with Hub.open("memory:", engine=None) as hub:
        seated = [await hub.register(name) for name in PEOPLE]
        yield hub, seated[0]


def openable(made: Callable[[], TransitionGraph]) -> dict[str, object]:
    """The graph as a knob, with as many of its rules as an envelope takes."""
    data = made().to_dict()
    table = data["transitions"]
    assert isinstance(table, list)
    while len(json.dumps(data)) > 150_000 or str(data).count(":") + str(data).count(",") > 9_000:
        del table[len(table) * 9 // 10 :]
    return data


@pytest.mark.parametrize("name", ["a key for each rule", "keys and values", "thresholds", "groups"])
async def test_the_loop_goes_on_while_a_channel_is_opened(name: str) -> None:
    data = openable(GRAPHS[name])
    async with hub_of_three() as (hub, ann):
        async with held() as longest:
            channel = await ann.open(type="workflow", target=["bob", "eve"], knobs={"graph": data})
        warned = [each for each in await hub.log(channel.channel_id) if each.event_type == "antiphon.graph.warned"]
    assert len(warned) == 1
    assert longest[1] > 10, "the loop stood still"
    assert longest[0] < MOST_HELD


async def test_several_at_once_and_an_error_are_told_as_before() -> None:
    data = openable(GRAPHS["thresholds"])
    wrong = {**data, "initial_speaker": "nobody"}
    async with hub_of_three() as (hub, ann):
        async with held() as longest:
            knobs = [{"graph": {**data, "max_turns": turns}} for turns in (2, 3)]
            opened = [ann.open(type="workflow", target=["bob", "eve"], knobs=each) for each in knobs]
            await asyncio.gather(*opened)
            with pytest.raises(RulesInvalid, match="initial_speaker is 'nobody', who is not a participant"):
                await ann.open(type="workflow", target=["bob", "eve"], knobs={"graph": wrong})
        assert len(await hub.channels()) == 2
    assert longest[0] < MOST_HELD


async def test_very_many_errors_are_one_message() -> None:
    data = rules(200, lambda number: FromSpeaker("ann"), lambda number: AgentTarget(f"nobody{number}")).to_dict()
    async with hub_of_three() as (_, ann):
        with pytest.raises(RulesInvalid, match=r"transition 9 gives the turn to 'nobody9'.*; and 190 more$"):
            await ann.open(type="workflow", target=["bob", "eve"], knobs={"graph": data})
