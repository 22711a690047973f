"""What holds for every graph: it is written down and read back, decides as it reads, is drawn, and can be checked."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon import (
    AgentsTarget,
    AgentTarget,
    AllOf,
    Always,
    AnyOf,
    Assign,
    Close,
    ContextEquals,
    ContextIn,
    ContextThreshold,
    Decision,
    Envelope,
    FromSpeaker,
    Not,
    Once,
    RulesInvalid,
    State,
    ToolCalled,
    TransitionDecision,
    TransitionGraph,
    Wait,
)
from antiphon.core.codec import check_json, same_json
from antiphon.core.conditions import TransitionCondition, leaf_conditions, required_speakers
from antiphon.core.targets import TransitionTarget
from antiphon.orchestration.rule_table import RuleTable
from tests.orchestration.graph_strategies import (
    PEOPLE,
    conditions_about,
    graphs,
    people,
    situations,
    strange_graphs,
    values,
)
from tests.support.json_strategies import json_values

ENTITIES = {"#": "#35;", '"': "#quot;", "<": "#lt;", ">": "#gt;", "|": "#124;", "\\": "#92;", "`": "#96;", "\n": " "}


# Written down and read back


@given(strange_graphs)
def test_a_graph_reads_back_as_it_was(graph: TransitionGraph) -> None:
    data = graph.to_dict()
    text = json.dumps(data)
    check_json(data)
    for form in (data, text, text.encode(), json.loads(text)):
        read = TransitionGraph.loads(form)
        assert read == graph
        assert same_json(read.to_dict(), data)


@given(strange_graphs)
def test_reading_a_graph_leaves_the_data_alone(graph: TransitionGraph) -> None:
    data = graph.to_dict()
    before = json.dumps(data)
    TransitionGraph.loads(data)
    assert json.dumps(data) == before


NAMES = ("always", "from_speaker", "not", "all_of", "context_in", "context_threshold", "agent", "agents", "stay", "x")
WORDS = ("name", "args", "when", "then", "priority", "transitions", "initial_speaker", "default_target", "max_turns")
ARGUMENTS = ("agent_id", "agent_ids", "condition", "conditions", "key", "op", "value", "values", "tool_name")
almost_json = st.recursive(
    json_values | st.sampled_from(NAMES),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from((*WORDS, *ARGUMENTS)), inner, max_size=4)
    ),
    max_leaves=20,
)


def refused_or_sound(data: object) -> None:
    try:
        graph = TransitionGraph.loads(data)  # type: ignore[arg-type]  # anything at all may come in here
    except RulesInvalid:
        return
    assert TransitionGraph.loads(graph.to_dict()) == graph


@given(json_values | almost_json)
def test_whatever_is_no_graph_is_refused(data: object) -> None:
    refused_or_sound(data)
    refused_or_sound(json.dumps(data))


@given(st.text() | st.binary())
def test_whatever_is_no_json_is_refused(data: str | bytes) -> None:
    refused_or_sound(data)


def places(data: object) -> list[tuple[object, ...]]:
    """The way to everything that stands in this data."""
    inside = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [(), *((key, *rest) for key, value in inside for rest in places(value))]


def changed(data: object, place: tuple[object, ...], value: object) -> object:
    """The data with something else at this place."""
    if not place:
        return value
    first, *rest = place
    inside = data.items() if isinstance(data, dict) else enumerate(data)  # type: ignore[arg-type]  # see `places`
    new = {key: changed(old, tuple(rest), value) if key == first else old for key, old in inside}
    return new if isinstance(data, dict) else list(new.values())


@given(graphs, almost_json, st.data())
def test_a_graph_with_something_strange_in_it_is_refused_or_sound(
    graph: TransitionGraph, strange: object, data: st.DataObject
) -> None:
    whole = graph.to_dict()
    place = data.draw(st.sampled_from(places(whole)))
    refused_or_sound(changed(whole, place, strange))


# Asked


def alike(one: object, other: object) -> bool:
    """Whether two values are the same JSON, numbers by what they are worth."""
    match one, other:
        case (bool(), _) | (_, bool()):
            return one is other
        case list(), list():
            return len(one) == len(other) and all(alike(a, b) for a, b in zip(one, other, strict=True))
        case dict(), dict():
            return set(one) == set(other) and all(alike(one[key], other[key]) for key in one)
        case _:
            return one == other


def matches(condition: TransitionCondition, state: State, envelope: Envelope, *, fired: bool) -> bool:
    """What a condition means, in plain words."""
    match condition:
        case AllOf(parts):
            return not [part for part in parts if not matches(part, state, envelope, fired=fired)]
        case AnyOf(parts):
            return bool([part for part in parts if matches(part, state, envelope, fired=fired)])
        case Not(inner):
            return not matches(inner, state, envelope, fired=fired)
        case Once(inner):
            return not fired and matches(inner, state, envelope, fired=fired)
        case _:
            return leaf_matches(condition, state.context_vars, envelope)


def leaf_matches(condition: TransitionCondition, context: dict[str, object], envelope: Envelope) -> bool:
    match condition:
        case FromSpeaker(agent_id):
            return envelope.sender_id == agent_id
        case ToolCalled(tool_name):
            return envelope.event_data.get("routing") == {"tool": tool_name}
        case ContextEquals(key, value):
            return alike(context.get(key), value)
        case ContextIn(key, values):
            return any(alike(context.get(key), value) for value in values)
        case ContextThreshold(key, op, edge):
            value = context.get(key)
            if isinstance(value, bool) or not isinstance(value, int | float):
                return False
            return {">=": value >= edge, ">": value > edge, "<=": value <= edge, "<": value < edge}[op]
        case _:
            return condition == Always()


def walked(graph: TransitionGraph, state: State, envelope: Envelope, *, default: bool) -> Decision:
    """The table read from top to bottom, one rule after the other."""
    order = sorted(enumerate(graph.transitions), key=lambda ranked: (ranked[1].priority, ranked[0]))
    for place, rule in order:
        if matches(rule.when, state, envelope, fired=place in state.fired):
            return decided(rule.then.resolve(state, envelope), place)
    return decided(graph.default_target.resolve(state, envelope), None) if default else Wait()


def decided(found: TransitionDecision, place: int | None) -> Decision:
    if found.next_speaker is None:
        return Close(found.close_reason, place)
    return Assign(found.speakers or (found.next_speaker,), "", place)


@given(values, values)
def test_values_are_compared_as_json_has_them(wanted: object, found: object) -> None:
    state, envelope = State(context_vars={"mood": found}), Envelope()
    assert ContextEquals("mood", wanted).evaluate(state, envelope) == alike(found, wanted)
    assert ContextIn("mood", ["never", wanted]).evaluate(state, envelope) == alike(found, wanted)


@given(conditions_about(people, values), situations(0))
def test_a_condition_holds_as_it_reads(condition: TransitionCondition, said: tuple[State, Envelope]) -> None:
    assert condition.evaluate(*said) == matches(condition, *said, fired=False)


@settings(max_examples=settings.default.max_examples * 2)
@given(graphs, st.booleans(), st.data())
def test_a_table_decides_as_it_reads(graph: TransitionGraph, default: bool, data: st.DataObject) -> None:
    table = RuleTable(graph)
    for _ in range(4):
        state, envelope = data.draw(situations(len(graph.transitions)))
        decision = table.decide(state, envelope, default=default)
        if isinstance(decision, Assign):
            assert bool(decision.reason)
            decision = Assign(decision.speakers, "", decision.rule, decision.errors)
        assert decision == walked(graph, state, envelope, default=default)


# Drawn


def targets_of(graph: TransitionGraph) -> list[TransitionTarget]:
    return [*(rule.then for rule in graph.transitions), graph.default_target]


def named_by(target: TransitionTarget) -> tuple[str, ...]:
    match target:
        case AgentTarget(agent_id):
            return (agent_id,)
        case AgentsTarget(agent_ids):
            return tuple(agent_ids)
        case _:
            return ()


def drawn_in(graph: TransitionGraph) -> set[str]:
    """Everybody whose word or turn matters to a rule."""
    found = {graph.initial_speaker, *(name for target in targets_of(graph) for name in named_by(target))}
    for rule in graph.transitions:
        speakers = required_speakers(rule.when)
        names = {leaf.agent_id for leaf in leaf_conditions(rule.when) if isinstance(leaf, FromSpeaker)}
        found |= speakers or names
    return found


@given(strange_graphs)
def test_a_drawing_names_everybody(graph: TransitionGraph) -> None:
    drawing = graph.to_mermaid()
    written = {name: "".join(ENTITIES.get(letter, letter) for letter in name) for name in drawn_in(graph)}
    assert [name for name, text in written.items() if text not in drawing] == []


@given(strange_graphs)
def test_every_line_of_a_drawing_is_one_of_ours(graph: TransitionGraph) -> None:
    first, *lines = graph.to_mermaid().split("\n")
    assert first == "flowchart TD"
    assert lines.pop() == ""
    for line in lines:
        assert line.startswith(("    n", "    start([start]) --> n", "    cap[/at most "))
        assert line.count('"') in (0, 2)
    assert len([line for line in lines if "-->" in line]) >= 1 + len(graph.transitions) + 1


# Checked


@given(strange_graphs, st.booleans(), st.sampled_from((None, {}, {"mood": ["ann"]}, {"mood": [], "score": []})))
def test_a_check_never_falls_and_says_the_same_again(
    graph: TransitionGraph, known: bool, writers: dict[str, list[str]] | None
) -> None:
    asked = {graph.initial_speaker, *(name for target in targets_of(graph) for name in named_by(target))}
    kinds = dict.fromkeys((*PEOPLE, *(sorted(asked) if known else ())), "agent") | {"dan": "human"}
    found = graph.check(kinds, writers=writers)
    assert found == graph.check(kinds, writers=writers)
    assert found == TransitionGraph.loads(graph.to_dict()).check(kinds, writers=writers)
    assert {each.level for each in found} <= {"error", "warning"}
    assert all(each.code and each.message for each in found)
    strangers = [each.code for each in found if each.code in ("unknown_initial_speaker", "unknown_target")]
    assert bool(strangers) == bool(asked - kinds.keys())
