"""What happened, as one number: two logs with the same digest tell the same story."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from antiphon.core.codec import to_json
from antiphon.core.envelope import Envelope

UNTOLD = frozenset({"mark", "delta_ms"})
"""Data that only says when something was."""


def canonical_digest(log: Iterable[Envelope]) -> str:
    """The digest of a log without its ids and times: who said what to whom, because of what, in which order."""
    places: dict[str, int] = {}
    story = []
    for envelope in log:
        places[envelope.envelope_id] = envelope.sequence
        data = {key: value for key, value in sorted(envelope.event_data.items()) if key not in UNTOLD}
        cause = places.get(envelope.causation_id or "", 0)
        story.append([envelope.sequence, envelope.sender_id, envelope.audience, envelope.event_type, data, cause])
    return hashlib.sha256(to_json(story)).hexdigest()
