"""Which time counts: since when a hub has been open, and whether the wall clock was set.

Rule 1: this module knows the breaks. An expectation that began before one is extended by a fact in its own channel when
        it falls due (see `core.step.tick`), so a log folds without knowing when hubs were open.
Rule 2: a change of the clock is detected before anything is stamped with the new time.
Rule 3: where several hubs share a store, time counts while any of them is open. Each notes in the store that it is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from msgspec.structs import replace

from antiphon.core.errors import StoreError
from antiphon.core.guard import NO_BREAKS, Breaks, Deadline
from antiphon.core.instants import NEVER, Instant, after, seconds_between
from antiphon.hub.clock import Clock
from antiphon.store.protocol import Store

log = logging.getLogger("antiphon.hub")

JUMP = 5.0
"""By how many seconds a clock must have been set for that to count."""
ATTENDED = 15.0
"""For how many seconds a note that a hub is open lasts, on a store that hubs share."""
BEATS = 3
"""How often the note is renewed before it would run out."""
BACKLOG = "backlog"


def _is_attended(channel_id: str) -> bool:
    return False


def _never_waited(channel_id: str, now: Instant) -> Instant:
    return NEVER


class Continuity:
    """Knows the breaks in a hub's time."""

    def __init__(self, store: Store, clock: Clock, *, woken: Callable[[float], None]) -> None:
        self.clock = clock
        self._store, self._woken = store, woken
        self._drift = clock.drift()
        self._breaks = NO_BREAKS
        """As the clock shows them now: when it is set, they are moved with it."""
        self.jumps: list[float] = []
        """Changes of the clock in seconds that are not recorded yet. `Timers` records and removes them."""
        self.waited_until: Callable[[str, Instant], Instant] = _never_waited
        """Until when a turn of a channel has waited for its place after a restart; now, if it still does."""
        self.is_unattended: Callable[[str], bool] = _is_attended
        """Whether no open hub runs the turns of this channel."""

    async def begin(self) -> None:
        """Note that a hub is open, and find out since when one has been."""
        since = await self._store.attend(ATTENDED) if self._store.caps.many_hubs else self.clock.now()
        self._breaks = Breaks(since)

    async def run(self) -> None:
        """Renew the note until cancelled. A store that one hub owns needs none."""
        never = asyncio.Event()
        while self._store.caps.many_hubs:
            await self.clock.wait(never, after(self.clock.now(), ATTENDED / BEATS))
            try:
                self._breaks = replace(self._breaks, opened=await self._store.attend(ATTENDED))
            except StoreError as error:
                log.warning("cannot note that this hub is open: %s", error)

    def check(self) -> None:
        """Detect that the clock was set."""
        drift = self.clock.drift()
        jumped = drift - self._drift
        if abs(jumped) <= JUMP:
            return
        self._drift = drift
        self.jumps.append(jumped)
        self._breaks = _shifted(self._breaks, jumped)
        if jumped > 0:
            self._breaks = replace(self._breaks, clock_set=self.clock.now())
        log.warning("the clock was set by %.1f seconds, or the process was stopped meanwhile", jumped)
        self._woken(jumped)

    def breaks(self, channel_id: str) -> Breaks:
        """The last breaks, as far as they concern this channel."""
        waited = self.waited_until(channel_id, self.clock.now())
        if waited > self._breaks.opened:
            return replace(self._breaks, opened=waited, outage=BACKLOG)
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
                at = after(at, self._ahead)
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
        return after(deadline.at, -self._ahead) if self._ahead else deadline.at

    def clock_set(self, seconds: float) -> None:
        """The clock was set by so many seconds, which are not to count."""
        if self._counts:
            self._ahead = max(0.0, self._ahead - seconds)

    def breaks(self, channel_id: str) -> Breaks:
        """The last breaks, in the time of the channel."""
        return _shifted(self._continuity.breaks(channel_id), self._ahead)

    @property
    def _counts(self) -> bool:
        """Whether something is expected, for which time counts."""
        return self.deadline is not None and self.deadline.since != NEVER


def _shifted(breaks: Breaks, seconds: float) -> Breaks:
    """The same instants on a clock that is so many seconds ahead."""
    if not seconds:
        return breaks
    opened, clock_set = (after(at, seconds) if at else NEVER for at in (breaks.opened, breaks.clock_set))
    return replace(breaks, opened=opened, clock_set=clock_set)
