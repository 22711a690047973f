"""Where a hub of a test keeps its logs, such that it can be opened again; and a team to begin with."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

from antiphon import EV_TASK_STARTED, Channel, Envelope, Hub, Participant
from antiphon.core.codec import encode
from antiphon.core.events import TurnDelayed, event_of
from antiphon.core.instants import Instant, seconds_between
from antiphon.core.laws import Fold
from antiphon.store.memory import MemoryStore
from antiphon.store.protocol import Appended
from antiphon.testing import ManualClock
from tests.hub.gates import turns


class Place(Protocol):
    """Somewhere that outlives a hub."""

    async def hub(self, clock: ManualClock, engine: str | None = "local") -> Hub: ...


class KeptStore(MemoryStore):
    """A store in memory that stays open when its hub closes, so that another hub continues on it.

    The clock of its hub passes over the pauses after crashes, unless `pauses` is set.
    """

    pauses = False

    async def append(
        self, channel: str, batch: Sequence[Envelope], *, expected: int, due: Instant | None = None
    ) -> Appended:
        appended = await super().append(channel, batch, expected=expected, due=due)
        if not self.pauses:
            pass_pauses(batch, getattr(self._clock, "clock", self._clock))
        return appended

    async def close(self) -> None:
        pass


def pass_pauses(batch: Sequence[Envelope], clock: object) -> None:
    """Move a clock that is moved by hand over the pause after a crash, as soon as that is recorded."""
    if not isinstance(clock, ManualClock):
        return
    for event in map(event_of, batch):
        if isinstance(event, TurnDelayed):
            left = max(0.0, seconds_between(clock.now(), event.until))
            asyncio.get_running_loop().call_soon(clock.advance, left)


class InMemory:
    def __init__(self, clock: ManualClock) -> None:
        self.store = KeptStore(clock=clock)

    async def hub(self, clock: ManualClock, engine: str | None = "local") -> Hub:
        return await Hub.over(self.store, clock=clock, engine=engine)


class OnDisk:
    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{folder / 'team.db'}"

    async def hub(self, clock: ManualClock, engine: str | None = "local") -> Hub:
        return await Hub.open(self.url, clock=clock, engine=engine)


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
        return [encode(envelope) for envelope in await self.log(channel)]

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


async def watched(clock: ManualClock) -> None:
    """Return once the hub has looked at what is due and waits for this clock."""
    async with asyncio.timeout(10):
        while not clock._waits:
            await turns(1)


async def fold_of(hub: Hub, channel_id: str) -> Fold:
    """The fold a hub goes by: the state, and what the adapter and the guards remember."""
    live = await hub._desk.live(channel_id)
    await live.settled()
    return live.fold


def shown(log: Sequence[Envelope]) -> list[tuple[str, str]]:
    """A log as pairs of sender and the last words of the event type."""
    return [(envelope.sender_id, envelope.event_type.split(".", 1)[1]) for envelope in log]


async def logs_from(hub: Hub, channel_id: str) -> list[list[Envelope]]:
    """The log of a channel, then those of the tasks that were given from it and begun, each before its own."""
    log, known = await hub.log(channel_id), {row.channel_id for row in await hub.channels()}
    given = [envelope.event_data["task"] for envelope in log if envelope.event_type == EV_TASK_STARTED]
    return [log, *[below for task in given if task in known for below in await logs_from(hub, str(task))]]
