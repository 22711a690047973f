"""The lease by which others know that an owner is alive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import pytest

from antiphon.core.errors import StoreUnavailable, UsageError
from antiphon.engines.engine import Attempt, JobRef
from antiphon.engines.local import LEASE_SECONDS, RENEWALS_PER_LEASE, LeaseKeeper, LocalEngine
from antiphon.store.memory_store import MemoryStore
from antiphon.store.protocol import Lease, Store
from antiphon.testing import ManualClock
from antiphon.testing.takeover_checks import SharedStore
from tests.support.waiting import let_others_run

STEP = LEASE_SECONDS / RENEWALS_PER_LEASE


class Watched(SharedStore):
    """A store that several hubs share, with everything about leases noted."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.asked: list[tuple[str, str]] = []
        self.released: list[str] = []
        self.gate: asyncio.Event | None = None
        """Where a release waits, if there is one."""

    async def lease(self, name: str, owner: str, ttl: float) -> Lease | None:
        self.asked.append((name, owner))
        return await super().lease(name, owner, ttl)

    async def release(self, lease: Lease) -> None:
        if self.gate is not None:
            await self.gate.wait()
        if self.without_leases:
            raise StoreUnavailable("no leases can be given back")
        self.released.append(lease.name)
        await self._store.release(lease)


class Owner:
    """Somebody who runs turns, or does not."""

    def __init__(self, store: object, clock: ManualClock, name: str) -> None:
        self.busy = True
        self.lost = 0
        self.tenure = LeaseKeeper(cast(Store, store), clock, name, busy=lambda: self.busy, lost=self._note_loss)

    async def hold(self) -> bool:
        """Have the lease, and begin to wait for the time to renew it."""
        held = await self.tenure.acquire()
        await let_others_run()
        return held

    def _note_loss(self) -> None:
        self.lost += 1


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> Watched:
    return Watched(clock)


@asynccontextmanager
async def owner(store: object, clock: ManualClock, name: str = "ann") -> AsyncIterator[Owner]:
    somebody = Owner(store, clock, name)
    try:
        yield somebody
    finally:
        await somebody.tenure.release()


async def steps(clock: ManualClock, count: int) -> None:
    for _ in range(count):
        clock.advance(STEP)
        await let_others_run()


async def test_where_one_hub_owns_the_store_there_are_no_leases(clock: ManualClock) -> None:
    store = MemoryStore(clock=clock)
    async with owner(store, clock) as ann:
        assert not ann.tenure.shared
        assert await ann.hold()
        assert await ann.tenure.is_expired("whoever was here before")
        await steps(clock, 10)
    assert store._leases == {}


async def test_a_lease_is_renewed_while_its_owner_is_busy(clock: ManualClock, store: Watched) -> None:
    async with owner(store, clock) as ann, owner(store, clock, "bob") as bob:
        assert await ann.hold()
        for _ in range(10):
            await steps(clock, 1)
            assert not await bob.tenure.is_expired("ann")
        assert store.asked.count(("engine:ann", "ann")) == 11
        assert ann.lost == 0


async def test_one_lease_does_for_any_number_of_turns(clock: ManualClock, store: Watched) -> None:
    async with owner(store, clock) as ann:
        assert all(await asyncio.gather(*(ann.hold() for _ in range(20))))
        assert store.asked == [("engine:ann", "ann")]


async def test_who_is_not_busy_gives_its_lease_back_and_takes_it_anew(clock: ManualClock, store: Watched) -> None:
    async with owner(store, clock) as ann, owner(store, clock, "bob") as bob:
        await ann.hold()
        ann.busy = False
        await steps(clock, 1)
        assert store.released == ["engine:ann"]
        await steps(clock, 5)
        assert len(store.asked) == 1
        ann.busy = True
        assert await ann.hold()
        assert not await bob.tenure.is_expired("ann")
        assert ann.lost == 0


async def test_who_gave_its_lease_back_is_taken_over_at_once(clock: ManualClock, store: Watched) -> None:
    async with owner(store, clock, "bob") as bob:
        async with owner(store, clock) as ann:
            await ann.hold()
            assert not await bob.tenure.is_expired("ann")
        assert await bob.tenure.is_expired("ann")


async def test_who_never_had_a_lease_and_who_one_is_oneself_are_not_alive(clock: ManualClock, store: Watched) -> None:
    async with owner(store, clock) as ann:
        await ann.hold()
        assert await ann.tenure.is_expired("ann")
        assert await ann.tenure.is_expired("a stranger")


