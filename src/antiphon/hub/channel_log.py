"""One channel's log and the fold of it: load, append, reload, read, snapshot, quarantine.

Rule 1: a log is folded when its channel is first touched, from its snapshot and what follows.
Rule 2: the fold moves only after the store has the batch it was moved by.
Rule 3: when the store's answer is lost, the same batch is offered again. If that fails too, the caller marks the fold
        as in doubt: before the next decision, what was recorded is read again, folded and published.
Rule 4: a log that cannot be read, or be trusted any more, is quarantined, and only that one: it can only be read, up to
        the damage.

Who appends is decided in `hub.live`: one admission at a time. Nothing here waits for another caller.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from antiphon.core.codec import Malformed, from_json, to_json
from antiphon.core.envelope import ERASED, NEVER, Envelope, IdSource, Instant, Json, is_tombstone
from antiphon.core.errors import (
    Conflict,
    Denied,
    IdReused,
    LogCorrupt,
    OutcomeUnknown,
    RulesInvalid,
    StoreError,
    UnknownChannel,
)
from antiphon.core.event_data import event_of
from antiphon.core.events import ChannelCreated
from antiphon.core.guard import Deadline
from antiphon.core.ruleset import Fold, Ruleset, RulesetFactory, SavedFold, restore_fold
from antiphon.core.state import State, Turn
from antiphon.core.step import Admitted, tick
from antiphon.core.text import describe, describe_error
from antiphon.hub.clock import ChannelTime, Continuity
from antiphon.hub.feed import Feed, RecentIds, TailCache
from antiphon.hub.known_secrets import redact_error
from antiphon.store.protocol import ChannelRow, Snapshot, Store

logger = logging.getLogger("antiphon.hub")

ENVELOPES_PER_SNAPSHOT = 256
APPEND_ATTEMPTS = 3
LARGE_KNOBS_BYTES = 16 * 1024
"""From how many bytes on knobs are read by a thread: a thousand rules take longer than the loop may stop."""


class ChannelDeps(msgspec.Struct, frozen=True):
    """What the channels of one hub share."""

    store: Store
    ruleset_for: RulesetFactory
    continuity: Continuity
    new_id: IdSource
    feed: Feed
    on_due_earlier: Callable[[Instant], None]
    """Called when a channel falls due earlier than was known."""
    on_damage: Callable[[LogCorrupt], Awaitable[None]]
    """Called when a log cannot be trusted any more."""
    on_turns_changed: Callable[[str], None]
    """Called after the append when the turns that a channel is owed have changed. It must not block."""
    on_recorded: list[Callable[[str, list[Envelope]], None]] = []
    """Called after each append with what it recorded; empty while there are no hooks and no transports. They must not
    block."""


class ChannelLog:
    """The fold of one channel, and the store it is folded from."""

    def __init__(
        self, ruleset: Ruleset, fold: Fold, deps: ChannelDeps, *, due: Instant = NEVER, snapshot_at: int = 0
    ) -> None:
        self.ruleset, self.fold, self.deps = ruleset, fold, deps
        self.time = ChannelTime(deps.continuity, _next_deadline(ruleset, fold))
        self.tail, self.recent_ids = TailCache(), RecentIds()
        self.in_doubt = False
        """Whether the store may hold more than was folded: an append was cut off, or its answer was lost."""
        self.due_checked = False
        """Whether the index asked this channel to look; it is then told when to look again."""
        self.damage: LogCorrupt | None = None
        """Why the channel is quarantined."""
        self._due = due
        """What the store's index holds; an earlier deadline goes with the append that makes it."""
        self._snapshot_at = snapshot_at

    @property
    def state(self) -> State:
        return self.fold.state

    def tick(self, fold: Fold, ruleset: Ruleset, at: Instant) -> Admitted | None:
        """Plan what has fallen due by now."""
        breaks = self.time.breaks(self.state.channel_id)
        return tick(fold, ruleset=ruleset, at=at, new_id=self.deps.new_id, breaks=breaks)

    async def record(self, batch: list[Envelope], fold: Fold) -> bool:
        """Append a batch, then fold and publish it; False if another hub appended first."""
        deadline = _next_deadline(self.ruleset, fold)
        at = self.time.on_clock(deadline)
        known = NEVER if fold.state.ended else self._due  # a store forgets when a channel is due as it ends
        due = at if not known or at < known else NEVER
        if not await self._append(batch, due):
            return False
        if due:
            self._due = due
            self.deps.on_due_earlier(due)
        if self.damage is None:  # a reader may have met some during the append
            before = self._replace_fold(fold, deadline)
            self._publish(batch, before)
            self._notify_turns_changed(before)
        for tell in self.deps.on_recorded:
            tell(self.state.channel_id, batch)
        return True

    async def _append(self, batch: list[Envelope], due: Instant) -> bool:
        store, state = self.deps.store, self.state
        doubt: OutcomeUnknown | None = None
        for _ in range(APPEND_ATTEMPTS):
            try:
                done = await store.append(state.channel_id, batch, expected=state.sequence, due=due or None)
                return not done.duplicate or await self._is_ours(batch)
            except Conflict:
                return False
            except IdReused:
                if await store.head(state.channel_id) == state.sequence:  # no race: a retry would never end
                    raise
                return False
            except OutcomeUnknown as error:
                doubt = error
            except StoreError as error:
                if doubt is None:
                    raise
                raise doubt from error  # what became of the first attempt is still unknown
        assert doubt is not None, "every repeat ended in doubt"
        raise doubt

    async def _is_ours(self, batch: list[Envelope]) -> bool:
        """Whether this very batch is recorded, not only another one with the same first id."""
        last = batch[-1]
        found = await self.deps.store.find(last.channel_id, [last.envelope_id])
        return found.get(last.envelope_id) == last

    def _replace_fold(self, fold: Fold, deadline: Deadline | None) -> Fold:
        """Use another fold from now on. Returns the one before."""
        before, self.fold, self.time.deadline = self.fold, fold, deadline
        return before

    def _notify_turns_changed(self, before: Fold) -> None:
        owed, known = self.state.owed, before.state.owed
        # `evolve` keeps the identity of `owed` while no turn changes: most appends are through after one comparison.
        # A copy with the same content would compare every turn on every append.
        if owed is not known and _turns_to_run(owed) != _turns_to_run(known):
            self.deps.on_turns_changed(self.state.channel_id)

    def _publish(self, batch: list[Envelope], before: Fold) -> None:
        state, feed = self.state, self.deps.feed
        self.recent_ids.add(batch)
        watched = feed.has_watchers(state.channel_id, state.participants)
        if watched or self._agent_will_read(before.state):
            self.tail.add(batch)
        else:
            self.tail.clear()  # the tail has no gaps
        if watched:
            feed.publish(state.channel_id, state.participants)

    def _agent_will_read(self, before: State) -> bool:
        """Whether the next turn reads what was just recorded: from the opening on, as long as turns are owed.

        The last batch of a turn counts too: an agent reads behind the message that it answered last.
        """
        state = self.state
        if state.ended:
            return False
        return bool(state.owed or before.owed) or (not before.sequence and "agent" in state.participants.values())

    async def read(self, after: int) -> Sequence[Envelope]:
        """The envelopes behind `after`, as far as one page goes; none at the end."""
        if after >= self.state.sequence:
            return ()
        recent = self.tail.after(after)
        return recent or (await self.deps.store.read(self.state.channel_id, after=after)).envelopes

    async def tidy_up(self) -> None:
        """What no caller waits for: tell the index when to look again, and keep a snapshot now and then."""
        if self.due_checked:
            await self._note_due()
        if self.state.sequence - self._snapshot_at >= ENVELOPES_PER_SNAPSHOT:
            await self._keep_snapshot()

    async def _note_due(self) -> None:
        """Tell the index when to look again. No append is in progress that could have set something earlier."""
        due = self.time.on_clock(self.time.deadline)
        try:
            await self.deps.store.mark(self.state.channel_id, due=due)
        except StoreError as error:
            logger.warning("channel %s could not say when it is due: %s", self.state.channel_id, error)
        else:
            self.due_checked, self._due = False, due

    async def _keep_snapshot(self) -> None:
        self._snapshot_at = self.state.sequence
        try:
            snapshot = Snapshot(self._snapshot_at, self.ruleset.version, to_json(self.fold))
            await self.deps.store.put_snapshot(self.state.channel_id, snapshot)
        except Exception as error:  # an adapter's memory may be anything; without a snapshot the log is folded
            logger.warning("channel %s has no new snapshot: %s", self.state.channel_id, describe_error(error))

    async def catch_up(self) -> None:
        """End a doubt: wait for an append still in progress, and read what was recorded."""
        await self.deps.store.mark(self.state.channel_id)  # returns once that append is recorded or lost (G12)
        await self.reload()
        self.in_doubt = False

    async def reload(self) -> None:
        """Fold and publish what was recorded meanwhile."""
        store, known, fold = self.deps.store, self.state.sequence, self.fold
        while envelopes := (await store.read(fold.state.channel_id, after=fold.state.sequence)).envelopes:
            fold = self.ruleset.fold_all(fold, envelopes)
        if fold.state.sequence == known:
            await _check_log_complete(store, fold)
            return
        self.tail.clear()
        before = self._replace_fold(fold, _next_deadline(self.ruleset, fold))
        self._notify_turns_changed(before)
        self.deps.feed.publish(fold.state.channel_id, fold.state.participants)
        if due := self.time.on_clock(self.time.deadline):
            self.deps.on_due_earlier(due)

    async def erase(self, ruleset: Ruleset) -> int:
        """Erase the content in the store, and fold what is left. Returns the number of records."""
        erased = await self.deps.store.erase(self.state.channel_id)
        self.ruleset, self.fold = ruleset, ruleset.begin(self.state.channel_id)
        self.tail, self.recent_ids = TailCache(), RecentIds()
        await self.reload()
        self._snapshot_at = self.state.sequence  # tombstones need no snapshot
        return erased

    def quarantine(self, error: LogCorrupt) -> None:
        """Keep only what is before the damage."""
        self.damage = error
        state = msgspec.structs.replace(self.state, status="quarantined", sequence=error.sequence - 1)
        self._replace_fold(Fold(state, self.fold.memories), None)
        self.in_doubt = False
        self.tail.clear()

    async def report_damage(self, error: LogCorrupt) -> None:
        """Wake the readers, and record the quarantine."""
        self.deps.feed.publish(self.state.channel_id, self.state.participants)
        try:
            await self.deps.on_damage(error)
        except StoreError as trouble:
            logger.warning("channel %s is quarantined, which could not be recorded: %s", self.state.channel_id, trouble)


