"""What models of providers answer, also from servers that take the protocol easily."""

import json
import logging
from dataclasses import replace

import pytest

from antiphon import (
    Answered,
    AnthropicModel,
    Asked,
    Call,
    Message,
    Objected,
    OpenAIModel,
    Reply,
    ReplyMalformed,
    Request,
    ToolSpec,
    Usage,
    UsageError,
)
from antiphon.agents.call_results import EMPTY_ARGUMENTS
from antiphon.models import provider_client
from antiphon.models.anthropic import CONTINUE_TEXT, SPEAK_FIRST_TEXT
from tests.models.model_servers import plain, serving, streamed
from tests.models.protocols import HELLO, PROTOCOLS, AnthropicWording, OpenAIWording, ask, event

Wording = OpenAIWording | AnthropicWording
HI = Request("Be brief.", [Message("user", "Hi.")])
each_protocol = pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda protocol: protocol.name)


@each_protocol
@pytest.mark.parametrize("size", [1, 2, 3, 64, None])
async def test_pieces_come_in_order(protocol: Wording, size: int | None) -> None:
    async with serving(streamed(protocol.events(HELLO), size=size)) as server:
        model = protocol.model(server.url)
        pieces, reply = await ask(model, HI, stream=True)
        await model.close()
        assert pieces == list(HELLO.pieces)
        assert reply == HELLO.reply


@each_protocol
async def test_a_server_that_does_not_stream(protocol: Wording) -> None:
    async with serving(plain(protocol.whole(HELLO))) as server:
        model = protocol.model(server.url)
        assert await ask(model, HI, stream=True) == ([HELLO.text], HELLO.reply)
        await model.close()


async def chat(*answers: object, stream: bool, request: Request = HI, **options: object) -> tuple[Reply, dict]:
    """What an OpenAI model makes of these chunks, or of this body; and what it was sent."""
    answer = streamed([event(each) if isinstance(each, dict) else each for each in answers])
    async with serving(answer if stream else plain(answers[0])) as server:
        model = OpenAIModel("m", base_url=server.url, **options)
        try:
            return (await ask(model, request, stream=stream))[1], server.requests[0].body
        finally:
            await model.close()


def delta(finish: str | None = None, **fields: object) -> dict:
    return {"choices": [{"delta": fields, "finish_reason": finish}]}


def message(**fields: object) -> dict:
    return {"choices": [{"message": {"role": "assistant", **fields}}]}


DONE = b"data: [DONE]\n\n"


@pytest.mark.parametrize(
    ("chunks", "reply"),
    [
        ([delta(content="a"), delta("stop")], Reply("a")),
        ([delta(content="a"), DONE], Reply("a")),
        ([delta(content=None), delta("stop", content="b"), {"choices": []}, DONE], Reply("b")),
        ([delta(refusal="I "), delta(refusal="won't."), DONE], Reply("I won't.")),
        ([delta(reasoning_content="Hmm."), delta(content="c"), DONE, b"data: junk\n\n"], Reply("c")),
        ([delta("length", content="d"), DONE], Reply("d", cut=True)),
        (
            [
                delta(tool_calls=[{"id": "x", "function": {"name": "f", "arguments": '{"a": 1}'}}]),
                delta(tool_calls=[{"id": "y", "function": {"name": "f", "arguments": {"a": 2}}}]),
                delta("tool_calls"),
            ],
            Reply("", (Call("f", {"a": 1}, "x"), Call("f", {"a": 2}, "y"))),
        ),
        (  # all of the same index, and told apart by their ids
            [
                delta(tool_calls=[{"index": 0, "id": "x", "function": {"name": "f", "arguments": "{}"}}]),
                delta(tool_calls=[{"index": 0, "id": "y", "function": {"name": "g", "arguments": ""}}]),
                delta(tool_calls=[{"index": 0, "function": {"arguments": '{"b": 2}'}}]),
                delta("tool_calls"),
            ],
            Reply("", (Call("f", {}, "x"), Call("g", {"b": 2}, "y"))),
        ),
        (  # no ids, no index; a name that comes again
            [
                delta(tool_calls=[{"index": 0, "function": {"name": "f", "arguments": '{"a"'}}]),
                delta(tool_calls=[{"index": 0, "function": {"name": "f", "arguments": ": 1}"}}]),
                delta(tool_calls=[{"index": 1, "function": {"name": "f", "arguments": None}}]),
                delta("tool_calls"),
            ],
            Reply("", (Call("f", {"a": 1}, "call_1"), Call("f", {}, "call_2", EMPTY_ARGUMENTS))),
        ),
        (
            [
                delta(tool_calls=[{"function": {"name": "f", "arguments": '{"a"'}}]),
                delta(tool_calls=[{"function": {"arguments": ": 1}"}}]),
                delta("tool_calls"),
            ],
            Reply("", (Call("f", {"a": 1}, "call_1"),)),
        ),
    ],
)
async def test_streams_of_other_servers(chunks: list[object], reply: Reply) -> None:
    assert (await chat(*chunks, stream=True))[0] == reply


