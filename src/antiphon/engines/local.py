"""The engine inside the process: one asyncio task for each job that runs, and one lease that shows it is alive.

Rule 1: a speaker takes one turn at a time in a channel; everything else runs at once.
Rule 2: the engine keeps no list of what is owed. A job is forgotten when it was attempted; the log remembers.
Rule 3: a job that fails stops no other.
Rule 4: an owner has one lease, however many turns it runs, and keeps it only while it runs any.
Rule 5: a lease is a hint. An owner that loses it stops; one that does not notice is fenced by the log.
Rule 6: after the clock was set, no owner is taken for dead before it has had the time to renew its lease.
Rule 7: with an exclusive store no lease is kept: earlier owners are dead by definition.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from math import inf

from antiphon.core.envelope import NEVER, Instant, add_seconds
from antiphon.core.errors import StoreError, StoreGone, UsageError
from antiphon.core.text import describe, describe_error
from antiphon.engines.engine import Attempt, Handler, JobRef, TurnKey
from antiphon.engines.user_code import abandoned_tasks, end_abandoned_tasks
from antiphon.hub.clock import Clock, TimeOrderedIds, Timer, TimerQueue, steady_now
from antiphon.store.protocol import Lease, Store

logger = logging.getLogger("antiphon.engine")

LEASE_SECONDS = 2.0
"""The default duration of a lease."""
RENEWALS_PER_LEASE = 3
"""How often a lease is renewed before it would run out."""
LEASE_CLOCK_TOLERANCE = 1 / (2 * RENEWALS_PER_LEASE)
"""By how much of a lease a clock must have been set for that to matter here."""


class LeaseKeeper:
    """Keeps an owner's lease, and checks those of others."""

    def __init__(
        self, store: Store, clock: Clock, owner: str, *, busy: Callable[[], bool], lost: Callable[[], None]
    ) -> None:
        self.owner = owner
        self.seconds = LEASE_SECONDS
        """How long a lease lasts that is taken or renewed from now on."""
        self._store, self._clock = store, clock
        self._busy, self._lost = busy, lost
        self._lease: Lease | None = None
        self._held_until: Instant = NEVER
        """When the lease ends, on the steady clock."""
        self._drift = clock.drift()
        self._distrust_until: Instant = NEVER
        """Until when, on the steady clock, leases of others may be older than the last setting of the clock."""
        self._acquiring = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    @property
    def shared(self) -> bool:
        """Whether others may run turns of the same store."""
        return self._store.caps.many_hubs

    async def acquire(self) -> bool:
        """Have the lease; False if another owner has taken this one for dead."""
        if not self.shared:
            return True
        async with self._acquiring:
            if self._task is None and await self._renew():
                self._task = asyncio.create_task(self._keep_renewing(), name=f"lease of {self.owner}")
            return self._task is not None

    async def release(self) -> None:
        """Give the lease back: nothing is run any more."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await self._release_lease()

    async def is_expired(self, other: str) -> bool:
        """Whether this owner's lease has run out, or was given back."""
        if not self.shared or other == self.owner:
            return True
        if self._clock_was_set():
            return False
        return await self._store.lease(_lease_name(other), self.owner, self.seconds) is not None

    def _clock_was_set(self) -> bool:
        """Whether the clock was set so recently that a living owner may not have renewed its lease yet."""
        drift, now = self._clock.drift(), steady_now(self._clock)
        if abs(drift - self._drift) > LEASE_CLOCK_TOLERANCE * self.seconds:
            self._drift, self._distrust_until = drift, add_seconds(now, self.seconds)
        return now < self._distrust_until

    async def _keep_renewing(self) -> None:
        never = asyncio.Event()
        while True:
            await self._clock.wait(never, add_seconds(self._clock.now(), self.seconds / RENEWALS_PER_LEASE))
            if not self._busy() and await self._release_if_idle():
                return
            if not await self._renew_in_time():
                self._task, self._lease = None, None
                logger.warning("%s lost its lease; other owners may take over its turns", self.owner)
                self._lost()
                return

    async def _release_if_idle(self) -> bool:
        """Give the lease back, unless it is needed again. It is not acquired anew meanwhile."""
        async with self._acquiring:
            if self._busy():
                return False
            self._task = None
            await self._release_lease()
            return True

    async def _release_lease(self) -> None:
        lease, self._lease = self._lease, None
        if lease is None:
            return
        try:
            await self._store.release(lease)
        except StoreError as error:
            logger.warning("a lease could not be given back; it ends by itself: %s", error)

    async def _renew_in_time(self) -> bool:
        """Renew; what the store cannot do now may be done later, as long as the lease lasts."""
        try:
            return await self._renew()
        except StoreError as error:
            logger.warning("the lease could not be renewed yet: %s", error)
            return steady_now(self._clock) < self._held_until

    async def _renew(self) -> bool:
        """Take the lease or renew it. Another epoch says that another owner had it meanwhile."""
        until = add_seconds(steady_now(self._clock), self.seconds)
        lease = await self._store.lease(_lease_name(self.owner), self.owner, self.seconds)
        if lease is None or (self._lease is not None and lease.epoch != self._lease.epoch):
            return False
        self._lease, self._held_until = lease, until
        return True


