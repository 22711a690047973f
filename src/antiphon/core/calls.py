"""What is recorded of the calls that a turn makes: of models, tools and steps.

Rule 1: a call is known by its turn and its position among the calls of it.
Rule 2: whoever reads events finds these in `events`, with all others.
"""

from __future__ import annotations

import msgspec

EV_CALL_STARTED = "antiphon.call.started"
EV_CALL_FINISHED = "antiphon.call.finished"
EV_CALL_FAILED = "antiphon.call.failed"
EV_CALL_RETRIED = "antiphon.call.retried"
EV_CALL_DOUBTED = "antiphon.call.doubted"
EV_CALL_CLEARED = "antiphon.call.cleared"
EV_CALL_CONFLICTED = "antiphon.call.conflicted"

Json = dict[str, object]


class CallStarted(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call is about to leave. Of a model request only the digest is kept, of a tool its arguments too."""

    turn: str
    index: int
    """Its position among the calls of its turn."""
    name: str
    digest: str
    args: Json | None = None
    """None if it is a model that is asked."""
    key: str = ""
    """The idempotency key the tool was given."""
    agent: str = ""
    """Who of the speaker's team makes it, as in a text; "" for the speaker itself."""


class CallFinished(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call has returned."""

    turn: str
    index: int
    result: Json
    by: str = ""
    """Who settled it, if it was in doubt."""


class CallFailed(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call came to nothing; of a tool, this is what the model is told."""

    turn: str
    index: int
    error: str
    by: str = ""
    usage: Json = msgspec.field(default_factory=dict)
    """What models consumed within it, if any did."""


class CallRetried(msgspec.Struct, frozen=True, omit_defaults=True):
    """A model could not be asked, or broke off, and is asked again after a while. Written before the wait."""

    turn: str
    index: int
    attempt: int
    """Which attempt at this call it was that came to nothing, counted from 1."""
    error: str
    delay: float
    """How many seconds are waited."""
    status: int | None = None
    """The HTTP status, if there was an answer at all."""


class CallDoubted(msgspec.Struct, frozen=True, omit_defaults=True):
    """Nobody knows whether a call took effect. Its turn waits for a person."""

    turn: str
    index: int
    name: str
    speaker: str = ""
    why: str = ""


class CallCleared(msgspec.Struct, frozen=True, omit_defaults=True):
    """A person has decided that the call in doubt is to be made again."""

    turn: str
    index: int
    by: str = ""


class CallConflicted(msgspec.Struct, frozen=True):
    """A turn that was run again asked for something else than its journal holds at this position."""

    turn: str
    index: int
    name: str
    recorded: str
    asked: str
