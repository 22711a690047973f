"""An agent: a frozen declaration in which nothing runs and nothing changes, and the tool that delegates to one.

An agent is checked when it is made, and so is its team: no turn finds a mistake in them.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeGuard, cast

from antiphon.agents.approval_options import tools_with_approval
from antiphon.agents.default_tools import OPTIONAL_DEFAULTS, RUNTIME_TOOLS, default_tools_of, transfer_tool
from antiphon.agents.intents import TRANSFER_PREFIX, Intent
from antiphon.agents.loop import DEFAULT_STEPS, with_intents
from antiphon.agents.messages import ToolSpec
from antiphon.agents.output_spec import output_spec_of
from antiphon.agents.progress import MemberPath
from antiphon.agents.state_changes import REGULATED, unprotected_complaint
from antiphon.agents.steps import Steps, check_steps
from antiphon.agents.team import AgentFields, Limits, Member, StepsPatcher, Team
from antiphon.agents.tool import BadArguments, Tool, as_tool, bind_arguments, tool
from antiphon.agents.turn_channel import TurnChannel
from antiphon.core.approval_rules import APPROVAL_KNOBS, approval_rules
from antiphon.core.envelope import Json, check_name
from antiphon.core.errors import UsageError
from antiphon.core.text import describe, describe_error
from antiphon.guards.named_guards import guards_of, guards_to_data


@dataclass(frozen=True)
class Declaration(AgentFields):
    """An agent: its name, its model, its prompt, and the agents and tools it may use."""

    agents: Sequence[Declaration] = ()
    """Its sub-agents, to whom it can hand over."""

    def __post_init__(self) -> None:
        check_name(self.name)
        self._check_fields()
        self._check_lists()
        below = filter(is_agent, self.tools)
        tools = tuple(as_tool(cast("Tool", each)) for each in self.tools if not is_agent(each))
        self._set("agents", tuple({id(each): each for each in (*self.agents, *below)}.values()))
        self._set("tools", tools)
        self._set("toolbox", tools_with_approval(self.name, tools, self.approve) if self.approve else tools)
        self._set("intents", tuple(self.intents))
        self._set("without", tuple(self.without))
        self._set("shape", None if self.output is None else output_spec_of(self.output, self.name))
        self._set("transfer", transfer_tool(self))
        self._set("own_channel_knobs", _own_channel_knobs(self))
        _check_tool_names(self)
        _check_agent_names(self)
        _check_omitted_defaults(self)
        self._set("steps", self._patched_steps())
        self._set("team", _team_of(self))
        _check_intents(self)
        complaint = unprotected_complaint(self.team) if self.tier == REGULATED else None
        if complaint is not None:
            raise UsageError(complaint)
        if self.require_tools and not self.team.lead.calls_tools:
            advice = "give it a model that does, or require_tools=False"
            raise UsageError(f"{self.name!r} requires tools, which its model does not call; {advice}")

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """The specs of its own tools."""
        return tuple(tool.spec for tool in self.toolbox)

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _check_fields(self) -> None:
        model, prompt, memory, patcher = self.model, self.system_prompt, self.memory, self.patcher
        required: object = self.require_tools
        is_view = memory is None or (not isinstance(memory, type) and callable(getattr(memory, "shown", None)))
        checks: tuple[tuple[str, object, bool, str], ...] = (
            ("the model", model, callable(model) and not isinstance(model, type), AGENT_MODEL_ADVICE),
            ("system_prompt", prompt, isinstance(prompt, str) or callable(prompt), PROMPT_ADVICE),
            ("description", self.description, isinstance(self.description, str), "give a text"),
            ("limits", self.limits, isinstance(self.limits, Limits), "give Limits(…)"),
            ("memory", memory, is_view, "give a view such as WindowedSummary(20)"),
            ("patcher", patcher, patcher is None or callable(patcher), "give a function of the steps"),
            ("require_tools", required, isinstance(required, bool | None), "give True, False or None"),
        )
        for what, given, fits, advice in checks:
            if not fits:
                raise UsageError(f"{what} of {self.name!r} is {describe(given)}; {advice}")

    def _check_lists(self) -> None:
        for name, kind, wanted in LIST_FIELDS:
            given: object = getattr(self, name)
            if not isinstance(given, list | tuple):
                raise UsageError(f"{name} of {self.name!r} is {describe(given)}; give a list of {wanted}")
            strange = [each for each in given if kind is not None and not isinstance(each, kind)]
            if strange:
                raise UsageError(f"{name} of {self.name!r} holds {describe(strange[0])}; give a list of {wanted}")

    def _patched_steps(self) -> Steps:
        steps = with_intents(DEFAULT_STEPS) if self.intents else DEFAULT_STEPS
        if self.patcher is None:
            return steps
        return check_steps(_call_patcher(self.patcher, steps, self.name), self.name)


def _own_channel_knobs(agent: AgentFields) -> Json:
    """The knobs of an agent's threads; `RulesInvalid` if its guards or its tier mean nothing."""
    knobs: Json = {"guards": guards_to_data(agent.guards)} if agent.guards else {}
    if agent.tier is not None:
        knobs["tier"] = agent.tier
    wanted = (list(agent.approvers) or None, agent.self_approval or None, agent.approval_seconds)
    knobs |= {name: value for name, value in zip(APPROVAL_KNOBS, wanted, strict=True) if value is not None}
    guards_of(knobs)
    if any(value is not None for value in wanted):
        approval_rules(knobs)
    return knobs


