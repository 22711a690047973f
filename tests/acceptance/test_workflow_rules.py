"""What a transition graph is made of: every target, every condition, priorities, factories, and one's own classes."""

from __future__ import annotations

import inspect
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from antiphon import (
    AgentsTarget,
    AgentTarget,
    AllOf,
    Always,
    AnyOf,
    ContextEquals,
    ContextIn,
    ContextThreshold,
    Denied,
    Envelope,
    FromSpeaker,
    Not,
    Once,
    RevertToInitiatorTarget,
    RoundRobinTarget,
    RulesInvalid,
    State,
    StayTarget,
    TerminateTarget,
    ToolCalled,
    Transition,
    TransitionCondition,
    TransitionDecision,
    TransitionGraph,
    TransitionTarget,
    register_condition,
    register_target,
)
from antiphon.core.conditions import CONDITIONS as REGISTERED
from tests.acceptance.workflow_team import ASSIGNED, Team, a_team, rule

CONDITIONS = {
    "always": Always(),
    "from_speaker": FromSpeaker("alice"),
    "tool_called": ToolCalled("escalate"),
    "context_equals": ContextEquals("route", None),
    "context_in": ContextIn("route", ["a", 1, None]),
    "context_threshold": ContextThreshold("score", ">=", 0.5),
    "all_of": AllOf([Always(), FromSpeaker("alice")]),
    "any_of": AnyOf([FromSpeaker("alice"), Not(FromSpeaker("bob"))]),
    "not": Not(Always()),
    "once": Once(AllOf([Always(), Not(ContextEquals("a", {"deep": [True]}))])),
}
TARGETS = {
    "agent": AgentTarget("alice"),
    "agents": AgentsTarget(["alice", "bob"]),
    "round_robin": RoundRobinTarget(),
    "stay": StayTarget(),
    "revert_to_initiator": RevertToInitiatorTarget(),
    "terminate": TerminateTarget("over"),
}


@register_condition
@dataclass(frozen=True)
class SaidAtLeast:
    """Matches a message of so many words."""

    name: ClassVar[str] = "acceptance_said_at_least"
    words: int

    def evaluate(self, state: State, envelope: Envelope) -> bool:
        return len(str(envelope.event_data.get("text", "")).split()) >= self.words


@register_condition
@dataclass(frozen=True)
class AtLeast:
    """Matches when so many of these do."""

    name: ClassVar[str] = "acceptance_at_least"
    count: int
    among: Sequence[TransitionCondition]

    def evaluate(self, state: State, envelope: Envelope) -> bool:
        return sum(each.evaluate(state, envelope) for each in self.among) >= self.count


@register_target
@dataclass(frozen=True)
class LeastHeard:
    """Whoever of these the context says has spoken least; the first of them, if it says nothing."""

    name: ClassVar[str] = "acceptance_least_heard"
    names: Sequence[str]
    farewell: str = "all heard"

    def resolve(self, state: State, envelope: Envelope) -> TransitionDecision:
        left = [name for name in self.names if not state.context_vars.get(name)]
        return TransitionDecision(left[0]) if left else TransitionDecision(None, self.farewell)


@pytest.fixture
async def team() -> AsyncIterator[Team]:
    async with a_team("alice", "bob", "carol") as found:
        yield found


async def matches(team: Team, when: TransitionCondition, speaker: str = "alice", **given: object) -> bool:
    """Whether a condition matches what somebody says; `context` is what the channel begins with."""
    context = given.pop("context", {})
    graph = TransitionGraph(speaker, [Transition(when, TerminateTarget("matched"))], TerminateTarget("did not"))
    workflow = await team.open(graph, "alice", "bob", context_vars=context)
    await (workflow.hand_in(speaker, **given) if given else workflow.say(speaker))
    return await workflow.ended() == "matched"


# The graph as a value


