"""Which turn the running code belongs to, and what user code may raise.

A tool may ask another agent, and that one another. Whoever asks says from which turn, so that nobody waits for itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from contextvars import ContextVar
from typing import Protocol, TypeVar

from antiphon.core.words import told

T = TypeVar("T")

ENDS = KeyboardInterrupt
"""What ends the program, whoever raises it. That somebody's code wants to exit is its own affair."""

Lane = tuple[str, str]
"""A channel, and the agent whose turn it is there."""

taking: ContextVar[Lane | None] = ContextVar("taking", default=None)
"""The turn that is being taken by the code that runs."""


class ExclusiveRun(Protocol):
    """The right of a turn to run while others of its kind wait."""

    def lend(self) -> None:
        """Let the others run, while this turn waits for one of them."""
        ...

    async def reclaim(self) -> None:
        """Run exclusively again, as soon as no other does."""
        ...

    def forfeit(self) -> None:
        """End the wait without running exclusively again."""
        ...


exclusive: ContextVar[ExclusiveRun | None] = ContextVar("exclusive", default=None)
"""The exclusive run that the running code is part of; None for a turn that runs beside all others."""


async def waiting_for_others(work: Awaitable[T]) -> T:
    """Await what other turns may have to do first. A turn that runs exclusively lends its place meanwhile.

    Without this, a turn that holds the place could wait for one that needs it, for ever.
    """
    run = exclusive.get()
    if run is None:
        return await work
    run.lend()
    try:
        result = await work
    except asyncio.CancelledError:
        run.forfeit()
        raise
    except BaseException:
        await run.reclaim()
        raise
    await run.reclaim()
    return result


class Interrupted(Exception):
    """Somebody's code ended itself in a way that is not meant for others."""


async def contained(work: Awaitable[T]) -> T:
    """What it comes to. A cancellation of its own making, or a signal of another kind, becomes an ordinary error."""
    task = asyncio.current_task()
    before = task.cancelling() if task is not None else 0
    try:
        return await work
    except BaseException as error:
        if isinstance(error, Exception) or is_from_outside(error, task, before):
            raise
        raise Interrupted(told(error)) from error


def is_from_outside(error: BaseException, task: asyncio.Task[object] | None, before: int) -> bool:
    """Whether this is no failure of somebody's code: it was cancelled, is given up with its task, or the program ends.

    A cancellation that nobody asked of this task is the code's own: something that it waited for was cancelled.
    """
    match error:
        case asyncio.CancelledError():
            return task is None or task.cancelling() > before
        case GeneratorExit():
            return _running_task() is not task
        case _:
            return isinstance(error, ENDS)


def _running_task() -> asyncio.Task[object] | None:
    with suppress(RuntimeError):  # no loop is running
        return asyncio.current_task()
    return None
