"""Drafts that wait for admission to one channel: urgent ones first, and nobody for ever.

Rule 1: within one priority, first come, first served.
Rule 2: a higher priority goes first, but a waiting draft is overtaken at most `PATIENCE` times.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

from antiphon.core.envelope import Priority

T = TypeVar("T")

PATIENCE = 64


class _Lane(Generic[T]):
    """The waiting drafts of one priority, and the arrivals of those that overtook its first."""

    def __init__(self) -> None:
        self.items: deque[tuple[int, T]] = deque()
        self.overtakers: list[int] = []

    def take(self) -> tuple[int, T]:
        arrival, item = self.items.popleft()
        if self.overtakers:
            first = self.items[0][0] if self.items else arrival
            self.overtakers = [other for other in self.overtakers if self.items and other > first]
        return arrival, item

    def overtaken_by(self, arrival: int) -> None:
        if self.items and arrival > self.items[0][0]:
            self.overtakers.append(arrival)

    @property
    def out_of_patience(self) -> bool:
        return bool(self.items) and len(self.overtakers) >= PATIENCE


class Waiting(Generic[T]):
    """A queue in order of priority, with ageing."""

    def __init__(self) -> None:
        self._by_priority: dict[Priority, _Lane[T]] = {priority: _Lane() for priority in Priority}
        self._lanes = [self._by_priority[priority] for priority in sorted(Priority, reverse=True)]
        self._arrivals = 0
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def put(self, item: T, priority: Priority) -> None:
        """Let an item wait."""
        self._arrivals += 1
        self._size += 1
        self._by_priority[priority].items.append((self._arrivals, item))

    def take(self, most: int) -> list[T]:
        """The next items to be admitted, at most so many."""
        taken: list[T] = []
        while self._size and len(taken) < most:
            taken.append(self._take_one())
        return taken

    def _take_one(self) -> T:
        chosen = self._next_lane()
        arrival, item = chosen.take()
        self._size -= 1
        for lane in self._lanes:
            lane.overtaken_by(arrival)
        return item

    def _next_lane(self) -> _Lane[T]:
        impatient = [lane for lane in self._lanes if lane.out_of_patience]
        if impatient:
            return min(impatient, key=lambda lane: lane.items[0][0])
        return next(lane for lane in self._lanes if lane.items)
