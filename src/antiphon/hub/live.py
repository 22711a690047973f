"""One channel in memory: its fold, its waiting drafts, and the one task that admits them.

Rule 1: drafts of a channel are admitted one after the other, whatever waits together as one batch.
Rule 2: nothing is acknowledged before the store has it. The fold moves only after that.
Rule 3: a lost race is not an error: reload, and decide again on what the other said.
Rule 4: when the store's answer is lost, the same batch is offered again. If that fails too, or the sender is cancelled
        meanwhile, the fold is in doubt: before anything else, what was recorded is read again, folded and published.
Rule 5: a log that cannot be trusted any more is quarantined, and says so from then on.
Rule 6: what must wait for turns under way is asked about again with whatever is admitted next.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import msgspec

from antiphon.core.envelope import Envelope, Priority
from antiphon.core.errors import Conflict, IdReused, LogCorrupt, OutcomeUnknown, StoreError
from antiphon.core.guard import Deadline
from antiphon.core.instants import NEVER, Instant
from antiphon.core.laws import Fold, Laws
from antiphon.core.state import State, Turn
from antiphon.core.step import Admitted, tick
from antiphon.core.words import told
from antiphon.hub.causation import RecentIds
from antiphon.hub.continuity import ChannelTime
from antiphon.hub.planning import Round
from antiphon.hub.recent import Recent
from antiphon.hub.request import Plan, Request, nothing, repeated
from antiphon.hub.surroundings import Surroundings
from antiphon.hub.waiting import Waiting
from antiphon.store.protocol import Snapshot, Store

log = logging.getLogger("antiphon.hub")

MOST_AT_ONCE = 100
SNAPSHOT_EVERY = 256
REPEATS = 3


class LiveChannel:
    """A channel that somebody is using."""

    def __init__(
        self, laws: Laws, fold: Fold, around: Surroundings, *, due: Instant = NEVER, snapshot_at: int = 0
    ) -> None:
        self.laws, self.fold = laws, fold
        self.time = ChannelTime(around.continuity, laws.due(fold))
        self.busy = False
        """Whether something is being admitted."""
        self._around = around
        self._waiting: Waiting[Request] = Waiting()
        self._held: list[Request] = []
        """Those that wait for the turns under way to end."""
        self._twins: list[Request] = []
        """Those whose id another one carries that is being decided on, or waits itself."""
        self._decided: list[Request] = []
        """Those that had waited, and are decided on in the round under way."""
        self._task: asyncio.Task[None] | None = None
        self._recent, self.recent_ids = Recent(), RecentIds()
        self._due = due
        self._snapshot_at = snapshot_at
        self._looked_at = False
        self._in_doubt = False
        self.damage: LogCorrupt | None = None
        """Why it is quarantined."""

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
        if self.busy or self._held:  # nobody who waits shares the fate of a stranger that is cancelled
            request.done = asyncio.get_running_loop().create_future()
            self._waiting.put(request, priority)
            if not self.busy:
                self.busy = True
                self._go_on()
            await request.done
        else:
            self.busy = True
            try:
                await self._admit([request])
            except BaseException:
                request.dropped = True
                raise
            finally:
                self._go_on()
            if not request.settled:
                await request.waited()
        return request.given(self.state.channel_id)

    async def settled(self) -> None:
        """Wait until nothing is left to admit."""
        while self.busy:
            try:
                await self.submit(nothing, Priority.BACKGROUND)
            except StoreError:  # whoever wanted something is told; this only waits
                if self._task is not None:  # asked again before it ends, a store that is gone would be asked for ever
                    await asyncio.wait((self._task,))

    async def erase(self, laws: Laws) -> int:
        """Erase the log while nothing is admitted, and fold what is left of it under these laws; how many records."""
        await self.settled()
        self.busy = True
        try:
            erased = await self._around.store.erase(self.state.channel_id)
            self.laws, self.fold = laws, laws.begin(self.state.channel_id)
            self._recent, self.recent_ids = Recent(), RecentIds()
            await self._reload()
            self._snapshot_at = self.state.sequence  # of tombstones none is kept
            return erased
        finally:
            self._go_on()

    def give_up(self, error: Exception) -> None:
        """Tell those who wait for turns under way that nothing comes of it."""
        waiting, self._held, self._twins = [*self._held, *self._twins], [], []
        _settle(waiting, error)

    async def look(self) -> None:
        """Record what has fallen due, and tell the index when to look again."""
        self._looked_at = True
        await self.submit(nothing)

    async def read(self, after: int) -> Sequence[Envelope]:
        """The envelopes behind `after`, as far as one page goes; none at the end."""
        if after >= self.state.sequence:
            return ()
        recent = self._recent.after(after)
        if recent:
            return recent
        try:
            return (await self._around.store.read(self.state.channel_id, after=after)).envelopes
        except LogCorrupt as error:
            await self._quarantine(error)
            raise

    def _go_on(self) -> None:
        """Let a task admit what has come meanwhile, and end a doubt that nobody else would."""
        if self._waiting or self._in_doubt:
            self._task = asyncio.create_task(self._drain(), name=f"admission {self.state.channel_id}")
            self._task.add_done_callback(self._if_never_begun)
        else:
            self.busy = False

    def _if_never_begun(self, task: asyncio.Task[None]) -> None:
        """Whoever cancels a task before it has begun ends it before it could tidy up."""
        if self._task is task:
            self._task = None
            self._go_on()

    async def _drain(self) -> None:
        try:
            while self._waiting:
                requests = self._waiting.take(MOST_AT_ONCE)
                await self._admit([request for request in requests if not request.given_up])
            if self._in_doubt:
                await self._admit([])
        finally:
            self._task, self.busy = None, bool(self._waiting)
            if self._waiting:
                self._go_on()

    async def _admit(self, requests: list[Request]) -> None:
        try:
            if self._in_doubt:
                await self._catch_up()
            requests = await self._without_repeats(requests)
            while not await self._try(requests):
                await self._reload()
                requests = await self._without_repeats(requests)
        except LogCorrupt as error:
            self._fail(requests, error)
            await self._quarantine(error)
        except Exception as error:  # whatever it is, whoever waits must be told
            self._in_doubt = True
            self._fail(requests, error)
        except BaseException:
            self._in_doubt = True
            told_off = OutcomeUnknown("the admission was cancelled; repeat the call with the same message_id")
            self._fail(requests, told_off)
            raise
        else:
            await self._tidy_up()
        finally:
            if self._twins:
                self._line_up_twins()

    def _line_up_twins(self) -> None:
        """Let the second of an id wait for what becomes of the first."""
        twins, self._twins = self._twins, []
        held = self._held_ids()
        for twin in twins:
            assert twin.draft is not None, "only what has an id has a twin"
            if twin.draft.envelope_id in held:
                self._twins.append(twin)
            else:
                self._waiting.put(twin, twin.draft.priority)

    def _held_ids(self) -> set[str]:
        return {request.draft.envelope_id for request in self._held if request.draft is not None}

    def _fail(self, requests: list[Request], error: Exception) -> None:
        """Tell those who were decided on. Those who were not go on waiting."""
        decided, self._decided = [*requests, *self._decided], []
        _settle([request for request in decided if request not in self._held], error)

    async def _try(self, requests: list[Request]) -> bool:
        """Decide on all requests together and record the outcome; False if somebody else was faster."""
        self._around.feed.check()  # a draft that must wait would not ask the store, and wait for ever
        at = self.time.now(self.state.updated_at)
        decided = Round(self.fold, self.laws, at)
        if self.time.is_due(at):  # first: a slow hub must not extend a deadline
            decided.tick(self._tick)
        before = [request for request in self._held if not request.given_up] if self._held else []
        decided.decide([*before, *requests] if before else requests)
        self._held, self._decided = decided.held, before
        if decided.batch and not await self._recorded(decided.batch, decided.fold):
            self._held, self._decided = before, []
            return False
        decided.settle()
        self._decided = []
        return True

    def _tick(self, fold: Fold, laws: Laws, at: Instant) -> Admitted | None:
        breaks = self.time.breaks(self.state.channel_id)
        return tick(fold, laws=laws, at=at, new_id=self._around.new_id, breaks=breaks)

    async def _recorded(self, batch: list[Envelope], fold: Fold) -> bool:
        deadline = self.laws.due(fold)
        at = self.time.on_clock(deadline)
        due = at if not self._due or at < self._due else NEVER
        if not await self._append(batch, due):
            return False
        if due:
            self._due = due
            self._around.armed(due)
        if self.damage is None:  # a reader may have met some while this was under way
            before = self._folded(fold, deadline)
            self._publish(batch)
            self._tell_owing(before)
        return True

    def _folded(self, fold: Fold, deadline: Deadline | None) -> Fold:
        """Go by another fold from now on; the one before."""
        before, self.fold, self.time.deadline = self.fold, fold, deadline
        return before

    def _tell_owing(self, before: Fold) -> None:
        owed, known = self.state.owed, before.state.owed
        if owed is not known and _to_do(owed) != _to_do(known):
            self._around.owing(self.state.channel_id)

    async def _append(self, batch: list[Envelope], due: Instant) -> bool:
        store, state = self._around.store, self.state
        doubt: OutcomeUnknown | None = None
        for _ in range(REPEATS):
            try:
                done = await store.append(state.channel_id, batch, expected=state.sequence, due=due or None)
                return not done.duplicate or await self._is_ours(batch)
            except Conflict:
                return False
            except IdReused:
                if await store.head(state.channel_id) == state.sequence:  # nobody was faster: it would go on for ever
                    raise
                return False
            except OutcomeUnknown as error:
                doubt = error
            except StoreError as error:
                if doubt is None:
                    raise
                raise doubt from error
        assert doubt is not None, "every repeat ended in doubt"
        raise doubt

    async def _is_ours(self, batch: list[Envelope]) -> bool:
        """Whether this very batch is recorded, and not only somebody else's of the same first id."""
        last = batch[-1]
        found = await self._around.store.find(last.channel_id, [last.envelope_id])
        return found.get(last.envelope_id) == last

    def _publish(self, batch: list[Envelope]) -> None:
        state, feed = self.state, self._around.feed
        self.recent_ids.add(batch)
        if feed.heard(state.channel_id, state.participants):
            self._recent.add(batch)
            feed.publish(state.channel_id, state.participants)
        else:
            self._recent.clear()

    async def _tidy_up(self) -> None:
        """What nobody waits for: tell the index when to look again, and keep a snapshot now and then."""
        if self._looked_at:
            await self._note_due()
        if self.state.sequence - self._snapshot_at >= SNAPSHOT_EVERY:
            await self._keep_snapshot()

    async def _note_due(self) -> None:
        """Tell the index when to look again. No append is under way that could have told it something earlier."""
        due = self.time.on_clock(self.time.deadline)
        try:
            await self._around.store.mark(self.state.channel_id, due=due)
        except StoreError as error:
            log.warning("channel %s could not say when it is due: %s", self.state.channel_id, error)
        else:
            self._looked_at, self._due = False, due

    async def _keep_snapshot(self) -> None:
        self._snapshot_at = self.state.sequence
        try:
            snapshot = Snapshot(self._snapshot_at, self.laws.version, self.laws.save(self.fold))
            await self._around.store.put_snapshot(self.state.channel_id, snapshot)
        except Exception as error:  # an adapter's memory may be anything; without a snapshot the log is folded
            log.warning("channel %s has no new snapshot: %s", self.state.channel_id, told(error))

    async def _catch_up(self) -> None:
        """End a doubt: wait for whatever append is still under way, and read what was recorded."""
        await self._around.store.mark(self.state.channel_id)  # takes its place behind it
        await self._reload()
        self._in_doubt = False

    async def _reload(self) -> None:
        """Fold what was recorded meanwhile, and let it be known."""
        store, known, fold = self._around.store, self.state.sequence, self.fold
        while envelopes := (await store.read(fold.state.channel_id, after=fold.state.sequence)).envelopes:
            fold = self.laws.fold_all(fold, envelopes)
        if fold.state.sequence == known:
            await check_whole(store, fold)
            return
        self._recent.clear()
        before = self._folded(fold, self.laws.due(fold))
        self._tell_owing(before)
        self._around.feed.publish(fold.state.channel_id, fold.state.participants)
        if due := self.time.on_clock(self.time.deadline):
            self._around.armed(due)

    async def _quarantine(self, error: LogCorrupt) -> None:
        """Say from now on that the log cannot be trusted; what is before the damage can be read."""
        if self.damage is not None:
            return
        self.damage = error
        state = msgspec.structs.replace(self.state, status="quarantined", sequence=error.sequence - 1)
        self._folded(Fold(state, self.fold.memories), None)
        self._in_doubt = False
        self._recent.clear()
        self.give_up(error)
        self._around.feed.publish(state.channel_id, state.participants)
        try:
            await self._around.damaged(error)
        except StoreError as trouble:
            log.warning("channel %s is quarantined, which could not be recorded: %s", state.channel_id, trouble)

    async def _without_repeats(self, requests: list[Request]) -> list[Request]:
        """Answer the drafts that are recorded already; let the second of an id wait for the first; give the rest."""
        ids = [request.draft.envelope_id for request in requests if request.draft is not None]
        if not ids:
            return requests
        known = await self._around.store.find(self.state.channel_id, ids)
        new: list[Request] = []
        first = self._held_ids()
        for request in requests:
            draft = request.draft
            if draft is None:
                new.append(request)
            elif draft.envelope_id in known:
                request.settle(repeated(draft, known[draft.envelope_id]))
            elif draft.envelope_id in first:
                self._twins.append(request)
            else:
                first.add(draft.envelope_id)
                new.append(request)
        return new


async def check_whole(store: Store, fold: Fold) -> None:
    """`LogCorrupt` if the log ends before what was folded from it."""
    channel_id, known = fold.state.channel_id, fold.state.sequence
    head = await store.head(channel_id)
    if head < known:
        raise LogCorrupt(channel_id, head + 1, f"the log ends here, but went on to {known} before")


def _to_do(owed: Sequence[Turn]) -> list[tuple[str, bool]]:
    return [(turn.turn_id, turn.waits_for_person) for turn in owed]


def _settle(requests: list[Request], error: Exception) -> None:
    for request in requests:
        request.settle(error)
