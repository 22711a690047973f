"""What the owner of a turn records (claim, entries, release, end), as plans, and its calls read back from the log.

`engines/journal.py` submits what is planned here.

Rule 1: only the latest claim of a turn may write. Any other is `fenced`: refused, with nothing recorded.
Rule 2: what ends a turn is recorded together with the last of its journal, or neither is.
Rule 3: a call is known by its position in the turn. What it asks for is compared by digest.
Rule 4: a call that has started and has no outcome was in flight when its process died.
Rule 5: nothing here waits, stores or runs anything. Time and ids come in as arguments.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from antiphon.core.call_permits import COMPLETED_TYPES, JournalBatch, TurnClaim, record_permitted
from antiphon.core.codec import digest_of
from antiphon.core.envelope import HUB, Envelope, IdSource, Instant, Json
from antiphon.core.event_data import Deny, event_of
from antiphon.core.events import EV_CHANNEL_CLOSED
from antiphon.core.execution_events import (
    EV_CALL_FINISHED,
    EV_TURN_CLAIMED,
    EV_TURN_RELEASED,
    ApprovalExpired,
    ApprovalRequested,
    CallApproved,
    CallCleared,
    CallConflicted,
    CallFailed,
    CallFinished,
    CallRetried,
    CallStarted,
)
from antiphon.core.guard import Later
from antiphon.core.ruleset import Fold, Ruleset
from antiphon.core.state import State, Turn
from antiphon.core.step import (
    Admitted,
    hub_draft,
    journal_draft,
    owed_turn,
    pending_turns,
    record,
    record_all,
    starting_agent,
    step,
    turn_failed_draft,
)

FENCED = "fenced"


class TurnFailure(msgspec.Struct, frozen=True):
    """Why a turn ends without an answer. `reason` is a stable word; `detail` is for the person reading."""

    reason: str
    detail: str = ""
    agent: str = ""
    """The agent of the speaker's team that was active; "" if it is not known."""


class TurnEnding(msgspec.Struct, frozen=True):
    """How a turn ends: what its speaker says, and whether the channel ends with it."""

    said: tuple[Envelope, ...]
    close: str | None = None


def claim_turn(
    fold: Fold, seen: Turn, owner: str, *, ruleset: Ruleset, at: Instant, new_id: IdSource
) -> Admitted | Deny:
    """Claim a turn as it was seen. A claim made meanwhile wins."""
    now = next((turn for turn in pending_turns(fold.state) if turn.turn_id == seen.turn_id), None)
    if now is None or now.epoch != seen.epoch:
        return Deny(FENCED, f"turn {seen.turn_id} has ended, or was claimed meanwhile")
    data: Json = {"turn": seen.turn_id, "epoch": seen.epoch + 1, "owner": owner}
    return record(fold, journal_draft(EV_TURN_CLAIMED, data, cause=seen.cause), ruleset=ruleset, at=at, new_id=new_id)


def write_entries(
    fold: Fold, work: JournalBatch, *, ruleset: Ruleset, at: Instant, new_id: IdSource
) -> Admitted | Deny:
    """Record entries of the journal."""
    refusal = _check_claim(fold.state, work.claim)
    if refusal is not None:
        return refusal
    if not ruleset.calls.asked and all(each.event_type not in COMPLETED_TYPES for each in work.entries):
        return record_all(fold, work.entries, ruleset=ruleset, at=at, new_id=new_id)
    return record_permitted(fold, work, ruleset=ruleset, at=at, new_id=new_id)


def release_turn(fold: Fold, work: JournalBatch, *, ruleset: Ruleset, at: Instant, new_id: IdSource) -> Admitted | Deny:
    """Give a turn back, to be resumed later. This is no crash."""
    note = journal_draft(EV_TURN_RELEASED, {"turn": work.claim.turn_id, "epoch": work.claim.epoch})
    return write_entries(fold, work.with_entry(note), ruleset=ruleset, at=at, new_id=new_id)


def end_turn(
    fold: Fold, work: JournalBatch, ending: TurnEnding, *, ruleset: Ruleset, at: Instant, new_id: IdSource
) -> Admitted | Deny:
    """End a turn with what its speaker says, which is judged like all speech."""
    admitted = write_entries(fold, work, ruleset=ruleset, at=at, new_id=new_id)
    if isinstance(admitted, Deny):
        return admitted
    batch, fold = list(admitted.batch), admitted.fold
    for draft in ending.said:
        spoken = step(fold, draft, ruleset=ruleset, at=at, new_id=new_id)
        assert not isinstance(spoken, Later), "the speaker that holds the turn does not wait for it"
        if isinstance(spoken, Deny):
            return spoken
        batch.extend(spoken.batch)
        fold = spoken.fold
    if ending.close is not None and not fold.state.ended:
        data: Json = {"reason": ending.close, "by": ending.said[-1].sender_id}
        closing = hub_draft(EV_CHANNEL_CLOSED, data, cause=batch[-1].envelope_id if batch else None)
        closed = record(fold, closing, ruleset=ruleset, at=at, new_id=new_id)
        batch.extend(closed.batch)
        fold = closed.fold
    return Admitted(tuple(batch), fold)


def fail_turn(
    fold: Fold, work: JournalBatch, failure: TurnFailure, *, ruleset: Ruleset, at: Instant, new_id: IdSource
) -> Admitted | Deny:
    """End a turn without an answer."""
    turn = owed_turn(fold.state, work.claim.turn_id)
    if turn is None:
        return _ended_denial(work.claim)
    agent = failure.agent or starting_agent(fold.state, turn)
    note = turn_failed_draft(turn, failure.reason, failure.detail, cause=turn.cause, agent=agent)
    return write_entries(fold, work.with_entry(note), ruleset=ruleset, at=at, new_id=new_id)


