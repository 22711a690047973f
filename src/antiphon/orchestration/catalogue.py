"""The catalogue of channel types: from a channel's type and knobs to its ruleset.

Rule 1: names are closed. A built-in adapter cannot be replaced, an unknown name is an error that lists the known.
Rule 2: knobs and expectations are checked before a channel is created; nothing of it is found out later.
Rule 3: a mistake in a user-defined adapter is found when its class is registered, not in the first channel.
Rule 4: an error names the adapter or knob, what is wrong with it, and what to give instead.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from importlib import import_module
from math import inf
from typing import get_args

from antiphon.core.approval_rules import APPROVAL_KNOBS, approval_rules
from antiphon.core.codec import Malformed, as_type
from antiphon.core.envelope import ERASED, Json
from antiphon.core.errors import AntiphonError, RulesInvalid
from antiphon.core.event_data import data_of
from antiphon.core.events import EV_CHANNEL_OPENED, RESERVED_PREFIXES, SENDABLE_TYPES
from antiphon.core.guard import Guard
from antiphon.core.registry import accepts_arguments
from antiphon.core.ruleset import Adapter, Expectation, Ruleset, Seats, TurnEnd
from antiphon.core.text import describe, describe_error, explain_decode_error
from antiphon.guards.approval_deadlines import approval_deadlines
from antiphon.guards.named_guards import check_tier, guards_of, ledger_guards
from antiphon.guards.run_limits import HopLimit
from antiphon.guards.saga import Saga
from antiphon.guards.standard_guards import (
    EXPECTATION_CLOCKS,
    EXPECTATION_HANDLERS,
    ContextWriters,
    ExpectationGuard,
    Membership,
    TimeToLive,
    TurnOrder,
)
from antiphon.orchestration.adapters import (
    ACKS_WITHIN,
    RUNS_WITHIN,
    Consulting,
    Conversation,
    Discussion,
    SystemAdapter,
    ends_in,
    traits_of,
)

EXPECTATION_FIELDS = Expectation.__struct_fields__


def expectations_for(kind: type[Adapter], entries: Iterable[object]) -> list[ExpectationGuard]:
    """The expectations of a channel: those in its knobs, and its adapter's for every name not among them."""
    given = [_read_expectation(entry) for entry in entries]
    named = {expectation.name for expectation in given}
    everything = {expectation.name for expectation in (*given, *kind.expectations)}
    common = [] if ACKS_WITHIN.name in everything else [ACKS_WITHIN]
    if everything.isdisjoint({RUNS_WITHIN.name, "reply_within"}):
        common.append(RUNS_WITHIN)
    defaults = [check_expectation(expectation) for expectation in kind.expectations if expectation.name not in named]
    watched = [
        *(ExpectationGuard(expectation, is_default=True) for expectation in defaults),
        *(ExpectationGuard(expectation) for expectation in given),
        *(ExpectationGuard(expectation, is_default=True) for expectation in common),
    ]
    return [within for within in watched if within.expectation.seconds > 0]


def check_expectation(wanted: Expectation) -> Expectation:
    """The expectation, if the hub can watch it; `RulesInvalid` if its name, time or handler means nothing."""
    if wanted.name not in EXPECTATION_CLOCKS:
        raise RulesInvalid(
            f"no expectation is called {describe(wanted.name)}; there are: {', '.join(EXPECTATION_CLOCKS)}"
        )
    if wanted.handler not in EXPECTATION_HANDLERS:
        raise RulesInvalid(
            f"no handler is called {describe(wanted.handler)}; there are: {', '.join(EXPECTATION_HANDLERS)}"
        )
    if not 0 <= wanted.seconds < inf:
        raise RulesInvalid(f"{wanted.name} is given {describe(wanted.seconds)} seconds; 0 switches it off")
    return wanted


def _read_expectation(entry: object) -> Expectation:
    unknown = [field for field in entry if field not in EXPECTATION_FIELDS] if isinstance(entry, dict) else []
    if unknown:
        raise RulesInvalid(
            f"an expectation has no field {describe(unknown[0])}; it has: {', '.join(EXPECTATION_FIELDS)}"
        )
    try:
        return check_expectation(as_type(entry, Expectation))
    except Malformed as error:
        raise RulesInvalid(f"expectation {describe(entry)}: {explain_decode_error(str(error))}") from error


ADAPTER_ATTRIBUTES = {"name": str, "seats": Seats, "ordered": bool, "knobs": frozenset, "expectations": tuple}
ADAPTER_METHODS = {
    "decide": ("memory", "state", "envelope"),
    "evolve": ("memory", "envelope"),
    "recover": ("memory", "state", "failed"),
    "view": ("participants",),
}
TRAIT_ATTRIBUTES = {"packets": bool, "ends_in": str, "reacts": frozenset}


