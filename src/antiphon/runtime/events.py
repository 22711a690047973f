"""What `stream_invoke` tells of a turn, in the order it happens."""

from __future__ import annotations

import msgspec

from antiphon.agents.messages import NO_USAGE, Usage
from antiphon.core.events import Json


class ToolUsageEvent(msgspec.Struct, frozen=True):
    """The agent's model asked for a tool."""

    agent: str
    tool: str
    args: Json
    call_id: str
    """The same in the response."""


class ToolResponseEvent(msgspec.Struct, frozen=True):
    """A tool returned, or failed; the text is what the model was told."""

    agent: str
    tool: str
    text: str
    call_id: str
    failed: bool = False


class TokenEvent(msgspec.Struct, frozen=True):
    """A piece of text on its way; only if asked for, and only while it comes."""

    agent: str
    text: str


class AIMessageEvent(msgspec.Struct, frozen=True):
    """The agent's answer, whole."""

    agent: str
    text: str


class FinalStateEvent(msgspec.Struct, frozen=True):
    """The turn has ended, or waits for a person. Last, and once, also if it failed."""

    agent: str
    text: str = ""
    stopped: str | None = None
    """The named limit, or the reason the turn failed for; None if it ended by itself."""
    detail: str = ""
    usage: Usage = NO_USAGE
    channel_id: str = ""
    """The channel that is the thread."""


AgentEvent = ToolUsageEvent | ToolResponseEvent | TokenEvent | AIMessageEvent | FinalStateEvent
