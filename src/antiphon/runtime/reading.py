"""Reading channels as they grow: one channel for a subscriber, all of them for an inbox.

Rule 1: a reader has a cursor and nothing else. It cannot miss anything, and it cannot hold anybody up.
Rule 2: whatever leaves here has passed `visible_to` and `as_seen`, unless the operator asked.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from copy import copy

from antiphon.agents.nesting import waiting_for_others
from antiphon.core.disclosure import as_seen
from antiphon.core.envelope import Envelope, visible_to
from antiphon.core.erasing import is_erased
from antiphon.core.errors import LogCorrupt, RulesInvalid, SlowConsumer
from antiphon.hub.feed import Ears, Signal
from antiphon.hub.live import LiveChannel
from antiphon.runtime.desk import Desk

log = logging.getLogger("antiphon.hub")


async def follow(
    desk: Desk, live: LiveChannel, *, reader: str | None, after: int, max_lag: int | None = None
) -> AsyncGenerator[Envelope, None]:
    """Everything behind `after` that the reader may see, then what comes, until the channel or the hub ends."""
    cursor, known = after, live.state.sequence
    async with aclosing(grown(desk, live, after, until=desk.closing)) as envelopes:
        async for envelope in envelopes:
            head = live.state.sequence
            if max_lag is not None and head - max(cursor, known) > max_lag:
                raise SlowConsumer(live.state.channel_id, cursor, head - cursor)
            cursor = envelope.sequence
            if reader is None:
                yield envelope
            elif visible_to(envelope, reader):
                yield as_seen(envelope)


async def grown(desk: Desk, live: LiveChannel, cursor: int, *, until: asyncio.Event) -> AsyncGenerator[Envelope, None]:
    """Every envelope behind the cursor, as the channel grows. What cannot be trusted raises `LogCorrupt`."""
    with desk.feed.watching(live.state.channel_id) as growth:
        while not until.is_set():
            growth.clear()
            for envelope in await live.read(cursor):
                yield envelope
                cursor = envelope.sequence
            if cursor < live.state.sequence:
                continue
            if live.state.ended:
                return
            if live.damage is not None:
                raise copy(live.damage)
            await waiting_for_others(desk.feed.growth(growth), live.state.channel_id)


async def overhear(desk: Desk, live: LiveChannel, *, reader: str | None) -> AsyncGenerator[Signal, None]:
    """The signals of a channel that the reader may hear, from now on, until the channel or the hub ends.

    A slow listener misses the oldest. Without a reader it is the operator's view.
    """
    channel_id = live.state.channel_id
    with desk.feed.overhearing(channel_id) as hearing, desk.feed.watching(channel_id) as grown:
        hearing.wake = grown
        while not desk.closing.is_set():
            grown.clear()
            heard, hearing.signals = hearing.signals, deque(maxlen=hearing.signals.maxlen)
            for signal in (each for each in heard if _may_hear(each, reader)):
                yield signal
            if live.state.ended:
                return
            await waiting_for_others(desk.feed.growth(grown), channel_id)


def _may_hear(signal: Signal, reader: str | None) -> bool:
    return reader is None or signal.audience is None or reader in signal.audience


class Inbox:
    """What is addressed to one participant, over all its channels, from where it left off."""

    def __init__(self, desk: Desk, name: str) -> None:
        self._desk, self._name = desk, name
        self._positions: dict[str, int] = {}
        self._reader: Ears | None = None
        """Whoever reads now. The newest reader takes over, and the one before ends."""

    async def read(self) -> AsyncIterator[Envelope]:
        """Envelopes in order per channel; each is acknowledged when the next is asked for."""
        self._desk.check_open()
        with self._desk.feed.listening(self._name) as ears:
            if self._reader is not None:
                self._reader.wake.set()
            self._reader = ears
            await self._load()
            ears.grown.update(dict.fromkeys(self._positions))
            async for envelope in self._deliver(ears):
                yield envelope

    async def pending(self) -> int:
        """How many envelopes are not acknowledged yet."""
        self._desk.check_open()
        await self._load()
        count = 0
        for channel_id in list(self._positions):
            cursor = await self._position(channel_id)
            while page := await self._read(channel_id, cursor):
                count += sum(self._wanted(envelope) for envelope in page)
                cursor = page[-1].sequence
        return count

    async def _load(self) -> None:
        """Take up the channels that came while nobody listened. A position known here is ahead of the stored one."""
        for position in await self._desk.store.positions(self._name):
            self._positions.setdefault(position.channel_id, position.sequence)

    async def _deliver(self, ears: Ears) -> AsyncIterator[Envelope]:
        while self._goes_on(ears):
            if not ears.grown:
                ears.wake.clear()
                await waiting_for_others(self._desk.feed.growth(ears.wake))
                continue
            channel_id = next(iter(ears.grown))
            del ears.grown[channel_id]
            async for envelope in self._page(ears, channel_id):
                yield envelope

    def _goes_on(self, ears: Ears) -> bool:
        return self._reader is ears and not self._desk.closing.is_set()

    async def _page(self, ears: Ears, channel_id: str) -> AsyncIterator[Envelope]:
        """One page of one channel; the channel goes to the end of the line if there is more."""
        page = await self._read(channel_id, await self._position(channel_id))
        for envelope in page:
            if self._wanted(envelope):
                yield as_seen(envelope)
            if not self._goes_on(ears):
                return
            self._positions[channel_id] = envelope.sequence
            if envelope is page[-1] or self._wanted(envelope):
                await self._desk.store.acknowledge(self._name, channel_id, envelope.sequence)
        if not page:
            return
        state = (await self._desk.live(channel_id)).state
        if page[-1].sequence < state.sequence:
            ears.grown[channel_id] = None
        elif state.ended:  # nothing comes any more, whatever was told meanwhile
            ears.grown.pop(channel_id, None)
            del self._positions[channel_id]

    async def _position(self, channel_id: str) -> int:
        """How far this reader has heard a channel. Of a fork nobody hears again what was said before its last word."""
        position = self._positions.get(channel_id, 0)
        if position:
            return position
        try:
            return (await self._desk.live(channel_id)).state.heard
        except (RulesInvalid, LogCorrupt):
            return 0

    async def _read(self, channel_id: str, cursor: int) -> Sequence[Envelope]:
        """What stands behind the cursor; nothing, and a warning, if this channel alone cannot be used."""
        try:
            return await (await self._desk.live(channel_id)).read(cursor)
        except (RulesInvalid, LogCorrupt) as error:
            log.warning("%s cannot read channel %s: %s", self._name, channel_id, error)
            return ()

    def _wanted(self, envelope: Envelope) -> bool:
        return envelope.sender_id != self._name and visible_to(envelope, self._name) and not is_erased(envelope)
