"""The providers' own clients, asked the same, send what our models send, and read what they read.

So the servers of these tests speak the protocols, and so do our models.
"""

import json

import anthropic
import msgspec
import openai
import pytest

from antiphon import Answered, Asked, Call, Message, Objected, Reply, Request, ToolSpec, Usage
from tests.models.model_servers import plain, serving, streamed
from tests.models.protocols import HELLO, KEY, NAME, PROTOCOLS, TWO_CALLS, AnthropicWording, OpenAIWording, Speech, ask

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = ToolSpec("weather", "How it is outside.", CITY)
CLOCK = ToolSpec("clock", "What time it is.", {"type": "object", "properties": {}})
ANSWER = {
    "type": "object",
    "properties": {"degrees": {"type": "integer"}},
    "required": ["degrees"],
    "additionalProperties": False,
}
FIRST, SECOND = EARLIER = (Call("weather", {"city": "Zürich"}, "past_a"), Call("clock", {}, "past_b"))
WHOLE = Request(
    "Be brief.",
    [
        Message("user", "Hi."),
        Message("assistant", "Hello!"),
        Message("user", "anna: Weather?"),
        Message("user", "Well?"),
    ],
    (
        Asked("Let me look.", EARLIER),
        Answered(FIRST, "12 degrees"),
        Answered(SECOND, "it stopped", failed=True),
        Asked("twelve", ()),
        Objected("Give JSON."),
    ),
    (WEATHER, CLOCK),
    output=ANSWER,
)
ARGUMENTS = [json.dumps(call.args, ensure_ascii=False, separators=(",", ":")) for call in EARLIER]

OPENAI_KWARGS = {
    "model": NAME,
    "temperature": 0.5,
    "max_completion_tokens": 99,
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi."},
        {"role": "assistant", "content": "Hello!"},
        {"role": "user", "content": "anna: Weather?"},
        {"role": "user", "content": "Well?"},
        {
            "role": "assistant",
            "content": "Let me look.",
            "tool_calls": [
                {"id": "past_a", "type": "function", "function": {"name": "weather", "arguments": ARGUMENTS[0]}},
                {"id": "past_b", "type": "function", "function": {"name": "clock", "arguments": ARGUMENTS[1]}},
            ],
        },
        {"role": "tool", "tool_call_id": "past_a", "content": "12 degrees"},
        {"role": "tool", "tool_call_id": "past_b", "content": "it stopped"},
        {"role": "assistant", "content": "twelve"},
        {"role": "user", "content": "Give JSON."},
    ],
    "tools": [
        {"type": "function", "function": {"name": "weather", "description": "How it is outside.", "parameters": CITY}},
        {
            "type": "function",
            "function": {"name": "clock", "description": "What time it is.", "parameters": CLOCK.parameters},
        },
    ],
    "response_format": {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": ANSWER, "strict": False},
    },
}

ANTHROPIC_KWARGS = {
    "model": NAME,
    "max_tokens": 99,
    "system": "Be brief.",
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "Hi."}]},
        {"role": "assistant", "content": [{"type": "text", "text": "Hello!"}]},
        {
            "role": "user",
            "content": [{"type": "text", "text": "anna: Weather?"}, {"type": "text", "text": "Well?"}],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "Let me look."},
                {"type": "tool_use", "id": "past_a", "name": "weather", "input": {"city": "Zürich"}},
                {"type": "tool_use", "id": "past_b", "name": "clock", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "past_a", "content": "12 degrees"},
                {"type": "tool_result", "tool_use_id": "past_b", "content": "it stopped", "is_error": True},
            ],
        },
        {"role": "assistant", "content": [{"type": "text", "text": "twelve"}]},
        {"role": "user", "content": [{"type": "text", "text": "Give JSON."}]},
    ],
    "tools": [
        {"name": "weather", "description": "How it is outside.", "input_schema": CITY},
        {"name": "clock", "description": "What time it is.", "input_schema": CLOCK.parameters},
    ],
    "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": ANSWER}},
}


