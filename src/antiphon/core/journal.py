"""The journal of a turn: what its calls were, and what they came to, read back from the log.

Rule 1: a call is known by its position in the turn. What it asks for is compared by digest.
Rule 2: a call that has started and has no outcome was in flight when whoever made it died.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from antiphon.core.codec import digest_of
from antiphon.core.envelope import HUB, Envelope
from antiphon.core.events import (
    CallCleared,
    CallConflicted,
    CallFailed,
    CallFinished,
    CallRetried,
    CallStarted,
    event_of,
)
from antiphon.core.state import State, Turn


class Entry(msgspec.Struct, frozen=True):
    """One call as far as it is known."""

    started: CallStarted | None = None
    outcome: CallFinished | CallFailed | None = None
    conflicted: bool = False
    """Whether it is recorded already that something else was asked for here."""
    retries: int = 0
    """How often it is recorded that it came to nothing and is made again, whoever made it."""

    @property
    def in_flight(self) -> bool:
        return self.started is not None and self.outcome is None


NO_ENTRY = Entry()
Noted = CallStarted | CallFinished | CallFailed | CallRetried | CallCleared | CallConflicted
Journal = dict[int, Entry]


def journal_of(log: Iterable[Envelope], turn_id: str) -> Journal:
    """The calls of a turn by position."""
    journal: Journal = {}
    for envelope in log:
        event = event_of(envelope) if envelope.sender_id == HUB else None
        if isinstance(event, Noted) and event.turn == turn_id:
            journal[event.index] = _with(journal.get(event.index, NO_ENTRY), event)
    return journal


def _with(entry: Entry, event: Noted) -> Entry:
    match event:
        case CallStarted():
            return Entry(event, retries=entry.retries)
        case CallFinished() | CallFailed():
            return msgspec.structs.replace(entry, outcome=event)
        case CallRetried():
            return msgspec.structs.replace(entry, retries=entry.retries + 1)
        case CallCleared():
            return NO_ENTRY
        case CallConflicted():
            return msgspec.structs.replace(entry, conflicted=True)


def idempotency_key(state: State, turn: Turn, index: int, *, tool: str, tenant: str) -> str:
    """The same for every attempt at one call, and for no other call: its position, not its words.

    A channel's id may be derived from a name, and be the same elsewhere; when it was created is not.
    """
    run = [tenant, state.channel_id, state.created_at, turn.turn_id, turn.cause]
    return digest_of({"v": 1, "run": run, "index": index, "tool": tool})
