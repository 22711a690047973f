"""Tools whose result is the answer, several in one message and beside others."""

from __future__ import annotations

import pytest

from antiphon import Agent, Finish, Handoff, Hub, ScriptedModel, calls, says, tool
from antiphon.agents.call_results import Call, Reply, ToolResult
from antiphon.agents.messages import Answered
from antiphon.runtime.turn_events import AIMessageEvent, FinalStateEvent, ToolResponseEvent
from tests.agents.played_turn import play, there

OPEN, PRICES, LOOK = Call("open", {}, "c1"), Call("prices", {}, "c2"), Call("look", {}, "c3")
DIRECT = ("open", "prices")
FAILED = ToolResult("ValueError: no idea", failed=True)


def desk() -> Agent:
    def anything() -> None: ...

    tools = [tool(anything, name=name, return_direct=name in DIRECT) for name in (*DIRECT, "look", "pass_on")]
    return Agent("desk", ScriptedModel([]), tools=tools)


def asks(*wanted: Call, text: str = "") -> Reply:
    return Reply(text, wanted)


@pytest.mark.parametrize(
    ("results", "answer"),
    [
        ({}, "open done\n\nprices done"),
        ({"open": ToolResult("")}, "prices done"),
        ({"open": ToolResult(""), "prices": ToolResult("")}, ""),
    ],
)
def test_direct_results_are_one_answer_in_call_order(results: dict[str, ToolResult], answer: str) -> None:
    said = play(desk(), asks(OPEN, PRICES), results=results).said
    assert (said.text, said.stopped, said.tools) == (answer, None, ("open", "prices"))


def test_the_order_is_that_of_the_calls() -> None:
    assert play(desk(), asks(PRICES, OPEN)).said.text == "prices done\n\nopen done"


@pytest.mark.parametrize(
    ("wanted", "results"),
    [
        ((OPEN, LOOK), {}),
        ((LOOK, OPEN), {}),
        ((OPEN, LOOK), {"look": FAILED}),
        ((OPEN, PRICES), {"prices": FAILED}),
        ((OPEN, PRICES), {"open": FAILED}),
        ((OPEN, Call("nothing", {}, "c4")), {"nothing": ToolResult("There is no tool 'nothing'", failed=True)}),
    ],
)
def test_beside_another_tool_or_a_failure_the_model_reads_all_results(
    wanted: tuple[Call, ...], results: dict[str, ToolResult]
) -> None:
    played = play(desk(), asks(*wanted), says("So it is."), results=results)
    told = [each for each in played.requests[-1].exchange if isinstance(each, Answered)]
    given = [results.get(call.name, ToolResult(f"{call.name} done")) for call in wanted]
    assert [(each.call, each.text, each.failed) for each in told] == [
        (call, result.text, result.failed) for call, result in zip(wanted, given, strict=True)
    ]
    assert played.said.text == "So it is."


def test_a_handoff_of_the_team_beside_a_direct_call_moves_the_turn() -> None:
    below = Agent("billing", ScriptedModel([]))
    lead = Agent("desk", ScriptedModel([]), tools=list(desk().toolbox), agents=[below])
    played = play(lead, asks(OPEN, Call("transfer_to_billing", {}, "c4")), says("I have read it."))
    told = [each.text for each in played.requests[-1].exchange if isinstance(each, Answered)]
    assert told == ["open done", "Conversation transferred to billing."]
    assert (played.said.text, played.said.path) == ("I have read it.", ("billing",))


def test_a_handoff_that_is_declined_beside_a_direct_call_goes_back_to_the_model() -> None:
    handed = {"pass_on": ToolResult("Handed off to bob.", handoff=Handoff("bob"))}
    played = play(desk(), asks(OPEN, Call("pass_on", {}, "c4")), says("Alone, then."), results=handed)
    assert played.said.text == "Alone, then."


@pytest.mark.parametrize(
    "routed", [ToolResult("", handoff=Handoff("bob", "", "Bob, please.")), ToolResult("", finish=Finish("over"))]
)
def test_where_the_turn_goes_wins_over_a_direct_call(routed: ToolResult) -> None:
    played = play(desk(), asks(OPEN, Call("pass_on", {}, "c4")), results={"pass_on": routed}, refusal=there)
    assert played.said.text in ("Bob, please.", "over")


@tool(return_direct=True)
async def hours() -> str:
    """When we are open."""
    return "9 to 5"


@tool(return_direct=True)
async def price(item: str) -> str:
    """What it costs."""
    if item != "tea":
        raise LookupError(f"no {item}")
    return "tea: 3 euros"


@tool
async def stock(item: str) -> str:
    """How much there is."""
    return f"{item}: 12"


async def test_streamed_and_not_streamed_say_the_same() -> None:
    both = [calls("hours"), calls("price", {"item": "tea"})]
    async with Hub.open("memory:") as hub:
        shop = Agent("shop", ScriptedModel([both, both]), tools=[hours, price])
        reply = await shop.invoke("hours and price?", thread_id="a", hub=hub)
        events = [event async for event in shop.stream_invoke("hours and price?", thread_id="b", hub=hub)]
    assert reply.text == "9 to 5\n\ntea: 3 euros"
    assert [event.text for event in events if isinstance(event, AIMessageEvent)] == [reply.text]
    assert isinstance(events[-1], FinalStateEvent)
    assert events[-1].text == reply.text


async def test_a_failed_direct_call_is_told_to_the_model() -> None:
    model = ScriptedModel(
        [[calls("hours"), calls("price", {"item": "jam"}), calls("stock", {"item": "tea"})], "9 to 5, no jam."]
    )
    async with Hub.open("memory:") as hub:
        shop = Agent("shop", model, tools=[hours, price, stock])
        events = [event async for event in shop.stream_invoke("hours and jam?", hub=hub)]
    assert [text for role, text in model.requests[-1].messages if role == "tool"] == [
        "9 to 5",
        "LookupError: no jam",
        "tea: 12",
    ]
    assert sum(isinstance(event, ToolResponseEvent) for event in events) == 3
    assert isinstance(events[-1], FinalStateEvent)
    assert events[-1].text == "9 to 5, no jam."
