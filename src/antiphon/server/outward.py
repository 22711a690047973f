"""Events of a turn as they leave the server.

Rule 1: nothing that leaves holds the text of an exception. Operators read it in the log, with `view=operator`.
"""

from __future__ import annotations

from msgspec.structs import replace

from antiphon.core.disclosure import TOOL_FAILED, disclosed
from antiphon.runtime.events import AgentEvent, FinalStateEvent, ToolResponseEvent


def outward(event: AgentEvent) -> AgentEvent:
    """The event as a client is told it."""
    match event:
        case ToolResponseEvent(failed=True):
            return replace(event, text=TOOL_FAILED)
        case FinalStateEvent(stopped=str(stopped), detail=detail):
            return replace(event, detail=disclosed(stopped, detail))
        case _:
            return event
