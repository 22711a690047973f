"""What a function takes: from the model that calls it, and from the runtime that makes the call.

Rule 1: a mistake is found where the tool is declared, not in the first call.
Rule 2: what the runtime gives (`channel`, `context`, `idempotency_key`) is hidden from the model.
Rule 3: a complaint names the function, the parameter, and what to do.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import is_dataclass
from enum import Enum
from types import NoneType, SimpleNamespace, UnionType
from typing import Annotated, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from antiphon.core.errors import UsageError
from antiphon.core.words import shown, told

CHANNEL, CONTEXT, IDEMPOTENCY_KEY = "channel", "context", "idempotency_key"
INJECTED = (CHANNEL, CONTEXT, IDEMPOTENCY_KEY)

NO_DEFAULT = inspect.Parameter.empty
REFUSED = {
    inspect.Parameter.POSITIONAL_ONLY: "a model gives arguments by name: leave out the '/' after it",
    inspect.Parameter.VAR_POSITIONAL: "a model gives arguments by name: take a list instead",
    inspect.Parameter.VAR_KEYWORD: "a model must be told every name: take a dict instead",
}

Function = Callable[..., object]  # type: ignore[explicit-any]  # a tool may have any parameters
"""A function that can be a tool, sync or async."""


class Visible(msgspec.Struct, frozen=True):
    """A parameter that the model fills."""

    hint: object
    """`object`, if it has none."""
    default: object = NO_DEFAULT


class Signature(msgspec.Struct, frozen=True):
    """The parameters of a function, told apart."""

    visible: Mapping[str, Visible] = msgspec.field(default_factory=dict)
    injected: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Which parameter is given what by the runtime."""


def signature_of(function: Function) -> Signature:
    """What the function takes; `UsageError` if no model could call it."""
    name = name_of(function)
    visible: dict[str, Visible] = {}
    injected: dict[str, str] = {}
    for parameter in _parameters(function, name):
        hint = _hint(function, parameter, name)
        given = _given(parameter.name, hint)
        if given:
            injected[parameter.name] = given
        else:
            visible[parameter.name] = Visible(hint, parameter.default)
    return Signature(visible, injected)


def name_of(function: Function) -> str:
    """What the function is called, or its class."""
    name = getattr(plain(function), "__name__", "") if not _is_instance(function) else type(function).__name__
    return name if isinstance(name, str) else ""


def plain(function: Function) -> Function:
    """The function itself, without what is wrapped around it."""
    if isinstance(function, functools.partial):
        return plain(function.func)
    own: Function = inspect.unwrap(type(function).__call__ if _is_instance(function) else function)
    return own


def _is_instance(function: Function) -> bool:
    """Whether it is an object of a class that can be called, such as `Search(index)`."""
    return not isinstance(function, functools.partial) and not hasattr(function, "__name__")


def _parameters(function: Function, name: str) -> list[inspect.Parameter]:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (ValueError, TypeError) as error:
        raise UsageError(f"{name}() does not tell its parameters; wrap it in a function of your own") from error
    preset = function.keywords if isinstance(function, functools.partial) else {}
    for parameter in parameters:
        if parameter.kind in REFUSED:
            written = str(parameter.replace(annotation=NO_DEFAULT, default=NO_DEFAULT))
            raise UsageError(f"the parameter {written!r} of {name}(): {REFUSED[parameter.kind]}")
    if parameters and parameters[0].name in ("self", "cls"):
        owner = parameters[0].name
        raise UsageError(f"the parameter {owner!r} of {name}(): no model can give it; use tool({owner}.{name})")
    return [parameter for parameter in parameters if parameter.name not in preset]


def _hint(function: Function, parameter: inspect.Parameter, name: str) -> object:
    """The parameter's type. Each is read alone, so that one that cannot be read spoils no other."""
    if parameter.annotation is parameter.empty:
        return object
    holder = SimpleNamespace(__annotations__={parameter.name: parameter.annotation})
    names = getattr(plain(function), "__globals__", {})
    try:
        return get_type_hints(holder, globalns=names, include_extras=True)[parameter.name]
    except Exception as error:  # a hint is anybody's code
        if parameter.name in INJECTED:
            return object  # imported for the type checker only; no model is told of it
        advice = "import what it names, at the top of the module"
        raise UsageError(
            f"the parameter {parameter.name!r} of {name}() has the type {shown(parameter.annotation)}, "
            f"which cannot be read ({told(error)}); {advice}"
        ) from error


def _given(name: str, hint: object) -> str | None:
    """What the runtime gives for this parameter, if it does."""
    kinds = _kinds(hint)
    if name == IDEMPOTENCY_KEY:
        return IDEMPOTENCY_KEY
    if any(getattr(kind, "__injected__", None) == CHANNEL for kind in kinds):
        return CHANNEL
    if name == CHANNEL and not any(_is_json(kind) for kind in kinds):
        return CHANNEL
    if name == CONTEXT and all(_holds_context(kind) for kind in kinds):
        return CONTEXT
    return None


def _kinds(hint: object) -> list[object]:
    """The classes that a hint stands for, None left out."""
    if get_origin(hint) is Annotated:
        return _kinds(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        return [kind for part in get_args(hint) for kind in _kinds(part)]
    if hasattr(hint, "__supertype__"):  # a NewType
        return _kinds(hint.__supertype__)
    kind = get_origin(hint) or hint
    return [] if kind is NoneType else [kind]


def _is_json(kind: object) -> bool:
    if not isinstance(kind, type):
        return kind is Literal
    return issubclass(kind, str | int | float | Enum | Mapping | Sequence | Set)


def _holds_context(kind: object) -> bool:
    """A dict, or a class that nothing is known of. What a model could fill is the model's."""
    if not isinstance(kind, type):
        return kind is not Literal
    record = is_dataclass(kind) or issubclass(kind, msgspec.Struct) or hasattr(kind, "model_validate")
    return issubclass(kind, Mapping) or not (record or _is_json(kind))
