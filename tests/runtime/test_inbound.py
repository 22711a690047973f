"""Messages that come in by a transport: each is recorded, retried, refused or given back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress

import pytest

from antiphon import EV_TEXT, Channel, ConversationRouter, Denied, Envelope, Hub, InboundMessage, OutboundReply
from antiphon.core.envelope import Instant
from antiphon.core.errors import IdReused, LogCorrupt, StoreError, StoreGone, StoreUnavailable, TooLarge
from antiphon.engines.local import LocalEngine
from antiphon.runtime.inbound import FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, MAX_CHANNEL_ATTEMPTS
from antiphon.store.memory_store import MemoryStore
from antiphon.store.protocol import Appended
from antiphon.testing import ManualClock
from tests.support.conversation_desk import TO_TRIAGE, Conversation, Desk, Slow, all_done
from tests.support.waiting import soon, wait_until

LOGGER = "antiphon.transport"
PAUSES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 300.0, 300.0)


class FullStore(MemoryStore):
    """A store that takes no messages while it is full, or takes them late."""

    full = False
    error: StoreError = StoreUnavailable("the disk is full")
    gate: asyncio.Event | None = None
    """What messages wait for."""
    taken = 0
    """How many messages are recorded."""

    async def append(
        self, channel: str, batch: Sequence[Envelope], *, expected: int, due: Instant | None = None
    ) -> Appended:
        said = any(each.event_type == EV_TEXT for each in batch)
        if said and self.full:
            raise self.error
        if said and self.gate is not None:
            await self.gate.wait()
        appended = await super().append(channel, batch, expected=expected, due=due)
        self.taken += said
        return appended


class Queue:
    """A queue at a provider. A message is acknowledged when the next one is asked for."""

    def __init__(self, *texts: object) -> None:
        self.waiting = list(texts)
        self.acknowledged: list[object] = []
        self.opened = 0
        """How often it was read from its beginning."""
        self.closed = 0
        self.more = asyncio.Event()

    async def receive(self) -> AsyncIterator[InboundMessage]:
        self.opened += 1
        try:
            while True:
                while not self.waiting:
                    self.more.clear()
                    await self.more.wait()
                yield as_message(self.waiting[0])
                self.acknowledged.append(self.waiting.pop(0))
        finally:
            self.closed += 1

    def add(self, text: object) -> None:
        self.waiting.append(text)
        self.more.set()


def as_message(given: object) -> InboundMessage:
    return InboundMessage(given, "+49", f"id of {given}") if isinstance(given, str) else given  # type: ignore[return-value]


class Office:
    """A hub with a conversation that messages come into."""

    def __init__(self, desk: Desk, talk: Conversation, store: FullStore) -> None:
        self.hub, self.clock, self.talk, self.store = desk.hub, desk.clock, talk, store
        self.desk = desk
        self.found: list[str] = []
        """The texts of the messages for which a channel was asked for."""

    async def find(self, message: InboundMessage) -> Channel:
        self.found.append(message.text)
        return self.talk.channel

    def listen(self, queue: Queue, find: Callable[[InboundMessage], Awaitable[Channel]] | None = None) -> None:
        self.hub.transport("sms", receive=queue.receive, channel=find or self.find)

    async def recorded(self) -> list[object]:
        await all_done()
        return [each["text"] for each in await self.talk.facts(EV_TEXT)]


@pytest.fixture
async def office() -> AsyncIterator[Office]:
    clock, store = ManualClock(), FullStore()
    hub = await Hub.over(store, clock=clock)
    desk = Desk(hub, clock)
    try:
        await desk.join("ann")
        await desk.echoes("triage")
        yield Office(desk, await desk.open(TO_TRIAGE, "triage"), store)
    finally:
        await soon(hub.close())


async def test_a_message_is_acknowledged_when_it_is_recorded(office: Office) -> None:
    queue = Queue("one", "two")
    office.listen(queue)
    assert await office.recorded() == ["one", "two"]
    assert queue.acknowledged == ["one", "two"]
    queue.add("three")
    assert await office.recorded() == ["one", "two", "three"]
    assert queue.opened == 1


async def test_a_failing_store_is_retried_for_as_long_as_it_fails(
    office: Office, caplog: pytest.LogCaptureFixture
) -> None:
    queue, rounds = Queue("one", "two"), 2 * MAX_CHANNEL_ATTEMPTS
    office.store.full = True
    office.listen(queue)
    with caplog.at_level(logging.WARNING, LOGGER):
        for number in range(rounds):
            await wait_until(lambda number=number: len(office.found) == number + 1)  # type: ignore[misc]  # bound at once
            await all_done()
            assert queue.acknowledged == []
            office.store.full = number < rounds - 1
            office.clock.advance(LONGEST_PAUSE_SECONDS)
    assert await office.recorded() == ["one", "two"]
    assert (queue.acknowledged, queue.opened) == (["one", "two"], 1)
    assert "the message id of one from +49 cannot be recorded yet" in caplog.text


async def test_failures_of_the_store_do_not_count_as_attempts_to_find_the_channel(office: Office) -> None:
    tried = 0

    async def find(message: InboundMessage) -> Channel:
        nonlocal tried
        tried += 1
        if tried > 2 * MAX_CHANNEL_ATTEMPTS:
            office.store.full = False
            if tried < 3 * MAX_CHANNEL_ATTEMPTS:
                raise LookupError("no database")
        return office.talk.channel

    queue = Queue("one")
    office.store.full = True
    office.listen(queue, find)
    for number in range(1, 3 * MAX_CHANNEL_ATTEMPTS):
        await wait_until(lambda number=number: tried == number)  # type: ignore[misc]  # bound at once
        await all_done()
        office.clock.advance(LONGEST_PAUSE_SECONDS)
    assert await office.recorded() == ["one"]


async def test_each_message_has_pauses_of_its_own(office: Office) -> None:
    outcomes, tried = ["fails", "fails", "found", "fails", "found"], 0

    async def find(message: InboundMessage) -> Channel:
        nonlocal tried
        tried += 1
        if outcomes[tried - 1] == "fails":
            raise LookupError("no database")
        return office.talk.channel

    office.listen(Queue("one", "two"), find)
    for pause, so_far in ((1.0, 1), (2.0, 2), (1.0, 4)):
        await all_done()
        await office.clock.advance(pause - 0.01)
        await all_done()
        assert tried == so_far
        office.clock.advance(0.01)
    assert await office.recorded() == ["one", "two"]


async def test_pauses_grow_and_begin_anew_with_the_next_message(office: Office) -> None:
    queue = Queue("one", "two")
    office.store.full = True
    office.listen(queue)
    for number, pause in enumerate(PAUSES, 1):
        await wait_until(lambda number=number: len(office.found) == number)  # type: ignore[misc]  # bound at once
        await all_done()
        await office.clock.advance(pause - 0.01)
        await all_done()
        assert len(office.found) == number
        office.store.full = number < len(PAUSES)
        office.clock.advance(0.01)
    assert await office.recorded() == ["one", "two"]


@pytest.mark.parametrize("why", ["closed", "too large", "conflict"])
async def test_what_the_channel_refuses_is_not_retried(
    office: Office, caplog: pytest.LogCaptureFixture, why: str
) -> None:
    queue = Queue()
    if why == "closed":
        await office.talk.channel.close()
        queue.add("one")
    elif why == "too large":
        queue.add("x" * 2_000_000)
    else:
        queue.add(InboundMessage("one", "+49", "m1"))
        queue.add(InboundMessage("another", "+49", "m1"))
    queue.add(InboundMessage("last", "+49", "last"))
    with caplog.at_level(logging.WARNING, LOGGER):
        office.listen(queue)
        await wait_until(lambda: not queue.waiting)
        await all_done()
    recorded = await office.recorded()
    assert recorded == {"closed": [], "too large": ["last"], "conflict": ["one", "last"]}[why]
    assert caplog.text.count("is refused") == (2 if why == "closed" else 1)
    assert queue.opened == 1


@pytest.mark.parametrize(
    "error", [TooLarge("c", 2_000_000, 1_000_000), IdReused("c", "e"), LogCorrupt("c", 3, "its checksum is wrong")]
)
async def test_what_the_store_refuses_is_not_retried(
    office: Office, caplog: pytest.LogCaptureFixture, error: StoreError
) -> None:
    queue = Queue("one")
    office.store.full, office.store.error = True, error
    with caplog.at_level(logging.WARNING, LOGGER):
        office.listen(queue)
        await all_done()
    assert (queue.acknowledged, office.found) == (["one"], ["one"])
    assert f"sms: the message id of one from +49 is refused: {error}" in caplog.text


async def test_a_message_that_cannot_be_sent_is_not_retried(office: Office, caplog: pytest.LogCaptureFixture) -> None:
    queue = Queue(InboundMessage("one", "x" * 201, "m1"), "two")
    with caplog.at_level(logging.WARNING, LOGGER):
        office.listen(queue)
        assert await office.recorded() == ["two"]
    assert "is refused: source is" in caplog.text


GIVE_ID = "; give the id that its sender gave it"


@pytest.mark.parametrize(
    ("message_id", "why"),
    [(None, f" is None{GIVE_ID}"), (7, f" is 7{GIVE_ID}"), ("", f" is ''{GIVE_ID}"), ("\ud800", ": ")],
)
async def test_a_message_without_an_id_is_not_retried(
    office: Office, caplog: pytest.LogCaptureFixture, message_id: object, why: str
) -> None:
    queue = Queue(InboundMessage("one", "+49", message_id), "two")  # type: ignore[arg-type]
    with caplog.at_level(logging.WARNING, LOGGER):
        office.listen(queue)
        assert await office.recorded() == ["two"]
    assert f"is refused: the message_id of an inbound message{why}" in caplog.text


@pytest.mark.parametrize("kind", [LookupError, SystemExit, asyncio.CancelledError])
async def test_a_function_that_finds_no_channel_is_tried_again(
    office: Office, caplog: pytest.LogCaptureFixture, kind: type[BaseException]
) -> None:
    tried = 0

    async def find(message: InboundMessage) -> Channel:
        nonlocal tried
        tried += 1
        if tried < 3:
            raise kind("no database; token=abcdefgh12345678")
        return office.talk.channel

    queue = Queue("one", "two")
    with caplog.at_level(logging.WARNING, LOGGER):
        office.listen(queue, find)
        for number in (1, 2):
            await wait_until(lambda number=number: tried == number)  # type: ignore[misc]  # bound at once
            await all_done()
            assert queue.acknowledged == []
            office.clock.advance(PAUSES[number - 1])
        assert await office.recorded() == ["one", "two"]
    assert caplog.text.count("is tried again: channel= of the transport 'sms' raised") == 2
    assert "abcdefgh12345678" not in caplog.text


async def test_a_message_without_a_channel_is_given_back(office: Office, caplog: pytest.LogCaptureFixture) -> None:
    """A queue gives it again, so that nothing is lost while `channel=` fails."""
    tried, found = 0, False

    async def find(message: InboundMessage) -> Channel:
        nonlocal tried
        tried += 1
        return office.talk.channel if found else None  # type: ignore[return-value]

    queue = Queue("one", "two")
    with caplog.at_level(logging.WARNING, LOGGER):
        office.listen(queue, find)
        for number in range(1, MAX_CHANNEL_ATTEMPTS + 3):
            await wait_until(lambda number=number: tried == number)  # type: ignore[misc]  # bound at once
            await all_done()
            assert (queue.opened, queue.closed) == (1 + (number > 10), int(number >= 10))
            office.clock.advance(LONGEST_PAUSE_SECONDS)
        found = True
        office.clock.advance(LONGEST_PAUSE_SECONDS)
        await wait_until(lambda: queue.acknowledged == ["one", "two"])
    assert await office.recorded() == ["one", "two"]
    said = "the message id of one from +49 is given back after 10 attempts: channel= of the transport 'sms' returned"
    assert said in caplog.text


async def test_a_plain_function_finds_the_channel(office: Office) -> None:
    queue = Queue("one")
    office.listen(queue, lambda message: office.talk.channel)  # type: ignore[arg-type, return-value]
    assert await office.recorded() == ["one"]


async def test_what_is_no_message_is_left_out(office: Office, caplog: pytest.LogCaptureFixture) -> None:
    queue = Queue("one", {"text": "two"}, "three")
    with caplog.at_level(logging.ERROR, LOGGER):
        office.listen(queue)
        assert await office.recorded() == ["one", "three"]
    assert "sms received {'text': 'two'}; receive= must give an InboundMessage" in caplog.text


@pytest.mark.parametrize("kind", [ConnectionError, SystemExit, asyncio.CancelledError])
async def test_an_iterator_that_breaks_off_is_called_again_and_was_closed(
    office: Office, kind: type[BaseException]
) -> None:
    rounds, closed = 0, 0

    async def receive() -> AsyncIterator[InboundMessage]:
        nonlocal rounds, closed
        rounds += 1
        try:
            yield as_message(f"m{rounds}")
            raise kind("cut off")
        finally:
            closed += 1

    office.hub.transport("sms", receive=receive, channel=office.find)
    await wait_until(lambda: rounds == 1)
    await all_done()
    assert closed == 1
    await office.clock.advance(FIRST_PAUSE_SECONDS)
    await wait_until(lambda: rounds == 2)
    assert (await office.recorded())[:2] == ["m1", "m2"]


async def test_an_iterator_that_breaks_off_again_and_again_is_called_after_growing_pauses(office: Office) -> None:
    """Until a message was recorded."""
    rounds = 0

    async def receive() -> AsyncIterator[InboundMessage]:
        nonlocal rounds
        rounds += 1
        if rounds == 4:
            yield as_message("one")
        raise ConnectionError("cut off")

    office.hub.transport("sms", receive=receive, channel=office.find)
    for number, pause in enumerate((1.0, 2.0, 4.0, 1.0, 2.0), 1):
        await all_done()
        await office.clock.advance(pause - 0.01)
        await all_done()
        assert rounds == number
        office.clock.advance(0.01)
    assert await office.recorded() == ["one"]
    assert rounds == 6


class Pages:
    """An iterator with an end, and with nothing that closes it."""

    def __init__(self, *texts: str) -> None:
        self.left = list(texts)
        self.opened = 0

    def receive(self) -> AsyncIterator[InboundMessage]:
        self.opened += 1
        return self

    def __aiter__(self) -> AsyncIterator[InboundMessage]:
        return self

    async def __anext__(self) -> InboundMessage:
        if not self.left:
            raise StopAsyncIteration
        return as_message(self.left.pop(0))


async def test_an_iterator_that_ends_is_not_called_again(office: Office, caplog: pytest.LogCaptureFixture) -> None:
    pages = Pages("one", "two")
    with caplog.at_level(logging.WARNING, LOGGER):
        office.hub.transport("sms", receive=pages.receive, channel=office.find)
        assert await office.recorded() == ["one", "two"]
        await office.clock.advance(LONGEST_PAUSE_SECONDS)
        await all_done()
    assert (pages.opened, caplog.text) == (1, "")


async def test_a_store_that_is_gone_ends_it(office: Office, caplog: pytest.LogCaptureFixture) -> None:
    queue = Queue("one")
    office.store.full, office.store.error = True, StoreGone("the file was moved away")
    with caplog.at_level(logging.WARNING, LOGGER):
        office.listen(queue)
        await wait_until(lambda: queue.closed == 1)
        await office.clock.advance(LONGEST_PAUSE_SECONDS)
        await all_done()
    assert (queue.opened, queue.acknowledged, office.found) == (1, [], ["one"])
    assert caplog.text == ""


# The end of the hub


@asynccontextmanager
async def closing(office: Office, slow: Slow) -> AsyncIterator[None]:
    """While the hub closes, which waits for a turn that is in progress."""
    ended = asyncio.create_task(office.hub.close())
    await all_done()
    yield
    assert not ended.done()
    slow.go_on()
    await soon(ended)


async def working(office: Office, slow: Slow) -> None:
    """Have an agent work at something in another conversation."""
    await office.desk.agent("worker", slow)
    other = await office.desk.open(ConversationRouter(default_agent_id="worker"), "worker")
    await other.say("Work!")
    await slow.begun()


async def test_nothing_is_asked_for_from_when_a_hub_closes(office: Office) -> None:
    queue, slow = Queue("one"), Slow()
    await working(office, slow)
    office.listen(queue)
    assert await office.recorded() == ["one"]
    async with closing(office, slow):
        assert queue.closed == 1
    assert office.found == ["one"]


async def test_a_message_that_is_being_recorded_when_a_hub_closes_is_recorded_and_not_acknowledged(
    office: Office,
) -> None:
    queue, slow = Queue("one", "two"), Slow()
    await working(office, slow)
    office.store.gate = asyncio.Event()
    office.listen(queue)
    await all_done()
    async with closing(office, slow):
        assert queue.closed == 0
        office.store.gate.set()
        await all_done()
        assert (queue.closed, queue.acknowledged) == (1, [])
    assert (office.found, office.store.taken) == (["one"], 2)


async def test_what_a_hub_refuses_because_it_closes_is_not_refused(
    office: Office, caplog: pytest.LogCaptureFixture
) -> None:
    queue, slow, may_go_on = Queue("one", "two"), Slow(), asyncio.Event()
    await working(office, slow)

    async def find(message: InboundMessage) -> Channel:
        await may_go_on.wait()
        return office.talk.channel

    office.listen(queue, find)
    await all_done()
    with caplog.at_level(logging.WARNING, LOGGER):
        async with closing(office, slow):
            may_go_on.set()
            await all_done()
            assert (queue.closed, queue.acknowledged) == (1, [])
    assert (office.store.taken, caplog.text) == (1, "")


async def test_no_message_is_asked_for_or_refused_once_the_hub_closes(caplog: pytest.LogCaptureFixture) -> None:
    """One that could not be recorded by then counts as not received."""
    clock, store, queue = ManualClock(), FullStore(), Queue("one", "two")
    hub = await Hub.over(store, clock=clock, engine=LocalEngine(store, clock, grace=0.01))
    desk = Desk(hub, clock)
    await desk.join("ann")
    await desk.echoes("triage")
    office = Office(desk, await desk.open(TO_TRIAGE, "triage"), store)
    store.full = True
    office.listen(queue)
    await wait_until(lambda: office.found == ["one"])
    await all_done()
    with caplog.at_level(logging.WARNING, LOGGER):
        await soon(hub.close())
    assert (queue.acknowledged, queue.waiting, queue.closed) == ([], ["one", "two"], 1)
    assert "refused" not in caplog.text
    assert "given back" not in caplog.text


async def test_a_hub_closes_while_an_iterator_waits(office: Office) -> None:
    queue = Queue("one")
    office.listen(queue)
    assert await office.recorded() == ["one"]
    await soon(office.hub.close())
    assert (queue.acknowledged, queue.closed) == (["one"], 1)


async def test_an_iterator_that_ignores_its_end_does_not_keep_a_hub_from_closing(
    office: Office, caplog: pytest.LogCaptureFixture
) -> None:
    ends = asyncio.Event()

    async def receive() -> AsyncIterator[InboundMessage]:
        while not ends.is_set():
            with suppress(asyncio.CancelledError):
                await ends.wait()
        yield as_message("too late")

    with caplog.at_level(logging.WARNING):
        office.hub.transport("sms", receive=receive, channel=office.find)
        await all_done()
        await soon(office.hub.close())
    assert "receive= of the transport 'sms' was cancelled and still runs" in caplog.text
    ends.set()
    await all_done()
    assert office.found == []


async def test_a_refusal_of_the_function_refuses_the_message(office: Office, caplog: pytest.LogCaptureFixture) -> None:
    async def find(message: InboundMessage) -> Channel:
        if message.text == "one":
            raise Denied("blocked", detail="no such customer")
        return office.talk.channel

    queue = Queue("one", "two")
    with caplog.at_level(logging.WARNING, LOGGER):
        office.listen(queue, find)
        assert await office.recorded() == ["two"]
    assert "sms: the message id of one from +49 is refused: blocked: no such customer" in caplog.text


async def test_replies_leave_while_a_message_is_retried(office: Office) -> None:
    took: list[str] = []

    async def send(reply: OutboundReply) -> None:
        took.append(reply.text)

    async def find(message: InboundMessage) -> Channel:
        raise LookupError("no database")

    office.hub.transport("sms", send=send, receive=Queue("one").receive, channel=find)
    await office.talk.ask("hello", transport="sms", source="+49")
    await wait_until(lambda: took == ["triage on hello"])
