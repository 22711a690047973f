"""What a model thought before it asked for tools, as its provider wants it back.

Rule 1: the blocks are the provider's, signed by it, and are returned unchanged and in their places.
Rule 2: only the model that made them gets them back, within the turn in which it made them.
Rule 3: they are no text: no event, message or answer shows them. The journal keeps them, for a turn that is resumed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

import msgspec

from antiphon.core.codec import Malformed, check_json, to_json
from antiphon.core.events import Json

C = TypeVar("C")

KINDS_OF_THOUGHT = frozenset({"thinking", "redacted_thinking"})
MAX_THINKING = 128 * 1024
"""How many bytes the thinking of one reply may have. Providers refuse a part of it, so more is an error."""


class Thought(msgspec.Struct, frozen=True):
    """One block, and where in the reply it stands."""

    block: Json
    text: int = 0
    """How many characters of the reply's text come before it."""
    calls: int = 0
    """How many of its calls do."""


class Thinking(msgspec.Struct, frozen=True):
    """The blocks of one reply."""

    by: str
    """The model that made them."""
    thoughts: tuple[Thought, ...]


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
            case dict() if block.get("type") in KINDS_OF_THOUGHT:
                thoughts.append(Thought(block, text, calls))
    if not thoughts or not calls:
        return msgspec.UNSET
    check_json([thought.block for thought in thoughts])
    size = len(to_json(thoughts))
    if size > MAX_THINKING:
        advice = "give the model a smaller budget for thinking"
        raise Malformed("too_large", f"its thinking has {size} bytes; the limit is {MAX_THINKING}: {advice}")
    return Thinking(by, tuple(thoughts))


def with_thinking(thinking: Thinking, text: str, calls: Sequence[C]) -> Iterator[str | C | Json]:
    """The parts of a reply in the order in which they came: texts, calls, and the blocks between them."""
    said = made = 0
    for thought in thinking.thoughts:
        yield text[said : thought.text]
        yield from calls[made : thought.calls]
        yield thought.block
        said, made = max(said, thought.text), max(made, thought.calls)
    yield text[said:]
    yield from calls[made:]
