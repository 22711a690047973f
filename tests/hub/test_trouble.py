"""When something goes wrong in the middle: nothing is told twice, nothing stays untold, nobody waits for ever."""

from __future__ import annotations

import asyncio
import copy
import pickle
import sqlite3
from collections import deque
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import ClassVar

import pytest

from antiphon import (
    EV_CHANNEL_CLOSED,
    EV_TEXT,
    Denied,
    Envelope,
    Hub,
    Participant,
    UsageError,
    register_adapter,
)
from antiphon.core.errors import Conflict, IdReused, LogCorrupt, OutcomeUnknown, StoreError, StoreUnavailable, TooLarge
from antiphon.hub.channel_log import ENVELOPES_PER_SNAPSHOT
from antiphon.hub.feed import MAX_TAIL_BYTES, TailCache
from antiphon.hub.system_channels import ParticipantRecord
from antiphon.orchestration import catalogue
from antiphon.orchestration.adapters import Conversation
from antiphon.testing import ManualClock
from tests.support.gated_store import AFTER, GatedStore
from tests.support.hub_places import InMemory
from tests.support.hub_team import Team, team
from tests.support.troubled_store import Trouble, TroubledStore
from tests.support.waiting import let_others_run, soon

LOST = OutcomeUnknown("the answer was lost")
AWAY = StoreUnavailable("the disk is full; nothing was recorded")


@pytest.fixture
async def here() -> AsyncIterator[Team]:
    async with team("alice", "bob", store=TroubledStore()) as found:
        yield found


def store_of(here: Team) -> TroubledStore:
    assert isinstance(here.store, TroubledStore)
    return here.store


def texts(log: list[Envelope]) -> list[object]:
    return [envelope.event_data["text"] for envelope in log if envelope.event_type == EV_TEXT]


async def heard(reader: Participant, count: int) -> list[Envelope]:
    inbox = reader.inbox()
    return [await soon(anext(inbox)) for _ in range(count)]


# Doubt: a sender that leaves, an answer that is lost


@pytest.fixture
async def on_disk(tmp_path: Path) -> AsyncIterator[Team]:
    clock = ManualClock()
    async with Hub.open(f"sqlite:///{tmp_path / 'team.db'}", clock=clock) as hub:
        found = Team(hub, clock)
        await found.join("alice", "bob")
        yield found


async def gives_up(work: Awaitable[object]) -> None:
    """Begin something and stop waiting for it while it is being written."""
    working = asyncio.ensure_future(work)
    await let_others_run(1)
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working


async def test_what_a_sender_said_who_did_not_wait_is_told(on_disk: Team) -> None:
    channel = await on_disk["alice"].open(type="discussion", target="bob")
    listening = on_disk.hub.subscribe(channel.channel_id, participant="bob", after=channel.state.sequence)
    telling = asyncio.ensure_future(anext(aiter(listening)))
    await let_others_run()
    await gives_up(channel.send("hello"))
    assert (await soon(telling)).event_data == {"text": "hello"}
    assert channel.state.expected_next_speaker == "bob"


async def test_a_close_nobody_waited_for_is_known(on_disk: Team) -> None:
    channel = await on_disk["alice"].open(target="bob")
    waiting = asyncio.ensure_future(channel.closed())
    await gives_up(channel.close("done"))
    assert await soon(waiting) == "done"
    assert [row.status for row in await on_disk.hub.channels()] == ["closed"]


async def test_a_channel_whose_opener_did_not_wait_expires(on_disk: Team) -> None:
    await gives_up(on_disk["alice"].open(target="bob", ttl=10))
    async with asyncio.timeout(5):
        for status in ("active", "expired"):
            while [row.status for row in await on_disk.hub.channels()] != [status]:
                await let_others_run(1)
            await on_disk.clock.advance(10)


async def test_an_answer_that_is_lost_for_good_is_found_by_repeating_the_call(here: Team) -> None:
    channel = await here["alice"].open(target="bob")
    reading = asyncio.ensure_future(heard(here["bob"], 3))
    await let_others_run()
    store_of(here).lose("append", LOST, LOST, LOST)
    with pytest.raises(OutcomeUnknown):
        await channel.send("hi", message_id="m1")
    again = await channel.send("hi", message_id="m1")
    assert (await soon(reading))[-1] == again
    assert texts(await here.log(channel)) == ["hi"]


async def test_an_answer_that_is_lost_for_good_is_told_without_anybody_repeating_it(here: Team) -> None:
    channel = await here["alice"].open(target="bob")
    reading = asyncio.ensure_future(heard(here["bob"], 3))
    await let_others_run()
    store_of(here).lose("append", LOST, LOST, LOST)
    with pytest.raises(OutcomeUnknown):
        await channel.send("hi")
    assert (await soon(reading))[-1].event_data == {"text": "hi"}


