"""Turns that were in progress when a process died run one at a time.

Rule 1: of all turns that were in progress during a crash (suspects) one runs at a time, with no limit on the wait, so
        that one that ends its process every time takes along no other suspect.
Rule 2: a call that returns clears the suspicion: the crashes of that turn are counted anew. The next suspect still
        waits until the cleared turn is over: a second crash would hit it a second time.
Rule 3: while a turn waits inside the hub for other turns, a suspect among those may start, and among the turns that
        those wait for. No other may, which could hit the waiting turn again.
Rule 4: where no turn of this process can end such a wait (a person has to speak, or code outside of all turns), the
        hub cannot tell what the wait depends on. Any suspect may start then, or all of them might wait for ever.
Rule 5: a suspect starts beside turns of the tasks that it gave itself: it must be there to stop them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Protocol

import msgspec

ANYWHERE = ""
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


class TurnRun:
    """One attempt at a turn, as long as it runs."""

    def __init__(self, gate: SuspectGate, channel_id: str, speaker: str, *, crashes: int) -> None:
        self._gate = gate
        self.channel_id, self.speaker, self.crashes = channel_id, speaker, crashes
        self.is_suspect = crashes > 0
        """Whether it may not run beside other suspects."""
        self.waits: set[ChannelWait] = set()
        """Those of its calls."""

    @property
    def was_interrupted(self) -> bool:
        """Whether a crash of this process would hit the turn a second time."""
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


class _Entry:
    """A suspect that wants to run: for the first time, or behind a wait of one of its calls."""

    def __init__(self, run: TurnRun, number: int) -> None:
        self.run, self.granted = run, asyncio.get_running_loop().create_future()
        self.order = run.crashes, number


class SuspectGate:
    """Decides which of the suspects in a process may run."""

    def __init__(self, owed: OwedWork) -> None:
        self._owed = owed
        self._runs: dict[str, list[TurnRun]] = {}
        """Every attempt that has started and is not over, by its channel."""
        self._starting: list[_Entry] = []
        self._returning: list[_Entry] = []
        """Those that have started, and whose waits are over. One attempt may be here several times."""
        self._numbers = count()

    async def enter(self, run: TurnRun, stopping: asyncio.Event) -> bool:
        """Wait until a turn may start; False if `stopping` is set before. Only suspects wait."""
        if not run.is_suspect:
            self._start(run)
            return True
        entry = _Entry(run, next(self._numbers))
        self._starting.append(entry)
        self.let_run()
        await self._until(entry, self._starting, stopping)
        return entry.granted.done()

    async def go_on(self, run: TurnRun) -> None:
        """Wait until a turn that has waited for others may go on."""
        if self._may_go_on(run):
            self.let_run()
            return
        entry = _Entry(run, next(self._numbers))
        self._returning.append(entry)
        self.let_run()
        await self._until(entry, self._returning, None)

    def wait_for(self, channel_id: str) -> ChannelWait:
        """A wait that begins now."""
        return ChannelWait(channel_id, self._owed.head(channel_id))

    def leave(self, run: TurnRun) -> None:
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

    async def _until(self, entry: _Entry, queue: list[_Entry], stopping: asyncio.Event | None) -> None:
        try:
            await _first_of(entry.granted, stopping)
        finally:
            if entry in queue:
                queue.remove(entry)
                self.let_run()

    def _let_one_go_on(self) -> bool:
        for entry in sorted(self._returning, key=lambda entry: entry.order):
            if self._may_go_on(entry.run):
                self._returning.remove(entry)
                _grant(entry)
                return True
        return False

    def _let_one_start(self) -> bool:
        lenders = [run for run in self._interrupted() if run.waits]
        wanted = {channel_id for run in lenders for channel_id in self._awaited(run.channel_id)}
        any_may_start = not any(self._will_be_ended(run) for run in lenders)
        for entry in sorted(self._starting, key=lambda entry: entry.order):
            run = entry.run
            if (any_may_start or run.channel_id in wanted) and not self._hindered(run, returning=True):
                self._starting.remove(entry)
                self._start(run)
                _grant(entry)
                return True
        return False

    def _start(self, run: TurnRun) -> None:
        self._runs.setdefault(run.channel_id, []).append(run)

    def _may_go_on(self, run: TurnRun) -> bool:
        has_started = run in self._runs.get(run.channel_id, ())
        return not run.is_suspect or not has_started or not self._hindered(run, returning=False)

    def _hindered(self, run: TurnRun, *, returning: bool) -> bool:
        """Whether a turn runs that a crash of this one would hit again; `returning` if those count that want to."""
        running = [each for each in self._interrupted() if each is not run and not each.waits]
        if not returning:
            want_to = {entry.run for entry in self._returning}
            running = [each for each in running if each not in want_to]
        if not running:
            return False
        own = self._awaited(run.channel_id)
        return any(each.channel_id not in own for each in running)

    def _interrupted(self) -> Iterator[TurnRun]:
        return (run for runs in self._runs.values() for run in runs if run.was_interrupted)

    def _awaited(self, channel_id: str) -> set[str]:
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

    def _will_be_ended(self, run: TurnRun) -> bool:
        """Whether turns of this process will end the wait of this one, or have ended it."""
        if any(wait.channel_id == ANYWHERE for wait in run.waits):
            return False
        if not self._stands_still(run):
            return True
        return any(self._moves(channel_id) for channel_id in self._awaited(run.channel_id))

    def _moves(self, channel_id: str) -> bool:
        """Whether a channel is owed a turn here that runs, or will, and does not itself wait for another."""
        waiting = {run.speaker for run in self._runs.get(channel_id, ()) if run.waits and self._stands_still(run)}
        return any(speaker not in waiting for speaker in self._owed.speakers(channel_id))

    def _stands_still(self, run: TurnRun) -> bool:
        """Whether nothing has happened yet that ends a wait of this turn."""
        return all(self._owed.head(wait.channel_id) == wait.head for wait in run.waits)


def _grant(entry: _Entry) -> None:
    if not entry.granted.done():
        entry.granted.set_result(None)


async def _first_of(granted: asyncio.Future[None], stopping: asyncio.Event | None) -> None:
    if stopping is None or granted.done():
        await granted
        return
    stopped = asyncio.ensure_future(stopping.wait())
    try:
        await asyncio.wait((granted, stopped), return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()
