"""A log decided anew: the rules that made it agree with it, and others show where they first do not."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest

from antiphon import (
    AgentsTarget,
    AgentTarget,
    Always,
    ContextEquals,
    Envelope,
    FromSpeaker,
    Once,
    RoundRobinTarget,
    State,
    StayTarget,
    TerminateTarget,
    ToolCalled,
    Transition,
    TransitionGraph,
    TransitionTarget,
    register_condition,
)
from antiphon.core.call_permits import TurnClaim
from antiphon.core.creation import LogCopy, copy_log, fork_batch
from antiphon.core.events import EV_CHANNEL_CLOSED, EV_RULE_FAILED, EV_TURN_ASSIGNED, ChannelForked
from antiphon.core.replaying import ReplayReport, replay_decisions
from antiphon.core.step import step
from antiphon.orchestration.catalogue import ruleset_for
from tests.support.envelopes import at, fact, packed, said, written
from tests.support.pure_channel import PureChannel, because

PEOPLE = ("ann", "ada:agent", "bob:agent", "dana:human")


@register_condition
@dataclass(frozen=True)
class Fragile:
    """Raises, unless it is told to match."""

    name: ClassVar[str] = "test_fragile"
    matches: bool = False

    def evaluate(self, state: State, envelope: Envelope) -> bool:
        if not self.matches:
            raise ValueError("fragile")
        return True


OVER = TerminateTarget("over")


def graph(
    *rules: Transition, default: TransitionTarget = OVER, most: int | None = None, first: str = "ann"
) -> TransitionGraph:
    return TransitionGraph(first, rules, default, most)


def then(speaker: str, *targets: str) -> Transition:
    return Transition(FromSpeaker(speaker), AgentTarget(targets[0]) if len(targets) == 1 else AgentsTarget(targets))


LINE = graph(then("ann", "ada"), then("ada", "bob"), then("bob", "dana"))


def scene_of(rules: TransitionGraph, *people: str) -> PureChannel:
    return PureChannel("workflow", *(people or PEOPLE), graph=rules.to_dict())


def agent_says(scene: PureChannel, draft: Envelope) -> list[str]:
    """An agent takes its turn, with calls in it, and ends it with this."""
    turn, by = scene.running()
    scene.writes(by, *(fact("hub", f"antiphon.call.{what}", entry(turn.turn_id)) for what in ("started", "finished")))
    return scene.ends(by, because(turn.cause or "", draft))


def entry(turn_id: str) -> dict[str, object]:
    return {"turn": turn_id, "index": 0, "name": "model", "digest": "d", "result": {}}


def routed(speaker: str, **routing: object) -> Envelope:
    draft = packed(speaker)
    return replace(draft, event_data={**draft.event_data, "routing": routing})


def played(rules: TransitionGraph = LINE) -> PureChannel:
    """Ann asks, ada and bob answer, dana puts in a word and takes her turn."""
    scene = scene_of(rules)
    scene.says("ann")
    agent_says(scene, packed("ada"))
    scene.says("dana", "by the way")
    agent_says(scene, packed("bob"))
    scene.says("dana")
    return scene


def replay(scene: PureChannel, rules: TransitionGraph | None = None) -> ReplayReport:
    ruleset = scene.ruleset if rules is None else ruleset_for("workflow", {"graph": rules.to_dict()})
    return replay_decisions(scene.log, ruleset)


# The same rules


def test_the_rules_that_made_a_log_agree_with_it() -> None:
    scene = played()
    assert scene.state.close_reason == "over"
    assert replay(scene) == ReplayReport(6), "the opening, and everything that was said"


def test_an_empty_log_is_agreed_with() -> None:
    assert replay_decisions([], ruleset_for("workflow", {"graph": LINE.to_dict()})) == ReplayReport(0)


def by_group() -> PureChannel:
    rules = graph(then("ann", "ada", "bob"), Transition(FromSpeaker("bob"), TerminateTarget("bob was last")))
    scene = scene_of(rules)
    scene.says("ann")
    agent_says(scene, packed("ada"))
    agent_says(scene, packed("bob"))
    assert scene.state.close_reason == "bob was last"
    return scene


def by_turns() -> PureChannel:
    scene = scene_of(graph(default=RoundRobinTarget(), most=5))
    for _ in range(1, 6):
        if scene.state.owed:
            agent_says(scene, packed(scene.state.owed[0].speaker))
        else:
            scene.says(scene.state.speakers[0])
    assert scene.state.close_reason == "max_turns"
    return scene


def by_context() -> PureChannel:
    rules = graph(
        Transition(Once(ContextEquals("urgent", True)), AgentTarget("bob")),
        then("ann", "ada"),
        Transition(ContextEquals("urgent", True), TerminateTarget("seen twice")),
    )
    scene = scene_of(rules)
    scene.says("ann")
    scene.took(
        step(scene.fold, written("dana", {"urgent": True}), ruleset=scene.ruleset, at=at(50), new_id=scene.new_id)
    )
    agent_says(scene, packed("ada"))
    agent_says(scene, packed("bob"))
    assert scene.state.close_reason == "seen twice"
    return scene


def by_packets() -> PureChannel:
    rules = graph(then("ann", "ada"), Transition(ToolCalled("escalate"), AgentTarget("ada")), default=StayTarget())
    scene = scene_of(rules)
    scene.says("ann")
    agent_says(scene, routed("ada", target="bob", reason="why not"))
    agent_says(scene, routed("bob", target="zoe"))
    agent_says(scene, routed("bob", tool="escalate"))
    agent_says(scene, routed("ada", finish="all done"))
    assert scene.state.close_reason == "all done"
    return scene


def by_rules_that_fail() -> PureChannel:
    scene = scene_of(graph(Transition(Fragile(), AgentTarget("dana")), *LINE.transitions))
    scene.says("ann")
    scene.says("dana", "by the way")
    agent_says(scene, packed("ada"))
    assert [each.event_type for each in scene.log].count(EV_RULE_FAILED) == 3
    return scene


def by_failure() -> PureChannel:
    scene = scene_of(LINE)
    scene.says("ann")
    _, by = scene.running()
    scene.fails(by)
    assert scene.state.speakers == ("dana",)
    scene.says("dana")
    return scene


def by_cancelling() -> PureChannel:
    """A turn is stopped before it has begun, so that nothing stands between its assignment and its end."""
    scene = scene_of(LINE)
    scene.says("ann")
    scene.fails(TurnClaim(scene.state.owed[0].turn_id, 0), "cancelled")
    assert scene.state.speakers == ("dana",)
    return scene


def by_half_a_group() -> PureChannel:
    rules = graph(then("ann", "ada", "bob"), Transition(FromSpeaker("ada"), TerminateTarget("ada spoke")))
    scene = scene_of(rules)
    scene.says("ann")
    agent_says(scene, packed("ada"))
    _, by = scene.running()
    scene.fails(by)
    assert scene.state.close_reason == "ada spoke"
    return scene


def by_time() -> PureChannel:
    scene = scene_of(LINE)
    scene.says("ann")
    scene.waits(120)
    scene.waits(600)
    assert scene.state.close_reason == "expectation_violated:turn_within"
    return scene


def copied(work: Generator[None, None, LogCopy]) -> LogCopy:
    """The copy, made at once."""
    try:
        while True:
            next(work)
    except StopIteration as end:
        copy: LogCopy = end.value
        return copy


def by_a_fork() -> PureChannel:
    scene = played()
    place = next(each.sequence for each in scene.log if each.sender_id == "ada" and each.event_type == "ag2.packet")
    origin = ChannelForked("here", place, "ann", at(3))
    copy = copied(copy_log("there", scene.log[:place], ruleset=scene.ruleset, new_id=scene.new_id))
    made = fork_batch(copy, origin, ruleset=scene.ruleset, at=at(99), new_id=scene.new_id)
    scene.log, scene.fold = list(made.batch), made.fold
    agent_says(scene, packed("bob"))
    return scene


HISTORIES = {
    "group": by_group,
    "turns": by_turns,
    "context": by_context,
    "packets": by_packets,
    "rules that fail": by_rules_that_fail,
    "failure": by_failure,
    "cancelling": by_cancelling,
    "half a group": by_half_a_group,
    "time": by_time,
    "fork": by_a_fork,
}


@pytest.mark.parametrize("name", HISTORIES)
def test_whatever_happened_the_rules_that_made_it_agree(name: str) -> None:
    scene = HISTORIES[name]()
    found = replay(scene)
    assert found.difference is None
    assert found.decisions == sum(
        each.event_type.startswith(("ag2.msg", "ag2.packet", "ag2.channel.opened")) for each in scene.log
    )


@pytest.mark.parametrize("name", HISTORIES)
def test_only_a_part_of_a_log_is_agreed_with_as_well(name: str) -> None:
    """Wherever the last batch ends, and also in the middle of it, but for what was about to be decided."""
    scene = HISTORIES[name]()
    for end in range(1, len(scene.log) + 1):
        found = replay_decisions(scene.log[:end], scene.ruleset).difference
        assert found is None or found.sequence in (end, end - 1), f"the first {end}"


@pytest.mark.parametrize("channel_type", ["conversation", "discussion", "consulting"])
def test_other_channels_are_replayed_too(channel_type: str) -> None:
    scene = PureChannel(channel_type, "ann", "ada:agent")
    scene.says("ann")
    agent_says(scene, said("ada"))
    assert replay_decisions(scene.log, scene.ruleset) == ReplayReport(3)


@pytest.mark.parametrize("channel_type", ["conversation", "discussion"])
def test_a_turn_that_ends_its_channel_has_decided_that_itself(channel_type: str) -> None:
    """Where turns end in texts, a finished turn closes the channel: that is a fact, and no rule is asked about it."""
    scene = PureChannel(channel_type, "ann", "ada:agent")
    scene.says("ann")
    turn, by = scene.running()
    scene.ends(by, because(turn.cause or "", said("ada")), close="all done")
    assert scene.state.close_reason == "all done"
    assert replay_decisions(scene.log, scene.ruleset).difference is None


@pytest.mark.parametrize("channel_type", ["conversation", "discussion", "consulting"])
def test_a_failed_turn_is_a_fact_in_every_channel(channel_type: str) -> None:
    scene = PureChannel(channel_type, "ann", "ada:agent")
    scene.says("ann")
    _, by = scene.running()
    scene.fails(by)
    assert replay_decisions(scene.log, scene.ruleset).difference is None


# Other rules


def test_other_rules_show_the_first_difference() -> None:
    scene = played()
    spoke = next(each for each in scene.log if each.sender_id == "ada" and each.event_type == "ag2.packet")
    found = replay(scene, graph(then("ann", "ada"), then("ada", "dana"), then("bob", "ann")))
    assert found.decisions == 3
    difference = found.difference
    assert difference is not None
    assert (difference.sequence, difference.speaker) == (spoke.sequence, "ada")
    assert [(kind, data["speakers"]) for kind, data in difference.recorded] == [(EV_TURN_ASSIGNED, ["bob"])]
    assert [(kind, data["speakers"]) for kind, data in difference.now] == [(EV_TURN_ASSIGNED, ["dana"])]


def test_another_reason_to_end_is_a_difference() -> None:
    scene = played()
    found = replay(scene, graph(*LINE.transitions, default=TerminateTarget("finished"))).difference
    assert found is not None
    assert (found.recorded, found.now) == (
        ((EV_CHANNEL_CLOSED, {"reason": "over"}),),
        ((EV_CHANNEL_CLOSED, {"reason": "finished"}),),
    )


@pytest.mark.parametrize(
    ("rules", "speaker"),
    [
        (graph(*LINE.transitions, first="dana"), "hub"),
        (graph(*LINE.transitions, then("dana", "ann")), "dana"),
        (graph(*LINE.transitions, most=2), "ada"),
        (graph(then("ann", "ada", "bob"), *LINE.transitions[1:]), "ann"),
        (graph(), "ann"),
    ],
    ids=["who begins", "a word put in", "fewer turns", "a group", "no rules"],
)
def test_where_rules_differ(rules: TransitionGraph, speaker: str) -> None:
    found = replay(played(), rules).difference
    assert found is not None
    assert found.speaker == speaker


def test_a_word_put_in_is_told_apart_from_a_turn() -> None:
    """A rule for dana matches her word, and the turn would have moved; without it her word moved nothing."""
    found = replay(played(), graph(*LINE.transitions, then("dana", "ann"))).difference
    assert found is not None
    assert [data["reason"] for _, data in found.recorded] == ["interjection"]
    assert [data["speakers"] for _, data in found.now] == [["ann"]]


@pytest.mark.parametrize(
    "rules",
    [
        graph(Transition(ContextEquals("never", 1), AgentTarget("dana")), *LINE.transitions),
        graph(*reversed(LINE.transitions)),
        graph(*(Transition(rule.when & Always(), rule.then) for rule in LINE.transitions)),  # type: ignore[operator]
        graph(Transition(Fragile(), AgentTarget("dana")), *LINE.transitions),
    ],
    ids=["one more", "another order", "other words", "one that fails"],
)
def test_rules_that_say_the_same_in_other_words_are_no_difference(rules: TransitionGraph) -> None:
    assert replay(played(), rules) == ReplayReport(6)


def test_facts_are_not_asked_again() -> None:
    """Rules that would have refused a handoff do not change that it was one."""
    scene = by_packets()
    ruleset = ruleset_for(
        "workflow", {"graph": scene.state.knobs["graph"], "guards": [{"name": "hop_limit", "most": 0}]}
    )
    assert replay_decisions(scene.log, ruleset).difference is None
