"""Models that speak Anthropic's messages.

Rule 1: roles alternate, beginning and ending with the user: consecutive texts of one role are one message.
Rule 2: thinking, and unknown kinds of blocks and events, are not read. Thinking before calls is returned to the model
        unchanged: without it the provider refuses the next request of the turn.
Rule 3: all tokens read count as input, from a cache or not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Unpack

import msgspec
from msgspec.structs import asdict, replace

from antiphon.agents.call_results import ARGUMENTS_CUT_OFF, Call, Reply, Thinking, Usage, faulty_call
from antiphon.agents.messages import Answered, Asked, Request, interleave_thinking, thinking_in
from antiphon.core.codec import Malformed, parse_json
from antiphon.core.envelope import Json
from antiphon.models.answer_schemas import closed_schema_of, with_schema
from antiphon.models.provider_client import (
    HostedModel,
    ModelKind,
    ProviderReportedError,
    UnfinishedAnswer,
    arguments_text,
    decode_answer,
    decode_blocks,
    decode_sse_data,
    with_plain_call_ids,
)
from antiphon.models.provider_http import SseEvent
from antiphon.models.provider_settings import (
    Provider,
    ProviderOptions,
    request_options,
)

ANTHROPIC_PROVIDER = Provider("anthropic", "https://api.anthropic.com", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL")
ANTHROPIC_VERSION = "2026-10-21"
DEFAULT_MAX_TOKENS = 8192
"""The provider requires this field."""
SPEAK_FIRST_TEXT = "(You speak first.)"
CONTINUE_TEXT = "(It is your turn again.)"
WITHDRAWN_TOOL_TEXT = "This was called earlier, and is not on offer any more."
CUT_STOP_REASONS = ("max_tokens", "model_context_window_exceeded")


class AnthropicOptions(ProviderOptions, total=False):
    """Options of a model that speaks messages."""

    effort: str
    """`low`, `medium`, `high` …"""
    stop_sequences: list[str]


# What is sent


class AnthropicDialect:
    """The protocol of messages."""

    path = "/v1/messages"
    default_output_tokens: int | None = DEFAULT_MAX_TOKENS

    def __init__(self, name: str, options: Mapping[str, object]) -> None:
        self._name, self._options = name, options
        self._called = f"{ANTHROPIC_PROVIDER.name}:{name}"

    def headers(self, key: str | None) -> dict[str, str]:
        version = {"anthropic-version": ANTHROPIC_VERSION}
        return {**version, "authorization": f"Bearer {key}"} if key else version

    def body(self, request: Request, *, stream: bool) -> dict[str, object]:
        in_prompt = self._options.get("output_schema") == "told"
        schema = None if request.output is None or in_prompt else closed_schema_of(request.output)
        system = with_schema(request.system, request.output if schema is None else None)
        fields: dict[str, object] = {
            "model": self._name,
            "max_tokens": DEFAULT_MAX_TOKENS,
            "messages": _anthropic_messages(request, self._called),
            **request_options(self._options),
            **_tool_fields(request),
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
        return fields

    def whole(self, body: bytes) -> Reply:
        message = decode_answer(body, AnthropicMessage)
        if message.error is not None:
            raise ProviderReportedError(message.error)
        if message.content is None:
            raise Malformed("malformed", "it has no content")
        return _anthropic_reply([_decode_block(raw) for raw in message.content], message, self._called, unwritten=True)

    def reading(self) -> AnthropicStream:
        return AnthropicStream(self._called)


@dataclass(frozen=True, init=False, repr=False)
class AnthropicModel(HostedModel):
    """A model of Anthropic's, or of a server that speaks messages: `AnthropicModel("claude-sonnet-5")`.

    The key is `api_key`, or `ANTHROPIC_API_KEY` at the time of a call; a server on this machine needs none.
    The address is `base_url`, or `ANTHROPIC_BASE_URL`; `price` is what its tokens cost. A call is never retried here.
    """

    provider: ClassVar[str] = ANTHROPIC_PROVIDER.name
    _kind: ClassVar[ModelKind] = ModelKind(ANTHROPIC_PROVIDER, AnthropicDialect, AnthropicOptions)

    def __init__(self, name: str, **options: Unpack[AnthropicOptions]) -> None:
        self._configure(name, options)


def _anthropic_messages(request: Request, by: str) -> list[Json]:
    """History and exchange as alternating messages. Empty texts, which the provider refuses, are left out."""
    said = [("assistant" if role == "assistant" else "user", _text_blocks(text)) for role, text in request.history]
    if request.exchange:  # as in the turn's first request, if the history ends with the model's own text
        said += [("user", _text_blocks(CONTINUE_TEXT))] if said and said[-1][0] == "assistant" else []
    for item in with_plain_call_ids(request.exchange):
        match item:
            case Asked():
                said.append(("assistant", _asked_blocks(item, by)))
            case Answered():
                said.append(("user", [_tool_result_block(item)]))
            case _:
                said.append(("user", _text_blocks(item.text)))
    messages: list[tuple[str, list[Json]]] = []
    for role, blocks in said:
        if blocks and messages and messages[-1][0] == role:
            messages[-1][1].extend(blocks)
        elif blocks:
            messages.append((role, blocks))
    if not messages or messages[0][0] == "assistant":
        messages.insert(0, ("user", _text_blocks(SPEAK_FIRST_TEXT)))
    if messages[-1][0] == "assistant":
        messages.append(("user", _text_blocks(CONTINUE_TEXT)))  # or it would be taken as the start of the answer
    return [{"role": role, "content": blocks} for role, blocks in messages]


def _asked_blocks(asked: Asked, by: str) -> list[Json]:
    """Text and calls of an earlier reply, with its thinking if that is this model's own."""
    thinking = asked.thinking
    if not isinstance(thinking, Thinking) or thinking.by != by:
        return [*_text_blocks(asked.text), *map(_tool_use_block, asked.calls)]
    blocks: list[Json] = []
    for part in interleave_thinking(thinking, asked.text, asked.calls):
        match part:
            case str():
                blocks += _text_blocks(part)
            case Call():
                blocks.append(_tool_use_block(part))
            case block:
                blocks.append(block)
    return blocks


