"""Tool calls whose arguments are no JSON object: the model reads what is wrong, and the calls beside them are made."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable

import pytest
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel

from antiphon import Agent, BridgedModel, Hub, Reply, Request, ScriptedModel, ToolResponseEvent, calls, tool
from antiphon.agents.call_results import Call, parse_call
from antiphon.agents.messages import Model
from antiphon.agents.tool import BadArguments, bind_call
from antiphon.runtime.turn_events import AgentEvent
from tests.models.model_servers import Server, plain, serving, streamed
from tests.models.protocols import AnthropicWording, OpenAIWording, Speech

GOOD = '{"a": 1, "b": 2}'
DONE = Speech(("Done.",))
ASK = Request("", [])
BAD = {
    "": "they are empty",
    " \n": "they are empty",
    '{"a": 1, "b"': "is no JSON",
    "[1, 2]": "is a list, not a JSON object",
    "null": "is null, not a JSON object",
    "7": "is a number, not a JSON object",
    "true": "is a boolean, not a JSON object",
    '"{}"': "is a string, not a JSON object",
    "a=1": "is no JSON",
    '{"a": 1} and more': "is no JSON",
    '{"a": 1, "a": 2, "b": 3}': "they name 'a' twice",
    '{"a": NaN, "b": 1}': "is no JSON",
    '{"a": 1, "b": {"c": 1, "c": 1}}': "they name 'c' twice",
}
EVERY_BAD = pytest.mark.parametrize(("written", "why"), BAD.items())


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
def ping() -> str:
    """Takes no arguments."""
    return "pong"


@tool
def look(at: str = "here") -> str:
    """Takes one that may be left out."""
    return at


async def heard(model: object, *, stream: bool) -> list[AgentEvent]:
    """The events of a turn of an agent with this model."""
    async with Hub.open("memory:") as hub:
        agent = Agent("adder", model=model, tools=[add, ping, look])
        return [event async for event in agent.stream_invoke("Sums?", hub=hub, tokens=stream)]


def results(events: list[AgentEvent]) -> list[tuple[str, bool]]:
    return [(event.text, event.failed) for event in events if isinstance(event, ToolResponseEvent)]


def check(events: list[AgentEvent], why: str) -> None:
    [bad, good] = results(events)
    assert good == ("3", False)
    assert bad[0].startswith("The arguments of add do not fit: ")
    assert why in bad[0]
    assert bad[1]
    assert events[-1].text == "Done."


def function(name: str, arguments: object, call_id: str) -> dict[str, object]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def chat_message(written: object, finish: str = "tool_calls") -> dict[str, object]:
    asked = [function("add", written, "c1"), function("add", GOOD, "c2")]
    return {"choices": [{"message": {"content": None, "tool_calls": asked}, "finish_reason": finish}]}


def chat_events(written: str) -> list[bytes]:
    deltas: list[dict[str, object]] = []
    for index, text in enumerate((written, GOOD)):
        deltas.append({"tool_calls": [{"index": index, **function("add", "", f"c{index + 1}")}]})
        deltas += [{"tool_calls": [{"index": index, "function": {"arguments": part}}]} for part in text]
    chunks = [{"choices": [{"delta": delta}]} for delta in deltas]
    end = {"choices": [{"delta": {}, "finish_reason": "tool_calls"}]}
    return [f"data: {json.dumps(chunk)}\n\n".encode() for chunk in (*chunks, end)]


def check_sent_to_openai(server: Server) -> None:
    """What is sent back can be read by the provider: every call has arguments that are an object, and a result."""
    messages = server.requests[1].body["messages"]
    assistant = next(message for message in messages if message["role"] == "assistant")
    assert [json.loads(call["function"]["arguments"]) for call in assistant["tool_calls"]] == [{}, {"a": 1, "b": 2}]
    assert [message["tool_call_id"] for message in messages if message["role"] == "tool"] == ["c1", "c2"]


@pytest.mark.parametrize("stream", [False, True])
@EVERY_BAD
async def test_openai(written: str, why: str, stream: bool) -> None:
    wording = OpenAIWording()
    first = streamed(chat_events(written)) if stream else plain(chat_message(written))
    last = streamed(wording.events(DONE)) if stream else plain(wording.whole(DONE))
    async with serving(first, last) as server:
        check(await heard(wording.model(server.url), stream=stream), why)
        check_sent_to_openai(server)


@pytest.mark.parametrize(
    ("given", "why"), [(None, "they are empty"), ([1], "is a list"), (7, "is a number"), (False, "is a boolean")]
)
async def test_openai_of_a_server_that_sends_no_text(given: object, why: str) -> None:
    wording = OpenAIWording()
    async with serving(plain(chat_message(given)), plain(wording.whole(DONE))) as server:
        check(await heard(wording.model(server.url), stream=False), why)
        check_sent_to_openai(server)


async def test_openai_of_a_server_that_names_a_key_twice() -> None:
    wording = OpenAIWording()
    body = json.dumps(chat_message("HERE")).replace('"HERE"', '{"a": 1, "a": 2, "b": 1}').encode()
    async with serving(plain(body), plain(wording.whole(DONE))) as server:
        check(await heard(wording.model(server.url), stream=False), "they name 'a' twice")


async def test_openai_that_ran_out_of_tokens() -> None:
    wording = OpenAIWording()
    async with serving(plain(chat_message('{"a": 1, "b', "length")), plain(wording.whole(DONE))) as server:
        check(await heard(wording.model(server.url), stream=False), "the model ran out of tokens in them")


def use(name: str, call_id: str, given: object) -> dict[str, object]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": given}


def check_sent_to_anthropic(server: Server) -> None:
    messages = server.requests[1].body["messages"]
    assistant = next(message for message in messages if message["role"] == "assistant")
    assert [block["input"] for block in assistant["content"]] == [{}, {"a": 1, "b": 2}]
    told = [block for block in messages[-1]["content"] if block["type"] == "tool_result"]
    assert [(block["tool_use_id"], block.get("is_error", False)) for block in told] == [("c1", True), ("c2", False)]


def message_events(*written: str, stop: str = "tool_use") -> list[bytes]:
    wording = AnthropicWording()
    events: list[dict[str, object]] = []
    for index, text in enumerate(written):
        parts: list[dict[str, object]] = [{"type": "input_json_delta", "partial_json": part} for part in ("", *text)]
        events += wording.block(index, use("add", f"c{index + 1}", {}), parts)
    events.append({"type": "message_delta", "delta": {"stop_reason": stop}})
    events.append({"type": "message_stop"})
    return [f"event: {each['type']}\ndata: {json.dumps(each)}\n\n".encode() for each in events]


@EVERY_BAD
async def test_anthropic_streamed(written: str, why: str) -> None:
    """Where nothing at all is streamed the arguments are `{}`, which this provider has said at the beginning."""
    wording = AnthropicWording()
    async with serving(streamed(message_events(written, GOOD)), streamed(wording.events(DONE))) as server:
        why = why if written else "a, b are missing"
        check(await heard(wording.model(server.url), stream=True), why)
        check_sent_to_anthropic(server)


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        ("null", "they are empty"),
        ("[1]", "is a list"),
        ("7", "is a number"),
        ('"x"', "is no JSON"),
        ('{"a": 1, "a": 2, "b": 1}', "they name 'a' twice"),
    ],
)
async def test_anthropic_whole(raw: str, why: str) -> None:
    wording = AnthropicWording()
    blocks = [use("add", "c1", "HERE"), use("add", "c2", json.loads(GOOD))]
    body = json.dumps(wording.frame(blocks, "tool_use", {})).replace('"HERE"', raw).encode()
    async with serving(plain(body), plain(wording.whole(DONE))) as server:
        check(await heard(wording.model(server.url), stream=False), why)
        check_sent_to_anthropic(server)


@pytest.mark.parametrize("written", ["", '{"a": 1', GOOD])
@pytest.mark.parametrize("stream", [False, True])
async def test_anthropic_that_ran_out_of_tokens_in_its_last_call(written: str, stream: bool) -> None:
    """A call that is seen to be whole is made. In an answer that came in one piece that cannot be seen."""
    wording = AnthropicWording()
    blocks = [use("add", "c1", json.loads(GOOD)), use("add", "c2", json.loads(written) if written == GOOD else {})]
    first = message_events(GOOD, written, stop="max_tokens")
    answers = (
        [streamed(first), streamed(wording.events(DONE))]
        if stream
        else [plain(wording.frame(blocks, "max_tokens", {})), plain(wording.whole(DONE))]
    )
    async with serving(*answers) as server:
        told = results(await heard(wording.model(server.url), stream=stream))
    assert sorted(told)[0] == ("3", False)
    if stream and written == GOOD:
        assert told == [("3", False)] * 2
    else:
        assert "the model ran out of tokens in them" in dict.fromkeys(text for text, _ in told).__repr__()


@pytest.mark.parametrize("stream", [False, True])
@EVERY_BAD
async def test_the_bridge(written: str, why: str, stream: bool) -> None:
    seen: list[list[ModelMessage]] = []

    async def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        seen.append(messages)
        parts = [ToolCallPart("add", written, "c1"), ToolCallPart("add", GOOD, "c2")]
        return ModelResponse(parts=[TextPart("Done.")] if len(seen) > 1 else parts)

    async def pieces(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
        seen.append(messages)
        if len(seen) > 1:
            yield "Done."
            return
        for index, text in enumerate((written, GOOD)):
            yield {index: DeltaToolCall("add", None, tool_call_id=f"c{index + 1}")}
            for part in text:
                yield {index: DeltaToolCall(None, part)}

    given = FunctionModel(answer, stream_function=pieces, model_name="given")
    check(await heard(BridgedModel(given), stream=stream), why if written or not stream else "are missing")
    back = [part for message in seen[1] for part in message.parts]
    assert [part.args for part in back if isinstance(part, ToolCallPart)] == [{}, {"a": 1, "b": 2}]
    told = [part for part in back if isinstance(part, ToolReturnPart)]
    assert [(part.tool_call_id, part.outcome) for part in told] == [("c1", "failed"), ("c2", "success")]


def as_calls(written: str) -> Model:
    return ScriptedModel([[calls("add", written), calls("add", {"a": 1, "b": 2})], "Done."])  # type: ignore[arg-type]


def as_blocks(kind: str, field: str) -> Callable[[str], Model]:
    def model(written: str) -> Model:
        blocks = [{"type": kind, "name": "add", field: given} for given in (written, GOOD)]
        return ScriptedModel([blocks, "Done."])  # type: ignore[list-item]

    return model


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("made", [as_calls, as_blocks("tool_use", "input"), as_blocks("function_call", "arguments")])
@EVERY_BAD
async def test_a_scripted_model(made: Callable[[str], Model], written: str, why: str, stream: bool) -> None:
    check(await heard(made(written), stream=stream), why)


async def test_a_plain_function_as_a_model() -> None:
    async def model(request: Request) -> Reply:
        asked = (Call("add", "[1]", "c1"), Call("add", {"a": 1, "b": 2}, "c2"))  # type: ignore[arg-type]
        return Reply("Done.") if request.exchange else Reply("", asked)

    check(await heard(model, stream=False), "is a list, not a JSON object")


@pytest.mark.parametrize(
    ("name", "written", "told"),
    [
        ("ping", "", ("pong", False)),
        ("ping", "{}", ("pong", False)),
        (
            "ping",
            "null",
            ("The arguments of ping do not fit: 'null' is null, not a JSON object; write one JSON object.", True),
        ),
        ("look", "{}", ("here", False)),
        ("look", "", ("The arguments of look do not fit: they are empty; write one JSON object.", True)),
    ],
)
async def test_empty_arguments_are_none_for_a_tool_without_parameters(
    name: str, written: str, told: tuple[str, bool]
) -> None:
    script = [calls(name, written), "Done."]  # type: ignore[arg-type]
    assert results(await heard(ScriptedModel(script), stream=False)) == [told]


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ('{"a": "\\u0000"}', "cannot be recorded"),
        ('{"a": ' + "9" * 200 + "}", "cannot be recorded"),
        ("[" * 100 + "]" * 100, "is a list"),
        ('{"a": ' * 70 + "1" + "}" * 70, "cannot be recorded"),
        ('{"a": ' * 100_000, "is no JSON"),
        ('{"a": "\ud800"}', "is no JSON"),
    ],
)
async def test_arguments_that_no_log_can_keep(written: str, why: str) -> None:
    call = parse_call("add", written)
    assert call.args == {}
    with pytest.raises(BadArguments, match=why):
        bind_call(add, call)
    script = [[calls("add", written), calls("add", {"a": 1, "b": 2})], "Done."]  # type: ignore[arg-type]
    check(await heard(ScriptedModel(script), stream=False), why)


async def test_the_fault_stands_in_the_journal_and_not_in_that_of_others() -> None:
    async with Hub.open("memory:") as hub:
        model = ScriptedModel([[calls("add", "[1]"), calls("ping")], "Done."])  # type: ignore[arg-type]
        reply = await Agent("adder", model=model, tools=[add, ping]).invoke("Sums?", hub=hub)
        log = await hub.log(reply.channel_id)
    replies = [each.event_data["result"] for each in log if each.event_type == "antiphon.call.finished"]
    [asked] = [result["calls"] for result in replies if result.get("calls")]
    assert [sorted(call) for call in asked] == [["args", "call_id", "fault", "name"], ["args", "call_id", "name"]]
