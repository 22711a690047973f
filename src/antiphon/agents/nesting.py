"""Which turn the running code belongs to.

A tool may ask another agent, and that one another. Whoever asks says from which turn, so that nobody waits for itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextvars import ContextVar
from typing import Protocol, TypeVar

T = TypeVar("T")

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
