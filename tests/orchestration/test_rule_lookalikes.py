"""Data in a field of a user-defined rule that looks like a rule, and is none."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import ClassVar

import pytest

from antiphon import (
    AllOf,
    Always,
    ContextEquals,
    Envelope,
    Not,
    State,
    TerminateTarget,
    Transition,
    TransitionDecision,
    TransitionGraph,
    register_condition,
    register_target,
)
from antiphon.core.conditions import TransitionCondition

LOOKALIKE = {"name": "always", "args": {}}


@register_condition
@dataclass(frozen=True)
class Shaped:
    """Holds plain data, or other conditions."""

    name: ClassVar[str] = "tests.shaped"
    data: object
    inner: TransitionCondition | None = None

    def evaluate(self, state: State, envelope: Envelope) -> bool:
        return False


@register_target
@dataclass(frozen=True)
class Pointing:
    """A target that holds plain data."""

    name: ClassVar[str] = "tests.pointing"
    data: object

    def resolve(self, state: State, envelope: Envelope) -> TransitionDecision:
        return TransitionDecision(None, "pointed")


DATA = [
    LOOKALIKE,
    [LOOKALIKE],
    [[1, [LOOKALIKE]], "x"],
    {"deep": {"in": LOOKALIKE}},
    {"name": "agent", "args": {"agent_id": "bob"}},
    {"name": "always", "args": {"strange": 1}},
    {"name": "not registered yet", "args": {}},
    {"name": 7, "args": {}},
    {"name": "always"},
    {"name": "", "args": {"data": LOOKALIKE}},
    {"name": "", "args": {}},
    {"name": "", "args": {"data": {"name": "", "args": {"data": 1}}}},
]


def read_back(graph: TransitionGraph) -> TransitionGraph:
    return TransitionGraph.loads(json.dumps(graph.to_dict()))


@pytest.mark.parametrize("data", DATA, ids=str)
def test_data_that_looks_like_a_rule_is_read_back_as_data(data: object) -> None:
    graph = TransitionGraph("a", [Transition(Shaped(data), Pointing(data))], Pointing([data]))
    assert read_back(graph) == graph


def test_rules_beside_such_data_are_read_back_as_rules() -> None:
    mixed = Shaped([LOOKALIKE, Always()], ContextEquals("k", LOOKALIKE))
    when = AllOf([mixed, Not(Shaped(LOOKALIKE))])
    graph = TransitionGraph("a", [Transition(when, TerminateTarget("x"))], TerminateTarget("y"))
    assert read_back(graph) == graph


def test_a_field_of_a_rule_of_ours_is_written_as_it_is() -> None:
    graph = TransitionGraph(
        "a", [Transition(ContextEquals("k", LOOKALIKE), TerminateTarget("x"))], TerminateTarget("y")
    )
    rule = graph.to_dict()["transitions"][0]  # type: ignore[index]
    assert rule["when"]["args"] == {"key": "k", "value": LOOKALIKE}


def test_a_file_written_before_is_read_as_before() -> None:
    """There a condition inside of another was written in the same way as data that looks like one."""
    when = {"name": "tests.shaped", "args": {"data": [1, {"name": "x", "args": {}}], "inner": LOOKALIKE}}
    end = {"name": "terminate", "args": {"reason": "y"}}
    graph = TransitionGraph.loads(
        {"initial_speaker": "a", "transitions": [{"when": when, "then": end}], "default_target": end}
    )
    assert graph.transitions[0].when == Shaped([1, {"name": "x", "args": {}}], Always())