@pytest.mark.parametrize(
    ("body", "reply"),
    [
        (message(content=None), Reply("")),
        (message(content="a", reasoning="Hmm."), Reply("a")),
        (message(content=[{"type": "thinking", "thinking": []}, {"type": "text", "text": "b"}]), Reply("b")),
        (message(content=None, refusal="I won't."), Reply("I won't.")),
        (
            message(content="", tool_calls=[{"function": {"name": "f"}}]),
            Reply("", (Call("f", {}, "call_1", EMPTY_ARGUMENTS),)),
        ),
        (
            message(tool_calls=[{"id": "", "function": {"name": "f", "arguments": {"a": 1}}}] * 2),
            Reply("", (Call("f", {"a": 1}, "call_1"), Call("f", {"a": 1}, "call_2"))),
        ),
        (
            message(tool_calls=[{"id": "same", "function": {"name": "f", "arguments": "{}"}}] * 2),
            Reply("", (Call("f", {}, "same"), Call("f", {}, "call_2"))),
        ),
        ({**message(content="c"), "usage": {"prompt_tokens": 3}}, Reply("c", usage=Usage(3))),
        ({**message(content="d"), "usage": None}, Reply("d")),
    ],
)
async def test_answers_of_other_servers(body: dict, reply: Reply) -> None:
    assert (await chat(body, stream=False))[0] == reply


@pytest.mark.parametrize(
    "calls",
    [
        [{"function": {"arguments": "{}"}}],
        [{"type": "custom"}],
    ],
)
async def test_calls_are_not_guessed(calls: list[object]) -> None:
    for stream, body in ((False, message(tool_calls=calls)), (True, delta("tool_calls", tool_calls=calls))):
        with pytest.raises(ReplyMalformed, match="cannot be used: "):
            await chat(body, stream=stream)


async def test_parts_that_do_not_fit() -> None:
    first = delta(tool_calls=[{"index": 0, "function": {"name": "f", "arguments": "{"}}])
    with pytest.raises(ReplyMalformed, match="goes on as one of 'g'"):
        await chat(first, delta(tool_calls=[{"index": 0, "function": {"name": "g"}}]), DONE, stream=True)


# What is sent

SPEC = ToolSpec("f", "Does f.", {"type": "object", "properties": {}})
SCHEMA = {"type": "array", "items": {"type": "integer"}}


async def sent_to(kind: type, request: Request, **options: object) -> dict:
    wording = AnthropicWording() if kind is AnthropicModel else OpenAIWording()
    async with serving(plain(wording.whole(HELLO))) as server:
        model = wording.model(server.url, **options)
        await model(request)
        await model.close()
        return server.requests[0].body


async def test_openai_is_told_what_it_cannot_be_sent() -> None:
    body = await sent_to(OpenAIModel, Request("Be brief.", [Message("user", "Hi.")], output=SCHEMA))
    assert "response_format" not in body
    assert body["messages"][0]["content"].startswith("Be brief.\n\nAnswer with JSON alone")
    assert json.dumps(SCHEMA, separators=(",", ":")) in body["messages"][0]["content"]


