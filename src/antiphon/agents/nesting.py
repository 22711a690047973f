"""Which turn the running code belongs to.

A tool may ask another agent, and that one another. Whoever asks says from which turn, so that nobody waits for itself.
"""

from __future__ import annotations

from collections.abc import Awaitable
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from typing import Protocol, TypeVar

T = TypeVar("T")

Lane = tuple[str, str]
"""A channel, and the agent whose turn it is there."""

taking: ContextVar[Lane | None] = ContextVar("taking", default=None)
"""The turn that is being taken by the code that runs."""


class RunningTurn(Protocol):
    """The attempt at a turn that the running code is part of."""

    def waiting_for(self, channel_id: str) -> AbstractAsyncContextManager[None]:
        """Inside, a call waits until something happens in another channel; "" if it may be any.

        It is left when the turn may go on.
        """
        ...


running_turn: ContextVar[RunningTurn | None] = ContextVar("running_turn", default=None)
"""The attempt that the running code is part of; None outside of turns."""


class HeldPlace(Protocol):
    """The right of a turn to ask its model while a backlog is resumed."""

    def leave(self) -> None:
        """Release the place. Releasing it twice is fine."""
        ...


held_place: ContextVar[HeldPlace | None] = ContextVar("held_place", default=None)
"""The place held by the running code, if that is a model or is called by one."""


async def waiting_for_others(work: Awaitable[T], channel_id: str = "") -> T:
    """Await what turns of another channel may have to do first; of any channel, if none is named.

    A turn that may not run beside others lets those start that it waits for, and a model gives up its place, which
    they may need. Without this it could wait for ever.
    """
    place = held_place.get()
    if place is not None:
        place.leave()
    run = running_turn.get()
    if run is None:
        return await work
    async with run.waiting_for(channel_id):
        return await work
