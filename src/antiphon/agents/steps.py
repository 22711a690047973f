"""The steps of a turn, as a table that can be read, drawn and changed.

Rule 1: a table is a value. To change one is to make another.
Rule 2: a step is left by the first of its exits whose condition holds. The last one always does.
        An answer that a step of yours has found ends the turn; one that was there before goes where it would have gone.
Rule 3: a table that names what is not there, or from which no way leads to the end, is refused where it is made.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator
from typing import TYPE_CHECKING

import msgspec

from antiphon.agents.progress import Progress
from antiphon.core.errors import UsageError
from antiphon.core.words import shown, told

if TYPE_CHECKING:
    from antiphon.agents.scene import Scene
    from antiphon.agents.wanted import Given, Wanted

END = "end"
"""Where a turn ends, as a step is left."""
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,47}\Z")
ANSWERING = frozenset({"match_intents", "call_model", "call_tools"})
"""The steps of ours that may come to an answer."""

Work = Callable[["Scene", Progress], "Progress | Generator[Wanted, Given, Progress]"]
"""What a step of ours does, with every contact with the world yielded."""
Function = Callable[[Progress], Progress | Awaitable[Progress | None] | None]
"""What a step of yours does. None changes nothing."""
Condition = Callable[[Progress], bool]


class Misstep(Exception):
    """A condition between two steps raised. The turn fails with its words."""


class Exit(msgspec.Struct, frozen=True):
    """A way out of a step."""

    to: str
    when: Condition | None = None
    """None: always."""
    label: str = ""

    def holds(self, progress: Progress) -> bool:
        """Whether it is taken. A condition that raises is a `Misstep`."""
        try:
            return self.when is None or bool(self.when(progress))
        except BaseException as error:  # a user-defined condition
            raise Misstep(f"the way to {self.to}: {told(error)}") from error


class Step(msgspec.Struct, frozen=True):
    """One step of a turn: its name, what it does, and what comes next."""

    name: str
    function: Function | None = None
    """What it does, if it is yours."""
    exits: tuple[Exit, ...] = ()
    work: Work | None = None
    """What it does, if it is ours."""


def answered(progress: Progress) -> bool:
    """Whether it is known what the turn ends with."""
    return progress.answer is not None


ANSWERED = Exit(END, answered, "answered")


class Found(msgspec.Struct, frozen=True):
    """Whether there was no answer before a step of a user's found one."""

    step: str

    def __call__(self, progress: Progress) -> bool:
        return answered(progress) and progress.found_by == self.step


class Steps(msgspec.Struct, frozen=True):
    """The table of an agent's steps; a turn begins with the first."""

    rows: tuple[Step, ...]

    @property
    def names(self) -> list[str]:
        """The steps in order."""
        return [step.name for step in self.rows]

    def step(self, name: str) -> Step:
        """The step of this name."""
        found = next((step for step in self.rows if step.name == name), None)
        if found is None:
            raise UsageError(f"there is no step {shown(name)}; there are: {', '.join(self.names)}")
        return found

    def following(self, step: Step, progress: Progress) -> Step | None:
        """Which step comes next; None at the end."""
        to = next(way.to for way in step.exits if way.holds(progress))
        return None if to == END else self.step(to)

    def insert_before(self, name: str, step: Step | Function) -> Steps:
        """A table in which whoever comes to a step comes to this one first."""
        self.step(name)
        new = _read(step)
        new = msgspec.structs.replace(new, exits=(*new.exits, _found_by(new.name), Exit(name)))
        rows = (_led(row, name, new.name) for row in self.rows)
        return self._with([each for row in rows for each in ((new, row) if row.name == name else (row,))])

    def insert_after(self, name: str, step: Step | Function) -> Steps:
        """A table in which whoever leaves a step goes through this one, and from there wherever it would have gone."""
        anchor, new = self.step(name), _read(step)
        new = msgspec.structs.replace(new, exits=(*new.exits, _found_by(new.name), *anchor.exits))
        before = msgspec.structs.replace(anchor, exits=(Exit(new.name),))
        return self._with([each for row in self.rows for each in ((before, new) if row.name == name else (row,))])

    def replace(self, name: str, step: Step | Function) -> Steps:
        """A table in which this is done instead; what comes next stays, and so does the name."""
        anchor, new = self.step(name), _read(step)
        answers = anchor.function is not None or name in ANSWERING
        ways = anchor.exits if answers else (_found_by(name), *anchor.exits)
        instead = Step(name, new.function, (*new.exits, *ways))
        return self._with([instead if row.name == name else row for row in self.rows])

    def branch(self, name: str, when: Condition, to: str) -> Steps:
        """A table in which a step is left for another, or for `END`, when this holds; it is asked before the rest."""
        anchor = self.step(name)
        way = Exit(to, when, str(getattr(when, "__name__", "")).replace("<lambda>", ""))
        if when is None or not _asks(way):
            raise UsageError(f"when is {shown(when)}; give a function of the progress, not async, that says yes or no")
        changed = msgspec.structs.replace(anchor, exits=(way, *anchor.exits))
        return self._with([changed if row.name == name else row for row in self.rows])

    def to_mermaid(self) -> str:
        """The table as a picture."""
        lines = ["flowchart TD"]
        for step in self.rows:
            for way in step.exits:
                arrow = f"-->|{way.label or 'if'}|" if way.when is not None else "-->"
                lines.append(f"    {step.name} {arrow} {way.to if way.to != END else 'END([end])'}")
        return "\n".join(dict.fromkeys(lines))

    def _with(self, rows: Iterable[Step]) -> Steps:
        steps = Steps(tuple(rows))
        _check_names(steps)
        return steps


