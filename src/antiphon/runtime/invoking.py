"""One message to an agent on a thread, and everything that its turn tells.

Rule 1: a thread is a channel between the user and the agent, whose id follows from the agent's name and the key.
Rule 2: what is told comes from the log, so it is the same whoever ran the turn, and however often.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager

import msgspec

from antiphon.agents.declaration import Declaration
from antiphon.agents.nesting import Lane, taking
from antiphon.agents.results import AgentReply
from antiphon.agents.routine import LIMITS
from antiphon.core.codec import Malformed, check_json
from antiphon.core.envelope import Envelope
from antiphon.core.errors import TurnFailed, UnknownChannel, UsageError
from antiphon.core.events import EV_HISTORY_IMPORTED, Created, Json, Seat
from antiphon.core.ids import derived_id
from antiphon.core.views import Message
from antiphon.core.words import shown
from antiphon.hub.live import LiveChannel
from antiphon.runtime.channel import Channel
from antiphon.runtime.desk import Desk
from antiphon.runtime.events import FinalStateEvent
from antiphon.runtime.following import Numbered, following, with_tokens
from antiphon.runtime.hub import Hub
from antiphon.runtime.told import Told, reply_of

USER = "user"
"""Who speaks in a thread."""


class Before(msgspec.Struct, frozen=True):
    """A conversation held elsewhere, with which a new thread begins. No turn is owed for it."""

    messages: Sequence[Message] = ()
    """In order, in the roles that the client gives them: `system`, `user` or `assistant`."""
    active: str = ""
    """The member of the agent's team that answers next: `support/billing`; "" if the agent itself does."""
    context_vars: Json = {}
    key_id: str = ""
    """The key of the client that brings the messages."""

    def drafts(self, speaker: str) -> list[Envelope]:
        """The messages as imported history, sent by the speaker who brings them, whatever their roles."""
        return [
            Envelope(
                sender_id=speaker,
                event_type=EV_HISTORY_IMPORTED,
                event_data={"role": role, "text": text, **({"key_id": self.key_id} if self.key_id else {})},
            )
            for role, text in self.messages
        ]


ASSISTANT = "assistant"
NOTHING = Before()


async def channel_of(
    hub: Hub, agent: Declaration, thread_id: str | None, *, speaker: str = USER, before: Before = NOTHING
) -> Channel:
    """The channel of this thread, opened if it is not there yet. Both are registered, if they are not.

    Threads of one speaker are never those of another, whatever their keys. One that is opened begins with `before`.
    """
    desk = hub._desk
    desk.check_open()
    await _seat(hub, agent, speaker)
    channel_id = desk.new_id() if thread_id is None else derived_id("thread", *_lane(agent, speaker), _key(thread_id))
    async with desk.locks.setdefault(channel_id, asyncio.Lock()):
        return Channel(desk, await _found(desk, agent, channel_id, speaker=speaker, before=before), speaker)


def _lane(agent: Declaration, speaker: str) -> tuple[str, ...]:
    return (agent.name,) if speaker == USER else (agent.name, speaker)


def check_runs(hub: Hub, agent: Declaration, text: object) -> None:
    """`UsageError` if there is nothing to answer, or nobody would ever."""
    if not isinstance(text, str):
        raise UsageError(f"text is {shown(text)}; give what is to be said, as a text")
    if hub._desk.engine is None:
        raise UsageError(f"this hub was opened with engine=None and runs no turns; {agent.name!r} would never answer")


async def _seat(hub: Hub, agent: Declaration, speaker: str) -> None:
    if agent.name == speaker:
        raise UsageError(f"{speaker!r} is whoever speaks to an agent in its threads; give the agent another name")
    await seat_person(hub, speaker)
    await seat_agent(hub, agent)


async def seat_person(hub: Hub, name: str, kind: str = "human") -> None:
    """Register whoever asks, if they are not: as the store knows them, otherwise as this kind."""
    desk = hub._desk
    async with desk.locks.setdefault(USER, asyncio.Lock()):
        if name not in desk.acceptors:
            known = desk.directory.find(name).kind if desk.directory.knows(name) else kind
            await hub.register(name, kind=known)


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


def _key(thread_id: object) -> str:
    if not isinstance(thread_id, str) or not thread_id:
        raise UsageError(f"thread_id is {shown(thread_id)}; give a text, or None for a new thread")
    try:
        check_json(thread_id)
    except Malformed as error:
        raise UsageError(f"thread_id: {error}") from error
    return thread_id


async def _found(desk: Desk, agent: Declaration, channel_id: str, *, speaker: str, before: Before) -> LiveChannel:
    try:
        return await desk.live(channel_id)
    except UnknownChannel:
        seats = [Seat(speaker, desk.directory.find(speaker).kind), Seat(agent.name, "agent")]
        active = {agent.name: before.active} if before.active else msgspec.UNSET
        created = Created("conversation", speaker, seats, context_vars=before.context_vars, active=active)
        return await desk.create(created, channel_id, before=before.drafts(speaker))


async def events_of(
    channel: Channel, told: Told, text: str, *, message_id: str | None
) -> AsyncGenerator[Numbered, None]:
    """Say something to the agent, and tell what follows until its turn has ended, or waits for a person.

    The first that comes tells nothing but that the message is recorded.
    """
    with _waiting(channel._desk, taking.get(), (channel.channel_id, told.agent)):
        told.message = await channel.send(text, message_id=message_id)
        yield told.message.sequence, None
        async with aclosing(following(channel, told, told.message)) as events:
            async for numbered in events:
                yield numbered


async def answer_of(channel: Channel, agent: Declaration, text: str, *, message_id: str | None) -> AgentReply:
    """Say something to the agent, and wait for its answer; `TurnFailed` if there is none."""
    told = Told(agent.name, lambda: channel._live.state)
    final: FinalStateEvent | None = None
    async with aclosing(events_of(channel, told, text, message_id=message_id)) as events:
        async for _, event in events:
            final = event if isinstance(event, FinalStateEvent) else None
    assert final is not None, "the last event is the final one"
    if final.stopped is not None and final.stopped not in LIMITS:
        raise TurnFailed(final.stopped, channel.channel_id, final.detail, agent=final.agent)
    return reply_of(agent, told.path, final)


def told_of(
    channel: Channel, agent: Declaration, text: str, *, message_id: str | None, tokens: bool
) -> AsyncGenerator[Numbered, None]:
    """Say something to the agent, and follow its turn; with the pieces of its answer as they come, if asked for."""
    told = Told(agent.name, lambda: channel._live.state)
    events = events_of(channel, told, text, message_id=message_id)
    return with_tokens(channel, told, events) if tokens else events


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
