"""The clock of a hub, its breaks, the timers on it, and its source of ids. Nothing else in the hub knows the time.

Rule 1: this module knows the breaks: when a hub was opened, and when the wall clock was set. An expectation that began
        before one is extended by a fact in its own channel when it falls due (see `core.step.tick`), so a log folds
        without knowing when hubs were open.
Rule 2: a change of the clock is detected before anything is stamped with the new time.
Rule 3: where several hubs share a store, time counts while any of them is open. Each notes in the store that it is.
Rule 4: ids are time-ordered, and strictly growing within one process.
Rule 5: a timer measures time that passes: setting the clock fires none early, and none late. One task waits for all
        timers of a queue.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from datetime import UTC, datetime
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Protocol

from msgspec.structs import replace

from antiphon.core.envelope import NEVER, UUID7_FREE_BITS, Instant, add_seconds, seconds_between, uuid7
from antiphon.core.errors import StoreError
from antiphon.core.guard import NO_TIME_BREAKS, Deadline, TimeBreaks
from antiphon.store.protocol import Store

MAX_CLOCK_WAIT_SECONDS = 60.0
"""A wall clock may be set: no wait trusts it for longer than this."""
STOPPED_PROCESS_SECONDS = 15.0
"""A wait that is so many seconds late shows that the process did not run: it was stopped, or its event loop blocked."""


class Clock(Protocol):
    """Tells the time, and waits for it."""

    def now(self) -> Instant:
        """The present instant."""
        ...

    def drift(self) -> float:
        """By how many seconds it was set since it was made, against a monotonic clock.

        Time in which the process was stopped counts as set: nothing could be done in it.
        """
        ...

    async def wait(self, wake: asyncio.Event, until: Instant) -> None:
        """Return when `wake` is set or `until` may have come, whichever is first; `NEVER` waits for `wake` alone.

        If the clock is set meanwhile, this returns no later than it would have without that.
        """
        ...


def steady_now(clock: Clock) -> Instant:
    """The time on a steady clock that started with this one and cannot be set. Use it to measure durations."""
    drift = clock.drift()
    return add_seconds(clock.now(), -drift) if drift else clock.now()


class SystemClock:
    """The machine's clock."""

    def __init__(self) -> None:
        self._offset = time.time_ns() - time.monotonic_ns()
        self._second, self._told = 0, ""
        self._ends: dict[object, float] = {}
        """When each wait should be over, on the monotonic clock."""

    def drift(self) -> float:
        self._notice_stop()
        return (time.time_ns() - time.monotonic_ns() - self._offset) / 1e9

    def now(self) -> Instant:
        second, fraction = divmod(time.time_ns() // 1000, 1_000_000)
        if second != self._second:  # formatted once a second
            self._second, self._told = second, datetime.fromtimestamp(second, UTC).isoformat()[: -len("+00:00")]
        return f"{self._told}.{fraction:06d}Z"

    async def wait(self, wake: asyncio.Event, until: Instant) -> None:
        left = MAX_CLOCK_WAIT_SECONDS
        if until != NEVER:
            left = min(left, max(0.0, seconds_between(self.now(), until)))
        key = object()
        self._ends[key] = time.monotonic() + left
        try:
            async with asyncio.timeout(left):
                await wake.wait()
        except TimeoutError:
            return
        finally:
            self._notice_stop()
            del self._ends[key]

    def _notice_stop(self) -> None:
        """Take the time in which the process did not run off the time that has passed.

        A process that was stopped (SIGSTOP, a paused container) goes on with everything due at once. What it owes would
        be late before it could do anything about it.
        """
        now = time.monotonic()
        late = now - min(self._ends.values(), default=now)
        if late > STOPPED_PROCESS_SECONDS:
            self._offset -= int(late * 1e9)
            self._ends = {key: max(end, now) for key, end in self._ends.items()}


MIN_TIMERS_TO_TIDY = 256
"""With fewer timers, cancelled ones are not worth removing."""


def shorter_time(clock: Clock, seconds: float | None, until: Instant) -> float | None:
    """The seconds that something may take, but not beyond an instant; None for no limit."""
    if until == NEVER:
        return seconds
    left = max(0.0, seconds_between(clock.now(), until))
    return left if seconds is None else min(seconds, left)


class DeadlineExceeded(Exception):
    """A deadline has passed."""


class Timer:
    """Fires once, unless it is cancelled before."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self.ring: Callable[[], None] | None = ring

    def cancel(self) -> None:
        """Do not fire."""
        self.ring = None


class TimerQueue:
    """Fires timers when their time has come."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heap: list[tuple[Instant, int, Timer]] = []
        """In the order of instants on the steady clock."""
        self._numbers = count()
        self._wake = asyncio.Event()
        self._waiting_for: Instant = NEVER
        self._tidy_above = MIN_TIMERS_TO_TIDY

    def at(self, when: Instant, ring: Callable[[], None]) -> Timer:
        """Fire when as much time has passed as there is now until this instant."""
        return self.after(seconds_between(self._clock.now(), when), ring)

    def _set(self, when: Instant, ring: Callable[[], None]) -> Timer:
        if len(self._heap) > self._tidy_above:
            self._tidy()
        timer = Timer(ring)
        heappush(self._heap, (when, next(self._numbers), timer))
        if self._waiting_for == NEVER or when < self._waiting_for:
            self._waiting_for = when
            self._wake.set()
        return timer

    def within(self, seconds: float | None, held: Callable[[], bool] | None = None) -> Timeout:
        """Cancel what is done inside after so many seconds, and raise `DeadlineExceeded` then.

        While `held` says that the time stands still, and once after that, it has its whole time again.
        """
        return Timeout(self, seconds, held)

    def after(self, seconds: float, ring: Callable[[], None]) -> Timer:
        """Fire after so many seconds."""
        return self._set(add_seconds(steady_now(self._clock), seconds), ring)

    async def run(self) -> None:
        """Wait and fire, until cancelled."""
        while True:
            self._wake.clear()
            now = steady_now(self._clock)
            while self._heap and self._heap[0][0] <= now:
                ring = heappop(self._heap)[2].ring
                if ring is not None:
                    ring()
            self._waiting_for = self._heap[0][0] if self._heap else NEVER
            await self._clock.wait(self._wake, self._on_clock(now))

    def _on_clock(self, now: Instant) -> Instant:
        """When the next timer rings, as the clock shows it now."""
        if self._waiting_for == NEVER:
            return NEVER
        return add_seconds(self._clock.now(), seconds_between(now, self._waiting_for))

    def _tidy(self) -> None:
        """Remove those that were cancelled; the next time when there are twice as many as are left."""
        self._heap = [entry for entry in self._heap if entry[2].ring is not None]
        heapify(self._heap)
        self._tidy_above = max(MIN_TIMERS_TO_TIDY, 2 * len(self._heap))


class Timeout:
    """A deadline for the code inside. Used once, with `async with`."""

    __slots__ = ("_before", "_fired", "_held", "_seconds", "_task", "_timer", "_timers", "_was_held")

    def __init__(self, timers: TimerQueue, seconds: float | None, held: Callable[[], bool] | None = None) -> None:
        self._timers, self._seconds = timers, seconds
        self._held, self._was_held = held, False
        self._task: asyncio.Task[object] | None = None
        self._timer: Timer | None = None
        self._before, self._fired = 0, False

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        if self._seconds is not None and task is not None:
            self._task, self._before = task, task.cancelling()
            self._timer = self._timers.after(self._seconds, self._fire)

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._timer is None or self._task is None:
            return
        self._timer.cancel()
        if not self._fired:
            return
        # This timeout has called `cancel()` once, and takes that back with one `uncancel()`, also if the code inside
        # has swallowed the cancellation. A count above that comes from outside: then the CancelledError must pass.
        asked = self._task.cancelling()
        self._task.uncancel()
        if isinstance(error, asyncio.CancelledError) and asked <= self._before + 1:
            raise DeadlineExceeded(f"nothing came within {self._seconds:g} seconds") from None

    def _fire(self) -> None:
        assert self._task is not None, "only a task can be cancelled"
        held = self._held is not None and self._held()
        if self._seconds is not None and (held or self._was_held):
            self._was_held = held
            self._timer = self._timers.after(self._seconds, self._fire)
            return
        self._fired = True
        self._task.cancel()


class TimeOrderedIds:
    """Draws version 7 UUIDs. Within one millisecond, or if the clock steps back, it counts on from the last."""

    def __init__(self) -> None:
        self._millisecond = 0
        self._bits = 0

    def __call__(self) -> str:
        now = time.time_ns() // 1_000_000
        if now > self._millisecond:
            self._millisecond, self._bits = now, secrets.randbits(UUID7_FREE_BITS - 1)
        else:
            self._bits += 1 + (self._bits & 0xFF)
        if self._bits >> UUID7_FREE_BITS:
            self._millisecond, self._bits = self._millisecond + 1, secrets.randbits(UUID7_FREE_BITS - 1)
        return uuid7(self._millisecond, self._bits)


logger = logging.getLogger("antiphon.hub")

MIN_CLOCK_JUMP_SECONDS = 5.0
"""By how many seconds a clock must have been set for that to count."""
ATTENDANCE_SECONDS = 15.0
"""For how many seconds a note that a hub is open lasts, on a store that hubs share."""
RENEWALS_PER_ATTENDANCE = 3
"""How often the note is renewed before it would run out."""
BACKLOG_OUTAGE = "backlog"


class Continuity:
    """Knows the breaks in a hub's time."""

    def __init__(self, store: Store, clock: Clock, *, woken: Callable[[float], None]) -> None:
        self.clock = clock
        self._store, self._woken = store, woken
        self._drift = clock.drift()
        self._breaks = NO_TIME_BREAKS
        """As the clock shows them now: when it is set, they are moved with it."""
        self.jumps: list[float] = []
        """Changes of the clock in seconds that are not recorded yet. `Timers` records and removes them."""
        self.waited_until: Callable[[str, Instant], Instant] = lambda channel_id, now: NEVER
        """Until when a turn of a channel has waited for its place after a restart; now, if it still does."""
        self.is_unattended: Callable[[str], bool] = lambda channel_id: False
        """Whether no open hub runs the turns of this channel."""

    async def begin(self) -> None:
        """Note that a hub is open, and find out since when one has been."""
        since = await self._store.attend(ATTENDANCE_SECONDS) if self._store.caps.many_hubs else self.clock.now()
        self._breaks = TimeBreaks(since)

    async def run(self) -> None:
        """Renew the note until cancelled. A store that one hub owns needs none."""
        never = asyncio.Event()
        while self._store.caps.many_hubs:
            await self.clock.wait(never, add_seconds(self.clock.now(), ATTENDANCE_SECONDS / RENEWALS_PER_ATTENDANCE))
            try:
                self._breaks = replace(self._breaks, opened=await self._store.attend(ATTENDANCE_SECONDS))
            except StoreError as error:
                logger.warning("cannot note that this hub is open: %s", error)

    def check(self) -> None:
        """Detect that the clock was set."""
        drift = self.clock.drift()
        jumped = drift - self._drift
        if abs(jumped) <= MIN_CLOCK_JUMP_SECONDS:
            return
        self._drift = drift
        self.jumps.append(jumped)
        self._breaks = _shift_breaks(self._breaks, jumped)
        if jumped > 0:
            self._breaks = replace(self._breaks, clock_set=self.clock.now())
        logger.warning("the clock was set by %.1f seconds, or the process was stopped meanwhile", jumped)
        self._woken(jumped)

    def breaks(self, channel_id: str) -> TimeBreaks:
        """The last breaks, as far as they concern this channel."""
        waited = self.waited_until(channel_id, self.clock.now())
        if waited > self._breaks.opened:
            return replace(self._breaks, opened=waited, outage=BACKLOG_OUTAGE)
        if self.is_unattended(channel_id):
            return replace(self._breaks, opened=self.clock.now())
        return self._breaks


class ChannelTime:
    """What time it is in one channel, and when its next deadline is.

    Instants of a channel never run backwards. When the clock is set back, they would stand still until the clock has
    caught up, and so would every deadline. So the time of the channel goes on from where it was, ahead of the clock,
    for as long as something is expected in it; in between it waits for the clock.
    """

    __slots__ = ("_ahead", "_continuity", "deadline")

    def __init__(self, continuity: Continuity, deadline: Deadline | None) -> None:
        self._continuity = continuity
        self._ahead = 0.0
        self.deadline = deadline

    def now(self, last: Instant) -> Instant:
        """The present instant, not before the last one that was recorded."""
        self._continuity.check()
        at = self._continuity.clock.now()
        if self._ahead:
            if self._counts:
                at = add_seconds(at, self._ahead)
            else:
                self._ahead = 0.0
        if at < last:
            self._ahead += seconds_between(at, last)
            at = last
        return at

    def is_due(self, at: Instant) -> bool:
        """Whether the deadline has come."""
        return self.deadline is not None and self.deadline.at <= at

    def on_clock(self, deadline: Deadline | None) -> Instant:
        """When a deadline is reached by the hub's clock; `NEVER` if there is none."""
        if deadline is None:
            return NEVER
        return add_seconds(deadline.at, -self._ahead) if self._ahead else deadline.at

    def clock_set(self, seconds: float) -> None:
        """The clock was set by so many seconds, which are not to count."""
        if self._counts:
            self._ahead = max(0.0, self._ahead - seconds)

    def breaks(self, channel_id: str) -> TimeBreaks:
        """The last breaks, in the time of the channel."""
        return _shift_breaks(self._continuity.breaks(channel_id), self._ahead)

    @property
    def _counts(self) -> bool:
        """Whether something is expected, for which time counts."""
        return self.deadline is not None and self.deadline.since != NEVER


def _shift_breaks(breaks: TimeBreaks, seconds: float) -> TimeBreaks:
    """The same instants on a clock that is so many seconds ahead."""
    if not seconds:
        return breaks
    opened, clock_set = (add_seconds(at, seconds) if at else NEVER for at in (breaks.opened, breaks.clock_set))
    return replace(breaks, opened=opened, clock_set=clock_set)
