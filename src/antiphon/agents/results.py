"""What a tool may return beside a value: that the turn goes to somebody else, or that the work is finished."""

from __future__ import annotations

import msgspec

from antiphon.agents.messages import NO_USAGE, Usage


class Handoff(msgspec.Struct, frozen=True):
    """Give the turn to another participant."""

    target: str
    reason: str = ""
    summary: str = ""


class Finish(msgspec.Struct, frozen=True):
    """End the channel: there is nothing left to do."""

    reason: str


class Transfer(msgspec.Struct, frozen=True):
    """Somebody else of the team becomes active; the text is what the call came to."""

    target: str
    text: str


class AgentReply(msgspec.Struct, frozen=True):
    """What an agent that was asked came to: what `invoke` returns, and what a task reports."""

    text: str
    agent: str
    """Who answered."""
    stopped: str | None = None
    """The named limit that ended the turn, whose partial text this is; None if it ended by itself."""
    usage: Usage = NO_USAGE
    """What the models consumed, tasks included."""
    channel_id: str = ""
    """The channel that is the thread, or the task."""
    output: object = None
    """The answer as the value it stands for, if the agent has an `output`."""


class NotDone(msgspec.Struct, frozen=True):
    """What `reconcile` returns of a call that did not take effect, so that it can safely be made."""


NOT_DONE = NotDone()