def test_graph_and_transition_have_these_fields() -> None:
    assert list(inspect.signature(TransitionGraph).parameters) == [
        "initial_speaker",
        "transitions",
        "default_target",
        "max_turns",
    ]
    assert list(inspect.signature(Transition).parameters) == ["when", "then", "priority"]
    assert TransitionGraph("a", [], TerminateTarget()).max_turns is None
    assert Transition(Always(), TerminateTarget()).priority == 0


def test_graph_as_plain_data() -> None:
    graph = TransitionGraph(
        "alice",
        [Transition(~FromSpeaker("bob"), AgentTarget("bob"), 7), Transition(Always(), RoundRobinTarget())],
        TerminateTarget("over"),
        max_turns=3,
    )
    bob = {"name": "from_speaker", "args": {"agent_id": "bob"}}
    assert graph.to_dict() == {
        "initial_speaker": "alice",
        "transitions": [
            {
                "when": {"name": "not", "args": {"condition": bob}},
                "then": {"name": "agent", "args": {"agent_id": "bob"}},
                "priority": 7,
            },
            {"when": {"name": "always", "args": {}}, "then": {"name": "round_robin", "args": {}}, "priority": 0},
        ],
        "default_target": {"name": "terminate", "args": {"reason": "over"}},
        "max_turns": 3,
    }
    assert TransitionGraph.loads(graph.to_dict()) == graph
    assert TransitionGraph.loads(json.dumps(graph.to_dict())) == graph


@pytest.mark.parametrize("name", CONDITIONS)
def test_graph_round_trip_of_each_condition(name: str) -> None:
    graph = TransitionGraph("alice", [Transition(CONDITIONS[name], StayTarget())], TerminateTarget())
    data = json.loads(json.dumps(graph.to_dict()))
    assert data["transitions"][0]["when"]["name"] == name
    assert TransitionGraph.loads(data) == graph


@pytest.mark.parametrize("name", TARGETS)
def test_graph_round_trip_of_each_target(name: str) -> None:
    graph = TransitionGraph("alice", [Transition(Always(), TARGETS[name])], TARGETS[name])
    data = json.loads(json.dumps(graph.to_dict()))
    assert (data["default_target"]["name"], data["transitions"][0]["then"]["name"]) == (name, name)
    assert TransitionGraph.loads(data) == graph


async def test_graph_max_turns_is_none_by_default_and_then_nothing_is_counted_out(team: Team) -> None:
    workflow = await team.open(TransitionGraph.round_robin(["alice", "bob"]), "alice", "bob")
    await workflow.walk(*("alice", "bob") * 30)
    assert (workflow.state.turn_count, workflow.state.status) == (60, "active")


async def test_priority_lower_numbers_are_read_first(team: Team) -> None:
    rules = [
        Transition(Always(), AgentTarget("alice"), priority=1),
        Transition(Always(), AgentTarget("bob"), priority=-5),
        Transition(Always(), AgentTarget("carol"), priority=0),
    ]
    workflow = await team.open(TransitionGraph("alice", rules, TerminateTarget()), "alice", "bob", "carol")
    assert await workflow.walk("alice") == ["bob"]


async def test_priority_ties_are_broken_by_the_order_of_the_list(team: Team) -> None:
    rules = [
        Transition(FromSpeaker("bob"), AgentTarget("bob"), priority=2),
        Transition(FromSpeaker("alice"), AgentTarget("carol"), priority=2),
        Transition(Always(), AgentTarget("bob"), priority=2),
    ]
    workflow = await team.open(TransitionGraph("alice", rules, TerminateTarget()), "alice", "bob", "carol")
    assert await workflow.walk("alice") == ["carol"]


# Built-in targets


async def test_target_agent_hands_the_turn_to_the_one_named(team: Team) -> None:
    workflow = await team.open(TransitionGraph("alice", [], AgentTarget("carol")), "alice", "bob", "carol")
    assert await workflow.walk("alice") == ["carol"]


