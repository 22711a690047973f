"""Reading channels as they grow: one channel for a subscriber, all of them for an inbox.

Rule 1: a reader has a cursor and nothing else. It misses nothing, and holds up no sender.
Rule 2: an envelope for a participant has passed `visible_to` and `envelope_for_participants`; the operator sees all.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from copy import copy
from functools import partial

from antiphon.core.envelope import Envelope, is_tombstone, visible_to
from antiphon.core.errors import LogCorrupt, RulesInvalid, SlowConsumer
from antiphon.core.views import envelope_for_participants
from antiphon.engines.engine import wait_for_others
from antiphon.hub.feed import InboxWatcher, Signal, TokenSubscriber
from antiphon.hub.live import LiveChannel
from antiphon.runtime.core import HubCore
from antiphon.store.paging import all_envelopes

logger = logging.getLogger("antiphon.hub")


async def follow_channel(
    core: HubCore, live: LiveChannel, *, reader: str | None, after: int, max_lag: int | None = None
) -> AsyncGenerator[Envelope, None]:
    """Everything behind `after` that the reader may see, then what comes, until the channel or the hub ends."""
    cursor, known = after, live.state.sequence

    def visible_in(page: Sequence[Envelope]) -> Iterator[Envelope]:
        nonlocal cursor
        for envelope in page:
            head = live.state.sequence
            if max_lag is not None and head - max(cursor, known) > max_lag:
                raise SlowConsumer(live.state.channel_id, cursor, head - cursor)
            cursor = envelope.sequence
            if reader is None:
                yield envelope
            elif visible_to(envelope, reader):
                yield envelope_for_participants(envelope, live.state.participants)

    async with aclosing(tail_pages(core, live, after, until=core.closing)) as pages:
        async for page in pages:
            for envelope in visible_in(page):
                yield envelope


async def tail_pages(
    core: HubCore, live: LiveChannel, cursor: int, *, until: asyncio.Event, tokens: TokenSubscriber | None = None
) -> AsyncGenerator[Sequence[Envelope], None]:
    """Every envelope behind the cursor, in pages, as the channel grows. A damaged log raises `LogCorrupt`.

    A page is empty if the reader was woken by something else: with `tokens`, by a signal.
    """
    with core.feed.watching(live.state.channel_id) as growth:
        if tokens is not None:
            tokens.wake = growth  # one event for both, so that one wait notices whichever comes first
        while not until.is_set():
            growth.clear()
            page = await live.read(cursor)
            yield page
            cursor = page[-1].sequence if page else cursor
            if cursor < live.state.sequence:
                continue
            if live.state.ended:
                return
            if live.damage is not None:
                raise copy(live.damage)
            await wait_for_others(core.feed.growth(growth), live.state.channel_id)


async def follow_signals(core: HubCore, live: LiveChannel, *, reader: str | None) -> AsyncGenerator[Signal, None]:
    """The signals of a channel that the reader may hear, from now on, until the channel or the hub ends.

    A slow listener misses the oldest. Without a reader it is the operator's view.
    """
    channel_id = live.state.channel_id
    with core.feed.subscribe_tokens(channel_id) as subscriber, core.feed.watching(channel_id) as grown:
        subscriber.wake = grown
        while not core.closing.is_set():
            grown.clear()
            heard, subscriber.signals = subscriber.signals, deque(maxlen=subscriber.signals.maxlen)
            for signal in (
                each for each in heard if reader is None or each.audience is None or reader in each.audience
            ):
                yield signal
            if live.state.ended:
                return
            await wait_for_others(core.feed.growth(grown), channel_id)


class Inbox:
    """What is addressed to one participant, over all its channels, from where it left off."""

    def __init__(self, core: HubCore, name: str) -> None:
        self._core, self._name = core, name
        self._positions: dict[str, int] = {}
        self._reader: InboxWatcher | None = None
        """The present reader. The newest one takes over, and the one before ends."""

    async def read(self) -> AsyncIterator[Envelope]:
        """Envelopes in order per channel; each is acknowledged when the next is asked for."""
        self._core.check_open()
        with self._core.feed.watch_inbox(self._name) as watcher:
            if self._reader is not None:
                self._reader.wake.set()
            self._reader = watcher
            await self._load_positions()
            watcher.grown.update(dict.fromkeys(self._positions))
            async for envelope in self._deliver(watcher):
                yield envelope

    async def pending(self) -> int:
        """How many envelopes are not acknowledged yet."""
        self._core.check_open()
        await self._load_positions()
        count = 0
        for channel_id in list(self._positions):
            unread = all_envelopes(partial(self._read_page, channel_id), await self._position_of(channel_id))
            count += sum([self._is_addressed(envelope) async for envelope in unread])
        return count

    async def _load_positions(self) -> None:
        """Add the channels that came while there was no reader. A position known here is ahead of the stored one."""
        for position in await self._core.store.positions(self._name):
            self._positions.setdefault(position.channel_id, position.sequence)

    async def _deliver(self, watcher: InboxWatcher) -> AsyncIterator[Envelope]:
        while self._is_current(watcher):
            if not watcher.grown:
                watcher.wake.clear()
                await wait_for_others(self._core.feed.growth(watcher.wake))
                continue
            channel_id = next(iter(watcher.grown))
            del watcher.grown[channel_id]
            async for envelope in self._deliver_page(watcher, channel_id):
                yield envelope

    def _is_current(self, watcher: InboxWatcher) -> bool:
        return self._reader is watcher and not self._core.closing.is_set()

    async def _deliver_page(self, watcher: InboxWatcher, channel_id: str) -> AsyncIterator[Envelope]:
        """One page of one channel; the channel goes to the end of the line if there is more."""
        page = await self._read_page(channel_id, await self._position_of(channel_id))
        if not page:
            return
        live = await self._core.live(channel_id)
        for envelope in page:
            if self._is_addressed(envelope):
                yield envelope_for_participants(envelope, live.state.participants)
            if not self._is_current(watcher):
                return
            self._positions[channel_id] = envelope.sequence
            if envelope is page[-1] or self._is_addressed(envelope):
                await self._core.store.acknowledge(self._name, channel_id, envelope.sequence)
        state = live.state
        if page[-1].sequence < state.sequence:
            watcher.grown[channel_id] = None
        elif state.ended:  # nothing comes any more, even if growth was noted meanwhile
            watcher.grown.pop(channel_id, None)
            del self._positions[channel_id]

    async def _position_of(self, channel_id: str) -> int:
        """How far this reader has read a channel. In a fork it begins at the last message that was copied."""
        position = self._positions.get(channel_id, 0)
        if position:
            return position
        try:
            return (await self._core.live(channel_id)).state.heard
        except (RulesInvalid, LogCorrupt):
            return 0

    async def _read_page(self, channel_id: str, cursor: int) -> Sequence[Envelope]:
        """What stands behind the cursor; nothing, and a warning, if this channel alone cannot be used."""
        try:
            return await (await self._core.live(channel_id)).read(cursor)
        except (RulesInvalid, LogCorrupt) as error:
            logger.warning("%s cannot read channel %s: %s", self._name, channel_id, error)
            return ()

    def _is_addressed(self, envelope: Envelope) -> bool:
        return envelope.sender_id != self._name and visible_to(envelope, self._name) and not is_tombstone(envelope)
