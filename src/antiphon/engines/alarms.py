"""Deadlines by the hub's own clock: one task waits for all of them.

Rule 1: an alarm measures time that passes. A clock that is set makes none ring early, and none late.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count

from antiphon.core.instants import NEVER, Instant, after, seconds_between
from antiphon.hub.clock import Clock, steady

CROWDED = 256
"""Below how many it does not matter that some were cancelled."""


class OutOfTime(Exception):
    """Something took longer than it was given."""


class Alarm:
    """Rings once, unless it is cancelled before."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self.ring: Callable[[], None] | None = ring

    def cancel(self) -> None:
        """Do not ring."""
        self.ring = None


class Alarms:
    """Rings alarms when their time has come."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heap: list[tuple[Instant, int, Alarm]] = []
        """In the order of instants on the steady clock."""
        self._numbers = count()
        self._wake = asyncio.Event()
        self._waiting_for: Instant = NEVER
        self._most = CROWDED

    def at(self, when: Instant, ring: Callable[[], None]) -> Alarm:
        """Ring when as much time has passed as there is now until this instant."""
        return self.after(seconds_between(self._clock.now(), when), ring)

    def _set(self, when: Instant, ring: Callable[[], None]) -> Alarm:
        if len(self._heap) > self._most:
            self._tidy()
        alarm = Alarm(ring)
        heappush(self._heap, (when, next(self._numbers), alarm))
        if self._waiting_for == NEVER or when < self._waiting_for:
            self._waiting_for = when
            self._wake.set()
        return alarm

    def within(self, seconds: float | None) -> Within:
        """Cancel what is done inside after so many seconds, and raise `OutOfTime` then."""
        return Within(self, seconds)

    def after(self, seconds: float, ring: Callable[[], None]) -> Alarm:
        """Ring after so many seconds."""
        return self._set(after(steady(self._clock), seconds), ring)

    async def run(self) -> None:
        """Wait and ring, until cancelled."""
        while True:
            self._wake.clear()
            now = steady(self._clock)
            while self._heap and self._heap[0][0] <= now:
                ring = heappop(self._heap)[2].ring
                if ring is not None:
                    ring()
            self._waiting_for = self._heap[0][0] if self._heap else NEVER
            await self._clock.wait(self._wake, self._on_clock(now))

    def _on_clock(self, now: Instant) -> Instant:
        """When the next alarm rings, as the clock shows it now."""
        if self._waiting_for == NEVER:
            return NEVER
        return after(self._clock.now(), seconds_between(now, self._waiting_for))

    def _tidy(self) -> None:
        """Let go of those that were cancelled; the next time when there are twice as many as are left."""
        self._heap = [entry for entry in self._heap if entry[2].ring is not None]
        heapify(self._heap)
        self._most = max(CROWDED, 2 * len(self._heap))


class Within:
    """Something that may take so long and no longer. Used once, with `async with`."""

    __slots__ = ("_alarm", "_alarms", "_before", "_rung", "_seconds", "_task")

    def __init__(self, alarms: Alarms, seconds: float | None) -> None:
        self._alarms, self._seconds = alarms, seconds
        self._task: asyncio.Task[object] | None = None
        self._alarm: Alarm | None = None
        self._before, self._rung = 0, False

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        if self._seconds is not None and task is not None:
            self._task, self._before = task, task.cancelling()
            self._alarm = self._alarms.after(self._seconds, self._ring)

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._alarm is None or self._task is None:
            return
        self._alarm.cancel()
        if not self._rung:
            return
        asked = self._task.cancelling()
        self._task.uncancel()  # also if what was done inside went on all the same
        if isinstance(error, asyncio.CancelledError) and asked <= self._before + 1:
            raise OutOfTime(f"nothing came within {self._seconds:g} seconds") from None

    def _ring(self) -> None:
        assert self._task is not None, "only a task can be cancelled"
        self._rung = True
        self._task.cancel()
