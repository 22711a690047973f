"""A clock that stands still until it is told to move."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from math import inf

from antiphon.core.errors import UsageError
from antiphon.core.instants import NEVER, Instant, after
from antiphon.core.words import shown

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
        """Set it forward (or back) by so many seconds, as a correction of a wrong clock does. No time passes."""
        _check_seconds(seconds)
        self._set_by += seconds
        for _, reached in self._waits:  # each looks at the time again, as it would with a real clock
            reached.set()
        return self._moved_by(seconds)

    async def wait(self, wake: asyncio.Event, until: Instant) -> None:
        """Return when `wake` is set, this clock has reached `until`, or it was set."""
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
        """Move on by so many seconds, at once. Time does not run backwards; a clock is put back with `set`."""
        _check_seconds(seconds)
        if seconds < 0:
            raise UsageError(f"time passes by {shown(seconds)} seconds; give 0 or more, or put the clock back with set")
        return self._moved_by(seconds)

    def _moved_by(self, seconds: float) -> Advance:
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
            others = self._awake - {asyncio.current_task()}
            if not due and not others:
                return
            if others:
                self._moved = asyncio.Event()
                moved = asyncio.ensure_future(self._moved.wait())
                await asyncio.wait([moved, *others], return_when=asyncio.FIRST_COMPLETED)
                moved.cancel()


def _check_seconds(seconds: object) -> None:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not -inf < seconds < inf:
        raise UsageError(f"seconds is {shown(seconds)}; give a number of seconds")


class Advance:
    """The time has moved already; awaiting this waits until what fell due has been done."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock

    def __await__(self) -> Generator[None, None, None]:
        return self._clock.settle().__await__()
