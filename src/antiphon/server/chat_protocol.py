"""Chat completions on the wire: the types, the chunks of a stream, and the memory of which channel holds which chat.

Rule 1: unknown fields of a request are ignored: clients add fields all the time.
Rule 2: a field that would change what is asked for is declared here, so that `chat_routes` can refuse it by name.
Rule 3: the chunks, put together, end with the answer. White space is not compared: an answer whose words were streamed
        is not sent again. An answer with other words follows whole, behind an empty line.
Rule 4: text before a tool call or a handoff is followed by an empty line.
Rule 5: the conversation is remembered before the last chunk is sent, so that a client that has read it can continue.
Rule 6: the memory is a cache. A forgotten conversation gets a new channel, which begins with the client's messages.
Rule 7: an entry is used once, so that two continuations of the same words never share a channel.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import replace

from antiphon.agents.call_results import Usage
from antiphon.runtime.turn_events import (
    APPROVAL,
    AgentEvent,
    AIMessageEvent,
    ApprovalEvent,
    FinalStateEvent,
    TokenEvent,
    ToolResponseEvent,
    ToolUsageEvent,
)

AnyJson = object
"""Any JSON."""


class ChatPart(msgspec.Struct, frozen=True):
    """A part of a message. Only text is accepted."""

    type: str
    text: str = ""


class ChatMessage(msgspec.Struct, frozen=True):
    """One message of the conversation."""

    role: str
    """`system`, `developer`, `user` or `assistant`."""
    content: str | list[ChatPart] | None = None
    tool_calls: list[AnyJson] | None = None
    function_call: AnyJson = None


class ChatStreamOptions(msgspec.Struct, frozen=True):
    """How an answer is streamed."""

    include_usage: bool | None = None
    """Whether a last chunk holds the usage."""


class ChatRequest(msgspec.Struct, frozen=True):
    """A conversation whose last message is to be answered. Unknown fields have no effect."""

    model: str
    """The name of the agent, or of the conversation."""
    messages: Annotated[list[ChatMessage], Meta(min_length=1)]
    stream: bool | None = None
    stream_options: ChatStreamOptions | None = None
    user: str | None = None
    """The end user, where one key serves many: their conversations are kept apart."""
    metadata: dict[str, AnyJson] | None = None
    """`thread_id` names the conversation; `antiphon_events` adds tool calls and handoffs to a stream."""
    n: int | None = None
    tools: list[AnyJson] | None = None
    tool_choice: AnyJson = None
    functions: list[AnyJson] | None = None
    function_call: AnyJson = None
    response_format: AnyJson = None
    modalities: list[str] | None = None
    audio: AnyJson = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    web_search_options: AnyJson = None


class ChatCached(msgspec.Struct, frozen=True):
    """How much of the prompt came from a cache."""

    cached_tokens: int


class ChatUsage(msgspec.Struct, frozen=True):
    """The usage of the whole turn, with every model call in it."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: ChatCached


def chat_usage_of(usage: Usage) -> ChatUsage:
    """A usage as chat clients know it."""
    read, written = usage.input_tokens, usage.output_tokens
    return ChatUsage(read, written, read + written, ChatCached(usage.cache_read_tokens))


class ChatHandoff(msgspec.Struct, frozen=True, rename={"giver": "from"}):
    """An agent hands a routed conversation over."""

    giver: str
    """The agent that has handed over: `from` on the wire."""
    to: str
    """An agent; or a person of the channel, or `human`."""
    phase: str
    """The phase in which the conversation continues."""
    reason: str


class ChatConversationNote(msgspec.Struct, frozen=True):
    """What has happened to a routed conversation while the message was answered."""

    handoffs: list[ChatHandoff]
    person: str
    """The person that has the conversation, or `human`, if that is why no agent answers; else empty."""
    unrouted: bool
    """Whether the router names no agent for the message."""


