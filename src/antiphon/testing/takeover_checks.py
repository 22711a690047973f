"""What becomes of turns when one of several hubs dies, hangs or goes: the part of an engine that only two can show.

A dead process is one whose clock stands still: whatever it has under way stays as it is, and it renews nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import cast

import msgspec

from antiphon.agents.limits import Limits
from antiphon.agents.messages import Reply, Request, calls, says
from antiphon.core.envelope import Envelope
from antiphon.core.errors import StoreUnavailable
from antiphon.core.events import EV_TEXT, EV_TURN_FENCED
from antiphon.core.instants import NEVER, Instant
from antiphon.engines.protocol import Engine
from antiphon.hub.audit import AUDIT
from antiphon.hub.clock import Clock
from antiphon.runtime.agent import Agent
from antiphon.runtime.hub import Hub
from antiphon.store.memory import MemoryStore
from antiphon.store.protocol import Lease, Store, StoreCaps
from antiphon.testing.clock import ManualClock
from antiphon.testing.patience import settled, until

Make = Callable[[Store, Clock], Engine]

STEP = 0.25
"""By how many seconds the clock moves at a time, so that who renews a lease can do so."""
LONG = 120
"""How many seconds a turn takes that takes long."""


class Shared:
    """A store that several hubs share, and none of them closes."""

    def __init__(self, clock: Clock) -> None:
        self._store = MemoryStore(clock=clock)
        self.leased_until: Instant = NEVER
        """When the lease ends that was granted last."""
        self.without_leases = False
        """Whether it can do everything else."""

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    @property
    def caps(self) -> StoreCaps:
        return msgspec.structs.replace(self._store.caps, many_hubs=True)

    async def lease(self, name: str, owner: str, ttl: float) -> Lease | None:
        if self.without_leases:
            raise StoreUnavailable("no leases can be had, as the check wants it")
        lease = await self._store.lease(name, owner, ttl)
        self.leased_until = self.leased_until if lease is None else lease.until
        return lease

    async def close(self) -> None:
        """Stay."""

    async def log(self, channel_id: str) -> list[Envelope]:
        return (await self._store.read(channel_id)).envelopes


class Mind:
    """A model that says what it is told to, and thinks about the last of it until it may speak."""

    def __init__(self, *replies: Reply) -> None:
        self._replies = replies
        self.requests: list[Request] = []
        self.may_speak = asyncio.Event()

    async def __call__(self, request: Request) -> Reply:
        self.requests.append(request)
        place = min(len(self.requests), len(self._replies))
        if place == len(self._replies):
            await self.may_speak.wait()
        return self._replies[place - 1]

    @property
    def thinks(self) -> bool:
        """Whether it was asked for the last thing it has to say."""
        return len(self.requests) >= len(self._replies)


class Scene:
    """Hubs over one store, and what was said in the one channel they serve."""

    def __init__(self, make: Make) -> None:
        self.clock = ManualClock()
        self.store = Shared(self.clock)
        self._make = make
        self._hubs: list[Hub] = []
        self._minds: list[Mind] = []
        self.channel_id = ""

    async def hub(self, mind: Mind, *, clock: ManualClock | None = None, tools: Sequence[object] = ()) -> Hub:
        """One more hub, in which the agent is registered, with this model."""
        clock, store = clock or self.clock, cast(Store, self.store)
        hub = await Hub.over(store, clock=clock, engine=self._make(store, clock))
        self._hubs.append(hub)
        self._minds.append(mind)
        await hub.register(Agent("bob", model=mind, tools=tools, limits=Limits(model_seconds=None)))
        return hub

    async def ask(self, hub: Hub, mind: Mind) -> None:
        """Let somebody ask the agent something, and wait until its model thinks about it."""
        ann = await hub.register("ann", kind="human")
        channel = await ann.open(target="bob")
        self.channel_id = channel.channel_id
        await channel.send("How much?")
        await until(lambda: mind.thinks, "a turn that an agent owes is run by the hub in which it is registered")

    async def answers(self) -> list[object]:
        """What the agent has said."""
        log = await self.store.log(self.channel_id)
        said = [envelope for envelope in log if envelope.sender_id == "bob" and envelope.event_type == EV_TEXT]
        return [envelope.event_data["text"] for envelope in said]

    async def fenced(self) -> int:
        """How often somebody was stopped who went on with a turn that was somebody else's."""
        return sum(envelope.event_type == EV_TURN_FENCED for envelope in await self.store.log(AUDIT))

    async def pass_time(self, seconds: float) -> None:
        """Move the clock, step by step, and let everybody do what they then do."""
        for _ in range(round(seconds / STEP)):
            self.clock.advance(STEP)
            await settled()

    async def answered(self, promise: str) -> list[object]:
        """What the agent says, as soon as it has said it; time passes meanwhile."""
        for _ in range(round(LONG / STEP)):
            if said := await self.answers():
                return said
            await self.pass_time(STEP)
        raise AssertionError(promise)

    async def close(self) -> None:
        for mind in self._minds:
            mind.may_speak.set()
        for hub in self._hubs:
            await hub.close()


