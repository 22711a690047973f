"""Conditions, targets, tables and findings in words, and the drawing that is made of them."""

from __future__ import annotations

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
    FromSpeaker,
    Not,
    Once,
    RevertToInitiatorTarget,
    RoundRobinTarget,
    StayTarget,
    TerminateTarget,
    ToolCalled,
    Transition,
    TransitionGraph,
)
from antiphon.core.conditions import TransitionCondition
from antiphon.core.targets import TransitionTarget
from antiphon.orchestration.rendering import describe_condition, describe_target, summarize_graph
from tests.orchestration.planted_faults import by, has, table, to

ANN, STOP, GOOD = FromSpeaker("ann"), ToolCalled("stop"), ContextEquals("mood", "good")


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        (Always(), "always"),
        (ANN, "from ann"),
        (STOP, "stop called"),
        (GOOD, 'mood = "good"'),
        (ContextEquals("mood", None), "mood unset"),
        (ContextEquals("open", True), "open = true"),
        (ContextEquals("count", 3), "count = 3"),
        (ContextEquals("tags", ["a", {"b": 1}]), 'tags = ["a",{"b":1}]'),
        (ContextIn("mood", ["good", None, 2]), 'mood in ["good",null,2]'),
        (ContextThreshold("score", ">=", 8), "score >= 8"),
        (ContextThreshold("score", "<", 0.5), "score < 0.5"),
        (ContextThreshold("score", ">", -2.5), "score > -2.5"),
        (ANN & GOOD, 'from ann and mood = "good"'),
        (ANN | STOP, "from ann or stop called"),
        (~ANN, "not from ann"),
        (Once(GOOD), 'once mood = "good"'),
        (ANN & (GOOD | STOP), 'from ann and (mood = "good" or stop called)'),
        ((ANN & GOOD) | STOP, '(from ann and mood = "good") or stop called'),
        (Not(ANN | STOP), "not (from ann or stop called)"),
        (Once(ANN & STOP), "once (from ann and stop called)"),
        (Not(Once(Not(ANN))), "not once not from ann"),
        (AllOf([ANN]), "from ann"),
        (AnyOf([AllOf([ANN])]), "(from ann)"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_condition_in_words(condition: TransitionCondition, words: str) -> None:
    assert describe_condition(condition) == words


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (AgentTarget("ann"), "to ann"),
        (AgentsTarget(["ann"]), "to ann at once"),
        (AgentsTarget(["ann", "ben", "cleo"]), "to ann and ben and cleo at once"),
        (RoundRobinTarget(), "to the next in the round"),
        (StayTarget(), "to the same speaker"),
        (RevertToInitiatorTarget(), "to whoever opened the channel"),
        (TerminateTarget("handled"), "end: handled"),
        (TerminateTarget(), "end: terminated"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_target_in_words(target: TransitionTarget, words: str) -> None:
    assert describe_target(target) == words


def test_a_table_is_told_in_the_order_in_which_it_is_read() -> None:
    graph = table(
        "ann",
        (by("ann"), to("ben"), 5),
        (has("urgent", True), to("ben", "cleo")),
        (by("ben"), TerminateTarget("handled"), -1),
        (STOP, TerminateTarget("stopped")),
        otherwise=RoundRobinTarget(),
    )
    assert summarize_graph(graph) == [
        "2: from ben → end: handled",
        "1: urgent = true → to ben and cleo at once",
        "3: stop called → end: stopped",
        "0: from ann → to ben",
        "otherwise → to the next in the round",
    ]


def test_a_drawing() -> None:
    graph = table(
        "triage",
        (by("triage") & has("urgent", True), to("oncall")),
        (by("triage", "oncall") & STOP, to("review", "oncall")),
        (by("oncall"), StayTarget(), -1),
        (has("mood", "<bad>"), StayTarget()),
        (by("review"), TerminateTarget("handled")),
        otherwise=RoundRobinTarget(),
        max_turns=12,
    )
    assert graph.to_mermaid().splitlines() == [
        "flowchart TD",
        '    n1["triage"]',
        '    n2["oncall"]',
        '    n3["review"]',
        '    n4>"anybody"]',
        '    n5>"the same speaker"]',
        '    n6((("handled")))',
        '    n7>"the next in the round"]',
        "    start([start]) --> n1",
        '    n2 -->|"2 (priority -1)"| n2',
        '    n1 -->|"0. urgent = true"| n2',
        '    n2 -->|"1. stop called"| n3',
        '    n2 -->|"1. stop called"| n2',
        '    n1 -->|"1. stop called"| n3',
        '    n1 -->|"1. stop called"| n2',
        '    n4 -->|"3. mood = #quot;#lt;bad#gt;#quot;"| n5',
        '    n3 -->|"4"| n6',
        '    n4 -->|"otherwise"| n7',
        "    cap[/at most 12 turns/]",
    ]


def test_two_ends_with_one_reason_are_one_box_and_two_reasons_are_two() -> None:
    rules = [Transition(by(name), TerminateTarget(reason)) for name, reason in (("a", "x"), ("b", "x"), ("c", "y"))]
    drawing = TransitionGraph("a", rules, TerminateTarget("y")).to_mermaid()
    assert drawing.count('((("x")))') == 1
    assert drawing.count('((("y")))') == 1


def test_a_rule_that_nobody_can_match_is_drawn_too() -> None:
    """Somebody who looks for what is wrong with it should see it."""
    drawing = table("ann", (by("ann") & by("ben"), TerminateTarget("both"))).to_mermaid()
    assert "both" in drawing
    assert "ben" in drawing


def test_somebody_called_anybody_is_somebody() -> None:
    drawing = table("anybody", (by("anybody"), StayTarget()), (STOP, to("ann"))).to_mermaid()
    person = next(line.split("[")[0].strip() for line in drawing.splitlines() if '["anybody"]' in line)
    assert f'{person} -->|"0"| {person}' in drawing
    assert f'{person} -->|"1' not in drawing