REFERRING = {
    "$ref": "#/$defs/Point",
    "$defs": {"Point": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}},
}


@pytest.mark.parametrize(("how", "strict"), [("sent", False), ("strict", True), ("told", None)])
async def test_how_openai_learns_of_a_schema(how: str, strict: bool | None) -> None:
    body = await sent_to(OpenAIModel, Request("", [], output=REFERRING), output_schema=how)
    if strict is None:
        assert "response_format" not in body
        assert "$defs" in body["messages"][0]["content"]
    else:
        format = body["response_format"]["json_schema"]
        assert (format["strict"], format["schema"]["type"], "$ref" in format["schema"]) == (strict, "object", False)
        assert format["schema"]["$defs"] == REFERRING["$defs"]
        assert body["messages"] == []


def thing(**fields: object) -> dict:
    return {"type": "object", "properties": fields}


@pytest.mark.parametrize(
    ("schema", "sent"),
    [
        (thing(a={"type": "integer"}), {**thing(a={"type": "integer"}), "additionalProperties": False}),
        (
            thing(a={"type": "integer", "minimum": 1, "description": "How many."}),
            {
                **thing(a={"type": "integer", "description": 'How many.\n\n{"minimum":1}'}),
                "additionalProperties": False,
            },
        ),
        (
            {"type": "array", "items": {"oneOf": [{"type": "string", "format": "odd"}, {"const": 1}]}, "minItems": 1},
            {
                "type": "array",
                "items": {"anyOf": [{"type": "string", "description": '{"format":"odd"}'}, {"const": 1}]},
                "minItems": 1,
            },
        ),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, None),
        ({"type": "object"}, None),
        (thing(a={}), None),
        (thing(a=True), None),
        ({"type": ["string", "null"]}, None),
        ({"$ref": "#/$defs/T", "$defs": {"T": thing(down={"$ref": "#/$defs/T"})}}, None),
        ({"$ref": "#/elsewhere"}, None),
    ],
)
async def test_how_anthropic_learns_of_a_schema(schema: dict, sent: dict | None) -> None:
    body = await sent_to(AnthropicModel, Request("", [Message("user", "Hi.")], output=schema))
    if sent is None:
        assert "output_config" not in body
        assert body["system"].endswith(json.dumps(schema, separators=(",", ":")))
    else:
        assert body["output_config"] == {"format": {"type": "json_schema", "schema": sent}}
        assert "system" not in body


def said(role: str, *texts: str) -> dict:
    return {"role": role, "content": [{"type": "text", "text": text} for text in texts]}


@pytest.mark.parametrize(
    ("history", "messages"),
    [
        ([], [said("user", SPEAK_FIRST_TEXT)]),
        ([("user", "a"), ("user", " "), ("user", "b")], [said("user", "a", "b")]),
        (
            [("assistant", "a"), ("user", "b")],
            [said("user", SPEAK_FIRST_TEXT), said("assistant", "a"), said("user", "b")],
        ),
        (
            [("user", "a"), ("assistant", "b ")],
            [said("user", "a"), said("assistant", "b "), said("user", CONTINUE_TEXT)],
        ),
    ],
)
async def test_the_two_sides_take_turns(history: list[tuple[str, str]], messages: list[dict]) -> None:
    body = await sent_to(AnthropicModel, Request("", [Message(*each) for each in history]))
    assert body["messages"] == messages


async def test_calls_of_tools_that_are_gone() -> None:
    call = Call("f", {}, "a")
    exchange = (Asked("", (call,)), Answered(call, "done"))
    body = await sent_to(AnthropicModel, Request("", [Message("user", "Hi.")], exchange))
    assert [tool["name"] for tool in body["tools"]] == ["f"]
    assert body["tool_choice"] == {"type": "none"}
    body = await sent_to(AnthropicModel, Request("", [Message("user", "Hi.")], exchange, (SPEC,)))
    assert "tool_choice" not in body