def check_adapter_class(adapter: type[Adapter]) -> None:
    """`RulesInvalid` if no channel could follow this adapter."""
    if not isinstance(adapter, type):
        raise RulesInvalid(f"{describe(adapter)} is no class; give the class itself, not an instance of it")
    for attribute, kind in ADAPTER_ATTRIBUTES.items():
        _check_adapter_attribute(adapter, attribute, kind)
    _check_adapter_traits(adapter)
    _check_seats(adapter)
    _check_adapter_expectations(adapter)
    if not accepts_arguments(adapter, 1):
        raise RulesInvalid(f"the adapter {adapter.__name__} needs a method __init__(self, knobs)")
    _check_adapter_method(adapter, "decide")
    _check_adapter_memory(adapter)


def _check_adapter_attribute(adapter: type[Adapter], attribute: str, kind: type) -> None:
    given = getattr(adapter, attribute, None)
    if given is None:
        raise RulesInvalid(f"the adapter {adapter.__name__} has no {attribute!r}; give a {kind.__name__}")
    if not isinstance(given, kind):
        raise RulesInvalid(
            f"{attribute!r} of the adapter {adapter.__name__} is {describe(given)}; give a {kind.__name__}"
        )


def _check_adapter_traits(adapter: type[Adapter]) -> None:
    """What an adapter may leave out must be right if it is there."""
    for attribute, kind in TRAIT_ATTRIBUTES.items():
        if hasattr(adapter, attribute):
            _check_adapter_attribute(adapter, attribute, kind)
    for method in ("recover", "view"):
        if hasattr(adapter, method):
            _check_adapter_method(adapter, method)
    if ends_in(adapter) not in get_args(TurnEnd):
        given = describe(ends_in(adapter))
        raise RulesInvalid(f"'ends_in' of the adapter {adapter.__name__} is {given}; give 'text' or 'packet'")
    for kind_of_event in getattr(adapter, "reacts", ()):
        _check_reaction(adapter, kind_of_event)


def _check_reaction(adapter: type[Adapter], event_type: object) -> None:
    """An adapter that reacted to its own decisions would never come to an end."""
    ours = isinstance(event_type, str) and event_type.startswith(RESERVED_PREFIXES)
    known = SENDABLE_TYPES | {EV_CHANNEL_OPENED}
    if not isinstance(event_type, str) or (ours and event_type not in known):
        wanted = f"give types of yours, or of these: {', '.join(sorted(known))}"
        raise RulesInvalid(f"the adapter {adapter.__name__} reacts to {describe(event_type)}; {wanted}")


def _check_seats(adapter: type[Adapter]) -> None:
    least, most = adapter.seats.least, adapter.seats.most
    if type(least) is not int or least < 1:
        raise RulesInvalid(
            f"the seats of {adapter.__name__} begin at {describe(least)}; give 1 or more, for the creator"
        )
    if most is not None and (type(most) is not int or most < least):
        wanted = f"give {least} or more, or None for no limit"
        raise RulesInvalid(f"the seats of {adapter.__name__} are {least} to {describe(most)}; {wanted}")


def _check_adapter_expectations(adapter: type[Adapter]) -> None:
    for each in adapter.expectations:
        if not isinstance(each, Expectation):
            raise RulesInvalid(f"the adapter {adapter.__name__} expects {describe(each)}; give an Expectation")
        try:
            check_expectation(as_type(data_of(each), Expectation))
        except (Malformed, RulesInvalid, TypeError) as error:
            raise RulesInvalid(f"an expectation of {adapter.__name__}: {explain_decode_error(str(error))}") from error


def _check_adapter_memory(adapter: type[Adapter]) -> None:
    """A memory without `evolve`, or the other way round, would never be asked."""
    memory, evolve = getattr(adapter, "memory", None), getattr(adapter, "evolve", None)
    if memory is None and evolve is None:
        return
    if memory is None:
        raise RulesInvalid(f"the adapter {adapter.__name__} has evolve but no memory; give the type of its memory")
    if not isinstance(memory, type) or not accepts_arguments(memory, 0):
        raise RulesInvalid(f"the memory of {adapter.__name__} is {describe(memory)}; give a type that memory() makes")
    _check_adapter_method(adapter, "evolve")


def _check_adapter_method(adapter: type[Adapter], name: str) -> None:
    arguments = ADAPTER_METHODS[name]
    unbound = not isinstance(inspect.getattr_static(adapter, name, None), staticmethod | classmethod)
    if not accepts_arguments(getattr(adapter, name, None), len(arguments) + unbound):
        raise RulesInvalid(f"the adapter {adapter.__name__} needs a method {name}(self, {', '.join(arguments)})")


BUILT_IN_ADAPTERS: dict[str, type[Adapter]] = {
    "conversation": Conversation,
    "consulting": Consulting,
    "discussion": Discussion,
}
LAZY_ADAPTERS = {
    "routed": ("antiphon.orchestration.routed", "Routed"),
    "workflow": ("antiphon.orchestration.workflow", "Workflow"),
}
"""Built-in adapters that are loaded when a channel of theirs is."""
SYSTEM_TYPES = frozenset({"system", "quarantine", ERASED})
"""Types that cannot be opened: the hub's own channels, and channels that can only be read."""
COMMON_KNOBS = frozenset({"guards", "tier", "expectations", "interjectors", "writers", *APPROVAL_KNOBS})

