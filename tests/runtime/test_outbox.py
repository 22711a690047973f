"""Replies leave at least once, in order and under one id, however long the other side of a transport is away."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from decimal import Decimal
from pathlib import Path

import pytest

from antiphon import (
    EV_TEXT,
    Agent,
    Channel,
    ConversationRouter,
    Denied,
    Envelope,
    Hub,
    InboundMessage,
    OutboundReply,
    Participant,
    Reply,
    Request,
    calls,
    get_conversation_state,
    says,
)
from antiphon.core.conversation_events import EV_REPLY_DELIVERED, EV_REPLY_UNDELIVERABLE
from antiphon.core.envelope import OPERATORS, Instant, Json, add_seconds
from antiphon.core.errors import StoreUnavailable, TransportRefused, TransportUnavailable, UsageError
from antiphon.engines.local import LocalEngine
from antiphon.orchestration.routed import OUTBOX_LOOK_SECONDS
from antiphon.runtime import outbox
from antiphon.runtime.conversations import conversation_memory
from antiphon.store.protocol import Store
from antiphon.store.sqlite import SqliteStore
from antiphon.testing import ManualClock
from tests.support.conversation_desk import Echo
from tests.support.kept_store import KeptStore
from tests.support.troubled_store import TroubledStore
from tests.support.waiting import let_others_run, soon, wait_until

ROUTER: Json = {"router": ConversationRouter(default_agent_id="bot").to_dict()}
LOOK = OUTBOX_LOOK_SECONDS


class Line:
    """The other side of a transport: it takes what it is sent, unless it is down, hangs or refuses."""

    def __init__(self) -> None:
        self.down: Exception | None = None
        self.refuses = ""
        self.free = asyncio.Event()
        self.free.set()
        self.begun = 0
        self.tried: list[OutboundReply] = []
        self.took: list[OutboundReply] = []

    async def send(self, reply: OutboundReply) -> None:
        self.tried.append(reply)
        self.begun += 1
        try:
            await self.free.wait()
        finally:
            self.begun -= 1
        if self.down is not None:
            raise self.down
        if self.refuses and self.refuses in reply.text:
            raise TransportRefused("no such number; token=abcdefgh12345678")
        self.took.append(reply)

    @property
    def heard(self) -> list[str]:
        return [reply.text for reply in self.took]


class ClockOfLatest:
    """The time of a store over which one hub follows the other, whose clock then stands still."""

    def __init__(self) -> None:
        self.clock = ManualClock()

    def now(self) -> Instant:
        return self.clock.now()

    def next(self, later: float) -> ManualClock:
        self.clock = ManualClock(add_seconds(self.clock.now(), later))
        return self.clock


async def answer(request: Request) -> Reply:
    """Repeats what was said, unless a person is wanted."""
    said = request.history[-1].text.split(": ", 1)[-1]
    if "human" in said:
        return calls("handoff_conversation", {"target": "human", "reason": "asked for", "summary": said})
    return says(f"bot on {said}")


class Office:
    """A hub with an agent and a service that writes for its customers."""

    def __init__(self, hub: Hub, clock: ManualClock, desk: Participant) -> None:
        self.hub, self.clock, self._desk = hub, clock, desk

    async def channel(
        self, key: str = "ann", *, with_whom: tuple[str, ...] = ("bot",), knobs: Json = ROUTER
    ) -> Channel:
        return await self._desk.open(type="routed", target=list(with_whom), knobs=knobs, key=key)

    async def write(self, text: str, *, by: str = "sms", key: str = "ann") -> Channel:
        """A customer writes, and is answered."""
        channel = await self.channel(key)
        message = await channel.send(text, transport=by, source=f"{by}:{key}", message_id=text)
        await wait_until(lambda: not channel.state.owed and channel.state.sequence > message.sequence)
        return channel

    async def facts(self, channel: Channel, *types: str) -> list[Envelope]:
        wanted = types or (EV_REPLY_DELIVERED, EV_REPLY_UNDELIVERABLE)
        return [each for each in await self.hub.log(channel.channel_id) if each.event_type in wanted]

    async def attempts(self, channel: Channel) -> list[object]:
        return [fact.event_data.get("attempts", 1) for fact in await self.facts(channel)]

    def pending(self, channel: Channel) -> bool:
        memory = conversation_memory(channel._live)
        return any(cursor.pending for cursor in memory.outbox.values())

    async def until_left(self, channel: Channel) -> None:
        await wait_until(lambda: not self.pending(channel))


async def office_over(store: Store, clock: ManualClock, **lines: Line) -> Office:
    hub = await Hub.over(store, clock=clock, engine=LocalEngine(store, clock, grace=0.01))
    for name, line in lines.items():
        hub.transport(name, send=line.send)
    desk = await hub.register("desk")
    await hub.register(Agent("bot", model=answer))
    return Office(hub, clock, desk)


@asynccontextmanager
async def office(store: Store | None = None, clock: ManualClock | None = None, **lines: Line) -> AsyncIterator[Office]:
    clock = clock or ManualClock()
    here = await office_over(store or KeptStore(clock=clock), clock, **lines)
    try:
        yield here
    finally:
        await soon(here.hub.close())


# Down


async def test_a_transport_that_is_down_is_asked_again_with_growing_pauses() -> None:
    line = Line()
    line.down = ConnectionError("the line is down")
    async with office(sms=line) as here:
        channel = await here.write("one")
        await wait_until(lambda: len(line.tried) == 1)
        await let_others_run()
        for tries, pause in enumerate([1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300], 1):
            await here.clock.advance(pause - 0.01)
            assert len(line.tried) == tries, f"it was asked before {pause} seconds had passed"
            here.clock.advance(0.01)
            await wait_until(lambda so_far=tries: len(line.tried) == so_far + 1)  # type: ignore[misc]  # bound at once
            await let_others_run()  # until it waits for the next time
        assert here.pending(channel)
        line.down = None
        here.clock.advance(300)
        await here.until_left(channel)
        assert line.heard == ["bot on one"]
        assert [reply.attempt for reply in line.tried] == list(range(1, 14))
        assert len({reply.reply_id for reply in line.tried}) == 1
        assert await here.attempts(channel) == [13]


async def test_what_is_said_meanwhile_leaves_behind_it_and_in_order() -> None:
    line = Line()
    line.down = ConnectionError("the line is down")
    async with office(sms=line) as here:
        for text in ("one", "two", "three"):
            channel = await here.write(text)
        await here.clock.advance(LOOK)  # the channel is looked at while its first reply is on its way
        line.down = None
        here.clock.advance(10)
        await here.until_left(channel)
        assert line.heard == ["bot on one", "bot on two", "bot on three"]
        assert [fact.event_data["reply"] for fact in await here.facts(channel)] == [
            reply.reply_id for reply in line.took
        ]
        assert Counter(reply.text for reply in line.tried)["bot on two"] == 1


async def test_a_transport_says_how_long_to_wait() -> None:
    line = Line()
    line.down = TransportUnavailable("too many", retry_after=50)
    async with office(sms=line) as here:
        channel = await here.write("one")
        await wait_until(lambda: len(line.tried) == 1)
        await let_others_run()
        await here.clock.advance(49)
        assert len(line.tried) == 1
        line.down = None
        here.clock.advance(1)
        await here.until_left(channel)
        assert await here.attempts(channel) == [2]


async def test_a_clock_that_is_set_back_holds_up_no_reply() -> None:
    line = Line()
    line.down = ConnectionError("the line is down")
    async with office(sms=line) as here:
        channel = await here.write("one")
        await wait_until(lambda: len(line.tried) == 1)
        await let_others_run()
        line.down = None
        here.clock.set(-3600)
        await let_others_run()
        here.clock.advance(LOOK)
        await here.until_left(channel)
        assert line.heard == ["bot on one"]


async def test_a_hub_closes_at_once_while_a_transport_is_down_or_hangs() -> None:
    down, hangs = Line(), Line()
    down.down = ConnectionError("the line is down")
    hangs.free.clear()
    async with office(sms=down, email=hangs) as here:
        await here.write("one")
        await here.write("two", by="email")
        await wait_until(lambda: len(down.tried) == len(hangs.tried) == 1)
    assert (down.heard, hangs.heard, hangs.begun) == ([], [], 0)


# One that hangs


async def test_a_transport_that_hangs_holds_up_no_other() -> None:
    sms, email = Line(), Line()
    sms.free.clear()
    async with office(sms=sms, email=email) as here:
        held = await here.write("one")
        await here.write("two", by="email")
        await wait_until(lambda: email.heard == ["bot on two"])
        other = await here.write("three", by="email", key="bob")
        await here.until_left(other)
        assert email.heard == ["bot on two", "bot on three"]
        assert (sms.heard, sms.begun) == ([], 1)
        sms.free.set()
        await here.until_left(held)
        assert sms.heard == ["bot on one"]


async def test_so_many_are_sent_at_once_by_one_transport_and_no_more() -> None:
    sms, email = Line(), Line()
    sms.free.clear()
    async with office(sms=sms, email=email) as here:
        many = outbox.MAX_SENDS_AT_ONCE + 3
        channels = [await here.write(f"m{number}", key=f"k{number}") for number in range(many)]
        await wait_until(lambda: sms.begun == outbox.MAX_SENDS_AT_ONCE)
        await here.write("by mail", by="email", key="k0")
        await wait_until(lambda: email.heard == ["bot on by mail"])
        assert sms.begun == outbox.MAX_SENDS_AT_ONCE
        sms.free.set()
        for channel in channels:
            await here.until_left(channel)
        assert Counter(sms.heard) == {f"bot on m{number}": 1 for number in range(many)}


async def test_a_send_that_takes_too_long_is_made_again() -> None:
    line = Line()
    line.free.clear()
    async with office(sms=line) as here:
        channel = await here.write("one")
        await wait_until(lambda: line.begun == 1)
        await here.clock.advance(outbox.SEND_SECONDS)
        await wait_until(lambda: len(line.tried) == 1 and not line.begun)
        line.free.set()
        here.clock.advance(1)
        await here.until_left(channel)
        assert line.heard == ["bot on one"]
        assert await here.attempts(channel) == [2]


# A process that ends


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("closed", [False, True])
async def test_a_reply_leaves_from_the_next_process(closed: bool, late: bool) -> None:
    """It does from a channel that has ended as well, also if it is due before the next process is there."""
    first, second, time = Line(), Line(), ClockOfLatest()
    first.free.clear()
    store = KeptStore(clock=time)
    async with office(store, time.clock, sms=first) as dead:
        channel = await dead.write("one")
        if closed:
            await channel.close("done")
        await wait_until(lambda: first.begun == 1)
        async with office(store, time.next(100 * LOOK if late else 1.0), sms=second) as here:
            if not late:
                await here.clock.advance(LOOK - 1.1)
                assert second.tried == []
                here.clock.advance(0.1)
            await wait_until(lambda: second.heard == ["bot on one"])
            await let_others_run()
            assert [fact.event_data["reply"] for fact in await here.facts(channel)] == [second.took[0].reply_id]
            await here.clock.advance(100 * LOOK)
            assert len(second.tried) == 1
            assert await store.next_due() == ""
    assert second.took[0].reply_id == first.tried[0].reply_id
    assert first.took == []


async def test_a_reply_leaves_from_the_next_process_on_a_file(tmp_path: Path) -> None:
    first, second, clock = Line(), Line(), ManualClock()
    first.free.clear()
    store = await SqliteStore.open(tmp_path / "a.db", clock=clock)
    here = await office_over(store, clock, sms=first)
    channel = await here.write("one")
    await channel.close("done")
    await wait_until(lambda: first.begun == 1)
    await soon(here.hub.close())
    clock = ManualClock(add_seconds(clock.now(), LOOK))
    async with office(await SqliteStore.open(tmp_path / "a.db", clock=clock), clock, sms=second) as here:
        await wait_until(lambda: second.heard == ["bot on one"])
    assert second.took[0].reply_id == first.tried[0].reply_id


async def test_a_reply_waits_for_its_transport() -> None:
    """The next process knows it only later; another one takes nothing in its place."""
    first, second, other, time = Line(), Line(), Line(), ClockOfLatest()
    first.free.clear()
    store = KeptStore(clock=time)
    async with office(store, time.clock, sms=first) as dead:
        await dead.write("one")
        await wait_until(lambda: first.begun == 1)
        async with office(store, time.next(3600), email=other) as here:
            channel = await here.channel()
            await here.clock.advance(LOOK)
            assert here.pending(channel)
            here.hub.transport("sms", send=second.send)
            await here.until_left(channel)
            assert (second.heard, other.heard) == (["bot on one"], [])


async def test_a_store_that_fails_once_has_the_reply_sent_again_under_its_id() -> None:
    """What was taken could not be recorded."""
    line, clock, store = Line(), ManualClock(), TroubledStore()
    line.free.clear()
    async with office(store, clock, sms=line) as here:
        channel = await here.write("one")
        await wait_until(lambda: line.begun == 1)
        store.fail("append", StoreUnavailable("the disk is full"))
        line.free.set()
        await wait_until(lambda: len(line.took) == 1)
        await let_others_run()
        assert here.pending(channel)
        here.clock.advance(LOOK)
        await here.until_left(channel)
        assert line.heard == ["bot on one", "bot on one"]
        assert len({reply.reply_id for reply in line.took}) == 1
        assert len(await here.facts(channel)) == 1


# Refused, and not connected


async def test_a_refused_reply_is_recorded_and_the_next_one_leaves() -> None:
    line = Line()
    line.refuses = "one"
    async with office(sms=line) as here:
        await here.write("one")
        channel = await here.write("two")
        await here.until_left(channel)
        assert line.heard == ["bot on two"]
        refused, delivered = await here.facts(channel)
        assert refused.event_type == EV_REPLY_UNDELIVERABLE
        assert refused.event_data["reply"] == refused.causation_id == line.tried[0].reply_id
        assert "no such number" in str(refused.event_data["error"])
        assert "abcdefgh12345678" not in str(refused.event_data)
        assert (delivered.event_type, delivered.event_data["reply"]) == (EV_REPLY_DELIVERED, line.took[0].reply_id)
        assert refused.audience == delivered.audience == [OPERATORS]
        await here.clock.advance(100 * LOOK)
        assert len(line.tried) == 2


@pytest.mark.parametrize("why", ["<html>" + "x" * 300_000, "\ud800", "\x00"])
async def test_a_refusal_of_any_text_is_recorded(why: str) -> None:
    tried: list[str] = []

    async def send(reply: OutboundReply) -> None:
        tried.append(reply.text)
        raise TransportRefused(why)

    async with office() as here:
        here.hub.transport("sms", send=send)
        await here.write("one")
        channel = await here.write("two")
        await here.until_left(channel)
        assert [fact.event_type for fact in await here.facts(channel)] == [EV_REPLY_UNDELIVERABLE] * 2
        assert all(len(str(fact.event_data["error"])) <= 500 for fact in await here.facts(channel))
        assert tried == ["bot on one", "bot on two"]


@pytest.mark.parametrize("given", ["600", Decimal(600), b"1"])
def test_a_pause_is_a_number_of_seconds(given: object) -> None:
    with pytest.raises(UsageError, match="retry_after is"):
        TransportUnavailable("it is down", retry_after=given)  # type: ignore[arg-type]


async def test_a_transport_that_is_registered_later_sends_no_old_replies() -> None:
    line = Line()
    async with office() as here:
        channel = await here.write("old")
        here.hub.transport("sms", send=line.send)
        await here.clock.advance(100 * LOOK)
        assert line.tried == []
        await here.write("new")
        await here.until_left(channel)
        assert line.heard == ["bot on new"]


async def test_a_transport_that_is_registered_beside_another_sends_no_old_replies() -> None:
    sms, email = Line(), Line()
    async with office(sms=sms) as here:
        await here.write("one")
        await here.write("two", by="email")
        here.hub.transport("email", send=email.send)
        await here.write("three")
        channel = await here.write("four", by="email")
        await here.until_left(channel)
        assert (sms.heard, email.heard) == (["bot on one", "bot on three"], ["bot on four"])


@pytest.mark.parametrize("field", ["recipient", "antiphon.observed"])
async def test_a_participant_cannot_write_the_fields_of_the_hub(field: str) -> None:
    """A message would leave to any address."""
    line = Line()
    async with office(sms=line) as here:
        channel = await here.write("one")
        with pytest.raises(Denied, match="reserved_field"):
            await channel.post(EV_TEXT, {"text": "Call me.", "transport": "sms", field: "+1900"})
        await here.write("two")
        await here.until_left(channel)
        assert {reply.recipient for reply in line.took} == {"sms:ann"}
        assert len(line.took) == 2


# In


async def test_messages_that_are_received_again_are_answered_once() -> None:
    """What receives them fails in the middle, and begins anew after a pause."""
    line, clock, rounds = Line(), ManualClock(), 0

    async def receive() -> AsyncIterator[InboundMessage]:
        nonlocal rounds
        rounds += 1
        for number in range(3):
            if rounds == 1 and number == 2:
                raise ConnectionError("cut off")
            yield InboundMessage(f"m{number}", "+49", f"id{number}")

    async with office(clock=clock) as here:
        here.hub.transport("sms", send=line.send, receive=receive, channel=lambda message: here.channel(message.source))
        await wait_until(lambda: line.heard == ["bot on m0", "bot on m1"])
        await clock.advance(outbox.FIRST_PAUSE_SECONDS - 0.1)
        assert rounds == 1
        clock.advance(0.1)
        await wait_until(lambda: len(line.heard) == 3)
        assert line.heard == ["bot on m0", "bot on m1", "bot on m2"]
        channel = await here.channel("+49")
        await here.until_left(channel)
        said = [each for each in await here.hub.log(channel.channel_id) if each.sender_id == "desk"]
        assert [each.event_data["text"] for each in said] == ["m0", "m1", "m2"]
        assert rounds == 2


# Said again


async def test_a_word_of_a_person_is_the_same_when_it_is_repeated_after_the_hold() -> None:
    """How it left is recorded with it, and is none of its content."""
    line = Line()
    async with office(sms=line) as here:
        dana = await here.hub.register("dana", kind="human")
        channel = await here.channel(with_whom=("bot", "dana"))
        await channel.send("a human please", transport="sms", source="+49")
        await wait_until(lambda: get_conversation_state(channel).handoff_count == 1)
        hers = await dana.channel(channel.channel_id)
        first = await hers.send("I am here.", message_id="d1")
        assert first.event_data["recipient"] == "+49"
        await hers.release()
        assert await hers.send("I am here.", message_id="d1") == first
        with pytest.raises(Denied, match="conflict"):
            await hers.send("I am not.", message_id="d1")
        await here.until_left(channel)
        assert line.heard == ["I am here."]


async def test_a_private_message_is_the_same_when_it_is_repeated_in_an_observed_channel() -> None:
    async with office() as here:
        await here.hub.register(Agent("eye", model=Echo("eye")))
        router: Json = {"router": ConversationRouter(default_agent_id="bot", supervisor_id="eye").to_dict()}
        channel = await here.channel(with_whom=("bot", "eye"), knobs=router)
        first = await channel.send("psst", audience=["bot"], message_id="p1")
        assert first.audience == ["bot", "eye"]
        assert await channel.send("psst", audience=["bot"], message_id="p1") == first
        with pytest.raises(Denied, match="conflict"):
            await channel.send("psst", audience=["bot", "desk"], message_id="p1")
