"""Tools: functions that a model may call.

Rule 1: a tool is a frozen value that knows its function, and is called like it.
Rule 2: what it promises about being called twice is declared, not guessed: `keyed`, `natural` or `unsafe`.
Rule 3: a mistake is found where the tool is declared, and told with the value and the fix.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Generic, Literal, ParamSpec, TypedDict, TypeVar, Unpack, cast, overload
from weakref import WeakKeyDictionary

import msgspec

from antiphon.agents.docstring import read
from antiphon.agents.messages import ToolSpec
from antiphon.agents.schema import check_hints, schema_of, struct_of, text_patterns_of
from antiphon.agents.signature import IDEMPOTENCY_KEY, Function, Signature, name_of, plain, signature_of
from antiphon.agents.text_patterns import TextPatterns
from antiphon.core.errors import UsageError
from antiphon.core.events import Json
from antiphon.core.words import shown, storable

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)

Idempotency = Literal["keyed", "natural", "unsafe"]
"""What a second call does: nothing, the key tells (`keyed`); the same again (`natural`); harm (`unsafe`)."""

CLASSES = ("keyed", "natural", "unsafe")
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
TIMEOUT = 60.0
NO_PATTERNS = TextPatterns()


class ToolOptions(TypedDict, total=False):
    """How a function is to be a tool."""

    name: str | None
    """What a model calls it; the function's name, if not given."""
    description: str | None
    """What a model is told of it; the docstring's first part, if not given."""
    return_direct: bool
    """Whether what it returns is the answer of the turn, without asking the model again."""
    timeout: float | None
    """The seconds a call may take; None for no limit of its own."""
    idempotency: Idempotency | None
    """`keyed` if the function takes an `idempotency_key`, else `natural`, if not given."""
    reconcile: Function | None
    """For an `unsafe` tool: finds out whether a call took effect. Returns its result, or NOT_DONE."""
    compensate: str | None
    """The name of the tool that undoes this one."""


DEFAULTS: ToolOptions = {
    "name": None,
    "description": None,
    "return_direct": False,
    "timeout": TIMEOUT,
    "idempotency": None,
    "reconcile": None,
    "compensate": None,
}


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class Tool:
    """A function that a model may call. Made by `tool`."""

    name: str
    description: str
    parameters: Json
    """The JSON schema of what the model gives."""
    function: Function
    return_direct: bool
    timeout: float | None
    idempotency: Idempotency
    reconcile: Function | None
    compensate: str | None
    injected: Mapping[str, str]
    """Which parameters are hidden from the model, and what each is given: channel, context or idempotency_key."""
    reconcile_injected: Mapping[str, str]
    """The same, of `reconcile`."""
    arguments: type[msgspec.Struct] | None
    """What the arguments of a model are converted to; None if they are given to the function as they come."""
    text_patterns: TextPatterns = NO_PATTERNS
    """The patterns that texts among the arguments must match."""
    source: str = ""
    """The server that offers it; empty if it is a function of yours."""

    def __repr__(self) -> str:
        return f"<tool {self.name}>"

    @property
    def spec(self) -> ToolSpec:
        """The tool as a model is told of it."""
        return ToolSpec(self.name, self.description, self.parameters)


class ToolOf(Tool, Generic[P, R_co]):
    """A tool that is called like its function."""

    __slots__ = ()

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        return cast("R_co", self.function(*args, **kwargs))

    @property
    def __wrapped__(self) -> Function:
        return self.function


@overload
def tool(function: Callable[P, R_co], /, **options: Unpack[ToolOptions]) -> ToolOf[P, R_co]: ...
@overload
def tool(**options: Unpack[ToolOptions]) -> Callable[[Callable[P, R_co]], ToolOf[P, R_co]]: ...
def tool(
    function: Callable[P, R_co] | None = None, /, **options: Unpack[ToolOptions]
) -> ToolOf[P, R_co] | Callable[[Callable[P, R_co]], ToolOf[P, R_co]]:
    """Make a function a tool: `@tool`, `@tool(timeout=5)` or `tool(function, timeout=5)`.

    What a model is told comes from the signature and the docstring. A function no model could call, or an option
    that makes no sense, is refused with `UsageError`.
    """
    _check_options(options)
    settings: ToolOptions = {**DEFAULTS, **options}
    if function is not None:
        return _made(function, settings)
    return lambda decorated: _made(decorated, settings)


def as_tool(function: Tool | Callable[P, R_co]) -> Tool:
    """A tool as it is, and a plain function as the tool that `@tool` makes of it, the same each time."""
    if isinstance(function, Tool):
        return function
    known = _plain_tools.get(function) if isinstance(function, FunctionType) else None
    if known is not None:
        return known
    made = _made(function, DEFAULTS)
    if isinstance(function, FunctionType):
        _plain_tools[function] = made
    return made


