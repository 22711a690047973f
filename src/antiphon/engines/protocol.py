"""What an engine promises.

An engine is liveness, not safety: it sees to it that every job that was submitted is attempted, one after the other
for each speaker in a channel, many channels at once. The handler returns nothing, because only the log counts; if
every engine attempted everything, work would be wasted and nothing doubled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec

from antiphon.core.instants import Instant

PATIENCE = 2.0
"""The usual seconds until a job that another owner has claimed is looked at again."""


class JobRef(msgspec.Struct, frozen=True):
    """A turn that is owed, by its ids."""

    channel_id: str
    speaker: str
    turn_id: str

    @property
    def job_id(self) -> str:
        return f"{self.channel_id}/{self.turn_id}"


class Attempt:
    """One try at a job."""

    def __init__(self, job: JobRef, owner: str, takeover: Callable[[str], Awaitable[bool]]) -> None:
        self.job, self.owner = job, owner
        self.takeover = takeover
        """Asks whether what this owner has claimed may be taken over, because it is no longer alive."""
        self.stopping = asyncio.Event()
        """Set when the engine is about to stop: finish the call under way, and begin no other."""
        self.lost = asyncio.Event()
        """Set when this owner is taken for dead: somebody else has the job."""
        self.ending = False
        """Set by the handler when what is left to do must not be cut off."""
        self.waits_for_tasks: Callable[[], bool] = lambda: False
        """Set by the handler: whether all calls in progress do nothing but wait for the turns of tasks. When the engine
        stops there is no use in waiting for such an attempt: the turns that it waits for are stopped too."""
        self.patience = PATIENCE
        """The seconds after which a job that another owner has claimed is looked at again."""
        self.again: Instant | None = None
        """Set by the handler to be tried again at this instant."""


Handler = Callable[[Attempt], Awaitable[None]]


class Engine(Protocol):
    """Runs jobs."""

    async def serve(self, handler: Handler) -> None:
        """Take jobs from now on, and give each to the handler."""
        ...

    async def submit(self, job: JobRef) -> None:
        """Have a job attempted. Submitting it again while it waits or runs changes nothing."""
        ...

    async def wake(self, job_id: str, *, at: Instant | None = None) -> None:
        """Attempt a job that waits for its time now, or at this instant. A job that is not known is none of ours."""
        ...

    async def cancel(self, job_id: str, reason: str) -> None:
        """Stop attempting a job, at once."""
        ...

    async def stop(self) -> None:
        """Give calls under way a moment, stop everything, and be idle when this returns."""
        ...
