"""Agents with models of providers: a tool, the bill, a missing key, and no secret in what is stored."""

import asyncio
from pathlib import Path

import pytest

from antiphon import Agent, Call, Hub, Limits, TokenEvent, TurnFailed, Usage, UsageError, tool
from antiphon.models.prices import price_table
from tests.models.model_servers import Held, hang_up, plain, serving, streamed
from tests.models.protocols import KEY, NAME, PROTOCOLS, AnthropicWording, OpenAIWording, Speech

Wording = OpenAIWording | AnthropicWording
pytestmark = pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda protocol: protocol.name)

ASKS = Speech((), (Call("add", {"a": 1, "b": 2}, "one"), Call("add", {"a": 3, "b": 4}, "two")), Usage(100, 10))
ANSWERS = Speech(("3 ", "and ", "7."), (), Usage(150, 5, 100))
PRICE = price_table({NAME: (1.0, 10.0, 0.1)})


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def test_an_agent_with_a_tool(protocol: Wording) -> None:
    async with serving(plain(protocol.whole(ASKS)), plain(protocol.whole(ANSWERS))) as server:
        async with Hub.open("memory:") as hub:
            agent = Agent("adder", model=protocol.model(server.url, price=PRICE), tools=[add])
            reply = await agent.invoke("1 + 2, and 3 + 4?", hub=hub)
        assert reply.text == "3 and 7."
        assert reply.usage == Usage(250, 15, 100, 0, cost=100 + 100 + 50 + 10 + 50)
        second = str(server.requests[1].body["messages"])
        assert all(word in second for word in ("'one'", "'two'", "'3'", "'7'"))
        assert len(server.requests) == 2
        await server.until(lambda: not server.open)  # the hub has closed the model


async def test_an_agent_that_is_heard(protocol: Wording) -> None:
    answers = [streamed(protocol.events(ASKS), size=50), streamed(protocol.events(ANSWERS), size=50)]
    async with serving(*answers) as server, Hub.open("memory:") as hub:
        agent = Agent("adder", model=protocol.model(server.url), tools=[add])
        events = [event async for event in agent.stream_invoke("Sums?", hub=hub, tokens=True)]
        assert [event.text for event in events if isinstance(event, TokenEvent)] == ["3 ", "and ", "7."]


async def test_a_missing_key_is_told_before_anything_is_recorded(
    protocol: Wording, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(f"{protocol.name.upper()}_API_KEY", raising=False)
    monkeypatch.delenv(f"{protocol.name.upper()}_BASE_URL", raising=False)
    async with Hub.open("memory:") as hub:
        words = f"the model of 'keyless': {protocol.name} needs a key; set {protocol.name.upper()}_API_KEY"
        with pytest.raises(UsageError, match=words):
            await Agent("keyless", model=f"{protocol.name}:m").invoke("Hi.", hub=hub)
        assert await hub.channels() == []


async def test_a_model_that_takes_too_long_is_left(protocol: Wording) -> None:
    held = Held()
    async with serving(held) as server, Hub.open("memory:") as hub:
        agent = Agent("slow", model=protocol.model(server.url), limits=Limits(model_seconds=0.2))
        with pytest.raises(TurnFailed) as caught:
            await agent.invoke("Hi.", hub=hub)
        assert caught.value.reason == "model_timeout"
        await asyncio.wait_for(held.left.wait(), 10)
        await server.until(lambda: not server.open)


async def test_no_secret_is_stored(protocol: Wording, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    told = protocol.error("x", f"Your key {KEY} is odd.")
    answers = [plain(told, 401), plain(told, 500), plain(told), plain(KEY.encode()), hang_up]
    async with serving(*answers) as server, Hub.open(f"sqlite:///{tmp_path}/log.db") as hub:
        agent = Agent("leaky", model=protocol.model(server.url), limits=Limits(model_attempts=1))
        failures = []
        for _ in answers:
            with pytest.raises(TurnFailed) as caught:
                await agent.invoke("Hi.", hub=hub)
            failures.append(repr(caught.value))
        assert len(server.requests) == len(answers)
        assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"
    assert KEY not in " ".join([*failures, caplog.text, repr(agent)])
    assert [path.name for path in tmp_path.iterdir() if KEY.encode() in path.read_bytes()] == []
    assert b"Your key *** is odd." in b"".join(path.read_bytes() for path in tmp_path.iterdir())
