"""A breaker played by itself: events in, recorded changes out, as a channel or a ledger records them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from antiphon.core.envelope import NEVER, Instant, add_seconds
from antiphon.core.protection_events import BreakerChanged
from antiphon.guards.breaker_machine import (
    Breaker,
    BreakerEvent,
    BreakerLimits,
    Called,
    Ended,
    LeaseOver,
    Opened,
    ProbeLost,
    apply,
    count,
    follow,
    refuses,
)

BEGAN = "2026-01-01T00:00:00.000000Z"
LIMITS = BreakerLimits()
FEW = BreakerLimits(schema=2, transport=2, max_trips=2)
"""Limits that are reached within a few steps."""


def play(
    breaker: Breaker, event: BreakerEvent, at: Instant, limits: BreakerLimits = LIMITS
) -> tuple[Breaker, list[BreakerChanged]]:
    """The breaker after an event, and the changes that are recorded because of it."""
    breaker, changes = count(breaker, event, at), []
    following: BreakerEvent | None = event
    while following is not None:
        change = follow(breaker, following, limits, at=at, seed="seed")
        if change is None:
            break
        breaker = apply(breaker, change, at)
        changes.append(change)
        following = Opened() if change.target == "open" else None
    return breaker, changes


@dataclass(frozen=True)
class Scene:
    """A breaker, the time, and the calls that have left and not ended, each with the epoch in which it left."""

    breaker: Breaker
    at: Instant = BEGAN
    calls: tuple[tuple[str, int], ...] = ()
    number: int = 0

    def after(self, event: BreakerEvent) -> Scene:
        return replace(self, breaker=play(self.breaker, event, self.at, FEW)[0])

    def next_scenes(self, most_calls: int = 2) -> Iterator[tuple[str, Scene]]:
        """Everything that can happen next, and what it comes to."""
        name = f"c{self.number % (most_calls + 2)}"
        if len(self.calls) < most_calls and name not in dict(self.calls):
            for approved in (False, True):
                call = Called(name, approved=approved)
                if refuses(self.breaker, call, self.at):
                    yield "refused", replace(self, number=self.number + 1)
                else:
                    left = self.after(call)
                    yield (
                        "approved left" if approved else "left",
                        replace(left, calls=(*self.calls, (name, left.breaker.epoch)), number=self.number + 1),
                    )
        for call, epoch in self.calls:
            others = tuple(each for each in self.calls if each[0] != call)
            for failure in ("", "transport", "schema", "neutral"):
                yield f"ended {failure}", replace(self.after(Ended(call, epoch, failure)), calls=others)
        if self.breaker.status == "open" and self.at < self.breaker.retry_at:
            yield "cooled down", replace(self, at=self.breaker.retry_at)
        if self.breaker.status == "half_open":
            yield "lease over", replace(self, at=max(self.at, self.breaker.lease)).after(LeaseOver())
            yield "crash", replace(self.after(ProbeLost()), calls=())
        yield "a minute passes", replace(self, at=add_seconds(self.at, 61)).due()

    def due(self) -> Scene:
        """The scene after what has fallen due: the hub records the end of a lease before anything else."""
        if self.breaker.status == "half_open" and self.breaker.lease <= self.at:
            return self.after(LeaseOver())
        return self

    @property
    def key(self) -> tuple[object, ...]:
        """The same for scenes that differ in nothing but the date."""
        breaker = self.breaker

        def since(at: Instant) -> object:
            return None if at == NEVER else round(_seconds(at) - _seconds(self.at))

        return (
            breaker.status,
            tuple((epoch == breaker.epoch, call == breaker.probe) for call, epoch in self.calls),
            since(breaker.retry_at) if breaker.status == "open" else None,
            since(breaker.lease) if breaker.status == "half_open" else None,
            tuple(since(trip) for trip in breaker.trips),
            tuple(sorted(breaker.counts.items())),
        )


def _seconds(at: Instant) -> float:
    day, hour, minute, second = int(at[8:10]), int(at[11:13]), int(at[14:16]), float(at[17:26])
    return ((day * 24 + hour) * 60 + minute) * 60 + second