def check_steps(steps: object, agent: str) -> Steps:
    """The table, if a turn can be taken by it; `UsageError` that says what is wrong if not."""
    if not isinstance(steps, Steps) or not steps.rows or not all(isinstance(row, Step) for row in steps.rows):
        raise UsageError(
            f"the patcher of {agent!r} returned {shown(steps)}; return the table of steps that it was given"
        )
    for step in steps.rows:
        _check_step(step, steps, agent)
    _check_names(steps)
    reached = _reached(steps, steps.rows[0].name)
    for step in steps.rows:
        if step.name not in reached:
            raise UsageError(
                f"no way leads to the step {step.name!r} of {agent!r}; let a branch lead there, or drop it"
            )
        if END not in _reached(steps, step.name):
            raise UsageError(f"from the step {step.name!r} of {agent!r} no way leads to the end; add a branch to END")
    return steps


def _check_names(steps: Steps) -> None:
    twice = next((name for name in steps.names if steps.names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"there are two steps called {twice!r}; give the new one another name: Step('…', function)")


def _check_step(step: Step, steps: Steps, agent: str) -> None:
    _check_name(step.name)
    exits: object = step.exits
    if not isinstance(exits, tuple | list) or not all(isinstance(way, Exit) and _asks(way) for way in exits):
        raise UsageError(f"exits of the step {step.name!r} of {agent!r} is {shown(exits)}; give (Exit('step', when),)")
    if not step.exits or step.exits[-1].when is not None:
        raise UsageError(f"the step {step.name!r} of {agent!r} may have no way out; its last exit takes no condition")
    strange = next((way.to for way in step.exits if way.to != END and way.to not in steps.names), None)
    if strange is not None:
        known = ", ".join((*steps.names, END))
        raise UsageError(f"the step {step.name!r} of {agent!r} leads to {shown(strange)}; there are: {known}")
    if step.work is None and not callable(step.function):
        raise UsageError(f"the step {step.name!r} of {agent!r} does nothing; give it a function of the progress")


def _reached(steps: Steps, start: str) -> set[str]:
    """Everything that can come after this step, itself included."""
    found, left = {start}, [start]
    while left:
        name = left.pop()
        new = [to for to in _open(steps.step(name)) if to not in found] if name != END else []
        found.update(new)
        left.extend(new)
    return found


def _open(step: Step) -> Iterator[str]:
    """Where the step may lead: what stands behind an exit without a condition is never asked."""
    for way in step.exits:
        yield way.to
        if way.when is None:
            return


def _asks(way: Exit) -> bool:
    """Whether the condition of an exit can be asked, if it has one."""
    return way.when is None or (callable(way.when) and not inspect.iscoroutinefunction(way.when))


def _found_by(step: str) -> Exit:
    return Exit(END, Found(step), ANSWERED.label)


def _led(row: Step, old: str, new: str) -> Step:
    """The row with every exit to one step leading to another."""
    exits = tuple(Exit(new, way.when, way.label) if way.to == old else way for way in row.exits)
    return msgspec.structs.replace(row, exits=exits)


def _read(step: object) -> Step:
    """A step of a user's: as it is, or from a function that gives it its name."""
    if not isinstance(step, Step):
        name = getattr(step, "__name__", "")
        if not callable(step) or isinstance(step, type):
            raise UsageError(f"{shown(step)} is no step; give a function of the progress, or Step('name', function)")
        step = Step(name, step)
    _check_name(step.name)
    if not callable(step.function) or step.work is not None:
        raise UsageError(f"the step {step.name!r} has no function; give a function of the progress, async or not")
    called = step.function.__call__  # type: ignore[operator]  # whatever can be called has it
    if inspect.iscoroutinefunction(called):  # an object that is called like an async function
        step = msgspec.structs.replace(step, function=called)
    return step


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not NAME.match(name) or name.lower() == END:
        advice = "give Step('name', function) with a letter, then up to 47 letters, digits or '_'"
        raise UsageError(f"a step cannot be called {shown(name)}; {advice}")
