"""How drafts get in: one after the other, the urgent first, each id once; and what was refused is on record."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from antiphon import (
    EV_TEXT,
    Denied,
    Envelope,
    Hub,
    OutcomeUnknown,
    Priority,
    StoreError,
    StoreUnavailable,
    UsageError,
)
from antiphon.core.envelope import Instant
from antiphon.store.protocol import Appended
from antiphon.testing import ManualClock
from tests.support.gated_store import AFTER, BEFORE, GatedStore
from tests.support.hub_places import Place
from tests.support.hub_team import Team, team
from tests.support.inspection import fold_of, folded
from tests.support.waiting import let_others_run, soon

BACKGROUND, NORMAL, URGENT = Priority.BACKGROUND, Priority.NORMAL, Priority.URGENT


@pytest.fixture
async def here(clock: ManualClock) -> AsyncIterator[Team]:
    async with team("alice", "bob", store=GatedStore(clock), clock=clock) as found:
        yield found


def gated(here: Team) -> GatedStore:
    assert isinstance(here.store, GatedStore)
    return here.store


def words(envelopes: Sequence[Envelope]) -> list[object]:
    return [each.event_data["text"] for each in envelopes if each.event_type == EV_TEXT]


# Order


@pytest.mark.parametrize("when", [BEFORE, AFTER])
async def test_the_urgent_go_first_among_those_who_wait(here: Team, when: str) -> None:
    channel = await here["alice"].open(target="bob")
    gated(here).close_gate(channel.channel_id, when)
    priorities = [NORMAL, BACKGROUND, NORMAL, URGENT, BACKGROUND, URGENT, NORMAL]
    sending = []
    for number, priority in enumerate(priorities):
        sending.append(asyncio.ensure_future(channel.send(f"{priority.name} {number}", priority=priority)))
        await let_others_run(2)
    gated(here).let_pass()
    sent = await soon(asyncio.gather(*sending))
    assert words(await here.log(channel)) == [
        "NORMAL 0",
        "URGENT 3",
        "URGENT 5",
        "NORMAL 2",
        "NORMAL 6",
        "BACKGROUND 1",
        "BACKGROUND 4",
    ]
    assert [each.priority for each in sent] == priorities


async def test_nobody_waits_for_ever(here: Team) -> None:
    channel = await here["alice"].open(target="bob")
    gated(here).close_gate(channel.channel_id)
    sending = [asyncio.ensure_future(channel.send("first"))]
    await let_others_run(2)
    sending.append(asyncio.ensure_future(channel.send("patient", priority=BACKGROUND)))
    await let_others_run(2)
    sending.extend(asyncio.ensure_future(channel.send(f"{n}", priority=URGENT)) for n in range(80))
    await let_others_run(2)
    gated(here).let_pass()
    await soon(asyncio.gather(*sending))
    assert words(await here.log(channel)).index("patient") == 1 + 64


async def test_those_who_wait_are_recorded_together(here: Team) -> None:
    channel = await here["alice"].open(target="bob")
    gated(here).close_gate(channel.channel_id)
    sending = [asyncio.ensure_future(channel.send(str(number))) for number in range(50)]
    await let_others_run()
    before = len(gated(here).appends)
    gated(here).let_pass()
    sent = await soon(asyncio.gather(*sending))
    assert [len(batch) for _, batch in gated(here).appends[before:]] == [1, 49]
    assert [each.sequence for each in sent] == list(range(5, 55))


async def test_nothing_is_acknowledged_before_it_is_recorded(here: Team) -> None:
    channel = await here["alice"].open(target="bob")
    before = channel.state
    gated(here).close_gate(channel.channel_id, BEFORE)
    sending = asyncio.ensure_future(channel.send("hello"))
    await let_others_run()
    assert not sending.done()
    assert channel.state == before
    gated(here).let_pass()
    assert (await soon(sending)).sequence == before.sequence + 1
    assert channel.state.turn_count == 1


async def test_what_a_sender_changes_while_it_waits_changes_nothing(here: Team) -> None:
    """A draft is what it was when it was handed over, whatever becomes of the lists and dicts it was made of."""
    channel = await here["alice"].open(target="bob")
    gated(here).close_gate(channel.channel_id)
    sending = [asyncio.ensure_future(channel.send("first"))]
    await let_others_run()
    names = ["bob"]
    text: dict[str, object] = {"text": "as it was", "tags": [1]}
    thing: dict[str, object] = {"tags": [1]}
    by_hand = Envelope("", channel.channel_id, "alice", names, EV_TEXT, text)
    sending += [
        asyncio.ensure_future(channel.post(EV_TEXT, text, audience=names)),
        asyncio.ensure_future(channel.post("myapp.thing", thing, audience=names)),
        asyncio.ensure_future(here.hub.post(by_hand)),
    ]
    await let_others_run()
    names[:] = ["alice", 7]  # type: ignore[list-item]
    text["text"], text["tags"] = None, float("nan")
    thing["tags"] = {1, 2}
    gated(here).let_pass()
    _, *sent = await soon(asyncio.gather(*sending))
    tagged = {"text": "as it was", "tags": [1]}
    assert [(each.audience, each.event_data) for each in (await here.log(channel))[-3:]] == [
        (["bob"], tagged),
        (["bob"], {"tags": [1]}),
        (["bob"], tagged),
    ]
    assert (await here.log(channel))[-3:] == sent


# The same again


async def test_the_same_message_is_recorded_once(here: Team) -> None:
    channel = await here["alice"].open(target="bob")
    first = await channel.send("pay 7", message_id="order-7", priority=URGENT)
    before = await here.records(channel)
    assert await channel.send("pay 7", message_id="order-7") == first
    await channel.close()
    assert await channel.send("pay 7", message_id="order-7") == first
    assert (await here.records(channel))[:-1] == before


@pytest.mark.parametrize(
    "again",
    [
        {"text": "pay 8"},
        {"audience": ["bob"]},
        {"causation_id": "because"},
    ],
    ids=str,
)
async def test_the_same_id_with_other_content_is_a_conflict(here: Team, again: dict[str, object]) -> None:
    channel = await here["alice"].open(target="bob")
    await channel.send("pay 7", message_id="order-7")
    before = await here.records(channel)
    with pytest.raises(Denied) as caught:
        await channel.send(**{"text": "pay 7", "message_id": "order-7", **again})  # type: ignore[arg-type]
    assert caught.value.reason == "conflict"
    assert await here.records(channel) == before


@pytest.mark.parametrize(("first", "then"), [(1, True), (0, False), ([1], [True])])
async def test_what_only_python_takes_for_equal_is_a_conflict(here: Team, first: object, then: object) -> None:
    channel = await here["alice"].open(target="bob")
    await channel.post("myapp.order", {"n": first}, message_id="order-7")
    with pytest.raises(Denied, match="conflict"):
        await channel.post("myapp.order", {"n": then}, message_id="order-7")


async def test_ids_are_a_senders_own(here: Team) -> None:
    channel = await here["alice"].open(target="bob")
    bob = await here.held_by("bob", channel)
    other = await here["alice"].open(target="bob")
    sent = [await each.send("hi", message_id="1") for each in (channel, bob, other)]
    assert len({each.envelope_id for each in sent}) == 3


async def test_duplicates_at_once_are_one_record(here: Team) -> None:
    channel = await here["alice"].open(target="bob")
    gated(here).close_gate(channel.channel_id)
    handles = [await here.held_by("alice", channel) for _ in range(4)]
    sending = [asyncio.ensure_future(each.send("pay 7", message_id="order-7")) for each in handles * 3]
    sending.append(asyncio.ensure_future(channel.send("pay 8", message_id="order-7")))
    await let_others_run()
    gated(here).let_pass()
    *sent, other = await soon(asyncio.gather(*sending, return_exceptions=True))
    assert len({each.envelope_id for each in sent if isinstance(each, Envelope)}) == 1
    assert isinstance(other, Denied)
    assert other.reason == "conflict"
    assert words(await here.log(channel)) == ["pay 7"]


async def test_the_same_message_to_the_next_hub(place: Place, clock: ManualClock) -> None:
    hub = Team(await place.hub(clock), clock)
    await hub.join("alice", "bob")
    channel = await hub["alice"].open(target="bob")
    first = await channel.send("pay 7", message_id="order-7")
    await hub.hub.close()
    then = Team(await place.hub(clock), clock)
    await then.join("alice", "bob")
    again = await then.held_by("alice", channel)
    assert await again.send("pay 7", message_id="order-7") == first
    with pytest.raises(Denied, match="conflict"):
        await again.send("pay 9", message_id="order-7")
    assert words(await then.log(channel)) == ["pay 7"]
    await then.hub.close()


async def test_a_refused_message_may_be_sent_again(here: Team) -> None:
    channel = await here["alice"].open(type="discussion", target="bob")
    bob = await here.held_by("bob", channel)
    with pytest.raises(Denied, match="not_expected_speaker"):
        await bob.send("me", message_id="1")
    await channel.send("go on")
    assert (await bob.send("me", message_id="1")).event_data == {"text": "me"}


class SharedStore:
    """One store as another hub sees it, whose appends wait until they are let through."""

    def __init__(self, store: GatedStore) -> None:
        self._store = store
        self.gate = asyncio.Event()
        self.gate.set()

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    async def append(
        self, channel: str, batch: Sequence[Envelope], *, expected: int, due: Instant | None = None
    ) -> Appended:
        await self.gate.wait()
        return await self._store.append(channel, batch, expected=expected, due=due)

    async def close(self) -> None:
        pass


async def test_two_hubs_that_are_sent_the_same_lose_nothing_else(here: Team) -> None:
    """One hub has the message recorded while the other is about to record it together with somebody else's."""
    shared = SharedStore(gated(here))
    other = Team(await Hub.over(shared, clock=here.clock), here.clock)  # type: ignore[arg-type]
    await other.join("alice", "bob")
    channel = await here["alice"].open(target="bob")
    far, bob = await other.held_by("alice", channel), await other.held_by("bob", channel)
    shared.gate.clear()
    sending = [asyncio.ensure_future(far.send("first"))]
    await let_others_run()
    sending += [
        asyncio.ensure_future(far.send("pay 7", message_id="order-7")),
        asyncio.ensure_future(bob.send("mine too")),
    ]
    await let_others_run()
    shared.gate.set()
    await let_others_run(1)
    shared.gate.clear()
    await let_others_run()
    first = await channel.send("pay 7", message_id="order-7")
    shared.gate.set()
    sent = await soon(asyncio.gather(*sending))
    log = await here.log(channel)
    assert sorted(map(str, words(log))) == ["first", "mine too", "pay 7"]
    assert sent[1] == first
    assert set(map(str, words(sent))) == {"first", "pay 7", "mine too"}
    for each in sent:
        assert log[each.sequence - 1] == each
    assert await fold_of(other.hub, channel.channel_id) == folded(log)
    await other.hub.close()


