"""Scripts across crashes: each life has a new model with the same script."""

from __future__ import annotations

import asyncio
import logging

import pytest

from antiphon import Agent, Hub, ModelError, Reply, Request, ScriptedModel, UsageError, calls, says, tool
from antiphon.models.scripted import ScriptEntry
from antiphon.testing import ManualClock, canonical_digest
from tests.engines.test_sweep import AFTER, BEFORE, MortalStore, ask
from tests.support.crashing_hubs import crashes
from tests.support.waiting import soon, wait_until

WARNING = 'use ScriptedModel(…, by="position")'


@tool
async def pay(cents: int) -> str:
    """Pay."""
    return f"paid {cents}"


async def think_for_ever(request: Request) -> Reply:
    await asyncio.Event().wait()
    raise AssertionError("nobody wakes it")


SCRIPT: list[ScriptEntry] = [calls("pay", {"cents": 1}), calls("pay", {"cents": 2}), says("Paid 1 and 2.")]


class Bank:
    """An agent that begins each life with a new model and the same script."""

    def agent(self) -> Agent:
        return Agent("bob", model=ScriptedModel(SCRIPT, by="position"), tools=[pay])


@pytest.mark.parametrize("when", [BEFORE, AFTER])
async def test_by_position_a_crash_at_every_write_tells_the_same_story(when: str) -> None:
    clock = ManualClock()
    store = MortalStore(clock)
    answer, log = await soon(ask(store, clock, Bank()))  # type: ignore[arg-type]
    assert answer == "Paid 1 and 2."
    digest = canonical_digest(log)
    for place in range(1, store.appends + 1):
        clock = ManualClock()
        mortal = MortalStore(clock)
        mortal.fatal = place, when
        answer, log = await soon(ask(mortal, clock, Bank()))  # type: ignore[arg-type]
        assert (answer, canonical_digest(log)) == ("Paid 1 and 2.", digest), f"after a crash {when} append {place}"


async def resumed(model: ScriptedModel) -> list[str]:
    """What tools were called in a turn whose first process ended while it asked for the second time."""
    async with crashes() as place:
        first = ScriptedModel([SCRIPT[0], think_for_ever])
        await place.next_hub(first, tools=[pay])
        await place.open()
        await wait_until(lambda: len(first.requests) == 2)
        await place.next_hub(model, tools=[pay])
        await place.answered()
        return [str(each.event_data["args"]) for each in await place.told("call.started") if "args" in each.event_data]


async def test_by_position_a_resumed_turn_goes_on_where_it_was(caplog: pytest.LogCaptureFixture) -> None:
    model = ScriptedModel(SCRIPT, by="position")
    assert await resumed(model) == ["{'cents': 1}", "{'cents': 2}"]
    assert [request.position for request in model.requests] == [1, 2]
    assert model.left == 1
    assert WARNING not in caplog.text


async def test_by_order_a_resumed_turn_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "antiphon.models"):
        assert await resumed(ScriptedModel(SCRIPT)) == ["{'cents': 1}", "{'cents': 1}", "{'cents': 2}"]
    assert caplog.text.count(WARNING) == 1


async def test_by_order_a_turn_that_is_not_resumed_is_not_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    async with Hub.open("memory:") as hub:
        await Agent("bob", model=ScriptedModel(SCRIPT), tools=[pay]).invoke("Pay.", hub=hub)
    assert WARNING not in caplog.text


async def test_by_position_the_script_is_that_of_each_turn() -> None:
    model = ScriptedModel(
        [calls("pay", {"cents": 1}), lambda request: says(f"after {len(request.history)}")], by="position"
    )
    async with Hub.open("memory:") as hub:
        agent = Agent("bob", model=model, tools=[pay])
        replies = [await agent.invoke("Pay.", thread_id="t", hub=hub) for _ in range(2)]
    assert [reply.text for reply in replies] == ["after 1", "after 3"]
    assert [request.position for request in model.requests] == [0, 1, 0, 1]
    assert model.left == 0


async def test_by_position_counts_all_model_calls_of_a_team() -> None:
    model = ScriptedModel([calls("transfer_to_billing"), calls("pay", {"cents": 3}), says("Done.")], by="position")
    async with Hub.open("memory:") as hub:
        lead = Agent("lead", model=model, agents=[Agent("billing", model=model, tools=[pay])])
        assert (await lead.invoke("Pay.", hub=hub)).agent == "billing"


async def test_by_position_beyond_the_script_and_another_way() -> None:
    model = ScriptedModel(["One."], by="position")
    with pytest.raises(ModelError, match="the script has 1 entry and call 3 of a turn was made"):
        await model(Request("", [], position=2))
    with pytest.raises(UsageError, match="by is 'place'; give one of 'order', 'position'"):
        ScriptedModel([], by="place")  # type: ignore[arg-type]
