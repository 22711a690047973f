"""What follows when the process that ran a turn has died: a pause that grows, then one suspect at a time.

Rule 1: a crash is recorded before anything else is done about it, and recorded once.
Rule 2: a clean stop is no crash, nor is an attempt that ended in a doubt: neither leaves the turn an owner.
Rule 3: while a turn waits for tasks, crashes count against the turns of the tasks first: it may crash more often, and
        goes on without a pause, so that the tasks are stopped at once if it is cancelled.
Rule 4: of all turns that were in progress during a crash (suspects) one runs at a time, with no limit on the wait, so
        that one that ends its process every time takes along no other suspect.
Rule 5: a call that returns clears the suspicion: the crashes of that turn are counted anew. The next suspect still
        waits until the cleared turn is over: a second crash would hit it a second time.
Rule 6: while a turn waits inside the hub for other turns, a suspect among those may start, and among the turns that
        those wait for. No other may, which could hit the waiting turn again.
Rule 7: where no turn of this process can end such a wait (a person has to speak, or code outside of all turns), the
        hub cannot tell what the wait depends on. Any suspect may start then, or all of them might wait for ever.
Rule 8: a suspect starts beside turns of the tasks that it gave itself: it must be there to stop them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Protocol

import msgspec

from antiphon.core.envelope import HUB, Envelope, IdSource, Instant, add_seconds
from antiphon.core.event_data import data_of
from antiphon.core.events import EV_TASK_PROGRESS, EV_TASK_STARTED, TASK_END_TYPES
from antiphon.core.execution_events import (
    EV_TURN_CLAIMED,
    EV_TURN_DELAYED,
    EV_TURN_SUSPENDED,
    MAX_CRASH_PAUSE_SECONDS,
    TurnDelayed,
    TurnSuspended,
    crash_pause,
)
from antiphon.core.ruleset import Fold, Ruleset
from antiphon.core.state import Turn
from antiphon.core.step import Admitted, hub_draft, journal_draft, pending_turns, record, turn_audience
from antiphon.hub.live import LiveChannel

logger = logging.getLogger("antiphon.engine")

WAITING_CRASH_LIMIT_FACTOR = 10
"""How many times the limit of crashes holds for a turn that waits for tasks."""


def has_crashed(turn: Turn, owner: str) -> bool:
    """Whether the process that claimed this turn has died, and that is not recorded yet. Call after the takeover."""
    return turn.owner not in ("", owner) and not turn.not_before


def crash_pause_end(turn: Turn, now: Instant) -> Instant | None:
    """The end of the pause after a crash, if it lies ahead.

    A pause longer than any that is ever recorded is no pause: the clock was set back, and the turn goes on.
    """
    return turn.not_before if now < turn.not_before <= add_seconds(now, MAX_CRASH_PAUSE_SECONDS) else None


async def record_crash(
    live: LiveChannel, turn: Turn, entries: Iterable[Envelope], *, limit: int | None, new_id: IdSource
) -> None:
    """Record the crash of a turn: with the pause that follows, or that the turn is suspended."""
    tasks = turn_tasks_in(entries, turn.turn_id)
    crashes = max(1, min(max(turn.crashes + 1, turn.attempts), tasks.claims_since))
    most = None if limit is None else limit * (WAITING_CRASH_LIMIT_FACTOR if tasks.in_progress else 1)
    suspended = most is not None and crashes >= most
    channel_id = live.state.channel_id
    jitter = Random(f"{channel_id} {turn.turn_id} {turn.epoch}").random()
    pause = 0.0 if tasks.in_progress else crash_pause(crashes, jitter)
    await live.submit(_RecordCrash(turn, crashes, None if suspended else pause, new_id))
    what = "waits for a person's decision" if suspended else "is attempted again after a pause"
    level = logging.WARNING if suspended else logging.INFO
    logger.log(
        level,
        "turn %s of %s was in progress during %d crashes in a row, and %s",
        turn.turn_id,
        channel_id,
        crashes,
        what,
    )


@dataclass(frozen=True)
class _RecordCrash:
    """Plans the record of a crash, unless the turn has ended, was claimed or has it recorded meanwhile."""

    turn: Turn
    crashes: int
    pause: float | None
    """In seconds; None to suspend the turn."""
    new_id: IdSource

    def __call__(self, fold: Fold, ruleset: Ruleset, at: Instant) -> Admitted | None:
        turn = self.turn
        now = next((each for each in pending_turns(fold.state) if each.turn_id == turn.turn_id), None)
        if now is None or now.epoch != turn.epoch or now.owner != turn.owner or now.not_before:
            return None
        if self.pause is None:
            draft = _suspension_draft(turn, self.crashes)
        else:
            draft = _delay_draft(turn, self.crashes, until=add_seconds(at, self.pause))
        return record(fold, draft, ruleset=ruleset, at=at, new_id=self.new_id)


def _delay_draft(turn: Turn, crashes: int, *, until: Instant) -> Envelope:
    return journal_draft(EV_TURN_DELAYED, TurnDelayed(turn.turn_id, turn.epoch, crashes, until), cause=turn.cause)


def _suspension_draft(turn: Turn, crashes: int) -> Envelope:
    times = "once" if crashes == 1 else f"{crashes} times in a row"
    why = f"its process died {times}, and none of its calls returned in between"
    event = TurnSuspended(turn.turn_id, turn.speaker, crashes, why)
    audience = turn_audience(turn)  # everybody who heard what it answers: a person must hear of it
    return hub_draft(EV_TURN_SUSPENDED, data_of(event), cause=turn.cause, audience=audience)


TASK_ACTIVE_TYPES = frozenset({EV_TASK_STARTED, EV_TASK_PROGRESS})


class TurnTasks(msgspec.Struct, frozen=True):
    """The tasks of a turn, as far as its log tells."""

    in_progress: frozenset[object] = frozenset()
    claims_since: int = 0
    """How often the turn was claimed since the last record of them, or since it was assigned."""


def turn_tasks_in(log: Iterable[Envelope], turn_id: str) -> TurnTasks:
    """The tasks that earlier attempts at a turn have given."""
    given = TurnTasks()
    for envelope in log:
        if envelope.sender_id != HUB or envelope.event_data.get("turn") != turn_id:
            continue
        task = envelope.event_data.get("task")
        if envelope.event_type == EV_TURN_CLAIMED:
            given = TurnTasks(given.in_progress, given.claims_since + 1)
        elif envelope.event_type in TASK_END_TYPES:
            given = TurnTasks(given.in_progress - {task})
        elif envelope.event_type in TASK_ACTIVE_TYPES:
            given = TurnTasks(given.in_progress | {task})
    return given


ANY_CHANNEL = ""
"""What a turn waits for that reads an inbox: any channel may end the wait."""


class OwedWork(Protocol):
    """What the logs say of a channel that a turn waits for."""

    def speakers(self, channel_id: str) -> Iterable[str]:
        """The agents of this process that owe the channel a turn which does not wait for a person."""
        ...

    def tasks(self, channel_id: str) -> Iterable[str]:
        """The channels of the tasks that turns of this channel have given."""
        ...

    def head(self, channel_id: str) -> int:
        """The sequence of the last envelope."""
        ...


class ChannelWait(msgspec.Struct, frozen=True, eq=False):
    """A call of a turn waits until something happens in a channel."""

    channel_id: str
    head: int
    """How far the channel had come when the wait began. If it has grown since, the call is about to go on."""


class GatedTurn:
    """One attempt as `SuspectGate` sees it: whether it is a suspect, and what its calls wait for."""

    def __init__(self, gate: SuspectGate, channel_id: str, speaker: str, *, crashes: int) -> None:
        self._gate = gate
        self.channel_id, self.speaker, self.crashes = channel_id, speaker, crashes
        self.is_suspect = crashes > 0
        """Whether a crash has hit it, and no call of it has returned since: it may not run beside other suspects."""
        self.waits: set[ChannelWait] = set()
        """Those of its calls."""

    @property
    def was_interrupted(self) -> bool:
        """Whether a crash has hit it, also if the suspicion was cleared: another one would be its second (Rule 5)."""
        return self.crashes > 0

    async def enter(self, stopping: asyncio.Event) -> bool:
        """Wait until this turn may run; False if the engine stops before."""
        return await self._gate.enter(self, stopping)

    def clear(self) -> None:
        """End the suspicion: a call of this turn has returned."""
        if self.is_suspect:
            self.is_suspect = False
            self._gate.let_run()

    def leave(self) -> None:
        """The attempt is over."""
        self._gate.leave(self)

    @asynccontextmanager
    async def waiting_for(self, channel_id: str) -> AsyncIterator[None]:
        """Inside, a call of this turn waits until something happens in this channel, or in any.

        Behind the wait the turn goes on as soon as no other suspect runs; a call that is cancelled, at once.
        """
        wait = self._gate.wait_for(channel_id)
        self.waits.add(wait)
        self._gate.let_run()
        cancelled = False
        try:
            yield
        except asyncio.CancelledError:
            cancelled = True
            raise
        finally:
            self.waits.discard(wait)
            if cancelled:
                self._gate.let_run()
            else:
                await self._gate.go_on(self)


class _GateEntry:
    """A suspect that wants to run: for the first time, or behind a wait of one of its calls."""

    def __init__(self, run: GatedTurn, number: int) -> None:
        self.run, self.granted = run, asyncio.get_running_loop().create_future()
        self.order = run.crashes, number


class SuspectGate:
    """Decides which of the suspects in a process may run."""

    def __init__(self, owed: OwedWork) -> None:
        self._owed = owed
        self._runs: dict[str, list[GatedTurn]] = {}
        """Every attempt that has started and is not over, by its channel."""
        self._starting: list[_GateEntry] = []
        self._returning: list[_GateEntry] = []
        """Those that have started, and whose waits are over. One attempt may be here several times."""
        self._numbers = count()

    async def enter(self, run: GatedTurn, stopping: asyncio.Event) -> bool:
        """Wait until a turn may start; False if `stopping` is set before. Only suspects wait."""
        if not run.is_suspect:
            self._start(run)
            return True
        entry = _GateEntry(run, next(self._numbers))
        self._starting.append(entry)
        self.let_run()
        await self._until(entry, self._starting, stopping)
        return entry.granted.done()

    async def go_on(self, run: GatedTurn) -> None:
        """Wait until a turn that has waited for others may go on."""
        if self._may_go_on(run):
            self.let_run()
            return
        entry = _GateEntry(run, next(self._numbers))
        self._returning.append(entry)
        self.let_run()
        await self._until(entry, self._returning, None)

    def wait_for(self, channel_id: str) -> ChannelWait:
        """A wait that begins now."""
        return ChannelWait(channel_id, self._owed.head(channel_id))

    def leave(self, run: GatedTurn) -> None:
        """An attempt is over, or has not started."""
        runs = self._runs.get(run.channel_id, [])
        if run in runs:
            runs.remove(run)
        if not runs:
            self._runs.pop(run.channel_id, None)
        self.let_run()

    def let_run(self) -> None:
        """Let those run that may, after anything has changed."""
        while (self._returning or self._starting) and (self._let_one_go_on() or self._let_one_start()):
            pass

    async def _until(self, entry: _GateEntry, queue: list[_GateEntry], stopping: asyncio.Event | None) -> None:
        try:
            await _wait_granted(entry.granted, stopping)
        finally:
            if entry in queue:
                queue.remove(entry)
                self.let_run()

    def _let_one_go_on(self) -> bool:
        for entry in sorted(self._returning, key=lambda entry: entry.order):
            if self._may_go_on(entry.run):
                self._returning.remove(entry)
                _grant_entry(entry)
                return True
        return False

    def _let_one_start(self) -> bool:
        lenders = [run for run in self._interrupted_runs() if run.waits]
        wanted = {channel_id for run in lenders for channel_id in self._awaited_channels(run.channel_id)}
        any_may_start = not any(self._will_be_ended(run) for run in lenders)
        for entry in sorted(self._starting, key=lambda entry: entry.order):
            run = entry.run
            if (any_may_start or run.channel_id in wanted) and not self._is_hindered(run, returning=True):
                self._starting.remove(entry)
                self._start(run)
                _grant_entry(entry)
                return True
        return False

    def _start(self, run: GatedTurn) -> None:
        self._runs.setdefault(run.channel_id, []).append(run)

    def _may_go_on(self, run: GatedTurn) -> bool:
        has_started = run in self._runs.get(run.channel_id, ())
        return not run.is_suspect or not has_started or not self._is_hindered(run, returning=False)

    def _is_hindered(self, run: GatedTurn, *, returning: bool) -> bool:
        """Whether an interrupted turn runs that this one does not wait for: a crash would hit it again.

        With `returning`, turns whose wait is over and that queue to go on count as running.
        """
        running = [each for each in self._interrupted_runs() if each is not run and not each.waits]
        if not returning:
            want_to = {entry.run for entry in self._returning}
            running = [each for each in running if each not in want_to]
        if not running:
            return False
        own = self._awaited_channels(run.channel_id)
        return any(each.channel_id not in own for each in running)

    def _interrupted_runs(self) -> Iterator[GatedTurn]:
        return (run for runs in self._runs.values() for run in runs if run.was_interrupted)

    def _awaited_channels(self, channel_id: str) -> set[str]:
        """The channels whose turns those of this channel wait for, or have given tasks to, and theirs in turn."""
        found: set[str] = set()
        left = [channel_id]
        while left:
            here = left.pop()
            waits = {wait.channel_id for run in self._runs.get(here, ()) for wait in run.waits}
            new = waits.union(self._owed.tasks(here)) - found
            found |= new
            left.extend(new)
        return found

    def _will_be_ended(self, run: GatedTurn) -> bool:
        """Whether turns of this process will end the wait of this one, or have ended it."""
        if any(wait.channel_id == ANY_CHANNEL for wait in run.waits):
            return False
        if not self._is_waiting_still(run):
            return True
        return any(self._can_progress(channel_id) for channel_id in self._awaited_channels(run.channel_id))

    def _can_progress(self, channel_id: str) -> bool:
        """Whether a channel is owed a turn here that runs, or will, and does not itself wait for another."""
        waiting = {run.speaker for run in self._runs.get(channel_id, ()) if run.waits and self._is_waiting_still(run)}
        return any(speaker not in waiting for speaker in self._owed.speakers(channel_id))

    def _is_waiting_still(self, run: GatedTurn) -> bool:
        """Whether nothing has happened yet that ends a wait of this turn."""
        return all(self._owed.head(wait.channel_id) == wait.head for wait in run.waits)


def _grant_entry(entry: _GateEntry) -> None:
    if not entry.granted.done():
        entry.granted.set_result(None)


async def _wait_granted(granted: asyncio.Future[None], stopping: asyncio.Event | None) -> None:
    if stopping is None or granted.done():
        await granted
        return
    stopped = asyncio.ensure_future(stopping.wait())
    try:
        await asyncio.wait((granted, stopped), return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()
