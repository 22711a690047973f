"""The inside of one hub: its resources, and the admission of drafts to its channels.

Rule 1: a draft is checked without its channel, admitted by its channel, and a refusal is recorded in the audit.
Rule 2: a sender without the scope `invoke` is judged by what would follow: a draft that would give an agent a turn is
        refused, and nothing of it is recorded. A turn that is owed already, and only given again, is not a new one.
Rule 3: whether a draft answers an envelope of its own channel is a look-up by id when it is sent: in the ids recorded
        lately, then in the store's index. A log that holds other causations, written before, folds as it is.
Rule 4: closing is done once, to the end: turns stop, admissions finish, models and the store are closed, in this order.
Rule 5: models are checked when their agent is registered, and closed with the hub, or when a replaced definition has
        ended its last turn.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from weakref import WeakValueDictionary

import msgspec

from antiphon.agents.declaration import Declaration
from antiphon.agents.turn_channel import Delegates
from antiphon.core.envelope import CHANNEL_ID_PATTERN, NEVER, Envelope, IdSource, Instant
from antiphon.core.errors import AntiphonError, Denied, LogCorrupt, UnknownChannel, UsageError
from antiphon.core.event_data import Deny, check_draft, mark_aside
from antiphon.core.events import EV_CHANNEL_CLOSED
from antiphon.core.guard import Later
from antiphon.core.ruleset import Fold, Ruleset
from antiphon.core.state import State
from antiphon.core.step import Admitted, hub_draft, record, step
from antiphon.core.text import describe
from antiphon.engines.engine import Engine, ResumeLimit, TurnKey, current_turn_key, running_turn, wait_for_others
from antiphon.engines.environment import AgentDefinitions, RunningTurns, TurnEnvironment
from antiphon.hub.admission import AdmissionPlan
from antiphon.hub.channel_log import ChannelDeps
from antiphon.hub.clock import Clock, Continuity, TimeOrderedIds
from antiphon.hub.feed import Feed
from antiphon.hub.ledgers import Ledgers
from antiphon.hub.live import Channels, LiveChannel
from antiphon.hub.system_channels import AUDIT_CHANNEL, Audit, Directory
from antiphon.hub.timers import Timers
from antiphon.orchestration.catalogue import ruleset_for
from antiphon.runtime.conversation_defaults import ConversationDefaults
from antiphon.runtime.dispatch import Dispatch
from antiphon.runtime.hook_calls import Hooks
from antiphon.runtime.model_lifecycle import NamedModels, close_models
from antiphon.runtime.outbox import Transports
from antiphon.runtime.owed_sagas import OwedSagas
from antiphon.store.protocol import Store

logger = logging.getLogger("antiphon.hub")

Accept = Callable[[Envelope], bool | Awaitable[bool]]
"""Decides on an invitation."""


class AdmitDraft(msgspec.Struct):
    """Plans a participant's draft, if the rules allow it."""

    draft: Envelope
    new_id: IdSource
    may_run: bool = True
    """Whether an agent may get a turn by it."""
    follow_up: AdmissionPlan | None = None
    """Plans what is recorded with the draft, behind it."""
    deferred: bool = False
    """Whether it has waited for turns to end. If its sender has the turn by then, it interjects and keeps the turn."""

    def __call__(self, fold: Fold, ruleset: Ruleset, at: Instant) -> Admitted | Deny | Later:
        draft = self.draft
        if self.deferred and draft.sender_id in fold.state.speakers:
            draft = mark_aside(draft)
        outcome = step(fold, draft, ruleset=ruleset, at=at, new_id=self.new_id)
        self.deferred = self.deferred or isinstance(outcome, Later)
        if not isinstance(outcome, Admitted):
            return outcome
        denial = None if self.may_run else _denial_of_answers(fold, outcome.fold, ruleset)
        if denial is not None or self.follow_up is None:
            return denial or outcome
        more = self.follow_up(outcome.fold, ruleset, at)
        return Admitted((*outcome.batch, *more.batch), more.fold) if isinstance(more, Admitted) else outcome


def _denial_of_answers(before: Fold, after: Fold, ruleset: Ruleset) -> Deny | None:
    """Why a sender without the scope `invoke` may not bring this change about: an agent would answer, now or later."""
    if ruleset.promised_turns(after) > ruleset.promised_turns(before):
        return Deny("wrong_scope", "an agent would answer this later; the key also needs the scope 'invoke'")
    return denial_of_turns(before.state, after.state)


