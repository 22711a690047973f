"""What a hub's handles share: where a draft is checked, admitted, and its refusal recorded."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from weakref import WeakValueDictionary

from antiphon.agents.declaration import Declaration
from antiphon.agents.nesting import Lane, taking, waiting_for_others
from antiphon.agents.tasks import Delegates
from antiphon.core.draft import check_data, check_draft, marked_aside
from antiphon.core.envelope import HUB, Envelope
from antiphon.core.errors import (
    AntiphonError,
    Denied,
    LogCorrupt,
    OutcomeUnknown,
    StoreUnavailable,
    UnknownChannel,
    UsageError,
)
from antiphon.core.events import EV_CHANNEL_CLOSED, Created
from antiphon.core.guard import Deny, Later
from antiphon.core.ids import CHANNEL_ID
from antiphon.core.instants import NEVER, Instant
from antiphon.core.instants import after as later
from antiphon.core.laws import Fold, Laws
from antiphon.core.opening import guest_of, invitations, opening, said_first
from antiphon.core.step import Admitted, record, said_by_hub, step
from antiphon.engines.definitions import Definitions
from antiphon.engines.place import Place, turns_at
from antiphon.engines.protocol import Engine
from antiphon.engines.resuming import ResumeLimit
from antiphon.hub.audit import AUDIT, Audit
from antiphon.hub.channels import Channels
from antiphon.hub.clear import ClearChannels
from antiphon.hub.clock import Clock
from antiphon.hub.continuity import Continuity
from antiphon.hub.directory import REGISTRY, Directory
from antiphon.hub.feed import Feed
from antiphon.hub.ids import TimeOrderedIds
from antiphon.hub.keys import KEYS, KeyRing
from antiphon.hub.live import LiveChannel
from antiphon.hub.own import OwnChannel
from antiphon.hub.surroundings import Surroundings
from antiphon.hub.timers import Timers
from antiphon.orchestration.lawbook import laws_for
from antiphon.runtime.dispatch import Dispatch
from antiphon.runtime.examining import Examination
from antiphon.runtime.invitations import Accept, decide_invitation
from antiphon.runtime.modelling import close_models
from antiphon.runtime.permission import causation_denied, check_own_turn, denial_of_turns, waits_for_a_turn
from antiphon.store.protocol import Store

log = logging.getLogger("antiphon.hub")

RETRY = 1.0
"""After how many seconds something is tried again that the store could not do."""


class Desk:
    """The inside of one hub."""

    def __init__(self, store: Store, clock: Clock, engine: Engine | None, *, limit: ResumeLimit) -> None:
        self.store, self.clock, self.engine = store, clock, engine
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self.new_id = TimeOrderedIds()
        self.feed = Feed()
        self.continuity = Continuity(store, clock, woken=self._clock_set)
        self.timers = Timers(store, self.continuity, owner=self.new_id(), look=self._look, jumped=self._clock_jumped)
        around = Surroundings(
            store, self.continuity, self.new_id, self.feed, self.timers.armed, self._damaged, self._owing
        )
        self.channels = Channels(around, laws_for)
        self.examination = Examination()
        own = laws_for("system", {})
        self.directory = Directory(OwnChannel(REGISTRY, self.channels, laws=own, new_id=self.new_id))
        self.keys = KeyRing(OwnChannel(KEYS, self.channels, laws=own, new_id=self.new_id))
        self.audit = Audit(OwnChannel(AUDIT, self.channels, laws=own, new_id=self.new_id), clock)
        self.agents: dict[str, Declaration] = {}
        """The agents registered in this hub, whose turns it runs."""
        self.definitions = Definitions(self.agents)
        self.clear = ClearChannels()
        self.dispatch = Dispatch(engine, store, self.channels, agents=self.agents, limit=limit)
        self.continuity.waited_until = self.dispatch.waited_until
        self.continuity.is_unattended = self.dispatch.is_unattended
        self.acceptors: dict[str, Accept | None] = {}
        """Those registered in this hub, and how they decide on invitations."""
        self.seated: dict[str, str] = {}
        """Those registered here, and those about to be: the name in lower case to the name."""
        self.closing = asyncio.Event()
        self.stopped = asyncio.Event()
        """Set when no turn runs any more."""
        self.waits: dict[Lane, list[Lane]] = {}
        """Which turns wait for an answer of which others."""
        self._tasks: set[asyncio.Future[None]] = set()
        self._asked: set[str] = set()
        """The invitations that somebody is deciding on."""
        self.locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """For whoever looks whether something is there, and makes it if not: one at a time."""
        self.forget: Callable[[str], None] = _nothing_is_remembered
        """Drops what agents remember of a channel."""
        self._opened = False
        self._ending: asyncio.Future[None] | None = None

    async def open(self, delegates: Delegates) -> None:
        """Read who is known, and begin to watch the time. Once is enough."""
        if self._opened:
            return
        await self.directory.load()
        await self.keys.load()
        await self.continuity.begin()
        self._opened = True
        self.spawn(self.channels.watch_store(), "store")
        await self.timers.begin()
        self.spawn(self.timers.run(), "timers")
        self.spawn(self.continuity.run(), "continuity")
        if self.engine is not None:
            around = Place(
                self.channels,
                self.clock,
                self.new_id,
                self.feed,
                self.audit,
                self.agents,
                delegates,
                self.store.tenant,
                self._limit,
                self.definitions,
            )
            turns = turns_at(around)
            self.forget = turns.forget
            self.dispatch.delegates = delegates
            await self.engine.serve(turns)
            self.spawn(turns.alarms.run(), "alarms")
            self.spawn(self.dispatch.run(self.clock), "dispatch")
            self.spawn(self.dispatch.resume(self.clock), "resuming")

    async def close(self) -> None:
        """Finish what waits for admission, stop everything else, and let go of the store.

        It is done once, to the end, however often it is asked for and whoever stops waiting for it.
        """
        if self._ending is None:
            self.closing.set()
            self.feed.wake_all()
            self._ending = asyncio.ensure_future(self._end())
        await asyncio.shield(self._ending)

    async def _end(self) -> None:
        try:
            if self.engine is not None:
                await self.engine.stop()
            self.stopped.set()
            self.feed.wake_all()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self.channels.settled()
            await close_models(self.definitions.all())
        finally:
            await self.store.close()

    def _owing(self, channel_id: str) -> None:
        self.clear.discard(channel_id)
        self.dispatch.owing(channel_id)

    def spawn(self, work: Coroutine[None, None, None], name: str) -> None:
        """Run something until it ends or the hub closes. What it raises is logged."""
        task = asyncio.create_task(self._watched(work, name), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: work.close())  # of a task that was cancelled before it began

    async def _watched(self, work: Coroutine[None, None, None], name: str) -> None:
        try:
            await work
        except Exception:
            if not self.closing.is_set():
                log.exception("%s ended with an error", name)

    async def live(self, channel_id: str) -> LiveChannel:
        """The channel of this id."""
        self._check_id(channel_id)
        return await self.channels.get(channel_id)

    async def check_exists(self, channel_id: str) -> None:
        """`UnknownChannel` unless there is a log of this id. Its rules need not be known for that."""
        self._check_id(channel_id)
        if await self.store.head(channel_id) == 0:
            raise UnknownChannel(channel_id)

    def check_open(self) -> None:
        """`UsageError` if the hub was closed or belongs to another event loop; `StoreGone` if its store is gone."""
        if self.closing.is_set():
            raise UsageError("this hub is closed; open it again")
        if asyncio.get_running_loop() is not self._loop:
            raise UsageError("this hub belongs to another event loop; open one in the loop that uses it")
        self.feed.check()

    def _check_id(self, channel_id: object) -> None:
        self.check_open()
        if not isinstance(channel_id, str) or not CHANNEL_ID.match(channel_id):
            raise UnknownChannel(channel_id)

    async def admit(self, live: LiveChannel, draft: Envelope, *, may_run: bool = True) -> Envelope:
        """Record a participant's draft, or raise `Denied` and note the refusal.

        Without `may_run` it is refused if an agent would get a turn by it.
        """
        self.check_open()
        denial = check_draft(draft)
        if denial is not None:
            raise await self.audit.refusal(Denied(denial.reason, live.state.channel_id, denial.detail), draft)
        if draft.causation_id is not None and (denied := await causation_denied(self.store, live, draft)) is not None:
            raise await self.audit.refusal(denied, draft)
        lane = taking.get()
        if lane is not None and lane[0] == live.state.channel_id:
            check_own_turn(live, draft, lane)
        again = draft if draft.envelope_id else None
        waited = False

        def plan(fold: Fold, laws: Laws, at: Instant) -> Admitted | Deny | Later:
            nonlocal waited
            said = marked_aside(draft) if waited and draft.sender_id in fold.state.speakers else draft
            outcome = step(fold, said, laws=laws, at=at, new_id=self.new_id)
            waited = waited or isinstance(outcome, Later)
            if may_run or not isinstance(outcome, Admitted):
                return outcome
            return denial_of_turns(fold.state, outcome.fold.state) or outcome

        try:
            work = live.submit(plan, draft.priority, again)
            envelope = await (
                waiting_for_others(work, live.state.channel_id) if waits_for_a_turn(live, draft) else work
            )
        except Denied as denied:
            raise await self.audit.refusal(denied, draft) from None
        assert envelope is not None, "an admitted draft is recorded"
        return envelope

    async def create(
        self,
        created: Created,
        channel_id: str = "",
        *,
        first: Envelope | None = None,
        before: Sequence[Envelope] = (),
    ) -> LiveChannel:
        """Record a new channel and its invitations, and what is said first once all accept; ask those who decide.

        `Denied` if the creator may not speak first. `before` is imported history: it is recorded behind the
        invitations, and nothing follows from it.
        """
        laws = await self.examination.laws_of(created)
        self.check_open()  # meanwhile it may have been closed
        await self._check_before(before, channel_id, first=first)
        guests = [seat.name for seat in created.participants if seat.name != created.creator]
        willing = {name for name in guests if not self.directory.find(name).asks}
        begun: list[Envelope] = []

        def begin(fold: Fold, laws: Laws, at: Instant) -> Admitted | Deny | None:
            if fold.state.sequence:  # somebody has made it meanwhile
                return None
            admitted = opening(fold, created, willing, laws=laws, at=at, new_id=self.new_id)
            batch, fold = list(admitted.batch), admitted.fold
            for each in before:
                admitted = record(fold, each, laws=laws, at=at, new_id=self.new_id)
                batch.extend(admitted.batch)
                fold = admitted.fold
            if first is not None:
                said = said_first(fold, first, laws=laws, at=at, new_id=self.new_id)
                if isinstance(said, Deny):
                    return said
                batch.extend(said.batch)
                fold = said.fold
            begun[:] = batch
            return Admitted(tuple(batch), fold)

        try:
            live = await self.channels.create(channel_id or self.new_id(), laws, begin)
        except Denied as denied:
            if first is not None:
                await self.audit.refusal(denied, first)
            raise
        self._put(live, [invite for invite in invitations(begun) if guest_of(invite) not in willing])
        return live

    async def _check_before(self, before: Sequence[Envelope], channel_id: str, *, first: Envelope | None) -> None:
        """`Denied` if imported history, or what is said first, cannot be recorded."""
        for draft in before if first is None else (*before, first):
            denial = check_draft(draft) if draft is first else check_data(draft)
            if denial is not None:
                raise await self.audit.refusal(Denied(denial.reason, channel_id, denial.detail), draft)

    async def ask(self, live: LiveChannel, name: str) -> None:
        """Let a guest decide on its invitation."""
        after = 0
        while page := (await self.store.read(live.state.channel_id, after=after)).envelopes:
            found = [invite for invite in invitations(page) if guest_of(invite) == name]
            if found:
                self._put(live, found)
                return
            after = page[-1].sequence

    def _put(self, live: LiveChannel, invites: Sequence[Envelope]) -> None:
        """Put invitations to guests who are registered here. Nobody is asked a second time meanwhile."""
        for invite in invites:
            if guest_of(invite) in self.acceptors and invite.envelope_id not in self._asked:
                self._asked.add(invite.envelope_id)
                self.spawn(self._ask(live, invite), f"invitation {invite.envelope_id}")

    async def _ask(self, live: LiveChannel, invite: Envelope) -> None:
        try:
            await self._answer(live, await decide_invitation(self.acceptors[guest_of(invite)], invite))
        finally:
            self._asked.discard(invite.envelope_id)

    async def _answer(self, live: LiveChannel, draft: Envelope) -> None:
        """Record what a guest decided, as soon as the store can; if the rules fail on it, the channel ends."""
        while not self.closing.is_set():
            try:
                await live.submit(
                    lambda fold, laws, at: (
                        record(fold, draft, laws=laws, at=at, new_id=self.new_id)
                        if draft.sender_id in fold.state.awaiting and not fold.state.ended
                        else None
                    )
                )
            except Denied as denied:
                await self.end(live, denied.reason, by=HUB)
            except (StoreUnavailable, OutcomeUnknown) as error:
                log.warning("the answer of %s cannot be recorded yet: %s", draft.sender_id, error)
                await self.clock.wait(self.closing, later(self.clock.now(), RETRY))
                continue
            return

    async def end(self, live: LiveChannel, reason: str, by: str) -> None:
        """Close a channel. One that has ended stays as it is."""
        self.check_open()
        draft = said_by_hub(EV_CHANNEL_CLOSED, {"reason": reason, "by": by})
        await live.submit(
            lambda fold, laws, at: (
                _shut(fold.state.status)
                or (None if fold.state.ended else record(fold, draft, laws=laws, at=at, new_id=self.new_id))
            )
        )

    async def until(self, live: LiveChannel, statuses: Sequence[str]) -> None:
        """Wait until the channel has one of these statuses, or the hub closes."""
        with self.feed.watching(live.state.channel_id) as grown:
            while live.state.status not in statuses and not self.closing.is_set():
                grown.clear()
                await waiting_for_others(self.feed.growth(grown), live.state.channel_id)

    async def _look(self, channel_id: str) -> None:
        await (await self.channels.get(channel_id)).look()

    def _clock_set(self, seconds: float) -> None:
        self.channels.clock_set(seconds)
        self.timers.wake()

    async def _clock_jumped(self, seconds: float) -> None:
        try:
            await self.audit.clock_jumped(seconds)
        except AntiphonError as error:
            log.warning("the jump of the clock could not be recorded: %s", error)

    async def _damaged(self, error: LogCorrupt) -> None:
        if error.channel_id.startswith(AUDIT):  # it is in use right now, and must be left before it can go on
            self.spawn(self._set_aside(error), f"quarantine of {error.channel_id}")
        else:
            await self._set_aside(error)

    async def _set_aside(self, error: LogCorrupt) -> None:
        """Record a quarantine, first for people, then in the listing: what is listed has been told."""
        await self.audit.quarantined(error)
        await self.store.mark(error.channel_id, status="quarantined", due=NEVER)


def _nothing_is_remembered(channel_id: str) -> None:
    """Without an engine no turn is run, and nothing is remembered of any."""


def _shut(status: str) -> Deny | None:
    return Deny("quarantined", "it can only be read") if status == "quarantined" else None
