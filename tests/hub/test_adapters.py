"""Channels of a type of one's own: it decides, it remembers, and when it fails it fails alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import ClassVar

import msgspec
import pytest

from antiphon import (
    EV_EXPECTATION_VIOLATED,
    EV_TEXT,
    Assign,
    Channel,
    Close,
    Decision,
    Denied,
    Envelope,
    Expectation,
    RulesInvalid,
    Seats,
    State,
    Wait,
    register_adapter,
)
from antiphon.orchestration import catalogue
from antiphon.testing import ManualClock
from tests.support.gated_store import GatedStore
from tests.support.hub_places import InMemory, Place
from tests.support.hub_team import Team, team
from tests.support.inspection import fold_of, watched
from tests.support.waiting import let_others_run, soon


@pytest.fixture
async def here(clock: ManualClock) -> AsyncIterator[Team]:
    async with team("alice", "bob", "hugo:human", store=GatedStore(clock), clock=clock) as found:
        yield found


class Tally(msgspec.Struct, frozen=True):
    said: dict[str, int] = {}


class Ballot:
    """Everybody speaks once, in any order; then the channel ends with the count."""

    name: ClassVar[str] = "test-ballot"
    seats: ClassVar[Seats] = Seats(2, 3)
    ordered: ClassVar[bool] = True
    knobs: ClassVar[frozenset[str]] = frozenset({"votes"})
    expectations: ClassVar[tuple[Expectation, ...]] = (Expectation("turn_within", 10, "warn"),)
    memory: ClassVar[type] = Tally

    def __init__(self, knobs: dict[str, object]) -> None:
        votes = knobs.get("votes", 1)
        if not isinstance(votes, int):
            raise RulesInvalid(f"votes is {votes!r}; give a number")
        self._votes = votes

    def evolve(self, memory: Tally, envelope: Envelope) -> Tally:
        if envelope.event_type != EV_TEXT:
            return memory
        count = memory.said.get(envelope.sender_id, 0) + 1
        return Tally({**memory.said, envelope.sender_id: count})

    def decide(self, memory: Tally, state: State, envelope: Envelope) -> Decision:
        match envelope.event_data.get("text"):
            case "explode":
                raise ZeroDivisionError("as asked")
            case "mumble":
                return Close("half a letter: \ud800")
            case "call a stranger":
                return Assign(("stranger",))
            case "forget to answer":
                return None  # type: ignore[return-value]  # as somebody might
            case "ramble":
                return Close("x" * 400_000)
        owing = tuple(name for name in state.participants if memory.said.get(name, 0) < self._votes)
        if not owing:
            return Close(f"{sum(memory.said.values())} votes")
        return Wait() if state.speakers else Assign(owing)


@pytest.fixture(autouse=True)
def adapters() -> None:
    register_adapter(Ballot)


async def test_an_adapter_of_ones_own_decides(here: Team) -> None:
    channel = await here["alice"].open(type="test-ballot", target=["bob", "hugo"])
    assert channel.state.speakers == ("alice", "bob", "hugo")
    for name in ("bob", "alice"):
        await (await here.held_by(name, channel)).send("aye")
    assert channel.state.speakers == ("hugo",)
    with pytest.raises(Denied, match="not_expected_speaker"):
        await channel.send("aye again")
    await (await here.held_by("hugo", channel)).send("nay")
    assert await channel.closed(timeout=0) == "3 votes"


async def test_its_memory_outlives_the_hub(place: Place, clock: ManualClock) -> None:
    first = Team(await place.hub(clock), clock)
    await first.join("alice", "bob")
    channel = await first["alice"].open(type="test-ballot", target="bob", knobs={"votes": 2})
    await channel.send("aye")
    await (await first.held_by("bob", channel)).send("aye")
    before = await fold_of(first.hub, channel.channel_id)
    assert before.memories[0] == Tally({"alice": 1, "bob": 1})
    await first.hub.close()
    then = Team(await place.hub(clock), clock)
    await then.join("alice", "bob")
    assert await fold_of(then.hub, channel.channel_id) == before
    alice, bob = await then.held_by("alice", channel), await then.held_by("bob", channel)
    await alice.send("nay")
    await bob.send("nay")
    assert bob.state.close_reason == "4 votes"
    await then.hub.close()


async def test_its_knobs_and_expectations_are_its_own(here: Team) -> None:
    with pytest.raises(RulesInvalid, match="votes is 'many'"):
        await here["alice"].open(type="test-ballot", target="bob", knobs={"votes": "many"})
    with pytest.raises(RulesInvalid, match=r"'graph'.*votes"):
        await here["alice"].open(type="test-ballot", target="bob", knobs={"graph": {}})
    channel = await here["alice"].open(type="test-ballot", target="bob")
    await here.clock.advance(10)
    assert (await here.log(channel))[-1].event_type == EV_EXPECTATION_VIOLATED


async def test_it_says_how_many_it_takes(here: Team) -> None:
    await here.join("carol")
    with pytest.raises(RulesInvalid, match=r"2 to 3|at most 3"):
        await here["alice"].open(type="test-ballot", target=["bob", "carol", "hugo"])


async def test_rules_that_fail_refuse_and_break_nothing_else(here: Team) -> None:
    channel = await here["alice"].open(type="test-ballot", target="bob")
    other = await here["alice"].open(target="bob")
    await (await here.held_by("bob", channel)).send("aye")
    before = await here.records(channel)
    with pytest.raises(Denied, match="ZeroDivisionError: as asked") as caught:
        await channel.send("explode")
    assert caught.value.reason == "rules_failed"
    assert await here.records(channel) == before
    await other.send("all well here")
    await channel.send("aye")
    assert channel.state.close_reason == "2 votes"


async def test_rules_are_read_when_the_last_of_several_has_spoken(here: Team) -> None:
    """What the first of them says would call a stranger; the others still have their say, in any order."""
    channel = await here["alice"].open(type="test-ballot", target=["bob", "hugo"])
    await channel.send("call a stranger")
    assert (channel.state.status, channel.state.speakers) == ("active", ("bob", "hugo"))
    await (await here.held_by("hugo", channel)).send("aye")
    await (await here.held_by("bob", channel)).send("aye")
    assert channel.state.close_reason == "3 votes"


async def test_a_decision_that_is_none_is_named(here: Team) -> None:
    channel = await here["alice"].open(type="test-ballot", target="bob")
    await (await here.held_by("bob", channel)).send("aye")
    with pytest.raises(Denied, match=r"decide returned None; return Assign, Wait or Close"):
        await channel.send("forget to answer")


async def test_what_follows_must_fit_into_a_record_too(here: Team) -> None:
    """Only the one whose words led to it is refused."""
    channel = await here["alice"].open(type="test-ballot", target="bob")
    bob = await here.held_by("bob", channel)
    await bob.send("aye")
    sending = [channel.post("myapp.note", {}), channel.send("ramble"), bob.post("myapp.note", {})]
    first, failed, second = await asyncio.gather(*sending, return_exceptions=True)
    assert isinstance(failed, Denied)
    assert failed.reason == "rules_failed"
    assert "400013 bytes" in failed.detail
    assert [type(first), type(second)] == [Envelope, Envelope]


async def test_a_memory_that_fails_refuses_and_breaks_nothing_else(here: Team) -> None:
    """It fails on what the hub itself has to say, when the channel's time is over."""

    def evolve(self: object, memory: Tally, envelope: Envelope) -> Tally:
        if envelope.event_type == "ag2.channel.expired":
            raise KeyError("text")
        return memory

    register_adapter(type("Brittle", (), {**vars(Ballot), "name": "test-brittle", "evolve": evolve}))
    brittle = await here["alice"].open(type="test-brittle", target="bob", ttl=5)
    other = await here["alice"].open(target="bob", ttl=60)
    before = await here.records(brittle)
    await here.clock.advance(5)
    outcomes = await asyncio.gather(*(brittle.send("aye") for _ in range(3)), return_exceptions=True)
    assert [getattr(each, "reason", each) for each in outcomes] == ["rules_failed"] * 3
    assert await here.records(brittle) == before
    await here.clock.advance(55)
    assert other.state.status == "expired"


