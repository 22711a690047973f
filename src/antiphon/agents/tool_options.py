"""The options of a tool, and their checks.

Rule 1: an option that makes no sense is refused where the tool is declared, with the value and the fix.
Rule 2: what guards and people decide by (`ToolProtections`) is declared with the tool.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Literal, Protocol, TypedDict, TypeGuard

import msgspec

from antiphon.agents.signature import ToolFunction
from antiphon.core.envelope import Json
from antiphon.core.errors import UsageError
from antiphon.core.text import describe

Idempotency = Literal["keyed", "natural", "unsafe"]
"""What a second call does: nothing, the key tells (`keyed`); the same again (`natural`); harm (`unsafe`)."""
OnceScope = Literal["channel", "store"]
"""Where a second call with the same values is answered with the first result."""

IDEMPOTENCY_CLASSES = ("keyed", "natural", "unsafe")
ONCE_SCOPES = ("channel", "store")
DEFAULT_TOOL_SECONDS = 60.0
NeedsApproval = bool | Callable[[Json], bool | Awaitable[bool]]
"""Whether a person decides before a call leaves; a function is given the arguments."""
ProgressKey = Callable[[object], str]
"""What a result has reached: equal calls with different keys make progress."""


class NamedTool(Protocol):
    """Another tool, of which only the name is needed."""

    @property
    def name(self) -> str: ...


class Poll(msgspec.Struct, frozen=True):
    """A tool that is called again and again until something has happened: equal calls of it are no loop."""

    max: int = 100
    """How many equal calls may follow each other."""
    min_interval: float = 0.0
    """The seconds that must lie between two of them."""

    def __post_init__(self) -> None:
        if type(self.max) is not int or self.max < 1:
            raise UsageError(f"max of a poll is {describe(self.max)}; give how many equal calls may follow each other")
        if not is_seconds(self.min_interval):
            raise UsageError(f"min_interval of a poll is {describe(self.min_interval)}; give seconds, 0 or more")


class ToolProtections(msgspec.Struct, frozen=True):
    """What guards and people decide by when a tool is called."""

    approval: NeedsApproval = False
    approvers: tuple[str, ...] = ()
    """The people and roles that may decide; empty for those that the channel allows."""
    once: tuple[str, ...] = ()
    """The parameters whose equal values make a call the same; empty if each call is its own."""
    once_scope: OnceScope = "channel"
    volatile: tuple[str, ...] = ()
    """The parameters that do not count when calls are compared, such as a description or a time."""
    unordered: tuple[str, ...] = ()
    """The parameters that are lists whose order does not count."""
    progress_key: ProgressKey | None = None
    poll: Poll | None = None


NO_PROTECTIONS = ToolProtections()


class ToolOptions(TypedDict, total=False):
    """How a function is to be a tool."""

    name: str | None
    """What a model calls it; the function's name, if not given."""
    description: str | None
    """What a model reads of it; the docstring's first part, if not given."""
    return_direct: bool
    """Whether what it returns is the answer of the turn, without asking the model again."""
    timeout: float | None
    """The seconds a call may take; None for no limit of its own."""
    idempotency: Idempotency | None
    """`keyed` if the function takes an `idempotency_key`, else `natural`, if not given."""
    reconcile: ToolFunction | None
    """For an `unsafe` tool: finds out whether a call took effect. Returns its result, or NOT_DONE."""
    compensate: str | NamedTool | None
    """The tool that undoes this one, or its name."""
    approval: NeedsApproval
    """Whether a person decides before a call leaves: True, or a function of the arguments."""
    approvers: Sequence[str]
    """The people and roles that may decide."""
    once: Sequence[str]
    """Parameters: a second call with equal values of these is answered with the first result."""
    once_scope: OnceScope
    """`channel`, or `store` for all channels of the store."""
    volatile: Sequence[str]
    """Parameters that do not count when calls are compared."""
    unordered: Sequence[str]
    """Parameters that are lists whose order does not count when calls are compared."""
    progress_key: ProgressKey | None
    """A function of the result: equal calls with different keys make progress."""
    poll: Poll | None
    """For a tool that is meant to be called again with the same arguments."""


