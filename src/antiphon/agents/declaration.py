"""What an agent is: a frozen declaration. Nothing in it runs, and nothing in it changes."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeGuard, cast

from antiphon.agents.defaults import DEFAULTS, transfer_tool
from antiphon.agents.intents import Intent
from antiphon.agents.limits import USUAL, Limits
from antiphon.agents.messages import Model, ToolSpec
from antiphon.agents.output import Output, output_of
from antiphon.agents.routine import FIVE, with_intents
from antiphon.agents.steps import Steps, check_steps
from antiphon.agents.team import Team, check_agents, check_intents, check_tools, check_without, team_of
from antiphon.agents.tool import Tool, as_tool
from antiphon.core.errors import UsageError
from antiphon.core.ids import check_name
from antiphon.core.views import Message, View
from antiphon.core.words import shown, told

Prompt = str | Callable[[Sequence[Message]], str | Awaitable[str]]
"""A system prompt, or a function of the messages so far that gives one."""
Patcher = Callable[[Steps], Steps]
"""Changes the steps of an agent's turns."""


@dataclass(frozen=True)
class Declaration:
    """An agent: its name, the model that speaks for it, what it is told, and whom and what it may use."""

    name: str
    model: Model
    system_prompt: Prompt = ""
    tools: Sequence[object] = ()
    """Functions, or what `@tool` made of them. An agent among them is a sub-agent."""
    memory: View | None = None
    """What it is shown of a channel; None is everything, with names where more than two take part."""
    limits: Limits = USUAL
    agents: Sequence[Declaration] = ()
    """Its sub-agents, to whom it can hand over."""
    intents: Sequence[Intent] = ()
    """Phrases that need no model."""
    patcher: Patcher | None = None
    """Changes the steps of its turns."""
    description: str = ""
    """What it is for, as its lead is told."""
    output: object = field(default=None, hash=False)
    """The shape of its answers: a type, or a JSON schema. None is any text."""
    without: Sequence[str] = ()
    """The default tools that it does not have; `current_date` for the date in its prompt."""
    require_tools: bool | None = None
    """Whether a model that calls no tools is an error; None: only in the tier `regulated`."""
    toolbox: tuple[Tool, ...] = field(init=False, repr=False, compare=False)
    """The tools of its own, ready to be called."""
    transfer: Tool = field(init=False, repr=False, compare=False)
    """The tool by which a lead hands over to it."""
    steps: Steps = field(init=False, repr=False, compare=False)
    """The steps of its turns."""
    shape: Output | None = field(init=False, repr=False, compare=False)
    """What checks its answers."""
    team: Team = field(init=False, repr=False, compare=False)
    """Everybody who may answer when it is asked."""

    def __post_init__(self) -> None:
        check_name(self.name)
        self._check_words()
        self._check_lists()
        below = filter(is_agent, self.tools)
        tools = tuple(as_tool(cast("Tool", each)) for each in self.tools if not is_agent(each))
        self._set("agents", tuple({id(each): each for each in (*self.agents, *below)}.values()))
        self._set("tools", tools)
        self._set("toolbox", tools)
        self._set("intents", tuple(self.intents))
        self._set("without", tuple(self.without))
        self._set("shape", None if self.output is None else output_of(self.output, self.name))
        self._set("transfer", transfer_tool(self))
        check_tools(self)
        check_agents(self)
        check_without(self, DEFAULTS)
        self._set("steps", self._patched())
        self._set("team", team_of(self))
        check_intents(self)
        self._check_calling()

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """The tools of its own as its model is told of them."""
        return tuple(tool.spec for tool in self.toolbox)

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _check_words(self) -> None:
        model: object = self.model
        if not callable(model) or isinstance(model, type):
            raise UsageError(f"the model of {self.name!r} is {shown(model)}; {ADVICE}")
        prompt: object = self.system_prompt
        if not isinstance(prompt, str) and not callable(prompt):
            given = shown(prompt)
            raise UsageError(f"system_prompt of {self.name!r} is {given}; give a text, or a function of the messages")
        if not isinstance(self.description, str):
            raise UsageError(f"description of {self.name!r} is {shown(self.description)}; give a text")
        if not isinstance(self.limits, Limits):
            raise UsageError(f"limits of {self.name!r} is {shown(self.limits)}; give Limits(…)")
        memory: object = self.memory
        if memory is not None and (isinstance(memory, type) or not callable(getattr(memory, "shown", None))):
            raise UsageError(f"memory of {self.name!r} is {shown(memory)}; give a view such as WindowedSummary(20)")

    def _check_lists(self) -> None:
        for name, kind, wanted in LISTS:
            given: object = getattr(self, name)
            if not isinstance(given, list | tuple):
                raise UsageError(f"{name} of {self.name!r} is {shown(given)}; give a list of {wanted}")
            strange = [each for each in given if kind is not None and not isinstance(each, kind)]
            if strange:
                raise UsageError(f"{name} of {self.name!r} holds {shown(strange[0])}; give a list of {wanted}")
        if not isinstance(self.require_tools, bool | None):
            raise UsageError(f"require_tools of {self.name!r} is {shown(self.require_tools)}; give True, False or None")

    def _patched(self) -> Steps:
        steps = with_intents(FIVE) if self.intents else FIVE
        if self.patcher is None:
            return steps
        if not callable(self.patcher):
            raise UsageError(f"patcher of {self.name!r} is {shown(self.patcher)}; give a function of the steps")
        return check_steps(_patched(self.patcher, steps, self.name), self.name)

    def _check_calling(self) -> None:
        if self.require_tools and not self.team.lead.calls_tools:
            advice = "give it a model that does, or require_tools=False"
            raise UsageError(f"{self.name!r} requires tools, which its model does not call; {advice}")


def is_agent(value: object) -> TypeGuard[Declaration]:
    """Whether this is an agent."""
    return isinstance(value, Declaration)


LISTS: tuple[tuple[str, type | None, str], ...] = (
    ("tools", None, "functions"),
    ("agents", Declaration, "agents"),
    ("intents", Intent, "Intent('phrase', …)"),
    ("without", str, "names of default tools"),
)


def _patched(patcher: Patcher, steps: Steps, agent: str) -> object:
    """What the patcher returns. What it raises is a mistake in the agent that has it."""
    try:
        given: object = patcher(steps)
    except UsageError:
        raise
    except Exception as error:
        advice = "let it return the table of steps that it was given, changed or not"
        raise UsageError(f"the patcher of {agent!r} raised {told(error)}; {advice}") from error
    if inspect.iscoroutine(given):
        given.close()  # nobody will await it
    return given


ADVICE = "give a model, or an async function of the request that returns says(…) or calls(…)"