def _check_claim(state: State, claim: TurnClaim) -> Deny | None:
    turn = owed_turn(state, claim.turn_id)
    if turn is None:
        return _ended_denial(claim)
    if turn.epoch != claim.epoch:
        return Deny(FENCED, f"turn {claim.turn_id} was claimed again, by {turn.owner}: {turn.epoch} > {claim.epoch}")
    return None


def _ended_denial(claim: TurnClaim) -> Deny:
    return Deny(FENCED, f"turn {claim.turn_id} has ended")


APPROVAL_EXPIRED = "approval_expired"
APPROVAL_EXPIRED_TEXT = "No person has allowed this call in time, so it was not made."


class CallRecord(msgspec.Struct, frozen=True):
    """One call as far as it is known."""

    started: CallStarted | None = None
    outcome: CallFinished | CallFailed | None = None
    conflicted: bool = False
    """Whether it is recorded already that something else was asked for here."""
    retries: int = 0
    """How many retries are recorded, over all attempts at the turn."""
    via: str = ""
    """The model that a guard has chosen instead of the agent's own."""
    requested: ApprovalRequested | None = None
    """Set if a person was asked about it."""
    approved: CallApproved | None = None
    """Set if a person has allowed it."""

    @property
    def in_flight(self) -> bool:
        return self.started is not None and self.outcome is None


EMPTY_CALL_RECORD = CallRecord()
CallEvent = (
    CallStarted
    | CallFinished
    | CallFailed
    | CallRetried
    | CallCleared
    | CallConflicted
    | ApprovalRequested
    | ApprovalExpired
    | CallApproved
)
Journal = dict[int, CallRecord]


def journal_of(log: Iterable[Envelope], turn_id: str) -> Journal:
    """The calls of a turn by position."""
    journal: Journal = {}
    for envelope in log:
        event = event_of(envelope) if envelope.sender_id == HUB else None
        if isinstance(event, CallEvent) and event.turn == turn_id:
            journal[event.index] = _apply_call_event(journal.get(event.index, EMPTY_CALL_RECORD), event)
    return journal


def _apply_call_event(entry: CallRecord, event: CallEvent) -> CallRecord:
    match event:
        case CallStarted():
            return msgspec.structs.replace(entry, started=event, outcome=None, conflicted=False, via=event.via)
        case CallFinished() | CallFailed():
            return msgspec.structs.replace(entry, outcome=event)
        case CallRetried():
            return msgspec.structs.replace(entry, retries=entry.retries + 1, via=event.via or entry.via)
        case CallCleared():
            return CallRecord(requested=entry.requested, approved=entry.approved)
        case ApprovalRequested():
            return msgspec.structs.replace(entry, requested=event)
        case ApprovalExpired():
            return msgspec.structs.replace(entry, outcome=expired_call(event))
        case CallApproved():
            return msgspec.structs.replace(entry, approved=event)
        case CallConflicted():
            return msgspec.structs.replace(entry, conflicted=True)


def expired_call(event: ApprovalExpired) -> CallFailed:
    """The outcome of a call about which no person has decided in time."""
    return CallFailed(event.turn, event.index, APPROVAL_EXPIRED_TEXT, denied=APPROVAL_EXPIRED, final=True)


def idempotency_key(state: State, turn: Turn, index: int, *, tool: str, tenant: str) -> str:
    """The same for every attempt at one call, and for no other call: its position, not its words.

    A channel's id may be derived from a name, and be the same elsewhere; when it was created is not.
    """
    run = [tenant, state.channel_id, state.created_at, turn.turn_id, turn.cause]
    return digest_of({"v": 1, "run": run, "index": index, "tool": tool})


class RecordedCalls:
    """The calls that the journal of a turn holds, by position."""

    def __init__(self) -> None:
        self._journal: Journal = {}
        self.resumed = False
        """Whether an attempt at the turn by another process has recorded calls."""

    def load(self, journal: Journal, *, elsewhere: bool) -> None:
        """Take over what earlier attempts have recorded; `elsewhere` if another process has made any of them."""
        self._journal, self.resumed = journal, elsewhere and bool(journal)

    def add(self, recorded: Iterable[Envelope], turn_id: str) -> None:
        """Take over what this attempt has recorded of its calls, but for their results."""
        for envelope in recorded:
            # What a call has returned is with its caller already.
            event = event_of(envelope) if envelope.event_type != EV_CALL_FINISHED else None
            if isinstance(event, CallEvent) and event.turn == turn_id and envelope.sender_id == HUB:
                self._journal[event.index] = _apply_call_event(self.record(event.index), event)

    def record(self, index: int) -> CallRecord:
        """The recorded state of the call at this position."""
        return self._journal.get(index, EMPTY_CALL_RECORD)

    def denial(self, index: int) -> CallFailed | None:
        """The recorded denial of the call at this position; None if it was not denied."""
        outcome = self.record(index).outcome if self._journal else None
        return outcome if isinstance(outcome, CallFailed) and outcome.denied else None

    def awaits_approval(self, index: int) -> bool:
        """Whether a person was asked about the call at this position, and has not decided."""
        if not self._journal:
            return False
        record = self.record(index)
        return record.requested is not None and record.approved is None and record.outcome is None
