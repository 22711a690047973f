"""A server over an open hub: where it listens, how it accepts connections, and how it stops.

Rule 1: without keys it listens to this machine alone, and requests need the store's token; if it is open, nothing.
Rule 2: it stops gracefully: no new connections, streams end between two events, requests in progress are given time,
        and those that still wait are answered with 503.
Rule 3: signals are left to the program; none is captured here.
Rule 4: a connection beyond the limit waits in the system's queue. None is accepted only to fail for want of a file.
Rule 5: it is logged once that accepting stops, and once that it resumes.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext

import msgspec
import uvicorn

from antiphon._net import is_loopback
from antiphon.core.errors import UsageError
from antiphon.hub.known_secrets import redact_loggers
from antiphon.runtime.hub import Hub
from antiphon.server.api_keys import keys_of
from antiphon.server.app import AppState, HttpRoute, app_of
from antiphon.server.connections import ConnectionPool, HttpConnection, abort_all
from antiphon.server.limits import DEFAULT_HOST, DEFAULT_PORT, DEFAULT_SERVER_LIMITS, ServerLimits, StreamSlots
from antiphon.server.routes import ROUTES
from antiphon.server.server_token import announce_server, remove_token, store_path_of, token_for

logger = logging.getLogger("antiphon.server")

ACCEPTS_PER_ROUND = 16
"""How many connections are accepted in one callback of the event loop."""
ACCEPT_RETRY_SECONDS = 1.0
"""The delay before accepting is retried after an error."""


class Acceptor:
    """Accepts connections from a listening socket, from now until it is closed."""

    def __init__(self, listening: socket.socket, connections: ConnectionPool, server: uvicorn.Server) -> None:
        self._listening, self._connections, self._server = listening, connections, server
        self._loop = asyncio.get_running_loop()
        self._beginning: set[asyncio.Task[None]] = set()
        self._is_paused = True
        self._is_told = False
        """Whether it was logged that accepting stopped."""
        self._closed = False
        connections.on_leave = self.resume_if_space
        self.resume()

    def resume(self) -> None:
        if self._is_paused and not self._closed:
            self._is_paused = False
            self._loop.add_reader(self._listening.fileno(), self._accept)

    def resume_if_space(self) -> None:
        """Resume accepting, if there is room."""
        if self._has_space():
            self.resume()
        if self._is_told and self._connections.count <= self._connections.limit:
            self._is_told = False
            logger.warning("connections are accepted again: there are %d", self._connections.count)

    async def close(self) -> None:
        """Stop accepting. Open connections stay."""
        self._pause()
        self._closed = True
        self._listening.close()
        await asyncio.gather(*self._beginning, return_exceptions=True)

    def _has_space(self) -> bool:
        return self._connections.count < self._connections.most

    def _pause(self) -> None:
        if not self._is_paused:
            self._is_paused = True
            self._loop.remove_reader(self._listening.fileno())

    def _accept(self) -> None:
        for _ in range(ACCEPTS_PER_ROUND):
            if not self._has_space():
                self._stop_for_space()
                return
            try:
                sock, _address = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                logger.warning("a connection cannot be accepted: %s; trying again in %g s", error, ACCEPT_RETRY_SECONDS)
                self._pause()
                self._loop.call_later(ACCEPT_RETRY_SECONDS, self.resume)
                return
            self._begin(sock)

    def _stop_for_space(self) -> None:
        """Stop accepting until a connection is closed, and close idle ones."""
        self._pause()
        if not self._is_told:
            self._is_told = True
            count = self._connections.count
            logger.warning("%d connections are open: no more are accepted until one of them is closed", count)
        self._connections.make_space()

    def _begin(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        line = self._connections.make(self._server.config, self._server.server_state)
        task = self._loop.create_task(self._made(sock, line))
        self._beginning.add(task)
        task.add_done_callback(self._beginning.discard)

    async def _made(self, sock: socket.socket, line: HttpConnection) -> None:
        try:
            await self._loop.connect_accepted_socket(lambda: line, sock)  # type: ignore[type-var]  # a protocol by its methods
        except OSError as error:  # the client disconnected first
            logger.debug("a connection has ended before it began: %s", error)
            sock.close()
            self._connections.leave(line)
        if self._is_paused and not self._has_space():
            self._connections.make_space()


OPEN_WARNING = (
    "%s is open: every program on this machine may do everything, and a proxy in front of it opens it to everybody; "
    "leave open out, or make a key: antiphon keys make"
)
ACCEPT_BACKLOG = 2048
PRIVATE_HEADERS = [("cache-control", "no-store"), ("x-content-type-options", "nosniff")]
"""Headers of every response: most carry conversations, some secrets, and none may be cached or sniffed."""
SEND_BUFFER_BYTES = 128 * 1024
"""The kernel's send buffer of a connection: small, so that many stalled clients cost little and are noticed soon."""
LAST_ANSWERS_SECONDS = 0.5
"""How long the responses that say that the server stops may take."""
SHUTDOWN_ALLOWANCE_SECONDS = 2
"""How much longer than our own limit uvicorn waits: it must not cut first."""


