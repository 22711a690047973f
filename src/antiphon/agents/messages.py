"""What a model is asked, and what it answers.

Rule 1: these are values. A model is anything that turns a `Request` into a `Reply`.
Rule 2: the conversation so far (`history`) and what was exchanged within this turn (`exchange`) are kept apart: the
        first is the same for every call of a turn, so its digest is taken once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from antiphon.core.events import Json
from antiphon.core.views import Message


class Usage(msgspec.Struct, frozen=True):
    """What model calls consumed."""

    input_tokens: int = 0
    output_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(self.input_tokens + other.input_tokens, self.output_tokens + other.output_tokens)


NO_USAGE = Usage()


class Call(msgspec.Struct, frozen=True):
    """A model asks for a tool."""

    name: str
    args: Json = msgspec.field(default_factory=dict)
    call_id: str = ""
    """As the provider named it; its answer carries the same."""


class Reply(msgspec.Struct, frozen=True):
    """What a model answered: a text, calls of tools, or both."""

    text: str = ""
    calls: tuple[Call, ...] = ()
    usage: Usage = NO_USAGE


def says(text: str, *, usage: Usage = NO_USAGE) -> Reply:
    """A reply in words."""
    return Reply(text, usage=usage)


def calls(name: str, args: Json | None = None, *, text: str = "", call_id: str = "", usage: Usage = NO_USAGE) -> Reply:
    """A reply that asks for one tool. A list of these is one message that asks for several."""
    return Reply(text, (Call(name, {} if args is None else args, call_id),), usage)


class Asked(msgspec.Struct, frozen=True):
    """Earlier in this turn: the model asked for tools."""

    text: str
    calls: tuple[Call, ...]


class Answered(msgspec.Struct, frozen=True):
    """Earlier in this turn: a tool's answer, as the model reads it."""

    call: Call
    text: str
    failed: bool = False


Exchange = tuple[Asked | Answered, ...]


class ToolSpec(msgspec.Struct, frozen=True):
    """A tool as a model is told of it."""

    name: str
    description: str
    parameters: Json
    """The JSON schema of its arguments."""


class Request(msgspec.Struct, frozen=True):
    """Everything a model is sent."""

    system: str
    history: Sequence[Message]
    """What was said before, oldest first."""
    exchange: Exchange = ()
    """What the model asked for in this turn, and what it was answered."""
    specs: tuple[ToolSpec, ...] = ()
    past: str = ""
    """The digest of the history."""

    @property
    def messages(self) -> list[Message]:
        """All of it as (role, text) pairs; a tool's answer has the role `tool`."""
        return [*self.history, *map(_message, self.exchange)]

    @property
    def tools(self) -> list[str]:
        """The names of the tools on offer."""
        return [spec.name for spec in self.specs]


def _message(item: Asked | Answered) -> Message:
    return Message("assistant" if isinstance(item, Asked) else "tool", item.text)


Answer = Reply | Sequence[Reply]
"""What a model may return: a reply, or several `calls(…)` that make up one."""


def one_reply(answer: object) -> Reply:
    """The answer as one reply; `TypeError` if it is none."""
    if isinstance(answer, Reply):
        return Reply("", answer.calls, answer.usage) if answer.text is None else answer
    parts = list(answer) if isinstance(answer, list | tuple) else []
    if not parts or not all(isinstance(part, Reply) for part in parts):
        raise TypeError(f"a model returned {type(answer).__name__}; return says(…), calls(…) or a list of calls(…)")
    usage = sum((part.usage for part in parts), NO_USAGE)
    text = "\n".join(part.text for part in parts if part.text)
    return Reply(text, tuple(call for part in parts for call in part.calls), usage)


Model = Callable[[Request], Awaitable[Answer]]
"""Anything that answers a request: a provider's model, a scripted one, or a plain async function."""


@runtime_checkable
class Streams(Protocol):
    """A model that can also be heard while it speaks."""

    def stream(self, request: Request) -> AsyncIterator[str | Answer]:
        """Pieces of text as they come, then the whole answer, which comes last and once."""
        ...
