"""The patterns of texts in a type, `msgspec.Meta(pattern=…)`, matched without backtracking.

Rule 1: msgspec matches patterns with Python's `re`, which takes for ever over some. So it gets a type without them, and
        they are checked here, in the words of msgspec.
Rule 2: a pattern inside a class cannot be taken out of it. It is accepted only if `re` matches it in linear time.
"""

from __future__ import annotations

import functools
import operator
from collections import abc
from collections.abc import Callable, Iterator, Mapping
from types import UnionType
from typing import Annotated, Union, get_args, get_origin

import msgspec
from msgspec import inspect

from antiphon.agents.pattern_ambiguity import is_linear_with_backtracking
from antiphon.agents.patterns import LinearPattern, WorkBudget
from antiphon.core.words import shown

CONTAINERS = frozenset(
    (
        *(list, set, frozenset, tuple, dict),
        *(abc.Collection, abc.Sequence, abc.MutableSequence, abc.Set, abc.MutableSet, abc.Mapping, abc.MutableMapping),
    )
)
META = ("min_length", "max_length", "title", "description", "examples", "extra_json_schema", "extra")
"""What else an annotation may say of a text."""
DEFAULTS = ("default", "default_factory")
CLASS_ADVICE = (
    "begin it with '^' and let every character decide how to go on, such as '^[^@]+@[^@]+$'; "
    "or give the parameter itself the pattern"
)

Place = str
"""Such as `$.lines[0]`, as msgspec writes it."""
TextCheck = Callable[[object, Place, WorkBudget], None]
"""Raises `msgspec.ValidationError` for a text that does not match."""


class PatternInClass(ValueError):
    """A pattern inside a class could take too long."""


class TextPatterns:
    """The patterns of texts in named types. `BadPattern` or `PatternInClass` if one could take long to match."""

    def __init__(self, hints: Mapping[str, object] | None = None) -> None:
        self._checks = {name: check for name, hint in (hints or {}).items() if (check := _check_of_hint(hint))}

    def __bool__(self) -> bool:
        return bool(self._checks)

    def check(self, values: Mapping[str, object]) -> None:
        """Check plain data that has the right types; `msgspec.ValidationError` for the first text that does not match.

        `TooMuchWork` if that would exceed the budget of a check.
        """
        budget = WorkBudget()
        for name, check in self._checks.items():
            if name in values:
                check(values[name], f"$.{name}" if name else "$", budget)


def without_patterns(hint: object) -> object:
    """The type without the patterns that `TextPatterns` checks."""
    if hasattr(hint, "__supertype__"):  # a NewType
        return without_patterns(hint.__supertype__)
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        notes = (_without_pattern(note) for note in parts[1:])
        return Annotated[(without_patterns(parts[0]), *notes)]
    if origin in (Union, UnionType):
        return functools.reduce(operator.or_, map(without_patterns, parts))
    return origin[tuple(map(without_patterns, parts))] if origin in CONTAINERS else hint


def _without_pattern(note: object) -> object:
    if not isinstance(note, msgspec.Meta) or note.pattern is None:
        return note
    return msgspec.Meta(**{name: getattr(note, name) for name in META})


def _check_of_hint(hint: object) -> TextCheck | None:
    for pattern in _patterns_in(inspect.type_info(without_patterns(hint))):
        if not is_linear_with_backtracking(pattern):
            raise PatternInClass(
                f"the pattern {shown(pattern)} is inside a class, where it is matched with backtracking, "
                f"and that may take too long; {CLASS_ADVICE}"
            )
    return _check_of(inspect.type_info(hint))


def _patterns_in(info: inspect.Type) -> Iterator[str]:
    """All patterns of a type, those of the classes in it included."""
    seen, left = set[int](), list[object]([info])
    while left:
        node = left.pop()
        if isinstance(node, tuple):
            left.extend(node)
        elif isinstance(node, inspect.Type | inspect.Field) and id(node) not in seen:
            seen.add(id(node))
            left.extend(getattr(node, name) for name in node.__struct_fields__ if name not in DEFAULTS)
            if isinstance(node, inspect.StrType) and node.pattern is not None:
                yield node.pattern


def _check_of(info: inspect.Type) -> TextCheck | None:
    """The check of a text, or of what holds texts; None if there is no pattern in it, or only inside of a class."""
    match info:
        case inspect.Metadata(type=kind):
            return _check_of(kind)
        case inspect.StrType(pattern=str(pattern)):
            return _text(pattern)
        case inspect.TupleType(item_types=kinds):
            return _tuple([_check_of(kind) for kind in kinds])
        case inspect.CollectionType(item_type=kind):
            return _items(_check_of(kind))
        case inspect.DictType(key_type=key, value_type=value):
            return _members(_check_of(key), _check_of(value))
        case inspect.UnionType(types=kinds):
            return _each([_check_of(kind) for kind in kinds])
        case _:
            return None


def _text(written: str) -> TextCheck:
    pattern = LinearPattern(written)

    def check(value: object, place: Place, budget: WorkBudget) -> None:
        if isinstance(value, str) and not pattern.found_in(value, budget):
            at = "" if place == "$" else f" - at {place}" if place.startswith("`") else f" - at `{place}`"
            raise msgspec.ValidationError(f"Expected `str` matching regex {written!r}{at}")

    return check


def _items(each: TextCheck | None) -> TextCheck | None:
    if each is None:
        return None

    def check(value: object, place: Place, budget: WorkBudget) -> None:
        for at, item in enumerate(value if isinstance(value, list) else ()):
            each(item, f"{place}[{at}]", budget)

    return check


def _tuple(checks: list[TextCheck | None]) -> TextCheck | None:
    def check(value: object, place: Place, budget: WorkBudget) -> None:
        for at, (item, one) in enumerate(zip(value if isinstance(value, list) else (), checks, strict=False)):
            if one is not None:
                one(item, f"{place}[{at}]", budget)

    return check if any(checks) else None


def _members(key: TextCheck | None, value: TextCheck | None) -> TextCheck | None:
    def check(given: object, place: Place, budget: WorkBudget) -> None:
        for name, member in given.items() if isinstance(given, dict) else ():
            if key is not None:
                key(name, f"`key` in `{place}`", budget)
            if value is not None:
                value(member, f"{place}[...]", budget)

    return check if key or value else None


def _each(checks: list[TextCheck | None]) -> TextCheck | None:
    """The checks of a union. At most one of its types is a text, one a list and one an object, so none is mistaken."""
    found = [check for check in checks if check is not None]

    def check(value: object, place: Place, budget: WorkBudget) -> None:
        for one in found:
            one(value, place, budget)

    return check if found else None
