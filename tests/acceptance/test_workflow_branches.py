"""A group of which one fails: rules can see it, and say what follows."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from antiphon import (
    Agent,
    AgentsTarget,
    AgentTarget,
    Always,
    BranchFailed,
    FromSpeaker,
    Limits,
    ModelError,
    Not,
    Once,
    Reply,
    Request,
    TerminateTarget,
    Transition,
    TransitionGraph,
    says,
)
from tests.acceptance.workflow_team import FAILED, Team, Workflow, a_team

ASK = Transition(FromSpeaker("alice"), AgentsTarget(["ada", "ben"]))
FAILS = Transition(BranchFailed(), TerminateTarget("one failed"))
ANY = FromSpeaker("ada") | FromSpeaker("ben")


@pytest.fixture
async def team() -> AsyncIterator[Team]:
    async with a_team("alice") as found:
        yield found


class Worker:
    """An agent whose model fails so many times, then answers; each time it may go on when told so."""

    def __init__(self, name: str, fails: int = 0) -> None:
        self.name, self.fails, self.requests = name, fails, 0
        self.go = asyncio.Event()
        self.go.set()

    async def __call__(self, request: Request) -> Reply:
        self.requests += 1
        await self.go.wait()
        if self.requests <= self.fails:
            raise ModelError(f"{self.name} is out of order")
        return says(f"{self.name} answers")

    @property
    def agent(self) -> Agent:
        return Agent(self.name, model=self, limits=Limits(model_seconds=None))


async def asked(team: Team, *workers: Worker, rules: list[Transition], people: tuple[str, ...] = ()) -> Workflow:
    """alice has asked two agents at once."""
    for worker in workers:
        await team.hire(worker.agent)
    names = [worker.name for worker in workers]
    graph = TransitionGraph("alice", [ASK, *rules], TerminateTarget("all well"), max_turns=20)
    workflow = await team.open(graph, "alice", *names, *people)
    await workflow.say("alice")
    return workflow


@pytest.mark.parametrize("fails_first", [True, False])
async def test_branch_that_fails_is_seen_by_the_rules_whether_it_ends_first_or_last(
    team: Team, fails_first: bool
) -> None:
    ada, ben = Worker("ada", fails=9), Worker("ben")
    last = ben if fails_first else ada
    last.go.clear()
    workflow = await asked(team, ada, ben, rules=[FAILS])
    await workflow.until(lambda state: state.speakers == (last.name,))
    assert workflow.state.failed_branches == ({"ada": "model_error"} if fails_first else {})
    last.go.set()
    assert await workflow.ended() == "one failed"
    assert workflow.state.failed_branches == {"ada": "model_error"}


async def test_group_that_answers_is_no_failed_one(team: Team) -> None:
    workflow = await asked(team, Worker("ada"), Worker("ben"), rules=[FAILS])
    assert await workflow.ended() == "all well"


async def test_all_branches_that_fail_are_seen_by_the_rules(team: Team) -> None:
    workflow = await asked(team, Worker("ada", fails=9), Worker("ben", fails=9), rules=[FAILS])
    assert await workflow.ended() == "one failed"
    assert workflow.state.failed_branches == {"ada": "model_error", "ben": "model_error"}


@pytest.mark.parametrize("rules", [[], [Transition(Always() | ANY, TerminateTarget("wrong"))]])
async def test_all_branches_that_fail_without_such_a_rule_end_the_channel_as_before(
    team: Team, rules: list[Transition]
) -> None:
    workflow = await asked(team, Worker("ada", fails=9), Worker("ben", fails=9), rules=rules)
    assert await workflow.ended() == "turn_failed:model_error"


async def test_all_branches_that_fail_without_such_a_rule_give_a_person_the_turn_as_before(team: Team) -> None:
    await team.join("dana:human")
    workflow = await asked(team, Worker("ada", fails=9), Worker("ben", fails=9), rules=[], people=("dana",))
    await workflow.comes_to("dana")
    assert workflow.state.failed_branches == {}


async def test_one_agent_that_fails_alone_is_no_branch(team: Team) -> None:
    await team.hire(Worker("ada", fails=9).agent)
    rules = [FAILS, Transition(FromSpeaker("alice"), AgentTarget("ada"))]
    workflow = await team.open(TransitionGraph("alice", rules, TerminateTarget("x")), "alice", "ada")
    await workflow.say("alice")
    assert await workflow.ended() == "turn_failed:model_error"


@pytest.mark.parametrize("ben_fails", [0, 1])
async def test_group_can_be_tried_again_once(team: Team, ben_fails: int) -> None:
    again = Transition(Once(BranchFailed()), AgentsTarget(["ada", "ben"]))
    ada, ben = Worker("ada", fails=1), Worker("ben", fails=ben_fails)
    workflow = await asked(team, ada, ben, rules=[again, FAILS])
    assert await workflow.ended() == "all well"
    assert (ada.requests, ben.requests) == (2, 2)


async def test_only_the_branch_that_failed_can_be_tried_again(team: Team) -> None:
    again = [Transition(Once(BranchFailed(name)), AgentTarget(name)) for name in ("ada", "ben")]
    ada, ben = Worker("ada"), Worker("ben", fails=1)
    workflow = await asked(team, ada, ben, rules=[*again, FAILS])
    assert await workflow.ended() == "all well"
    assert (ada.requests, ben.requests) == (1, 2)


async def test_the_work_can_go_on_without_the_branch_that_failed(team: Team) -> None:
    judge = Worker("judge")
    on = Transition(ANY & BranchFailed("ada"), AgentTarget("judge"))
    workflow = await asked(team, Worker("ada", fails=9), Worker("ben"), judge, rules=[on])
    assert await workflow.ended() == "all well"
    assert judge.requests == 1


async def test_condition_can_be_denied_and_joined(team: Team) -> None:
    rules = [
        Transition(~BranchFailed() & FromSpeaker("ben"), TerminateTarget("fine")),
        Transition(BranchFailed() & FromSpeaker("ben"), TerminateTarget("without ada")),
    ]
    workflow = await asked(team, Worker("ada", fails=9), Worker("ben"), rules=rules)
    assert await workflow.ended() == "without ada"


async def test_group_that_always_fails_is_not_tried_for_ever(team: Team) -> None:
    again = Transition(BranchFailed(), AgentsTarget(["ada", "ben"]))
    ada, ben = Worker("ada", fails=99), Worker("ben", fails=99)
    workflow = await asked(team, ada, ben, rules=[again])
    assert await workflow.ended() == "turn_failed:model_error"
    assert (ada.requests, ben.requests) == (3, 3)
    assert len(await workflow.log(FAILED)) == 6


async def test_word_put_in_while_others_of_the_group_are_at_work_does_not_end_it(team: Team) -> None:
    await team.join("dana:human", "bob")
    await team.hire(Worker("ada", fails=9).agent)
    ask = Transition(FromSpeaker("alice"), AgentsTarget(["ada", "bob"]))
    graph = TransitionGraph("alice", [ask, FAILS], TerminateTarget("all well"))
    workflow = await team.open(graph, "alice", "ada", "bob", "dana")
    await workflow.say("alice")
    await workflow.until(lambda state: state.speakers == ("bob",))
    await workflow.say("dana", "how is it going?")
    assert (workflow.state.speakers, workflow.state.failed_branches) == (("bob",), {"ada": "model_error"})
    await workflow.say("bob")
    assert await workflow.ended() == "one failed"


async def test_retried_branch_answers_a_private_question_in_private(team: Team) -> None:
    again = Transition(Once(BranchFailed()), AgentsTarget(["ada", "ben"]))
    for worker in (Worker("ada", fails=1), Worker("ben", fails=1), Worker("judge")):
        await team.hire(worker.agent)
    graph = TransitionGraph("alice", [ASK, again], TerminateTarget("over"))
    workflow = await team.open(graph, "alice", "ada", "ben", "judge")
    await workflow.say("alice", "psst", audience=["ada", "ben"])
    assert await workflow.ended() == "over"
    answers = [each for each in await workflow.log("ag2.packet") if each.sender_id in ("ada", "ben")]
    assert [sorted(each.audience or []) for each in answers] == [["ada", "alice", "ben"]] * 2


async def test_failures_are_forgotten_when_the_turn_is_given_anew(team: Team) -> None:
    on = Transition(BranchFailed(), AgentTarget("alice"))
    workflow = await asked(team, Worker("ada", fails=9), Worker("ben"), rules=[on])
    await workflow.comes_to("alice")
    assert (workflow.state.failed_branches, workflow.state.group) == ({}, ())


def test_condition_is_data() -> None:
    rules = [
        Transition(BranchFailed(), TerminateTarget("a")),
        Transition(Not(BranchFailed("ada")) & Once(BranchFailed()), TerminateTarget("b")),
    ]
    graph = TransitionGraph("alice", rules, TerminateTarget("c"))
    data = graph.to_dict()
    assert data["transitions"][0]["when"] == {"name": "branch_failed", "args": {}}  # type: ignore[index]
    assert TransitionGraph.loads(json.dumps(data)) == graph
