"""From a channel's type and knobs to the laws that hold in it.

Rule 1: names are closed. A built-in adapter cannot be replaced, an unknown name is an error that lists the known.
Rule 2: everything is checked before a channel is created; nothing of it is found out later.
"""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.core.errors import AntiphonError, RulesInvalid
from antiphon.core.events import Json
from antiphon.core.guard import Guard
from antiphon.core.laws import Laws
from antiphon.core.rules import Adapter
from antiphon.core.words import shown, told
from antiphon.guards.membership import Membership, TurnOrder
from antiphon.guards.silence import LifeSpan, Within
from antiphon.guards.writers import Writers
from antiphon.orchestration.adapters import Consulting, Conversation, Discussion, Quiet
from antiphon.orchestration.expectations import expectations_for
from antiphon.orchestration.shape import check_shape

BUILT_IN: dict[str, type[Adapter]] = {
    "conversation": Conversation,
    "consulting": Consulting,
    "discussion": Discussion,
}
QUIET = frozenset({"system", "quarantine"})
"""Types that nobody can open: the hub's own channels, and the laws of a channel that can only be read."""
COMMON_KNOBS = frozenset({"guards", "tier", "expectations", "interjectors", "writers"})
TIERS = ("interactive", "batch", "regulated")

_registered: dict[str, type[Adapter]] = {}


def register_adapter(adapter: type[Adapter]) -> type[Adapter]:
    """Make a channel type available by its name. Usable as a decorator; a built-in name is refused."""
    check_shape(adapter)
    name = adapter.name
    if name in BUILT_IN or name in QUIET:
        raise RulesInvalid(f"the adapter {name!r} is built in and cannot be replaced")
    known = _registered.get(name)
    if known is not None and (known.__module__, known.__qualname__) != (adapter.__module__, adapter.__qualname__):
        raise RulesInvalid(f"an adapter {name!r} is registered already: {known.__qualname__}")
    _registered[name] = adapter
    return adapter


def adapter_named(name: str) -> type[Adapter]:
    """The adapter of this name."""
    found = (BUILT_IN.get(name) or _registered.get(name)) if isinstance(name, str) else None
    if found is None:
        known = ", ".join(sorted([*BUILT_IN, *_registered]))
        raise RulesInvalid(f"no channel type is called {shown(name)}; there are: {known}")
    return found


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
    writers = _writers(knobs)
    if writers:
        guards.append(Writers(writers))
    guards.append(LifeSpan())
    expected = _list("expectations", knobs.get("expectations"), of="expectations")
    guards.extend(Within(expectation) for expectation in expectations_for(kind, expected))
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
    for guard in _list("guards", knobs.get("guards"), of="guards"):
        raise RulesInvalid(f"no guard is called {shown(guard)}; none can be named yet")


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
