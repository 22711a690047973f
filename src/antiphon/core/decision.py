"""What happens next, in three shapes and no more."""

from __future__ import annotations

import msgspec


class Assign(msgspec.Struct, frozen=True):
    """These participants have the turn."""

    speakers: tuple[str, ...]
    reason: str = ""


class Wait(msgspec.Struct, frozen=True):
    """Nothing changes: somebody still has the turn, or nobody needs it."""


class Close(msgspec.Struct, frozen=True):
    """The channel ends, and why."""

    reason: str


Decision = Assign | Wait | Close
WAIT = Wait()
