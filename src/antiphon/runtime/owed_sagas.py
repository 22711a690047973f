"""The channels that have ended in failure and are not undone yet, as far as this hub has met them.

Rule 1: the list is the store's: such a channel is due until its saga has finished, and looked at when a hub opens. What
        is kept here is derived from that, and lost with the hub.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from antiphon.guards.saga import saga_memory_of
from antiphon.hub.live import Channels, LiveChannel


class SagaEngine(Protocol):
    """What runs sagas. Here it is only named: a hub that runs no turns does not load it."""

    on_finished: Callable[[str], object]
    """Called with the channel of a saga that has finished."""

    def look_at(self, live: LiveChannel) -> None: ...

    def look_again(self) -> None: ...

    async def stop(self) -> None: ...


class OwedSagas:
    """The sagas that are not finished, and what runs them, if this hub runs turns."""

    def __init__(self, channels: Channels) -> None:
        self._channels = channels
        self._compensations: SagaEngine | None = None
        self._found: dict[str, None] = {}

    @property
    def channel_ids(self) -> list[str]:
        """The channels in which compensations were left when they were last looked at."""
        return list(self._found)

    def look_at(self, live: LiveChannel) -> None:
        """Take notice of a channel, and run what is owed there."""
        channel_id = live.state.channel_id
        if not saga_memory_of(live.fold).is_owed:
            self._found.pop(channel_id, None)
            return
        self._found[channel_id] = None
        if self._compensations is not None:
            self._compensations.look_at(live)

    async def run(self, compensations: SagaEngine) -> None:
        """Run them here, from now on."""
        self._compensations = compensations
        compensations.on_finished = lambda channel_id: self._found.pop(channel_id, None)
        for channel_id in self.channel_ids:
            compensations.look_at(await self._channels.get(channel_id))

    def look_again(self) -> None:
        """An agent was registered: its tools may be what a saga waits for."""
        if self._compensations is not None:
            self._compensations.look_again()

    async def stop(self) -> None:
        """Begin nothing more, and give compensations in progress a moment."""
        if self._compensations is not None:
            await self._compensations.stop()