async def test_an_owner_that_died_is_dead_when_its_lease_has_run_out(clock: ManualClock, store: Watched) -> None:
    stopped = ManualClock()
    async with owner(store, stopped) as ann, owner(store, clock, "bob") as bob:
        await ann.hold()
        clock.advance(LEASE_SECONDS - 0.001)
        assert not await bob.tenure.is_expired("ann")
        clock.advance(0.001)
        assert await bob.tenure.is_expired("ann")


async def test_who_was_taken_for_dead_is_told_and_waits_before_it_begins_anew(
    clock: ManualClock, store: Watched
) -> None:
    stopped = ManualClock()
    async with owner(store, stopped) as ann, owner(store, clock, "bob") as bob:
        await ann.hold()
        clock.advance(LEASE_SECONDS)
        assert await bob.tenure.is_expired("ann")
        stopped.advance(LEASE_SECONDS)
        await let_others_run()
        assert ann.lost == 1
        assert not await ann.hold()
        clock.advance(LEASE_SECONDS)
        assert await ann.hold()
        assert not await bob.tenure.is_expired("ann")


async def test_who_was_replaced_and_comes_back_late_is_told(clock: ManualClock, store: Watched) -> None:
    """The other's lease has run out too by then: the epoch tells that there was one."""
    stopped = ManualClock()
    async with owner(store, stopped) as ann, owner(store, clock, "bob") as bob:
        await ann.hold()
        clock.advance(LEASE_SECONDS)
        assert await bob.tenure.is_expired("ann")
        clock.advance(LEASE_SECONDS)
        stopped.advance(LEASE_SECONDS)
        await let_others_run()
        assert ann.lost == 1


async def test_a_store_that_fails_for_a_moment_costs_nothing(clock: ManualClock, store: Watched) -> None:
    async with owner(store, clock) as ann:
        await ann.hold()
        store.without_leases = True
        await steps(clock, RENEWALS_PER_LEASE - 1)
        store.without_leases = False
        await steps(clock, RENEWALS_PER_LEASE * 3)
        assert ann.lost == 0


async def test_a_store_that_fails_for_longer_than_a_lease_costs_it(clock: ManualClock, store: Watched) -> None:
    async with owner(store, clock) as ann:
        await ann.hold()
        store.without_leases = True
        await steps(clock, RENEWALS_PER_LEASE + 1)
        assert ann.lost == 1
        with pytest.raises(StoreUnavailable):
            await ann.hold()
        store.without_leases = False
        assert await ann.hold()


async def test_a_lease_that_cannot_be_given_back_ends_by_itself(clock: ManualClock, store: Watched) -> None:
    async with owner(store, clock, "bob") as bob:
        async with owner(store, clock) as ann:
            await ann.hold()
            store.without_leases = True
        store.without_leases = False
        assert not await bob.tenure.is_expired("ann")
        clock.advance(LEASE_SECONDS)
        assert await bob.tenure.is_expired("ann")


async def test_nobody_takes_a_lease_anew_while_it_is_being_given_back(clock: ManualClock, store: Watched) -> None:
    store.gate = asyncio.Event()
    async with owner(store, clock) as ann, owner(store, clock, "bob") as bob:
        await ann.hold()
        ann.busy = False
        await steps(clock, 1)
        ann.busy = True
        held = asyncio.create_task(ann.hold())
        await let_others_run()
        assert not held.done()
        store.gate.set()
        assert await held
        assert not await bob.tenure.is_expired("ann")


@pytest.mark.parametrize("lease", [0, -1.0, float("inf"), float("nan"), True, "2"])
def test_the_length_of_a_lease_is_checked(lease: object) -> None:
    clock = ManualClock()
    with pytest.raises(UsageError, match=r"lease is .*; give seconds above 0, such as 2.0"):
        LocalEngine(MemoryStore(clock=clock), clock, lease=lease)  # type: ignore[arg-type]


async def test_an_engine_keeps_leases_of_the_length_that_it_is_told() -> None:
    clock, lengths, begun = ManualClock(), list[float](), asyncio.Event()

    class Noting(SharedStore):
        async def lease(self, name: str, owner: str, ttl: float) -> Lease | None:
            lengths.append(ttl)
            return await super().lease(name, owner, ttl)

    async def handler(attempt: Attempt) -> None:
        assert attempt.patience == 30
        begun.set()
        await attempt.stopping.wait()

    engine = LocalEngine(Noting(clock), clock, lease=30, grace=1)
    await engine.serve(handler)
    await engine.submit(JobRef("c", "bob", "1/bob"))
    await begun.wait()
    await let_others_run(5)
    clock.advance(9.9)
    await let_others_run(5)
    assert lengths == [30]
    clock.advance(0.2)
    await let_others_run(5)
    assert lengths == [30, 30]
    await engine.stop()
