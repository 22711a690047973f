"""One agent's turn, with every contact with the world yielded to the caller.

Rule 1: nothing here waits or calls. Whoever drives the turn makes the calls and sends back what they came to; a plain
        driver, one that streams, one that reads a journal and a test are all drivers of this one loop.
Rule 2: a call is known by its position. Positions follow from the replies alone, so a turn that is run again asks for
        the same things in the same places.
Rule 3: a turn goes from step to step by the table of whoever is active. When that changes, the table of the next one
        is begun.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator

import msgspec

from antiphon.agents.messages import NO_USAGE, Usage
from antiphon.agents.progress import Changes, Path, Progress, changed
from antiphon.agents.results import Handoff
from antiphon.agents.routine import EMPTY_REPLY, MAX_STEPS, judged
from antiphon.agents.scene import Manner, Scene
from antiphon.agents.steps import Step
from antiphon.agents.team import Team
from antiphon.agents.wanted import Given, RunStep, Wanted

MOST_STEPS = 1000
"""How many steps a turn may take, beside those that its model calls need, before it is taken for one without end."""
STEPS_A_CALL = 8


class Said(msgspec.Struct, frozen=True):
    """What a turn came to."""

    text: str
    stopped: str | None = None
    """The named limit that ended it; None if it ended by itself."""
    handoff: Handoff | None = None
    finish: str | None = None
    """Why there is nothing left to do."""
    usage: Usage = NO_USAGE
    tools: tuple[str, ...] = ()
    """The tools that were called and did not fail, in the order the models named them."""
    path: Path = ()
    """Who answered, below whoever was asked; empty if that one did."""


Turning = Generator[Wanted, Given, Said]


def take_turn(team: Team, progress: Progress, manner: Manner) -> Turning:
    """Go from step to step until it is known what the turn ends with."""
    member = team.members[progress.path]
    step = member.steps.rows[0]
    for _ in range(MOST_STEPS + STEPS_A_CALL * team.limits.model_calls):
        progress = yield from _taken(step, Scene(team, member, manner), progress)
        if progress.path != member.path:
            member = team.members[progress.path]
            step = member.steps.rows[0]
        elif (following := member.steps.following(step, progress)) is not None:
            step = following
        else:
            return said_by(judged(team, _with_words(progress)))
    text = progress.partial if progress.answer is None else progress.answer
    return said_by(msgspec.structs.replace(progress, answer=text, stopped=progress.stopped or MAX_STEPS))


def _taken(step: Step, scene: Scene, progress: Progress) -> Generator[Wanted, Given, Progress]:
    if step.work is not None:
        outcome = step.work(scene, progress)
        return outcome if isinstance(outcome, Progress) else (yield from outcome)
    assert step.function is not None, "a step has been checked to do something"
    wanted = RunStep(progress.index, step.name, step.function, progress.detached())
    changes = yield wanted
    assert isinstance(changes, Changes), "a step is answered by what it changes"
    after = changed(progress, changes)
    if after.answer is None:  # whoever takes the answer away takes away all that the turn would have ended with
        after = msgspec.structs.replace(after, handoff=None, finish=None, stopped=None)
    found_by = step.name if progress.answer is None else progress.found_by
    return msgspec.structs.replace(
        after, index=progress.index + wanted.waits, found_by=found_by if after.answer is not None else ""
    )


def _with_words(progress: Progress) -> Progress:
    """A turn that was led to its end before anybody had answered says what there is, and that it may be nothing."""
    if progress.answer is not None:
        return progress
    return msgspec.structs.replace(progress, answer=progress.partial, stopped=None if progress.partial else EMPTY_REPLY)


def said_by(progress: Progress) -> Said:
    """What a turn that has come so far came to."""
    return Said(
        progress.answer or "",
        progress.stopped,
        progress.handoff,
        progress.finish,
        progress.usage,
        progress.tools,
        progress.path[1:],
    )


Perform = Callable[[Wanted], Awaitable[Given]]
"""Makes calls, and gives what they came to."""


async def drive(turn: Turning, perform: Perform) -> Said:
    """Take a turn to its end."""
    try:
        wanted = next(turn)
        while True:
            wanted = turn.send(await perform(wanted))
    except StopIteration as end:
        said: Said = end.value
        return said
