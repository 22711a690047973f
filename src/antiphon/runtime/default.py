"""The hub that `invoke` uses when it is given none.

It is the hub of the store that `ANTIPHON_STORE` or `POSTGRES_URL` names, and is open while something is invoked.
Without them it is a store in memory, which lives as long as the process.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast
from weakref import WeakKeyDictionary

from antiphon.runtime.hub import Hub
from antiphon.store.protocol import Store
from antiphon.store.urls import open_store

VARIABLES = ("ANTIPHON_STORE", "POSTGRES_URL")


class Kept:
    """A store that stays when its hub closes."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    async def close(self) -> None:
        """Stay."""


class Shared:
    """One open hub, and how many use it."""

    def __init__(self) -> None:
        self.users = 0
        self.hub: Hub | None = None
        self.changing = asyncio.Lock()


_memory: list[Kept] = []
_shared: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Shared]] = WeakKeyDictionary()


@asynccontextmanager
async def default_hub() -> AsyncIterator[Hub]:
    """The hub of this process. Whoever needs it first opens it, whoever needs it last closes it."""
    url = next((found for name in VARIABLES if (found := os.environ.get(name))), "")
    shared = _shared.setdefault(asyncio.get_running_loop(), {}).setdefault(url, Shared())
    shared.users += 1
    try:
        async with shared.changing:
            if shared.hub is None:
                shared.hub = await _opened(url)
        yield shared.hub
    finally:
        shared.users -= 1
        await asyncio.shield(_close_if_unused(shared))


async def _opened(url: str) -> Hub:
    if url:
        return await Hub.open(url)
    if not _memory:
        _memory.append(Kept(await open_store("memory:")))
    return await Hub.over(cast(Store, _memory[0]))


async def _close_if_unused(shared: Shared) -> None:
    async with shared.changing:
        if shared.users == 0 and shared.hub is not None:
            hub, shared.hub = shared.hub, None
            await hub.close()
