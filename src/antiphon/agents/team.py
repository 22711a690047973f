"""The agents of a team: what is declared of each, its place, and the member that handles a turn.

Rule 1: a place is known by its path, the names from the lead down. One agent may stand in several places.
Rule 2: a mention (`@name`) counts only at the very beginning of a message, and only if the name stands there alone: at
        the end, or before a blank or a new line. Anything else is plain text.
Rule 3: a mention is the exact name of a member, in any case. What merely looks like a name is none.
Rule 4: of the handoffs in one message at most one counts: the first that is possible, and none beside a `Finish`. The
        others say why not, so that every call has a result.
Rule 5: which one counts is decided once, by the driver, before the results are recorded: the model, the journal and
        every reader of the log see the same results.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from antiphon.agents.approval_options import Approve
from antiphon.agents.call_results import Handoff, ToolResult
from antiphon.agents.intents import Intent
from antiphon.agents.messages import Model, ToolSpec
from antiphon.agents.output_spec import OutputSpec
from antiphon.agents.progress import HANDOFF_IGNORED, HANDOFF_IMPOSSIBLE, TOO_MANY_HANDOFFS, MemberPath, SettledHandoffs
from antiphon.agents.steps import Steps
from antiphon.agents.tool import Tool
from antiphon.core.envelope import Json, match_name
from antiphon.core.errors import UsageError
from antiphon.core.text import describe
from antiphon.core.views import Message, View
from antiphon.guards.named_guards import Tier

CURRENT_DATE_DEFAULT = "current_date"


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a turn of an agent and its team."""

    model_calls: int = 25
    """How often models are asked in one turn; then it ends with what there is."""
    model_seconds: float | None = 120.0
    """How long one answer of the model may take, however often it is asked; None for as long as the turn may."""
    model_attempts: int = 3
    """How often a model that is unavailable is asked for one answer; 1 for never again."""
    handoffs: int = 5
    """How often in one turn another member of the team may become active. Handoffs to others in the channel are not
    counted here: the channel limits them."""
    tool_calls: int = 128
    """How many tools one message of the model may call; each call beyond that gets an error as its result."""
    tasks: int = 32
    """How many tasks one turn may give to other agents; an attempt to give another raises in the tool."""
    crashes: int | None = 10
    """How many processes in a row may die during a turn without a call of it returning; then the turn waits for a
    person's decision. None for no limit."""

    def __post_init__(self) -> None:
        if self.crashes is not None and (type(self.crashes) is not int or self.crashes < 1):
            raise UsageError(f"crashes is {describe(self.crashes)}; give a number of crashes, 1 or more, or None")
        for name, least, wanted in COUNTED_LIMITS:
            given: object = getattr(self, name)
            if type(given) is not int or given < least:
                raise UsageError(f"{name} is {describe(given)}; give a number of {wanted}, {least} or more")
        seconds = self.model_seconds
        number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        if seconds is not None and not (number and seconds > 0):
            raise UsageError(f"model_seconds is {describe(seconds)}; give seconds above 0, or None for no limit")


COUNTED_LIMITS = (
    ("model_calls", 1, "calls"),
    ("handoffs", 0, "handoffs"),
    ("tool_calls", 1, "calls"),
    ("tasks", 0, "tasks of one turn"),
    ("model_attempts", 1, "attempts"),
)
"""The name of each limit, the least that it may be, and what it counts."""
DEFAULT_TURN_LIMITS = Limits()

SystemPrompt = str | Callable[[Sequence[Message]], str | Awaitable[str]]
"""A system prompt, or a function of the messages so far that gives one."""
StepsPatcher = Callable[[Steps], Steps]
"""Changes the steps of an agent's turns."""


