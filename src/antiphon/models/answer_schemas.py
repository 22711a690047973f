"""The JSON schema of an answer, in the forms that providers take.

Rule 1: a provider is sent only the schemas that it supports; any other is put into the prompt. Either way the runtime
        validates the answer itself.
Rule 2: a schema is never changed so that it means something else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import cast

from antiphon.core.codec import to_json
from antiphon.core.envelope import Json

CLOSED_SCHEMA_KEYWORDS = (
    "$ref",
    "title",
    "description",
    "enum",
    "const",
    "anyOf",
    "allOf",
    "type",
    "required",
    "items",
    "format",
)
"""The keywords of a closed schema."""
CLOSED_SCHEMA_FORMATS = frozenset(
    {"date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid"}
)
REWRITTEN_KEYWORDS = ("$defs", "properties", "additionalProperties", "oneOf")


class InexpressibleSchema(ValueError):
    """A schema cannot be expressed as a closed one."""


def with_schema(system: str, schema: Json | None) -> str:
    """A system prompt with the schema, if there is one."""
    if schema is None:
        return system
    asked = "Answer with JSON alone, without any text around it. It must fit this JSON schema:"
    return f"{system}\n\n{asked}\n{to_json(schema).decode()}".lstrip()


def object_schema_of(schema: Json) -> Json | None:
    """The schema of an object with its type at the root; None if it is not that of an object."""
    root, definitions = schema, cast("Mapping[str, object]", schema.get("$defs") or {})
    name = str(schema.get("$ref", "")).removeprefix("#/$defs/")
    if isinstance(found := definitions.get(name), dict):
        siblings = {key: value for key, value in schema.items() if key != "$ref"}
        root = {**found, **siblings}
    return root if root.get("type") == "object" else None


def closed_schema_of(schema: Json) -> Json | None:
    """The schema with every object closed, and unsupported keywords as text of its description.

    None if that is not possible: it has objects with any keys, values of any kind, or cyclic references.
    """
    try:
        _check_references(schema)
        return _close_schema(schema)
    except (InexpressibleSchema, CycleError):
        return None


def _close_schema(schema: object) -> Json:
    if not isinstance(schema, dict):
        raise InexpressibleSchema("values of any kind")
    given = {**schema}
    if "oneOf" in given and "anyOf" not in given:
        given["anyOf"] = given.pop("oneOf")
    kept: Json = {key: given[key] for key in CLOSED_SCHEMA_KEYWORDS if key in given}
    if not kept.keys() & {"$ref", "enum", "const", "anyOf", "allOf", "type"} or isinstance(kept.get("type"), list):
        raise InexpressibleSchema("values of any kind")
    _close_subschemas(kept, given)
    if given.get("type") == "object":
        if given.get("additionalProperties") not in (False, None) or "properties" not in given:
            raise InexpressibleSchema("objects with any keys")
        properties = cast("Mapping[str, object]", given["properties"])
        kept["properties"] = {name: _close_schema(part) for name, part in properties.items()}
        kept["additionalProperties"] = False
    _describe_limits(kept, given)
    return kept


def _close_subschemas(kept: Json, given: Json) -> None:
    for key in ("anyOf", "allOf"):
        if key in kept:
            kept[key] = [_close_schema(part) for part in cast("list[object]", kept[key])]
    if "items" in kept:
        kept["items"] = _close_schema(kept["items"])
    if "$defs" in given:
        definitions = cast("Mapping[str, object]", given["$defs"])
        kept["$defs"] = {name: _close_schema(part) for name, part in definitions.items()}
    if kept.get("format") not in CLOSED_SCHEMA_FORMATS:
        kept.pop("format", None)
    if given.get("minItems") in (0, 1):
        kept["minItems"] = given["minItems"]


def _describe_limits(kept: Json, given: Json) -> None:
    """Put the unsupported keywords into the description, where the model may read them."""
    left = {key: value for key, value in given.items() if key not in kept and key not in REWRITTEN_KEYWORDS}
    if left:
        limits = to_json(left).decode()
        kept["description"] = f"{kept['description']}\n\n{limits}" if "description" in kept else limits


def _check_references(schema: Json) -> None:
    """`CycleError` or `InexpressibleSchema` unless every reference is to a definition, and none in a circle."""
    definitions = cast("Mapping[str, object]", schema.get("$defs") or {})
    names = {f"#/$defs/{name}": set(_references_in_schema(part)) for name, part in definitions.items()}
    TopologicalSorter(names).prepare()
    if not set(_references_in_schema(schema)) <= names.keys():
        raise InexpressibleSchema("a reference to something else than its definitions")


def _references_in_schema(part: object) -> Iterator[str]:
    match part:
        case dict():
            if isinstance(reference := part.get("$ref"), str):
                yield reference
            for inner in part.values():
                yield from _references_in_schema(inner)
        case list():
            for inner in part:
                yield from _references_in_schema(inner)
