"""The keywords of JSON Schema that match patterns, for the library `jsonschema`, without Python's `re`.

Over some patterns `re` takes for ever, and holds the event loop meanwhile. jsonschema-rs needs none of this.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Protocol, cast

from antiphon.agents.patterns import LinearPattern, WorkBudget
from antiphon.core.events import Json

ELSEWHERE = 'jsonschema-rs alone, and only if the schema does not refer to itself: pip install "antiphon[schema]"'


class SchemaNode(Protocol):
    """A validator of the library, as its keywords see it."""

    def descend(self, instance: object, schema: object, *, path: str, schema_path: str) -> Iterable[Exception]: ...


class Keyword(Protocol):
    """A keyword of the library. It is given what is checked, and the schema that the keyword is in."""

    def __call__(self, node: SchemaNode, wanted: object, *given: object) -> Iterable[Exception] | None: ...


class LinearKeywords:
    """The keywords that match the patterns of a schema and of all within it.

    `BadPattern` for a pattern that cannot be matched without backtracking, `LookupError` for a schema whose patterns
    the library would match itself.
    """

    def __init__(self, library: ModuleType, additional: Keyword, schemas: Sequence[object]) -> None:
        self._library, self._additional = library, additional
        self._patterns = _patterns_of(schemas)
        self.budget = WorkBudget()
        self.keywords: dict[str, object] = {
            "pattern": self._pattern,
            "patternProperties": self._pattern_properties,
            "additionalProperties": self._additional_properties,
        }

    def _fits(self, pattern: str, text: object) -> bool:
        if pattern not in self._patterns:  # of a schema that the library itself knows
            self._patterns[pattern] = LinearPattern(pattern)
        return isinstance(text, str) and self._patterns[pattern].found_in(text, self.budget)

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


def _patterns_of(schemas: Sequence[object]) -> dict[str, LinearPattern]:
    found: dict[str, LinearPattern] = {}
    for schema in schemas:
        if not isinstance(schema, dict):
            continue
        if "$schema" in schema and schema is not schemas[0]:
            raise LookupError(f"it has a $schema inside of another, which is checked by {ELSEWHERE}")
        single = schema.get("pattern")
        texts = [*schema.get("patternProperties", {}), *([single] if isinstance(single, str) else [])]
        found |= {text: LinearPattern(text) for text in texts}
    if found and any(isinstance(each, dict) and "unevaluatedProperties" in each for each in schemas):
        raise LookupError(f"unevaluatedProperties beside patterns is checked by {ELSEWHERE}")
    return found