@dataclass(frozen=True)
class AgentFields:
    """The fields of an agent: those that are declared, and those that follow from them."""

    name: str
    model: Model
    system_prompt: SystemPrompt = ""
    tools: Sequence[object] = ()
    """Functions, or what `@tool` made of them. An agent among them is a sub-agent."""
    memory: View | None = None
    """What it is shown of a channel; None is everything, with names where more than two take part."""
    limits: Limits = DEFAULT_TURN_LIMITS
    agents: Sequence[AgentFields] = ()
    """Its sub-agents, to whom it can hand over."""
    intents: Sequence[Intent] = ()
    """Phrases that need no model."""
    patcher: StepsPatcher | None = None
    """Changes the steps of its turns."""
    description: str = ""
    """What it is for, as its lead reads it."""
    output: object = field(default=None, hash=False)
    """The shape of its answers: a type, or a JSON schema. None is any text."""
    without: Sequence[str] = ()
    """The default tools that it does not have; `current_date` for the date in its prompt."""
    require_tools: bool | None = None
    """Whether a model that calls no tools is an error; None: only in the tier `regulated`."""
    guards: Sequence[object] = field(default=(), hash=False)
    """The guards of its own threads, as in the knob of a channel."""
    tier: Tier | None = None
    """The tier of its own threads."""
    approve: Approve = field(default=(), hash=False)
    """The tools of its own that a person approves before they are called: names, `*` for all; or each name with True,
    a function of the arguments, or the approvers."""
    approvers: Sequence[str] = field(default=(), hash=False)
    """The people and roles that decide in its own threads, where the tool names none."""
    self_approval: bool = False
    """Whether in its own threads the person who asked may decide as well."""
    approval_seconds: float | Literal["unlimited"] | None = None
    """How long a call waits for a person in its own threads; None for as long as the tier says."""
    own_channel_knobs: Json = field(init=False, repr=False, compare=False)
    """The knobs of its own threads."""
    toolbox: tuple[Tool, ...] = field(init=False, repr=False, compare=False)
    """The tools of its own, ready to be called."""
    transfer: Tool = field(init=False, repr=False, compare=False)
    """The tool by which a lead hands over to it."""
    steps: Steps = field(init=False, repr=False, compare=False)
    """The steps of its turns."""
    shape: OutputSpec | None = field(init=False, repr=False, compare=False)
    """What checks its answers."""
    team: Team = field(init=False, repr=False, compare=False)
    """The agents that may answer when it is asked."""


class Member(msgspec.Struct, frozen=True):
    """An agent in its place in a team."""

    path: MemberPath
    declaration: AgentFields
    tools: Mapping[str, Tool]
    """What it can call, by name."""
    specs: tuple[ToolSpec, ...]
    reach: Mapping[str, MemberPath]
    """The members it can hand over to: its sub-agents, its lead, and those above the lead."""
    calls_tools: bool
    """Whether its model can call tools at all."""

    @property
    def name(self) -> str:
        return self.declaration.name

    @property
    def lead(self) -> str | None:
        """The agent that it works for; None for the lead of the team."""
        return self.path[-2] if len(self.path) > 1 else None

    @property
    def offered(self) -> tuple[ToolSpec, ...]:
        """The tools that its model sees."""
        return self.specs if self.calls_tools else ()

    @property
    def helps(self) -> bool:
        """Whether it can ask its lead for help."""
        return "request_help" in self.tools

    @property
    def dated(self) -> bool:
        """Whether its prompt has the date."""
        return CURRENT_DATE_DEFAULT not in self.declaration.without

    def is_direct(self, name: str) -> bool:
        """Whether what this tool returns is the answer."""
        tool = self.tools.get(name)
        return tool is not None and tool.return_direct


class Team(msgspec.Struct, frozen=True):
    """All agents that may answer when one agent is asked."""

    members: Mapping[MemberPath, Member]
    names: Mapping[str, MemberPath]
    """The members that a person can address, by the name in lower case; of several, the nearest."""
    root: MemberPath
    output: OutputSpec | None

    @property
    def lead(self) -> Member:
        """The agent whose team it is."""
        return self.members[self.root]

    @property
    def limits(self) -> Limits:
        """The limits of a turn: those of the lead."""
        return self.lead.declaration.limits

    def route(self, heard: str | None, last_active: MemberPath) -> MemberPath:
        """The member that handles a turn: the one that is addressed, then the one that answered last, then the lead."""
        addressed = mentioned_name(heard) if heard is not None else None
        last = (*self.root, *last_active)
        last = last if last in self.members else self.root
        if addressed is None or addressed not in self.names or addressed == last[-1].lower():
            return last
        return self.names[addressed]

    def without_mention(self, heard: str) -> str:
        """What a person said, without the name that it is addressed to."""
        addressed = mentioned_name(heard)
        return heard[len(addressed) + 1 :] if addressed is not None and addressed in self.names else heard

    def read(self, heard: str) -> str:
        """What a person said as an agent of the team reads it: without the mention, unless nothing else was said."""
        return self.without_mention(heard).lstrip(MENTION_BLANKS) or heard if heard.startswith("@") else heard

    def output_at(self, path: MemberPath) -> OutputSpec | None:
        """The shape that an answer must have: the lead's, else that of the member that answers."""
        return self.output or self.members[path].declaration.shape


