"""Where a hub of a test keeps its logs, such that it can be opened again; and a team to begin with."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from antiphon import Channel, Envelope, Hub, Participant
from antiphon.core.codec import encode_envelope
from antiphon.store.memory_store import MemoryStore
from antiphon.testing import ManualClock


class Team:
    """A hub with people in it. `kinds` maps a name to a kind; a name alone is a service."""

    def __init__(self, hub: Hub, clock: ManualClock, store: MemoryStore | None = None) -> None:
        self.hub, self.clock = hub, clock
        self.store = store
        self.members: dict[str, Participant] = {}

    async def join(self, *names: str, **kinds: str) -> None:
        for name in names:
            self.members[name] = await self.hub.register(name)
        for name, kind in kinds.items():
            self.members[name] = await self.hub.register(name, kind=kind)

    def __getitem__(self, name: str) -> Participant:
        return self.members[name]

    async def held_by(self, name: str, channel: Channel) -> Channel:
        """The channel as somebody else holds it."""
        return await self.members[name].channel(channel.channel_id)

    async def log(self, channel: Channel, after: int = 0) -> list[Envelope]:
        return await self.hub.log(channel.channel_id, after)

    async def records(self, channel: Channel) -> list[bytes]:
        """The log byte for byte."""
        return [encode_envelope(envelope) for envelope in await self.log(channel)]

    async def audited(self) -> list[dict[str, object]]:
        """What was refused, as the audit channel has it."""
        if not [row for row in await self.hub.channels(system=True) if row.channel_id == "system:audit"]:
            return []
        log = await self.hub.log("system:audit")
        return [envelope.event_data for envelope in log if envelope.event_type == "antiphon.draft.refused"]


@asynccontextmanager
async def team(*names: str, store: MemoryStore | None = None, clock: ManualClock | None = None) -> AsyncIterator[Team]:
    """Services of these names in a hub of their own, in memory; `Name:kind` gives somebody another kind."""
    clock = clock or ManualClock()
    store = store or MemoryStore(clock=clock)
    hub = await Hub.over(store, clock=clock)
    here = Team(hub, clock, store)
    try:
        for name in names:
            who, _, kind = name.partition(":")
            await here.join(**{who: kind or "service"})
        yield here
    finally:
        await hub.close()
