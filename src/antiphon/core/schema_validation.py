"""The check of JSON values against a JSON schema, by the library that is installed.

Rule 1: nothing is fetched: a schema that refers to something outside itself is refused.
Rule 2: no check takes long. jsonschema-rs is fast, but cannot be stopped, and may follow a schema that refers to itself
        exponentially often: the size of a schema with every reference written out, and the depth of the value, say
        whether it may. `jsonschema` checks such schemas within a budget of steps, if both are installed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from types import ModuleType
from typing import NamedTuple, cast
from urllib.parse import unquote

from antiphon.core.codec import MAX_JSON_DEPTH, count_values
from antiphon.core.envelope import Json
from antiphon.core.errors import UsageError
from antiphon.core.linear_regex import TooMuchWork
from antiphon.core.regex_syntax import BadPattern, PatternParser, UnsupportedPattern
from antiphon.core.schema_keywords import REFERENCE_KEYWORDS, CountedKeywords, SchemaError
from antiphon.core.text import describe

BOOLEAN_SCHEMA: list[object] = []
"""A schema that is true or false. One and the same, because parts are told apart by identity."""


class _UnboundedSchema(Exception):
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
            parts = list(_schema_parts(node, schema))
            if done:
                plain = sum(not isinstance(part, dict | list) for part in _members(node))
                sizes[id(node)] = 1 + plain + sum(sizes[id(part)] for part in parts)
            elif id(node) in begun:
                return None
            else:
                begun.add(id(node))
                left.append((node, True))
                left.extend((part, False) for part in parts)
    except _UnboundedSchema:
        return None
    return sizes[id(schema)]


def is_deeper(value: object, most: int) -> bool:
    """Whether a JSON value is nested deeper than that."""
    layer = [value]
    for _ in range(most + 1):
        layer = [part for node in layer for part in _members(node)]
    return bool(layer)


def _members(node: object) -> Iterable[object]:
    """The values that a list or an object holds."""
    return node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()


def _schema_parts(node: Json | list[object], root: Json) -> Iterator[Json | list[object]]:
    yield from (part for part in _members(node) if isinstance(part, dict | list))
    if not isinstance(node, dict):
        return
    if node is not root and any(isinstance(node.get(key), str) for key in ("$id", "id")):
        raise _UnboundedSchema
    yield from (
        _reference_target(reference, root) for key in REFERENCE_KEYWORDS if isinstance(reference := node.get(key), str)
    )


def _reference_target(reference: str, root: Json) -> Json | list[object]:
    if reference != "#" and not reference.startswith("#/"):
        raise _UnboundedSchema
    found: object = root
    for step in unquote(reference).split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict) and step in found:
            found = found[step]
        elif isinstance(found, list) and step.isdecimal() and int(step) < len(found):
            found = found[int(step)]
        else:
            raise _UnboundedSchema
    return found if isinstance(found, dict | list) else BOOLEAN_SCHEMA


MAX_EXPANDED_PARTS = 20_000
"""How many parts a schema may have, its references written out, that is checked without a budget."""
MAX_FULL_REPORT_WORK = 300_000
"""Up to which product of the parts of a schema and of a value all faults are looked for, and not the first alone."""
SCHEMA_INSTALL_ADVICE = 'install what checks it, pip install "antiphon[schema]", or give a type'

InstancePath = Iterable[str | int]
"""The names and positions that lead to a value."""


class AnswerFault(NamedTuple):
    """One thing that is wrong with an answer."""

    place: str
    """Such as `lines[0].price`; empty, if it is the answer as a whole."""
    what: str


SchemaCheck = Callable[[object], Iterable[AnswerFault]]
"""What is wrong with a value that should fit a schema."""


class SchemaMisfit(ValueError):
    """A value does not fit a schema; or a schema is none."""

    def __init__(self, faults: Sequence[AnswerFault]) -> None:
        super().__init__(f"{len(faults)} faults")
        self.faults = faults


def format_instance_path(steps: InstancePath, within: str = "") -> str:
    """Such as `lines[0].price`."""
    written = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)
    return "".join((within, *written)).removeprefix(".")


def build_schema_check(schema: Json, owner: str) -> SchemaCheck:
    """The check of values against a schema. Raises if the schema is none; `UsageError` if nothing here can check it."""
    rust, size = _import_library("jsonschema_rs"), expanded_size(schema)
    check = None if rust is None else _check_by_jsonschema_rs(rust, schema, size or 1)
    if check is not None and size is not None and size <= MAX_EXPANDED_PARTS:
        return check  # it takes time in proportion to the value at most, however the schema branches
    python = _import_library("jsonschema") if _import_library("referencing") else None
    if python is not None:
        return _check_by_jsonschema(python, schema, recursive=size is None)
    if check is None:
        raise UsageError(f"{owner}, a JSON schema, and there is nothing here to check it with; {SCHEMA_INSTALL_ADVICE}")
    return check


def _import_library(name: str) -> ModuleType | None:
    try:
        return import_module(name)
    except ImportError:
        return None


def _check_by_jsonschema_rs(library: ModuleType, schema: Json, size: int) -> SchemaCheck:
    """A check by jsonschema-rs. Without a retriever it would fetch references, from a network or from a disk."""
    kind = library.validator_for if "$schema" in schema else library.Draft202012Validator
    try:
        validator = kind(schema, validate_formats=False, retriever=_refuse_to_fetch)
    except library.ValidationError as error:
        raise SchemaMisfit([_fault_at(error.instance_path, error)]) from error

    def check(value: object) -> Iterable[AnswerFault]:
        if size * count_values(value, most=MAX_FULL_REPORT_WORK + 1) <= MAX_FULL_REPORT_WORK:
            # all at once, however many
            return [_fault_at(error.instance_path, error) for error in validator.iter_errors(value)]
        try:
            validator.validate(value)
        except library.ValidationError as error:
            return [_fault_at(error.instance_path, error)]
        return []

    return check


def _fault_at(path: InstancePath, error: SchemaError) -> AnswerFault:
    return AnswerFault(format_instance_path(path), error.message)


def _refuse_to_fetch(uri: str) -> Json:
    raise LookupError(f"{uri} is outside, and nothing is fetched")


def _check_by_jsonschema(library: ModuleType, schema: Json, *, recursive: bool) -> SchemaCheck:
    """A check by jsonschema. Without a registry it would fetch references as well, and only when it follows them."""
    default = None if "$schema" in schema else library.Draft202012Validator
    kind = library.validators.validator_for(schema, default)
    if kind is None:
        raise LookupError(f"its $schema {describe(schema['$schema'])} is not known")
    try:
        kind.check_schema(schema, format_checker=_pattern_format_checker(library))
    except library.SchemaError as error:
        raise SchemaMisfit([_fault_at(error.absolute_path, error)]) from error
    schemas = _resolve_schemas(schema, kind.META_SCHEMA)  # also those of the library, if they are referred to
    # Such a reference leads to different schemas, depending on how it was reached.
    dynamic = any(isinstance(each, dict) and ("$dynamicRef" in each or "$recursiveRef" in each) for each in schemas)
    counted = CountedKeywords(library, kind, own=_schemas_within(schema, schemas), remember=not dynamic)
    # A reference to the root leads to a schema that names its dialect, and would be checked by the library's own class.
    bare = {key: part for key, part in schema.items() if key != "$schema"}
    registry = import_module("referencing").Registry()
    types = kind.TYPE_CHECKER.redefine("boolean", counted.is_boolean)
    kind = library.validators.extend(kind, validators=counted.keywords, type_checker=types)
    validator = kind(bare, registry=registry)

    def check(value: object) -> Iterable[AnswerFault]:
        counted.renew()
        if recursive and is_deeper(value, MAX_JSON_DEPTH):  # the library would come to the end of Python's stack
            return [AnswerFault("", f"it is nested deeper than {MAX_JSON_DEPTH} levels")]
        try:
            return [_fault_at(error.absolute_path, error) for error in validator.iter_errors(value)]
        except TooMuchWork as error:
            return [AnswerFault("", str(error))]

    return check


def _resolve_schemas(schema: Json, dialect: Json) -> list[object]:
    """The schema and all within it. Raises for the first reference that leads nowhere, or outside."""
    specification = import_module("referencing.jsonschema").specification_with(dialect["$schema"])
    known = import_module("jsonschema_specifications").REGISTRY
    root = specification.create_resource(schema)
    left, seen, schemas = [(root, known.resolver_with_root(root))], set[int](), list[object]()
    while left:
        resource, resolver = left.pop()
        if id(resource.contents) in seen:
            continue
        contents = resource.contents
        seen.add(id(contents))
        schemas.append(contents)
        left += [(inner, resolver.in_subresource(inner)) for inner in resource.subresources()]
        references = [
            contents[key] for key in ("$ref", "$dynamicRef") if isinstance(contents, dict) and key in contents
        ]
        for found in map(resolver.lookup, references):
            left.append((specification.create_resource(found.contents), found.resolver))
    return schemas


def _schemas_within(schema: Json, schemas: Sequence[object]) -> list[object]:
    """Those of the schemas that stand in this one, itself first."""
    left: list[object] = [schema]
    own = set[int]()
    while left:
        node = left.pop()
        own.add(id(node))
        left.extend(_members(node))
    return [each for each in schemas if id(each) in own]


def _pattern_format_checker(library: ModuleType) -> object:
    """What checks that patterns are patterns. Python's `re` would refuse legal ones, such as `\\p{L}`."""

    def is_pattern(value: object) -> bool:
        if isinstance(value, str):
            with suppress(UnsupportedPattern):  # a legal one; why it cannot be matched is said when it is compiled
                PatternParser(value).parse()
        return True

    checker = library.FormatChecker(formats=())
    checker.checks("regex", raises=BadPattern)(is_pattern)
    return cast("object", checker)
