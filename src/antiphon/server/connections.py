"""The connections of a server: how many there are, who holds them, and when they are closed.

Rule 1: a connection without a request in progress is closed when no complete head of a request has come for so long,
        whatever dribbles in; one whose answer is still being read is closed when nothing of it is taken for so long.
Rule 2: a connection belongs to the address it comes from until a request on it shows a key; then it belongs to the key.
        Each holder has a share. Beyond it the holder's own idle connections make way, then its requests are refused.
Rule 3: beyond the limit of all connections requests are refused with 503. A few more connections are taken than that,
        so that `/health` is answered; there the connections that are idle longest make way.
Rule 4: a connection that is aborted is gone at once. What was not taken of it by then is lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from ipaddress import IPv6Address, ip_address, ip_network
from weakref import ref

import msgspec
from starlette.types import Scope
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from antiphon.server.files import Capacity, capacity_of
from antiphon.server.heads import be_strict
from antiphon.server.limits import Limits
from antiphon.server.problems import Refused
from antiphon.server.streams import share_of

log = logging.getLogger("antiphon.server")

HELD = "connection"
TICKS = 4
"""How often in the time that a connection has for a request it is looked at."""
AT_ONCE = 16
"""How many idle connections make way at once when there is no room for another."""


class Line:
    """One connection, which is what its transport calls. It passes everything on to the protocol that speaks HTTP."""

    def __init__(self, protocol: H11Protocol, connections: Connections) -> None:
        self.protocol, self._connections = protocol, connections
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
        """Called by the transport, first."""
        self.protocol.connection_made(transport)
        self._connections.enter(self)

    def connection_lost(self, error: Exception | None) -> None:
        """Called by the transport, last."""
        self.protocol.connection_lost(error)
        self._connections.leave(self)

    @property
    def left(self) -> int:
        """How many bytes of an answer wait to be taken, beside those that the system holds already."""
        return self.protocol.transport.get_write_buffer_size()

    @property
    def is_busy(self) -> bool:
        """Whether a request is in progress. `cycle` is none before the first one, whatever its type says."""
        cycle: object = self.protocol.cycle
        return cycle is not None and not self.protocol.cycle.response_complete

    def is_idle(self, now: float) -> bool:
        """Whether no request is in progress; `since` says for how long nothing has happened."""
        cycle, left = self.protocol.cycle, self.left
        if self.is_busy or cycle is not self._cycle or left != self._left:
            self.since, self._cycle, self._left = now, cycle, left
        return not self.is_busy

    def abort(self) -> None:
        """Close it at once, also if nothing of what is on its way is taken."""
        self.protocol.transport.abort()


class Held(msgspec.Struct, frozen=True):
    """A connection as the request holds it that is answered on it."""

    _line: ref[Line]
    _connections: Connections

    def cut(self) -> None:
        """Close it at once, also if nothing of what is on its way is taken."""
        line = self._line()
        if line is not None:
            line.abort()

    def left(self) -> int:
        """How many bytes wait to be taken, beside those that the system holds already."""
        line = self._line()
        return 0 if line is None else line.left

    def check_space(self) -> None:
        """`Refused` if this connection is one too many."""
        line = self._line()
        if line is not None:
            self._connections.check_space(line)

    def belongs_to(self, holder: str) -> None:
        """Count it to this holder from now on; `Refused` if that is more than its share."""
        line = self._line()
        if line is not None:
            self._connections.move(line, holder)


class Connections:
    """All connections of a server."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._capacity: Capacity = capacity_of(limits.connections)
        fitting = limits.connections_each * self.limit // max(1, limits.connections)
        self._share = max(1, fitting)
        """How many an address has without a key. It shrinks with the limit."""
        self._share_in_use = share_of(self._share, self.limit)
        """How many a holder has that are in use."""
        self._told: set[str] = set()
        """The addresses of which it was logged that they have their share."""
        self._held: dict[str, dict[Line, None]] = {}
        """By holder, the oldest first."""
        self._lines: set[Line] = set()
        """All of them, also those that have not begun yet, or were told to make way: each has a file."""
        self._leaving: set[Line] = set()
        """Those that were told to make way, and are not gone yet."""
        self.on_leave: Callable[[], None] = lambda: None
        """Called when one is gone."""

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._lines)

    @property
    def most(self) -> int:
        """How many there can be, with the few that are taken beyond the limit."""
        return self._capacity.most

    @property
    def limit(self) -> int:
        """How many are answered."""
        return self._capacity.limit

    def make(self, config: Config, server: ServerState) -> Line:
        """A new connection."""
        state: dict[str, object] = {}
        protocol = H11Protocol(config, server, state)
        be_strict(protocol)
        line = Line(protocol, self)
        line.is_extra = self.count >= self.limit
        self._lines.add(line)
        state[HELD] = Held(ref(line), self)
        return line

    def enter(self, line: Line) -> None:
        """Take note of one that has begun."""
        client = line.protocol.client
        line.holder = address_of(client[0] if client else "")
        line.since = asyncio.get_running_loop().time()
        held = self._held.setdefault(line.holder, {})
        held[line] = None
        if len(held) > self._share:
            if line.holder not in self._told:
                self._told.add(line.holder)
                said = "%s has %d connections without a key, which is its share: those that are idle make way"
                log.warning(said, line.holder, self._share)
            # Not this one, whose first request may show a key. If it does not, that request is refused.
            self._make_way([each for each in held if each is not line], len(held) - self._share)

    def leave(self, line: Line) -> None:
        """Take note of one that is gone, or has never begun."""
        self._forget(line)
        self._lines.discard(line)
        self._leaving.discard(line)
        self.on_leave()

    def make_space(self) -> None:
        """Let connections that are idle longest make way, unless some do already."""
        if not self._leaving:
            fullest = max(self._held.values(), key=len, default={})
            self._make_way(fullest, AT_ONCE) or self._make_way(self._all(), AT_ONCE)

    def check_space(self, line: Line) -> None:
        """`Refused` if this one was taken beyond the limit, and there is still no room for it."""
        line.is_extra = line.is_extra and self.count > self.limit
        if line.is_extra:
            said = f"the server has {self.limit} connections, which is its limit; try again soon"
            raise Refused(503, "too_many_connections", said, close=True)

    def move(self, line: Line, holder: str) -> None:
        """Count one to another holder; `Refused` if that has its share already, and none of it is idle."""
        if line.holder != holder and not line.protocol.transport.is_closing():
            self._forget(line)
            line.holder = holder
            self._held.setdefault(holder, {})[line] = None
        held, most = self._held.get(holder, {}), self._share_in_use
        if len(held) > most and not self._make_way(held, len(held) - most):
            said = f"{holder} has {most} connections in use, which is its share; wait for an answer, or close a stream"
            raise Refused(429, "too_many_connections", said, close=True)

    async def watch(self) -> None:
        """Close, until cancelled, the connections on which no request comes, or of which nothing is taken."""
        limits, loop = self._limits, asyncio.get_running_loop()
        while True:
            await asyncio.sleep(min(limits.request_seconds, limits.stalled_seconds) / TICKS)
            now = loop.time()
            for line in self._all():
                patience = limits.stalled_seconds if line.left else limits.request_seconds
                if line.is_idle(now) and now - line.since >= patience:
                    line.abort()
            if self.count >= self.most:
                self.make_space()

    def _all(self) -> list[Line]:
        return [line for held in self._held.values() for line in held]

    def _make_way(self, lines: Iterable[Line], count: int) -> bool:
        """Abort so many of these, those first that are idle longest; whether there was one."""
        now = asyncio.get_running_loop().time()
        idle = sorted((line for line in lines if line.is_idle(now)), key=lambda line: line.since)
        for line in idle[:count]:
            self._forget(line)
            self._leaving.add(line)
            log.debug("an idle connection of %s makes way", line.holder)
            line.abort()
        return bool(idle)

    def _forget(self, line: Line) -> None:
        held = self._held.get(line.holder, {})
        held.pop(line, None)
        if not held:
            self._held.pop(line.holder, None)
            self._told.discard(line.holder)


def address_of(host: str) -> str:
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


def held(scope: Scope) -> Held:
    """The connection of a request."""
    found: Held = scope["state"][HELD]
    return found


def cut_all(server: ServerState) -> None:
    """End every connection there still is."""
    for protocol in list(server.connections):
        protocol.transport.abort()
