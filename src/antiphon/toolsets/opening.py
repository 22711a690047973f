"""Opening a connection to an MCP server, and closing it again.

Rule 1: whoever enters `connected` leaves it, in the same task.
Rule 2: what a process writes to its standard error goes to the logger `antiphon.mcp`, not to the terminal.
Rule 3: a connection says when it is lost, whether or not anybody is asking for anything.

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
from typing import TYPE_CHECKING, Generic, Protocol, Self, TypeVar

import anyio
import httpx2
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

from antiphon.toolsets.ways import Http, Stdio, Way

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams

log = logging.getLogger("antiphon.mcp")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

LONGEST_LINE = 64 * 1024
LAST_WORDS = 0.5
"""The seconds that a process which has ended is given to be heard out."""


class Heard:
    """What a server said besides its answers."""

    def __init__(self) -> None:
        self.words = ""
        """The last line that it wrote to its standard error."""


class Refusals:
    """The HTTP statuses by which the requests of one task were refused."""

    def __init__(self) -> None:
        self.statuses: list[int] = []
        _refusals.set(self)  # a request runs in a copy of the context of whoever makes it

    @property
    def last(self) -> int | None:
        """The last of them."""
        return self.statuses[-1] if self.statuses else None


_refusals: ContextVar[Refusals | None] = ContextVar("refusals", default=None)


@asynccontextmanager
async def connected(way: Way, heard: Heard, *, patience: float, lost: Callable[[], None]) -> AsyncIterator[Client]:
    """A client of the server, from its handshake until it is closed. `lost` is called when the server is gone."""
    opened = _process(way, heard) if isinstance(way, Stdio) else _distant(way, patience)
    async with Client(_watched(opened, lost)) as client:
        yield client


@asynccontextmanager
async def _process(way: Stdio, heard: Heard) -> AsyncIterator[TransportStreams]:
    """A process of ours. Its environment holds what `mcp` finds harmless to inherit, and what was given."""
    start = StdioServerParameters(command=way.command, args=list(way.args), env=dict(way.env), cwd=way.cwd)
    async with AsyncExitStack() as stack:
        reading, writing = os.pipe()
        with os.fdopen(writing, "w") as stderr:  # ours is closed once the process has its own
            await stack.enter_async_context(_logged(reading, way, heard))
            streams = await stack.enter_async_context(stdio_client(start, stderr))
        yield streams


@asynccontextmanager
async def _logged(reading: int, way: Stdio, heard: Heard) -> AsyncIterator[None]:
    """Log what is read from there, line by line."""
    lines = asyncio.StreamReader(limit=LONGEST_LINE)
    pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(lines), os.fdopen(reading, "rb", 0)
    )
    logging_lines = asyncio.create_task(_log(lines, way, heard))
    try:
        yield
    finally:
        with anyio.move_on_after(LAST_WORDS, shield=True):  # a child of the process may hold the pipe for ever
            await asyncio.wait({logging_lines})
        logging_lines.cancel()
        pipe.close()


async def _log(lines: asyncio.StreamReader, way: Stdio, heard: Heard) -> None:
    while True:
        try:
            line = await lines.readline()
        except ValueError:
            log.debug("%s: (a line of more than %d bytes)", way.label, LONGEST_LINE)
            continue
        if not line:
            return
        text = line.decode("utf-8", "replace").rstrip()
        heard.words = text or heard.words
        log.debug("%s: %s", way.label, text)


@asynccontextmanager
async def _distant(way: Http, patience: float) -> AsyncIterator[TransportStreams]:
    """A server somewhere. How long an answer may take is for whoever asks to say. No proxy reads what stays here."""
    timeout = httpx2.Timeout(patience, read=None, pool=None)
    limits = httpx2.Limits(max_connections=None)
    client = httpx2.AsyncClient(
        headers=dict(way.headers),
        timeout=timeout,
        limits=limits,
        event_hooks={"response": [_note_refusal]},
        trust_env=not way.is_local,
    )
    async with (
        client as http,
        streamable_http_client(way.url, http_client=http) as streams,
    ):
        yield streams


async def _note_refusal(response: httpx2.Response) -> None:
    refusals = _refusals.get()
    if refusals is not None and response.is_error:
        refusals.statuses.append(response.status_code)


@asynccontextmanager
async def _watched(
    opened: AbstractAsyncContextManager[TransportStreams], lost: Callable[[], None]
) -> AsyncIterator[TransportStreams]:
    async with opened as (incoming, outgoing):
        yield _Watched(incoming, lost), outgoing


class _Incoming(Protocol[T_co]):
    """Messages from a server."""

    async def receive(self) -> T_co: ...
    async def aclose(self) -> None: ...


class _Watched(Generic[T]):
    """Messages from a server, and word of the end of them."""

    def __init__(self, stream: _Incoming[T], lost: Callable[[], None]) -> None:
        self._stream, self._lost = stream, lost

    @property
    def last_context(self) -> object:
        """The context of whoever sent the last message, which `mcp` asks for."""
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
