"""A server over a hub that is open: where it listens, and how it stops.

Rule 1: without keys it listens to this machine alone, and wants the store's token; open, it wants nothing.
Rule 2: it stops in good order: nobody new is let in, streams end between two events, requests under way are given time,
        and those that still wait are told to come again.
Rule 3: whoever runs it decides about signals; nothing is captured here.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext

import msgspec
import uvicorn

from antiphon.core.errors import UsageError
from antiphon.core.hosts import is_loopback
from antiphon.hub.redacting import redact_loggers
from antiphon.runtime.hub import Hub
from antiphon.runtime.keys import keys_of
from antiphon.server.accepting import accepting
from antiphon.server.announcing import announced
from antiphon.server.app import app_of
from antiphon.server.connections import Connections, cut_all
from antiphon.server.limits import HOST, PORT, USUAL, Limits
from antiphon.server.streams import Streams
from antiphon.server.table import VERBS
from antiphon.server.tokens import Token, remove_token, store_of, token_for
from antiphon.server.verbs import House, Verb

log = logging.getLogger("antiphon.server")

OPENED = (
    "%s is open: every program on this machine may do everything, and a proxy in front of it opens it to everybody; "
    "leave open out, or make a key: antiphon keys make"
)
BACKLOG = 2048
PRIVATE = [("cache-control", "no-store"), ("x-content-type-options", "nosniff")]
"""Headers of every answer: most carry conversations, some secrets, and none is to be kept or interpreted otherwise."""
SEND_BUFFER = 128 * 1024
"""How many bytes of what is sent the system holds for each connection, so that a thousand who read nothing cost little,
and that it is noticed soon whether anybody reads."""
LAST_WORDS = 0.5
"""How many seconds the answers have that say that the server stops."""
ALLOWANCE = 2
"""How many seconds longer than our own patience that of what we run on is."""


class Served(msgspec.Struct, frozen=True):
    """A server that listens."""

    host: str
    port: int
    streams: Streams
    connections: Connections
    token: str = ""
    """What requests show while there are no keys; "" if it is open, or has keys."""

    def __repr__(self) -> str:
        return f"Served({self.url!r})"  # without the token

    @property
    def headers(self) -> dict[str, str]:
        """The headers that show the token; none if there is no token."""
        return {"authorization": f"Bearer {self.token}"} if self.token else {}

    @property
    def url(self) -> str:
        """Where it is reached."""
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


@asynccontextmanager
async def serving(
    hub: Hub,
    *,
    host: str = HOST,
    port: int = PORT,
    limits: Limits = USUAL,
    verbs: Sequence[Verb] = VERBS,
    open: bool = False,
) -> AsyncIterator[Served]:
    """Serve a hub for as long as this is entered. Port 0 is any that is free.

    While no key was ever made requests show the token in `Served.token`, which is kept in a file beside the store.
    With `open` they show nothing: every program on this machine may do everything.
    """
    _check_access(hub, host, opened=open)
    connections = Connections(limits)
    redact_loggers(["uvicorn.error"])  # which logs what is raised while an answer is sent
    listening = _bound(host, port, limits)
    streams = Streams(limits)
    try:
        token = _token(hub, opened=open)
    except BaseException:
        listening.close()
        raise
    server = _server(House(hub, limits, streams, token), verbs)
    running = asyncio.create_task(server.serve(sockets=[]), name="server")
    watching = asyncio.create_task(connections.watch(), name="connections")
    served = Served(host, listening.getsockname()[1], streams, connections, "" if token is None else token.secret)
    if open:
        log.warning(OPENED, served.url)
    try:
        async with accepting(listening, connections, server):
            with announced(served.url, store_of(hub), hub._desk.store.tenant):
                yield served
    finally:
        await _stop(server, running, streams, seconds=limits.stop_seconds)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        listening.close()


def _check_access(hub: Hub, host: str, *, opened: bool) -> None:
    """Refuse to let in who should not be: other machines without a key, or anybody where there are keys."""
    guarded = keys_of(hub).guarded
    if opened and guarded:
        raise UsageError("there are keys, and a server with keys cannot be open; leave open out, and show a key")
    if opened and not is_loopback(host):
        raise UsageError(
            f"{host!r} can be reached from other machines, and an open server wants no key; listen on {HOST}, or make"
            " a key: antiphon keys make --participant NAME --scope all"
        )
    if not guarded and not is_loopback(host):
        advice = "make one first: antiphon keys make --participant NAME --scope all"
        raise UsageError(f"{host!r} can be reached from other machines, and there are no keys; {advice}")


def _token(hub: Hub, *, opened: bool) -> Token | None:
    """What requests show while there are no keys; None if they show nothing, or a key."""
    if opened:
        return None
    if keys_of(hub).guarded:
        remove_token(store_of(hub))
        return None
    return token_for(store_of(hub))


def _server(house: House, verbs: Sequence[Verb]) -> uvicorn.Server:
    limits = house.limits
    config = uvicorn.Config(
        app_of(house, verbs),
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        headers=PRIVATE,
        timeout_graceful_shutdown=int(limits.stop_seconds) + ALLOWANCE,
    )
    server = uvicorn.Server(config)
    server.capture_signals = nullcontext  # type: ignore[method-assign, assignment]  # see rule 3
    return server


def _bound(host: str, port: int, limits: Limits) -> socket.socket:
    """A socket that listens there. What it is sent nobody takes ends the connection, whoever holds it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Without its name TCP is used all the same, but asyncio does not know, and lets it hold half of each answer back.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option in ("TCP_KEEPIDLE", "TCP_KEEPINTVL"):  # a peer that has vanished while it waits is noticed soon
            if hasattr(socket, option):
                listening.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), max(1, int(limits.stalled_seconds)))
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            patience = int(limits.stalled_seconds * 1000)
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, patience)
        listening.bind((host, port))
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise UsageError(f"nothing can listen on {host!r}, port {port}: {error.strerror or error}") from error
    listening.setblocking(False)
    return listening


async def _stop(server: uvicorn.Server, running: asyncio.Task[None], streams: Streams, *, seconds: float) -> None:
    streams.stopping.set()
    server.should_exit = True
    loop = asyncio.get_running_loop()
    late = loop.call_later(seconds, streams.late.set)
    last = loop.call_later(seconds + LAST_WORDS, cut_all, server.server_state)  # of which nothing is taken
    try:
        await running
    finally:
        late.cancel()
        last.cancel()
        cut_all(server.server_state)
