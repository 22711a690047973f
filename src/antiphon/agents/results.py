"""What a tool may return beside a value: that the turn goes to somebody else, or that the work is finished."""

from __future__ import annotations

import msgspec


class Handoff(msgspec.Struct, frozen=True):
    """Give the turn to another participant."""

    target: str
    reason: str = ""
    summary: str = ""


class Finish(msgspec.Struct, frozen=True):
    """End the channel: there is nothing left to do."""

    reason: str


class NotDone(msgspec.Struct, frozen=True):
    """What `reconcile` returns of a call that did not take effect, so that it can safely be made."""


NOT_DONE = NotDone()
