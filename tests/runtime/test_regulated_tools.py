"""In the tier `regulated` a tool that changes state can be undone, or a person allows each call of it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from antiphon import Agent, Hub, RulesInvalid, ScriptedModel, UsageError, calls, says, tool
from antiphon.core.execution_events import EV_CALL_FAILED
from antiphon.testing import ManualClock
from tests.support.waiting import wait_until


@tool
async def undo(order: int) -> str:
    """Take it back."""
    return "undone"


def paying(**options: object) -> object:
    async def pay(order: int, idempotency_key: str) -> str:
        return "paid"

    return tool(pay, **options)  # type: ignore[call-overload]


def unsafe(**options: object) -> object:
    async def send(order: int) -> str:
        return "sent"

    return tool(send, idempotency="unsafe", **options)  # type: ignore[call-overload]


PROTECTED = [paying(compensate=undo), paying(compensate="undo"), paying(approval=True), unsafe(approval=True)]
UNPROTECTED = [(paying(), "'pay', which is keyed"), (unsafe(), "'send', which is unsafe")]


def agent(given: object, name: str = "bob", **options: object) -> Agent:
    return Agent(name, model=ScriptedModel([says("Yes.")]), tools=[given], **options)  # type: ignore[arg-type]


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    async with Hub.open("memory:", clock=ManualClock()) as opened:
        yield opened


@pytest.mark.parametrize(("given", "named"), UNPROTECTED)
async def test_an_agent_of_the_tier_is_refused_with_the_names_of_agent_and_tool(given: object, named: str) -> None:
    with pytest.raises(UsageError, match=f"'bob' has the tool {named}; in the tier 'regulated' give it compensate"):
        agent(given, tier="regulated")
    with pytest.raises(UsageError, match="'bea' has the tool"):
        Agent("bob", model=ScriptedModel([]), agents=[agent(given, "bea")], tier="regulated")
    assert agent(given, tier="batch").tier == "batch"


@pytest.mark.parametrize("given", PROTECTED)
async def test_what_can_be_undone_or_is_approved_is_allowed(hub: Hub, given: object) -> None:
    assert agent(given, tier="regulated").tier == "regulated"
    ann = await hub.register("ann", kind="human")
    await hub.register(agent(given))
    await ann.open(target="bob", knobs={"tier": "regulated"})


@pytest.mark.parametrize(("given", "named"), UNPROTECTED)
async def test_a_channel_of_the_tier_is_not_opened(hub: Hub, given: object, named: str) -> None:
    ann = await hub.register("ann", kind="human")
    await hub.register(agent(given))
    with pytest.raises(RulesInvalid, match=f"'bob' has the tool {named}"):
        await ann.open(target="bob", knobs={"tier": "regulated"})
    assert await hub.channels() == []
    await ann.open(target="bob", knobs={"tier": "batch"})


async def test_an_agent_that_changes_later_cannot_call_it_all_the_same(hub: Hub) -> None:
    ann = await hub.register("ann", kind="human")
    await hub.register(agent(PROTECTED[0]))
    channel = await ann.open(target="bob", knobs={"tier": "regulated"})
    model = ScriptedModel([calls("pay", {"order": 7}), says("It is not possible.")])
    await hub.register(Agent("bob", model=model, tools=[paying()]))
    await channel.send("Pay")
    await wait_until(lambda: channel.state.turn_count == 2)
    [failed] = [each for each in await hub.log(channel.channel_id) if each.event_type == EV_CALL_FAILED]
    assert "pay changes state and can neither be undone nor is approved" in str(failed.event_data["error"])
