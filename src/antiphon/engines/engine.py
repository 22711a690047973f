"""What an engine promises, how running code knows the turn it is part of, and how many turns are resumed at once.

Rule 1: an engine is liveness, not safety: every job that was submitted is attempted, one after the other for each
        speaker in a channel, many channels at once. The handler returns nothing, because only the log counts; if every
        engine attempted everything, work would be wasted and nothing doubled.
Rule 2: a tool may ask another agent, and that one another. The request says from which turn it comes, so that no turn
        waits for itself.
Rule 3: while a backlog of owed turns is resumed after a restart, the number of turns that ask their models at once is
        limited. A resumed turn starts when a slot is free, and holds it until its model has answered. When the backlog
        is empty, there is no limit.
Rule 4: a turn that waits holds no slot: it gives the slot up before a tool runs, and before a model waits for
        something in another channel. So no two turns can wait for each other's slot.
Rule 5: fresh turns go first, then turns that have started, then the backlog. Ageing keeps all of them from starving.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import ContextVar
from typing import Literal, Protocol, TypeVar

import msgspec

from antiphon.core.envelope import NEVER, Instant, Priority
from antiphon.core.errors import UsageError
from antiphon.core.text import describe
from antiphon.hub.admission import PriorityQueue
from antiphon.hub.clock import Clock

T = TypeVar("T")

DEFAULT_CLAIM_RETRY_SECONDS = 2.0
"""The usual seconds until a job that another owner has claimed is looked at again."""


class JobRef(msgspec.Struct, frozen=True):
    """A turn that is owed, by its ids."""

    channel_id: str
    speaker: str
    turn_id: str

    @property
    def job_id(self) -> str:
        return f"{self.channel_id}/{self.turn_id}"


def waits_for_nothing() -> bool:
    """The answer of an attempt whose turn does not run."""
    return False


class Attempt:
    """What the engine and the handler tell each other about one try at a job."""

    def __init__(self, job: JobRef, owner: str, takeover: Callable[[str], Awaitable[bool]]) -> None:
        self.job, self.owner = job, owner
        self.takeover = takeover
        """Asks whether what this owner has claimed may be taken over, because it is no longer alive."""
        self.stopping = asyncio.Event()
        """Set when the engine is about to stop: finish the call in progress, and begin no other."""
        self.lost = asyncio.Event()
        """Set when this owner is taken for dead: another one has the job."""
        self.ending = False
        """Set by the handler when what is left to do must not be cut off."""
        self.waits_for_tasks: Callable[[], bool] = waits_for_nothing
        """Set by the handler: whether all calls in progress do nothing but wait for the turns of tasks. When the engine
        stops there is no use in waiting for such an attempt: the turns that it waits for are stopped too."""
        self.patience = DEFAULT_CLAIM_RETRY_SECONDS
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
        """Attempt a job that waits for its time now, or at this instant. An unknown job is ignored."""
        ...

    async def cancel(self, job_id: str, reason: str) -> None:
        """Stop attempting a job, at once."""
        ...

    async def stop(self) -> None:
        """Give calls in progress a moment, stop everything, and be idle when this returns."""
        ...


TurnKey = tuple[str, str]
"""A channel, and the agent whose turn it is there."""

current_turn_key: ContextVar[TurnKey | None] = ContextVar("current_turn_key", default=None)
"""The turn that the running code is part of."""


class RunningTurn(Protocol):
    """The attempt at a turn that the running code is part of."""

    def waiting_for(self, channel_id: str) -> AbstractAsyncContextManager[None]:
        """Inside, a call waits until something happens in another channel; "" if it may be any.

        It is left when the turn may go on.
        """
        ...


running_turn: ContextVar[RunningTurn | None] = ContextVar("running_turn", default=None)
"""The attempt that the running code is part of; None outside of turns."""


held_resume_slot: ContextVar[ModelSlot | None] = ContextVar("held_resume_slot", default=None)
"""The slot held by the running code, if that is a model or is called by one."""


async def wait_for_others(work: Awaitable[T], channel_id: str = "") -> T:
    """Await what turns of another channel may have to do first; of any channel, if none is named.

    A turn that may not run beside others lets those start that it waits for, and a model releases its slot, which
    they may need: otherwise it could wait for ever.
    """
    slot = held_resume_slot.get()
    if slot is not None:
        slot.release()
    running = running_turn.get()
    if running is None:
        return await work
    async with running.waiting_for(channel_id):
        return await work


DEFAULT_RESUME_LIMIT = 64
"""How many, unless the user says otherwise."""


class ModelSlot:
    """The right of one turn to ask its model."""

    def __init__(self, limit: ResumeLimit) -> None:
        self._limit = limit
        self._held = True

    def release(self) -> None:
        """Release the slot. Releasing it twice is fine."""
        if self._held:
            self._held = False
            self._limit.slot_freed()


class ResumeLimit:
    """Hands out slots to turns."""

    def __init__(self, clock: Clock, most: int = DEFAULT_RESUME_LIMIT) -> None:
        if not isinstance(most, int) or isinstance(most, bool) or most < 1:
            raise UsageError(f"resume_at_once is {describe(most)}; give a number of turns, 1 or more")
        self._clock, self._max_slots = clock, most
        self._slots_in_use = 0
        self._backlog = False
        self._resumed: dict[str, ModelSlot | None] = {}
        """The turns that are being resumed, with the slot reserved for each."""
        self._queue: PriorityQueue[asyncio.Future[None]] = PriorityQueue()
        self._waiting: Counter[str] = Counter()
        """The channels of those that wait."""
        self._waited: dict[str, Instant] = {}
        """When the running turn of a channel got its slot, if it waited for one."""

    def expect(self, backlog: bool) -> None:
        """Set whether channels are left whose turns have not been resumed."""
        self._backlog = backlog
        self._grant_slots()

    def waited_until(self, channel_id: str) -> Instant:
        """Until when a turn of this channel has waited for a slot: now, if it still does; `NEVER` if it has not."""
        return self._clock.now() if channel_id in self._waiting else self._waited.get(channel_id, NEVER)

    async def begin(self, job: JobRef) -> None:
        """Wait until this turn may be resumed, and reserve a slot for it."""
        self._resumed.setdefault(job.job_id, None)
        slot = await self._wait_for_slot(job.channel_id, Priority.BACKGROUND)
        if job.job_id in self._resumed:
            self._resumed[job.job_id] = slot
            self._waited[job.channel_id] = self._clock.now()
        else:
            slot.release()

    def release_slot(self, job_id: str) -> None:
        """Release the slot reserved for this turn: it waits for something other than its model."""
        slot = self._resumed.get(job_id)
        if slot is not None:
            self._resumed[job_id] = None
            slot.release()

    def turn_over(self, job: JobRef) -> None:
        """This turn has ended, or is not run here any more."""
        self.release_slot(job.job_id)
        self._waited.pop(job.channel_id, None)
        if job.job_id in self._resumed:
            del self._resumed[job.job_id]
            self._grant_slots()

    @asynccontextmanager
    async def model_slot(self, job: JobRef, stopping: asyncio.Event) -> AsyncIterator[bool]:
        """Inside, the turn has a slot to ask its model; before that it waits for one, if there is a limit.

        False if the engine stops meanwhile: then it has none.
        """
        begun = job.job_id in self._resumed
        slot = self._resumed.get(job.job_id) or self._take_free_slot()
        if begun:
            self._resumed[job.job_id] = None
        if slot is None:
            priority = Priority.NORMAL if begun else Priority.URGENT
            slot = await _slot_unless_stopping(
                stopping, asyncio.ensure_future(self._wait_for_slot(job.channel_id, priority))
            )
        if slot is None:
            yield False
            return
        token = held_resume_slot.set(slot)
        try:
            yield True
        finally:
            held_resume_slot.reset(token)
            slot.release()

    def slot_freed(self) -> None:
        """A slot is free again."""
        self._slots_in_use -= 1
        self._grant_slots()

    async def _wait_for_slot(self, channel_id: str, priority: Priority) -> ModelSlot:
        slot = self._take_free_slot()
        if slot is not None:
            return slot
        given: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.put(given, priority)
        self._waiting[channel_id] += 1
        try:
            await given
        except asyncio.CancelledError:
            if given.done() and not given.cancelled():  # it was given in the same step
                self.slot_freed()
            raise
        finally:
            self._waiting[channel_id] -= 1
            if not self._waiting[channel_id]:
                del self._waiting[channel_id]
        self._waited[channel_id] = self._clock.now()
        return ModelSlot(self)

    def _take_free_slot(self) -> ModelSlot | None:
        """A slot, if one is free and the queue is empty."""
        if self._queue or not self._is_free:
            return None
        self._slots_in_use += 1
        return ModelSlot(self)

    @property
    def _is_free(self) -> bool:
        return self._slots_in_use < self._max_slots or not (self._backlog or self._resumed)

    def _grant_slots(self) -> None:
        while self._queue and self._is_free:
            (given,) = self._queue.take(1)
            if not given.done():
                self._slots_in_use += 1
                given.set_result(None)


async def _slot_unless_stopping(stopping: asyncio.Event, slot: asyncio.Future[ModelSlot]) -> ModelSlot | None:
    """The slot, as soon as it is given; None if this is set before."""
    stopped = asyncio.ensure_future(stopping.wait())
    either: tuple[asyncio.Future[ModelSlot] | asyncio.Future[Literal[True]], ...] = (slot, stopped)
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        if slot.done():
            slot.result().release()
        raise
    finally:
        stopped.cancel()
        slot.cancel()
    return slot.result() if slot.done() and not slot.cancelled() else None
