"""One connection to an MCP server, and the task that owns it.

Rule 1: one task opens, uses and closes the connection, because anyio's cancel scopes must be left by the task that
        entered them. Callers put requests on its queue and wait; requests run concurrently.
Rule 2: when the connection ends, for any reason, every pending request gets an answer or an error.
Rule 3: a closed connection is not reopened; its owner makes another.
Rule 4: an error says why a server could not be opened or asked, with the value and the fix.

This module needs the package `mcp`, and is loaded when the first connection is opened.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from contextvars import Context, copy_context
from functools import partial
from pathlib import Path
from typing import TypeVar, cast

import anyio
import httpx2
import mcp_types
import msgspec
from mcp import Client, MCPError
from mcp_types import CONNECTION_CLOSED, INVALID_REQUEST

from antiphon.core.text import MAX_ERROR_CHARS, describe, describe_error, sanitize
from antiphon.toolsets.mapping import MAYBE_DONE, RequestUnsent, ToolFailed
from antiphon.toolsets.mcp_client import HttpRefusals, StderrTail, logger, open_client
from antiphon.toolsets.transports import HttpTransport, McpTransport, StdioTransport

MCP_STAND_INS = ("Server returned an error response", "Not Found", "Session terminated")
"""Messages of `mcp` that stand for an HTTP status without a body."""
CREDENTIALS_ADVICE = "give what it asks for, such as headers={'Authorization': 'Bearer …'}"


def explain_silence(way: McpTransport, seconds: float) -> str:
    """Why opening a silent server is given up."""
    stdio = isinstance(way, StdioTransport)
    advice = f"check that {'it speaks MCP on its standard output' if stdio else 'the URL is that of an MCP server'}"
    return f"{way.label} did not answer within {seconds:g} s; {advice}, or give it more time with connect_timeout="


def explain_lost_call(way: McpTransport, error: Exception | None) -> str:
    """Why a call in progress has no answer."""
    if isinstance(way, StdioTransport):
        return f"{way.label} ended before it answered; {MAYBE_DONE}"
    cause = f" ({describe_error(_first_error(error))})" if error is not None else ""
    return f"the connection to {way.label} was lost before it answered{cause}; {MAYBE_DONE}"


def explain_refusal(way: McpTransport, error: Exception, refusals: HttpRefusals) -> str:
    """Why a connected server did not carry out a request."""
    if isinstance(way, HttpTransport) and refusals.last is not None and str(error) in MCP_STAND_INS:
        return _explain_status(way, refusals.last, error)
    return sanitize(str(error)[:MAX_ERROR_CHARS]) if isinstance(error, MCPError) else describe_error(error)


def explain_not_started(way: StdioTransport, cause: BaseException, last_words: str) -> str:
    """Why a process is no MCP server; `last_words` is the last line of its standard error."""
    if isinstance(cause, OSError) and way.cwd is not None and not Path(way.cwd).is_dir():
        return f"{way.label} cannot be started in {describe(way.cwd)}: there is no such directory; give another cwd="
    match cause:
        case FileNotFoundError():
            advice = "install it, or give its path"
            return f"{way.label} cannot be started: there is no command {describe(way.command)}; {advice}"
        case OSError():
            return f"{way.label} cannot be started: {describe_error(cause)}; check the command {describe(way.command)}"
        case MCPError(code=code) if code == CONNECTION_CLOSED:
            words = f"its last words were {last_words[:MAX_ERROR_CHARS]!r}" if last_words else "it left no words"
            return f"{way.label} ended before it answered; {words}: run it by hand to see why"
        case _:
            return f"{way.label} does not speak MCP as it should: {describe_error(cause)}"


def explain_not_reached(way: HttpTransport, cause: BaseException, refusals: HttpRefusals) -> str:
    """Why there is no MCP server at a URL."""
    if isinstance(cause, httpx2.ConnectError | httpx2.ConnectTimeout):
        return f"{way.label} cannot be reached: nothing answers there; start it, or check host and port"
    if isinstance(cause, httpx2.TransportError):
        return f"{way.label} broke off ({describe_error(cause)}); check that the URL is that of an MCP server"
    if refusals.last is not None:
        return _explain_status(way, refusals.last, cause)
    return f"{way.label} does not speak MCP as it should: {describe_error(cause)}"


def _explain_status(way: HttpTransport, status: int, error: BaseException) -> str:
    match status:
        case 401 | 403:
            return f"{way.label} answered with HTTP status {status}; {CREDENTIALS_ADVICE}"
        case 404 | 405:
            advice = "give its URL with the path, such as 'http://127.0.0.1:8000/mcp'"
            return f"{way.label} answered with HTTP status {status}: it is not there; {advice}"
        case _:
            return f"{way.label} answered with HTTP status {status} ({describe_error(error)}); look at its log"


def _first_error(error: BaseException | None) -> BaseException:
    """The first error of those that a group holds."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert error is not None
    return error


