"""What the turn that answers a message tells, each thing with its place in the channel's log.

Rule 1: what is told comes from the log, so it is the same whoever ran the turn, and however often it is followed.
Rule 2: a piece of text stands nowhere. It is told while it comes, and to nobody who comes later.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from antiphon.core.envelope import Envelope
from antiphon.core.errors import UsageError
from antiphon.hub.feed import Overhearing
from antiphon.runtime.channel import Channel
from antiphon.runtime.events import AgentEvent, TokenEvent
from antiphon.runtime.reading import grown
from antiphon.runtime.told import Told

Numbered = tuple[int, AgentEvent | None]
"""Where something stands in the log, and what it tells of the turn, if anything."""
NOWHERE = 0


async def following(channel: Channel, told: Told, message: Envelope) -> AsyncGenerator[Numbered, None]:
    """What is told of the turn that answers this message, from its beginning to its end."""
    desk = channel._desk
    told.message = message
    async with aclosing(grown(desk, channel._live, message.sequence, until=desk.stopped)) as envelopes:
        async for envelope in envelopes:
            for event in told.of(envelope):
                yield envelope.sequence, event
            if told.over:
                return
    raise UsageError("the hub was closed while the agent was answering; its turn goes on when it is opened again")


async def told_by(events: AsyncGenerator[Numbered, None]) -> AsyncGenerator[AgentEvent, None]:
    """What is told, without its place."""
    async with aclosing(events):
        async for _, event in events:
            if event is not None:
                yield event


async def with_tokens(
    channel: Channel, told: Told, events: AsyncGenerator[Numbered, None]
) -> AsyncGenerator[Numbered, None]:
    """The events, and between them the tokens of each call once its beginning has been told.

    Whoever follows may leave at any time, and is never interrupted: an error waits in line like everything else.
    """
    with channel._desk.feed.overhearing(channel.channel_id) as hearing:
        line = _Line(hearing, told)
        told.progress = line.drain
        tasks = [asyncio.create_task(line.listen()), asyncio.create_task(line.follow(events))]
        try:
            while (numbered := await line.next()) is not None:
                yield numbered
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


class _Line:
    """What is to be told, in order: events, tokens, and at the end None, or what went wrong."""

    def __init__(self, hearing: Overhearing, told: Told) -> None:
        self._hearing, self._told = hearing, told
        self._queue: asyncio.Queue[Numbered | BaseException | None] = asyncio.Queue()

    async def next(self) -> Numbered | None:
        """What comes next; None at the end."""
        numbered = await self._queue.get()
        if isinstance(numbered, BaseException):
            raise numbered
        return numbered

    def drain(self) -> None:
        """Line up the tokens that may be told by now."""
        signals, told = self._hearing.signals, self._told
        while signals:
            signal = signals[0]
            if signal.turn_id == told.turn_id and signal.index not in told.started:
                return
            signals.popleft()
            if signal.turn_id == told.turn_id:
                self._queue.put_nowait((NOWHERE, TokenEvent(signal.speaker, signal.text)))

    async def listen(self) -> None:
        """Line up tokens as they come, until cancelled."""
        while True:
            await self._hearing.wake.wait()
            self._hearing.wake.clear()
            self.drain()

    async def follow(self, events: AsyncGenerator[Numbered, None]) -> None:
        """Line up the events, and how they end."""
        try:
            async with aclosing(events):
                async for numbered in events:
                    self._queue.put_nowait(numbered)
        except BaseException as error:
            self._queue.put_nowait(error)
            raise
        self._queue.put_nowait(None)
