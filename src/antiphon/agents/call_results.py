"""Calls and their results: what a model and a tool may return, and the shapes in which the journal holds a result.

Rule 1: a model's answer is one `Reply`. Of content blocks, the order is kept, and texts are joined with nothing between
        them. Thinking is left out, and so is every type of block that is not known here. A block without the right
        shape is a `TypeError` that shows it and says what is wanted.
Rule 2: the arguments of a call are one JSON object. Anything else is a fault of that call alone: the call carries the
        reason, which the model reads as the result, and the other calls of the message are made. It has the arguments
        `{}`, so that every provider accepts it when it is sent back.
Rule 3: nothing is guessed: no missing bracket is added, and of two values for one key neither is taken.
Rule 4: beside a value, a tool may return that the turn goes to another agent (`Handoff`, `Transfer`) or that the work
        is finished (`Finish`).
Rule 5: the shape of a recorded result follows from its keys: `returned` is a tool's, `summary` a summary's; the result
        of a model has the keys of a `Reply`, and everything else is the changes of a user-defined step.
Rule 6: a recorded shape gains fields that may be absent, and loses none: journals outlive the code that wrote them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from types import NoneType, UnionType

import msgspec

from antiphon.core.codec import Malformed, as_type, check_json, parse_json, plain_data
from antiphon.core.envelope import Json
from antiphon.core.events import ContextSet
from antiphon.core.text import describe, sanitize
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


EMPTY_ARGUMENTS = "they are empty"
"""The fault of a call without arguments; not one for a tool without parameters, where some servers write nothing."""
ARGUMENTS_CUT_OFF = "the model ran out of tokens in them"


class _ArgumentsFault(ValueError):
    """What was written is no JSON object; the message says why."""


def parse_call(name: str, written: object, call_id: str = "", *, cut: bool = False) -> Call:
    """A call with what a model wrote as its arguments: a JSON text, or plain data. `cut`: it ran out of tokens."""
    try:
        return Call(name, _parse_arguments(written, cut=cut), call_id)
    except _ArgumentsFault as error:
        return faulty_call(name, str(error), call_id)


def faulty_call(name: str, why: str, call_id: str = "") -> Call:
    """A call that cannot be made, for this reason."""
    return Call(name, {}, call_id, sanitize(why))


def _parse_arguments(written: object, *, cut: bool) -> Json:
    if written is None or (isinstance(written, str) and not written.strip()):
        raise _ArgumentsFault(EMPTY_ARGUMENTS)
    value = _parse_arguments_text(written, cut=cut) if isinstance(written, str) else written
    if not isinstance(value, dict):
        raise _ArgumentsFault(f"{describe(written)} is {_json_kind(value)}, not a JSON object")
    try:
        check_json(value)
    except Malformed as error:
        raise _ArgumentsFault(f"{describe(written)} cannot be recorded: {error}") from error
    return value


def _parse_arguments_text(text: str, *, cut: bool) -> object:
    try:
        value: object = parse_json(text)
    except Malformed as error:
        why = ARGUMENTS_CUT_OFF if cut else str(error)
        raise _ArgumentsFault(f"{describe(text)} is no JSON: {why}") from error
    try:
        json.loads(text, object_pairs_hook=_refuse_repeated_keys)  # the decoder above takes the last of several values
    except RecursionError as error:
        raise _ArgumentsFault(f"{describe(text)} is nested too deep") from error
    return value


def _refuse_repeated_keys(pairs: Sequence[tuple[str, object]]) -> Json:
    found: Json = {}
    for key, value in pairs:
        if key in found:
            raise _ArgumentsFault(f"they name {describe(key)} twice")
        found[key] = value
    return found


JSON_KINDS: tuple[tuple[type | UnionType, str], ...] = (
    (NoneType, "null"),
    (bool, "a boolean"),
    (int | float, "a number"),
    (str, "a string"),
    (list | tuple, "a list"),
)


def _json_kind(value: object) -> str:
    return next((kind for types, kind in JSON_KINDS if isinstance(value, types)), f"a {type(value).__name__}")


MAX_NESTED_MESSAGES = 8
"""How many messages may stand inside each other."""
BLOCK_CALL_FIELDS = {"tool_use": ("input", "id"), "function_call": ("arguments", "call_id")}
"""By the type of a block that is a call, where its arguments stand, and the name that the provider gives it."""


def read_blocks(blocks: Sequence[object]) -> tuple[str, tuple[Call, ...]]:
    """The text of the blocks and the calls among them; `TypeError` if one is malformed."""
    parts = list(_parts_of_blocks(blocks, MAX_NESTED_MESSAGES))
    text = "".join(part for part in parts if isinstance(part, str))
    return text, tuple(part for part in parts if isinstance(part, Call))


def _parts_of_blocks(blocks: Sequence[object], deepest: int) -> Iterator[str | Call]:
    for block in blocks:
        match block:
            case str():
                yield block
            case dict():
                yield from _parts_of_block(block, deepest)
            case _:
                raise TypeError(f"a content block is {describe(block)}; it should be a text or a dict with a 'type'")


def _parts_of_block(block: Json, deepest: int) -> Iterator[str | Call]:
    match block.get("type"):
        case "text" | "output_text":
            yield _block_text(block, "text")
        case "refusal":
            yield _block_text(block, "refusal")
        case "message":
            yield from _parts_of_message(block, deepest)
        case "tool_use" | "function_call" as kind:
            if not block.get("name"):
                raise _bad_block_error(block, "name", "the name of a tool")
            name, (arguments, id_field) = _block_text(block, "name"), BLOCK_CALL_FIELDS[kind]
            call_id = "" if block.get(id_field) is None else _block_text(block, id_field)
            yield parse_call(name, block.get(arguments), call_id)
        case str():
            return
        case _:
            raise _bad_block_error(block, "type", "a text such as 'text' or 'tool_use'")


def _parts_of_message(block: Json, deepest: int) -> Iterator[str | Call]:
    content = block.get("content")
    if isinstance(content, str):
        return iter((content,))
    if not isinstance(content, list | tuple):
        raise _bad_block_error(block, "content", "a text or a list of blocks")
    if not deepest:
        raise TypeError(
            f"more than {MAX_NESTED_MESSAGES} messages stand inside each other; give their blocks in one list"
        )
    return _parts_of_blocks(content, deepest - 1)


def _block_text(block: Json, field: str) -> str:
    text = block.get(field)
    if not isinstance(text, str):
        raise _bad_block_error(block, field, "a text")
    return text


def _bad_block_error(block: Json, field: str, wanted: str) -> TypeError:
    kind = "a content block" if field == "type" else f"a content block of type {describe(block['type'])}"
    problem = f"has {describe(block[field])} as its {field!r}" if field in block else f"has no {field!r}"
    return TypeError(f"{kind} {problem}; it should be {wanted}")


REPLY_ADVICE = "return says(…), calls(…), a list of calls(…) or a list of content blocks"


def one_reply(answer: object) -> Reply:
    """The answer as one reply, content blocks read; `TypeError` if it is none."""
    if isinstance(answer, Reply):
        return _normalize_reply(answer)
    parts = list(answer) if isinstance(answer, list | tuple) else []
    if any(isinstance(part, dict) for part in parts):
        return Reply(*read_blocks(parts))
    if not parts or not all(isinstance(part, Reply) for part in parts):
        raise TypeError(f"a model returned {type(answer).__name__}; {REPLY_ADVICE}")
    return _join_replies([_normalize_reply(part) for part in parts])


def _normalize_reply(reply: Reply) -> Reply:
    """The reply with a text that is one. What it calls for itself comes before what its blocks call for."""
    given: object = reply.text
    calls = tuple(
        call if isinstance(call.args, dict) else parse_call(call.name, call.args, call.call_id) for call in reply.calls
    )
    if given is None:
        return msgspec.structs.replace(reply, text="", calls=calls)
    if not isinstance(given, list | tuple):
        return msgspec.structs.replace(reply, calls=calls) if calls != reply.calls else reply
    text, called = read_blocks(given)
    return msgspec.structs.replace(reply, text=text, calls=(*calls, *called))


def _join_replies(replies: Sequence[Reply]) -> Reply:
    text = "\n".join(reply.text for reply in replies if reply.text)
    usage = sum((reply.usage for reply in replies), NO_USAGE)
    calls = tuple(call for reply in replies for call in reply.calls)
    return Reply(text, calls, usage, any(reply.cut for reply in replies))


class Handoff(msgspec.Struct, frozen=True, omit_defaults=True, repr_omit_defaults=True):
    """Give the turn to another participant."""

    target: str
    reason: str = ""
    summary: str = ""
    phase: str = ""
    escalation: str = ""
    """The phase of a conversation, and the transport by which replies leave, from then on; "" for no change."""
    briefing: bool = False
    """Whether the summary is for the next agent alone. Otherwise it is what the turn says, if it says nothing else."""


class Finish(msgspec.Struct, frozen=True):
    """End the channel: there is nothing left to do."""

    reason: str


class Transfer(msgspec.Struct, frozen=True):
    """Another member of the team becomes active; the text is the result of the call."""

    target: str
    text: str


class NotDone(msgspec.Struct, frozen=True):
    """What `reconcile` returns of a call that did not take effect, so that it can safely be made."""


NOT_DONE = NotDone()


class ToolResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of a call, as the model reads it."""

    text: str
    failed: bool = False
    handoff: Handoff | None = None
    finish: Finish | None = None
    transfer: str | None = None
    """The member of the team that becomes active."""
    usage: Usage = NO_USAGE
    """What models consumed within the call."""
    declined: str = ""
    """Why the handoff that it was about does not count, although the call itself did not fail."""

    @property
    def target(self) -> str | None:
        """The agent that is to go on; None if the call is no handoff."""
        return self.transfer or (None if self.handoff is None else self.handoff.target)