class RunningServer(msgspec.Struct, frozen=True):
    """A running server."""

    host: str
    port: int
    streams: StreamSlots
    connections: ConnectionPool
    token: str = ""
    """The credential while there are no keys; "" if it is open, or has keys."""

    def __repr__(self) -> str:
        return f"Served({self.url!r})"  # without the token

    @property
    def headers(self) -> dict[str, str]:
        """Headers with the token; none if there is no token."""
        return {"authorization": f"Bearer {self.token}"} if self.token else {}

    @property
    def url(self) -> str:
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


@asynccontextmanager
async def serving(
    hub: Hub,
    *,
    host: str = DEFAULT_HOST,
    port: int = DEFAULT_PORT,
    limits: ServerLimits = DEFAULT_SERVER_LIMITS,
    routes: Sequence[HttpRoute] = ROUTES,
    open: bool = False,
) -> AsyncIterator[RunningServer]:
    """Serve a hub while this is entered. Port 0 is any free port.

    Until the first key is made, requests need the token in `RunningServer.token`, which is kept in a file beside the
    store. With `open` they need nothing: every program on this machine may do everything.
    """
    keys = await keys_of(hub)
    _check_access(host, guarded=keys.guarded, opened=open)
    connections = ConnectionPool(limits)
    redact_loggers(["uvicorn.error"])  # uvicorn logs what is raised while a response is sent
    listening = _listening_socket(host, port, limits)
    streams = StreamSlots(limits)
    store, token = store_path_of(hub), None
    try:
        if keys.guarded:
            remove_token(store)
        elif not open:
            token = token_for(store)
    except BaseException:
        listening.close()
        raise
    server = _uvicorn_server(AppState(hub, limits, streams, keys, token), routes)
    running = asyncio.create_task(server.serve(sockets=[]), name="server")
    watching = asyncio.create_task(connections.watch(), name="connections")
    served = RunningServer(
        host, listening.getsockname()[1], streams, connections, "" if token is None else token.secret
    )
    if open:
        logger.warning(OPEN_WARNING, served.url)
    try:
        acceptor = Acceptor(listening, connections, server)
        try:
            with announce_server(served.url, store, hub.core.store.tenant):
                yield served
        finally:
            await acceptor.close()
    finally:
        await _stop_server(server, running, streams, seconds=limits.stop_seconds)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        listening.close()


def _check_access(host: str, *, guarded: bool, opened: bool) -> None:
    """`UsageError` if other machines could connect without a key, or a server with keys is to be open."""
    if opened and guarded:
        raise UsageError("there are keys, and a server with keys cannot be open; leave open out, and show a key")
    if opened and not is_loopback(host):
        raise UsageError(
            f"{host!r} can be reached from other machines, and an open server wants no key; listen on {DEFAULT_HOST},"
            " or make a key: antiphon keys make --participant NAME --scope all"
        )
    if not guarded and not is_loopback(host):
        advice = "make one first: antiphon keys make --participant NAME --scope all"
        raise UsageError(f"{host!r} can be reached from other machines, and there are no keys; {advice}")


def _uvicorn_server(app_state: AppState, routes: Sequence[HttpRoute]) -> uvicorn.Server:
    limits = app_state.limits
    config = uvicorn.Config(
        app_of(app_state, routes),
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        headers=PRIVATE_HEADERS,
        timeout_graceful_shutdown=int(limits.stop_seconds) + SHUTDOWN_ALLOWANCE_SECONDS,
    )
    server = uvicorn.Server(config)
    server.capture_signals = nullcontext  # type: ignore[method-assign, assignment]  # see rule 3
    return server


def _listening_socket(host: str, port: int, limits: ServerLimits) -> socket.socket:
    """A listening socket. The system closes its connections to clients that vanish, or acknowledge nothing."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named, asyncio knows that this is TCP and turns Nagle's algorithm off, which delays answers.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option in ("TCP_KEEPIDLE", "TCP_KEEPINTVL"):  # a vanished peer is noticed soon
            if hasattr(socket, option):
                listening.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), max(1, int(limits.stalled_seconds)))
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            patience = int(limits.stalled_seconds * 1000)
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, patience)
        listening.bind((host, port))
        listening.listen(ACCEPT_BACKLOG)
    except OSError as error:
        listening.close()
        raise UsageError(f"nothing can listen on {host!r}, port {port}: {error.strerror or error}") from error
    listening.setblocking(False)
    return listening


async def _stop_server(
    server: uvicorn.Server, running: asyncio.Task[None], streams: StreamSlots, *, seconds: float
) -> None:
    streams.stopping.set()
    server.should_exit = True
    loop = asyncio.get_running_loop()
    late = loop.call_later(seconds, streams.late.set)
    last = loop.call_later(
        seconds + LAST_ANSWERS_SECONDS, abort_all, server.server_state
    )  # connections that read nothing
    try:
        await running
    finally:
        late.cancel()
        last.cancel()
        abort_all(server.server_state)
