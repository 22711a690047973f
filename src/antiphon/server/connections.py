"""The connections of a server: how many there are, which holder they count to, and when they are closed.

Rule 1: a connection without a request in progress is closed when no complete head of a request arrives in time, however
        many bytes of it do; one with an unread answer is closed when nothing is read of it in time.
Rule 2: a connection belongs to the address it comes from until a request on it shows a key; then it belongs to the key.
        Each holder has a share. Beyond it the holder's own idle connections are closed, then its requests are refused.
Rule 3: beyond the limit of all connections requests are refused with 503. A few more connections are accepted, so that
        `/health` is answered; beyond those, the connections that are idle longest are closed.
Rule 4: an aborted connection is closed at once. Unread bytes are lost.
Rule 5: a head that two servers in a row could read as two different requests is refused, and its connection closed: a
        body with two lengths, or with a length and chunks, or a header folded over several lines.
Rule 6: bytes that are not HTTP are refused like everything else: as JSON, with a reason.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Iterable
from ipaddress import IPv6Address, ip_address, ip_network
from typing import TypeAlias
from weakref import ref

import h11
from starlette.types import Scope
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from antiphon.core.codec import to_json
from antiphon.server.limits import ServerLimits, connection_capacity, share_of
from antiphon.server.problems import JSON_TYPE, Fault, Problem, RequestRefused

logger = logging.getLogger("antiphon.server")

CONNECTION_KEY = "connection"
IDLE_CHECKS_PER_TIMEOUT = 4
"""How often a connection is checked within its timeout."""
EVICTIONS_PER_ROUND = 16
"""How many idle connections are closed at once to make room."""


class HttpConnection:
    """The asyncio protocol of one connection: counts it in the pool, and leaves HTTP to uvicorn's `H11Protocol`.

    It wraps that class instead of deriving from it, because a subclass would share its undocumented attributes. Of
    these only `transport`, `client`, `cycle` and `conn` are read.
    """

    def __init__(self, protocol: H11Protocol, connections: ConnectionPool) -> None:
        self.protocol, self.pool = protocol, connections
        self.holder = ""
        self.is_extra = False
        """Whether it was taken beyond the limit."""
        self.since = 0.0
        """Since when it is idle."""
        self._cycle: object = None
        self._left = 0
        self.data_received = protocol.data_received
        self.eof_received = protocol.eof_received
        self.pause_writing = protocol.pause_writing
        self.resume_writing = protocol.resume_writing

    def connection_made(self, transport: asyncio.Transport) -> None:
        self.protocol.connection_made(transport)
        self.pool.enter(self)

    def connection_lost(self, error: Exception | None) -> None:
        self.protocol.connection_lost(error)
        self.protocol.app_state.clear()  # it refers to this, which refers to the protocol
        self.pool.leave(self)

    @property
    def left(self) -> int:
        """How many bytes of an answer are still in this process's write buffer."""
        return self.protocol.transport.get_write_buffer_size()

    @property
    def is_busy(self) -> bool:
        """Whether a request is in progress."""
        cycle: object = self.protocol.cycle  # None before the first request, though its type does not say so
        return cycle is not None and not self.protocol.cycle.response_complete

    def is_idle(self, now: float) -> bool:
        """Whether no request is in progress; `since` says for how long nothing has happened."""
        # A new cycle means that a whole request came and went between two checks: idle, but not since before it.
        cycle, left = self.protocol.cycle, self.left
        if self.is_busy or cycle is not self._cycle or left != self._left:
            self.since, self._cycle, self._left = now, cycle, left
        return not self.is_busy

    def abort(self) -> None:
        """Close it at once. Unread bytes are lost."""
        self.protocol.transport.abort()

    def check_space(self) -> None:
        """`RequestRefused` if it was accepted beyond the limit, and there is still no room for it."""
        limit = self.pool.limit
        self.is_extra = self.is_extra and self.pool.count > limit
        if self.is_extra:
            said = f"the server has {limit} connections, which is its limit; try again soon"
            raise RequestRefused(503, "too_many_connections", said, close=True)


