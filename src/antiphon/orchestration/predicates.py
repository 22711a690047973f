"""Predicates of routing rules, by name.

Rule 1: names are closed: an unknown one is an error that lists the known; no code is imported by name.
Rule 2: a name stays with its function. The same function again changes nothing.
Rule 3: a predicate is plain code that answers True or False at once, and is shown copies.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TypeVar, overload

from antiphon.core.codec import Malformed, check_text
from antiphon.core.envelope import Envelope
from antiphon.core.errors import RulesInvalid
from antiphon.core.registry import MAX_RULE_NAME_CHARS, accepts_arguments
from antiphon.core.state import State
from antiphon.core.text import describe
from antiphon.orchestration.conversation import ConversationState
from antiphon.orchestration.plain_rules import list_names

RoutingPredicate = Callable[[Envelope, State, ConversationState], bool]
"""Called with the message, the state of its channel, and the state of the conversation."""
P = TypeVar("P", bound=RoutingPredicate)
LAMBDA_NAME = "<lambda>"


class PredicateRegistry:
    """The predicates that routing rules may name."""

    def __init__(self) -> None:
        self._known: dict[str, RoutingPredicate] = {}

    def register(self, predicate: RoutingPredicate, name: str | None = None) -> None:
        """Make a predicate known by this name, or by its own. Another one of that name is refused."""
        _check_predicate(predicate)
        own = _check_predicate_name(predicate, getattr(predicate, "__name__", None) if name is None else name)
        known = self._known.get(own)
        if known is not None and not _is_same_code(known, predicate):
            raise RulesInvalid(f"a predicate {own!r} is registered already: {describe(known)}; give another name")
        self._known[own] = predicate

    def find(self, name: str) -> RoutingPredicate:
        """The predicate of this name."""
        found = self._known.get(name) if isinstance(name, str) else None
        if found is None:
            known = f"there are: {list_names(sorted(self._known))}" if self._known else "there are none yet"
            raise RulesInvalid(f"no predicate is called {describe(name)}; register it with register_predicate; {known}")
        return found

    def name_of(self, predicate: object) -> str:
        """The name of a registered predicate, given itself or by its name."""
        if isinstance(predicate, str):
            self.find(predicate)
            return str.__str__(predicate)
        # By equality: a method is another object each time it is looked up.
        found = next((name for name, known in self._known.items() if known is predicate or known == predicate), None)
        if found is None:
            raise RulesInvalid(
                f"{describe(predicate)} is no registered predicate; put @register_predicate before its definition, "
                "or call register_predicate(function, name=…)"
            )
        return found


PREDICATES = PredicateRegistry()


@overload
def register_predicate(predicate: P, *, name: str | None = None) -> P: ...


@overload
def register_predicate(predicate: str | None = None, *, name: str | None = None) -> Callable[[P], P]: ...


def register_predicate(predicate: P | str | None = None, *, name: str | None = None) -> P | Callable[[P], P]:
    """Make a predicate available to routing rules, by the name of the function or another one.

    Use it as `@register_predicate`, `@register_predicate("vip")` or `register_predicate(function, name="vip")`.
    """
    if predicate is not None and not isinstance(predicate, str):
        PREDICATES.register(predicate, name)
        return predicate
    if predicate is not None and name is not None:
        raise RulesInvalid(f"the predicate is named twice, {describe(predicate)} and {describe(name)}; give one name")
    given = name if predicate is None else predicate

    def register(function: P) -> P:
        PREDICATES.register(function, given)
        return function

    return register


def _check_predicate(predicate: object) -> None:
    if not callable(predicate) or isinstance(predicate, type):
        raise RulesInvalid(f"{describe(predicate)} is no predicate; give a function of (event, context, state)")
    call = getattr(predicate, "__call__", predicate)  # noqa: B004 - an object may be called through an async method
    if any(_runs_later(each) for each in (predicate, call)):
        raise RulesInvalid(f"the predicate {describe(predicate)} is async or a generator; return True or False at once")
    if not accepts_arguments(predicate, 3):
        raise RulesInvalid(f"the predicate {describe(predicate)} must take three arguments: (event, context, state)")


def _runs_later(call: object) -> bool:
    checks = (inspect.iscoroutinefunction, inspect.isasyncgenfunction, inspect.isgeneratorfunction)
    return any(check(call) for check in checks)


def _check_predicate_name(predicate: object, name: object) -> str:
    if name is None or name == LAMBDA_NAME:
        raise RulesInvalid(
            f"{describe(predicate)} has no name of its own; give one: register_predicate(function, name='vip')"
        )
    if not isinstance(name, str) or not name.strip() or len(name) > MAX_RULE_NAME_CHARS:
        wanted = f"give a text of 1 to {MAX_RULE_NAME_CHARS} characters"
        raise RulesInvalid(f"the name of a predicate is {describe(name)}; {wanted}")
    try:
        check_text(name)
    except Malformed as error:
        raise RulesInvalid(f"the name of a predicate is {describe(name)}: {error}") from error
    return str.__str__(name)


def _is_same_code(one: RoutingPredicate, other: RoutingPredicate) -> bool:
    """Whether two predicates are the same. A module that is loaded again defines its functions again."""
    if one is other or one == other:
        return True
    codes = [getattr(each, "__code__", None) for each in (one, other)]
    if codes[0] is None or codes[0] != codes[1]:
        return False
    return _bindings(one) == _bindings(other)


def _bindings(function: RoutingPredicate) -> tuple[object, ...]:
    fields = ("__module__", "__qualname__", "__defaults__", "__kwdefaults__", "__closure__")
    return tuple(getattr(function, field, None) for field in fields)
