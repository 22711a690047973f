"""The tools that every agent has, unless it does without: about the time, its team, and itself.

Rule 1: they tell what is so, and change nothing but who is active.
Rule 2: which of them an agent has follows from its place: only somebody with a lead can ask it for help.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from antiphon.agents.context import TurnChannel
from antiphon.agents.intents import TRANSFER
from antiphon.agents.results import Transfer
from antiphon.agents.tool import Tool, tool
from antiphon.core.instants import moment
from antiphon.core.words import shown

if TYPE_CHECKING:
    from antiphon.agents.declaration import Declaration

DEFAULT_TOOLS = (
    "get_time_date",
    "list_tools_available",
    "list_subagents_available",
    "list_intents_available",
    "request_help",
    "get_current_active_agent",
    "get_supervisor_agent",
)
RUNTIME_TOOLS = frozenset({*DEFAULT_TOOLS, "handoff_conversation"})
"""Names of tools that the runtime offers, in which no server's tool may stand."""
CURRENT_DATE = "current_date"
DEFAULTS = (*DEFAULT_TOOLS, CURRENT_DATE)
"""What an agent can do without, by name."""


async def get_time_date(channel: TurnChannel, timezone: str = "UTC") -> str:
    """The date and time now.

    Args:
        timezone: A name such as Europe/Paris.
    """
    now = moment(channel.now)
    if timezone != "UTC":
        try:
            now = now.astimezone(ZoneInfo(timezone))
        except (KeyError, ValueError, OSError):
            raise ValueError(f"no time zone is known as {shown(timezone)}; give a name such as Europe/Paris") from None
    return f"{now.isoformat(timespec='seconds')} ({now:%A}, {timezone})"


async def list_tools_available(channel: TurnChannel) -> str:
    """The tools that you can use."""
    member = channel.member
    lines = [f"- {each.name}: {_first_line(each.description)}" for each in member.tools.values()]
    if not member.calls_tools:
        lines.insert(0, "Your model does not call tools: you can only talk. There would be:")
    return "\n".join(lines)


async def list_subagents_available(channel: TurnChannel) -> str:
    """The agents that you can hand over to."""
    agents = channel.member.declaration.agents
    return "\n".join(f"- {agent.name}: {_about(agent)}" for agent in agents) or "There are none."


async def list_intents_available(channel: TurnChannel) -> str:
    """The phrases that are understood at once, and what each leads to."""
    intents = channel.member.intents
    return "\n".join(f"- {intent.phrase!r}: {intent.stands_for}" for intent in intents) or "There are none."


async def request_help(reason: str, channel: TurnChannel) -> Transfer:
    """Give the conversation back to whoever you work for, when you are stuck or it is not your part.

    Args:
        reason: What you need, or why you cannot go on.
    """
    assert channel.lead is not None, "only somebody with a lead has this"
    return Transfer(channel.lead, reason)


async def get_current_active_agent(channel: TurnChannel) -> str:
    """Who is speaking for the team now."""
    return channel.agent


async def get_supervisor_agent(channel: TurnChannel) -> str:
    """Whom you work for."""
    return channel.lead or "Nobody: you lead this team."


@cache
def _made() -> dict[str, Tool]:
    functions = (
        get_time_date,
        list_tools_available,
        list_subagents_available,
        list_intents_available,
        request_help,
        get_current_active_agent,
        get_supervisor_agent,
    )
    return {function.__name__: tool(function) for function in functions}


def default_tools(agent: Declaration, *, led: bool, without: Collection[str]) -> list[Tool]:
    """The default tools of an agent in its place."""
    absent = set(without)
    if not led:
        absent.add("request_help")
    if not led and not agent.agents:
        absent |= {"get_current_active_agent", "get_supervisor_agent"}
    return [made for name, made in _made().items() if name not in absent]


def transfer_tool(agent: Declaration) -> Tool:
    """The tool that hands over to an agent."""

    async def transfer(reason: str = "") -> Transfer:
        return Transfer(agent.name, f"Conversation transferred to {agent.name}.")

    about = f" {_about(agent)}" if agent.description else ""
    return tool(
        transfer,
        name=f"{TRANSFER}{agent.name}",
        description=f"Hand the conversation over to {agent.name}, who answers from then on.{about}",
    )


def _about(agent: Declaration) -> str:
    return agent.description or "no description"


def _first_line(text: str) -> str:
    return text.partition("\n")[0]