async def test_doubt_stays_doubt_when_the_store_goes_away(here: Team) -> None:
    """The first append was recorded: nobody may be told that nothing was."""
    channel = await here["alice"].open(target="bob")
    store = store_of(here)
    store.after["append"] = deque([_then_away(store)])
    with pytest.raises(OutcomeUnknown):
        await channel.send("pay", message_id="m1")
    await channel.send("pay", message_id="m1")
    assert texts(await here.log(channel)) == ["pay"]


def _then_away(store: TroubledStore) -> Trouble:
    async def trouble() -> None:
        store.fail("append", AWAY)
        raise LOST

    return trouble


async def test_what_still_waits_when_its_sender_leaves_is_not_recorded(clock: ManualClock) -> None:
    store = GatedStore(clock)
    async with team("alice", "bob", store=store, clock=clock) as here:
        channel = await here["alice"].open(target="bob")
        store.close_gate(channel.channel_id, AFTER)
        first = asyncio.ensure_future(channel.send("first"))
        await let_others_run()
        queued, last = (asyncio.ensure_future(channel.send(text)) for text in ("queued", "last"))
        await let_others_run()
        queued.cancel()
        store.let_pass()
        await soon(asyncio.gather(first, last))
        assert texts(await here.log(channel)) == ["first", "last"]


async def test_what_the_store_refused_is_not_folded(here: Team) -> None:
    channel = await here["alice"].open(type="discussion", target="bob")
    before = channel.state
    store_of(here).fail("append", AWAY)
    with pytest.raises(StoreUnavailable):
        await channel.send("lost")
    assert channel.state == before
    assert (await channel.send("kept")).sequence == before.sequence + 1
    assert texts(await here.log(channel)) == ["kept"]


async def test_a_channel_loaded_from_its_first_snapshot_is_what_it_was() -> None:
    store = TroubledStore()
    hub = await Hub.over(store)
    alice = await hub.register("alice")
    await hub.register("bob")
    channel = await alice.open(target="bob")
    await channel.set_context(topic="bridges")
    for number in range(ENVELOPES_PER_SNAPSHOT):
        await channel.send(f"number {number}")
    before = channel.state
    assert await store.get_snapshot(channel.channel_id) is not None
    await hub.close()
    hub = await Hub.over(store)
    assert (await (await hub.register("alice")).channel(channel.channel_id)).state == before
    await hub.close()


async def test_everybody_has_an_error_of_their_own(here: Team) -> None:
    channel = await here["alice"].open(target="bob")
    store_of(here).fail("append", *([AWAY] * 2))
    outcomes = await asyncio.gather(*(channel.send("x") for _ in range(5)), return_exceptions=True)
    failed = [each for each in outcomes if isinstance(each, StoreUnavailable)]
    assert len(failed) == 5
    assert len({id(each) for each in failed}) == 5
    assert {str(each) for each in failed} == {str(AWAY)}


@pytest.mark.parametrize(
    "error",
    [Conflict("c", 1, 2), IdReused("c", "i"), TooLarge("c", 3, 2), LogCorrupt("c", 4, "why"), Denied("no", "c", "d")],
    ids=lambda error: type(error).__name__,
)
def test_an_error_is_copied_and_pickled_whole(error: StoreError | Denied) -> None:
    for twin in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert (type(twin), str(twin), vars(twin)) == (type(error), str(error), vars(error))


# Snapshots


class Opaque:
    """A memory that cannot be written down."""


class Secretive(Conversation):
    name: ClassVar[str] = "test-secretive"
    memory: ClassVar[type] = Opaque

    def evolve(self, memory: Opaque, envelope: Envelope) -> Opaque:
        return memory


async def test_a_memory_that_cannot_be_kept_stops_nobody(here: Team) -> None:
    register_adapter(Secretive)
    try:
        channel = await here["alice"].open(type="test-secretive", target="bob")
        await soon(asyncio.gather(*(channel.send(str(number)) for number in range(600))))
        assert len(texts(await here.log(channel))) == 600
    finally:
        del catalogue._registered_adapters["test-secretive"]


# Inboxes


async def test_a_channel_that_ends_while_it_is_read_is_delivered_once(here: Team) -> None:
    channel = await here["alice"].open(target="bob")
    for number in range(3):
        await channel.send(str(number))

    async def closing() -> None:
        await channel.close("done")

    store_of(here).before["read"] = deque([closing])
    inbox = here["bob"].inbox()
    delivered = [await soon(anext(inbox)) for _ in range(6)]
    assert len({envelope.sequence for envelope in delivered}) == 6
    other = await here["alice"].open(target="bob")
    assert (await soon(anext(inbox))).channel_id == other.channel_id


