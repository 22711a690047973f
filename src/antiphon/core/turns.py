"""What the owner of a turn may record: that it claims it, what its calls came to, and how it ended.

Rule 1: only the latest claim of a turn may write. Everybody else is `fenced`: told so, with nothing recorded.
Rule 2: what ends a turn is recorded together with the last of its journal, or neither is.
Rule 3: nothing here waits, stores or runs anything. Time and ids come in as arguments.
"""

from __future__ import annotations

import msgspec

from antiphon.core.envelope import OPERATORS, Envelope
from antiphon.core.events import EV_CHANNEL_CLOSED, EV_TURN_CLAIMED, EV_TURN_RELEASED, Json, data_of
from antiphon.core.guard import Deny, Later
from antiphon.core.ids import IdSource
from antiphon.core.instants import Instant
from antiphon.core.laws import Fold, Laws
from antiphon.core.state import State, Turn
from antiphon.core.step import Admitted, next_to_answer, pending, record, recorded, said_by_hub, step, turn_failed

FENCED = "fenced"


class Claim(msgspec.Struct, frozen=True):
    """The right to write to a turn, until somebody claims it again."""

    turn_id: str
    epoch: int


class Work(msgspec.Struct, frozen=True):
    """Entries for the journal of a turn, by whoever has claimed it."""

    claim: Claim
    entries: tuple[Envelope, ...] = ()

    def and_then(self, entry: Envelope) -> Work:
        """The same, and one more."""
        return Work(self.claim, (*self.entries, entry))


class Failure(msgspec.Struct, frozen=True):
    """Why a turn ends without an answer. `reason` is a stable word; `detail` is for the person reading."""

    reason: str
    detail: str = ""
    agent: str = ""
    """The agent of the speaker's team that was active; "" if it is not known."""


class Ending(msgspec.Struct, frozen=True):
    """How a turn ends: what its speaker says, and whether the channel ends with it."""

    said: tuple[Envelope, ...]
    close: str | None = None


def owed_turn(state: State, turn_id: str) -> Turn | None:
    """The turn of this id, if it is still owed."""
    return next((turn for turn in state.owed if turn.turn_id == turn_id), None)


def claimed(fold: Fold, seen: Turn, owner: str, *, laws: Laws, at: Instant, new_id: IdSource) -> Admitted | Deny:
    """Claim a turn as it was seen. Whoever has claimed it meanwhile keeps it."""
    now = next((turn for turn in pending(fold.state) if turn.turn_id == seen.turn_id), None)
    if now is None or now.epoch != seen.epoch:
        return Deny(FENCED, f"turn {seen.turn_id} has ended, or somebody else has claimed it")
    data: Json = {"turn": seen.turn_id, "epoch": seen.epoch + 1, "owner": owner}
    return record(fold, noted(EV_TURN_CLAIMED, data, cause=seen.cause), laws=laws, at=at, new_id=new_id)


def written(fold: Fold, work: Work, *, laws: Laws, at: Instant, new_id: IdSource) -> Admitted | Deny:
    """Record entries of the journal."""
    refusal = _fenced(fold.state, work.claim)
    return refusal or recorded(fold, work.entries, laws=laws, at=at, new_id=new_id)


def released(fold: Fold, work: Work, *, laws: Laws, at: Instant, new_id: IdSource) -> Admitted | Deny:
    """Put a turn back in order, to be run again later."""
    note = noted(EV_TURN_RELEASED, {"turn": work.claim.turn_id, "epoch": work.claim.epoch})
    return written(fold, work.and_then(note), laws=laws, at=at, new_id=new_id)


def ended(fold: Fold, work: Work, ending: Ending, *, laws: Laws, at: Instant, new_id: IdSource) -> Admitted | Deny:
    """End a turn with what its speaker says, which is judged like everything that anybody says."""
    admitted = written(fold, work, laws=laws, at=at, new_id=new_id)
    if isinstance(admitted, Deny):
        return admitted
    batch, fold = list(admitted.batch), admitted.fold
    for draft in ending.said:
        spoken = step(fold, draft, laws=laws, at=at, new_id=new_id)
        assert not isinstance(spoken, Later), "whoever holds the turn does not wait for it"
        if isinstance(spoken, Deny):
            return spoken
        batch.extend(spoken.batch)
        fold = spoken.fold
    if ending.close is not None and not fold.state.ended:
        data: Json = {"reason": ending.close, "by": ending.said[-1].sender_id}
        closing = said_by_hub(EV_CHANNEL_CLOSED, data, cause=batch[-1].envelope_id if batch else None)
        closed = record(fold, closing, laws=laws, at=at, new_id=new_id)
        batch.extend(closed.batch)
        fold = closed.fold
    return Admitted(tuple(batch), fold)


def failed(fold: Fold, work: Work, failure: Failure, *, laws: Laws, at: Instant, new_id: IdSource) -> Admitted | Deny:
    """End a turn without an answer."""
    turn = owed_turn(fold.state, work.claim.turn_id)
    if turn is None:
        return _gone(work.claim)
    agent = failure.agent or next_to_answer(fold.state, turn)
    note = turn_failed(turn, failure.reason, failure.detail, cause=turn.cause, agent=agent)
    return written(fold, work.and_then(note), laws=laws, at=at, new_id=new_id)


def noted(event_type: str, event: Json | msgspec.Struct, *, cause: str | None = None) -> Envelope:
    """A draft for the journal: in the hub's name, for operators."""
    data = data_of(event) if isinstance(event, msgspec.Struct) else event
    return said_by_hub(event_type, data, cause=cause, audience=[OPERATORS])


def _fenced(state: State, claim: Claim) -> Deny | None:
    turn = owed_turn(state, claim.turn_id)
    if turn is None:
        return _gone(claim)
    if turn.epoch != claim.epoch:
        return Deny(FENCED, f"turn {claim.turn_id} was claimed again, by {turn.owner}: {turn.epoch} > {claim.epoch}")
    return None


def _gone(claim: Claim) -> Deny:
    return Deny(FENCED, f"turn {claim.turn_id} has ended")
