"""From the turns that channels are owed to the jobs of an engine.

Rule 1: nothing is remembered here that the logs do not say: which turns are owed is asked of each channel when it
        changes, and of every channel of an agent when that agent is registered.
Rule 2: what is found when an agent is registered is resumed a few at a time. What changes is looked at at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from antiphon.agents.declaration import Declaration
from antiphon.agents.turn_channel import Delegates
from antiphon.core.envelope import Envelope, Instant, add_seconds
from antiphon.core.errors import StoreError, StoreGone
from antiphon.core.state import State
from antiphon.core.step import pending_turns
from antiphon.core.text import describe_error
from antiphon.engines.engine import Engine, JobRef, ResumeLimit
from antiphon.hub.clock import Clock
from antiphon.hub.live import Channels
from antiphon.store.paging import all_channel_rows
from antiphon.store.protocol import Store

logger = logging.getLogger("antiphon.engine")

DISPATCH_RETRY_SECONDS = 1.0


class Dispatch:
    """Submits what is owed, and cancels what is not any more."""

    def __init__(
        self,
        engine: Engine | None,
        store: Store,
        channels: Channels,
        *,
        agents: Mapping[str, Declaration],
        limit: ResumeLimit,
    ) -> None:
        self._engine, self._store, self._channels, self._agents = engine, store, channels, agents
        self._limit = limit
        self._changed: dict[str, None] = {}
        self._unresumed: dict[str, None] = {}
        """Channels found when an agent was registered, and not looked at since, in order. Each may owe a turn."""
        self._wake = asyncio.Event()
        self._found = asyncio.Event()
        self._sync_lock = asyncio.Lock()
        """Two that look at one channel would each forget what the other has submitted."""
        self._unknown: set[str] = set()
        """Channels whose rules could not be made, perhaps because a function is not registered yet."""
        self._submitted: dict[str, set[JobRef]] = {}
        self.delegates: Delegates | None = None
        """What stops the tasks of turns that have ended."""

    def turns_changed(self, channel_id: str) -> None:
        """The turns that this channel is owed may have changed."""
        if self._engine is not None:
            self._changed[channel_id] = None
            self._wake.set()

    def _retry_when_recorded(self, channel_id: str) -> None:
        """Look again at a channel whose rules cannot be made when they could: something is recorded in it."""
        watchers = self._channels.deps.on_recorded
        if self._recorded not in watchers:
            watchers.append(self._recorded)
        self._unknown.add(channel_id)

    def _recorded(self, channel_id: str, batch: list[Envelope]) -> None:
        if channel_id in self._unknown:
            self._unknown.remove(channel_id)
            self.turns_changed(channel_id)

    def waited_until(self, channel_id: str, now: Instant) -> Instant:
        """Until when a turn of this channel has waited for others that were resumed before it; `NEVER` if for none."""
        return now if channel_id in self._unresumed else self._limit.waited_until(channel_id)

    def is_unattended(self, channel_id: str) -> bool:
        """Whether an agent owes a turn that no hub runs: this one runs none, and no other has the store."""
        if self._engine is not None or self._store.caps.many_hubs:
            return False
        live = self._channels.loaded(channel_id)
        return live is not None and bool(live.state.owed)

    async def find_owed(self, name: str, clock: Clock) -> None:
        """Look through the open channels of an agent; those that wait for something first."""
        while True:
            try:
                rows = await all_channel_rows(self._store, status="active", participant=name)
                break
            except StoreGone:
                return
            except StoreError as error:
                logger.warning("the turns that %s owes cannot be found yet: %s", name, error)
                await clock.wait(asyncio.Event(), add_seconds(clock.now(), DISPATCH_RETRY_SECONDS))
        self._unresumed.update((row.channel_id, None) for row in rows if row.due)
        self._unresumed.update((row.channel_id, None) for row in rows if not row.due)
        self._limit.expect(bool(self._unresumed))
        self._found.set()

    async def run(self, clock: Clock) -> None:
        """Look at every channel that has changed, until cancelled. One that cannot be read holds up no other."""
        unread: dict[str, None] = {}
        while True:
            if unread:
                await clock.wait(self._wake, add_seconds(clock.now(), DISPATCH_RETRY_SECONDS))
            else:
                await self._wake.wait()
            self._wake.clear()
            self._changed.update(unread)
            unread.clear()
            while self._changed:
                channel_id = next(iter(self._changed))
                del self._changed[channel_id]
                if not await self._sync_jobs(channel_id):
                    unread[channel_id] = None

    async def resume(self, clock: Clock) -> None:
        """Resume what was found, one after the other as there are places, until cancelled."""
        while True:
            await self._found.wait()
            self._found.clear()
            while self._unresumed:
                channel_id = next(iter(self._unresumed))
                read = await self._resume_channel(channel_id)
                self._unresumed.pop(channel_id, None)
                if not read:
                    self._unresumed[channel_id] = None  # behind all others
                    await clock.wait(asyncio.Event(), add_seconds(clock.now(), DISPATCH_RETRY_SECONDS))
                self._limit.expect(bool(self._unresumed))

    async def _resume_channel(self, channel_id: str) -> bool:
        """Have the turns of a channel resumed when there are places; False to ask again later."""
        state = await self._state_of(channel_id)
        if state is None:
            return False
        new = self._owed_jobs(state) - self._submitted.get(channel_id, set())
        for job in new:
            await self._limit.begin(job)
        read = await self._sync_jobs(channel_id)
        for job in new - self._submitted.get(channel_id, set()):  # it has ended meanwhile
            self._limit.turn_over(job)
        return read

    async def _state_of(self, channel_id: str) -> State | None:
        """A channel's state; None to ask again later. One that can never be read has nothing to do."""
        try:
            return (await self._channels.get(channel_id)).state
        except StoreGone:
            return State(channel_id)  # for good: there is nothing to ask again
        except StoreError as error:
            logger.warning("what channel %s is owed cannot be read yet: %s", channel_id, error)
            return None
        except Exception as error:  # one channel whose rules fail stops no other
            logger.error("what channel %s is owed cannot be known: %s", channel_id, describe_error(error))
            self._retry_when_recorded(channel_id)
            return State(channel_id)

    def _owed_jobs(self, state: State) -> set[JobRef]:
        return {
            JobRef(state.channel_id, turn.speaker, turn.turn_id)
            for turn in pending_turns(state)
            if turn.speaker in self._agents
        }

    async def _sync_jobs(self, channel_id: str) -> bool:
        """Whether the engine knows now what this channel is owed; False to ask again later."""
        engine = self._engine
        assert engine is not None, "without an engine there is nothing to tell"
        async with self._sync_lock:
            state = await self._state_of(channel_id)
            if state is None:
                return False
            if state.open_tasks and self.delegates is not None:
                self.delegates.stop_orphaned_tasks(state)
            owed = self._owed_jobs(state)
            for job in self._submitted.pop(channel_id, set()) - owed:
                self._limit.turn_over(job)
                await engine.cancel(job.job_id, "the turn is no longer owed")
            if owed:
                self._submitted[channel_id] = owed
            for job in owed:
                await engine.submit(job)
            return True
