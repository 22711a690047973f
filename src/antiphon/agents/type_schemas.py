"""Types as JSON schemas, and arguments as values of those types.

Rule 1: the schema stands alone. What refers to itself is under `$defs`; everything else is written out in place.
Rule 2: a class that validates itself (`model_validate`, `model_json_schema`) is asked; nothing of it is imported.
Rule 3: a type without a JSON form is refused with `UsageError` where it is declared.
Rule 4: msgspec matches `msgspec.Meta(pattern=…)` with Python's `re`, which backtracks without end over some patterns.
        So msgspec gets a type without patterns, and they are checked here without backtracking, in its words.
Rule 5: a pattern inside a class cannot be taken out of it. It is accepted only if `re` matches it in linear time.
"""

from __future__ import annotations

import functools
import operator
from collections import abc
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, time
from types import UnionType
from typing import Annotated, Union, cast, get_args, get_origin

import msgspec
from msgspec import inspect

from antiphon.agents.signature import NO_DEFAULT, VisibleParameter
from antiphon.core.codec import check_json
from antiphon.core.envelope import Json
from antiphon.core.errors import UsageError
from antiphon.core.linear_regex import LinearPattern, WorkBudget, is_linear_with_backtracking
from antiphon.core.regex_syntax import BadPattern
from antiphon.core.text import describe, describe_error

CONTAINER_TYPES = frozenset(
    (
        *(list, set, frozenset, tuple, dict),
        *(abc.Collection, abc.Sequence, abc.MutableSequence, abc.Set, abc.MutableSet, abc.Mapping, abc.MutableMapping),
    )
)
META_FIELDS = ("min_length", "max_length", "title", "description", "examples", "extra_json_schema", "extra")
"""What else an annotation may say of a text."""
DEFAULT_FIELDS = ("default", "default_factory")
PATTERN_IN_CLASS_ADVICE = (
    "begin it with '^' and let every character decide how to go on, such as '^[^@]+@[^@]+$'; "
    "or give the parameter itself the pattern"
)

ValuePath = str
"""Such as `$.lines[0]`, as msgspec writes it."""


class PatternInClass(ValueError):
    """A pattern inside a class could take too long."""


class TextPatterns:
    """The patterns of texts in named types."""

    def __init__(self) -> None:
        self._types: dict[str, inspect.Type] = {}
        self._patterns: dict[str, LinearPattern] = {}
        self._patterned: set[int] = set()
        """The types that hold a pattern, by identity: a value of any other is not looked into, however large it is."""

    def __bool__(self) -> bool:
        return bool(self._types)

    def add(self, name: str, hint: object) -> None:
        """Add a named type; `BadPattern` or `PatternInClass` if one of its patterns could take long to match."""
        within_classes = list(_patterns_in(inspect.type_info(without_patterns(hint))))
        for pattern in within_classes:
            if not is_linear_with_backtracking(pattern):
                raise PatternInClass(
                    f"the pattern {describe(pattern)} is inside a class, where it is matched with backtracking, "
                    f"and that may take too long; {PATTERN_IN_CLASS_ADVICE}"
                )
        info = inspect.type_info(hint)
        everywhere = list(_patterns_in(info))
        if len(everywhere) > len(within_classes):
            self._types[name] = info
            self._note_patterned(info)
            self._patterns |= {pattern: LinearPattern(pattern) for pattern in everywhere}

    def check(self, values: Mapping[str, object]) -> None:
        """Check plain data that has the right types; `msgspec.ValidationError` for the first text that does not match.

        `TooMuchWork` if that would exceed the budget of a check.
        """
        budget = WorkBudget()
        for name, info in self._types.items():
            if name in values:
                self._check(info, values[name], f"$.{name}" if name else "$", budget=budget)

    def _note_patterned(self, info: inspect.Type) -> bool:
        """Note the types in this one, itself included, that hold a pattern outside of classes. Whether it is one."""
        match info:
            case inspect.StrType(pattern=pattern):
                holds = pattern is not None
            case inspect.Metadata(type=kind) | inspect.CollectionType(item_type=kind):
                holds = self._note_patterned(kind)
            case inspect.UnionType(types=kinds) | inspect.TupleType(item_types=kinds):
                holds = any([self._note_patterned(kind) for kind in kinds])  # of all: not up to the first
            case inspect.DictType(key_type=key, value_type=kind):
                holds = any([self._note_patterned(key), self._note_patterned(kind)])
            case _:
                holds = False
        if holds:
            self._patterned.add(id(info))
        return holds

    def _check(self, info: inspect.Type, value: object, place: ValuePath, *, budget: WorkBudget) -> None:
        """Check the texts in a value that are not inside of a class."""
        if not isinstance(info, inspect.StrType):
            for kind, part, where in _parts_in(info, value, place):
                if id(kind) in self._patterned:
                    self._check(kind, part, where, budget=budget)
            return
        pattern = info.pattern
        if pattern is not None and isinstance(value, str) and not self._patterns[pattern].found_in(value, budget):
            at = "" if place == "$" else f" - at {place}" if place.startswith("`") else f" - at `{place}`"
            raise msgspec.ValidationError(f"Expected `str` matching regex {pattern!r}{at}")


