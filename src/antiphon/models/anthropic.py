"""Models that speak Anthropic's messages.

Rule 1: the two sides take turns, and ours begins and ends: what one of them said in a row is one message.
Rule 2: what a model was thinking is not read, and so are kinds of blocks and events that are not known here. Thinking
        before calls goes back to the model as it came: without it the provider refuses the next request of the turn.
Rule 3: all that was read counts as input, from a cache or not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Unpack

import msgspec

from antiphon.agents.arguments import OUT_OF_TOKENS, faulty_call
from antiphon.agents.blocks import read_blocks
from antiphon.agents.messages import Answered, Asked, Call, Reply, Request, Usage
from antiphon.agents.thinking import Thinking, thinking_in, with_thinking
from antiphon.core.codec import Malformed, parsed
from antiphon.core.events import Json
from antiphon.models.asking import Told, Unfinished, decoded, decoded_event
from antiphon.models.endpoint import Endpoint, Provider
from antiphon.models.exchange import identified, raw_text
from antiphon.models.hosted import HostedModel
from antiphon.models.options import (
    Options,
    checked_options,
    headers_of,
    sent_options,
    with_body,
)
from antiphon.models.prices import Price
from antiphon.models.schemas import closed, with_schema
from antiphon.models.sse import Event

ANTHROPIC = Provider("anthropic", "https://api.anthropic.com", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL")
VERSION = "2026-10-21"
MOST_TOKENS = 8192
"""How much a model may say, unless it is told otherwise: the provider wants to be told."""
YOU_BEGIN = "(You speak first.)"
GO_ON = "(It is your turn again.)"
GONE = "This was called earlier, and is not on offer any more."
CUT = ("max_tokens", "model_context_window_exceeded")


class AnthropicOptions(Options, total=False):
    """What is sent with each request to a model that speaks messages."""

    effort: str
    """How hard it should try: low, medium, high …"""
    stop_sequences: list[str]


@dataclass(frozen=True, init=False, repr=False)
class AnthropicModel(HostedModel):
    """A model of Anthropic's, or of a server that speaks messages: `AnthropicModel("claude-sonnet-5")`.

    The key is `api_key`, or what `ANTHROPIC_API_KEY` says when the model is asked; a server on this machine needs none.
    The address is `base_url`, or what `ANTHROPIC_BASE_URL` says. It is never asked twice for one answer.
    """

    provider: ClassVar[str] = ANTHROPIC.name

    def __init__(
        self,
        name: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        price: Price | None = None,
        **options: Unpack[AnthropicOptions],
    ) -> None:
        checked = checked_options(options, AnthropicOptions)
        endpoint = Endpoint(ANTHROPIC, base_url, api_key, plain_http=bool(checked.get("plain_http")))
        self._set_up(name, endpoint, Messages(name, checked), price=price, options=checked)


# What is sent


class Messages:
    """What these models understand, and how they answer."""

    path = "/v1/messages"

    def __init__(self, name: str, options: Mapping[str, object]) -> None:
        self._name, self._options = name, options
        self._called = f"{ANTHROPIC.name}:{name}"
        self.extra = headers_of(options)

    def headers(self, key: str | None) -> dict[str, str]:
        version = {"anthropic-version": VERSION}
        return {**version, "authorization": f"Bearer {key}"} if key else version

    def body(self, request: Request, *, stream: bool) -> dict[str, object]:
        told = self._options.get("output_schema") == "told"
        schema = None if request.output is None or told else closed(request.output)
        system = request.system
        if request.output is not None and schema is None:
            system = with_schema(system, request.output)
        fields: dict[str, object] = {
            "model": self._name,
            "max_tokens": MOST_TOKENS,
            "messages": _messages(request, self._called),
            **sent_options(self._options),
            **_tools(request),
        }
        if system:
            fields["system"] = system
        config = {"effort": fields.pop("effort")} if "effort" in fields else dict[str, object]()
        if schema is not None:
            config["format"] = {"type": "json_schema", "schema": schema}
        if config:
            fields["output_config"] = config
        if stream:
            fields["stream"] = True
        return with_body(fields, self._options)

    def whole(self, body: bytes) -> Reply:
        message = decoded(body, Message)
        if message.error is not None:
            raise Told(message.error)
        if message.content is None:
            raise Malformed("malformed", "it has no content")
        blocks = [_whole_block(raw) for raw in message.content]
        return self.thoughtful(_reply(blocks, message, message.usage or Used(), unwritten=True), blocks)

    def reading(self) -> Blocks:
        return Blocks(self)

    def thoughtful(self, reply: Reply, blocks: Sequence[object]) -> Reply:
        """The reply with the thinking that is among its blocks."""
        return msgspec.structs.replace(reply, thinking=thinking_in(blocks, self._called))


def _messages(request: Request, by: str) -> list[Json]:
    """Everything that was said and exchanged, in turns. What is empty is not taken, and so is left out."""
    said = [("assistant" if role == "assistant" else "user", _spoken(text)) for role, text in request.history]
    if request.exchange:  # a turn that follows the model's own words begins as its first request did
        said += [("user", _spoken(GO_ON))] if said and said[-1][0] == "assistant" else []
    for item in identified(request.exchange):
        match item:
            case Asked():
                said.append(("assistant", _asked(item, by)))
            case Answered():
                said.append(("user", [_result(item)]))
            case _:
                said.append(("user", _spoken(item.text)))
    messages: list[tuple[str, list[Json]]] = []
    for role, blocks in said:
        if blocks and messages and messages[-1][0] == role:
            messages[-1][1].extend(blocks)
        elif blocks:
            messages.append((role, blocks))
    if not messages or messages[0][0] == "assistant":
        messages.insert(0, ("user", _spoken(YOU_BEGIN)))
    if messages[-1][0] == "assistant":
        messages.append(("user", _spoken(GO_ON)))  # or it would be taken for the beginning of the answer
    return [{"role": role, "content": blocks} for role, blocks in messages]


def _asked(asked: Asked, by: str) -> list[Json]:
    """What the model asked for, with what it thought before if it is this model that thought it."""
    thinking = asked.thinking
    if not isinstance(thinking, Thinking) or thinking.by != by:
        return [*_spoken(asked.text), *map(_use, asked.calls)]
    blocks: list[Json] = []
    for part in with_thinking(thinking, asked.text, asked.calls):
        match part:
            case str():
                blocks += _spoken(part)
            case Call():
                blocks.append(_use(part))
            case block:
                blocks.append(block)
    return blocks


def _spoken(text: str) -> list[Json]:
    return [{"type": "text", "text": text}] if text.strip() else []


def _use(call: Call) -> Json:
    return {"type": "tool_use", "id": call.call_id, "name": call.name, "input": call.args}


def _result(answered: Answered) -> Json:
    result: Json = {"type": "tool_result", "tool_use_id": answered.call.call_id, "content": answered.text}
    return {**result, "is_error": True} if answered.failed else result


def _tools(request: Request) -> dict[str, object]:
    """The tools on offer. Where calls are shown some must be described, so those that were called are, if none is."""
    if request.specs:
        offered = [(spec.name, spec.description, spec.parameters) for spec in request.specs]
        return {"tools": [_tool(*tool) for tool in offered]}
    called = {call.name: None for item in request.exchange if isinstance(item, Asked) for call in item.calls}
    if not called:
        return {}
    return {"tools": [_tool(name, GONE, {"type": "object"}) for name in called], "tool_choice": {"type": "none"}}


def _tool(name: str, description: str, parameters: Json) -> Json:
    return {"name": name, "description": description, "input_schema": parameters}


# What comes back


class Used(msgspec.Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class Details(msgspec.Struct):
    explanation: str | None = None


class Message(msgspec.Struct):
    """A message, or the end of one."""

    content: list[msgspec.Raw] | None = None
    stop_reason: str | None = None
    stop_details: Details | None = None
    usage: Used | None = None
    error: object = None


class Delta(msgspec.Struct):
    type: str | None = None
    text: str = ""
    partial_json: str = ""
    thinking: str = ""
    signature: str = ""
    stop_reason: str | None = None
    stop_details: Details | None = None


class Streamed(msgspec.Struct):
    type: str
    index: int = 0
    message: Message | None = None
    content_block: dict[str, object] | None = None
    delta: Delta | None = None
    usage: Used | None = None
    error: object = None


class Use(msgspec.Struct, tag="tool_use"):
    """A call of a tool. Its arguments are undecoded: decoded, of two values for one key the first would be lost."""

    input: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)


def _whole_block(raw: msgspec.Raw) -> object:
    block: object = parsed(bytes(raw))
    if not isinstance(block, dict) or block.get("type") != "tool_use":
        return block
    return {**block, "input": raw_text(decoded(bytes(raw), Use).input)}


class Block:
    """A block of which parts have come."""

    def __init__(self, start: Json) -> None:
        self.start, self.text, self.arguments = start, [str(start.get("text") or "")], list[str]()
        self.thinking, self.signature = ([str(start.get(part) or "")] for part in ("thinking", "signature"))

    def whole(self) -> Json:
        """The block as it would have come in one piece. Where nothing was written, the beginning has the arguments."""
        if self.start.get("type") == "text":
            return {**self.start, "text": "".join(self.text)}
        if self.start.get("type") == "tool_use" and any(self.arguments):
            return {**self.start, "input": "".join(self.arguments)}
        if self.start.get("type") == "thinking":
            return {**self.start, "thinking": "".join(self.thinking), "signature": "".join(self.signature)}
        return self.start


class Blocks:
    """A streamed message."""

    def __init__(self, dialect: Messages) -> None:
        self.done = False
        self._dialect = dialect
        self._blocks: dict[int, Block] = {}
        self._end = Message()
        self._used = Used()

    def read(self, event: Event) -> str:
        streamed = decoded_event(event, Streamed)
        match streamed.type:
            case "error":
                raise Told(streamed.error)
            case "message_start" if streamed.message is not None:
                self._count(streamed.message.usage)
            case "content_block_start" if streamed.content_block is not None:
                block = self._blocks[streamed.index] = Block(streamed.content_block)
                return block.text[0]
            case "content_block_delta" if streamed.delta is not None:
                return self._heard(streamed.index, streamed.delta)
            case "message_delta":
                delta = streamed.delta or Delta()
                self._end = Message(stop_reason=delta.stop_reason, stop_details=delta.stop_details)
                self._count(streamed.usage)
            case "message_stop":
                self.done = True
        return ""

    def _heard(self, index: int, delta: Delta) -> str:
        block = self._blocks.get(index)
        if block is None:
            raise Malformed("malformed", f"a part of block {index} comes before its beginning")
        match delta.type:
            case "text_delta":
                block.text.append(delta.text)
                return delta.text
            case "input_json_delta":
                block.arguments.append(delta.partial_json)
            case "thinking_delta":
                block.thinking.append(delta.thinking)
            case "signature_delta":
                block.signature.append(delta.signature)
        return ""

    def _count(self, used: Used | None) -> None:
        """These are totals: what is told later replaces what was told before."""
        told: Iterable[tuple[str, object]] = [] if used is None else msgspec.structs.asdict(used).items()
        self._used = msgspec.structs.replace(self._used, **{name: n for name, n in told if n is not None})

    def reply(self) -> Reply:
        if not self.done and self._end.stop_reason is None:
            raise Unfinished
        ordered = [self._blocks[index] for index in sorted(self._blocks)]
        unwritten = not ordered or not any(ordered[-1].arguments)
        blocks = [block.whole() for block in ordered]
        return self._dialect.thoughtful(_reply(blocks, self._end, self._used, unwritten=unwritten), blocks)


def _reply(blocks: Sequence[object], end: Message, used: Used, *, unwritten: bool) -> Reply:
    """All of it. `unwritten`: the last arguments did not come as text, so in a cut message a part may be missing."""
    cut = end.stop_reason in CUT
    try:
        text, calls = read_blocks(blocks)
    except TypeError as error:
        raise Malformed("malformed", str(error)) from error
    if cut and _ends_in_use(blocks) and (unwritten or isinstance(calls[-1].fault, str)):
        calls = (*calls[:-1], faulty_call(calls[-1].name, OUT_OF_TOKENS, calls[-1].call_id))
    if not text and end.stop_details is not None and end.stop_reason == "refusal":
        text = end.stop_details.explanation or ""
    read, written = used.cache_read_input_tokens or 0, used.cache_creation_input_tokens or 0
    usage = Usage((used.input_tokens or 0) + read + written, used.output_tokens or 0, read, written)
    return Reply(text, calls, usage, cut)


def _ends_in_use(blocks: Sequence[object]) -> bool:
    last = blocks[-1] if blocks else None
    return isinstance(last, dict) and last.get("type") == "tool_use"
