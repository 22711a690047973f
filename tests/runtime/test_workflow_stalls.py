"""No workflow stalls in silence: whatever goes wrong, it ends with a reason, or somebody is known to be awaited."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar

import pytest

from antiphon import (
    EV_EXPECTATION_VIOLATED,
    EV_PACKET,
    EV_TEXT,
    Agent,
    AgentsTarget,
    AgentTarget,
    Answered,
    Channel,
    Denied,
    Envelope,
    FromSpeaker,
    Handoff,
    Hub,
    Limits,
    Participant,
    Reply,
    Request,
    ScriptedModel,
    State,
    StayTarget,
    TerminateTarget,
    Transition,
    TransitionDecision,
    TransitionGraph,
    calls,
    register_target,
    says,
    tool,
)
from antiphon.core.events import EV_RULE_FAILED, EV_TURN_ASSIGNED, EV_TURN_FAILED
from antiphon.testing import ManualClock
from tests.runtime.test_stalls import TROUBLES, never
from tests.support.inspection import fold_of
from tests.support.kept_store import KeptStore
from tests.support.waiting import let_others_run, soon

OVERDUE = "expectation_violated:turn_within"


@register_target
@dataclass(frozen=True)
class Elsewhere:
    """Gives the turn to whomever it is told, participant or not."""

    name: ClassVar[str] = "test_elsewhere"
    names: list[str]

    def resolve(self, state: State, envelope: Envelope) -> TransitionDecision:
        return TransitionDecision(self.names[0], speakers=tuple(self.names))


@register_target
@dataclass(frozen=True)
class Lost:
    """Does not know the way."""

    name: ClassVar[str] = "test_lost"

    def resolve(self, state: State, envelope: Envelope) -> TransitionDecision:
        raise LookupError("no map")


class Place:
    """A hub with people, code and agents in it, and a clock to move."""

    def __init__(self, hub: Hub, clock: ManualClock) -> None:
        self.hub, self.clock = hub, clock
        self.seated: dict[str, Participant] = {}

    async def join(self, *names: str) -> None:
        for name in names:
            who, _, kind = name.partition(":")
            self.seated[who] = await self.hub.register(who, kind=kind or None)

    async def agent(self, name: str, model: Callable[..., object]) -> None:
        self.seated[name] = await self.hub.register(Agent(name, model=model))  # type: ignore[arg-type]

    async def open(self, graph: TransitionGraph, **options: object) -> Channel:
        """The first who joined opens it with everybody else."""
        first, *others = self.seated
        return await self.seated[first].open(type="workflow", target=others, knobs={"graph": graph, **options})

    async def held_by(self, name: str, channel: Channel) -> Channel:
        return await self.seated[name].channel(channel.channel_id)

    async def told(self, channel: Channel, event_type: str) -> list[Envelope]:
        return [each for each in await self.hub.log(channel.channel_id) if each.event_type == event_type]

    async def failures(self, channel: Channel) -> list[object]:
        return [each.event_data["reason"] for each in await self.told(channel, EV_TURN_FAILED)]

    async def quiet(self, channel: Channel) -> str:
        """What it has come to, when nobody does anything any more: why it ended, or who is awaited."""
        await let_others_run(100)
        fold = await fold_of(self.hub, channel.channel_id)
        state = fold.state
        if state.ended:
            return state.close_reason
        assert state.speakers, "nobody has the turn, and nobody knows"
        people = all(state.participants[name] == "human" for name in state.speakers)
        assert people or channel._live.ruleset.due(fold) is not None, f"{state.speakers} are awaited for ever"
        return ",".join(state.speakers)


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    clock = ManualClock()
    async with Hub.open("memory:", clock=clock) as hub:
        yield Place(hub, clock)


def then(speaker: str, *targets: str) -> Transition:
    return Transition(FromSpeaker(speaker), AgentTarget(targets[0]) if len(targets) == 1 else AgentsTarget(targets))


async def fails(request: Request) -> Reply:
    raise RuntimeError("boom")


async def answers(request: Request) -> Reply:
    return says("well")


# Somebody who has gone, or never was


async def away(graph: TransitionGraph, *names: str) -> tuple[Place, Channel]:
    """A channel in which agents have the turn, as the next hub finds it: only ann is registered there."""
    clock = ManualClock()
    store = KeptStore(clock=clock)
    before = Place(await Hub.over(store, clock=clock, engine=None), clock)
    await before.join("ann", *(name for name in names if ":" in name))
    for name in names:
        if ":" not in name:
            await before.agent(name, never)
    channel_id = (await before.open(graph)).channel_id
    await (await before.seated["ann"].channel(channel_id)).send("well?")
    await before.hub.close()
    here = Place(await Hub.over(store, clock=clock), clock)
    await here.join("ann")
    return here, await here.seated["ann"].channel(channel_id)


@pytest.mark.parametrize("others", [(), ("dana:human",)], ids=["alone", "with a person"])
async def test_an_agent_that_is_registered_nowhere_is_told_of_and_then_the_channel_ends(others: tuple[str]) -> None:
    here, channel = await away(TransitionGraph.sequence(["ann", "bob"]), "bob", *others)
    await here.clock.advance(119)
    assert await here.told(channel, EV_EXPECTATION_VIOLATED) == []
    await here.clock.advance(1)
    (warning,) = await here.told(channel, EV_EXPECTATION_VIOLATED)
    assert (warning.event_data["speakers"], warning.audience) == (["bob"], None)
    await here.clock.advance(479)
    assert await here.quiet(channel) == "bob"
    await here.clock.advance(1)
    assert await here.quiet(channel) == OVERDUE
    assert len(await here.told(channel, EV_EXPECTATION_VIOLATED)) == 1
    await here.hub.close()


async def test_an_agent_that_comes_back_in_time_takes_its_turn() -> None:
    here, channel = await away(TransitionGraph.sequence(["ann", "bob"]), "bob")
    await here.clock.advance(500)
    await here.agent("bob", answers)
    assert await here.quiet(channel) == "sequence_complete"
    await here.hub.close()


async def test_a_group_of_which_one_is_registered_nowhere_ends_in_time() -> None:
    graph = TransitionGraph("ann", [then("ann", "bob", "eve")], TerminateTarget("both"))
    here, channel = await away(graph, "bob", "eve")
    await here.agent("bob", answers)
    assert await here.quiet(channel) == "eve"
    await here.clock.advance(600)
    assert await here.quiet(channel) == OVERDUE
    await here.hub.close()


@pytest.mark.parametrize("others", [(), ("dana:human",)], ids=["alone", "with a person"])
@pytest.mark.parametrize(
    ("names", "stranger"), [(["zoe"], "zoe"), (["ben", "zoe"], "zoe"), ([""], ""), (["ANN"], "ANN")], ids=str
)
@pytest.mark.parametrize("where", ["rule", "default"])
async def test_a_target_that_names_a_stranger_ends_the_channel(
    place: Place, where: str, names: list[str], stranger: str, others: tuple[str]
) -> None:
    await place.join("ann", "ben", *others)
    rules = [Transition(FromSpeaker("ann"), Elsewhere(names))] if where == "rule" else []
    default = Elsewhere(names) if where == "default" else TerminateTarget("never")
    channel = await place.open(TransitionGraph("ann", rules, default))
    await channel.send("well?")
    assert await soon(channel.closed()) == f"unknown_speaker:{stranger}"


async def test_whoever_is_named_and_takes_part_has_the_turn(place: Place) -> None:
    await place.join("ann", "ben")
    channel = await place.open(TransitionGraph("ann", [], Elsewhere(["ben"])))
    await channel.send("well?")
    assert await place.quiet(channel) == "ben"


# Somebody who does not hear what they are to answer


async def test_an_agent_that_may_not_see_the_question_takes_its_turn_all_the_same(place: Place) -> None:
    model = ScriptedModel(["I was not told."])
    await place.join("ann", "ben")
    await place.agent("bob", model)
    channel = await place.open(TransitionGraph.sequence(["ann", "bob"]))
    await channel.send("a secret", audience=["ben"])
    assert await place.quiet(channel) == "sequence_complete"
    assert model.requests[0].messages == []


@pytest.mark.parametrize("kind", ["service", "human"])
async def test_whoever_may_not_see_the_question_is_told_that_it_is_their_turn(place: Place, kind: str) -> None:
    await place.join("ann", f"ben:{kind}", "cat")
    channel = await place.open(TransitionGraph.sequence(["ann", "ben"]))
    await channel.send("a secret", audience=["cat"])
    inbox = place.seated["ben"].inbox()
    heard = [await soon(anext(inbox)) for _ in range(4)]
    assert heard[-1].event_type == EV_TURN_ASSIGNED
    assert heard[-1].event_data["speakers"] == ["ben"]
    await (await place.held_by("ben", channel)).send("I am here")
    assert await place.quiet(channel) == "sequence_complete"


async def test_whoever_sees_the_question_is_not_told_twice(place: Place) -> None:
    await place.join("ann", "ben")
    channel = await place.open(TransitionGraph.sequence(["ann", "ben"]))
    await channel.send("in the open")
    inbox = place.seated["ben"].inbox()
    heard = [(await soon(anext(inbox))).event_type for _ in range(3)]
    assert EV_TURN_ASSIGNED not in heard
    assert await place.seated["ben"].pending() == 1, "the last one is not acknowledged yet, and nothing follows"


# Somebody who never answers


async def test_code_that_never_answers_is_told_of_and_then_the_channel_ends(place: Place) -> None:
    await place.join("ann", "ben", "dana:human")
    channel = await place.open(TransitionGraph.sequence(["ann", "ben"]))
    await channel.send("well?")
    await place.clock.advance(120)
    assert [each.event_data["speakers"] for each in await place.told(channel, EV_EXPECTATION_VIOLATED)] == [["ben"]]
    assert await place.quiet(channel) == "ben"
    await place.clock.advance(480)
    assert await place.quiet(channel) == OVERDUE


async def test_a_person_is_not_hurried(place: Place) -> None:
    await place.join("ann", "dana:human")
    channel = await place.open(TransitionGraph.sequence(["ann", "dana"]))
    await channel.send("well?")
    await place.clock.advance(1_000_000)
    assert await place.quiet(channel) == "dana"
    assert await place.told(channel, EV_EXPECTATION_VIOLATED) == []
    await (await place.held_by("dana", channel)).send("at last")
    assert await place.quiet(channel) == "sequence_complete"


async def test_code_beside_a_person_is_hurried_until_it_has_answered(place: Place) -> None:
    await place.join("ann", "ben", "dana:human")
    graph = TransitionGraph("ann", [then("ann", "ben", "dana")], TerminateTarget("both"))
    silent, spoken = await place.open(graph), await place.open(graph)
    for channel in (silent, spoken):
        await channel.send("well?")
    await (await place.held_by("ben", spoken)).send("well.")
    await place.clock.advance(600)
    assert (await place.quiet(silent), await place.quiet(spoken)) == (OVERDUE, "dana")


# A turn that fails


@pytest.mark.parametrize("trouble", TROUBLES)
@pytest.mark.parametrize("person", [False, True], ids=["alone", "with a person"])
async def test_a_turn_that_fails_is_given_to_a_person_or_ends_the_channel(
    place: Place, trouble: str, person: bool
) -> None:
    make, seconds, reason = TROUBLES[trouble]
    await place.join("ann", *(["dana:human"] if person else []))
    place.seated["bob"] = await place.hub.register(make())
    channel = await place.open(TransitionGraph.sequence(["ann", "bob"]))
    await channel.send("well?")
    await let_others_run(100)
    if seconds:
        await place.clock.advance(seconds - 1)
        assert await place.quiet(channel) == "bob", "not before its time"
        await place.clock.advance(1)
    overdue = reason == "deadline"
    assert await place.quiet(channel) == (OVERDUE if overdue else "dana" if person else f"turn_failed:{reason}")
    assert await place.failures(channel) == ([] if overdue else [reason])


async def test_a_person_who_is_given_a_failed_turn_takes_it_from_there(place: Place) -> None:
    await place.join("ann", "dana:human")
    await place.agent("bob", fails)
    await place.agent("eve", answers)
    rules = [then("ann", "bob"), then("dana", "eve"), then("bob", "ann")]
    channel = await place.open(TransitionGraph("ann", rules, TerminateTarget("eve spoke")))
    await channel.send("well?")
    assert await place.quiet(channel) == "dana"
    await (await place.held_by("dana", channel)).send("I shall ask eve")
    assert await place.quiet(channel) == "eve spoke"


# A group


GROUPS = {
    "the first fails": (fails, answers, "two spoke"),
    "the last fails": (answers, fails, "one spoke"),
    "all fail": (fails, fails, "turn_failed:model_error"),
    "none fails": (answers, answers, "two spoke"),
}


def when(event: asyncio.Event, model: Callable[[Request], Awaitable[Reply]]) -> Callable[[Request], Awaitable[Reply]]:
    """A model that thinks until it may answer."""

    async def thinking(request: Request) -> Reply:
        await event.wait()
        return await model(request)

    return thinking


@pytest.mark.parametrize("person", [False, True], ids=["alone", "with a person"])
@pytest.mark.parametrize("named", [["one", "two"], ["two", "one"]], ids="-".join)
@pytest.mark.parametrize("case", GROUPS)
async def test_a_group_in_which_somebody_fails(place: Place, case: str, named: list[str], person: bool) -> None:
    """The rules go on from the last answer there is; if there is none a person does, or the channel ends."""
    first, last, ends = GROUPS[case]
    ready = asyncio.Event(), asyncio.Event()
    await place.join("ann", *(["dana:human"] if person else []))
    await place.agent("one", when(ready[0], first))
    await place.agent("two", when(ready[1], last))
    spoke = [Transition(FromSpeaker(name), TerminateTarget(f"{name} spoke")) for name in named]
    channel = await place.open(TransitionGraph("ann", [then("ann", *named), *spoke], StayTarget()))
    await channel.send("well?")
    assert await place.quiet(channel) == ",".join(named)
    ready[0].set()
    assert await place.quiet(channel) == "two"
    ready[1].set()
    assert await place.quiet(channel) == ("dana" if case == "all fail" and person else ends)
    assert await place.failures(channel) == ["model_error"] * [first, last].count(fails)


async def test_when_the_rest_of_a_group_is_stopped_the_answers_there_are_count(place: Place) -> None:
    await place.join("ann", "dana:human")
    await place.agent("bob", answers)
    await place.agent("eve", never)
    rules = [then("ann", "bob", "eve"), Transition(FromSpeaker("bob"), TerminateTarget("bob spoke"))]
    channel = await place.open(TransitionGraph("ann", rules, TerminateTarget("nobody spoke")))
    await channel.send("well?")
    assert await place.quiet(channel) == "eve"
    assert await channel.cancel("enough") == 1
    assert await place.quiet(channel) == "bob spoke"


async def test_a_word_beside_a_turn_that_fails_does_not_silence_the_group(place: Place) -> None:
    """Whoever still has the turn says something beside it, if that is allowed at all; then the turn fails."""
    ready = asyncio.Event()
    await place.join("ann", "dana:human")
    await place.agent("bob", answers)
    await place.agent("eve", when(ready, fails))
    channel = await place.open(TransitionGraph("ann", [then("ann", "bob", "eve")], TerminateTarget("over")))
    await channel.send("well?")
    assert await place.quiet(channel) == "eve"
    with suppress(Denied):
        await (await place.held_by("eve", channel)).post(EV_TEXT, {"text": "psst", "aside": True})
    ready.set()
    assert await place.quiet(channel) == "over"


# Rules that fail, and nothing to say


async def test_a_default_target_that_raises_ends_the_channel_and_says_why(place: Place) -> None:
    await place.join("ann", "dana:human")
    channel = await place.open(TransitionGraph("ann", [], Lost()))
    await channel.send("well?")
    assert await soon(channel.closed()) == "rules_failed"
    (failed,) = await place.told(channel, EV_RULE_FAILED)
    assert failed.event_data == {"rule": None, "error": "LookupError: no map"}
    assert failed.audience == ["hub:operators"]


async def test_a_target_that_raises_leaves_the_turn_to_the_next_rule(place: Place) -> None:
    await place.join("ann", "ben")
    channel = await place.open(TransitionGraph("ann", [Transition(FromSpeaker("ann"), Lost())], AgentTarget("ben")))
    await channel.send("well?")
    assert await place.quiet(channel) == "ben"
    assert [each.event_data["rule"] for each in await place.told(channel, EV_RULE_FAILED)] == [0]


async def test_an_empty_reply_is_recorded_and_the_rules_decide(place: Place) -> None:
    await place.join("ann")
    await place.agent("bob", ScriptedModel([says(""), says("")]))
    rules = [then("ann", "bob"), Transition(FromSpeaker("bob"), StayTarget())]
    channel = await place.open(TransitionGraph("ann", rules, TerminateTarget("never"), max_turns=3))
    await channel.send("well?")
    assert await place.quiet(channel) == "max_turns"
    packets = await place.told(channel, EV_PACKET)
    assert [each.event_data["body"] for each in packets] == ["", ""]
    assert [each.event_data["routing"] for each in packets] == [{"stopped": "empty_reply"}] * 2


async def test_a_turn_that_is_stopped_at_its_limit_goes_on_by_the_rules(place: Place) -> None:
    looping = Agent("bob", model=ScriptedModel([calls("nothing")] * 2), limits=Limits(model_calls=2))
    await place.join("ann", "ben")
    place.seated["bob"] = await place.hub.register(looping)
    channel = await place.open(TransitionGraph.sequence(["ann", "bob", "ben"]))
    await channel.send("well?")
    assert await place.quiet(channel) == "ben"
    assert [each.event_data["routing"] for each in await place.told(channel, EV_PACKET)] == [
        {"stopped": "max_model_calls"}
    ]


async def test_two_agents_that_hand_the_turn_to_each_other_do_not_do_so_for_ever(place: Place) -> None:
    """After five handoffs in a row the table decides; here it says that it is over."""

    def passing(name: str, to: str) -> Agent:
        @tool
        async def pass_on() -> Handoff:
            return Handoff(to)

        async def model(request: Request) -> Reply:
            refused = any(isinstance(item, Answered) and item.failed for item in request.exchange)
            return says("I give up.") if refused else calls("pass_on")

        return Agent(name, model=model, tools=[pass_on])

    await place.join("ann")
    for name, to in (("bob", "eve"), ("eve", "bob")):
        place.seated[name] = await place.hub.register(passing(name, to))
    channel = await place.open(TransitionGraph("ann", [then("ann", "bob")], TerminateTarget("over")))
    await channel.send("well?")
    assert await place.quiet(channel) == "over"
    assert channel.state.turn_count == 7
