"""A user-defined Python file with agents, and perhaps a graph, a router or a pipeline.

Rule 1: the file is executed once, as a module of its own, its folder first on `sys.path`, as Python does.
Rule 2: every mistake in it is reported in a sentence with the file, the line if there is one, and the value.
"""

from __future__ import annotations

import inspect
import os
import sys
import traceback
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType, TracebackType
from typing import NamedTuple

import click

from antiphon.cli.program_routing import ProgramRouting, routing_from
from antiphon.cli.rules_file import GraphFile, RoutingFile, graph_participants
from antiphon.core.envelope import Json, check_name
from antiphon.core.errors import AntiphonError, RulesInvalid, UsageError
from antiphon.core.text import describe, describe_error
from antiphon.orchestration.graph import TransitionGraph
from antiphon.orchestration.handoff_rules import HandoffRules
from antiphon.orchestration.pipeline import ConversationPipeline
from antiphon.orchestration.router import ConversationRouter
from antiphon.orchestration.workflow import Workflow
from antiphon.runtime.agent import DEFAULT_SPEAKER, Agent
from antiphon.runtime.conversation_defaults import ROUTED

PROGRAM_MODULE_NAME = "antiphon_program"
"""The module's `__name__`, by which the file can tell whether Python runs it directly."""
ExitReason = tuple[type[BaseException] | None, BaseException | None, TracebackType | None]
VARIABLES_BY_TYPE: dict[type, str] = {
    TransitionGraph: "graph",
    ConversationRouter: "router",
    ConversationPipeline: "pipeline",
}
AGENTS_ADVICE = "give an Agent, a list of them, or a function that returns or yields them"


@dataclass(frozen=True)
class Program:
    """A file that was executed. A function in `agents` is not called yet."""

    path: str
    agents: object = None
    """The value in the file; None if there is none."""
    graph: TransitionGraph | None = None
    participants: tuple[str, ...] = ()
    """The participants of the graph or conversation, the creator first; empty if the file does not list them."""
    title: str = ""
    routing: ProgramRouting | None = None

    @property
    def listed_agents(self) -> tuple[Agent, ...] | None:
        """The checked agents; None if `agents` is a function, which is called when the program is opened."""
        if self.agents is None:
            return ()
        return None if callable(self.agents) else _check_program_agents(self.agents, self.path)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[tuple[Agent, ...]]:
        """The checked agents. What the file opens for them is closed at the end."""
        if self.agents is None:
            yield ()
            return
        async with AsyncExitStack() as stack:
            with _blame_file(self.path):
                made = await _make_agents(self.agents, self.path, stack)
            yield _check_program_agents(made, self.path)


def load_program(path: str, *, rules_only: bool = False) -> Program:
    """Execute a file and read its variables. For its rules alone it needs no agents, but a graph or a routing."""
    if Path(path).is_dir():
        raise click.UsageError(f"{path!r} is a folder; name a Python file in it")
    if not Path(path).is_file():
        raise click.UsageError(f"there is no file {path!r}")
    found = vars(_execute_file(path))
    agents, graph, title = found.get("agents"), found.get("graph"), found.get("title")
    routing = routing_from(path, found)
    if rules_only:
        if graph is None and routing is None:
            hint = _rename_hint(found, VARIABLES_BY_TYPE.values()) or "add one, or name the file that has it"
            raise UsageError(f"{path} defines no graph, router or pipeline; {hint}")
    elif agents is None and routing is not None:
        raise UsageError(f"{path} defines no agents, to whom messages could be routed; add agents = [Agent(…)]")
    elif agents is None and graph is None:
        raise _nothing_defined_error(path, found)
    if title is not None and not isinstance(title, str):
        raise UsageError(f"{path}: title is {describe(title)}; give a text")
    participants = _participants_from(path, found.get("participants"))
    return Program(path, agents, _graph_from(path, graph), participants, title or Path(path).stem, routing)


