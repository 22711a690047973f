"""Asking agents: for an answer, or for everything that its turn tells.

Rule 1: a thread belongs to whoever the key speaks for. The same `thread_id` of somebody else is another thread.
Rule 2: the turn goes on whether or not anybody waits for it. Whoever comes back resumes from the last id.
Rule 3: `done` comes last and once, also if the turn failed.
Rule 4: of what failed a stream tells a reason and a sentence of ours, never the text of an exception.
"""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from functools import partial
from typing import NamedTuple

import msgspec

from antiphon.agents.declaration import Declaration
from antiphon.agents.schema import to_model
from antiphon.core.disclosure import sentence_of
from antiphon.core.envelope import Envelope
from antiphon.core.errors import AntiphonError, LogCorrupt, StoreGone, UnknownChannel
from antiphon.core.events import EV_TEXT
from antiphon.hub.clock import Clock
from antiphon.hub.keys import KeyRing
from antiphon.runtime.channel import Channel
from antiphon.runtime.events import (
    AgentEvent,
    AIMessageEvent,
    FinalStateEvent,
    TokenEvent,
    ToolResponseEvent,
    ToolUsageEvent,
)
from antiphon.runtime.following import NOWHERE, Numbered, following
from antiphon.runtime.invoking import answer_of, channel_of, check_runs, told_of
from antiphon.runtime.keys import keys_of
from antiphon.runtime.told import Told
from antiphon.server.outward import outward
from antiphon.server.principals import Principal, still_good
from antiphon.server.problems import GONE, Refused
from antiphon.server.shapes import AgentList, AgentRow, Answer, Question, Tokens
from antiphon.server.sse import EventStream, frame
from antiphon.server.verbs import Visit

log = logging.getLogger("antiphon.server")

LAST_ID = "last-event-id"
NUMBER = re.compile(r"[0-9]{1,15}\Z", re.ASCII)
NAMES: dict[type, str] = {
    ToolUsageEvent: "tool_usage",
    ToolResponseEvent: "tool_response",
    TokenEvent: "token",
    AIMessageEvent: "ai_message",
    FinalStateEvent: "done",
}


class Place(NamedTuple):
    """Where an event of a turn stands: the channel, the message it answers, the envelope, and which event of that."""

    channel_id: str
    message: int
    sequence: int
    number: int

    def next(self, sequence: int) -> Place:
        """The place of the event behind this one, which stands in this envelope."""
        if sequence == NOWHERE:
            return self
        return self._replace(sequence=sequence, number=self.number + 1 if self.sequence == sequence else 0)

    def __str__(self) -> str:
        return f"{self.channel_id}/{self.message}/{self.sequence}/{self.number}"


async def list_agents(visit: Visit) -> AgentList:
    """The agents that can be asked."""
    agents = visit.hub._desk.agents.values()
    return AgentList([AgentRow(each.name, each.description, _team(each)) for each in agents])


async def invoke(visit: Visit) -> Answer:
    """Ask an agent, and wait for its answer."""
    question, agent = visit.said(Question), agent_of(visit, visit.places["name"])
    channel = await _channel(visit, agent, question)
    reply = await answer_of(channel, agent, question.text, message_id=question.message_id)
    output: object = msgspec.to_builtins(reply.output, enc_hook=to_model)
    return Answer(reply.text, reply.agent, reply.stopped, reply.usage, reply.channel_id, output)


async def stream_invoke(visit: Visit) -> EventStream:
    """Ask an agent, and be told everything that its turn tells; or go on being told, behind the last id."""
    question, agent = visit.said(Question), agent_of(visit, visit.places["name"])
    last = visit.request.headers.get(LAST_ID)
    if last is not None:
        place = _place(last)
        channel, message = await _resumed(visit, agent, place)
        events = following(channel, Told(agent.name, lambda: channel._live.state), message)
        return stream_of(visit, _frames(events, place))
    check_stream(visit)  # before anything is said: a refused request must not make the agent run
    channel = await _channel(visit, agent, question)
    tokens = visit.asked(Tokens).tokens
    events = told_of(channel, agent, question.text, message_id=question.message_id, tokens=tokens)
    sequence, _ = await anext(events)  # what cannot be said is refused here, before the stream begins
    return stream_of(visit, _frames(events, Place(channel.channel_id, sequence, 0, 0)))


