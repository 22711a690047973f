"""The guards that a channel can name: from the knobs `guards` and `tier` to guards, and back to plain data.

Rule 1: names are closed. A built-in guard cannot be replaced, an unknown name is an error that lists the known.
Rule 2: a guard in a knob is plain data, `{"name": "loop", "window": 5}`: the fields of its class beside the name.
Rule 3: a tier brings its set of guards. One that the knob names takes the place of the tier's own; what it leaves
        open is filled in from the tier.
Rule 4: guards are asked in the order of `BUILT_IN_GUARDS`, then those of users, in the order of the knob.
Rule 5: an error names the guard, the field, and what to give instead, before anything is recorded.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from importlib import import_module
from typing import Literal, Protocol, TypeVar, get_args, runtime_checkable

import msgspec

from antiphon.core.codec import Malformed, as_type, check_json, copy_json, plain_data
from antiphon.core.envelope import Json, spelling_advice
from antiphon.core.errors import RulesInvalid
from antiphon.core.guard import Guard
from antiphon.core.registry import MAX_RULE_NAME_CHARS, accepts_arguments
from antiphon.core.text import describe, describe_error, explain_decode_error
from antiphon.guards.run_limits import HopLimit

Tier = Literal["interactive", "batch", "regulated"]
"""How much is at stake: a person waits for the answer; no person waits; or a mistake cannot be undone."""
TIERS: tuple[Tier, ...] = get_args(Tier)
G = TypeVar("G", bound=type)

BUILT_IN_GUARDS: dict[str, tuple[str, str]] = {
    "hop_limit": ("antiphon.guards.run_limits", "HopLimit"),
    "depth_limit": ("antiphon.guards.run_limits", "DepthLimit"),
    "turn_limit": ("antiphon.guards.run_limits", "TurnLimit"),
    "spawn_limit": ("antiphon.guards.run_limits", "SpawnLimit"),
    "deadlines": ("antiphon.guards.deadlines", "Deadlines"),
    "budget": ("antiphon.guards.budget", "Budget"),
    "cost_velocity": ("antiphon.guards.cost_velocity", "CostVelocityMonitor"),
    "policy": ("antiphon.guards.access_policy", "AccessPolicy"),
    "gate": ("antiphon.guards.gate_guard", "GateGuard"),
    # Before the breaker, which closes a tool to an agent that repeats itself: the loop ends the turn all the same.
    "loop": ("antiphon.guards.loops", "LoopDetector"),
    "breaker": ("antiphon.guards.breaker", "CircuitBreaker"),
    "retry_budget": ("antiphon.guards.retry_budget", "RetryBudget"),
    "deadlock": ("antiphon.guards.deadlock", "DeadlockMonitor"),
    "saga": ("antiphon.guards.saga", "Saga"),
}
"""The module and class of each built-in guard, in the order in which they are asked. It is loaded when it is named."""
TIER_GUARDS: tuple[str, ...] = (
    "hop_limit",
    "depth_limit",
    "turn_limit",
    "spawn_limit",
    "deadlines",
    "budget",
    "cost_velocity",
    "breaker",
    "retry_budget",
    "loop",
    "deadlock",
)
"""The guards that every tier brings. What differs between tiers is said by each guard's `for_tier`."""

LEDGER_GUARDS: dict[str, tuple[str, str]] = {
    "spend": ("antiphon.guards.spend_ledger", "SpendLedger"),
    "breakers": ("antiphon.guards.breaker", "BreakerLedger"),
    "retries": ("antiphon.guards.retry_budget", "RetryLedger"),
}
"""The module and class of the guard of each ledger of a hub."""

_registered_guards: dict[str, type[Guard]] = {}
_loaded_guards: dict[str, type[Guard]] = {}


@runtime_checkable
class ForTier(Protocol):
    """A guard whose limits depend on the tier."""

    def for_tier(self, tier: Tier) -> Guard:
        """The same guard, with what was left open filled in for this tier."""
        ...


def register_guard(guard: G) -> G:
    """Make a guard available to the knob `guards`, by its name. Usable as a decorator; a built-in name is refused."""
    _check_guard_class(guard)
    name: object = getattr(guard, "name", None)
    if not isinstance(name, str) or not 0 < len(name) <= MAX_RULE_NAME_CHARS:
        wanted = f"give its class a text of 1 to {MAX_RULE_NAME_CHARS} characters"
        raise RulesInvalid(f"the name of the guard {guard.__name__} is {describe(name)}; {wanted}")
    if name in BUILT_IN_GUARDS:
        raise RulesInvalid(f"the guard {name!r} is built in and cannot be replaced")
    known = _registered_guards.get(name)
    if known is not None and (known.__module__, known.__qualname__) != (guard.__module__, guard.__qualname__):
        raise RulesInvalid(f"a guard {name!r} is registered already: {known.__qualname__}")
    _registered_guards[name] = guard
    return guard


