"""A clock that stands still until it is told to move."""

from __future__ import annotations

import asyncio
from collections.abc import Generator

from antiphon.core.instants import NEVER, Instant, after

START: Instant = "2026-01-01T00:00:00.000000Z"


class ManualClock:
    """Time for tests: `clock.advance(60)` moves it; `await clock.advance(60)` also waits for what that caused."""

    def __init__(self, start: Instant = START) -> None:
        self._now = start
        self._set_by = 0.0
        self._waits: list[tuple[Instant, asyncio.Event]] = []
        self._awake: set[asyncio.Task[object]] = set()
        self._moved: asyncio.Event | None = None

    def now(self) -> Instant:
        """The instant it stands at."""
        return self._now

    def drift(self) -> float:
        """By how many seconds it was set."""
        return self._set_by

    def set(self, seconds: float) -> Advance:
        """Set it forward (or back) by so many seconds, as somebody does who corrects a wrong clock."""
        self._set_by += seconds
        return self.advance(seconds)

    async def wait(self, wake: asyncio.Event, until: Instant) -> None:
        """Return when `wake` is set, or this clock has reached `until`."""
        task = asyncio.current_task()
        assert task is not None, "only a task can wait"
        self._awake.discard(task)
        self._settled()
        reached = asyncio.Event()
        entry = (until, reached)
        self._waits.append(entry)
        waits = [asyncio.ensure_future(event.wait()) for event in (wake, reached)]
        try:
            if until == NEVER or until > self._now:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._waits.remove(entry)
            self._awake.add(task)
            for each in waits:
                each.cancel()

    def advance(self, seconds: float) -> Advance:
        """Move on by so many seconds, at once."""
        self._now = after(self._now, seconds)
        for until, reached in self._waits:
            if until != NEVER and until <= self._now:
                reached.set()
        return Advance(self)

    def _settled(self) -> None:
        if self._moved is not None:
            self._moved.set()

    async def settle(self) -> None:
        """Wait until everybody who was woken waits again."""
        while True:
            for _ in range(3):
                await asyncio.sleep(0)
            due = any(reached.is_set() for _, reached in self._waits)
            self._awake = {task for task in self._awake if not task.done()}
            if not due and not self._awake:
                return
            self._moved = asyncio.Event()
            if self._awake:
                await asyncio.wait(
                    [asyncio.ensure_future(self._moved.wait()), *self._awake], return_when=asyncio.FIRST_COMPLETED
                )


class Advance:
    """The time has moved already; awaiting this waits until what fell due has been done."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock

    def __await__(self) -> Generator[None, None, None]:
        return self._clock.settle().__await__()
