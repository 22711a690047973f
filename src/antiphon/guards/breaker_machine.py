"""The state machine of a circuit breaker, as values: what is counted, what is recorded, what is refused.

Rule 1: `count` and `apply` fold recorded facts; `follow` says which change is recorded because of an event. Limits are
        read by `follow` alone, so that a log folds the same with other limits.
Rule 2: each class of failure has its own counter, and a success resets those of the classes that it has passed.
Rule 3: a breaker that opens begins a new epoch. What began in an earlier one changes nothing any more.
Rule 4: one call probes at a time. It holds a lease until it ends, or until its deadline.
Rule 5: a stopped breaker is opened again by a person alone, who lets a call leave.

    from        event                                    to          epoch  retry at       trips
    closed      a counter reaches its limit              open        + 1    the cooldown   + 1
    open        a call before `retry_at`                 open
    open        a call from then on, or one approved     half_open
    open        trips above `max_trips` within an hour   stopped
    half_open   another call                             half_open
    half_open   the probe succeeds                       closed                            kept for an hour
    half_open   the probe fails, or its lease ends       open        + 1    the cooldown   + 1
    half_open   the probe is cancelled, or its process   open               now
                has died
    stopped     a call that a person has approved        half_open                         0
"""

from __future__ import annotations

import hashlib
from typing import Literal

import msgspec
from msgspec.structs import replace

from antiphon.core.envelope import NEVER, Instant, add_seconds
from antiphon.core.protection_events import BreakerChanged
from antiphon.guards.recent_counts import MAX_ROWS, SECOND_CHARS, second_before
from antiphon.guards.run_limits import Limit, is_reached

BreakerStatus = Literal["closed", "open", "half_open", "stopped"]
Counter = Literal["schema", "streak", "invariant", "transport"]
PASSED_BY_SUCCESS: tuple[Counter, ...] = ("transport", "schema", "streak")
PASSED_BEFORE: dict[str, tuple[Counter, ...]] = {
    "transport": (),
    "schema": ("transport",),
    "invariant": ("transport", "schema"),
}
"""Which classes a call has passed that failed with this one: an answer that does not fit did arrive."""
SHARE_WINDOW_SECONDS = 60.0
TRIP_WINDOW_SECONDS = 3600.0
JITTER = 0.1
SHARE_REASON = "transport_share"


class BreakerLimits(msgspec.Struct, frozen=True):
    """When a breaker opens, and for how long."""

    schema: Limit = 2
    streak: Limit = 3
    invariant: Limit = 3
    transport: Limit = 5
    share: float = 0.5
    least_calls: int = 10
    cooldown: float = 30.0
    max_cooldown: float = 300.0
    max_trips: Limit = 5
    lease: float = 120.0
    cost_share: float = 0.8


class Breaker(msgspec.Struct, frozen=True, omit_defaults=True):
    """One breaker: its state, and what it has counted in it."""

    status: BreakerStatus = "closed"
    epoch: int = 0
    since: Instant = NEVER
    """When it came into this state; `NEVER` if it never was in another one."""
    retry_at: Instant = NEVER
    trips: tuple[Instant, ...] = ()
    """When it has opened, in the last hour."""
    probe: str = ""
    lease: Instant = NEVER
    """When the time of the probe is over."""
    reason: str = ""
    counts: dict[str, int] = msgspec.field(default_factory=dict)
    window: tuple[tuple[str, int, int], ...] = ()
    """For each of the last seconds: how many calls have ended, and how many of them in a transport error."""
    failed_at: Instant = NEVER
    """When the last failure was counted."""


CLOSED = Breaker()


class Called(msgspec.Struct, frozen=True):
    """A call leaves, or wants to."""

    call: str
    until: Instant = NEVER
    approved: bool = False
    """Whether a person has allowed it."""


class Ended(msgspec.Struct, frozen=True):
    """A call that has left has an outcome."""

    call: str
    epoch: int
    """The epoch of the breaker when the call left."""
    failure: str = ""
    """The class in which it failed; "" for a success, `neutral` if the caller has ended it."""


class Repeated(msgspec.Struct, frozen=True):
    """So many identical calls in a row were found."""

    count: int


class Overspent(msgspec.Struct, frozen=True):
    """More was spent than is allowed."""

    rolling_cost: int = 0
    ceiling: int = 0


