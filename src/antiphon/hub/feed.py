"""Who is told that a channel has grown.

The feed carries no envelopes. A reader has a cursor and reads the log when it is woken, at its own pace, so there is
no queue that could overflow and nobody who could slow a sender down.

Once the store is gone nothing grows any more. Every wait, and every later one, then ends with `StoreGone`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import copy

import msgspec

from antiphon.core.errors import StoreGone

MOST_SIGNALS = 1000
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
    """Who may hear it; None is everybody in the channel."""


class Overhearing:
    """Whoever listens to the signals of a channel."""

    def __init__(self) -> None:
        self.wake = asyncio.Event()
        self.signals: deque[Signal] = deque(maxlen=MOST_SIGNALS)


class Ears:
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
        self._ears: dict[str, dict[Ears, None]] = {}
        self._overhearing: dict[str, dict[Overhearing, None]] = {}
        self._failure: StoreGone | None = None

    @contextmanager
    def watching(self, channel_id: str) -> Iterator[asyncio.Event]:
        """An event that is set whenever the channel grows."""
        event = asyncio.Event()
        watchers = self._watchers.setdefault(channel_id, {})
        watchers[event] = None
        try:
            yield event
        finally:
            watchers.pop(event, None)
            if not watchers and self._watchers.get(channel_id) is watchers:
                del self._watchers[channel_id]

    @contextmanager
    def listening(self, participant: str) -> Iterator[Ears]:
        """Ears that are told of every channel of a participant that grows."""
        ears = Ears()
        listeners = self._ears.setdefault(participant, {})
        listeners[ears] = None
        try:
            yield ears
        finally:
            listeners.pop(ears, None)
            if not listeners and self._ears.get(participant) is listeners:
                del self._ears[participant]

    @contextmanager
    def overhearing(self, channel_id: str) -> Iterator[Overhearing]:
        """The signals of a channel, from now on."""
        hearing = Overhearing()
        listeners = self._overhearing.setdefault(channel_id, {})
        listeners[hearing] = None
        try:
            yield hearing
        finally:
            listeners.pop(hearing, None)
            if not listeners and self._overhearing.get(channel_id) is listeners:
                del self._overhearing[channel_id]

    def overheard(self, channel_id: str) -> bool:
        """Whether anybody listens to the signals of this channel."""
        return channel_id in self._overhearing

    def signal(self, signal: Signal) -> None:
        """Let whoever listens have this."""
        for hearing in self._overhearing.get(signal.channel_id, ()):
            hearing.signals.append(signal)
            hearing.wake.set()

    def heard(self, channel_id: str, participants: Iterable[str]) -> bool:
        """Whether anybody is listening to this channel now."""
        if not self._ears:
            return channel_id in self._watchers
        return channel_id in self._watchers or not self._ears.keys().isdisjoint(participants)

    def publish(self, channel_id: str, participants: Iterable[str]) -> None:
        """Wake whoever listens to this channel."""
        for event in self._watchers.get(channel_id, ()):
            event.set()
        if self._ears:
            for name in participants:
                for ears in self._ears.get(name, ()):
                    ears.tell(channel_id)

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
        """Wake everybody, because the hub is closing or its store is gone."""
        for watchers in self._watchers.values():
            for event in watchers:
                event.set()
        for listeners in self._ears.values():
            for ears in listeners:
                ears.wake.set()
        for overhearing in self._overhearing.values():
            for hearing in overhearing:
                hearing.wake.set()