# Trouble with the store


class FailingStore(GatedStore):
    """Fails as told, before or after it has recorded."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.faults: list[tuple[type[StoreError], str]] = []

    async def append(
        self, channel: str, batch: Sequence[Envelope], *, expected: int, due: Instant | None = None
    ) -> Appended:
        error, when = self.faults.pop(0) if self.faults else (None, "")
        if error is not None and when == BEFORE:
            raise error("the disk is gone")
        appended = await super().append(channel, batch, expected=expected, due=due)
        if error is not None:
            raise error("the answer is lost")
        return appended


@pytest.mark.parametrize("faults", [1, 2])
@pytest.mark.parametrize("when", [BEFORE, AFTER])
async def test_a_lost_answer_is_asked_for_again(clock: ManualClock, when: str, faults: int) -> None:
    store = FailingStore(clock)
    async with team("alice", "bob", store=store, clock=clock) as here:
        channel = await here["alice"].open(type="discussion", target="bob")
        store.faults = [(OutcomeUnknown, when)] * faults
        sent = await channel.send("hello")
        log = await here.log(channel)
        assert words(log) == ["hello"]
        assert log[sent.sequence - 1] == sent
        assert await fold_of(here.hub, channel.channel_id) == folded(log)


@pytest.mark.parametrize("when", [BEFORE, AFTER])
async def test_an_answer_lost_for_good_is_an_error_and_the_log_is_read_again(clock: ManualClock, when: str) -> None:
    store = FailingStore(clock)
    async with team("alice", "bob", store=store, clock=clock) as here:
        channel = await here["alice"].open(type="discussion", target="bob")
        store.faults = [(OutcomeUnknown, when)] * 3
        with pytest.raises(OutcomeUnknown):
            await channel.send("hello", message_id="1")
        assert words([await channel.send("hello", message_id="1")]) == ["hello"]
        log = await here.log(channel)
        assert words(log) == ["hello"]
        assert await fold_of(here.hub, channel.channel_id) == folded(log)


async def test_a_store_that_is_away_is_an_error_and_nothing_is_recorded(clock: ManualClock) -> None:
    store = FailingStore(clock)
    async with team("alice", "bob", store=store, clock=clock) as here:
        channel = await here["alice"].open(type="discussion", target="bob")
        before = await here.records(channel)
        store.faults = [(StoreUnavailable, BEFORE)]
        with pytest.raises(StoreUnavailable):
            await channel.send("hello")
        assert await here.records(channel) == before
        await channel.send("hello")
        assert words(await here.log(channel)) == ["hello"]


async def test_a_registration_that_failed_is_made_again(clock: ManualClock) -> None:
    store = FailingStore(clock)
    async with team("alice", store=store, clock=clock) as here:
        store.faults = [(StoreUnavailable, BEFORE)]
        with pytest.raises(StoreUnavailable):
            await here.hub.register("bob")
        await here.hub.register("bob")
        registered = [each.event_data.get("name") for each in await here.hub.log("system:registry")]
        assert registered.count("bob") == 1


async def test_many_register_at_once(clock: ManualClock) -> None:
    store = GatedStore(clock)
    async with team(store=store, clock=clock) as here:
        names = [f"agent-{number}" for number in range(20)]
        store.close_gate("system:registry")
        joining = [asyncio.ensure_future(here.hub.register(name)) for name in names]
        await let_others_run()
        store.let_pass()
        await soon(asyncio.gather(*joining))
        registered = [each.event_data.get("name") for each in await here.hub.log("system:registry")]
        assert sorted(name for name in registered if isinstance(name, str)) == sorted(names)


async def test_names_that_differ_in_case_cannot_slip_in_together(clock: ManualClock) -> None:
    store = GatedStore(clock)
    async with team("zoe", store=store, clock=clock) as here:
        store.close_gate("system:registry")
        joining = [asyncio.ensure_future(here.hub.register(name)) for name in ("alice", "Alice", "ALICE", "alice")]
        await let_others_run()
        store.let_pass()
        outcomes = await soon(asyncio.gather(*joining, return_exceptions=True))
        assert [isinstance(each, UsageError) for each in outcomes] == [False, True, True, True]
        registered = [each.event_data.get("name") for each in await here.hub.log("system:registry")]
        assert [name for name in registered if name and name != "zoe"] == ["alice"]


async def test_a_registration_that_is_given_up_can_be_made_again(clock: ManualClock) -> None:
    store = GatedStore(clock)
    async with team("zoe", store=store, clock=clock) as here:
        store.close_gate("system:registry")
        joining = asyncio.ensure_future(here.hub.register("alice"))
        await let_others_run()
        joining.cancel()
        await asyncio.gather(joining, return_exceptions=True)
        store.let_pass()
        assert (await soon(here.hub.register("alice"))).name == "alice"


# Cancelling


@pytest.mark.parametrize("when", [BEFORE, AFTER])
async def test_a_sender_that_gives_up_leaves_the_channel_working(here: Team, when: str) -> None:
    channel = await here["alice"].open(type="discussion", target="bob")
    gated(here).close_gate(channel.channel_id, when)
    sending = [asyncio.ensure_future(channel.set_context(n=number)) for number in range(4)]
    await let_others_run()
    for place in (0, 2):
        sending[place].cancel()
    await let_others_run()
    gated(here).let_pass()
    outcomes = await soon(asyncio.gather(*sending, return_exceptions=True))
    assert [type(each) for each in outcomes] == [
        asyncio.CancelledError,
        Envelope,
        asyncio.CancelledError,
        Envelope,
    ]
    await channel.send("on we go")
    log = await here.log(channel)
    assert [each.sequence for each in log] == list(range(1, len(log) + 1))
    assert {1, 3} <= {each.event_data["set"]["n"] for each in log if "set" in each.event_data}  # type: ignore[index]
    assert await fold_of(here.hub, channel.channel_id) == folded(log)


async def test_everybody_gives_up(here: Team) -> None:
    channel = await here["alice"].open(type="discussion", target="bob")
    gated(here).close_gate(channel.channel_id)
    sending = [asyncio.ensure_future(channel.set_context(n=number)) for number in range(4)]
    await let_others_run()
    for task in sending:
        task.cancel()
    await asyncio.gather(*sending, return_exceptions=True)
    gated(here).let_pass()
    assert (await soon(channel.send("on we go"))).event_data == {"text": "on we go"}
    assert await fold_of(here.hub, channel.channel_id) == folded(await here.log(channel))


# What was refused


async def test_a_refusal_is_recorded_for_whoever_looks_after_the_hub(here: Team) -> None:
    channel = await here["alice"].open(type="discussion", target="bob")
    bob = await here.held_by("bob", channel)
    with pytest.raises(Denied):
        await bob.send("let me speak")
    assert await here.audited() == [
        {
            "reason": "not_expected_speaker",
            "channel_id": channel.channel_id,
            "sender_id": "bob",
            "event_type": EV_TEXT,
            "left_out": 0,
        }
    ]
    assert [row.channel_id for row in await here.hub.channels()] == [channel.channel_id]
    assert "system:audit" in [row.channel_id for row in await here.hub.channels(system=True)]


async def test_refusals_cannot_fill_a_disk(here: Team) -> None:
    """A hundred at once, then one a second; those left out are counted in the next."""
    channel = await here["alice"].open(type="discussion", target="bob")
    bob = await here.held_by("bob", channel)

    async def refused(times: int) -> None:
        for _ in range(times):
            with pytest.raises(Denied):
                await bob.send("let me speak")

    await refused(130)
    assert len(await here.audited()) == 100
    await here.clock.advance(2)
    await refused(5)
    records = await here.audited()
    assert len(records) == 102
    assert [record["left_out"] for record in records[-2:]] == [30, 0]
    await here.clock.advance(10_000)
    await refused(130)
    assert len(await here.audited()) == 202


async def test_many_first_refusals_at_once_are_all_recorded(here: Team) -> None:
    channel = await here["alice"].open(type="discussion", target="bob")
    bob = await here.held_by("bob", channel)
    gated(here).close_gate("system:audit")
    refusing = [asyncio.ensure_future(bob.send("me")) for _ in range(10)]
    await let_others_run()
    gated(here).let_pass()
    outcomes = await soon(asyncio.gather(*refusing, return_exceptions=True))
    assert {type(each) for each in outcomes} == {Denied}
    assert len(await here.audited()) == 10


async def test_a_refusal_that_cannot_be_recorded_is_a_refusal_still(clock: ManualClock) -> None:
    store = FailingStore(clock)
    async with team("alice", "bob", store=store, clock=clock) as here:
        channel = await here["alice"].open(type="discussion", target="bob")
        store.faults = [(StoreUnavailable, BEFORE)]
        with pytest.raises(Denied) as caught:
            await (await here.held_by("bob", channel)).send("me")
        assert "could not be recorded" in caught.value.__notes__[0]
        await channel.send("all the same")
