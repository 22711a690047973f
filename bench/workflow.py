"""What workflow channels cost: a decision by the size of its graph, and a turn by the length of its channel."""

from __future__ import annotations

import asyncio
import statistics
import time

from antiphon import (
    AgentTarget,
    Channel,
    Envelope,
    FromSpeaker,
    Hub,
    Participant,
    State,
    TerminateTarget,
    Transition,
    TransitionGraph,
)
from antiphon.core.events import EV_TEXT
from antiphon.orchestration.workflow import Workflow
from bench.figures import Figure

SMALL, LARGE, DECISIONS = 10, 1000, 2000
TEXT = "x" * 200
TEAM = ("a", "b", "c", "d")
EARLY, LATE, WINDOW, ROUNDS = 100, 100_000, 200, 25


def ring(size: int) -> Workflow:
    """A ring of so many speakers, each with a rule of its own."""
    names = [f"s{number}" for number in range(size)]
    rules = [
        Transition(FromSpeaker(one), AgentTarget(after))
        for one, after in zip(names, names[1:] + names[:1], strict=True)
    ]
    return Workflow({"graph": TransitionGraph(names[0], rules, TerminateTarget("over")).to_dict()})


def deciding(workflow: Workflow, size: int) -> float:
    """The CPU seconds of a decision, over speakers from everywhere in the graph."""
    state = State(participants={f"s{number}": "service" for number in range(size)}, ordered=True, status="active")
    said = [Envelope(sender_id=f"s{number * 7919 % size}", event_type=EV_TEXT) for number in range(DECISIONS)]
    began = time.process_time()
    for envelope in said:
        workflow.decide(None, state, envelope)
    return (time.process_time() - began) / DECISIONS


def decisions() -> list[Figure]:
    """A large graph against a small one, in alternating rounds."""
    small, large = ring(SMALL), ring(LARGE)
    deciding(small, SMALL), deciding(large, LARGE)
    pairs = [(deciding(small, SMALL), deciding(large, LARGE)) for _ in range(15)]
    ratio = statistics.median(one / other for other, one in pairs)
    cost = statistics.median(one for _, one in pairs)
    name = f"a decision among {LARGE:,} transitions of distinct speakers"
    return [
        Figure(name, cost * 1e6, "µs CPU"),
        Figure(f"… against one among {SMALL}", ratio, "×", at_most=3.0),
    ]


async def opened(people: dict[str, Participant]) -> list[Channel]:
    """A round robin of the team, as each of them holds it."""
    graph = TransitionGraph.round_robin(list(TEAM))
    channel = await people["a"].open(type="workflow", target=list(TEAM[1:]), knobs={"graph": graph.to_dict()})
    return [await people[name].channel(channel.channel_id) for name in TEAM]


async def spent(held: list[Channel], turns: int) -> float:
    """The CPU seconds of each of so many turns."""
    began = time.process_time()
    for number in range(turns):
        await held[number % len(held)].send(TEXT)
    return (time.process_time() - began) / turns


async def turns() -> list[Figure]:
    """Four take turns in memory: late in a long channel against early in new ones, in alternating rounds."""
    async with Hub.open("memory:") as hub:
        people = {name: await hub.register(name) for name in TEAM}
        long = await opened(people)
        whole = await spent(long, LATE)
        pairs = []
        for _ in range(ROUNDS):
            short = await opened(people)
            await spent(short, EARLY)
            pairs.append((await spent(short, WINDOW), await spent(long, WINDOW)))
    ratio = statistics.median(late / early for early, late in pairs)
    return [
        Figure("a turn of a round robin of four, direct text, in memory", whole * 1e6, "µs CPU"),
        Figure(f"… at turn {LATE:,} against turn {EARLY}", ratio, "×", at_most=1.15),
    ]


def figures() -> list[Figure]:
    """Measure."""
    return [*decisions(), *asyncio.run(turns())]


if __name__ == "__main__":
    for figure in figures():
        print(figure.name, figure.shown, figure.bar)