class ChatNote(msgspec.Struct, frozen=True):
    """Extensions of the protocol."""

    agent: str
    """The member of the team that answered; in a routed conversation, the agent, or "" if none did."""
    channel_id: str
    stopped: str | None
    """The named limit that ended the turn; None if it ended by itself."""
    conversation: ChatConversationNote | UnsetType = UNSET
    """Of a routed conversation alone."""


ChatFinish = Literal["stop", "length"]


class ChatAnswer(msgspec.Struct, frozen=True):
    """The agent's answer."""

    role: Literal["assistant"]
    content: str
    refusal: None = None


class ChatChoice(msgspec.Struct, frozen=True):
    """The only choice."""

    index: int
    message: ChatAnswer
    finish_reason: ChatFinish
    logprobs: None = None


class ChatCompletion(msgspec.Struct, frozen=True):
    """An answer, whole."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: ChatUsage
    antiphon: ChatNote


class ChunkChoice(msgspec.Struct, frozen=True):
    """What a chunk adds to the only choice."""

    index: int
    delta: dict[str, str]
    finish_reason: ChatFinish | None = None


class ChatChunk(msgspec.Struct, frozen=True):
    """A chunk of an answer."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: ChatUsage | UnsetType = UNSET
    antiphon: AnyJson = UNSET
    """Extensions of the protocol, if the client asks for them."""


class ModelRow(msgspec.Struct, frozen=True):
    """An agent, or the routed conversation of the server, as chat clients know it."""

    id: str
    object: Literal["model"]
    created: int
    """When the first agent was registered."""
    owned_by: Literal["antiphon"]


class ModelList(msgspec.Struct, frozen=True):
    """The agents of the server, and its routed conversation if it has one."""

    object: Literal["list"]
    data: list[ModelRow]


MAX_REMEMBERED_CHATS = 10_000
"""How many conversations are remembered."""
MAX_SAME_DIGEST = 100
"""How many of them with the same words."""


class ChatPosition(NamedTuple):
    """Where a conversation stands: its channel, and the place of its last answer there."""

    channel_id: str
    sequence: int


class ChatMemory:
    """The conversations that were answered last."""

    def __init__(self, most: int = MAX_REMEMBERED_CHATS) -> None:
        self._most = most
        self._held: OrderedDict[str, list[ChatPosition]] = OrderedDict()

    def keep(self, digest: str, held: ChatPosition) -> None:
        """Remember the channel of a conversation. The least recently used is forgotten."""
        alike = self._held.setdefault(digest, [])
        if held not in alike:
            alike.append(held)
        del alike[:-MAX_SAME_DIGEST]
        self._held.move_to_end(digest)
        while len(self._held) > self._most:
            self._held.popitem(last=False)

    def known(self, digest: str) -> ChatPosition | None:
        """A channel that holds this conversation; None if none is known."""
        alike = self._held.get(digest)
        return alike[-1] if alike else None

    def take(self, digest: str) -> ChatPosition | None:
        """The same, and forget it: the caller continues the conversation in it."""
        alike = self._held.get(digest)
        if not alike:
            return None
        held = alike.pop()
        if not alike:
            del self._held[digest]
        return held


PART_GAP = "\n\n"


class SentText:
    """The text sent of an answer so far."""

    def __init__(self) -> None:
        self.said = ""
        """Everything, put together."""
        self._part, self._last = "", ""

    def piece(self, text: str) -> str:
        """What to send for a token."""
        if not text:
            return ""
        sent = text if self._part or not self.said else PART_GAP + text
        self._part += text
        self.said += sent
        return sent

    def ends_part(self) -> None:
        """End the current part: a tool call or a handoff follows."""
        if self._part.strip():
            self._last = self._part
        self._part = ""

    def whole(self, answer: str) -> str:
        """What is left to send when this is the whole answer."""
        sent, wanted = _without_spaces(self._part), _without_spaces(answer)
        if sent.endswith(wanted) if sent else wanted in ("", _without_spaces(self._last)):
            return ""
        if answer.startswith(self._part):
            return self.piece(answer[len(self._part) :])
        if wanted.startswith(sent):
            left = _text_after(answer, len(sent))
            return self.piece(left.lstrip() if self._part[-1:].isspace() else left)
        self.ends_part()
        return self.piece(answer)


