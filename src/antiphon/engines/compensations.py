"""Runs the compensations of channels that have ended in failure, from what their logs say.

Rule 1: nothing is kept here that the log does not say. A channel with compensations left is due in the store, so that
        another process goes on where this one ended.
Rule 2: one owner runs a saga, under a claim. What an owner records under an earlier claim is refused.
Rule 3: calls of turns that are being cancelled are waited for first: what they still do is undone, too.
Rule 4: a compensation is no part of a turn. Nothing cancels it, and it has a time of its own, however late the run is.
Rule 5: it is recorded before it leaves, under the key of its call. After a crash it is called again with that key,
        unless a second call would do harm: then a person decides.
Rule 6: the limits of the run do not hold for it; policies do, and an open breaker is waited for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass

from antiphon.core.envelope import add_seconds
from antiphon.core.errors import Denied, StoreError, StoreGone
from antiphon.core.turns import FENCED
from antiphon.engines.environment import TurnEnvironment
from antiphon.engines.saga_runs import SagaRun
from antiphon.guards.saga import saga_guard_of, saga_memory_of
from antiphon.hub.clock import Clock, TimerQueue
from antiphon.hub.live import LiveChannel
from antiphon.store.protocol import Lease, Store

logger = logging.getLogger("antiphon.engine")

LEASE_SECONDS = 30.0
LEASE_RENEWAL_SECONDS = 10.0
STOP_SECONDS = 5.0
"""How long a compensation in progress is given when the hub closes."""

SpawnTask = Callable[[Coroutine[None, None, None], str], object]


@dataclass
class _SagaLease:
    """Shows that this owner runs a saga, where several hubs share a store. It is a hint: the claim is what counts."""

    clock: Clock
    store: Store
    name: str
    owner: str
    lease: Lease | None = None

    async def acquire(self) -> bool:
        """Have the lease; False if another owner has it."""
        if not self.store.caps.many_hubs:
            return True
        self.lease = await self.store.lease(self.name, self.owner, LEASE_SECONDS)
        return self.lease is not None

    async def keep_renewing(self) -> None:
        """Renew it until cancelled."""
        never = asyncio.Event()
        while self.lease is not None:
            await self.clock.wait(never, add_seconds(self.clock.now(), LEASE_RENEWAL_SECONDS))
            try:
                await self.acquire()
            except StoreError as error:
                logger.warning("the lease %s could not be renewed yet: %s", self.name, error)

    async def release(self) -> None:
        """Give it back."""
        if self.lease is not None:
            await self.store.release(self.lease)


class Compensations:
    """The sagas that this hub runs."""

    def __init__(self, environment: TurnEnvironment, spawn: SpawnTask) -> None:
        self.environment, self._spawn = environment, spawn
        self.owner = environment.new_id()
        self.timers = TimerQueue(environment.clock)
        """The deadlines of compensations. The hub runs them in a task of its own."""
        self.stopping = asyncio.Event()
        self._runs: dict[str, asyncio.Event] = {}
        """The channels whose sagas run here: each set when there is more to look at."""
        self._idle = asyncio.Event()
        self._idle.set()
        self.on_finished: Callable[[str], object] = lambda channel_id: None
        """Called with the channel of a saga that has finished."""
        self._waiting: set[str] = set()
        """Channels whose agents are not registered here."""

    def look_at(self, live: LiveChannel) -> None:
        """Run what is owed in this channel, unless it waits for a person."""
        memory = saga_memory_of(live.fold)
        if memory.is_owed and not memory.stuck:
            self._begin(live.state.channel_id)

    def _begin(self, channel_id: str) -> None:
        if self.stopping.is_set():
            return
        if channel_id in self._runs:
            self._runs[channel_id].set()
            return
        self._runs[channel_id] = asyncio.Event()
        self._idle.clear()
        self._spawn(self._run(channel_id), f"compensations of {channel_id}")

    def look_again(self) -> None:
        """An agent was registered: its tools may be what a saga waits for."""
        waiting, self._waiting = self._waiting, set()
        for channel_id in waiting:
            self._begin(channel_id)

    async def stop(self) -> None:
        """Begin nothing more, and give compensations in progress a moment."""
        self.stopping.set()
        waiting = asyncio.ensure_future(self._idle.wait())
        await asyncio.wait((waiting,), timeout=STOP_SECONDS)
        waiting.cancel()

    async def _run(self, channel_id: str) -> None:
        more, channels = self._runs[channel_id], self.environment.channels
        try:
            while True:
                more.clear()
                await self._run_once(await channels.get(channel_id))
                if not more.is_set() or self.stopping.is_set():
                    return
        except StoreGone:
            return
        except StoreError as error:  # the channel stays due
            logger.warning("the compensations of %s wait for the store: %s", channel_id, error)
        finally:
            del self._runs[channel_id]
            if not self._runs:
                self._idle.set()

    async def _run_once(self, live: LiveChannel) -> None:
        guard = saga_guard_of(live.ruleset)
        memory = saga_memory_of(live.fold)
        if guard is None or not memory.is_owed or memory.stuck:
            return
        environment, channel_id = self.environment, live.state.channel_id
        lease = _SagaLease(environment.clock, environment.channels.deps.store, f"saga:{channel_id}", self.owner)
        if not await lease.acquire():
            return
        keeping = asyncio.create_task(lease.keep_renewing(), name=f"lease of the saga of {channel_id}")
        try:
            run = SagaRun(environment, live, guard, self.timers, self.stopping)
            end = await run.carry_out(self.owner)
            if end == "finished":
                self.on_finished(channel_id)
            elif end == "agents_missing":
                self._waiting.add(channel_id)
        except Denied as denied:
            if denied.reason != FENCED:
                raise
            logger.warning("another process runs the compensations of %s: %s", channel_id, denied.detail)
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
            await lease.release()