async def test_target_round_robin_goes_through_the_participants_in_order(team: Team) -> None:
    """It is the order in which they sit in the channel, the creator first, and it begins again at its end."""
    workflow = await team.open(TransitionGraph("bob", [], RoundRobinTarget()), "alice", "carol", "bob")
    assert await workflow.walk("bob", "alice", "carol", "bob") == ["alice", "carol", "bob", "alice"]


async def test_target_stay_lets_the_same_speaker_go_on(team: Team) -> None:
    graph = TransitionGraph("bob", [Transition(ContextEquals("more", True), StayTarget())], AgentTarget("alice"))
    workflow = await team.open(graph, "alice", "bob", context_vars={"more": True})
    assert await workflow.walk("bob", "bob") == ["bob", "bob"]
    await workflow.hand_in("bob", "that was all", context_delete=["more"])
    assert workflow.next == "alice"


async def test_target_revert_to_initiator_gives_it_back_to_whoever_opened_the_channel(team: Team) -> None:
    graph = TransitionGraph("alice", [rule("alice", "bob"), rule("bob", "carol")], RevertToInitiatorTarget())
    workflow = await team.open(graph, "bob", "alice", "carol")
    assert await workflow.walk("alice", "bob", "carol") == ["bob", "carol", "bob"]


@pytest.mark.parametrize(
    ("target", "reason"), [(TerminateTarget(reason="enough"), "enough"), (TerminateTarget(), "terminated")]
)
async def test_target_terminate_ends_the_channel_with_its_reason(
    team: Team, target: TerminateTarget, reason: str
) -> None:
    workflow = await team.open(TransitionGraph("alice", [], target), "alice", "bob")
    await workflow.say("alice")
    assert await workflow.ended() == reason
    assert (await workflow.log())[-1].event_data["reason"] == reason


async def test_target_agents_gives_several_the_turn_at_once(team: Team) -> None:
    """Each speaks once, in any order; the rules are read when the last has answered."""
    rules = [
        Transition(FromSpeaker("alice"), AgentsTarget(["bob", "carol"])),
        Transition(FromSpeaker("bob"), TerminateTarget("bob was last")),
    ]
    workflow = await team.open(TransitionGraph("alice", rules, TerminateTarget("other")), "alice", "bob", "carol")
    await workflow.say("alice")
    assert workflow.state.speakers == ("bob", "carol")
    await workflow.say("carol")
    assert workflow.state.speakers == ("bob",)
    for name in ("alice", "carol"):
        with pytest.raises(Denied, match="not_expected_speaker"):
            await workflow.say(name)
    await workflow.say("bob")
    assert await workflow.ended() == "bob was last"
    assert len(await workflow.log(ASSIGNED)) == 2


# Built-in conditions


async def test_condition_always_matches_every_text_and_packet(team: Team) -> None:
    assert await matches(team, Always())
    assert await matches(team, Always(), "bob", body="a packet")


@pytest.mark.parametrize("packet", [{}, {"body": "a packet"}])
async def test_condition_from_speaker_matches_what_this_participant_says(team: Team, packet: dict[str, object]) -> None:
    assert await matches(team, FromSpeaker("alice"), "alice", **packet)
    assert not await matches(team, FromSpeaker("alice"), "bob", **packet)
    assert not await matches(team, FromSpeaker("Alice"), "alice", **packet)


async def test_condition_tool_called_matches_the_tool_of_the_packet(team: Team) -> None:
    assert await matches(team, ToolCalled("escalate"), tool="escalate")
    assert not await matches(team, ToolCalled("escalate"), tool="escalate_more")
    assert not await matches(team, ToolCalled("escalate"), body="escalate")
    assert not await matches(team, ToolCalled("escalate"))


async def test_condition_context_equals_matches_while_the_variable_has_the_value(team: Team) -> None:
    assert await matches(team, ContextEquals("route", "legal"), context={"route": "legal"})
    assert not await matches(team, ContextEquals("route", "legal"), context={"route": "billing"})
    assert not await matches(team, ContextEquals("route", "legal"))


