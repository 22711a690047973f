"""Connections are accepted here, as long as there is room for them.

Rule 1: what does not fit waits in the system's queue. Nothing is accepted only to fail for want of a file.
Rule 2: that accepting stops is logged once, and so is that it goes on.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn

from antiphon.server.connections import Connections, Line

log = logging.getLogger("antiphon.server")

AT_ONCE = 16
"""How many connections are accepted before anything else is looked at."""
RETRY_SECONDS = 1.0
"""After how many seconds accepting is tried again that the system has refused."""


@asynccontextmanager
async def accepting(listening: socket.socket, connections: Connections, server: uvicorn.Server) -> AsyncIterator[None]:
    """Accept connections for as long as this is entered. The socket is closed at the end."""
    acceptor = Acceptor(listening, connections, server)
    connections.on_leave = acceptor.resume_if_space
    acceptor.resume()
    try:
        yield
    finally:
        await acceptor.close()


class Acceptor:
    """Takes connections from a socket that listens."""

    def __init__(self, listening: socket.socket, connections: Connections, server: uvicorn.Server) -> None:
        self._listening, self._connections, self._server = listening, connections, server
        self._loop = asyncio.get_running_loop()
        self._beginning: set[asyncio.Task[None]] = set()
        self._is_paused = True
        self._is_told = False
        """Whether it was logged that there is no room."""
        self._closed = False

    def resume(self) -> None:
        """Accept from now on."""
        if self._is_paused and not self._closed:
            self._is_paused = False
            self._loop.add_reader(self._listening.fileno(), self._accept)

    def resume_if_space(self) -> None:
        """Accept from now on, if there is room."""
        if self._has_space():
            self.resume()
        if self._is_told and self._connections.count <= self._connections.limit:
            self._is_told = False
            log.warning("connections are accepted again: there are %d", self._connections.count)

    async def close(self) -> None:
        """Accept nothing more. Connections that have begun go on."""
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
        for _ in range(AT_ONCE):
            if not self._has_space():
                self._stop_for_space()
                return
            try:
                sock, _address = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                log.warning("a connection cannot be accepted: %s; trying again in %g s", error, RETRY_SECONDS)
                self._pause()
                self._loop.call_later(RETRY_SECONDS, self.resume)
                return
            self._begin(sock)

    def _stop_for_space(self) -> None:
        """Accept nothing until a connection is gone, and let idle ones go."""
        self._pause()
        if not self._is_told:
            self._is_told = True
            count = self._connections.count
            log.warning("%d connections are open: no more are accepted until one of them is closed", count)
        self._connections.make_space()

    def _begin(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        line = self._connections.make(self._server.config, self._server.server_state)
        task = self._loop.create_task(self._made(sock, line))
        self._beginning.add(task)
        task.add_done_callback(self._beginning.discard)

    async def _made(self, sock: socket.socket, line: Line) -> None:
        try:
            await self._loop.connect_accepted_socket(lambda: line, sock)  # type: ignore[type-var]  # a protocol by its methods
        except OSError as error:  # it was gone before it began
            log.debug("a connection has ended before it began: %s", error)
            sock.close()
            self._connections.leave(line)
        if self._is_paused and not self._has_space():
            self._connections.make_space()
