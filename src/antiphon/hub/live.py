"""The channels of a hub in use, and the machine that admits drafts to each of them.

Rule 1: requests are admitted one batch after the other; those that wait together are one batch.
Rule 2: no request is settled before the store has its batch.
Rule 3: a lost race is not an error: reload, and decide again on what the other hub recorded.
Rule 4: after an admission that failed or was cancelled the log is in doubt: it is read again before the next decision.
Rule 5: a request deferred until the turns in progress end is decided again with every batch.
Rule 6: there is never more than one `LiveChannel` of a channel in a hub.
Rule 7: opening a hub loads none. A channel is loaded when it is first touched, and kept while it is used.

The phases of a channel. Every change of phase is in `submit`, `erase`, `_pass_on` and `_drain`:

    phase            event                                                 next phase
    IDLE             a request, none deferred                              CALLER: its own task admits it
    IDLE             a request, some deferred                              TASK
    IDLE             erase                                                 ERASING
    any other        a request                                             the same; the request waits
    CALLER, ERASING  ended; requests wait, or the log is in doubt          TASK
    CALLER, ERASING  ended; otherwise                                      IDLE
    TASK             nothing waits, and one attempt to end a doubt made    IDLE
    TASK             cancelled while requests wait                         TASK: another one
    TASK             cancelled while nothing waits                         IDLE; the log stays in doubt until a request
    TASK             cancelled before it began                             as CALLER ended

A request is in one of these places. It leaves settled, or dropped if its caller was cancelled meanwhile:

    waiting     until a batch takes it                                     → deciding
    deciding    recorded, refused or failed                                → settled
                another hub appended first                                 → deciding, after a reload
                must wait for the turns in progress                        → deferred
                another request of its id is deciding or deferred          → duplicates
    deferred    the next batch                                             → deciding
                the hub closes, the store is gone, the log is damaged      → settled
    duplicates  the other request is recorded                              → waiting: the store returns its envelope
                the other request is refused or failed                     → waiting: decided on its own
                the other request is deferred                              → stays
                the hub closes, the store is gone, the log is damaged      → settled

A caller whose own request is deferred, or a duplicate, ends its phase and goes on waiting.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from enum import Enum, auto
from weakref import WeakValueDictionary

from antiphon.core.envelope import ERASED, Envelope, Priority
from antiphon.core.errors import AntiphonError, LogCorrupt, OutcomeUnknown, StoreError, UsageError
from antiphon.core.ruleset import Fold, Ruleset
from antiphon.core.state import State
from antiphon.hub.admission import (
    AdmissionBatch,
    AdmissionPlan,
    AdmissionRequest,
    PriorityQueue,
    first_or_conflict,
    plan_nothing,
)
from antiphon.hub.channel_log import ChannelDeps, ChannelLog, load_log

MAX_REQUESTS_PER_BATCH = 100


class AdmissionPhase(Enum):
    """Who admits to a channel now."""

    IDLE = auto()
    CALLER = auto()
    """The task of the caller that found the channel idle."""
    TASK = auto()
    """A task of the channel, for everything that waits."""
    ERASING = auto()


IDLE, CALLER, TASK, ERASING = AdmissionPhase


class LiveChannel:
    """Admits requests to one channel. `log` is its log and its fold."""

    def __init__(self, log: ChannelLog) -> None:
        self.log = log
        self.phase = IDLE
        self._task: asyncio.Task[None] | None = None
        self._waiting: PriorityQueue[AdmissionRequest] = PriorityQueue()
        self._deciding: list[AdmissionRequest] = []
        self._deferred: list[AdmissionRequest] = []
        self._duplicates: list[AdmissionRequest] = []

    @property
    def state(self) -> State:
        return self.log.fold.state

    @property
    def fold(self) -> Fold:
        return self.log.fold

    @property
    def ruleset(self) -> Ruleset:
        return self.log.ruleset

    @property
    def damage(self) -> LogCorrupt | None:
        """Why the channel is quarantined."""
        return self.log.damage

    async def submit(
        self, plan: AdmissionPlan, priority: Priority = Priority.NORMAL, draft: Envelope | None = None
    ) -> Envelope | None:
        """Carry out a plan behind the requests before it. Returns the first envelope that it recorded, or None."""
        request = AdmissionRequest(plan, draft)
        # A deferred request is decided with the batch. In the caller's task it would fail if that caller is cancelled.
        if self.phase is IDLE and not self._deferred:
            self.phase = CALLER
            try:
                await self._admit([request])
            except BaseException:
                request.dropped = True
                raise
            finally:
                self._pass_on()
            if not request.settled:
                await request.wait_settled()
        else:
            request.done = asyncio.get_running_loop().create_future()
            self._waiting.put(request, priority)
            if self.phase is IDLE:
                self._pass_on()
            await request.done
        return request.result(self.state.channel_id)

    async def wait_idle(self) -> None:
        """Wait until nothing is left to admit."""
        while self.phase is not IDLE:
            try:
                await self.submit(plan_nothing, Priority.BACKGROUND)
            except StoreError:  # reported to the callers of the failed requests; this only waits
                if self._task is not None:  # a submit before its end would ask a store that is gone again and again
                    await asyncio.wait((self._task,))

    async def erase(self, ruleset: Ruleset) -> int:
        """Erase the log while nothing is admitted, and fold what is left of it. Returns the number of records."""
        await self.wait_idle()
        self.phase = ERASING
        try:
            return await self.log.erase(ruleset)
        finally:
            self._pass_on()

    def fail_deferred(self, error: Exception) -> None:
        """Fail the requests that wait for the turns in progress to end."""
        waiting, self._deferred, self._duplicates = [*self._deferred, *self._duplicates], [], []
        for request in waiting:
            request.settle(error)

    async def record_due(self) -> None:
        """Record what has fallen due, and tell the index when to look again."""
        self.log.due_checked = True
        await self.submit(plan_nothing)

    async def read(self, after: int) -> Sequence[Envelope]:
        """The envelopes behind `after`, as far as one page goes; none at the end."""
        try:
            return await self.log.read(after)
        except LogCorrupt as error:
            await self._quarantine(error)
            raise

    def _pass_on(self) -> None:
        """Leave a phase: to a task if requests wait or the log is in doubt, otherwise to be idle."""
        if self._waiting or self.log.in_doubt:
            self.phase = TASK
            self._task = asyncio.create_task(self._drain(), name=f"admission {self.state.channel_id}")
            self._task.add_done_callback(self._on_task_done)
        else:
            self.phase = IDLE

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        if self._task is task:  # cancelled before it began, so that `_drain` did not reach its `finally`
            self._task = None
            self._pass_on()

    async def _drain(self) -> None:
        try:
            while self._waiting:
                requests = self._waiting.take(MAX_REQUESTS_PER_BATCH)
                await self._admit([request for request in requests if not request.caller_gone])
            if self.log.in_doubt:
                await self._admit([])
        finally:
            self._task = None
            if self._waiting:
                self._pass_on()
            else:
                self.phase = IDLE  # even in doubt: a store that fails would be asked without end; the next request asks

    async def _admit(self, requests: list[AdmissionRequest]) -> None:
        """Settle, defer or set aside every request of a batch."""
        self._deciding = requests
        try:
            if self.log.in_doubt:
                await self.log.catch_up()
            await self._drop_repeats()
            while not await self._try():
                await self.log.reload()
                await self._drop_repeats()
        except LogCorrupt as error:
            self._fail(error)
            await self._quarantine(error)
        except Exception as error:  # of any kind: every caller of the batch gets an answer
            self.log.in_doubt = True
            self._fail(error)
        except BaseException:
            self.log.in_doubt = True
            self._fail(OutcomeUnknown("the admission was cancelled; repeat the call with the same message_id"))
            raise
        else:
            await self.log.tidy_up()
        finally:
            self._deciding = []
            if self._duplicates:
                self._requeue_duplicates()

    async def _drop_repeats(self) -> None:
        """Settle the requests that are recorded already, and set duplicates aside."""
        ids = [request.draft.envelope_id for request in self._deciding if request.draft is not None]
        if not ids:
            return
        known = await self.log.deps.store.find(self.state.channel_id, ids)
        new: list[AdmissionRequest] = []
        first = self._deferred_ids()
        for request in self._deciding:
            draft = request.draft
            if draft is None:
                new.append(request)
            elif draft.envelope_id in known:
                request.settle(first_or_conflict(draft, known[draft.envelope_id]))
            elif draft.envelope_id in first:
                self._duplicates.append(request)
            else:
                first.add(draft.envelope_id)
                new.append(request)
        self._deciding = new

    async def _try(self) -> bool:
        """Decide on all requests together and record the outcome; False if another hub appended first."""
        log, requests = self.log, self._deciding
        log.deps.feed.check()  # a request that is deferred would not ask a store that is gone, and wait for ever
        at = log.time.now(self.state.updated_at)
        batch = AdmissionBatch(log.fold, log.ruleset, at)
        if log.time.is_due(at):  # first: a slow hub must not extend a deadline
            batch.tick(log.tick)
        deferred = [request for request in self._deferred if not request.caller_gone] if self._deferred else []
        batch.decide([*deferred, *requests] if deferred else requests)
        self._deferred, self._deciding = batch.deferred, [*requests, *deferred] if deferred else requests
        if batch.batch and not await log.record(batch.batch, batch.fold):
            self._deferred, self._deciding = deferred, requests
            return False
        batch.settle()
        return True

    def _fail(self, error: Exception) -> None:
        """Fail the requests of the batch; what it deferred goes on waiting."""
        for request in self._deciding:
            if request not in self._deferred:
                request.settle(error)

    def _requeue_duplicates(self) -> None:
        """Let duplicates wait for admission once the first of their id is settled."""
        duplicates, self._duplicates = self._duplicates, []
        deferred = self._deferred_ids()
        for request in duplicates:
            assert request.draft is not None, "only what has an id has a duplicate"
            if request.draft.envelope_id in deferred:
                self._duplicates.append(request)
            else:
                self._waiting.put(request, request.draft.priority)

    def _deferred_ids(self) -> set[str]:
        return {request.draft.envelope_id for request in self._deferred if request.draft is not None}

    async def _quarantine(self, error: LogCorrupt) -> None:
        """Mark the log as damaged, and fail what waits for turns that can no longer end."""
        if self.log.damage is None:
            self.log.quarantine(error)
            self.fail_deferred(error)
            await self.log.report_damage(error)


MAX_KEPT_CHANNELS = 1024
"""How many channels stay loaded without a handle to them."""
CHANNELS_PER_TIDY = 64
"""How many more may be loaded before those that have ended are dropped."""


class Channels:
    """The channels of a hub, by id."""

    def __init__(self, deps: ChannelDeps) -> None:
        self.deps = deps
        self._live: WeakValueDictionary[str, LiveChannel] = WeakValueDictionary()
        self._recently_used: OrderedDict[str, LiveChannel] = OrderedDict()
        self._limit = CHANNELS_PER_TIDY
        self._loading: dict[str, asyncio.Future[LiveChannel]] = {}

    async def get(self, channel_id: str) -> LiveChannel:
        """The channel, loaded; `UnknownChannel` if there is none."""
        live = self._live.get(channel_id)
        if live is None:
            live = await asyncio.shield(self._loading.get(channel_id) or self._begin_load(channel_id))
        return self._keep(live)

    def loaded(self, channel_id: str) -> LiveChannel | None:
        """The channel, if it is loaded."""
        return self._live.get(channel_id)

    def clock_set(self, seconds: float) -> None:
        """The hub's clock was set by so many seconds."""
        for live in list(self._live.values()):
            live.log.time.clock_set(seconds)

    async def create(self, channel_id: str, ruleset: Ruleset, plan: AdmissionPlan) -> LiveChannel:
        """A new channel, whose log begins with what is planned. If that is not recorded, there is no channel."""
        live = self._keep(LiveChannel(ChannelLog(ruleset, ruleset.begin(channel_id), self.deps)))
        try:
            await live.submit(plan)
        finally:
            if live.state.sequence == 0 and self._live.get(channel_id) is live:
                del self._live[channel_id]
                self._recently_used.pop(channel_id, None)
        return live

    async def erase(self, channel_id: str) -> int:
        """Erase the content of a channel that has ended, also from memory. Returns the number of records.

        One that is not loaded is not: its rules may not be known here. Loading it waits until it is erased.
        """
        while channel_id in self._loading:
            await asyncio.wait([self._loading[channel_id]])
        live = self._live.get(channel_id)
        if live is not None:
            return await live.erase(self.deps.ruleset_for(ERASED, {}))
        erasing = asyncio.ensure_future(self.deps.store.erase(channel_id))
        self._begin_load(channel_id, erasing)
        return await asyncio.shield(erasing)

    async def wait_idle(self) -> None:
        """Wait until no channel has anything left to admit, then fail the requests that wait for the end of a turn."""
        while busy := [live for live in list(self._live.values()) if live.phase is not IDLE]:
            for live in busy:
                await live.wait_idle()
        self._give_up(UsageError("the hub was closed before this could be said; nothing of it was recorded"))

    async def watch_store(self) -> None:
        """Once the store is gone, end every wait for a channel to grow and for a turn to end."""
        gone = await self.deps.store.gone()
        self.deps.feed.fail(gone)
        self._give_up(gone)

    def _give_up(self, error: AntiphonError) -> None:
        for live in list(self._live.values()):
            live.fail_deferred(error)

    def _keep(self, live: LiveChannel) -> LiveChannel:
        channel_id = live.state.channel_id
        self._live[channel_id] = self._recently_used[channel_id] = live
        self._recently_used.move_to_end(channel_id)
        if len(self._recently_used) > self._limit:
            self._tidy()
        return live

    def _tidy(self) -> None:
        """Drop the channels that have ended, then those not used for longest."""
        for channel_id in [name for name, live in self._recently_used.items() if live.state.ended]:
            del self._recently_used[channel_id]
        while len(self._recently_used) > MAX_KEPT_CHANNELS:
            self._recently_used.popitem(last=False)
        self._limit = len(self._recently_used) + CHANNELS_PER_TIDY

    def _begin_load(self, channel_id: str, erasing: asyncio.Future[int] | None = None) -> asyncio.Future[LiveChannel]:
        """Let every caller that wants this channel wait for this."""

        def finish(done: asyncio.Future[LiveChannel]) -> None:
            del self._loading[channel_id]
            if not done.cancelled():
                done.exception()  # retrieved here, so that an error without a waiting caller is not logged as lost

        loading = self._loading[channel_id] = asyncio.ensure_future(self._load(channel_id, erasing))
        loading.add_done_callback(finish)
        return loading

    async def _load(self, channel_id: str, erasing: asyncio.Future[int] | None) -> LiveChannel:
        if erasing is not None:
            await asyncio.gather(erasing, return_exceptions=True)  # its error is raised to the caller of `erase`
        live = self._live[channel_id] = LiveChannel(await load_log(channel_id, self.deps))
        return live
