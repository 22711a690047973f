"""A clock for tests that stands still until it is moved, and waiting for conditions without sleeping."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from math import inf

from antiphon.core.envelope import NEVER, Instant, add_seconds
from antiphon.core.errors import UsageError
from antiphon.core.text import describe

MANUAL_CLOCK_START: Instant = "2026-01-01T00:00:00.000000Z"


class ManualClock:
    """A clock for tests: `clock.advance(60)` moves it; `await clock.advance(60)` also waits for the tasks it woke."""

    def __init__(self, start: Instant = MANUAL_CLOCK_START) -> None:
        self._now = start
        self._set_by = 0.0
        self._waits: list[tuple[Instant, asyncio.Event]] = []
        self._awake: set[asyncio.Task[object]] = set()
        self._moved: asyncio.Event | None = None

    def now(self) -> Instant:
        """The current instant of this clock."""
        return self._now

    def drift(self) -> float:
        """By how many seconds it was set in all."""
        return self._set_by

    def set(self, seconds: float) -> ClockAdvance:
        """Set it forward (or back) by so many seconds, as a correction of a wrong clock does. No time passes."""
        _check_seconds(seconds)
        self._set_by += seconds
        for _, reached in self._waits:  # each task reads the time again, as with a real clock
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

    def advance(self, seconds: float) -> ClockAdvance:
        """Move on by so many seconds, at once. Time does not run backwards; a clock is put back with `set`."""
        _check_seconds(seconds)
        if seconds < 0:
            raise UsageError(
                f"time passes by {describe(seconds)} seconds; give 0 or more, or put the clock back with set"
            )
        return self._moved_by(seconds)

    def _moved_by(self, seconds: float) -> ClockAdvance:
        self._now = add_seconds(self._now, seconds)
        for until, reached in self._waits:
            if until != NEVER and until <= self._now:
                reached.set()
        return ClockAdvance(self)

    def _settled(self) -> None:
        if self._moved is not None:
            self._moved.set()

    async def settle(self) -> None:
        """Wait until every task that was woken waits again, or is done."""
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
        raise UsageError(f"seconds is {describe(seconds)}; give a number of seconds")


class ClockAdvance:
    """The clock has moved already; awaiting this waits for the tasks that were woken."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock

    def __await__(self) -> Generator[None, None, None]:
        return self._clock.settle().__await__()


MAX_WAIT_SECONDS = 10.0
"""Real seconds after which a promise counts as broken."""
SETTLE_ROUNDS = 50
"""How many rounds of the event loop pass before an absence counts."""


async def let_tasks_run(rounds: int = SETTLE_ROUNDS) -> None:
    """Let every task run that can."""
    for _ in range(rounds):
        await asyncio.sleep(0)


async def wait_until(condition: Callable[[], bool], promise: str) -> None:
    """Return when the condition holds; fail with the promise if it never does."""
    try:
        async with asyncio.timeout(MAX_WAIT_SECONDS):
            while not condition():
                await let_tasks_run(1)
    except TimeoutError:
        raise AssertionError(promise) from None


async def finish_soon(work: Awaitable[None], promise: str) -> None:
    """Return when the work is done; fail with the promise if it never is."""
    try:
        async with asyncio.timeout(MAX_WAIT_SECONDS):
            await work
    except TimeoutError:
        raise AssertionError(promise) from None
