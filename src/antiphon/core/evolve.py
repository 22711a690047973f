"""How facts change a channel's state.

Rule 1: every change of State happens in this file and nowhere else.
Rule 2: nothing here can fail. A strange envelope is a fact too; it just moves nothing.
Rule 3: nothing here decides. If you are reaching for a rule or a limit, see `rules` or `guard`.

Time comes from `envelope.created_at`. There is no other clock.
"""

from __future__ import annotations

from msgspec.structs import replace

from antiphon.core.codec import copied
from antiphon.core.envelope import HUB, Envelope
from antiphon.core.events import (
    Acknowledged,
    Assigned,
    Closed,
    ContextSet,
    Created,
    Event,
    Expired,
    Json,
    Opened,
    Packet,
    Rejected,
    Text,
    event_of,
)
from antiphon.core.instants import NEVER, after
from antiphon.core.state import State


def evolve(state: State, envelope: Envelope) -> State:
    """The state once this envelope is part of the log."""
    at, event = envelope.created_at, event_of(envelope)
    if state.ended:
        return replace(state, sequence=envelope.sequence, updated_at=at)
    if isinstance(event, Text):
        return _spoken(state, envelope)
    active = state.active_at if envelope.sender_id == HUB else at
    return _moved(replace(state, sequence=envelope.sequence, updated_at=at, active_at=active), envelope, event)


def _moved(state: State, envelope: Envelope, event: Event) -> State:
    match event:
        case Packet(context_updates=updates):
            return _spoken(merged(state, updates), envelope)
        case ContextSet() as updates:
            return merged(state, updates)
        case Assigned(speakers=speakers):
            return replace(state, speakers=tuple(speakers), assigned_at=envelope.created_at)
        case _:
            return _lived(state, envelope, event)


def _lived(state: State, envelope: Envelope, event: Event) -> State:
    match event:
        case Created() if not state.created_at:
            return _created(state, envelope, event)
        case Acknowledged() | Rejected():
            return replace(state, awaiting=tuple(name for name in state.awaiting if name != envelope.sender_id))
        case Opened() if state.status == "invited":
            return replace(state, status="active", active_at=envelope.created_at)
        case Expired():
            return replace(state, status="expired", close_reason="expired", speakers=())
        case Closed(reason=reason):
            return replace(state, status="closed", close_reason=reason, speakers=())
        case _:
            return state


def _created(state: State, envelope: Envelope, event: Created) -> State:
    at = envelope.created_at
    return replace(
        state,
        channel_id=envelope.channel_id,
        type=event.type,
        creator_id=event.creator,
        participants={seat.name: seat.kind for seat in event.participants},
        knobs=copied(event.knobs),
        ordered=event.ordered,
        created_at=at,
        expires_at=_expiry(at, event.ttl),
        awaiting=tuple(seat.name for seat in event.participants if seat.name != event.creator),
        context_vars=copied(event.context_vars),
    )


def _expiry(at: str, ttl: float | None) -> str:
    try:
        return NEVER if ttl is None else after(at, ttl)
    except ValueError:
        return NEVER


def _spoken(state: State, envelope: Envelope) -> State:
    speaker, at = envelope.sender_id, envelope.created_at
    active = state.active_at if speaker == HUB else at
    if state.ordered and speaker not in state.speakers:
        return replace(
            state,
            sequence=envelope.sequence,
            updated_at=at,
            active_at=active,
            interjected=True,
            last_envelope_id=envelope.envelope_id,
        )
    return replace(
        state,
        sequence=envelope.sequence,
        updated_at=at,
        active_at=active,
        interjected=False,
        turn_count=state.turn_count + 1,
        speakers=tuple(name for name in state.speakers if name != speaker) if state.speakers else (),
        last_speaker_id=speaker,
        last_envelope_id=envelope.envelope_id,
    )


def merged(state: State, updates: ContextSet) -> State:
    """The state with these context variables changed: first deleted, then set."""
    if not updates.set and not updates.delete:
        return state
    gone = frozenset(updates.delete)
    kept: Json = {key: value for key, value in state.context_vars.items() if key not in gone}
    return replace(state, context_vars={**kept, **copied(updates.set)})
