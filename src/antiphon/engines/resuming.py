"""Limits how many turns ask their models at once while a backlog of owed turns is resumed after a restart.

Rule 1: a resumed turn starts when a place is free. It holds the place until its model has answered.
Rule 2: a turn that waits holds no place: it gives the place up before a tool runs, and before a model waits for
        something in another channel. So no two turns can wait for each other's place.
Rule 3: fresh turns go first, then turns that have started, then the backlog. Ageing keeps all of them from starving.
Rule 4: when the backlog is empty, there is no limit.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal

from antiphon.agents.nesting import held_place
from antiphon.core.envelope import Priority
from antiphon.core.errors import UsageError
from antiphon.core.instants import NEVER, Instant
from antiphon.core.words import shown
from antiphon.engines.protocol import JobRef
from antiphon.hub.clock import Clock
from antiphon.hub.waiting import Waiting

RESUME_AT_ONCE = 64
"""How many, unless the user says otherwise."""


class ModelPlace:
    """The right of one turn to ask its model."""

    def __init__(self, limit: ResumeLimit) -> None:
        self._limit = limit
        self._held = True

    def leave(self) -> None:
        """Release the place. Releasing it twice is fine."""
        if self._held:
            self._held = False
            self._limit.left()


class ResumeLimit:
    """Hands out places to turns."""

    def __init__(self, clock: Clock, most: int = RESUME_AT_ONCE) -> None:
        if not isinstance(most, int) or isinstance(most, bool) or most < 1:
            raise UsageError(f"resume_at_once is {shown(most)}; give a number of turns, 1 or more")
        self._clock, self._most = clock, most
        self._taken = 0
        self._backlog = False
        self._resumed: dict[str, ModelPlace | None] = {}
        """The turns that are being resumed, with the place reserved for each."""
        self._line: Waiting[asyncio.Future[None]] = Waiting()
        self._waiting: Counter[str] = Counter()
        """The channels of those that wait."""
        self._waited: dict[str, Instant] = {}
        """When the running turn of a channel got its place, if it waited for one."""

    def expect(self, backlog: bool) -> None:
        """Set whether channels are left whose turns have not been resumed."""
        self._backlog = backlog
        self._hand_on()

    def waited_until(self, channel_id: str) -> Instant:
        """Until when a turn of this channel has waited for a place: now, if it still does; `NEVER` if it has not."""
        return self._clock.now() if channel_id in self._waiting else self._waited.get(channel_id, NEVER)

    async def begin(self, job: JobRef) -> None:
        """Wait until this turn may be resumed, and reserve a place for it."""
        self._resumed.setdefault(job.job_id, None)
        place = await self._next(job.channel_id, Priority.BACKGROUND)
        if job.job_id in self._resumed:
            self._resumed[job.job_id] = place
            self._waited[job.channel_id] = self._clock.now()
        else:
            place.leave()

    def wait_outside(self, job_id: str) -> None:
        """Release the place reserved for this turn: it waits for something other than its model."""
        place = self._resumed.get(job_id)
        if place is not None:
            self._resumed[job_id] = None
            place.leave()

    def over(self, job: JobRef) -> None:
        """This turn has ended, or is not run here any more."""
        self.wait_outside(job.job_id)
        self._waited.pop(job.channel_id, None)
        if job.job_id in self._resumed:
            del self._resumed[job.job_id]
            self._hand_on()

    @asynccontextmanager
    async def asking(self, job: JobRef, stopping: asyncio.Event) -> AsyncIterator[bool]:
        """Inside, the turn has a place to ask its model; before that it waits for one, if there is a limit.

        False if the engine stops meanwhile: then it has none.
        """
        begun = job.job_id in self._resumed
        place = self._resumed.get(job.job_id) or self._free()
        if begun:
            self._resumed[job.job_id] = None
        if place is None:
            priority = Priority.NORMAL if begun else Priority.URGENT
            place = await _unless(stopping, asyncio.ensure_future(self._next(job.channel_id, priority)))
        if place is None:
            yield False
            return
        token = held_place.set(place)
        try:
            yield True
        finally:
            held_place.reset(token)
            place.leave()

    def left(self) -> None:
        """A place is free again."""
        self._taken -= 1
        self._hand_on()

    async def _next(self, channel_id: str, priority: Priority) -> ModelPlace:
        place = self._free()
        if place is not None:
            return place
        given: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.put(given, priority)
        self._waiting[channel_id] += 1
        try:
            await given
        except asyncio.CancelledError:
            if given.done() and not given.cancelled():  # it was given in the same step
                self.left()
            raise
        finally:
            self._waiting[channel_id] -= 1
            if not self._waiting[channel_id]:
                del self._waiting[channel_id]
        self._waited[channel_id] = self._clock.now()
        return ModelPlace(self)

    def _free(self) -> ModelPlace | None:
        """A place, if one is free and the queue is empty."""
        if self._line or not self._is_free:
            return None
        self._taken += 1
        return ModelPlace(self)

    @property
    def _is_free(self) -> bool:
        return self._taken < self._most or not (self._backlog or self._resumed)

    def _hand_on(self) -> None:
        while self._line and self._is_free:
            (given,) = self._line.take(1)
            if not given.done():
                self._taken += 1
                given.set_result(None)


async def _unless(stopping: asyncio.Event, place: asyncio.Future[ModelPlace]) -> ModelPlace | None:
    """The place, as soon as it is given; None if this is set before."""
    stopped = asyncio.ensure_future(stopping.wait())
    either: tuple[asyncio.Future[ModelPlace] | asyncio.Future[Literal[True]], ...] = (place, stopped)
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        if place.done():
            place.result().leave()
        raise
    finally:
        stopped.cancel()
        place.cancel()
    return place.result() if place.done() and not place.cancelled() else None