def _without_spaces(text: str) -> str:
    """A text without its white space."""
    return "".join(text.split())


def _text_after(text: str, count: int) -> str:
    """What follows the first `count` characters that are no white space."""
    places = (place for place, character in enumerate(text) if not character.isspace())
    return text[next(islice(places, count - 1, None)) + 1 :] if count else text


AnswerFinished = Callable[[FinalStateEvent, int, str], ChatNote]
"""Notes the end of an answer, its sequence and its text; `TurnFailed` if there is no answer."""


class ChunkWriter:
    """Projects a turn's events to chunks, each of which has the fields of the head."""

    def __init__(self, head: ChatChunk, ended: AnswerFinished, *, events: bool, usage: bool) -> None:
        self._head, self._ended, self._events, self._usage = head, ended, events, usage
        self._speech = SentText()
        self._who = ""

    def begin(self) -> ChatChunk:
        """The first chunk."""
        return self._chunk({"role": "assistant", "content": ""})

    def of(self, sequence: int, event: AgentEvent) -> Iterator[ChatChunk]:
        """The chunks of an event."""
        speech = self._speech
        if not isinstance(event, ApprovalEvent):  # it may be of a task, which is no handoff
            yield from self._handoff(event.agent)
        match event:
            case ApprovalEvent():
                yield from self._told({"approval": event})
            case TokenEvent(text=text):
                yield from self._said(speech.piece(text))
            case ToolUsageEvent():
                speech.ends_part()
                yield from self._told({"tool": event, "status": "called"})
            case ToolResponseEvent(failed=failed):
                yield from self._told({"tool": event, "status": "failed" if failed else "returned"})
            case AIMessageEvent(text=text):
                yield from self._said(speech.whole(text))
            case FinalStateEvent():
                yield from self._finished(event, sequence)

    def _finished(self, final: FinalStateEvent, sequence: int) -> Iterator[ChatChunk]:
        yield from self._said(self._speech.whole(waiting_text(final)))
        note = self._ended(final, sequence, self._speech.said)
        moved = note.conversation
        if moved and moved.handoffs and moved.handoffs[-1].to == moved.person:
            yield from self._handoff(moved.person)
        yield from self._told(note)
        yield self._chunk({}, finish_reason_of(note))
        if self._usage:
            yield replace(self._head, usage=chat_usage_of(final.usage))

    def _handoff(self, who: str) -> Iterator[ChatChunk]:
        before, self._who = self._who, who or self._who
        if before and before != self._who:
            self._speech.ends_part()
            yield from self._told({"handoff": {"from": before, "to": self._who}})

    def _said(self, text: str) -> Iterator[ChatChunk]:
        if text:
            yield self._chunk({"content": text})

    def _told(self, what: object) -> Iterator[ChatChunk]:
        if self._events:
            yield replace(self._chunk({}), antiphon=what)

    def _chunk(self, delta: dict[str, str], finish: ChatFinish | None = None) -> ChatChunk:
        return replace(self._head, choices=[ChunkChoice(0, delta, finish)])


def finish_reason_of(note: ChatNote) -> ChatFinish:
    """`length` if a limit stopped the turn."""
    return "stop" if note.stopped in (None, APPROVAL) else "length"


def waiting_text(final: FinalStateEvent) -> str:
    """What the assistant says while calls wait for approval: which; "" if none do."""
    if final.stopped != APPROVAL:
        return ""
    tools = ", ".join(approval.tool for approval in final.approvals)
    return f"Waiting for a person's approval: {tools}. Ask again when it is decided."
