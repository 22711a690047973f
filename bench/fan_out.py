"""What it costs to give many agents of one workflow channel the turn at once, by how many they are."""

from __future__ import annotations

import asyncio
import statistics
import time

from antiphon import (
    Agent,
    AgentsTarget,
    FromSpeaker,
    Hub,
    ScriptedModel,
    TerminateTarget,
    Transition,
    TransitionGraph,
)
from bench.figures import Figure

SIZES, ROUNDS = (10, 50, 200), 3


async def spent(size: int) -> float:
    """The CPU seconds for each of so many agents, from the message that gives them the turn to the last answer."""
    names = [f"a{number}" for number in range(size)]
    graph = TransitionGraph(
        "ann", [Transition(FromSpeaker("ann"), AgentsTarget(names))], TerminateTarget("everybody has answered")
    )
    async with Hub.open("memory:") as hub:
        person = await hub.register("ann")
        for name in names:
            await hub.register(Agent(name, model=ScriptedModel(["So."])))
        channel = await person.open(type="workflow", target=names, knobs={"graph": graph.to_dict()})
        began = time.process_time()
        await channel.send("What do you think?")
        await channel.closed()
        return (time.process_time() - began) / size


def figures() -> list[Figure]:
    """Measure, in alternating rounds."""
    rounds = [[asyncio.run(spent(size)) for size in SIZES] for _ in range(ROUNDS)]
    costs = [statistics.median(column) for column in zip(*rounds, strict=True)]
    shown = [
        Figure(f"a turn of one of {size} agents that have it at once, in memory", cost * 1e3, "ms CPU")
        for size, cost in zip(SIZES, costs, strict=True)
    ]
    return [*shown, Figure(f"… among {SIZES[-1]} against {SIZES[0]}", costs[-1] / costs[0], "×")]


if __name__ == "__main__":
    for figure in figures():
        print(figure.name, figure.shown, figure.bar)