async def test_a_decision_that_cannot_be_recorded_refuses_and_harms_no_neighbour(here: Team) -> None:
    channel = await here["alice"].open(type="test-ballot", target="bob")
    bob = await here.held_by("bob", channel)
    await channel.send("aye")
    store = here.store
    assert isinstance(store, GatedStore)
    store.close_gate(channel.channel_id)
    sending = [
        asyncio.ensure_future(work)
        for work in (channel.post("myapp.note", {"n": 1}), bob.send("mumble"), channel.post("myapp.note", {"n": 2}))
    ]
    await let_others_run()
    store.let_pass()
    first, failed, second = await soon(asyncio.gather(*sending, return_exceptions=True))
    assert isinstance(failed, Denied)
    assert failed.reason == "rules_failed"
    assert [type(first), type(second)] == [Envelope, Envelope]
    await bob.send("aye")
    assert channel.state.close_reason == "2 votes"


async def test_a_turn_is_never_given_to_a_stranger(here: Team) -> None:
    """The channel ends for a named reason; it never waits for somebody who is not there."""
    channel = await here["alice"].open(type="test-ballot", target="bob")
    await (await here.held_by("bob", channel)).send("aye")
    await channel.send("call a stranger")
    assert (channel.state.status, channel.state.close_reason) == ("closed", "unknown_speaker:stranger")
    assert channel.state.speakers == ()


