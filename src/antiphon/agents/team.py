"""A team: everybody below an agent, each in its place.

Rule 1: a place is known by its path, the names from whoever was asked down. One agent may stand in several places.
Rule 2: a team is checked when its agent is made: nothing about it is found out in a turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from antiphon.agents.calling import BadArguments, bound
from antiphon.agents.defaults import CURRENT_DATE, RUNTIME_TOOLS, default_tools
from antiphon.agents.intents import TRANSFER, Intent
from antiphon.agents.limits import Limits
from antiphon.agents.mentions import BLANKS, mentioned
from antiphon.agents.messages import ToolSpec
from antiphon.agents.output import Output
from antiphon.agents.progress import Path
from antiphon.agents.steps import Steps
from antiphon.agents.tool import Tool
from antiphon.core.errors import UsageError
from antiphon.core.words import shown

if TYPE_CHECKING:
    from antiphon.agents.declaration import Declaration

MOST_PLACES = 1000
"""How many places a team may have. Agents that share others have many."""
SERVER_ADVICE = "open the server with prefix=…, or leave its tool out with without=[…]"
LEAD = "lead"
"""How whoever was asked can always be addressed."""


class Member(msgspec.Struct, frozen=True):
    """An agent in its place in a team."""

    path: Path
    declaration: Declaration
    tools: Mapping[str, Tool]
    """What it can call, by name."""
    specs: tuple[ToolSpec, ...]
    reach: Mapping[str, Path]
    """To whom it can hand over: its sub-agents, its lead, and whoever that one works for."""
    calls_tools: bool
    """Whether its model can be told of tools at all."""

    @property
    def name(self) -> str:
        return self.declaration.name

    @property
    def offered(self) -> tuple[ToolSpec, ...]:
        """The tools that its model is told of."""
        return self.specs if self.calls_tools else ()

    @property
    def steps(self) -> Steps:
        return self.declaration.steps

    @property
    def intents(self) -> Sequence[Intent]:
        return self.declaration.intents

    @property
    def helps(self) -> bool:
        """Whether it can ask its lead for help."""
        return "request_help" in self.tools

    @property
    def dated(self) -> bool:
        """Whether it is told the date."""
        return CURRENT_DATE not in self.declaration.without

    def is_direct(self, name: str) -> bool:
        """Whether what this tool returns is the answer."""
        tool = self.tools.get(name)
        return tool is not None and tool.return_direct


class Team(msgspec.Struct, frozen=True):
    """Everybody who may answer when one agent is asked."""

    members: Mapping[Path, Member]
    names: Mapping[str, Path]
    """Whom a person can address, by the name in lower case; of several, the one that is nearest."""
    root: Path
    output: Output | None

    @property
    def lead(self) -> Member:
        """Whoever is asked."""
        return self.members[self.root]

    @property
    def limits(self) -> Limits:
        """How far a turn may go: as whoever is asked says."""
        return self.lead.declaration.limits

    def route(self, heard: str | None, stored: Path) -> Path:
        """Who handles a turn: whom a person addresses, then whoever answered last, then whoever is asked."""
        addressed = mentioned(heard) if heard is not None else None
        last = (*self.root, *stored)
        last = last if last in self.members else self.root
        if addressed is None or addressed not in self.names or addressed == last[-1].lower():
            return last
        return self.names[addressed]

    def meant(self, heard: str) -> str:
        """What a person said, without the name that it is addressed to."""
        addressed = mentioned(heard)
        return heard[len(addressed) + 1 :] if addressed is not None and addressed in self.names else heard

    def read(self, heard: str) -> str:
        """What a person said as an agent of the team reads it: without the mention, unless nothing else was said."""
        return self.meant(heard).lstrip(BLANKS) or heard if heard.startswith("@") else heard

    def output_at(self, path: Path) -> Output | None:
        """The shape that an answer must have: as whoever was asked wants it, else whoever answers."""
        return self.output or self.members[path].declaration.shape


def team_of(agent: Declaration) -> Team:
    """The team of an agent; `UsageError` if two of it could be taken for each other."""
    members = {member.path: member for member in islice(_members(agent, ()), MOST_PLACES + 1)}
    if len(members) > MOST_PLACES:
        raise UsageError(
            f"the team of {agent.name!r} has more than {MOST_PLACES} places; let fewer agents share others"
        )
    names: dict[str, Path] = {}
    for path in sorted(members, key=len):
        names.setdefault(path[-1].lower(), path)
    names.setdefault(LEAD, (agent.name,))
    return Team(members, names, (agent.name,), agent.shape)


def _members(agent: Declaration, above: Path) -> Iterator[Member]:
    path = (*above, agent.name)
    if agent.name.lower() in (name.lower() for name in above):
        raise UsageError(f"{'/'.join(path)}: an agent cannot work for one of its own name; give one another name")
    yield _member(agent, path)
    for below in agent.agents:
        yield from _members(below, path)


def _member(agent: Declaration, path: Path) -> Member:
    led = len(path) > 1
    tools = {tool.name: tool for tool in (*agent.toolbox, *(below.transfer for below in agent.agents))}
    for default in default_tools(agent, led=led, without=agent.without):
        tools.setdefault(default.name, default)  # one of your own of this name stands in its place
    reach = {below.name: (*path, below.name) for below in agent.agents}
    reach |= {name: path[: depth + 1] for depth, name in enumerate(path[:-1])}
    specs = tuple(tool.spec for tool in tools.values())
    return Member(path, agent, tools, specs, reach, getattr(agent.model, "calls_tools", True) is not False)


def check_tools(agent: Declaration) -> None:
    """`UsageError` if two tools have one name, or a server's tool would stand in for one of the runtime's."""
    known: dict[str, Tool] = {}
    for tool in agent.toolbox:
        first = known.get(tool.name) or known.get(tool.name.lower())
        # A server's `Refund` beside your `refund` would be taken for it; two of your own are yours to tell apart.
        if first is not None and (first.name == tool.name or first.source or tool.source):
            raise UsageError(_two_called(agent, first, tool))
        known[tool.name.lower()] = known[tool.name] = tool
        if tool.source and _is_of_the_runtime(tool.name.lower(), agent.without):
            called = f"{agent.name!r} has a tool {tool.name!r} of {tool.source}, a name that belongs to the runtime"
            raise UsageError(f"{called}; {SERVER_ADVICE}")


def _is_of_the_runtime(name: str, without: Sequence[str]) -> bool:
    return (name in RUNTIME_TOOLS and name not in without) or name.startswith(TRANSFER)


def _two_called(agent: Declaration, first: Tool, second: Tool) -> str:
    names = " and ".join(map(repr, dict.fromkeys((first.name, second.name))))
    both = f"{agent.name!r} has two tools called {names}"
    if not first.source and not second.source:
        return f"{both}; give one of them another name"
    origins = " and ".join(f"one of {tool.source}" if tool.source else "one of its own" for tool in (first, second))
    return f"{both}, {origins}; {SERVER_ADVICE}"


def check_agents(agent: Declaration) -> None:
    """`UsageError` if two sub-agents, or a tool and a handover, have one name."""
    names = [below.name.lower() for below in agent.agents]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"{agent.name!r} has two sub-agents called {twice!r}; give one of them another name")
    for tool in agent.toolbox:
        if tool.name.startswith(TRANSFER) and tool.name.removeprefix(TRANSFER).lower() in names:
            raise UsageError(f"{agent.name!r} has a tool {tool.name!r} of its own; its sub-agent needs that name")


def check_intents(agent: Declaration) -> None:
    """`UsageError` if an intent stands for something that the agent does not have."""
    below = [each.name for each in agent.agents]
    led = {tool.name: tool for tool in default_tools(agent, led=True, without=agent.without)}
    tools = {**led, **agent.team.lead.tools}  # it may have to work for somebody
    for intent in agent.intents:
        owner = f"the intent {intent.phrase!r} of {agent.name!r}"
        wanted, known = (intent.agent, below) if intent.tool is None else (intent.tool, list(tools))
        if wanted is not None and wanted not in known:
            there = ", ".join(known) or "none"
            raise UsageError(f"{owner} leads to {intent.stands_for}; there are: {there}")
        if intent.tool is not None:
            _check_args(intent, tools[intent.tool], owner)


def _check_args(intent: Intent, tool: Tool, owner: str) -> None:
    try:
        bound(tool, intent.args)
    except BadArguments as error:
        raise UsageError(f"{owner} has args={shown(intent.args)}. {error}") from error


def shown_path(path: Path) -> str:
    """A place as the log keeps it."""
    return "/".join(path)


def read_path(text: str) -> Path:
    """A place as it is read from a log."""
    return tuple(text.split("/")) if text else ()


def check_without(agent: Declaration, known: Sequence[str]) -> None:
    """`UsageError` if something is to be left out that is no default."""
    strange = [name for name in agent.without if name not in known]
    if strange:
        raise UsageError(f"{agent.name!r} cannot do without {shown(strange[0])}; there are: {', '.join(known)}")
