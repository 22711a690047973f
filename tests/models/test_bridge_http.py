"""Models of other providers through pydantic-ai and the vendors' own clients, over HTTP on this machine."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

from antiphon import (
    Agent,
    AntiphonError,
    BridgedModel,
    Hub,
    ModelRefused,
    ModelUnavailable,
    Reply,
    TokenEvent,
    TurnFailed,
    price_table,
    tool,
)
from antiphon.agents.call_results import Usage
from antiphon.agents.messages import Answered, Asked, Request
from tests.models.test_bridge import ASK, FAR, LOOK, NEAR, whole


@dataclass
class Answers:
    """A provider on this machine: gives its answers in order, and keeps what it was asked."""

    answers: list[tuple[int, dict[str, str], str]]
    asked: list[dict[str, object]] = field(default_factory=list)
    connections: int = 0
    url: str = ""
    held: asyncio.Event = field(default_factory=asyncio.Event)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
                self.asked.append(json.loads(await reader.readexactly(int(length.partition(b":")[2]))))
                await self._answer(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.gone.set()
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        status, headers, body = self.answers[min(len(self.asked), len(self.answers)) - 1]
        lines = [f"HTTP/1.1 {status} X", *(f"{name}: {value}" for name, value in headers.items())]
        cut = headers.get("x-cut")
        lines.append(f"content-length: {len(body.encode()) + bool(cut)}")
        first, gap, rest = body.partition("\n\n")
        writer.write("\r\n".join([*lines, "", first + gap]).encode())
        if "x-pause" in headers:
            await self.go_on.wait()
        writer.write(rest.encode())
        await writer.drain()
        if cut == "held":
            self.held.set()
            await reader.read()
        if cut:
            raise ConnectionError


@asynccontextmanager
async def serving(*answers: tuple[int, dict[str, str], str]) -> AsyncIterator[Answers]:
    provider = Answers(list(answers))
    server = await asyncio.start_server(provider.serve, "127.0.0.1", 0)
    async with server:
        provider.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield provider


@asynccontextmanager
async def openai(provider: Answers, **options: object) -> AsyncIterator[BridgedModel]:
    inner = OpenAIChatModel("gpt-5-mini", provider=OpenAIProvider(base_url=provider.url, api_key="key"))
    model = BridgedModel(inner, **options)  # type: ignore[arg-type]
    yield model
    await model.close()


JSON = {"content-type": "application/json"}
EVENTS = {"content-type": "text/event-stream"}


def completion(content: str | None, *calls: tuple[str, str, str], end: str = "stop") -> tuple[int, dict[str, str], str]:
    """A chat completion."""
    message: dict[str, object] = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = [
            {"id": call_id, "type": "function", "function": {"name": name, "arguments": args}}
            for call_id, name, args in calls
        ]
    usage = {
        "prompt_tokens": 1000,
        "completion_tokens": 100,
        "total_tokens": 1100,
        "prompt_tokens_details": {"cached_tokens": 800},
    }
    body = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "gpt-5-mini",
        "choices": [{"index": 0, "message": message, "finish_reason": end}],
        "usage": usage,
    }
    return 200, JSON, json.dumps(body)


def chunk(finish: str | None = None, **delta: object) -> dict[str, object]:
    choices = [{"index": 0, "delta": delta, "finish_reason": finish}]
    return {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-5-mini", "choices": choices}


def called(index: int, arguments: str, call_id: str = "", name: str = "") -> dict[str, object]:
    function = {"arguments": arguments} | ({"name": name} if name else {})
    return {"index": index, "function": function} | ({"id": call_id, "type": "function"} if call_id else {})


def events(*chunks: dict[str, object], done: str = "data: [DONE]\n\n") -> str:
    return "".join(f"data: {json.dumps(one)}\n\n" for one in chunks) + done


async def test_an_answer_over_http() -> None:
    answer = completion(None, ("c1", "look", '{"at": "far"}'), ("c2", "look", '{"at": "near"}'), end="tool_calls")
    async with serving(answer, completion("Par", end="length")) as provider, openai(provider, max_tokens=9) as model:
        reply = await model(ASK)
        assert reply.calls == (FAR, NEAR)
        assert reply.usage == Usage(1000, 100, cache_read_tokens=800, cost=270)  # 200 × 0.25 + 800 × 0.025 + 100 × 2
        exchange = (Asked("", (FAR, NEAR)), Answered(FAR, "a hill"), Answered(NEAR, "a tree"))
        cut = await model(Request("Be kind.", ASK.history, exchange, (LOOK,)))
        assert (cut.text, cut.cut) == ("Par", True)
    first, second = provider.asked
    assert first["messages"] == [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello!"}]
    assert str(first["tools"]).count("'look'") == 1
    assert str(second["messages"]).count("a hill") == 1
    assert provider.connections == 1


async def test_a_price_of_ones_own() -> None:
    async with (
        serving(completion("Hi.")) as provider,
        openai(provider, price=price_table({"gpt-5-mini": (1, 1)})) as model,
        openai(provider, price=price_table({"other": (1, 1)})) as other,
    ):
        assert (await model(ASK)).usage.cost == 1100
        assert (await other(ASK)).usage.cost is None


@pytest.mark.parametrize(
    ("status", "headers", "failure", "wait"),
    [
        (429, {"Retry-After": "7"}, ModelUnavailable, 7.0),
        (429, {}, ModelUnavailable, None),
        (500, {}, ModelUnavailable, None),
        (529, {"retry-after-ms": "1500"}, ModelUnavailable, 1.5),
        (400, {}, ModelRefused, None),
        (401, {}, ModelRefused, None),
    ],
)
@pytest.mark.parametrize("ask", [BridgedModel.__call__, whole], ids=["whole", "streamed"])
async def test_a_refusal_is_asked_for_exactly_once(
    ask: object, status: int, headers: dict[str, str], failure: type[AntiphonError], wait: float | None
) -> None:
    refusal = status, JSON | headers, json.dumps({"error": {"message": "Not now.", "type": "x"}})
    async with serving(refusal) as provider, openai(provider) as model:
        with pytest.raises(failure, match="Not now") as raised:
            await ask(model, ASK)  # type: ignore[operator]
    assert getattr(raised.value, "status", None) == status
    assert getattr(raised.value, "retry_after", None) == wait
    assert len(provider.asked) == 1


async def test_a_provider_that_is_not_there() -> None:
    async with serving() as provider:
        pass
    async with openai(provider) as model:
        for ask in (model(ASK), whole(model)):
            with pytest.raises(ModelUnavailable, match="openai:gpt-5-mini did not answer"):
                await ask


async def test_an_answer_that_is_no_json_or_breaks_off() -> None:
    garbage, cut = (200, JSON, "{"), (200, JSON | {"x-cut": "now"}, "{")
    async with serving(garbage, cut) as provider, openai(provider) as model:
        for _ in range(2):
            with pytest.raises(ModelUnavailable):
                await model(ASK)
    assert len(provider.asked) == 2


async def test_a_stream_over_http() -> None:
    usage = {**chunk(), "choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}}
    body = events(
        chunk(role="assistant", content="Wait"),
        chunk(content=" a bit."),
        chunk(tool_calls=[called(0, "", "c1", "look")]),
        chunk(tool_calls=[called(0, '{"at":'), called(1, '{"at": "near"}', "c2", "look")]),
        chunk(tool_calls=[called(0, ' "far"}')]),
        chunk("tool_calls"),
        usage,
    )
    async with serving((200, EVENTS, body)) as provider, openai(provider) as model:
        pieces, reply = await whole(model)
    assert "".join(pieces) == "Wait a bit."
    assert len(pieces) == 2
    assert (reply.text, reply.calls) == ("Wait a bit.", (FAR, NEAR))
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (5, 3)
    assert provider.asked[0]["stream"] is True


async def test_a_stream_that_breaks_off() -> None:
    body = events(chunk(role="assistant", content="Wait"), done="")
    async with serving((200, EVENTS | {"x-cut": "now"}, body)) as provider, openai(provider) as model:
        stream = model.stream(ASK)
        assert await anext(stream) == "Wait"
        with pytest.raises(ModelUnavailable):
            await anext(stream)
    assert len(provider.asked) == 1


async def test_whoever_stops_listening_hangs_up() -> None:
    body = events(chunk(role="assistant", content="Wait"), done="")
    async with serving((200, EVENTS | {"x-cut": "held"}, body)) as provider, openai(provider) as model:
        listening = asyncio.ensure_future(whole(model))
        await asyncio.wait_for(provider.held.wait(), 5)
        listening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await listening
        await asyncio.wait_for(provider.gone.wait(), 5)


async def test_a_closed_model_lets_its_connections_go_and_takes_them_up_again() -> None:
    async with serving(completion("Hi.")) as provider, openai(provider) as model:
        for _ in range(2):
            await model(ASK)
        assert provider.connections == 1
        await model.close()
        await asyncio.wait_for(provider.gone.wait(), 5)
        await model.close()
        assert (await model(ASK)).text == "Hi."
        assert provider.connections == 2


async def test_closing_waits_for_whoever_is_being_answered() -> None:
    usage = {**chunk(), "choices": [], "usage": None}
    body = events(chunk(role="assistant", content="Wait"), chunk("stop", content=" a bit."), usage)
    async with serving((200, EVENTS | {"x-pause": "yes"}, body)) as provider, openai(provider) as model:
        stream = model.stream(ASK)
        assert await anext(stream) == "Wait"
        await model.close()
        provider.go_on.set()
        *_, reply = [piece async for piece in stream]
        await asyncio.wait_for(provider.gone.wait(), 5)
    assert isinstance(reply, Reply)
    assert reply.text == "Wait a bit."


TWO_LOOPS = """
import asyncio, sys
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from antiphon import BridgedModel, Message, Request

