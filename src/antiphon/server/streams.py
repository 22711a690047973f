"""Places for streams and for requests that wait, each holder with a share: no key or address takes all of them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from antiphon.server.limits import Limits


def share_of(each: int, most: int) -> int:
    """The share of one holder: never more than three quarters of all, so that some are left for the others."""
    return min(each, max(1, most * 3 // 4))


class Shares:
    """A number of places, of which each holder takes a share at most."""

    def __init__(self, most: int, each: int) -> None:
        self._most, self._each = most, share_of(each, most)
        self._taken: Counter[str] = Counter()

    @property
    def count(self) -> int:
        """How many are taken."""
        return self._taken.total()

    def has_place_for(self, holder: str) -> bool:
        """Whether this holder may take one more."""
        return self.count < self._most and self._taken[holder] < self._each

    @contextmanager
    def taken(self, holder: str) -> Iterator[None]:
        """One more, for as long as it lasts."""
        self._taken[holder] += 1
        try:
            yield
        finally:
            self._taken[holder] -= 1
            if not self._taken[holder]:
                del self._taken[holder]


class Streams:
    """The streams that are open, the requests that wait, and whether they should come to an end."""

    def __init__(self, limits: Limits) -> None:
        self.open = Shares(limits.streams, limits.streams_each)
        self.waiting = Shares(limits.waiting, limits.waiting_each)
        """For requests that wait for an agent's answer."""
        self.stopping = asyncio.Event()
        """Set when the server stops."""
        self.late = asyncio.Event()
        """Set when it has been stopping for so long that nobody may wait for anything any more."""

    @property
    def count(self) -> int:
        """How many streams there are."""
        return self.open.count
