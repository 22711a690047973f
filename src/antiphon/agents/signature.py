"""The signature and the docstring of a tool's function: what the model gives, and what the runtime gives.

Rule 1: a mistake is found where the tool is declared, not in the first call. The complaint names the function, the
        parameter, and the fix.
Rule 2: what the runtime gives (`channel`, `context`, `idempotency_key`) is hidden from the model.
Rule 3: a docstring is read in two styles: a Google `Args:` section, and Sphinx `:param name:` lines. The description
        is the text before the first section or field of either.
Rule 4: reading a docstring cannot fail. What is not understood describes nothing.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import is_dataclass
from enum import Enum
from types import NoneType, SimpleNamespace, UnionType
from typing import Annotated, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec

from antiphon.core.errors import UsageError
from antiphon.core.text import describe, describe_error, sanitize

INJECT_CHANNEL, INJECT_CONTEXT, INJECT_IDEMPOTENCY_KEY = "channel", "context", "idempotency_key"
INJECTED_NAMES = (INJECT_CHANNEL, INJECT_CONTEXT, INJECT_IDEMPOTENCY_KEY)

NO_DEFAULT = inspect.Parameter.empty
REFUSED_PARAMETER_KINDS = {
    inspect.Parameter.POSITIONAL_ONLY: "a model gives arguments by name: leave out the '/' after it",
    inspect.Parameter.VAR_POSITIONAL: "a model gives arguments by name: take a list instead",
    inspect.Parameter.VAR_KEYWORD: "a model must be told every name: take a dict instead",
}

ToolFunction = Callable[..., object]  # type: ignore[explicit-any]  # a tool may have any parameters
"""A function that can be a tool, sync or async."""


class VisibleParameter(msgspec.Struct, frozen=True):
    """A parameter that the model fills."""

    hint: object
    """`object`, if it has none."""
    default: object = NO_DEFAULT


class Signature(msgspec.Struct, frozen=True):
    """The parameters of a function, told apart."""

    visible: Mapping[str, VisibleParameter] = msgspec.field(default_factory=dict)
    injected: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Which parameter is given what by the runtime."""


def signature_of(function: ToolFunction) -> Signature:
    """What the function takes; `UsageError` if no model could call it."""
    name = function_name(function)
    visible: dict[str, VisibleParameter] = {}
    injected: dict[str, str] = {}
    for parameter in _signature_parameters(function, name):
        hint = _type_hint(function, parameter, name)
        given = _injected_kind(parameter.name, hint)
        if given:
            injected[parameter.name] = given
        else:
            visible[parameter.name] = VisibleParameter(hint, parameter.default)
    return Signature(visible, injected)


def function_name(function: ToolFunction) -> str:
    """What the function is called, or its class."""
    name = getattr(unwrap_function(function), "__name__", "") if not _is_instance(function) else type(function).__name__
    return name if isinstance(name, str) else ""


def unwrap_function(function: ToolFunction) -> ToolFunction:
    """The function itself, without what is wrapped around it."""
    if isinstance(function, functools.partial):
        return unwrap_function(function.func)
    own: ToolFunction = inspect.unwrap(type(function).__call__ if _is_instance(function) else function)
    return own


def _is_instance(function: ToolFunction) -> bool:
    """Whether it is an object of a class that can be called, such as `Search(index)`."""
    return not isinstance(function, functools.partial) and not hasattr(function, "__name__")


def _signature_parameters(function: ToolFunction, name: str) -> list[inspect.Parameter]:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (ValueError, TypeError) as error:
        raise UsageError(f"{name}() does not tell its parameters; wrap it in a function of your own") from error
    preset = function.keywords if isinstance(function, functools.partial) else {}
    for parameter in parameters:
        if parameter.kind in REFUSED_PARAMETER_KINDS:
            written = str(parameter.replace(annotation=NO_DEFAULT, default=NO_DEFAULT))
            raise UsageError(f"the parameter {written!r} of {name}(): {REFUSED_PARAMETER_KINDS[parameter.kind]}")
    if parameters and parameters[0].name in ("self", "cls"):
        owner = parameters[0].name
        raise UsageError(f"the parameter {owner!r} of {name}(): no model can give it; use tool({owner}.{name})")
    return [parameter for parameter in parameters if parameter.name not in preset]