class CloseChannel(msgspec.Struct, frozen=True):
    """Plans the end of a channel. One that has ended stays as it is; one that is quarantined can only be read."""

    reason: str
    by: str
    new_id: IdSource

    def __call__(self, fold: Fold, ruleset: Ruleset, at: Instant) -> Admitted | Deny | None:
        if fold.state.status == "quarantined":
            return Deny("quarantined", "it can only be read")
        if fold.state.ended:
            return None
        closed = hub_draft(EV_CHANNEL_CLOSED, {"reason": self.reason, "by": self.by})
        return record(fold, closed, ruleset=ruleset, at=at, new_id=self.new_id)


def denial_of_turns(before: State, after: State) -> Deny | None:
    """Why a sender without the scope `invoke` may not bring this change about; None if no agent gets a turn by it."""
    new = Counter(turn.speaker for turn in after.owed) - Counter(turn.speaker for turn in before.owed)
    if not new:
        return None
    names = ", ".join(map(repr, sorted(new)))
    return Deny("wrong_scope", f"this gives {names} a turn, for which the key also needs the scope 'invoke'")


class HubCore:
    """What the handles of a hub share, and the port that `server` and `cli` use as `hub.core`.

    `server` and `cli` may use, of this class: `live`, `store`, `clock`, `directory`, `audit`, `agents`, `channels`,
    `locks`, `system_folds`, `transports` and `closing`. They also pass it to the functions of `runtime` that take a
    core. The rest is for `runtime` alone.
    """

    def __init__(self, store: Store, clock: Clock, engine: Engine | None, *, limit: ResumeLimit) -> None:
        self.store, self.clock, self.engine, self._limit = store, clock, engine, limit
        self._loop = asyncio.get_running_loop()
        self.new_id = TimeOrderedIds()
        self.feed = Feed()
        self.continuity = Continuity(store, clock, woken=self._on_clock_set)
        self.timers = Timers(
            store, self.continuity, owner=self.new_id(), look=self._check_due, jumped=self._on_clock_jumped
        )
        self.channels = Channels(self._channel_deps())
        self.closing = asyncio.Event()
        self.hooks = Hooks(self.channels, clock, self.new_id, spawn=self.spawn, closing=self.closing)
        self.conversation_defaults = ConversationDefaults()
        self.transports = Transports(self.channels, clock, self.new_id, spawn=self.spawn, closing=self.closing)
        self.ruleset_check_lock = asyncio.Lock()
        self.directory, self.audit = Directory(self.channels), Audit(self.channels, clock)
        self.ledgers, self.models, self.sagas = Ledgers(self.channels), NamedModels(), OwedSagas(self.channels)
        self.system_folds: dict[str, object] = {}
        """Folds of system channels that are not the hub's own, by channel, so that all users of a hub share one."""
        self.agents: dict[str, Declaration] = {}
        """The agents registered in this hub, whose turns it runs."""
        self.definitions = AgentDefinitions(self.agents)
        self.clear_channels: set[str] = set()
        """The channels in which nothing waits for a person, as far as this hub knows."""
        self.dispatch = Dispatch(engine, store, self.channels, agents=self.agents, limit=limit)
        self.continuity.waited_until = self.dispatch.waited_until  # set late: the dispatcher needs what needs this
        self.continuity.is_unattended = self.dispatch.is_unattended
        self.names_by_lower: dict[str, str] = {}
        """The participants registered here, and those about to be: the name in lower case to the name."""
        self.acceptors: dict[str, Accept | None] = {}
        """The participants registered in this hub, and how they decide on invitations; None accepts all."""
        self.pending_invitations: set[str] = set()
        """The ids of the invitations that are being decided."""
        self.stopped = asyncio.Event()
        """Set when no turn runs any more."""
        self.waiting_turns: dict[TurnKey, list[TurnKey]] = {}
        """Which turns wait for an answer of which others."""
        self._tasks: set[asyncio.Future[None]] = set()
        self.locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """By key: finding or making something is done by one caller at a time."""
        self.forget: Callable[[str], None] = lambda channel_id: None
        """Drops what agents remember of a channel: nothing, while no turn is run here."""
        self._opened = False
        self._close_task: asyncio.Future[None] | None = None

    def _channel_deps(self) -> ChannelDeps:
        return ChannelDeps(
            self.store,
            ruleset_for,
            self.continuity,
            self.new_id,
            self.feed,
            on_due_earlier=self.timers.armed,
            on_damage=self._on_damage,
            on_turns_changed=self._on_turns_changed,
        )

    async def open(self, delegates: Delegates) -> None:
        """Load the registry and the keys, and start the tasks of the hub. A second call does nothing."""
        if self._opened:
            return
        await self.directory.load()
        await self.continuity.begin()
        self._opened = True
        self.spawn(self.channels.watch_store(), "store")
        await self.timers.begin()
        self.spawn(self.timers.run(), "timers")
        self.spawn(self.continuity.run(), "continuity")
        if self.engine is not None:
            # Loaded here: a hub that only looks at a store does not load what runs turns.
            from antiphon.engines.compensations import Compensations
            from antiphon.engines.turn import TurnHandler

            environment = TurnEnvironment(
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
                self.hooks,
                self.ledgers,
                self.models.find,
                RunningTurns(),
            )
            turns, compensations = TurnHandler(environment), Compensations(environment, self.spawn)
            self.forget = turns.forget
            self.dispatch.delegates = delegates
            await self.engine.serve(turns)
            self.spawn(turns.timers.run(), "alarms")
            self.spawn(compensations.timers.run(), "timeouts of compensations")
            await self.sagas.run(compensations)
            self.spawn(self.dispatch.run(self.clock), "dispatch")
            self.spawn(self.dispatch.resume(self.clock), "resuming")

    async def close(self) -> None:
        """Finish what waits for admission, stop everything else, and close the store.

        It is done once, to the end, however many callers ask for it or stop waiting.
        """
        if self._close_task is None:
            self.closing.set()
            self.feed.wake_all()
            self._close_task = asyncio.ensure_future(self._shut_down())
        await asyncio.shield(self._close_task)

    async def _shut_down(self) -> None:
        try:
            if self.engine is not None:
                await self.engine.stop()
            await self.sagas.stop()
            self.stopped.set()
            self.feed.wake_all()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self.channels.wait_idle()
            await close_models(self.definitions.all())
            await self.models.close()
        finally:
            await self.store.close()

    def _on_turns_changed(self, channel_id: str) -> None:
        self.clear_channels.discard(channel_id)
        self.dispatch.turns_changed(channel_id)

    def spawn(self, work: Coroutine[None, None, None], name: str) -> asyncio.Task[None]:
        """Run something until it ends or the hub closes. What it raises is logged."""
        task = asyncio.create_task(self._log_errors(work, name), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: work.close())  # of a task that was cancelled before it began
        return task

    async def _log_errors(self, work: Coroutine[None, None, None], name: str) -> None:
        try:
            await work
        except Exception:
            if not self.closing.is_set():
                logger.exception("%s ended with an error", name)

    async def live(self, channel_id: str, participant: str | None = None) -> LiveChannel:
        """The channel of this id; `UnknownChannel` if there is none, or this participant is not in it."""
        self._check_id(channel_id)
        live = await self.channels.get(channel_id)
        if participant is not None and participant not in live.state.participant_order:
            raise UnknownChannel(channel_id)
        return live

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
        if not isinstance(channel_id, str) or not CHANNEL_ID_PATTERN.match(channel_id):
            raise UnknownChannel(channel_id)

    async def admit(self, live: LiveChannel, draft: Envelope, *, may_run: bool = True) -> Envelope:
        """Record a participant's draft, or raise `Denied` and note the refusal.

        Without `may_run` it is refused if an agent would get a turn by it.
        """
        self.check_open()
        channel_id = live.state.channel_id
        denial = check_draft(draft)
        if denial is None and draft.causation_id is not None:
            denial = await self._causation_denial(live, draft, draft.causation_id)
        if denial is not None:
            raise await self.audit.refusal(Denied(denial.reason, channel_id, denial.detail), draft)
        if not self.hooks.screening or not self.hooks.screens(live, draft):
            return await self._submit(live, draft, may_run=may_run)
        # A repeated send waits for the first one: hooks are asked about a message once.
        async with self.locks.setdefault(f"{channel_id} {draft.envelope_id or self.new_id()}", asyncio.Lock()):
            self.check_open()
            screened = await self.hooks.screen(live, draft)
            if isinstance(screened, Deny):
                raise await self.audit.refusal(Denied(screened.reason, channel_id, screened.detail), draft)
            return await self._submit(live, screened, may_run=may_run)

    async def _submit(self, live: LiveChannel, draft: Envelope, *, may_run: bool) -> Envelope:
        """Record a checked draft, or raise `Denied` and note the refusal."""
        must_wait = _must_wait_for_turn(live, draft)
        try:
            connection = self.transports.connection(live, draft) if self.transports.in_use else None
            plan = AdmitDraft(draft, self.new_id, may_run, connection)
            work = live.submit(plan, draft.priority, draft if draft.envelope_id else None)
            envelope = await (wait_for_others(work, live.state.channel_id) if must_wait else work)
        except Denied as denied:
            raise await self.audit.refusal(denied, draft) from None
        assert envelope is not None, "an admitted draft is recorded"
        return envelope

    async def _causation_denial(self, live: LiveChannel, draft: Envelope, cause: str) -> Deny | None:
        """Why a draft may not answer this envelope. A non-participant and a closed channel are refused for that alone.

        A draft that is recorded already passes: its first admission decided.
        """
        state = live.state
        if cause in live.log.recent_ids or draft.sender_id not in state.participants or state.status != "active":
            return None
        if await self.store.find(state.channel_id, [cause, draft.envelope_id] if draft.envelope_id else [cause]):
            return None
        advice = "give the envelope_id of one, or leave it out"
        return Deny("unknown_causation", f"no envelope of this channel has the id {describe(cause)}; {advice}")

    async def end_channel(self, live: LiveChannel, reason: str, by: str) -> None:
        """Close a channel. One that has ended stays as it is."""
        self.check_open()
        await live.submit(CloseChannel(reason, by, self.new_id))

    async def wait_for_status(self, live: LiveChannel, statuses: Sequence[str]) -> None:
        """Wait until the channel has one of these statuses, or the hub closes."""
        with self.feed.watching(live.state.channel_id) as grown:
            while live.state.status not in statuses and not self.closing.is_set():
                grown.clear()
                await wait_for_others(self.feed.growth(grown), live.state.channel_id)

    async def _check_due(self, channel_id: str) -> None:
        live = await self.channels.get(channel_id)
        live.log.in_doubt = live.log.in_doubt or self.store.caps.many_hubs  # another hub may have gone on with it
        await live.record_due()
        self.transports.look_at(live)
        self.sagas.look_at(live)

    def _on_clock_set(self, seconds: float) -> None:
        self.channels.clock_set(seconds)
        self.timers.wake()

    async def _on_clock_jumped(self, seconds: float) -> None:
        try:
            await self.audit.clock_jumped(seconds)
        except AntiphonError as error:
            logger.warning("the jump of the clock could not be recorded: %s", error)

    async def _on_damage(self, error: LogCorrupt) -> None:
        if error.channel_id.startswith(AUDIT_CHANNEL):  # it is in use right now, and must be left before it can go on
            self.spawn(self._record_quarantine(error), f"quarantine of {error.channel_id}")
        else:
            await self._record_quarantine(error)

    async def _record_quarantine(self, error: LogCorrupt) -> None:
        """Record a quarantine, first in the audit, then in the listing: a listed one is in the audit."""
        await self.audit.quarantined(error)
        await self.store.mark(error.channel_id, status="quarantined", due=NEVER)


def _must_wait_for_turn(live: LiveChannel, draft: Envelope) -> bool:
    """Whether a draft from inside of a turn waits for the end of another.

    `UsageError` if it would wait for the end of its own turn, which waits for the tool that sends it.
    """
    if running_turn.get() is None or not isinstance(live.ruleset.judge(live.fold, draft), Later):
        return False
    turn_key = current_turn_key.get()
    if turn_key is not None and turn_key[0] == live.state.channel_id:
        raise UsageError(
            f"{draft.sender_id!r} cannot interject from inside of a turn of {turn_key[1]!r} here: it would wait "
            "for the end of that turn; return it from the tool, or send it when the turn is over"
        )
    return True
