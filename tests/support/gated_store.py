"""A store whose answers come when the test says so: the order of things, without a clock."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from antiphon import Envelope
from antiphon.core.envelope import Instant
from antiphon.store.memory_store import MemoryStore
from antiphon.store.protocol import Appended, TimeSource

BEFORE, AFTER = "before", "after"


class GatedStore(MemoryStore):
    """Appends to a channel whose gate is closed wait, before or after they are recorded, until they may pass."""

    def __init__(self, clock: TimeSource | None = None) -> None:
        super().__init__(clock=clock)
        self.appends: list[tuple[str, list[Envelope]]] = []
        """Every batch that was recorded, with its channel."""
        self._shut: dict[str, str] = {}
        self._waiting: deque[asyncio.Future[None]] = deque()

    def close_gate(self, channel_id: str, when: str = BEFORE) -> None:
        self._shut[channel_id] = when

    def let_one_pass(self) -> None:
        self._waiting.popleft().set_result(None)

    def let_pass(self) -> None:
        """Open the gate for good."""
        self._shut.clear()
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)
        self._waiting.clear()

    @property
    def at_the_gate(self) -> int:
        return sum(not waiting.done() for waiting in self._waiting)

    async def append(
        self, channel: str, batch: Sequence[Envelope], *, expected: int, due: Instant | None = None
    ) -> Appended:
        if self._shut.get(channel) == BEFORE:
            await self._wait()
        appended = await super().append(channel, batch, expected=expected, due=due)
        self.appends.append((channel, list(batch)))
        if self._shut.get(channel) == AFTER:
            await self._wait()
        return appended

    async def _wait(self) -> None:
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        await waiting