YES, NO = Always(), Not(Always())
TRUTH = [
    (AllOf([YES, YES]), True),
    (AllOf([YES, NO]), False),
    (AnyOf([NO, YES]), True),
    (AnyOf([NO, NO]), False),
    (Not(NO), True),
    (Not(YES), False),
    (YES & NO | YES, True),
    (YES & (NO | NO), False),
    (~(YES & NO), True),
    (~NO & ~~YES, True),
]


@pytest.mark.parametrize(("condition", "expected"), TRUTH, ids=lambda value: repr(value)[:60])
async def test_condition_all_of_any_of_and_not(team: Team, condition: TransitionCondition, expected: bool) -> None:
    assert await matches(team, condition) is expected


def test_condition_operators_make_the_same_values() -> None:
    alice, bob, urgent = FromSpeaker("alice"), FromSpeaker("bob"), ContextEquals("urgent", True)
    assert alice & urgent == AllOf([alice, urgent])
    assert alice | bob == AnyOf([alice, bob])
    assert ~alice == Not(alice)
    assert alice & urgent & ~bob == AllOf([alice, urgent, Not(bob)])
    assert alice | bob | urgent == AnyOf([alice, bob, urgent])
    assert (alice | bob) & urgent == AllOf([AnyOf([alice, bob]), urgent])


async def test_condition_once_matches_until_its_rule_has_given_somebody_the_turn(team: Team) -> None:
    rules = [Transition(Once(FromSpeaker("alice")), AgentTarget("carol")), rule("alice", "bob")]
    workflow = await team.open(TransitionGraph("alice", rules, AgentTarget("alice")), "alice", "bob", "carol")
    assert await workflow.walk("alice", "carol", "alice", "bob", "alice") == ["carol", "alice", "bob", "alice", "bob"]
    assert [each.event_data.get("rule") for each in await workflow.log(ASSIGNED)] == [None, 0, None, 1, None, 1]


async def test_condition_once_inside_of_another_is_the_part_that_stops(team: Team) -> None:
    rules = [Transition(FromSpeaker("bob") | Once(FromSpeaker("alice")), AgentTarget("carol"))]
    workflow = await team.open(TransitionGraph("alice", rules, AgentTarget("bob")), "alice", "bob", "carol")
    assert await workflow.walk("alice", "carol", "bob", "carol", "bob") == ["carol", "bob", "carol", "bob", "carol"]


async def test_condition_once_is_remembered_by_the_next_hub(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'team.db'}"
    rules = [Transition(Once(FromSpeaker("alice")), StayTarget()), rule("alice", "bob")]
    async with a_team("alice", "bob", url=url) as team:
        workflow = await team.open(TransitionGraph("alice", rules, TerminateTarget()), "alice", "bob")
        assert await workflow.walk("alice") == ["alice"]
    async with a_team("alice", "bob", url=url) as team:
        again = await team.again("alice", workflow.channel_id)
        assert await again.walk("alice") == ["bob"]


@pytest.mark.parametrize(
    ("value", "expected"), [("b", True), (2, True), (2.0, True), (None, False), (True, False), ("2", False)]
)
async def test_condition_context_in(team: Team, value: object, expected: bool) -> None:
    assert await matches(team, ContextIn("route", ["a", "b", 2]), context={"route": value}) is expected


async def test_condition_context_in_of_a_variable_that_is_not_set(team: Team) -> None:
    assert await matches(team, ContextIn("route", ["a", None]))
    assert not await matches(team, ContextIn("route", ["a", False, 0, ""]))


@pytest.mark.parametrize(
    ("op", "below", "at", "above"),
    [(">=", False, True, True), (">", False, False, True), ("<=", True, True, False), ("<", True, False, False)],
)
async def test_condition_context_threshold(team: Team, op: str, below: bool, at: bool, above: bool) -> None:
    for score, expected in ((7.5, below), (8, at), (8.5, above)):
        assert await matches(team, ContextThreshold("score", op, 8), context={"score": score}) is expected


