"""Compensations by name: tools that undo what other tools have done.

Rule 1: a compensation is found by its name when it is needed, which may be in another process, years later. So it is a
        tool of an agent, a tool that was given as `compensate=`, or registered here; never a closure.
Rule 2: of several of one name, the one nearest to the call counts: given with its tool, of its agent, of any agent,
        registered.
Rule 3: it gets the arguments of the call that have the names of its parameters, and `result`, if it takes that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar, cast, overload

from antiphon.agents.declaration import Declaration
from antiphon.agents.signature import INJECT_CHANNEL
from antiphon.agents.tool import BadArguments, Tool, as_tool, bind_arguments
from antiphon.core.codec import Malformed, parse_json
from antiphon.core.envelope import Json
from antiphon.core.errors import UsageError

F = TypeVar("F")

RESULT_PARAMETER = "result"

_registered: dict[str, Tool] = {}


@overload
def register_compensation(function: F, /) -> F: ...
@overload
def register_compensation(*, name: str) -> Callable[[F], F]: ...
def register_compensation(function: F | None = None, /, *, name: str | None = None) -> F | Callable[[F], F]:
    """Make a tool or a function available as a compensation, by its name or another. Usable as a decorator."""
    if function is not None:
        _register(as_tool(cast("Tool", function)), None)
        return function

    def register(given: F) -> F:
        _register(as_tool(cast("Tool", given)), name)
        return given

    return register


def _register(compensation: Tool, name: str | None) -> None:
    name = compensation.name if name is None else name
    if INJECT_CHANNEL in compensation.injected.values():
        advice = "it runs when the channel may have ended; take what it needs from the arguments of the call"
        raise UsageError(f"the compensation {name!r} takes a channel; {advice}")
    known = _registered.get(name)
    if known is not None and _origin(known) != _origin(compensation):
        raise UsageError(f"a compensation {name!r} is registered already: {'.'.join(_origin(known))}")
    _registered[name] = compensation


def _origin(compensation: Tool) -> tuple[str, str]:
    function = compensation.function
    return getattr(function, "__module__", ""), getattr(function, "__name__", "")


def find_compensation(agents: Mapping[str, Declaration], name: str, *, speaker: str, tool: str) -> Tool | None:
    """The tool of this name that undoes what a tool of a speaker's team has done; None if there is none here."""
    near = agents.get(speaker)
    own = list(_tools_of(near)) if near is not None else []
    everything = [*own, *(each for agent in agents.values() for each in _tools_of(agent))]
    with_tool = (each.compensation for each in own if each.name == tool)
    by_name = (each for each in everything if each.name == name)
    given = (each.compensation for each in everything)
    candidates: tuple[Iterator[Tool | None], ...] = (with_tool, by_name, given)
    for group in candidates:
        found = next((each for each in group if each is not None and each.name == name), None)
        if found is not None:
            return found
    return _registered.get(name)


def find_tool(agents: Mapping[str, Declaration], name: str, *, speaker: str) -> Tool | None:
    """The tool of this name of a speaker's team."""
    near = agents.get(speaker)
    return next((each for each in _tools_of(near) if each.name == name), None) if near is not None else None


def _tools_of(agent: Declaration) -> Iterator[Tool]:
    return (each for member in agent.team.members.values() for each in member.tools.values())


def compensation_arguments(compensation: Tool, args: Json | None, result: str) -> Json:
    """What a compensation is called with; `BadArguments` if the call that it undoes does not have what it needs."""
    if INJECT_CHANNEL in compensation.injected.values():
        raise BadArguments(f"{compensation.name} takes a channel, which a compensation is not given.")
    if args is None:
        raise BadArguments("The arguments of the call are not recorded any more.")
    known = compensation.parameters.get("properties")
    names = known if isinstance(known, dict) else {}
    given: Json = {name: value for name, value in args.items() if name in names}
    if RESULT_PARAMETER in names and RESULT_PARAMETER not in given:
        given = _with_result(compensation, given, result)
    bind_arguments(compensation, given)
    return given


def _with_result(compensation: Tool, given: Json, result: str) -> Json:
    """The arguments with the result: as text, or as the value that it was before it was written as text."""
    as_text: Json = {**given, RESULT_PARAMETER: result}
    try:
        bind_arguments(compensation, as_text)
    except BadArguments:
        return {**given, RESULT_PARAMETER: _parsed(result)}
    return as_text


def _parsed(result: str) -> object:
    """A result that is recorded as JSON text, as the value that it was."""
    try:
        value: object = parse_json(result)
    except Malformed:
        return result
    return value
