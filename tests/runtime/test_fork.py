"""Forks: another channel that begins as this one did, and goes on by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from antiphon import (
    EV_CHANNEL_CLOSED,
    EV_CHANNEL_OPENED,
    EV_EXPECTATION_VIOLATED,
    EV_PACKET,
    EV_TEXT,
    Agent,
    AgentTarget,
    Asked,
    Channel,
    Decision,
    Envelope,
    Expectation,
    Hub,
    Participant,
    Reply,
    Request,
    ScriptedModel,
    Seats,
    State,
    StoreUnavailable,
    Transition,
    TransitionGraph,
    UsageError,
    Wait,
    calls,
    register_adapter,
    register_condition,
    says,
    tool,
)
from antiphon.core.codec import encode_envelope
from antiphon.core.events import EV_CHANNEL_FORKED, EV_RULE_FAILED, EV_TURN_ASSIGNED, EV_TURN_FAILED
from antiphon.core.execution_events import EV_CALL_FINISHED, EV_CALL_STARTED, EV_TURN_CLAIMED, EV_TURN_RELEASED
from antiphon.core.replaying import replay_decisions
from antiphon.store.sqlite import SqliteStore
from antiphon.testing import ManualClock, canonical_digest
from antiphon.testing.store_fixtures import Faults, with_faults
from tests.support.waiting import let_others_run, soon

LINE = TransitionGraph.sequence(["ann", "bob", "ben"])


class Hall:
    """Ann and ben are code, dana is a person, bob is an agent that looks something up and pays for it."""

    def __init__(self, hub: Hub, clock: ManualClock) -> None:
        self.hub, self.clock = hub, clock
        self.seated: dict[str, Participant] = {}
        self.asked = self.looked_up = 0
        self.ledger: dict[str, int] = {}

    async def join(self, *, bob: bool = True) -> None:
        for name, kind in {"ann": "service", "ben": "service", "dana": "human"}.items():
            self.seated[name] = await self.hub.register(name, kind=kind)
        if bob:
            self.seated["bob"] = await self.hub.register(self.agent())

    async def model(self, request: Request) -> Reply:
        self.asked += 1
        steps = [calls("look_up"), calls("pay", {"cents": 100}), says("paid")]
        return steps[sum(isinstance(item, Asked) for item in request.exchange)]

    def agent(self) -> Agent:
        @tool
        async def look_up() -> str:
            self.looked_up += 1
            return "100"

        @tool
        async def pay(cents: int, idempotency_key: str) -> str:
            self.ledger.setdefault(idempotency_key, cents)
            return "paid"

        return Agent("bob", model=self.model, tools=[look_up, pay])

    async def open(self, graph: TransitionGraph | None = LINE, type: str = "workflow", **options: object) -> Channel:
        knobs = {} if graph is None else {"graph": graph}
        knobs |= options.pop("knobs", {})  # type: ignore[operator]
        target = options.pop("target", ["bob", "ben", "dana"])
        return await self.seated["ann"].open(type=type, target=target, knobs=knobs, **options)  # type: ignore[arg-type]

    async def another(self, name: str, *script: str | Exception) -> None:
        """One more agent, which says these things."""
        self.seated[name] = await self.hub.register(Agent(name, model=ScriptedModel(script)))

    async def ran(self) -> Channel:
        """A workflow that has run to its end."""
        channel = await self.open()
        await channel.send("what is it?")
        await until(lambda: channel.state.speakers == ("ben",))
        await (await self.held_by("ben", channel)).send("thank you")
        assert channel.state.close_reason == "sequence_complete"
        return channel

    async def held_by(self, name: str, channel: Channel) -> Channel:
        return await self.seated[name].channel(channel.channel_id)

    async def log(self, channel: Channel) -> list[Envelope]:
        return await self.hub.log(channel.channel_id)

    async def place(self, channel: Channel, event_type: str, nth: int = 1) -> int:
        """Where something stands for the n-th time."""
        return [each.sequence for each in await self.log(channel) if each.event_type == event_type][nth - 1]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await let_others_run(1)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def hall(clock: ManualClock) -> AsyncIterator[Hall]:
    async with Hub.open("memory:", clock=clock) as hub:
        here = Hall(hub, clock)
        await here.join()
        yield here


# What is copied


def in_flight(log: list[Envelope]) -> bool:
    started = [each.event_data["index"] for each in log if each.event_type == EV_CALL_STARTED]
    finished = [each.event_data["index"] for each in log if each.event_type == EV_CALL_FINISHED]
    return len(started) > len(finished)


async def test_every_place_of_a_log_is_a_place_to_fork_at_or_is_refused(hall: Hall) -> None:
    """The copy tells the same story, and only a channel that is open, with no call under way, is one to go on from."""
    channel = await hall.ran()
    log = await hall.log(channel)
    opened = await hall.place(channel, EV_CHANNEL_OPENED)
    forked = 0
    for at in range(1, len(log) + 1):
        if at < opened or at == len(log) or in_flight(log[:at]):
            with pytest.raises(UsageError, match=f"at is {at}"):
                await channel.fork(at=at)
            continue
        fork = await channel.fork(at=at)
        copy = (await hall.log(fork))[:at]
        assert canonical_digest(copy) == canonical_digest(log[:at])
        assert [(each.sender_id, each.event_data, each.audience) for each in copy] == [
            (each.sender_id, each.event_data, each.audience) for each in log[:at]
        ]
        forked += 1
    assert forked >= 10
    assert len(await hall.hub.channels()) == 1 + forked, "what is refused leaves no channel behind"


async def test_a_copy_has_ids_of_its_own_and_its_causes_are_found_in_it(hall: Hall) -> None:
    channel = await hall.ran()
    at = await hall.place(channel, EV_PACKET)
    fork = await channel.fork(at=at)
    log, copy = await hall.log(channel), (await hall.log(fork))[:at]
    ids = {each.envelope_id for each in copy}
    assert not ids & {each.envelope_id for each in log}
    assert {each.channel_id for each in copy} == {fork.channel_id} != {channel.channel_id}
    assert [each.created_at for each in copy] == [each.created_at for each in log[:at]]
    assert sum(each.causation_id is not None for each in copy) >= 5
    for one, other in zip(copy, log, strict=False):
        assert (one.causation_id is None) == (other.causation_id is None)
        assert one.causation_id is None or one.causation_id in ids


async def test_where_a_fork_comes_from_is_recorded_in_it(hall: Hall) -> None:
    channel = await hall.ran()
    at = await hall.place(channel, EV_PACKET)
    fork = await (await hall.held_by("dana", channel)).fork(at=at)
    (origin,) = [each for each in await hall.log(fork) if each.event_type == EV_CHANNEL_FORKED]
    log = await hall.log(channel)
    data = {"origin": channel.channel_id, "at": at, "by": "dana", "since": log[at - 1].created_at}
    assert origin.sender_id == "hub"
    assert origin.event_data.items() >= data.items()
    assert origin.sequence == at + 2, "behind the copy, and what follows from it"
    row = next(row for row in await hall.hub.channels() if row.channel_id == fork.channel_id)
    assert (row.type, row.status) == ("workflow", "active")


async def test_the_origin_is_not_touched_and_goes_on_by_itself(hall: Hall) -> None:
    channel = await hall.open()
    await channel.send("what is it?")
    await until(lambda: channel.state.speakers == ("ben",))
    before, state = [encode_envelope(each) for each in await hall.log(channel)], channel.state
    fork = await channel.fork(at=await hall.place(channel, EV_PACKET))
    await (await hall.held_by("ben", fork)).send("in the fork")
    assert [encode_envelope(each) for each in await hall.log(channel)] == before
    assert channel.state == state
    await (await hall.held_by("ben", channel)).send("in the origin")
    said = [
        [each.event_data["text"] for each in await hall.log(one) if each.event_type == EV_TEXT]
        for one in (channel, fork)
    ]
    assert said == [["what is it?", "in the origin"], ["what is it?", "in the fork"]]
    assert channel.state.close_reason == fork.state.close_reason == "sequence_complete"


# What follows from the copy


@register_condition
@dataclass(frozen=True)
class Weather:
    """Depends on something outside: what it says today it may not say tomorrow."""

    name: ClassVar[str] = "test_weather"
    fine: ClassVar[bool] = True

    def evaluate(self, state: State, envelope: Envelope) -> bool:
        if not Weather.fine:
            raise RuntimeError("rain")
        return envelope.sender_id == "ann"


WALK = TransitionGraph("ann", [Transition(Weather(), AgentTarget("ben"))], AgentTarget("dana"))


@pytest.fixture
def weather() -> Iterator[type[Weather]]:
    Weather.fine = True
    yield Weather
    Weather.fine = True


async def test_what_follows_from_the_last_envelope_is_decided_anew(hall: Hall, weather: type[Weather]) -> None:
    channel = await hall.open(WALK)
    await channel.send("out?")
    at = await hall.place(channel, EV_TEXT)
    weather.fine = False
    anew, kept = await channel.fork(at=at), await channel.fork(at=at + 1)
    assert channel.state.speakers == kept.state.speakers == ("ben",)
    assert anew.state.speakers == ("dana",)
    assert [each.event_type for each in (await hall.log(anew))[at:]] == [
        EV_RULE_FAILED,
        EV_TURN_ASSIGNED,
        EV_CHANNEL_FORKED,
    ]


async def test_between_a_word_and_what_was_decided_about_it_somebody_gets_the_turn(
    hall: Hall, weather: type[Weather]
) -> None:
    """A rule that failed stands between the two. A fork at it is refused, or decides; it does not just sit there."""
    weather.fine = False
    channel = await hall.open(WALK)
    await channel.send("out?")
    at = await hall.place(channel, EV_RULE_FAILED)
    try:
        fork = await channel.fork(at=at)
    except UsageError:
        return
    assert fork.state.speakers == ("dana",)


async def test_a_turn_that_failed_is_seen_to_anew(hall: Hall) -> None:
    await hall.another("eve", RuntimeError("boom"))
    channel = await hall.open(TransitionGraph.sequence(["ann", "eve"]), target=["eve", "dana"])
    await channel.send("what is it?")
    await until(lambda: channel.state.speakers == ("dana",))
    fork = await channel.fork(at=await hall.place(channel, EV_TURN_FAILED))
    assert fork.state.speakers == ("dana",)


async def test_finished_calls_are_not_made_again(hall: Hall) -> None:
    """Behind the second call of the model there is nothing left to ask but the third."""
    channel = await hall.ran()
    assert (hall.asked, hall.looked_up, len(hall.ledger)) == (3, 1, 1)
    fork = await channel.fork(at=await hall.place(channel, EV_CALL_FINISHED, 5))
    await until(lambda: fork.state.speakers == ("ben",))
    assert (hall.asked, hall.looked_up, len(hall.ledger)) == (3, 1, 1)
    packet = (await hall.log(fork))[await hall.place(fork, EV_PACKET) - 1]
    assert packet.event_data["body"] == "paid"


async def test_what_had_not_happened_yet_happens_in_the_fork_under_another_key(hall: Hall) -> None:
    channel = await hall.ran()
    fork = await channel.fork(at=await hall.place(channel, EV_CALL_FINISHED, 2))
    await until(lambda: fork.state.speakers == ("ben",))
    assert (hall.asked, hall.looked_up) == (5, 1)
    assert list(hall.ledger.values()) == [100, 100]


async def test_a_turn_that_was_under_way_is_nobodys_in_the_fork_and_goes_on(hall: Hall) -> None:
    channel = await hall.ran()
    at = await hall.place(channel, EV_TURN_CLAIMED)
    fork = await channel.fork(at=at)
    await until(lambda: fork.state.speakers == ("ben",))
    types = [each.event_type for each in (await hall.log(fork))[at:]]
    assert types[:3] == [EV_CHANNEL_FORKED, EV_TURN_RELEASED, EV_TURN_CLAIMED]


async def test_a_fork_can_be_forked(hall: Hall) -> None:
    channel = await hall.ran()
    at = await hall.place(channel, EV_PACKET)
    first = await channel.fork(at=at)
    second = await first.fork(at=first.state.sequence)
    assert second.state.speakers == ("ben",)
    log = await hall.log(second)
    assert [each.event_data["origin"] for each in log if each.event_type == EV_CHANNEL_FORKED] == [
        channel.channel_id,
        first.channel_id,
    ]
    await (await hall.held_by("ben", second)).send("thank you")
    assert second.state.close_reason == "sequence_complete"
    for one in (channel, first, second):
        assert replay_decisions(await hall.log(one), one._live.ruleset).difference is None


@pytest.mark.parametrize("type", ["conversation", "discussion", "consulting"])
async def test_other_channels_fork_as_well(hall: Hall, type: str) -> None:
    await hall.another("eve", "one", "two")
    channel = await hall.open(None, type, target="eve")
    await channel.send("well?")
    await until(lambda: not channel.state.owed)
    fork = await channel.fork(at=await hall.place(channel, EV_TEXT))
    assert [turn.speaker for turn in fork.state.owed] == ["eve"]
    await until(lambda: not fork.state.owed)
    assert [each.event_data["text"] for each in await hall.log(fork) if each.event_type == EV_TEXT] == ["well?", "two"]


async def test_a_word_that_waits_in_the_origin_waits_there_alone(hall: Hall) -> None:
    stuck = asyncio.Event()

    async def think(request: object) -> str:
        await stuck.wait()
        raise RuntimeError("never mind")

    hall.seated["eve"] = await hall.hub.register(Agent("eve", model=think))  # type: ignore[arg-type]
    channel = await hall.open(TransitionGraph.sequence(["ann", "eve"]), target=["eve", "dana"])
    await channel.send("well?")
    await until(lambda: any(turn.epoch for turn in channel.state.owed))
    word = asyncio.create_task((await hall.held_by("dana", channel)).send("hello"))
    await let_others_run()
    fork = await channel.fork(at=await hall.place(channel, EV_TEXT))
    assert not word.done()
    assert [each.event_type for each in await hall.log(fork)].count(EV_TEXT) == 1
    stuck.set()
    assert (await soon(word)).channel_id == channel.channel_id


# Time counts from the fork


async def test_nobody_is_late_because_of_what_was_copied(hall: Hall) -> None:
    channel = await hall.open(TransitionGraph.sequence(["ann", "ben"]))
    await channel.send("well?")
    await hall.clock.advance(500)
    fork = await channel.fork(at=await hall.place(channel, EV_TURN_ASSIGNED, 2))
    await hall.clock.advance(100)
    assert (channel.state.close_reason, fork.state.status) == ("expectation_violated:turn_within", "active")
    assert EV_EXPECTATION_VIOLATED not in [each.event_type for each in await hall.log(fork)]
    await hall.clock.advance(20)
    assert (await hall.log(fork))[-1].event_type == EV_EXPECTATION_VIOLATED
    await hall.clock.advance(479)
    assert fork.state.status == "active"
    await hall.clock.advance(1)
    assert fork.state.close_reason == "expectation_violated:turn_within"


async def test_what_was_told_in_the_origin_is_told_again_in_its_time(hall: Hall) -> None:
    channel = await hall.open(TransitionGraph.sequence(["ann", "ben"]))
    await channel.send("well?")
    await hall.clock.advance(120)
    fork = await channel.fork(at=await hall.place(channel, EV_EXPECTATION_VIOLATED))
    await hall.clock.advance(120)
    assert [each.event_type for each in await hall.log(fork)].count(EV_EXPECTATION_VIOLATED) == 2


async def test_a_fork_has_as_long_to_live_as_the_origin_had_at_that_place(hall: Hall) -> None:
    channel = await hall.open(TransitionGraph.sequence(["ann", "dana"]), ttl=100)
    await hall.clock.advance(30)
    await channel.send("well?")
    await hall.clock.advance(60)
    fork = await channel.fork(at=await hall.place(channel, EV_TEXT))
    await hall.clock.advance(10)
    assert (channel.state.status, fork.state.status) == ("expired", "active")
    await hall.clock.advance(59)
    assert fork.state.status == "active"
    await hall.clock.advance(1)
    assert fork.state.status == "expired"


@pytest.mark.parametrize(
    ("type", "expected"),
    [
        ("consulting", Expectation("reply_within", 60, "auto_close")),
        ("conversation", Expectation("reply_within", 60, "auto_close")),
        ("discussion", Expectation("turn_within", 60, "auto_close")),
        ("conversation", Expectation("max_silence", 60, "auto_close")),
    ],
    ids=lambda value: getattr(value, "name", value),
)
async def test_every_expectation_counts_from_the_fork(hall: Hall, type: str, expected: Expectation) -> None:
    channel = await hall.open(None, type, target="ben", knobs={"expectations": [expected]})
    await channel.send("well?")
    at = channel.state.sequence
    await hall.clock.advance(1000)
    assert channel.state.close_reason == f"expectation_violated:{expected.name}"
    fork = await channel.fork(at=at)
    await hall.clock.advance(59)
    assert fork.state.status == "active"
    await hall.clock.advance(1)
    assert fork.state.close_reason == f"expectation_violated:{expected.name}"


# Refusals


@pytest.mark.parametrize("at", [True, "7", 7.0, None, [7]], ids=str)
async def test_a_place_is_a_number(hall: Hall, at: object) -> None:
    channel = await hall.ran()
    with pytest.raises(UsageError, match="give the sequence of the last envelope to keep"):
        await channel.fork(at=at)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("place", "why"),
    [
        (lambda log: 0, "the log has the sequences 1 to"),
        (lambda log: -3, "the log has the sequences 1 to"),
        (lambda log: len(log) + 1, "the log has the sequences 1 to"),
        (lambda log: 10**12, "the log has the sequences 1 to"),
        (lambda log: 1, "before the channel was opened"),
        (lambda log: types(log).index(EV_CHANNEL_OPENED), "before the channel was opened"),
        (lambda log: types(log).index(EV_CHANNEL_CLOSED) + 1, "has ended .sequence_complete."),
        (lambda log: types(log).index(EV_CALL_STARTED) + 1, "call 0 of turn .* is under way"),
    ],
    ids=["zero", "below", "behind", "far behind", "created", "not open", "ended", "under way"],
)
async def test_a_place_to_go_on_from(hall: Hall, place: Callable[[list[Envelope]], int], why: str) -> None:
    channel = await hall.ran()
    with pytest.raises(UsageError, match=why):
        await channel.fork(at=place(await hall.log(channel)))
    assert len(await hall.hub.channels()) == 1


def types(log: list[Envelope]) -> list[str]:
    return [each.event_type for each in log]


async def test_a_hub_that_is_closed_forks_nothing(clock: ManualClock) -> None:
    hub = await Hub.open("memory:", clock=clock)
    hall = Hall(hub, clock)
    await hall.join()
    channel = await hall.ran()
    await hub.close()
    with pytest.raises(UsageError, match="closed"):
        await channel.fork(at=8)


# A file


async def test_a_fork_survives_a_restart(clock: ManualClock, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'team.db'}"
    async with Hub.open(url, clock=clock) as hub:
        hall = Hall(hub, clock)
        await hall.join()
        channel = await hall.ran()
        at = await hall.place(channel, EV_CALL_FINISHED, 4)
    async with Hub.open(url, clock=clock, engine=None) as hub:
        again = Hall(hub, clock)
        await again.join(bob=False)
        fork = await (await again.held_by("ann", channel)).fork(at=at)
        state, digest = fork.state, canonical_digest(await again.log(fork))
        assert [turn.turn_id.partition("/")[2] for turn in state.owed] == ["bob"]
    async with Hub.open(url, clock=clock) as hub:
        last = Hall(hub, clock)
        await last.join(bob=False)
        found = await last.held_by("ann", fork)
        assert found.state == state
        assert canonical_digest(await last.log(fork)) == digest
        last.seated["bob"] = await hub.register(last.agent())
        await until(lambda: found.state.speakers == ("ben",))
        assert (last.asked, last.looked_up, last.ledger) == (1, 0, {})
        await (await last.held_by("ben", fork)).send("thank you")
        assert found.state.close_reason == "sequence_complete"


@register_adapter
class Counted:
    """A free channel that counts, over all its folds, how many envelopes were folded."""

    name: ClassVar[str] = "counted"
    seats: ClassVar[Seats] = Seats(2, 2)
    ordered: ClassVar[bool] = False
    knobs: ClassVar[frozenset[str]] = frozenset()
    expectations: ClassVar[tuple[Expectation, ...]] = ()
    memory: ClassVar[type] = int
    folded: ClassVar[int] = 0

    def __init__(self, knobs: dict[str, object]) -> None:
        pass

    def evolve(self, memory: int, envelope: Envelope) -> int:
        Counted.folded += 1
        return memory + 1

    def decide(self, memory: int, state: State, envelope: Envelope) -> Decision:
        return Wait()


@pytest.mark.parametrize("url", ["memory:", "sqlite:///{}/team.db"])
async def test_a_long_fork_lets_others_have_the_event_loop(tmp_path: Path, url: str) -> None:
    """Counted in envelopes, not in seconds: how many are folded between two turns of another task."""
    async with Hub.open(url.format(tmp_path), engine=None) as hub:
        ann = await hub.register("ann")
        await hub.register("ben")
        channel = await ann.open(type="counted", target="ben")
        await asyncio.gather(*(channel.send(f"text {number}") for number in range(2000)))
        forking = asyncio.ensure_future(channel.fork(at=channel.state.sequence))
        most = 0
        while not forking.done():
            before = Counted.folded
            await asyncio.sleep(0)
            most = max(most, Counted.folded - before)
        fork = await forking
        assert 0 < most <= 250
        original = await hub.log(channel.channel_id)
        copied = await hub.log(fork.channel_id)
        assert [each.event_data for each in copied[: len(original)]] == [each.event_data for each in original]
        ids = [each.envelope_id for each in copied]
        assert ids == sorted(set(ids))


async def test_a_fork_that_is_not_recorded_leaves_no_channel(tmp_path: Path) -> None:
    faults = Faults()
    store = with_faults(await SqliteStore.open(tmp_path / "team.db"), faults)
    hub = await Hub.over(store, engine=None)
    ann = await hub.register("ann")
    await hub.register("ben")
    channel = await ann.open(target="ben")
    await asyncio.gather(*(channel.send(f"text {number}") for number in range(1500)))
    known = {row.channel_id for row in await hub.channels(system=True)}
    faults.fail_every = 1
    with pytest.raises(StoreUnavailable):
        await channel.fork(at=1200)
    faults.fail_every = 0
    assert set(await store.names()) == known
    await channel.fork(at=1200)
    assert len(await store.names()) == len(known) + 1
    await hub.close()
