"""The hub that `invoke` uses when it is given none.

It is the hub of the store that `ANTIPHON_STORE` or `POSTGRES_URL` names, and is open while something is invoked.
Without them it is a store in memory, which lives as long as the process.

Rule 1: the store in memory serves one event loop at a time. Two hubs over it would take each other's turns over, and
        neither would hear of what the other recorded; so a second loop is refused while the first uses it.
Rule 2: the last user of the hub waits until it is closed; one that is cancelled, or leaves in the middle, does not.
        It is closed all the same, by a task of its own, and the next user waits for that.
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

STORE_VARIABLES = ("ANTIPHON_STORE", "POSTGRES_URL")


class UnclosableStore:
    """A store that stays when its hub closes."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    async def close(self) -> None:
        """Does nothing; the store outlives its hub."""


class SharedHub:
    """One hub of one event loop, the task that opens and closes it, and how many use it."""

    def __init__(self, url: str) -> None:
        self.users = 0
        self.opened: asyncio.Future[Hub] = asyncio.get_running_loop().create_future()
        self.unused = asyncio.Event()
        """Set once it has no user any more. Then it closes, and takes no new one."""
        self.owner_task = asyncio.create_task(self._own(url), name="the default hub")
        self.owner_task.add_done_callback(self._remove_entry)

    def leave(self) -> bool:
        """Release it; True if that was its last user, so that it closes."""
        self.users -= 1
        if self.users == 0:
            self.unused.set()
        return self.users == 0

    async def _own(self, url: str) -> None:
        clock = SystemClock()
        try:
            store = await _open_default_store(url, clock)
            hub = await Hub.over(store, clock=clock)
        except Exception as error:  # raised to every user that waits for the hub
            self.opened.set_exception(error)
            return
        async with AsyncExitStack() as ending:
            ending.push_async_callback(store.close)  # also if the closing of the hub is cut short
            ending.push_async_callback(hub.close)
            ending.callback(self.unused.set)  # also if the event loop ends
            self.opened.set_result(hub)
            await self.unused.wait()

    def _remove_entry(self, owner_task: asyncio.Task[None]) -> None:
        self.opened.cancel()
        with _shared_hubs_lock:
            for place in [place for place, shared in _shared_hubs.items() if shared is self]:
                del _shared_hubs[place]


_memory_stores: list[UnclosableStore] = []
_shared_hubs: dict[tuple[asyncio.AbstractEventLoop, str], SharedHub] = {}
_shared_hubs_lock = threading.Lock()
"""Event loops run in threads of their own."""


@asynccontextmanager
async def default_hub() -> AsyncIterator[Hub]:
    """The hub of this event loop, opened for its first user and closed after its last."""
    shared = await _join_shared_hub(next((found for name in STORE_VARIABLES if (found := os.environ.get(name))), ""))
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
            await asyncio.shield(shared.owner_task)


async def _join_shared_hub(url: str) -> SharedHub:
    """The hub's entry, with one more user. One that is closing is waited for, and opened anew."""
    while True:
        with _shared_hubs_lock:
            shared = _shared_hub_of(asyncio.get_running_loop(), url)
            if not shared.unused.is_set():
                shared.users += 1
                return shared
        await asyncio.wait({shared.owner_task})


def _shared_hub_of(loop: asyncio.AbstractEventLoop, url: str) -> SharedHub:
    for gone in [place for place in _shared_hubs if place[0].is_closed()]:
        del _shared_hubs[gone]
    if not url and any(not used and other is not loop for other, used in _shared_hubs):
        raise UsageError(
            "the store in memory that is used without hub= is in use by another event loop of this process, and serves"
            " one at a time; open a Hub in this loop and pass it with hub=, or invoke from that loop"
            " (from a tool: make it async)"
        )
    if (loop, url) not in _shared_hubs:
        _shared_hubs[loop, url] = SharedHub(url)
    return _shared_hubs[loop, url]


async def _open_default_store(url: str, clock: SystemClock) -> Store:
    if url:
        return await open_store(url, clock=clock)
    if not _memory_stores:
        _memory_stores.append(UnclosableStore(await open_store("memory:")))
    return cast(Store, _memory_stores[0])
