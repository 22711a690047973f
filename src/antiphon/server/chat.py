"""Chat completions: agents as models, for every client that knows the protocol.

Rule 1: a model is an agent, and answers as it does everywhere: with its own prompt, its tools and its team.
Rule 2: a conversation is a channel. The one that is named, the one that holds what was said before, or a new one that
        begins with it. What the client keeps is never trusted with more than that.
Rule 3: whoever repeats a request with its key is given the first answer. Nothing is done twice.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
from msgspec.structs import replace

from antiphon.agents.declaration import Declaration
from antiphon.agents.routine import LIMITS
from antiphon.core.errors import TurnFailed
from antiphon.core.ids import derived_id
from antiphon.core.instants import moment
from antiphon.hub.directory import REGISTRY
from antiphon.hub.live import LiveChannel
from antiphon.runtime.channel import Channel
from antiphon.runtime.events import FinalStateEvent
from antiphon.runtime.following import Numbered, with_tokens
from antiphon.runtime.invoking import Before, channel_of, check_runs, events_of
from antiphon.runtime.told import Told, reply_of
from antiphon.server.agents import check_stream, stream_of
from antiphon.server.chat_memory import Held, Memory
from antiphon.server.chat_reading import Conversation, conversation_of, digest, key_of, thread_id_of, wants_events
from antiphon.server.chat_shapes import (
    ChatAnswer,
    ChatChoice,
    ChatCompletion,
    ChatNote,
    ChatRequest,
    ModelList,
    ModelRow,
    usage_of,
)
from antiphon.server.chat_speech import Head, Telling, finish_of, frames
from antiphon.server.problems import Refused
from antiphon.server.sse import EventStream
from antiphon.server.verbs import Visit

KEYED = "chat.completion"
"""What the threads of requests that name none are called, before their keys."""


async def list_models(visit: Visit) -> ModelList:
    """The agents that can be asked, as models."""
    created = await _since(visit)
    return ModelList("list", [_row(name, created) for name in visit.hub._desk.agents])


async def show_model(visit: Visit) -> ModelRow:
    """One agent, as a model."""
    return _row(_agent(visit, visit.places["name"]).name, await _since(visit))


async def complete_chat(visit: Visit) -> ChatCompletion | EventStream:
    """Answer the last message of a conversation: whole, or in pieces as they come."""
    request = visit.said(ChatRequest)
    conversation = conversation_of(request)
    agent = _agent(visit, request.model)
    check_runs(visit.hub, agent, conversation.text)
    exchange = await _exchange(visit, agent, request, conversation=conversation)
    if not request.stream:
        return await exchange.answered()
    return stream_of(visit, await exchange.streamed())


class Exchange(msgspec.Struct):
    """One message and its answer."""

    visit: Visit
    agent: Declaration
    request: ChatRequest
    conversation: Conversation
    channel: Channel
    told: Told
    held: Held | None = None
    """What the memory gave away for this."""
    named: bool = False
    """Whether the client named the thread, which may hold more than the client tells."""

    @property
    def memory(self) -> Memory:
        return self.visit.house.memory

    async def answered(self) -> ChatCompletion:
        """The answer, once there is one."""
        async with aclosing(await self._said(self._events())) as events:
            *_, (sequence, final) = [numbered async for numbered in events]
        assert isinstance(final, FinalStateEvent), "the last event is the final one"
        note = self.ended(final, sequence, final.text)
        head = self._head()
        choice = ChatChoice(0, ChatAnswer("assistant", final.text), finish_of(note))
        usage = usage_of(final.usage)
        return ChatCompletion(head.id, "chat.completion", head.created, head.model, [choice], usage, note)

    async def streamed(self) -> AsyncGenerator[bytes, None]:
        """The answer in pieces. What cannot be said is refused before there are any."""
        try:
            check_stream(self.visit)
        except Refused:
            self._give_back()
            raise
        events = await self._said(with_tokens(self.channel, self.told, self._events()))
        options = self.request.stream_options
        usage = options is not None and bool(options.include_usage)
        telling = Telling(self._head(), self.ended, events=wants_events(self.request), usage=usage)
        return frames(events, telling, closing=self.visit.hub._desk.closing)

    def ended(self, final: FinalStateEvent, sequence: int, said: str) -> ChatNote:
        """Remember where the conversation stands, and tell who answered; `TurnFailed` if nobody did."""
        if final.stopped is not None and final.stopped not in LIMITS:
            raise TurnFailed(final.stopped, self.channel.channel_id, final.detail, agent=final.agent)
        reply = reply_of(self.agent, self.told.path, final)
        if not self.named:
            known = digest(self.visit, self.request, self.conversation.answered(said))
            self.memory.keep(known, Held(self.channel.channel_id, sequence))
        return ChatNote(reply.agent, reply.channel_id, reply.stopped)

    def _events(self) -> AsyncGenerator[Numbered, None]:
        return events_of(self.channel, self.told, self.conversation.text, message_id=key_of(self.visit))

    async def _said(self, events: AsyncGenerator[Numbered, None]) -> AsyncGenerator[Numbered, None]:
        """The events of the turn, once the message is recorded."""
        try:
            await anext(events)
        except Exception:
            self._give_back()
            raise
        return events

    def _give_back(self) -> None:
        """Nothing was said, so that the conversation stands where it stood."""
        if self.held is not None:
            self.memory.keep(digest(self.visit, self.request, self.conversation.earlier), self.held)

    def _head(self) -> Head:
        message = self.told.message
        assert message is not None, "it has been said"
        chat_id = derived_id(self.channel.channel_id, message.envelope_id).replace("-", "")
        return Head(f"chatcmpl-{chat_id}", _seconds(message.created_at), self.request.model)


async def _exchange(visit: Visit, agent: Declaration, request: ChatRequest, *, conversation: Conversation) -> Exchange:
    """A message in the channel that it belongs to."""
    held: Held | None = None
    thread_id, key = thread_id_of(visit, request), key_of(visit)
    earlier = digest(visit, request, conversation.earlier)
    memory, hub, speaker = visit.house.memory, visit.hub, visit.principal.name
    before = Before(conversation.seeds(), key_id=visit.principal.key_id)
    if thread_id is not None:
        channel = await channel_of(hub, agent, thread_id, speaker=speaker)
    elif key is not None:
        # Not the channel that holds what was said: whoever repeats this must find it when that is long forgotten.
        before = await _carried_over(visit, agent, memory.known(earlier), before=before)
        channel = await channel_of(hub, agent, f"{KEYED}/{earlier}/{key}", speaker=speaker, before=before)
    else:
        held = memory.take(earlier)
        live = await _standing(visit, held)
        if live is not None:
            channel = Channel(hub._desk, live, speaker)
        else:
            held = None
            channel = await channel_of(hub, agent, None, speaker=speaker, before=before)
    told = Told(agent.name, lambda: channel._live.state)
    return Exchange(visit, agent, request, conversation, channel, told, held, named=thread_id is not None)


async def _standing(visit: Visit, held: Held | None) -> LiveChannel | None:
    """The channel that a conversation is held in, if nothing was said there since."""
    if held is None:
        return None
    live = await visit.hub._desk.live(held.channel_id)
    if live.state.status != "active":
        return None
    [answer, *_] = await live.read(held.sequence - 1)
    return live if live.state.last_envelope_id == answer.envelope_id else None


async def _carried_over(visit: Visit, agent: Declaration, held: Held | None, *, before: Before) -> Before:
    """What a new channel begins with; if it goes on from one that is known, with what the agents left there."""
    live = await _standing(visit, held)
    if live is None:
        return before
    state = live.state
    return replace(before, active=state.active.get(agent.name, ""), context_vars=state.context_vars)


def _agent(visit: Visit, name: str) -> Declaration:
    agent = visit.hub._desk.agents.get(name)
    if agent is None:
        raise Refused(404, "model_not_found", f"no model is called {name!r} here; GET /v1/models lists them")
    return agent


def _row(name: str, created: int) -> ModelRow:
    return ModelRow(name, "model", created, "antiphon")


async def _since(visit: Visit) -> int:
    """Since when there have been agents here."""
    return _seconds((await visit.hub._desk.live(REGISTRY)).state.created_at)


def _seconds(at: str) -> int:
    return int(moment(at).timestamp())