def _text_blocks(text: str) -> list[Json]:
    return [{"type": "text", "text": text}] if text.strip() else []


def _tool_use_block(call: Call) -> Json:
    return {"type": "tool_use", "id": call.call_id, "name": call.name, "input": call.args}


def _tool_result_block(answered: Answered) -> Json:
    result: Json = {"type": "tool_result", "tool_use_id": answered.call.call_id, "content": answered.text}
    return {**result, "is_error": True} if answered.failed else result


def _tool_fields(request: Request) -> dict[str, object]:
    """The tools. A request with calls must describe some, so if none is offered, those called are, and disabled."""
    if request.specs:
        offered = [(spec.name, spec.description, spec.parameters) for spec in request.specs]
        return {"tools": [_anthropic_tool(*tool) for tool in offered]}
    called = {call.name: None for item in request.exchange if isinstance(item, Asked) for call in item.calls}
    if not called:
        return {}
    return {
        "tools": [_anthropic_tool(name, WITHDRAWN_TOOL_TEXT, {"type": "object"}) for name in called],
        "tool_choice": {"type": "none"},
    }


def _anthropic_tool(name: str, description: str, parameters: Json) -> Json:
    return {"name": name, "description": description, "input_schema": parameters}


# What comes back


class AnthropicUsage(msgspec.Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class AnthropicStopDetails(msgspec.Struct):
    explanation: str | None = None


class AnthropicMessage(msgspec.Struct):
    """A message, or the end of one."""

    content: list[msgspec.Raw] | None = None
    stop_reason: str | None = None
    stop_details: AnthropicStopDetails | None = None
    usage: AnthropicUsage | None = None
    error: object = None


class AnthropicDelta(msgspec.Struct):
    type: str | None = None
    text: str = ""
    partial_json: str = ""
    thinking: str = ""
    signature: str = ""
    stop_reason: str | None = None
    stop_details: AnthropicStopDetails | None = None


class AnthropicEvent(msgspec.Struct):
    type: str
    index: int = 0
    message: AnthropicMessage | None = None
    content_block: dict[str, object] | None = None
    delta: AnthropicDelta | None = None
    usage: AnthropicUsage | None = None
    error: object = None


class AnthropicToolUse(msgspec.Struct, tag="tool_use"):
    """A tool call. Its arguments are undecoded, so that a repeated key is noticed later."""

    input: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)