def find_guard(name: object) -> type[Guard]:
    """The class of this name."""
    if isinstance(name, str) and name in BUILT_IN_GUARDS:
        if name not in _loaded_guards:
            module, kind = BUILT_IN_GUARDS[name]
            _loaded_guards[name] = getattr(import_module(module), kind)
        return _loaded_guards[name]
    found = _registered_guards.get(name) if isinstance(name, str) else None
    if found is None:
        known = [*BUILT_IN_GUARDS, *_registered_guards]
        advice = spelling_advice(name, known) if isinstance(name, str) else None
        raise RulesInvalid(f"no guard is called {describe(name)}; {advice or 'there are: ' + ', '.join(known)}")
    return found


def check_tier(tier: object) -> Tier | None:
    """The tier of the knob `tier`; `RulesInvalid` if there is none of this name."""
    found = next((each for each in TIERS if each == tier), None)
    if tier is not None and found is None:
        raise RulesInvalid(f"no tier is called {describe(tier)}; there are: {', '.join(TIERS)}")
    return found


def guards_of(knobs: Json) -> list[Guard]:
    """The guards of a channel with these knobs, in the order in which they are asked."""
    tier = check_tier(knobs.get("tier"))
    named = [guard_from_data(entry) for entry in _entries_of(knobs)]
    _check_named_once(named)
    if tier is not None:
        given = {_guard_key(guard) for guard in named}
        usual = [find_guard(name)() for name in TIER_GUARDS]
        named += [guard for guard in usual if _guard_key(guard) not in given]
        named = [guard.for_tier(tier) if isinstance(guard, ForTier) else guard for guard in named]
    order = {name: place for place, name in enumerate(BUILT_IN_GUARDS)}
    return sorted(named, key=lambda guard: order.get(guard.name, len(order)))


def inherit_guards(above: Json, own: Json) -> Json:
    """The knobs `guards` and `tier` of the channel of a task: what holds above holds in it, too.

    `own` are the knobs of the agent's own threads. Of two guards of one name and scope that of above counts.
    """
    entries = [*_entries_of(above)]
    known = {_guard_key(guard_from_data(entry)) for entry in entries}
    entries += [entry for entry in _entries_of(own) if _guard_key(guard_from_data(entry)) not in known]
    tier = above.get("tier", own.get("tier"))
    return {**({"guards": copy_json(entries)} if entries else {}), **({} if tier is None else {"tier": tier})}


def ledger_guards(knobs: Json) -> list[Guard]:
    """The guards of a system channel with these knobs: that of a ledger, if it is one."""
    name = knobs.get("ledger")
    if not isinstance(name, str) or name not in LEDGER_GUARDS:
        return []
    module, kind = LEDGER_GUARDS[name]
    return [getattr(import_module(module), kind)()]


def hop_limit_of(knobs: Json) -> HopLimit:
    """The limit of handoffs in a channel with these knobs."""
    return next((guard for guard in guards_of(knobs) if isinstance(guard, HopLimit)), HopLimit())


def guard_from_data(entry: object) -> Guard:
    """The guard that an entry of the knob stands for."""
    if isinstance(entry, str):
        entry = {"name": entry}
    if not isinstance(entry, dict):
        raise RulesInvalid(f"guards holds {describe(entry)}; give a guard, its name, or a dict with name and fields")
    if "name" not in entry:
        raise RulesInvalid(f"guards holds {describe(entry)}, which has no name; give {{'name': …}} and its fields")
    kind = find_guard(entry["name"])
    args = {key: value for key, value in entry.items() if key != "name"}
    known = _field_names(kind)
    strange = next((key for key in args if key not in known), None)
    if strange is not None:
        there = ", ".join(known) or "no fields"
        raise RulesInvalid(f"the guard {kind.name!r} has no field {describe(strange)}; it has: {there}")
    try:
        return as_type(args, kind) if known else kind()
    except RulesInvalid:
        raise
    except Malformed as error:
        plain = f"the guard {kind.name!r}: {explain_decode_error(str(error))}, in {describe(args)}"
        raise RulesInvalid(_own_complaint(kind, args) or plain) from error
    except Exception as error:  # of a class of a user
        raise RulesInvalid(
            f"no guard {kind.name!r} can be made of {describe(args)}: {describe_error(error)}"
        ) from error


