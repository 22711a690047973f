"""Several who have the turn at once: they answer side by side, and what follows is decided after the last of them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from antiphon import (
    Agent,
    AgentsTarget,
    ContextEquals,
    Finish,
    FromSpeaker,
    Handoff,
    Limits,
    ModelError,
    Reply,
    Request,
    RevertToInitiatorTarget,
    TerminateTarget,
    ToolCalled,
    Transition,
    TransitionGraph,
    calls,
    tool,
)
from tests.acceptance.workflow_team import FAILED, Pause, Team, Workflow, a_team

ASK = Transition(FromSpeaker("alice"), AgentsTarget(["bob", "ada"]))
AFTER_BOB = Transition(FromSpeaker("bob"), TerminateTarget("bob is enough"))


@pytest.fixture
async def team() -> AsyncIterator[Team]:
    async with a_team("alice", "bob", "carol") as found:
        yield found


async def doomed(team: Team, pause: Pause, *rules: Transition) -> Workflow:
    """alice has asked bob and the agent ada at once; ada fails as soon as it is let go."""

    async def fails(request: Request) -> Reply:
        await pause.here()
        raise ModelError("out of order")

    await team.hire(Agent("ada", model=fails, limits=Limits(model_seconds=None)))
    workflow = await team.open(TransitionGraph("alice", [ASK, *rules], TerminateTarget("lost")), "alice", "bob", "ada")
    await workflow.say("alice")
    await pause.begun()
    return workflow


async def test_group_of_agents_works_side_by_side_on_the_same_question(team: Team) -> None:
    ada, ben = await team.agent("ada", "yes"), await team.agent("ben", "no")
    rules = [Transition(FromSpeaker("alice"), AgentsTarget(["ada", "ben"]))]
    workflow = await team.open(TransitionGraph("alice", rules, RevertToInitiatorTarget()), "alice", "ada", "ben")
    await workflow.say("alice", "well?")
    await workflow.comes_to("alice")
    assert sorted(await workflow.said()) == [("ada", "yes"), ("alice", "well?"), ("ben", "no")]
    assert ada.requests[0].messages == ben.requests[0].messages == [("user", "alice: well?")]


async def test_group_writes_of_all_are_there_when_the_rules_are_read(team: Team) -> None:
    agreed = Transition(ContextEquals("bob", "yes") & ContextEquals("carol", "yes"), TerminateTarget("agreed"))
    ask = Transition(FromSpeaker("alice"), AgentsTarget(["bob", "carol"]))
    graph = TransitionGraph("alice", [agreed, ask], TerminateTarget("not agreed"))
    workflow = await team.open(graph, "alice", "bob", "carol")
    await workflow.say("alice")
    for name in ("carol", "bob"):
        await workflow.hand_in(name, context_set={name: "yes"})
    assert await workflow.ended() == "agreed"


@pytest.mark.parametrize("answered_first", [True, False])
async def test_group_of_which_one_fails_goes_on_from_the_last_answer(team: Team, answered_first: bool) -> None:
    pause = Pause()
    workflow = await doomed(team, pause, AFTER_BOB)
    if answered_first:
        await workflow.say("bob")
        assert workflow.state.speakers == ("ada",)
        pause.go_on()
    else:
        pause.go_on()
        await workflow.until(lambda state: state.speakers == ("bob",))
        await workflow.say("bob")
    assert await workflow.ended() == "bob is enough"
    assert len(await workflow.log(FAILED)) == 1


async def test_group_of_which_one_fails_goes_on_from_the_whole_of_the_last_answer(team: Team) -> None:
    """Also from how that answer wanted to go on, not only from who gave it."""
    pause = Pause()
    workflow = await doomed(team, pause, Transition(ToolCalled("look_up"), TerminateTarget("looked up")), AFTER_BOB)
    await workflow.hand_in("bob", tool="look_up")
    pause.go_on()
    assert await workflow.ended() == "looked up"


async def test_group_ends_at_once_when_one_of_it_says_that_the_work_is_finished(team: Team) -> None:
    pause = Pause()
    workflow = await doomed(team, pause, AFTER_BOB)
    await workflow.hand_in("bob", finish=Finish("solved"))
    assert await workflow.ended() == "solved"


async def test_group_only_its_last_can_hand_the_turn_on(team: Team) -> None:
    ask = Transition(FromSpeaker("alice"), AgentsTarget(["bob", "carol"]))
    workflow = await team.open(TransitionGraph("alice", [ask], TerminateTarget("lost")), "alice", "bob", "carol")
    await workflow.say("alice")
    first = await workflow.hand_in("bob", handoff="alice")
    assert first.event_data["routing"] == {"target": "alice", "rejected": "others_have_the_turn"}
    assert (workflow.state.speakers, workflow.state.hops) == (("carol",), 0)
    await workflow.hand_in("carol", handoff="bob")
    assert (workflow.next, workflow.state.hops) == ("bob", 1)


async def test_group_an_agent_that_is_not_the_last_is_told_so(team: Team) -> None:
    @tool
    def pass_on() -> Handoff:
        """Give the turn away."""
        return Handoff("alice")

    model = await team.agent("ada", calls("pass_on"), "Then I answer.", tools=[pass_on])
    workflow = await team.open(TransitionGraph("alice", [ASK], TerminateTarget("lost")), "alice", "bob", "ada")
    await workflow.say("alice")
    await workflow.after("ada")
    told = "Others have the turn together with you, so that you cannot give it away; answer yourself."
    assert model.requests[1].messages[-1] == ("tool", told)
