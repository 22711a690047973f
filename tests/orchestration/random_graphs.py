"""Graphs drawn by lot: anything at all, sensible ones, sensible ones with changes, and ones full of conditions.

Most of what is drawn holds rules that can never fire. So that graphs without any warning are not only the small ones,
what a check says is never used is taken out again, as somebody would who reads the warnings.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from random import Random

from antiphon import (
    AgentsTarget,
    AgentTarget,
    AllOf,
    Always,
    AnyOf,
    ContextEquals,
    ContextIn,
    ContextThreshold,
    Finding,
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
from antiphon.core.conditions import TransitionCondition, is_number
from antiphon.core.targets import TransitionTarget

NAMES = ("ann", "ben", "cleo", "dan", "eve", "fay")
VALUES: tuple[object, ...] = ("low", "high", 1, 2.5, 7, True, None)
EDGE = 2.5
HOW_MANY_VALUES = ((), (1,), (2,), (3,), (1, 1), (1, 2), (2, 2), (1, 3), (1, 1, 2))
"""For each context variable, of how many values rules know."""
PRIORITIES = (0, 0, 0, 0, -1, 1, 5)
MOST_RULES = 12
TIDYINGS = 3
AS_IT_IS = 0.1
"""How many are left as they were drawn."""


@dataclass(frozen=True)
class Cast:
    """Who takes part, and what rules may ask about."""

    people: tuple[str, ...]
    humans: frozenset[str]
    keys: Mapping[str, Sequence[object]]
    tools: tuple[str, ...]


@dataclass(frozen=True)
class Drawn:
    """A graph, those it is for, and what a check finds."""

    number: int
    graph: TransitionGraph
    kinds: Mapping[str, str]
    findings: tuple[Finding, ...]

    @property
    def codes(self) -> set[str]:
        return {each.code for each in self.findings}


def cast(lot: Random) -> Cast:
    people = NAMES[: lot.randint(2, len(NAMES))]
    values = lot.choice(HOW_MANY_VALUES)
    keys = {f"k{number}": lot.sample(VALUES, count) for number, count in enumerate(values)}
    humans = frozenset(lot.sample(people, 1)) if lot.random() < 0.15 else frozenset()
    return Cast(people, humans, keys, ("alpha", "beta")[: lot.randint(0, 2)])


def about_context(lot: Random, of: Cast) -> TransitionCondition:
    key = lot.choice(list(of.keys))
    values = of.keys[key]
    match lot.choice(("equals", "equals", "in", "threshold")):
        case "equals":
            return ContextEquals(key, lot.choice(values))
        case "in":
            return ContextIn(key, lot.sample(values, lot.randint(1, len(values))))
        case _:
            edges = [value for value in values if is_number(value)] or [EDGE]
            return ContextThreshold(key, lot.choice((">=", ">", "<=", "<")), lot.choice(edges))


def about_a_turn(lot: Random, of: Cast) -> TransitionCondition:
    """What was written or called in it, as far as there is anything."""
    ways: list[Callable[[], TransitionCondition]] = [Always]
    if of.keys:
        ways = [lambda: about_context(lot, of)] * 2
    if of.tools:
        ways.append(lambda: ToolCalled(lot.choice(of.tools)))
    return lot.choice(ways)()


def leaf(lot: Random, of: Cast) -> TransitionCondition:
    match lot.randrange(8):
        case 0:
            return Always()
        case 1 | 2 | 3:
            return FromSpeaker(lot.choice(of.people))
        case _:
            return about_a_turn(lot, of)


def condition(lot: Random, of: Cast, depth: int = 3) -> TransitionCondition:
    if depth == 0 or lot.random() < 0.45:
        return leaf(lot, of)
    match lot.choice(("all", "all", "any", "not", "once")):
        case "all":
            return AllOf([condition(lot, of, depth - 1) for _ in range(lot.randint(1, 3))])
        case "any":
            return AnyOf([condition(lot, of, depth - 1) for _ in range(lot.randint(1, 3))])
        case "not":
            return Not(condition(lot, of, depth - 1))
        case _:
            return Once(condition(lot, of, depth - 1))


def target(lot: Random, of: Cast) -> TransitionTarget:
    match lot.randrange(12):
        case 0 | 11:
            return AgentsTarget(lot.sample(of.people, lot.randint(1, min(3, len(of.people)))))
        case 1:
            return RoundRobinTarget()
        case 2:
            return StayTarget()
        case 3:
            return RevertToInitiatorTarget()
        case 4 | 5:
            return TerminateTarget(lot.choice(("done", "over")))
        case _:
            return AgentTarget(lot.choice(of.people))


def wild(lot: Random, of: Cast) -> TransitionGraph:
    """Anything at all."""
    rules = [
        Transition(condition(lot, of), target(lot, of), lot.choice(PRIORITIES))
        for _ in range(lot.randint(0, MOST_RULES))
    ]
    return TransitionGraph(lot.choice(of.people), rules, target(lot, of))


def sensible(lot: Random, of: Cast) -> TransitionGraph:
    """One after the other, with exceptions."""
    order = lot.sample(of.people, len(of.people))
    rules: list[Transition] = []
    for speaker, following in zip(order, [*order[1:], None], strict=True):
        for _ in range(lot.choice((0, 0, 1, 1, 2))):
            when = FromSpeaker(speaker) & condition(lot, of, lot.randint(0, 2))
            rules.append(Transition(when, target(lot, of), lot.choice(PRIORITIES)))
        if following is not None or lot.random() < 0.5:
            onwards = target(lot, of) if following is None else AgentTarget(following)
            rules.append(Transition(FromSpeaker(speaker), onwards, lot.choice((0, 0, 2))))
    default = lot.choice((TerminateTarget("done"), TerminateTarget("over"), target(lot, of)))
    return TransitionGraph(order[0], rules[:MOST_RULES], default)


def gated(lot: Random, of: Cast) -> TransitionGraph:
    """Everybody has a few ways on, by what was written or called; few of them end it."""
    rules: list[Transition] = []
    for speaker in of.people:
        for _ in range(lot.choice((0, 1, 1, 2))):
            asked = about_a_turn(lot, of)
            asked = lot.choice((asked, asked, asked, Not(asked), Once(asked)))
            onwards = lot.choice((TerminateTarget("done"), AgentTarget(lot.choice(of.people)), target(lot, of)))
            rules.append(Transition(FromSpeaker(speaker) & asked, onwards))
        if lot.random() < 0.5:
            onwards = lot.choice((StayTarget(), AgentTarget(lot.choice(of.people))))
            rules.append(Transition(FromSpeaker(speaker), onwards))
    default = lot.choice((StayTarget(), RoundRobinTarget(), RevertToInitiatorTarget(), TerminateTarget("over")))
    return TransitionGraph(of.people[0], rules[:MOST_RULES], default)


def changed(lot: Random, of: Cast) -> TransitionGraph:
    """A sensible one in which somebody has changed something."""
    graph = lot.choice((sensible, gated))(lot, of)
    rules = list(graph.transitions)
    for _ in range(lot.randint(1, 3)):
        if rules:
            _change(lot, of, rules)
    default = target(lot, of) if lot.random() < 0.2 else graph.default_target
    return TransitionGraph(graph.initial_speaker, rules, default)


def _change(lot: Random, of: Cast, rules: list[Transition]) -> None:
    place = lot.randrange(len(rules))
    when, then, priority = rules[place].when, rules[place].then, rules[place].priority
    match lot.choice(("target", "condition", "and", "or", "once", "priority", "move", "drop")):
        case "target":
            rules[place] = Transition(when, target(lot, of), priority)
        case "condition":
            rules[place] = Transition(condition(lot, of), then, priority)
        case "and":
            rules[place] = Transition(AllOf([when, leaf(lot, of)]), then, priority)
        case "or":
            rules[place] = Transition(AnyOf([when, leaf(lot, of)]), then, priority)
        case "once":
            rules[place] = Transition(Once(when), then, priority)
        case "priority":
            rules[place] = Transition(when, then, lot.choice((-3, 3)))
        case "move":
            rules.insert(lot.randrange(len(rules)), rules.pop(place))
        case _:
            del rules[place]


def tidied(number: int, graph: TransitionGraph, kinds: Mapping[str, str], default: TransitionTarget) -> Drawn:
    """The graph without what a check says is never used; if it cannot end, with another default target."""
    found = graph.check(dict(kinds))
    for _ in range(TIDYINGS):
        said = [(each.code, each.message) for each in found]
        dead = {int(re.findall(r"\d+", message)[0]) for code, message in said if code == "dead_rule"}
        unasked = {message.split("'")[1] for code, message in said if code == "unreachable_participant"}
        endless = "no_way_to_end" in dict(said)
        if len(unasked) == len(kinds) - 1 or not (dead or unasked or endless):
            break
        rules = [rule for place, rule in enumerate(graph.transitions) if place not in dead]
        graph = TransitionGraph(graph.initial_speaker, rules, default if endless else graph.default_target)
        kinds = {name: kind for name, kind in kinds.items() if name not in unasked}
        found = graph.check(dict(kinds))
    return Drawn(number, graph, kinds, tuple(found))


def drawn(number: int) -> Drawn:
    """The graph of this number, always the same."""
    lot = Random(number)
    while True:
        of = cast(lot)
        graph = lot.choice((wild, sensible, gated, gated, changed))(lot, of)
        kinds: Mapping[str, str] = {name: "human" if name in of.humans else "agent" for name in of.people}
        if lot.random() < AS_IT_IS:
            return Drawn(number, graph, kinds, tuple(graph.check(dict(kinds))))
        found = tidied(number, graph, kinds, lot.choice((graph.default_target, TerminateTarget("over"))))
        if "unreachable_participant" not in found.codes:
            return found


@lru_cache
def many(count: int) -> tuple[Drawn, ...]:
    """So many graphs, drawn once."""
    return tuple(drawn(number) for number in range(count))