def _parts_in(info: inspect.Type, value: object, place: ValuePath) -> Iterator[tuple[inspect.Type, object, ValuePath]]:
    """The values that a value holds, and the type and the place of each."""
    match info, value:
        case inspect.Metadata(type=kind), _:
            yield kind, value, place
        case inspect.UnionType(types=kinds), _:  # at most one text, one list and one object, so none is mistaken
            yield from ((kind, value, place) for kind in kinds)
        case inspect.TupleType(item_types=kinds), list():
            for at, (kind, item) in enumerate(zip(kinds, value, strict=False)):
                yield kind, item, f"{place}[{at}]"
        case inspect.CollectionType(item_type=kind), list():
            for at, item in enumerate(value):
                yield kind, item, f"{place}[{at}]"
        case inspect.DictType(key_type=key, value_type=kind), dict():
            of_key, of_member = f"`key` in `{place}`", f"{place}[...]"
            for name, member in value.items():
                yield key, name, of_key
                yield kind, member, of_member
        case _:
            return


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
    return origin[tuple(map(without_patterns, parts))] if origin in CONTAINER_TYPES else hint


def _without_pattern(note: object) -> object:
    if not isinstance(note, msgspec.Meta) or note.pattern is None:
        return note
    return msgspec.Meta(**{name: getattr(note, name) for name in META_FIELDS})


def _patterns_in(info: inspect.Type) -> Iterator[str]:
    """All patterns of a type, those of the classes in it included."""
    seen, left = set[int](), list[object]([info])
    while left:
        node = left.pop()
        if isinstance(node, tuple):
            left.extend(node)
        elif isinstance(node, inspect.Type | inspect.Field) and id(node) not in seen:
            seen.add(id(node))
            left.extend(getattr(node, name) for name in node.__struct_fields__ if name not in DEFAULT_FIELDS)
            if isinstance(node, inspect.StrType) and node.pattern is not None:
                yield node.pattern


DEFS_PREFIX = "#/$defs/"
DATE_FORMATS: dict[object, str] = {datetime: "date-time", time: "time"}
HOOK_MARK = "$found"
"""In what a hook gives, so that a schema of anything, {}, is not taken for none."""
JSON_TYPE_ADVICE = (
    "use str, int, float, bool, list, dict, Literal, an Enum, a dataclass, a TypedDict or a msgspec.Struct"
)


def text_patterns_of(visible: Mapping[str, VisibleParameter], name: str) -> TextPatterns:
    """The patterns of the texts among the parameters; `UsageError` for one that could take too long to match."""
    patterns = TextPatterns()
    for parameter, each in visible.items():
        try:
            patterns.add(parameter, each.hint)
        except (BadPattern, PatternInClass) as error:
            raise UsageError(f"the parameter {parameter!r} of {name}(): {error}") from error
    return patterns


def check_hints(visible: Mapping[str, VisibleParameter], name: str) -> None:
    """`UsageError` for the first parameter of the function `name()` that no JSON fits."""
    for parameter, each in visible.items():
        try:
            msgspec.json.Decoder(cast("type", each.hint), dec_hook=decode_hook)
            msgspec.json.schema_components((each.hint,), schema_hook=_schema_hook)
        except Exception as error:  # a type is anybody's code
            why = describe_error(error).removeprefix("TypeError: ")
            raise UsageError(f"the parameter {parameter!r} of {name}(): {why}; {JSON_TYPE_ADVICE}") from error


def schema_of(visible: Mapping[str, VisibleParameter], described: Mapping[str, str]) -> Json:
    """The JSON schema of an object with these parameters, as a model sees it."""
    hints = [_with_date_format(each.hint) for each in visible.values()]
    schemas, components = msgspec.json.schema_components(hints, schema_hook=_schema_hook)
    parts: Json = dict(zip(visible, schemas, strict=True))
    properties, shared = _inline_references(parts, dict(components))
    texts = {name: {"description": text} for name, text in described.items() if text}
    schema: Json = {
        "type": "object",
        "properties": {
            name: {**part, **_default_entry(visible[name]), **texts.get(name, {})} for name, part in properties.items()
        },
        "required": [name for name, each in visible.items() if each.default is NO_DEFAULT],
        "additionalProperties": False,
    }
    return {**schema, "$defs": shared} if shared else schema