def _execute_file(path: str) -> ModuleType:
    whole = os.path.abspath(path)
    module = ModuleType(PROGRAM_MODULE_NAME)
    module.__file__ = whole
    sys.modules[PROGRAM_MODULE_NAME] = module  # annotations are resolved by this entry
    folder = os.path.dirname(os.path.realpath(whole))
    if sys.path[:1] != [folder]:
        sys.path.insert(0, folder)
    with _blame_file(path):
        exec(compile(Path(whole).read_bytes(), whole, "exec"), vars(module))
    return module


def _nothing_defined_error(path: str, found: dict[str, object]) -> UsageError:
    if found.get("flow") is not None:
        return UsageError(f"{path} defines a flow, which this version cannot run; define agents, a graph, or both")
    hint = _rename_hint(found, ("agents", *VARIABLES_BY_TYPE.values())) or "add agents = [Agent(…)]"
    return UsageError(f"{path} defines neither agents nor a graph; {hint}")


def _rename_hint(found: dict[str, object], wanted: Iterable[str]) -> str:
    """The name of a value that should have one of these names; empty if there is none."""
    expected = ((name, _expected_variable(value)) for name, value in found.items())
    return next((f"it has {name!r}: call it {variable!r}" for name, variable in expected if variable in wanted), "")


def _expected_variable(value: object) -> str:
    """The variable that a value belongs in; empty if in none."""
    for kind, name in VARIABLES_BY_TYPE.items():
        if isinstance(value, kind):
            return name
    some = value if isinstance(value, list | tuple) and value else [value]
    return "agents" if all(isinstance(each, Agent) for each in some) else ""


def _graph_from(path: str, value: object) -> TransitionGraph | None:
    if value is None or isinstance(value, TransitionGraph):
        return value
    if not isinstance(value, dict):
        raise UsageError(f"{path}: graph is {describe(value)}; give a TransitionGraph, or what its to_dict() gives")
    try:
        return TransitionGraph.loads(value)
    except RulesInvalid as error:
        raise RulesInvalid(f"{path}: graph: {error}") from error


def _participants_from(path: str, value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list | tuple) or not value:
        raise UsageError(f"{path}: participants is {describe(value)}; give a list of names, the creator first")
    try:
        for name in value:
            check_name(name)
    except UsageError as error:
        raise UsageError(f"{path}: participants: {error}") from error
    _check_distinct_names(value, f"{path}: participants names")
    return tuple(value)


async def _make_agents(value: object, path: str, stack: AsyncExitStack) -> object:
    """The value of `agents`, or of calling it, awaited or entered."""
    if callable(value):
        value = value()
    if inspect.isasyncgen(value) or inspect.isgenerator(value):
        raise UsageError("agents() yields; put @asynccontextmanager above it")
    if inspect.isawaitable(value):
        value = await value
    if isinstance(value, AbstractAsyncContextManager):
        entered: object = await value.__aenter__()
        stack.push_async_exit(partial(_close_program, value, path))
        value = entered
    return value


async def _close_program(opened: AbstractAsyncContextManager[object], path: str, *reason: *ExitReason) -> bool:
    """Close what a file has opened. Only errors raised by the closing are reported as mistakes of the file."""
    try:
        return bool(await opened.__aexit__(*reason))
    except Exception as raised:
        if raised is reason[1]:
            raise
        raise _program_error(path, raised) from raised


def _check_program_agents(made: object, path: str) -> tuple[Agent, ...]:
    agents = [made] if isinstance(made, Agent) else made
    if not isinstance(agents, list | tuple):
        raise UsageError(f"{path}: agents is {describe(made)}; {AGENTS_ADVICE}")
    for agent in agents:
        if not isinstance(agent, Agent):
            raise UsageError(f"{path}: agents has {describe(agent)} in it; {AGENTS_ADVICE}")
    if not agents:
        raise UsageError(f"{path}: agents is empty; {AGENTS_ADVICE}")
    _check_distinct_names([agent.name for agent in agents], f"{path}: agents has")
    return tuple(agents)


