"""Event data: read from an envelope, and checked in a draft.

Rule 1: `event_of` cannot fail. Data that does not have its type's shape is `OTHER_EVENT`: a fact that moves nothing.
Rule 2: the checks of a draft need no state. One that fails is refused with a stable reason, and nothing of it is kept.
        What depends on the channel (members, turns, audiences) is for the guards.
"""

from __future__ import annotations

import re
from dataclasses import replace

import msgspec

from antiphon.core.codec import MAX_EVENT_BYTES, Malformed, check_json, digest_of, to_json
from antiphon.core.envelope import Envelope, Json, Priority
from antiphon.core.events import (
    ASIDE_FIELD,
    EV_CONTEXT_SET,
    EV_PACKET,
    EV_TEXT,
    EVENT_STRUCTS,
    HUB_FIELDS,
    ORIGINAL_FIELD,
    OTHER_EVENT,
    RESERVED_PREFIXES,
    SENDABLE_TYPES,
    SPEECH_TYPES,
    Event,
    Text,
)
from antiphon.core.text import describe, explain_decode_error

EVENT_TYPE_PATTERN = re.compile(r"[A-Za-z][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)+\Z")
MAX_EVENT_TYPE_CHARS = 128
MAX_AUDIENCE_NAMES = 1000
PLAIN_FIELDS = frozenset({"text", "transport", "source", "intent", "addressed_to"})
"""What a plain text may say about itself."""
MAX_PLAIN_TEXT_CHARS = 8192
"""Plain texts that are no longer than this are under every limit together, in any characters."""


def event_of(envelope: Envelope) -> Event:
    """The typed event of an envelope; `OTHER_EVENT` if its type is not ours or its data does not fit."""
    if envelope.event_type == EV_TEXT:
        data = envelope.event_data
        text, agent, values = data.get("text"), data.get("agent", ""), data.get("set")
        if not isinstance(text, str) or not isinstance(agent, str) or not (values is None or isinstance(values, dict)):
            return OTHER_EVENT
        return Text(text, agent, values)
    shape = EVENT_STRUCTS.get(envelope.event_type)
    if shape is None:
        return OTHER_EVENT
    try:
        return msgspec.convert(envelope.event_data, type=shape)
    except (msgspec.ValidationError, RecursionError):
        return OTHER_EVENT


def data_of(event: msgspec.Struct) -> Json:
    """An event of ours as the `event_data` of its envelope."""
    data: Json = msgspec.to_builtins(event)
    return data


def event_data_error(event_type: str, event_data: Json) -> str | None:
    """Why this data does not have the shape of its type; None if it has, or if the type is not ours."""
    shape: type[Event] | None = Text if event_type == EV_TEXT else EVENT_STRUCTS.get(event_type)
    if shape is None:
        return None
    try:
        msgspec.convert(event_data, type=shape)
    except msgspec.ValidationError as error:
        return explain_decode_error(str(error))
    return None


