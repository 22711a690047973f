"""What a draft must look like before any channel is asked.

These checks need no state. A participant's draft that fails one is refused with a stable reason; nothing of it is
kept. What depends on the channel (members, turns, audiences) is for the guards.
"""

from __future__ import annotations

import re
from dataclasses import replace

from antiphon.core.codec import MAX_BYTES, Malformed, check_json, to_json
from antiphon.core.envelope import Envelope, Priority
from antiphon.core.events import ASIDE, EV_CONTEXT_SET, EV_PACKET, EV_TEXT, RESERVED, SENDABLE, SUBSTANTIVE, fits
from antiphon.core.guard import Deny
from antiphon.core.words import shown

EVENT_TYPE = re.compile(r"[A-Za-z][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)+\Z")
MAX_TYPE = 128
MAX_AUDIENCE = 1000
LIGHT = 16_384
"""A plain text shorter than this is under every limit, whatever it consists of."""


def marked_aside(draft: Envelope) -> Envelope:
    """The draft of an interjection by a participant that has the turn by now: it does not use the turn up."""
    return replace(draft, event_data={**draft.event_data, ASIDE: True})


def check_draft(draft: Envelope) -> Deny | None:
    """Why this draft can be in no channel; None if it may be."""
    if _is_plain(draft):
        return None
    return _check_stamps(draft) or _check_edges(draft) or check_event(draft)


def check_event(draft: Envelope) -> Deny | None:
    """Why this event type or its data are not accepted from a participant."""
    event_type, data = draft.event_type, draft.event_data
    if not isinstance(event_type, str) or len(event_type) > MAX_TYPE or not EVENT_TYPE.match(event_type):
        return Deny("bad_event_type", f"{shown(event_type)} is no dotted name such as 'myapp.review_request'")
    if event_type.startswith(RESERVED) and event_type not in SENDABLE:
        return Deny("reserved_event", f"{event_type!r} is the hub's own; use a namespace of yours")
    if type(data) is not dict:
        return Deny("not_json", f"event_data is {type(data).__name__}, not a dict")
    if ASIDE in data and event_type in SUBSTANTIVE:
        return Deny("reserved_field", f"{ASIDE!r} is the hub's own; leave it out")
    denial = check_data(draft)
    if denial is None and draft.audience is not None and _writes_context(event_type, data):
        return Deny("bad_audience", "context variables are everybody's; a change of them has no audience")
    return denial


def check_data(draft: Envelope) -> Deny | None:
    """Why the data of this event cannot be recorded, whoever says it."""
    event_type, data = draft.event_type, draft.event_data
    try:
        check_json(data)
    except Malformed as error:
        return Deny(error.reason, str(error))
    why = fits(event_type, data)
    if why:
        return Deny("malformed", f"event_data of {event_type!r}: {why}")
    size = len(to_json(data)) + (len(to_json(draft.audience)) if draft.audience else 0)
    return Deny("too_large", f"it has {size} bytes; the limit is {MAX_BYTES}") if size > MAX_BYTES else None


def _writes_context(event_type: str, data: dict[str, object]) -> bool:
    """Whether this changes context variables. A packet has room for changes also if it makes none."""
    updates = data.get("context_updates") if event_type == EV_PACKET else None
    return event_type == EV_CONTEXT_SET or (isinstance(updates, dict) and any(updates.values()))


def _is_plain(draft: Envelope) -> bool:
    """Whether this is a short text to everybody, by far the most common draft, and nothing is wrong with it."""
    data = draft.event_data
    if draft.event_type != EV_TEXT or type(data) is not dict or len(data) != 1:
        return False
    text = data.get("text")
    return (
        type(text) is str
        and len(text) <= LIGHT
        and text.isascii()
        and "\0" not in text
        and draft.audience is None
        and draft.causation_id is None
        and type(draft.priority) is Priority
        and type(draft.sequence) is int
        and not draft.sequence
        and not draft.created_at
    )


def _check_stamps(draft: Envelope) -> Deny | None:
    if draft.sequence != 0 or type(draft.sequence) is not int:
        return Deny("forged_sequence", f"sequence is {shown(draft.sequence)}; only the hub numbers envelopes")
    if draft.created_at:
        return Deny("forged_time", f"created_at is {shown(draft.created_at)}; only the hub writes it")
    if type(draft.priority) is not Priority:
        return Deny("bad_priority", f"priority is {shown(draft.priority)}, not a Priority")
    return None


def _check_edges(draft: Envelope) -> Deny | None:
    cause, audience = draft.causation_id, draft.audience
    if cause is not None and not _is_word(cause):
        return Deny("bad_causation", f"causation_id is {shown(cause)}, not an envelope id")
    if audience is None:
        return None
    if type(audience) is not list or not audience or len(audience) > MAX_AUDIENCE:
        return Deny("bad_audience", f"audience is {shown(audience)}; give a list of names, or None for everybody")
    if not all(type(name) is str for name in audience):
        return Deny("bad_audience", f"audience {shown(audience)} holds something that is no name")
    return None


def _is_word(value: object) -> bool:
    return type(value) is str and 0 < len(value) <= MAX_TYPE and value.isascii() and value.isprintable()
