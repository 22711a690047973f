"""Conformance checks for an engine when one of several hubs dies, hangs or closes.

A dead process is one whose clock stands still: its turns in progress stay as they are, and it renews no lease.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import cast

import msgspec

from antiphon.agents.call_results import Reply
from antiphon.agents.messages import Request, calls, says
from antiphon.agents.team import Limits
from antiphon.core.envelope import NEVER, Envelope, Instant
from antiphon.core.errors import StoreUnavailable
from antiphon.core.events import EV_TEXT, EV_TURN_FENCED
from antiphon.engines.engine import Engine
from antiphon.hub.clock import Clock
from antiphon.hub.system_channels import AUDIT_CHANNEL
from antiphon.runtime.agent import Agent
from antiphon.runtime.hub import Hub
from antiphon.store.memory_store import MemoryStore
from antiphon.store.protocol import Lease, Store, StoreCaps
from antiphon.testing.manual_clock import ManualClock, let_tasks_run, wait_until

MakeEngine = Callable[[Store, Clock], Engine]

CLOCK_STEP_SECONDS = 0.25
"""By how many seconds the clock moves at a time, so that a lease can be renewed in between."""
LONG_TURN_SECONDS = 120
"""The length of a long turn."""


class SharedStore:
    """A store that several hubs share, and none of them closes."""

    def __init__(self, clock: Clock) -> None:
        self._store = MemoryStore(clock=clock)
        self.leased_until: Instant = NEVER
        """The end of the lease that was granted last."""
        self.without_leases = False
        """Whether leases fail, and nothing else."""

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
        """Does nothing: the other hubs still use the store."""

    async def log(self, channel_id: str) -> list[Envelope]:
        return (await self._store.read(channel_id)).envelopes


class HeldModel:
    """A model with scripted replies that returns the last one only when `may_speak` is set."""

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
        """Whether it was asked for its last reply."""
        return len(self.requests) >= len(self._replies)


class TakeoverFixture:
    """Hubs over one store, and the one channel that they serve."""

    def __init__(self, make: MakeEngine) -> None:
        self.clock = ManualClock()
        self.store = SharedStore(self.clock)
        self._make = make
        self._hubs: list[Hub] = []
        self._minds: list[HeldModel] = []
        self.channel_id = ""

    async def hub(self, mind: HeldModel, *, clock: ManualClock | None = None, tools: Sequence[object] = ()) -> Hub:
        """One more hub, in which the agent is registered, with this model."""
        clock, store = clock or self.clock, cast(Store, self.store)
        hub = await Hub.over(store, clock=clock, engine=self._make(store, clock))
        self._hubs.append(hub)
        self._minds.append(mind)
        await hub.register(Agent("bob", model=mind, tools=tools, limits=Limits(model_seconds=None)))
        return hub

    async def ask(self, hub: Hub, mind: HeldModel) -> None:
        """Send the agent a question, and wait until its model works on the last reply."""
        ann = await hub.register("ann", kind="human")
        channel = await ann.open(target="bob")
        self.channel_id = channel.channel_id
        await channel.send("How much?")
        await wait_until(lambda: mind.thinks, "a turn that an agent owes is run by the hub in which it is registered")

    async def answers(self) -> list[object]:
        """What the agent has said."""
        log = await self.store.log(self.channel_id)
        said = [envelope for envelope in log if envelope.sender_id == "bob" and envelope.event_type == EV_TEXT]
        return [envelope.event_data["text"] for envelope in said]

    async def fenced(self) -> int:
        """How often an owner was fenced that went on with a turn of another."""
        return sum(envelope.event_type == EV_TURN_FENCED for envelope in await self.store.log(AUDIT_CHANNEL))

    async def pass_time(self, seconds: float) -> None:
        """Move the clock step by step, and let all tasks run in between."""
        for _ in range(round(seconds / CLOCK_STEP_SECONDS)):
            self.clock.advance(CLOCK_STEP_SECONDS)
            await let_tasks_run()

    async def answered(self, promise: str) -> list[object]:
        """What the agent says, as soon as it has said it; time passes meanwhile."""
        for _ in range(round(LONG_TURN_SECONDS / CLOCK_STEP_SECONDS)):
            if said := await self.answers():
                return said
            await self.pass_time(CLOCK_STEP_SECONDS)
        raise AssertionError(promise)

    async def close(self) -> None:
        for mind in self._minds:
            mind.may_speak.set()
        for hub in self._hubs:
            await hub.close()


@asynccontextmanager
async def _takeover_fixture(make: MakeEngine) -> AsyncIterator[TakeoverFixture]:
    scene = TakeoverFixture(make)
    try:
        yield scene
    finally:
        await scene.close()


async def check_takeover(make: MakeEngine) -> None:
    """A turn of a dead hub is taken over when its lease has expired and not before; its late result is rejected."""
    async with _takeover_fixture(make) as scene:
        dead, living = HeldModel(says("from the dead")), HeldModel(says("from the living"))
        living.may_speak.set()
        await scene.ask(await scene.hub(dead, clock=ManualClock()), dead)
        ends = scene.store.leased_until
        assert ends > scene.clock.now(), "who runs turns on a store that is shared shows by a lease that it lives"
        await scene.hub(living)
        while scene.clock.now() < ends:
            assert not living.requests, "no turn is taken over from an owner whose lease has not run out"
            await scene.pass_time(CLOCK_STEP_SECONDS)
        said = await scene.answered("a turn of a hub that died is taken over by another, and finished")
        assert said == ["from the living"], "what is said is said by whoever has taken the turn over"
        dead.may_speak.set()
        await _until_fenced(scene)
        assert await scene.answers() == ["from the living"], "a turn that was taken over is answered once"


async def _until_fenced(scene: TakeoverFixture) -> None:
    for _ in range(100):
        if await scene.fenced():
            return
        await let_tasks_run()
    raise AssertionError("who was taken for dead and speaks all the same is fenced, and the audit says so")


async def check_journal(make: MakeEngine) -> None:
    """The result of a call under an owner that died is read from the journal by the next; no call is made again."""
    async with _takeover_fixture(make) as scene:
        made: list[int] = []

        async def count(start: int) -> str:
            made.append(start)
            return "seven"

        dead, living = (
            HeldModel(calls("count", {"start": 1}), says("from the dead")),
            HeldModel(says("from the living")),
        )
        living.may_speak.set()
        await scene.ask(await scene.hub(dead, clock=ManualClock(), tools=[count]), dead)
        await scene.hub(living, tools=[count])
        said = await scene.answered("a turn of a hub that died is taken over by another, and finished")
        assert said == ["from the living"], "what is said is said by whoever has taken the turn over"
        assert made == [1], "a call that had finished under an owner that died is not made again"
        assert len(living.requests) == 1, "a model that had answered an owner that died is not asked again"
        told = [message.text for message in living.requests[0].messages]
        assert "seven" in told, "the next owner goes on with what the calls of the one before came to"


async def check_living_owner(make: MakeEngine) -> None:
    """No turn is taken over from an owner that lives, however long it takes."""
    async with _takeover_fixture(make) as scene:
        slow, eager = HeldModel(says("at last")), HeldModel(says("me first"))
        eager.may_speak.set()
        await scene.ask(await scene.hub(slow), slow)
        await scene.hub(eager)
        await scene.pass_time(LONG_TURN_SECONDS)
        assert not eager.requests, "no turn is taken over from an owner that lives, however long it takes"
        slow.may_speak.set()
        said = await scene.answered("a turn that takes long is finished by its owner")
        assert said == ["at last"], "a turn that takes long is answered once, by its owner"
        assert not await scene.fenced(), "an owner that lives is not fenced"


async def check_handed_over(make: MakeEngine) -> None:
    """A hub that closes puts its turns back: the next hub need not wait for a lease to expire."""
    async with _takeover_fixture(make) as scene:
        first, second = HeldModel(says("from the first")), HeldModel(says("from the second"))
        second.may_speak.set()
        hub = await scene.hub(first)
        await scene.ask(hub, first)
        await hub.close()
        await scene.hub(second)
        await wait_until(lambda: bool(second.requests), "a turn that a hub put back when it closed is taken up at once")
        said = await scene.answered("a turn that a hub put back when it closed is finished by the next")
        assert said == ["from the second"], "a hub that was closed says nothing more"


async def check_lost_lease(make: MakeEngine) -> None:
    """An owner that could not renew its lease, and was not replaced, resumes when it can."""
    async with _takeover_fixture(make) as scene:
        mind = HeldModel(says("after all"))
        await scene.ask(await scene.hub(mind), mind)
        scene.store.without_leases = True
        await scene.pass_time(10)
        scene.store.without_leases = False
        mind.may_speak.set()
        said = await scene.answered("a turn whose owner lost its lease, and that nobody took over, is finished by it")
        assert said == ["after all"], "a turn whose owner lost its lease is answered once"


TAKEOVER_CHECKS: tuple[Callable[[MakeEngine], Awaitable[None]], ...] = (
    check_takeover,
    check_journal,
    check_living_owner,
    check_handed_over,
    check_lost_lease,
)
