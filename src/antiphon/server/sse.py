"""Events sent to somebody for as long as they come.

Rule 1: a stream holds nobody up but itself. Whoever takes nothing for too long is cut off, and so is whoever is behind
        too far; both resume from the last id that they have seen.
Rule 2: a stream lives as long as the key that began it.
Rule 3: when the server stops, a stream ends in good order between two events.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Protocol

from starlette.types import Receive, Scope, Send

from antiphon.core.codec import to_json
from antiphon.server.connections import Held, held
from antiphon.server.limits import Limits
from antiphon.server.problems import problem
from antiphon.server.streams import Streams

log = logging.getLogger("antiphon.server")

HEARTBEAT = b":\n\n"
TICKS = 4
"""How often in each of its times a stream is looked at."""
START = {
    "type": "http.response.start",
    "status": 200,
    "headers": [
        (b"content-type", b"text/event-stream; charset=utf-8"),
        (b"x-accel-buffering", b"no"),
    ],
}
END = {"type": "http.response.body", "body": b"", "more_body": False}


def frame(event: str, data: object, place: str = "") -> bytes:
    """One event: its name, its data as JSON, and the id to resume from, if it has one."""
    head = f"id: {place}\nevent: {event}\ndata: " if place else f"event: {event}\ndata: "
    return head.encode() + to_json(data) + b"\n\n"


class Good(Protocol):
    """Tells whether somebody would still be let in."""

    def __call__(self) -> bool: ...


class EventStream:
    """An answer made of events."""

    def __init__(self, frames: AsyncGenerator[bytes, None], *, name: str, streams: Streams, limits: Limits, good: Good):
        self._frames, self._name, self._streams, self._limits, self._good = frames, name, streams, limits, good
        self._began: float | None = None
        """When something was last taken of the piece that is on its way now."""
        self._silent_since = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until there are no more, or whoever asked is gone, too slow or no longer welcome."""
        async with aclosing(self._frames):
            if not self._streams.open.has_place_for(self._name):
                said = "there are too many streams; close one, or try again later"
                await problem(429, "too_many_streams", said, path=scope["path"])(scope, receive, send)
                return
            with self._streams.open.taken(self._name):
                connection = held(scope)
                await self._run(receive, send, connection)
                if self._began is not None:  # nobody takes what is left
                    log.info("a stream of %s is cut off, of which nothing is taken", self._name)
                    connection.cut()
                    await gone(receive)

    async def _run(self, receive: Receive, send: Send, connection: Held) -> None:
        await send(START)
        self._silent_since = asyncio.get_running_loop().time()
        tasks = [
            asyncio.create_task(self._pump(send)),
            asyncio.create_task(self._watch(send, connection)),
            asyncio.create_task(gone(receive)),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in done:
            task.result()
        if self._began is None:
            await send(END)

    async def _pump(self, send: Send) -> None:
        loop = asyncio.get_running_loop()
        async for chunk in self._frames:
            self._began = loop.time()
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
            self._began, self._silent_since = None, loop.time()

    async def _watch(self, send: Send, connection: Held) -> None:
        """Return when the stream should come to an end that its events do not know of."""
        limits, loop = self._limits, asyncio.get_running_loop()
        tick = min(limits.heartbeat_seconds, limits.stalled_seconds, limits.recheck_seconds) / TICKS
        checked, left = loop.time(), 0
        while not await _happened(self._streams.stopping, tick):
            now = loop.time()
            if self._began is not None:
                left, before = connection.left(), left
                if left != before:  # somebody takes something
                    self._began = now
                elif now - self._began >= limits.stalled_seconds:
                    return
            elif now - self._silent_since >= limits.heartbeat_seconds:
                self._silent_since = now
                await send({"type": "http.response.body", "body": HEARTBEAT, "more_body": True})
            if now - checked >= limits.recheck_seconds:
                checked = now
                if not self._good():
                    return


async def gone(receive: Receive) -> None:
    """Return when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _happened(event: asyncio.Event, seconds: float) -> bool:
    """Whether this has happened within so many seconds."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
