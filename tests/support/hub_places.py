"""Where a hub of a test keeps its logs, such that it can be opened again."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from antiphon import Hub
from antiphon.testing import ManualClock
from tests.support.kept_store import KeptStore


class Place(Protocol):
    """Somewhere that outlives a hub."""

    async def hub(self, clock: ManualClock, engine: str | None = "local") -> Hub: ...


class InMemory:
    def __init__(self, clock: ManualClock) -> None:
        self.store = KeptStore(clock=clock)

    async def hub(self, clock: ManualClock, engine: str | None = "local") -> Hub:
        return await Hub.over(self.store, clock=clock, engine=engine)


class OnDisk:
    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{folder / 'team.db'}"

    async def hub(self, clock: ManualClock, engine: str | None = "local") -> Hub:
        return await Hub.open(self.url, clock=clock, engine=engine)
