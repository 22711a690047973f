"""The clock a hub is given. Nothing else in the hub knows what time it is."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import Protocol

from antiphon.core.instants import NEVER, Instant, moment

LONGEST_WAIT = 60.0
"""A wall clock may be set: no wait trusts it for longer than this."""


class Clock(Protocol):
    """Tells the time, and waits for it."""

    def now(self) -> Instant:
        """The present instant."""
        ...

    def drift(self) -> float:
        """By how many seconds it was set since it was made, against a clock that nobody can set."""
        ...

    async def wait(self, wake: asyncio.Event, until: Instant) -> None:
        """Return when `wake` is set or `until` may have come, whichever is first; `NEVER` waits for `wake` alone."""
        ...


class SystemClock:
    """The machine's clock."""

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()
        self._second, self._told = 0, ""

    def drift(self) -> float:
        return time.time() - time.monotonic() - self._offset

    def now(self) -> Instant:
        second, fraction = divmod(time.time_ns() // 1000, 1_000_000)
        if second != self._second:  # a whole second is told alike
            self._second, self._told = second, datetime.fromtimestamp(second, UTC).isoformat()[: -len("+00:00")]
        return f"{self._told}.{fraction:06d}Z"

    async def wait(self, wake: asyncio.Event, until: Instant) -> None:
        left = LONGEST_WAIT
        if until != NEVER:
            left = min(left, max(0.0, moment(until).timestamp() - time.time()))
        try:
            async with asyncio.timeout(left):
                await wake.wait()
        except TimeoutError:
            return
