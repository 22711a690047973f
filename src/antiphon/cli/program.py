"""A user's file: what it defines, and how that is opened and closed.

Rule 1: the file is run once, as a module of its own, its folder first on the path, as Python runs one.
Rule 2: every mistake in it is a sentence with the file, the line where there is one, and the value.
"""

from __future__ import annotations

import inspect
import os
import sys
import traceback
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, TracebackType
from typing import NamedTuple

import click

from antiphon.core.errors import AntiphonError, RulesInvalid, UsageError
from antiphon.core.ids import check_name
from antiphon.core.words import shown, told
from antiphon.orchestration.graph import TransitionGraph
from antiphon.runtime.agent import Agent

NAME = "antiphon_program"
"""What the file's module is called, so that it can tell whether it was run by Python itself."""
KNOWN = ("agents", "graph")
MADE_OF = "give an Agent, a list of them, or a function that returns or yields them"


class Opened(NamedTuple):
    """What a program consists of, while it is open."""

    agents: tuple[Agent, ...]
    graph: TransitionGraph | None
    participants: tuple[str, ...]
    """The order in which they take part in the graph, the creator first; empty if the file does not say."""
    title: str


@dataclass(frozen=True)
class Program:
    """A file that has been run. What it defines as functions has not been called yet."""

    path: str
    agents: object = None
    """As the file has it; None if it defines none."""
    graph: TransitionGraph | None = None
    participants: tuple[str, ...] = ()
    title: str = ""

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Opened]:
        """The agents, made and checked, and the graph. What the file opens for them is closed at the end."""
        async with AsyncExitStack() as stack:
            agents: tuple[Agent, ...] = ()
            if self.agents is not None:
                with _blamed(self.path):
                    made = await _made(self.agents, self.path, stack)
                agents = _checked(made, self.path)
            yield Opened(agents, self.graph, self.participants, self.title)


def load(path: str) -> Program:
    """Run a file and take what it defines. It is code, and does what code does."""
    if not Path(path).is_file():
        what = (
            f"{path!r} is a folder; name a Python file in it" if Path(path).is_dir() else f"there is no file {path!r}"
        )
        raise click.UsageError(what)
    found = vars(_run(path))
    defined = {name: found.get(name) for name in KNOWN}
    if all(value is None for value in defined.values()):
        raise _nothing(path, found)
    title = found.get("title")
    if title is not None and not isinstance(title, str):
        raise UsageError(f"{path}: title is {shown(title)}; give a text")
    return Program(
        path,
        defined["agents"],
        _graph(path, defined["graph"]),
        _participants(path, found.get("participants")),
        title or Path(path).stem,
    )


def _run(path: str) -> ModuleType:
    whole = os.path.abspath(path)
    module = ModuleType(NAME)
    module.__file__ = whole
    sys.modules[NAME] = module  # where whoever reads annotations looks for the names in them
    folder = os.path.dirname(os.path.realpath(whole))
    if sys.path[:1] != [folder]:
        sys.path.insert(0, folder)
    with _blamed(path):
        exec(compile(Path(whole).read_bytes(), whole, "exec"), vars(module))
    return module


def _nothing(path: str, found: dict[str, object]) -> UsageError:
    if found.get("flow") is not None:
        return UsageError(f"{path} defines a flow, which this version cannot run; define agents, a graph, or both")
    misnamed = next(((name, _wanted(value)) for name, value in found.items() if _wanted(value)), None)
    hint = f"it has {misnamed[0]!r}: call it {misnamed[1]!r}" if misnamed else "add agents = [Agent(…)]"
    return UsageError(f"{path} defines neither agents nor a graph; {hint}")


def _wanted(value: object) -> str:
    """What a value should be called; nothing if it is not looked for."""
    if isinstance(value, TransitionGraph):
        return "graph"
    some = value if isinstance(value, list | tuple) and value else [value]
    return "agents" if all(isinstance(each, Agent) for each in some) else ""


def _graph(path: str, value: object) -> TransitionGraph | None:
    if value is None or isinstance(value, TransitionGraph):
        return value
    if not isinstance(value, dict):
        raise UsageError(f"{path}: graph is {shown(value)}; give a TransitionGraph, or what its to_dict() gives")
    try:
        return TransitionGraph.loads(value)
    except RulesInvalid as error:
        raise RulesInvalid(f"{path}: graph: {error}") from error


def _participants(path: str, value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list | tuple) or not value:
        raise UsageError(f"{path}: participants is {shown(value)}; give a list of names, the creator first")
    try:
        for name in value:
            check_name(name)
    except UsageError as error:
        raise UsageError(f"{path}: participants: {error}") from error
    _check_once(value, f"{path}: participants names")
    return tuple(value)


async def _made(value: object, path: str, stack: AsyncExitStack) -> object:
    """What `agents` stands for: itself, or what calling it gives, awaited or entered."""
    if callable(value):
        value = value()
    if inspect.isasyncgen(value) or inspect.isgenerator(value):
        raise UsageError("agents() yields; put @asynccontextmanager above it")
    if inspect.isawaitable(value):
        value = await value
    if isinstance(value, AbstractAsyncContextManager):
        entered: object = await value.__aenter__()
        stack.push_async_exit(_Leaving(value, path).leave)
        value = entered
    return value


class _Leaving:
    """Closes what a file has opened. What it raises by that is its own mistake; what passes through it is not."""

    def __init__(self, opened: AbstractAsyncContextManager[object], path: str) -> None:
        self._opened, self._path = opened, path

    async def leave(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Leave it, telling it of what went wrong inside."""
        try:
            return bool(await self._opened.__aexit__(kind, error, trace))
        except Exception as raised:
            if raised is error:
                raise
            raise _mistake(self._path, raised) from raised


def _checked(made: object, path: str) -> tuple[Agent, ...]:
    agents = [made] if isinstance(made, Agent) else made
    if not isinstance(agents, list | tuple):
        raise UsageError(f"{path}: agents is {shown(made)}; {MADE_OF}")
    for agent in agents:
        if not isinstance(agent, Agent):
            raise UsageError(f"{path}: agents has {shown(agent)} in it; {MADE_OF}")
    if not agents:
        raise UsageError(f"{path}: agents is empty; {MADE_OF}")
    _check_once([agent.name for agent in agents], f"{path}: agents has")
    return tuple(agents)


def _check_once(names: Sequence[str], where: str) -> None:
    small = [name.lower() for name in names]
    for place, name in enumerate(names):
        if name.lower() in small[:place]:
            raise UsageError(f"{where} {name!r} twice; give everybody a name of their own")


@contextmanager
def _blamed(path: str) -> Iterator[None]:
    """What goes wrong inside is a mistake in the file."""
    try:
        yield
    except (Exception, SystemExit) as error:
        raise _mistake(path, error) from error


def _mistake(path: str, error: BaseException) -> UsageError:
    """What went wrong in a file, and in which of its lines."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, SyntaxError) and error.filename:
        place = path if error.filename == os.path.abspath(path) else error.filename
        return UsageError(f"{place}:{error.lineno}: {error.msg}")
    lines = [line for frame, line in traceback.walk_tb(error.__traceback__) if _is_of(frame.f_code.co_filename, path)]
    place = f"{path}:{lines[-1]}" if lines else path
    if isinstance(error, SystemExit):
        return UsageError(
            f"{place}: the file ends the program (SystemExit: {error.code}); it should only define things"
        )
    return UsageError(f"{place}: {error if isinstance(error, AntiphonError) else told(error)}")


def _is_of(filename: str, path: str) -> bool:
    return filename == os.path.abspath(path)
