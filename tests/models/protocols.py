"""The two protocols: one answer, as a server of each writes it down, and the models that should understand it."""

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from antiphon import AnthropicModel, Call, OpenAIModel, Reply, Request, Usage
from antiphon.models.prices import Price

Json = dict[str, object]

KEY = "sk-canary-0123456789abcdef"
NAME = "test-model"


@dataclass(frozen=True)
class Speech:
    """What a model should say."""

    pieces: tuple[str, ...] = ()
    calls: tuple[Call, ...] = ()
    usage: Usage = field(default_factory=lambda: Usage(120, 30, 20, 0))
    cut: bool = False

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    @property
    def reply(self) -> Reply:
        return Reply(self.text, self.calls, self.usage, self.cut)


HELLO = Speech(("Hel", "lo, wörld ", "🦉!"))
TWO_CALLS = Speech(
    ("Let me look.",),
    (Call("weather", {"city": "Zürich"}, "call_a"), Call("clock", {}, "call_b")),
    Usage(50, 12),
)


class Wording(Protocol):
    """One protocol."""

    name: str

    def model(
        self, url: str, *, api_key: str | None = KEY, price: Price | None = None, **options: object
    ) -> object: ...

    def whole(self, speech: Speech) -> Json: ...

    def events(self, speech: Speech) -> list[bytes]: ...

    def error(self, kind: str, message: str) -> Json: ...

    def error_event(self, kind: str, message: str) -> bytes: ...


class OpenAIWording:
    """Chat completions."""

    name = "openai"
    overloaded = "server_error"

    def model(self, url: str, *, api_key: str | None = KEY, price: Price | None = None, **options) -> OpenAIModel:
        return OpenAIModel(NAME, base_url=f"{url}/v1", api_key=api_key, price=price, **options)

    def usage(self, usage: Usage) -> Json:
        details = {"cached_tokens": usage.cache_read_tokens, "cache_write_tokens": usage.cache_write_tokens}
        total = usage.input_tokens + usage.output_tokens
        return {
            "prompt_tokens": usage.input_tokens,
            "completion_tokens": usage.output_tokens,
            "total_tokens": total,
            "prompt_tokens_details": details,
        }

    def finish(self, speech: Speech) -> str:
        if speech.cut:
            return "length"
        return "tool_calls" if speech.calls else "stop"

    def whole(self, speech: Speech) -> Json:
        message: Json = {"role": "assistant", "content": speech.text or None, "refusal": None}
        if speech.calls:
            message["tool_calls"] = [
                {
                    "id": call.call_id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": json.dumps(call.args)},
                }
                for call in speech.calls
            ]
        choice = {"index": 0, "message": message, "finish_reason": self.finish(speech), "logprobs": None}
        return {**self.frame("chat.completion"), "choices": [choice], "usage": self.usage(speech.usage)}

    def events(self, speech: Speech) -> list[bytes]:
        deltas: list[Json] = [{"role": "assistant", "content": ""}]
        deltas += [{"content": piece} for piece in speech.pieces]
        for index, call in enumerate(speech.calls):
            function: Json = {"name": call.name, "arguments": ""}
            start = {"index": index, "id": call.call_id, "type": "function", "function": function}
            deltas.append({"tool_calls": [start]})
            deltas += [
                {"tool_calls": [{"index": index, "function": {"arguments": part}}]}
                for part in halves(json.dumps(call.args))
            ]
        choices: list[list[Json]] = [[{"index": 0, "delta": delta, "finish_reason": None}] for delta in deltas]
        choices.append([{"index": 0, "delta": {}, "finish_reason": self.finish(speech)}])
        frame = self.frame("chat.completion.chunk")
        chunks: list[Json] = [{**frame, "choices": choice, "usage": None} for choice in choices]
        chunks.append({**frame, "choices": [], "usage": self.usage(speech.usage)})
        return [*map(event, chunks), b"data: [DONE]\n\n"]

    def frame(self, kind: str) -> Json:
        return {"id": "chatcmpl-1", "object": kind, "created": 1_700_000_000, "model": NAME}

    def error(self, kind: str, message: str) -> Json:
        return {"error": {"message": message, "type": kind, "param": None, "code": None}}

    def error_event(self, kind: str, message: str) -> bytes:
        return event(self.error(kind, message))