@pytest.mark.parametrize("context", [{}, {"score": None}, {"score": "9"}, {"score": True}, {"score": [9]}])
async def test_condition_context_threshold_never_matches_what_is_no_number(
    team: Team, context: dict[str, object]
) -> None:
    assert not await matches(team, ContextThreshold("score", ">=", 0), context=context)
    assert not await matches(team, ContextThreshold("score", "<=", 100), context=context)


# Factories


def test_factory_round_robin_is_always_then_round_robin() -> None:
    graph = TransitionGraph.round_robin(["alice", "bob"], max_turns=8)
    assert (graph.initial_speaker, graph.max_turns) == ("alice", 8)
    assert list(graph.transitions) == [Transition(Always(), RoundRobinTarget())]


def test_factory_sequence_is_one_rule_for_each_pair_and_then_the_end() -> None:
    graph = TransitionGraph.sequence(["alice", "bob", "carol"])
    assert (graph.initial_speaker, graph.max_turns) == ("alice", None)
    assert list(graph.transitions) == [rule("alice", "bob"), rule("bob", "carol")]
    assert graph.default_target == TerminateTarget("sequence_complete")


@pytest.mark.parametrize("names", [[], "alice", ["alice", "bob", "alice"], [1]])
def test_factory_takes_names_each_once(names: list[str]) -> None:
    for make in (TransitionGraph.sequence, TransitionGraph.round_robin):
        with pytest.raises(RulesInvalid, match="names"):
            make(names)


# One's own targets and conditions


def test_custom_classes_follow_the_protocols() -> None:
    mine: TransitionCondition = SaidAtLeast(2)
    target: TransitionTarget = LeastHeard(["alice"])
    assert (mine.name, target.name) == ("acceptance_said_at_least", "acceptance_least_heard")
    assert register_condition(SaidAtLeast) is SaidAtLeast, "again changes nothing, and it is a decorator"
    assert register_target(LeastHeard) is LeastHeard


def custom_graph() -> TransitionGraph:
    rules = [
        Transition(SaidAtLeast(3), TerminateTarget("a speech")),
        Transition(
            AtLeast(2, [FromSpeaker("bob"), ContextEquals("done", True), Always()]), LeastHeard(["alice", "carol"])
        ),
        Transition(FromSpeaker("alice") & SaidAtLeast(2), AgentTarget("carol")),
    ]
    return TransitionGraph("alice", rules, LeastHeard(["bob"], farewell="bob was heard"))


def test_custom_classes_round_trip_with_their_fields_as_arguments() -> None:
    graph = custom_graph()
    data = json.loads(json.dumps(graph.to_dict()))
    assert data["transitions"][0]["when"] == {"name": "acceptance_said_at_least", "args": {"words": 3}}
    assert data["default_target"]["args"] == {"names": ["bob"], "farewell": "bob was heard"}
    assert data["transitions"][1]["when"]["args"]["among"][0] == {"name": "from_speaker", "args": {"agent_id": "bob"}}
    assert TransitionGraph.loads(data) == graph


async def test_custom_classes_are_used_like_built_in_ones_and_survive_reopening(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'team.db'}"
    async with a_team("alice", "bob", "carol", url=url) as team:
        workflow = await team.open(custom_graph(), "alice", "bob", "carol")
        await workflow.say("alice", "hello")
        assert workflow.next == "bob"
        await workflow.say("bob", "hello")
        assert workflow.next == "alice"
    async with a_team("alice", "bob", "carol", url=url) as team:
        again = await team.again("alice", workflow.channel_id)
        assert again.state.knobs["graph"] == custom_graph().to_dict()
        await again.say("alice", "two words")
        assert again.next == "carol"
        await again.hand_in("carol", context_set={"bob": True})
        assert await again.ended() == "bob was heard"