class ConnectionPool:
    """All connections of a server."""

    def __init__(self, limits: ServerLimits) -> None:
        self._limits = limits
        self.limit, self.most = connection_capacity(limits.connections)
        """How many are answered, and how many are accepted, including the few beyond the limit."""
        self._share = max(1, limits.connections_each * self.limit // max(1, limits.connections))
        """How many connections an address may have without a key. It shrinks with the limit."""
        self._share_in_use = share_of(self._share, self.limit)
        """How many connections in use a holder may have."""
        self._told: set[str] = set()
        """The addresses already logged as having reached their share."""
        self._held: dict[str, dict[HttpConnection, None]] = {}
        """By holder, the oldest first."""
        self._lines: set[HttpConnection] = set()
        """All of them, including those not yet begun or being closed: each holds a file."""
        self._leaving: set[HttpConnection] = set()
        """Those aborted and not closed yet."""
        self.on_leave: Callable[[], None] = lambda: None
        """Called after one is closed."""

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._lines)

    def make(self, config: Config, server: ServerState) -> HttpConnection:
        """A new connection."""
        state: dict[str, object] = {}
        protocol = H11Protocol(config, server, state)
        enforce_strict_heads(protocol)
        line = HttpConnection(protocol, self)
        line.is_extra = self.count >= self.limit
        self._lines.add(line)
        state[CONNECTION_KEY] = line  # each request has a copy of the state in its scope
        return line

    def enter(self, line: HttpConnection) -> None:
        """Add one that has begun."""
        client = line.protocol.client
        line.holder = address_holder(client[0] if client else "")
        line.since = asyncio.get_running_loop().time()
        held = self._held.setdefault(line.holder, {})
        held[line] = None
        if len(held) > self._share:
            if line.holder not in self._told:
                self._told.add(line.holder)
                said = "%s has %d connections without a key, which is its share: those that are idle make way"
                logger.warning(said, line.holder, self._share)
            # Not this one, whose first request may show a key. If it does not, that request is refused.
            self._make_way([each for each in held if each is not line], len(held) - self._share)

    def leave(self, line: HttpConnection) -> None:
        """Remove one that is closed, or never began."""
        self._forget(line)
        self._lines.discard(line)
        self._leaving.discard(line)
        self.on_leave()

    def make_space(self) -> None:
        """Close the connections that are idle longest, unless some are being closed already."""
        if not self._leaving:
            fullest = max(self._held.values(), key=len, default={})
            self._make_way(fullest, EVICTIONS_PER_ROUND) or self._make_way(self._all(), EVICTIONS_PER_ROUND)

    def move(self, line: HttpConnection, holder: str) -> None:
        """Count one to this holder from now on; `RequestRefused` if that has its share in use already."""
        if line.holder != holder and not line.protocol.transport.is_closing():
            self._forget(line)
            line.holder = holder
            self._held.setdefault(holder, {})[line] = None
        held, most = self._held.get(holder, {}), self._share_in_use
        if len(held) > most and not self._make_way(held, len(held) - most):
            said = f"{holder} has {most} connections in use, which is its share; wait for an answer, or close a stream"
            raise RequestRefused(429, "too_many_connections", said, close=True)

    async def watch(self) -> None:
        """Close, until cancelled, connections without a request, or with an answer that is not read, for too long."""
        limits, loop = self._limits, asyncio.get_running_loop()
        while True:
            await asyncio.sleep(min(limits.request_seconds, limits.stalled_seconds) / IDLE_CHECKS_PER_TIMEOUT)
            now = loop.time()
            for line in self._all():
                patience = limits.stalled_seconds if line.left else limits.request_seconds
                if line.is_idle(now) and now - line.since >= patience:
                    line.abort()
            if self.count >= self.most:
                self.make_space()

    def _all(self) -> list[HttpConnection]:
        return [line for held in self._held.values() for line in held]

    def _make_way(self, lines: Iterable[HttpConnection], count: int) -> bool:
        """Abort up to `count` of these, those idle longest first; whether there was one."""
        now = asyncio.get_running_loop().time()
        idle = sorted((line for line in lines if line.is_idle(now)), key=lambda line: line.since)
        for line in idle[:count]:
            self._forget(line)
            self._leaving.add(line)
            logger.debug("an idle connection of %s makes way", line.holder)
            line.abort()
        return bool(idle)

    def _forget(self, line: HttpConnection) -> None:
        held = self._held.get(line.holder, {})
        held.pop(line, None)
        if not held:
            self._held.pop(line.holder, None)
            self._told.discard(line.holder)


