"""From a channel's type and knobs to the laws that hold in it.

Rule 1: names are closed. A built-in adapter cannot be replaced, an unknown name is an error that lists the known.
Rule 2: everything is checked before a channel is created; nothing of it is found out later.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from antiphon.core.erasing import ERASED
from antiphon.core.errors import AntiphonError, RulesInvalid
from antiphon.core.events import Json
from antiphon.core.guard import Guard
from antiphon.core.laws import Laws
from antiphon.core.rules import Adapter
from antiphon.core.words import shown, told
from antiphon.guards.handoffs import MOST_HOPS, HandoffLimit
from antiphon.guards.membership import Membership, TurnOrder
from antiphon.guards.silence import LifeSpan
from antiphon.guards.writers import Writers
from antiphon.orchestration.adapters import Consulting, Conversation, Discussion, Quiet
from antiphon.orchestration.expectations import expectations_for
from antiphon.orchestration.shape import check_shape

BUILT_IN: dict[str, type[Adapter]] = {
    "conversation": Conversation,
    "consulting": Consulting,
    "discussion": Discussion,
}
LATER = {"workflow": ("antiphon.orchestration.workflow", "Workflow")}
"""Built-in adapters that are loaded when a channel of theirs is."""
QUIET = frozenset({"system", "quarantine", ERASED})
"""Types that nobody can open: the hub's own channels, and the laws of a channel that can only be read."""
COMMON_KNOBS = frozenset({"guards", "tier", "expectations", "interjectors", "writers"})
TIERS = ("interactive", "batch", "regulated")

_registered: dict[str, type[Adapter]] = {}


def register_adapter(adapter: type[Adapter]) -> type[Adapter]:
    """Make a channel type available by its name. Usable as a decorator; a built-in name is refused."""
    check_shape(adapter)
    name = adapter.name
    if name in BUILT_IN or name in LATER or name in QUIET:
        raise RulesInvalid(f"the adapter {name!r} is built in and cannot be replaced")
    known = _registered.get(name)
    if known is not None and (known.__module__, known.__qualname__) != (adapter.__module__, adapter.__qualname__):
        raise RulesInvalid(f"an adapter {name!r} is registered already: {known.__qualname__}")
    _registered[name] = adapter
    return adapter


def adapter_named(name: str) -> type[Adapter]:
    """The adapter of this name."""
    if isinstance(name, str) and name in LATER and name not in BUILT_IN:
        module, adapter = LATER[name]
        BUILT_IN[name] = getattr(import_module(module), adapter)
    found = (BUILT_IN.get(name) or _registered.get(name)) if isinstance(name, str) else None
    if found is None:
        known = ", ".join(sorted({*BUILT_IN, *LATER, *_registered}))
        raise RulesInvalid(f"no channel type is called {shown(name)}; there are: {known}")
    return found


def is_checked(channel_type: str) -> bool:
    """Whether a channel of this type has rules that are checked when it is opened."""
    return channel_type not in QUIET and hasattr(adapter_named(channel_type), "check")


def laws_for(channel_type: str, knobs: Json) -> Laws:
    """The laws of a channel of this type with these knobs."""
    if channel_type in QUIET:
        return Laws(Quiet(knobs), [Membership()])
    kind = adapter_named(channel_type)
    _check_names(kind, knobs)
    guards: list[Guard] = [Membership()]
    interjectors = frozenset(_names("interjectors", knobs.get("interjectors")))
    if kind.ordered:
        guards.append(TurnOrder(interjectors))
    if getattr(kind, "packets", False):
        guards.append(HandoffLimit(_hops(knobs)))
    writers = _writers(knobs)
    if writers:
        guards.append(Writers(writers))
    guards.append(LifeSpan())
    expected = _list("expectations", knobs.get("expectations"), of="expectations")
    guards.extend(expectations_for(kind, expected))
    return Laws(_made(kind, knobs), guards)


def _made(kind: type[Adapter], knobs: Json) -> Adapter:
    try:
        return kind(knobs)
    except AntiphonError:
        raise
    except Exception as error:
        raise RulesInvalid(f"no {kind.name!r} can be made of these knobs: {told(error)}") from error


def _check_names(kind: type[Adapter], knobs: Json) -> None:
    known = COMMON_KNOBS | kind.knobs
    for knob in knobs:
        if knob not in known:
            raise RulesInvalid(f"{kind.name!r} takes no knob {shown(knob)}; it takes: {', '.join(sorted(known))}")
    tier = knobs.get("tier")
    if tier is not None and tier not in TIERS:
        raise RulesInvalid(f"no tier is called {shown(tier)}; there are: {', '.join(TIERS)}")
    _hops(knobs)


def _hops(knobs: Json) -> int:
    """How many handoffs may follow each other: the only guard that can be told anything so far."""
    most = MOST_HOPS
    for entry in _list("guards", knobs.get("guards"), of="guards"):
        known = isinstance(entry, dict) and entry.get("name") == HandoffLimit.name and entry.keys() <= {"name", "most"}
        if not isinstance(entry, dict) or not known:
            wanted = f"{{'name': {HandoffLimit.name!r}, 'most': {MOST_HOPS}}}"
            raise RulesInvalid(f"no guard is called {shown(entry)}; there is: {wanted}")
        if len(_list("guards", knobs.get("guards"), of="guards")) > 1:
            raise RulesInvalid(f"guards names {HandoffLimit.name!r} twice; name it once")
        given = entry.get("most", MOST_HOPS)
        if type(given) is not int or given < 0:
            raise RulesInvalid(f"most of {HandoffLimit.name} is {shown(given)}; give a number of handoffs, 0 or more")
        most = given
    return most


def _writers(knobs: Json) -> dict[str, frozenset[str]]:
    given = knobs.get("writers")
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise RulesInvalid(f"writers is {shown(given)}; give a dict from context key to names")
    return {key: frozenset(_names(f"writers of {key!r}", names)) for key, names in given.items()}


def _names(what: str, given: object) -> list[str]:
    entries = _list(what, given, of="names")
    names = [name for name in entries if isinstance(name, str)]
    if len(names) != len(entries):
        raise RulesInvalid(f"{what} is {shown(given)}; give a list of names")
    return names


def _list(what: str, given: object, *, of: str) -> Sequence[object]:
    if given is None:
        return []
    if not isinstance(given, list):
        raise RulesInvalid(f"{what} is {shown(given)}; give a list of {of}")
    return given
