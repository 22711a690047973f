"""Invoking agents: for the answer, or for a stream of the turn's events.

Rule 1: a thread belongs to the participant of the key. The same `thread_id` of another participant is another thread.
Rule 2: a turn goes on whether or not a client waits for it. A client that reconnects resumes from the last event id.
Rule 3: `done` comes last and once, also if the turn failed.
Rule 4: a failure is reported by its reason and a sentence of ours, never by the text of an exception.

`runtime/turn_events` lists the stages that an event passes; the framing is `_turn_frames` here.
"""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncGenerator, Iterator
from functools import partial
from typing import NamedTuple

import msgspec

from antiphon.agents.declaration import Declaration
from antiphon.agents.type_schemas import encode_hook
from antiphon.core.envelope import Envelope
from antiphon.core.errors import AntiphonError, LogCorrupt, StoreGone, UnknownChannel
from antiphon.core.events import EV_TEXT
from antiphon.core.redaction import failure_sentence
from antiphon.hub.live import LiveChannel
from antiphon.runtime.agent import answer_of, channel_of, check_invocation, stream_turn
from antiphon.runtime.channel import Channel
from antiphon.runtime.turn_events import (
    NO_SEQUENCE,
    AgentEvent,
    AIMessageEvent,
    ApprovalEvent,
    FinalStateEvent,
    NumberedEvent,
    TokenEvent,
    ToolResponseEvent,
    ToolUsageEvent,
    TurnEvents,
)
from antiphon.runtime.turn_stream import follow_turn
from antiphon.server.app import RequestContext
from antiphon.server.auth import is_still_admitted
from antiphon.server.event_streams import EventStream, check_stream_slot, encode_event, public_event
from antiphon.server.problems import STORE_GONE_FAULT, RequestRefused
from antiphon.server.schemas import AgentList, AgentRow, Answer, Question, TokensQuery

logger = logging.getLogger("antiphon.server")

LAST_ID_HEADER = "last-event-id"
SEQUENCE_PATTERN = re.compile(r"[0-9]{1,15}\Z", re.ASCII)
WIRE_EVENT_NAMES: dict[type, str] = {
    ToolUsageEvent: "tool_usage",
    ToolResponseEvent: "tool_response",
    TokenEvent: "token",
    AIMessageEvent: "ai_message",
    ApprovalEvent: "approval",
    FinalStateEvent: "done",
}


class EventId(NamedTuple):
    """An event's id: the channel, the message that the turn answers, the envelope, and the number within that."""

    channel_id: str
    message: int
    sequence: int
    number: int

    def next(self, sequence: int) -> EventId:
        """The id of the next event, which stands in this envelope; the same id, for a token."""
        if sequence == NO_SEQUENCE:
            return self
        return self._replace(sequence=sequence, number=self.number + 1 if self.sequence == sequence else 0)

    def __str__(self) -> str:
        return f"{self.channel_id}/{self.message}/{self.sequence}/{self.number}"


async def list_agents(ctx: RequestContext) -> AgentList:
    """List the agents."""
    agents = ctx.hub.core.agents.values()
    rows = [AgentRow(each.name, each.description, ["/".join(p) for p in each.team.members]) for each in agents]
    return AgentList(rows)


async def invoke(ctx: RequestContext) -> Answer:
    """Send an agent a message, and wait for its answer."""
    question, agent = ctx.body_as(Question), require_agent(ctx, ctx.request.path_params["name"])
    channel = await _question_channel(ctx, agent, question)
    reply = await answer_of(channel, agent, question.text, message_id=question.message_id)
    output: object = msgspec.to_builtins(reply.output, enc_hook=encode_hook)
    return Answer(reply.text, reply.agent, reply.stopped, reply.usage, reply.channel_id, output, list(reply.approvals))


