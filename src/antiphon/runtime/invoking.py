"""One message to an agent on a thread, and everything that its turn tells.

Rule 1: a thread is a channel between the user and the agent, whose id follows from the agent's name and the key.
Rule 2: what is told comes from the log, so it is the same whoever ran the turn, and however often.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager

from antiphon.agents.declaration import Declaration
from antiphon.agents.nesting import Lane, taking
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
from antiphon.runtime.reading import grown
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


def check_runs(hub: Hub, agent: Declaration, text: object) -> None:
    """`UsageError` if there is nothing to answer, or nobody would ever."""
    if not isinstance(text, str):
        raise UsageError(f"text is {shown(text)}; give what is to be said, as a text")
    if hub._desk.engine is None:
        raise UsageError(f"this hub was opened with engine=None and runs no turns; {agent.name!r} would never answer")


async def _seat(hub: Hub, agent: Declaration) -> None:
    desk = hub._desk
    if agent.name == USER:
        raise UsageError(f"{USER!r} is whoever speaks to an agent in its threads; give the agent another name")
    async with desk.locks.setdefault(USER, asyncio.Lock()):
        if USER not in desk.acceptors:
            await hub.register(USER, kind=_kind_of_user(desk))
    await seat_agent(hub, agent)


async def seat_agent(hub: Hub, agent: Declaration) -> None:
    """Register an agent, if it is not. `UsageError` if somebody else has its name."""
    desk = hub._desk
    async with desk.locks.setdefault(USER, asyncio.Lock()):
        if agent.name not in desk.acceptors:
            await hub.register(agent)
    registered = desk.agents.get(agent.name)
    if registered != agent:
        what = "another agent" if registered is not None else "somebody whom code drives"
        raise UsageError(f"{what} is registered as {agent.name!r} in this hub; give this agent another name")


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
    desk = channel._desk
    with _waiting(desk, taking.get(), (channel.channel_id, told.agent)):
        told.message = await channel.send(text, message_id=message_id)
        async with aclosing(_until_over(channel, told, told.message.sequence)) as events:
            async for event in events:
                yield event
    if not told.over:
        raise UsageError("the hub was closed while the agent was answering; its turn goes on when it is opened again")


async def _until_over(channel: Channel, told: Told, after: int) -> AsyncGenerator[AgentEvent, None]:
    desk = channel._desk
    async with aclosing(grown(desk, channel._live, after, until=desk.stopped)) as envelopes:
        async for envelope in envelopes:
            for event in told.of(envelope):
                yield event
            if told.over:
                return


@contextmanager
def _waiting(desk: Desk, asker: Lane | None, answerer: Lane) -> Iterator[None]:
    """Let it be known that one turn waits for another. Who would wait for itself, however far around, is refused."""
    if asker is None:
        yield
        return
    if asker in _reached(desk.waits, answerer):
        raise UsageError(
            f"{answerer[1]!r} cannot answer here: its turn here waits for whoever asks; use another thread_id"
        )
    waits = desk.waits.setdefault(asker, [])
    waits.append(answerer)
    try:
        yield
    finally:
        waits.remove(answerer)
        if not waits:
            desk.waits.pop(asker, None)


def _reached(waits: Mapping[Lane, Sequence[Lane]], start: Lane) -> set[Lane]:
    """Everybody whom this one waits for, itself included."""
    found, left = {start}, [start]
    while left:
        new = [place for place in waits.get(left.pop(), ()) if place not in found]
        found.update(new)
        left.extend(new)
    return found
