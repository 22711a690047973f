"""One connection to an MCP server, and the task that owns it.

Rule 1: one task opens the connection, uses it and closes it. Others hand it what they ask for through a queue, and wait
        for the answer; many things are asked at the same time.
Rule 2: whatever happens to the connection, everybody who waits is told. Nobody waits for ever.
Rule 3: a link that is over stays over. Whoever wants to go on makes another.

This module needs the package `mcp`, and is loaded when the first connection is opened.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from contextvars import Context, copy_context
from typing import TypeVar, cast

import anyio
import mcp_types
import msgspec
from mcp import Client

from antiphon.toolsets.failures import ToolFailed, Unsent
from antiphon.toolsets.opening import Heard, Refusals, connected, log
from antiphon.toolsets.reasons import gone, is_forgotten, is_lost, not_opened, refused, silent
from antiphon.toolsets.ways import Way

T = TypeVar("T")

CLOSING = 5.0
"""The seconds that closing may take, beyond what a process needs to be stopped."""
PAGES = 100
"""How many pages a list of tools may have."""


class Offer(msgspec.Struct, frozen=True):
    """What a server says of itself when a connection is opened."""

    instructions: str
    tools: tuple[mcp_types.Tool, ...]


class _Ask:
    """Something that is asked of the server, and the place for its answer."""

    def __init__(self, request: Callable[[Client], Awaitable[object]]) -> None:
        self.request = request
        self.answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self.context: Context = copy_context()
        self.left = False
        """Whether it may have reached the server."""

    def told(self, error: ToolFailed) -> None:
        """Answer it with an error, unless there is an answer or nobody waits."""
        if not self.answer.done():
            self.answer.set_exception(error)

    async def ask(self, client: Client) -> None:
        """Answer it with what the server says."""
        value = await self.request(client)
        if not self.answer.done():
            self.answer.set_result(value)


class Link:
    """One connection. It opens as soon as it is made."""

    def __init__(self, way: Way, patience: float) -> None:
        self._way, self._patience = way, patience
        self._queue: asyncio.Queue[_Ask | None] = asyncio.Queue()
        self._waiting: set[_Ask] = set()
        self._heard = Heard()
        self._scope = anyio.CancelScope()
        self._offer: asyncio.Future[Offer] = asyncio.get_running_loop().create_future()
        self._closed_because = ""
        self.over = False
        """Whether nothing can be asked of it any more."""
        self.doubted = False
        """Whether the last answer did not come in time."""
        self._task = asyncio.create_task(self._own(), name=f"antiphon: {way.label}")

    async def offer(self) -> Offer:
        """What the server offers, once it is connected; `ToolFailed` if it could not be."""
        return await asyncio.shield(self._offer)

    async def ask(self, request: Callable[[Client], Awaitable[T]]) -> T:
        """What the server answers; `ToolFailed` if it refuses or is lost. If the caller is cancelled, so is this."""
        if self.over:
            raise Unsent(f"{self._way.label} is not connected")
        ask = _Ask(request)
        self._waiting.add(ask)
        self._queue.put_nowait(ask)
        try:
            return cast("T", await ask.answer)
        finally:
            self._waiting.discard(ask)

    async def answers(self, within: float) -> bool:
        """Whether the server still answers at all."""
        try:
            async with asyncio.timeout(within):
                await self.ask(lambda client: client.list_tools(cache_mode="bypass"))
        except TimeoutError:
            return False
        except ToolFailed:
            return not self.over
        return True

    async def end(self, why: str) -> None:
        """Close the connection. Whoever still waits is told why."""
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
        """All that is done with the connection: what it entered, the same task must leave."""
        refusals = Refusals()
        failure: Exception | None = None
        try:
            with self._scope:
                await self._live()
        except Exception as error:  # of whatever kind, somebody may be waiting
            log.debug("%s: the connection failed", self._way.label, exc_info=error)
            failure = error
        finally:
            self.over = True
            self._settle(failure, refusals)

    async def _live(self) -> None:
        self._scope.deadline = anyio.current_time() + self._patience
        async with connected(self._way, self._heard, patience=self._patience, lost=self._stop) as client:
            offer = await _offer(client, self._way.label)
            self._scope.deadline = math.inf
            self._offer.set_result(offer)
            await self._serve(client)
            self._scope.deadline = anyio.current_time() + CLOSING

    async def _serve(self, client: Client) -> None:
        async with asyncio.TaskGroup() as under_way:
            tasks: set[asyncio.Task[None]] = set()
            while (ask := await self._queue.get()) is not None:
                if ask.answer.done():
                    continue  # nobody waits for it any more
                ask.left = True
                task = under_way.create_task(self._answer(client, ask), context=ask.context)
                tasks.add(task)
                task.add_done_callback(tasks.discard)
                ask.answer.add_done_callback(_gives_up(task))
            for task in tasks:
                task.cancel()

    async def _answer(self, client: Client, ask: _Ask) -> None:
        refusals = Refusals()
        try:
            await ask.ask(client)
        except Exception as error:  # whatever it is, the one who asks is told, or will be when the link has ended
            if is_forgotten(error, refusals):
                ask.left = False
                self._stop()
            elif is_lost(error):
                self._stop()
            else:
                ask.told(ToolFailed(refused(self._way, error, refusals)))

    def _settle(self, failure: Exception | None, refusals: Refusals) -> None:
        if not self._offer.done():
            self._offer.set_exception(ToolFailed(self._not_opened(failure, refusals)))
            self._offer.exception()  # nobody need be there to hear it
        why = self._closed_because or gone(self._way, failure)
        for ask in self._waiting:
            ask.told(ToolFailed(why) if ask.left else Unsent(f"{self._way.label} was gone before it was asked"))

    def _not_opened(self, failure: Exception | None, refusals: Refusals) -> str:
        if self._closed_because:
            return self._closed_because
        if failure is not None:
            return not_opened(self._way, failure, heard=self._heard, refusals=refusals)
        return silent(self._way, self._patience)


async def _offer(client: Client, label: str) -> Offer:
    tools: list[mcp_types.Tool] = []
    cursor = None
    pages = PAGES if client.server_capabilities.tools is not None else 0
    for _ in range(pages):
        page = await client.list_tools(cursor=cursor, cache_mode="bypass")
        tools += page.tools
        cursor = page.next_cursor
        if cursor is None:
            break
    if cursor is not None:
        log.warning("%s lists more than %d pages of tools; the others are left out", label, pages)
    return Offer(client.instructions or "", tuple(tools))


def _gives_up(task: asyncio.Task[None]) -> Callable[[asyncio.Future[object]], None]:
    """Cancels the request when the one who made it does not wait any more."""

    def done(answer: asyncio.Future[object]) -> None:
        if answer.cancelled():
            task.cancel()

    return done
