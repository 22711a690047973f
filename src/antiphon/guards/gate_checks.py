"""The checks that gates name: functions of the program for invariants and grounding, by name.

Rule 1: names are closed: an unknown one is an error that lists the known, and a name stays with its function.
Rule 2: a check is given copies. It says True or False, or gives a `CheckResult`. Anything else is an error, and an
        error is no pass.
Rule 3: the text of an exception goes nowhere: it may hold what is checked.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from antiphon.core.codec import copy_json
from antiphon.core.envelope import Json
from antiphon.core.errors import RulesInvalid
from antiphon.core.registry import MAX_RULE_NAME_CHARS, accepts_arguments
from antiphon.core.text import describe


class CheckResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a check says, if True or False is not enough."""

    passed: bool
    code: str = ""
    """Why not, in a stable word. It is recorded, so it holds nothing of the subject."""
    path: str = ""
    """Where, such as `lines[0].price`."""
    confidence: float | None = None
    """How sure the check is, from 0 to 1. The gate compares it with its threshold."""


class CheckFault(msgspec.Struct, frozen=True):
    """A check gave no result."""

    code: str
    """`timeout`, or what went wrong."""


CheckAnswer = CheckResult | CheckFault
GateFunction = Callable[[object, Json], "bool | CheckAnswer | Awaitable[bool | CheckAnswer]"]
"""Called with the subject and the context."""
F = TypeVar("F", bound=GateFunction)


class RegisteredCheck(msgspec.Struct, frozen=True):
    """A check with its name."""

    name: str
    function: GateFunction
    version: str

    @property
    def is_async(self) -> bool:
        """Whether a gate must wait for it."""
        call = getattr(self.function, "__call__", None)  # noqa: B004 - an object may be called through an async method
        return inspect.iscoroutinefunction(self.function) or inspect.iscoroutinefunction(call)


_checks: dict[str, RegisteredCheck] = {}


def register_check(name: str, *, version: str = "1") -> Callable[[F], F]:
    """Make a function available to gates by this name: `@register_check("cites_a_source")`.

    It is called with the subject and the context, and returns True, False or a `CheckResult`. It may be async. Raise
    `version` when it says something else than before: verdicts are recorded with it.
    """
    if not isinstance(name, str) or not 0 < len(name) <= MAX_RULE_NAME_CHARS:
        wanted = f"give a text of 1 to {MAX_RULE_NAME_CHARS} characters"
        raise RulesInvalid(f"the name of a check is {describe(name)}; {wanted}")

    def register(function: F) -> F:
        if not accepts_arguments(function, 2):
            raise RulesInvalid(f"the check {name!r} must take two arguments: (subject, context)")
        known = _checks.get(name)
        if known is not None and not _is_same_function(known.function, function):
            raise RulesInvalid(f"a check {name!r} is registered already: {describe(known.function)}; give another name")
        _checks[name] = RegisteredCheck(name, function, version)
        return function

    return register


def find_check(name: object) -> RegisteredCheck:
    """The check of this name."""
    found = _checks.get(name) if isinstance(name, str) else None
    if found is None:
        known = f"there are: {', '.join(sorted(_checks))}" if _checks else "there are none yet"
        raise RulesInvalid(f"no check is called {describe(name)}; register it with register_check; {known}")
    return found


def name_of_check(check: object) -> str:
    """The name of a registered check, given itself or by its name."""
    if isinstance(check, str):
        return find_check(check).name
    found = next((each.name for each in _checks.values() if each.function == check), None)
    if found is None:
        raise RulesInvalid(f"{describe(check)} is no registered check; register it with register_check")
    return found


class CheckCall(msgspec.Struct, frozen=True):
    """A check that is to be made now, of copies."""

    name: str
    function: GateFunction
    subject: object
    context: Json
    seconds: float
    """How long it may take."""

    def begin(self) -> object:
        """Call the function. What it gives is its answer, or something to wait for."""
        return self.function(copy_json(self.subject), copy_json(self.context))


def read_answer(given: object) -> CheckAnswer:
    """What a function returned, as an answer."""
    if isinstance(given, CheckFault) or (isinstance(given, CheckResult) and isinstance(given.passed, bool)):
        return given
    if isinstance(given, bool):
        return CheckResult(given)
    return CheckFault("no_verdict")


def fault_of(error: Exception) -> CheckFault:
    """The answer of a function that raised."""
    return CheckFault(f"raised:{type(error).__name__}")


def _is_same_function(one: object, other: object) -> bool:
    """Whether two functions are the same. A module that is loaded again defines its functions again."""
    if one is other or one == other:
        return True
    names = [(getattr(each, "__module__", None), getattr(each, "__qualname__", None)) for each in (one, other)]
    return names[0] == names[1] and None not in names[0] and "<locals>" not in str(names[0][1])