def format_member_path(path: MemberPath) -> str:
    """A place as the log keeps it."""
    return "/".join(path)


def parse_member_path(text: str) -> MemberPath:
    """A place as it is read from a log."""
    return tuple(text.split("/")) if text else ()


MENTION_BLANKS = " \t\r\n"
MENTION_PATTERN = re.compile(r"@([A-Za-z0-9][A-Za-z0-9_-]{0,47})(?=[ \t\r\n]|\Z)", re.ASCII)


def mentioned_name(text: str) -> str | None:
    """The name that is addressed, in lower case; None if none is."""
    found = MENTION_PATTERN.match(text)
    return None if found is None else found.group(1).lower()


HandoffRefusal = Callable[[Handoff], str | None]
"""Says why a handoff to another participant of the channel is not possible; None if it is."""


def settle_handoffs(
    team: Team, path: MemberPath, results: Sequence[ToolResult], *, hops: int, refusal: HandoffRefusal
) -> SettledHandoffs:
    """Let one handoff count, and decline the rest."""
    member = team.members[path]
    results = [_correct_spelling(member, result, refusal) for result in results]
    kept = list(results)
    if any(result.finish is not None for result in results):
        return SettledHandoffs(tuple(_ignore_handoff(result, "it is finished") for result in results))
    for number, result in enumerate(results):
        if result.target is None:
            continue
        declined = _decline_if_impossible(team, member, result, hops=hops, refusal=refusal)
        if declined is None:
            why = f"the turn goes to {result.target}"
            rest = (_ignore_handoff(later, why) for later in results[number + 1 :])
            return SettledHandoffs((*kept[: number + 1], *rest), member.reach.get(result.target))
        kept[number] = declined
    return SettledHandoffs(tuple(kept))


def _correct_spelling(member: Member, result: ToolResult, refusal: HandoffRefusal) -> ToolResult:
    """The result with the name as the team spells it, if it hands over to an agent of the team in another case.

    A participant of the channel that can be handed the turn is meant first.
    """
    handoff = result.handoff
    target = None if handoff is None else match_name(handoff.target, member.reach)
    if handoff is None or target is None or target == handoff.target or refusal(handoff) is None:
        return result
    return msgspec.structs.replace(result, handoff=msgspec.structs.replace(handoff, target=target))


def _decline_if_impossible(
    team: Team, member: Member, result: ToolResult, *, hops: int, refusal: HandoffRefusal
) -> ToolResult | None:
    """The result when this handoff is not possible; None if it is."""
    most = team.limits.handoffs
    if result.target in member.reach:
        there = "has been 1 handoff" if most == 1 else f"have been {most} handoffs"
        why = f"There {there} in this turn, the limit; answer yourself."
        return None if hops < most else _declined_result(result, why, TOO_MANY_HANDOFFS)
    why_not = refusal(result.handoff) if result.handoff else f"There is no {result.target} to turn to."
    return None if why_not is None else _declined_result(result, why_not, HANDOFF_IMPOSSIBLE)


def _ignore_handoff(result: ToolResult, why: str) -> ToolResult:
    return result if result.target is None else _declined_result(result, f"Ignored: {why}.", HANDOFF_IGNORED)


def _declined_result(result: ToolResult, why: str, declined: str) -> ToolResult:
    return ToolResult(why, failed=True, usage=result.usage, declined=declined)
