"""The abstraction of the model checker: which values, tools and opaque conditions the rules of a graph tell apart.

Rule 1: values that no rule tells apart are one value.
Rule 2: a variable begins unset, and may get any value that rules name. It becomes unset again only if it is cleared.
Rule 3: a user-defined condition is opaque, and so is one that reads a text: it may answer yes or no to anything.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from itertools import islice, pairwise, product
from math import inf, nextafter

import msgspec

from antiphon.core.conditions import (
    COMPARISONS,
    CONDITIONS,
    Approved,
    ContextEquals,
    ContextIn,
    ContextThreshold,
    OpaqueAnswers,
    ToolCalled,
    TransitionCondition,
    is_number,
    leaf_conditions,
)

OTHER_VALUE: object = {"": "some other value"}
"""A value that no rule names."""
MAX_EXHAUSTIVE_ANSWERS = 6
"""The most opaque conditions of which every combination of answers is tried."""
MAX_OPAQUE_CONDITIONS = 64
"""The most opaque conditions that are told apart."""
MAX_HALVINGS = 60
ContextLeaf = ContextEquals | ContextIn | ContextThreshold


class VariableDomain(msgspec.Struct, frozen=True):
    """The values of one context variable that rules tell apart. The first is the one it has when unset."""

    key: str
    values: tuple[object, ...]
    other: int | None
    """Which of them stands for all values that no rule names, if that differs from unset."""
    start: int
    """Which of them the channel begins with."""
    fixed: bool = False
    """Whether no participant may write it."""

    def is_blank(self, value: int) -> bool:
        """Whether no rule has ever named this value: it is unset, or something else."""
        return value in (0, self.other)

    def next_values(self, now: int) -> Sequence[int]:
        """The values that it may have after the next word."""
        return (now,) if self.fixed else range(len(self.values))


def variable_domain_of(key: str, conditions: Sequence[ContextLeaf], *, begins: object, fixed: bool) -> VariableDomain:
    """The values of a key that these conditions tell apart."""
    views = _ValueClasses(conditions)
    values: list[object] = []
    known: dict[Hashable, int] = {}
    for value in (None, OTHER_VALUE, *_named_values(conditions)):
        known.setdefault(views.class_of(value), len(values))
        if len(known) > len(values):
            values.append(value)
    other = known[views.class_of(OTHER_VALUE)]
    start = known.get(views.class_of(begins), 0)
    return VariableDomain(key, tuple(values), other or None, start, fixed)


class _ValueClasses:
    """How all conditions on one key see its values, without asking each of them about each value."""

    def __init__(self, conditions: Sequence[ContextLeaf]) -> None:
        self._naming: dict[Hashable, list[int]] = {}
        """By the value, the conditions that name it."""
        edges: dict[str, list[float]] = {op: [] for op in COMPARISONS}
        for place, condition in enumerate(conditions):
            match condition:
                case ContextEquals(value=value):
                    self._naming.setdefault(hash_key_of(value), []).append(place)
                case ContextIn(values=values):
                    for each in {hash_key_of(value) for value in values}:
                        self._naming.setdefault(each, []).append(place)
                case ContextThreshold(op=op, value=edge):
                    edges[op].append(edge)
        self._edges = {op: sorted(found) for op, found in edges.items()}

    def class_of(self, value: object) -> Hashable:
        """The same for two values exactly if every condition answers the same to both."""
        named = tuple(self._naming.get(hash_key_of(value), ()))
        # Thresholds with one comparison are nested: how many of them hold for a number tells which.
        held = (
            tuple(_count_thresholds(op, edges, value) for op, edges in self._edges.items()) if is_number(value) else ()
        )
        return named, held if any(held) else ()


def _count_thresholds(op: str, edges: Sequence[float], value: float) -> int:
    """How many of these thresholds hold for a number."""
    below = bisect_left(edges, value) if op in (">", "<=") else bisect_right(edges, value)
    return below if op in (">", ">=") else len(edges) - below


def hash_key_of(value: object) -> Hashable:
    """The same for two values exactly if they are equal as JSON."""
    if isinstance(value, dict):
        return "dict", frozenset((key, hash_key_of(item)) for key, item in value.items())
    if isinstance(value, list | tuple):
        return "list", tuple(map(hash_key_of, value))
    return ("bool", value) if isinstance(value, bool) else value if isinstance(value, Hashable) else repr(value)


def _named_values(conditions: Iterable[ContextLeaf]) -> Iterator[object]:
    edges: set[float] = set()
    named: list[object] = []
    for condition in conditions:
        match condition:
            case ContextEquals(value=value):
                named.append(value)
            case ContextIn(values=values):
                named.extend(values)
            case ContextThreshold(value=edge):
                edges.add(edge)
    yield from named
    if edges:
        taken = {hash_key_of(value) for value in named}
        ordered = sorted(edges)
        yield from ordered
        for low, high in pairwise((-inf, *ordered, inf)):
            yield from (number for number in islice(_numbers_between(low, high, taken), 1))


def _numbers_between(low: float, high: float, taken: Collection[Hashable]) -> Iterator[float]:
    """Numbers between two others that no rule names."""
    step = 1.0 if high - low == inf else (high - low) / 2
    for _ in range(len(taken) + MAX_HALVINGS):
        number = high - step if low == -inf else low + step
        if low < number < high and number not in taken:
            yield int(number) if number.is_integer() else number
        step = step + 1 if high - low == inf else step / 2
    yield from (each for each in (nextafter(low, high), nextafter(high, low)) if low < each < high)


def context_leaves(conditions: Iterable[TransitionCondition]) -> dict[str, list[ContextLeaf]]:
    """The conditions on context variables, by key."""
    found: dict[str, list[ContextLeaf]] = {}
    for condition in conditions:
        for leaf in leaf_conditions(condition):
            if isinstance(leaf, ContextEquals | ContextIn | ContextThreshold):
                found.setdefault(leaf.key, []).append(leaf)
    return found


def tools_named_in(conditions: Iterable[TransitionCondition]) -> tuple[str, ...]:
    """The tools that conditions name, each once."""
    named = (leaf.tool_name for each in conditions for leaf in leaf_conditions(each) if isinstance(leaf, ToolCalled))
    return tuple(dict.fromkeys(named))


def opaque_answers_of(conditions: Iterable[TransitionCondition]) -> tuple[list[OpaqueAnswers], bool]:
    """The combinations of answers of the opaque conditions, and whether some were left out because of their number."""
    groups: list[list[TransitionCondition]] = []
    for leaf in (leaf for each in conditions for leaf in leaf_conditions(each)):
        if isinstance(leaf, Approved) or not CONDITIONS.is_built_in(type(leaf)):
            equals = next((group for group in groups if type(group[0]) is type(leaf) and group[0] == leaf), None)
            if equals is None and len(groups) == MAX_OPAQUE_CONDITIONS:
                equals = groups[-1]  # those beyond answer alike; the exploration is not complete anyway
            groups.append([leaf]) if equals is None else equals.append(leaf)
    count = len(groups)
    if count <= MAX_EXHAUSTIVE_ANSWERS:
        bits: Iterable[tuple[bool, ...]] = product((False, True), repeat=count)
    else:
        alone = [tuple(place == chosen for place in range(count)) for chosen in range(count)]
        bits = [(False,) * count, *alone, (True,) * count]
    ways: list[OpaqueAnswers] = [
        {id(leaf): bit for group, bit in zip(groups, each, strict=True) for leaf in group} for each in bits
    ]
    return ways, count > MAX_EXHAUSTIVE_ANSWERS