async def test_damage_in_one_channel_is_told_and_the_others_are_delivered(tmp_path: Path) -> None:
    """The damage is older than the snapshot that the channel was loaded from."""
    path = tmp_path / "team.db"
    async with Hub.open(f"sqlite:///{path}") as hub:
        alice, _ = await hub.register("alice"), await hub.register("bob")
        bad, good = await alice.open(target="bob"), await alice.open(target="bob")
        await asyncio.gather(*(bad.send(str(number)) for number in range(300)))
        await bad.send("a snapshot is kept by now")
        await good.send("all well here")
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE log SET body = '{}' WHERE channel = ? AND seq = 50", (bad.channel_id,))
    connection.close()
    async with Hub.open(f"sqlite:///{path}") as hub:
        bob = await hub.register("bob")
        inbox = bob.inbox()
        delivered = [await soon(anext(inbox)) for _ in range(47 + 3)]
        by_channel = [envelope.channel_id for envelope in delivered]
        assert (by_channel.count(bad.channel_id), by_channel.count(good.channel_id)) == (47, 3)
        assert await bob.pending() <= 1
        assert [row.channel_id for row in await hub.channels(status="quarantined")] == [bad.channel_id]
        audited = [
            each.event_data["channel_id"] for each in await hub.log("system:audit") if "error" in each.event_data
        ]
        assert audited == [bad.channel_id]
        with pytest.raises(Denied, match="quarantined"):
            await (await bob.channel(bad.channel_id)).send("hello?")
        with pytest.raises(LogCorrupt):
            await soon(_collected(hub, bad.channel_id, []))
    async with Hub.open(f"sqlite:///{path}") as hub:
        assert (await (await hub.register("bob")).channel(bad.channel_id)).state.status == "quarantined"


async def test_a_channel_is_found_by_its_key_behind_damage_that_it_does_not_need(tmp_path: Path) -> None:
    path = tmp_path / "team.db"
    async with Hub.open(f"sqlite:///{path}") as hub:
        alice, _ = await hub.register("alice"), await hub.register("bob")
        channel = await alice.open(target="bob", key="k")
        await asyncio.gather(*(channel.post("test.note", {"number": number}) for number in range(300)))
        await channel.close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE log SET body = '{}' WHERE channel = ? AND seq = 200", (channel.channel_id,))
    connection.close()
    async with Hub.open(f"sqlite:///{path}") as hub:
        alice, _ = await hub.register("alice"), await hub.register("bob")
        found = await alice.open(target="bob", key="k")
        assert (found.channel_id, found.state.status) == (channel.channel_id, "closed")
        assert await hub.channels(status="quarantined") == []


async def test_an_inbox_says_when_it_cannot_read(here: Team) -> None:
    channel = await here["alice"].open(target="bob")
    await channel.send("hello")
    here.hub.core.channels._live.clear()
    store_of(here).fail("row", AWAY)
    with pytest.raises(StoreUnavailable):
        await heard(here["bob"], 1)
    assert texts(await heard(here["bob"], 3)) == ["hello"]


async def test_a_reader_that_is_replaced_ends_at_once(here: Team) -> None:
    old = asyncio.ensure_future(anext(here["bob"].inbox()))
    await let_others_run()
    new = asyncio.ensure_future(anext(here["bob"].inbox()))
    with pytest.raises(StopAsyncIteration):
        await soon(old)
    channel = await here["alice"].open(target="bob")
    assert (await soon(new)).channel_id == channel.channel_id


def test_what_is_kept_for_readers_is_bounded_in_bytes() -> None:
    recent = TailCache()
    large = [Envelope(event_type=EV_TEXT, event_data={"text": "x" * 20_000}, sequence=place) for place in range(1, 9)]
    recent.add(large)
    assert recent.after(0) == []
    assert recent.after(5) == large[5:]
    assert recent._size <= MAX_TAIL_BYTES


# Logs that end too early


async def test_a_log_that_lost_its_end_is_quarantined(tmp_path: Path) -> None:
    path = tmp_path / "team.db"
    async with Hub.open(f"sqlite:///{path}") as hub:
        alice, _ = await hub.register("alice"), await hub.register("bob")
        channel = await alice.open(target="bob")
        await asyncio.gather(*(channel.send(str(number)) for number in range(300)))
        await channel.send("a snapshot is kept by now")
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM log WHERE channel = ? AND seq > 200", (channel.channel_id,))
    connection.close()
    async with Hub.open(f"sqlite:///{path}") as hub:
        found = await (await hub.register("alice")).channel(channel.channel_id)
        with pytest.raises(Denied, match="quarantined"):
            await soon(found.send("hello?"))
        good: list[Envelope] = []
        with pytest.raises(LogCorrupt, match=r"went on to \d+ before"):
            await soon(_collected(hub, channel.channel_id, good))
        assert len(good) == 200


