"""Counts by the second, as far as a window goes back: what a channel counts for itself, and reports to a ledger later.

Rule 1: a report names the count of all time beside the last seconds, so that a ledger counts nothing twice, also if
        reports are lost or repeated.
Rule 2: a count holds at most `MAX_ROWS` seconds.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from antiphon.core.envelope import Instant, add_seconds

MAX_ROWS = 60
MAX_REPORTERS = 1024
SECOND_CHARS = len("2026-01-01T00:00:00")
"""The part of an instant that names its second. Such parts compare as text."""


class RecentCount(msgspec.Struct, frozen=True, array_like=True):
    """How often something has happened in all, and in each of the last seconds in which it has."""

    total: int = 0
    rows: tuple[tuple[str, int], ...] = ()

    def plus_one(self, at: Instant) -> RecentCount:
        """The same, and once more at this instant."""
        second, rows = at[:SECOND_CHARS], self.rows
        if rows and rows[-1][0] == second:
            return RecentCount(self.total + 1, (*rows[:-1], (second, rows[-1][1] + 1)))
        return RecentCount(self.total + 1, (*rows[1 - MAX_ROWS :], (second, 1)))

    def within(self, seconds: float, at: Instant) -> list[tuple[str, int]]:
        """The rows of the last seconds before this instant."""
        first = second_before(seconds, at)
        return [row for row in self.rows if row[0] > first]


NO_COUNT = RecentCount()


def second_before(seconds: float, at: Instant) -> str:
    """The second so long before an instant."""
    return add_seconds(at, -seconds)[:SECOND_CHARS]


class Reported(msgspec.Struct, frozen=True, array_like=True):
    """What a reporter has counted in all when it reported last."""

    total: int
    second: str


Reporters = dict[str, Reported]


def new_rows(rows: Sequence[tuple[str, int]], total: int, known: Reported | None) -> list[tuple[str, int]]:
    """The part of reported rows that is not counted yet: the newest of them."""
    left = total if known is None else total - known.total
    found: list[tuple[str, int]] = []
    for second, count in reversed(rows):
        taken = min(count, left)
        if taken <= 0:
            break
        left -= taken
        found.append((second, taken))
    return found[::-1]


def with_report(reporters: Reporters, reporter: str, reported: Reported, *, window: float, at: Instant) -> Reporters:
    """The reporters with one more report. Those that have not reported within the window are forgotten."""
    first = second_before(window, at)
    kept = {name: each for name, each in reporters.items() if name != reporter and each.second >= first}
    while len(kept) >= MAX_REPORTERS:
        del kept[next(iter(kept))]
    return {**kept, reporter: reported}