def _lease_name(owner: str) -> str:
    return f"engine:{owner}"


JOB_RETRY_SECONDS = 1.0
"""After how many seconds a job that failed is tried again."""
STOP_GRACE_SECONDS = 5.0
"""How many seconds a call in progress is given when the engine stops."""

STOP_POLL_SECONDS = 0.05
WAITING_POLLS_TO_STOP = 3
"""How often, and how many times in a row, a stopping engine looks whether its attempts only wait for each other."""

CANCEL_TIMEOUT_SECONDS = 5.0
"""How many seconds cancelled attempts may take to clean up, before they are left behind."""


class LocalEngine:
    """Runs jobs as tasks of the running event loop."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        owner: str = "",
        grace: float = STOP_GRACE_SECONDS,
        lease: float = LEASE_SECONDS,
    ) -> None:
        """`grace` and `lease` are seconds: what a call in progress is given at the end, and how long a lease lasts.

        Another process takes a turn over when the lease of its owner has run out.
        """
        if not isinstance(lease, int | float) or isinstance(lease, bool) or not 0 < lease < inf:
            raise UsageError(f"lease is {describe(lease)}; give seconds above 0, such as {LEASE_SECONDS}")
        self.owner = owner or TimeOrderedIds()()
        self._clock, self._grace = clock, grace
        self._lease_keeper = LeaseKeeper(
            store, clock, self.owner, busy=lambda: bool(self._running), lost=self._on_lease_lost
        )
        self._lease_keeper.seconds = float(lease)
        self._timers = TimerQueue(clock)
        self._handler: Handler | None = None
        self._timer_task: asyncio.Task[None] | None = None
        self._known: dict[str, JobRef] = {}
        """Every job that waits, runs or rests."""
        self._waiting: dict[TurnKey, deque[JobRef]] = {}
        self._running: dict[TurnKey, tuple[Attempt, asyncio.Task[None]]] = {}
        self._delayed: dict[str, tuple[JobRef, Timer]] = {}
        """Jobs that are tried again when their time has come."""
        self._cancelled: set[Attempt] = set()
        """Attempts that are still clearing up. Their jobs are forgotten, and may have been submitted anew."""
        self._abandoned: set[asyncio.Task[None]] = set()
        """User code that ignores its cancellation."""
        self._stopping = False

    async def serve(self, handler: Handler) -> None:
        """Take jobs from now on."""
        self._handler = handler
        self._timer_task = asyncio.create_task(self._timers.run(), name="engine alarms")

    @property
    def busy(self) -> int:
        """How many jobs run now."""
        return len(self._running)

    async def submit(self, job: JobRef) -> None:
        """Have a job attempted, as soon as its speaker has no other turn in this channel."""
        if not self._stopping and job.job_id not in self._known:
            self._known[job.job_id] = job
            self._enqueue(job)

    async def wake(self, job_id: str, *, at: Instant | None = None) -> None:
        """Attempt a resting job now, or at this instant."""
        resting = self._delayed.pop(job_id, None)
        if resting is None:
            return
        job, timer = resting
        timer.cancel()
        if at is None:
            self._enqueue(job)
        else:
            self._delay_job(job, at)

    async def cancel(self, job_id: str, reason: str) -> None:
        """Stop attempting a job, at once."""
        job = self._known.pop(job_id, None)
        if job is None:
            return
        lane = job.channel_id, job.speaker
        attempt, task = self._running.get(lane, (None, None))
        resting = self._delayed.pop(job_id, None)
        if resting is not None:
            resting[1].cancel()
        elif job in self._waiting.get(lane, ()):
            self._waiting[lane].remove(job)
        elif attempt is not None and task is not None:
            self._cancelled.add(attempt)
            if not attempt.ending:
                logger.info("job %s is cancelled: %s", job_id, reason)
                task.cancel(reason)

    async def stop(self) -> None:
        """Let calls in progress finish for a moment, stop the rest, and be idle."""
        self._stopping = True
        self._waiting.clear()
        self._known.clear()
        for _, timer in self._delayed.values():
            timer.cancel()
        self._delayed.clear()
        tasks = [task for _, task in self._running.values()]
        for attempt, _ in self._running.values():
            attempt.stopping.set()
        await self._wait_for_calls()
        for task in tasks:
            task.cancel("the engine stops")
        if self._timer_task is not None:
            tasks.append(self._timer_task)
            self._timer_task.cancel()
        if tasks:
            _, left = await asyncio.wait(tasks, timeout=CANCEL_TIMEOUT_SECONDS)
            for task in left:
                logger.error("%s does not stop; it is left behind", task.get_name())
        await end_abandoned_tasks(self._abandoned)
        await self._lease_keeper.release()

    async def _wait_for_calls(self) -> None:
        """Give calls in progress the grace; but not to attempts that only wait for others of these to go on."""
        loop = asyncio.get_running_loop()
        until, looks = loop.time() + self._grace, 0
        while self._running and looks < WAITING_POLLS_TO_STOP and (left := until - loop.time()) > 0:
            # An attempt whose task has just ended is about to go on: it takes more than one look to be sure.
            looks = looks + 1 if all(attempt.waits_for_tasks() for attempt, _ in self._running.values()) else 0
            tasks = [task for _, task in self._running.values()]
            await asyncio.wait(tasks, timeout=min(left, STOP_POLL_SECONDS), return_when=asyncio.FIRST_COMPLETED)

    def _start(self, lane: TurnKey) -> None:
        if lane in self._running or self._handler is None:
            return
        line = self._waiting.get(lane)
        job = line.popleft() if line else None
        if not line:
            self._waiting.pop(lane, None)
        if job is None:
            return
        attempt = Attempt(job, self.owner, self._lease_keeper.is_expired)
        attempt.patience = self._lease_keeper.seconds
        task = asyncio.create_task(self._attempt(self._handler, attempt), name=f"turn {job.job_id}")
        self._running[lane] = attempt, task
        task.add_done_callback(lambda _: self._ended(lane, attempt))  # for one that was cancelled before it began

    async def _attempt(self, handler: Handler, attempt: Attempt) -> None:
        abandoned_tasks.set(self._abandoned)
        try:
            await self._run_handler(handler, attempt)
        except BaseException:
            if attempt not in self._cancelled and attempt.again is None:  # it was not cancelled, so it is still owed
                attempt.again = add_seconds(self._clock.now(), JOB_RETRY_SECONDS)
            raise
        finally:  # in the same step as the handler's last, so that no submission falls in between
            self._ended((attempt.job.channel_id, attempt.job.speaker), attempt)

    async def _run_handler(self, handler: Handler, attempt: Attempt) -> None:
        try:
            if await self._lease_keeper.acquire():
                await handler(attempt)
            else:
                attempt.again = add_seconds(self._clock.now(), self._lease_keeper.seconds)
        except StoreGone as error:  # for good: the turn is owed until the store is opened again
            logger.warning("job %s is given up: %s", attempt.job.job_id, error)
        except StoreError as error:
            attempt.again = add_seconds(self._clock.now(), JOB_RETRY_SECONDS)
            logger.warning("job %s waits for the store: %s", attempt.job.job_id, error)
        except Exception as error:  # one job's failure, of any kind, stops no other
            attempt.again = add_seconds(self._clock.now(), JOB_RETRY_SECONDS)
            logger.error(
                "job %s ended badly and is tried again: %s", attempt.job.job_id, describe_error(error), exc_info=error
            )

    def _ended(self, lane: TurnKey, attempt: Attempt) -> None:
        if self._running.get(lane, (None,))[0] is not attempt:
            return
        del self._running[lane]
        if attempt in self._cancelled:
            self._cancelled.remove(attempt)
        elif attempt.again is not None and attempt.job.job_id in self._known:
            self._delay_job(attempt.job, attempt.again)
        else:
            self._known.pop(attempt.job.job_id, None)
        self._start(lane)

    def _enqueue(self, job: JobRef) -> None:
        lane = job.channel_id, job.speaker
        self._waiting.setdefault(lane, deque()).append(job)
        self._start(lane)

    def _delay_job(self, job: JobRef, at: Instant) -> None:
        def ring() -> None:
            if self._delayed.pop(job.job_id, None) is not None:
                self._enqueue(job)

        self._delayed[job.job_id] = job, self._timers.at(at, ring)

    def _on_lease_lost(self) -> None:
        """Stop everything. Jobs that no other owner takes over are tried again."""
        for attempt, task in self._running.values():
            attempt.lost.set()
            attempt.again = add_seconds(self._clock.now(), self._lease_keeper.seconds)
            if not attempt.ending:
                task.cancel("the lease was lost")
