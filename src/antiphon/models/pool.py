"""The connections of one model.

Rule 1: they are opened on first use, for each event loop its own, and shared by everybody who asks on it.
Rule 2: nothing is sent twice. Whether to ask again is decided by whoever asked, who knows what it costs.
Rule 3: closed while somebody is being answered, they go when the last answer is there. Who asks later gets new ones.
Rule 4: the environment's proxies and certificates are used, for that is how many a machine reaches the world; but not
        to reach the machine itself, where a proxy would only read along.
Rule 5: there is no time limit for an answer here. Whoever asks has one, and cancels.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    import ssl

    from httpx2 import AsyncClient

CONNECT_SECONDS = 10.0
MOST_CONNECTIONS = 1000
"""Who waits for a connection waits silently, so there are enough of them."""
MOST_IDLE = 20
IDLE_SECONDS = 30.0


class Line:
    """A client on one event loop, and how many are being answered over it."""

    def __init__(self, client: AsyncClient) -> None:
        self.client, self.users, self.closing = client, 0, False

    async def settle(self) -> None:
        """Close, if that is wanted and nobody is being answered."""
        if self.closing and not self.users:
            await self.client.aclose()


class Pool:
    """Lends clients."""

    def __init__(self) -> None:
        self._lines: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[bool, Line]] = WeakKeyDictionary()

    @asynccontextmanager
    async def client(self, *, is_local: bool) -> AsyncIterator[AsyncClient]:
        """A client for as long as one answer takes."""
        lines = self._lines.setdefault(asyncio.get_running_loop(), {})
        line = lines.get(is_local)
        if line is None:
            line = lines[is_local] = Line(_client(is_local))
        line.users += 1
        try:
            yield line.client
        finally:
            line.users -= 1
            await line.settle()

    async def close(self) -> None:
        """Close the connections on this event loop, at once or when the last answer is there."""
        for line in self._lines.pop(asyncio.get_running_loop(), {}).values():
            line.closing = True
            await line.settle()


def _client(is_local: bool) -> AsyncClient:
    import httpx2

    return httpx2.AsyncClient(
        verify=_certificates(),
        trust_env=not is_local,
        follow_redirects=False,
        timeout=httpx2.Timeout(None, connect=CONNECT_SECONDS),
        limits=httpx2.Limits(
            max_connections=MOST_CONNECTIONS, max_keepalive_connections=MOST_IDLE, keepalive_expiry=IDLE_SECONDS
        ),
    )


@cache
def _certificates() -> ssl.SSLContext:
    """Whom to trust. Reading it takes longer than an answer from this machine, so it is read once."""
    import httpx2

    return httpx2.create_ssl_context()
