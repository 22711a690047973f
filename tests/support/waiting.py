"""Waiting for what must come, without a clock."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

NEVER_COMES = 30.0
"""After how many seconds something is taken for what never comes. A busy disk may hold up a commit for several."""


async def soon(work: Awaitable[T]) -> T:
    """What this comes to; what never comes is a failure. Nothing that is right waits for it."""
    return await asyncio.wait_for(work, NEVER_COMES)


async def let_others_run(count: int = 20) -> None:
    """Let everybody who can do something do it."""
    for _ in range(count):
        await asyncio.sleep(0)


async def wait_until(condition: Callable[[], bool]) -> None:
    """Return when this is so; what never is, is a failure."""
    async with asyncio.timeout(NEVER_COMES):
        while not condition():
            await let_others_run(1)
