"""Messages that come while an agent works on earlier ones: each begins anew what guards count for a message."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from antiphon import Agent, Budget, ConversationRouter, Hub, TurnLimit, calls, says, tool
from antiphon.core.envelope import Envelope
from antiphon.core.events import EV_PACKET, EV_TEXT
from antiphon.guards.waiting_messages import MAX_WAITING, with_message, without_answered
from tests.support.waiting import soon


@tool
async def look_up(order: str) -> str:
    """Look an order up."""
    return "sent"


async def polite_model(request):
    """Looks the same order up for each message, and gives the same answer."""
    return says("You are welcome, good bye!") if request.exchange else calls("look_up", {"order": "7"})


async def ask_at_once(agent: Agent, hub: Hub, count: int) -> Counter[str]:
    asked = (agent.invoke(f"Thanks {number}", thread_id="t", hub=hub) for number in range(count))
    return Counter(reply.stopped or reply.text for reply in await asyncio.gather(*asked))


@pytest.mark.parametrize("tier", ["interactive", "batch", "regulated"])
async def test_each_waiting_message_of_a_thread_has_the_amounts_of_its_own(tier):
    async with Hub.open("memory:") as hub:
        agent = Agent("bob", model=polite_model, tools=[look_up], tier=tier)
        assert await ask_at_once(agent, hub, 30) == {"You are welcome, good bye!": 30}
        [row] = await hub.channels()
        assert row.status == "active"
        assert [each for each in await hub.log(row.channel_id) if "flow" in each.event_type] == []


async def count_answers(hub: Hub, channel_id: str, count: int) -> None:
    async for each in hub.subscribe(channel_id, participant="bob"):
        count -= each.sender_id == "bob" and each.event_type == EV_PACKET
        if count == 0:
            return


@pytest.mark.parametrize("tier", ["interactive", "batch", "regulated"])
async def test_waiting_messages_of_a_routed_channel_neither_pause_nor_end_it(tier):
    async with Hub.open("memory:") as hub:
        ann = await hub.register("ann", kind="human")
        await hub.register(Agent("bob", model=polite_model, tools=[look_up]))
        router = ConversationRouter(rules=[], default_agent_id="bob")
        knobs = {"tier": tier, "router": router.to_dict(), "guards": [TurnLimit(most=5, per="message")]}
        room = await ann.open(type="routed", target="bob", knobs=knobs)
        for number in range(8):
            await room.send(f"Thanks {number}")
        await soon(count_answers(hub, room.channel_id, 8))
        assert room.state.status == "active"
        assert [each for each in await hub.log(room.channel_id) if "flow" in each.event_type] == []


async def test_what_counts_in_the_whole_run_counts_all_messages():
    async with Hub.open("memory:") as hub:
        agent = Agent("bob", model=polite_model, tools=[look_up], guards=[Budget(model_calls=6)])
        assert await ask_at_once(agent, hub, 5) == {"You are welcome, good bye!": 3, "denied:budget": 2}


def said(number: int, causation_id: str | None = None) -> Envelope:
    words = {"text": "Go on."}
    return Envelope(event_type=EV_TEXT, event_data=words, envelope_id=f"m{number}", causation_id=causation_id)


def test_an_answer_ends_the_waiting_of_its_message_and_of_earlier_ones():
    waiting: tuple[str, ...] = ()
    for number in range(3):
        waiting = with_message(waiting, said(number))
    assert waiting == ("m0", "m1", "m2")
    assert without_answered(waiting, said(9)) is waiting
    assert without_answered(waiting, said(9, causation_id="m0")) == ("m1", "m2")
    assert without_answered(waiting, said(9, causation_id="m1")) == ("m2",)


def test_the_oldest_messages_are_forgotten_where_nothing_is_answered():
    waiting: tuple[str, ...] = ()
    for number in range(MAX_WAITING + 5):
        waiting = with_message(waiting, said(number))
    assert (waiting[0], len(waiting)) == ("m5", MAX_WAITING)
