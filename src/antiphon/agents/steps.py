"""The steps of a turn, as a table that can be read, drawn and changed.

Rule 1: a table is a value. To change one is to make another.
Rule 2: a step is left by the first of its exits whose condition holds. The last one always does.
        An answer that a user-defined step has found ends the turn; an earlier one changes no exit.
Rule 3: a table that names what is not there, or from which no way leads to the end, is refused where it is made.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator

import msgspec

from antiphon.agents.progress import Progress, StepFunction
from antiphon.core.errors import UsageError
from antiphon.core.text import describe, describe_error

END = "end"
"""The exit that ends a turn."""
STEP_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,47}\Z")
ANSWERING_STEPS = frozenset({"match_intents", "call_model", "call_tools"})
"""The built-in steps that may find an answer."""

ExitCondition = Callable[[Progress], bool]


class StepError(Exception):
    """A condition between two steps raised. The turn fails with its message."""


class Exit(msgspec.Struct, frozen=True):
    """A way out of a step."""

    to: str
    when: ExitCondition | None = None
    """None: always."""
    label: str = ""

    def holds(self, progress: Progress) -> bool:
        """Whether it is taken. A condition that raises is a `StepError`."""
        try:
            return self.when is None or bool(self.when(progress))
        except BaseException as error:  # a user-defined condition
            raise StepError(f"the way to {self.to}: {describe_error(error)}") from error


class Step(msgspec.Struct, frozen=True):
    """One step of a turn: its name, what it does, and what comes next."""

    name: str
    function: StepFunction | None = None
    """What it does, if it is user-defined."""
    exits: tuple[Exit, ...] = ()
    work: str | None = None
    """The built-in step that it runs, by name; None if it is user-defined."""


def has_answer(progress: Progress) -> bool:
    """Whether it is known what the turn ends with."""
    return progress.answer is not None


ANSWERED_EXIT = Exit(END, has_answer, "answered")


class AnsweredByStep(msgspec.Struct, frozen=True):
    """Whether there was no answer before a user-defined step found one."""

    step: str

    def __call__(self, progress: Progress) -> bool:
        return has_answer(progress) and progress.answered_by_step == self.step


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
            raise UsageError(f"there is no step {describe(name)}; there are: {', '.join(self.names)}")
        return found

    def following(self, step: Step, progress: Progress) -> Step | None:
        """Which step comes next; None at the end."""
        to = next(way.to for way in step.exits if way.holds(progress))
        return None if to == END else self.step(to)

    def insert_before(self, name: str, step: Step | StepFunction) -> Steps:
        """A table in which this step is taken before another one."""
        self.step(name)
        new = _step_of(step)
        new = msgspec.structs.replace(new, exits=(*new.exits, _exit_if_answered_by(new.name), Exit(name)))
        rows = (_redirect_exits(row, name, new.name) for row in self.rows)
        return self._with([each for row in rows for each in ((new, row) if row.name == name else (row,))])

    def insert_after(self, name: str, step: Step | StepFunction) -> Steps:
        """A table in which this step is taken after another one, and has the exits of that one."""
        anchor, new = self.step(name), _step_of(step)
        new = msgspec.structs.replace(new, exits=(*new.exits, _exit_if_answered_by(new.name), *anchor.exits))
        before = msgspec.structs.replace(anchor, exits=(Exit(new.name),))
        return self._with([each for row in self.rows for each in ((before, new) if row.name == name else (row,))])

    def replace(self, name: str, step: Step | StepFunction) -> Steps:
        """A table in which this is done instead; what comes next stays, and so does the name."""
        anchor, new = self.step(name), _step_of(step)
        answers = anchor.function is not None or name in ANSWERING_STEPS
        ways = anchor.exits if answers else (_exit_if_answered_by(name), *anchor.exits)
        instead = Step(name, new.function, (*new.exits, *ways))
        return self._with([instead if row.name == name else row for row in self.rows])

    def branch(self, name: str, when: ExitCondition, to: str) -> Steps:
        """A table in which a step is left for another, or for `END`, when this holds; it is asked before the rest."""
        anchor = self.step(name)
        way = Exit(to, when, str(getattr(when, "__name__", "")).replace("<lambda>", ""))
        if when is None or not _is_askable(way):
            raise UsageError(
                f"when is {describe(when)}; give a function of the progress, not async, that says yes or no"
            )
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
        _check_step_names(steps)
        return steps


def check_steps(steps: object, agent: str) -> Steps:
    """The table, if a turn can be taken by it; `UsageError` that says what is wrong if not."""
    if not isinstance(steps, Steps) or not steps.rows or not all(isinstance(row, Step) for row in steps.rows):
        raise UsageError(
            f"the patcher of {agent!r} returned {describe(steps)}; return the table of steps that it was given"
        )
    for step in steps.rows:
        _check_step(step, steps, agent)
    _check_step_names(steps)
    reached = _reachable_steps(steps, steps.rows[0].name)
    for step in steps.rows:
        if step.name not in reached:
            raise UsageError(
                f"no way leads to the step {step.name!r} of {agent!r}; let a branch lead there, or drop it"
            )
        if END not in _reachable_steps(steps, step.name):
            raise UsageError(f"from the step {step.name!r} of {agent!r} no way leads to the end; add a branch to END")
    return steps


def _check_step_names(steps: Steps) -> None:
    twice = next((name for name in steps.names if steps.names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"there are two steps called {twice!r}; give the new one another name: Step('…', function)")


def _check_step(step: Step, steps: Steps, agent: str) -> None:
    _check_step_name(step.name)
    exits: object = step.exits
    if not isinstance(exits, tuple | list) or not all(isinstance(way, Exit) and _is_askable(way) for way in exits):
        raise UsageError(
            f"exits of the step {step.name!r} of {agent!r} is {describe(exits)}; give (Exit('step', when),)"
        )
    if not step.exits or step.exits[-1].when is not None:
        raise UsageError(f"the step {step.name!r} of {agent!r} may have no way out; its last exit takes no condition")
    strange = next((way.to for way in step.exits if way.to != END and way.to not in steps.names), None)
    if strange is not None:
        known = ", ".join((*steps.names, END))
        raise UsageError(f"the step {step.name!r} of {agent!r} leads to {describe(strange)}; there are: {known}")
    if step.work is None and not callable(step.function):
        raise UsageError(f"the step {step.name!r} of {agent!r} does nothing; give it a function of the progress")


def _reachable_steps(steps: Steps, start: str) -> set[str]:
    """Everything that can come after this step, itself included."""
    found, left = {start}, [start]
    while left:
        name = left.pop()
        new = [to for to in _open_targets(steps.step(name)) if to not in found] if name != END else []
        found.update(new)
        left.extend(new)
    return found


def _open_targets(step: Step) -> Iterator[str]:
    """Where the step may lead: what stands behind an exit without a condition is never asked."""
    for way in step.exits:
        yield way.to
        if way.when is None:
            return


def _is_askable(way: Exit) -> bool:
    """Whether the condition of an exit can be asked, if it has one."""
    return way.when is None or (callable(way.when) and not inspect.iscoroutinefunction(way.when))


def _exit_if_answered_by(step: str) -> Exit:
    return Exit(END, AnsweredByStep(step), ANSWERED_EXIT.label)


def _redirect_exits(row: Step, old: str, new: str) -> Step:
    """The row with every exit to one step leading to another."""
    exits = tuple(msgspec.structs.replace(way, to=new) if way.to == old else way for way in row.exits)
    return msgspec.structs.replace(row, exits=exits)


def _step_of(step: object) -> Step:
    """A user-defined step: as it is, or from a function that gives it its name."""
    if not isinstance(step, Step):
        name = getattr(step, "__name__", "")
        if not callable(step) or isinstance(step, type):
            raise UsageError(f"{describe(step)} is no step; give a function of the progress, or Step('name', function)")
        step = Step(name, step)
    _check_step_name(step.name)
    if not callable(step.function) or step.work is not None:
        raise UsageError(f"the step {step.name!r} has no function; give a function of the progress, async or not")
    called = step.function.__call__  # type: ignore[operator]  # every callable has it
    if inspect.iscoroutinefunction(called):  # an object that is called like an async function
        step = msgspec.structs.replace(step, function=called)
    return step


def _check_step_name(name: object) -> None:
    if not isinstance(name, str) or not STEP_NAME.match(name) or name.lower() == END:
        advice = "give Step('name', function) with a letter, then up to 47 letters, digits or '_'"
        raise UsageError(f"a step cannot be called {describe(name)}; {advice}")
