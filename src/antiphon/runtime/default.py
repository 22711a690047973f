"""The hub that `invoke` uses when it is given none.

It is the hub of the store that `ANTIPHON_STORE` or `POSTGRES_URL` names, and is open while something is invoked.
Without them it is a store in memory, which lives as long as the process.

Rule 1: the store in memory serves one event loop at a time. Two hubs over it would take each other's turns over, and
        neither would hear of what the other recorded; so a second loop is refused while the first uses it.
Rule 2: whoever needs the hub last waits until it is closed; whoever is cancelled, or leaves in the middle, does not.
        It is closed all the same, by a task of its own, and whoever needs it next waits for that.
Rule 3: nothing of an event loop is kept that no longer uses a hub.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import cast

from antiphon.core.errors import UsageError
from antiphon.hub.clock import SystemClock
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
    """One hub of one event loop, the task that opens and closes it, and how many use it."""

    def __init__(self, url: str) -> None:
        self.users = 0
        self.opened: asyncio.Future[Hub] = asyncio.get_running_loop().create_future()
        self.unused = asyncio.Event()
        """Set once nobody uses it any more. Then it closes, and is of no use to anybody else."""
        self.keeper = asyncio.create_task(self._keep(url), name="the default hub")
        self.keeper.add_done_callback(self._ended)

    def leave(self) -> bool:
        """Need it no longer; True if nobody else does either, so that it closes."""
        self.users -= 1
        if self.users == 0:
            self.unused.set()
        return self.users == 0

    async def _keep(self, url: str) -> None:
        clock = SystemClock()
        try:
            store = await _store(url, clock)
            hub = await Hub.over(store, clock=clock)
        except Exception as error:  # it is everybody's who waits for the hub
            self.opened.set_exception(error)
            return
        async with AsyncExitStack() as ending:
            ending.push_async_callback(store.close)  # also if the closing of the hub is cut short
            ending.push_async_callback(hub.close)
            ending.callback(self.unused.set)  # also if the event loop ends
            self.opened.set_result(hub)
            await self.unused.wait()

    def _ended(self, keeper: asyncio.Task[None]) -> None:
        self.opened.cancel()
        with _changing:
            for place in [place for place, shared in _shared.items() if shared is self]:
                del _shared[place]


_memory: list[Kept] = []
_shared: dict[tuple[asyncio.AbstractEventLoop, str], Shared] = {}
_changing = threading.Lock()
"""Event loops run in threads of their own."""


@asynccontextmanager
async def default_hub() -> AsyncIterator[Hub]:
    """The hub of this event loop. Whoever needs it first has it opened, whoever needs it last has it closed."""
    shared = await _joined(next((found for name in VARIABLES if (found := os.environ.get(name))), ""))
    waits = True
    try:
        yield await asyncio.shield(shared.opened)
    except Exception:
        raise
    except BaseException:  # cancelled, or left in the middle
        waits = False
        raise
    finally:
        if shared.leave() and waits:
            await asyncio.shield(shared.keeper)


async def _joined(url: str) -> Shared:
    """The hub's entry, with one more user. One that is closing is waited for, and opened anew."""
    while True:
        with _changing:
            shared = _entry(asyncio.get_running_loop(), url)
            if not shared.unused.is_set():
                shared.users += 1
                return shared
        await asyncio.wait({shared.keeper})


def _entry(loop: asyncio.AbstractEventLoop, url: str) -> Shared:
    for gone in [place for place in _shared if place[0].is_closed()]:
        del _shared[gone]
    if not url and any(not used and other is not loop for other, used in _shared):
        raise UsageError(
            "the store in memory that is used without hub= is in use by another event loop of this process, and serves"
            " one at a time; open a Hub in this loop and pass it with hub=, or invoke from that loop"
            " (from a tool: make it async)"
        )
    if (loop, url) not in _shared:
        _shared[loop, url] = Shared(url)
    return _shared[loop, url]


async def _store(url: str, clock: SystemClock) -> Store:
    if url:
        return await open_store(url, clock=clock)
    if not _memory:
        _memory.append(Kept(await open_store("memory:")))
    return cast(Store, _memory[0])
