"""What a transfer costs: somebody else of a team takes over within a turn. The models are scripted and take no time."""

from __future__ import annotations

import asyncio
import statistics
import time

from antiphon import Agent, Hub, ScriptedModel, calls, says
from bench.figures import Figure

DEPTH = 4
"""How many transfers there are in a turn that has any."""
ROUNDS, COMPARED, SHORT = 1500, 200, 20
"""How often it is measured while a conversation grows, then beside a short one, and how many rounds that one lasts."""
ENTRIES = ROUNDS + 2 * COMPARED


def team() -> Agent:
    """A lead and those below it, one below the other. Every other time the lead answers itself."""
    below = Agent("last", model=ScriptedModel([says("Here I am.")] * ENTRIES))
    for number in range(DEPTH - 1, 0, -1):
        script = [calls(f"transfer_to_{below.name}")] * ENTRIES
        below = Agent(f"link{number}", model=ScriptedModel(script), agents=[below])
    script = [calls(f"transfer_to_{below.name}"), says("It is me.")] * ENTRIES
    return Agent("chief", model=ScriptedModel(script), system_prompt="Pass it on.", agents=[below])


async def measured() -> tuple[list[float], float]:
    """The CPU seconds of a transfer, round by round, as one conversation grows by four messages a round.

    And what one costs in that conversation in the end, held against one in a short conversation, in turns.
    """
    chief = team()
    async with Hub.open("memory:") as hub:

        async def asked(thread: str) -> float:
            began = time.process_time()
            await chief.invoke("@chief please", thread_id=thread, hub=hub)
            return time.process_time() - began

        async def transfer(thread: str) -> float:
            return (await asked(thread) - await asked(thread)) / DEPTH

        spent = [await transfer("long") for _ in range(ROUNDS)]
        pairs = [(await transfer("long"), await transfer(f"short {n // SHORT}")) for n in range(COMPARED)]
    long, short = (statistics.median(each) for each in zip(*pairs, strict=True))
    return spent, long / short


def figures() -> list[Figure]:
    """Measure. A transfer is a fourth of what a turn with four costs more than one with none."""
    spent, growth = asyncio.run(measured())
    usual = statistics.median(spent) * 1e3
    beside = f"… behind {4 * ROUNDS:,} messages against behind at most {4 * SHORT}"
    return [
        Figure(f"a transfer, median of {ROUNDS:,}, memory store", usual, "ms CPU", at_most=1.0),
        Figure(beside, growth, "×", at_most=1.25),
    ]
