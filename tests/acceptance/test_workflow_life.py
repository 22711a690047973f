"""The life of a workflow channel: how it is opened, what its state says, and everything that ends it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from antiphon import (
    EV_CHANNEL_CLOSED,
    EV_CHANNEL_EXPIRED,
    EV_EXPECTATION_VIOLATED,
    EV_TEXT,
    AgentsTarget,
    AgentTarget,
    ContextEquals,
    Denied,
    Finish,
    FromSpeaker,
    Handoff,
    RoundRobinTarget,
    RulesInvalid,
    StayTarget,
    TerminateTarget,
    Transition,
    TransitionGraph,
    UsageError,
    calls,
    tool,
)
from tests.acceptance.workflow_team import ASSIGNED, OPERATORS, WARNED, Team, a_team, rule

CREATED = "antiphon.channel.created"
SEQUENCE = TransitionGraph.sequence(["alice", "bob", "carol"])
ENDLESS = TransitionGraph.round_robin(["alice", "bob"])


@pytest.fixture
async def team() -> AsyncIterator[Team]:
    async with a_team("alice", "bob", "carol", "dana:human") as found:
        yield found


# Opening


async def test_opening_the_initial_speaker_must_be_a_participant(team: Team) -> None:
    with pytest.raises(
        RulesInvalid, match="initial_speaker is 'carol', who is not a participant; there are: alice, bob"
    ):
        await team.open(TransitionGraph("carol", [], TerminateTarget()), "alice", "bob")
    assert await team.hub.channels() == []


@pytest.mark.parametrize(
    ("graph", "where"),
    [
        (TransitionGraph("alice", [rule("alice", "carol")], TerminateTarget()), "transition 0"),
        (TransitionGraph("alice", [], AgentTarget("carol")), "default_target"),
        (TransitionGraph("alice", [], AgentsTarget(["bob", "carol"])), "default_target"),
    ],
)
async def test_opening_whoever_is_given_the_turn_must_be_a_participant(
    team: Team, graph: TransitionGraph, where: str
) -> None:
    with pytest.raises(RulesInvalid, match=f"{where} gives the turn to 'carol', who is not a participant"):
        await team.open(graph, "alice", "bob")
    assert await team.hub.channels() == []


async def test_opening_the_creator_takes_part_and_the_targets_fill_the_rest(team: Team) -> None:
    workflow = await team.open(SEQUENCE, "alice", "bob", "carol")
    assert workflow.state.creator_id == "alice"
    assert workflow.state.participant_order == ["alice", "bob", "carol"]
    with pytest.raises(UsageError, match="'alice', who opens the channel and so takes part already"):
        await team.open(SEQUENCE, "alice", "alice", "bob", "carol")


async def test_opening_the_creator_need_not_speak_first(team: Team) -> None:
    workflow = await team.open(TransitionGraph.sequence(["bob", "alice"]), "alice", "bob")
    assert (workflow.state.participant_order, workflow.next) == (["alice", "bob"], "bob")


async def test_opening_keeps_the_graph_as_plain_data_in_the_knobs(team: Team) -> None:
    graph = TransitionGraph("alice", [rule("alice", "bob")], TerminateTarget("over"), max_turns=9)
    workflow = await team.open(graph, "alice", "bob")
    assert workflow.state.knobs["graph"] == graph.to_dict()
    [created] = await workflow.log(CREATED)
    assert created.event_data["knobs"] == {"graph": graph.to_dict()}
    assert TransitionGraph.loads(workflow.state.knobs["graph"]) == graph  # type: ignore[arg-type]


async def test_opening_a_graph_that_is_changed_afterwards_changes_nothing(team: Team) -> None:
    data = SEQUENCE.to_dict()
    channel = await team.people["alice"].open(type="workflow", target=["bob", "carol"], knobs={"graph": data})
    data["transitions"].clear()  # type: ignore[attr-defined]
    channel.state.knobs["graph"]["transitions"].clear()  # type: ignore[index]
    await channel.send("first")
    assert channel.state.expected_next_speaker == "bob"


async def test_opening_the_first_word_of_the_creator_is_turn_one(team: Team) -> None:
    workflow = await team.open(SEQUENCE, "alice", "bob", "carol")
    assert (workflow.state.turn_count, workflow.next) == (0, "alice")
    await workflow.say("alice")
    assert (workflow.state.turn_count, workflow.next) == (1, "bob")


async def test_opening_an_agent_that_speaks_first_begins_at_once(team: Team) -> None:
    model = await team.agent("ada", "good morning")
    workflow = await team.open(TransitionGraph.sequence(["ada", "alice"]), "alice", "ada")
    await workflow.comes_to("alice")
    assert await workflow.said() == [("ada", "good morning")]
    assert model.requests[0].messages == []


async def test_opening_the_graph_survives_closing_and_reopening_the_hub(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'team.db'}"
    async with a_team("alice", "bob", "carol", url=url) as team:
        workflow = await team.open(SEQUENCE, "alice", "bob", "carol")
        await workflow.say("alice")
        before, log = workflow.state, await workflow.log()
    async with a_team("alice", "bob", "carol", url=url) as team:
        again = await team.again("alice", workflow.channel_id)
        assert again.state == before
        assert await again.log() == log
        await team.hub.hydrate()
        assert again.state == before, "to take it up twice changes nothing"
        with pytest.raises(Denied, match="not_expected_speaker"):
            await again.say("carol")
        assert await again.walk("bob", "carol") == ["carol", None]
        assert await again.ended() == "sequence_complete"


async def test_opening_a_turn_that_an_agent_owes_is_taken_by_the_next_hub(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'team.db'}"
    graph = TransitionGraph.sequence(["alice", "ada", "ben"])
    async with a_team("alice", "ada:agent", "ben:agent", url=url) as team:
        workflow = await team.open(graph, "alice", "ada", "ben")
        await workflow.say("alice", "begin")
        assert await workflow.said() == [("alice", "begin")]
    async with a_team("alice", url=url) as team:
        await team.agent("ada", "done")
        await team.agent("ben", "seen")
        again = await team.again("alice", workflow.channel_id)
        assert await again.ended() == "sequence_complete"
        assert await again.said() == [("alice", "begin"), ("ada", "done"), ("ben", "seen")]


async def test_opening_what_looks_wrong_in_a_graph_is_recorded_for_operators(team: Team) -> None:
    workflow = await team.open(ENDLESS, "alice", "bob", "carol")
    [warned] = await workflow.log(WARNED)
    assert (warned.sender_id, warned.audience) == ("hub", OPERATORS)
    assert await workflow.warnings() == ["no_way_to_end"]
    assert await (await team.open(SEQUENCE, "alice", "bob", "carol")).log(WARNED) == []


async def test_opening_a_participant_who_never_gets_the_turn_is_told_unless_it_is_a_person(team: Team) -> None:
    workflow = await team.open(SEQUENCE, "alice", "bob", "carol", "dana")
    assert await workflow.warnings() == []
    graph = TransitionGraph.sequence(["alice", "bob"])
    assert await (await team.open(graph, "alice", "bob", "carol")).warnings() == ["unreachable_participant"]


# Termination


async def test_termination_by_a_rule_whose_target_is_terminate(team: Team) -> None:
    graph = TransitionGraph("alice", [Transition(FromSpeaker("bob"), TerminateTarget("approved"))], AgentTarget("bob"))
    workflow = await team.open(graph, "alice", "bob")
    await workflow.walk("alice", "bob")
    assert await workflow.ended() == "approved"


ENDS = Transition(FromSpeaker("bob"), TerminateTarget("by rule"))
CAPPED = {
    "a rule that ends it names the reason": (ENDS, RoundRobinTarget(), "by rule"),
    "a default target that ends it names the reason": (rule("alice", "bob"), TerminateTarget("so be it"), "so be it"),
    "a rule that would go on does not": (Transition(FromSpeaker("bob"), StayTarget()), RoundRobinTarget(), "max_turns"),
    "a default target that would go on does not": (rule("alice", "bob"), RoundRobinTarget(), "max_turns"),
}


@pytest.mark.parametrize(("last", "default", "reason"), CAPPED.values(), ids=CAPPED)
async def test_termination_by_max_turns(
    team: Team, last: Transition, default: TerminateTarget | RoundRobinTarget, reason: str
) -> None:
    """On the last turn that the cap allows, the table is still read: what ends the channel says why."""
    graph = TransitionGraph("alice", [last], default, max_turns=2)
    workflow = await team.open(graph, "alice", "bob")
    assert await workflow.walk("alice", "bob") == ["bob", None]
    assert await workflow.ended() == reason
    assert len(await workflow.log(EV_TEXT)) == 2


async def test_termination_by_max_turns_is_not_put_off_by_a_handoff(team: Team) -> None:
    workflow = await team.open(TransitionGraph.round_robin(["alice", "bob"], max_turns=1), "alice", "bob")
    await workflow.hand_in("alice", handoff=Handoff("bob"))
    assert await workflow.ended() == "max_turns"


@pytest.mark.parametrize(("max_turns", "reason"), [(2, "max_turns"), (3, "both heard")])
async def test_termination_by_max_turns_a_group_that_could_not_finish_is_not_begun(
    team: Team, max_turns: int, reason: str
) -> None:
    both = Transition(FromSpeaker("alice"), AgentsTarget(["bob", "carol"]))
    graph = TransitionGraph("alice", [both], TerminateTarget("both heard"), max_turns=max_turns)
    workflow = await team.open(graph, "alice", "bob", "carol")
    await workflow.say("alice")
    if max_turns == 3:
        await workflow.walk("bob", "carol")
    assert await workflow.ended() == reason


@pytest.mark.parametrize("who", ["alice", "bob", "dana", "ada"])
async def test_termination_by_an_explicit_close_of_any_participant(team: Team, who: str) -> None:
    await team.join("ada:agent")
    workflow = await team.open(ENDLESS, "alice", "bob", "dana", "ada")
    assert await (await workflow.held_by(who)).close(reason="that will do") == "that will do"
    [closed] = await workflow.log(EV_CHANNEL_CLOSED)
    assert closed.event_data == {"reason": "that will do", "by": who}
    assert workflow.next is None


async def test_termination_by_an_agent_whose_tool_says_that_it_is_finished(team: Team) -> None:
    @tool
    def wrap_up() -> Finish:
        """End it here."""
        return Finish("nothing left")

    await team.agent("ada", calls("wrap_up", {}, text="That was it."), tools=[wrap_up])
    workflow = await team.open(TransitionGraph.round_robin(["alice", "ada"]), "alice", "ada")
    await workflow.say("alice")
    assert await workflow.ended() == "nothing left"
    assert await workflow.said() == [("alice", "…"), ("ada", "That was it.")]


async def test_termination_by_an_expectation_that_was_not_met(team: Team) -> None:
    workflow = await team.open(ENDLESS, "alice", "bob")
    await team.clock.advance(600)
    assert await workflow.ended() == "expectation_violated:turn_within"


async def test_termination_by_the_end_of_its_time_to_live(team: Team) -> None:
    workflow = await team.open(ENDLESS, "alice", "bob", ttl=60)
    await team.clock.advance(59.999)
    assert workflow.state.status == "active"
    await team.clock.advance(0.001)
    assert await workflow.ended() == "expired"
    assert workflow.state.status == "expired"
    assert team.batches(workflow)[-1] == [("hub", EV_CHANNEL_EXPIRED), ("hub", EV_CHANNEL_CLOSED)]
    assert await workflow.log(EV_EXPECTATION_VIOLATED) == []


async def test_termination_nothing_is_said_afterwards(team: Team) -> None:
    workflow = await team.open(SEQUENCE, "alice", "bob", "carol")
    await workflow.walk("alice", "bob", "carol")
    before = await workflow.log()
    for name in ("alice", "bob", "carol"):
        with pytest.raises(Denied) as caught:
            await workflow.say(name)
        assert caught.value.reason == "channel_closed"
    assert await workflow.log() == before


# The state


async def test_state_before_anybody_has_spoken(team: Team) -> None:
    state = (await team.open(SEQUENCE, "alice", "bob", "carol")).state
    assert (state.participant_order, state.expected_next_speaker) == (["alice", "bob", "carol"], "alice")
    assert (state.last_speaker_id, state.last_envelope_id, state.turn_count) == (None, None, 0)
    assert (state.close_reason, state.creator_id, state.context_vars) == ("", "alice", {})
    assert state.knobs["graph"] == SEQUENCE.to_dict()


async def test_state_after_a_turn(team: Team) -> None:
    workflow = await team.open(SEQUENCE, "alice", "bob", "carol")
    said = await workflow.say("alice")
    state = workflow.state
    assert (state.last_speaker_id, state.last_envelope_id, state.turn_count) == ("alice", said.envelope_id, 1)
    assert (state.expected_next_speaker, state.speakers) == ("bob", ("bob",))


async def test_state_after_the_end_expects_nobody_and_says_why(team: Team) -> None:
    workflow = await team.open(SEQUENCE, "alice", "bob", "carol")
    await workflow.walk("alice", "bob", "carol")
    state = workflow.state
    assert (state.expected_next_speaker, state.speakers, state.status) == (None, (), "closed")
    assert (state.close_reason, state.last_speaker_id, state.turn_count) == ("sequence_complete", "carol", 3)


async def test_state_the_rules_are_read_from_the_knobs_and_nothing_is_kept_between_turns(tmp_path: Path) -> None:
    """A hub that is closed between any two turns decides as one that never was."""
    url = f"sqlite:///{tmp_path / 'team.db'}"
    graph = TransitionGraph(
        "alice",
        [
            Transition(ContextEquals("round", 2), TerminateTarget("two rounds")),
            rule("alice", "bob"),
            rule("bob", "alice"),
        ],
        TerminateTarget("lost"),
    )
    async with a_team("alice", "bob", url=url) as team:
        channel_id = (await team.open(graph, "alice", "bob")).channel_id
    for name, count in (("alice", 1), ("bob", 1), ("alice", 2)):
        async with a_team("alice", "bob", url=url) as team:
            workflow = await team.again("alice", channel_id)
            await workflow.hand_in(name, context_set={"round": count})
            assigned, state = await workflow.log(ASSIGNED), workflow.state
    assert (state.close_reason, state.turn_count, len(assigned)) == ("two rounds", 3, 3)
