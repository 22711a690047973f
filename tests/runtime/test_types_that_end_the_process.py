"""What a type of a user raises fails its call, whatever it is. It ends neither the process nor the turn."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from antiphon import DEFAULT_TOOLS, END, Agent, Hub, ScriptedModel, Step, TurnFailed, calls, tool

RAISED: list[BaseException] = []
ERRORS = [SystemExit("enough"), KeyboardInterrupt("enough"), asyncio.CancelledError("enough"), GeneratorExit("enough")]


def raises(*_: object) -> bool:
    raise RAISED[-1]


@dataclass
class Order:
    number: int

    def __post_init__(self) -> None:
        raises()


class Receipt:
    def model_dump(self, *, mode: str) -> dict[str, object]:
        raises()
        return {}


@tool
def place(order: Order) -> str:
    return "placed"


@tool
def receipt() -> Receipt:
    return Receipt()


@pytest.fixture(params=ERRORS, ids=lambda error: type(error).__name__)
def error(request: pytest.FixtureRequest) -> BaseException:
    RAISED.append(request.param)
    return RAISED[-1]


@pytest.mark.parametrize("call", [calls("place", {"order": {"number": 7}}), calls("receipt")], ids=["takes", "returns"])
async def test_the_model_reads_what_was_raised(call: object, error: BaseException) -> None:
    model = ScriptedModel([call, "I see."])  # type: ignore[list-item]
    async with Hub.open("memory:") as hub, asyncio.timeout(20):
        clerk = Agent("clerk", model=model, tools=[place, receipt], without=DEFAULT_TOOLS)
        reply = await clerk.invoke("Order it.", hub=hub)
    assert reply.text == "I see."
    assert f"{type(error).__name__}: enough" in model.requests[-1].messages[-1].text


async def test_a_way_between_steps_that_raises_fails_the_turn(error: BaseException) -> None:
    agent = Agent(
        "clerk",
        model=ScriptedModel(["Hello."]),
        patcher=lambda steps: steps.insert_before("call_model", Step("look", lambda _: None)).branch(
            "look", raises, END
        ),
    )
    async with Hub.open("memory:") as hub, asyncio.timeout(20):
        with pytest.raises(TurnFailed) as failed:
            await agent.invoke("Hello?", hub=hub)
    assert failed.value.reason == "step_error"
    assert f"{type(error).__name__}: enough" in failed.value.detail
