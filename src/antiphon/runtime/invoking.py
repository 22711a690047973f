"""One message to an agent on a thread, and everything that its turn tells.

Rule 1: a thread is a channel between the user and the agent, whose id follows from the agent's name and the key.
Rule 2: what is told comes from the log, so it is the same whoever ran the turn, and however often.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from antiphon.agents.declaration import Declaration
from antiphon.core.codec import Malformed, check_json
from antiphon.core.errors import UnknownChannel, UsageError
from antiphon.core.events import (
    Created,
    Seat,
)
from antiphon.core.ids import derived_id
from antiphon.core.words import shown
from antiphon.hub.live import LiveChannel
from antiphon.runtime.channel import Channel
from antiphon.runtime.desk import Desk
from antiphon.runtime.events import (
    AgentEvent,
)
from antiphon.runtime.hub import Hub
from antiphon.runtime.reading import follow
from antiphon.runtime.told import Told

USER = "user"
"""Who speaks in a thread."""


async def channel_of(hub: Hub, agent: Declaration, thread_id: str | None) -> Channel:
    """The channel of this thread, opened if it is not there yet. Both are registered, if they are not."""
    desk = hub._desk
    desk.check_open()
    await _seat(hub, agent)
    channel_id = desk.new_id() if thread_id is None else derived_id("thread", agent.name, _key(thread_id))
    async with desk.locks.setdefault(channel_id, asyncio.Lock()):
        return Channel(desk, await _found(desk, agent, channel_id), USER)


def check_runs(hub: Hub, agent: Declaration) -> None:
    """`UsageError` if nobody would ever answer."""
    if hub._desk.engine is None:
        raise UsageError(f"this hub was opened with engine=None and runs no turns; {agent.name!r} would never answer")


async def _seat(hub: Hub, agent: Declaration) -> None:
    desk = hub._desk
    async with desk.locks.setdefault(USER, asyncio.Lock()):
        if USER not in desk.acceptors:
            await hub.register(USER, kind=_kind_of_user(desk))
        if agent.name not in desk.acceptors:
            await hub.register(agent)
    registered = desk.agents.get(agent.name)
    if registered != agent:
        what = "another agent" if registered is not None else "somebody who is no agent"
        raise UsageError(f"{what} is registered as {agent.name!r} in this hub; invoke that one, or use another name")


def _kind_of_user(desk: Desk) -> str:
    """A person, unless the store knows somebody of that name as something else."""
    return desk.directory.find(USER).kind if desk.directory.knows(USER) else "human"


def _key(thread_id: object) -> str:
    if not isinstance(thread_id, str) or not thread_id:
        raise UsageError(f"thread_id is {shown(thread_id)}; give a text, or None for a new thread")
    try:
        check_json(thread_id)
    except Malformed as error:
        raise UsageError(f"thread_id: {error}") from error
    return thread_id


async def _found(desk: Desk, agent: Declaration, channel_id: str) -> LiveChannel:
    try:
        return await desk.live(channel_id)
    except UnknownChannel:
        seats = [Seat(USER, desk.directory.find(USER).kind), Seat(agent.name, "agent")]
        return await desk.create(Created("conversation", USER, seats), channel_id)


async def events_of(
    channel: Channel, told: Told, text: str, *, message_id: str | None
) -> AsyncGenerator[AgentEvent, None]:
    """Say something to the agent, and tell what follows until its turn has ended, or waits for a person."""
    told.message = sent = await channel.send(text, message_id=message_id)
    desk, live = channel._desk, channel._live
    async with aclosing(follow(desk, live, reader=None, after=sent.sequence, max_lag=None)) as envelopes:
        async for envelope in envelopes:
            for event in told.of(envelope):
                yield event
            if told.over:
                return
    raise UsageError("the hub was closed while the agent was answering; its turn goes on when it is opened again")
