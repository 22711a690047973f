"""Values that a rule table is made of, by name: from a value to `{"name", "args"}` and back.

Rule 1: names are closed. A built-in cannot be replaced, an unknown name is an error that lists the known.
Rule 2: what is read back is made by a class that was registered before, from plain data; nothing is imported by name.
Rule 3: an error names the value and what to give instead, and comes before anything is recorded.
Rule 4: plain data in a field of a user-defined class that has the shape of a rule is written inside a wrapper, so that
        it is read back as data. Files written before that rule existed hold no wrappers and are read as they were.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Generic, Protocol, TypeGuard, TypeVar, cast

import msgspec

from antiphon.core.codec import Malformed, check_json
from antiphon.core.envelope import Json
from antiphon.core.errors import RulesInvalid
from antiphon.core.text import describe, describe_error

T = TypeVar("T")
Registered_co = TypeVar("Registered_co", covariant=True)

MAX_RULE_DEPTH = 32
MAX_RULE_JSON_DEPTH = 160
"""A condition inside of another is four levels of JSON further down."""
MAX_RULE_NAME_CHARS = 64
NESTED_FIELDS = frozenset({"condition", "conditions"})
"""The fields in which conditions of ours hold others."""
RULE_KEYS = frozenset({"name", "args"})
WRAPPER_NAME, WRAPPED_KEY = "", "data"
"""The name of the wrapper around plain data, and its one argument. No class can be registered under an empty name."""


class Registry(Generic[T]):
    """The classes of one kind that may stand in a table, by name."""

    def __init__(self, noun: str, method: str) -> None:
        self.noun, self._method = noun, method
        self._built_in: dict[str, type[T]] = {}
        self._registered: dict[str, type[T]] = {}

    def add_built_in(self, *kinds: type[T]) -> None:
        """Make these known for good."""
        self._built_in.update((_name_of(kind), kind) for kind in kinds)

    def register(self, kind: type[T]) -> type[T]:
        """Make a class known by its name. The same class again changes nothing; another of its name is refused."""
        self._check(kind)
        name = _name_of(kind)
        if name in self._built_in:
            raise RulesInvalid(f"the {self.noun} {name!r} is built in and cannot be replaced")
        known = self._registered.get(name)
        if known is not None and (known.__module__, known.__qualname__) != (kind.__module__, kind.__qualname__):
            raise RulesInvalid(f"a {self.noun} {name!r} is registered already: {known.__qualname__}")
        self._registered[name] = kind
        return kind

    def find(self, name: object) -> type[T]:
        """The class of this name."""
        found = (self._built_in.get(name) or self._registered.get(name)) if isinstance(name, str) else None
        if found is None:
            known = ", ".join(sorted([*self._built_in, *self._registered]))
            raise RulesInvalid(f"no {self.noun} is called {describe(name)}; there are: {known}")
        return found

    def knows(self, value: object) -> bool:
        """Whether this is a value of a known class."""
        name = getattr(type(value), "name", None)
        return isinstance(name, str) and (self._built_in.get(name) or self._registered.get(name)) is type(value)

    def is_built_in(self, kind: type) -> bool:
        """Whether this is a class of ours."""
        return self._built_in.get(getattr(kind, "name", "")) is kind

    def _check(self, kind: object) -> None:
        if not isinstance(kind, type):
            raise RulesInvalid(
                f"{describe(kind)} is no class; give the class of the {self.noun}, not an instance of it"
            )
        name = getattr(kind, "name", None)
        if not isinstance(name, str) or not 0 < len(name) <= MAX_RULE_NAME_CHARS:
            wanted = f"give it a text of 1 to {MAX_RULE_NAME_CHARS} characters"
            raise RulesInvalid(f"the name of the {self.noun} {kind.__name__} is {describe(name)}; {wanted}")
        if not accepts_arguments(getattr(kind, self._method, None), 3):
            raise RulesInvalid(f"the {self.noun} {kind.__name__} needs a method {self._method}(self, state, envelope)")
        if inspect.iscoroutinefunction(getattr(kind, self._method)):
            raise RulesInvalid(f"{self._method} of the {self.noun} {kind.__name__} is async; rules wait for nothing")
        if _fields_of(kind) is None:
            raise RulesInvalid(f"the {self.noun} {kind.__name__} takes arguments; make it a dataclass, without InitVar")


def _name_of(kind: type) -> str:
    return str(cast("_NamedClass", kind).name)


class _NamedClass(Protocol):
    name: str


class _Constructor(Protocol[Registered_co]):
    def __call__(self, **arguments: object) -> Registered_co: ...


def _fields_of(kind: type) -> tuple[str, ...] | None:
    """The names of the arguments a class is made from; None if they cannot be read back from its values."""
    if issubclass(kind, msgspec.Struct):
        return tuple(kind.__struct_fields__)
    parameters = inspect.signature(kind).parameters.values()
    wanted = {each.name for each in parameters if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)}
    if is_dataclass(kind):
        names = tuple(field.name for field in fields(kind) if field.init)
        return names if wanted <= set(names) else None
    return None if parameters else ()


def _defaults_of(kind: type) -> Mapping[str, object]:
    """The defaults of fields that are not written down where a value has them."""
    if not issubclass(kind, msgspec.Struct) or not kind.__struct_config__.omit_defaults:
        return {}
    return {each.name: each.default for each in msgspec.structs.fields(kind) if each.default is not msgspec.NODEFAULT}


def accepts_arguments(call: object, count: int) -> bool:
    """Whether it can be called with so many arguments, as far as that can be known."""
    if not callable(call):
        return False
    try:
        inspect.signature(call).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # a built-in without a signature
        pass
    return True


class RegistryCodec:
    """Everything that may stand in a table: conditions, and targets."""

    def __init__(self, *names: Registry[object]) -> None:
        self._names = names

    def dump(self, value: object) -> Json:
        """A condition or target as plain data."""
        try:
            data = self._dump_value(value)
            check_json(data, deepest=MAX_RULE_JSON_DEPTH)
        except (Malformed, RecursionError) as error:
            raise RulesInvalid(f"{describe(value)} cannot be written down: {error}") from error
        return data

    def _dump_value(self, value: object) -> Json:
        ours = any(names.is_built_in(type(value)) for names in self._names)
        left_out = _defaults_of(type(value))
        given = {name: getattr(value, name) for name in _fields_of(type(value)) or ()}
        args = {
            name: self._dump_field(field, ours=ours)
            for name, field in given.items()
            if name not in left_out or field != left_out[name]
        }
        return {"name": _name_of(type(value)), "args": args}

    def _dump_field(self, value: object, *, ours: bool) -> object:
        """A field as plain data. Built-in classes know which of their fields hold rules, so theirs need no wrapper."""
        if any(names.knows(value) for names in self._names):
            return self._dump_value(value)
        if isinstance(value, list | tuple):
            return [self._dump_field(item, ours=ours) for item in value]
        if isinstance(value, frozenset | set):
            return sorted((self._dump_field(item, ours=ours) for item in value), key=str)
        return {"name": WRAPPER_NAME, "args": {WRAPPED_KEY: value}} if not ours and _is_rule_shaped(value) else value

    def load(self, data: object, names: Registry[T], depth: int = 0) -> T:
        """The condition or target that this data describes."""
        if depth > MAX_RULE_DEPTH:
            raise RulesInvalid(f"a {names.noun} is nested deeper than {MAX_RULE_DEPTH} levels")
        name, args = _name_and_args(data, names.noun)
        kind = names.find(name)
        known = _fields_of(kind) or ()
        strange = next((arg for arg in args if arg not in known), None)
        if strange is not None:
            raise RulesInvalid(
                f"{name!r} takes no argument {describe(strange)}; it takes: {', '.join(known) or 'none'}"
            )
        ours = names.is_built_in(kind)
        if ours:
            given = {
                arg: self._load_nested(value, names, depth) if arg in NESTED_FIELDS else value
                for arg, value in args.items()
            }
        else:
            given = {arg: self._load_argument(value, depth) for arg, value in args.items()}
        try:
            return cast(_Constructor[T], kind)(**given)
        except RulesInvalid:
            raise
        except Exception as error:  # a user-defined class may raise anything
            raise RulesInvalid(f"no {name!r} can be made of {describe(args)}: {describe_error(error)}") from error

    def _load_nested(self, value: object, names: Registry[T], depth: int) -> object:
        """Conditions inside of one of ours."""
        if isinstance(value, list):
            return [self.load(item, names, depth + 1) for item in value]
        return self.load(value, names, depth + 1)

    def _load_argument(self, value: object, depth: int) -> object:
        """An argument of a user-defined class. A known condition or target inside it is read; wrapped data is not."""
        if depth > MAX_RULE_JSON_DEPTH:
            raise RulesInvalid(f"an argument is nested deeper than {MAX_RULE_JSON_DEPTH} levels")
        if isinstance(value, list):
            return [self._load_argument(item, depth + 1) for item in value]
        if not _is_rule_shaped(value):
            return value
        name, args = value["name"], value["args"]
        if name == WRAPPER_NAME and isinstance(args, dict) and args.keys() == {WRAPPED_KEY}:
            return args[WRAPPED_KEY]
        found = next((names for names in self._names if self._is_known(names, name)), None)
        return value if found is None else self.load(value, found, depth + 1)

    def _is_known(self, names: Registry[object], name: object) -> bool:
        try:
            names.find(name)
        except RulesInvalid:
            return False
        return True


def _is_rule_shaped(value: object) -> TypeGuard[dict[str, object]]:
    return isinstance(value, dict) and value.keys() == RULE_KEYS and isinstance(value["args"], dict)


def _name_and_args(data: object, noun: str) -> tuple[str, Mapping[str, object]]:
    if not isinstance(data, dict) or "name" not in data:
        raise RulesInvalid(f"a {noun} is {describe(data)}; give a dict with a name and args")
    strange = next((key for key in data if key not in ("name", "args")), None)
    if strange is not None:
        raise RulesInvalid(f"a {noun} has no field {describe(strange)}; it has: name, args")
    args = data.get("args", {})
    if not isinstance(args, dict) or not all(isinstance(key, str) for key in args):
        raise RulesInvalid(f"the args of {describe(data['name'])} are {describe(args)}; give a dict")
    return data["name"], args
