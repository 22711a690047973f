"""What follows from a word that somebody puts in: almost nothing, unless a rule matches it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from antiphon import (
    AgentsTarget,
    AgentTarget,
    AllOf,
    Always,
    AnyOf,
    ContextEquals,
    Envelope,
    FromSpeaker,
    Not,
    Once,
    RevertToInitiatorTarget,
    RoundRobinTarget,
    State,
    StayTarget,
    TerminateTarget,
    ToolCalled,
    Transition,
    TransitionDecision,
    TransitionGraph,
    TransitionTarget,
    register_condition,
    register_target,
)
from antiphon.core.call_permits import TurnClaim
from antiphon.core.event_data import Deny
from antiphon.core.guard import Later
from antiphon.core.replaying import replay_decisions
from antiphon.core.ruleset import Fold
from antiphon.core.step import Admitted, consequences, pending_turns, stamp_draft, step
from tests.support.envelopes import ASSIGNED, at, fact, packed, said, written
from tests.support.pure_channel import PureChannel, because, call

PEOPLE = ("ann", "ada:agent", "bob:agent", "dana:human", "rita:human")
FAILED, CLOSED = "antiphon.rule.failed", "ag2.channel.closed"


@register_condition
@dataclass(frozen=True)
class Rotten:
    """Always raises."""

    name: ClassVar[str] = "test_rotten"

    def evaluate(self, state: State, envelope: Envelope) -> bool:
        raise ValueError("rotten")


@register_target
@dataclass(frozen=True)
class Abroad:
    """Names somebody who does not take part."""

    name: ClassVar[str] = "test_abroad"

    def resolve(self, state: State, envelope: Envelope) -> TransitionDecision:
        return TransitionDecision("zoe")


@register_target
@dataclass(frozen=True)
class Pit:
    """Always raises."""

    name: ClassVar[str] = "test_pit"

    def resolve(self, state: State, envelope: Envelope) -> TransitionDecision:
        raise ValueError("deep")


def then(speaker: str, target: TransitionTarget) -> Transition:
    return Transition(FromSpeaker(speaker), target)


def holding(target: TransitionTarget, *rules: Transition, most: int | None = None) -> PureChannel:
    """A workflow in which ann has spoken, and her target has the turn."""
    graph = TransitionGraph("ann", [then("ann", target), *rules], TerminateTarget("over"), most)
    scene = PureChannel("workflow", *PEOPLE, graph=graph.to_dict(), interjectors=["bob"])
    scene.says("ann")
    return scene


def after_a_word(
    scene: PureChannel, speaker: str = "rita", audience: list[str] | None = None
) -> list[tuple[str, object]]:
    """What follows from a word, whatever a guard would say about it: the type, and who or why."""
    draft = said(speaker, "by the way", audience)
    word = stamp_draft(draft, scene.state, at=at(scene.now), new_id=scene.new_id)
    scene.fold = scene.ruleset.fold(scene.fold, word)
    scene.log.append(word)
    assert scene.state.interjected
    following = consequences(scene.ruleset, scene.fold, word)
    assert all(each.causation_id == word.envelope_id and each.sender_id == "hub" for each in following)
    return [(each.event_type, each.event_data.get("speakers", each.event_data.get("reason"))) for each in following]


ADA, BOTH = AgentTarget("ada"), AgentsTarget(["ada", "bob"])


@pytest.mark.parametrize("target", ["ann", "dana"])
def test_while_code_or_a_person_has_the_turn_nothing_follows(target: str) -> None:
    assert after_a_word(holding(AgentTarget(target))) == []


@pytest.mark.parametrize(
    ("target", "speakers"),
    [(ADA, ["ada"]), (BOTH, ["ada", "bob"]), (AgentsTarget(["ann", "ada", "dana"]), ["ann", "ada", "dana"])],
    ids=["one", "several", "among others"],
)
def test_agents_that_have_not_begun_are_given_the_turn_again(target: TransitionTarget, speakers: list[str]) -> None:
    """So that what they are shown includes the word."""
    scene = holding(target)
    assert after_a_word(scene) == [(ASSIGNED, speakers)]


def test_agents_that_have_begun_are_not_disturbed() -> None:
    scene = holding(BOTH)
    scene.running()
    assert after_a_word(scene) == []


def test_of_a_group_only_those_who_have_yet_to_speak_are_given_the_turn_again() -> None:
    scene = holding(BOTH)
    scene.answers()
    assert after_a_word(scene) == [(ASSIGNED, ["bob"])]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (then("rita", AgentTarget("bob")), [(ASSIGNED, ["bob"])]),
        (then("rita", AgentsTarget(["ann", "bob"])), [(ASSIGNED, ["ann", "bob"])]),
        (then("rita", TerminateTarget("rita said so")), [(CLOSED, "rita said so")]),
        (then("rita", Abroad()), [(CLOSED, "unknown_speaker:zoe")]),
        (then("rita", RoundRobinTarget()), [(ASSIGNED, ["ada"])]),
        (then("rita", StayTarget()), [(ASSIGNED, ["ada"])]),
        (then("rita", RevertToInitiatorTarget()), [(ASSIGNED, ["ann"])]),
        (then("dana", AgentTarget("bob")), [(ASSIGNED, ["ada"])]),
        (Transition(ToolCalled("x"), AgentTarget("bob")), [(ASSIGNED, ["ada"])]),
        (Transition(Rotten(), AgentTarget("bob")), [(FAILED, None), (ASSIGNED, ["ada"])]),
    ],
    ids=["agent", "agents", "end", "stranger", "next in the round", "stay", "initiator", "other", "tool", "raises"],
)
def test_a_rule_that_matches_the_word_decides(rule: Transition, expected: list[tuple[str, object]]) -> None:
    """The default target is not asked. Whoever is next in the round, or stays, is whoever has the turn."""
    assert after_a_word(holding(ADA, rule)) == expected


def test_a_rule_that_raises_is_told_although_nothing_else_follows() -> None:
    rotten = Transition(Rotten(), ADA)
    assert after_a_word(holding(AgentTarget("dana"), rotten)) == [(FAILED, None)]


@pytest.mark.parametrize(("audience", "told"), [(None, []), (["ada"], []), (["dana"], ["ada"])])
def test_whoever_may_not_see_the_word_is_told_at_least_of_the_turn(audience: list[str] | None, told: list[str]) -> None:
    scene = holding(ADA)
    after_a_word(scene, audience=audience)
    (given,) = consequences(scene.ruleset, scene.fold, scene.log[-1])
    assert given.audience == ["hub:operators", *told]


@pytest.mark.parametrize(("channel_type", "speakers"), [("discussion", ["ada"]), ("consulting", ["ada"])])
def test_it_is_the_same_in_other_channels_with_an_order(channel_type: str, speakers: list[str]) -> None:
    people = ("ann", "ada:agent") if channel_type == "consulting" else PEOPLE
    scene = PureChannel(channel_type, *people)
    scene.says("ann")
    assert after_a_word(scene, "ann" if channel_type == "consulting" else "rita") == [(ASSIGNED, speakers)]


def test_without_an_order_nothing_is_put_in() -> None:
    scene = PureChannel("conversation", "ann", "ada:agent")
    scene.says("ann")
    assert scene.says("ann", "and another thing") == ["msg.text", "turn.assigned"]
    assert not scene.state.interjected
    assert [turn.speaker for turn in scene.state.owed] == ["ada", "ada"]


# What it leaves behind


def test_a_word_counts_as_no_turn() -> None:
    scene = holding(AgentTarget("ann"), most=2)
    before = scene.state
    for _ in range(5):
        assert scene.says("rita") == ["msg.text"]
    state = scene.state
    assert (state.turn_count, state.last_speaker_id, state.speakers) == (1, "ann", ("ann",))
    assert (state.assigned_at, state.assigned_turns) == (before.assigned_at, before.assigned_turns)
    assert state.last_envelope_id == scene.log[-1].envelope_id
    assert scene.says("ann") == ["msg.text", "channel.closed"]
    assert scene.state.close_reason == "max_turns"
    assert not scene.state.interjected


def test_nobody_gains_time_by_being_given_the_turn_again() -> None:
    scene = holding(ADA)
    given = scene.state.assigned_at
    scene.waits(100)
    assert scene.says("rita") == ["msg.text", "turn.assigned"]
    assert scene.state.assigned_at == given
    assert scene.waits(20) == ["channel.expectation_violated"]


def test_a_word_ends_a_chain_of_handoffs() -> None:
    scene = holding(ADA)
    for speaker, target in (("ada", "bob"), ("bob", "ada")):
        turn, by = scene.running()
        draft = packed(speaker)
        routing = {**draft.event_data, "routing": {"target": target}}
        scene.ends(by, because(turn.cause or "", replace(draft, event_data=routing)))
    assert scene.state.hops == 2
    scene.says("rita")
    assert scene.state.hops == 0


def test_a_rule_that_fires_once_is_spent_by_a_word_it_matches_and_by_no_other() -> None:
    once = Transition(Once(FromSpeaker("rita")), AgentTarget("bob"))
    scene = holding(ADA, once)
    scene.says("dana")
    assert (scene.state.fired, scene.state.speakers) == ((0,), ("ada",))
    scene.says("rita")
    assert (scene.state.fired, scene.state.speakers) == ((0, 1), ("bob",))
    scene.says("rita")
    assert (scene.state.fired, scene.state.speakers) == ((0, 1), ("bob",))


def test_answers_of_a_group_are_remembered_when_a_word_comes_in_between() -> None:
    """The rest of the group fails: the rules go on from the answer there is, as if nobody had put in a word."""
    scene = holding(BOTH, then("ada", TerminateTarget("ada spoke")))
    scene.answers()
    scene.says("rita")
    _, by = scene.running()
    scene.fails(by)
    assert scene.state.close_reason == "ada spoke"


def test_a_failure_after_a_word_beside_the_turn_is_decided_as_any_other() -> None:
    """What was said last was no answer, so the default target is asked, and somebody gets the turn or it ends."""
    scene = holding(BOTH)
    scene.answers()
    _, by = scene.running()
    aside = fact("bob", "ag2.msg.text", {"text": "by the way", "aside": True})
    scene.fold = scene.ruleset.fold(scene.fold, stamp_draft(aside, scene.state, at=at(9), new_id=scene.new_id))
    assert scene.state.interjected
    scene.fails(by)
    assert scene.state.close_reason == "over"


# When it may be said


def outcome(scene: PureChannel, speaker: str) -> str:
    found = step(scene.fold, said(speaker), ruleset=scene.ruleset, at=at(scene.now), new_id=scene.new_id)
    return {Later: "later", Deny: "denied", Admitted: "said"}[type(found)]


@pytest.mark.parametrize("speaker", ["rita", "dana", "bob"])
def test_a_word_waits_while_a_turn_that_was_begun_is_owed(speaker: str) -> None:
    scene = holding(ADA)
    assert outcome(scene, speaker) == "said"
    _, by = scene.running()
    assert outcome(scene, speaker) == "later"
    scene.releases(by)
    assert outcome(scene, speaker) == "later", "it was begun, and will go on"
    scene.running()
    assert scene.ends(TurnClaim(by.turn_id, 2), packed("ada")) == ["packet", "channel.closed"]
    assert outcome(scene, speaker) == "denied"


def test_a_word_waits_for_every_turn_of_a_group() -> None:
    scene = holding(BOTH, then("bob", AgentTarget("dana")))
    claims = []
    for turn in pending_turns(scene.state):
        scene.claims(turn)
        claims.append(TurnClaim(turn.turn_id, 1))
    assert outcome(scene, "rita") == "later"
    scene.ends(claims[0], packed("ada"))
    assert outcome(scene, "rita") == "later"
    scene.ends(claims[1], packed("bob"))
    assert outcome(scene, "rita") == "said"


def test_whoever_has_the_turn_does_not_wait_for_others_who_have_it_too() -> None:
    scene = holding(AgentsTarget(["ada", "dana"]))
    scene.running()
    assert (outcome(scene, "dana"), outcome(scene, "rita")) == ("said", "later")


def test_nobody_waits_for_a_turn_that_waits_for_a_person() -> None:
    """It would be for ever: who could settle what is in doubt is told to."""
    scene = holding(ADA)
    turn, by = scene.running()
    scene.writes(by, call("doubted", turn.turn_id))
    found = step(scene.fold, said("rita"), ruleset=scene.ruleset, at=at(scene.now), new_id=scene.new_id)
    assert isinstance(found, Deny)
    assert found.reason == "in_doubt"


@pytest.mark.parametrize("speaker", ["ann", "ada"])
def test_everybody_else_is_denied_and_does_not_wait(speaker: str) -> None:
    scene = holding(AgentTarget("bob"))
    assert outcome(scene, speaker) == "denied"
    scene.running()
    assert outcome(scene, speaker) == "denied"


def test_what_is_written_to_the_context_does_not_wait() -> None:
    scene = holding(ADA)
    scene.running()
    draft = written("rita", {"seen": True})
    assert isinstance(step(scene.fold, draft, ruleset=scene.ruleset, at=at(9), new_id=scene.new_id), Admitted)


# Whatever happens

NAMES = ("ann", "ada", "bob", "dana", "rita")
SIMPLE = [Always(), Rotten(), ToolCalled("look"), ContextEquals("k", 1), *map(FromSpeaker, NAMES)]
CONDITIONS = st.recursive(
    st.sampled_from(SIMPLE),
    lambda inner: st.one_of(
        inner.map(Once), inner.map(Not), st.tuples(inner, inner).map(AllOf), st.tuples(inner, inner).map(AnyOf)
    ),
    max_leaves=3,
)
TARGETS = st.one_of(
    st.sampled_from([*map(AgentTarget, NAMES), RevertToInitiatorTarget(), RoundRobinTarget(), StayTarget()]),
    st.lists(st.sampled_from(NAMES), min_size=2, max_size=4, unique=True).map(AgentsTarget),
    st.sampled_from([Abroad(), Pit(), TerminateTarget("over"), *map(AgentTarget, NAMES)]),
)
RULES = st.lists(st.builds(Transition, CONDITIONS, TARGETS, st.integers(-1, 1)), max_size=4)
MOST = st.none() | st.integers(5, 20)
GRAPHS = st.builds(TransitionGraph, st.sampled_from(NAMES), RULES, TARGETS, MOST) | st.builds(
    lambda rules, default, most: TransitionGraph(
        "ann", [Transition(FromSpeaker("ann"), BOTH, -2), *rules], default, most
    ),
    RULES,
    TARGETS,
    MOST,
)
ROUTES = st.sampled_from(
    [{}, {}, {}, {"target": "ada"}, {"target": "dana"}, {"target": "zoe"}, {"tool": "look"}, {"finish": "done"}]
)
KINDS = ["speak"] * 5 + ["word"] * 3 + ["claim", "claim", "fail", "fail", "aside", "write", "wait"]
MOVES = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 5), ROUTES), min_size=15, max_size=30)


def moved(scene: PureChannel, what: str, number: int, *, routing: dict[str, object]) -> None:
    """Let one thing happen, if it can."""
    state = scene.state
    owed = state.owed[number % len(state.owed)] if state.owed else None
    holder = state.speakers[number % len(state.speakers)]
    if what == "claim" and owed is not None:
        scene.claims(owed, f"owner {number}")
    elif what == "fail" and owed is not None:
        scene.fails(TurnClaim(owed.turn_id, owed.epoch))
    elif what == "speak":
        turn = next((turn for turn in state.owed if turn.speaker == holder), None)
        draft = packed(holder, set={"k": number % 2})
        draft = replace(draft, event_data={**draft.event_data, "routing": routing}, causation_id=turn and turn.cause)
        scene.took(step(scene.fold, draft, ruleset=scene.ruleset, at=at(scene.now), new_id=scene.new_id))
    elif what == "word":
        put_in(scene, said(("dana", "rita", "bob")[number % 3]))
    elif what == "aside":
        put_in(scene, fact(holder, "ag2.msg.text", {"text": "by the way", "aside": True}))
    elif what == "write":
        draft = written("rita", {"k": number % 2})
        scene.took(step(scene.fold, draft, ruleset=scene.ruleset, at=at(scene.now), new_id=scene.new_id))
    elif what == "wait":
        scene.waits(number * 25)


def put_in(scene: PureChannel, draft: Envelope) -> None:
    """Let somebody say something, unless it must wait."""
    outcome = step(scene.fold, draft, ruleset=scene.ruleset, at=at(scene.now), new_id=scene.new_id)
    if not isinstance(outcome, Later):
        scene.took(outcome)


def check_not_silent(scene: PureChannel) -> None:
    """It has ended with a reason, or somebody has the turn who is a person, or is waited for only so long."""
    state = scene.state
    assert state.close_reason or state.speakers, "nobody has the turn, and nobody knows"
    if state.ended or all(state.participants[name] == "human" for name in state.speakers):
        return
    assert scene.ruleset.due(scene.fold) is not None, f"{state.speakers} are waited for for ever"
    agents = {name for name in state.speakers if state.participants[name] == "agent"}
    assert {turn.speaker for turn in state.owed} == agents, "an agent that has the turn owes it"


def test_silence_is_noticed() -> None:
    scene = holding(ADA)
    check_not_silent(scene)
    whole = scene.fold
    for wrong in ({"speakers": ()}, {"owed": ()}, {"assigned_at": ""}):
        scene.fold = Fold(structs.replace(whole.state, **wrong), whole.memories)
        with pytest.raises(AssertionError):
            check_not_silent(scene)


@given(GRAPHS, MOVES)
def test_no_workflow_falls_silent_and_every_log_is_agreed_with(
    graph: TransitionGraph, moves: list[tuple[str, int, dict[str, object]]]
) -> None:
    scene = PureChannel("workflow", *PEOPLE, graph=graph.to_dict(), interjectors=["bob"])
    check_not_silent(scene)
    for what, number, routing in moves:
        if scene.state.ended:
            break
        moved(scene, what, number, routing=routing)
        check_not_silent(scene)
    assert replay_decisions(scene.log, scene.ruleset).difference is None
