"""Instants: points in time as text that sorts.

An instant is ISO 8601 in UTC with microseconds and a Z, always 27 characters, so that comparing two of them as
text compares them as times. Nothing here reads a clock.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache

Instant = str

NEVER: Instant = ""
LAST = datetime.max.replace(tzinfo=UTC)


def instant(moment: datetime) -> Instant:
    """Write a moment down. It must be aware of its time zone."""
    moment = moment.astimezone(UTC)
    return moment.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def moment(at: Instant) -> datetime:
    """Read an instant back. What is no instant raises ValueError."""
    return datetime.fromisoformat(at).astimezone(UTC)


@lru_cache(maxsize=1024)
def after(at: Instant, seconds: float) -> Instant:
    """The instant this many seconds later; beyond the calendar it is the last one there is."""
    try:
        return instant(moment(at) + timedelta(seconds=seconds))
    except OverflowError:
        return instant(LAST)


def seconds_between(earlier: Instant, later: Instant) -> float:
    """How many seconds lie between two instants; negative if they are the other way round."""
    return (moment(later) - moment(earlier)).total_seconds()


def expiry(at: Instant, ttl: float | None) -> Instant:
    """When a time to live that began at an instant is over; never, if there is none, or no such date."""
    try:
        return NEVER if ttl is None else after(at, ttl)
    except ValueError:
        return NEVER
