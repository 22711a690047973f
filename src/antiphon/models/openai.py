"""Models that speak OpenAI's chat completions: OpenAI's own, and those of every server that does the same.

Rule 1: servers differ. What is left out is read as nothing; what is there in another shape than any of them gives it is
        `ReplyMalformed`. Nothing is guessed.
Rule 2: what a model was thinking is not read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Unpack

import msgspec
from msgspec.structs import asdict

from antiphon.agents.arguments import written_call
from antiphon.agents.blocks import read_blocks
from antiphon.agents.messages import Answered, Asked, Call, Objected, Reply, Request, Usage
from antiphon.core.codec import Malformed, to_json
from antiphon.core.events import Json
from antiphon.core.words import shown
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
from antiphon.models.schemas import rooted, with_schema
from antiphon.models.sse import Event

OPENAI = Provider("openai", "https://api.openai.com/v1", "OPENAI_API_KEY", "OPENAI_BASE_URL")
END = b"[DONE]"
SCHEMA_NAME = "answer"

Written = tuple[str, str, str]
"""A call as it came: its name, its arguments as a text, its id."""


class OpenAIOptions(Options, total=False):
    """What is sent with each request to a model that speaks chat completions."""

    max_completion_tokens: int
    temperature: float
    top_p: float
    reasoning_effort: str
    parallel_tool_calls: bool
    seed: int
    stop: str | list[str]


@dataclass(frozen=True, init=False, repr=False)
class OpenAIModel(HostedModel):
    """A model of OpenAI's, or of a server that speaks chat completions: `OpenAIModel("gpt-5-mini")`.

    The key is `api_key`, or what `OPENAI_API_KEY` says when the model is asked; a server on this machine needs none.
    The address is `base_url`, or what `OPENAI_BASE_URL` says. It is never asked twice for one answer.
    """

    provider: ClassVar[str] = OPENAI.name

    def __init__(
        self,
        name: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        price: Price | None = None,
        **options: Unpack[OpenAIOptions],
    ) -> None:
        checked = checked_options(options, OpenAIOptions)
        endpoint = Endpoint(OPENAI, base_url, api_key, plain_http=bool(checked.get("plain_http")))
        self._set_up(name, endpoint, ChatCompletions(name, checked), price=price, options=checked)


# What is sent


class ChatCompletions:
    """What these models understand, and how they answer."""

    path = "/chat/completions"

    def __init__(self, name: str, options: Mapping[str, object]) -> None:
        self._name, self._options = name, options
        self.extra = headers_of(options)

    def headers(self, key: str | None) -> dict[str, str]:
        return {"authorization": f"Bearer {key}"} if key else {}

    def body(self, request: Request, *, stream: bool) -> dict[str, object]:
        system, schema = request.system, self._schema(request.output)
        if request.output is not None and schema is None:
            system = with_schema(system, request.output)
        fields: dict[str, object] = {
            "model": self._name,
            "messages": [*_spoken(system, request), *_exchanged(request)],
            **sent_options(self._options),
        }
        if request.specs:
            fields["tools"] = [{"type": "function", "function": asdict(spec)} for spec in request.specs]
        else:
            fields.pop("parallel_tool_calls", None)  # without tools it is refused
        if schema is not None:
            fields["response_format"] = {"type": "json_schema", "json_schema": schema}
        if stream:
            fields |= {"stream": True, "stream_options": {"include_usage": True}}
        return with_body(fields, self._options)

    def _schema(self, output: Json | None) -> Json | None:
        """The schema of the answer as the provider takes it; None if it is to be told in words."""
        how = self._options.get("output_schema", "sent")
        schema = None if output is None or how == "told" else rooted(output)
        return None if schema is None else {"name": SCHEMA_NAME, "schema": schema, "strict": how == "strict"}

    def whole(self, body: bytes) -> Reply:
        completion = decoded(body, Completion)
        if completion.error is not None:
            raise Told(completion.error)
        choice = completion.first
        if choice is None or choice.message is None:
            raise Malformed("malformed", "it has no message")
        message = choice.message
        calls = [
            (call.function.name or "", raw_text(call.function.arguments), call.id or "")
            for call in message.tool_calls or ()
        ]
        return _reply(_text(message.content) or message.refusal or "", calls, completion, finish=choice.finish_reason)

    def reading(self) -> Deltas:
        return Deltas()


def _spoken(system: str, request: Request) -> list[Json]:
    messages: list[Json] = [{"role": "system", "content": system}] if system else []
    for role, text in request.history:
        messages.append({"role": "assistant" if role == "assistant" else "user", "content": text})
    return messages


def _exchanged(request: Request) -> list[Json]:
    messages: list[Json] = []
    for item in identified(request.exchange):
        match item:
            case Asked(text=text, calls=()):
                messages.append({"role": "assistant", "content": text})
            case Asked(text=text, calls=calls):
                asked = [_sent_call(call) for call in calls]
                messages.append({"role": "assistant", "content": text or None, "tool_calls": asked})
            case Answered(call=call, text=text):
                messages.append({"role": "tool", "tool_call_id": call.call_id, "content": text})
            case Objected(text=text):
                messages.append({"role": "user", "content": text})
    return messages


def _sent_call(call: Call) -> Json:
    function = {"name": call.name, "arguments": to_json(call.args).decode()}
    return {"id": call.call_id, "type": "function", "function": function}


# What comes back


class Function(msgspec.Struct):
    name: str | None = None
    arguments: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    """A text that holds JSON, or the JSON itself, as some servers send it; undecoded, so that a fault stays its own."""


class ToolCall(msgspec.Struct):
    function: Function
    id: str | None = None
    index: int | None = None


class Said(msgspec.Struct):
    content: str | list[object] | None = None
    refusal: str | None = None
    tool_calls: list[ToolCall] | None = None


class Choice(msgspec.Struct):
    message: Said | None = None
    delta: Said | None = None
    finish_reason: str | None = None
    index: int | None = None


class Details(msgspec.Struct):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class Used(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: Details | None = None


class Completion(msgspec.Struct):
    """A completion, or a chunk of one."""

    choices: list[Choice] | None = None
    usage: Used | None = None
    error: object = None

    @property
    def first(self) -> Choice | None:
        return next((choice for choice in self.choices or () if not choice.index), None)


class Deltas:
    """A streamed completion."""

    def __init__(self) -> None:
        self.done = False
        self._text: list[str] = []
        self._refusal: list[str] = []
        self._calls: list[Partial] = []
        self._finish: str | None = None
        self._used = Completion()

    def read(self, event: Event) -> str:
        if event.data.strip() == END:
            self.done = True
            return ""
        chunk = decoded_event(event, Completion)
        if chunk.error is not None:
            raise Told(chunk.error)
        if chunk.usage is not None:
            self._used = chunk
        choice = chunk.first
        if choice is None:
            return ""
        self._finish = choice.finish_reason or self._finish
        return "" if choice.delta is None else self._heard(choice.delta)

    def _heard(self, delta: Said) -> str:
        for call in delta.tool_calls or ():
            self._partial(call).add(call.function)
        if delta.refusal:
            self._refusal.append(delta.refusal)
        self._text.append(_text(delta.content))
        return self._text[-1]

    def _partial(self, delta: ToolCall) -> Partial:
        """The call that this is a part of: by its index and id, or the last one if it has neither and no name."""
        goes_on = delta.id is None and not delta.function.name
        if delta.index is None:
            known = self._calls[-1:] if goes_on else []
        else:
            known = [call for call in self._calls if call.index == delta.index][-1:]
        if known and (not delta.id or known[0].call_id in ("", delta.id)):
            known[0].call_id = known[0].call_id or delta.id or ""
            return known[0]
        self._calls.append(Partial(delta.index, delta.id or ""))
        return self._calls[-1]

    def reply(self) -> Reply:
        if not self.done and self._finish is None:
            raise Unfinished
        text = "".join(self._text) or "".join(self._refusal)
        calls = [(call.name, "".join(call.written), call.call_id) for call in self._calls]
        return _reply(text, calls, self._used, finish=self._finish)


class Partial:
    """A call of which parts have come."""

    def __init__(self, index: int | None, call_id: str) -> None:
        self.index, self.call_id, self.name = index, call_id, ""
        self.written: list[str] = []

    def add(self, part: Function) -> None:
        """One more part. A name comes whole, and may come again."""
        if part.name and self.name not in ("", part.name):
            raise Malformed("malformed", f"a call of {self.name!r} goes on as one of {shown(part.name)}")
        self.name = self.name or part.name or ""
        self.written.append(raw_text(part.arguments))


def _text(content: str | list[object] | None) -> str:
    if not isinstance(content, list):
        return content or ""
    try:
        return read_blocks(content)[0]
    except TypeError as error:
        raise Malformed("malformed", str(error)) from error


def _reply(text: str, calls: list[Written], completion: Completion, *, finish: str | None) -> Reply:
    cut = finish == "length"
    used = completion.usage or Used()
    details = used.prompt_tokens_details or Details()
    usage = Usage(
        used.prompt_tokens or 0,
        used.completion_tokens or 0,
        details.cached_tokens or 0,
        details.cache_write_tokens or 0,
    )
    asked = (_call(name, written, call_id, cut=cut) for name, written, call_id in calls)
    return Reply(text, tuple(asked), usage, cut)


def _call(name: str, written: str, call_id: str, *, cut: bool) -> Call:
    if not name:
        raise Malformed("malformed", "it calls a tool without a name")
    return written_call(name, written, call_id, cut=cut)
