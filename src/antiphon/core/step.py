"""A draft and everything it causes, as one batch.

Rule 1: a decision is recorded with its cause, or neither is.
Rule 2: nothing here waits, stores or publishes. Time and ids come in as arguments.
Rule 3: what follows from an envelope is at most one more envelope (`_consequence`), which may have one of its own.
"""

from __future__ import annotations

import msgspec

from antiphon.core.decision import Assign, Close, Decision, Wait
from antiphon.core.envelope import HUB, OPERATORS, Envelope
from antiphon.core.events import (
    EV_CHANNEL_CLOSED,
    EV_CHANNEL_OPENED,
    EV_CHANNEL_PAUSED,
    EV_TURN_ASSIGNED,
    EV_TURN_FAILED,
    JOURNAL,
    Acknowledged,
    Created,
    Expired,
    Failed,
    Json,
    Opened,
    Packet,
    Rejected,
    Text,
    Violated,
    event_of,
)
from antiphon.core.guard import Deny
from antiphon.core.ids import IdSource
from antiphon.core.instants import Instant
from antiphon.core.laws import Fold, Laws
from antiphon.core.state import State, Turn
from antiphon.core.words import shown


class Admitted(msgspec.Struct, frozen=True):
    """A batch to be recorded whole, and the fold it leads to."""

    batch: tuple[Envelope, ...]
    fold: Fold


def step(fold: Fold, draft: Envelope, *, laws: Laws, at: Instant, new_id: IdSource) -> Admitted | Deny:
    """Admit one draft, or say why not."""
    judged = laws.judge(fold, draft)
    if isinstance(judged, Deny):
        return judged
    return record(fold, judged, laws=laws, at=at, new_id=new_id)


def record(fold: Fold, draft: Envelope, *, laws: Laws, at: Instant, new_id: IdSource) -> Admitted:
    """Record a draft that needs no judgement (the hub's own), with all that follows from it."""
    batch: list[Envelope] = []
    at = max(fold.state.updated_at, at)
    following: Envelope | None = draft
    while following is not None:
        envelope = stamped(following, fold.state, at=at, new_id=new_id)
        fold = laws.fold(fold, envelope)
        batch.append(envelope)
        following = _consequence(laws, fold, envelope)
    return Admitted(tuple(batch), fold)


def tick(fold: Fold, *, laws: Laws, at: Instant, new_id: IdSource) -> Admitted | None:
    """Record what has fallen due by now; None if nothing has."""
    batch: list[Envelope] = []
    while (deadline := laws.due(fold)) is not None and deadline.at <= at:
        admitted = record(fold, deadline.draft, laws=laws, at=at, new_id=new_id)
        batch.extend(admitted.batch)
        fold = admitted.fold
    return Admitted(tuple(batch), fold) if batch else None


def pending(state: State) -> tuple[Turn, ...]:
    """The turns to be run now: of each agent its oldest, unless a person must settle something in it first."""
    if state.status != "active" or not state.owed:
        return ()
    first: dict[str, Turn] = {}
    for turn in state.owed:
        first.setdefault(turn.speaker, turn)
    return tuple(turn for turn in first.values() if not turn.doubts)


def stamped(draft: Envelope, state: State, *, at: Instant, new_id: IdSource) -> Envelope:
    """The draft as the next envelope of the log."""
    return Envelope(
        draft.envelope_id or new_id(),
        state.channel_id,
        draft.sender_id,
        draft.audience,
        draft.event_type,
        draft.event_data,
        draft.causation_id,
        draft.priority,
        at,
        state.sequence + 1,
    )


def said_by_hub(
    event_type: str, data: Json, *, cause: str | None = None, audience: list[str] | None = None
) -> Envelope:
    """A draft in the hub's own name."""
    return Envelope(sender_id=HUB, event_type=event_type, event_data=data, causation_id=cause, audience=audience)


def _consequence(laws: Laws, fold: Fold, envelope: Envelope) -> Envelope | None:
    if envelope.event_type in JOURNAL:
        return None
    cause = envelope.envelope_id
    match event_of(envelope):
        case Text() | Packet() if _others_owe(fold.state):
            return None
        case Text() | Packet() | Opened():
            return _carried_out(laws.decide(fold, envelope), fold.state, cause)
        case Created() | Acknowledged() if not fold.state.awaiting and fold.state.status == "invited":
            return said_by_hub(EV_CHANNEL_OPENED, {}, cause=cause)
        case Rejected() if not fold.state.ended:
            return _closing(f"invite_rejected:{envelope.sender_id}", cause)
        case Failed() as failed:
            return _carried_out(_after_failure(fold.state, failed), fold.state, cause)
        case Violated(handler="fail") if fold.state.owed:
            return turn_failed(fold.state.owed[0], *_overdue(fold.state.owed[0]), cause=cause)
        case Violated(expectation=name, handler="auto_close"):
            return _closing(f"expectation_violated:{name}", cause)
        case Expired():
            return _closing("expired", cause)
        case _:
            return None


def _others_owe(state: State) -> bool:
    """Whether somebody else who was given the turn has yet to speak, so that the rules are not read again."""
    return state.ordered and bool(state.speakers) and not state.interjected


def _carried_out(decision: Decision, state: State, cause: str) -> Envelope | None:
    match decision:
        case Wait(reason=""):
            return None
        case Wait(reason=reason):
            return said_by_hub(EV_CHANNEL_PAUSED, {"reason": reason}, cause=cause)
        case Assign(speakers=()):
            return _closing("nobody_is_next", cause)
        case Assign(speakers=speakers) if not state.participants.keys() >= set(speakers):
            stranger = next(name for name in speakers if name not in state.participants)
            return _closing(f"unknown_speaker:{stranger}", cause)
        case Assign(speakers=speakers, reason=reason):
            data: Json = {"speakers": list(speakers), "reason": reason}
            return said_by_hub(EV_TURN_ASSIGNED, data, cause=cause, audience=[OPERATORS])
        case Close(reason=reason):
            return _closing(reason, cause)
        case _:
            raise TypeError(f"decide returned {shown(decision)}; return Assign, Wait or Close")


def _closing(reason: str, cause: str) -> Envelope:
    return said_by_hub(EV_CHANNEL_CLOSED, {"reason": reason}, cause=cause)


def turn_failed(turn: Turn, reason: str, detail: str, *, cause: str | None) -> Envelope:
    """That this turn ended without an answer, for everybody to see."""
    data: Json = {"turn": turn.turn_id, "speaker": turn.speaker, "reason": reason, "detail": detail}
    return said_by_hub(EV_TURN_FAILED, data, cause=cause)


def _overdue(turn: Turn) -> tuple[str, str]:
    if not turn.epoch:
        return "not_run", f"no hub in which {turn.speaker!r} is registered has run it"
    return "deadline", "it was not finished in time"


def _after_failure(state: State, failed: Failed) -> Decision:
    """Who goes on when an agent could not: in a free channel whoever else speaks in it, in an ordered one a person."""
    reason = f"turn_failed:{failed.reason}"
    if not state.ordered:
        attended = any(kind != "agent" for kind in state.participants.values())
        return Wait("" if attended or state.owed else reason)
    if state.speakers:
        return Wait()
    person = next((name for name, kind in state.participants.items() if kind == "human"), None)
    return Close(reason) if person is None else Assign((person,), reason)