async def _collected(hub: Hub, channel_id: str, into: list[Envelope]) -> None:
    async for envelope in hub.subscribe(channel_id):
        into.append(envelope)


# The hub's own channels, registering, inviting, closing


async def test_a_registry_that_could_not_be_begun_is_begun_again() -> None:
    store = TroubledStore()
    store.fail("append", AWAY)
    hub = await Hub.over(store)
    with pytest.raises(StoreUnavailable):
        await hub.register("alice")
    await asyncio.gather(*(hub.register(name) for name in ("alice", "bob", "carol", "dave")))
    await hub.close()
    hub = await Hub.over(store)
    alice = await hub.register("alice")
    assert (await alice.open(target="bob")).state.status == "active"
    assert [row.status for row in await hub.channels(system=True)] == ["active", "active"]
    await hub.close()


async def test_a_name_that_could_not_be_registered_is_free(here: Team) -> None:
    store_of(here).fail("channels", AWAY)
    with pytest.raises(StoreUnavailable):
        await here.hub.register("carol")
    assert (await here.hub.register("carol")).name == "carol"


async def test_a_channel_of_unknown_rules_keeps_nobody_out(clock: ManualClock) -> None:
    register_adapter(Secretive)
    place = InMemory(clock)
    first = Team(await place.hub(clock), clock)
    await first.join("alice")
    await first.hub.register("bob", accept=_never)
    opening = asyncio.ensure_future(first["alice"].open(type="test-secretive", target="bob"))
    await let_others_run()
    await first.hub.close()
    with pytest.raises(Denied):
        await soon(opening)
    del catalogue._registered_adapters["test-secretive"]
    then = await place.hub(clock)
    assert (await then.register("bob")).name == "bob"
    await then.close()


async def _never(invite: Envelope) -> bool:
    await asyncio.Event().wait()
    return True


async def test_an_acceptance_that_could_not_be_recorded_is_recorded_later(here: Team) -> None:
    def accept(invite: Envelope) -> bool:
        store_of(here).fail("append", AWAY)
        return True

    await here.hub.register("guest", accept=accept)
    opening = asyncio.ensure_future(here["alice"].open(target="guest"))
    await let_others_run()
    assert not opening.done()
    await here.clock.advance(1)
    assert (await soon(opening)).state.status == "active"


async def test_a_guest_is_asked_once(here: Team) -> None:
    asked: list[str] = []

    async def accept(invite: Envelope) -> bool:
        asked.append(invite.channel_id)
        await let_others_run(5)
        return True

    here.hub.core.directory._known["guest"] = ParticipantRecord("guest", "service", asks=True)
    opening = asyncio.ensure_future(here["alice"].open(target="guest"))
    await here.hub.register("guest", accept=accept)
    channel = await soon(opening)
    assert asked == [channel.channel_id]


async def test_closing_goes_on_when_whoever_asked_for_it_leaves(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'team.db'}"
    hub = await Hub.open(url)
    closing = asyncio.ensure_future(hub.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.gather(closing, return_exceptions=True)
    await soon(hub.close())
    async with Hub.open(url) as again:
        assert (await again.register("alice")).name == "alice"


async def test_a_store_in_trouble_is_let_go_all_the_same(here: Team) -> None:
    channel = await here["alice"].open(target="bob")
    store = store_of(here)
    store.fail("append", AWAY)
    store.before["read"] = deque([_raise_away] * 3)
    sending = asyncio.ensure_future(channel.send("x"))
    await asyncio.sleep(0)
    await soon(here.hub.close())
    with pytest.raises((StoreUnavailable, UsageError)):
        await sending
    assert store.closed


async def _raise_away() -> None:
    raise AWAY


async def test_a_guest_may_close_the_hub(here: Team) -> None:
    async def accept(invite: Envelope) -> bool:
        await here.hub.close()
        return True

    await here.hub.register("guest", accept=accept)
    with pytest.raises(Denied, match="hub_closed"):
        await soon(here["alice"].open(target="guest"))
    await soon(here.hub.close())
    assert store_of(here).closed


async def test_a_thousand_guests_are_all_asked(here: Team) -> None:
    names = [f"guest-{number}" for number in range(1005)]
    for name in names:
        await here.hub.register(name, accept=lambda invite: True)
    channel = await soon(here["alice"].open(type="discussion", target=names))
    assert channel.state.status == "active"
    assert (await channel.close("enough")) == "enough"
    assert [each.event_type for each in await here.log(channel)].count(EV_CHANNEL_CLOSED) == 1
