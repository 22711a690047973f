"""An exception of a user-defined type or function fails its call. It ends neither the process nor the turn."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import ClassVar

import pytest

from antiphon import (
    DEFAULT_TOOLS,
    END,
    Agent,
    Denied,
    Envelope,
    Hub,
    ScriptedModel,
    State,
    Step,
    TerminateTarget,
    TokenBudget,
    Transition,
    TransitionGraph,
    TurnFailed,
    calls,
    register_condition,
    tool,
)

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


QUIET = [error for error in ERRORS if not isinstance(error, KeyboardInterrupt)]
"""Code that runs between the hub's own steps lets a KeyboardInterrupt pass: it may be the operator's."""


@pytest.fixture(params=QUIET, ids=lambda error: type(error).__name__)
def quiet(request: pytest.FixtureRequest) -> BaseException:
    RAISED.append(request.param)
    return RAISED[-1]


async def test_a_memory_that_cannot_count_fails_the_turn(quiet: BaseException) -> None:
    memory = TokenBudget(100, count=lambda _: int(raises()))
    async with Hub.open("memory:") as hub, asyncio.timeout(20):
        with pytest.raises(TurnFailed) as failed:
            await Agent("clerk", model=ScriptedModel(["Hello."]), memory=memory).invoke("Hello?", hub=hub)
    assert failed.value.reason == "turn_error"
    assert f"{type(quiet).__name__}: enough" in failed.value.detail


async def test_a_guest_that_cannot_decide_refuses(error: BaseException) -> None:
    async with Hub.open("memory:") as hub, asyncio.timeout(20):
        ann = await hub.register("ann")
        await hub.register("bob", accept=raises)
        with pytest.raises(Denied, match="invite_rejected:bob") as refused:
            await ann.open(target="bob")
        log = await hub.log(refused.value.channel_id)
    assert f"{type(error).__name__}: enough" in str([envelope.event_data for envelope in log])


@dataclass(frozen=True)
class Undecided:
    name: ClassVar[str] = "undecided"

    def evaluate(self, state: State, envelope: Envelope) -> bool:
        return raises()


async def test_a_condition_that_ends_the_process_does_not_match(quiet: BaseException) -> None:
    register_condition(Undecided)
    graph = TransitionGraph("ann", [Transition(Undecided(), TerminateTarget("never"))], TerminateTarget("done"))
    async with Hub.open("memory:") as hub, asyncio.timeout(20):
        ann, _ = await hub.register("ann"), await hub.register("bob")
        channel = await ann.open(type="workflow", target="bob", knobs={"graph": graph.to_dict()})
        await channel.send("Well?")
        assert await channel.closed() == "done"
        [failed] = [each for each in await hub.log(channel.channel_id) if each.event_type == "antiphon.rule.failed"]
    assert f"{type(quiet).__name__}: enough" in str(failed.event_data)
