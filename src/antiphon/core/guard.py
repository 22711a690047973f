"""Guards: small machines folded from the log that may deny a draft or a call, change a decision, or set a deadline.

Rule 1: a guard remembers by folding envelopes, never by living. Its memory is a value.
Rule 2: it has a name and up to seven opinions (`evolve`, `judge`, `permit`, `notice`, `review`, `due`,
        `decide_before`), and two more if it counts beyond its channel (`ask` with `settle`, `answer`); it has only
        those it needs. Which ones those are is a matter of its class, and looked up once for each class.
Rule 3: nothing here reads a clock. `due` says when to ask again; the hub does the waiting. `permit` reads the time in
        the draft.
Rule 4: what a guard decides is recorded, and its memory follows the record: with other limits an old log still folds to
        what was decided then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, Protocol, TypeVar, runtime_checkable

import msgspec

from antiphon.core.envelope import NEVER, Envelope, Instant, Json
from antiphon.core.event_data import Deny as Deny  # one of the verdicts, so those who write guards import it from here
from antiphon.core.state import Decision, RelatedFact, State

M = TypeVar("M")
M_in = TypeVar("M_in", contravariant=True)


class Allow(msgspec.Struct, frozen=True):
    """The draft may be recorded."""


class Change(msgspec.Struct, frozen=True):
    """The draft may be recorded in this form instead."""

    draft: Envelope


class Later(msgspec.Struct, frozen=True):
    """Deferred until the turns in progress have ended. The sender waits."""


class Ask(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """A person decides whether the call may leave. Its turn waits meanwhile."""

    why: str
    approvers: tuple[str, ...] = ()
    """The people and roles that may decide; empty for those that the channel allows."""
    guard: str = ""
    """The name of the guard that asks. It is filled in where the guard is asked."""


Verdict = Allow | Deny | Change | Later
Permission = Allow | Deny | Change | Ask
Objection = Deny | Change | Ask
"""What a call meets that cannot leave as it is."""
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
    late_field: str = ""
    """The field of its data that tells by how many milliseconds the draft is late; "" if none does."""

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
    `Ruleset.version`, so that old snapshots are not used. It may have `hears: ClassVar[frozenset[str]]`, the event
    types that `evolve` and `notice` are called with; without it they are called with every envelope. `notes` names
    those of `notice`, if they are others.
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
class Permits(Protocol[M_in]):
    """Says whether a call may leave, inside the append that records it.

    `draft` is what would be recorded now, one of `DEPARTURE_TYPES`; `draft.created_at` is the time. What stands before
    it in the same batch is part of the memory and the state, so that calls that leave together count.
    """

    def permit(self, memory: M_in, state: State, draft: Envelope) -> Permission: ...


@runtime_checkable
class ExplainsTasks(Protocol[M_in]):
    """A guard with `about_tasks = True`: its `permit` is asked about tasks, before each is given, and not about calls.

    `draft` is the `ag2.task.started` that would be recorded. `task_facts` says what is recorded of a denial.
    """

    name: ClassVar[str]

    def task_facts(self, memory: M_in, state: State, draft: Envelope) -> Sequence[RelatedFact]: ...


@runtime_checkable
class Notices(Protocol[M_in]):
    """Says what is recorded because of an envelope, in the same batch. The memory and the state include it already."""

    def notice(self, memory: M_in, state: State, envelope: Envelope) -> Sequence[RelatedFact]: ...


class LedgerEntry(msgspec.Struct, frozen=True):
    """What is offered to a log that several channels count in."""

    ledger: str
    """`run` for the log of the channel in which the run began; else the name of one of the hub's own, as `spend`."""
    event_type: str
    data: Json
    otherwise: Callable[[Deny], Objection] | None = None
    """What happens instead if the ledger denies the call; None if it is denied."""
    repeatable: bool = False
    """Whether a repeated offer is decided anew, by a guard that knows calls; otherwise it is answered as at first."""
    unreachable: str = ""
    """The reason for which the call is denied while the store cannot be asked; "" if it waits for the store."""


@runtime_checkable
class Shares(Protocol[M_in]):
    """Counts calls in ledgers, too, that other channels share."""

    def ask(self, memory: M_in, state: State, draft: Envelope) -> Sequence[LedgerEntry]:
        """What ledgers are asked before this call leaves. The first that denies it keeps it back."""
        ...

    def settle(self, memory: M_in, state: State, outcome: Envelope) -> Sequence[LedgerEntry]:
        """What is offered to ledgers once the outcome of a call is recorded."""
        ...


@runtime_checkable
class Answers(Protocol[M_in]):
    """Answers what is offered to a ledger, inside the append that records it."""

    def answer(self, memory: M_in, state: State, offer: Envelope) -> Deny | Sequence[RelatedFact]:
        """Why not; or what the ledger records of it, perhaps nothing. `offer.created_at` is the time."""
        ...


@runtime_checkable
class PassesOver(Protocol[M_in]):
    """A guard with `answer` that can tell in less time that it would record nothing."""

    def passes_over(self, memory: M_in, entry: LedgerEntry) -> bool:
        """Whether an offer of this is certainly allowed at any time, with nothing recorded of it."""
        ...


@runtime_checkable
class BoundsDecisions(Protocol[M_in]):
    """Limits how long a call may wait for a person."""

    def decide_before(self, memory: M_in, state: State, turn_id: str) -> Instant:
        """When a decision about a call of this turn comes too late; `NEVER` if it never does."""
        ...


@runtime_checkable
class Reviews(Protocol[M_in]):
    """May change what happens next."""

    def review(self, memory: M_in, state: State, decision: Decision) -> Decision: ...


@runtime_checkable
class Watches(Protocol[M_in]):
    """Sets a deadline, or None while there is nothing to wait for."""

    def due(self, memory: M_in, state: State) -> Deadline | None: ...
