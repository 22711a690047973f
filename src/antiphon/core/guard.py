"""Guards: small machines folded from the log that may deny a draft, change a decision, or set a deadline.

Rule 1: a guard remembers by folding envelopes, never by living. Its memory is a value.
Rule 2: it has a name and up to four opinions (`evolve`, `judge`, `review`, `due`); it has only those it needs. Which
        ones those are is a matter of its class, and looked up once for each class.
Rule 3: nothing here reads a clock. `due` says when to ask again; the hub does the waiting.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Protocol, TypeVar, runtime_checkable

import msgspec

from antiphon.core.envelope import NEVER, Envelope, Instant
from antiphon.core.event_data import Deny as Deny  # one of the verdicts, so those who write guards import it from here
from antiphon.core.state import Decision, State

M = TypeVar("M")
M_in = TypeVar("M_in", contravariant=True)


class Allow(msgspec.Struct, frozen=True):
    """The draft may be recorded."""


class Change(msgspec.Struct, frozen=True):
    """The draft may be recorded in this form instead."""

    draft: Envelope


class Later(msgspec.Struct, frozen=True):
    """Deferred until the turns in progress have ended. The sender waits."""


Verdict = Allow | Deny | Change | Later
ALLOW = Allow()
LATER = Later()


class Deadline(msgspec.Struct, frozen=True):
    """At this instant the hub records this draft, unless something happens before."""

    at: Instant
    draft: Envelope | Callable[[], Envelope] | None
    """The draft, or what makes it: after each envelope only `at` is read, and most deadlines are never reached. None if
    nothing is recorded: the channel is only loaded, so that what it still has to send is noticed after a restart."""
    since: Instant = NEVER
    """When its time began to count; `NEVER` for an instant that nothing moves, such as the end of a time to live."""
    is_default: bool = False
    """Whether the channel's type expects this, and not the user: time in which no hub was open does not count."""

    def make_draft(self) -> Envelope:
        """The draft to be recorded."""
        assert self.draft is not None, "a deadline at which nothing is recorded is not asked for its draft"
        return self.draft() if callable(self.draft) else self.draft


class TimeBreaks(msgspec.Struct, frozen=True):
    """Instants at which the time for an expectation begins anew, if it had begun to count before."""

    opened: Instant = NEVER
    """Since when a hub has been open without a break. It counts for default expectations only."""
    clock_set: Instant = NEVER
    """When the clock was last set."""
    outage: str = "outage"
    """Why `opened` is so late."""


NO_TIME_BREAKS = TimeBreaks()


class Guard(Protocol):
    """A part of a channel's ruleset with opinions. Which ones it has is found by the protocols below.

    A class may have a `version: ClassVar[int]`. Raise it when `evolve` folds old logs to other values: it is part of
    `Ruleset.version`, so that old snapshots are not used.
    """

    @property
    def name(self) -> str: ...


@runtime_checkable
class Remembers(Protocol[M]):
    """Folds a memory. `memory` is its type; a fresh one is `memory()`, and it must be plain data."""

    memory: ClassVar[type]

    def evolve(self, memory: M, envelope: Envelope) -> M: ...


@runtime_checkable
class Judges(Protocol[M_in]):
    """Says whether a draft may be recorded."""

    def judge(self, memory: M_in, state: State, draft: Envelope) -> Verdict: ...


@runtime_checkable
class Reviews(Protocol[M_in]):
    """May change what happens next."""

    def review(self, memory: M_in, state: State, decision: Decision) -> Decision: ...


@runtime_checkable
class Watches(Protocol[M_in]):
    """Sets a deadline, or None while there is nothing to wait for."""

    def due(self, memory: M_in, state: State) -> Deadline | None: ...