def _next_deadline(ruleset: Ruleset, fold: Fold) -> Deadline | None:
    """When something is due next. If a guard fails over that, it refuses everything, as it does if it judges."""
    try:
        deadline: object = ruleset.due(fold)
    except Exception as error:  # a guard of a user's may raise anything
        raise Denied("rules_failed", fold.state.channel_id, redact_error(error)) from error
    if deadline is None or isinstance(deadline, Deadline):
        return deadline
    said = f"due of a guard returned {describe(deadline)}; return a Deadline or None"
    raise Denied("rules_failed", fold.state.channel_id, said)


async def _check_log_complete(store: Store, fold: Fold) -> None:
    """`LogCorrupt` if the log ends before what was folded from it."""
    channel_id, known = fold.state.channel_id, fold.state.sequence
    head = await store.head(channel_id)
    if head < known:
        raise LogCorrupt(channel_id, head + 1, f"the log ends here, but went on to {known} before")


def _turns_to_run(owed: Sequence[Turn]) -> list[tuple[str, bool]]:
    return [(turn.turn_id, turn.waits_for_person) for turn in owed]


async def load_log(channel_id: str, deps: ChannelDeps) -> ChannelLog:
    """The log of a stored channel; `UnknownChannel` if there is none."""
    store = deps.store
    row = await store.row(channel_id)
    if row is None and await store.head(channel_id) == 0:
        raise UnknownChannel(channel_id)
    row = row or ChannelRow(channel_id)
    try:
        ruleset, begun = await _begin_fold(row, deps)
        fold = await _fold_rest(ruleset, begun, store)
    except LogCorrupt as error:
        return await _damaged_log(row, error, deps)
    if row.status == "quarantined":  # it was repaired
        await store.mark(channel_id, status=fold.state.status)
    return ChannelLog(ruleset, fold, deps, due=row.due, snapshot_at=begun.state.sequence)


