"""The lease by which others know that an owner is alive.

Rule 1: an owner has one lease, however many turns it runs, and keeps it only while it runs any.
Rule 2: a lease is a hint. Who loses it stops; who does not notice is fenced by the log.
Rule 3: after the clock was set, no owner is taken for dead before it has had the time to renew its lease.
Rule 4: where one hub owns the store there is nobody to tell: whoever claimed something before is gone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from antiphon.core.errors import StoreError
from antiphon.core.instants import NEVER, Instant, after
from antiphon.hub.clock import Clock, steady
from antiphon.store.protocol import Lease, Store

log = logging.getLogger("antiphon.engine")

SECONDS = 2.0
"""How long a lease lasts, unless the engine is told otherwise."""
RENEWALS = 3
"""How often a lease is renewed before it would run out."""
CLOCK_TOLERANCE = 1 / (2 * RENEWALS)
"""By how much of a lease a clock must have been set for that to matter here."""


class Tenure:
    """Keeps an owner's lease, and finds out about others'."""

    def __init__(
        self, store: Store, clock: Clock, owner: str, *, busy: Callable[[], bool], lost: Callable[[], None]
    ) -> None:
        self.owner = owner
        self.seconds = SECONDS
        """How long a lease lasts that is taken or renewed from now on."""
        self._store, self._clock = store, clock
        self._busy, self._lost = busy, lost
        self._lease: Lease | None = None
        self._held_until: Instant = NEVER
        """When the lease ends, on the steady clock."""
        self._drift = clock.drift()
        self._doubted_until: Instant = NEVER
        """Until when, on the steady clock, leases of others may be older than the last setting of the clock."""
        self._taking = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    @property
    def shared(self) -> bool:
        """Whether others may run turns of the same store."""
        return self._store.caps.many_hubs

    async def hold(self) -> bool:
        """Have the lease; False if somebody has taken this owner for dead."""
        if not self.shared:
            return True
        async with self._taking:
            if self._task is None and await self._renew():
                self._task = asyncio.create_task(self._keep(), name=f"lease of {self.owner}")
            return self._task is not None

    async def let_go(self) -> None:
        """Give the lease back: nothing is run any more."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await self._give_back()

    async def dead(self, other: str) -> bool:
        """Whether this owner has let its lease run out, or given it back."""
        if not self.shared or other == self.owner:
            return True
        if self._clock_was_set():
            return False
        return await self._store.lease(_name(other), self.owner, self.seconds) is not None

    def _clock_was_set(self) -> bool:
        """Whether the clock was set so lately that who lives may not have renewed its lease since."""
        drift, now = self._clock.drift(), steady(self._clock)
        if abs(drift - self._drift) > CLOCK_TOLERANCE * self.seconds:
            self._drift, self._doubted_until = drift, after(now, self.seconds)
        return now < self._doubted_until

    async def _keep(self) -> None:
        never = asyncio.Event()
        while True:
            await self._clock.wait(never, after(self._clock.now(), self.seconds / RENEWALS))
            if not self._busy() and await self._laid_down():
                return
            if not await self._renewed_in_time():
                self._task, self._lease = None, None
                log.warning("%s lost its lease; its turns are somebody else's now", self.owner)
                self._lost()
                return

    async def _laid_down(self) -> bool:
        """Give the lease back, unless it is needed again. Nobody takes it anew while this is under way."""
        async with self._taking:
            if self._busy():
                return False
            self._task = None
            await self._give_back()
            return True

    async def _give_back(self) -> None:
        lease, self._lease = self._lease, None
        if lease is None:
            return
        try:
            await self._store.release(lease)
        except StoreError as error:
            log.warning("a lease could not be given back; it ends by itself: %s", error)

    async def _renewed_in_time(self) -> bool:
        """Renew; what the store cannot do now may be done later, as long as the lease lasts."""
        try:
            return await self._renew()
        except StoreError as error:
            log.warning("the lease could not be renewed yet: %s", error)
            return steady(self._clock) < self._held_until

    async def _renew(self) -> bool:
        """Take the lease or renew it. An epoch that has moved on says that somebody else had it meanwhile."""
        until = after(steady(self._clock), self.seconds)
        lease = await self._store.lease(_name(self.owner), self.owner, self.seconds)
        if lease is None or (self._lease is not None and lease.epoch != self._lease.epoch):
            return False
        self._lease, self._held_until = lease, until
        return True


def _name(owner: str) -> str:
    return f"engine:{owner}"
