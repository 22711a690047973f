"""What must happen within a time, and what the hub does if not: told once, to the right people, at the instant."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from antiphon import (
    EV_CHANNEL_CLOSED,
    EV_EXPECTATION_VIOLATED,
    Denied,
    Envelope,
    RulesInvalid,
)
from antiphon.testing import ManualClock
from tests.support.gated_store import AFTER, GatedStore
from tests.support.hub_places import Place
from tests.support.hub_team import Team, team
from tests.support.inspection import watched
from tests.support.waiting import let_others_run, soon

MISSED = "antiphon.expectation.missed"
OPERATORS = ["hub:operators"]
NAMES = ("acks_within", "reply_within", "max_silence", "turn_within")
OFF = [{"name": name, "seconds": 0} for name in NAMES]


@pytest.fixture
async def here(clock: ManualClock) -> AsyncIterator[Team]:
    async with team("alice", "bob", "hugo:human", store=GatedStore(clock), clock=clock) as found:
        yield found


def only(name: str, seconds: float, handler: str) -> dict[str, object]:
    """Knobs under which this is expected and nothing else."""
    others = [entry for entry in OFF if entry["name"] != name]
    return {"expectations": [*others, {"name": name, "seconds": seconds, "handler": handler}]}


async def never(invite: Envelope) -> bool:
    await asyncio.Event().wait()
    return True


async def waiting_for(here: Team, name: str, handler: str) -> str:
    """A channel in which a minute counts from now on."""
    knobs = only(name, 60, handler)
    match name:
        case "acks_within":
            await here.hub.register("shy", accept=never)
            opening = asyncio.ensure_future(here["alice"].open(type="discussion", target="shy", knobs=knobs))
            opening.add_done_callback(lambda done: done.exception())
            await let_others_run()
            return (await here.hub.channels(participant="shy"))[0].channel_id
        case "reply_within":
            channel = await here["alice"].open(type="consulting", target="bob", knobs=knobs)
            await here.clock.advance(100)
            await channel.send("well?")
        case _:
            channel = await here["alice"].open(type="discussion", target="bob", knobs=knobs)
    return channel.channel_id


OWING = {"acks_within": ["shy"], "reply_within": ["bob"], "max_silence": ["alice"], "turn_within": ["alice"]}


@pytest.mark.parametrize("handler", ["audit", "warn", "auto_close"])
@pytest.mark.parametrize("name", NAMES)
async def test_each_expectation_under_each_handler(here: Team, name: str, handler: str) -> None:
    channel_id = await waiting_for(here, name, handler)
    before = len(await here.hub.log(channel_id))
    await here.clock.advance(59.999)
    assert len(await here.hub.log(channel_id)) == before
    await here.clock.advance(0.001)
    log = (await here.hub.log(channel_id))[before:]
    first = log[0]
    assert (first.sender_id, first.created_at) == ("hub", here.clock.now())
    assert first.event_data["expectation"] == name
    assert (first.event_data["handler"], first.event_data["seconds"]) == (handler, 60)
    assert first.event_data["speakers"] == OWING[name]
    told = (EV_EXPECTATION_VIOLATED, None) if handler == "warn" else (MISSED, OPERATORS)
    assert (first.event_type, first.audience) == told
    assert isinstance(here.store, GatedStore)
    assert [each.envelope_id for each in here.store.appends[-1][1]] == [each.envelope_id for each in log]
    if handler == "auto_close":
        assert [each.event_type for each in log] == [MISSED, EV_CHANNEL_CLOSED]
        assert log[1].event_data == {"reason": f"expectation_violated:{name}"}
        assert log[1].causation_id == first.envelope_id
    else:
        assert len(log) == 1


@pytest.mark.parametrize("handler", ["audit", "warn"])
@pytest.mark.parametrize("name", NAMES)
async def test_it_is_told_once(here: Team, name: str, handler: str) -> None:
    channel_id = await waiting_for(here, name, handler)
    await here.clock.advance(60)
    told = await here.hub.log(channel_id)
    for _ in range(5):
        await here.clock.advance(600)
    assert await here.hub.log(channel_id) == told


@pytest.mark.parametrize("name", NAMES[1:])
async def test_it_is_told_once_and_not_again_by_the_next_hub(place: Place, clock: ManualClock, name: str) -> None:
    first = Team(await place.hub(clock), clock)
    await first.join("alice", "bob")
    await watched(clock)
    channel_id = await waiting_for(first, name, "warn")
    await clock.advance(60)
    told = await first.hub.log(channel_id)
    assert told[-1].event_type == EV_EXPECTATION_VIOLATED
    await first.hub.close()
    clock.advance(600)
    then = Team(await place.hub(clock), clock)
    await watched(clock)
    for _ in range(3):
        await clock.advance(600)
    assert await then.hub.log(channel_id) == told
    await then.hub.close()


async def test_it_is_told_again_of_the_next_occurrence(here: Team) -> None:
    channel = await here["alice"].open(type="discussion", target="bob", knobs=only("turn_within", 60, "warn"))
    bob = await here.held_by("bob", channel)
    for speaker in (channel, bob, channel):
        await here.clock.advance(90)
        await speaker.send("sorry")
    told = [each for each in await here.log(channel) if each.event_type == EV_EXPECTATION_VIOLATED]
    assert [each.event_data["speakers"] for each in told] == [["alice"], ["bob"], ["alice"]]
    assert len({str(each.event_data["mark"]) for each in told}) == 3


async def test_who_is_in_time_is_told_nothing(here: Team) -> None:
    channel = await here["alice"].open(type="discussion", target="bob", knobs=only("turn_within", 60, "auto_close"))
    bob = await here.held_by("bob", channel)
    for speaker in (channel, bob) * 5:
        await here.clock.advance(59)
        await speaker.send("in time")
    assert channel.state.status == "active"
    assert not [each for each in await here.log(channel) if each.event_type == MISSED]


async def test_a_reply_is_awaited_from_the_first_question_on(here: Team) -> None:
    channel = await here["alice"].open(target="bob", knobs=only("reply_within", 60, "warn"))
    question = await channel.send("hello?")
    await here.clock.advance(50)
    await channel.send("hello??")
    await here.clock.advance(10)
    told = (await here.log(channel))[-1]
    assert (told.event_type, told.event_data["mark"]) == (EV_EXPECTATION_VIOLATED, question.envelope_id)


async def test_nothing_is_awaited_before_anybody_has_asked(here: Team) -> None:
    channel = await here["alice"].open(target="bob", knobs=only("reply_within", 60, "auto_close"))
    await here.clock.advance(6000)
    assert channel.state.status == "active"


async def test_whatever_a_participant_does_breaks_the_silence(here: Team) -> None:
    channel = await here["alice"].open(target="bob", knobs=only("max_silence", 60, "auto_close"))
    for act in (channel.set_context(a=1), channel.post("myapp.ping", {}), channel.send("hm")):
        await here.clock.advance(59)
        await act
    await here.clock.advance(59)
    assert channel.state.status == "active"
    await here.clock.advance(1)
    assert channel.state.close_reason == "expectation_violated:max_silence"


async def test_the_hub_itself_does_not_break_the_silence(here: Team) -> None:
    knobs = {
        "expectations": [
            *(entry for entry in OFF if entry["name"] != "max_silence"),
            {"name": "max_silence", "seconds": 30, "handler": "warn"},
            {"name": "max_silence", "seconds": 60, "handler": "auto_close"},
        ]
    }
    channel = await here["alice"].open(target="bob", knobs=knobs)
    await here.clock.advance(30)
    await here.clock.advance(30)
    types = [each.event_type for each in await here.log(channel)][-3:]
    assert types == [EV_EXPECTATION_VIOLATED, MISSED, EV_CHANNEL_CLOSED]


async def test_several_that_fall_due_together_come_in_order(here: Team) -> None:
    """After a long absence the earlier one is told first, and what closes the channel is the last."""
    channel = await here["alice"].open(type="discussion", target="bob")
    await here.clock.advance(6000)
    log = (await here.log(channel))[5:]
    assert [each.event_type for each in log] == [EV_EXPECTATION_VIOLATED, MISSED, EV_CHANNEL_CLOSED]
    assert [each.event_data.get("seconds") for each in log] == [120, 600, None]


async def test_the_life_span_wins_over_what_comes_later(here: Team) -> None:
    channel = await here["alice"].open(
        type="discussion", target="bob", ttl=60, knobs=only("turn_within", 61, "auto_close")
    )
    await here.clock.advance(100)
    assert (channel.state.status, channel.state.close_reason) == ("expired", "expired")


# Defaults, and how to change them


@pytest.mark.parametrize(("channel_type", "name"), [("discussion", "turn_within"), ("consulting", "reply_within")])
async def test_a_turn_has_two_minutes_then_ten(here: Team, channel_type: str, name: str) -> None:
    channel = await here["alice"].open(type=channel_type, target="bob")
    if name == "reply_within":
        await channel.send("well?")
    await here.clock.advance(120)
    last = (await here.log(channel))[-1]
    assert (last.event_type, last.event_data["expectation"]) == (EV_EXPECTATION_VIOLATED, name)
    await here.clock.advance(479.9)
    assert channel.state.status == "active"
    await here.clock.advance(0.1)
    assert (channel.state.status, channel.state.close_reason) == ("closed", f"expectation_violated:{name}")
    with pytest.raises(Denied, match="channel_closed"):
        await channel.send("too late")


async def test_a_conversation_expects_nothing_of_its_speakers(here: Team) -> None:
    channel = await here["alice"].open(target="bob")
    await channel.send("take your time")
    await here.clock.advance(1_000_000)
    assert channel.state.status == "active"


async def test_naming_one_replaces_all_of_that_name(here: Team) -> None:
    knobs = {"expectations": [{"name": "turn_within", "seconds": 300, "handler": "warn"}]}
    channel = await here["alice"].open(type="discussion", target="bob", knobs=knobs)
    await here.clock.advance(299)
    assert len(await here.log(channel)) == 5
    await here.clock.advance(1)
    assert (await here.log(channel))[-1].event_type == EV_EXPECTATION_VIOLATED
    await here.clock.advance(100_000)
    assert channel.state.status == "active"


async def test_the_others_stay_as_they_were(here: Team) -> None:
    knobs = {"expectations": [{"name": "turn_within", "seconds": 0}]}
    await here.hub.register("shy", accept=never)
    opening = asyncio.ensure_future(here["alice"].open(type="discussion", target="shy", knobs=knobs))
    await let_others_run()
    await here.clock.advance(30)
    with pytest.raises(Denied, match="expectation_violated:acks_within"):
        await soon(opening)


async def test_zero_seconds_switch_it_off(here: Team) -> None:
    channel = await here["alice"].open(type="discussion", target="bob", knobs={"expectations": OFF})
    await here.clock.advance(1_000_000)
    assert channel.state.status == "active"
    assert len(await here.log(channel)) == 5


async def test_a_name_that_is_unknown_lists_those_that_are_not(here: Team) -> None:
    with pytest.raises(RulesInvalid, match="acks_within, reply_within, max_silence, turn_within"):
        await here["alice"].open(target="bob", knobs=only("smile_within", 60, "warn"))
    with pytest.raises(RulesInvalid, match="audit, warn, auto_close"):
        await here["alice"].open(target="bob", knobs=only("max_silence", 60, "shout"))


# People


async def test_nobody_hurries_a_person(here: Team) -> None:
    channel = await here["alice"].open(type="discussion", target="hugo")
    await channel.send("what do you think?")
    await here.clock.advance(1_000_000)
    assert channel.state.status == "active"
    await (await here.held_by("hugo", channel)).send("let me see")
    await here.clock.advance(600)
    assert channel.state.close_reason == "expectation_violated:turn_within"


async def test_nobody_hurries_a_person_for_a_reply(here: Team) -> None:
    channel = await here["alice"].open(type="consulting", target="hugo")
    await channel.send("what do you think?")
    await here.clock.advance(1_000_000)
    assert channel.state.expected_next_speaker == "hugo"


async def test_the_clock_starts_when_a_person_has_answered(here: Team) -> None:
    """The person answers at the very instant at which the hub looks at the channel for an older deadline."""
    channel = await here["alice"].open(type="discussion", target="hugo", knobs=only("turn_within", 60, "auto_close"))
    await here.clock.advance(50)
    await channel.send("over to you")
    here.clock.advance(10)
    await (await here.held_by("hugo", channel)).send("back to you")
    await here.clock.advance(0)
    await here.clock.advance(60)
    assert channel.state.close_reason == "expectation_violated:turn_within"


async def test_a_deadline_that_begins_while_the_hub_looks_is_kept(here: Team) -> None:
    """The hub has found nothing to wait for, and has not yet noted it, when the person's answer is on its way."""
    store = here.store
    assert isinstance(store, GatedStore)
    channel = await here["alice"].open(type="discussion", target="hugo", knobs=only("turn_within", 60, "auto_close"))
    hugo = await here.held_by("hugo", channel)
    await here.clock.advance(50)
    await channel.send("over to you")
    store.close_gate(channel.channel_id, AFTER)
    sending = [asyncio.ensure_future(channel.post("myapp.note", {"n": n})) for n in (1, 2)]
    await let_others_run()
    here.clock.advance(10)
    await let_others_run()
    store.let_one_pass()
    await let_others_run()
    sending.append(asyncio.ensure_future(hugo.send("back to you")))
    await let_others_run()
    store.let_one_pass()
    await let_others_run()
    assert (store.at_the_gate, [task.done() for task in sending]) == (1, [True, True, False])
    store.let_pass()
    await soon(asyncio.gather(*sending))
    await let_others_run()
    assert channel.state.expected_next_speaker == "alice"
    await here.clock.advance(60)
    assert channel.state.close_reason == "expectation_violated:turn_within"
