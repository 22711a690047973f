"""The life of a channel: invited, opened, spoken in, closed or expired; each step a recorded fact."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from antiphon import (
    EV_CHANNEL_CLOSED,
    EV_CHANNEL_EXPIRED,
    EV_CHANNEL_INVITE,
    EV_CHANNEL_INVITE_ACK,
    EV_CHANNEL_INVITE_REJECT,
    EV_CHANNEL_OPENED,
    EV_PACKET,
    EV_TEXT,
    Channel,
    Denied,
    Envelope,
    UnknownParticipant,
    UsageError,
    WaitTimeout,
)
from antiphon.testing import ManualClock
from tests.support.gated_store import BEFORE, GatedStore
from tests.support.hub_places import Place
from tests.support.hub_team import Team, team
from tests.support.inspection import shown
from tests.support.waiting import let_others_run, soon

CREATED, ASSIGNED = "antiphon.channel.created", "antiphon.turn.assigned"
OPERATORS = ["hub:operators"]


@pytest.fixture
async def here(clock: ManualClock) -> AsyncIterator[Team]:
    async with team("alice", "bob", "carol", "hugo:human", "ada:agent", store=GatedStore(clock), clock=clock) as found:
        yield found


def batches(here: Team, channel_id: str) -> list[list[str]]:
    """What was recorded together, as the store was given it."""
    assert isinstance(here.store, GatedStore)
    return [[each.event_type for each in batch] for name, batch in here.store.appends if name == channel_id]


def told(log: list[Envelope]) -> list[tuple[str, str, list[str] | None]]:
    return [(each.sender_id, each.event_type, each.audience) for each in log]


# Opening


async def test_opening_is_one_batch_when_nobody_must_be_asked(here: Team) -> None:
    channel = await here["alice"].open(type="discussion", target=["bob", "carol"])
    log = await here.log(channel)
    assert told(log) == [
        ("hub", CREATED, OPERATORS),
        ("hub", EV_CHANNEL_INVITE, ["bob"]),
        ("hub", EV_CHANNEL_INVITE, ["carol"]),
        ("bob", EV_CHANNEL_INVITE_ACK, None),
        ("carol", EV_CHANNEL_INVITE_ACK, None),
        ("hub", EV_CHANNEL_OPENED, None),
        ("hub", ASSIGNED, OPERATORS),
    ]
    assert batches(here, channel.channel_id) == [[each.event_type for each in log]]
    assert [each.sequence for each in log] == [1, 2, 3, 4, 5, 6, 7]
    assert [each.causation_id for each in log[3:]] == [
        log[1].envelope_id,
        log[2].envelope_id,
        log[4].envelope_id,
        log[5].envelope_id,
    ]
    assert {each.created_at for each in log} == {here.clock.now()}


async def test_an_invitation_says_to_what(here: Team) -> None:
    channel = await here["alice"].open(type="discussion", target=["bob", "carol"])
    invite = (await here.log(channel))[1]
    assert invite.event_data == {
        "type": "discussion",
        "creator": "alice",
        "participants": ["alice", "bob", "carol"],
    }


async def test_a_new_channel_is_as_its_creator_wanted_it(here: Team) -> None:
    channel = await here["alice"].open(target="bob", ttl=60, context_vars={"topic": ["tea"]})
    state = channel.state
    assert (state.type, state.status, state.creator_id) == ("conversation", "active", "alice")
    assert state.participant_order == ["alice", "bob"]
    assert state.participants == {"alice": "service", "bob": "service"}
    assert (state.context_vars, state.turn_count, state.last_speaker_id) == ({"topic": ["tea"]}, 0, None)
    assert (state.created_at, state.expires_at) == ("2026-01-01T00:00:00.000000Z", "2026-01-01T00:01:00.000000Z")


async def test_a_state_in_hand_changes_nothing(here: Team) -> None:
    channel = await here["alice"].open(target="bob", context_vars={"topic": ["tea"]}, knobs={"interjectors": []})
    state = channel.state
    state.context_vars["topic"].append("milk")  # type: ignore[attr-defined]
    state.participants["mallory"] = "human"
    state.knobs["interjectors"] = ["mallory"]
    assert channel.state.context_vars == {"topic": ["tea"]}
    assert channel.state.participant_order == ["alice", "bob"]
    assert channel.state.knobs == {"interjectors": []}


async def test_what_was_handed_over_can_be_changed_afterwards(here: Team) -> None:
    knobs: dict[str, object] = {"writers": {"topic": ["alice"]}}
    context: dict[str, object] = {"topic": ["tea"]}
    channel = await here["alice"].open(target="bob", knobs=knobs, context_vars=context)
    knobs.clear()
    context["topic"] = "coffee"
    assert channel.state.context_vars == {"topic": ["tea"]}
    assert channel.state.knobs == {"writers": {"topic": ["alice"]}}


Accept = Callable[[Envelope], bool | Awaitable[bool]]


async def opened_by(here: Team, accept: Accept) -> tuple[asyncio.Future[Channel], str]:
    """A channel with a guest who decides in this way: what opening it comes to, and its id."""
    await here.hub.register("guest", accept=accept)
    opening = asyncio.ensure_future(here["alice"].open(type="discussion", target=["bob", "guest"]))
    await let_others_run()
    rows = await here.hub.channels(participant="guest")
    return opening, rows[0].channel_id


async def slowly(invite: Envelope) -> bool:
    await asyncio.sleep(0)
    return True


async def slowly_not(invite: Envelope) -> bool:
    await asyncio.sleep(0)
    return False


@pytest.mark.parametrize("accept", [lambda invite: True, slowly], ids=["at once", "in a while"])
async def test_a_guest_that_is_asked_and_accepts(here: Team, accept: Accept) -> None:
    opening, channel_id = await opened_by(here, accept)
    channel = await soon(opening)
    log = await here.log(channel)
    assert told(log) == [
        ("hub", CREATED, OPERATORS),
        ("hub", EV_CHANNEL_INVITE, ["bob"]),
        ("hub", EV_CHANNEL_INVITE, ["guest"]),
        ("bob", EV_CHANNEL_INVITE_ACK, None),
        ("guest", EV_CHANNEL_INVITE_ACK, None),
        ("hub", EV_CHANNEL_OPENED, None),
        ("hub", ASSIGNED, OPERATORS),
    ]
    assert log[4].causation_id == log[2].envelope_id
    assert [len(batch) for batch in batches(here, channel_id)] == [4, 3]
    assert channel.state.status == "active"


def refuses(invite: Envelope) -> bool:
    return False


def breaks(invite: Envelope) -> bool:
    raise RuntimeError("not today")


async def breaks_slowly(invite: Envelope) -> bool:
    await asyncio.sleep(0)
    raise RuntimeError("not today")


def breaks_unspeakably(invite: Envelope) -> bool:
    raise RuntimeError("half a letter: \ud800, and nothing: \x00")


@pytest.mark.parametrize("accept", [refuses, slowly_not, breaks, breaks_slowly, breaks_unspeakably])
async def test_a_guest_that_does_not_accept(here: Team, accept: Accept) -> None:
    opening, channel_id = await opened_by(here, accept)
    with pytest.raises(Denied) as caught:
        await soon(opening)
    assert (caught.value.reason, caught.value.channel_id) == ("invite_rejected:guest", channel_id)
    log = await here.hub.log(channel_id)
    assert told(log)[3:] == [
        ("bob", EV_CHANNEL_INVITE_ACK, None),
        ("guest", EV_CHANNEL_INVITE_REJECT, None),
        ("hub", EV_CHANNEL_CLOSED, None),
    ]
    assert log[-2].causation_id == log[2].envelope_id
    assert log[-1].event_data == {"reason": "invite_rejected:guest"}
    assert [len(batch) for batch in batches(here, channel_id)] == [4, 2]
    if accept in (breaks, breaks_slowly):
        assert log[-2].event_data == {"reason": "RuntimeError: not today"}
    rows = await here.hub.channels(status="closed")
    assert [(row.channel_id, row.close_reason) for row in rows] == [(channel_id, "invite_rejected:guest")]


async def test_the_guest_sees_what_it_decides_on(here: Team) -> None:
    seen: list[Envelope] = []
    opening, channel_id = await opened_by(here, lambda invite: not seen.append(invite))
    await soon(opening)
    assert seen == [(await here.hub.log(channel_id))[2]]


async def never(invite: Envelope) -> bool:
    await asyncio.Event().wait()
    return True


async def test_a_guest_that_never_answers(here: Team) -> None:
    opening, channel_id = await opened_by(here, never)
    with pytest.raises(Denied, match="channel_not_open") as early:
        await (await here["bob"].channel(channel_id)).send("hello?")
    assert early.value.reason == "channel_not_open"
    await here.clock.advance(29.9)
    assert not opening.done()
    await here.clock.advance(0.1)
    with pytest.raises(Denied) as caught:
        await soon(opening)
    assert caught.value.reason == "expectation_violated:acks_within"
    log = await here.hub.log(channel_id)
    assert shown(log[-2:]) == [("hub", "expectation.missed"), ("hub", "channel.closed")]
    assert log[-2].event_data["speakers"] == ["guest"]
    assert log[-2].audience == OPERATORS
    assert log[-1].event_data == {"reason": "expectation_violated:acks_within"}
    assert batches(here, channel_id)[-1] == ["antiphon.expectation.missed", EV_CHANNEL_CLOSED]


@pytest.mark.parametrize("accept", [None, lambda invite: True], ids=["with no opinion", "with an opinion"])
async def test_a_guest_that_comes_back_answers_what_waits(
    place: Place, clock: ManualClock, accept: Accept | None
) -> None:
    first = Team(await place.hub(clock), clock)
    await first.join("alice", "bob")
    await first.hub.register("guest", accept=never)
    opening = asyncio.ensure_future(first["alice"].open(type="discussion", target=["bob", "guest"]))
    while not (rows := await first.hub.channels(participant="guest")):
        await let_others_run(1)
    await first.hub.close()
    with pytest.raises(Denied, match="hub_closed"):
        await soon(opening)
    second = await place.hub(clock)
    await second.register("guest", accept=accept)
    async with asyncio.timeout(5):
        async for envelope in second.subscribe(rows[0].channel_id):
            if envelope.event_type == EV_CHANNEL_OPENED:
                break
    await second.close()


async def test_an_answer_that_comes_too_late_is_not_recorded(here: Team) -> None:
    answered = asyncio.Event()

    async def late(invite: Envelope) -> bool:
        await answered.wait()
        return True

    opening, channel_id = await opened_by(here, late)
    await here.clock.advance(30)
    with pytest.raises(Denied):
        await soon(opening)
    before = await here.hub.log(channel_id)
    answered.set()
    await let_others_run()
    assert await here.hub.log(channel_id) == before


async def test_guests_are_asked_at_once(here: Team) -> None:
    """Each waits for the other to have been asked; asked one after the other, nobody would ever answer."""
    asked: list[str] = []
    both = asyncio.Event()

    async def together(invite: Envelope) -> bool:
        asked.extend(invite.audience or ())
        if len(asked) == 2:
            both.set()
        await both.wait()
        return True

    for name in ("one", "two"):
        await here.hub.register(name, accept=together)
    channel = await soon(here["alice"].open(type="discussion", target=["one", "bob", "two"]))
    assert sorted(asked) == ["one", "two"]
    assert channel.state.status == "active"


async def test_somebody_unknown_cannot_be_invited(here: Team) -> None:
    with pytest.raises(UnknownParticipant, match="'zoe'"):
        await here["alice"].open(type="discussion", target=["bob", "zoe"])
    assert await here.hub.channels() == []


# Closing


async def test_anybody_in_it_may_close_it(here: Team) -> None:
    channel = await here["alice"].open(target="bob")
    waiting = asyncio.ensure_future(channel.closed(timeout=5))
    await let_others_run()
    assert await (await here.held_by("bob", channel)).close("enough") == "enough"
    assert await waiting == "enough"
    last = (await here.log(channel))[-1]
    assert (last.sender_id, last.event_type, last.audience) == ("hub", EV_CHANNEL_CLOSED, None)
    assert last.event_data == {"reason": "enough", "by": "bob"}
    assert (channel.state.status, channel.state.close_reason) == ("closed", "enough")
    assert channel.state.expected_next_speaker is None


async def test_it_is_closed_once(here: Team) -> None:
    channel = await here["alice"].open(target="bob")
    other = await here.held_by("bob", channel)
    reasons = await asyncio.gather(channel.close("first"), other.close("second"), channel.close("third"))
    assert reasons == ["first"] * 3
    assert [each.event_type for each in await here.log(channel)].count(EV_CHANNEL_CLOSED) == 1


async def test_waiting_for_an_end_that_does_not_come(here: Team) -> None:
    channel = await here["alice"].open(target="bob")
    with pytest.raises(WaitTimeout, match="still open"):
        await channel.closed(timeout=0)
    with pytest.raises(TimeoutError):
        await channel.closed(timeout=0)
    assert (await channel.send("still here")).event_type == EV_TEXT


async def test_whoever_waits_is_told_when_the_hub_closes(here: Team) -> None:
    channel = await here["alice"].open(target="bob")
    waiting = asyncio.ensure_future(channel.closed())
    await let_others_run()
    await here.hub.close()
    with pytest.raises(UsageError, match="was closed"):
        await waiting


async def test_an_opening_is_told_when_the_hub_closes(here: Team) -> None:
    opening, _ = await opened_by(here, never)
    await here.hub.close()
    with pytest.raises(Denied, match="hub_closed"):
        await soon(opening)


# Protocols


async def test_two_converse_freely(here: Team) -> None:
    alice = await here["alice"].open(target="bob")
    bob = await here.held_by("bob", alice)
    for handle in (bob, bob, alice, bob):
        await handle.send("as I like")
    assert (alice.state.turn_count, alice.state.last_speaker_id) == (4, "bob")
    assert alice.state.expected_next_speaker is None
    assert shown((await here.log(alice))[-4:]) == [(who, "msg.text") for who in ("bob", "bob", "alice", "bob")]


async def test_what_is_said_to_an_agent_is_a_turn_it_owes(here: Team) -> None:
    alice = await here["alice"].open(target="ada")
    asked = await alice.send("could you?")
    assert alice.state.speakers == ("ada",)
    assigned = (await here.log(alice))[-1]
    assert (assigned.event_type, assigned.audience) == (ASSIGNED, OPERATORS)
    assert assigned.causation_id == asked.envelope_id
    assert batches(here, alice.channel_id)[-1] == [EV_TEXT, ASSIGNED]
    await (await here.held_by("ada", alice)).send("I could")
    assert alice.state.speakers == ()


async def test_a_consultation_is_one_question_and_one_answer(here: Team) -> None:
    asker = await here["alice"].open(type="consulting", target="bob")
    consultant = await here.held_by("bob", asker)
    assert asker.state.expected_next_speaker == "alice"
    with pytest.raises(Denied, match="the turn is with alice"):
        await consultant.send("may I say something?")
    question = await asker.send("how much?")
    assert asker.state.expected_next_speaker == "bob"
    with pytest.raises(Denied) as caught:
        await asker.send("hello?")
    assert caught.value.reason == "not_expected_speaker"
    answer = await consultant.send("seven", causation_id=question.envelope_id)
    closing = (await here.log(asker))[-1]
    assert closing.causation_id == answer.envelope_id
    assert closing.event_data == {"reason": "answered"}
    assert batches(here, asker.channel_id)[-1] == [EV_TEXT, EV_CHANNEL_CLOSED]
    assert await asker.closed(timeout=0) == "answered"


async def test_a_discussion_goes_round(here: Team) -> None:
    channel = await here["alice"].open(type="discussion", target=["bob", "carol"])
    handles = {name: await here.held_by(name, channel) for name in ("alice", "bob", "carol")}
    for speaker in ("alice", "bob", "carol", "alice"):
        assert channel.state.expected_next_speaker == speaker
        for other in handles.keys() - {speaker}:
            with pytest.raises(Denied, match=f"the turn is with {speaker}"):
                await handles[other].send("me!")
        await handles[speaker].send("my word")
        assert batches(here, channel.channel_id)[-1] == [EV_TEXT, ASSIGNED]
    assert channel.state.turn_count == 4
    assert channel.state.expected_next_speaker == "bob"


async def test_a_packet_is_a_turn_with_what_it_changes(here: Team) -> None:
    channel = await here["alice"].open(type="discussion", target="bob", context_vars={"old": 1, "both": 1})
    updates = {"delete": ["old", "both"], "set": {"both": 2, "new": [3]}}
    await channel.post(EV_PACKET, {"body": "done", "routing": {}, "context_updates": updates})
    assert channel.state.context_vars == {"both": 2, "new": [3]}
    assert (channel.state.turn_count, channel.state.expected_next_speaker) == (1, "bob")


@pytest.mark.parametrize(("word_in", "named"), [("hugo", []), ("carol", ["carol"])], ids=["human", "named"])
async def test_an_interjection_does_not_move_the_turn(here: Team, word_in: str, named: list[str]) -> None:
    channel = await here["alice"].open(type="discussion", target=["bob", word_in], knobs={"interjectors": named})
    put_in = await (await here.held_by(word_in, channel)).send("a word, if I may")
    assert channel.state.expected_next_speaker == "alice"
    assert (channel.state.turn_count, channel.state.interjected) == (0, True)
    assert channel.state.last_envelope_id == put_in.envelope_id
    assert batches(here, channel.channel_id)[-1] == [EV_TEXT]
    await channel.send("thank you")
    assert (channel.state.turn_count, channel.state.interjected) == (1, False)
    assert channel.state.expected_next_speaker == "bob"


async def test_a_person_whose_turn_it_is_moves_it(here: Team) -> None:
    channel = await here["hugo"].open(type="discussion", target=["bob"])
    await channel.send("let us begin")
    assert channel.state.expected_next_speaker == "bob"


async def test_a_person_cannot_answer_a_question_nobody_asked(here: Team) -> None:
    asker = await here["alice"].open(type="consulting", target="hugo")
    await (await here.held_by("hugo", asker)).send("before you ask")
    assert (asker.state.status, asker.state.expected_next_speaker) == ("active", "alice")
    await asker.send("well?")
    await (await here.held_by("hugo", asker)).send("as I said")
    assert asker.state.close_reason == "answered"


async def test_a_context_key_may_name_its_writers(here: Team) -> None:
    channel = await here["alice"].open(
        type="discussion", target=["bob"], knobs={"writers": {"verdict": ["bob"]}}, context_vars={"verdict": "none"}
    )
    bob = await here.held_by("bob", channel)
    before = await here.records(channel)
    packet = {"body": "so", "context_updates": {"set": {"verdict": "guilty"}, "delete": []}}
    for attempt in (
        channel.set_context(verdict="guilty"),
        channel.set_context(free=1, verdict="guilty"),
        channel.delete_context("verdict"),
        channel.post(EV_PACKET, packet),
    ):
        with pytest.raises(Denied, match="'verdict'") as caught:
            await attempt
        assert caught.value.reason == "not_a_writer"
    assert await here.records(channel) == before
    await channel.set_context(free=1)
    await bob.set_context(verdict="innocent")
    assert channel.state.context_vars == {"free": 1, "verdict": "innocent"}


async def test_who_has_not_the_turn_may_still_write(here: Team) -> None:
    channel = await here["alice"].open(type="discussion", target=["bob"])
    await (await here.held_by("bob", channel)).set_context(seen=True)
    assert channel.state.context_vars == {"seen": True}
    assert (channel.state.turn_count, channel.state.expected_next_speaker) == (0, "alice")


# Expiry


async def test_a_channel_ends_when_its_time_is_over(here: Team) -> None:
    channel = await here["alice"].open(target="bob", ttl=60)
    await here.clock.advance(59.999)
    assert channel.state.status == "active"
    await here.clock.advance(0.001)
    log = await here.log(channel)
    assert told(log[-2:]) == [("hub", EV_CHANNEL_EXPIRED, None), ("hub", EV_CHANNEL_CLOSED, None)]
    assert log[-1].event_data == {"reason": "expired"}
    assert log[-1].causation_id == log[-2].envelope_id
    assert batches(here, channel.channel_id)[-1] == [EV_CHANNEL_EXPIRED, EV_CHANNEL_CLOSED]
    assert (channel.state.status, channel.state.close_reason) == ("expired", "expired")
    assert await channel.closed(timeout=0) == "expired"
    with pytest.raises(Denied, match="channel_closed"):
        await channel.send("one more thing")
    assert [row.channel_id for row in await here.hub.channels(status="expired")] == [channel.channel_id]


async def test_talking_does_not_prolong_a_life(here: Team) -> None:
    channel = await here["alice"].open(target="bob", ttl=60)
    for _ in range(6):
        await channel.send("still talking")
        await here.clock.advance(10)
    assert channel.state.status == "expired"


async def test_nothing_is_said_after_the_end_of_time(here: Team) -> None:
    """The deadline counts, not whether the hub has noticed it yet."""
    channel = await here["alice"].open(target="bob", ttl=60)
    here.clock.advance(60)
    with pytest.raises(Denied) as caught:
        await channel.send("am I late?")
    assert caught.value.reason == "channel_closed"
    assert [each.event_type for each in await here.log(channel)][-2:] == [EV_CHANNEL_EXPIRED, EV_CHANNEL_CLOSED]


async def test_time_that_passes_without_a_hub_counts(place: Place, clock: ManualClock) -> None:
    first = Team(await place.hub(clock), clock)
    await first.join("alice", "bob")
    channel = await first["alice"].open(target="bob", ttl=60)
    before = await first.records(channel)
    await first.hub.close()
    clock.advance(3600)
    then = Team(await place.hub(clock), clock)
    await clock.advance(2)
    log = await then.hub.log(channel.channel_id)
    assert (await then.records(channel))[: len(before)] == before
    assert told(log[len(before) :]) == [("hub", EV_CHANNEL_EXPIRED, None), ("hub", EV_CHANNEL_CLOSED, None)]
    await then.hub.close()


async def test_a_hub_that_opens_finds_nothing_left_open_that_is_over(place: Place, clock: ManualClock) -> None:
    first = Team(await place.hub(clock), clock)
    await first.join("alice", "bob")
    channel = await first["alice"].open(target="bob", ttl=60)
    await first.hub.close()
    clock.advance(3600)
    then = Team(await place.hub(clock), clock)
    await then.join("alice")
    with pytest.raises(Denied, match="channel_closed"):
        await (await then.held_by("alice", channel)).send("is anybody there?")
    await then.hub.close()


async def test_an_expiry_while_somebody_is_speaking(here: Team) -> None:
    """What was being recorded when time ran out is recorded; what comes next is too late."""
    channel = await here["alice"].open(target="bob", ttl=60)
    assert isinstance(here.store, GatedStore)
    here.store.close_gate(channel.channel_id, BEFORE)
    speaking = asyncio.ensure_future(channel.send("just in time"))
    await let_others_run()
    here.clock.advance(60)
    await let_others_run()
    here.store.let_pass()
    sent = await speaking
    await here.clock.advance(0)
    types = [each.event_type for each in await here.log(channel, sent.sequence - 1)]
    assert types == [EV_TEXT, EV_CHANNEL_EXPIRED, EV_CHANNEL_CLOSED]
