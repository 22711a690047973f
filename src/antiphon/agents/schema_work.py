"""The keywords of JSON Schema for the library `jsonschema`, within a budget of steps.

Rule 1: what one check may cost is counted and not timed: a check ends after as many steps on every machine.
Rule 2: no value is checked twice against the same reference. Without that, a schema that refers to itself in several
        alternatives takes time that is exponential in the depth of the value.
Rule 3: values are compared as canonical text, so that unique items take time in proportion to their size.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType
from typing import Protocol, cast

from antiphon.agents.patterns import TooMuchWork, WorkBudget
from antiphon.agents.schema_patterns import Keyword, LinearKeywords, SchemaNode
from antiphon.agents.schema_size import REFERENCES
from antiphon.core.events import Json

CHECK_STEPS = 200_000
"""How many steps one check may take: less than a second."""
PER_STEP = 64
"""How many characters of a message, or names looked up, count as one step."""
SQUARE_PER_STEP = 256
REFERENCE_STEPS, ERROR_STEPS = 4, 3
"""As how many steps following a reference counts, and making an error: they take that much longer."""
EACH = ("items", "additionalItems", "prefixItems", "contains", "properties", "patternProperties", "propertyNames")
ITERATING = frozenset((*EACH, "additionalProperties", "unevaluatedItems", "unevaluatedProperties"))
"""The keywords that look at every item or member of a value."""
PASSING = frozenset((*EACH, "additionalProperties", "$ref", "allOf", "if", "dependentSchemas")) - {"contains"}
"""The keywords that pass on errors of others, which have been counted, or say what is as long as they have steps."""
QUADRATIC = frozenset(("unevaluatedItems", "unevaluatedProperties"))
"""Those for which the library compares every item or member with every other."""


class ListedError(Protocol):
    """An error of the library."""

    message: str
    path: Iterable[str | int]


class SchemaDialect(Protocol):
    """A class of the library: the keywords and types of one version of JSON Schema."""

    VALIDATORS: Mapping[str, Keyword]


class CountedKeywords:
    """All keywords of a dialect, for a schema and all within it. `TooMuchWork` when a check exceeds its steps.

    `remember`: whether a reference always leads to the same schema. `BadPattern` and `LookupError` as from
    `LinearKeywords`.
    """

    def __init__(self, library: ModuleType, dialect: SchemaDialect, *, own: Sequence[object], remember: bool) -> None:
        self._library = library
        self._linear = LinearKeywords(library, dialect.VALIDATORS["additionalProperties"], own)
        self.budget = WorkBudget(CHECK_STEPS)
        self._wanted: dict[int, frozenset[str]] = {}
        """The values that a schema lists, by the identity of the list: schemas live as long as this does."""
        self._faults: dict[tuple[int, int], list[tuple[str, tuple[str | int, ...]]]] = {}
        """What is wrong with a value by a reference, by the identities of both: they live as long as a check does."""
        changed: dict[str, object] = {"enum": self._enum, "const": self._const, "uniqueItems": self._unique_items}
        if remember:
            changed["$ref"] = self._remembered(dialect.VALIDATORS["$ref"])
        keywords = {**dialect.VALIDATORS, **self._linear.keywords, **changed}
        self.keywords = {
            name: self._counted(name, cast("Keyword", keyword))
            for name, keyword in keywords.items()
            if name in dialect.VALIDATORS
        }

    def renew(self) -> None:
        """Begin another check."""
        self.budget.renew()
        self._linear.budget.renew()
        self._faults.clear()

    def is_boolean(self, _: object, value: object) -> bool:
        """The library's test for a boolean schema. Where it follows evaluated members, no keyword counts the steps."""
        self._spend(1)
        return isinstance(value, bool)

    def _spend(self, steps: int) -> None:
        if not self.budget.spend(steps):
            raise TooMuchWork(f"checking it takes more than {CHECK_STEPS} steps; give a smaller or a simpler value")

    def _counted(self, name: str, keyword: Keyword) -> Keyword:
        def counted(node: SchemaNode, wanted: object, *given: object) -> Iterable[Exception]:
            self._spend(_steps(name, wanted, given[0]))
            errors = keyword(node, wanted, *given) or ()
            # A generator around each of those would halve the depth at which Python's stack ends.
            return errors if name in PASSING else self._paid(errors)

        return counted

    def _paid(self, errors: Iterable[Exception]) -> Iterable[Exception]:
        for error in errors:
            self._spend(ERROR_STEPS + len(cast("ListedError", error).message) // PER_STEP)
            yield error

    def _remembered(self, keyword: Keyword) -> Keyword:
        def remembered(node: SchemaNode, wanted: object, *given: object) -> Iterable[Exception]:
            key = id(given[1]), id(given[0])
            if key not in self._faults:
                errors = cast("Iterable[ListedError]", keyword(node, wanted, *given) or ())
                self._faults[key] = list(map(_fault, errors))
            for message, path in self._faults[key]:
                self._spend(ERROR_STEPS)
                yield self._library.ValidationError(message, path=path)

        return remembered

    def _canonical(self, value: object) -> str:
        text = json.dumps(_whole(value), sort_keys=True)
        self._spend(1 + len(text) // PER_STEP)
        return text

    def _listed(self, wanted: Sequence[object]) -> frozenset[str]:
        if id(wanted) not in self._wanted:
            self._wanted[id(wanted)] = frozenset(map(self._canonical, wanted))
        return self._wanted[id(wanted)]

    def _enum(self, _: SchemaNode, wanted: Sequence[object], value: object, *__: Json) -> Iterable[Exception]:
        if self._canonical(value) not in self._listed(wanted):
            yield self._library.ValidationError(f"{value!r} is not one of {wanted!r}")

    def _const(self, _: SchemaNode, wanted: object, value: object, *__: Json) -> Iterable[Exception]:
        if self._canonical(value) != self._canonical(wanted):
            yield self._library.ValidationError(f"{wanted!r} was expected")

    def _unique_items(self, _: SchemaNode, wanted: object, value: object, *__: Json) -> Iterable[Exception]:
        if wanted and isinstance(value, list) and len(set(map(self._canonical, value))) < len(value):
            yield self._library.ValidationError(f"{value!r} has non-unique elements")


def _fault(error: ListedError) -> tuple[str, tuple[str | int, ...]]:
    return error.message, tuple(error.path)


def _whole(value: object) -> object:
    """The value with 1 instead of 1.0, which are the same number in JSON Schema. True is neither."""
    match value:
        case float() if value.is_integer():
            return int(value)
        case list():
            return [_whole(each) for each in value]
        case dict():
            return {key: _whole(each) for key, each in value.items()}
        case _:
            return value


def _steps(name: str, wanted: object, value: object) -> int:
    """How many steps a keyword takes, without those that it leads to."""
    steps = 1 if name == "enum" else 1 + _size(wanted) // PER_STEP  # what is listed is looked up at once
    if name.startswith("depend") and isinstance(wanted, dict):
        steps += sum(map(_size, wanted.values())) // PER_STEP
    if name in REFERENCES:
        steps += REFERENCE_STEPS
    if name in ITERATING:
        steps += _size(value)
    if name in QUADRATIC:
        steps += _size(value) ** 2 // SQUARE_PER_STEP
    return steps


def _size(value: object) -> int:
    return len(value) if isinstance(value, list | dict) else 0
