"""What a table can tell apart: the values of each context variable, the tools, and the conditions nobody can look into.

Values that no rule tells apart are one. A variable begins unset; from there it may get any value that rules name. What
it does not do by itself is to become unset again: somebody has to clear it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise, product

import msgspec

from antiphon.core.conditions import (
    CONDITIONS,
    ContextEquals,
    ContextIn,
    ContextThreshold,
    ToolCalled,
    TransitionCondition,
    leaves,
)
from antiphon.core.envelope import Envelope
from antiphon.core.state import State

OTHER: object = {"": "some other value"}
"""A value that no rule names."""
MOST_ORACLES = 4
ContextLeaf = ContextEquals | ContextIn | ContextThreshold
Oracle = Mapping[int, bool]
"""What each condition that cannot be looked into says this time, by its identity."""


class Domain(msgspec.Struct, frozen=True):
    """The values of one context variable that rules tell apart. The first is the one it has when unset."""

    key: str
    values: tuple[object, ...]
    other: int | None
    """Which of them stands for all values that no rule names, if that differs from unset."""
    start: int
    """Which of them the channel begins with."""
    fixed: bool = False
    """Whether nobody may write it."""

    def is_blank(self, value: int) -> bool:
        """Whether no rule has ever named this value: it is unset, or something else."""
        return value in (0, self.other)

    def after(self, now: int) -> Sequence[int]:
        """The values that it may have after the next word."""
        return (now,) if self.fixed else range(len(self.values))


def domain_of(key: str, conditions: Sequence[ContextLeaf], *, begins: object, fixed: bool) -> Domain:
    """The values of a key that these conditions tell apart."""
    values: list[object] = []
    known: dict[tuple[bool, ...], int] = {}
    for value in (None, OTHER, *_named(conditions)):
        known.setdefault(_told_apart(key, value, conditions), len(values))
        if len(known) > len(values):
            values.append(value)
    other = known[_told_apart(key, OTHER, conditions)]
    start = known.get(_told_apart(key, begins, conditions), 0)
    return Domain(key, tuple(values), other or None, start, fixed)


def _told_apart(key: str, value: object, conditions: Sequence[ContextLeaf]) -> tuple[bool, ...]:
    state, envelope = State(context_vars={} if value is None else {key: value}), Envelope()
    return tuple(condition.evaluate(state, envelope) for condition in conditions)


def _named(conditions: Iterable[ContextLeaf]) -> Iterator[object]:
    edges: list[float] = []
    for condition in conditions:
        match condition:
            case ContextEquals(value=value):
                yield value
            case ContextIn(values=values):
                yield from values
            case ContextThreshold(value=edge):
                edges.append(edge)
    if edges:
        ordered = sorted(set(edges))
        yield from (ordered[0] - 1, *ordered, *((low + high) / 2 for low, high in pairwise(ordered)), ordered[-1] + 1)


def context_leaves(conditions: Iterable[TransitionCondition]) -> dict[str, list[ContextLeaf]]:
    """The conditions on context variables, by key."""
    found: dict[str, list[ContextLeaf]] = {}
    for condition in conditions:
        for leaf in leaves(condition):
            if isinstance(leaf, ContextEquals | ContextIn | ContextThreshold):
                found.setdefault(leaf.key, []).append(leaf)
    return found


def tools_of(conditions: Iterable[TransitionCondition]) -> tuple[str, ...]:
    """The tools that conditions name, each once."""
    named = (leaf.tool_name for each in conditions for leaf in leaves(each) if isinstance(leaf, ToolCalled))
    return tuple(dict.fromkeys(named))


def oracles_of(conditions: Iterable[TransitionCondition]) -> list[Oracle]:
    """Every way in which the conditions that cannot be looked into may answer; of very many, a few."""
    groups: list[list[TransitionCondition]] = []
    for leaf in (leaf for each in conditions for leaf in leaves(each)):
        if not CONDITIONS.is_built_in(type(leaf)):
            equals = next((group for group in groups if type(group[0]) is type(leaf) and group[0] == leaf), None)
            groups.append([leaf]) if equals is None else equals.append(leaf)
    count = len(groups)
    if count <= MOST_ORACLES:
        bits: Iterable[tuple[bool, ...]] = product((False, True), repeat=count)
    else:
        alone = [tuple(place == chosen for place in range(count)) for chosen in range(count)]
        bits = [(False,) * count, *alone, (True,) * count]
    return [{id(leaf): bit for group, bit in zip(groups, each, strict=True) for leaf in group} for each in bits]
