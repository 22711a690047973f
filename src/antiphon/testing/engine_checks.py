"""Conformance checks for any engine.

    async def test_my_engine():
        await check_engine(lambda store, clock: MyEngine(store, clock, grace=0.05))

Rule 1: each check makes an engine of its own and stops it again; it can be run any number of times, and alone.
Rule 2: a check that fails says in a sentence which promise is broken.
Rule 3: time is a clock that the check moves. Only a promise that is never kept, and the grace of an engine, take real
        time: give it a short one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from antiphon.core.envelope import add_seconds
from antiphon.engines.engine import Attempt, JobRef
from antiphon.store.memory_store import MemoryStore
from antiphon.testing.manual_clock import ManualClock, finish_soon, let_tasks_run, wait_until
from antiphon.testing.takeover_checks import TAKEOVER_CHECKS, MakeEngine

MANY_CHANNELS = 50
PAST_RETRIES_SECONDS = 60
"""Seconds after which every retry has been made."""


class EngineFixture:
    """An engine, and a handler that records its attempts and runs `act` for each."""

    def __init__(self, make: MakeEngine) -> None:
        self.clock = ManualClock()
        self.engine = make(MemoryStore(clock=self.clock), self.clock)
        self.attempts: list[Attempt] = []
        """All attempts, in order."""
        self.inside: list[Attempt] = []
        """The attempts in progress."""
        self.cut: list[JobRef] = []
        """The jobs whose attempt was cancelled."""
        self.act: Callable[[Attempt], Awaitable[None]] = self.finish
        """What the handler does."""
        self.gates: dict[str, asyncio.Event] = {}

    async def handler(self, attempt: Attempt) -> None:
        """Record an attempt, and run `act`."""
        self.attempts.append(attempt)
        self.inside.append(attempt)
        try:
            await self.act(attempt)
        except asyncio.CancelledError:
            self.cut.append(attempt.job)
            raise
        finally:
            self.inside.remove(attempt)

    async def finish(self, attempt: Attempt) -> None:
        """Return at once."""

    async def hold(self, attempt: Attempt) -> None:
        """Wait for `let_go`."""
        await self.gates.setdefault(attempt.job.job_id, asyncio.Event()).wait()

    def let_go(self, job: JobRef) -> None:
        self.gates.setdefault(job.job_id, asyncio.Event()).set()

    def again_in(self, seconds: float) -> None:
        """Let the next attempt ask for one more after so many seconds."""

        async def ask(attempt: Attempt) -> None:
            self.act = self.finish
            attempt.again = add_seconds(self.clock.now(), seconds)

        self.act = ask

    def times(self, job: JobRef) -> int:
        """How often a job was attempted."""
        return sum(attempt.job == job for attempt in self.attempts)

    async def attempted(self, job: JobRef, times: int, promise: str) -> None:
        """Wait until a job was attempted so often, and check that it is not attempted more often."""
        await wait_until(lambda: self.times(job) >= times and not self.is_inside(job), promise)
        await let_tasks_run()
        assert self.times(job) == times, f"{promise}; it was attempted {self.times(job)} times instead of {times}"

    async def begun(self, *jobs: JobRef, promise: str = "a job that is submitted is attempted") -> None:
        """Wait until all of these are being attempted."""
        await wait_until(lambda: all(self.is_inside(job) for job in jobs), promise)

    def is_inside(self, job: JobRef) -> bool:
        return any(attempt.job == job for attempt in self.inside)


@asynccontextmanager
async def _engine_fixture(make: MakeEngine) -> AsyncIterator[EngineFixture]:
    stage = EngineFixture(make)
    await stage.engine.serve(stage.handler)
    try:
        yield stage
    finally:
        stage.act = stage.finish
        for attempt in stage.inside:
            stage.let_go(attempt.job)
        await stage.engine.stop()


def _job_ref(number: int = 1, *, channel: str = "one", speaker: str = "bob") -> JobRef:
    return JobRef(channel, speaker, f"{number}/{speaker}")


async def check_attempted(make: MakeEngine) -> None:
    """A job that is submitted is attempted, once and unchanged, by an owner with a name."""
    async with _engine_fixture(make) as stage:
        await stage.engine.submit(_job_ref())
        await stage.attempted(_job_ref(), 1, "a job that is submitted is attempted once")
        assert stage.attempts[0].job == _job_ref(), "an attempt has the job that was submitted"
        assert stage.attempts[0].owner, "an attempt has an owner, by whose name others know whether it is alive"


async def check_submitted_again(make: MakeEngine) -> None:
    """Submitting a job that waits or runs changes nothing; one that was attempted may come again."""
    async with _engine_fixture(make) as stage:
        stage.act = stage.hold
        running, waiting = _job_ref(1), _job_ref(2)
        for job in (running, waiting, running, waiting, running):
            await stage.engine.submit(job)
        await stage.begun(running)
        stage.let_go(running)
        stage.let_go(waiting)
        await stage.attempted(waiting, 1, "submitting a job again while it waits changes nothing")
        await stage.attempted(running, 1, "submitting a job again while it runs changes nothing")
        await stage.engine.submit(running)
        await stage.attempted(running, 2, "a job that was attempted may be submitted again")


async def check_one_at_a_time(make: MakeEngine) -> None:
    """A speaker takes one turn at a time in a channel, in the order in which they were submitted."""
    async with _engine_fixture(make) as stage:
        stage.act = stage.hold
        jobs = [_job_ref(number) for number in (3, 1, 2)]
        for job in jobs:
            await stage.engine.submit(job)
        for job in jobs:
            await stage.begun(job, promise="the turns of one speaker in a channel are taken in order of submission")
            await let_tasks_run()
            assert len(stage.inside) == 1, "one speaker takes one turn at a time in a channel"
            stage.let_go(job)


async def check_many_at_once(make: MakeEngine) -> None:
    """Channels do not wait for each other, nor do the speakers of one channel."""
    async with _engine_fixture(make) as stage:
        stage.act = stage.hold
        jobs = [_job_ref(channel=f"channel {number}") for number in range(MANY_CHANNELS)]
        jobs += [_job_ref(speaker="ann"), _job_ref(speaker="bob")]
        for job in jobs:
            await stage.engine.submit(job)
        await stage.begun(
            *jobs, promise=f"{MANY_CHANNELS} channels, and two speakers of one channel, are served at once"
        )
        assert {attempt.owner for attempt in stage.attempts} == {stage.attempts[0].owner}, "an engine has one name"


async def check_trouble(make: MakeEngine) -> None:
    """A handler that raises harms no other job, and its own is attempted again when some time has passed."""
    async with _engine_fixture(make) as stage:
        bad, good, next_one = _job_ref(), _job_ref(channel="two"), _job_ref(2)

        async def fail_once(attempt: Attempt) -> None:
            if attempt.job == bad and stage.times(bad) == 1:
                raise RuntimeError("this job ends badly, as the check wants it")

        stage.act = fail_once
        for job in (bad, good, next_one):
            await stage.engine.submit(job)
        await stage.attempted(good, 1, "a handler that raises harms no job of another channel")
        await stage.attempted(next_one, 1, "a handler that raises does not hold up its speaker's next turn")
        await stage.attempted(bad, 1, "a job that ended badly is not attempted again before any time has passed")
        stage.clock.advance(PAST_RETRIES_SECONDS)
        await stage.attempted(bad, 2, "a job that ended badly is attempted again later")


async def check_again(make: MakeEngine) -> None:
    """A job that asks to be attempted again is, when the clock gets there and not before."""
    async with _engine_fixture(make) as stage:
        stage.again_in(10)
        await stage.engine.submit(_job_ref())
        await stage.attempted(_job_ref(), 1, "a job that asks for another attempt gets it when its time has come")
        await stage.engine.submit(_job_ref())
        await stage.attempted(_job_ref(), 1, "submitting a job again while it rests changes nothing")
        stage.clock.advance(9.9)
        await stage.attempted(
            _job_ref(), 1, "a job that asks for another attempt does not get it before its time has come"
        )
        stage.clock.advance(0.1)
        await stage.attempted(_job_ref(), 2, "a job that asks for another attempt gets it when its time has come")
        stage.clock.advance(PAST_RETRIES_SECONDS)
        await stage.attempted(_job_ref(), 2, "a job that asks for one more attempt gets one")


async def check_wake(make: MakeEngine) -> None:
    """A job that rests can be brought forward, to now or to another instant; an unknown one is ignored."""
    async with _engine_fixture(make) as stage:
        await stage.engine.wake("one/99/nobody")
        now_one, later_one = _job_ref(), _job_ref(channel="two")
        for job in (now_one, later_one):
            stage.again_in(1000)
            await stage.engine.submit(job)
            await stage.attempted(job, 1, "a job that is submitted is attempted once")
        await stage.engine.wake(now_one.job_id)
        await stage.attempted(now_one, 2, "a job that is woken is attempted at once")
        await stage.engine.wake(later_one.job_id, at=add_seconds(stage.clock.now(), 5))
        stage.clock.advance(4.9)
        await stage.attempted(later_one, 1, "a job that is to be woken at an instant is not attempted before it")
        stage.clock.advance(0.1)
        await stage.attempted(later_one, 2, "a job that is to be woken at an instant is attempted then")


async def check_cancel_running(make: MakeEngine) -> None:
    """Cancelling stops a running attempt at once, without a retry; a job that is submitted again is attempted again."""
    async with _engine_fixture(make) as stage:
        cleared = asyncio.Event()

        async def clear_up(attempt: Attempt) -> None:
            try:
                await stage.hold(attempt)
            finally:
                await cleared.wait()

        stage.act = clear_up
        await stage.engine.submit(_job_ref())
        await stage.begun(_job_ref())
        await stage.engine.cancel(_job_ref().job_id, "the check wants it")
        stage.act = stage.finish
        await stage.engine.submit(_job_ref())
        cleared.set()
        await wait_until(lambda: stage.cut == [_job_ref()], "cancelling a job stops the attempt that runs")
        await stage.attempted(
            _job_ref(), 2, "a job submitted while its cancelled attempt clears up is attempted after it"
        )
        stage.act = stage.hold
        await stage.engine.submit(_job_ref())
        await stage.begun(_job_ref())
        await stage.engine.cancel(_job_ref().job_id, "the check wants it")
        await wait_until(lambda: not stage.inside, "cancelling a job stops the attempt that runs")
        stage.clock.advance(PAST_RETRIES_SECONDS)
        await stage.attempted(_job_ref(), 3, "a job that was cancelled is not attempted again by itself")


async def check_cancel_idle(make: MakeEngine) -> None:
    """Cancelling forgets a job that waits for its turn, and one that waits for its time."""
    async with _engine_fixture(make) as stage:
        await stage.engine.cancel("one/99/nobody", "nobody knows it")
        stage.again_in(10)
        resting, running, waiting = _job_ref(), _job_ref(2), _job_ref(3)
        await stage.engine.submit(resting)
        await stage.attempted(resting, 1, "a job that is submitted is attempted once")
        stage.act = stage.hold
        await stage.engine.submit(running)
        await stage.begun(running)
        await stage.engine.submit(waiting)
        for job in (resting, waiting):
            await stage.engine.cancel(job.job_id, "the check wants it")
        stage.let_go(running)
        stage.clock.advance(PAST_RETRIES_SECONDS)
        await stage.attempted(running, 1, "cancelling a job leaves the others alone")
        await stage.attempted(waiting, 0, "a job that was cancelled while it waited is not attempted")
        await stage.attempted(resting, 1, "a job that was cancelled while it rested is not attempted again")


async def check_ending(make: MakeEngine) -> None:
    """An attempt that is ending is not cut off by cancelling, and not made again either."""
    async with _engine_fixture(make) as stage:

        async def end(attempt: Attempt) -> None:
            attempt.ending = True
            await stage.hold(attempt)
            attempt.again = add_seconds(stage.clock.now(), 1)

        stage.act = end
        await stage.engine.submit(_job_ref())
        await stage.begun(_job_ref())
        await stage.engine.cancel(_job_ref().job_id, "the check wants it")
        await let_tasks_run()
        assert stage.is_inside(_job_ref()), "cancelling does not cut off an attempt that is ending"
        stage.let_go(_job_ref())
        await wait_until(lambda: not stage.inside, "an attempt ends when its handler returns")
        assert not stage.cut, "cancelling does not cut off an attempt that is ending"
        stage.clock.advance(PAST_RETRIES_SECONDS)
        await stage.attempted(_job_ref(), 1, "a job that was cancelled while it ended is not attempted again")


async def check_stop(make: MakeEngine) -> None:
    """Stopping lets attempts finish by themselves, cancels those that do not, and leaves nothing running."""
    before = asyncio.all_tasks()
    async with _engine_fixture(make) as stage:
        polite, stubborn, waiting = _job_ref(), _job_ref(channel="two"), _job_ref(2)

        async def act(attempt: Attempt) -> None:
            await (attempt.stopping.wait() if attempt.job == polite else stage.hold(attempt))

        stage.act = act
        for job in (polite, stubborn, waiting):
            await stage.engine.submit(job)
        await stage.begun(polite, stubborn)
        await finish_soon(stage.engine.stop(), "stopping comes to an end, also if a handler does not")
        assert polite not in stage.cut, "stopping tells an attempt first, and lets it finish by itself"
        assert stubborn in stage.cut, "stopping cancels an attempt that does not finish by itself"
        assert not stage.inside, "nothing runs when stopping has come to an end"
        await stage.engine.submit(_job_ref(channel="three"))
        stage.clock.advance(PAST_RETRIES_SECONDS)
        await let_tasks_run()
        assert len(stage.attempts) == 2, "nothing is attempted once an engine was stopped"
    await let_tasks_run()
    assert asyncio.all_tasks() <= before, "an engine that was stopped leaves no task behind"


ENGINE_CHECKS: tuple[Callable[[MakeEngine], Awaitable[None]], ...] = (
    check_attempted,
    check_submitted_again,
    check_one_at_a_time,
    check_many_at_once,
    check_trouble,
    check_again,
    check_wake,
    check_cancel_running,
    check_cancel_idle,
    check_ending,
    check_stop,
    *TAKEOVER_CHECKS,
)


async def check_engine(make: MakeEngine) -> None:
    """Run every check. `make` is called for each, with a store and a clock of its own."""
    for check in ENGINE_CHECKS:
        await check(make)