class Deny(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """The draft may not be recorded, or the call may not leave. `reason` is a stable word; `detail` says more."""

    reason: str
    detail: str = ""
    """For the person reading. Of the call of a tool, what the model reads as its result."""
    final: bool = False
    """Whether the turn ends with `denied:<reason>`. The denial of a model call always ends it."""
    answer: str = ""
    """What the agent says instead, if the turn ends with this; "" for what it has said so far."""
    guard: str = ""
    """The name of the guard that denies a call. It is filled in where the guard is asked."""


def mark_aside(draft: Envelope) -> Envelope:
    """The draft of an interjection by a participant that has the turn by now: it does not use the turn up."""
    return replace(draft, event_data={**draft.event_data, ASIDE_FIELD: True})


def mark_original(draft: Envelope, asked: Json) -> Envelope:
    """The draft that a hook has rewritten, with the digest of what its sender asked to record."""
    return replace(draft, event_data={**draft.event_data, ORIGINAL_FIELD: digest_of(asked)})


def original_digest(data: Json) -> str:
    """The digest of speech as its sender sent it, before any hook rewrote it."""
    kept = data.get(ORIGINAL_FIELD)
    return kept if isinstance(kept, str) else digest_of(data)


def check_draft(draft: Envelope) -> Deny | None:
    """Why this draft can be in no channel; None if it may be."""
    if _is_plain_text_draft(draft):
        return None
    return _check_stamps(draft) or _check_references(draft) or check_event(draft)


def check_event(draft: Envelope) -> Deny | None:
    """Why this event type or its data are not accepted from a participant."""
    event_type, data = draft.event_type, draft.event_data
    if (
        not isinstance(event_type, str)
        or len(event_type) > MAX_EVENT_TYPE_CHARS
        or not EVENT_TYPE_PATTERN.match(event_type)
    ):
        return Deny("bad_event_type", f"{describe(event_type)} is no dotted name such as 'myapp.review_request'")
    if event_type.startswith(RESERVED_PREFIXES) and event_type not in SENDABLE_TYPES:
        return Deny("reserved_event", f"{event_type!r} is the hub's own; use a namespace of yours")
    if type(data) is not dict:
        return Deny("not_json", f"event_data is {type(data).__name__}, not a dict")
    reserved = next((name for name in HUB_FIELDS if name in data), None) if event_type in SPEECH_TYPES else None
    if reserved is not None:
        return Deny("reserved_field", f"{reserved!r} is the hub's own; leave it out")
    denial = check_event_data(draft)
    if denial is None and draft.audience is not None and _writes_context(event_type, data):
        return Deny("bad_audience", "context variables are everybody's; a change of them has no audience")
    return denial


def check_event_data(draft: Envelope) -> Deny | None:
    """Why the data of this event cannot be recorded, from any sender."""
    event_type, data = draft.event_type, draft.event_data
    try:
        check_json(data)
    except Malformed as error:
        return Deny(error.reason, str(error))
    why = event_data_error(event_type, data)
    if why:
        return Deny("malformed", f"event_data of {event_type!r}: {why}")
    size = len(to_json(data)) + (len(to_json(draft.audience)) if draft.audience else 0)
    return Deny("too_large", f"it has {size} bytes; the limit is {MAX_EVENT_BYTES}") if size > MAX_EVENT_BYTES else None


def _writes_context(event_type: str, data: dict[str, object]) -> bool:
    """Whether this changes context variables. A packet has room for changes also if it makes none."""
    updates = data.get("context_updates") if event_type == EV_PACKET else None
    if event_type == EV_TEXT:
        return bool(data.get("set"))
    return event_type == EV_CONTEXT_SET or (isinstance(updates, dict) and any(updates.values()))


def _is_plain_text_draft(draft: Envelope) -> bool:
    """Whether this is a short text to everybody, by far the most common draft, and nothing is wrong with it."""
    data = draft.event_data
    if draft.event_type != EV_TEXT or type(data) is not dict or "text" not in data or not data.keys() <= PLAIN_FIELDS:
        return False
    return (
        all(
            type(text) is str and len(text) <= MAX_PLAIN_TEXT_CHARS and text.isascii() and "\0" not in text
            for text in data.values()
        )
        and draft.audience is None
        and draft.causation_id is None
        and type(draft.priority) is Priority
        and type(draft.sequence) is int
        and not draft.sequence
        and not draft.created_at
    )


def _check_stamps(draft: Envelope) -> Deny | None:
    if draft.sequence != 0 or type(draft.sequence) is not int:
        return Deny("forged_sequence", f"sequence is {describe(draft.sequence)}; only the hub numbers envelopes")
    if draft.created_at:
        return Deny("forged_time", f"created_at is {describe(draft.created_at)}; only the hub writes it")
    if type(draft.priority) is not Priority:
        return Deny("bad_priority", f"priority is {describe(draft.priority)}, not a Priority")
    return None


def _check_references(draft: Envelope) -> Deny | None:
    cause, audience = draft.causation_id, draft.audience
    if cause is not None and not _is_id_text(cause):
        return Deny("bad_causation", f"causation_id is {describe(cause)}, not an envelope id")
    if audience is None:
        return None
    if type(audience) is not list or not audience or len(audience) > MAX_AUDIENCE_NAMES:
        return Deny("bad_audience", f"audience is {describe(audience)}; give a list of names, or None for everybody")
    if not all(type(name) is str for name in audience):
        return Deny("bad_audience", f"audience {describe(audience)} holds something that is no name")
    return None


def _is_id_text(value: object) -> bool:
    return type(value) is str and 0 < len(value) <= MAX_EVENT_TYPE_CHARS and value.isascii() and value.isprintable()
