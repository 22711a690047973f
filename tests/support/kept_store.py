"""A store in memory that outlives its hubs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from antiphon import Envelope
from antiphon.core.envelope import Instant, seconds_between
from antiphon.core.event_data import event_of
from antiphon.core.execution_events import TurnDelayed
from antiphon.store.memory_store import MemoryStore
from antiphon.store.protocol import Appended
from antiphon.testing import ManualClock


class KeptStore(MemoryStore):
    """A store in memory that stays open when its hub closes, so that another hub continues on it.

    The clock of its hub passes over the pauses after crashes, unless `pauses` is set.
    """

    pauses = False

    async def append(
        self, channel: str, batch: Sequence[Envelope], *, expected: int, due: Instant | None = None
    ) -> Appended:
        appended = await super().append(channel, batch, expected=expected, due=due)
        if not self.pauses:
            pass_pauses(batch, getattr(self._clock, "clock", self._clock))
        return appended

    async def close(self) -> None:
        pass


def pass_pauses(batch: Sequence[Envelope], clock: object) -> None:
    """Move a clock that is moved by hand over the pause after a crash, as soon as that is recorded."""
    if not isinstance(clock, ManualClock):
        return
    for event in map(event_of, batch):
        if isinstance(event, TurnDelayed):
            left = max(0.0, seconds_between(clock.now(), event.until))
            asyncio.get_running_loop().call_soon(clock.advance, left)
