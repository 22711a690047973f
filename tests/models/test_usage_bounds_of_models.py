"""What models of providers reserve for a call, and budgets over them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from antiphon import (
    Agent,
    AnthropicModel,
    Budget,
    Hub,
    Limits,
    Message,
    OpenAIModel,
    Reply,
    Request,
    SummarisedTranscript,
    Usage,
    price_table,
    says,
)
from antiphon.agents.messages import ToolSpec
from antiphon.agents.usage_bounds import TOOL_PROMPT_TOKENS, count_request_bytes
from antiphon.core.execution_events import EV_CALL_FAILED, EV_CALL_FINISHED, EV_CALL_STARTED
from antiphon.testing import ManualClock
from tests.support.priced_calls import of_type
from tests.support.waiting import soon

REQUEST = Request("Be brief.", [Message("user", "What is it?")])
SIZE = count_request_bytes(REQUEST)
PRICE = price_table({"small": (1, 10), "cached": (1, 10, 0.1, 1.25)})


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    async with Hub.open("memory:", clock=ManualClock()) as hub:
        yield hub


@pytest.mark.parametrize(
    ("model", "most"),
    [
        (OpenAIModel("small", api_key="k", price=PRICE), Usage(SIZE, 1024, cost=SIZE + 10_240)),
        (OpenAIModel("small", api_key="k", price=PRICE, max_tokens=50), Usage(SIZE, 50, cost=SIZE + 500)),
        (
            OpenAIModel("small", api_key="k", price=PRICE, max_tokens=9, max_completion_tokens=70),
            Usage(SIZE, 70, cost=SIZE + 700),
        ),
        (OpenAIModel("small", api_key="k", price=PRICE, body={"max_tokens": 30}), Usage(SIZE, 30, cost=SIZE + 300)),
        (
            AnthropicModel("cached", api_key="k", price=PRICE, max_tokens=1),
            Usage(SIZE, 1, cost=(SIZE * 5 + 3) // 4 + 10),
        ),
        (AnthropicModel("small", api_key="k", price=PRICE), Usage(SIZE, 8192, cost=SIZE + 81_920)),
        (OpenAIModel("unheard-of", api_key="k"), Usage(SIZE, 1024, cost=None)),
        (OpenAIModel("any", api_key="k", base_url="https://models.example.com/v1"), Usage(SIZE, 1024, cost=None)),
        (OpenAIModel("any", base_url="http://127.0.0.1:8000/v1"), Usage(SIZE, 1024, cost=0)),
        (OpenAIModel("unlisted", api_key="k", price=PRICE), Usage(SIZE, 1024, cost=None)),
    ],
)
async def test_what_a_call_may_use_at_most(model: OpenAIModel | AnthropicModel, most: Usage) -> None:
    assert await model.most_usage(REQUEST) == most


async def test_tools_make_a_request_longer() -> None:
    tool = ToolSpec("look", "Look at something.", {"type": "object"})
    request = Request(REQUEST.system, REQUEST.history, (), (tool,))
    most = await OpenAIModel("small", api_key="k", price=PRICE).most_usage(request)
    assert most.input_tokens == count_request_bytes(request) + TOOL_PROMPT_TOKENS


async def test_a_model_without_a_key_reserves_nothing_and_fails_as_before(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert (await OpenAIModel("small").most_usage(REQUEST)).cost == 0


async def test_the_usual_price_of_a_model_is_reserved() -> None:
    """As installed with `antiphon[prices]`: input and output of this model are not free."""
    pytest.importorskip("genai_prices")
    most = await OpenAIModel("gpt-4o-mini", api_key="k", max_tokens=1_000_000).most_usage(REQUEST)
    assert most.cost is not None
    assert most.cost >= 1_000_000 * 6 // 10


async def test_an_unknown_price_is_denied_where_it_must_be_known(hub: Hub) -> None:
    agent = Agent("bob", model=OpenAIModel("unheard-of", api_key="k"), tier="regulated")
    reply = await soon(agent.invoke("Go", hub=hub))
    assert reply.stopped == "denied:budget"
    [failed] = of_type(await hub.log(reply.channel_id), EV_CALL_FAILED)
    assert failed["error"] == "budget: the price of openai:unheard-of is unknown; give the model a price"
    [started] = of_type(await hub.log(reply.channel_id), EV_CALL_STARTED)
    assert (started["unpriced"], started["model"]) == (True, "openai:unheard-of")


async def test_an_error_of_a_models_own_count_is_no_error_of_the_turn(
    hub: Hub, caplog: pytest.LogCaptureFixture
) -> None:
    async def model(request: Request) -> Reply:
        return says("done")

    def fails(request: Request) -> int:
        raise RuntimeError("no tokenizer")

    model.count_tokens = fails  # type: ignore[attr-defined]
    reply = await soon(Agent("bob", model=model, guards=[Budget(tokens=9000)]).invoke("Go", hub=hub))
    assert reply.text == "done"
    assert "what model may use is taken from the bytes: RuntimeError: no tokenizer" in caplog.text


async def test_a_summary_is_a_model_call_of_the_budget(hub: Hub) -> None:
    async def model(request: Request) -> Reply:
        return says("done", usage=Usage(5, 5, cost=100))

    async def summarise(messages: object) -> Reply:
        return says("in short", usage=Usage(7, 3, cost=30))

    memory = SummarisedTranscript(summarise, 1)
    agent = Agent("bob", model=model, memory=memory, guards=[Budget(model_calls=9)], limits=Limits(model_seconds=None))
    for number in range(4):
        reply = await soon(agent.invoke(f"message {number}", thread_id="t", hub=hub))
    log = await hub.log(reply.channel_id)
    summaries = [data for data in of_type(log, EV_CALL_STARTED) if data["name"] == "summary"]
    assert summaries
    assert all(int(str(data["tokens"])) > 1024 and data["until"] for data in summaries)
    outcomes = {data["turn"]: data for data in of_type(log, EV_CALL_FINISHED) if data.get("cost") == 30}
    assert [data["tokens"] for data in outcomes.values()] == [10] * len(summaries)