@pytest.mark.parametrize("name", ["conversation", "consulting", "discussion", "system", "quarantine"])
def test_a_built_in_adapter_cannot_be_replaced(name: str) -> None:
    with pytest.raises(RulesInvalid, match=f"'{name}' is built in"):
        register_adapter(type("Mine", (Ballot,), {"name": name}))


def test_a_name_is_registered_for_one_adapter() -> None:
    with pytest.raises(RulesInvalid, match="Ballot"):
        register_adapter(type("Impostor", (Ballot,), {"name": "test-ballot"}))
    assert register_adapter(Ballot) is Ballot


async def test_a_log_is_read_without_the_adapter_that_made_it(clock: ManualClock) -> None:
    """The channel of an unknown type can be read, and everything else works."""
    place = InMemory(clock)
    first = Team(await place.hub(clock), clock)
    await first.join("alice", "bob")
    strange = await first["alice"].open(type="test-ballot", target="bob", ttl=5)
    plain = await first["alice"].open(target="bob", ttl=60)
    await plain.send("hello")
    log = await first.hub.log(strange.channel_id)
    await first.hub.close()
    forgotten = catalogue._registered_adapters.pop("test-ballot")
    try:
        then = Team(await place.hub(clock), clock)
        await then.join("alice", "bob")
        assert await then.hub.log(strange.channel_id) == log
        assert await then["bob"].pending() > 0
        inbox = then["bob"].inbox()
        delivered = [await soon(anext(inbox)) for _ in range(3)]
        assert plain.channel_id in {each.channel_id for each in delivered}
        await clock.advance(100)
        await clock.advance(1)
        assert (await then.held_by("alice", plain)).state.status == "expired"
        await then.hub.close()
    finally:
        catalogue._registered_adapters["test-ballot"] = forgotten


async def test_an_adapter_that_can_no_longer_be_made_stops_no_clock(clock: ManualClock) -> None:
    broken: list[bool] = []

    def init(self: object, knobs: dict[str, object]) -> None:
        if broken:
            raise KeyError("gone")

    def decide(self: object, memory: object, state: State, envelope: Envelope) -> Decision:
        return Wait()

    fragile = type("Fragile", (), {**vars(Ballot), "name": "test-fragile", "__init__": init, "decide": decide})
    register_adapter(fragile)
    place = InMemory(clock)
    first = Team(await place.hub(clock), clock)
    await first.join("alice", "bob")
    for channel_type, ttl in (("test-fragile", 5), ("conversation", 60)):
        channel: Channel = await first["alice"].open(type=channel_type, target="bob", ttl=ttl)
    await first.hub.close()
    broken.append(True)
    then = Team(await place.hub(clock), clock)
    await then.join("alice", "bob")
    await watched(clock)
    for _ in range(3):
        await clock.advance(30)
    assert (await then.held_by("alice", channel)).state.status == "expired"
    await then.hub.close()


async def test_an_adapter_that_is_refused_leaves_its_name_free(here: Team) -> None:
    """Whose words they are makes no difference: a name that means nothing is found before a channel is made."""
    wishful = {**vars(Ballot), "name": "test-wishful"}
    with pytest.raises(RulesInvalid, match=r"Wishful: no expectation is called 'smile_within'; there are: acks_within"):
        register_adapter(type("Wishful", (), {**wishful, "expectations": (Expectation("smile_within", 5),)}))
    with pytest.raises(RulesInvalid, match="no channel type is called 'test-wishful'"):
        await here["alice"].open(type="test-wishful", target="bob")
    register_adapter(type("Modest", (), wishful))
    assert (await here["alice"].open(type="test-wishful", target="bob")).state.speakers == ("alice", "bob")


async def test_a_turn_given_to_a_bare_text_is_told_to_the_sender(here: Team) -> None:
    def decide(self: object, memory: object, state: State, envelope: Envelope) -> Decision:
        return Assign("bob") if envelope.event_type == EV_TEXT else Wait()  # type: ignore[arg-type]

    register_adapter(
        type("Spelling", (), {**vars(Ballot), "name": "test-spelling", "decide": decide, "ordered": False})
    )
    channel = await here["alice"].open(type="test-spelling", target="bob")
    with pytest.raises(Denied, match=r"speakers is 'bob'; give a tuple of names, such as \('bob',\)") as caught:
        await channel.send("who is next?")
    assert caught.value.reason == "rules_failed"