class ProbeLost(msgspec.Struct, frozen=True):
    """The process of the probe has died, or its turn was cancelled."""


class LeaseOver(msgspec.Struct, frozen=True):
    """The time of the probe is over."""


class Opened(msgspec.Struct, frozen=True):
    """The breaker has just opened."""


BreakerEvent = Called | Ended | Repeated | Overspent | ProbeLost | LeaseOver | Opened
NEUTRAL = "neutral"


def refuses(breaker: Breaker, call: Called, at: Instant) -> bool:
    """Whether a call may not leave."""
    match breaker.status:
        case "closed":
            return False
        case "open":
            return at < breaker.retry_at and not call.approved
        case "half_open":
            return breaker.probe != call.call
        case "stopped":
            return not call.approved


def concerns(breaker: Breaker, ended: Ended) -> bool:
    """Whether an outcome changes anything: it is of this epoch, and that of the probe if there is one."""
    if breaker.status == "half_open":
        return breaker.probe == ended.call
    return breaker.status == "closed" and breaker.epoch == ended.epoch


def count(breaker: Breaker, event: BreakerEvent, at: Instant) -> Breaker:
    """The breaker after a recorded fact that changes no more than its counters."""
    if breaker.status != "closed":
        return breaker
    match event:
        case Ended() as ended if ended.failure != NEUTRAL and concerns(breaker, ended):
            return _count_outcome(breaker, ended.failure, at)
        case Repeated(count=times):
            most = max(times, breaker.counts.get("streak", 0) + 1)
            return replace(breaker, counts={**breaker.counts, "streak": most})
        case _:
            return breaker


def _count_outcome(breaker: Breaker, failure: str, at: Instant) -> Breaker:
    passed = PASSED_BEFORE[failure] if failure else PASSED_BY_SUCCESS
    counts = breaker.counts
    if counts or failure:
        counts = {name: number for name, number in counts.items() if name not in passed}
    if failure:
        counts[failure] = counts.get(failure, 0) + 1
    window = with_calls(breaker.window, at[:SECOND_CHARS], 1, failures=int(failure == "transport"))
    if not failure and counts is breaker.counts:
        return replace(breaker, window=window)
    return replace(breaker, counts=counts, window=window, failed_at=at if failure else breaker.failed_at)


def with_calls(
    window: tuple[tuple[str, int, int], ...], second: str, calls: int, *, failures: int
) -> tuple[tuple[str, int, int], ...]:
    """The window with so many more calls in a second, some of them failed."""
    if window and window[-1][0] == second:
        return (*window[:-1], (second, window[-1][1] + calls, window[-1][2] + failures))
    if not window or window[-1][0] < second:
        return (*window[1 - MAX_ROWS :], (second, calls, failures))
    rows = {row[0]: row for row in window}
    known = rows.get(second, (second, 0, 0))
    rows[second] = second, known[1] + calls, known[2] + failures
    return tuple(rows[key] for key in sorted(rows))[-MAX_ROWS:]


def follow(
    breaker: Breaker, event: BreakerEvent, limits: BreakerLimits, *, at: Instant, seed: str = ""
) -> BreakerChanged | None:
    """The change that is recorded because of an event, which is counted already. `scope` is left for the caller."""
    match breaker.status, event:
        case "closed", Ended() | Repeated():
            reason = _reached_limit(breaker, limits, at)
            return _opening(breaker, reason, limits, at=at, seed=seed) if reason else None
        case "closed", Overspent(rolling_cost=cost, ceiling=ceiling):
            opening = _opening(breaker, "cost", limits, at=at, seed=seed)
            return replace(opening, rolling_cost=cost, ceiling=ceiling)
        case "open", Called() as call if not refuses(breaker, call, at):
            return _probing(breaker, call, limits, at=at)
        case "open", Opened() if not _may_open_again(len(breaker.trips), limits):
            return BreakerChanged(
                "", "open", "stopped", breaker.epoch, "max_trips", breaker.counts, trips=len(breaker.trips)
            )
        case "half_open", Ended() as ended if concerns(breaker, ended):
            return _after_probe(breaker, ended, limits, at=at, seed=seed)
        case "half_open", LeaseOver():
            return _opening(breaker, "lease_expired", limits, at=at, seed=seed)
        case "half_open", ProbeLost():
            return _released(breaker, "probe_lost", at)
        case "stopped", Called(approved=True) as call:
            return _probing(breaker, call, limits, at=at)
        case _:
            return None


