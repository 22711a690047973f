"""The tool by which an agent hands a conversation over, and the teams that are offered it.

Rule 1: the tool only says where the conversation is to go. Whether that is possible is decided by the channel.
Rule 2: every member of a team is offered it, with the targets of the channel in its description. A tool of this name
        that is the agent's own stays.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import msgspec

from antiphon.agents.call_results import Handoff
from antiphon.agents.team import Member, Team
from antiphon.agents.tool import Tool, tool

HANDOFF_TOOL_NAME = "handoff_conversation"
MAX_CACHED_TEAMS = 256


async def handoff_conversation(
    *,
    target: str,
    reason: str,
    summary: str,
    next_phase: str | None = None,
    channel_escalation: Literal["same", "voice", "email", "sms"] = "same",
) -> Handoff:
    """Hand the conversation over to another agent or to a person, when it is not your part or you cannot go on.

    Args:
        target: The name or alias of an agent, or human for a person.
        reason: Why the handoff is needed.
        summary: What the next one needs to know.
        next_phase: The phase of the conversation from then on.
        channel_escalation: The transport by which replies leave from then on.
    """
    escalation = "" if channel_escalation == "same" else channel_escalation
    return Handoff(target, reason, summary, next_phase or "", escalation, briefing=True)


HANDOFF_TOOL: Tool = tool(handoff_conversation)


class OfferedTeams:
    """Teams whose members are offered the tool, by the team and the targets of a channel."""

    def __init__(self) -> None:
        self._made: OrderedDict[tuple[int, tuple[str, ...]], tuple[Team, Team]] = OrderedDict()

    def offering(self, team: Team, targets: Sequence[str]) -> Team:
        """The team with the tool, the same object each time."""
        key = id(team), tuple(targets)
        known = self._made.get(key)
        if known is not None and known[0] is team:  # an id may be used again, once its team is gone
            return known[1]
        made = _offering_team(team, key[1])
        self._made[key] = team, made
        if len(self._made) > MAX_CACHED_TEAMS:
            self._made.popitem(last=False)
        return made


def _offering_team(team: Team, targets: tuple[str, ...]) -> Team:
    offered = replace(HANDOFF_TOOL, description=f"{HANDOFF_TOOL.description} Targets: {', '.join(targets)}.")
    members = {path: _offering_member(member, offered) for path, member in team.members.items()}
    return msgspec.structs.replace(team, members=members)


def _offering_member(member: Member, offered: Tool) -> Member:
    own = member.tools.get(HANDOFF_TOOL_NAME)
    if own is not None and own.function is not HANDOFF_TOOL.function:
        return member
    tools = {**member.tools, HANDOFF_TOOL_NAME: offered}
    return msgspec.structs.replace(member, tools=tools, specs=tuple(each.spec for each in tools.values()))
