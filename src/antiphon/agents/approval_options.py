"""Which of its tools an agent has approved by a person, beside what each tool says itself.

Rule 1: what an agent says is added to what a tool says: a call needs approval if either of them wants it.
Rule 2: the approvers that an agent names for a tool take the place of the tool's own.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec

from antiphon.agents.tool import Tool
from antiphon.agents.tool_options import NeedsApproval
from antiphon.core.envelope import Json, spelling_advice
from antiphon.core.errors import UsageError
from antiphon.core.text import describe

Approve = Sequence[str] | Mapping[str, NeedsApproval | Sequence[str]]
"""Names of tools; or names, each with True, a function of the arguments, or the approvers."""
ALL_TOOLS = "*"
APPROVE_ADVICE = "give a list of names of tools, or a dict from names to True, a function, or a list of approvers"


def tools_with_approval(agent: str, tools: Sequence[Tool], approve: Approve) -> tuple[Tool, ...]:
    """The tools of an agent, with the approval that it wants; `UsageError` for what it cannot want."""
    wanted = _wanted_by_name(agent, approve)
    names = [tool.name for tool in tools]
    for name in wanted:
        if name != ALL_TOOLS and name not in names:
            advice = spelling_advice(name, names) or f"its tools are: {', '.join(names) or 'none'}"
            raise UsageError(f"approve of {agent!r} names {describe(name)}, which is no tool of its own; {advice}")
    return tuple(
        tool if (each := wanted.get(tool.name, wanted.get(ALL_TOOLS))) is None else _with_approval(tool, each)
        for tool in tools
    )


def _wanted_by_name(agent: str, approve: object) -> dict[str, NeedsApproval | tuple[str, ...]]:
    if isinstance(approve, list | tuple):
        approve = dict.fromkeys(approve, True) if all(isinstance(name, str) for name in approve) else None
    if not isinstance(approve, Mapping) or not all(isinstance(name, str) for name in approve):
        raise UsageError(f"approve of {agent!r} is {describe(approve)}; {APPROVE_ADVICE}")
    return {name: _checked_wish(agent, name, wish) for name, wish in approve.items()}


def _checked_wish(agent: str, name: str, wish: object) -> NeedsApproval | tuple[str, ...]:
    if wish is True or (callable(wish) and not isinstance(wish, type)):
        return wish
    if isinstance(wish, list | tuple) and wish and all(isinstance(who, str) and who for who in wish):
        return tuple(wish)
    advice = "give True, a function of the arguments, or a list of approvers"
    raise UsageError(f"approve of {agent!r} has {describe(wish)} for {name!r}; {advice}")


def _with_approval(tool: Tool, wish: NeedsApproval | tuple[str, ...]) -> Tool:
    own = tool.protections
    if isinstance(wish, tuple):
        return replace(tool, protections=msgspec.structs.replace(own, approval=True, approvers=wish))
    return replace(tool, protections=msgspec.structs.replace(own, approval=_either(own.approval, wish)))


def _either(first: NeedsApproval, second: NeedsApproval) -> NeedsApproval:
    """What wants approval if one of the two does."""
    if isinstance(first, bool):
        return True if first else second
    if isinstance(second, bool):
        return True if second else first

    async def either(args: Json) -> bool:
        for function in (first, second):
            answer: object = function(args)
            if inspect.isawaitable(answer):
                answer = await answer
            if not isinstance(answer, bool):
                raise TypeError(f"it gave {describe(answer)}; give True or False")
            if answer:
                return True
        return False

    return either
