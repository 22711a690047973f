"""The check of JSON values against a JSON schema, by the library that is installed.

Rule 1: nothing is fetched: a schema that refers to something outside itself is refused.
Rule 2: no check takes long. jsonschema-rs is fast, but cannot be told to stop, and may follow a schema that refers to
        itself exponentially often. `jsonschema` checks such schemas within a budget of steps, if both are installed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from importlib import import_module
from types import ModuleType
from typing import NamedTuple, Protocol, cast

from antiphon.agents.pattern_syntax import BadPattern, PatternParser, UnsupportedPattern
from antiphon.agents.patterns import TooMuchWork
from antiphon.agents.schema_size import expanded_size, is_deeper
from antiphon.agents.schema_work import CountedKeywords
from antiphon.core.codec import MAX_DEPTH, count_values
from antiphon.core.errors import UsageError
from antiphon.core.events import Json
from antiphon.core.words import shown

MAX_EXPANDED = 20_000
"""How many parts a schema may have, its references written out, that is checked without a budget."""
MAX_REPORTED = 300_000
"""Up to which product of the parts of a schema and of a value all faults are looked for, and not the first alone."""
INSTALL = 'install what checks it, pip install "antiphon[schema]", or give a type'

Steps = Iterable[str | int]
"""The names and positions that lead to a value."""


class Fault(NamedTuple):
    """One thing that is wrong with an answer."""

    place: str
    """Such as `lines[0].price`; empty, if it is the answer as a whole."""
    what: str


class RustError(Protocol):
    """An error of jsonschema-rs."""

    message: str
    instance_path: Steps


Check = Callable[[object], Iterable[Fault]]
"""What is wrong with a value that should fit a schema."""


class Misfit(ValueError):
    """A value does not fit a schema; or a schema is none."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        super().__init__(f"{len(faults)} faults")
        self.faults = faults


def place_of(steps: Steps, within: str = "") -> str:
    """Such as `lines[0].price`."""
    written = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)
    return "".join((within, *written)).removeprefix(".")


def check_of(schema: Json, owner: str) -> Check:
    """The check of values against a schema. Raises if the schema is none; `UsageError` if nothing here can check it."""
    rust = _library("jsonschema_rs")
    check = None if rust is None else _by_jsonschema_rs(rust, schema)
    if check is not None and _is_bounded(schema):
        return check
    python = _library("jsonschema") if _library("referencing") else None
    if python is not None:
        return _by_jsonschema(python, schema)
    if check is None:
        raise UsageError(f"{owner}, a JSON schema, and there is nothing here to check it with; {INSTALL}")
    return check


def _is_bounded(schema: Json) -> bool:
    """Whether a check takes time in proportion to the value at most, however the schema branches."""
    size = expanded_size(schema)
    return size is not None and size <= MAX_EXPANDED


def _library(name: str) -> ModuleType | None:
    try:
        return import_module(name)
    except ImportError:
        return None


def _by_jsonschema_rs(library: ModuleType, schema: Json) -> Check:
    """A check by jsonschema-rs. Without a retriever it would fetch references, from a network or from a disk."""
    kind = library.validator_for if "$schema" in schema else library.Draft202012Validator
    size = expanded_size(schema) or 1
    try:
        validator = kind(schema, validate_formats=False, retriever=_not_fetched)
    except library.ValidationError as error:
        raise Misfit([Fault(place_of(error.instance_path), error.message)]) from error

    def check(value: object) -> Iterable[Fault]:
        return [Fault(place_of(error.instance_path), error.message) for error in errors(value)]

    def errors(value: object) -> Iterable[RustError]:
        if size * count_values(value, most=MAX_REPORTED + 1) <= MAX_REPORTED:
            return cast("Iterable[RustError]", validator.iter_errors(value))  # all at once, however many
        try:
            validator.validate(value)
        except library.ValidationError as error:
            return [error]
        return []

    return check


