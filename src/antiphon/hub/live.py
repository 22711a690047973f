"""One channel in memory: its fold, its waiting drafts, and the one task that admits them.

Rule 1: drafts of a channel are admitted one after the other, whatever waits together as one batch.
Rule 2: nothing is acknowledged before the store has it. The fold moves only after that.
Rule 3: a lost race is not an error: reload, and decide again on what the other said.
Rule 4: when the store's answer is lost, the same batch is offered again; if that fails too, the fold is forgotten
        and read again before anything else is admitted. A sender that is cancelled in between leaves the same doubt.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from antiphon.core.codec import check_json, decode, encode, same
from antiphon.core.envelope import Envelope, Priority
from antiphon.core.errors import Conflict, Denied, IdReused, OutcomeUnknown, StoreError
from antiphon.core.guard import Deny
from antiphon.core.ids import IdSource
from antiphon.core.instants import NEVER, Instant
from antiphon.core.laws import Fold, Laws
from antiphon.core.state import State
from antiphon.core.step import Admitted, tick
from antiphon.core.words import told
from antiphon.hub.clock import Clock
from antiphon.hub.feed import Feed
from antiphon.hub.waiting import Waiting
from antiphon.store.protocol import Snapshot, Store

log = logging.getLogger("antiphon.hub")

MOST_AT_ONCE = 100
RECENT = 64
SNAPSHOT_EVERY = 256
REPEATS = 3

Plan = Callable[[Fold, Laws, Instant], Admitted | Deny | None]
"""What a request wants, given the present fold: a batch, a refusal, or nothing after all."""

Answer = Envelope | Deny | None
"""The first envelope recorded, a refusal, or that there was nothing to record."""


class Surroundings(msgspec.Struct, frozen=True):
    """What every channel of one hub shares."""

    store: Store
    clock: Clock
    new_id: IdSource
    feed: Feed
    armed: Callable[[Instant], None]
    """Told when a channel must be looked at earlier than it had been known."""


class Request(msgspec.Struct, eq=False):
    """One draft on its way in, and what became of it."""

    plan: Plan
    draft: Envelope | None = None
    """Given when the draft carries an id of its own and may have been recorded before."""
    answer: Answer | StoreError = None
    settled: bool = False
    done: asyncio.Future[None] | None = None
    """Of whoever waits for the answer; None if that is who admits it."""

    def settle(self, answer: Answer | StoreError) -> None:
        """Say what became of it. The first answer stands."""
        if self.settled:
            return
        self.answer, self.settled = answer, True
        if self.done is not None and not self.done.done():
            self.done.set_result(None)

    def given(self, channel_id: str) -> Envelope | None:
        """The answer; raised if it is an error."""
        if isinstance(self.answer, Deny):
            raise Denied(self.answer.reason, channel_id, self.answer.detail)
        if isinstance(self.answer, StoreError):
            raise self.answer
        return self.answer


class LiveChannel:
    """A channel that somebody is using."""

    def __init__(
        self, laws: Laws, fold: Fold, around: Surroundings, *, due: Instant = NEVER, snapshot_at: int = 0
    ) -> None:
        self.laws, self.fold = laws, fold
        self._deadline = _deadline(laws, fold)
        self.busy = False
        """Whether something is being admitted."""
        self._around = around
        self._waiting: Waiting[Request] = Waiting()
        self._task: asyncio.Task[None] | None = None
        self._recent: deque[tuple[int, bytes]] = deque(maxlen=RECENT)
        """The last records, while somebody listens: each reader decodes its own, as if from the store."""
        self._due = due
        self._snapshot_at = snapshot_at
        self._looked_at = False
        self._stale = False

    @property
    def state(self) -> State:
        return self.fold.state

    async def submit(
        self, plan: Plan, priority: Priority = Priority.NORMAL, draft: Envelope | None = None
    ) -> Envelope | None:
        """Carry out a plan when its turn comes. Returns the first envelope it recorded, None if it recorded none.

        Whoever finds the channel idle admits its own draft; what comes meanwhile waits, and is admitted together.
        """
        request = Request(plan, draft)
        if self.busy:
            request.done = asyncio.get_running_loop().create_future()
            self._waiting.put(request, priority)
            await request.done
        else:
            self.busy = True
            try:
                await self._admit([request])
            finally:
                self._go_on()
        return request.given(self.state.channel_id)

    async def settled(self) -> None:
        """Wait until nothing is left to admit."""
        while self.busy:
            await self.submit(_nothing, Priority.BACKGROUND)

    async def read(self, after: int) -> Sequence[Envelope]:
        """The envelopes behind `after`, as far as one page goes; none at the end."""
        if after >= self.state.sequence:
            return ()
        recent = self._recent
        if recent and recent[0][0] <= after + 1:
            return [decode(recent[place][1]) for place in range(after + 1 - recent[0][0], len(recent))]
        page = await self._around.store.read(self.state.channel_id, after=after)
        return page.envelopes

    def _go_on(self) -> None:
        """Let a task admit what has come meanwhile."""
        if self._waiting:
            self._task = asyncio.create_task(self._drain(), name=f"admission {self.state.channel_id}")
        else:
            self.busy = False

    async def _drain(self) -> None:
        try:
            while self._waiting:
                await self._admit(self._waiting.take(MOST_AT_ONCE))
        finally:
            self._task, self.busy = None, False

    async def _admit(self, requests: list[Request]) -> None:
        try:
            if self._stale:
                await self._reload()
            requests = await self._without_repeats(requests)
            while not await self._try(requests):
                await self._reload()
                requests = await self._without_repeats(requests)
            if self._looked_at:
                await self._note_due()
            if self.state.sequence - self._snapshot_at >= SNAPSHOT_EVERY:
                await self._keep_snapshot()
        except StoreError as error:
            self._stale = True
            for request in requests:
                request.settle(error)
        except BaseException:
            self._stale = True
            for request in requests:
                if request.done is not None:
                    request.done.cancel()
            raise

    async def _try(self, requests: list[Request]) -> bool:
        """Decide on all requests together and record the outcome; False if somebody else was faster."""
        at, fold = self._around.clock.now(), self.fold
        batch: list[Envelope] = []
        refusal: Deny | None = None
        if self._deadline and self._deadline <= at:  # first: nobody gains time because the hub was slow or away
            match _planned(self._tick, fold, self.laws, at=at):
                case Admitted(overdue, fold):
                    batch.extend(overdue)
                case refusal:
                    pass
        answers: list[Answer] = []
        for request in requests:
            outcome = refusal or _planned(request.plan, fold, self.laws, at=at)
            if isinstance(outcome, Admitted):
                batch.extend(outcome.batch)
                fold = outcome.fold
                answers.append(outcome.batch[0])
            else:
                answers.append(outcome)
        if batch and not await self._recorded(batch, fold):
            return False
        for request, answer in zip(requests, answers, strict=True):
            request.settle(answer)
        return True

    def _tick(self, fold: Fold, laws: Laws, at: Instant) -> Admitted | None:
        return tick(fold, laws=laws, at=at, new_id=self._around.new_id)

    async def _recorded(self, batch: list[Envelope], fold: Fold) -> bool:
        deadline = _deadline(self.laws, fold)
        due = deadline if not self._due or deadline < self._due else NEVER
        if not await self._append(batch, due):
            return False
        if due:
            self._due = due
            self._around.armed(due)
        self.fold, self._deadline = fold, deadline
        self._publish(batch)
        return True

    async def _append(self, batch: list[Envelope], due: Instant) -> bool:
        store, state = self._around.store, self.state
        for left in reversed(range(REPEATS)):
            try:
                done = await store.append(state.channel_id, batch, expected=state.sequence, due=due or None)
            except (Conflict, IdReused):
                return False
            except OutcomeUnknown:
                if not left:
                    raise
            else:
                return not done.duplicate or await self._is_ours(batch)
        return False

    async def _is_ours(self, batch: list[Envelope]) -> bool:
        """Whether this very batch is recorded, and not only somebody else's of the same first id."""
        last = batch[-1]
        found = await self._around.store.find(last.channel_id, [last.envelope_id])
        return found.get(last.envelope_id) == last

    def _publish(self, batch: list[Envelope]) -> None:
        state, feed = self.state, self._around.feed
        if feed.heard(state.channel_id, state.participants):
            self._recent.extend((envelope.sequence, encode(envelope)) for envelope in batch)
            feed.publish(state.channel_id, state.participants)
        elif self._recent:
            self._recent.clear()

    async def _keep_snapshot(self) -> None:
        self._snapshot_at = self.state.sequence
        snapshot = Snapshot(self._snapshot_at, self.laws.version, self.laws.save(self.fold))
        try:
            await self._around.store.put_snapshot(self.state.channel_id, snapshot)
        except StoreError as error:
            log.warning("channel %s has no new snapshot: %s", self.state.channel_id, error)

    async def look(self) -> None:
        """Record what has fallen due, and tell the index when to look again."""
        self._looked_at = True
        await self.submit(_nothing)

    async def _note_due(self) -> None:
        """Tell the index when to look again. No append is under way that could have told it something earlier."""
        self._looked_at, self._due = False, self._deadline
        await self._around.store.mark(self.state.channel_id, due=self._due)

    async def _reload(self) -> None:
        """Fold what others have recorded meanwhile."""
        store, fold = self._around.store, self.fold
        while envelopes := (await store.read(fold.state.channel_id, after=fold.state.sequence)).envelopes:
            fold = self.laws.fold_all(fold, envelopes)
        self._recent.clear()
        self.fold, self._deadline = fold, _deadline(self.laws, fold)
        self._stale = False

    async def _without_repeats(self, requests: list[Request]) -> list[Request]:
        """Answer the drafts that are recorded already; let the second of an id wait for the first; give the rest."""
        ids = [request.draft.envelope_id for request in requests if request.draft is not None]
        if not ids:
            return requests
        known = await self._around.store.find(self.state.channel_id, ids)
        new: list[Request] = []
        first: set[str] = set()
        for request in requests:
            draft = request.draft
            if draft is None:
                new.append(request)
            elif draft.envelope_id in known:
                request.settle(repeated(draft, known[draft.envelope_id]))
            elif draft.envelope_id in first:
                self._waiting.put(request, draft.priority)
            else:
                first.add(draft.envelope_id)
                new.append(request)
        return new


def repeated(draft: Envelope, first: Envelope) -> Envelope | Deny:
    """The first envelope of this id, if the draft says the same."""
    equal = (
        draft.sender_id == first.sender_id
        and draft.event_type == first.event_type
        and same(draft.event_data, first.event_data)
        and draft.audience == first.audience
        and draft.causation_id == first.causation_id
    )
    return first if equal else Deny("conflict", "this message_id was used before with other content")


def _planned(plan: Plan, fold: Fold, laws: Laws, *, at: Instant) -> Admitted | Deny | None:
    try:
        outcome = plan(fold, laws, at)
        for consequence in outcome.batch[1:] if isinstance(outcome, Admitted) else ():
            check_json(consequence.event_data)
        return outcome
    except Exception as error:  # an adapter or guard of a user's may raise anything
        return Deny("rules_failed", told(error))


def _deadline(laws: Laws, fold: Fold) -> Instant:
    deadline = laws.due(fold)
    return deadline.at if deadline else NEVER


def _nothing(fold: Fold, laws: Laws, at: Instant) -> None:
    """A plan that wants nothing but its turn."""