def _decode_block(raw: msgspec.Raw) -> object:
    block: object = parse_json(bytes(raw))
    if not isinstance(block, dict) or block.get("type") != "tool_use":
        return block
    return {**block, "input": arguments_text(decode_answer(bytes(raw), AnthropicToolUse).input)}


class AnthropicBlock:
    """A block that is received in parts."""

    def __init__(self, start: Json) -> None:
        self.start, self.text, self.arguments = start, [str(start.get("text") or "")], list[str]()
        self.thinking, self.signature = ([str(start.get(part) or "")] for part in ("thinking", "signature"))

    def whole(self) -> Json:
        """The whole block. If no part had arguments, they are in its start."""
        if self.start.get("type") == "text":
            return {**self.start, "text": "".join(self.text)}
        if self.start.get("type") == "tool_use" and any(self.arguments):
            return {**self.start, "input": "".join(self.arguments)}
        if self.start.get("type") == "thinking":
            return {**self.start, "thinking": "".join(self.thinking), "signature": "".join(self.signature)}
        return self.start


class AnthropicStream:
    """A streamed message."""

    def __init__(self, by: str) -> None:
        self.done = False
        self._by = by
        self._blocks: dict[int, AnthropicBlock] = {}
        self._end = AnthropicMessage()
        self._used: dict[str, int] = {}

    def read(self, event: SseEvent) -> str:
        streamed = decode_sse_data(event, AnthropicEvent)
        match streamed.type:
            case "error":
                raise ProviderReportedError(streamed.error)
            case "message_start" if streamed.message is not None:
                self._count(streamed.message.usage)
            case "content_block_start" if streamed.content_block is not None:
                block = self._blocks[streamed.index] = AnthropicBlock(streamed.content_block)
                return block.text[0]
            case "content_block_delta" if streamed.delta is not None:
                return self._add_delta(streamed.index, streamed.delta)
            case "message_delta":
                delta = streamed.delta or AnthropicDelta()
                self._end = AnthropicMessage(stop_reason=delta.stop_reason, stop_details=delta.stop_details)
                self._count(streamed.usage)
            case "message_stop":
                self.done = True
        return ""

    def _add_delta(self, index: int, delta: AnthropicDelta) -> str:
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

    def _count(self, used: AnthropicUsage | None) -> None:
        """These are totals: later ones replace earlier ones."""
        if used is not None:
            self._used |= {name: total for name, total in asdict(used).items() if total is not None}

    def reply(self) -> Reply:
        if not self.done and self._end.stop_reason is None:
            raise UnfinishedAnswer
        ordered = [self._blocks[index] for index in sorted(self._blocks)]
        unwritten = not ordered or not any(ordered[-1].arguments)
        end = replace(self._end, usage=AnthropicUsage(**self._used))
        return _anthropic_reply([block.whole() for block in ordered], end, self._by, unwritten=unwritten)


def _anthropic_reply(blocks: Sequence[object], end: AnthropicMessage, by: str, *, unwritten: bool) -> Reply:
    """The reply. `unwritten`: the last arguments were not text, so in a cut message a part of them may be missing."""
    cut = end.stop_reason in CUT_STOP_REASONS
    text, calls = decode_blocks(blocks)
    if cut and _ends_in_tool_use(blocks) and (unwritten or isinstance(calls[-1].fault, str)):
        calls = (*calls[:-1], faulty_call(calls[-1].name, ARGUMENTS_CUT_OFF, calls[-1].call_id))
    if not text and end.stop_details is not None and end.stop_reason == "refusal":
        text = end.stop_details.explanation or ""
    used = end.usage or AnthropicUsage()
    read, written = used.cache_read_input_tokens or 0, used.cache_creation_input_tokens or 0
    usage = Usage((used.input_tokens or 0) + read + written, used.output_tokens or 0, read, written)
    return Reply(text, calls, usage, cut, thinking_in(blocks, by))


def _ends_in_tool_use(blocks: Sequence[object]) -> bool:
    last = blocks[-1] if blocks else None
    return isinstance(last, dict) and last.get("type") == "tool_use"
