"""What a model is asked, and what it answers.

Rule 1: these are values. A model is anything that turns a `Request` into a `Reply`.
Rule 2: the conversation so far (`history`) and what was exchanged within this turn (`exchange`) are kept apart: the
        first is the same for every call of a turn, so its digest is taken once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Protocol, cast, runtime_checkable

import msgspec

from antiphon.agents.thinking import Thinking
from antiphon.core.events import Json
from antiphon.core.views import Message


class Usage(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """What model calls consumed."""

    input_tokens: int = 0
    """Everything that the model read, from a cache or not."""
    output_tokens: int = 0
    cache_read_tokens: int = 0
    """How many of the input tokens came from the provider's cache."""
    cache_write_tokens: int = 0
    """How many of the input tokens were put into it."""
    cost: int | None = None
    """In millionths of a dollar, of what has a price; None if nothing has one that is known."""

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cache_read_tokens + other.cache_read_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
            other.cost if self.cost is None else self.cost + (other.cost or 0),
        )


NO_USAGE = Usage()


class Call(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """A model asks for a tool."""

    name: str
    args: Json = msgspec.field(default_factory=dict)
    call_id: str = ""
    """As the provider named it; its answer carries the same."""
    fault: str | msgspec.UnsetType = msgspec.UNSET
    """Why the call cannot be made: what the model wrote as arguments is no JSON object. `args` is empty then."""
    # Unset and not "": journals and the digests of requests stay as they were before there was this field.


class Reply(msgspec.Struct, frozen=True):
    """What a model answered: a text, calls of tools, or both."""

    text: str = ""
    calls: tuple[Call, ...] = ()
    usage: Usage = NO_USAGE
    cut: bool = False
    """Whether the answer ends where it does because the model was not allowed more tokens."""
    thinking: Thinking | msgspec.UnsetType = msgspec.UNSET
    """What the model thought before it asked for tools, if its provider wants that back within the turn."""


Block = str | Mapping[str, object]
"""A part of a reply, as some providers give it: a text, or a dict with a `type`."""


def says(text: str | Sequence[Block], *, usage: Usage = NO_USAGE) -> Reply:
    """A reply in words, or in the content blocks of a provider; what these call for is called for."""
    return Reply(cast("str", text), usage=usage)  # whoever asked the model has blocks read by `one_reply`


def calls(name: str, args: Json | None = None, *, text: str = "", call_id: str = "", usage: Usage = NO_USAGE) -> Reply:
    """A reply that asks for one tool. A list of these is one message that asks for several."""
    return Reply(text, (Call(name, {} if args is None else args, call_id),), usage)


class Asked(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """Earlier in this turn: the model asked for tools."""

    text: str
    calls: tuple[Call, ...]
    thinking: Thinking | msgspec.UnsetType = msgspec.UNSET
    """What it thought before, for the provider that wants it back."""


class Answered(msgspec.Struct, frozen=True):
    """Earlier in this turn: a tool's answer, as the model reads it."""

    call: Call
    text: str
    failed: bool = False


class Objected(msgspec.Struct, frozen=True):
    """Earlier in this turn: the model's answer did not have the shape that is wanted, and why."""

    text: str


Exchange = tuple[Asked | Answered | Objected, ...]


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
    output: Json | None = None
    """The JSON schema of the answer; None if any text will do."""
    position: int = 0
    """How many model calls the turn has made before this one, in its team and in earlier attempts too."""

    @property
    def messages(self) -> list[Message]:
        """All of it as (role, text) pairs; a tool's answer has the role `tool`, an objection the role `user`."""
        return [*self.history, *map(_message, self.exchange)]

    @property
    def tools(self) -> list[str]:
        """The names of the tools on offer."""
        return [spec.name for spec in self.specs]


_ROLES = {Asked: "assistant", Answered: "tool", Objected: "user"}


def _message(item: Asked | Answered | Objected) -> Message:
    return Message(_ROLES[type(item)], item.text)


Answer = Reply | Sequence[Reply] | Sequence[Mapping[str, object]]
"""What a model may return: a reply, several `calls(…)` that make up one, or a provider's content blocks."""

Model = Callable[[Request], Awaitable[Answer]]
"""Anything that answers a request: a provider's model, a scripted one, or a plain async function."""


@runtime_checkable
class Forewarns(Protocol):
    """A model that knows beforehand that it cannot be asked."""

    def check(self) -> None:
        """`UsageError` if something is missing without which no request can be made, such as a key."""
        ...


@runtime_checkable
class Closes(Protocol):
    """A model that holds on to something: connections, a process."""

    async def close(self) -> None:
        """Let go of it as soon as nobody is being answered. Asked again, the model takes it up again."""
        ...


@runtime_checkable
class NoticesResume(Protocol):
    """A model whose answer may depend on calls that a resumed turn does not make again."""

    def turn_resumed(self, turn_id: str) -> None:
        """Called before it is asked in a turn of which an earlier attempt has recorded calls."""
        ...


@runtime_checkable
class Streams(Protocol):
    """A model that can also be heard while it speaks."""

    def stream(self, request: Request) -> AsyncIterator[str | Answer]:
        """Pieces of text as they come, then the whole answer, which comes last and once."""
        ...
