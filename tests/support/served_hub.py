"""Servers to ask: a hub that is served on a free port, keys for it, and clients that show them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import httpx2

from antiphon import Agent, Envelope, Hub, Reply, Request, says
from antiphon.hub.clock import Clock
from antiphon.server.api_keys import KEY_SCOPES, keys_of
from antiphon.server.app import HttpRoute
from antiphon.server.limits import DEFAULT_SERVER_LIMITS, ServerLimits
from antiphon.server.routes import ROUTES
from antiphon.server.serving import RunningServer, serving

PATIENCE = 20.0
"""Real seconds after which something never comes."""
POLL = 0.005


async def echo(request: Request) -> Reply:
    """A model that says what it was asked."""
    return says(f"You said: {request.messages[-1].text}")


class ServedHub:
    """A hub that is served, and its clients."""

    def __init__(self, hub: Hub, served: RunningServer, stack: AsyncExitStack) -> None:
        self.hub, self.served, self._stack = hub, served, stack

    @property
    def port(self) -> int:
        return self.served.port

    async def client(self, secret: str | None = None, **options: object) -> httpx2.AsyncClient:
        """Somebody who asks, with this key."""
        headers = {"authorization": f"Bearer {secret}"} if secret else {}
        client = httpx2.AsyncClient(base_url=self.served.url, headers=headers, timeout=PATIENCE, **options)  # type: ignore[arg-type]
        return await self._stack.enter_async_context(client)

    async def key(self, name: str, *scopes: str, kind: str = "human", expires_at: str | None = None) -> str:
        """A key for somebody; with no scopes, for all of them."""
        at = self.hub.core.clock.now()
        secret, _ = await (await keys_of(self.hub)).make(
            name, kind=kind, scopes=scopes or KEY_SCOPES, at=at, expires_at=expires_at
        )
        return secret

    async def known(self, name: str, *scopes: str) -> httpx2.AsyncClient:
        """Somebody with a key."""
        return await self.client(await self.key(name, *scopes))


@asynccontextmanager
async def served_hub(
    *agents: Agent,
    url: str = "memory:",
    limits: ServerLimits = DEFAULT_SERVER_LIMITS,
    clock: Clock | None = None,
    hub: Hub | None = None,
    verbs: Sequence[HttpRoute] = ROUTES,
    open: bool = True,
) -> AsyncIterator[ServedHub]:
    """A hub with these agents, served for as long as this is entered; open, so that most tests need no token."""
    async with AsyncExitStack() as stack:
        here = hub or await stack.enter_async_context(Hub.open(url, clock=clock))
        for agent in agents:
            await here.register(agent)
        opened = open and not (await keys_of(here)).guarded
        served = await stack.enter_async_context(serving(here, port=0, limits=limits, routes=verbs, open=opened))
        yield ServedHub(here, served, stack)


async def poll_until(condition: Callable[[], bool], promise: str) -> None:
    """Return when this is so; if it never is, the promise is broken."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    while not condition():
        assert loop.time() - began < PATIENCE, promise
        await asyncio.sleep(POLL)


async def opened(client: httpx2.AsyncClient, *target: str, **options: object) -> str:
    """The id of a channel that this client has opened."""
    response = await client.post("/channels", json={"target": list(target), **options})
    assert response.status_code == 201, response.text
    return str(response.json()["channel_id"])


async def told(hub: Hub, channel_id: str) -> list[Envelope]:
    """The whole log of a channel, for the operator."""
    return await hub.log(channel_id)
