"""What an answer may be: words, a value of a shape that is wanted, or a provider's blocks, whose thoughts stay out."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Literal

import pytest
from pydantic import BaseModel

from antiphon import (
    EV_TEXT,
    Agent,
    AgentReply,
    Asked,
    Call,
    Finish,
    Hub,
    Intent,
    Objected,
    Reply,
    Request,
    TurnChannel,
    UsageError,
    calls,
    says,
    tool,
)
from antiphon.testing import ManualClock
from tests.acceptance.agent_flow import active_in, add, agent, asked, events_of, kinds, log_of, receipt
from tests.support.waiting import soon


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    async with Hub.open("memory:", clock=ManualClock()) as hub:
        yield hub


class Bill(BaseModel):
    """What somebody owes."""

    order: str
    cents: int
    state: Literal["open", "paid"] = "open"


SCHEMA = {
    "type": "object",
    "properties": {"order": {"type": "string"}, "cents": {"type": "integer", "minimum": 0}},
    "required": ["order", "cents"],
    "additionalProperties": False,
}
GOOD = '{"order": "7", "cents": 4200}'
BAD = '{"order": 7}'
BOTH = pytest.mark.parametrize(
    ("output", "value"),
    [(Bill, Bill(order="7", cents=4200)), (SCHEMA, {"order": "7", "cents": 4200})],
    ids=["type", "schema"],
)


# A shape that is wanted


@BOTH
async def test_output_is_the_value_that_the_answer_stands_for(hub: Hub, output: object, value: object) -> None:
    support = agent("support", GOOD, output=output)
    reply = await support.invoke("what do I owe?", hub=hub)
    assert (reply.text, reply.output, reply.stopped) == (GOOD, value, None)
    told = asked(support)[0].output
    assert told is not None
    assert (told["type"], sorted(told["required"])) == ("object", ["cents", "order"])  # type: ignore[call-overload]


async def test_output_s_schema_is_what_the_model_is_told(hub: Hub) -> None:
    for name, output, expected in (("a", Bill, Bill.model_json_schema()), ("b", SCHEMA, SCHEMA), ("c", None, None)):
        who = agent(name, GOOD, output=output)
        await who.invoke("what do I owe?", hub=hub)
        assert asked(who)[0].output == expected


@BOTH
async def test_output_that_does_not_fit_is_objected_to_once_and_may_be_put_right(
    hub: Hub, output: object, value: object
) -> None:
    support = agent("support", BAD, GOOD, output=output)
    reply = await support.invoke("what do I owe?", thread_id="t", hub=hub)
    assert (reply.text, reply.output, reply.stopped) == (GOOD, value, None)
    first, objection = asked(support)[1].exchange
    assert first == Asked(BAD, ())
    assert isinstance(objection, Objected)
    assert objection.text.startswith("The answer is not what was asked for: ")
    assert [word for word in ("order", "cents") if word in objection.text] == ["order", "cents"]
    assert asked(support)[1].messages[-2:] == [("assistant", BAD), ("user", objection.text)]
    assert [each.event_data["text"] for each in await log_of(support, hub, EV_TEXT)] == ["what do I owe?", GOOD]


@BOTH
async def test_output_that_does_not_fit_twice_stops_the_turn_with_its_text(
    hub: Hub, output: object, value: object
) -> None:
    support = agent("support", BAD, "You owe 42 euros.", GOOD, output=output)
    events = await events_of(support, "what do I owe?", hub)
    assert kinds(events) == ["AIMessage", "FinalState"]
    again = agent("again", BAD, "You owe 42 euros.", GOOD, output=output)
    first, second = [await again.invoke("what do I owe?", thread_id="t", hub=hub) for _ in range(2)]
    assert (first.text, first.output, first.stopped) == ("You owe 42 euros.", None, "invalid_output")
    assert len(asked(support)) == 2
    assert (second.output, second.stopped) == (value, None)


async def test_output_may_stand_in_a_fence(hub: Hub) -> None:
    reply = await agent("support", f"```json\n{GOOD}\n```", output=Bill).invoke("what do I owe?", hub=hub)
    assert reply.output == Bill(order="7", cents=4200)


async def test_output_of_the_lead_binds_whoever_of_the_team_answers(hub: Hub) -> None:
    billing = agent("billing", "You owe 42 euros.", GOOD)
    support = agent("support", calls("transfer_to_billing"), agents=[billing], output=Bill)
    reply = await support.invoke("what do I owe?", thread_id="t", hub=hub)
    assert (reply.agent, reply.output) == ("billing", Bill(order="7", cents=4200))
    assert asked(billing)[0].output == Bill.model_json_schema()
    assert isinstance(asked(billing)[1].exchange[-1], Objected)


async def test_output_of_a_sub_agent_is_its_own_if_the_lead_wants_none(hub: Hub) -> None:
    billing = agent("billing", GOOD, output=Bill)
    support = agent("support", calls("transfer_to_billing"), "Any words.", agents=[billing])
    replies = [await support.invoke(text, thread_id="t", hub=hub) for text in ("what do I owe?", "@lead thanks")]
    assert [reply.output for reply in replies] == [Bill(order="7", cents=4200), None]
    assert [request.output for request in asked(support)] == [None, None]


async def test_output_is_repaired_once_by_whoever_is_asked(hub: Hub) -> None:
    tired = agent("billing", BAD, calls("request_help", {"reason": "no idea"}))
    support = agent("support", calls("transfer_to_billing"), BAD, BAD, agents=[tired], output=Bill)
    reply = await support.invoke("what do I owe?", thread_id="t", hub=hub)
    assert (reply.text, reply.agent, reply.stopped) == (BAD, "support", "invalid_output")
    assert (len(asked(tired)), len(asked(support))) == (2, 3)
    assert await active_in(support, hub) == "support"


async def test_output_that_no_model_gave_is_held_to_the_same_shape(hub: Hub) -> None:
    """Nobody can be asked to put it right."""

    @tool
    async def leave() -> Finish:
        """Say goodbye."""
        return Finish("all done")

    @tool(return_direct=True)
    async def bill() -> Bill:
        """What is owed."""
        return Bill(order="7", cents=4200)

    def ask(name: str, *script: object, **options: object) -> Agent:
        return agent(name, *script, output=Bill, **options)

    for who, text in (
        (ask("direct", calls("receipt", {"order": "7"}), tools=[receipt]), "RECEIPT 7: 42 euros"),
        (ask("finishes", calls("leave"), tools=[leave]), "all done"),
        (ask("knows", intents=[Intent("go", answer="9 to 5")]), "9 to 5"),
    ):
        reply = await who.invoke("go", hub=hub)
        assert (reply.text, reply.output, reply.stopped) == (text, None, "invalid_output")
    fits = await ask("fits", calls("bill"), tools=[bill]).invoke("go", hub=hub)
    assert (fits.output, fits.stopped) == (Bill(order="7", cents=4200), None)


async def test_output_of_a_task_is_reported_as_a_value(hub: Hub) -> None:
    reports: list[AgentReply] = []
    clerk = agent("clerk", BAD, GOOD, output=Bill)

    @tool
    async def consult(channel: TurnChannel) -> str:
        """Ask the clerk."""
        reports.append(await channel.delegate(clerk, "order 7"))
        return "done"

    await soon(agent("support", calls("consult"), "done", tools=[consult]).invoke("go", hub=hub))
    assert [report.output for report in reports] == [Bill(order="7", cents=4200)]


@pytest.mark.parametrize("output", ["Bill", 7, {"type": "nonsense"}, {"$ref": "http://127.0.0.1/x"}])
def test_output_that_is_no_shape_is_refused_when_the_agent_is_made(output: object) -> None:
    with pytest.raises(UsageError, match="the output of agent 'support' is "):
        agent("support", output=output)


# Blocks, and thoughts in them

SECRET = "the customer is poor"
THOUGHTS = [
    {"type": "thinking", "thinking": SECRET, "signature": "abc"},
    {"type": "redacted_thinking", "data": SECRET},
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": SECRET}], "encrypted_content": SECRET},
    {"type": "reasoning_content", "text": SECRET},
]
EVERY_THOUGHT = pytest.mark.parametrize("thought", THOUGHTS, ids=lambda thought: thought["type"])


@EVERY_THOUGHT
@pytest.mark.parametrize("tokens", [False, True])
async def test_a_thought_is_in_no_event_no_log_and_no_later_request(
    hub: Hub, thought: dict[str, object], tokens: bool
) -> None:
    """In an answer, beside a call, in a reply of several blocks, and of a sub-agent."""
    call = {"type": "tool_use", "id": "u1", "name": "add", "input": {"a": 1, "b": 2}}
    over = {"type": "tool_use", "id": "u2", "name": "transfer_to_billing", "input": {}}
    text = {"type": "text", "text": "Fine."}
    billing = agent("billing", [thought, text, thought], [thought, text])
    support = agent("support", [thought, text, call], [thought, over], tools=[add], agents=[billing])
    events = []
    for said in ("hello", "again"):
        events += await events_of(support, said, hub, tokens=tokens)
    requests = [*asked(support), *asked(billing)]
    told = " ".join([*map(repr, events), *map(repr, requests), *(repr(request.messages) for request in requests)])
    log = " ".join(repr(each.event_data) for each in await log_of(support, hub))
    assert SECRET not in told
    assert SECRET not in log
    assert asked(billing)[1].messages == [("user", "hello"), ("assistant", "Fine."), ("user", "again")]


async def test_blocks_are_joined_and_their_calls_are_made(hub: Hub) -> None:
    blocks = [
        {"type": "text", "text": "Let me "},
        {"type": "text", "text": "see."},
        {"type": "tool_use", "id": "u1", "name": "add", "input": {"a": 1, "b": 2}},
        {"type": "function_call", "call_id": "u2", "name": "add", "arguments": '{"a": 3, "b": 4}'},
    ]
    support = agent("support", blocks, says(["It is ", {"type": "output_text", "text": "ten."}]), tools=[add])
    reply = await support.invoke("how much?", hub=hub)
    assert reply.text == "It is ten."
    made = (Call("add", {"a": 1, "b": 2}, "u1"), Call("add", {"a": 3, "b": 4}, "u2"))
    assert asked(support)[1].exchange[0] == Asked("Let me see.", made)


async def test_blocks_of_thought_alone_say_nothing(hub: Hub) -> None:
    reply = await agent("support", [THOUGHTS[0]]).invoke("hello", hub=hub)
    assert (reply.text, reply.stopped) == ("", "empty_reply")


async def test_blocks_may_hold_the_value_that_is_wanted(hub: Hub) -> None:
    blocks = [THOUGHTS[0], {"type": "text", "text": GOOD[:9]}, {"type": "text", "text": GOOD[9:]}]
    reply = await agent("support", blocks, output=Bill).invoke("what do I owe?", hub=hub)
    assert reply.output == Bill(order="7", cents=4200)


async def test_a_streamed_thought_that_comes_with_the_answer_stays_out(hub: Hub) -> None:
    """What a model streams as text is shown; what it returns in blocks is read."""

    class Streams:
        async def __call__(self, request: Request) -> Reply:
            return says([THOUGHTS[0], {"type": "text", "text": "Fine."}])

        async def stream(self, request: Request) -> AsyncIterator[str | Reply]:
            yield "Fine."
            yield await self(request)

    support = Agent("support", model=Streams())
    events = await events_of(support, "hello", hub, tokens=True)
    assert kinds(events) == ["Token", "AIMessage", "FinalState"]
    assert SECRET not in repr(events)
    assert SECRET not in json.dumps([each.event_data for each in await log_of(support, hub)])
