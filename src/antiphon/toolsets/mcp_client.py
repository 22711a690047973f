"""Opening a connection to an MCP server, and closing it again.

Rule 1: the task that enters `open_client` leaves it.
Rule 2: a process's standard error goes to the logger `antiphon.mcp`, not to the terminal.
Rule 3: a lost connection is reported at once, also if no request is pending.

This module needs the package `mcp`, and is loaded when the first connection is opened.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING, Generic, Self, TypeVar

import anyio
import httpx2
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

from antiphon.toolsets.transports import HttpTransport, McpTransport, StdioTransport

if TYPE_CHECKING:
    from mcp.client._transport import ReadStream, TransportStreams

logger = logging.getLogger("antiphon.mcp")
T = TypeVar("T")

MAX_STDERR_LINE_BYTES = 64 * 1024
STDERR_GRACE_SECONDS = 0.5
"""How long the rest of an ended process's standard error is waited for."""


class StderrTail:
    """The end of a server's standard error."""

    def __init__(self) -> None:
        self.words = ""
        """Its last line."""


class HttpRefusals:
    """The last HTTP error status that the requests of one task got."""

    def __init__(self) -> None:
        self.last: int | None = None
        # `mcp` runs a request in a copy of its caller's context, so the response hook finds this.
        _current_refusals.set(self)


_current_refusals: ContextVar[HttpRefusals | None] = ContextVar("refusals", default=None)


@asynccontextmanager
async def open_client(
    way: McpTransport, heard: StderrTail, *, patience: float, lost: Callable[[], None]
) -> AsyncIterator[Client]:
    """A client of the server, from its handshake until it is closed. `lost` is called when the connection ends."""
    opened = _stdio_streams(way, heard) if isinstance(way, StdioTransport) else _http_streams(way, patience)
    async with Client(_watch_streams(opened, lost)) as client:
        yield client


@asynccontextmanager
async def _stdio_streams(way: StdioTransport, heard: StderrTail) -> AsyncIterator[TransportStreams]:
    """A child process. Its environment holds the variables that `mcp` lets it inherit, and those given."""
    start = StdioServerParameters(command=way.command, args=list(way.args), env=dict(way.env), cwd=way.cwd)
    async with AsyncExitStack() as stack:
        reading, writing = os.pipe()
        with os.fdopen(writing, "w") as stderr:  # this end is closed once the process has its own
            await stack.enter_async_context(_log_stderr(reading, way, heard))
            streams = await stack.enter_async_context(stdio_client(start, stderr))
        yield streams


@asynccontextmanager
async def _log_stderr(reading: int, way: StdioTransport, heard: StderrTail) -> AsyncIterator[None]:
    """Log a pipe line by line."""
    lines = asyncio.StreamReader(limit=MAX_STDERR_LINE_BYTES)
    pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(lines), os.fdopen(reading, "rb", 0)
    )
    logging_lines = asyncio.create_task(_log_lines(lines, way, heard))
    try:
        yield
    finally:
        # Not for ever: a child of the process may hold the pipe.
        with anyio.move_on_after(STDERR_GRACE_SECONDS, shield=True):
            await asyncio.wait({logging_lines})
        logging_lines.cancel()
        pipe.close()


async def _log_lines(lines: asyncio.StreamReader, way: StdioTransport, heard: StderrTail) -> None:
    while True:
        try:
            line = await lines.readline()
        except ValueError:
            logger.debug("%s: (a line of more than %d bytes)", way.label, MAX_STDERR_LINE_BYTES)
            continue
        if not line:
            return
        text = line.decode("utf-8", "replace").rstrip()
        heard.words = text or heard.words
        logger.debug("%s: %s", way.label, text)


@asynccontextmanager
async def _http_streams(way: HttpTransport, patience: float) -> AsyncIterator[TransportStreams]:
    """A server at a URL. The caller limits the time of an answer. No proxy is used for this machine."""
    timeout, limits = httpx2.Timeout(patience, read=None, pool=None), httpx2.Limits(max_connections=None)
    headers, hooks = dict(way.headers), {"response": [_note_refusal]}
    client = httpx2.AsyncClient(
        headers=headers, timeout=timeout, limits=limits, event_hooks=hooks, trust_env=not way.is_local
    )
    async with client as http, streamable_http_client(way.url, http_client=http) as streams:
        yield streams


async def _note_refusal(response: httpx2.Response) -> None:
    refusals = _current_refusals.get()
    if refusals is not None and response.is_error:
        refusals.last = response.status_code


@asynccontextmanager
async def _watch_streams(
    opened: AbstractAsyncContextManager[TransportStreams], lost: Callable[[], None]
) -> AsyncIterator[TransportStreams]:
    async with opened as (incoming, outgoing):
        yield _WatchedStream(incoming, lost), outgoing


class _WatchedStream(Generic[T]):
    """Messages of a server; calls `lost` at their end."""

    def __init__(self, stream: ReadStream[T], lost: Callable[[], None]) -> None:
        self._stream, self._lost = stream, lost

    @property
    def last_context(self) -> object:
        """The context of the last message's sender, which `mcp` asks for."""
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> T:
        try:
            return await self._stream.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError):
            self._lost()
            raise

    async def aclose(self) -> None:
        await self._stream.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
