"""From the turns that channels are owed to the jobs of an engine.

Nothing is remembered here that the logs do not say: which turns are owed is asked of each channel when it changes,
and of every channel of an agent when that agent is registered.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping

from antiphon.agents.declaration import Declaration
from antiphon.core.errors import StoreError, StoreGone
from antiphon.core.instants import after as later
from antiphon.core.step import pending
from antiphon.core.words import told
from antiphon.engines.protocol import Engine, JobRef
from antiphon.hub.channels import Channels
from antiphon.hub.clock import Clock
from antiphon.store.protocol import ChannelRow, Index

log = logging.getLogger("antiphon.engine")

RETRY = 1.0


class Dispatch:
    """Submits what is owed, and cancels what is not any more."""

    def __init__(
        self, engine: Engine | None, store: Index, channels: Channels, *, agents: Mapping[str, Declaration]
    ) -> None:
        self._engine, self._store, self._channels, self._agents = engine, store, channels, agents
        self._changed: dict[str, None] = {}
        self._idle: deque[str] = deque()
        """Channels of which it is not known yet that they are owed nothing."""
        self._wake = asyncio.Event()
        self._submitted: dict[str, set[JobRef]] = {}

    def owing(self, channel_id: str) -> None:
        """The turns that this channel is owed may have changed."""
        if self._engine is not None:
            self._changed[channel_id] = None
            self._wake.set()

    async def find_owed(self, name: str, clock: Clock) -> None:
        """Look through the open channels of an agent when idle; those that wait for something first."""
        while True:
            try:
                rows = await self._active(name)
                break
            except StoreGone:
                return
            except StoreError as error:
                log.warning("the turns that %s owes cannot be found yet: %s", name, error)
                await clock.wait(asyncio.Event(), later(clock.now(), RETRY))
        self._idle.extend(row.channel_id for row in rows if row.due)
        self._idle.extend(row.channel_id for row in rows if not row.due)
        self._wake.set()

    async def _active(self, name: str) -> list[ChannelRow]:
        rows: list[ChannelRow] = []
        after = ""
        while page := await self._store.channels(status="active", participant=name, after=after):
            rows.extend(page)
            after = page[-1].channel_id
        return rows

    async def run(self, clock: Clock) -> None:
        """Look at every channel that has changed, until cancelled. One that cannot be read holds up no other."""
        assert self._engine is not None, "without an engine there is nothing to tell"
        unread: dict[str, None] = {}
        while True:
            if unread:
                await clock.wait(self._wake, later(clock.now(), RETRY))
            else:
                await self._wake.wait()
            self._wake.clear()
            self._changed.update(unread)
            unread.clear()
            while self._changed or self._idle:
                channel_id = self._next()
                if not await self._looked_at(self._engine, channel_id):
                    unread[channel_id] = None

    def _next(self) -> str:
        if not self._changed:
            return self._idle.popleft()
        channel_id = next(iter(self._changed))
        del self._changed[channel_id]
        return channel_id

    async def _looked_at(self, engine: Engine, channel_id: str) -> bool:
        """Whether the engine knows now what this channel is owed; False to ask again later."""
        try:
            state = (await self._channels.get(channel_id)).state
        except StoreGone:
            return True  # for good: there is nothing to ask again
        except StoreError as error:
            log.warning("what channel %s is owed cannot be read yet: %s", channel_id, error)
            return False
        except Exception as error:  # one channel whose rules fail stops no other
            log.error("what channel %s is owed cannot be known: %s", channel_id, told(error))
            return True
        owed = {
            JobRef(channel_id, turn.speaker, turn.turn_id) for turn in pending(state) if turn.speaker in self._agents
        }
        for job in self._submitted.pop(channel_id, set()) - owed:
            await engine.cancel(job.job_id, "the turn is no longer owed")
        for job in owed:
            await engine.submit(job)
        if owed:
            self._submitted[channel_id] = owed
        return True
