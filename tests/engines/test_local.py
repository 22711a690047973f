"""The engine inside the process passes the check for engines, which engines with a fault do not."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import cast

import pytest

from antiphon.core.envelope import Instant
from antiphon.engines.engine import Attempt, Handler, JobRef
from antiphon.engines.local import LocalEngine
from antiphon.hub.clock import Clock
from antiphon.store.memory_store import MemoryStore
from antiphon.store.protocol import Lease, Store
from antiphon.testing import ManualClock, check_engine, manual_clock
from tests.support.waiting import let_others_run

GRACE = 0.05


def local(store: Store, clock: Clock) -> LocalEngine:
    return LocalEngine(store, clock, grace=GRACE)


async def test_the_local_engine_is_an_engine() -> None:
    await check_engine(local)


async def test_the_check_can_be_run_again() -> None:
    await check_engine(local)
    await check_engine(local)


async def test_what_has_ended_or_was_cancelled_leaves_nothing_behind() -> None:
    clock = ManualClock()
    engine = local(MemoryStore(clock=clock), clock)
    gate = asyncio.Event()

    async def handler(attempt: Attempt) -> None:
        await gate.wait()

    await engine.serve(handler)
    jobs = [JobRef(f"channel {number}", "bob", f"{turn}/bob") for number in range(5) for turn in range(3)]
    for job in jobs:
        await engine.submit(job)
    await let_others_run()
    assert engine.busy == 5
    for job in jobs[::2]:
        await engine.cancel(job.job_id, "half of them")
    gate.set()
    async with asyncio.timeout(5):
        while engine.busy:
            await let_others_run(1)
    kept = (engine._known, engine._waiting, engine._running, engine._delayed, engine._cancelled)
    assert [len(each) for each in kept] == [0, 0, 0, 0, 0]
    await engine.stop()


class Faulty(LocalEngine):
    """What every engine below is made of."""

    def __init__(self, store: Store, clock: Clock) -> None:
        super().__init__(store, clock, grace=GRACE)


class Lazy(Faulty):
    async def submit(self, job: JobRef) -> None:
        pass


class Repeating(Faulty):
    """Attempts a job as often as it is submitted."""

    async def submit(self, job: JobRef) -> None:
        self._known[job.job_id] = job
        self._enqueue(job)


class Once(Faulty):
    """Remembers for ever what it was given, and takes it once."""

    def __init__(self, store: Store, clock: Clock) -> None:
        super().__init__(store, clock)
        self._ever: set[str] = set()

    async def submit(self, job: JobRef) -> None:
        if job.job_id not in self._ever:
            self._ever.add(job.job_id)
            await super().submit(job)


class Hasty(Faulty):
    """Runs the turns of one speaker at the same time."""

    def _enqueue(self, job: JobRef) -> None:
        lane = job.channel_id, job.turn_id
        self._waiting.setdefault(lane, deque()).append(job)
        self._start(lane)


class Backwards(Faulty):
    """Takes what was submitted last first."""

    def _start(self, lane: tuple[str, str]) -> None:
        line = self._waiting.get(lane)
        if line and lane not in self._running:
            line.rotate(1)
        super()._start(lane)


class OneByOne(Faulty):
    """Runs one turn at a time, whoever's it is."""

    def _start(self, lane: tuple[str, str]) -> None:
        if not self._running:
            super()._start(lane)


class Fragile(Faulty):
    """Forgets a job that ended badly."""

    async def serve(self, handler: Handler) -> None:
        async def survive(attempt: Attempt) -> None:
            try:
                await handler(attempt)
            except Exception:
                return

        await super().serve(survive)


class Forgetful(Faulty):
    """Forgets that a job wants to be tried again."""

    def _delay_job(self, job: JobRef, at: Instant) -> None:
        self._known.pop(job.job_id)


class Impatient(Faulty):
    """Tries again at once what wants to be tried again later."""

    def _delay_job(self, job: JobRef, at: Instant) -> None:
        asyncio.get_running_loop().call_soon(self._enqueue, job)


class Sleepy(Faulty):
    async def wake(self, job_id: str, *, at: Instant | None = None) -> None:
        pass


