"""Which opinions the parts of a ruleset have, and which of them hear of an envelope.

Rule 1: that is a matter of their classes, so each class is looked at once: checks of protocols are slow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from antiphon.core.guard import Judges, Notices, Permits, Remembers, Reviews, Watches

Slot_co = TypeVar("Slot_co", covariant=True)
Part_co = TypeVar("Part_co", covariant=True)


class Opinions(NamedTuple):
    """Which opinions the instances of a class have, and how `Ruleset.version` names it."""

    remembers: bool
    judges: bool
    permits: bool
    notices: bool
    reviews: bool
    watches: bool
    recorded_as: str


# Protocol checks take most of the time in which a conversation is opened, so that each class is looked at once.
_opinions_by_class: WeakKeyDictionary[type, Opinions] = WeakKeyDictionary()


def opinions_of(part: object) -> Opinions:
    kind = type(part)
    known = _opinions_by_class.get(kind)
    if known is None:
        # A class that is renamed says in `recorded_as` what it was called: snapshots of before are still used.
        name, version = getattr(kind, "recorded_as", kind.__qualname__), getattr(kind, "version", None)
        known = _opinions_by_class[kind] = Opinions(
            isinstance(part, Remembers),
            isinstance(part, Judges),
            isinstance(part, Permits),
            isinstance(part, Notices),
            isinstance(part, Reviews),
            isinstance(part, Watches),
            f"{name}@{version}" if isinstance(version, int) else name,
        )
    return known


class Hearing(Generic[Slot_co, Part_co]):
    """Which parts of a ruleset hear of an envelope, by its type. A part without `hears` hears of all."""

    def __init__(self, parts: Sequence[tuple[Slot_co, Part_co]]) -> None:
        heard = [(each, getattr(each[1], "hears", None)) for each in parts]
        self._others = tuple(each for each, types in heard if types is None)
        named = frozenset().union(*(types for _, types in heard if types is not None))
        self._by_type = {
            name: tuple(each for each, types in heard if types is None or name in types) for name in sorted(named)
        }

    def of(self, event_type: str) -> tuple[tuple[Slot_co, Part_co], ...]:
        """The parts that hear of envelopes of this type, with the places of their memories."""
        return self._by_type.get(event_type, self._others)


def watches_after_end(part: object) -> bool:
    """Whether its deadlines hold in a channel that has ended, too: replies still leave."""
    return getattr(part, "watches_after_end", False) is True