def address_holder(host: str) -> str:
    """An address as the holder of connections and requests that show no key. An IPv6 network of 64 bits is one holder.

    A single machine is usually given such a network, and could take a new address for every connection.
    """
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return f"address {host or 'unknown'}"
    if isinstance(address, IPv6Address) and address.ipv4_mapped is None:
        return f"address {ip_network((address, 64), strict=False)}"
    return f"address {getattr(address, 'ipv4_mapped', None) or address}"


def connection_of(scope: Scope) -> HttpConnection:
    """The connection of a request."""
    found: HttpConnection = scope["state"][CONNECTION_KEY]
    return found


def abort_all(server: ServerState) -> None:
    """Abort every open connection."""
    for protocol in list(server.connections):
        protocol.transport.abort()


HEAD_END = re.compile(rb"\n\r?\n")
LENGTH_HEADER = b"content-length"
CHUNKS_HEADER = b"transfer-encoding"

H11Event: TypeAlias = h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]


class AmbiguousHead(h11.RemoteProtocolError):
    """A head can be read in two ways. Its text is ours: h11's own repeats what was sent, which may be a secret."""


def enforce_strict_heads(protocol: H11Protocol) -> None:
    """Have a connection refuse ambiguous heads, with the reason as JSON."""
    connection, line = ref(protocol.conn), ref(protocol)  # weak: neither is to be kept alive by its own methods
    detail = ""

    def next_event() -> H11Event:
        nonlocal detail
        conn = connection()
        assert conn is not None, "its owner calls it"
        try:
            if conn.their_state is h11.IDLE:
                _check_head_lines(conn.trailing_data[0])
            event = h11.Connection.next_event(conn)
            if isinstance(event, h11.Request):
                _check_framing(event)
        except AmbiguousHead as error:
            detail = f": {error}"
            raise
        return event

    def refuse(_message: str) -> None:
        caller = line()
        assert caller is not None, "it is called by itself"
        _send_bad_request(caller, f"this is no valid HTTP/1.1 request{detail}")

    protocol.conn.next_event = next_event  # type: ignore[method-assign]  # a connection is made by uvicorn, which offers no hook
    protocol.send_400_response = refuse  # type: ignore[method-assign, assignment]  # the same


def _check_head_lines(data: bytes) -> None:
    """Refuse what h11 would repair: a repeated length, and folded lines."""
    end = HEAD_END.search(data)
    if end is None:
        return
    lengths = 0
    for line in data[: end.start()].split(b"\n")[1:]:
        if line[:1] in (b" ", b"\t"):
            raise AmbiguousHead("a header goes on in the next line; send it in one line")
        name, _, value = line.partition(b":")
        if name.strip().lower() == LENGTH_HEADER:
            lengths += 1 + value.count(b",")
    if lengths > 1:
        raise AmbiguousHead("it has Content-Length more than once; send it once")


def _check_framing(request: h11.Request) -> None:
    names = {name for name, _ in request.headers}
    if CHUNKS_HEADER in names and LENGTH_HEADER in names:
        raise AmbiguousHead("it has Content-Length and Transfer-Encoding; send one of them")
    if CHUNKS_HEADER in names and request.http_version < b"1.1":
        version = request.http_version.decode("ascii")
        raise AmbiguousHead(f"it has Transfer-Encoding in HTTP/{version}, which knows none")


def _send_bad_request(protocol: H11Protocol, message: str) -> None:
    """Answer 400 and close; only close, if an answer has begun."""
    conn, transport = protocol.conn, protocol.transport
    if conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
        body = to_json(Problem(Fault("bad_http", message)))
        headers = [
            *protocol.server_state.default_headers,
            (b"content-type", JSON_TYPE.encode()),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        answer = (h11.Response(status_code=400, headers=headers, reason=b"Bad Request"), h11.Data(data=body))
        for event in (*answer, h11.EndOfMessage()):
            transport.write(conn.send(event) or b"")
    transport.close()
