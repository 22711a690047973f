"""The engine inside the process: one asyncio task for each job that runs.

Rule 1: a speaker takes one turn at a time in a channel; everything else runs at once.
Rule 2: it keeps no list of what is owed. What is submitted is forgotten when it was attempted; the log remembers.
Rule 3: a job that ends badly ends alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from math import inf

from antiphon.agents.isolation import end_left_behind, left_running
from antiphon.agents.nesting import Lane
from antiphon.core.errors import StoreError, StoreGone, UsageError
from antiphon.core.instants import Instant, after
from antiphon.core.words import shown, told
from antiphon.engines.alarms import Alarm, Alarms
from antiphon.engines.protocol import Attempt, Handler, JobRef
from antiphon.engines.tenure import SECONDS, Tenure
from antiphon.hub.clock import Clock
from antiphon.hub.ids import TimeOrderedIds
from antiphon.store.protocol import Store

log = logging.getLogger("antiphon.engine")

RETRY = 1.0
"""After how many seconds a job is tried again that ended badly."""
GRACE = 5.0
"""How many seconds a call that is under way is given when the engine stops."""

LOOK_EVERY = 0.05
LOOKS = 3
"""How often, and how many times in a row, a stopping engine looks whether its attempts only wait for each other."""

CLEARING_UP = 5.0
"""How many seconds whatever was cancelled may take to clear up, before it is left behind."""


class LocalEngine:
    """Runs jobs as tasks of the running event loop."""

    def __init__(
        self, store: Store, clock: Clock, *, owner: str = "", grace: float = GRACE, lease: float = SECONDS
    ) -> None:
        """`grace` and `lease` are seconds: what a call under way is given at the end, and how long a lease lasts.

        Another process takes a turn over when the lease of its owner has run out.
        """
        if not isinstance(lease, int | float) or isinstance(lease, bool) or not 0 < lease < inf:
            raise UsageError(f"lease is {shown(lease)}; give seconds above 0, such as {SECONDS}")
        self.owner = owner or TimeOrderedIds()()
        self._clock, self._grace = clock, grace
        self._tenure = Tenure(store, clock, self.owner, busy=lambda: bool(self._running), lost=self._taken_for_dead)
        self._tenure.seconds = float(lease)
        self._alarms = Alarms(clock)
        self._handler: Handler | None = None
        self._ringing: asyncio.Task[None] | None = None
        self._known: dict[str, JobRef] = {}
        """Every job that waits, runs or rests."""
        self._waiting: dict[Lane, deque[JobRef]] = {}
        self._running: dict[Lane, tuple[Attempt, asyncio.Task[None]]] = {}
        self._resting: dict[str, tuple[JobRef, Alarm]] = {}
        """Jobs that are tried again when their time has come."""
        self._cancelled: set[Attempt] = set()
        """Attempts that are still clearing up. Their jobs are forgotten, and may have been submitted anew."""
        self._left: set[asyncio.Task[None]] = set()
        """User code that ignores its cancellation."""
        self._stopping = False

    async def serve(self, handler: Handler) -> None:
        """Take jobs from now on."""
        self._handler = handler
        self._ringing = asyncio.create_task(self._alarms.run(), name="engine alarms")

    @property
    def busy(self) -> int:
        """How many jobs run now."""
        return len(self._running)

    async def submit(self, job: JobRef) -> None:
        """Have a job attempted, as soon as its speaker has no other turn in this channel."""
        if not self._stopping and job.job_id not in self._known:
            self._known[job.job_id] = job
            self._line_up(job)

    async def wake(self, job_id: str, *, at: Instant | None = None) -> None:
        """Attempt a resting job now, or at this instant."""
        resting = self._resting.pop(job_id, None)
        if resting is None:
            return
        job, alarm = resting
        alarm.cancel()
        if at is None:
            self._line_up(job)
        else:
            self._rest(job, at)

    async def cancel(self, job_id: str, reason: str) -> None:
        """Stop attempting a job, at once."""
        job = self._known.pop(job_id, None)
        if job is None:
            return
        lane = job.channel_id, job.speaker
        attempt, task = self._running.get(lane, (None, None))
        resting = self._resting.pop(job_id, None)
        if resting is not None:
            resting[1].cancel()
        elif job in self._waiting.get(lane, ()):
            self._waiting[lane].remove(job)
        elif attempt is not None and task is not None:
            self._cancelled.add(attempt)
            if not attempt.ending:
                log.info("job %s is cancelled: %s", job_id, reason)
                task.cancel(reason)

    async def stop(self) -> None:
        """Let calls under way finish for a moment, stop the rest, and be idle."""
        self._stopping = True
        self._waiting.clear()
        self._known.clear()
        for _, alarm in self._resting.values():
            alarm.cancel()
        self._resting.clear()
        tasks = [task for _, task in self._running.values()]
        for attempt, _ in self._running.values():
            attempt.stopping.set()
        await self._let_finish()
        for task in tasks:
            task.cancel("the engine stops")
        if self._ringing is not None:
            tasks.append(self._ringing)
            self._ringing.cancel()
        if tasks:
            _, left = await asyncio.wait(tasks, timeout=CLEARING_UP)
            for task in left:
                log.error("%s does not stop; it is left behind", task.get_name())
        await end_left_behind(self._left)
        await self._tenure.let_go()

    async def _let_finish(self) -> None:
        """Give calls in progress the grace; but not to attempts that only wait for others of these to go on."""
        loop = asyncio.get_running_loop()
        until, looks = loop.time() + self._grace, 0
        while self._running and looks < LOOKS and (left := until - loop.time()) > 0:
            # An attempt whose task has just ended is about to go on: it takes more than one look to be sure.
            looks = looks + 1 if all(attempt.waits_for_tasks() for attempt, _ in self._running.values()) else 0
            tasks = [task for _, task in self._running.values()]
            await asyncio.wait(tasks, timeout=min(left, LOOK_EVERY), return_when=asyncio.FIRST_COMPLETED)

    def _start(self, lane: Lane) -> None:
        if lane in self._running or self._handler is None:
            return
        line = self._waiting.get(lane)
        job = line.popleft() if line else None
        if not line:
            self._waiting.pop(lane, None)
        if job is None:
            return
        attempt = Attempt(job, self.owner, self._tenure.dead)
        attempt.patience = self._tenure.seconds
        task = asyncio.create_task(self._attempt(self._handler, attempt), name=f"turn {job.job_id}")
        self._running[lane] = attempt, task
        task.add_done_callback(lambda _: self._ended(lane, attempt))  # for one that was cancelled before it began

    async def _attempt(self, handler: Handler, attempt: Attempt) -> None:
        left_running.set(self._left)
        try:
            await self._tried(handler, attempt)
        except BaseException:
            if attempt not in self._cancelled and attempt.again is None:  # nobody stopped it; it is still owed
                attempt.again = after(self._clock.now(), RETRY)
            raise
        finally:  # in the same step as the handler's last, so that no submission falls in between
            self._ended((attempt.job.channel_id, attempt.job.speaker), attempt)

    async def _tried(self, handler: Handler, attempt: Attempt) -> None:
        try:
            if await self._tenure.hold():
                await handler(attempt)
            else:
                attempt.again = after(self._clock.now(), self._tenure.seconds)
        except StoreGone as error:  # for good: the turn is owed to whoever opens the store again
            log.warning("job %s is given up: %s", attempt.job.job_id, error)
        except StoreError as error:
            attempt.again = after(self._clock.now(), RETRY)
            log.warning("job %s waits for the store: %s", attempt.job.job_id, error)
        except Exception as error:  # one job's trouble, of whatever kind, stops no other
            attempt.again = after(self._clock.now(), RETRY)
            log.error("job %s ended badly and is tried again: %s", attempt.job.job_id, told(error), exc_info=error)

    def _ended(self, lane: Lane, attempt: Attempt) -> None:
        if self._running.get(lane, (None,))[0] is not attempt:
            return
        del self._running[lane]
        if attempt in self._cancelled:
            self._cancelled.remove(attempt)
        elif attempt.again is not None and attempt.job.job_id in self._known:
            self._rest(attempt.job, attempt.again)
        else:
            self._known.pop(attempt.job.job_id, None)
        self._start(lane)

    def _line_up(self, job: JobRef) -> None:
        lane = job.channel_id, job.speaker
        self._waiting.setdefault(lane, deque()).append(job)
        self._start(lane)

    def _rest(self, job: JobRef, at: Instant) -> None:
        def ring() -> None:
            if self._resting.pop(job.job_id, None) is not None:
                self._line_up(job)

        self._resting[job.job_id] = job, self._alarms.at(at, ring)

    def _taken_for_dead(self) -> None:
        """Stop everything. If nobody else takes it up, it is ours again."""
        for attempt, task in self._running.values():
            attempt.lost.set()
            attempt.again = after(self._clock.now(), self._tenure.seconds)
            if not attempt.ending:
                task.cancel("the lease was lost")