class Early(Faulty):
    """Does not wait for the instant at which it is to wake a job."""

    async def wake(self, job_id: str, *, at: Instant | None = None) -> None:
        await super().wake(job_id)


class Deaf(Faulty):
    async def cancel(self, job_id: str, reason: str) -> None:
        pass


class HalfDeaf(Faulty):
    """Cancels only what runs."""

    async def cancel(self, job_id: str, reason: str) -> None:
        if any(attempt.job.job_id == job_id for attempt, _ in self._running.values()):
            await super().cancel(job_id, reason)


class Rude(Faulty):
    """Cancels an attempt that is ending."""

    async def cancel(self, job_id: str, reason: str) -> None:
        for attempt, _ in self._running.values():
            attempt.ending = False
        await super().cancel(job_id, reason)


class Abrupt(Faulty):
    """Cancels everything at once when it stops."""

    async def stop(self) -> None:
        for _, task in self._running.values():
            task.cancel()
        await super().stop()


class Endless(Faulty):
    """Stops nothing."""

    async def stop(self) -> None:
        for attempt, _ in self._running.values():
            attempt.stopping.set()
        await let_others_run(3)


class Zombie(Faulty):
    """Goes on after it was stopped."""

    async def stop(self) -> None:
        await super().stop()
        self._stopping = False


class Greedy(Faulty):
    """Takes everybody else for dead."""

    def __init__(self, store: Store, clock: Clock) -> None:
        super().__init__(store, clock)
        self._lease_keeper.is_expired = nobody_lives  # type: ignore[method-assign]  # the fault


async def nobody_lives(owner: str) -> bool:
    return True


class Timid(Faulty):
    """Takes nobody for dead."""

    def __init__(self, store: Store, clock: Clock) -> None:
        super().__init__(store, clock)
        self._lease_keeper.is_expired = everybody_lives  # type: ignore[method-assign]  # the fault


async def everybody_lives(owner: str) -> bool:
    return False


class LeaseOnce:
    """A store that shows an owner the lease it has, and does not renew it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._held: dict[tuple[str, str], Lease | None] = {}

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    async def lease(self, name: str, owner: str, ttl: float) -> Lease | None:
        if name != f"engine:{owner}":
            return await self._store.lease(name, owner, ttl)
        if (name, owner) not in self._held:
            self._held[name, owner] = await self._store.lease(name, owner, ttl)
        return self._held[name, owner]


def never_renewing(store: Store, clock: Clock) -> LocalEngine:
    return Faulty(cast(Store, LeaseOnce(store)), clock)


class Resigned(Faulty):
    """Gives up for good what it has lost."""

    def _on_lease_lost(self) -> None:
        super()._on_lease_lost()
        for attempt, _ in self._running.values():
            attempt.again = None
            self._cancelled.add(attempt)


@pytest.mark.parametrize(
    ("make", "promise"),
    [
        (Lazy, "a job that is submitted is attempted once"),
        (Repeating, "submitting a job again while it waits changes nothing"),
        (Once, "may be submitted again"),
        (Hasty, "one speaker takes one turn at a time"),
        (Backwards, "in order of submission"),
        (OneByOne, "served at once"),
        (Fragile, "a job that ended badly is attempted again later"),
        (Forgetful, "attempted again later"),
        (Impatient, "before any time has passed"),
        (Sleepy, "woken is attempted at once"),
        (Early, "is not attempted before it"),
        (Deaf, "cancelling a job stops the attempt that runs"),
        (HalfDeaf, "cancelled while it waited"),
        (Rude, "does not cut off an attempt that is ending"),
        (Abrupt, "lets it finish by itself"),
        (Endless, "cancels an attempt that does not finish"),
        (Zombie, "once an engine was stopped"),
        (Greedy, "whose lease has not run out"),
        (Timid, "taken over by another, and finished"),
        (never_renewing, "taken over from an owner that lives"),
        (Resigned, "whose owner lost its lease"),
    ],
)
async def test_an_engine_with_a_fault_fails(
    make: Callable[[Store, Clock], LocalEngine], promise: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manual_clock, "MAX_WAIT_SECONDS", 0.5)
    with pytest.raises(AssertionError, match=promise):
        await check_engine(make)