async def stream_invoke(ctx: RequestContext) -> EventStream:
    """Send an agent a message, and stream its turn's events; or resume a stream behind the last event id."""
    question, agent = ctx.body_as(Question), require_agent(ctx, ctx.request.path_params["name"])
    last = ctx.request.headers.get(LAST_ID_HEADER)
    if last is not None:
        place = _parse_event_id(last)
        live, message = await _resume_point(ctx, agent, place)
        channel = Channel(ctx.hub.core, live, ctx.principal.name)
        events = follow_turn(channel, TurnEvents(agent.name, lambda: live.state), message)
        return make_stream(ctx, _turn_frames(events, place))
    # Before the message is sent: a refused request must not start a turn.
    check_stream_slot(ctx.app_state.streams, ctx.holder)
    channel = await _question_channel(ctx, agent, question)
    tokens = ctx.query_as(TokensQuery).tokens
    events = stream_turn(channel, agent, question.text, message_id=question.message_id, tokens=tokens)
    # This sends the message: an error is answered with its status, before the stream begins.
    sequence, _ = await anext(events)
    return make_stream(ctx, _turn_frames(events, EventId(channel.channel_id, sequence, 0, 0)))


def require_agent(ctx: RequestContext, name: str) -> Declaration:
    """The agent of this name that is registered here."""
    agent = ctx.hub.core.agents.get(name)
    if agent is None:
        raise RequestRefused(404, "unknown_agent", f"no agent is called {name!r} here; GET /agents lists them")
    return agent


def make_stream(ctx: RequestContext, frames: AsyncGenerator[bytes, None]) -> EventStream:
    """A stream that ends when the key of the request does."""
    streams, limits = ctx.app_state.streams, ctx.app_state.limits
    good = partial(is_still_admitted, ctx.principal, ctx.keys, ctx.hub.core.clock)
    return EventStream(frames, name=ctx.holder, streams=streams, limits=limits, good=good)


async def _question_channel(ctx: RequestContext, agent: Declaration, question: Question) -> Channel:
    check_invocation(ctx.hub, agent, question.text)
    return await channel_of(ctx.hub, agent, question.thread_id, speaker=ctx.principal.name)


async def _resume_point(ctx: RequestContext, agent: Declaration, place: EventId) -> tuple[LiveChannel, Envelope]:
    """The thread and the message of an event id; `UnknownChannel` if it is a thread of another participant."""
    live = await ctx.hub.core.live(place.channel_id)
    name = ctx.principal.name
    found = await live.read(place.message - 1) if place.message else []
    message = found[0] if found and found[0].sequence == place.message else None
    ours = live.state.participants.keys() == {name, agent.name}
    if not ours or message is None or (message.sender_id, message.event_type) != (name, EV_TEXT):
        raise UnknownChannel(place.channel_id)
    return live, message


def _parse_event_id(text: str) -> EventId:
    match text.split("/"):
        case [channel_id, *numbers] if len(numbers) == 3 and all(map(SEQUENCE_PATTERN.match, numbers)):
            return EventId(channel_id, *map(int, numbers))
    raise RequestRefused(422, "bad_id", "Last-Event-ID is no id of this stream; leave it out to ask anew")


async def _turn_frames(events: AsyncGenerator[NumberedEvent, None], place: EventId) -> AsyncGenerator[bytes, None]:
    """The events behind this place as frames, each with its id; tokens are not recorded and have none."""
    at = place._replace(sequence=0, number=0)  # every event is counted from the first, so that ids never change

    def frames_of(sequence: int, event: AgentEvent) -> Iterator[bytes]:
        nonlocal at
        for name, data in _wire_events(public_event(event)):
            at = at.next(sequence)
            if sequence == NO_SEQUENCE or at > place:
                yield encode_event(name, data, "" if sequence == NO_SEQUENCE else str(at))

    try:
        async for sequence, event in events:
            for frame in () if event is None else frames_of(sequence, event):
                yield frame
    except LogCorrupt as error:
        logger.warning("a stream ends: %s", error)
        yield encode_event("done", FinalStateEvent("", stopped="quarantined", detail=failure_sentence("quarantined")))
    except StoreGone:  # the turn is owed to the next server, and nothing can be resumed at this one
        yield encode_event("error", STORE_GONE_FAULT)
    except AntiphonError as error:  # the turn is not over: the client resumes from the last id
        logger.info("a stream of %s ends early: %s", place.channel_id, error)
    finally:
        await events.aclose()


def _wire_events(event: AgentEvent) -> Iterator[tuple[str, object]]:
    """An event by its name on the wire; the whole answer is also sent line by line."""
    yield WIRE_EVENT_NAMES[type(event)], event
    if isinstance(event, AIMessageEvent):
        for line in event.text.splitlines():
            yield "message", AIMessageEvent(event.agent, line)
