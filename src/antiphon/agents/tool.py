"""Tools: functions that a model may call.

Rule 1: a tool is a frozen value that knows its function, and is called like it.
Rule 2: what it promises about being called twice is declared, not guessed: `keyed`, `natural` or `unsafe`.
Rule 3: a mistake is found where the tool is declared, and reported with the value and the fix.
Rule 4: the arguments that a model gives are bound to the parameters as they are: "7" is not 7.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import FunctionType
from typing import Generic, ParamSpec, TypeVar, Unpack, cast, overload
from weakref import WeakKeyDictionary

import msgspec

from antiphon.agents.call_results import EMPTY_ARGUMENTS, Call, ToolResult, failed_result
from antiphon.agents.messages import ToolSpec
from antiphon.agents.signature import (
    INJECT_IDEMPOTENCY_KEY,
    Signature,
    ToolFunction,
    function_name,
    parse_docstring,
    signature_of,
    unwrap_function,
)
from antiphon.agents.tool_options import (
    DEFAULT_TOOL_OPTIONS,
    NO_PROTECTIONS,
    Idempotency,
    ToolOptions,
    ToolProtections,
    check_tool_options,
    compensation_name,
    protections_of,
)
from antiphon.agents.type_schemas import (
    TextPatterns,
    arguments_struct,
    check_hints,
    decode_hook,
    schema_of,
    text_patterns_of,
)
from antiphon.core.codec import copy_json, same_json
from antiphon.core.envelope import Json
from antiphon.core.errors import UsageError
from antiphon.core.linear_regex import TooMuchWork
from antiphon.core.text import MAX_ERROR_CHARS, describe, describe_error, explain_decode_error, sanitize

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)

TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class Tool:
    """A function that a model may call. Made by `tool`."""

    name: str
    description: str
    parameters: Json
    """The JSON schema of what the model gives."""
    function: ToolFunction
    return_direct: bool = False
    timeout: float | None
    idempotency: Idempotency
    reconcile: ToolFunction | None = None
    compensate: str | None = None
    """The name of the tool that undoes it."""
    compensation: Tool | None = None
    """The tool that undoes it, if it was given itself."""
    protections: ToolProtections = NO_PROTECTIONS
    injected: Mapping[str, str] = field(default_factory=dict)
    """Which parameters are hidden from the model, and what each is given: channel, context or idempotency_key."""
    reconcile_injected: Mapping[str, str] = field(default_factory=dict)
    """The same, of `reconcile`."""
    arguments: type[msgspec.Struct] | None = None
    """What the arguments of a model are converted to; None if they are given to the function as they come."""
    text_patterns: TextPatterns | None = None
    """The patterns that texts among the arguments must match; None if there is none."""
    source: str = ""
    """The server that offers it; empty if it is a user-defined function."""

    def __repr__(self) -> str:
        return f"<tool {self.name}>"

    @property
    def is_accounted(self) -> bool:
        """Whether it matters later if a call may have taken effect."""
        return self.compensate is not None or bool(self.protections.once)

    @property
    def changes_state(self) -> bool:
        """Whether a call of it takes effect somewhere that a second call would take again."""
        return self.idempotency in ("keyed", "unsafe")

    @property
    def spec(self) -> ToolSpec:
        """The tool as a model sees it."""
        return ToolSpec(self.name, self.description, self.parameters)


class ToolOf(Tool, Generic[P, R_co]):
    """A tool that is called like its function."""

    __slots__ = ()

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        return cast("R_co", self.function(*args, **kwargs))

    @property
    def __wrapped__(self) -> ToolFunction:
        return self.function


@overload
def tool(function: Callable[P, R_co], /, **options: Unpack[ToolOptions]) -> ToolOf[P, R_co]: ...
@overload
def tool(**options: Unpack[ToolOptions]) -> Callable[[Callable[P, R_co]], ToolOf[P, R_co]]: ...
def tool(
    function: Callable[P, R_co] | None = None, /, **options: Unpack[ToolOptions]
) -> ToolOf[P, R_co] | Callable[[Callable[P, R_co]], ToolOf[P, R_co]]:
    """Make a function a tool: `@tool`, `@tool(timeout=5)` or `tool(function, timeout=5)`.

    What a model reads comes from the signature and the docstring. A function no model could call, or an option
    that makes no sense, is refused with `UsageError`.
    """
    check_tool_options(options)
    settings: ToolOptions = {**DEFAULT_TOOL_OPTIONS, **options}
    if function is not None:
        return _make_tool(function, settings)
    return lambda decorated: _make_tool(decorated, settings)


def as_tool(function: Tool | Callable[P, R_co]) -> Tool:
    """A tool as it is, and a plain function as the tool that `@tool` makes of it, the same each time."""
    if isinstance(function, Tool):
        return function
    if not isinstance(function, FunctionType):
        return _make_tool(function, DEFAULT_TOOL_OPTIONS)
    if function not in _plain_tools:
        _plain_tools[function] = _make_tool(function, DEFAULT_TOOL_OPTIONS)
    return _plain_tools[function]


def tool_from_schema(
    function: Callable[P, R_co], spec: ToolSpec, *, idempotency: Idempotency, timeout: float | None, source: str = ""
) -> ToolOf[P, R_co]:
    """A tool with a schema of another origin, which models see as it is.

    The function takes arguments of any name, and checks them itself.
    """
    return ToolOf(
        name=_check_tool_name(function, spec.name),
        description=sanitize(spec.description),
        parameters=spec.parameters,
        function=function,
        timeout=timeout,
        idempotency=idempotency,
        source=source,
    )


_plain_tools: WeakKeyDictionary[object, Tool] = WeakKeyDictionary()


def _make_tool(function: Callable[P, R_co], options: ToolOptions) -> ToolOf[P, R_co]:
    _check_function(function)
    name = _check_tool_name(function, options["name"])
    signature = signature_of(function)
    check_hints(signature.visible, function_name(function))
    doc = parse_docstring(inspect.getdoc(unwrap_function(function)))
    description = options["description"]
    return ToolOf(
        name=name,
        description=doc.description if description is None else sanitize(description),
        parameters=schema_of(signature.visible, doc.parameters),
        function=function,
        return_direct=options["return_direct"],
        timeout=options["timeout"],
        idempotency=_idempotency_class(name, signature, options),
        reconcile=options["reconcile"],
        compensate=compensation_name(options["compensate"]),
        compensation=options["compensate"] if isinstance(options["compensate"], Tool) else None,
        protections=protections_of(name, options, list(signature.visible)),
        injected=signature.injected,
        reconcile_injected=_reconcile_injected(name, signature, options),
        arguments=arguments_struct(signature.visible, function_name(function)),
        text_patterns=text_patterns_of(signature.visible, function_name(function)) or None,
    )


def _check_function(function: object) -> None:
    if isinstance(function, Tool):
        raise UsageError(f"{function.name!r} is a tool already; give its options where it is declared")
    if not callable(function):
        raise UsageError(f"{describe(function)} is no function; write @tool above one, options by name: @tool(name=…)")
    if isinstance(function, type):
        raise UsageError(f"{function.__name__} is a class; give a function that makes what is wanted of it")
    own = unwrap_function(function)
    if inspect.isgeneratorfunction(own) or inspect.isasyncgenfunction(own):
        raise UsageError(f"{function_name(function)}() yields; a tool returns one value, such as a list")


def _check_tool_name(function: ToolFunction, name: str | None) -> str:
    given = function_name(function) if name is None else name
    if not isinstance(given, str) or not TOOL_NAME.match(given):
        advice = "give name=… of 1 to 64 letters, digits, '_' and '-'"
        raise UsageError(f"a tool cannot be called {describe(given)}; {advice}")
    return given


def _idempotency_class(name: str, signature: Signature, options: ToolOptions) -> Idempotency:
    has_key = INJECT_IDEMPOTENCY_KEY in signature.injected
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
        given = describe(options["idempotency"])
        raise UsageError(
            f"the tool {name!r} has reconcile= with idempotency={given}; only a call that is unsafe to repeat is "
            "looked up: declare idempotency='unsafe', or leave reconcile out"
        )
    own = signature_of(reconcile)
    if own.visible.keys() != signature.visible.keys():
        wanted, found = (", ".join(each.visible) or "nothing" for each in (signature, own))
        raise UsageError(f"reconcile of the tool {name!r} takes {found}; it must take what the tool takes: {wanted}")
    return own.injected


class BadArguments(ValueError):
    """The arguments do not fit the tool. The message tells the model what to change."""


def _bad_arguments_error(tool: Tool, why: str) -> BadArguments:
    return BadArguments(sanitize(f"The arguments of {tool.name} do not fit: {why}."))


def _comma_separated(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"


def _explain_misfit(tool: Tool, said: str) -> str:
    sentence = explain_decode_error(said)
    what, _, place = said.rpartition(" - at `$.")
    if not what or sentence != said:
        return sentence[:MAX_ERROR_CHARS]
    place = place.rstrip("`")
    properties = cast("Mapping[str, Mapping[str, Iterable[object]]]", tool.parameters["properties"])
    choices = properties.get(place, {}).get("enum")  # the values that a parameter may have, if they can be counted
    advice = f"; give one of {_comma_separated(map(describe, choices))}" if choices else ""
    return f"{place}: {what[:MAX_ERROR_CHARS]}{advice}"


def _check_parameter_names(tool: Tool, args: Mapping[str, object], fields: tuple[str, ...]) -> None:
    strange = [name for name in args if name not in fields]
    if strange:
        raise _bad_arguments_error(
            tool,
            f"there is no parameter {_comma_separated(map(describe, strange))}; there are: {_comma_separated(fields)}",
        )
    required = cast("list[str]", tool.parameters["required"])
    missing = [name for name in fields if name not in args and name in required]
    if missing:
        raise _bad_arguments_error(tool, f"{_comma_separated(missing)} {'is' if len(missing) == 1 else 'are'} missing")


def bind_arguments(tool: Tool, args: object) -> dict[str, object]:
    """The arguments of a model as the function wants them; `BadArguments` if they do not fit.

    Nothing is read into a value: "7" is not 7, though 7.0 is. What was left out is left out, for the function's own
    default. A tool that has its schema from elsewhere gets what the model gave, and checks it itself.
    """
    if not isinstance(args, dict):
        raise _bad_arguments_error(tool, f"they are {type(args).__name__}, not an object with the names of parameters")
    if tool.arguments is None:
        return copy_json(args)
    _check_parameter_names(tool, args, tool.arguments.__struct_fields__)
    try:
        # What has no type would be the model's own object: the function gets a copy, to do with as it likes.
        plain = msgspec.to_builtins(args)
        filled = _convert_arguments(plain, tool.arguments)
        if tool.text_patterns is not None:
            tool.text_patterns.check(plain)
    except TooMuchWork as error:
        raise _bad_arguments_error(tool, str(error)) from error
    except msgspec.ValidationError as error:
        raise _bad_arguments_error(tool, _explain_misfit(tool, str(error))) from error
    except BaseException as error:  # a user-defined type: not even its SystemExit ends the process
        raise _bad_arguments_error(tool, describe_error(error)) from error
    values = ((name, getattr(filled, name)) for name in tool.arguments.__struct_fields__)
    return {name: value for name, value in values if value is not msgspec.UNSET}


def _convert_arguments(plain: object, kind: type[msgspec.Struct]) -> msgspec.Struct:
    """The arguments as a struct. 1.0 is an integer, as it is for JSON Schema."""
    try:
        return msgspec.convert(plain, kind, str_keys=True, dec_hook=decode_hook)
    except msgspec.ValidationError as error:
        misfit = error
    whole = _with_whole_numbers(plain)
    if not same_json(whole, plain):
        with suppress(msgspec.ValidationError):
            return msgspec.convert(whole, kind, str_keys=True, dec_hook=decode_hook)
    raise misfit


def _with_whole_numbers(value: object) -> object:
    """Plain data with an integer for each number that has no fraction."""
    match value:
        case dict():
            return {name: _with_whole_numbers(each) for name, each in value.items()}
        case list():
            return [_with_whole_numbers(each) for each in value]
        case float() if value.is_integer():
            return int(value)
        case _:
            return value


def filled_arguments(tool: Tool, args: Json) -> Json:
    """A copy of the arguments of a call, with the defaults that the tool's schema tells for what was left out."""
    properties = cast("Mapping[str, object]", tool.parameters.get("properties") or {})
    told = {name: part["default"] for name, part in properties.items() if isinstance(part, dict) and "default" in part}
    return copy_json({**told, **args})


def bind_call(tool: Tool, call: Call) -> dict[str, object]:
    """The arguments of a call as its function wants them; `BadArguments` if they are no JSON object, or do not fit.

    Empty arguments are accepted for a tool without parameters.
    """
    fault = None if call.fault == EMPTY_ARGUMENTS and not tool.parameters.get("properties") else call.fault
    if isinstance(fault, str):
        raise _bad_arguments_error(tool, f"{fault}; write one JSON object")
    return bind_arguments(tool, call.args)


def unknown_tool_result(name: str, known: Iterable[str]) -> ToolResult:
    """The answer to a call of a tool that there is not."""
    return failed_result(f"There is no tool {describe(name)}; there are: {_comma_separated(known)}.")
