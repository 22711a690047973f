"""How large a graph may be, and that what is larger is refused in words, soon, and never by a fall."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest

from antiphon import (
    AllOf,
    Always,
    AnyOf,
    ContextEquals,
    ContextThreshold,
    Not,
    Once,
    RulesInvalid,
    StayTarget,
    TerminateTarget,
    Transition,
    TransitionGraph,
)
from antiphon.core.conditions import TransitionCondition
from antiphon.orchestration.catalogue import ruleset_for
from tests.orchestration.planted_faults import by, has, table, to

END = TerminateTarget("done")
ALWAYS = {"name": "always", "args": {}}


def of(rules: int) -> TransitionGraph:
    return TransitionGraph("ann", [Transition(by("ann") & has("k", number), END) for number in range(rules)], END)


def test_a_thousand_rules_are_read_back_and_asked() -> None:
    graph = of(1000)
    assert TransitionGraph.loads(json.dumps(graph.to_dict())) == graph
    ruleset_for("workflow", {"graph": graph.to_dict()})
    assert graph.to_mermaid().count("-->") == 1002


def test_a_thousand_and_one_are_refused() -> None:
    with pytest.raises(RulesInvalid, match="there are 1001 transitions; a graph takes 1000 at most"):
        of(1001)
    data = of(1000).to_dict()
    rules = data["transitions"]
    assert isinstance(rules, list)
    with pytest.raises(RulesInvalid, match="there are 1001 transitions; a graph takes 1000 at most"):
        TransitionGraph.loads({**data, "transitions": [*rules, rules[0]]})


WRAPPERS: dict[str, Callable[[TransitionCondition], TransitionCondition]] = {
    "not": Not,
    "once": Once,
    "all_of": lambda inner: AllOf([inner]),
    "any_of": lambda inner: AnyOf([inner]),
}


def nested(levels: int, wrap: Callable[[TransitionCondition], TransitionCondition]) -> TransitionCondition:
    condition: TransitionCondition = Always()
    for _ in range(levels):
        condition = wrap(condition)
    return condition


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
def test_conditions_nest_32_deep(wrap: Callable[[TransitionCondition], TransitionCondition]) -> None:
    Transition(nested(32, wrap), END)
    with pytest.raises(RulesInvalid, match="nested deeper than 32 levels"):
        Transition(nested(33, wrap), END)


def refused(make: Callable[[], object]) -> bool:
    """Whether this is refused in words. Anything else that is raised is a fall."""
    try:
        make()
    except RulesInvalid:
        return True
    return False


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
def test_what_may_be_nested_can_be_written_down(wrap: Callable[[TransitionCondition], TransitionCondition]) -> None:
    deepest = next(levels for levels in range(99) if refused(lambda: Transition(nested(levels + 1, wrap), END)))  # noqa: B023
    graph = table("ann", (nested(deepest, wrap), END))
    assert TransitionGraph.loads(graph.to_dict()) == graph


def as_data(levels: int, name: str, field: str) -> dict[str, object]:
    data: dict[str, object] = ALWAYS
    for _ in range(levels):
        data = {"name": name, "args": {field: [data] if field == "conditions" else data}}
    return data


@pytest.mark.parametrize(("name", "field"), [("not", "condition"), ("once", "condition"), ("any_of", "conditions")])
def test_data_nests_32_deep(name: str, field: str) -> None:
    data = {"initial_speaker": "ann", "default_target": {"name": "stay"}}
    rule = {"when": as_data(32, name, field), "then": {"name": "stay"}}
    assert len(TransitionGraph.loads({**data, "transitions": [rule]}).transitions) == 1
    for levels in (33, 5000):
        deeper = {**rule, "when": as_data(levels, name, field)}
        with pytest.raises(RulesInvalid, match="nested deeper than 32 levels"):
            TransitionGraph.loads({**data, "transitions": [deeper]})


# Values of any size


def deep(levels: int) -> list[object]:
    value: list[object] = []
    for _ in range(levels):
        value = [value]
    return value


def test_a_text_that_nests_without_end_is_refused() -> None:
    for text in ("[" * 100_000, '{"a":' * 100_000, '{"initial_speaker":' + "[" * 5000 + "]" * 5000 + "}"):
        with pytest.raises(RulesInvalid):
            TransitionGraph.loads(text)


LEVELS = pytest.mark.parametrize("levels", [100, 3000])


@LEVELS
def test_a_value_that_nests_too_deep_is_refused_in_words(levels: int) -> None:
    assert refused(lambda: table("ann", (ContextEquals("k", deep(levels)), END)).to_dict())


def asked_of(condition: TransitionCondition) -> None:
    """Draw and check a graph with this condition."""
    graph = table("ann", (condition, to("ben")), (by("ben"), END))
    assert "k = " in graph.to_mermaid()
    graph.check(["ann", "ben"])


@LEVELS
def test_a_value_that_nests_too_deep_is_refused_or_can_be_drawn_and_checked(levels: int) -> None:
    refused(lambda: asked_of(ContextEquals("k", deep(levels))))


NO_NUMBERS = {"huge": 10**400, "tiny": -(10**400), "nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}
SIZES = [0, -1, 0.1, 10**18, 10**99, 1e300, -1e300, 5e-324]


def above(edge: float) -> TransitionGraph:
    """On one side of a number it ends, on the other somebody else speaks."""
    return table("ann", (ContextThreshold("k", ">=", edge), END), (ContextThreshold("k", "<", edge), to("ben")), HANDED)


HANDED = (by("ann"), StayTarget())


@pytest.mark.parametrize("edge", SIZES, ids=str)
def test_both_sides_of_any_number_can_be_reached(edge: float) -> None:
    graph = above(edge)
    assert [each.message for each in graph.check(["ann", "ben"]) if each.code == "dead_rule"] == []
    assert TransitionGraph.loads(graph.to_dict()) == graph


@pytest.mark.parametrize(
    "edge", [10**400, -(10**400), float("nan"), float("inf"), float("-inf")], ids=lambda edge: f"{edge!r:.9}"
)
def test_what_is_no_number_that_can_be_recorded_is_refused_in_words(edge: float) -> None:
    refused(lambda: above(edge).check(["ann", "ben"]))
    refused(lambda: above(edge).to_mermaid())
    assert refused(lambda: above(edge).to_dict())
    assert refused(lambda: table("ann", (ContextEquals("k", edge), END)).to_dict())


@pytest.mark.parametrize("turns", [1, 10**9])
def test_max_turns_within_its_bounds(turns: int) -> None:
    assert TransitionGraph.loads(table("ann", max_turns=turns).to_dict()).max_turns == turns


@pytest.mark.parametrize("turns", [0, -1, 10**9 + 1, True, 1.0, "3"])
def test_max_turns_beyond_its_bounds(turns: object) -> None:
    with pytest.raises(RulesInvalid, match="max_turns is"):
        table("ann", max_turns=turns)  # type: ignore[arg-type]  # what is given wrongly is the point


# How long a check takes


def seconds_of(graph: TransitionGraph) -> float:
    begun = time.process_time()
    graph.check(["ann", "ben"])
    return time.process_time() - begun


LARGE = {
    "a thousand values": of(1000),
    "a thousand tools": TransitionGraph(
        "ann", [Transition(by("ann") & has(f"k{number % 9}", number), to("ben")) for number in range(1000)], END
    ),
    "many variables": TransitionGraph(
        "ann",
        [Transition(has(f"k{number}", number) & has(f"k{number + 1}", 0), to("ben")) for number in range(99)],
        END,
    ),
    "many rules that fire once": TransitionGraph(
        "ann", [Transition(Once(has("k", number)), to("ben")) for number in range(40)], END
    ),
    "many rules that can never fire": TransitionGraph(
        "ann",
        [
            Transition(by("ben"), END),
            *(
                Transition(by("ben") & has("j", number) & has("k", number) & has("j", number + 1), to("ann"))
                for number in range(10)
                for _ in range(7)
            ),
        ],
        to("ben"),
    ),
}


@pytest.mark.parametrize("graph", LARGE.values(), ids=LARGE)
def test_a_check_of_anything_takes_seconds(graph: TransitionGraph) -> None:
    """Here they are slow ones, so that a crowded machine does not matter; most take a tenth."""
    assert seconds_of(graph) < 6


def test_what_was_not_looked_at_is_said() -> None:
    found = LARGE["many variables"].check(["ann", "ben"])
    assert [(each.level, each.code) for each in found] == [("warning", "not_explored")]
    assert found[0].message == "it has too many situations to look at all of them; those beyond were not looked at"