def is_agent(value: object) -> TypeGuard[Declaration]:
    """Whether this is an agent."""
    return isinstance(value, Declaration)


LIST_FIELDS: tuple[tuple[str, type | None, str], ...] = (
    ("tools", None, "functions"),
    ("agents", Declaration, "agents"),
    ("intents", Intent, "Intent('phrase', …)"),
    ("without", str, "names of default tools"),
    ("guards", None, "guards"),
    ("approvers", str, "names of people and roles"),
)


def _call_patcher(patcher: StepsPatcher, steps: Steps, agent: str) -> object:
    """What the patcher returns. What it raises is a mistake in the agent that has it."""
    try:
        given: object = patcher(steps)
    except UsageError:
        raise
    except Exception as error:
        advice = "let it return the table of steps that it was given, changed or not"
        raise UsageError(f"the patcher of {agent!r} raised {describe_error(error)}; {advice}") from error
    if inspect.iscoroutine(given):
        given.close()  # it is never awaited
    return given


AGENT_MODEL_ADVICE = "give a model, or an async function of the request that returns says(…) or calls(…)"
PROMPT_ADVICE = "give a text, or a function of the messages"
MAX_TEAM_PLACES = 1000
"""How many places a team may have. Agents that share others have many."""
TOOL_CONFLICT_ADVICE = "open the server with prefix=…, or leave its tool out with without=[…]"
LEAD_ALIAS = "lead"
"""The name by which the lead can always be addressed."""


def _team_of(agent: AgentFields) -> Team:
    """The team of an agent; `UsageError` if two of it could be taken for each other."""
    members = {member.path: member for member in islice(_walk_members(agent, ()), MAX_TEAM_PLACES + 1)}
    if len(members) > MAX_TEAM_PLACES:
        raise UsageError(
            f"the team of {agent.name!r} has more than {MAX_TEAM_PLACES} places; let fewer agents share others"
        )
    names: dict[str, MemberPath] = {}
    for path in sorted(members, key=len):
        names.setdefault(path[-1].lower(), path)
    names.setdefault(LEAD_ALIAS, (agent.name,))
    return Team(members, names, (agent.name,), agent.shape)


def _walk_members(agent: AgentFields, above: MemberPath) -> Iterator[Member]:
    path = (*above, agent.name)
    if agent.name.lower() in (name.lower() for name in above):
        raise UsageError(f"{'/'.join(path)}: an agent cannot work for one of its own name; give one another name")
    yield _member_at(agent, path)
    for below in agent.agents:
        yield from _walk_members(below, path)


def _member_at(agent: AgentFields, path: MemberPath) -> Member:
    led = len(path) > 1
    tools = {tool.name: tool for tool in (*agent.toolbox, *(below.transfer for below in agent.agents))}
    for default in default_tools_of(agent, led=led, without=agent.without):
        tools.setdefault(default.name, default)  # one of your own of this name stands in its place
    reach = {below.name: (*path, below.name) for below in agent.agents}
    reach |= {name: path[: depth + 1] for depth, name in enumerate(path[:-1])}
    specs = tuple(tool.spec for tool in tools.values())
    return Member(path, agent, tools, specs, reach, getattr(agent.model, "calls_tools", True) is not False)


