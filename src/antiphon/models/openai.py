"""Models that speak OpenAI's chat completions: OpenAI's own, and those of compatible servers.

Rule 1: servers differ. A missing field is read as empty; one in a form that no known server uses is `ReplyMalformed`.
Rule 2: thinking is not read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Unpack

import msgspec
from msgspec.structs import asdict

from antiphon.agents.call_results import Call, Reply, Usage, parse_call
from antiphon.agents.messages import Answered, Asked, Objected, Request
from antiphon.core.codec import Malformed, to_json
from antiphon.core.envelope import Json
from antiphon.core.text import describe
from antiphon.models.answer_schemas import object_schema_of, with_schema
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

OPENAI_PROVIDER = Provider("openai", "https://api.openai.com/v1", "OPENAI_API_KEY", "OPENAI_BASE_URL")
STREAM_DONE_DATA = b"[DONE]"
ANSWER_SCHEMA_NAME = "answer"

WrittenCall = tuple[str, str, str]
"""A call as received: its name, its arguments as a text, its id."""


class OpenAIOptions(ProviderOptions, total=False):
    """Options of a model that speaks chat completions."""

    max_completion_tokens: int
    temperature: float
    top_p: float
    reasoning_effort: str
    parallel_tool_calls: bool
    seed: int
    stop: str | list[str]


# What is sent


class OpenAIDialect:
    """The protocol of chat completions."""

    path = "/chat/completions"
    default_output_tokens: int | None = None

    def __init__(self, name: str, options: Mapping[str, object]) -> None:
        self._name, self._options = name, options

    def headers(self, key: str | None) -> dict[str, str]:
        return {"authorization": f"Bearer {key}"} if key else {}

    def body(self, request: Request, *, stream: bool) -> dict[str, object]:
        schema = self._schema(request.output)
        system = with_schema(request.system, request.output if schema is None else None)
        fields: dict[str, object] = {
            "model": self._name,
            "messages": _openai_messages(system, request),
            **request_options(self._options),
        }
        if request.specs:
            fields["tools"] = [{"type": "function", "function": asdict(spec)} for spec in request.specs]
        else:
            fields.pop("parallel_tool_calls", None)  # without tools it is refused
        if schema is not None:
            fields["response_format"] = {"type": "json_schema", "json_schema": schema}
        if stream:
            fields |= {"stream": True, "stream_options": {"include_usage": True}}
        return fields

    def _schema(self, output: Json | None) -> Json | None:
        """The schema of the answer as the provider takes it; None if it goes into the prompt."""
        how = self._options.get("output_schema", "sent")
        schema = None if output is None or how == "told" else object_schema_of(output)
        return None if schema is None else {"name": ANSWER_SCHEMA_NAME, "schema": schema, "strict": how == "strict"}

    def whole(self, body: bytes) -> Reply:
        completion = decode_answer(body, OpenAICompletion)
        if completion.error is not None:
            raise ProviderReportedError(completion.error)
        choice = completion.first
        if choice is None or choice.message is None:
            raise Malformed("malformed", "it has no message")
        message = choice.message
        calls = [
            (call.function.name or "", arguments_text(call.function.arguments), call.id or "")
            for call in message.tool_calls or ()
        ]
        return _openai_reply(
            _content_text(message.content) or message.refusal or "", calls, completion, finish=choice.finish_reason
        )

    def reading(self) -> OpenAIStream:
        return OpenAIStream()


@dataclass(frozen=True, init=False, repr=False)
class OpenAIModel(HostedModel):
    """A model of OpenAI's, or of a server that speaks chat completions: `OpenAIModel("gpt-5-mini")`.

    The key is `api_key`, or `OPENAI_API_KEY` at the time of a call; a server on this machine needs none.
    The address is `base_url`, or `OPENAI_BASE_URL`; `price` is what its tokens cost. A call is never retried here.
    """

    provider: ClassVar[str] = OPENAI_PROVIDER.name
    _kind: ClassVar[ModelKind] = ModelKind(OPENAI_PROVIDER, OpenAIDialect, OpenAIOptions)

    def __init__(self, name: str, **options: Unpack[OpenAIOptions]) -> None:
        self._configure(name, options)


def _openai_messages(system: str, request: Request) -> list[Json]:
    messages: list[Json] = [{"role": "system", "content": system}] if system else []
    for role, text in request.history:
        messages.append({"role": "assistant" if role == "assistant" else "user", "content": text})
    for item in with_plain_call_ids(request.exchange):
        match item:
            case Asked(text=text, calls=()):
                messages.append({"role": "assistant", "content": text})
            case Asked(text=text, calls=calls):
                asked = [_openai_call(call) for call in calls]
                messages.append({"role": "assistant", "content": text or None, "tool_calls": asked})
            case Answered(call=call, text=text):
                messages.append({"role": "tool", "tool_call_id": call.call_id, "content": text})
            case Objected(text=text):
                messages.append({"role": "user", "content": text})
    return messages


def _openai_call(call: Call) -> Json:
    function = {"name": call.name, "arguments": to_json(call.args).decode()}
    return {"id": call.call_id, "type": "function", "function": function}


# What comes back


class OpenAIFunction(msgspec.Struct):
    name: str | None = None
    arguments: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    """JSON as a string, or JSON itself, as some servers send it; undecoded, so that a fault affects this call only."""


class OpenAIToolCall(msgspec.Struct):
    function: OpenAIFunction
    id: str | None = None
    index: int | None = None


class OpenAIMessage(msgspec.Struct):
    content: str | list[object] | None = None
    refusal: str | None = None
    tool_calls: list[OpenAIToolCall] | None = None


class OpenAIChoice(msgspec.Struct):
    message: OpenAIMessage | None = None
    delta: OpenAIMessage | None = None
    finish_reason: str | None = None
    index: int | None = None


class OpenAITokenDetails(msgspec.Struct):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class OpenAIUsage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: OpenAITokenDetails | None = None


class OpenAICompletion(msgspec.Struct):
    """A completion, or a chunk of one."""

    choices: list[OpenAIChoice] | None = None
    usage: OpenAIUsage | None = None
    error: object = None

    @property
    def first(self) -> OpenAIChoice | None:
        return next((choice for choice in self.choices or () if not choice.index), None)


class OpenAIStream:
    """A streamed completion."""

    def __init__(self) -> None:
        self.done = False
        self._text: list[str] = []
        self._refusal: list[str] = []
        self._calls: list[OpenAIPartialCall] = []
        self._finish: str | None = None
        self._used = OpenAICompletion()

    def read(self, event: SseEvent) -> str:
        if event.data.strip() == STREAM_DONE_DATA:
            self.done = True
            return ""
        chunk = decode_sse_data(event, OpenAICompletion)
        if chunk.error is not None:
            raise ProviderReportedError(chunk.error)
        if chunk.usage is not None:
            self._used = chunk
        choice = chunk.first
        if choice is None:
            return ""
        self._finish = choice.finish_reason or self._finish
        return "" if choice.delta is None else self._add_delta(choice.delta)

    def _add_delta(self, delta: OpenAIMessage) -> str:
        for call in delta.tool_calls or ():
            self._partial(call).add(call.function)
        if delta.refusal:
            self._refusal.append(delta.refusal)
        self._text.append(_content_text(delta.content))
        return self._text[-1]

    def _partial(self, delta: OpenAIToolCall) -> OpenAIPartialCall:
        """The call that this is a part of: by index and id, or the last one if it has neither and no name."""
        goes_on = delta.id is None and not delta.function.name
        if delta.index is None:
            known = self._calls[-1:] if goes_on else []
        else:
            known = [call for call in self._calls if call.index == delta.index][-1:]
        if known and (not delta.id or known[0].call_id in ("", delta.id)):
            known[0].call_id = known[0].call_id or delta.id or ""
            return known[0]
        self._calls.append(OpenAIPartialCall(delta.index, delta.id or ""))
        return self._calls[-1]

    def reply(self) -> Reply:
        if not self.done and self._finish is None:
            raise UnfinishedAnswer
        text = "".join(self._text) or "".join(self._refusal)
        calls = [(call.name, "".join(call.written), call.call_id) for call in self._calls]
        return _openai_reply(text, calls, self._used, finish=self._finish)


class OpenAIPartialCall:
    """A call that is received in parts."""

    def __init__(self, index: int | None, call_id: str) -> None:
        self.index, self.call_id, self.name = index, call_id, ""
        self.written: list[str] = []

    def add(self, part: OpenAIFunction) -> None:
        """Add a part. The name comes whole, and may be repeated."""
        if part.name and self.name not in ("", part.name):
            raise Malformed("malformed", f"a call of {self.name!r} goes on as one of {describe(part.name)}")
        self.name = self.name or part.name or ""
        self.written.append(arguments_text(part.arguments))


def _content_text(content: str | list[object] | None) -> str:
    return decode_blocks(content)[0] if isinstance(content, list) else content or ""


def _openai_reply(text: str, calls: list[WrittenCall], completion: OpenAICompletion, *, finish: str | None) -> Reply:
    cut = finish == "length"
    used = completion.usage or OpenAIUsage()
    details = used.prompt_tokens_details or OpenAITokenDetails()
    usage = Usage(
        used.prompt_tokens or 0,
        used.completion_tokens or 0,
        details.cached_tokens or 0,
        details.cache_write_tokens or 0,
    )
    asked = (_parse_written_call(name, written, call_id, cut=cut) for name, written, call_id in calls)
    return Reply(text, tuple(asked), usage, cut)


def _parse_written_call(name: str, written: str, call_id: str, *, cut: bool) -> Call:
    if not name:
        raise Malformed("malformed", "it calls a tool without a name")
    return parse_call(name, written, call_id, cut=cut)
