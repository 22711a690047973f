"""Chat completions on the wire: what is taken, and what is given.

Rule 1: whoever sends more than is known here is not refused: clients add fields all the time.
Rule 2: a field that would change what is asked for is known here, so that `chat_reading` can refuse it by its name.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from antiphon.agents.messages import Usage

Anything = object
"""Whatever JSON there is."""


class ChatPart(msgspec.Struct, frozen=True):
    """A part of a message. Only texts are taken."""

    type: str
    text: str = ""


class ChatMessage(msgspec.Struct, frozen=True):
    """One message of the conversation."""

    role: str
    """`system`, `developer`, `user` or `assistant`."""
    content: str | list[ChatPart] | None = None
    tool_calls: list[Anything] | None = None
    function_call: Anything = None


class ChatStreamOptions(msgspec.Struct, frozen=True):
    """How an answer is streamed."""

    include_usage: bool | None = None
    """Whether what was consumed is told in a chunk of its own, at the end."""


class ChatRequest(msgspec.Struct, frozen=True):
    """A conversation so far, whose last message is to be answered. What is not known here has no effect."""

    model: str
    """The name of the agent that is asked."""
    messages: Annotated[list[ChatMessage], Meta(min_length=1)]
    stream: bool | None = None
    stream_options: ChatStreamOptions | None = None
    user: str | None = None
    """Whom the conversation is with, where one key serves many: theirs are kept apart."""
    metadata: dict[str, Anything] | None = None
    """`thread_id` names the conversation; `antiphon_events` has a stream tell of tools and handoffs."""
    n: int | None = None
    tools: list[Anything] | None = None
    tool_choice: Anything = None
    functions: list[Anything] | None = None
    function_call: Anything = None
    response_format: Anything = None
    modalities: list[str] | None = None
    audio: Anything = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    web_search_options: Anything = None


class ChatCached(msgspec.Struct, frozen=True):
    """Where the prompt came from."""

    cached_tokens: int


class ChatUsage(msgspec.Struct, frozen=True):
    """What the whole turn consumed, with every model call in it."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: ChatCached


def usage_of(usage: Usage) -> ChatUsage:
    """What was consumed, as clients know it."""
    read, written = usage.input_tokens, usage.output_tokens
    return ChatUsage(read, written, read + written, ChatCached(usage.cache_read_tokens))


class ChatNote(msgspec.Struct, frozen=True):
    """What there is to know beyond the protocol."""

    agent: str
    """Who of the team answered."""
    channel_id: str
    stopped: str | None
    """The named limit that ended the turn; None if it ended by itself."""


Finish = Literal["stop", "length"]


class ChatAnswer(msgspec.Struct, frozen=True):
    """What the agent says."""

    role: Literal["assistant"]
    content: str
    refusal: None = None


class ChatChoice(msgspec.Struct, frozen=True):
    """The only answer there is."""

    index: int
    message: ChatAnswer
    finish_reason: Finish
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
    """What a piece adds to the only answer there is."""

    index: int
    delta: dict[str, str]
    finish_reason: Finish | None = None


class ChatChunk(msgspec.Struct, frozen=True):
    """A piece of an answer."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: ChatUsage | UnsetType = UNSET
    antiphon: Anything = UNSET
    """What there is to know beyond the protocol; only for those who ask for it."""


class ModelRow(msgspec.Struct, frozen=True):
    """An agent that can be asked, as clients of chat completions know it."""

    id: str
    object: Literal["model"]
    created: int
    """Since when there have been agents here."""
    owned_by: Literal["antiphon"]


class ModelList(msgspec.Struct, frozen=True):
    """The agents that can be asked."""

    object: Literal["list"]
    data: list[ModelRow]