async def _begin_fold(row: ChannelRow, deps: ChannelDeps) -> tuple[Ruleset, Fold]:
    """A channel's ruleset, and its fold as far as a snapshot goes; a damaged one is read from its beginning."""
    store, channel_id = deps.store, row.channel_id
    snapshot = await store.get_snapshot(channel_id) if row.status != "quarantined" else None
    restored = await _restore_fold(snapshot, deps.ruleset_for) if snapshot else None
    if restored is not None:
        await _check_log_complete(store, restored[1])
        return restored
    page = (await store.read(channel_id, limit=1)).envelopes
    if page and is_tombstone(page[0]):
        ruleset = deps.ruleset_for(ERASED, {})
        return ruleset, ruleset.begin(channel_id)
    created = event_of(page[0]) if page else None
    if not isinstance(created, ChannelCreated):
        raise LogCorrupt(channel_id, 1, "the log does not begin with the channel's creation")
    ruleset = await _load_ruleset(created.type, created.knobs, deps.ruleset_for)
    return ruleset, ruleset.begin(channel_id)


async def _restore_fold(snapshot: Snapshot, ruleset_for: RulesetFactory) -> tuple[Ruleset, Fold] | None:
    try:
        saved = from_json(snapshot.blob, SavedFold)
    except Malformed:
        return None
    ruleset = await _load_ruleset(saved.state.type, saved.state.knobs, ruleset_for)
    fold = restore_fold(ruleset, saved) if ruleset.version == snapshot.version else None
    return None if fold is None else (ruleset, fold)