def agent_of(visit: Visit, name: str) -> Declaration:
    """The agent of this name that is registered here."""
    agent = visit.hub._desk.agents.get(name)
    if agent is None:
        raise Refused(404, "unknown_agent", f"no agent is called {name!r} here; GET /agents lists them")
    return agent


def check_stream(visit: Visit) -> None:
    """`Refused` if there is no place for another stream of this holder."""
    if not visit.house.streams.open.has_place_for(visit.holder):
        raise Refused(429, "too_many_streams", "there are too many streams; close one, or try again later")


def stream_of(visit: Visit, frames: AsyncGenerator[bytes, None]) -> EventStream:
    """A stream for whoever asks, which lives as long as their key."""
    house, principal = visit.house, visit.principal
    ring, clock = keys_of(visit.hub), visit.hub._desk.clock
    good = partial(_is_good, principal, ring, clock)
    return EventStream(frames, name=visit.holder, streams=house.streams, limits=house.limits, good=good)


async def _channel(visit: Visit, agent: Declaration, question: Question) -> Channel:
    check_runs(visit.hub, agent, question.text)
    return await channel_of(visit.hub, agent, question.thread_id, speaker=visit.principal.name)


async def _resumed(visit: Visit, agent: Declaration, place: Place) -> tuple[Channel, Envelope]:
    """The thread and the message that an id is of; like one that is not there, if it is somebody else's."""
    live = await visit.hub._desk.live(place.channel_id)
    name = visit.principal.name
    found = await live.read(place.message - 1) if place.message else []
    message = found[0] if found and found[0].sequence == place.message else None
    ours = live.state.participants.keys() == {name, agent.name}
    if not ours or message is None or (message.sender_id, message.event_type) != (name, EV_TEXT):
        raise UnknownChannel(place.channel_id)
    return Channel(visit.hub._desk, live, name), message


def _place(text: str) -> Place:
    match text.split("/"):
        case [channel_id, *numbers] if len(numbers) == 3 and all(map(NUMBER.match, numbers)):
            return Place(channel_id, *map(int, numbers))
    raise Refused(422, "bad_id", "Last-Event-ID is no id of this stream; leave it out to ask anew")


async def _frames(events: AsyncGenerator[Numbered, None], place: Place) -> AsyncGenerator[bytes, None]:
    """The events behind this place, as they are sent."""
    try:
        async with aclosing(_behind(events, place)) as frames:
            async for sent in frames:
                yield sent
    except LogCorrupt as error:
        log.warning("a stream ends: %s", error)
        yield frame("done", FinalStateEvent("", stopped="quarantined", detail=sentence_of("quarantined")))
    except StoreGone:  # the turn is owed to the next server, and nothing can be resumed at this one
        yield frame("error", GONE)
    except AntiphonError as error:  # the turn is not over: whoever follows it resumes from the last id
        log.info("a stream of %s ends early: %s", place.channel_id, error)


async def _behind(events: AsyncGenerator[Numbered, None], place: Place) -> AsyncGenerator[bytes, None]:
    """What whoever resumes at this place has not seen; what stands nowhere has no id."""
    async with aclosing(_placed(events, place)) as told:
        async for at, name, data in told:
            if at is None or at > place:
                yield frame(name, data, "" if at is None else str(at))


async def _placed(
    events: AsyncGenerator[Numbered, None], place: Place
) -> AsyncGenerator[tuple[Place | None, str, object], None]:
    at = place._replace(sequence=0, number=0)
    async with aclosing(events):
        async for sequence, event in events:
            for name, data in () if event is None else _told(outward(event)):
                at = at.next(sequence)
                yield None if sequence == NOWHERE else at, name, data


def _told(event: AgentEvent) -> Iterator[tuple[str, object]]:
    """An event by its name on the wire; the whole answer is also told line by line."""
    yield NAMES[type(event)], event
    if isinstance(event, AIMessageEvent):
        for line in event.text.splitlines():
            yield "message", AIMessageEvent(event.agent, line)


def _team(agent: Declaration) -> list[str]:
    return ["/".join(path) for path in agent.team.members]


def _is_good(principal: Principal, ring: KeyRing, clock: Clock) -> bool:
    return still_good(principal, ring, clock.now())
