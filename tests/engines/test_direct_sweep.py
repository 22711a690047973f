"""A crash at every write of a turn with `return_direct` tools: the answer is the same as without one."""

from __future__ import annotations

import pytest

from antiphon import Agent, Reply, Request, calls, says, tool
from antiphon.testing import ManualClock, canonical_digest
from tests.engines.test_sweep import AFTER, BEFORE, MortalStore, ask
from tests.support.waiting import soon


@tool(return_direct=True)
async def hours() -> str:
    """When we are open."""
    return "9 to 5"


@tool(return_direct=True)
async def price(item: str) -> str:
    """What it costs."""
    if item != "tea":
        raise LookupError(f"no {item}")
    return "tea: 3 euros"


class Shop:
    """An agent that asks for the hours and a price in one message, and repeats the results if it is asked again."""

    def __init__(self, item: str) -> None:
        self._item = item

    def agent(self) -> Agent:
        return Agent("bob", model=self._answer, tools=[hours, price])

    async def _answer(self, request: Request) -> Reply | list[Reply]:
        results = [text for role, text in request.messages if role == "tool"]
        return says(" / ".join(results)) if results else [calls("hours"), calls("price", {"item": self._item})]


@pytest.mark.parametrize("when", [BEFORE, AFTER])
@pytest.mark.parametrize(
    ("item", "answer"), [("tea", "9 to 5\n\ntea: 3 euros"), ("jam", "9 to 5 / LookupError: no jam")]
)
async def test_a_crash_at_every_write(item: str, answer: str, when: str) -> None:
    clock = ManualClock()
    store = MortalStore(clock)
    said, log = await soon(ask(store, clock, Shop(item)))  # type: ignore[arg-type]
    assert said == answer
    digest = canonical_digest(log)
    for place in range(1, store.appends + 1):
        clock = ManualClock()
        mortal = MortalStore(clock)
        mortal.fatal = place, when
        said, log = await soon(ask(mortal, clock, Shop(item)))  # type: ignore[arg-type]
        assert (said, canonical_digest(log)) == (answer, digest), f"another answer after a crash {when} append {place}"
