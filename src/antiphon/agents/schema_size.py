"""How large a schema is with every reference written out, and how deep a value."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import unquote

from antiphon.core.events import Json

NO_PARTS: list[object] = []
"""A schema that is true or false. One and the same, because parts are told apart by identity."""
REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")


class _Unbounded(Exception):
    """A schema refers to itself, or to something that is not found by a pointer alone."""


def expanded_size(schema: Json) -> int | None:
    """The number of values in a schema whose references are written out; None if there is no end.

    References other than `#/…` count as endless, and so do all references of a schema that has other schemas with an
    `$id` inside, which changes what a pointer means.
    """
    sizes: dict[int, int] = {}
    begun = set[int]()
    left: list[tuple[Json | list[object], bool]] = [(schema, False)]
    try:
        while left:
            node, done = left.pop()
            if id(node) in sizes:
                continue
            parts = list(_parts(node, schema))
            if done:
                sizes[id(node)] = 1 + _plain_parts(node) + sum(sizes[id(part)] for part in parts)
            elif id(node) in begun:
                return None
            else:
                begun.add(id(node))
                left.append((node, True))
                left.extend((part, False) for part in parts)
    except _Unbounded:
        return None
    return sizes[id(schema)]


def is_deeper(value: object, most: int) -> bool:
    """Whether a JSON value is nested deeper than that."""
    layer = [value]
    for _ in range(most + 1):
        layer = [
            part
            for node in layer
            if isinstance(node, dict | list)
            for part in (node.values() if isinstance(node, dict) else node)
        ]
    return bool(layer)


def _plain_parts(node: Json | list[object]) -> int:
    return sum(not isinstance(part, dict | list) for part in (node.values() if isinstance(node, dict) else node))


def _parts(node: Json | list[object], root: Json) -> Iterator[Json | list[object]]:
    parts = node.values() if isinstance(node, dict) else node
    yield from (part for part in parts if isinstance(part, dict | list))
    if not isinstance(node, dict):
        return
    if node is not root and any(isinstance(node.get(key), str) for key in ("$id", "id")):
        raise _Unbounded
    yield from (_target(reference, root) for key in REFERENCES if isinstance(reference := node.get(key), str))


def _target(reference: str, root: Json) -> Json | list[object]:
    if reference != "#" and not reference.startswith("#/"):
        raise _Unbounded
    found: object = root
    for step in unquote(reference).split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict) and step in found:
            found = found[step]
        elif isinstance(found, list) and step.isdecimal() and int(step) < len(found):
            found = found[int(step)]
        else:
            raise _Unbounded
    return found if isinstance(found, dict | list) else NO_PARTS
