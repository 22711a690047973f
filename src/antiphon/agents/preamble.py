"""What an agent is told beside its own prompt: for whom it works, and what day it is. Each once."""

from __future__ import annotations

HEADING = "SUPERVISOR SYSTEM PROMPT:"
OWN = "SUBAGENT SYSTEM PROMPT:"
DATE = "Current date:"


def preceded(system: str, lead: str | None, *, helps: bool) -> str:
    """The prompt of somebody who works for a lead, with what that means before it."""
    if lead is None or system.startswith(HEADING):
        return system
    way_out = " If you are not sure, call `request_help` and say why." if helps else ""
    return f"{HEADING}\nYou are a specialist who works for {lead}. Keep to your own part.{way_out}\n\n{OWN}\n{system}"


def dated(system: str, date: str) -> str:
    """The prompt with the day, unless it says so already."""
    if not date or date in system or DATE.lower() in system.lower():
        return system
    return f"{system}\n\n{DATE} {date}" if system else f"{DATE} {date}"
