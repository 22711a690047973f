"""Our models against a real one on this machine, which is too small to be right about anything.

What it says is not looked at, only that it comes: whole, in pieces, counted, cut short, and not any more.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import cast
from urllib.request import urlopen

import pytest

from antiphon import Agent, Hub, Message, ModelRefused, Reply, Request, TokenEvent, price_table
from antiphon.models.anthropic import AnthropicModel
from antiphon.models.openai import OpenAIModel

TINY = "smollm2-135m"
ASK = Request("You are a helpful assistant.", [Message("user", "Tell me about the sea.")])
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "big": {"type": "boolean"}},
    "required": ["city", "big"],
    "additionalProperties": False,
}

Real = OpenAIModel | AnthropicModel


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    program = [sys.executable, "-m", "tests.models.local_server"]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        assert child.stdout is not None
        address = child.stdout.readline().decode().strip()
        assert address.startswith("http://127.0.0.1:")
        yield address
        child.kill()


@asynccontextmanager
async def speaking(make: Callable[..., Real], server: str, **options: object) -> AsyncIterator[Real]:
    url = f"{server}/v1" if make is OpenAIModel else server
    model = make(TINY, base_url=url, **options)
    yield model
    await model.close()


async def whole(model: Real, request: Request = ASK) -> tuple[list[str], Reply]:
    *pieces, reply = [piece async for piece in model.stream(request)]
    assert isinstance(reply, Reply)
    return [str(piece) for piece in pieces], reply


def busy(server: str) -> bool:
    """Whether anybody is being answered."""
    with urlopen(f"{server}/slots", timeout=10) as slots:  # on loopback
        return any(slot["is_processing"] for slot in json.load(slots))


async def until(true: Callable[[], bool], seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not await asyncio.to_thread(true):
        assert time.monotonic() < end
        await asyncio.sleep(0.02)


both = pytest.mark.parametrize("make", [OpenAIModel, AnthropicModel])


@both
async def test_it_answers_and_counts(make: Callable[..., Real], server: str) -> None:
    price = price_table({TINY: (1.0, 1.0)})
    async with speaking(make, server, max_tokens=12, body={"temperature": 0}, price=price) as model:
        reply = await model(ASK)
        again = await model(ASK)
    assert reply.text.strip()
    assert reply.cut
    assert (reply.usage.output_tokens, again.usage.output_tokens) == (12, 12)
    assert reply.usage.input_tokens == again.usage.input_tokens > 10
    assert 0 < again.usage.cache_read_tokens < again.usage.input_tokens  # the server remembers the prompt
    assert reply.usage.cost == reply.usage.input_tokens + 12


@both
async def test_it_streams_what_it_answers(make: Callable[..., Real], server: str) -> None:
    async with speaking(make, server, max_tokens=12, body={"temperature": 0}) as model:
        pieces, streamed = await whole(model)
    async with speaking(make, server, max_tokens=12, body={"temperature": 0}) as model:  # it hangs up after a stream
        at_once = await model(ASK)
    assert len(pieces) > 3
    assert "".join(pieces) == streamed.text == at_once.text
    assert streamed.cut
    assert (streamed.usage.input_tokens, streamed.usage.output_tokens) == (at_once.usage.input_tokens, 12)


@both
async def test_whoever_stops_listening_stops_it(make: Callable[..., Real], server: str) -> None:
    async with speaking(make, server, max_tokens=1500, body={"temperature": 0}) as model:
        started = asyncio.Event()

        async def listen() -> None:
            async for _ in model.stream(ASK):
                started.set()

        listening = asyncio.ensure_future(listen())
        await asyncio.wait_for(started.wait(), 30)
        assert await asyncio.to_thread(busy, server)
        listening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await listening
        await until(lambda: not busy(server))


async def test_its_answer_has_the_shape_that_is_wanted(server: str) -> None:
    request = Request("", [Message("user", "Which city is the capital of France?")], output=CITY)
    async with speaking(OpenAIModel, server, max_tokens=200, body={"temperature": 0}) as model:
        reply = await model(request)
    assert not reply.cut
    value = cast("dict[str, object]", json.loads(reply.text))
    assert {name: type(item) for name, item in value.items()} == {"city": str, "big": bool}


@both
async def test_it_refuses_what_it_cannot_take(make: Callable[..., Real], server: str) -> None:
    too_long = Request("", [Message("user", "sea " * 5000)])
    async with speaking(make, server, max_tokens=5) as model:
        with pytest.raises(ModelRefused) as refused:
            await model(too_long)
    assert refused.value.status == 400


@both
async def test_an_agent_speaks_with_it(make: Callable[..., Real], server: str) -> None:
    async with Hub.open("memory:") as hub, speaking(make, server, max_tokens=8, body={"temperature": 0}) as model:
        agent = Agent("tiny", model=model, system_prompt="Be brief.")
        heard = [event async for event in agent.stream_invoke("Hello!", thread_id="t", hub=hub, tokens=True)]
        tokens = "".join(event.text for event in heard if isinstance(event, TokenEvent))
        reply = await agent.invoke("And now?", thread_id="t", hub=hub)
    assert tokens.strip()
    assert reply.text.strip()