async def openai_says(url: str, *, stream: bool) -> Reply:
    """What OpenAI's own client reads."""
    async with openai.AsyncOpenAI(api_key=KEY, base_url=f"{url}/v1", max_retries=0) as client:
        if stream:
            usage = {"stream_options": {"include_usage": True}}
            async with client.chat.completions.stream(**OPENAI_KWARGS, **usage) as streaming:
                completion = await streaming.get_final_completion()
        else:
            completion = await client.chat.completions.create(**OPENAI_KWARGS)
    [choice], used = completion.choices, completion.usage
    asked = choice.message.tool_calls or ()
    details = used.prompt_tokens_details
    return Reply(
        choice.message.content or "",
        tuple(Call(call.function.name, json.loads(call.function.arguments), call.id) for call in asked),
        Usage(used.prompt_tokens, used.completion_tokens, details.cached_tokens, details.cache_write_tokens),
        choice.finish_reason == "length",
    )


async def anthropic_says(url: str, *, stream: bool) -> Reply:
    """What Anthropic's own client reads."""
    async with anthropic.AsyncAnthropic(api_key=KEY, base_url=url, max_retries=0) as client:
        if stream:
            async with client.messages.stream(**ANTHROPIC_KWARGS) as streaming:
                message = await streaming.get_final_message()
        else:
            message = await client.messages.create(**ANTHROPIC_KWARGS)
    used = message.usage
    read, written = used.cache_read_input_tokens, used.cache_creation_input_tokens
    return Reply(
        "".join(block.text for block in message.content if block.type == "text"),
        tuple(Call(block.name, block.input, block.id) for block in message.content if block.type == "tool_use"),
        Usage(used.input_tokens + read + written, used.output_tokens, read, written),
        message.stop_reason == "max_tokens",
    )


PEERS = {"openai": openai_says, "anthropic": anthropic_says}
OPTIONS = {
    "openai": {"max_completion_tokens": 99, "temperature": 0.5},
    "anthropic": {"max_tokens": 99, "effort": "low"},
}
SPEECHES = {
    "text": HELLO,
    "calls": TWO_CALLS,
    "only calls": Speech((), TWO_CALLS.calls, Usage(9, 8, 3, 4)),
    "cut": Speech(("It was a dark and",), cut=True),
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("speech", SPEECHES.values(), ids=SPEECHES.keys())
@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda protocol: protocol.name)
async def test_the_same_is_sent_and_read(
    protocol: OpenAIWording | AnthropicWording, speech: Speech, stream: bool
) -> None:
    answer = streamed(protocol.events(speech), size=17) if stream else plain(protocol.whole(speech))
    async with serving(answer) as server:
        # A client that finds a cut answer where JSON is wanted complains of it, and reads none.
        theirs = speech.reply if speech.cut and stream else await PEERS[protocol.name](server.url, stream=stream)
        model = protocol.model(server.url, **OPTIONS[protocol.name])
        _, ours = await ask(model, WHOLE, stream=stream)
        await model.close()
        assert msgspec.structs.replace(ours, thinking=msgspec.UNSET) == theirs == speech.reply
        first, last = server.requests[0], server.requests[-1]
        assert last.path == first.path
        assert last.body == first.body
        wanted = {"authorization", "x-api-key", "anthropic-version", "content-type"}
        assert {name: last.headers.get(name) for name in wanted} == {name: first.headers.get(name) for name in wanted}


async def test_a_pydantic_model_is_sent_as_they_send_it() -> None:
    """Where every property is plain and required, a closed schema is what the provider's client makes of it."""
    from pydantic import BaseModel

    class Line(BaseModel):
        item: str
        count: int

    class Order(BaseModel):
        lines: list[Line]
        note: str | None

    wording = AnthropicWording()
    async with serving(plain(wording.whole(Speech(('{"lines": [], "note": null}',))))) as server:
        async with anthropic.AsyncAnthropic(api_key=KEY, base_url=server.url, max_retries=0) as client:
            asked = [{"role": "user", "content": [{"type": "text", "text": "Order!"}]}]
            await client.messages.parse(model=NAME, max_tokens=8192, messages=asked, output_format=Order)
        model = wording.model(server.url)
        await model(Request("", [Message("user", "Order!")], output=Order.model_json_schema()))
        await model.close()
        theirs, ours = (seen.body for seen in server.requests)
        assert ours == theirs
