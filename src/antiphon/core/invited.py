"""What is recorded between the invitations to a channel and its opening.

Rule 1: `events` re-exports these types, together with all others.
"""

from __future__ import annotations

import msgspec


class Acknowledged(msgspec.Struct, frozen=True):
    """The sender accepted the invitation."""


class Rejected(msgspec.Struct, frozen=True):
    """The sender turned the invitation down."""

    reason: str = ""


class Prepared(msgspec.Struct, frozen=True):
    """What the creator says first, once every guest has accepted."""

    text: str