def _check_distinct_names(names: Sequence[str], where: str) -> None:
    small = [name.lower() for name in names]
    for place, name in enumerate(names):
        if name.lower() in small[:place]:
            raise UsageError(f"{where} {name!r} twice; give everybody a name of their own")


@contextmanager
def _blame_file(path: str) -> Iterator[None]:
    """Report an error as a mistake in the file."""
    try:
        yield
    except (Exception, SystemExit) as error:
        raise _program_error(path, error) from error


def _program_error(path: str, error: BaseException) -> UsageError:
    """The error, with the line of the file."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, SyntaxError) and error.filename:
        place = path if error.filename == os.path.abspath(path) else error.filename
        return UsageError(f"{place}:{error.lineno}: {error.msg}")
    frames = traceback.walk_tb(error.__traceback__)
    lines = [line for frame, line in frames if frame.f_code.co_filename == os.path.abspath(path)]
    place = f"{path}:{lines[-1]}" if lines else path
    if isinstance(error, SystemExit):
        return UsageError(
            f"{place}: the file ends the program (SystemExit: {error.code}); it should only define things"
        )
    return UsageError(f"{place}: {error if isinstance(error, AntiphonError) else describe_error(error)}")


class ProgramRoster(NamedTuple):
    """The participants of the channel that a file defines, and what it is opened with."""

    title: str
    names: list[str]
    """The creator first."""
    people: list[str]
    type: str
    knobs: Json


def program_roster(program: Program, agents: Iterable[Agent]) -> ProgramRoster | None:
    """The channel that the graph or the routing of a file asks for; None if it has neither."""
    played = [agent.name for agent in agents]
    if program.graph is not None:
        return _workflow_roster(program, program.graph, played)
    if program.routing is not None:
        people = conversation_people(program, played)
        names = [people[0], *played, *people[1:]]
        return ProgramRoster(program.title, names, people, ROUTED, program.routing.knobs)
    return None


def conversation_people(program: Program, played: Sequence[str]) -> list[str]:
    """The listed participants that are no agents, or the user alone."""
    return [name for name in program.participants if name not in played] or [_default_person(played)]


def _workflow_roster(program: Program, graph: TransitionGraph, played: Sequence[str]) -> ProgramRoster:
    """The listed participants, or else those that the graph names and every agent, a person first."""
    names = list(program.participants or dict.fromkeys([*graph_participants(graph), *played]))
    people = [name for name in names if name not in played]
    if not people:
        people = [_default_person(played)]
        names = [*people, *names]
    if not program.participants:
        first = next((name for name in (DEFAULT_SPEAKER, graph.initial_speaker) if name in people), people[0])
        names = [first, *(name for name in names if name != first)]
    return ProgramRoster(program.title, names, people, Workflow.name, {"graph": graph.to_dict()})


def program_rules(path: str) -> GraphFile | RoutingFile:
    """The rules of a file, and its participants as `antiphon run` would have them, if its agents are known."""
    program = load_program(path, rules_only=True)
    agents, routing = program.listed_agents, program.routing
    is_known = bool(agents) or (agents is not None and routing is None)
    roster = program_roster(program, agents or ()) if is_known else None
    people = frozenset(() if roster is None else roster.people)
    if program.graph is not None:
        listed = tuple(roster.names) if roster is not None else program.participants
        knobs: Json = {"graph": program.graph.to_dict()}
        return GraphFile(program.graph, knobs, listed or graph_participants(program.graph), people)
    assert routing is not None  # a file without rules is refused
    rules, handoff = routing.pipeline or routing.router, routing.handoff or HandoffRules()
    if roster is not None:
        return RoutingFile(rules, handoff, tuple(roster.names), people)
    named = dict.fromkeys([*program.participants, *routing.router.participants])
    return RoutingFile(rules, handoff, tuple(named), people)


def _default_person(played: Sequence[str]) -> str:
    return DEFAULT_SPEAKER if DEFAULT_SPEAKER not in played else "you"
