"""Replies reach the address they answer, once, and nothing leaves that was refused, repeated or erased."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from antiphon import (
    EV_TEXT,
    Channel,
    Denied,
    HookEvent,
    HookExecution,
    HookResult,
    HookTrigger,
    Hub,
    InboundMessage,
    OutboundReply,
    UsageError,
    WebhookTransport,
)
from antiphon.core.conversation_events import EV_REPLY_DELIVERED, EV_TRANSPORT_CONNECTED
from antiphon.core.errors import TransportUnavailable
from antiphon.engines.local import LocalEngine
from antiphon.testing import ManualClock
from tests.support.conversation_desk import TO_TRIAGE, Conversation, Desk, Slow, a_desk, all_done
from tests.support.kept_store import KeptStore
from tests.support.waiting import soon, wait_until

HOUR = 3600.0


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    async with a_desk("ann", "bob", "dana:human") as found:
        yield found


class Wire:
    """The other side of a transport. It fails as the test says, and stops while it is shut."""

    def __init__(self, *failures: Callable[[], BaseException]) -> None:
        self._failures = list(failures)
        self.tried: list[str] = []
        self.took: list[tuple[str, str]] = []
        self.open = asyncio.Event()
        self.open.set()

    async def send(self, reply: OutboundReply) -> None:
        self.tried.append(reply.text)
        await self.open.wait()
        if self._failures:
            raise self._failures.pop(0)()
        self.took.append((reply.recipient, reply.text))


@asynccontextmanager
async def desk_over(store: KeptStore, clock: ManualClock) -> AsyncIterator[Desk]:
    """A desk over a store that stays, whose hub leaves turns in progress to the next one at once."""
    hub = await Hub.over(store, clock=clock, engine=LocalEngine(store, clock, grace=0.01))
    desk = Desk(hub, clock)
    try:
        await desk.join("ann")
        yield desk
    finally:
        await soon(hub.close())


async def delivered(talk: Conversation) -> list[object]:
    """After how many attempts each reply was taken."""
    return [each.get("attempts", 1) for each in await talk.facts(EV_REPLY_DELIVERED)]


# The recipient


@pytest.mark.parametrize("private", [False, True])
async def test_a_reply_goes_to_the_source_of_its_own_message(desk: Desk, private: bool) -> None:
    """Also if another customer has written by the same transport since."""
    wire, slow = Wire(), Slow("For Ann.")
    desk.hub.transport("sms", send=wire.send)
    await desk.agent("triage", slow, "For Bob.")
    talk = await desk.open(TO_TRIAGE, "triage", "bob")
    await talk.say("M1", transport="sms", source="+1", audience=["triage"] if private else None)
    await slow.begun()
    await talk.say("M2", by="bob", transport="sms", source="+2")
    slow.go_on()
    await wait_until(lambda: len(wire.took) == 2)
    assert wire.took == [("+1", "For Ann."), ("+2", "For Bob.")]


async def test_the_address_stays_known_if_a_message_names_no_source(desk: Desk) -> None:
    wire = Wire()
    desk.hub.transport("sms", send=wire.send)
    await desk.agent("triage", *[f"R{number}" for number in range(1, 7)])
    talk = await desk.open(TO_TRIAGE, "triage", "bob")
    await talk.ask("M1", transport="sms", source="+1")
    await talk.ask("M2", transport="sms")
    await talk.ask("M3", by="bob", transport="sms", source="+2")
    await talk.ask("M4", transport="sms")
    await talk.ask("M5", by="bob", transport="sms")
    await talk.ask("M6", transport="sms", source="+11")
    await all_done()
    assert wire.took == [("+1", "R1"), ("+1", "R2"), ("+2", "R3"), ("+1", "R4"), ("+2", "R5"), ("+11", "R6")]


async def test_the_source_of_one_customer_is_never_that_of_another(desk: Desk) -> None:
    wire = Wire()
    desk.hub.transport("sms", send=wire.send)
    await desk.echoes("triage")
    talk = await desk.open(TO_TRIAGE, "triage", "bob")
    await talk.ask("M1", transport="sms", source="+1")
    await talk.ask("M2", by="bob", transport="sms")
    await all_done()
    assert [recipient for recipient, _ in wire.took] == ["+1", ""]


# Which transports are connected


async def test_transports_of_an_earlier_hub_stay_connected() -> None:
    """A reply by one that is registered last leaves all the same."""
    clock, sms, email = ManualClock(), Wire(), Wire()
    store = KeptStore(clock=clock)
    async with desk_over(store, clock) as desk:
        desk.hub.transport("sms", send=sms.send)
        slow = Slow()
        await desk.agent("triage", slow)
        talk = await desk.open(TO_TRIAGE, "triage")
        await talk.say("M1", transport="sms", source="+1")
        await slow.begun()
    async with desk_over(store, clock) as desk:
        talk = await desk.again(talk.channel_id)
        desk.hub.transport("email", send=email.send)
        await talk.say("M2", transport="email", source="ann@x")
        desk.hub.transport("sms", send=sms.send)
        await desk.echoes("triage")
        await wait_until(lambda: bool(sms.took and email.took))
        assert [each["names"] for each in await talk.facts(EV_TRANSPORT_CONNECTED)] == [["sms"], ["email", "sms"]]
    assert (sms.took, email.took) == ([("+1", "triage on M1")], [("ann@x", "triage on M2")])


@pytest.mark.parametrize("reason", ["too_large", "blocked"])
async def test_a_refused_message_connects_nothing(desk: Desk, reason: str) -> None:
    desk.hub.transport("sms", send=Wire().send)

    @desk.hub.hook(HookTrigger.BEFORE_BROADCAST, execution=HookExecution.SYNC)
    async def refuse(event: HookEvent) -> HookResult | None:
        return HookResult.block("no") if "forbidden" in str(event.data) else None

    await desk.echoes("triage")
    talk = await desk.open(TO_TRIAGE, "triage")
    before = await talk.log()
    with pytest.raises(Denied) as denied:
        await talk.say("x" * 400_000 if reason == "too_large" else "forbidden", transport="sms", source="+1")
    await all_done()
    assert denied.value.reason == reason
    assert await talk.log() == before
    await talk.ask("hi", transport="sms", source="+1")
    assert await talk.facts(EV_TRANSPORT_CONNECTED) == [{"names": ["sms"]}]


async def test_a_repeated_message_connects_nothing(desk: Desk) -> None:
    desk.hub.transport("sms", send=Wire().send)
    await desk.echoes("triage")
    talk = await desk.open(TO_TRIAGE, "triage")
    first = await talk.say("hi", transport="sms", source="+1", message_id="m1")
    await talk.settled()
    await all_done()
    desk.hub.transport("email", send=Wire().send)
    before = await talk.log()
    assert await talk.say("hi", transport="sms", source="+1", message_id="m1") == first
    with pytest.raises(Denied) as denied:
        await talk.say("something else", transport="sms", source="+1", message_id="m1")
    await all_done()
    assert denied.value.reason == "conflict"
    assert await talk.log() == before


# Messages that come in


async def test_equal_ids_of_two_transports_are_two_messages(desk: Desk) -> None:
    await desk.echoes("triage")
    talk = await desk.open(TO_TRIAGE, "triage")
    wires = {"sms": Wire(), "email": Wire()}

    async def find(message: InboundMessage) -> Channel:
        return talk.channel

    def received(name: str) -> Callable[[], AsyncIterator[InboundMessage]]:
        async def receive() -> AsyncIterator[InboundMessage]:
            for _ in range(2):  # the second is the first again
                yield InboundMessage(text=f"by {name}", source=f"{name}:ann", message_id="1")

        return receive

    for name, wire in wires.items():
        desk.hub.transport(name, send=wire.send, receive=received(name), channel=find)
        await wait_until(lambda there=wire: bool(there.took))  # type: ignore[misc]  # bound at once
    await all_done()
    assert [each["text"] for each in await talk.facts(EV_TEXT)] == ["by sms", "by email"]
    assert wires["sms"].took == [("sms:ann", "triage on by sms")]
    assert wires["email"].took == [("email:ann", "triage on by email")]


# Erased


async def test_a_reply_that_waits_for_its_next_attempt_does_not_leave_after_it_was_erased(desk: Desk) -> None:
    wire = Wire(*[lambda: ConnectionError("down")] * 2)
    desk.hub.transport("sms", send=wire.send)
    await desk.agent("triage", "A secret.")
    talk = await desk.open(TO_TRIAGE, "triage")
    await talk.ask("M1", transport="sms", source="+1")
    await wait_until(lambda: len(wire.tried) == 1)
    await talk.channel.close()
    await desk.hub.erase(talk.channel_id)
    for _ in range(5):
        await desk.clock.advance(30)
        await all_done()
    assert wire.tried == ["A secret."], "it was tried before it was erased, and never again"


async def test_the_reply_behind_one_that_is_on_its_way_does_not_leave_after_it_was_erased(desk: Desk) -> None:
    wire = Wire()
    wire.open.clear()
    desk.hub.transport("sms", send=wire.send)
    await desk.agent("triage", "One.", "Two.")
    talk = await desk.open(TO_TRIAGE, "triage")
    await talk.ask("M1", transport="sms", source="+1")
    await talk.ask("M2", transport="sms", source="+1")
    await wait_until(lambda: wire.tried == ["One."])
    await talk.channel.close()
    await soon(desk.hub.erase(talk.channel_id))
    wire.open.set()
    await all_done()
    await desk.clock.advance(30)
    await all_done()
    assert wire.tried == ["One."]


# What a transport can do


async def test_a_plain_function_sends_once(desk: Desk) -> None:
    took: list[str] = []
    desk.hub.transport("sms", send=lambda reply: took.append(reply.text))  # type: ignore[arg-type, return-value]
    await desk.echoes("triage")
    talk = await desk.open(TO_TRIAGE, "triage")
    for text in ("M1", "M2"):
        await talk.ask(text, transport="sms", source="+1")
    for _ in range(5):
        await desk.clock.advance(30)
        await all_done()
    assert took == ["triage on M1", "triage on M2"]
    assert await delivered(talk) == [1, 1]


@pytest.mark.parametrize("wanted", [float("inf"), 1e12])
async def test_no_transport_is_left_alone_for_longer_than_a_day(desk: Desk, wanted: float) -> None:
    wire = Wire(lambda: TransportUnavailable("busy", retry_after=wanted))
    desk.hub.transport("sms", send=wire.send)
    await desk.agent("triage", "One.")
    talk = await desk.open(TO_TRIAGE, "triage")
    await talk.ask("M1", transport="sms", source="+1")
    await wait_until(lambda: len(wire.tried) == 1)
    await all_done()
    await desk.clock.advance(24 * HOUR - 1)
    await all_done()
    assert len(wire.tried) == 1
    await desk.clock.advance(1)
    await wait_until(lambda: wire.took == [("+1", "One.")])
    await all_done()
    assert await delivered(talk) == [2]


@pytest.mark.parametrize("kind", [SystemExit, asyncio.CancelledError])
async def test_what_would_end_the_process_is_one_more_failed_attempt(desk: Desk, kind: type[BaseException]) -> None:
    wire = Wire(kind)
    desk.hub.transport("sms", send=wire.send)
    await desk.agent("triage", "One.", "Two.")
    talk = await desk.open(TO_TRIAGE, "triage")
    await talk.ask("M1", transport="sms", source="+1")
    await wait_until(lambda: len(wire.tried) == 1)
    await all_done()
    assert wire.took == []
    await desk.clock.advance(1)
    await wait_until(lambda: len(wire.took) == 1)
    await talk.ask("M2", transport="sms", source="+1")
    await wait_until(lambda: len(wire.took) == 2)
    await all_done()
    assert wire.took == [("+1", "One."), ("+1", "Two.")]
    assert await delivered(talk) == [2, 1]


# What reads requests


WEBHOOK = WebhookTransport("https://sms.example.org/replies", secret="kV3yJ0dP-Qk2mXw8tRz6uA")


class Unfinished:
    """An object whose `read_inbound` cannot be called."""

    read_inbound = "later"

    def __repr__(self) -> str:
        return "<Unfinished>"


@pytest.mark.parametrize(
    ("reader", "named"),
    [
        ("webhook", "'webhook'"),
        ("", "''"),
        (WebhookTransport, ".*WebhookTransport.*"),
        (WEBHOOK.read_inbound, ".*read_inbound.*"),
        (Unfinished(), ".*Unfinished.*"),
    ],
    ids=["a name", "an empty name", "a class", "a method", "no method"],
)
async def test_what_cannot_read_requests_is_refused_when_it_is_registered(
    desk: Desk, reader: object, named: str
) -> None:
    wrong = rf"^inbound of the transport 'sms' is {named}; give an object with read_inbound, such as WebhookTransport\("
    with pytest.raises(UsageError, match=wrong):
        desk.hub.transport("sms", inbound=reader, channel=print)  # type: ignore[arg-type]
    desk.hub.transport("sms", inbound=WEBHOOK, channel=print)  # type: ignore[arg-type]  # the name is still free
