"""What a transfer costs: somebody else of a team takes over within a turn. The models are scripted and take no time."""

from __future__ import annotations

import asyncio
import statistics
import time

from antiphon import Agent, Hub, ScriptedModel, calls, says
from bench.figures import Figure

DEPTH = 4
"""How many transfers there are in a turn that has any."""
ROUNDS, WINDOW = 1500, 150


def team() -> Agent:
    """A lead and those below it, one below the other. Every other time the lead answers itself."""
    below = Agent("last", model=ScriptedModel([says("Here I am.")] * ROUNDS))
    for number in range(DEPTH - 1, 0, -1):
        script = [calls(f"transfer_to_{below.name}")] * ROUNDS
        below = Agent(f"link{number}", model=ScriptedModel(script), agents=[below])
    script = [calls(f"transfer_to_{below.name}"), says("It is me.")] * ROUNDS
    return Agent("chief", model=ScriptedModel(script), system_prompt="Pass it on.", agents=[below])


async def measured() -> list[float]:
    """The CPU seconds of a transfer, round by round, as one conversation grows by four messages a round."""
    chief, spent = team(), []
    async with Hub.open("memory:") as hub:

        async def asked() -> float:
            began = time.process_time()
            await chief.invoke("@chief please", thread_id="bench", hub=hub)
            return time.process_time() - began

        for _ in range(ROUNDS):
            spent.append(await asked() - await asked())
        assert "chief" not in (await chief.channel("bench", hub)).state.active
    return [each / DEPTH for each in spent]


def figures() -> list[Figure]:
    """Measure. A transfer is a fourth of what a turn with four costs more than one with none."""
    spent = asyncio.run(measured())
    first, last = statistics.median(spent[WINDOW : 2 * WINDOW]), statistics.median(spent[-WINDOW:])
    return [
        Figure(
            f"a transfer, median of {ROUNDS:,}, memory store", statistics.median(spent) * 1e3, "ms CPU", at_most=1.0
        ),
        Figure(f"… behind {4 * ROUNDS:,} messages against behind {4 * 2 * WINDOW:,}", last / first, "×", at_most=1.25),
    ]
