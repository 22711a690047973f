"""The JSON schema of an answer, in the forms that providers take.

Rule 1: a provider is sent only what it takes; what it does not take is told to the model in words. Either way the
        runtime checks the answer against the schema itself.
Rule 2: a schema is never bent so far that it means something else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import cast

from antiphon.core.codec import to_json
from antiphon.core.events import Json

KEPT = ("$ref", "title", "description", "enum", "const", "anyOf", "allOf", "type", "required", "items", "format")
"""What a closed schema may say."""
FORMATS = frozenset(
    {"date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid"},
)
SAID_ELSEWHERE = ("$defs", "properties", "additionalProperties", "oneOf")


class Inexpressible(ValueError):
    """A schema says something that a closed one cannot."""


def in_words(schema: Json) -> str:
    """The schema as a paragraph of a system prompt."""
    return (
        f"Answer with JSON alone, without any text around it. It must fit this JSON schema:\n{to_json(schema).decode()}"
    )


def with_schema(system: str, schema: Json) -> str:
    """A system prompt that tells the schema, too."""
    return f"{system}\n\n{in_words(schema)}".lstrip()


def rooted(schema: Json) -> Json | None:
    """The schema of an object with its type at the root; None if it is not that of an object."""
    root, definitions = schema, cast("Mapping[str, object]", schema.get("$defs") or {})
    name = str(schema.get("$ref", "")).removeprefix("#/$defs/")
    if isinstance(found := definitions.get(name), dict):
        siblings = {key: value for key, value in schema.items() if key != "$ref"}
        root = {**found, **siblings}
    return root if root.get("type") == "object" else None


def closed(schema: Json) -> Json | None:
    """The schema in which every object is closed, and limits are words of its description.

    None if that cannot be: it has objects with any keys, values of any kind, or goes round in circles.
    """
    try:
        _check_circles(schema)
        return _closed(schema)
    except Inexpressible:
        return None


def _closed(schema: object) -> Json:
    if not isinstance(schema, dict):
        raise Inexpressible("values of any kind")
    given = {**schema}
    if "oneOf" in given and "anyOf" not in given:
        given["anyOf"] = given.pop("oneOf")
    kept: Json = {key: given[key] for key in KEPT if key in given}
    if not kept.keys() & {"$ref", "enum", "const", "anyOf", "allOf", "type"} or isinstance(kept.get("type"), list):
        raise Inexpressible("values of any kind")
    _close_parts(kept, given)
    if given.get("type") == "object":
        if given.get("additionalProperties") not in (False, None) or "properties" not in given:
            raise Inexpressible("objects with any keys")
        properties = cast("Mapping[str, object]", given["properties"])
        kept["properties"] = {name: _closed(part) for name, part in properties.items()}
        kept["additionalProperties"] = False
    _describe(kept, given)
    return kept


def _close_parts(kept: Json, given: Json) -> None:
    for key in ("anyOf", "allOf"):
        if key in kept:
            kept[key] = [_closed(part) for part in cast("list[object]", kept[key])]
    if "items" in kept:
        kept["items"] = _closed(kept["items"])
    if "$defs" in given:
        definitions = cast("Mapping[str, object]", given["$defs"])
        kept["$defs"] = {name: _closed(part) for name, part in definitions.items()}
    if kept.get("format") not in FORMATS:
        kept.pop("format", None)
    if given.get("minItems") in (0, 1):
        kept["minItems"] = given["minItems"]


def _describe(kept: Json, given: Json) -> None:
    """What is left out is told in the description, where the model may read it."""
    left = {key: value for key, value in given.items() if key not in kept and key not in SAID_ELSEWHERE}
    if left:
        limits = to_json(left).decode()
        kept["description"] = f"{kept['description']}\n\n{limits}" if "description" in kept else limits


def _check_circles(schema: Json) -> None:
    definitions = cast("Mapping[str, object]", schema.get("$defs") or {})
    names = {f"#/$defs/{name}": set(_references(part)) for name, part in definitions.items()}
    done: set[str] = set()
    while ready := [name for name, needed in names.items() if name not in done and needed <= done]:
        done.update(ready)
    if len(done) < len(names) or not set(_references(schema)) <= names.keys():
        raise Inexpressible("a schema that goes round in circles, or refers to something else than its definitions")


def _references(part: object) -> Iterator[str]:
    match part:
        case dict():
            if isinstance(reference := part.get("$ref"), str):
                yield reference
            for inner in part.values():
                yield from _references(inner)
        case list():
            for inner in part:
                yield from _references(inner)
