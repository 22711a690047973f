"""The envelope: one immutable recorded fact.

Rule 1: exactly these ten fields. Anything else belongs in `event_data`.
Rule 2: the hub stamps `envelope_id`, `created_at` and `sequence`, once. An envelope without them is a draft.
Rule 3: who may see an envelope is answered by `visible_to` and by nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

HUB = "hub"
"""The sender of everything the hub says itself."""

OPERATORS = "hub:operators"
"""An audience that no participant is part of: bookkeeping that only the operator's view shows."""


class Priority(IntEnum):
    """Orders drafts that wait for admission. It never reorders a log."""

    BACKGROUND = 0
    NORMAL = 1
    URGENT = 2


@dataclass(frozen=True, slots=True)
class Envelope:
    """Who said what to whom, because of which other envelope. A draft until the hub has stamped it."""

    envelope_id: str = ""
    channel_id: str = ""
    sender_id: str = ""
    audience: list[str] | None = None
    """None is everybody in the channel; otherwise only those named, and the sender."""
    event_type: str = ""
    event_data: dict[str, object] = field(default_factory=dict)
    causation_id: str | None = None
    """The envelope this one answers."""
    priority: Priority = Priority.NORMAL
    created_at: str = ""
    sequence: int = 0


def visible_to(envelope: Envelope, agent_id: str) -> bool:
    """Whether this participant of the channel may see the envelope. A sender sees its own."""
    audience = envelope.audience
    return audience is None or agent_id in audience or envelope.sender_id == agent_id
