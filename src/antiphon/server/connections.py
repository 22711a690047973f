"""The connections of a server, of which nobody keeps one for nothing.

Rule 1: whoever is connected and has no request under way has so long to make the next one. After that they are let go,
        whatever they are still sending or not taking.
Rule 2: a connection that is cut is gone at once. What was not taken of it by then is lost, and can be asked for again.
"""

from __future__ import annotations

import asyncio
from weakref import ref

import msgspec
from starlette.types import Scope
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

HELD = "connection"
TICKS = 4
"""How often in the time that somebody has for a request their connection is looked at."""

AppState = dict[str, object]


def connection(
    config: Config, server_state: ServerState, app_state: AppState, _loop: asyncio.AbstractEventLoop | None = None
) -> H11Protocol:
    """A connection that whoever answers on it can cut."""
    state = dict(app_state)
    protocol = H11Protocol(config, server_state, state, _loop)
    state[HELD] = Held(ref(protocol))
    return protocol


class Held(msgspec.Struct, frozen=True):
    """A connection as whoever answers on it holds it."""

    _protocol: ref[H11Protocol]

    def cut(self) -> None:
        """End it at once, also if nobody takes what is on its way."""
        protocol = self._protocol()
        if protocol is not None:
            protocol.transport.abort()

    def left(self) -> int:
        """How many bytes wait to be taken, beside those that the system holds already."""
        protocol = self._protocol()
        return 0 if protocol is None else protocol.transport.get_write_buffer_size()


def held(scope: Scope) -> Held:
    """The connection of a request."""
    found: Held = scope["state"][HELD]
    return found


def cut_all(server: ServerState) -> None:
    """End every connection there still is."""
    for protocol in list(server.connections):
        protocol.transport.abort()


async def let_go(server: ServerState, seconds: float) -> None:
    """End, until cancelled, the connections on which no request has come for so long."""
    loop = asyncio.get_running_loop()
    waiting: dict[object, tuple[object, float]] = {}
    while True:
        await asyncio.sleep(seconds / TICKS)
        now, before = loop.time(), waiting
        waiting = {}
        for protocol in list(server.connections):
            if not isinstance(protocol, H11Protocol) or _is_busy(protocol):
                continue
            last, since = before.get(protocol, (None, now))
            waiting[protocol] = (protocol.cycle, since if last is protocol.cycle else now)
            if now - waiting[protocol][1] >= seconds:
                protocol.transport.abort()


def _is_busy(protocol: H11Protocol) -> bool:
    """Whether a request is under way. `cycle` is none before the first one, whatever its type says."""
    cycle: object = protocol.cycle
    return cycle is not None and not protocol.cycle.response_complete
