"""Turns that were in progress when a process died run one at a time.

Rule 1: of all turns that were in progress during a crash (suspects) one runs at a time, with no limit on the wait, so
        that one that ends its process every time takes along no other suspect.
Rule 2: a call that returns clears the suspicion: the crashes of that turn are counted anew.
Rule 3: a suspect also waits until no cleared one runs: a second crash would hit that one a second time. It does not
        wait for the turn of a task that it gave itself, which may last until this one stops it.
Rule 4: a turn that waits inside the hub for another turn lends its place meanwhile: the other may need it. One that
        waits for tasks from the start begins without the place: it must be there to stop them if it is cancelled.
"""

from __future__ import annotations

import asyncio
from itertools import count

_Order = tuple[bool, int, int]
"""Who lent the place, then who crashed least, then who came first."""


class Permit:
    """The right of one attempt to run as the only suspect."""

    def __init__(self, gate: SuspectGate, crashes: int, *, channel_id: str = "", giver: str = "") -> None:
        self._gate, self.crashes = gate, crashes
        self.channel_id, self.giver = channel_id, giver
        """The channel of the turn, and the one that it was given from, if it is a task."""
        self._lent = 0
        self._settled = False
        """Whether it needs the place no more: its suspicion is cleared, or its attempt is over."""

    async def enter(self, stopping: asyncio.Event) -> bool:
        """Wait for the place; False if the engine stops before."""
        return await self._gate.take(self, stopping)

    def begin(self) -> None:
        """Run without the place until the first wait for another turn is over."""
        self._gate.begun(self)

    def clear(self) -> None:
        """Free the place: a call of this turn has returned."""
        if not self._settled:
            self._settled = True
            self._gate.cleared(self, lent=self._lent > 0)

    def leave(self) -> None:
        """Free the place for good: the attempt is over."""
        self._settled = True
        self._gate.over(self)

    def lend(self) -> None:
        """Free the place for as long as this turn waits for another."""
        self._lent += 1
        if self._lent == 1:
            self._gate.lent(self)

    async def reclaim(self) -> None:
        """Take the place again, before all others that wait for it."""
        self._lent -= 1
        if self._is_lending():
            return
        if self._settled:
            self._gate.returned(self)
            return
        await self._gate.take(self, None)
        if self._is_lending():  # another wait has begun meanwhile
            self._gate.lent(self)

    def _is_lending(self) -> bool:
        return self._lent > 0

    def forfeit(self) -> None:
        """Wait for another turn no longer, without the place: what waited was cancelled."""
        self._lent -= 1


_Entry = tuple[_Order, Permit, asyncio.Future[bool]]


class SuspectGate:
    """The one place for suspects in a process."""

    def __init__(self) -> None:
        self._holder: Permit | None = None
        self._cleared: set[Permit] = set()
        """Those whose suspicion is cleared, while they run."""
        self._running: set[Permit] = set()
        """Those whose attempts have begun and are not over."""
        self._waiting: list[_Entry] = []
        self._numbers = count()

    async def take(self, permit: Permit, stopping: asyncio.Event | None) -> bool:
        """Wait until the permit holds the place; False if `stopping` is set before."""
        if self._holder is permit:
            return True
        granted: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        order = permit not in self._running, permit.crashes, next(self._numbers)
        entry = order, permit, granted
        self._waiting.append(entry)
        self._grant()
        try:
            if not granted.done():
                await _first_of(granted, stopping)
        except BaseException:
            self._withdraw(entry)
            raise
        if not granted.done():
            self._withdraw(entry)
            return False
        self._running.add(permit)
        return True

    def begun(self, permit: Permit) -> None:
        """Let an attempt run without the place."""
        self._running.add(permit)

    def cleared(self, permit: Permit, *, lent: bool) -> None:
        """Free the place of a permit whose turn goes on without suspicion."""
        if not lent:
            self._cleared.add(permit)
        for entry in [entry for entry in self._waiting if entry[1] is permit]:  # it needs no place any more
            self._waiting.remove(entry)
            entry[2].set_result(True)
        self._free(permit)

    def returned(self, permit: Permit) -> None:
        """Count a cleared turn again that had waited for another, unless it is over."""
        if permit in self._running:
            self._cleared.add(permit)

    def lent(self, permit: Permit) -> None:
        """Free the place of a permit whose turn waits for another."""
        self._cleared.discard(permit)
        self._free(permit)

    def over(self, permit: Permit) -> None:
        """Free the place of a permit whose attempt is over."""
        self._running.discard(permit)
        self.lent(permit)

    def _free(self, permit: Permit) -> None:
        if self._holder is permit:
            self._holder = None
        self._grant()

    def _withdraw(self, entry: _Entry) -> None:
        if entry in self._waiting:
            self._waiting.remove(entry)
        self._free(entry[1])

    def _grant(self) -> None:
        """Give the place to the first in order that may have it, if it is free."""
        if self._holder is not None:
            return
        able = [entry for entry in self._waiting if not self._hindered(entry[1])]
        if not able:
            return
        chosen = min(able, key=lambda entry: entry[0])
        self._waiting.remove(chosen)
        self._holder = chosen[1]
        if not chosen[2].done():
            chosen[2].set_result(True)

    def _hindered(self, permit: Permit) -> bool:
        """Whether a cleared turn runs that a crash of this one would hit again."""
        return any(other is not permit and other.giver != permit.channel_id for other in self._cleared)


async def _first_of(granted: asyncio.Future[bool], stopping: asyncio.Event | None) -> None:
    if stopping is None:
        await granted
        return
    stopped = asyncio.ensure_future(stopping.wait())
    try:
        await asyncio.wait((granted, stopped), return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()
