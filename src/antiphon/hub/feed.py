"""Wakes the readers of channels, and keeps the last records for them.

Rule 1: the feed carries no envelopes. A reader has a cursor and reads the log when it is woken, at its own pace: no
        queue can overflow, and no reader slows a sender down.
Rule 2: once the store is gone nothing grows any more. Every wait, and every later one, then ends with `StoreGone`.
Rule 3: the tail of a log in memory has no gaps. What it does not hold is read from the store.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from copy import copy
from typing import TypeVar

import msgspec

from antiphon.core.codec import decode_envelope, encode_envelope
from antiphon.core.envelope import Envelope
from antiphon.core.errors import StoreGone

W = TypeVar("W")

MAX_PENDING_SIGNALS = 1000
"""How many signals wait for a slow listener before the oldest are dropped."""


class Signal(msgspec.Struct, frozen=True):
    """A piece of text on its way to a screen. Published, never recorded."""

    channel_id: str
    speaker: str
    turn_id: str
    index: int
    """The position of the model call in its turn."""
    text: str
    audience: tuple[str, ...] | None = None
    """Who may receive it; None is every participant."""


class TokenSubscriber:
    """A subscription to the signals of a channel."""

    def __init__(self) -> None:
        self.wake = asyncio.Event()
        self.signals: deque[Signal] = deque(maxlen=MAX_PENDING_SIGNALS)


class InboxWatcher:
    """A reader of many channels: which of them have grown since it last looked."""

    def __init__(self) -> None:
        self.wake = asyncio.Event()
        self.grown: dict[str, None] = {}

    def tell(self, channel_id: str) -> None:
        """Note that a channel has grown."""
        self.grown[channel_id] = None
        self.wake.set()


class Feed:
    """Wakes readers of channels and of participants' inboxes."""

    def __init__(self) -> None:
        self._watchers: dict[str, dict[asyncio.Event, None]] = {}  # in order, so that they are woken in order
        self._inbox_watchers: dict[str, dict[InboxWatcher, None]] = {}
        self._token_subscribers: dict[str, dict[TokenSubscriber, None]] = {}
        self._failure: StoreGone | None = None

    def watching(self, channel_id: str) -> AbstractContextManager[asyncio.Event]:
        """An event that is set whenever the channel grows."""
        return _add_watcher(self._watchers, channel_id, asyncio.Event())

    def watch_inbox(self, participant: str) -> AbstractContextManager[InboxWatcher]:
        """A watcher of every channel of a participant."""
        return _add_watcher(self._inbox_watchers, participant, InboxWatcher())

    def subscribe_tokens(self, channel_id: str) -> AbstractContextManager[TokenSubscriber]:
        """The signals of a channel, from now on."""
        return _add_watcher(self._token_subscribers, channel_id, TokenSubscriber())

    def has_token_subscribers(self, channel_id: str) -> bool:
        """Whether the signals of this channel have subscribers."""
        return channel_id in self._token_subscribers

    def signal(self, signal: Signal) -> None:
        """Pass a signal to the subscribers of its channel."""
        for subscriber in self._token_subscribers.get(signal.channel_id, ()):
            subscriber.signals.append(signal)
            subscriber.wake.set()

    def has_watchers(self, channel_id: str, participants: Iterable[str]) -> bool:
        """Whether this channel has watchers now."""
        if not self._inbox_watchers:
            return channel_id in self._watchers
        return channel_id in self._watchers or not self._inbox_watchers.keys().isdisjoint(participants)

    def publish(self, channel_id: str, participants: Iterable[str]) -> None:
        """Wake the watchers of this channel."""
        for event in self._watchers.get(channel_id, ()):
            event.set()
        if self._inbox_watchers:
            for name in participants:
                for watcher in self._inbox_watchers.get(name, ()):
                    watcher.tell(channel_id)

    def fail(self, error: StoreGone) -> None:
        """End every wait, now and from now on, with this error."""
        self._failure = error
        self.wake_all()

    def check(self) -> None:
        """`StoreGone` once nothing can grow any more."""
        if self._failure is not None:
            raise copy(self._failure)  # each has its own traceback

    async def growth(self, wake: asyncio.Event) -> None:
        """Wait for one of the events above; `StoreGone` if it cannot come.

        The failure is looked at before the wait alone: an answer that was recorded just before the loss is still given.
        """
        self.check()
        await wake.wait()

    def wake_all(self) -> None:
        """Wake every watcher, because the hub is closing or its store is gone."""
        for watchers in self._watchers.values():
            for event in watchers:
                event.set()
        for inboxes in self._inbox_watchers.values():
            for watcher in inboxes:
                watcher.wake.set()
        for subscribers in self._token_subscribers.values():
            for subscriber in subscribers:
                subscriber.wake.set()


@contextmanager
def _add_watcher(table: dict[str, dict[W, None]], key: str, watcher: W) -> Iterator[W]:
    """Keep a watcher in the table until the block ends. A key without watchers is removed."""
    watchers = table.setdefault(key, {})
    watchers[watcher] = None
    try:
        yield watcher
    finally:
        watchers.pop(watcher, None)
        if not watchers and table.get(key) is watchers:
            del table[key]


MAX_RECENT_IDS = 256
"""The number of ids kept in memory for each channel in use."""


class RecentIds:
    """The ids of the last envelopes of a channel."""

    __slots__ = ("_ids",)

    def __init__(self) -> None:
        self._ids: dict[str, None] = {}

    def __contains__(self, envelope_id: str) -> bool:
        return envelope_id in self._ids

    def add(self, batch: Sequence[Envelope]) -> None:
        """Keep the ids of these too, and drop the oldest."""
        # A batch may be long. Deleting one by one from the front of a large dict takes time that grows with its square.
        self._ids.update((envelope.envelope_id, None) for envelope in batch[-MAX_RECENT_IDS:])
        while len(self._ids) > MAX_RECENT_IDS:
            del self._ids[next(iter(self._ids))]


MAX_TAIL_RECORDS = 64
MAX_TAIL_BYTES = 64 * 1024


class TailCache:
    """A few records without a gap. Each reader decodes its own, as if from the store."""

    def __init__(self) -> None:
        self._records: deque[tuple[int, bytes]] = deque()
        self._size = 0

    def add(self, batch: Sequence[Envelope]) -> None:
        """Keep these too, and drop the oldest. Of a long batch only the end is encoded."""
        if len(batch) > MAX_TAIL_RECORDS:
            self.clear()
        for envelope in batch[-MAX_TAIL_RECORDS:]:
            record = encode_envelope(envelope)
            self._records.append((envelope.sequence, record))
            self._size += len(record)
        while len(self._records) > MAX_TAIL_RECORDS or self._size > MAX_TAIL_BYTES:
            self._size -= len(self._records.popleft()[1])

    def after(self, sequence: int) -> list[Envelope]:
        """Everything behind this sequence; nothing if some of it is not here."""
        records = self._records
        if not records or records[0][0] > sequence + 1:
            return []
        return [decode_envelope(records[place][1]) for place in range(sequence + 1 - records[0][0], len(records))]

    def clear(self) -> None:
        """Drop everything."""
        self._records.clear()
        self._size = 0
