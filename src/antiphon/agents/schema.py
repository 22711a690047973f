"""Types as JSON schemas, and arguments as values of those types.

Rule 1: the schema stands alone. What refers to itself is under `$defs`; everything else is written out in place.
Rule 2: a class that validates itself (`model_validate`, `model_json_schema`) is asked; nothing of it is imported.
Rule 3: a type without a JSON form is refused with `UsageError` where it is declared.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, time
from types import UnionType
from typing import Annotated, Union, cast, get_args, get_origin

import msgspec

from antiphon.agents.pattern_syntax import BadPattern
from antiphon.agents.signature import NO_DEFAULT, Visible
from antiphon.agents.text_patterns import PatternInClass, TextPatterns, without_patterns
from antiphon.core.codec import check_json
from antiphon.core.errors import UsageError
from antiphon.core.events import Json
from antiphon.core.words import told

REF = "#/$defs/"
FORMATS: dict[object, str] = {datetime: "date-time", time: "time"}
FOUND = "$found"
"""In what a hook gives, so that a schema of anything, {}, is not taken for none."""
ADVICE = "use str, int, float, bool, list, dict, Literal, an Enum, a dataclass, a TypedDict or a msgspec.Struct"


def text_patterns_of(visible: Mapping[str, Visible], name: str) -> TextPatterns:
    """The patterns of the texts among the parameters; `UsageError` for one that could take too long to match."""
    for parameter, each in visible.items():
        try:
            TextPatterns({parameter: each.hint})
        except (BadPattern, PatternInClass) as error:
            raise UsageError(f"the parameter {parameter!r} of {name}(): {error}") from error
    return TextPatterns({parameter: each.hint for parameter, each in visible.items()})


def check_hints(visible: Mapping[str, Visible], name: str) -> None:
    """`UsageError` for the first parameter of the function `name()` that no JSON fits."""
    for parameter, each in visible.items():
        try:
            msgspec.json.Decoder(cast("type", each.hint), dec_hook=from_model)
            msgspec.json.schema_components((each.hint,), schema_hook=_hook)
        except Exception as error:  # a type is anybody's code
            why = told(error).removeprefix("TypeError: ")
            raise UsageError(f"the parameter {parameter!r} of {name}(): {why}; {ADVICE}") from error


def schema_of(visible: Mapping[str, Visible], described: Mapping[str, str]) -> Json:
    """The JSON schema of an object with these parameters, as a model is told of it."""
    hints = [_dated(each.hint) for each in visible.values()]
    schemas, components = msgspec.json.schema_components(hints, schema_hook=_hook)
    parts: Json = dict(zip(visible, schemas, strict=True))
    properties, shared = _self_contained(parts, dict(components))
    schema: Json = {
        "type": "object",
        "properties": {
            name: {**part, **_default(visible[name]), **_description(described.get(name, ""))}
            for name, part in properties.items()
        },
        "required": [name for name, each in visible.items() if each.default is NO_DEFAULT],
        "additionalProperties": False,
    }
    return {**schema, "$defs": shared} if shared else schema


def struct_of(visible: Mapping[str, Visible], name: str) -> type[msgspec.Struct]:
    """What arguments are converted to. A parameter that was left out stays UNSET: its default is the function's.

    Without the patterns of texts, which are checked by `TextPatterns`.
    """
    fields = [
        (
            each,
            cast("type", without_patterns(one.hint)),
            msgspec.NODEFAULT if one.default is NO_DEFAULT else msgspec.UNSET,
        )
        for each, one in visible.items()
    ]
    return msgspec.defstruct(name, fields, kw_only=True, forbid_unknown_fields=True)


def from_model(kind: type, value: object) -> object:
    """Plain data as the class wants it, for classes only they themselves can make."""
    validate = getattr(kind, "model_validate", None)
    return validate(value) if validate else value


def to_model(value: object) -> object:
    """Such a value as plain data; `TypeError` if it is none."""
    dump = getattr(value, "model_dump", None)
    if dump is None:
        raise TypeError(f"{type(value).__name__} is no JSON value")
    plain: object = dump(mode="json")
    return plain


def _hook(kind: type) -> Json:
    if kind is object:
        return {FOUND: True}
    describe = getattr(kind, "model_json_schema", None)
    if describe is None or not hasattr(kind, "model_validate"):
        raise TypeError(f"no JSON is a {kind.__name__}")
    return {FOUND: True, **_owned(cast("Json", msgspec.to_builtins(describe())), kind.__name__)}


def _dated(hint: object) -> object:
    """The type with the format of dates spelt out: without it a model is told of a text, and guesses."""
    if hint is datetime or hint is time:
        return Annotated[hint, msgspec.Meta(extra_json_schema={"format": FORMATS[hint]})]
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return functools.reduce(operator.or_, map(_dated, parts))
    return origin[tuple(map(_dated, parts))] if origin in (list, dict, tuple, set) else hint


def _owned(schema: Json, owner: str) -> Json:
    """A class's own schema, its definitions under its name, so that two classes do not mix up theirs."""

    def rename(node: Json) -> Json:
        return node if _ref(node) is None else {**node, "$ref": f"{REF}{owner}.{_ref(node)}"}

    schema = cast("Json", _rewritten(schema, rename))
    shared = cast("Json", schema.pop("$defs", {}))
    return {**schema, "$defs": {f"{owner}.{name}": part for name, part in shared.items()}} if shared else schema