def _after_probe(
    breaker: Breaker, ended: Ended, limits: BreakerLimits, *, at: Instant, seed: str
) -> BreakerChanged | None:
    if ended.failure == NEUTRAL:
        return _released(breaker, "probe_cancelled", at)
    if ended.failure:
        return _opening(breaker, ended.failure, limits, at=at, seed=seed)
    return BreakerChanged("", "half_open", "closed", breaker.epoch, "probe_ok", trips=len(breaker.trips))


def _reached_limit(breaker: Breaker, limits: BreakerLimits, at: Instant) -> str:
    """The counter that has reached its limit; "" if none has."""
    most: tuple[tuple[Counter, Limit], ...] = (
        ("schema", limits.schema),
        ("streak", limits.streak),
        ("invariant", limits.invariant),
        ("transport", limits.transport),
    )
    reached = next((name for name, limit in most if is_reached(breaker.counts.get(name, 0), limit)), "")
    if reached or not breaker.counts.get("transport"):  # the share rises with a transport error alone
        return reached
    first = second_before(SHARE_WINDOW_SECONDS, at)
    rows = [row for row in breaker.window if row[0] > first]
    calls, failures = sum(row[1] for row in rows), sum(row[2] for row in rows)
    return SHARE_REASON if calls >= limits.least_calls and failures >= limits.share * calls else ""


def _may_open_again(trips: int, limits: BreakerLimits) -> bool:
    return isinstance(limits.max_trips, str) or trips <= limits.max_trips


def _opening(breaker: Breaker, reason: str, limits: BreakerLimits, *, at: Instant, seed: str) -> BreakerChanged:
    trips = len(recent_trips(breaker.trips, at)) + 1
    epoch = breaker.epoch + 1
    retry_at = add_seconds(at, cooldown_seconds(trips, limits, f"{seed} {epoch}"))
    return BreakerChanged("", breaker.status, "open", epoch, reason, dict(breaker.counts), retry_at, trips)


def _released(breaker: Breaker, reason: str, at: Instant) -> BreakerChanged:
    return BreakerChanged(
        "", "half_open", "open", breaker.epoch, reason, retry_at=at, trips=len(breaker.trips), probe=breaker.probe
    )


def _probing(breaker: Breaker, call: Called, limits: BreakerLimits, *, at: Instant) -> BreakerChanged:
    latest = add_seconds(at, limits.lease)
    until = latest if call.until == NEVER else min(call.until, latest)
    reason = "approved" if call.approved else "probe"
    trips = 0 if breaker.status == "stopped" else len(breaker.trips)
    return BreakerChanged(
        "", breaker.status, "half_open", breaker.epoch, reason, trips=trips, probe=call.call, until=until
    )


def apply(breaker: Breaker, change: BreakerChanged, at: Instant) -> Breaker:
    """The breaker after a recorded change."""
    match change.target:
        case "open":
            trips = recent_trips(breaker.trips, at)
            if change.epoch != breaker.epoch:
                trips = (*trips, at)
            return Breaker("open", change.epoch, at, change.retry_at, trips, reason=change.reason)
        case "half_open":
            trips = () if change.source == "stopped" else breaker.trips
            return replace(breaker, status="half_open", since=at, probe=change.probe, lease=change.until, trips=trips)
        case "stopped":
            return Breaker("stopped", change.epoch, at, trips=breaker.trips, reason=breaker.reason)
        case _:
            return Breaker("closed", change.epoch, at, trips=breaker.trips)


def recent_trips(trips: tuple[Instant, ...], at: Instant) -> tuple[Instant, ...]:
    """Those of the last hour."""
    first = add_seconds(at, -TRIP_WINDOW_SECONDS)
    return tuple(each for each in trips if each > first)


def cooldown_seconds(trips: int, limits: BreakerLimits, seed: str) -> float:
    """How long a breaker stays open after so many trips: doubled with each, and up to a tenth shorter or longer.

    The seed is made of what is recorded, and so is the result: it is drawn once.
    """
    doubled = min(limits.cooldown * 2.0 ** min(trips - 1, 30), limits.max_cooldown)
    drawn = int.from_bytes(hashlib.sha256(seed.encode()).digest()[:8], "big") / 2**64
    return round(min(doubled * (1 - JITTER + 2 * JITTER * drawn), limits.max_cooldown), 6)
