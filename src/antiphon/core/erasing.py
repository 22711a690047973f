"""Tombstones: what is left of an envelope once its channel was erased.

Rule 1: a tombstone keeps the sequence and time of its envelope, and its type if that is one of ours. Ids, names, data
        and types of a participant's own are gone: those are chosen by a participant, or derived from such values.
Rule 2: a log of tombstones still folds: to a channel of the same type that has ended, without participants.
Rule 3: only the hub writes tombstones, so that data of a participant is never mistaken for one.
"""

from __future__ import annotations

from msgspec.structs import replace

from antiphon.core.envelope import HUB, OPERATORS, Envelope
from antiphon.core.events import (
    EV_CHANNEL_CLOSED,
    EV_ENVELOPE_ERASED,
    RESERVED,
    Closed,
    Created,
    Event,
    Expired,
    Json,
    Opened,
    data_of,
    event_of,
)
from antiphon.core.ids import derived_id
from antiphon.core.state import State

ERASED = "erased"
"""The mark in the data of a tombstone, and the close reason of an erased channel."""


def is_erased(envelope: Envelope) -> bool:
    """Whether this is a tombstone."""
    return envelope.sender_id == HUB and envelope.event_data.get(ERASED) is True


def tombstone(envelope: Envelope) -> Envelope:
    """The envelope without its content. A tombstone stays as it is."""
    if is_erased(envelope):
        return envelope
    internal = envelope.audience is not None and OPERATORS in envelope.audience
    return Envelope(
        derived_id(envelope.channel_id, ERASED, str(envelope.sequence)),
        envelope.channel_id,
        HUB,
        [OPERATORS] if internal else None,
        envelope.event_type if envelope.event_type.startswith(RESERVED) else EV_ENVELOPE_ERASED,
        _remains(envelope),
        created_at=envelope.created_at,
        sequence=envelope.sequence,
    )


def _remains(envelope: Envelope) -> Json:
    event = event_of(envelope)
    if isinstance(event, Created):
        return {ERASED: True, **data_of(Created(event.type, "", []))}
    return {ERASED: True, "reason": ERASED} if envelope.event_type == EV_CHANNEL_CLOSED else {ERASED: True}


def buried(state: State, event: Event) -> State:
    """The state after a tombstone: how far the channel had come, and nothing of what was in it."""
    match event:
        case Created(type=kind):
            return replace(state, type=kind, created_at=state.updated_at)
        case Opened() if not state.ended:
            return replace(state, status="active")
        case Expired():
            return replace(state, status="expired", close_reason=ERASED)
        case Closed():
            return replace(state, status="expired" if state.ended else "closed", close_reason=ERASED)
        case _:
            return state