@each_protocol
async def test_ids_of_others_are_made_plain_and_unique(protocol: Wording) -> None:
    one, two, three, four = Call("f"), Call("f"), Call("f", {"a": 1}, "odd id!"), Call("g", {}, "kept")
    exchange = (
        Asked("", (one, two, three)),
        Answered(one, "1"),
        Answered(three, "3"),
        Answered(two, "2"),
        Asked("", (four,)),
        Answered(four, "4"),
        Asked("", (four,)),
        Answered(four, "5"),
        Asked("?", ()),
        Objected("!"),
    )
    body = json.dumps(await sent_to(type(protocol.model("http://127.0.0.1")), Request("", [], exchange, (SPEC,))))
    names = ["call_1", "call_2", "call_3", "kept", "call_5"]
    key = '"tool_call_id": ' if protocol.name == "openai" else '"tool_use_id": '
    results = [part.partition('"')[0] for part in body.split(key + '"')[1:]]
    assert results == ["call_1", "call_3", "call_2", "kept", "call_5"]
    assert [body.count(f'"id": "{name}"') for name in names] == [1] * 5


async def test_more_fields_and_headers() -> None:
    wording = OpenAIWording()
    async with serving(plain(wording.whole(HELLO))) as server:
        body = {"top_k": 5, "seed": None, "n": 1}
        model = wording.model(
            server.url, seed=1, stop=["x"], parallel_tool_calls=True, body=body, headers={"X-Team": "blue"}
        )
        await model(HI)
        await model.close()
        [seen] = server.requests
        assert {name: seen.body.get(name) for name in ("top_k", "n", "stop")} == {"top_k": 5, "n": 1, "stop": ["x"]}
        assert seen.body.keys().isdisjoint({"seed", "parallel_tool_calls", "tools", "stream"})
        assert seen.headers["x-team"] == "blue"


# What it costs


@each_protocol
@pytest.mark.parametrize(
    ("price", "cost", "warns"),
    [
        (None, None, False),
        (lambda name, usage: usage.input_tokens * 2 + len(name), 250, False),
        (lambda name, usage: None, None, False),
        (lambda name, usage: 1 // 0, None, True),
        (lambda name, usage: 0.5, None, True),
        (lambda name, usage: -1, None, True),
        (lambda name, usage: True, None, True),
    ],
)
async def test_what_an_answer_costs(
    protocol: Wording, price: object, cost: int | None, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(plain(protocol.whole(HELLO))) as server:
        model = protocol.model(server.url, price=price)
        with caplog.at_level(logging.WARNING, "antiphon.models"):
            reply = await model(HI)
        await model.close()
        assert (reply.text, reply.usage.cost) == (HELLO.text, cost)
        assert bool(caplog.records) == warns


@each_protocol
async def test_at_home_the_usual_price_holds(protocol: Wording, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        provider_client, "usual_price", lambda provider, name, usage: len(provider) + usage.output_tokens
    )
    async with serving(plain(protocol.whole(HELLO))) as server:
        model = protocol.model(server.url)
        assert (await model(HI)).usage.cost is None
        endpoint = model._endpoint
        at_home = replace(endpoint, provider=replace(endpoint.provider, home=endpoint.base_url))
        object.__setattr__(model, "_endpoint", at_home)
        reply = await model(HI)
        assert reply.usage.cost == len(protocol.name) + HELLO.usage.output_tokens
        await model.close()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"temprature": 1}, "no option 'temprature'"),
        ({"headers": {"x y": "z"}}, "a header is called 'x y'"),
        ({"headers": {"x": "se\ncret"}}, "the header 'x' has a value that no header has"),
        ({"headers": "x"}, "headers is no dict"),
        ({"body": []}, r"body is \[\]"),
        ({"body": {"x": object}}, "sent as JSON"),
        ({"output_schema": "maybe"}, "output_schema is 'maybe'"),
    ],
)
@pytest.mark.parametrize("kind", [OpenAIModel, AnthropicModel])
def test_options_are_checked(kind: type, options: dict, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        kind("m", **options)
    assert "se\ncret" not in str(caught.value)