def failed_result(text: str) -> ToolResult:
    """A call that failed, or was not made, for this reason."""
    return ToolResult(sanitize(text), failed=True)


class ToolOutcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of a tool call."""

    returned: ToolResult
    context: ContextSet | None = None
    """The changes it made to the context variables."""
    audience: tuple[str, ...] | None = None
    """The audience it has chosen for the answer: `()` is everybody; None if it has chosen none."""


class Summary(msgspec.Struct, frozen=True):
    """A text that stands for the first so many messages."""

    text: str
    count: int
    """How many messages it stands for."""
    by: str = ""
    """The reader it was made for."""


class SummaryOutcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of a call that summarises."""

    summary: Summary
    usage: Usage = NO_USAGE


class StepChanges(msgspec.Struct, frozen=True, omit_defaults=True):
    """The changes of a user-defined step, as the journal holds them."""

    system: str | None = None
    history: list[Message] | None = None
    notes: Json | None = None
    reply: Reply | None = None
    answer: str | None = None
    gone: tuple[str, ...] = ()
    """The fields it has cleared: the reply or the answer."""


CallOutcome = Reply | ToolOutcome | SummaryOutcome | StepChanges


def decode_outcome(result: Json) -> CallOutcome:
    """The recorded result of a call; `Malformed` if it is none."""
    if "returned" in result:
        return as_type(result, ToolOutcome)
    if "summary" in result:
        return as_type(result, SummaryOutcome)
    if result.keys().isdisjoint(Reply.__struct_fields__):
        return as_type(result, StepChanges)
    return as_type(result, Reply)


def summary_in(result: object) -> Summary | None:
    """The summary that a recorded result holds, if it is one. No other result is decoded."""
    if not isinstance(result, dict) or "summary" not in result:
        return None
    with suppress(Malformed):
        outcome = decode_outcome(result)
        return outcome.summary if isinstance(outcome, SummaryOutcome) else None
    return None


def settled_outcome(text: str) -> Json:
    """The result that a person gives for a call in doubt, as the journal holds it."""
    return plain_data(ToolOutcome(ToolResult(text)))