@asynccontextmanager
async def _scene(make: Make) -> AsyncIterator[Scene]:
    scene = Scene(make)
    try:
        yield scene
    finally:
        await scene.close()


async def check_takeover(make: Make) -> None:
    """A turn of a dead hub is taken over when its lease has run out and not before; what it says then is dropped."""
    async with _scene(make) as scene:
        dead, living = Mind(says("from the dead")), Mind(says("from the living"))
        living.may_speak.set()
        await scene.ask(await scene.hub(dead, clock=ManualClock()), dead)
        ends = scene.store.leased_until
        assert ends > scene.clock.now(), "who runs turns on a store that is shared shows by a lease that it lives"
        await scene.hub(living)
        while scene.clock.now() < ends:
            assert not living.requests, "no turn is taken over from an owner whose lease has not run out"
            await scene.pass_time(STEP)
        said = await scene.answered("a turn of a hub that died is taken over by another, and finished")
        assert said == ["from the living"], "what is said is said by whoever has taken the turn over"
        dead.may_speak.set()
        await _until_fenced(scene)
        assert await scene.answers() == ["from the living"], "a turn that was taken over is answered once"


async def _until_fenced(scene: Scene) -> None:
    for _ in range(100):
        if await scene.fenced():
            return
        await settled()
    raise AssertionError("who was taken for dead and speaks all the same is fenced, and the audit says so")


async def check_journal(make: Make) -> None:
    """What a call came to under an owner that died is read from the journal by the next, and not made again."""
    async with _scene(make) as scene:
        made: list[int] = []

        async def count(start: int) -> str:
            made.append(start)
            return "seven"

        dead, living = Mind(calls("count", {"start": 1}), says("from the dead")), Mind(says("from the living"))
        living.may_speak.set()
        await scene.ask(await scene.hub(dead, clock=ManualClock(), tools=[count]), dead)
        await scene.hub(living, tools=[count])
        said = await scene.answered("a turn of a hub that died is taken over by another, and finished")
        assert said == ["from the living"], "what is said is said by whoever has taken the turn over"
        assert made == [1], "a call that had finished under an owner that died is not made again"
        assert len(living.requests) == 1, "a model that had answered an owner that died is not asked again"
        told = [message.text for message in living.requests[0].messages]
        assert "seven" in told, "the next owner goes on with what the calls of the one before came to"


async def check_living_owner(make: Make) -> None:
    """Nobody takes over from an owner that lives, however long its turn takes."""
    async with _scene(make) as scene:
        slow, eager = Mind(says("at last")), Mind(says("me first"))
        eager.may_speak.set()
        await scene.ask(await scene.hub(slow), slow)
        await scene.hub(eager)
        await scene.pass_time(LONG)
        assert not eager.requests, "no turn is taken over from an owner that lives, however long it takes"
        slow.may_speak.set()
        said = await scene.answered("a turn that takes long is finished by its owner")
        assert said == ["at last"], "a turn that takes long is answered once, by its owner"
        assert not await scene.fenced(), "an owner that lives is not fenced"


async def check_handed_over(make: Make) -> None:
    """A hub that closes puts its turns back, and who comes next need not wait for a lease to run out."""
    async with _scene(make) as scene:
        first, second = Mind(says("from the first")), Mind(says("from the second"))
        second.may_speak.set()
        hub = await scene.hub(first)
        await scene.ask(hub, first)
        await hub.close()
        await scene.hub(second)
        await until(lambda: bool(second.requests), "a turn that a hub put back when it closed is taken up at once")
        said = await scene.answered("a turn that a hub put back when it closed is finished by the next")
        assert said == ["from the second"], "a hub that was closed says nothing more"


async def check_lost_lease(make: Make) -> None:
    """An owner that could not renew its lease, and whom nobody has replaced, goes on when it can."""
    async with _scene(make) as scene:
        mind = Mind(says("after all"))
        await scene.ask(await scene.hub(mind), mind)
        scene.store.without_leases = True
        await scene.pass_time(10)
        scene.store.without_leases = False
        mind.may_speak.set()
        said = await scene.answered("a turn whose owner lost its lease, and that nobody took over, is finished by it")
        assert said == ["after all"], "a turn whose owner lost its lease is answered once"


TAKEOVER_CHECKS: tuple[Callable[[Make], Awaitable[None]], ...] = (
    check_takeover,
    check_journal,
    check_living_owner,
    check_handed_over,
    check_lost_lease,
)