def _not_fetched(uri: str) -> Json:
    raise LookupError(f"{uri} is outside, and nothing is fetched")


def _by_jsonschema(library: ModuleType, schema: Json) -> Check:
    """A check by jsonschema. Without a registry it would fetch references as well, and only when it follows them."""
    default = None if "$schema" in schema else library.Draft202012Validator
    kind = library.validators.validator_for(schema, default)
    if kind is None:
        raise LookupError(f"its $schema {shown(schema['$schema'])} is not known")
    try:
        kind.check_schema(schema, format_checker=_pattern_format(library))
    except library.SchemaError as error:
        raise Misfit([Fault(place_of(error.absolute_path), error.message)]) from error
    schemas = _checked_schemas(schema, kind.META_SCHEMA)  # also those of the library, if they are referred to
    counted = CountedKeywords(library, kind, own=_within(schema, schemas), remember=not _is_dynamic(schemas))
    # A reference to the root leads to a schema that names its dialect, and would be checked by the library's own class.
    bare = {key: part for key, part in schema.items() if key != "$schema"}
    registry = import_module("referencing").Registry()
    types = kind.TYPE_CHECKER.redefine("boolean", counted.is_boolean)
    kind = library.validators.extend(kind, validators=counted.keywords, type_checker=types)
    validator = kind(bare, registry=registry)

    recursive = expanded_size(schema) is None

    def check(value: object) -> Iterable[Fault]:
        counted.renew()
        if recursive and is_deeper(value, MAX_DEPTH):  # the library would come to the end of Python's stack
            return [Fault("", f"it is nested deeper than {MAX_DEPTH} levels")]
        try:
            return [Fault(place_of(error.absolute_path), error.message) for error in validator.iter_errors(value)]
        except TooMuchWork as error:
            return [Fault("", str(error))]

    return check


def _checked_schemas(schema: Json, dialect: Json) -> list[object]:
    """The schema and all within it. Raises for the first reference that leads nowhere, or outside."""
    specification = import_module("referencing.jsonschema").specification_with(dialect["$schema"])
    known = import_module("jsonschema_specifications").REGISTRY
    root = specification.create_resource(schema)
    left, seen, schemas = [(root, known.resolver_with_root(root))], set[int](), list[object]()
    while left:
        resource, resolver = left.pop()
        if id(resource.contents) in seen:
            continue
        seen.add(id(resource.contents))
        schemas.append(resource.contents)
        left += [(inner, resolver.in_subresource(inner)) for inner in resource.subresources()]
        for reference in _references(resource.contents):
            found = resolver.lookup(reference)
            left.append((specification.create_resource(found.contents), found.resolver))
    return schemas


def _within(schema: Json, schemas: Sequence[object]) -> list[object]:
    """Those of the schemas that stand in this one, itself first."""
    left: list[object] = [schema]
    own = set[int]()
    while left:
        node = left.pop()
        own.add(id(node))
        left.extend(node.values() if isinstance(node, dict) else node if isinstance(node, list) else ())
    return [each for each in schemas if id(each) in own]


def _pattern_format(library: ModuleType) -> object:
    """What checks that patterns are patterns. Python's `re` would refuse legal ones, such as `\\p{L}`."""

    def is_pattern(value: object) -> bool:
        if isinstance(value, str):
            with suppress(UnsupportedPattern):  # a legal one; why it cannot be matched is said when it is compiled
                PatternParser(value).parse()
        return True

    checker = library.FormatChecker(formats=())
    checker.checks("regex", raises=BadPattern)(is_pattern)
    return cast("object", checker)


def _is_dynamic(schemas: Sequence[object]) -> bool:
    """Whether a reference leads to different schemas, depending on how it was reached."""
    return any(isinstance(each, dict) and ("$dynamicRef" in each or "$recursiveRef" in each) for each in schemas)


def _references(schema: object) -> list[object]:
    if not isinstance(schema, dict):
        return []
    return [schema[key] for key in ("$ref", "$dynamicRef") if key in schema]
