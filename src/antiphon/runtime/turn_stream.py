"""Following what answers a message, as its channel's log grows: its events, the tokens between them, what waits.

Rule 1: a turn that waits for approval ends the stream of those who follow it, with what waits. They ask again later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, nullcontext

import msgspec

from antiphon.core.envelope import Envelope
from antiphon.core.errors import UsageError
from antiphon.runtime.approvals import approvals_below
from antiphon.runtime.channel import Channel
from antiphon.runtime.core import HubCore
from antiphon.runtime.subscriptions import tail_pages
from antiphon.runtime.turn_events import (
    APPROVAL,
    AgentEvent,
    ApprovalEvent,
    FinalStateEvent,
    MessageEvents,
    NumberedEvent,
)


async def follow_turn(
    channel: Channel,
    turn_events: MessageEvents,
    message: Envelope | AbstractAsyncContextManager[Envelope],
    *,
    tokens: bool = False,
) -> AsyncGenerator[NumberedEvent, None]:
    """The events of the turn that answers a message, from its beginning to its end; between them the tokens, if wanted.

    A message that is still to be sent is given as a context that sends it when entered. The first item carries no
    event: it says that the message is recorded.
    """
    async with aclosing(_follow(channel, turn_events, message, tokens=tokens)) as events:
        async for numbered in events:
            async for told in _with_approvals(channel._core, turn_events, numbered):
                yield told


async def _follow(
    channel: Channel,
    turn_events: MessageEvents,
    message: Envelope | AbstractAsyncContextManager[Envelope],
    *,
    tokens: bool = False,
) -> AsyncGenerator[NumberedEvent, None]:
    core, live = channel._core, channel._live
    sending = nullcontext(message) if isinstance(message, Envelope) else message
    async with AsyncExitStack() as stack:
        subscriber = stack.enter_context(core.feed.subscribe_tokens(channel.channel_id)) if tokens else None
        if subscriber is not None:
            subscriber.signals = deque()  # unbounded: an answer of which a client has a part must come whole
        # After the subscription, which misses no token so.
        turn_events.message = await stack.enter_async_context(sending)
        start = turn_events.message.sequence
        yield start, None
        for numbered in turn_events.project_page((), None):
            yield numbered
        if _is_over(turn_events):
            return
        reading = tail_pages(core, live, start, until=core.stopped, tokens=subscriber)
        async for page in await stack.enter_async_context(aclosing(reading)):
            for numbered in turn_events.project_page(page, subscriber):
                yield numbered
            if turn_events.over:
                return
    raise UsageError("the hub was closed while the agent was answering; its turn goes on when it is opened again")


async def _with_approvals(
    core: HubCore, turn_events: MessageEvents, numbered: NumberedEvent
) -> AsyncGenerator[NumberedEvent, None]:
    """The event; if it says that a turn waits for approval, with what waits, and behind an event for each of that.

    If everything was decided meanwhile, the turn is about to go on: that it has waited is left out.
    """
    sequence, event = numbered
    if isinstance(event, FinalStateEvent) and event.stopped == APPROVAL:
        approvals = tuple(await approvals_below(core, event.channel_id))
        if not approvals:
            turn_events.over = False
            return
        for approval in approvals:
            yield sequence, ApprovalEvent(approval.agent.rpartition("/")[2], approval)
        event = msgspec.structs.replace(event, approvals=approvals)
    yield sequence, event


def _is_over(events: MessageEvents) -> bool:
    return events.over


async def strip_sequences(events: AsyncGenerator[NumberedEvent, None]) -> AsyncGenerator[AgentEvent, None]:
    """The events without their sequences."""
    async with aclosing(events):
        async for _, event in events:
            if event is not None:
                yield event
