"""A tool by which a model gives another agent a task: it does the work elsewhere, and reports back."""

from __future__ import annotations

from antiphon.agents.context import TurnChannel
from antiphon.agents.declaration import Declaration
from antiphon.agents.tool import Tool, tool
from antiphon.core.errors import UsageError
from antiphon.core.words import shown

DELEGATE = "delegate_to_"


def delegate(agent: Declaration, *, name: str | None = None, ttl: float | None = None) -> Tool:
    """A tool that has an agent do something in a channel of its own, and returns what it reports.

    Whoever calls it keeps the conversation; to hand it over, make the agent a sub-agent. `ttl` is how many seconds a
    task may take.
    """
    if not isinstance(agent, Declaration):
        raise UsageError(f"{shown(agent)} cannot be given tasks; give an Agent")
    if ttl is not None and (isinstance(ttl, bool) or not isinstance(ttl, int | float) or not ttl > 0):
        raise UsageError(f"ttl of tasks for {agent.name!r} is {shown(ttl)}; give seconds above 0, or None")

    known: dict[tuple[str | None, float | None], Tool] = agent.__dict__.setdefault("_delegations", {})
    if (name, ttl) not in known:  # the same each time, so that an agent made again is the same agent
        known[name, ttl] = _made(agent, name, ttl)
    return known[name, ttl]


def _made(agent: Declaration, name: str | None, ttl: float | None) -> Tool:
    async def work(task: str, channel: TurnChannel) -> str:
        reply = await channel.delegate(agent, task, ttl=ttl)
        return reply.text if reply.stopped is None else f"{reply.text}\n[It was stopped: {reply.stopped}]".strip()

    about = f" {agent.description}" if agent.description else ""
    return tool(
        work,
        name=f"{DELEGATE}{agent.name}" if name is None else name,
        description=f"Have {agent.name} do something, and get a report. Say all that it needs to know.{about}",
        timeout=None,
    )
