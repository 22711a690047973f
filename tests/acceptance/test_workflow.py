"""The workflow channel: its shape, how the next speaker is found, and the life of a sequence."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import ClassVar

import pytest

from antiphon import (
    EV_CHANNEL_CLOSED,
    EV_CHANNEL_INVITE,
    EV_CHANNEL_INVITE_ACK,
    EV_CHANNEL_OPENED,
    EV_EXPECTATION_VIOLATED,
    EV_PACKET,
    EV_TEXT,
    Agent,
    AgentTarget,
    Always,
    Denied,
    Envelope,
    FromSpeaker,
    FullTranscript,
    Limits,
    Reply,
    Request,
    RoundRobinTarget,
    RulesInvalid,
    State,
    TerminateTarget,
    Transition,
    TransitionDecision,
    TransitionGraph,
    register_condition,
    register_target,
    says,
)
from tests.acceptance.workflow_team import ASSIGNED, OPERATORS, RULE_FAILED, Pause, Team, a_team, rule
from tests.support.waiting import let_others_run

MISSED = "antiphon.expectation.missed"
CREATED = "antiphon.channel.created"


@register_condition
@dataclass(frozen=True)
class Bookkept:
    """Matches if the state says already that this is the turn of this number, and who took it."""

    name: ClassVar[str] = "acceptance_bookkept"
    turn: int

    def evaluate(self, state: State, envelope: Envelope) -> bool:
        told = (state.turn_count, state.last_speaker_id, state.last_envelope_id, state.speakers)
        return told == (self.turn, envelope.sender_id, envelope.envelope_id, ())


@register_condition
@dataclass(frozen=True)
class Broken:
    name: ClassVar[str] = "acceptance_broken"

    def evaluate(self, state: State, envelope: Envelope) -> bool:
        raise LookupError("no such thing")


@register_target
@dataclass(frozen=True)
class BrokenTarget:
    name: ClassVar[str] = "acceptance_broken_target"

    def resolve(self, state: State, envelope: Envelope) -> TransitionDecision:
        raise LookupError("nobody there")


@register_target
@dataclass(frozen=True)
class Stranger:
    """Whoever is named, without regard to who takes part."""

    name: ClassVar[str] = "acceptance_stranger"
    who: str

    def resolve(self, state: State, envelope: Envelope) -> TransitionDecision:
        return TransitionDecision(self.who)


@pytest.fixture
async def team() -> AsyncIterator[Team]:
    async with a_team("alice", "bob", "carol", "dana:human") as found:
        yield found


SEQUENCE = TransitionGraph.sequence(["alice", "bob", "carol"])
ENDLESS = TransitionGraph.round_robin(["alice", "bob"])


# Shape


async def test_shape_participants_one_is_too_few(team: Team) -> None:
    with pytest.raises(RulesInvalid, match="'workflow' takes at least 2 participants, the creator included, not 1"):
        await team.open(TransitionGraph("alice", [], TerminateTarget()), "alice")
    assert await team.hub.channels() == []


@pytest.mark.parametrize("count", [2, 3, 7])
async def test_shape_participants_two_or_more(team: Team, count: int) -> None:
    names = [f"member{number}" for number in range(count)]
    await team.join(*names)
    workflow = await team.open(TransitionGraph.round_robin(names), *names)
    assert await workflow.walk(*names) == [*names[1:], names[0]]


async def test_shape_turn_order_is_whatever_the_graph_says(team: Team) -> None:
    graph = TransitionGraph("carol", [rule("carol", "alice"), rule("alice", "bob")], TerminateTarget("over"))
    workflow = await team.open(graph, "alice", "bob", "carol")
    before = await workflow.log()
    for name in ("alice", "bob"):
        with pytest.raises(Denied) as caught:
            await workflow.say(name)
        assert caught.value.reason == "not_expected_speaker"
    assert await workflow.log() == before
    assert await workflow.walk("carol", "alice", "bob") == ["alice", "bob", None]


async def test_shape_auto_close_when_the_graph_comes_to_a_terminate_target(team: Team) -> None:
    graph = TransitionGraph(
        "alice", [Transition(FromSpeaker("bob"), TerminateTarget("bob said so"))], AgentTarget("bob")
    )
    workflow = await team.open(graph, "alice", "bob")
    assert await workflow.walk("alice", "bob") == ["bob", None]
    assert (workflow.state.status, workflow.state.close_reason) == ("closed", "bob said so")
    assert team.batches(workflow)[-1] == [("bob", EV_TEXT), ("hub", EV_CHANNEL_CLOSED)]


async def test_shape_auto_close_when_max_turns_is_hit(team: Team) -> None:
    workflow = await team.open(TransitionGraph.round_robin(["alice", "bob"], max_turns=3), "alice", "bob")
    assert await workflow.walk("alice", "bob", "alice") == ["bob", "alice", None]
    assert await workflow.ended() == "max_turns"


async def test_shape_default_view_is_a_window_of_two_rounds(team: Team) -> None:
    """Of three participants a model is shown the last six messages, with names, and how many came before."""
    model = await team.agent("ada", "a1", "a2", "a3")
    workflow = await team.open(TransitionGraph.round_robin(["alice", "ada", "bob"]), "alice", "ada", "bob")
    for number in (1, 2, 3):
        await workflow.say("alice", f"l{number}")
        await workflow.comes_to("bob")
        await workflow.say("bob", f"b{number}")
    assert model.requests[0].messages == [("user", "alice: l1")]
    assert model.requests[2].messages == [
        ("user", "[1 earlier message not shown]"),
        ("assistant", "a1"),
        ("user", "bob: b1"),
        ("user", "alice: l2"),
        ("assistant", "a2"),
        ("user", "bob: b2"),
        ("user", "alice: l3"),
    ]


@pytest.mark.parametrize("memory", [None, FullTranscript()])
async def test_shape_default_view_of_two_has_no_names_and_an_agent_may_want_another(
    team: Team, memory: FullTranscript | None
) -> None:
    model = await team.agent("ada", "a1", "a2", "a3", memory=memory)
    workflow = await team.open(TransitionGraph.round_robin(["alice", "ada"]), "alice", "ada")
    for number in (1, 2, 3):
        await workflow.say("alice", f"l{number}")
        await workflow.comes_to("alice")
    everything = [("user", "l1"), ("assistant", "a1"), ("user", "l2"), ("assistant", "a2"), ("user", "l3")]
    window = [("user", "[1 earlier message not shown]"), *everything[1:]]
    assert model.requests[2].messages == (everything if memory else window)


async def test_shape_default_expectations_warn_after_120_seconds_and_close_after_600(team: Team) -> None:
    workflow = await team.open(SEQUENCE, "alice", "bob", "carol")
    await workflow.say("alice")
    await team.clock.advance(119.999)
    assert await workflow.log(EV_EXPECTATION_VIOLATED) == []
    await team.clock.advance(0.001)
    [warning] = await workflow.log(EV_EXPECTATION_VIOLATED)
    assert warning.audience is None
    assert (warning.event_data["expectation"], warning.event_data["speakers"]) == ("turn_within", ["bob"])
    await team.clock.advance(479.999)
    assert workflow.state.status == "active"
    await team.clock.advance(0.001)
    assert await workflow.ended() == "expectation_violated:turn_within"
    assert [each.event_type for each in (await workflow.log())[-3:]] == [
        EV_EXPECTATION_VIOLATED,
        MISSED,
        EV_CHANNEL_CLOSED,
    ]


async def test_shape_default_expectations_count_from_when_the_turn_was_given(team: Team) -> None:
    workflow = await team.open(ENDLESS, "alice", "bob")
    for name in ("alice", "bob") * 6:
        await team.clock.advance(119)
        await workflow.say(name)
    assert workflow.state.status == "active"
    assert await workflow.log(EV_EXPECTATION_VIOLATED, MISSED) == []


async def test_shape_default_expectations_hold_for_an_agent_that_never_answers(team: Team) -> None:
    pause = Pause()

    async def ponders(request: Request) -> Reply:
        await pause.here()
        return says("too late")

    await team.hire(Agent("ada", model=ponders, limits=Limits(model_seconds=None)))
    workflow = await team.open(TransitionGraph.sequence(["alice", "ada"]), "alice", "ada")
    await workflow.say("alice")
    await pause.begun()
    await team.clock.advance(120)
    assert len(await workflow.log(EV_EXPECTATION_VIOLATED)) == 1
    await team.clock.advance(480)
    assert await workflow.ended() == "expectation_violated:turn_within"
    pause.go_on()
    await let_others_run()
    assert await workflow.log(EV_PACKET) == []


async def test_shape_default_expectations_are_inactive_while_a_person_holds_the_turn(team: Team) -> None:
    workflow = await team.open(TransitionGraph.sequence(["alice", "dana", "bob"]), "alice", "dana", "bob")
    await workflow.say("alice")
    await team.clock.advance(100_000)
    assert await workflow.log(EV_EXPECTATION_VIOLATED, MISSED) == []
    await workflow.say("dana", "sorry, I was asleep")
    await team.clock.advance(120)
    [warning] = await workflow.log(EV_EXPECTATION_VIOLATED)
    assert warning.event_data["speakers"] == ["bob"]


async def test_shape_default_expectations_can_be_told_otherwise(team: Team) -> None:
    patient = [{"name": "turn_within", "seconds": 5, "handler": "auto_close"}]
    workflow = await team.open(SEQUENCE, "alice", "bob", "carol", expectations=patient)
    await team.clock.advance(5)
    assert await workflow.ended() == "expectation_violated:turn_within"
    assert await workflow.log(EV_EXPECTATION_VIOLATED) == []


GOOD = SEQUENCE.to_dict()
TARGETS = ".*".join(["agent", "agents", "revert_to_initiator", "round_robin", "stay", "terminate"])
SIMPLE = ["always", "context_equals", "context_in", "context_threshold", "from_speaker", "tool_called"]
CONDITIONS = ".*".join(sorted([*SIMPLE, "all_of", "any_of", "not", "once"]))
NOWHERE, NEVER = {"name": "nowhere", "args": {}}, {"when": {"name": "never"}, "then": {"name": "stay"}}


@pytest.mark.parametrize(
    ("knobs", "complaint"),
    [
        ({}, r"the knob 'graph' of a workflow is missing; give TransitionGraph\(…\)\.to_dict\(\)"),
        ({"graph": None}, "'graph' of a workflow is missing"),
        ({"graph": []}, r"'graph' of a workflow is \[\]"),
        ({"graph": "alice, then bob"}, "'graph' of a workflow is 'alice, then bob'"),
        ({"graph": {}}, "the graph has no 'initial_speaker'"),
        ({"graph": {**GOOD, "transitions": "none"}}, "transitions is 'none'; give a list"),
        ({"graph": {**GOOD, "max_turns": 0}}, "max_turns is 0; give a number of turns"),
        ({"graph": {**GOOD, "edges": []}}, "the graph has no field 'edges'; it has: initial_speaker, transitions"),
        (
            {"graph": {**GOOD, "default_target": NOWHERE}},
            f"no target is called 'nowhere'; there are: .*{TARGETS}",
        ),
        (
            {"graph": {**GOOD, "transitions": [NEVER]}},
            f"transition 0: no condition is called 'never'; there are: .*{CONDITIONS}",
        ),
        ({"graph": GOOD, "grpah": GOOD}, "'workflow' takes no knob 'grpah'; it takes: .*graph"),
    ],
)
async def test_shape_required_knob_graph(team: Team, knobs: dict[str, object], complaint: str) -> None:
    """A graph that is missing, no dict, or names what nobody has registered: told in words, and nothing is opened."""
    other = await team.open(SEQUENCE, "alice", "bob", "carol")
    with pytest.raises(RulesInvalid, match=complaint):
        await team.people["alice"].open(type="workflow", target=["bob", "carol"], knobs=knobs)  # type: ignore[arg-type]
    assert [row.channel_id for row in await team.hub.channels()] == [other.channel_id]
    assert await other.walk("alice", "bob", "carol") == ["bob", "carol", None]


# How the next speaker is found


@pytest.mark.parametrize("in_packets", [False, True])
async def test_next_speaker_rules_are_read_after_a_text_or_a_packet_and_after_nothing_else(
    team: Team, in_packets: bool
) -> None:
    graph = TransitionGraph("alice", [Transition(Always(), TerminateTarget("said"))], AgentTarget("bob"))
    workflow = await team.open(graph, "alice", "bob")
    await workflow.channel.set_context(topic="tea")
    await workflow.channel.post("myapp.noted", {"text": "not a word"})
    assert (workflow.next, workflow.state.turn_count) == ("alice", 0)
    await (workflow.hand_in("alice") if in_packets else workflow.say("alice"))
    assert await workflow.ended() == "said"


@pytest.mark.parametrize("in_packets", [False, True])
async def test_next_speaker_bookkeeping_is_done_before_the_rules_are_read(team: Team, in_packets: bool) -> None:
    graph = TransitionGraph("alice", [Transition(Bookkept(2), TerminateTarget("second"))], RoundRobinTarget())
    workflow = await team.open(graph, "alice", "bob")
    speak = workflow.hand_in if in_packets else workflow.say
    await speak("alice")
    assert workflow.next == "bob"
    await speak("bob")
    assert await workflow.ended() == "second"


async def test_next_speaker_the_first_rule_that_matches_decides(team: Team) -> None:
    rules = [
        rule("bob", "alice"),
        rule("alice", "carol"),
        rule("alice", "bob"),
        Transition(Broken(), AgentTarget("bob")),
    ]
    workflow = await team.open(TransitionGraph("alice", rules, TerminateTarget()), "alice", "bob", "carol")
    assert await workflow.walk("alice") == ["carol"]
    assert (await workflow.log(ASSIGNED))[-1].event_data == {"speakers": ["carol"], "reason": "from alice", "rule": 1}
    assert await workflow.log(RULE_FAILED) == [], "what stands behind it is not asked"


async def test_next_speaker_the_default_target_is_asked_when_no_rule_matches(team: Team) -> None:
    graph = TransitionGraph("alice", [rule("bob", "alice")], AgentTarget("carol"))
    workflow = await team.open(graph, "alice", "bob", "carol")
    assert await workflow.walk("alice") == ["carol"]
    assert (await workflow.log(ASSIGNED))[-1].event_data == {"speakers": ["carol"], "reason": "default"}


async def test_next_speaker_nobody_means_that_the_channel_ends_with_the_reason(team: Team) -> None:
    graph = TransitionGraph("alice", [Transition(FromSpeaker("alice"), TerminateTarget("enough"))], AgentTarget("bob"))
    workflow = await team.open(graph, "alice", "bob")
    said = await workflow.say("alice")
    [closed] = await workflow.log(EV_CHANNEL_CLOSED)
    assert (closed.sender_id, closed.event_data["reason"]) == ("hub", "enough")
    assert (closed.causation_id, closed.audience) == (said.envelope_id, None)


async def test_next_speaker_a_rule_that_raises_does_not_match_and_operators_are_told(team: Team) -> None:
    rules = [
        Transition(Broken(), TerminateTarget("never")),
        Transition(Always(), BrokenTarget()),
        rule("alice", "carol"),
    ]
    workflow = await team.open(TransitionGraph("alice", rules, TerminateTarget()), "alice", "bob", "carol")
    assert await workflow.walk("alice") == ["carol"]
    troubles = await workflow.log(RULE_FAILED)
    assert [(each.event_data["rule"], each.audience) for each in troubles] == [(0, OPERATORS), (1, OPERATORS)]
    assert "no such thing" in str(troubles[0].event_data["error"])
    assert "nobody there" in str(troubles[1].event_data["error"])


async def test_next_speaker_a_default_target_that_raises_ends_the_channel(team: Team) -> None:
    workflow = await team.open(TransitionGraph("alice", [], BrokenTarget()), "alice", "bob")
    await workflow.say("alice")
    assert await workflow.ended() == "rules_failed"
    assert len(await workflow.log(RULE_FAILED)) == 1


async def test_next_speaker_somebody_who_does_not_take_part_ends_the_channel(team: Team) -> None:
    workflow = await team.open(TransitionGraph("alice", [], Stranger("zoe")), "alice", "bob")
    await workflow.say("alice")
    assert await workflow.ended() == "unknown_speaker:zoe"


# The life of a sequence


async def test_lifecycle_of_a_sequence(team: Team) -> None:
    """Everything that is recorded from opening to the end, and who sent it."""
    workflow = await team.open(SEQUENCE, "alice", "bob", "carol")
    for name in ("alice", "bob", "carol"):
        await workflow.say(name)
    log = await workflow.log()
    assert [(each.sender_id, each.event_type) for each in log] == [
        ("hub", CREATED),
        ("hub", EV_CHANNEL_INVITE),
        ("hub", EV_CHANNEL_INVITE),
        ("bob", EV_CHANNEL_INVITE_ACK),
        ("carol", EV_CHANNEL_INVITE_ACK),
        ("hub", EV_CHANNEL_OPENED),
        ("hub", ASSIGNED),
        ("alice", EV_TEXT),
        ("hub", ASSIGNED),
        ("bob", EV_TEXT),
        ("hub", ASSIGNED),
        ("carol", EV_TEXT),
        ("hub", EV_CHANNEL_CLOSED),
    ]
    assert [each.audience for each in log[1:3]] == [["bob"], ["carol"]]
    assert await workflow.assigned() == [["alice"], ["bob"], ["carol"]]
    assert log[-1].event_data["reason"] == "sequence_complete"


async def test_lifecycle_everybody_is_told_what_was_said_and_that_it_is_over(team: Team) -> None:
    workflow = await team.open(SEQUENCE, "alice", "bob", "carol")
    for name in ("alice", "bob", "carol"):
        await workflow.say(name, f"from {name}")
    for name in ("alice", "bob", "carol"):
        seen = [each async for each in team.hub.subscribe(workflow.channel_id, participant=name)]
        assert [each.event_data["text"] for each in seen if each.event_type == EV_TEXT] == [
            "from alice",
            "from bob",
            "from carol",
        ]
        assert (seen[-1].event_type, seen[-1].event_data["reason"]) == (EV_CHANNEL_CLOSED, "sequence_complete")


async def test_lifecycle_agents_take_their_turns_by_themselves(team: Team) -> None:
    """Once the creator has spoken, nobody has to do anything: each agent is run when its turn comes."""
    ada, ben = await team.agent("ada", "a draft"), await team.agent("ben", "a review")
    workflow = await team.open(TransitionGraph.sequence(["alice", "ada", "ben"]), "alice", "ada", "ben")
    await workflow.say("alice", "write it")
    assert await workflow.ended() == "sequence_complete"
    assert await workflow.said() == [("alice", "write it"), ("ada", "a draft"), ("ben", "a review")]
    assert ada.requests[0].messages == [("user", "alice: write it")]
    assert ben.requests[0].messages == [("user", "alice: write it"), ("user", "ada: a draft")]
