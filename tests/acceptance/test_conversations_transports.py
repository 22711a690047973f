"""Transports of conversations: the one by which a reply leaves, and how it changes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from antiphon import EV_PACKET, ConversationRouter, Envelope, OutboundReply
from tests.support.conversation_desk import TO_TRIAGE, Conversation, Desk, Slow, a_desk, hand_over, rule
from tests.support.waiting import wait_until


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    async with a_desk("ann:human", "bob:human", "dana:human", "code", "kiosk") as found:
        yield found


async def routes(talk: Conversation) -> list[tuple[str, object, object]]:
    """What agents have said, with its transport and recipient."""
    packets = [each for each in await talk.log(EV_PACKET) if each.event_data["body"]]
    return [
        (str(each.event_data["body"]), each.event_data.get("transport"), each.event_data.get("recipient"))
        for each in packets
    ]


def way(envelope: Envelope) -> tuple[object, object]:
    """The transport and the recipient of what was said."""
    return envelope.event_data.get("transport"), envelope.event_data.get("recipient")


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


# Several customers


async def test_each_customer_is_answered_at_an_address_of_their_own(desk: Desk) -> None:
    """Also if one is switched to another transport, and if the other names no source."""
    await desk.agent("triage", "A1.", "K1.", hand_over("billing", channel_escalation="email"))
    await desk.agent("billing", "A2.", "K2.", "A3.", "K3.", "A4.")
    talk = await desk.open(TO_TRIAGE, "triage", "billing", "kiosk", "dana")
    await talk.ask("a1", transport="sms", source="+4930")
    await talk.ask("k1", by="kiosk", transport="email", source="kiosk@example.org")
    await talk.ask("a2", transport="sms")
    await talk.ask("k2", by="kiosk", transport="email")
    await talk.ask("a3")
    await talk.ask("k3", by="kiosk", transport="sms", source="+4989")
    await talk.ask("a4", transport="sms")
    assert await routes(talk) == [
        ("A1.", "sms", "+4930"),
        ("K1.", "email", "kiosk@example.org"),
        ("A2.", "email", ""),
        ("K2.", "email", "kiosk@example.org"),
        ("A3.", "email", ""),
        ("K3.", "sms", "+4989"),
        ("A4.", "sms", "+4930"),
    ]


async def test_a_message_of_another_customer_ends_no_escalation(desk: Desk) -> None:
    """Not even one that is routed between two of the customer who was switched."""
    await desk.agent("triage", hand_over("billing", channel_escalation="voice"))
    await desk.agent("billing", "A1.", "K1.", "A2.")
    talk = await desk.open(TO_TRIAGE, "triage", "billing", "kiosk")
    await talk.ask("a1", transport="web", source="tab-7")
    await talk.ask("k1", by="kiosk", transport="web", source="tab-8")
    await talk.ask("a2")
    assert await routes(talk) == [("A1.", "voice", ""), ("K1.", "web", "tab-8"), ("A2.", "voice", "")]


async def test_an_escalation_of_another_customer_ends_none(desk: Desk) -> None:
    to_voice, to_email = (hand_over("billing", channel_escalation=name) for name in ("voice", "email"))
    await desk.agent("triage", to_voice, to_email)
    await desk.agent("billing", "A1.", hand_over("triage"), "K1.", "A2.")
    talk = await desk.open(TO_TRIAGE, "triage", "billing", "kiosk")
    await talk.ask("a1", transport="web", source="tab-7")
    await talk.ask("k1", by="kiosk", transport="web", source="tab-8")
    await talk.ask("a2")
    assert await routes(talk) == [("A1.", "voice", ""), ("K1.", "email", ""), ("A2.", "voice", "")]


@pytest.mark.parametrize("options", [{"addressed_to": "bob"}, {"audience": ["bob"]}])
async def test_a_message_by_a_transport_that_no_agent_answers_ends_an_escalation(
    desk: Desk, options: dict[str, object]
) -> None:
    await desk.agent("triage", hand_over("billing", channel_escalation="voice"))
    await desk.agent("billing", "A1.", "A2.")
    talk = await desk.open(TO_TRIAGE, "triage", "billing", "bob")
    await talk.ask("a1", transport="web", source="tab-7")
    await talk.ask("To Bob.", transport="web", source="tab-7", **options)
    await talk.ask("a2")
    assert await routes(talk) == [("A1.", "voice", ""), ("A2.", None, None)], "a2 came by no transport"


# While a person has the conversation


async def test_what_staff_write_by_a_transport_keeps_how_it_came(desk: Desk) -> None:
    """So that the same message again is known, and its sender can be answered."""
    await desk.agent("triage", hand_over("human"), "Hello, Dana.")
    left: list[tuple[str, str, str]] = []

    async def send(reply: OutboundReply) -> None:
        left.append((reply.transport, reply.recipient, reply.text))

    for name in ("sms", "email"):
        desk.hub.transport(name, send=send)
    talk = await desk.open(TO_TRIAGE, "triage", "dana")
    await talk.ask("one", transport="sms", source="+4930")
    said = [
        await talk.say("Dana here.", by="dana", transport="email", source="dana@x.org", message_id="m1")
        for _ in range(2)
    ]
    assert said[0] == said[1]
    assert said[0].event_data == {
        **{"text": "Dana here.", "transport": "email", "source": "dana@x.org"},
        **{"leaves_by": "sms", "recipient": "+4930"},
    }
    await wait_until(lambda: left == [("sms", "+4930", "Dana here.")])
    await talk.release("dana")
    await talk.ask("What now?", by="dana", transport="email")
    await wait_until(lambda: left[1:] == [("email", "dana@x.org", "Hello, Dana.")])


async def test_words_of_staff_follow_the_customer_to_another_transport(desk: Desk) -> None:
    await desk.agent("triage", hand_over("human"))
    talk = await desk.open(TO_TRIAGE, "triage", "dana", "bob")
    await talk.ask("one", transport="sms", source="+4930")
    assert way(await talk.say("Dana here.", by="dana")) == ("sms", "+4930")
    await talk.ask("two", transport="email", source="ann@example.org")
    assert way(await talk.say("Still here.", by="dana")) == ("email", "ann@example.org")
    await talk.ask("Me, too.", by="bob", transport="fax", source="desk 4")
    assert way(await talk.say("Goodbye.", by="dana")) == ("email", "ann@example.org"), "Bob is staff"
    await talk.ask("three")
    assert way(await talk.say("Really.", by="dana")) == ("email", "ann@example.org"), "by no transport"


async def test_words_of_staff_go_to_the_customer_who_wrote_last(desk: Desk) -> None:
    await desk.agent("triage", "For the kiosk.", hand_over("human"), "Back.")
    talk = await desk.open(TO_TRIAGE, "triage", "dana", "kiosk")
    await talk.ask("k1", by="kiosk", transport="email", source="kiosk@example.org")
    await talk.ask("a1", transport="sms", source="+4930")
    assert way(await talk.say("Dana here.", by="dana")) == ("sms", "+4930")
    await talk.ask("k2", by="kiosk", transport="email")
    assert way(await talk.say("Yes?", by="dana")) == ("email", "kiosk@example.org")
    await talk.release("dana")
    assert way(await talk.say("A word to triage.", by="dana")) == (None, None)
    await talk.settled()
    assert (await routes(talk))[-1] == ("Back.", None, None)


async def test_a_message_that_waited_before_the_hold_counts_as_the_last(desk: Desk) -> None:
    slow = Slow(hand_over("human"))
    await desk.agent("triage", slow)
    talk = await desk.open(TO_TRIAGE, "triage", "dana", "kiosk")
    await talk.say("one", transport="sms", source="+4930")
    await slow.begun()
    await talk.say("two", transport="email", source="ann@example.org")
    await talk.say("of another", by="kiosk", transport="fax", source="+4989")
    slow.go_on()
    await talk.settled()
    assert way(await talk.say("Dana here.", by="dana")) == ("email", "ann@example.org")


async def test_a_customer_who_writes_in_a_hold_ends_the_escalation(desk: Desk) -> None:
    await desk.agent("triage", hand_over("human", channel_escalation="email"))
    talk = await desk.open(TO_TRIAGE, "triage", "dana", "kiosk")
    await talk.ask("one", transport="sms", source="+4930")
    assert way(await talk.say("Dana here.", by="dana")) == ("email", "")
    await talk.ask("k1", by="kiosk", transport="fax", source="+4989")
    assert way(await talk.say("Yes?", by="dana")) == ("fax", "+4989"), "only the replies to Ann were switched"
    await talk.ask("two", transport="sms", source="+4930")
    assert way(await talk.say("Hello Ann.", by="dana")) == ("sms", "+4930")


async def test_another_customer_who_writes_in_a_hold_ends_no_escalation(desk: Desk) -> None:
    await desk.agent("triage", hand_over("human", channel_escalation="email"), "Back.")
    talk = await desk.open(TO_TRIAGE, "triage", "dana", "kiosk")
    await talk.ask("one", transport="sms", source="+4930")
    await talk.ask("k1", by="kiosk", transport="fax", source="+4989")
    await talk.release("dana")
    await talk.ask("two")
    assert await routes(talk) == [("Back.", "email", "")]


async def test_what_a_customer_says_in_a_hold_is_sent_to_no_other(desk: Desk) -> None:
    """Ann, who opened the conversation, is a person too, and has written by her own transport or by none."""
    await desk.agent("triage", "For Ann.", hand_over("human"))
    talk = await desk.open(TO_TRIAGE, "triage", "dana", "kiosk")
    await talk.ask("a1", transport="sms", source="+4930")
    await talk.ask("k1", by="kiosk", transport="email", source="kiosk@example.org")
    said = await talk.say("My account is 7.")
    assert said.event_data == {"text": "My account is 7."}
    assert way(await talk.say("And now?", transport="sms", source="+4930")) == ("sms", None)
    assert way(await talk.say("Hello Ann.", by="dana")) == ("sms", "+4930")


async def test_a_person_who_opened_it_alone_speaks_to_the_customer(desk: Desk) -> None:
    await desk.agent("triage", hand_over("human"))
    talk = await desk.open(TO_TRIAGE, "triage", "kiosk", creator="dana")
    await talk.ask("k1", by="kiosk", transport="email", source="kiosk@example.org")
    assert way(await talk.say("Dana here.", by="dana")) == ("email", "kiosk@example.org")
    assert way(await talk.say("Help!", by="dana", transport="sms")) == ("sms", None), "as a customer writes"


async def test_a_customer_who_has_not_opened_it_can_change_the_transport(desk: Desk) -> None:
    """A gateway has opened it, so that customer and staff are people of the same kind."""
    await desk.agent("triage", hand_over("human"), hand_over("dana"))
    talk = await desk.open(TO_TRIAGE, "triage", "bob", "dana", creator="code")
    await talk.ask("one", by="bob", transport="sms", source="+4930")
    assert way(await talk.say("Dana here.", by="dana")) == ("sms", "+4930")
    await talk.ask("two", by="bob", transport="email", source="bob@example.org")
    assert way(await talk.say("Still here.", by="dana")) == ("email", "bob@example.org")
    await talk.ask("Give it to me.", by="dana", addressed_to="triage")
    assert way(await talk.say("It is mine.", by="dana")) == ("email", "bob@example.org")


# Rules, and what really leaves


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
