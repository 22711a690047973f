"""What a turn costs: through hub and journal with a model that takes no time, and many at once that take a second."""

from __future__ import annotations

import asyncio
import statistics
import time

from antiphon import Agent, Hub, Reply, Request, calls, says, tool
from bench.figures import Figure

TURNS, WINDOW = 1500, 100
CROWD, THINKING = 1000, 1.0


@tool
async def look_up(order: str) -> str:
    """Look an order up."""
    return f"{order}: 3 books"


async def quick(request: Request) -> Reply:
    """Asks for the tool, then answers."""
    return says("It has three books.") if request.exchange else calls("look_up", {"order": "7"})


async def slow(request: Request) -> Reply:
    await asyncio.sleep(THINKING)
    return says("Done thinking.")


async def one_after_the_other() -> list[float]:
    """The CPU seconds of each of many turns on one thread."""
    agent = Agent("clerk", model=quick, system_prompt="Be brief.", tools=[look_up])
    spent = []
    async with Hub.open("memory:") as hub:
        for number in range(TURNS):
            began = time.process_time()
            await agent.invoke(f"What is in order {number}?", thread_id="bench", hub=hub)
            spent.append(time.process_time() - began)
    return spent


async def crowd() -> float:
    """The seconds it takes a thousand conversations to get their answers, channels and all."""
    agent = Agent("thinker", model=slow)
    async with Hub.open("memory:") as hub:
        began = time.perf_counter()
        await asyncio.gather(*(agent.invoke("Well?", thread_id=str(number), hub=hub) for number in range(CROWD)))
        return time.perf_counter() - began


def figures() -> list[Figure]:
    """Measure. The cost is the mean over all turns; it is flat if the last hundred cost what the first hundred do."""
    spent = asyncio.run(one_after_the_other())
    first, last = statistics.median(spent[WINDOW : 2 * WINDOW]), statistics.median(spent[-WINDOW:])
    name = f"a turn with one tool call, mean of {TURNS:,}, memory store"
    return [
        Figure(name, statistics.mean(spent) * 1e3, "ms CPU", at_most=1.5),
        Figure(f"… the last {WINDOW} against the second {WINDOW}", last / first, "×", at_most=1.25),
        Figure(f"{CROWD:,} conversations at once with {THINKING:g} s models", asyncio.run(crowd()), "s", at_most=3.0),
    ]