model = BridgedModel(OpenAIChatModel("m", provider=OpenAIProvider(base_url=sys.argv[1], api_key="key")))
for _ in range(2):
    print(asyncio.run(model(Request("", [Message("user", "Hello!")]))).text)
"""


async def test_another_event_loop_gets_connections_of_its_own() -> None:
    async with serving(completion("Hi.")) as provider:
        program = [sys.executable, "-W", "ignore::ResourceWarning", "-c", TWO_LOOPS, provider.url]
        child = await asyncio.create_subprocess_exec(*program, stdout=PIPE, stderr=PIPE)
        said, complained = await child.communicate()
    assert (said, child.returncode) == (b"Hi.\nHi.\n", 0), complained.decode()
    assert provider.connections == 2


async def test_anthropic_counts_what_was_cached() -> None:
    usage = {"input_tokens": 1, "output_tokens": 5, "cache_read_input_tokens": 8, "cache_creation_input_tokens": 4}
    body = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-4-6",
        "content": [{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "Hi."}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": usage,
    }
    async with serving((200, JSON, json.dumps(body)), (529, JSON, "{}")) as provider:
        inner = AnthropicModel("claude-sonnet-4-6", provider=AnthropicProvider(base_url=provider.url, api_key="key"))
        model = BridgedModel(inner, max_tokens=100)
        reply = await model(ASK)
        with pytest.raises(ModelUnavailable):
            await model(ASK)
        await model.close()
    assert reply.text == "Hi."
    assert reply.usage == Usage(13, 5, 8, 4, cost=3 + 75 + 3 + 15)  # 1 × 3 + 5 × 15 + 8 × 0.3 + 4 × 3.75, rounded up
    assert len(provider.asked) == 2


# A whole agent


async def test_an_agent_calls_its_tools_over_the_bridge() -> None:
    @tool
    def look(at: str) -> str:
        """Looks."""
        return f"something {at}"

    asks = completion(None, ("c1", "look", '{"at": "far"}'), ("c2", "look", '{"at": "near"}'), end="tool_calls")
    says = 200, EVENTS, events(chunk(content="Far and"), chunk("stop", content=" near."))
    failing = 503, JSON, json.dumps({"error": {"message": "Not now."}})
    async with serving(asks, completion("Done."), says, failing) as provider, openai(provider) as model:
        async with Hub.open("memory:") as hub:
            agent = Agent("ada", model=model, system_prompt="Be kind.", tools=[look])
            reply = await agent.invoke("Look!", hub=hub)
            assert reply.text == "Done."
            sent = json.dumps(provider.asked[1]["messages"])
            assert ("something far" in sent, "something near" in sent) == (True, True)
            heard = [event async for event in agent.stream_invoke("Again!", hub=hub, tokens=True)]
            assert [event.text for event in heard if isinstance(event, TokenEvent)] == ["Far and", " near."]
            with pytest.raises(TurnFailed, match=r"model_error.*Not now"):
                await agent.invoke("And again!", hub=hub)
        await asyncio.wait_for(provider.gone.wait(), 5)  # the hub has closed the model
