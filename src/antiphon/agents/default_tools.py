"""The tools that every agent has, unless it does without: about the time, its team, and itself.

Rule 1: they report, and change nothing but the active agent.
Rule 2: which of them an agent has follows from its place: only an agent with a lead can ask it for help.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from zoneinfo import ZoneInfo

from antiphon.agents.call_results import Transfer
from antiphon.agents.intents import TRANSFER_PREFIX
from antiphon.agents.team import CURRENT_DATE_DEFAULT, AgentFields
from antiphon.agents.tool import Tool, tool
from antiphon.agents.turn_channel import TurnChannel
from antiphon.core.envelope import to_datetime
from antiphon.core.text import describe


async def get_time_date(channel: TurnChannel, timezone: str = "UTC") -> str:
    """The date and time now.

    Args:
        timezone: A name such as Europe/Paris.
    """
    now = to_datetime(channel.now)
    if timezone != "UTC":
        try:
            now = now.astimezone(ZoneInfo(timezone))
        except (KeyError, ValueError, OSError):
            raise ValueError(
                f"no time zone is known as {describe(timezone)}; give a name such as Europe/Paris"
            ) from None
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
    return "\n".join(f"- {agent.name}: {_agent_description(agent)}" for agent in agents) or "There are none."


async def list_intents_available(channel: TurnChannel) -> str:
    """The phrases that are understood at once, and what each leads to."""
    intents = channel.member.declaration.intents
    return "\n".join(f"- {intent.phrase!r}: {intent.stands_for}" for intent in intents) or "There are none."


async def request_help(reason: str, channel: TurnChannel) -> Transfer:
    """Give the conversation back to whoever you work for, when you are stuck or it is not your part.

    Args:
        reason: What you need, or why you cannot go on.
    """
    assert channel.lead is not None, "only an agent with a lead has this"
    return Transfer(channel.lead, reason)


async def get_current_active_agent(channel: TurnChannel) -> str:
    """Who is speaking for the team now."""
    return channel.agent


async def get_supervisor_agent(channel: TurnChannel) -> str:
    """Whom you work for."""
    return channel.lead or "Nobody: you lead this team."


DEFAULT_FUNCTIONS = (
    get_time_date,
    list_tools_available,
    list_subagents_available,
    list_intents_available,
    request_help,
    get_current_active_agent,
    get_supervisor_agent,
)
DEFAULT_TOOLS = tuple(function.__name__ for function in DEFAULT_FUNCTIONS)
RUNTIME_TOOLS = frozenset({*DEFAULT_TOOLS, "handoff_conversation"})
"""Names of tools that the runtime offers, in which no server's tool may stand."""
OPTIONAL_DEFAULTS = (*DEFAULT_TOOLS, CURRENT_DATE_DEFAULT)
"""What an agent can do without, by name."""


@cache
def _default_tools() -> list[Tool]:
    return [tool(function) for function in DEFAULT_FUNCTIONS]


def default_tools_of(agent: AgentFields, *, led: bool, without: Collection[str]) -> list[Tool]:
    """The default tools of an agent in its place."""
    absent = set(without)
    if not led:
        absent.add("request_help")
    if not led and not agent.agents:
        absent |= {"get_current_active_agent", "get_supervisor_agent"}
    return [made for made in _default_tools() if made.name not in absent]


def transfer_tool(agent: AgentFields) -> Tool:
    """The tool that hands over to an agent."""

    async def transfer(reason: str = "") -> Transfer:
        return Transfer(agent.name, f"Conversation transferred to {agent.name}.")

    about = f" {_agent_description(agent)}" if agent.description else ""
    return tool(
        transfer,
        name=f"{TRANSFER_PREFIX}{agent.name}",
        description=f"Hand the conversation over to {agent.name}, who answers from then on.{about}",
    )


def _agent_description(agent: AgentFields) -> str:
    return agent.description or "no description"


def _first_line(text: str) -> str:
    return text.partition("\n")[0]
