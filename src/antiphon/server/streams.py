"""How many streams there are, and of whom: so that nobody takes all of them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from antiphon.server.limits import Limits


class Streams:
    """The streams that are open, and whether they should come to an end."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._open: Counter[str] = Counter()
        self.stopping = asyncio.Event()
        """Set when the server stops."""
        self.late = asyncio.Event()
        """Set when it has been stopping for so long that nobody may wait for anything any more."""

    @property
    def count(self) -> int:
        """How many there are."""
        return self._open.total()

    def has_place_for(self, name: str) -> bool:
        """Whether this participant may have one more."""
        return self.count < self._limits.streams and self._open[name] < self._limits.streams_each

    @contextmanager
    def taken(self, name: str) -> Iterator[None]:
        """One more, for as long as it lasts."""
        self._open[name] += 1
        try:
            yield
        finally:
            self._open[name] -= 1
            if not self._open[name]:
                del self._open[name]
