"""Server-sent events: the socket end of a stream, and the public form of an event.

Rule 1: a slow client holds up only its own stream. One that reads nothing for too long is disconnected; it resumes from
        the last id that it has seen.
Rule 2: a stream ends when the key that opened it expires or is revoked.
Rule 3: when the server stops, a stream ends between two events.
Rule 4: no event holds the text of an exception. Operators read it in the log, with `view=operator`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

from msgspec.structs import replace
from starlette.types import Receive, Scope, Send

from antiphon.core.codec import to_json
from antiphon.core.redaction import TOOL_FAILED_SENTENCE, public_detail
from antiphon.runtime.turn_events import AgentEvent, FinalStateEvent, ToolResponseEvent
from antiphon.server.connections import HttpConnection, connection_of
from antiphon.server.limits import ServerLimits, StreamSlots
from antiphon.server.problems import RequestRefused, error_response

logger = logging.getLogger("antiphon.server")

HEARTBEAT_FRAME = b":\n\n"
STREAM_CHECKS_PER_TIMEOUT = 4
"""How often a stream is checked within its shortest timeout."""
STREAM_START = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-accel-buffering", b"no")],
}
STREAM_END = {"type": "http.response.body", "body": b"", "more_body": False}


def encode_event(event: str, data: object, place: str = "") -> bytes:
    """One event as a frame: its name, its data as JSON, and the id to resume from, if it has one."""
    head = f"id: {place}\nevent: {event}\ndata: " if place else f"event: {event}\ndata: "
    return head.encode() + to_json(data) + b"\n\n"


class EventStream:
    """A response of event frames."""

    def __init__(
        self,
        frames: AsyncGenerator[bytes, None],
        *,
        name: str,
        streams: StreamSlots,
        limits: ServerLimits,
        good: Callable[[], bool],
    ):
        self._frames, self._name, self._streams, self._limits, self._good = frames, name, streams, limits, good
        self._blocked_since: float | None = None
        """When the client last read something of the frame that is being sent; None while none is."""
        self._silent_since = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send frames until they end, the client disconnects or stalls, its key ends, or the server stops."""
        async with aclosing(self._frames):
            try:
                check_stream_slot(self._streams, self._name)
            except RequestRefused as refused:
                await error_response(refused, path=scope["path"], closing=False)(scope, receive, send)
                return
            with self._streams.open.taken(self._name):
                connection = connection_of(scope)
                await self._run(receive, send, connection)
                if self._blocked_since is not None:  # a frame is partly unsent, so all that is left is to cut
                    logger.info("a stream of %s is cut off, of which nothing is taken", self._name)
                    connection.abort()
                    await wait_for_disconnect(receive)

    async def _run(self, receive: Receive, send: Send, connection: HttpConnection) -> None:
        await send(STREAM_START)
        self._silent_since = asyncio.get_running_loop().time()
        # Three tasks race, and the first to end ends the stream: the frames, a reason to stop, a disconnect.
        # The pump blocks in `send` while the client does not read, so only the watch can notice that it stalls.
        for ended in await first_ended(self._pump(send), self._watch(send, connection), wait_for_disconnect(receive)):
            ended.result()
        # A pump cancelled inside `send` leaves this set: half a frame may be out, and must not look like a proper end.
        if self._blocked_since is None:
            await send(STREAM_END)

    async def _pump(self, send: Send) -> None:
        loop = asyncio.get_running_loop()
        async for chunk in self._frames:
            self._blocked_since = loop.time()
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
            self._blocked_since, self._silent_since = None, loop.time()

    async def _watch(self, send: Send, connection: HttpConnection) -> None:
        """Send heartbeats; return when the client stalls, its key ends, or the server stops."""
        limits, loop = self._limits, asyncio.get_running_loop()
        tick = min(limits.heartbeat_seconds, limits.stalled_seconds, limits.recheck_seconds) / STREAM_CHECKS_PER_TIMEOUT
        checked, left = loop.time(), 0
        while not await _wait_briefly(self._streams.stopping, tick):
            now = loop.time()
            if self._blocked_since is not None:
                left, before = connection.left, left
                if left != before:  # the client reads: slow, but not stalled
                    self._blocked_since = now
                elif now - self._blocked_since >= limits.stalled_seconds:
                    return
            elif now - self._silent_since >= limits.heartbeat_seconds:
                self._silent_since = now
                await send({"type": "http.response.body", "body": HEARTBEAT_FRAME, "more_body": True})
            if now - checked >= limits.recheck_seconds:
                checked = now
                if not self._good():
                    return


def check_stream_slot(streams: StreamSlots, holder: str) -> None:
    """`RequestRefused` if this holder may not open another stream."""
    if not streams.open.has_place_for(holder):
        raise RequestRefused(429, "too_many_streams", "there are too many streams; close one, or try again later")


async def first_ended(*works: Awaitable[object]) -> set[asyncio.Task[object]]:
    """Those of the works that end first; the others are cancelled."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return ended


async def wait_for_disconnect(receive: Receive) -> None:
    """Return when the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _wait_briefly(event: asyncio.Event, seconds: float) -> bool:
    """Whether the event is set within so many seconds."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True


def public_event(event: AgentEvent) -> AgentEvent:
    """The event as clients see it: without the text of an exception."""
    match event:
        case ToolResponseEvent(failed=True):
            return replace(event, text=TOOL_FAILED_SENTENCE)
        case FinalStateEvent(stopped=str(stopped), detail=detail):
            return replace(event, detail=public_detail(stopped, detail))
        case _:
            return event