def tool_from_schema(
    function: Callable[P, R_co], spec: ToolSpec, *, idempotency: Idempotency, timeout: float | None, source: str = ""
) -> ToolOf[P, R_co]:
    """A tool whose schema is somebody else's: models are told of it as it is.

    The function takes any arguments by name, whatever the names, and checks them itself.
    """
    return ToolOf(
        name=_checked_name(function, spec.name),
        description=storable(spec.description),
        parameters=spec.parameters,
        function=function,
        return_direct=False,
        timeout=timeout,
        idempotency=idempotency,
        reconcile=None,
        compensate=None,
        injected={},
        reconcile_injected={},
        arguments=None,
        source=source,
    )


_plain_tools: WeakKeyDictionary[object, Tool] = WeakKeyDictionary()


def _made(function: Callable[P, R_co], options: ToolOptions) -> ToolOf[P, R_co]:
    _check_function(function)
    name = _checked_name(function, options["name"])
    signature = signature_of(function)
    check_hints(signature.visible, name_of(function))
    doc = read(inspect.getdoc(plain(function)))
    description = options["description"]
    return ToolOf(
        name=name,
        description=doc.description if description is None else storable(description),
        parameters=schema_of(signature.visible, doc.parameters),
        function=function,
        return_direct=options["return_direct"],
        timeout=options["timeout"],
        idempotency=_idempotency(name, signature, options),
        reconcile=options["reconcile"],
        compensate=options["compensate"],
        injected=signature.injected,
        reconcile_injected=_reconcile_injected(name, signature, options),
        arguments=struct_of(signature.visible, name_of(function)),
        text_patterns=text_patterns_of(signature.visible, name_of(function)),
    )


def _check_function(function: object) -> None:
    if isinstance(function, Tool):
        raise UsageError(f"{function.name!r} is a tool already; give its options where it is declared")
    if not callable(function):
        raise UsageError(f"{shown(function)} is no function; write @tool above one, options by name: @tool(name=…)")
    if isinstance(function, type):
        raise UsageError(f"{function.__name__} is a class; give a function that makes what is wanted of it")
    own = plain(function)
    if inspect.isgeneratorfunction(own) or inspect.isasyncgenfunction(own):
        raise UsageError(f"{name_of(function)}() yields; a tool returns one value, such as a list")


def _checked_name(function: Function, name: str | None) -> str:
    given = name_of(function) if name is None else name
    if not isinstance(given, str) or not NAME.match(given):
        advice = "give name=… of 1 to 64 letters, digits, '_' and '-'"
        raise UsageError(f"a tool cannot be called {shown(given)}; {advice}")
    return given


def _idempotency(name: str, signature: Signature, options: ToolOptions) -> Idempotency:
    has_key = IDEMPOTENCY_KEY in signature.injected
    given = options["idempotency"]
    if given is None:
        return "keyed" if has_key else "natural"
    if given == "keyed" and not has_key:
        raise UsageError(
            f"the tool {name!r} is keyed but takes no idempotency_key, and a key that reaches nobody protects nothing; "
            "take the parameter idempotency_key, or declare it 'natural' or 'unsafe'"
        )
    return given


def _reconcile_injected(name: str, signature: Signature, options: ToolOptions) -> Mapping[str, str]:
    reconcile = options["reconcile"]
    if reconcile is None:
        return {}
    if options["idempotency"] != "unsafe":
        given = shown(options["idempotency"])
        raise UsageError(
            f"the tool {name!r} has reconcile= with idempotency={given}; only a call that is unsafe to repeat is "
            "looked up: declare idempotency='unsafe', or leave reconcile out"
        )
    own = signature_of(reconcile)
    if own.visible.keys() != signature.visible.keys():
        wanted, found = (", ".join(each.visible) or "nothing" for each in (signature, own))
        raise UsageError(f"reconcile of the tool {name!r} takes {found}; it must take what the tool takes: {wanted}")
    return own.injected


def _check_options(options: Mapping[str, object]) -> None:
    for option, value in options.items():
        if option not in DEFAULTS:
            raise UsageError(f"a tool has no option {option!r}; there are: {', '.join(DEFAULTS)}")
        wanted = _wanted(option, value)
        if wanted:
            raise UsageError(f"{option} of a tool is {shown(value)}; give {wanted}")


def _wanted(option: str, value: object) -> str | None:
    """What the option should be instead; None if it can be this."""
    match option:
        case "name" | "description" | "compensate":
            return None if value is None or isinstance(value, str) else "a text"
        case "return_direct":
            return None if isinstance(value, bool) else "True or False"
        case "timeout":
            return None if value is None or _is_duration(value) else "seconds above 0, or None for no limit"
        case "idempotency":
            return None if value is None or value in CLASSES else f"one of {', '.join(CLASSES)}"
        case _:
            fits = value is None or (callable(value) and not isinstance(value, Tool | type))
            return None if fits else "a function that takes what the tool takes"


def _is_duration(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0 and math.isfinite(value)
