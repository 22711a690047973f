"""Chat completions: agents as models, for every client that knows the protocol.

Rule 1: a model is an agent, and answers with its own prompt, tools and team; or the routed conversation of the hub,
        in which the agent that its router names answers.
Rule 2: a conversation is a channel: the one that the request names, the one that holds its earlier messages, or a new
        one that begins with them.
Rule 3: a request repeated with its idempotency key gets the first answer. Nothing is done twice.
Rule 4: a field that no agent can honour is refused by its name; none that matters is ignored.
Rule 5: an agent's prompt is its owner's. A client's system message is recorded as said by the user.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import msgspec

from antiphon.agents.progress import has_partial_answer
from antiphon.core.codec import digest_of
from antiphon.core.envelope import derived_id, to_datetime
from antiphon.core.errors import TurnFailed
from antiphon.core.text import describe
from antiphon.core.views import Message
from antiphon.hub.system_channels import REGISTRY_CHANNEL
from antiphon.runtime.agent import ASSISTANT_ROLE, ImportedHistory
from antiphon.runtime.channel import Channel
from antiphon.runtime.conversation_turns import send_and_follow_message
from antiphon.runtime.turn_events import APPROVAL, FinalStateEvent, NumberedEvent
from antiphon.server.agent_routes import make_stream
from antiphon.server.app import RequestContext
from antiphon.server.chat_models import ChatModel, FollowedAnswer, model_names, require_model
from antiphon.server.chat_protocol import (
    ChatAnswer,
    ChatChoice,
    ChatChunk,
    ChatCompletion,
    ChatMessage,
    ChatNote,
    ChatPosition,
    ChatRequest,
    ChunkWriter,
    ModelList,
    ModelRow,
    chat_usage_of,
    finish_reason_of,
    waiting_text,
)
from antiphon.server.chat_streams import chat_frames
from antiphon.server.event_streams import EventStream, check_stream_slot
from antiphon.server.problems import RequestRefused
from antiphon.server.schemas import MAX_WORD_CHARS

CONVERSATION_HEADER = "x-thread-id"
KEY_HEADER = "idempotency-key"
CHAT_ROLES = {"system": "system", "developer": "system", "user": "user", ASSISTANT_ROLE: ASSISTANT_ROLE}
OWN_TOOLS = "an agent has tools of its own, and calls them itself"
OWN_OUTPUT = "an agent answers in the form that it was declared with"
ONE_ANSWER = "an agent gives one answer, in words"
NO_ONE_MODEL = "an agent may have asked several models for its answer, or none"
UNSUPPORTED_FIELDS: tuple[tuple[str, tuple[object, ...], str], ...] = (
    ("tools", ([],), OWN_TOOLS),
    ("tool_choice", ("none", "auto"), OWN_TOOLS),
    ("functions", ([],), OWN_TOOLS),
    ("function_call", ("none", "auto"), OWN_TOOLS),
    ("web_search_options", (), OWN_TOOLS),
    ("response_format", ({"type": "text"},), OWN_OUTPUT),
    ("modalities", (["text"],), ONE_ANSWER),
    ("audio", (), ONE_ANSWER),
    ("n", (1,), ONE_ANSWER),
    ("logprobs", (False,), NO_ONE_MODEL),
    ("top_logprobs", (0,), NO_ONE_MODEL),
)
"""Fields that no agent can honour, the values besides null that change nothing, and why others are refused."""


class ChatConversation(msgspec.Struct, frozen=True):
    """The earlier messages, and the new one."""

    earlier: tuple[Message, ...]
    text: str

    def seeds(self) -> list[Message]:
        """The earlier messages as a new channel imports them: those with a text, in the roles of the client."""
        return [message for message in self.earlier if message.text]

    def answered(self, text: str) -> tuple[Message, ...]:
        """The whole conversation when this is the answer."""
        return (*self.earlier, Message("user", self.text), Message(ASSISTANT_ROLE, text))


def conversation_of(request: ChatRequest) -> ChatConversation:
    """The conversation of a request; `RequestRefused` if it asks for something that no agent can do."""
    for name, harmless, why in UNSUPPORTED_FIELDS:
        value: object = getattr(request, name)
        if value is not None and value not in harmless:
            raise _unsupported_error(f"{name} is {describe(value)}, which is not taken here: {why}; leave it out")
    *earlier, last = [_transcript_message_of(each, place) for place, each in enumerate(request.messages)]
    if last.role != "user":
        said = request.messages[-1].role
        raise _unsupported_error(f"the last of the messages has the role {said!r}; end with what the user says")
    return ChatConversation(tuple(earlier), last.text)


def conversation_digest(ctx: RequestContext, request: ChatRequest, messages: Sequence[Message]) -> str:
    """The identity of a conversation: participant, agent, user and messages, without white space around them."""
    said = [[role, text.strip()] for role, text in messages]
    return digest_of([ctx.principal.name, request.model, request.user, said])


def thread_id_of(ctx: RequestContext, request: ChatRequest) -> str | None:
    """The thread that a request names; None if it names none."""
    named = checked_header(ctx, CONVERSATION_HEADER)
    given = (request.metadata or {}).get("thread_id")
    if given is None:
        return named
    if not isinstance(given, str) or not 0 < len(given) <= MAX_WORD_CHARS:
        raise RequestRefused(
            422, "bad_thread", f"metadata.thread_id is {describe(given)}; give 1 to {MAX_WORD_CHARS} characters"
        )
    if named not in (None, given):
        raise RequestRefused(
            422, "bad_thread", f"X-Thread-Id is {named!r} and metadata.thread_id {given!r}; give one of them"
        )
    return given


def checked_header(ctx: RequestContext, name: str) -> str | None:
    """A header, if given; `RequestRefused` if it is empty or too long."""
    value = ctx.request.headers.get(name)
    if value is not None and not 0 < len(value) <= MAX_WORD_CHARS:
        raise RequestRefused(422, "bad_header", f"{name} has {len(value)} characters; give 1 to {MAX_WORD_CHARS}")
    return value


def _transcript_message_of(message: ChatMessage, place: int) -> Message:
    where = f"messages[{place}]"
    role = CHAT_ROLES.get(message.role)
    if message.role in ("tool", "function"):
        raise _unsupported_error(f"{where} has the role {message.role!r}, which is not taken here: {OWN_TOOLS}")
    if role is None:
        raise _unsupported_error(f"{where} has the role {describe(message.role)}; there are: {', '.join(CHAT_ROLES)}")
    if message.tool_calls or message.function_call:
        raise _unsupported_error(f"{where} calls tools, which is not taken here: {OWN_TOOLS}")
    return Message(role, _chat_content_text(message, where))


def _chat_content_text(message: ChatMessage, where: str) -> str:
    content = message.content
    if content is None and message.role != ASSISTANT_ROLE:
        raise _unsupported_error(f"{where} has no content; give a text")
    if content is None or isinstance(content, str):
        return content or ""
    wrong = next((part.type for part in content if part.type != "text"), None)
    if wrong is not None:
        raise _unsupported_error(f"{where} has a part of the type {describe(wrong)}; only 'text' is taken here")
    return "\n".join(part.text for part in content)


def _unsupported_error(message: str) -> RequestRefused:
    return RequestRefused(400, "unsupported", message)


KEYED_CONVERSATION_PREFIX = "chat.completion"
"""Prefix of the thread ids of requests with an idempotency key and no thread."""


async def list_models(ctx: RequestContext) -> ModelList:
    """List the agents as models, and the routed conversation if there is one."""
    created = await _agents_created(ctx)
    return ModelList("list", [_model_row(name, created) for name in model_names(ctx)])


async def show_model(ctx: RequestContext) -> ModelRow:
    """Show an agent, or the routed conversation, as a model."""
    name: str = ctx.request.path_params["name"]
    require_model(ctx, name)
    return _model_row(name, await _agents_created(ctx))


async def complete_chat(ctx: RequestContext) -> ChatCompletion | EventStream:
    """Answer the last message of a conversation; with `stream`, in chunks as server-sent events."""
    request = ctx.body_as(ChatRequest)
    conversation = conversation_of(request)
    model = require_model(ctx, request.model)
    model.check(ctx, conversation.text)
    exchange = await _chat_exchange(ctx, model, request, conversation=conversation)
    if not request.stream:
        return await exchange.answered()
    return make_stream(ctx, await exchange.streamed())


class ChatExchange(msgspec.Struct):
    """One message and its answer."""

    ctx: RequestContext
    request: ChatRequest
    conversation: ChatConversation
    channel: Channel
    answer: FollowedAnswer
    held: ChatPosition | None = None
    """The entry taken from the memory for this."""
    named: bool = False
    """Whether the client named the thread, which may hold more than the client sends."""

    async def answered(self) -> ChatCompletion:
        """The whole answer."""
        async with aclosing(await self._events(tokens=False)) as events:
            *_, (sequence, final) = [numbered async for numbered in events]
        assert isinstance(final, FinalStateEvent), "the last event is the final one"
        text = waiting_text(final) or final.text
        note = self.ended(final, sequence, text)
        head = self._head()
        choice = ChatChoice(0, ChatAnswer("assistant", text), finish_reason_of(note))
        usage = chat_usage_of(final.usage)
        return ChatCompletion(head.id, "chat.completion", head.created, head.model, [choice], usage, note)

    async def streamed(self) -> AsyncGenerator[bytes, None]:
        """The answer as frames. A message that cannot be sent is refused before the first."""
        try:
            check_stream_slot(self.ctx.app_state.streams, self.ctx.holder)
        except RequestRefused:
            self._give_back()
            raise
        events = await self._events(tokens=True)
        options = self.request.stream_options
        usage = options is not None and bool(options.include_usage)
        wants_events = (self.request.metadata or {}).get("antiphon_events") in ("true", True)
        writer = ChunkWriter(self._head(), self.ended, events=wants_events, usage=usage)
        return chat_frames(events, writer, closing=self.ctx.hub.core.closing)

    def ended(self, final: FinalStateEvent, sequence: int, said: str) -> ChatNote:
        """Remember where the conversation stands; `TurnFailed` if there is no answer."""
        if final.stopped not in (None, APPROVAL) and not has_partial_answer(final.stopped):
            raise TurnFailed(final.stopped, self.channel.channel_id, final.detail, agent=final.agent)
        note = self.answer.note(final)
        if not self.named:
            known = conversation_digest(self.ctx, self.request, self.conversation.answered(said))
            self.ctx.app_state.memory.keep(known, ChatPosition(self.channel.channel_id, sequence))
        return note

    async def _events(self, *, tokens: bool) -> AsyncGenerator[NumberedEvent, None]:
        """The events of the turn, once the message is recorded."""
        said, message_id = self.conversation.text, checked_header(self.ctx, KEY_HEADER)
        events = send_and_follow_message(self.channel, self.answer.events, said, message_id=message_id, tokens=tokens)
        try:
            await anext(events)
        except Exception:
            self._give_back()
            raise
        return events

    def _give_back(self) -> None:
        """Return the entry to the memory: nothing was sent."""
        if self.held is not None:
            known = conversation_digest(self.ctx, self.request, self.conversation.earlier)
            self.ctx.app_state.memory.keep(known, self.held)

    def _head(self) -> ChatChunk:
        """A chunk with what all parts of the answer share."""
        message = self.answer.events.message
        assert message is not None, "it has been said"
        chat_id = f"chatcmpl-{derived_id(self.channel.channel_id, message.envelope_id).replace('-', '')}"
        return ChatChunk(chat_id, "chat.completion.chunk", _unix_seconds(message.created_at), self.request.model, [])


async def _chat_exchange(
    ctx: RequestContext, model: ChatModel, request: ChatRequest, *, conversation: ChatConversation
) -> ChatExchange:
    """The exchange in the channel that its conversation belongs to."""
    held: ChatPosition | None = None
    thread_id, key = thread_id_of(ctx, request), checked_header(ctx, KEY_HEADER)
    earlier = conversation_digest(ctx, request, conversation.earlier)
    memory, hub = ctx.app_state.memory, ctx.hub
    before = ImportedHistory(conversation.seeds(), key_id=ctx.principal.key_id)
    if thread_id is not None:
        channel = await model.channel_for(ctx, thread_id)
    elif key is not None:
        # Not the channel in the memory: a repeated request must find this one after the memory is lost.
        known = memory.known(earlier)
        continued = await model.continues(ctx, known) if known is not None else None
        channel = await model.channel_for(
            ctx, f"{KEYED_CONVERSATION_PREFIX}/{earlier}/{key}", before=before, continued=continued
        )
    else:
        held = memory.take(earlier)
        live = await model.continues(ctx, held) if held is not None else None
        if live is not None:
            channel = Channel(hub.core, live, ctx.principal.name)
        else:
            held = None
            channel = await model.channel_for(ctx, None, before=before)
    answer = model.answer(await hub.core.live(channel.channel_id))
    return ChatExchange(ctx, request, conversation, channel, answer, held, named=thread_id is not None)


def _model_row(name: str, created: int) -> ModelRow:
    return ModelRow(name, "model", created, "antiphon")


async def _agents_created(ctx: RequestContext) -> int:
    """When the first agent was registered."""
    return _unix_seconds((await ctx.hub.core.live(REGISTRY_CHANNEL)).state.created_at)


def _unix_seconds(at: str) -> int:
    return int(to_datetime(at).timestamp())
