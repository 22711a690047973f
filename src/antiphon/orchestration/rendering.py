"""Graphs as text: conditions and targets in words, for logs and messages, and the table as a Mermaid flowchart.

A rule that needs a certain speaker is an arrow from that speaker; one that any speaker may match begins at `anybody`.
Numbers before the labels are the places of the transitions in the graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from antiphon.core.codec import to_json
from antiphon.core.conditions import (
    AllOf,
    Always,
    AnyOf,
    Approved,
    BranchFailed,
    ContextEquals,
    ContextIn,
    ContextThreshold,
    FromSpeaker,
    Not,
    Once,
    ToolCalled,
    TransitionCondition,
    required_speakers,
)
from antiphon.core.targets import (
    AgentsTarget,
    AgentTarget,
    RevertToInitiatorTarget,
    RoundRobinTarget,
    StayTarget,
    TerminateTarget,
    TransitionTarget,
)
from antiphon.core.text import describe


class TransitionFields(msgspec.Struct, frozen=True):
    """The fields of a `Transition`."""

    when: TransitionCondition
    then: TransitionTarget
    priority: int = 0
    """Lower numbers are read first."""


@dataclass(frozen=True)
class GraphFields:
    """The fields of a `TransitionGraph`, which checks and drawings read."""

    initial_speaker: str
    transitions: Sequence[TransitionFields]
    default_target: TransitionTarget
    max_turns: int | None = None


def ranked_rules(graph: GraphFields) -> list[tuple[int, TransitionFields]]:
    """The rules in the order in which they are read, each with its place in the graph."""
    return sorted(enumerate(graph.transitions), key=lambda each: each[1].priority)


def describe_condition(condition: TransitionCondition) -> str:
    """A condition as a phrase: `from triage and urgent = true`."""
    match condition:
        case AllOf(parts):
            return " and ".join(_describe_nested(part) for part in parts)
        case AnyOf(parts):
            return " or ".join(_describe_nested(part) for part in parts)
        case Not(inner):
            return f"not {_describe_nested(inner)}"
        case Once(inner):
            return f"once {_describe_nested(inner)}"
        case _:
            return _describe_leaf(condition)


def _describe_nested(condition: TransitionCondition) -> str:
    words = describe_condition(condition)
    return f"({words})" if isinstance(condition, AllOf | AnyOf) else words


def _describe_leaf(condition: TransitionCondition) -> str:
    match condition:
        case Always():
            return "always"
        case FromSpeaker(agent_id):
            return f"from {agent_id}"
        case ToolCalled(tool_name):
            return f"{tool_name} called"
        case ContextEquals(key, None):
            return f"{key} unset"
        case ContextEquals(key, value):
            return f"{key} = {_json_text(value)}"
        case ContextIn(key, values):
            return f"{key} in {_json_text(list(values))}"
        case ContextThreshold(key, op, value):
            return f"{key} {op} {_json_text(value)}"
        case BranchFailed(agent_id):
            return f"the branch of {agent_id} failed" if agent_id else "a branch failed"
        case Approved():
            return "approved"
        case _:
            return _describe_custom(condition)


def describe_target(target: TransitionTarget) -> str:
    """A target as a phrase: `to bob`."""
    match target:
        case AgentTarget(agent_id):
            return f"to {agent_id}"
        case AgentsTarget(agent_ids):
            return f"to {' and '.join(agent_ids)} at once"
        case RoundRobinTarget():
            return "to the next in the round"
        case StayTarget():
            return "to the same speaker"
        case RevertToInitiatorTarget():
            return "to whoever opened the channel"
        case TerminateTarget(reason):
            return f"end: {reason}"
        case _:
            return _describe_custom(target)


def _describe_custom(value: TransitionCondition | TransitionTarget) -> str:
    """A user-defined condition or target by its `repr`; if it has none, by its name."""
    return value.name if type(value).__repr__ is object.__repr__ else describe(value)


def _json_text(value: object) -> str:
    try:
        return to_json(value).decode()
    except (TypeError, ValueError):
        return describe(value)


ANYBODY_NODE = "anybody"
MERMAID_ENTITIES = str.maketrans(
    {"#": "#35;", '"': "#quot;", "<": "#lt;", ">": "#gt;", "|": "#124;", "\\": "#92;", "`": "#96;"}
)


def graph_to_mermaid(graph: GraphFields) -> str:
    """The flowchart of a graph."""
    nodes = _MermaidNodes()
    arrows = [f"    start([start]) --> {nodes.id_of('person', graph.initial_speaker)}"]
    for place, rule in ranked_rules(graph):
        speakers = required_speakers(rule.when)
        origins = [None] if not speakers else sorted(speakers)
        number = f"{place}" if rule.priority == 0 else f"{place} (priority {rule.priority})"
        label = f"{number}. {_arrow_label(rule.when, named=bool(speakers))}".rstrip(". ")
        arrows.extend(_arrow_lines(nodes, origins, rule.then, label=label))
    arrows.extend(_arrow_lines(nodes, [None], graph.default_target, label="otherwise"))
    lines = ["flowchart TD", *nodes.lines(), *arrows]
    if graph.max_turns is not None:
        lines.append(f"    cap[/at most {graph.max_turns} turns/]")
    return "\n".join(lines) + "\n"


class _MermaidNodes:
    """The boxes of a drawing, each with an id of its own."""

    def __init__(self) -> None:
        self._ids: dict[tuple[str, str], str] = {}

    def id_of(self, kind: str, text: str) -> str:
        return self._ids.setdefault((kind, text), f"n{len(self._ids) + 1}")

    def lines(self) -> Iterator[str]:
        shapes = {"person": '["{}"]', "end": '((("{}")))', "place": '>"{}"]'}
        for (kind, text), node in self._ids.items():
            yield f"    {node}{shapes[kind].format(_escape_mermaid(text))}"


def _arrow_lines(
    nodes: _MermaidNodes, origins: Sequence[str | None], target: TransitionTarget, *, label: str
) -> Iterator[str]:
    for origin in origins:
        begin = nodes.id_of("place", ANYBODY_NODE) if origin is None else nodes.id_of("person", origin)
        for end in _target_nodes(nodes, origin, target):
            yield f'    {begin} -->|"{_escape_mermaid(label)}"| {end}'


def _target_nodes(nodes: _MermaidNodes, origin: str | None, target: TransitionTarget) -> list[str]:
    match target:
        case AgentTarget(agent_id):
            return [nodes.id_of("person", agent_id)]
        case AgentsTarget(agent_ids):
            return [nodes.id_of("person", name) for name in agent_ids]
        case StayTarget() if origin is not None:
            return [nodes.id_of("person", origin)]
        case TerminateTarget(reason):
            return [nodes.id_of("end", reason)]
        case RoundRobinTarget() | RevertToInitiatorTarget() | StayTarget():
            return [nodes.id_of("place", describe_target(target).removeprefix("to "))]
        case _:
            return [nodes.id_of("place", describe_target(target))]


def _arrow_label(condition: TransitionCondition, *, named: bool) -> str:
    """The condition without what the arrow says already: whose word it is."""
    if named and _names_only_speakers(condition):
        return ""
    match condition:
        case AllOf(parts) if named:
            rest = [part for part in parts if not _names_only_speakers(part)]
            return " and ".join(
                f"({describe_condition(part)})" if isinstance(part, AnyOf) else describe_condition(part)
                for part in rest
            )
        case _:
            return describe_condition(condition)


def _names_only_speakers(condition: TransitionCondition) -> bool:
    """Whether it says nothing but whose word it is."""
    match condition:
        case FromSpeaker():
            return True
        case AnyOf(parts):
            return all(map(_names_only_speakers, parts))
        case _:
            return False


def _escape_mermaid(text: str) -> str:
    return " ".join(text.splitlines()).translate(MERMAID_ENTITIES)


def summarize_graph(graph: GraphFields) -> list[str]:
    """The table as lines, in the order in which it is read."""
    ranked = ranked_rules(graph)
    lines = [f"{place}: {describe_condition(rule.when)} → {describe_target(rule.then)}" for place, rule in ranked]
    return [*lines, f"otherwise → {describe_target(graph.default_target)}"]
