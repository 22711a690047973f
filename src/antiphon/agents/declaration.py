"""What an agent is: a frozen declaration. Nothing in it runs, and nothing in it changes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from antiphon.agents.messages import Model, ToolSpec
from antiphon.agents.tool import Tool, as_tool
from antiphon.core.errors import UsageError
from antiphon.core.ids import check_name
from antiphon.core.views import Message, View
from antiphon.core.words import shown

Prompt = str | Callable[[Sequence[Message]], str | Awaitable[str]]
"""A system prompt, or a function of the messages so far that gives one."""

MODEL_TIMEOUT = 120.0
MOST_MODEL_CALLS = 25


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How far a turn of an agent may go."""

    model_calls: int = MOST_MODEL_CALLS
    """How often the model is asked in one turn; then it ends with what there is."""
    model_seconds: float | None = MODEL_TIMEOUT
    """How long one answer of the model may take; None for as long as the turn may."""

    def __post_init__(self) -> None:
        if type(self.model_calls) is not int or self.model_calls < 1:
            raise UsageError(f"model_calls is {shown(self.model_calls)}; give a number of calls, 1 or more")
        seconds = self.model_seconds
        if seconds is None:
            return
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
            raise UsageError(f"model_seconds is {shown(seconds)}; give seconds above 0, or None for no limit")


USUAL = Limits()


@dataclass(frozen=True)
class Declaration:
    """An agent: its name, the model that speaks for it, what it is told, and the tools it may use."""

    name: str
    model: Model
    system_prompt: Prompt = ""
    tools: Sequence[object] = ()
    """Functions, or what `@tool` made of them."""
    memory: View | None = None
    """What it is shown of a channel; None is everything, with names where more than two take part."""
    limits: Limits = USUAL
    toolbox: tuple[Tool, ...] = field(init=False, repr=False, compare=False)
    """The tools, ready to be called."""
    specs: tuple[ToolSpec, ...] = field(init=False, repr=False, compare=False)
    """The tools as the model is told of them."""

    def __post_init__(self) -> None:
        check_name(self.name)
        model: object = self.model
        if not callable(model) or isinstance(model, type):
            raise UsageError(f"the model of {self.name!r} is {shown(model)}; {_advice(model)}")
        prompt: object = self.system_prompt
        if not isinstance(prompt, str) and not callable(prompt):
            given = shown(prompt)
            raise UsageError(f"system_prompt of {self.name!r} is {given}; give a text, or a function of the messages")
        if not isinstance(self.tools, list | tuple):
            raise UsageError(f"tools of {self.name!r} is {shown(self.tools)}; give a list of functions")
        if not isinstance(self.limits, Limits):
            raise UsageError(f"limits of {self.name!r} is {shown(self.limits)}; give Limits(…)")
        memory: object = self.memory
        if memory is not None and (isinstance(memory, type) or not callable(getattr(memory, "shown", None))):
            raise UsageError(f"memory of {self.name!r} is {shown(memory)}; give a view such as WindowedSummary(20)")
        tools = tuple(map(as_tool, self.tools))
        object.__setattr__(self, "tools", tools)
        object.__setattr__(self, "toolbox", tools)
        object.__setattr__(self, "specs", tuple(tool.spec for tool in tools))
        self._check_tools()

    def _check_tools(self) -> None:
        names = [tool.name for tool in self.toolbox]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise UsageError(f"{self.name!r} has two tools called {twice!r}; give one of them another name")


def _advice(model: object) -> str:
    if isinstance(model, str):
        return "no provider can be named by a text yet; give a model, or an async function of the request"
    return "give a model, or an async function of the request that returns says(…) or calls(…)"