def _check_tool_names(agent: AgentFields) -> None:
    """`UsageError` if two tools have one name, or a server's tool would stand in for one of the runtime's."""
    known: dict[str, Tool] = {}
    for own in agent.toolbox:
        name = own.name.lower()
        first = known.get(own.name) or known.get(name)
        # A server's `Refund` beside your `refund` would be taken for it; two of your own are yours to tell apart.
        if first is not None and (first.name == own.name or first.source or own.source):
            raise UsageError(_name_conflict(agent, first, own))
        known[name] = known[own.name] = own
        if own.source and ((name in RUNTIME_TOOLS and name not in agent.without) or name.startswith(TRANSFER_PREFIX)):
            called = f"{agent.name!r} has a tool {own.name!r} of {own.source}, a name that belongs to the runtime"
            raise UsageError(f"{called}; {TOOL_CONFLICT_ADVICE}")


def _name_conflict(agent: AgentFields, first: Tool, second: Tool) -> str:
    names = " and ".join(map(repr, dict.fromkeys((first.name, second.name))))
    both = f"{agent.name!r} has two tools called {names}"
    if not first.source and not second.source:
        return f"{both}; give one of them another name"
    origins = " and ".join(f"one of {tool.source}" if tool.source else "one of its own" for tool in (first, second))
    return f"{both}, {origins}; {TOOL_CONFLICT_ADVICE}"


def _check_agent_names(agent: AgentFields) -> None:
    """`UsageError` if two sub-agents, or a tool and a handover, have one name."""
    names = [below.name.lower() for below in agent.agents]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"{agent.name!r} has two sub-agents called {twice!r}; give one of them another name")
    for own in agent.toolbox:
        if own.name.startswith(TRANSFER_PREFIX) and own.name.removeprefix(TRANSFER_PREFIX).lower() in names:
            raise UsageError(f"{agent.name!r} has a tool {own.name!r} of its own; its sub-agent needs that name")


def _check_intents(agent: AgentFields) -> None:
    """`UsageError` if an intent stands for something that the agent does not have."""
    below = [each.name for each in agent.agents]
    led = {tool.name: tool for tool in default_tools_of(agent, led=True, without=agent.without)}
    tools = {**led, **agent.team.lead.tools}  # it may get a lead
    for intent in agent.intents:
        owner = f"the intent {intent.phrase!r} of {agent.name!r}"
        wanted, known = (intent.agent, below) if intent.tool is None else (intent.tool, list(tools))
        if wanted is not None and wanted not in known:
            there = ", ".join(known) or "none"
            raise UsageError(f"{owner} leads to {intent.stands_for}; there are: {there}")
        if intent.tool is not None:
            try:
                bind_arguments(tools[intent.tool], intent.args)
            except BadArguments as error:
                raise UsageError(f"{owner} has args={describe(intent.args)}. {error}") from error


def _check_omitted_defaults(agent: AgentFields) -> None:
    """`UsageError` if something is to be left out that is no default."""
    strange = [name for name in agent.without if name not in OPTIONAL_DEFAULTS]
    if strange:
        known = ", ".join(OPTIONAL_DEFAULTS)
        raise UsageError(f"{agent.name!r} cannot do without {describe(strange[0])}; there are: {known}")


DELEGATE_PREFIX = "delegate_to_"


def delegate(agent: Declaration, *, name: str | None = None, ttl: float | None = None) -> Tool:
    """A tool that has an agent do something in a channel of its own, and returns what it reports.

    The caller keeps the conversation; to hand it over, make the agent a sub-agent. `ttl` is how many seconds a
    task may take.
    """
    if not isinstance(agent, Declaration):
        raise UsageError(f"{describe(agent)} cannot be given tasks; give an Agent")
    if ttl is not None and (isinstance(ttl, bool) or not isinstance(ttl, int | float) or not ttl > 0):
        raise UsageError(f"ttl of tasks for {agent.name!r} is {describe(ttl)}; give seconds above 0, or None")

    known: dict[tuple[str | None, float | None], Tool] = agent.__dict__.setdefault("_delegations", {})
    if (name, ttl) not in known:  # the same each time, so that an agent made again is the same agent
        known[name, ttl] = _make_delegate_tool(agent, name, ttl)
    return known[name, ttl]


def _make_delegate_tool(agent: Declaration, name: str | None, ttl: float | None) -> Tool:
    async def work(task: str, channel: TurnChannel) -> str:
        reply = await channel.delegate(agent, task, ttl=ttl)
        return reply.text if reply.stopped is None else f"{reply.text}\n[It was stopped: {reply.stopped}]".strip()

    about = f" {agent.description}" if agent.description else ""
    return tool(
        work,
        name=f"{DELEGATE_PREFIX}{agent.name}" if name is None else name,
        description=f"Have {agent.name} do something, and get a report. Say all that it needs to know.{about}",
        timeout=None,
    )
