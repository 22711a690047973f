"""What a check, a drawing and words say of rules about failed branches."""

from __future__ import annotations

import pytest

from antiphon import (
    AgentsTarget,
    AgentTarget,
    BranchFailed,
    FromSpeaker,
    Once,
    RulesInvalid,
    TerminateTarget,
    Transition,
    TransitionGraph,
)
from antiphon.orchestration.rendering import describe_condition

PEOPLE = ["ann", "ada", "ben"]
ASK = Transition(FromSpeaker("ann"), AgentsTarget(["ada", "ben"]))
BACK = Transition(FromSpeaker("ada") | FromSpeaker("ben"), AgentTarget("ann"))


def codes(*rules: Transition, people: object = PEOPLE, max_turns: int | None = None) -> list[str]:
    graph = TransitionGraph("ann", list(rules), TerminateTarget("over"), max_turns)
    return [each.code for each in graph.check(people)]  # type: ignore[arg-type]


def test_rule_about_a_group_that_may_fail_is_fine() -> None:
    assert codes(ASK, Transition(BranchFailed(), TerminateTarget("failed"))) == []
    assert codes(ASK, Transition(BranchFailed("ada") & FromSpeaker("ben"), TerminateTarget("failed"))) == []


def test_rule_that_only_a_group_that_failed_as_a_whole_matches_is_fine() -> None:
    assert codes(ASK, Transition(BranchFailed("ada") & BranchFailed("ben"), TerminateTarget("failed"))) == []


@pytest.mark.parametrize(
    "rules",
    [
        [Transition(FromSpeaker("ann"), AgentTarget("ada")), Transition(FromSpeaker("ada"), AgentTarget("ben"))],
        [ASK, Transition(FromSpeaker("ada") | FromSpeaker("ben"), TerminateTarget("x"))],
    ],
    ids=["no group", "only the creator fails"],
)
def test_rule_that_can_never_match_is_dead(rules: list[Transition]) -> None:
    who = "ann" if len(rules) == 2 and rules[0] is ASK else ""
    assert "dead_rule" in codes(*rules, Transition(BranchFailed(who), TerminateTarget("failed")))


def test_people_and_code_do_not_fail() -> None:
    kinds = {"ann": "service", "ada": "service", "ben": "human"}
    assert "dead_rule" in codes(ASK, Transition(BranchFailed(), TerminateTarget("failed")), people=kinds)


def test_rule_behind_one_that_matches_every_answer_is_only_for_a_group_that_failed_as_a_whole() -> None:
    """Nobody has answered then, so the rule before it is not read."""
    every = Transition(FromSpeaker("ada") | FromSpeaker("ben"), TerminateTarget("x"))
    assert codes(ASK, every, Transition(BranchFailed(), TerminateTarget("failed"))) == []


def test_group_that_is_tried_again_for_ever_is_reported() -> None:
    again = AgentsTarget(["ada", "ben"])
    assert codes(ASK, Transition(BranchFailed(), again)) == ["endless_retry"]
    assert codes(ASK, Transition(Once(BranchFailed()), again)) == []
    assert codes(ASK, Transition(BranchFailed(), again), max_turns=9) == []


def test_failure_is_no_way_to_an_end_that_can_be_relied_on() -> None:
    only = [ASK, Transition(BranchFailed(), TerminateTarget("failed")), BACK]
    assert codes(*only) != []


def test_stranger_is_named() -> None:
    rule = Transition(BranchFailed("zoe"), TerminateTarget("failed"))
    [found] = TransitionGraph("ann", [ASK, rule], TerminateTarget("over")).check(PEOPLE)
    assert "'zoe' is not a participant" in found.message


def test_order_of_answers_does_not_matter_because_of_failures() -> None:
    alone = Transition(BranchFailed("ada"), AgentTarget("ann"))
    assert "order_matters" not in codes(ASK, alone)


def test_words_and_drawing() -> None:
    assert (
        describe_condition(Once(BranchFailed()) & ~BranchFailed("ada"))
        == "once a branch failed and not the branch of ada failed"
    )
    drawn = TransitionGraph(
        "ann", [ASK, Transition(BranchFailed(), AgentTarget("ann"))], TerminateTarget("x")
    ).to_mermaid()
    assert '-->|"1. a branch failed"|' in drawn


def test_name_must_be_a_text() -> None:
    with pytest.raises(RulesInvalid, match="agent_id of branch_failed is 7"):
        BranchFailed(7)  # type: ignore[arg-type]