def arguments_struct(visible: Mapping[str, VisibleParameter], name: str) -> type[msgspec.Struct]:
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


def decode_hook(kind: type, value: object) -> object:
    """Plain data as the class wants it, for classes only they themselves can make."""
    validate = getattr(kind, "model_validate", None)
    return validate(value) if validate else value


def encode_hook(value: object) -> object:
    """Such a value as plain data; `TypeError` if it is none."""
    dump = getattr(value, "model_dump", None)
    if dump is None:
        raise TypeError(f"{type(value).__name__} is no JSON value")
    plain: object = dump(mode="json")
    return plain


def _schema_hook(kind: type) -> Json:
    if kind is object:
        return {HOOK_MARK: True}
    describe = getattr(kind, "model_json_schema", None)
    if describe is None or not hasattr(kind, "model_validate"):
        raise TypeError(f"no JSON is a {kind.__name__}")
    return {HOOK_MARK: True, **_own_definitions(cast("Json", msgspec.to_builtins(describe())), kind.__name__)}


def _with_date_format(hint: object) -> object:
    """The type with the format of dates spelt out: without it a model sees a text, and guesses."""
    if hint is datetime or hint is time:
        return Annotated[hint, msgspec.Meta(extra_json_schema={"format": DATE_FORMATS[hint]})]
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return functools.reduce(operator.or_, map(_with_date_format, parts))
    return origin[tuple(map(_with_date_format, parts))] if origin in (list, dict, tuple, set) else hint


def _own_definitions(schema: Json, owner: str) -> Json:
    """A class's own schema, its definitions under its name, so that two classes do not mix up theirs."""

    def rename(node: Json) -> Json:
        return node if _ref_name(node) is None else {**node, "$ref": f"{DEFS_PREFIX}{owner}.{_ref_name(node)}"}

    schema = cast("Json", _rewrite_nodes(schema, rename))
    shared = cast("Json", schema.pop("$defs", {}))
    return {**schema, "$defs": {f"{owner}.{name}": part for name, part in shared.items()}} if shared else schema


def _inline_references(parts: Json, components: Json) -> tuple[dict[str, Json], Json]:
    """The parts with what they refer to written out, and what can only be referred to."""
    known: Json = {}

    def lift(node: Json) -> Json:
        known.update(cast("Json", node.get("$defs", {})))
        return {key: part for key, part in node.items() if key not in ("$defs", HOOK_MARK)}

    parts = cast("Json", _rewrite_nodes(parts, lift))
    known.update(cast("Json", _rewrite_nodes(components, lift)))
    recursive = {name for name in known if name in _reachable_refs(known[name], known)}

    def inline(node: Json) -> Json:
        while (name := _ref_name(node)) in known.keys() - recursive:
            node = {**cast("Json", known[str(name)]), **{key: part for key, part in node.items() if key != "$ref"}}
        return node

    properties = cast("dict[str, Json]", _rewrite_nodes(parts, inline))
    used = _reachable_refs(properties, known) & recursive
    return properties, {name: _rewrite_nodes(known[name], inline) for name in sorted(used)}


def _rewrite_nodes(node: object, change: Callable[[Json], Json]) -> object:
    """The schema with every object in it changed, from the outside in."""
    if isinstance(node, dict):
        return {key: _rewrite_nodes(part, change) for key, part in change(node).items()}
    return [_rewrite_nodes(part, change) for part in node] if isinstance(node, list) else node


def _ref_name(node: Json) -> str | None:
    """The name of what a schema refers to."""
    ref = node.get("$ref")
    return ref.removeprefix(DEFS_PREFIX) if isinstance(ref, str) and ref.startswith(DEFS_PREFIX) else None


def _reachable_refs(node: object, known: Json) -> set[str]:
    """The names of all that a schema refers to, near and far."""
    reached: set[str] = set()
    left = [node]
    while left:
        new = {name for name in _refs_in(left.pop()) if name in known} - reached
        reached |= new
        left.extend(known[name] for name in new)
    return reached


def _refs_in(node: object) -> Iterator[str]:
    if isinstance(node, dict) and (name := _ref_name(node)) is not None:
        yield name
    parts = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    for part in parts:
        yield from _refs_in(part)


def _default_entry(one: VisibleParameter) -> Json:
    """The default, if a schema can express it. None is expressed by not being required."""
    if one.default is NO_DEFAULT or one.default is None:
        return {}
    try:
        value = msgspec.to_builtins(one.default, enc_hook=encode_hook)
        check_json(value)
    except Exception:  # the function knows its default; a model need not
        return {}
    return {"default": value}
