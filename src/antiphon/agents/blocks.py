"""Replies that come as content blocks: what they say, and what they call for.

Rule 1: what a model thought is left out for ever, and so is every type of block that is not known here.
Rule 2: the order is kept. Texts are joined with nothing between them.
Rule 3: a block without the right shape is a `TypeError` that shows it and says what is wanted; nothing is guessed.
        Arguments that are no JSON object are a fault of their call alone: see `arguments`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from antiphon.agents.arguments import written_call
from antiphon.agents.messages import Call
from antiphon.core.events import Json
from antiphon.core.words import shown

DEEPEST = 8
"""How many messages may stand inside each other."""


def read_blocks(blocks: Sequence[object]) -> tuple[str, tuple[Call, ...]]:
    """The text of the blocks and the calls among them; `TypeError` if one is malformed."""
    parts = list(_parts(blocks, DEEPEST))
    text = "".join(part for part in parts if isinstance(part, str))
    return text, tuple(part for part in parts if isinstance(part, Call))


def _parts(blocks: Sequence[object], deepest: int) -> Iterator[str | Call]:
    for block in blocks:
        match block:
            case str():
                yield block
            case dict():
                yield from _block(block, deepest)
            case _:
                raise TypeError(f"a content block is {shown(block)}; it should be a text or a dict with a 'type'")


def _block(block: Json, deepest: int) -> Iterator[str | Call]:
    match block.get("type"):
        case "text" | "output_text":
            yield _text(block, "text")
        case "refusal":
            yield _text(block, "refusal")
        case "message":
            yield from _message(block, deepest)
        case "tool_use":
            yield written_call(_name(block), block.get("input"), _id(block, "id"))
        case "function_call":
            yield written_call(_name(block), block.get("arguments"), _id(block, "call_id"))
        case str():
            return
        case _:
            raise _bad(block, "type", "a text such as 'text' or 'tool_use'")


def _message(block: Json, deepest: int) -> Iterator[str | Call]:
    content = block.get("content")
    if isinstance(content, str):
        return iter((content,))
    if not isinstance(content, list | tuple):
        raise _bad(block, "content", "a text or a list of blocks")
    if not deepest:
        raise TypeError(f"more than {DEEPEST} messages stand inside each other; give their blocks in one list")
    return _parts(content, deepest - 1)


def _name(block: Json) -> str:
    if not block.get("name"):
        raise _bad(block, "name", "the name of a tool")
    return _text(block, "name")


def _id(block: Json, field: str) -> str:
    """What the provider names the call; nothing, if it does not."""
    return "" if block.get(field) is None else _text(block, field)


def _text(block: Json, field: str) -> str:
    text = block.get(field)
    if not isinstance(text, str):
        raise _bad(block, field, "a text")
    return text


def _bad(block: Json, field: str, wanted: str) -> TypeError:
    kind = "a content block" if field == "type" else f"a content block of type {shown(block['type'])}"
    problem = f"has {shown(block[field])} as its {field!r}" if field in block else f"has no {field!r}"
    return TypeError(f"{kind} {problem}; it should be {wanted}")
