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
from antiphon.agents.tasks import Delegates
from antiphon.core.errors import StoreError, StoreGone
from antiphon.core.instants import Instant
from antiphon.core.instants import after as later
from antiphon.core.state import State
from antiphon.core.step import pending
from antiphon.core.words import told
from antiphon.engines.protocol import Engine, JobRef
from antiphon.engines.resuming import ResumeLimit
from antiphon.hub.channels import Channels
from antiphon.hub.clock import Clock
from antiphon.store.protocol import ChannelRow, Store

log = logging.getLogger("antiphon.engine")

RETRY = 1.0


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
        self._idle: dict[str, None] = {}
        """Channels of which it is not known yet that they are owed nothing, in order."""
        self._wake = asyncio.Event()
        self._found = asyncio.Event()
        self._looking = asyncio.Lock()
        """Two that look at one channel would each forget what the other has submitted."""
        self._submitted: dict[str, set[JobRef]] = {}
        self.delegates: Delegates | None = None
        """What stops the tasks of turns that have ended."""

    def owing(self, channel_id: str) -> None:
        """The turns that this channel is owed may have changed."""
        if self._engine is not None:
            self._changed[channel_id] = None
            self._wake.set()

    def waited_until(self, channel_id: str, now: Instant) -> Instant:
        """Until when a turn of this channel has waited for others that were resumed before it; `NEVER` if for none."""
        return now if channel_id in self._idle else self._limit.waited_until(channel_id)

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
                rows = await self._active(name)
                break
            except StoreGone:
                return
            except StoreError as error:
                log.warning("the turns that %s owes cannot be found yet: %s", name, error)
                await clock.wait(asyncio.Event(), later(clock.now(), RETRY))
        self._idle.update((row.channel_id, None) for row in rows if row.due)
        self._idle.update((row.channel_id, None) for row in rows if not row.due)
        self._limit.expect(bool(self._idle))
        self._found.set()

    async def _active(self, name: str) -> list[ChannelRow]:
        rows: list[ChannelRow] = []
        after = ""
        while page := await self._store.channels(status="active", participant=name, after=after):
            rows.extend(page)
            after = page[-1].channel_id
        return rows

    async def run(self, clock: Clock) -> None:
        """Look at every channel that has changed, until cancelled. One that cannot be read holds up no other."""
        unread: dict[str, None] = {}
        while True:
            if unread:
                await clock.wait(self._wake, later(clock.now(), RETRY))
            else:
                await self._wake.wait()
            self._wake.clear()
            self._changed.update(unread)
            unread.clear()
            while self._changed:
                channel_id = next(iter(self._changed))
                del self._changed[channel_id]
                if not await self._looked_at(channel_id):
                    unread[channel_id] = None

    async def resume(self, clock: Clock) -> None:
        """Resume what was found, one after the other as there are places, until cancelled."""
        while True:
            await self._found.wait()
            self._found.clear()
            while self._idle:
                channel_id = next(iter(self._idle))
                read = await self._resumed(channel_id)
                self._idle.pop(channel_id, None)
                if not read:
                    self._idle[channel_id] = None  # behind all others
                    await clock.wait(asyncio.Event(), later(clock.now(), RETRY))
                self._limit.expect(bool(self._idle))

    async def _resumed(self, channel_id: str) -> bool:
        """Have the turns of a channel resumed when there are places; False to ask again later."""
        state = await self._state(channel_id)
        if state is None:
            return False
        new = self._owed(state) - self._submitted.get(channel_id, set())
        for job in new:
            await self._limit.begin(job)
        read = await self._looked_at(channel_id)
        for job in new - self._submitted.get(channel_id, set()):  # it has ended meanwhile
            self._limit.over(job)
        return read

    async def _state(self, channel_id: str) -> State | None:
        """A channel's state; None to ask again later. One that can never be read has nothing to do."""
        try:
            return (await self._channels.get(channel_id)).state
        except StoreGone:
            return State(channel_id)  # for good: there is nothing to ask again
        except StoreError as error:
            log.warning("what channel %s is owed cannot be read yet: %s", channel_id, error)
            return None
        except Exception as error:  # one channel whose rules fail stops no other
            log.error("what channel %s is owed cannot be known: %s", channel_id, told(error))
            return State(channel_id)

    def _owed(self, state: State) -> set[JobRef]:
        return {
            JobRef(state.channel_id, turn.speaker, turn.turn_id)
            for turn in pending(state)
            if turn.speaker in self._agents
        }

    async def _looked_at(self, channel_id: str) -> bool:
        """Whether the engine knows now what this channel is owed; False to ask again later."""
        engine = self._engine
        assert engine is not None, "without an engine there is nothing to tell"
        async with self._looking:
            state = await self._state(channel_id)
            if state is None:
                return False
            if state.open_tasks and self.delegates is not None:
                self.delegates.settle(state)
            owed = self._owed(state)
            for job in self._submitted.pop(channel_id, set()) - owed:
                self._limit.over(job)
                await engine.cancel(job.job_id, "the turn is no longer owed")
            if owed:
                self._submitted[channel_id] = owed
            for job in owed:
                await engine.submit(job)
            return True
