"""The bucket that retries of one provider are paid from, as a value.

Rule 1: a bucket holds at most its capacity. It fills with time, and with each first attempt; a retry costs 1, one after
        a timeout 2.
Rule 2: channels report their first attempts late, with the second of each. The balance is computed anew from the rows
        of the last minute, as if they had been reported at once: what the bucket would not have held is not credited.
Rule 3: first attempts that are older than the window are not credited. The balance may be too low, and never too high.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from antiphon.core.envelope import NEVER, Instant, add_seconds, seconds_between
from antiphon.core.protection_events import RetryCharged
from antiphon.guards.recent_counts import Reported, Reporters, new_rows, second_before, with_report

WINDOW_SECONDS = 60.0
MAX_BUCKET_ROWS = 1024
SECOND_BEGINS = ".000000Z"
ROUNDING = 1e-9
"""Amounts are sums of tenths, which floating point does not hold exactly."""


class BucketLimits(msgspec.Struct, frozen=True):
    """What a bucket holds, and how it fills."""

    capacity: float = 20.0
    starts: float = 10.0
    ratio: float = 0.1
    per_second: float = 0.1


class Bucket(msgspec.Struct, frozen=True, omit_defaults=True):
    """The balance at an instant, and what has been credited and paid since."""

    base: float = 0.0
    since: Instant = NEVER
    """When the balance was `base`; `NEVER` for a bucket that was never used."""
    rows: tuple[tuple[Instant, int, float], ...] = ()
    """At an instant: so many first attempts, and what was paid. In order."""
    reporters: Reporters = msgspec.field(default_factory=dict)


NEW_BUCKET = Bucket()


def balance_of(bucket: Bucket, limits: BucketLimits, at: Instant) -> float:
    """What can be paid now."""
    if bucket.since == NEVER:
        return min(limits.starts, limits.capacity)
    return _play(bucket, bucket.rows, limits, until=at)


def credit(bucket: Bucket, charged: RetryCharged, limits: BucketLimits, *, at: Instant) -> Bucket:
    """The bucket with the first attempts that a channel reports, each counted once."""
    if bucket.since == NEVER:
        bucket = Bucket(min(limits.starts, limits.capacity), at)
    first = second_before(WINDOW_SECONDS, at)
    known = bucket.reporters.get(charged.channel)
    rows = [row for row in new_rows(charged.rows, charged.total, known) if row[0] > first]
    # What was made before the balance was written down is credited to that: it may not exceed the capacity.
    credited = tuple((max(bucket.since, f"{second}{SECOND_BEGINS}"), count, 0.0) for second, count in rows)
    reported = Reported(charged.total, charged.rows[-1][0] if charged.rows else first)
    reporters = with_report(bucket.reporters, charged.channel, reported, window=WINDOW_SECONDS, at=at)
    merged = replace(bucket, rows=tuple(sorted((*bucket.rows, *credited))), reporters=reporters)
    return _without_old_rows(merged, limits, at)


def pay(bucket: Bucket, cost: float, at: Instant) -> Bucket:
    """The bucket after something was paid."""
    return replace(bucket, rows=(*bucket.rows, (at, 0, cost)))


def can_pay(bucket: Bucket, cost: float, limits: BucketLimits, *, at: Instant) -> bool:
    """Whether the balance is enough."""
    return balance_of(bucket, limits, at) + ROUNDING >= cost


def _play(bucket: Bucket, rows: Sequence[tuple[Instant, int, float]], limits: BucketLimits, *, until: Instant) -> float:
    """The balance at an instant, after these rows."""
    balance, before = bucket.base, bucket.since
    for at, firsts, cost in rows:
        balance = min(limits.capacity, balance + limits.per_second * max(0.0, seconds_between(before, at)))
        balance = min(limits.capacity, balance + limits.ratio * firsts) - cost
        before = at
    return min(limits.capacity, balance + limits.per_second * max(0.0, seconds_between(before, until)))


def _without_old_rows(bucket: Bucket, limits: BucketLimits, at: Instant) -> Bucket:
    """The bucket with what is older than the window taken into its base."""
    first = add_seconds(at, -WINDOW_SECONDS)
    old = sum(row[0] < first for row in bucket.rows)
    old = max(old, len(bucket.rows) - MAX_BUCKET_ROWS)
    if old <= 0:
        return bucket
    since = bucket.rows[old - 1][0]
    return replace(
        bucket, base=_play(bucket, bucket.rows[:old], limits, until=since), since=since, rows=bucket.rows[old:]
    )
