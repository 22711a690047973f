"""The one task of a hub that waits for time to pass.

The store's index of due channels is the heap: it survives a crash, and it holds what no memory does. An entry may be
early (the channel is then looked at for nothing) and is never late.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from antiphon.core.envelope import NEVER, Instant, add_seconds
from antiphon.core.errors import AntiphonError, StoreGone
from antiphon.hub.clock import Continuity
from antiphon.store.protocol import Due, Store

logger = logging.getLogger("antiphon.hub")

DUE_CHANNELS_PER_PAGE = 64
DUE_CLAIM_SECONDS = 30.0
DUE_RETRY_SECONDS = 1.0
SHARED_LOOK_SECONDS = 30.0
"""How often a hub looks for what is due in a store that it shares."""
DUE_STATUSES = ("invited", "active")
"""The statuses in which a channel can be due."""

CheckDueChannel = Callable[[str], Awaitable[None]]
"""Looks at one channel."""
OnClockJump = Callable[[float], Awaitable[None]]
"""Called with the number of seconds by which the clock was set."""


class Timers:
    """Looks at every channel when it is due."""

    def __init__(
        self, store: Store, continuity: Continuity, *, owner: str, look: CheckDueChannel, jumped: OnClockJump
    ) -> None:
        self._store, self._continuity, self._owner = store, continuity, owner
        self._clock = continuity.clock
        self._look, self._jumped = look, jumped
        self._wake = asyncio.Event()
        self._next: Instant = NEVER

    def armed(self, at: Instant) -> None:
        """Some channel is due at this instant."""
        if self._next == NEVER or at < self._next:
            self._next = at
            self._wake.set()

    def wake(self) -> None:
        """The clock was set."""
        self._wake.set()

    async def begin(self) -> None:
        """Look at what fell due while no hub was open, as far as one round goes."""
        self._next = await self._store.next_due()
        if self._next != NEVER and self._next <= self._clock.now():
            await self._fire_once()
            await self._ask_store()

    async def run(self) -> None:
        """Wait and look, until cancelled."""
        while True:
            self._wake.clear()
            await self._watch_clock()
            if self._next == NEVER or self._next > self._clock.now():
                await self._wait()
                continue
            self._next = NEVER
            await self._fire()
            await self._ask_store()

    async def _wait(self) -> None:
        """Wait for the next deadline that is known. In a shared store another hub may have left one behind."""
        until = self._next
        if self._store.caps.many_hubs:
            look = add_seconds(self._clock.now(), SHARED_LOOK_SECONDS)
            until = look if until == NEVER else min(until, look)
        await self._clock.wait(self._wake, until)
        if until != self._next and not self._wake.is_set():
            await self._ask_store()

    async def _ask_store(self) -> None:
        """When the next channel is due. What could not be done now is tried again in a moment."""
        retry = add_seconds(self._clock.now(), DUE_RETRY_SECONDS)
        try:
            found = await self._store.next_due()
        except StoreGone:
            return  # for good: there is nothing to try again
        except AntiphonError as error:
            logger.warning("cannot read what is due: %s", error)
            found = retry
        if found != NEVER:
            self.armed(max(found, retry) if found <= self._clock.now() else found)

    async def _watch_clock(self) -> None:
        """Tell when the clock was set. If it was set back, what is due is written down anew, in its time."""
        self._continuity.check()
        jumps = self._continuity.jumps
        while jumps:
            await self._jumped(jumps[0])
            if jumps.pop(0) < 0:
                await self._look_again()

    async def _look_again(self) -> None:
        """Look at every channel that is due at some time, which a clock that was set back reaches too late."""
        try:
            for status in DUE_STATUSES:
                after_id = ""
                while page := await self._store.channels(status=status, after=after_id, limit=DUE_CHANNELS_PER_PAGE):
                    await asyncio.gather(*(self._look_at(Due(row.channel_id, row.due)) for row in page if row.due))
                    after_id = page[-1].channel_id
        except AntiphonError as error:
            logger.warning("deadlines could not be moved with the clock: %s", error)
        self._next = NEVER
        await self._ask_store()

    async def _fire(self) -> None:
        try:
            while await self._fire_once():
                pass
        except AntiphonError as error:
            logger.warning("cannot take what is due: %s", error)

    async def _fire_once(self) -> bool:
        due = await self._store.take_due(
            self._owner, now=self._clock.now(), limit=DUE_CHANNELS_PER_PAGE, ttl=DUE_CLAIM_SECONDS
        )
        await asyncio.gather(*(self._look_at(entry) for entry in due))
        return bool(due)

    async def _look_at(self, due: Due) -> None:
        try:
            await self._look(due.channel_id)
        except Exception as error:  # an error of one channel, of any kind, stops no other's clock
            logger.warning("channel %s was due at %s and could not be looked at: %s", due.channel_id, due.at, error)
