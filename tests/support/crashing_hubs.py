"""Hubs that end without a word, and the next ones that find what they have left.

A hub that died is one that is left as it is, with its calls under way and its clock standing still, while another is
opened over the same store. On a store that one hub owns that alone tells the next owner that the one before is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from antiphon import Agent, Channel, Envelope, Hub, Limits, Participant, Reply, Request, State
from antiphon.core.envelope import Instant
from antiphon.engines.local import LocalEngine
from antiphon.testing import ManualClock
from tests.support.kept_store import KeptStore
from tests.support.waiting import NEVER_COMES, let_others_run

GRACE = 0.01


class Mind:
    """A model that gives these replies, one for each time it is asked, and thinks for ever about what comes then."""

    def __init__(self, *replies: Reply | list[Reply]) -> None:
        self._replies = list(replies)
        self.requests: list[Request] = []

    async def __call__(self, request: Request) -> Reply | list[Reply]:
        self.requests.append(request)
        if not self._replies:
            await asyncio.Event().wait()
        return self._replies.pop(0)

    @property
    def thinks(self) -> bool:
        """Whether it was asked more than it can answer."""
        return len(self.requests) > 0 and not self._replies


class Crashes:
    """A store, and one hub after the other over it."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        """The clock of the latest hub."""
        self.store = KeptStore(clock=self)
        self._hubs: list[Hub] = []
        self.people: dict[str, Participant] = {}
        """Those who are registered in the latest hub."""
        self.channel_id = ""
        self.limits = Limits(model_seconds=None)
        """Those of bob."""

    def now(self) -> Instant:
        return self.clock.now()

    @property
    def hub(self) -> Hub:
        """The latest."""
        return self._hubs[-1]

    async def next_hub(self, model: Callable[..., object] | None = None, **options: object) -> Hub:
        """Leave the hub there is as it is, and open another: ann, a person, is there, and bob with this model."""
        self.clock = ManualClock(self.clock.now())
        hub = await Hub.over(self.store, clock=self.clock, engine=LocalEngine(self.store, self.clock, grace=GRACE))
        self._hubs.append(hub)
        self.people = {"ann": await hub.register("ann", kind="human"), "sue": await hub.register("sue")}
        if model is not None:
            agent = Agent("bob", model=model, limits=self.limits, **options)  # type: ignore[arg-type]
            self.people["bob"] = await hub.register(agent)
        return hub

    async def open(self, type: str = "conversation", *, by: str = "ann", text: str = "Pay.") -> Channel:
        """Let somebody open a channel with bob, and ask something."""
        channel = await self.people[by].open(target="bob", type=type)
        self.channel_id = channel.channel_id
        await channel.send(text)
        return channel

    async def held_by(self, name: str) -> Channel:
        return await self.people[name].channel(self.channel_id)

    async def log(self) -> list[Envelope]:
        return await self._hubs[-1].log(self.channel_id)

    async def told(self, *types: str) -> list[Envelope]:
        """The envelopes of these types, by the last words of each."""
        return [envelope for envelope in await self.log() if envelope.event_type.split(".", 1)[1] in types]

    async def answers(self, name: str = "bob") -> list[object]:
        return [entry.event_data["text"] for entry in await self.told("msg.text") if entry.sender_id == name]

    async def state(self) -> State:
        return (await self.held_by("ann")).state

    async def until(self, event_type: str, count: int = 1) -> list[Envelope]:
        """The envelopes of a type, as soon as there are so many."""
        async with asyncio.timeout(NEVER_COMES):
            while len(found := await self.told(event_type)) < count:
                await let_others_run(1)
        return found

    async def answered(self, count: int = 1) -> Sequence[object]:
        """What bob has said, as soon as it has said so much."""
        async with asyncio.timeout(NEVER_COMES):
            while len(said := await self.answers()) < count:
                await let_others_run(1)
        return said

    async def close(self) -> None:
        for hub in reversed(self._hubs):
            await hub.close()


@asynccontextmanager
async def crashes() -> AsyncIterator[Crashes]:
    place = Crashes()
    try:
        yield place
    finally:
        await place.close()
