"""The clock a hub is given. Nothing else in the hub knows what time it is."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import Protocol

from antiphon.core.instants import NEVER, Instant, after, seconds_between

LONGEST_WAIT = 60.0
"""A wall clock may be set: no wait trusts it for longer than this."""
OVERSLEPT = 15.0
"""A wait that is so many seconds late shows that the process did not run: it was stopped, or its event loop blocked."""


class Clock(Protocol):
    """Tells the time, and waits for it."""

    def now(self) -> Instant:
        """The present instant."""
        ...

    def drift(self) -> float:
        """By how many seconds it was set since it was made, against a monotonic clock.

        Time in which the process was stopped counts as set: nothing could be done in it.
        """
        ...

    async def wait(self, wake: asyncio.Event, until: Instant) -> None:
        """Return when `wake` is set or `until` may have come, whichever is first; `NEVER` waits for `wake` alone.

        If the clock is set meanwhile, this returns no later than it would have without that.
        """
        ...


def steady(clock: Clock) -> Instant:
    """The time on a steady clock that started with this one and cannot be set. Use it to measure durations."""
    drift = clock.drift()
    return after(clock.now(), -drift) if drift else clock.now()


class SystemClock:
    """The machine's clock."""

    def __init__(self) -> None:
        self._offset = time.time_ns() - time.monotonic_ns()
        self._second, self._told = 0, ""
        self._ends: dict[object, float] = {}
        """When each wait should be over, on the monotonic clock."""

    def drift(self) -> float:
        self._notice_stop()
        return (time.time_ns() - time.monotonic_ns() - self._offset) / 1e9

    def now(self) -> Instant:
        second, fraction = divmod(time.time_ns() // 1000, 1_000_000)
        if second != self._second:  # a whole second is told alike
            self._second, self._told = second, datetime.fromtimestamp(second, UTC).isoformat()[: -len("+00:00")]
        return f"{self._told}.{fraction:06d}Z"

    async def wait(self, wake: asyncio.Event, until: Instant) -> None:
        left = LONGEST_WAIT
        if until != NEVER:
            left = min(left, max(0.0, seconds_between(self.now(), until)))
        key = object()
        self._ends[key] = time.monotonic() + left
        try:
            async with asyncio.timeout(left):
                await wake.wait()
        except TimeoutError:
            return
        finally:
            self._notice_stop()
            del self._ends[key]

    def _notice_stop(self) -> None:
        """Take the time in which the process did not run off the time that has passed.

        A process that was stopped (SIGSTOP, a paused container) goes on with everything due at once. What it owes would
        be late before it could do anything about it.
        """
        now = time.monotonic()
        late = now - min(self._ends.values(), default=now)
        if late > OVERSLEPT:
            self._offset -= int(late * 1e9)
            self._ends = {key: max(end, now) for key, end in self._ends.items()}
