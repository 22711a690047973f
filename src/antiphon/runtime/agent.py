"""An agent as a user declares and asks it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from dataclasses import dataclass
from typing import TypedDict, Unpack

from antiphon.agents.declaration import Declaration
from antiphon.agents.results import AgentReply
from antiphon.agents.routine import LIMITS
from antiphon.core.errors import TurnFailed, UsageError
from antiphon.core.words import shown
from antiphon.hub.feed import Overhearing
from antiphon.runtime.channel import Channel
from antiphon.runtime.default import default_hub
from antiphon.runtime.events import AgentEvent, FinalStateEvent, TokenEvent
from antiphon.runtime.hub import Hub, Opening
from antiphon.runtime.invoking import channel_of, check_runs, events_of
from antiphon.runtime.told import Told, reply_of


class StreamOptions(TypedDict, total=False):
    """How a turn is asked for and followed."""

    thread_id: str | None
    hub: Hub | None
    message_id: str | None
    tokens: bool


@dataclass(frozen=True)
class Agent(Declaration):
    """An agent. Register it with a hub, which runs its turns; or ask it something with `invoke`."""

    async def invoke(
        self, text: str, *, thread_id: str | None = None, hub: Hub | None = None, message_id: str | None = None
    ) -> AgentReply:
        """Say something to the agent on a thread, and wait for its answer; `TurnFailed` if there is none.

        The message is recorded before it is answered. Should the process end, the turn is finished by the next hub
        in which the agent is registered; invoked again with the same `message_id` on the same thread, nothing is
        said twice, and the answer is the one that there is.
        """
        async with _hub(hub) as used:
            check_runs(used, self, text)
            channel = await channel_of(used, self, thread_id)
            told = Told(self.name, lambda: channel._live.state)
            final: FinalStateEvent | None = None
            async with aclosing(events_of(channel, told, text, message_id=message_id)) as events:
                async for event in events:
                    final = event if isinstance(event, FinalStateEvent) else None
            assert final is not None, "the last event is the final one"
            if final.stopped is not None and final.stopped not in LIMITS:
                raise TurnFailed(final.stopped, channel.channel_id, final.detail)
            return reply_of(self, told.path, final)

    async def channel(self, thread_id: str, hub: Hub) -> Channel:
        """The channel of a thread, as its user holds it: to look at, to cancel a turn, to settle a call in doubt."""
        if not isinstance(hub, Hub):
            raise UsageError(f"hub is {shown(hub)}; give an open Hub")
        return await channel_of(hub, self, thread_id)

    async def stream_invoke(self, text: str, **options: Unpack[StreamOptions]) -> AsyncIterator[AgentEvent]:
        """Say something to the agent on a thread, and follow its turn. `FinalStateEvent` comes last, also on failure.

        With `tokens=True` the answer comes in pieces too, as the model speaks, before it comes whole.
        """
        _check_options(options)
        async with _hub(options.get("hub")) as used:
            check_runs(used, self, text)
            channel = await channel_of(used, self, options.get("thread_id"))
            told = Told(self.name, lambda: channel._live.state)
            events = events_of(channel, told, text, message_id=options.get("message_id"))
            if options.get("tokens"):
                events = _with_tokens(channel, told, events)
            async with aclosing(events):
                async for event in events:
                    yield event


def _hub(hub: object) -> AbstractAsyncContextManager[Hub]:
    if hub is None:
        return default_hub()
    if not isinstance(hub, Hub):
        opening = "; await it, or use `async with`" if isinstance(hub, Opening) else ""
        raise UsageError(f"hub is {shown(hub)}{opening}; give an open Hub, or None for the one of this process")
    return nullcontext(hub)


def _check_options(options: StreamOptions) -> None:
    unknown = options.keys() - StreamOptions.__optional_keys__
    if unknown:
        known = ", ".join(sorted(StreamOptions.__optional_keys__))
        raise UsageError(f"no option is called {shown(min(unknown))}; there are: {known}")


async def _with_tokens(
    channel: Channel, told: Told, events: AsyncGenerator[AgentEvent, None]
) -> AsyncGenerator[AgentEvent, None]:
    """The events, and between them the tokens of each call once its beginning has been told.

    Whoever follows may leave at any time, and is never interrupted: an error waits in line like everything else.
    """
    with channel._desk.feed.overhearing(channel.channel_id) as hearing:
        line = _Line(hearing, told)
        told.progress = line.drain
        tasks = [asyncio.create_task(line.listen()), asyncio.create_task(line.follow(events))]
        try:
            while (event := await line.next()) is not None:
                yield event
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


class _Line:
    """What is to be told, in order: events, tokens, and at the end None, or what went wrong."""

    def __init__(self, hearing: Overhearing, told: Told) -> None:
        self._hearing, self._told = hearing, told
        self._queue: asyncio.Queue[AgentEvent | BaseException | None] = asyncio.Queue()

    async def next(self) -> AgentEvent | None:
        """What comes next; None at the end."""
        event = await self._queue.get()
        if isinstance(event, BaseException):
            raise event
        return event

    def drain(self) -> None:
        """Line up the tokens that may be told by now."""
        signals, told = self._hearing.signals, self._told
        while signals:
            signal = signals[0]
            if signal.turn_id == told.turn_id and signal.index not in told.started:
                return
            signals.popleft()
            if signal.turn_id == told.turn_id:
                self._queue.put_nowait(TokenEvent(signal.speaker, signal.text))

    async def listen(self) -> None:
        """Line up tokens as they come, until cancelled."""
        while True:
            await self._hearing.wake.wait()
            self._hearing.wake.clear()
            self.drain()

    async def follow(self, events: AsyncGenerator[AgentEvent, None]) -> None:
        """Line up the events, and how they end."""
        try:
            async with aclosing(events):
                async for event in events:
                    self._queue.put_nowait(event)
        except BaseException as error:
            self._queue.put_nowait(error)
            raise
        self._queue.put_nowait(None)
