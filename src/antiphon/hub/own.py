"""The hub's own channels: who is registered, and what was refused.

They are channels like any other, so that nothing the hub knows is kept in a second way. One that is damaged is left
as it is, and goes on under the next name: `system:registry`, `system:registry-2` …
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from itertools import count

from antiphon.core.envelope import HUB, Envelope
from antiphon.core.errors import Denied, UnknownChannel
from antiphon.core.events import Created, Json
from antiphon.core.ids import IdSource
from antiphon.core.laws import Laws
from antiphon.core.opening import opening
from antiphon.core.step import record, said_by_hub
from antiphon.hub.channels import Channels
from antiphon.hub.live import LiveChannel


class OwnChannel:
    """One channel of the hub's own, made when it is first needed."""

    def __init__(self, channel_id: str, channels: Channels, *, laws: Laws, new_id: IdSource) -> None:
        self.channel_id = channel_id
        self._channels, self._laws, self._new_id = channels, laws, new_id
        self._current: LiveChannel | None = None
        self._choosing = asyncio.Lock()

    async def say(self, event_type: str, data: Json) -> None:
        """Record something in the hub's name."""
        live = await self._live()
        draft = said_by_hub(event_type, data)
        await live.submit(lambda fold, laws, at: record(fold, draft, laws=laws, at=at, new_id=self._new_id))

    async def say_once(self, event_type: str, data: Json, envelope_id: str) -> None:
        """Record something in the hub's name under this id, unless the id is recorded already."""
        live = await self._live()
        draft = replace(said_by_hub(event_type, data), envelope_id=envelope_id)
        try:
            await live.submit(
                lambda fold, laws, at: record(fold, draft, laws=laws, at=at, new_id=self._new_id), draft=draft
            )
        except Denied as denied:
            if denied.reason != "conflict":
                raise

    async def told(self) -> AsyncIterator[Envelope]:
        """Everything that was recorded so far and can be read."""
        async for live in self.volumes():
            after = 0
            while envelopes := await live.read(after):
                for envelope in envelopes:
                    yield envelope
                after = envelopes[-1].sequence

    async def volumes(self) -> AsyncIterator[LiveChannel]:
        """The channel of each name there is, in order."""
        for channel_id in self._names():
            try:
                yield await self._channels.get(channel_id)
            except UnknownChannel:
                return

    def _names(self) -> Iterator[str]:
        yield self.channel_id
        for number in count(2):
            yield f"{self.channel_id}-{number}"

    async def _live(self) -> LiveChannel:
        """The last of them, if it is sound; otherwise a new one."""
        async with self._choosing:
            if self._current is None or self._current.damage is not None:
                self._current = await self._chosen()
            return self._current

    async def _chosen(self) -> LiveChannel:
        names = self._names()
        channel_id, last = next(names), None
        async for live in self.volumes():
            channel_id, last = next(names), live
        return last if last is not None and last.damage is None else await self._made(channel_id)

    async def _made(self, channel_id: str) -> LiveChannel:
        created = Created(type="system", creator=HUB, participants=[])
        return await self._channels.create(
            channel_id,
            self._laws,
            lambda fold, laws, at: (
                None if fold.state.sequence else opening(fold, created, (), laws=laws, at=at, new_id=self._new_id)
            ),
        )