_registered_adapters: dict[str, type[Adapter]] = {}


def register_adapter(adapter: type[Adapter]) -> type[Adapter]:
    """Make a channel type available by its name. Usable as a decorator; a built-in name is refused."""
    check_adapter_class(adapter)
    name = adapter.name
    if name in BUILT_IN_ADAPTERS or name in LAZY_ADAPTERS or name in SYSTEM_TYPES:
        raise RulesInvalid(f"the adapter {name!r} is built in and cannot be replaced")
    known = _registered_adapters.get(name)
    if known is not None and (known.__module__, known.__qualname__) != (adapter.__module__, adapter.__qualname__):
        raise RulesInvalid(f"an adapter {name!r} is registered already: {known.__qualname__}")
    _registered_adapters[name] = adapter
    return adapter


def find_adapter(name: str) -> type[Adapter]:
    """The adapter of this name."""
    if isinstance(name, str) and name in LAZY_ADAPTERS and name not in BUILT_IN_ADAPTERS:
        module, adapter = LAZY_ADAPTERS[name]
        BUILT_IN_ADAPTERS[name] = getattr(import_module(module), adapter)
    found = (BUILT_IN_ADAPTERS.get(name) or _registered_adapters.get(name)) if isinstance(name, str) else None
    if found is None:
        known = ", ".join(sorted({*BUILT_IN_ADAPTERS, *LAZY_ADAPTERS, *_registered_adapters}))
        raise RulesInvalid(f"no channel type is called {describe(name)}; there are: {known}")
    return found


def is_checked_at_opening(channel_type: str) -> bool:
    """Whether a channel of this type has rules that are checked when it is opened."""
    return channel_type not in SYSTEM_TYPES and hasattr(find_adapter(channel_type), "check")


def make_ruleset(adapter: Adapter, guards: Sequence[Guard] = ()) -> Ruleset:
    """The ruleset of an adapter and guards, with defaults for what the adapter does not declare."""
    return Ruleset(adapter, guards, traits_of(adapter))


def ruleset_for(channel_type: str, knobs: Json) -> Ruleset:
    """The ruleset of a channel of this type with these knobs."""
    if channel_type in SYSTEM_TYPES:
        return make_ruleset(SystemAdapter(knobs), [Membership(), *ledger_guards(knobs)])
    kind = find_adapter(channel_type)
    _check_knob_names(kind, knobs)
    named = guards_of(knobs)
    adapter = _build_adapter(kind, knobs)
    guards: list[Guard] = [Membership()]
    interjectors = frozenset(_name_list("interjectors", knobs.get("interjectors")))
    if kind.ordered:
        guards.append(TurnOrder(interjectors))
    hop_limits = [guard for guard in named if isinstance(guard, HopLimit)]
    if ends_in(kind) == "packet" and traits_of(adapter).handoffs is None:  # otherwise the adapter limits them itself
        guards += hop_limits or [HopLimit()]
    sagas = [guard for guard in named if isinstance(guard, Saga)]
    guards += [guard for guard in named if guard not in hop_limits and guard not in sagas]
    writers = _writers_by_key(knobs)
    if writers:
        guards.append(ContextWriters(writers))
    guards.append(TimeToLive())
    if not knobs.keys().isdisjoint(("tier", *APPROVAL_KNOBS)):
        guards += approval_deadlines(approval_rules(knobs))
    expected = _check_list("expectations", knobs.get("expectations"), of="expectations")
    guards.extend(expectations_for(kind, expected))
    guards.extend(sagas or [Saga()])  # the last: snapshots of before there were sagas are still used
    return make_ruleset(adapter, guards)


def _build_adapter(kind: type[Adapter], knobs: Json) -> Adapter:
    try:
        return kind(knobs)
    except AntiphonError:
        raise
    except Exception as error:
        raise RulesInvalid(f"no {kind.name!r} can be made of these knobs: {describe_error(error)}") from error


def _check_knob_names(kind: type[Adapter], knobs: Json) -> None:
    known = COMMON_KNOBS | kind.knobs
    for knob in knobs:
        if knob not in known:
            raise RulesInvalid(f"{kind.name!r} takes no knob {describe(knob)}; it takes: {', '.join(sorted(known))}")
    check_tier(knobs.get("tier"))


def _writers_by_key(knobs: Json) -> dict[str, frozenset[str]]:
    given = knobs.get("writers")
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise RulesInvalid(f"writers is {describe(given)}; give a dict from context key to names")
    return {key: frozenset(_name_list(f"writers of {key!r}", names)) for key, names in given.items()}


def _name_list(what: str, given: object) -> list[str]:
    entries = _check_list(what, given, of="names")
    names = [name for name in entries if isinstance(name, str)]
    if len(names) != len(entries):
        raise RulesInvalid(f"{what} is {describe(given)}; give a list of names")
    return names


def _check_list(what: str, given: object, *, of: str) -> Sequence[object]:
    if given is None:
        return []
    if not isinstance(given, list):
        raise RulesInvalid(f"{what} is {describe(given)}; give a list of {of}")
    return given