def _type_hint(function: ToolFunction, parameter: inspect.Parameter, name: str) -> object:
    """The parameter's type. Each is read alone, so that one that cannot be read spoils no other."""
    if parameter.annotation is parameter.empty:
        return object
    holder = SimpleNamespace(__annotations__={parameter.name: parameter.annotation})
    names = getattr(unwrap_function(function), "__globals__", {})
    try:
        return get_type_hints(holder, globalns=names, include_extras=True)[parameter.name]
    except Exception as error:  # a hint is anybody's code
        if parameter.name in INJECTED_NAMES:
            return object  # imported for the type checker only; no model sees it
        advice = "import what it names, at the top of the module"
        raise UsageError(
            f"the parameter {parameter.name!r} of {name}() has the type {describe(parameter.annotation)}, "
            f"which cannot be read ({describe_error(error)}); {advice}"
        ) from error


def _injected_kind(name: str, hint: object) -> str | None:
    """What the runtime gives for this parameter, if it does."""
    kinds = _hint_classes(hint)
    if name == INJECT_IDEMPOTENCY_KEY:
        return INJECT_IDEMPOTENCY_KEY
    if any(getattr(kind, "__injected__", None) == INJECT_CHANNEL for kind in kinds):
        return INJECT_CHANNEL
    if name == INJECT_CHANNEL and not any(_is_json_class(kind) for kind in kinds):
        return INJECT_CHANNEL
    if name == INJECT_CONTEXT and all(_holds_context(kind) for kind in kinds):
        return INJECT_CONTEXT
    return None


def _hint_classes(hint: object) -> list[object]:
    """The classes that a hint stands for, None left out."""
    if get_origin(hint) is Annotated:
        return _hint_classes(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        return [kind for part in get_args(hint) for kind in _hint_classes(part)]
    if hasattr(hint, "__supertype__"):  # a NewType
        return _hint_classes(hint.__supertype__)
    kind = get_origin(hint) or hint
    return [] if kind is NoneType else [kind]


def _is_json_class(kind: object) -> bool:
    if not isinstance(kind, type):
        return kind is Literal
    return issubclass(kind, str | int | float | Enum | Mapping | Sequence | Set)


def _holds_context(kind: object) -> bool:
    """A dict, or a class that nothing is known of. What a model could fill is the model's."""
    if not isinstance(kind, type):
        return kind is not Literal
    record = is_dataclass(kind) or issubclass(kind, msgspec.Struct) or hasattr(kind, "model_validate")
    return issubclass(kind, Mapping) or not (record or _is_json_class(kind))


ARGS_HEADER = r"(Args|Arguments|Parameters|Params):\s*\Z"
SECTION_HEADER = r"(Args|Arguments|Parameters|Params|Returns?|Yields?|Raises):\s*\Z"
SPHINX_FIELD = r":(param|parameter|arg|argument|key|keyword|type|returns?|rtype|raises?|yields?)\b[^:]*:"
SPHINX_PARAM = r":(?:param|parameter|arg|argument|key|keyword)\s+(?:[^:]*\s)?(?P<name>\w+)\s*:\s*(?P<text>.*)"
ARGS_ENTRY = r"(?P<name>\w+)\s*(?:\(.*?\))?\s*:\s*(?P<text>.*)"


class ParsedDocstring(NamedTuple):
    """A docstring, read."""

    description: str
    parameters: dict[str, str]


def parse_docstring(docstring: str | None) -> ParsedDocstring:
    """What the docstring says; nothing, of a function without one."""
    lines = inspect.cleandoc(sanitize(docstring or "")).splitlines()
    end = next(
        (at for at, line in enumerate(lines) if re.match(SECTION_HEADER, line) or re.match(SPHINX_FIELD, line)),
        len(lines),
    )
    return ParsedDocstring("\n".join(lines[:end]).strip(), dict(_documented_parameters(lines[end:])))


def _documented_parameters(lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    for at, line in enumerate(lines):
        if re.match(ARGS_HEADER, line):
            yield from _args_entries(lines[at + 1 :])
        elif found := re.match(SPHINX_PARAM, line):
            yield found["name"], _join_words([found["text"], *_indented_lines(lines[at + 1 :], 0)])


def _args_entries(lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The entries of an `Args:` section. All begin as far in as the first; what is further in goes on."""
    section = _indented_lines(lines, 0)
    inset = next((_indent_of(line) for line in section if line), 0)
    for at, line in enumerate(section):
        found = re.match(ARGS_ENTRY, line.strip()) if _indent_of(line) == inset else None
        if found:
            yield found["name"], _join_words([found["text"], *_indented_lines(section[at + 1 :], inset)])


def _indented_lines(lines: Iterable[str], inset: int) -> list[str]:
    """The lines up to the first one that is not further in than this."""
    found: list[str] = []
    for line in lines:
        if line and _indent_of(line) <= inset:
            break
        found.append(line)
    return found


def _indent_of(line: str) -> int:
    return len(line) - len(line.lstrip())


def _join_words(lines: Iterable[str]) -> str:
    return " ".join(word for line in lines for word in line.split())