def _self_contained(parts: Json, components: Json) -> tuple[dict[str, Json], Json]:
    """The parts with what they refer to written out, and what can only be referred to."""
    known: Json = {}

    def lift(node: Json) -> Json:
        known.update(cast("Json", node.get("$defs", {})))
        return {key: part for key, part in node.items() if key not in ("$defs", FOUND)}

    parts = cast("Json", _rewritten(parts, lift))
    known.update(cast("Json", _rewritten(components, lift)))
    recursive = {name for name in known if name in _reached(known[name], known)}

    def inline(node: Json) -> Json:
        while (name := _ref(node)) in known.keys() - recursive:
            node = {**cast("Json", known[str(name)]), **{key: part for key, part in node.items() if key != "$ref"}}
        return node

    properties = cast("dict[str, Json]", _rewritten(parts, inline))
    used = _reached(properties, known) & recursive
    return properties, {name: _rewritten(known[name], inline) for name in sorted(used)}


def _rewritten(node: object, change: Callable[[Json], Json]) -> object:
    """The schema with every object in it changed, from the outside in."""
    if isinstance(node, dict):
        return {key: _rewritten(part, change) for key, part in change(node).items()}
    return [_rewritten(part, change) for part in node] if isinstance(node, list) else node


def _ref(node: Json) -> str | None:
    """The name of what a schema refers to."""
    ref = node.get("$ref")
    return ref.removeprefix(REF) if isinstance(ref, str) and ref.startswith(REF) else None


def _reached(node: object, known: Json) -> set[str]:
    """The names of all that a schema refers to, near and far."""
    reached: set[str] = set()
    left = [node]
    while left:
        new = {name for name in _refs(left.pop()) if name in known} - reached
        reached |= new
        left.extend(known[name] for name in new)
    return reached


def _refs(node: object) -> Iterator[str]:
    if isinstance(node, dict) and (name := _ref(node)) is not None:
        yield name
    parts = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    for part in parts:
        yield from _refs(part)


def _default(one: Visible) -> Json:
    """The default, if a model can be told of it. None is told by not being required."""
    if one.default is NO_DEFAULT or one.default is None:
        return {}
    try:
        value = msgspec.to_builtins(one.default, enc_hook=to_model)
        check_json(value)
    except Exception:  # the function knows its default; a model need not
        return {}
    return {"default": value}


def _description(text: str) -> Json:
    return {"description": text} if text else {}