async def test_custom_class_that_is_not_registered_is_refused_where_it_is_used(team: Team) -> None:
    @dataclass(frozen=True)
    class Unheard:
        name: ClassVar[str] = "acceptance_unheard"

        def evaluate(self, state: State, envelope: Envelope) -> bool:
            return True

    with pytest.raises(
        RulesInvalid, match="condition Unheard is not registered; call register_condition with it first"
    ):
        Transition(Unheard(), StayTarget())
    with pytest.raises(RulesInvalid, match="Unheard is not registered"):
        Transition(AllOf([Always(), Unheard()]), StayTarget())


async def test_custom_class_that_the_next_hub_does_not_know_stops_its_own_channel_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is decided without its rules; the log can be read, and other channels go on."""
    url = f"sqlite:///{tmp_path / 'team.db'}"
    async with a_team("alice", "bob", "carol", url=url) as team:
        strange = await team.open(custom_graph(), "alice", "bob", "carol")
        plain = await team.open(TransitionGraph.sequence(["alice", "bob"]), "alice", "bob")
        before = await strange.log()
    with monkeypatch.context() as patch:
        patch.delitem(REGISTERED._registered, SaidAtLeast.name)
        async with a_team("alice", "bob", "carol", url=url) as team:
            with pytest.raises(RulesInvalid, match="no condition is called 'acceptance_said_at_least'; there are: "):
                await team.again("alice", strange.channel_id)
            assert await team.hub.log(strange.channel_id) == before
            assert await (await team.again("alice", plain.channel_id)).walk("alice", "bob") == ["bob", None]
    async with a_team("alice", "bob", "carol", url=url) as team:
        assert await (await team.again("alice", strange.channel_id)).walk("alice") == ["bob"]


@pytest.mark.parametrize("name", CONDITIONS)
def test_custom_condition_cannot_replace_a_built_in_one(name: str) -> None:
    class Mine:
        def evaluate(self, state: State, envelope: Envelope) -> bool:
            return True

    Mine.name = name  # type: ignore[attr-defined]
    with pytest.raises(RulesInvalid, match=f"the condition '{name}' is built in and cannot be replaced"):
        register_condition(Mine)  # type: ignore[type-var]


@pytest.mark.parametrize("name", TARGETS)
def test_custom_target_cannot_replace_a_built_in_one(name: str) -> None:
    class Mine:
        def resolve(self, state: State, envelope: Envelope) -> TransitionDecision:
            return TransitionDecision(None)

    Mine.name = name  # type: ignore[attr-defined]
    with pytest.raises(RulesInvalid, match=f"the target '{name}' is built in and cannot be replaced"):
        register_target(Mine)  # type: ignore[type-var]


def test_custom_name_is_unique() -> None:
    @dataclass(frozen=True)
    class Other:
        name: ClassVar[str] = "acceptance_said_at_least"

        def evaluate(self, state: State, envelope: Envelope) -> bool:
            return True

    with pytest.raises(RulesInvalid, match="'acceptance_said_at_least' is registered already: SaidAtLeast"):
        register_condition(Other)


def test_custom_class_that_could_not_be_used_is_refused_when_it_is_registered() -> None:
    class Nameless:
        def evaluate(self, state: State, envelope: Envelope) -> bool:
            return True

    class Mute:
        name: ClassVar[str] = "acceptance_mute"

    class Unreadable:
        name: ClassVar[str] = "acceptance_unreadable"

        def __init__(self, words: int) -> None:
            self._hidden = words

        def evaluate(self, state: State, envelope: Envelope) -> bool:
            return True

    for kind, complaint in (
        (Nameless, "the name of the condition Nameless is None"),
        (Mute, r"the condition Mute needs a method evaluate\(self, state, envelope\)"),
        (Unreadable, "the condition Unreadable takes arguments; make it a dataclass"),
    ):
        with pytest.raises(RulesInvalid, match=complaint):
            register_condition(kind)  # type: ignore[type-var]
