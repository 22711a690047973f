"""A graph as a Mermaid flowchart, made from the table.

A rule that needs a certain speaker is an arrow from that speaker; one that anybody's word may match begins at
`anybody`. Numbers before the labels are the places of the transitions in the graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from antiphon.core.conditions import AllOf, AnyOf, FromSpeaker, TransitionCondition, speakers_of
from antiphon.core.targets import (
    AgentsTarget,
    AgentTarget,
    RevertToInitiatorTarget,
    RoundRobinTarget,
    StayTarget,
    TerminateTarget,
    TransitionTarget,
)
from antiphon.orchestration.wording import as_words, told_target

if TYPE_CHECKING:
    from antiphon.orchestration.graph import TransitionGraph

ANYBODY = "anybody"
ENTITIES = {"#": "35", '"': "quot", "<": "lt", ">": "gt", "|": "124", "\\": "92", "`": "96"}


def mermaid(graph: TransitionGraph) -> str:
    """The drawing."""
    nodes = _Nodes()
    arrows = [f"    start([start]) --> {nodes.person(graph.initial_speaker)}"]
    rules = sorted(enumerate(graph.transitions), key=lambda each: each[1].priority)
    for place, rule in rules:
        speakers = speakers_of(rule.when)
        origins = [None] if not speakers else sorted(speakers)
        number = f"{place}" if rule.priority == 0 else f"{place} (priority {rule.priority})"
        label = f"{number}. {_label(rule.when, named=bool(speakers))}".rstrip(". ")
        arrows.extend(_arrows(nodes, origins, rule.then, label=label))
    arrows.extend(_arrows(nodes, [None], graph.default_target, label="otherwise"))
    lines = ["flowchart TD", *nodes.lines(), *arrows]
    if graph.max_turns is not None:
        lines.append(f"    cap[/at most {graph.max_turns} turns/]")
    return "\n".join(lines) + "\n"


class _Nodes:
    """The boxes of a drawing, each with an id of its own."""

    def __init__(self) -> None:
        self._ids: dict[tuple[str, str], str] = {}

    def person(self, name: str) -> str:
        return self._id("person", name)

    def end(self, reason: str) -> str:
        return self._id("end", reason)

    def place(self, words: str) -> str:
        return self._id("place", words)

    def _id(self, kind: str, text: str) -> str:
        return self._ids.setdefault((kind, text), f"n{len(self._ids) + 1}")

    def lines(self) -> Iterator[str]:
        shapes = {"person": '["{}"]', "end": '((("{}")))', "place": '>"{}"]'}
        for (kind, text), node in self._ids.items():
            yield f"    {node}{shapes[kind].format(_safe(text))}"


def _arrows(nodes: _Nodes, origins: Sequence[str | None], target: TransitionTarget, *, label: str) -> Iterator[str]:
    for origin in origins:
        begin = nodes.place(ANYBODY) if origin is None else nodes.person(origin)
        for end in _ends(nodes, origin, target):
            yield f'    {begin} -->|"{_safe(label)}"| {end}'


def _ends(nodes: _Nodes, origin: str | None, target: TransitionTarget) -> list[str]:
    match target:
        case AgentTarget(agent_id):
            return [nodes.person(agent_id)]
        case AgentsTarget(agent_ids):
            return [nodes.person(name) for name in agent_ids]
        case StayTarget() if origin is not None:
            return [nodes.person(origin)]
        case TerminateTarget(reason):
            return [nodes.end(reason)]
        case RoundRobinTarget() | RevertToInitiatorTarget() | StayTarget():
            return [nodes.place(told_target(target).removeprefix("to "))]
        case _:
            return [nodes.place(told_target(target))]


def _label(condition: TransitionCondition, *, named: bool) -> str:
    """The condition without what the arrow says already: whose word it is."""
    if named and _only_speakers(condition):
        return ""
    match condition:
        case AllOf(parts) if named:
            rest = [part for part in parts if not _only_speakers(part)]
            return " and ".join(f"({as_words(part)})" if isinstance(part, AnyOf) else as_words(part) for part in rest)
        case _:
            return as_words(condition)


def _only_speakers(condition: TransitionCondition) -> bool:
    """Whether it says nothing but whose word it is."""
    match condition:
        case FromSpeaker():
            return True
        case AnyOf(parts):
            return all(map(_only_speakers, parts))
        case _:
            return False


def _safe(text: str) -> str:
    plain = " ".join(text.splitlines())
    return "".join(f"#{ENTITIES[character]};" if character in ENTITIES else character for character in plain)
