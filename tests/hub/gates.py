"""A store whose answers come when the test says so: the order of things, without a clock."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from typing import TypeVar

from antiphon import Envelope
from antiphon.core.instants import Instant
from antiphon.store.memory import MemoryStore
from antiphon.store.protocol import Appended

T = TypeVar("T")

BEFORE, AFTER = "before", "after"


class GatedStore(MemoryStore):
    """Appends to the channels named in `shut` wait, before or after they are recorded, until `let_pass`."""

    def __init__(self, clock: object = None) -> None:
        super().__init__(clock=clock)  # type: ignore[arg-type]  # a test's clock tells the time
        self.shut: dict[str, str] = {}
        self.appends: list[tuple[str, list[Envelope]]] = []
        self._open = asyncio.Event()
        self.waiting = 0

    def close_gate(self, channel_id: str, when: str = BEFORE) -> None:
        self.shut[channel_id] = when
        self._open = asyncio.Event()

    def let_pass(self) -> None:
        self.shut.clear()
        self._open.set()

    async def append(
        self, channel: str, batch: Sequence[Envelope], *, expected: int, due: Instant | None = None
    ) -> Appended:
        if self.shut.get(channel) == BEFORE:
            await self._wait()
        appended = await super().append(channel, batch, expected=expected, due=due)
        self.appends.append((channel, list(batch)))
        if self.shut.get(channel) == AFTER:
            await self._wait()
        return appended

    async def find(self, channel: str, ids: Sequence[str]) -> Mapping[str, Envelope]:
        return await super().find(channel, ids)

    async def _wait(self) -> None:
        self.waiting += 1
        try:
            await self._open.wait()
        finally:
            self.waiting -= 1


async def soon(work: Awaitable[T]) -> T:
    """What this comes to; what never comes is a failure. Nothing that is right waits for it."""
    return await asyncio.wait_for(work, 5)


async def turns(count: int = 20) -> None:
    """Let everybody who can do something do it."""
    for _ in range(count):
        await asyncio.sleep(0)