class AnthropicWording:
    """Messages."""

    name = "anthropic"
    overloaded = "overloaded_error"

    def model(self, url: str, *, api_key: str | None = KEY, price: Price | None = None, **options) -> AnthropicModel:
        return AnthropicModel(NAME, base_url=url, api_key=api_key, price=price, **options)

    def usage(self, usage: Usage) -> Json:
        return {
            "input_tokens": usage.input_tokens - usage.cache_read_tokens - usage.cache_write_tokens,
            "output_tokens": usage.output_tokens,
            "cache_read_input_tokens": usage.cache_read_tokens,
            "cache_creation_input_tokens": usage.cache_write_tokens,
        }

    def stop(self, speech: Speech) -> str:
        if speech.cut:
            return "max_tokens"
        return "tool_use" if speech.calls else "end_turn"

    def frame(self, content: Sequence[Json], stop: str | None, usage: Json) -> Json:
        frame: Json = {"id": "msg_1", "type": "message", "role": "assistant", "model": NAME, "content": content}
        return {**frame, "stop_reason": stop, "stop_sequence": None, "usage": usage}

    def blocks(self, speech: Speech) -> list[Json]:
        text: list[Json] = [{"type": "text", "text": speech.text}] if speech.text else []
        return text + [
            {"type": "tool_use", "id": call.call_id, "name": call.name, "input": call.args} for call in speech.calls
        ]

    def whole(self, speech: Speech) -> Json:
        thought: Json = {"type": "thinking", "thinking": "Hmm.", "signature": "c2ln"}
        return self.frame([thought, *self.blocks(speech)], self.stop(speech), self.usage(speech.usage))

    def events(self, speech: Speech) -> list[bytes]:
        usage = self.usage(speech.usage)
        events: list[Json] = [
            {"type": "message_start", "message": self.frame([], None, {**usage, "output_tokens": 1})},
            {"type": "ping"},
        ]
        numbers = itertools.count()
        thought: Json = {"type": "thinking", "thinking": "", "signature": ""}
        events += self.block(next(numbers), thought, [{"type": "thinking_delta", "thinking": "Hmm."}])
        if speech.text:
            deltas: list[Json] = [{"type": "text_delta", "text": piece} for piece in speech.pieces]
            events += self.block(next(numbers), {"type": "text", "text": ""}, deltas)
        for call in speech.calls:
            start: Json = {"type": "tool_use", "id": call.call_id, "name": call.name, "input": {}}
            written = halves(json.dumps(call.args)) if call.args else [""]
            parts: list[Json] = [{"type": "input_json_delta", "partial_json": part} for part in written]
            events += self.block(next(numbers), start, parts)
        end: Json = {"stop_reason": self.stop(speech), "stop_sequence": None}
        events.append({"type": "message_delta", "delta": end, "usage": {"output_tokens": speech.usage.output_tokens}})
        events.append({"type": "message_stop"})
        return [event(each, str(each["type"])) for each in events]

    def block(self, index: int, start: Json, deltas: list[Json]) -> list[Json]:
        return [
            {"type": "content_block_start", "index": index, "content_block": start},
            *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
            {"type": "content_block_stop", "index": index},
        ]

    def error(self, kind: str, message: str) -> Json:
        return {"type": "error", "error": {"type": kind, "message": message}}

    def error_event(self, kind: str, message: str) -> bytes:
        return event(self.error(kind, message), "error")


PROTOCOLS = (OpenAIWording(), AnthropicWording())


def event(data: Json, kind: str = "") -> bytes:
    named = f"event: {kind}\n" if kind else ""
    return f"{named}data: {json.dumps(data, ensure_ascii=False)}\n\n".encode()


def halves(text: str) -> list[str]:
    middle = len(text) // 2
    return [text[:middle], text[middle:]]


async def ask(model: object, request: Request, *, stream: bool) -> tuple[list[str], Reply]:
    """The pieces that came, and the reply."""
    if not stream:
        return [], await model(request)
    *pieces, reply = [piece async for piece in model.stream(request)]
    assert isinstance(reply, Reply)
    return pieces, reply