async def _load_ruleset(channel_type: str, knobs: Json, ruleset_for: RulesetFactory) -> Ruleset:
    """The ruleset of a stored channel. The event loop goes on while large knobs are read."""
    if len(to_json(knobs)) < LARGE_KNOBS_BYTES:
        return ruleset_for(channel_type, knobs)
    return await asyncio.to_thread(ruleset_for, channel_type, knobs)


async def _fold_rest(ruleset: Ruleset, fold: Fold, store: Store) -> Fold:
    channel_id = fold.state.channel_id
    while envelopes := (await store.read(channel_id, after=fold.state.sequence)).envelopes:
        try:
            fold = ruleset.fold_all(fold, envelopes)
        except Exception as error:
            raise RulesInvalid(f"the rules of {channel_id!r} fail on its log: {describe_error(error)}") from error
    return fold


async def _damaged_log(row: ChannelRow, error: LogCorrupt, deps: ChannelDeps) -> ChannelLog:
    """A log of which only the listing and the good part are left."""
    people = dict.fromkeys(row.participants, "service")
    state = State(row.channel_id, type=row.type, creator_id=row.creator_id, participants=people)
    if row.status != "quarantined":
        await deps.on_damage(error)
    found = ChannelLog(deps.ruleset_for("quarantine", {}), Fold(state), deps)
    found.quarantine(error)
    return found
