"""What a check says of conditions and targets that it cannot look into: they may hold or not, go anywhere, or end."""

from __future__ import annotations

import json

import pytest

from antiphon import AllOf, Not, Once, RulesInvalid, StayTarget, TerminateTarget, Transition, TransitionGraph
from antiphon.orchestration.rendering import describe_condition, describe_target
from tests.orchestration.custom_parts import Moody, Somewhere, Wrapping
from tests.orchestration.planted_faults import ABC, END, by, has, table, to

GLAD, SAD = Moody("glad"), Moody("sad")


def codes(graph: TransitionGraph, people: tuple[str, ...] = ABC) -> list[str]:
    return [each.code for each in graph.check(people)]


@pytest.mark.parametrize(
    "graph",
    [
        table("ann", (GLAD, to("ben")), (by("ann"), to("cleo"))),
        table("ann", (Not(GLAD), to("ben")), (by("ann"), to("cleo"))),
        table("ann", (by("ann") & GLAD, to("ben")), (by("ann") & SAD, to("cleo"))),
        table("ann", (by("ann") & GLAD & SAD, to("ben")), (by("ann") & Not(SAD), to("cleo"))),
        table("ann", (AllOf([by("ann"), Once(GLAD)]), to("ben")), (by("ann"), to("cleo"))),
        table("ann", (by("ann") & Wrapping(has("k", 1), []), to("ben")), (by("ann"), to("cleo"))),
    ],
    ids=lambda graph: describe_condition(graph.transitions[0].when),
)
def test_a_condition_may_hold_or_not(graph: TransitionGraph) -> None:
    assert codes(graph) == []


@pytest.mark.parametrize("condition", [GLAD & Not(GLAD), by("ann") & GLAD & Not(Moody("glad"))], ids=describe_condition)
def test_equal_conditions_say_the_same(condition: AllOf) -> None:
    assert codes(table("ann", (condition, to("ben"))), ("ann", "ben")) == ["dead_rule", "unreachable_participant"]


def test_the_second_of_two_equal_rules_is_dead() -> None:
    found = table("ann", (by("ann") & GLAD, to("ben")), (by("ann") & Moody("glad"), END)).check(["ann", "ben"])
    assert [each.message for each in found] == [
        "transition 1 (from ann and Moody(mood='glad')) can never fire: transition 0 always matches first"
    ]


def test_a_loop_that_nobody_knows_will_go_on_is_none() -> None:
    assert codes(table("ann", (GLAD, StayTarget()), (by("ann"), to("ben"))), ("ann", "ben")) == []


def test_a_loop_that_goes_on_either_way_is_one() -> None:
    graph = table("ann", (GLAD & by("ben"), StayTarget()), (by("ben"), to("ben")), (by("ann"), to("ben")))
    assert codes(graph, ("ann", "ben")) == ["no_way_to_end"]


def test_a_target_may_lead_to_anybody() -> None:
    assert codes(table("ann", (by("ann"), Somewhere()))) == []
    assert codes(table("ann", otherwise=Somewhere())) == []


def test_a_target_may_end_it() -> None:
    assert codes(table("ann", (by("ann"), to("ben")), otherwise=Somewhere())) == []
    stuck = table("ann", (by("ann"), to("ben")), (by("ben"), to("cleo")), otherwise=StayTarget())
    assert codes(stuck) == ["no_way_to_end"]
    assert codes(table("ann", *((rule.when, rule.then) for rule in stuck.transitions), otherwise=Somewhere())) == []


def test_strangers_inside_of_it_are_not_seen() -> None:
    """What its fields mean is its own affair."""
    assert codes(table("ann", (by("ann"), Somewhere("zoe")))) == []


@pytest.mark.parametrize("count", [4, 5, 9])
def test_any_number_of_conditions_may_hold_together(count: int) -> None:
    moods = [Moody(str(number)) for number in range(count)]
    others = [(by("ann") & mood, StayTarget()) for mood in moods[2:]]
    graph = table(
        "ann", (by("ann") & moods[0] & Not(moods[1]), END), *others, (by("ann") & moods[0] & moods[1], to("ben"))
    )
    assert [each.message for each in graph.check(["ann", "ben"]) if each.code == "dead_rule"] == []


@pytest.mark.parametrize("count", [5, 9])
def test_two_of_many_conditions_may_hold_alone(count: int) -> None:
    moods = [Moody(str(number)) for number in range(count)]
    others = [(by("ann") & mood, StayTarget()) for mood in moods[2:]]
    graph = table("ann", *others, (by("ann") & moods[0] & moods[1], to("ben")))
    assert set(codes(graph, ("ann", "ben"))) <= {"not_explored"}


# Written down


def test_they_are_read_back() -> None:
    wrapped = Wrapping(has("k", [1, {"a": None}]), [GLAD, by("ann")])
    graph = TransitionGraph("ann", [Transition(Not(wrapped), Somewhere("why"), 3)], Somewhere())
    data = graph.to_dict()
    assert TransitionGraph.loads(data) == graph
    assert TransitionGraph.loads(json.dumps(data)) == graph
    rules = data["transitions"]
    assert isinstance(rules, list)
    assert rules[0]["then"] == {"name": "tests.somewhere", "args": {"why": "why"}}


def test_they_are_told_and_drawn_as_they_are_written() -> None:
    assert describe_condition(by("ann") & GLAD) == "from ann and Moody(mood='glad')"
    assert describe_target(Somewhere("why")) == "Somewhere(why='why')"
    drawing = table("ann", (GLAD, Somewhere("why"))).to_mermaid()
    assert "Moody(mood='glad')" in drawing
    assert "Somewhere(why='why')" in drawing


def test_once_inside_of_one_is_refused() -> None:
    for held in (Wrapping(Once(GLAD), []), Wrapping(GLAD, [Once(GLAD)]), Wrapping(Wrapping(Once(GLAD), []), [])):
        with pytest.raises(
            RulesInvalid, match="Once stands inside of Wrapping, which cannot know that its rule has fired"
        ):
            Transition(held, END)
    Transition(Once(Wrapping(GLAD, [])), TerminateTarget("fine"))


@pytest.mark.parametrize("levels", [30, 900])
def test_an_argument_that_nests_is_read_or_refused_in_words(levels: int) -> None:
    nested = "[" * levels + "]" * levels
    text = json.dumps(table("ann", (Moody("x"), END)).to_dict()).replace('"x"', nested)
    try:
        TransitionGraph.loads(text)
    except RulesInvalid:
        assert levels > 60
