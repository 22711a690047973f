"""Waiting for what must come, and for what must not, without sleeping."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

PATIENCE = 10.0
"""Real seconds after which something never comes. Nothing that is right waits for so long."""
ROUNDS = 50
"""How often everybody is given a chance to do what they should not do."""


async def settled(rounds: int = ROUNDS) -> None:
    """Let everybody who can do something do it."""
    for _ in range(rounds):
        await asyncio.sleep(0)


async def until(condition: Callable[[], bool], promise: str) -> None:
    """Return when this is so; if it never is, the promise is broken."""
    try:
        async with asyncio.timeout(PATIENCE):
            while not condition():
                await settled(1)
    except TimeoutError:
        raise AssertionError(promise) from None


async def soon(work: Awaitable[None], promise: str) -> None:
    """Return when this is done; if it never is, the promise is broken."""
    try:
        async with asyncio.timeout(PATIENCE):
            await work
    except TimeoutError:
        raise AssertionError(promise) from None
