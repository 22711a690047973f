"""Requests to models, and what a model is.

Rule 1: these are values. A model is anything that turns a `Request` into a `Reply`.
Rule 2: the conversation so far (`history`) and the exchange within this turn (`exchange`) are kept apart: the first is
        the same for every call of a turn, so its digest is taken once.
Rule 3: the blocks of a model's thinking are the provider's, signed by it, and are returned unchanged and in their
        places: only to the model that made them, within the turn in which it made them.
Rule 4: these blocks are no text: no event, message or answer shows them. The journal keeps them for a resumed turn.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Protocol, TypeVar, cast, runtime_checkable

import msgspec

from antiphon.agents.call_results import NO_USAGE, Call, Reply, Thinking, Thought, Usage
from antiphon.core.codec import Malformed, check_json, to_json
from antiphon.core.envelope import Json
from antiphon.core.views import Message

C = TypeVar("C")

THINKING_BLOCK_TYPES = frozenset({"thinking", "redacted_thinking"})
MAX_THINKING_BYTES = 128 * 1024
"""How many bytes the thinking of one reply may have. Providers refuse a part of it, so more is an error."""


def thinking_in(blocks: Sequence[object], by: str) -> Thinking | msgspec.UnsetType:
    """The thinking among the blocks of a reply. Without calls it is not wanted back, and so not kept.

    `Malformed` if it is too large, or cannot be recorded.
    """
    thoughts: list[Thought] = []
    text = calls = 0
    for block in blocks:
        match block:
            case {"type": "text", "text": str(said)}:
                text += len(said)
            case {"type": "tool_use"}:
                calls += 1
            case dict() if block.get("type") in THINKING_BLOCK_TYPES:
                thoughts.append(Thought(block, text, calls))
    if not thoughts or not calls:
        return msgspec.UNSET
    check_json([thought.block for thought in thoughts])
    size = len(to_json(thoughts))
    if size > MAX_THINKING_BYTES:
        advice = "give the model a smaller budget for thinking"
        raise Malformed("too_large", f"its thinking has {size} bytes; the limit is {MAX_THINKING_BYTES}: {advice}")
    return Thinking(by, tuple(thoughts))


def interleave_thinking(thinking: Thinking, text: str, calls: Sequence[C]) -> Iterator[str | C | Json]:
    """The parts of a reply in the order in which they came: texts, calls, and the blocks between them."""
    said = made = 0
    for thought in thinking.thoughts:
        yield text[said : thought.text]
        yield from calls[made : thought.calls]
        yield thought.block
        said, made = max(said, thought.text), max(made, thought.calls)
    yield text[said:]
    yield from calls[made:]


ReplyBlock = str | Mapping[str, object]
"""A part of a reply, as some providers give it: a text, or a dict with a `type`."""


def says(text: str | Sequence[ReplyBlock], *, usage: Usage = NO_USAGE) -> Reply:
    """A reply in words, or in the content blocks of a provider; what these call for is called for."""
    return Reply(cast("str", text), usage=usage)  # blocks are read by `one_reply`


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


TurnExchange = tuple[Asked | Answered | Objected, ...]


class ToolSpec(msgspec.Struct, frozen=True):
    """A tool as a model sees it."""

    name: str
    description: str
    parameters: Json
    """The JSON schema of its arguments."""


class Request(msgspec.Struct, frozen=True):
    """Everything a model is sent."""

    system: str
    history: Sequence[Message]
    """What was said before, oldest first."""
    exchange: TurnExchange = ()
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
        return [*self.history, *(Message(_EXCHANGE_ROLES[type(item)], item.text) for item in self.exchange)]

    @property
    def tools(self) -> list[str]:
        """The names of the tools on offer."""
        return [spec.name for spec in self.specs]


_EXCHANGE_ROLES = {Asked: "assistant", Answered: "tool", Objected: "user"}


ModelAnswer = Reply | Sequence[Reply] | Sequence[Mapping[str, object]]
"""What a model may return: a reply, several `calls(…)` that make up one, or a provider's content blocks."""

Model = Callable[[Request], Awaitable[ModelAnswer]]
"""Anything that answers a request: a provider's model, a scripted one, or a plain async function."""


@runtime_checkable
class ChecksConfig(Protocol):
    """A model that knows beforehand that it cannot be asked."""

    def check(self) -> None:
        """`UsageError` if something is missing without which no request can be made, such as a key."""
        ...


@runtime_checkable
class Closes(Protocol):
    """A model that holds on to something: connections, a process."""

    async def close(self) -> None:
        """Close it as soon as no request is in progress. Asked again, the model opens it again."""
        ...


@runtime_checkable
class NoticesResume(Protocol):
    """A model whose answer may depend on calls that a resumed turn does not make again."""

    def turn_resumed(self, turn_id: str) -> None:
        """Called before it is asked in a turn of which an earlier attempt has recorded calls."""
        ...


@runtime_checkable
class StreamsReply(Protocol):
    """A model that can also be heard while it speaks."""

    def stream(self, request: Request) -> AsyncIterator[str | ModelAnswer]:
        """Pieces of text as they come, then the whole answer, which comes last and once."""
        ...