T = TypeVar("T")

CLOSING_SECONDS = 5.0
"""The time that closing may take, beyond that of stopping a process."""
MAX_TOOL_PAGES = 100


class ServerOffer(msgspec.Struct, frozen=True):
    """The instructions and tools of a server."""

    instructions: str
    tools: tuple[mcp_types.Tool, ...]


class _McpRequest:
    """A request to the server, and its future answer."""

    def __init__(self, request: Callable[[Client], Awaitable[object]]) -> None:
        self.request = request
        self.answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self.context: Context = copy_context()
        self.left = False
        """Whether it may have reached the server: then its effect is unknown if the connection ends."""

    def fail(self, error: ToolFailed) -> None:
        """Answer it with an error, unless it is answered or abandoned."""
        if not self.answer.done():
            self.answer.set_exception(error)


class McpConnection:
    """One connection. It opens as soon as it is made."""

    def __init__(self, way: McpTransport, patience: float) -> None:
        self._way, self._patience = way, patience
        self._queue: asyncio.Queue[_McpRequest | None] = asyncio.Queue()
        self._waiting: set[_McpRequest] = set()
        self._heard = StderrTail()
        self._scope = anyio.CancelScope()
        self._offer: asyncio.Future[ServerOffer] = asyncio.get_running_loop().create_future()
        self._closed_because = ""
        self.over = False
        """Whether it is closed, or closing."""
        self.doubted = False
        """Whether the last answer was late, so that the server may have stopped answering."""
        self._task = asyncio.create_task(self._own(), name=f"antiphon: {way.label}")

    async def offer(self) -> ServerOffer:
        """The server's offer, once it is connected; `ToolFailed` if it could not be."""
        return await asyncio.shield(self._offer)

    async def ask(self, request: Callable[[Client], Awaitable[T]]) -> T:
        """The server's answer; `ToolFailed` if it refuses or is lost. If the caller is cancelled, so is the request."""
        if self.over:
            raise RequestUnsent(f"{self._way.label} is not connected")
        ask = _McpRequest(request)
        self._waiting.add(ask)
        self._queue.put_nowait(ask)
        try:
            return cast("T", await ask.answer)
        finally:
            self._waiting.discard(ask)

    async def answers(self, within: float) -> bool:
        """Whether the server answers a probe in time."""
        try:
            async with asyncio.timeout(within):
                await self.ask(lambda client: client.list_tools(cache_mode="bypass"))
        except TimeoutError:
            return False
        except ToolFailed:
            return not self.over
        return True

    async def end(self, why: str) -> None:
        """Close the connection. Pending requests fail with this reason."""
        self._closed_because = self._closed_because or why
        if not self._offer.done():
            self._scope.cancel()
        self._stop()
        await self.ended()

    async def ended(self) -> None:
        """Wait until everything is closed."""
        await asyncio.wait({self._task})

    def _stop(self) -> None:
        self.over = True
        self._queue.put_nowait(None)

    async def _own(self) -> None:
        """Open, use and close the connection, all in this task."""
        refusals = HttpRefusals()
        failure: Exception | None = None
        try:
            with self._scope:
                await self._live()
        except Exception as error:  # of any kind: pending requests are settled below
            logger.debug("%s: the connection failed", self._way.label, exc_info=error)
            failure = error
        finally:
            self.over = True
            self._settle(failure, refusals)

    async def _live(self) -> None:
        self._scope.deadline = anyio.current_time() + self._patience
        async with open_client(self._way, self._heard, patience=self._patience, lost=self._stop) as client:
            offer = await _read_offer(client, self._way.label)
            self._scope.deadline = math.inf
            self._offer.set_result(offer)
            await self._serve(client)
            self._scope.deadline = anyio.current_time() + CLOSING_SECONDS

    async def _serve(self, client: Client) -> None:
        async with asyncio.TaskGroup() as requests:
            tasks: set[asyncio.Task[None]] = set()
            while (ask := await self._queue.get()) is not None:
                if ask.answer.done():
                    continue  # abandoned before it was sent
                ask.left = True
                task = requests.create_task(self._answer(client, ask), context=ask.context)
                tasks.add(task)
                task.add_done_callback(tasks.discard)
                ask.answer.add_done_callback(partial(_cancel_if_abandoned, task))
            for task in tasks:
                task.cancel()

    async def _answer(self, client: Client, ask: _McpRequest) -> None:
        refusals = HttpRefusals()
        try:
            value = await ask.request(client)
        except Exception as error:  # every request is answered: here, or by `_settle` when the connection has ended
            code = error.code if isinstance(error, MCPError) else None
            if code == INVALID_REQUEST and refusals.last == 404:
                ask.left = False  # the server was restarted and does not know the session: it carried out nothing
                self._stop()
            elif code == CONNECTION_CLOSED:
                self._stop()
            else:
                ask.fail(ToolFailed(explain_refusal(self._way, error, refusals)))
        else:
            if not ask.answer.done():
                ask.answer.set_result(value)

    def _settle(self, failure: Exception | None, refusals: HttpRefusals) -> None:
        if not self._offer.done():
            self._offer.set_exception(ToolFailed(self._not_opened(failure, refusals)))
            self._offer.exception()  # retrieved, so that asyncio logs nothing if no caller waits
        why = self._closed_because or explain_lost_call(self._way, failure)
        for ask in self._waiting:
            ask.fail(ToolFailed(why) if ask.left else RequestUnsent(f"{self._way.label} was gone before it was asked"))

    def _not_opened(self, failure: Exception | None, refusals: HttpRefusals) -> str:
        if self._closed_because:
            return self._closed_because
        if failure is None:
            return explain_silence(self._way, self._patience)
        if isinstance(self._way, StdioTransport):
            return explain_not_started(self._way, _first_error(failure), self._heard.words)
        return explain_not_reached(self._way, _first_error(failure), refusals)


async def _read_offer(client: Client, label: str) -> ServerOffer:
    tools: list[mcp_types.Tool] = []
    cursor = None
    pages = MAX_TOOL_PAGES if client.server_capabilities.tools is not None else 0
    for _ in range(pages):
        page = await client.list_tools(cursor=cursor, cache_mode="bypass")
        tools += page.tools
        cursor = page.next_cursor
        if cursor is None:
            break
    if cursor is not None:
        logger.warning("%s lists more than %d pages of tools; the others are left out", label, pages)
    return ServerOffer(client.instructions or "", tuple(tools))


def _cancel_if_abandoned(request: asyncio.Task[None], answer: asyncio.Future[object]) -> None:
    """Cancel a request whose caller was cancelled."""
    if answer.cancelled():
        request.cancel()
