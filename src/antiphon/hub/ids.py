"""The source of new ids: time-ordered, and strictly growing within one process."""

from __future__ import annotations

import secrets
import time

from antiphon.core.ids import FREE_BITS, uuid7


class TimeOrderedIds:
    """Draws version 7 UUIDs. Within one millisecond, or if the clock steps back, it counts on from the last."""

    def __init__(self) -> None:
        self._millisecond = 0
        self._bits = 0

    def __call__(self) -> str:
        now = time.time_ns() // 1_000_000
        if now > self._millisecond:
            self._millisecond, self._bits = now, secrets.randbits(FREE_BITS - 1)
        else:
            self._bits += 1 + (self._bits & 0xFF)
        if self._bits >> FREE_BITS:
            self._millisecond, self._bits = self._millisecond + 1, secrets.randbits(FREE_BITS - 1)
        return uuid7(self._millisecond, self._bits)