DEFAULT_TOOL_OPTIONS: ToolOptions = {
    "name": None,
    "description": None,
    "return_direct": False,
    "timeout": DEFAULT_TOOL_SECONDS,
    "idempotency": None,
    "reconcile": None,
    "compensate": None,
    "approval": False,
    "approvers": (),
    "once": (),
    "once_scope": "channel",
    "volatile": (),
    "unordered": (),
    "progress_key": None,
    "poll": None,
}

NAME_LISTS = frozenset({"approvers", "once", "volatile", "unordered"})


def check_tool_options(options: Mapping[str, object]) -> None:
    """`UsageError` for an option that there is not, or that cannot be this."""
    for option, value in options.items():
        if option not in DEFAULT_TOOL_OPTIONS:
            raise UsageError(f"a tool has no option {option!r}; there are: {', '.join(DEFAULT_TOOL_OPTIONS)}")
        wanted = _option_advice(option, value)
        if wanted:
            raise UsageError(f"{option} of a tool is {describe(value)}; give {wanted}")


def protections_of(name: str, options: ToolOptions, parameters: Sequence[str]) -> ToolProtections:
    """The protections among the options of the tool of this name."""
    named = {"once": options["once"], "volatile": options["volatile"], "unordered": options["unordered"]}
    for option, names in named.items():
        strange = next((each for each in names if each not in parameters), None)
        if strange is not None:
            there = ", ".join(parameters) or "none"
            raise UsageError(f"{option} of the tool {name!r} names {strange!r}; its parameters are: {there}")
    if options["approvers"] and options["approval"] is False:
        raise UsageError(f"the tool {name!r} has approvers and no approval; give approval=True, or leave approvers out")
    return ToolProtections(
        options["approval"],
        tuple(options["approvers"]),
        tuple(options["once"]),
        options["once_scope"],
        tuple(options["volatile"]),
        tuple(options["unordered"]),
        options["progress_key"],
        options["poll"],
    )


def compensation_name(given: str | NamedTool | None) -> str | None:
    """The name of the tool that undoes another."""
    return given if given is None or isinstance(given, str) else given.name


def _option_advice(option: str, value: object) -> str | None:
    """What the option should be instead; None if it can be this."""
    if option in NAME_LISTS:
        return None if _is_name_list(value) else "a list of names, such as ['order']"
    match option:
        case "name" | "description":
            return None if value is None or isinstance(value, str) else "a text"
        case "compensate":
            fits = value is None or isinstance(value, str) or isinstance(getattr(value, "name", None), str)
            return None if fits else "a tool, or its name"
        case "return_direct":
            return None if isinstance(value, bool) else "True or False"
        case "approval":
            return None if isinstance(value, bool) or _is_function(value) else "True, or a function of the arguments"
        case _:
            return _value_advice(option, value)


def _value_advice(option: str, value: object) -> str | None:
    match option:
        case "timeout":
            fits = value is None or (is_seconds(value) and value > 0)
            return None if fits else "seconds above 0, or None for no limit"
        case "idempotency":
            return None if value is None or value in IDEMPOTENCY_CLASSES else f"one of {', '.join(IDEMPOTENCY_CLASSES)}"
        case "once_scope":
            return None if value in ONCE_SCOPES else f"one of {', '.join(ONCE_SCOPES)}"
        case "poll":
            return None if value is None or isinstance(value, Poll) else "Poll(max=…, min_interval=…)"
        case "progress_key":
            return None if value is None or _is_function(value) else "a function of the result"
        case _:
            return None if value is None or _is_function(value) else "a function that takes what the tool takes"


def _is_name_list(value: object) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(each, str) and each for each in value)


def _is_function(value: object) -> bool:
    return callable(value) and not isinstance(value, type) and not hasattr(value, "idempotency")


def is_seconds(value: object) -> TypeGuard[float]:
    """Whether this is a number of seconds."""
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0 and math.isfinite(value)
