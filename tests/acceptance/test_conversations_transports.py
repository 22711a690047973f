"""Transports of conversations: the one by which a reply leaves, and how it changes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from antiphon import EV_PACKET, ConversationRouter, OutboundReply
from tests.support.conversation_desk import TO_TRIAGE, Conversation, Desk, Slow, a_desk, hand_over, rule
from tests.support.waiting import wait_until


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    async with a_desk("ann:human", "dana:human", "code") as found:
        yield found


async def routes(talk: Conversation) -> list[tuple[str, object, object]]:
    """What agents have said, with its transport and recipient."""
    packets = [each for each in await talk.log(EV_PACKET) if each.event_data["body"]]
    return [
        (str(each.event_data["body"]), each.event_data.get("transport"), each.event_data.get("recipient"))
        for each in packets
    ]


async def test_a_reply_leaves_as_the_message_came(desk: Desk) -> None:
    await desk.agent("triage", "One.", "Two.", "Three.")
    talk = await desk.open(TO_TRIAGE, "triage")
    await talk.ask("one", transport="sms", source="+4930")
    await talk.ask("two", transport="email", source="ann@example.org")
    await talk.ask("three")
    assert await routes(talk) == [
        ("One.", "sms", "+4930"),
        ("Two.", "email", "ann@example.org"),
        ("Three.", None, None),
    ]


async def test_each_reply_leaves_as_its_own_message_came(desk: Desk) -> None:
    """Also if another one came in by another transport meanwhile."""
    slow = Slow("One.")
    await desk.agent("triage", slow, "Two.")
    talk = await desk.open(TO_TRIAGE, "triage")
    await talk.say("one", transport="sms", source="+4930")
    await slow.begun()
    await talk.say("two", transport="web", source="tab-7")
    slow.go_on()
    await talk.settled()
    assert await routes(talk) == [("One.", "sms", "+4930"), ("Two.", "web", "tab-7")]


async def test_the_answer_of_the_next_agent_leaves_as_the_message_came(desk: Desk) -> None:
    await desk.agent("triage", hand_over("billing"))
    await desk.agent("billing", "Here I am.")
    talk = await desk.open(TO_TRIAGE, "triage", "billing")
    await talk.ask("one", transport="sms", source="+4930")
    assert await routes(talk) == [("Here I am.", "sms", "+4930")]


@pytest.mark.parametrize("escalation", ["voice", "email", "sms"])
async def test_an_escalation_switches_later_replies(desk: Desk, escalation: str) -> None:
    await desk.agent("triage", hand_over("billing", channel_escalation=escalation))
    await desk.agent("billing", "One.", "Two.", "Three.", "Four.")
    talk = await desk.open(TO_TRIAGE, "triage", "billing")
    await talk.ask("one", transport="web", source="tab-7")
    await talk.ask("two")
    assert await routes(talk) == [("One.", escalation, ""), ("Two.", escalation, "")]
    await talk.ask("three", transport="fax", source="+49")
    await talk.ask("four", transport="fax", source="+49")
    assert (await routes(talk))[2:] == [("Three.", "fax", "+49"), ("Four.", "fax", "+49")], "the user writes by another"


async def test_an_escalation_to_a_transport_whose_address_is_known(desk: Desk) -> None:
    await desk.agent("triage", "One.", hand_over("billing", channel_escalation="sms"))
    await desk.agent("billing", "Two.")
    talk = await desk.open(TO_TRIAGE, "triage", "billing")
    await talk.ask("one", transport="sms", source="+4930")
    await talk.ask("two", transport="web", source="tab-7")
    assert await routes(talk) == [("One.", "sms", "+4930"), ("Two.", "sms", "+4930")]


async def test_same_and_nothing_switch_nothing(desk: Desk) -> None:
    await desk.agent("triage", hand_over("billing", channel_escalation="same"))
    await desk.agent("billing", hand_over("support"))
    await desk.agent("support", "Here I am.")
    talk = await desk.open(TO_TRIAGE, "triage", "billing", "support")
    await talk.ask("one", transport="web", source="tab-7")
    assert await routes(talk) == [("Here I am.", "web", "tab-7")]


async def test_an_escalation_to_a_person_carries_what_staff_say(desk: Desk) -> None:
    await desk.agent("triage", "One.", hand_over("human", channel_escalation="sms"))
    talk = await desk.open(TO_TRIAGE, "triage", "dana", creator="code")
    await talk.ask("one", by="code", transport="sms", source="+4930")
    await talk.ask("two", by="code", transport="web", source="tab-7")
    said = await talk.say("Dana here.", by="dana")
    assert (said.event_data["transport"], said.event_data["recipient"]) == ("sms", "+4930")


async def test_a_transport_is_a_condition_of_rules(desk: Desk) -> None:
    await desk.echoes("triage", "billing")
    router = ConversationRouter([rule("billing", channel_types={"sms"})], "triage")
    talk = await desk.open(router, "triage", "billing")
    assert await talk.ask("one", transport="sms", source="+49") == [("billing", "billing on one")]
    assert await talk.ask("two", transport="web", source="+49") == [("triage", "triage on two")]


async def test_replies_really_leave_by_a_registered_transport(desk: Desk) -> None:
    left: list[OutboundReply] = []

    async def send(reply: OutboundReply) -> None:
        left.append(reply)

    desk.hub.transport("sms", send=send)
    await desk.agent("triage", "One.", hand_over("human"))
    talk = await desk.open(TO_TRIAGE, "triage", "dana", creator="code")
    await talk.ask("one", by="code", transport="sms", source="+4930")
    await talk.ask("two", by="code", transport="web", source="tab-7")
    await talk.ask("three", by="code", transport="sms", source="+4930")
    await talk.say("Dana here.", by="dana")
    await wait_until(lambda: len(left) == 2)
    assert [(each.text, each.transport, each.recipient, each.sender_id) for each in left] == [
        ("One.", "sms", "+4930", "triage"),
        ("Dana here.", "sms", "+4930", "dana"),
    ]