def _own_complaint(kind: type[Guard], args: Json) -> str | None:
    """What the class of a guard says of values of wrong types: what to give instead. None if it says nothing.

    Lists and dicts, which hold objects in Python, are left out.
    """
    try:
        kind(**{key: value for key, value in args.items() if not isinstance(value, list | dict)})
    except RulesInvalid as refused:
        return str(refused)
    except Exception:  # of a class of a user
        return None
    return None


def guard_to_data(guard: object) -> object:
    """A guard as an entry of the knob. Anything else is given back as it is, for `guards_of` to complain about."""
    name = getattr(type(guard), "name", None)
    if isinstance(guard, str | dict) or not isinstance(name, str):
        return guard
    if find_guard(name) is not type(guard):
        raise RulesInvalid(f"{describe(guard)} is called {name!r}, but another class is registered under that name")
    data = {"name": name, **{field: getattr(guard, field) for field in _field_names(type(guard))}}
    try:
        plain = plain_data(data)
        check_json(plain)
    except (Malformed, TypeError) as error:
        raise RulesInvalid(f"the guard {name!r} cannot be written down: {error}") from error
    return plain


def guards_to_data(guards: object) -> object:
    """The knob `guards` as plain data."""
    return [guard_to_data(each) for each in guards] if isinstance(guards, list | tuple) else guards


def _entries_of(knobs: Json) -> Sequence[object]:
    entries = knobs.get("guards")
    if entries is None:
        return ()
    if not isinstance(entries, list):
        raise RulesInvalid(f"guards is {describe(entries)}; give a list of guards")
    return entries


def _check_named_once(guards: Sequence[Guard]) -> None:
    """Two of one name would each count for itself. Those with a scope differ by it."""
    seen: set[tuple[str, object]] = set()
    for guard in guards:
        key = _guard_key(guard)
        if key in seen:
            raise RulesInvalid(f"guards names {guard.name!r} twice; name it once")
        seen.add(key)


def _guard_key(guard: Guard) -> tuple[str, object]:
    """What tells guards of a channel apart: the name, and the scope if there are several."""
    return guard.name, getattr(guard, "scope", None)


def _field_names(kind: type) -> tuple[str, ...]:
    if issubclass(kind, msgspec.Struct):
        return tuple(kind.__struct_fields__)
    return tuple(field.name for field in fields(kind) if field.init) if is_dataclass(kind) else ()


OPINIONS = {
    "evolve": ("memory", "envelope"),
    "judge": ("memory", "state", "draft"),
    "permit": ("memory", "state", "draft"),
    "notice": ("memory", "state", "envelope"),
    "ask": ("memory", "state", "draft"),
    "settle": ("memory", "state", "outcome"),
    "answer": ("memory", "state", "offer"),
    "review": ("memory", "state", "decision"),
    "due": ("memory", "state"),
    "decide_before": ("memory", "state", "turn_id"),
}


def _check_guard_class(guard: object) -> None:
    """`RulesInvalid` if no channel could have this guard."""
    if not isinstance(guard, type):
        raise RulesInvalid(f"{describe(guard)} is no class; give the class of the guard, not an instance of it")
    if not isinstance(getattr(guard, "name", None), str):
        raise RulesInvalid(f"the guard {guard.__name__} has no name; give its class name: ClassVar[str]")
    if not any(callable(getattr(guard, opinion, None)) for opinion in OPINIONS):
        raise RulesInvalid(f"the guard {guard.__name__} has no opinion; give it one of: {', '.join(OPINIONS)}")
    for opinion, arguments in OPINIONS.items():
        _check_opinion(guard, opinion, arguments)
    if hasattr(guard, "evolve") != hasattr(guard, "memory"):
        raise RulesInvalid(f"the guard {guard.__name__} needs both evolve and memory, the type of what it remembers")
    hears = getattr(guard, "hears", None)
    if hears is not None and not isinstance(hears, frozenset):
        raise RulesInvalid(f"hears of the guard {guard.__name__} is {describe(hears)}; give a frozenset of event types")


def _check_opinion(guard: type, opinion: str, arguments: tuple[str, ...]) -> None:
    method = getattr(guard, opinion, None)
    if not callable(method):  # a field of that name is no opinion
        return
    if inspect.iscoroutinefunction(method):
        raise RulesInvalid(f"{opinion} of the guard {guard.__name__} is async; a guard waits for nothing")
    unbound = not isinstance(inspect.getattr_static(guard, opinion), staticmethod | classmethod)
    if not accepts_arguments(method, len(arguments) + unbound):
        raise RulesInvalid(f"the guard {guard.__name__} needs {opinion}(self, {', '.join(arguments)})")
