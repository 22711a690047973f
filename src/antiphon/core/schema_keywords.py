"""The keywords of JSON Schema for the library `jsonschema`, within a budget of steps and without Python's `re`.

Rule 1: the cost of one check is counted and not timed: a check ends after as many steps on every machine.
Rule 2: no value is checked twice against the same reference. Without that, a schema that refers to itself in several
        alternatives takes time that is exponential in the depth of the value.
Rule 3: values are compared as canonical text, so that unique items take time in proportion to their size.
Rule 4: patterns are matched by `linear_regex`: over some, `re` backtracks without end and holds the event loop.

jsonschema-rs needs none of this.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType
from typing import Protocol, cast

from antiphon.core.envelope import Json
from antiphon.core.linear_regex import LinearPattern, TooMuchWork, WorkBudget

JSONSCHEMA_RS_ADVICE = (
    'jsonschema-rs alone, and only if the schema does not refer to itself: pip install "antiphon[schema]"'
)


class SchemaNode(Protocol):
    """A validator of the library, as its keywords see it."""

    def descend(self, instance: object, schema: object, *, path: str, schema_path: str) -> Iterable[Exception]: ...


class SchemaKeyword(Protocol):
    """A keyword of the library. It is given what is checked, and the schema that the keyword is in."""

    def __call__(self, node: SchemaNode, wanted: object, *given: object) -> Iterable[Exception] | None: ...


CHECK_STEPS = 200_000
"""How many steps one check may take: less than a second."""
UNITS_PER_STEP = 64
"""How many characters of a message, or names looked up, count as one step."""
PAIRS_PER_STEP = 256
REFERENCE_KEYWORDS = frozenset(("$ref", "$dynamicRef", "$recursiveRef"))
REFERENCE_STEPS, ERROR_STEPS = 4, 3
"""As how many steps following a reference counts, and making an error: they take that much longer."""
ELEMENT_KEYWORDS = (
    "items",
    "additionalItems",
    "prefixItems",
    "contains",
    "properties",
    "patternProperties",
    "propertyNames",
)
ITERATING_KEYWORDS = frozenset((*ELEMENT_KEYWORDS, "additionalProperties", "unevaluatedItems", "unevaluatedProperties"))
"""The keywords that look at every item or member of a value."""
PASSING_KEYWORDS = frozenset((*ELEMENT_KEYWORDS, "additionalProperties", "$ref", "allOf", "if", "dependentSchemas")) - {
    "contains"
}
"""The keywords that pass on errors of others, which have been counted, or say what is as long as they have steps."""
QUADRATIC_KEYWORDS = frozenset(("unevaluatedItems", "unevaluatedProperties"))
"""Those for which the library compares every item or member with every other."""


class SchemaError(Protocol):
    """An error of the library."""

    message: str
    path: Iterable[str | int]


class SchemaDialect(Protocol):
    """A class of the library: the keywords and types of one version of JSON Schema."""

    VALIDATORS: Mapping[str, SchemaKeyword]


class CountedKeywords:
    """All keywords of a dialect, for a schema and all within it. `TooMuchWork` when a check exceeds its steps.

    `remember`: whether a reference always leads to the same schema. `BadPattern` for a pattern that cannot be matched
    without backtracking, `LookupError` for a schema whose patterns the library would match itself.
    """

    def __init__(self, library: ModuleType, dialect: SchemaDialect, *, own: Sequence[object], remember: bool) -> None:
        self._library, self._additional = library, dialect.VALIDATORS["additionalProperties"]
        self._patterns = _patterns_of_schemas(own)
        self.budget, self._match_budget = WorkBudget(CHECK_STEPS), WorkBudget()
        self._wanted: dict[int, frozenset[str]] = {}
        """The values that a schema lists, by the identity of the list: schemas live as long as this does."""
        self._faults: dict[tuple[int, int], list[tuple[str, tuple[str | int, ...]]]] = {}
        """What is wrong with a value by a reference, by the identities of both: they live as long as a check does."""
        self._in_progress: set[tuple[int, int]] = set()
        """The references that are being followed."""
        keywords: dict[str, object] = {
            **dialect.VALIDATORS,
            "pattern": self._pattern,
            "patternProperties": self._pattern_properties,
            "additionalProperties": self._additional_properties,
            "enum": self._enum,
            "const": self._const,
            "uniqueItems": self._unique_items,
        }
        for name in REFERENCE_KEYWORDS & keywords.keys():
            keywords[name] = self._followed(cast("SchemaKeyword", keywords[name]), remember=remember)
        self.keywords = {
            name: self._counted(name, cast("SchemaKeyword", keyword))
            for name, keyword in keywords.items()
            if name in dialect.VALIDATORS
        }

    def renew(self) -> None:
        """Begin another check."""
        self.budget, self._match_budget = WorkBudget(CHECK_STEPS), WorkBudget()
        self._faults.clear()

    def is_boolean(self, _: object, value: object) -> bool:
        """The library's test for a boolean schema. Where it follows evaluated members, no keyword counts the steps."""
        self._spend(1)
        return isinstance(value, bool)

    def _spend(self, steps: int) -> None:
        if not self.budget.spend(steps):
            raise TooMuchWork(f"checking it takes more than {CHECK_STEPS} steps; give a smaller or a simpler value")

    def _counted(self, name: str, keyword: SchemaKeyword) -> SchemaKeyword:
        def counted(node: SchemaNode, wanted: object, *given: object) -> Iterable[Exception]:
            self._spend(_keyword_steps(name, wanted, given[0]))
            errors = keyword(node, wanted, *given) or ()
            # A generator around each of those would halve the depth at which Python's stack ends.
            return errors if name in PASSING_KEYWORDS else self._paid(errors)

        return counted

    def _paid(self, errors: Iterable[Exception]) -> Iterable[Exception]:
        for error in errors:
            self._spend(ERROR_STEPS + len(cast("SchemaError", error).message) // UNITS_PER_STEP)
            yield error

    def _followed(self, keyword: SchemaKeyword, *, remember: bool) -> SchemaKeyword:
        def followed(node: SchemaNode, wanted: object, *given: object) -> Iterable[Exception]:
            key = id(given[1]), id(given[0])
            if not remember or key not in self._faults:
                if key in self._in_progress:  # it would go on to the end of the stack, where the library's Rust panics
                    raise RecursionError("a reference leads back to itself")
                self._in_progress.add(key)
                try:
                    errors = cast("Iterable[SchemaError]", keyword(node, wanted, *given) or ())
                    self._faults[key] = list(
                        map(_message_and_path, errors)
                    )  # a comprehension would be one more frame on the stack
                finally:
                    self._in_progress.discard(key)
            for message, path in self._faults[key]:
                self._spend(ERROR_STEPS)
                yield self._library.ValidationError(message, path=path)

        return followed

    def _canonical(self, value: object) -> str:
        text = json.dumps(_with_whole_numbers(value), sort_keys=True)
        self._spend(1 + len(text) // UNITS_PER_STEP)
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

    def _fits(self, pattern: str, text: object) -> bool:
        if pattern not in self._patterns:  # of a schema that the library itself knows
            self._patterns[pattern] = LinearPattern(pattern)
        return isinstance(text, str) and self._patterns[pattern].found_in(text, self._match_budget)

    def _pattern(self, _: SchemaNode, pattern: str, value: object, *__: Json) -> Iterable[Exception]:
        if isinstance(value, str) and not self._fits(pattern, value):
            yield self._library.ValidationError(f"{value!r} does not match {pattern!r}")

    def _pattern_properties(self, node: SchemaNode, wanted: Json, value: object, *_: Json) -> Iterable[Exception]:
        if not isinstance(value, dict):
            return
        for pattern, schema in wanted.items():
            for name in [name for name in value if self._fits(pattern, name)]:
                yield from node.descend(value[name], schema, path=name, schema_path=pattern)

    def _additional_properties(self, node: SchemaNode, wanted: object, *given: object) -> Iterable[Exception]:
        value, schema = given[0], cast("Json", given[1])
        patterns = cast("Json", schema.get("patternProperties", {}))
        if patterns and isinstance(value, dict):
            value = {
                name: part for name, part in value.items() if not any(self._fits(pattern, name) for pattern in patterns)
            }
            schema = {key: part for key, part in schema.items() if key != "patternProperties"}
        return self._additional(node, wanted, value, schema) or ()


def _patterns_of_schemas(schemas: Sequence[object]) -> dict[str, LinearPattern]:
    found: dict[str, LinearPattern] = {}
    for schema in schemas:
        if not isinstance(schema, dict):
            continue
        if "$schema" in schema and schema is not schemas[0]:
            raise LookupError(f"it has a $schema inside of another, which is checked by {JSONSCHEMA_RS_ADVICE}")
        single = schema.get("pattern")
        texts = [*schema.get("patternProperties", {}), *([single] if isinstance(single, str) else [])]
        found |= {text: LinearPattern(text) for text in texts}
    if found and any(isinstance(each, dict) and "unevaluatedProperties" in each for each in schemas):
        raise LookupError(f"unevaluatedProperties beside patterns is checked by {JSONSCHEMA_RS_ADVICE}")
    return found


def _message_and_path(error: SchemaError) -> tuple[str, tuple[str | int, ...]]:
    return error.message, tuple(error.path)


def _with_whole_numbers(value: object) -> object:
    """The value with 1 instead of 1.0, which are the same number in JSON Schema. True is neither."""
    match value:
        case float() if value.is_integer():
            return int(value)
        case list():
            return [_with_whole_numbers(each) for each in value]
        case dict():
            return {key: _with_whole_numbers(each) for key, each in value.items()}
        case _:
            return value


def _keyword_steps(name: str, wanted: object, value: object) -> int:
    """How many steps a keyword takes, without those that it leads to."""
    steps = 1 if name == "enum" else 1 + _count_members(wanted) // UNITS_PER_STEP  # what is listed is looked up at once
    if name.startswith("depend") and isinstance(wanted, dict):
        steps += sum(map(_count_members, wanted.values())) // UNITS_PER_STEP
    if name in REFERENCE_KEYWORDS:
        steps += REFERENCE_STEPS
    if name in ITERATING_KEYWORDS:
        steps += _count_members(value)
    if name in QUADRATIC_KEYWORDS:
        steps += _count_members(value) ** 2 // PAIRS_PER_STEP
    return steps


def _count_members(value: object) -> int:
    return len(value) if isinstance(value, list | dict) else 0
