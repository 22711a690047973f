"""Tools that change state, where a mistake cannot be undone: they need a way back, or a person who allows each call."""

from __future__ import annotations

from antiphon.agents.team import Team
from antiphon.agents.tool import Tool

REGULATED = "regulated"
ADVICE = "give it compensate=…, or approval=True, or declare idempotency='natural' if a second call changes nothing"


def is_unprotected(tool: Tool) -> bool:
    """Whether a tool changes state, and can neither be undone nor is allowed by a person."""
    return tool.changes_state and tool.compensate is None and tool.protections.approval is False


def unprotected_complaint(team: Team) -> str | None:
    """Why this team cannot work in the tier `regulated`; None if it can."""
    for member in team.members.values():
        for tool in member.tools.values():
            if is_unprotected(tool):
                what = f"{member.name!r} has the tool {tool.name!r}, which is {tool.idempotency}"
                return f"{what}; in the tier {REGULATED!r} {ADVICE}"
    return None
