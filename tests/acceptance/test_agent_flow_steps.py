"""The five steps of a turn, one by one: the prompt, who is active, a place in between, the model, the tools."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from antiphon import (
    EV_TEXT,
    Answered,
    Finish,
    Hub,
    Limits,
    Message,
    Progress,
    Request,
    Step,
    Steps,
    TurnFailed,
    calls,
    says,
    tool,
)
from antiphon.testing import ManualClock
from tests.acceptance.agent_flow import (
    ASK,
    CALL_STARTED,
    GO_ON,
    RENDER,
    ROUTE,
    TOOLS,
    Walk,
    active_in,
    add,
    agent,
    asked,
    events_of,
    kinds,
    log_of,
    look_up,
    receipt,
    walking,
)
from tests.support.waiting import soon

DATE = "Current date: 2026-01-01"


@pytest.fixture
async def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def hub(clock: ManualClock) -> AsyncIterator[Hub]:
    async with Hub.open("memory:", clock=clock) as hub:
        yield hub


# 1. render_system_prompt


async def test_prompt_may_be_a_text(hub: Hub) -> None:
    support = agent("support", "hello", system_prompt="Be brief.", without=["current_date"])
    await support.invoke("hello", hub=hub)
    assert asked(support)[0].system == "Be brief."


@pytest.mark.parametrize("waits", [False, True])
async def test_prompt_may_be_a_function_of_the_messages_so_far(hub: Hub, waits: bool) -> None:
    given: list[list[Message]] = []

    def prompt(messages: Sequence[Message]) -> str:
        given.append(list(messages))
        return f"You have read {len(messages)}."

    async def later(messages: Sequence[Message]) -> str:
        await asyncio.sleep(0)
        return prompt(messages)

    support = agent("support", "one", "two", system_prompt=later if waits else prompt, without=["current_date"])
    for text in ("a", "b"):
        await support.invoke(text, thread_id="t", hub=hub)
    assert given == [[("user", "a")], [("user", "a"), ("assistant", "one"), ("user", "b")]]
    assert [request.system for request in asked(support)] == ["You have read 1.", "You have read 3."]


async def test_prompt_is_written_once_and_every_later_step_reads_the_same(hub: Hub) -> None:
    written: list[str] = []

    def prompt(messages: Sequence[Message]) -> str:
        written.append("once")
        return f"Prompt {len(written)}."

    script = [calls("add", {"a": 1, "b": 2}), calls("add", {"a": 3, "b": 4}), "done"]
    support = agent("support", *script, tools=[add], system_prompt=prompt)
    await support.invoke("go", hub=hub)
    assert [request.system for request in asked(support)] == [f"Prompt 1.\n\n{DATE}"] * 3


async def test_prompt_that_cannot_be_rendered_fails_the_turn_with_its_words(hub: Hub) -> None:
    def prompt(messages: Sequence[Message]) -> str:
        raise LookupError("no template")

    support = agent("support", "hello", system_prompt=prompt)
    with pytest.raises(TurnFailed, match="no template") as caught:
        await support.invoke("hello", hub=hub)
    assert (caught.value.reason, asked(support)) == ("prompt_error", [])


async def test_prompt_of_a_sub_agent_is_a_function_of_the_same_messages(hub: Hub) -> None:
    billing = agent("billing", "done", system_prompt=lambda messages: f"{messages[-1].text}!")
    support = agent("support", calls("transfer_to_billing"), agents=[billing])
    await support.invoke("hello", hub=hub)
    assert asked(billing)[0].system.endswith(f"SUBAGENT SYSTEM PROMPT:\nhello!\n\n{DATE}")


# 2. current_active_agent: the three conditions


@pytest.mark.parametrize(
    "text",
    [
        "@billing what do I owe?",
        "@billing",
        "@billing\nwhat do I owe?",
        "@BILLING hello",
        "@Billing\thello",
        "@billing ",
    ],
)
async def test_routing_by_mention_goes_straight_to_that_agent(hub: Hub, text: str) -> None:
    billing = agent("billing", "billing here")
    support = agent("support", agents=[billing])
    reply = await support.invoke(text, thread_id="t", hub=hub)
    assert reply.agent == "billing"
    read = text[len("@billing") :].strip()
    assert asked(billing)[0].messages == [("user", read or text)]
    assert await active_in(support, hub) == "support/billing"


@pytest.mark.parametrize("name", ["deputy", "clerk", "intern"])
async def test_routing_by_mention_reaches_any_depth_at_once(hub: Hub, name: str) -> None:
    intern = agent("intern", "intern here")
    clerk = agent("clerk", "clerk here", agents=[intern])
    deputy = agent("deputy", "deputy here", agents=[clerk])
    chief = agent("chief", agents=[deputy])
    reply = await chief.invoke(f"@{name} hello", thread_id="t", hub=hub)
    assert (reply.text, reply.agent) == (f"{name} here", name)
    assert asked(chief) == []
    places = {"deputy": "chief/deputy", "clerk": "chief/deputy/clerk", "intern": "chief/deputy/clerk/intern"}
    assert await active_in(chief, hub) == places[name]


@pytest.mark.parametrize("mention", ["@lead", "@support", "@LEAD", "@Support"])
async def test_routing_by_mention_comes_back_to_the_lead(hub: Hub, mention: str) -> None:
    support = agent("support", calls("transfer_to_billing"), "lead here", agents=[agent("billing", "billing here")])
    await support.invoke("hello", thread_id="t", hub=hub)
    reply = await support.invoke(f"{mention} are you there?", thread_id="t", hub=hub)
    assert (reply.text, reply.agent) == ("lead here", "support")
    assert await active_in(support, hub) == "support"


async def test_routing_by_mention_goes_before_whoever_is_active(hub: Hub) -> None:
    billing, legal = agent("billing", "billing here"), agent("legal", "legal here", "legal again")
    support = agent("support", calls("transfer_to_billing"), agents=[billing, legal])
    replies = [await support.invoke(text, thread_id="t", hub=hub) for text in ("a", "@legal b", "c")]
    assert [reply.text for reply in replies] == ["billing here", "legal here", "legal again"]


async def test_routing_by_mention_counts_for_the_last_message_only(hub: Hub) -> None:
    support = agent("support", "one", "two", agents=[agent("billing", "billing here")])
    replies = [await support.invoke(text, thread_id="t", hub=hub) for text in ("@billing a", "@lead b", "c")]
    assert [reply.agent for reply in replies] == ["billing", "support", "support"]


async def test_routing_by_mention_of_a_name_that_stands_twice_means_the_nearest(hub: Hub) -> None:
    deep, near = agent("expert", "deep"), agent("expert", "near")
    support = agent("support", agents=[agent("billing", agents=[deep]), agent("legal"), near])
    assert (await support.invoke("@expert hello", thread_id="t", hub=hub)).text == "near"
    assert await active_in(support, hub) == "support/expert"


async def test_routing_resumes_whoever_is_active_and_is_not_the_lead(hub: Hub) -> None:
    walk: Walk = []
    tax = agent("tax", "one", "two", "three", patcher=walking(walk))
    billing = agent("billing", calls("transfer_to_tax"), agents=[tax], patcher=walking(walk))
    support = agent("support", calls("transfer_to_billing"), agents=[billing], patcher=walking(walk))
    for number in range(3):
        walk.clear()
        reply = await support.invoke(f"message {number}", thread_id="t", hub=hub)
        assert reply.agent == "tax"
    assert walk == [("support", RENDER), ("support", ROUTE), *(("tax", step) for step in (RENDER, ROUTE, GO_ON, ASK))]


async def test_routing_of_threads_knows_nothing_of_other_threads(hub: Hub) -> None:
    billing = agent("billing", "billing here", "billing again")
    support = agent("support", calls("transfer_to_billing"), "lead here", agents=[billing])
    asked_on = ["x", "y", "x"]
    replies = [await support.invoke("hello", thread_id=key, hub=hub) for key in asked_on]
    assert [reply.agent for reply in replies] == ["billing", "support", "billing"]


async def test_routing_falls_through_when_neither_is_so(hub: Hub) -> None:
    support = agent("support", "one", "two", agents=[agent("billing")])
    replies = [await support.invoke(text, thread_id="t", hub=hub) for text in ("hello", "@nobody hello")]
    assert [(reply.text, reply.agent) for reply in replies] == [("one", "support"), ("two", "support")]


async def test_routing_is_settled_once_a_turn(hub: Hub) -> None:
    """An agent that is addressed and asks for help is not addressed again in the same turn."""
    billing = agent("billing", calls("request_help", {"reason": "no idea"}))
    support = agent("support", "lead here", agents=[billing])
    reply = await support.invoke("@billing hello", thread_id="t", hub=hub)
    assert (reply.text, reply.agent, len(asked(billing))) == ("lead here", "support", 1)


# 2. current_active_agent: what is put before and behind the prompt


async def test_a_sub_agent_is_told_first_for_whom_it_works(hub: Hub) -> None:
    billing = agent("billing", "billing here", system_prompt="You know about money.")
    support = agent("support", calls("transfer_to_billing"), agents=[billing], system_prompt="You help.")
    await support.invoke("hello", hub=hub)
    assert asked(support)[0].system == f"You help.\n\n{DATE}"
    assert asked(billing)[0].system == (
        "SUPERVISOR SYSTEM PROMPT:\n"
        "You are a specialist who works for support. Keep to your own part."
        " If you are not sure, call `request_help` and say why.\n"
        "\n"
        "SUBAGENT SYSTEM PROMPT:\n"
        "You know about money.\n"
        "\n"
        f"{DATE}"
    )


@pytest.mark.parametrize("how", ["transferred", "addressed", "resumed"])
async def test_a_sub_agent_is_told_so_once_however_it_was_activated(hub: Hub, how: str) -> None:
    billing = agent("billing", "one", "two", system_prompt="You know about money.")
    support = agent("support", calls("transfer_to_billing"), agents=[billing])
    await support.invoke("@billing hello" if how == "addressed" else "hello", thread_id="t", hub=hub)
    if how == "resumed":
        await support.invoke("hello again", thread_id="t", hub=hub)
    system = asked(billing)[-1].system
    assert [system.count(part) for part in ("SUPERVISOR SYSTEM PROMPT:", "SUBAGENT SYSTEM PROMPT:", DATE)] == [1, 1, 1]


async def test_a_sub_agent_that_is_routed_twice_is_told_so_once(hub: Hub) -> None:
    """A step of its own sends it back to routing."""
    seen: list[str] = []

    def again(progress: Progress) -> bool:
        seen.append(progress.agent)
        return len(seen) == 1

    billing = agent(
        "billing", "billing here", system_prompt="Money.", patcher=lambda steps: steps.branch(GO_ON, again, ROUTE)
    )
    await agent("support", agents=[billing]).invoke("@billing hello", hub=hub)
    assert seen == ["billing", "billing"]
    assert asked(billing)[0].system.count("SYSTEM PROMPT:") == 2
    assert asked(billing)[0].system.count(DATE) == 1


async def test_a_sub_agent_is_told_of_its_own_lead_at_every_depth(hub: Hub) -> None:
    tax = agent("tax", "tax here")
    billing = agent("billing", "billing here", agents=[tax])
    support = agent("support", "lead here", agents=[billing])
    for name in ("lead", "billing", "tax"):
        await support.invoke(f"@{name} hello", thread_id="t", hub=hub)
    assert "SUPERVISOR" not in asked(support)[0].system
    assert "works for support." in asked(billing)[0].system
    assert "works for billing." in asked(tax)[0].system


async def test_a_sub_agent_that_cannot_ask_for_help_is_not_told_to(hub: Hub) -> None:
    billing = agent("billing", "billing here", without=["request_help"])
    await agent("support", agents=[billing]).invoke("@billing hello", hub=hub)
    assert "request_help" not in asked(billing)[0].system
    assert "request_help" not in asked(billing)[0].tools


@pytest.mark.parametrize("system", ["Today is 2026-01-01.", "current date: unknown", "CURRENT DATE: see below"])
async def test_the_date_is_not_put_in_if_the_prompt_has_it(hub: Hub, system: str) -> None:
    support = agent("support", "hello", system_prompt=system)
    await support.invoke("hello", hub=hub)
    assert asked(support)[0].system == system


async def test_the_date_is_that_of_the_message(hub: Hub, clock: ManualClock) -> None:
    support = agent("support", "one", "two")
    await support.invoke("a", thread_id="t", hub=hub)
    await clock.advance(24 * 3600)
    await support.invoke("b", thread_id="t", hub=hub)
    assert [request.system for request in asked(support)] == [DATE, "Current date: 2026-01-02"]


# 3. continue_conversation


async def test_between_routing_and_the_model_a_step_of_one_s_own_can_be_put(hub: Hub) -> None:
    """It sees who was chosen and what will be sent, and may change what is sent; the rest of the flow stays."""

    def polite(progress: Progress) -> Progress:
        assert (progress.agent, progress.lead, progress.heard) == ("support", None, "hello")
        assert (progress.system, progress.messages) == (DATE, [("user", "hello")])
        return progress.replace(
            system=f"{progress.system}\nBe polite.", history=[*progress.history, Message("user", "…")]
        )

    script = [calls("add", {"a": 1, "b": 2}), "done"]
    support = agent("support", *script, tools=[add], patcher=lambda steps: steps.insert_after(GO_ON, polite))
    assert (await support.invoke("hello", thread_id="t", hub=hub)).text == "done"
    assert [request.system for request in asked(support)] == [f"{DATE}\nBe polite."] * 2
    assert asked(support)[0].messages == [("user", "hello"), ("user", "…")]
    assert [each.event_data["text"] for each in await log_of(support, hub, EV_TEXT)] == ["hello", "done"]


async def test_between_routing_and_the_model_an_answer_ends_the_turn(hub: Hub) -> None:
    def closed(progress: Progress) -> Progress:
        return progress.replace(answer="We are closed.")

    support = agent("support", patcher=lambda steps: steps.replace(GO_ON, closed))
    reply = await support.invoke("hello", hub=hub)
    assert (reply.text, reply.stopped, asked(support)) == ("We are closed.", None, [])


# 4. call_model: the three kinds of responses


async def test_a_response_with_tool_calls_leads_to_the_tools(hub: Hub) -> None:
    walk: Walk = []
    support = agent(
        "support", calls("add", {"a": 1, "b": 2}, text="Let me see."), "3", tools=[add], patcher=walking(walk)
    )
    await support.invoke("1+2?", hub=hub)
    assert [step for _, step in walk[3:]] == [ASK, TOOLS, ASK]


async def test_a_plain_response_is_the_end(hub: Hub) -> None:
    walk: Walk = []
    support = agent("support", "hello", patcher=walking(walk))
    assert (await support.invoke("hello", hub=hub)).text == "hello"
    assert walk[-1] == ("support", ASK)


async def test_a_response_in_items_is_read_and_is_the_end(hub: Hub) -> None:
    """As some providers answer: reasoning that is left out, a message of parts, and metadata that says nothing."""
    items = [
        {"type": "reasoning", "id": "r1", "summary": [{"type": "summary_text", "text": "secret thought"}]},
        {
            "type": "message",
            "id": "m1",
            "role": "assistant",
            "content": [
                {"type": "output_text", "text": "You owe ", "annotations": []},
                {"type": "output_text", "text": "42 euros."},
            ],
        },
    ]
    support = agent("support", items)
    events = await events_of(support, "what do I owe?", hub)
    assert kinds(events) == ["AIMessage", "FinalState"]
    assert events[0].text == "You owe 42 euros."  # type: ignore[union-attr]


async def test_a_response_in_items_may_call_tools(hub: Hub) -> None:
    items = [
        {"type": "reasoning", "summary": []},
        {"type": "function_call", "name": "add", "arguments": '{"a": 1, "b": 2}', "call_id": "fc_1"},
    ]
    support = agent("support", items, "3", tools=[add])
    assert (await support.invoke("1+2?", hub=hub)).text == "3"
    [answer] = [item for item in asked(support)[1].exchange if isinstance(item, Answered)]
    assert (answer.call.call_id, answer.text) == ("fc_1", "3")


async def test_a_response_that_is_nothing_is_named(hub: Hub) -> None:
    reply = await agent("support", says("")).invoke("hello", hub=hub)
    assert (reply.text, reply.stopped) == ("", "empty_reply")


async def test_a_model_that_fails_fails_the_turn_and_who_is_active_stays(hub: Hub) -> None:
    billing = agent("billing", "one", RuntimeError("no capacity"), "two")
    support = agent("support", agents=[billing, agent("legal")])
    await support.invoke("@billing a", thread_id="t", hub=hub)
    with pytest.raises(TurnFailed, match="no capacity"):
        await support.invoke("b", thread_id="t", hub=hub)
    assert await active_in(support, hub) == "support/billing"
    assert (await support.invoke("c", thread_id="t", hub=hub)).text == "two"


async def test_a_model_that_takes_too_long_fails_the_turn_and_each_has_its_own_patience(
    hub: Hub, clock: ManualClock
) -> None:
    started = asyncio.Event()

    async def slow(request: Request) -> str:
        started.set()
        await asyncio.Event().wait()
        return "never"

    billing = agent("billing", slow, limits=Limits(model_seconds=5))
    support = agent("support", calls("transfer_to_billing"), agents=[billing], limits=Limits(model_seconds=1000))
    asking = asyncio.create_task(support.invoke("hello", thread_id="t", hub=hub))
    await soon(started.wait())
    await clock.advance(6)
    with pytest.raises(TurnFailed) as caught:
        await soon(asking)
    assert caught.value.reason == "model_timeout"
    assert await active_in(support, hub) == "support"


# 5. call_tools: the five kinds of tools


async def test_a_regular_tool_s_result_goes_back_to_the_model_to_be_interpreted(hub: Hub) -> None:
    support = agent("support", calls("look_up", {"order": "7"}), "It costs 42 euros.", tools=[look_up])
    reply = await support.invoke("order 7?", hub=hub)
    assert asked(support)[1].messages[-1] == ("tool", "42 euros")
    assert reply.text == "It costs 42 euros."


async def test_a_direct_tool_s_result_is_the_answer_word_for_word(hub: Hub) -> None:
    support = agent("support", calls("receipt", {"order": "7"}, text="Here it is:"), "next", tools=[receipt])
    events = await events_of(support, "receipt?", hub)
    assert kinds(events) == ["ToolUsage", "ToolResponse", "AIMessage", "FinalState"]
    assert events[2].text == "RECEIPT 7: 42 euros"  # type: ignore[union-attr]
    await support.invoke("thanks", thread_id="t", hub=hub)
    assert asked(support)[1].messages == [
        ("user", "receipt?"),
        ("assistant", "RECEIPT 7: 42 euros"),
        ("user", "thanks"),
    ]


async def test_a_direct_tool_beside_others_leaves_the_answer_to_the_model(hub: Hub) -> None:
    ran: list[int] = []

    @tool
    async def count(number: int) -> int:
        """Count."""
        ran.append(number)
        return number

    message = [calls("count", {"number": 1}), calls("receipt", {"order": "7"}), calls("count", {"number": 2})]
    support = agent("support", message, "Counted to 2, and it was 42 euros.", tools=[count, receipt])
    reply = await support.invoke("receipt?", hub=hub)
    assert (reply.text, sorted(ran)) == ("Counted to 2, and it was 42 euros.", [1, 2])
    results = [text for role, text in asked(support)[1].messages if role == "tool"]
    assert results == ["1", "RECEIPT 7: 42 euros", "2"]


async def test_a_handoff_tool_leads_to_the_agent_it_names_and_to_no_other(hub: Hub) -> None:
    billing, legal = agent("billing"), agent("legal", "legal here")
    support = agent("support", calls("transfer_to_legal"), agents=[billing, legal])
    assert (await support.invoke("hello", hub=hub)).text == "legal here"
    assert asked(billing) == []


async def test_a_handoff_tool_reaches_only_one_s_own_sub_agents(hub: Hub) -> None:
    tax = agent("tax")
    support = agent("support", calls("transfer_to_tax"), "Then not.", agents=[agent("billing", agents=[tax])])
    assert (await support.invoke("hello", hub=hub)).agent == "support"
    assert asked(support)[1].messages[-1].text.startswith("There is no tool 'transfer_to_tax'; there are: ")


async def test_request_help_makes_the_lead_active_and_goes_on_there(hub: Hub) -> None:
    billing = agent("billing", "one", calls("request_help", {"reason": "no idea"}))
    support = agent("support", "lead here", agents=[billing])
    replies = [await support.invoke(text, thread_id="t", hub=hub) for text in ("@billing a", "b")]
    assert [reply.agent for reply in replies] == ["billing", "support"]
    assert await active_in(support, hub) == "support"


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (calls("look_up", {"order": "8"}), "LookupError: no order 8"),
        (calls("look_up", {"order": 7}), "The arguments of look_up do not fit: order is int, not str."),
        (calls("look_up"), "The arguments of look_up do not fit: order is missing."),
        (calls("look_down"), "There is no tool 'look_down'; there are: look_up, "),
    ],
    ids=["raises", "wrong argument", "missing argument", "unknown"],
)
async def test_whatever_is_wrong_with_a_call_the_model_is_told_and_asked_again(
    hub: Hub, call: object, told: str
) -> None:
    support = agent("support", call, "Sorry.", tools=[look_up])
    reply = await support.invoke("order?", hub=hub)
    [answer] = [item for item in asked(support)[1].exchange if isinstance(item, Answered)]
    assert answer.text.startswith(told)
    assert (answer.failed, reply.text, reply.stopped) == (True, "Sorry.", None)


async def test_finish_goes_before_everything_else(hub: Hub) -> None:
    @tool
    async def leave() -> Finish:
        """Say goodbye."""
        return Finish("all done")

    message = [calls("receipt", {"order": "7"}), calls("transfer_to_billing"), calls("leave", text="Bye.")]
    support = agent("support", message, tools=[leave, receipt], agents=[agent("billing")])
    reply = await support.invoke("that is all", thread_id="t", hub=hub)
    assert (reply.text, reply.agent) == ("Bye.", "support")
    [row] = await hub.channels()
    assert (row.status, row.close_reason) == ("closed", "all done")


# Changing the steps


async def test_steps_can_be_added_led_elsewhere_and_taken_in_another_order(hub: Hub) -> None:
    """A table with a step of one's own and a branch: short questions need no model."""
    walk: list[str] = []

    async def look(progress: Progress) -> Progress:
        walk.append("look")
        return progress.replace(notes={"short": len(progress.heard or "") < 4})

    def brief(progress: Progress) -> Progress:
        walk.append("brief")
        return progress.replace(answer="Yes.")

    def patch(steps: Steps) -> Steps:
        steps = steps.insert_before(GO_ON, look).insert_before(ASK, Step("brief", brief))
        return steps.branch("look", lambda progress: not progress.notes["short"], ASK)

    support = agent("support", "A long answer.", patcher=patch)
    replies = [await support.invoke(text, thread_id="t", hub=hub) for text in ("Ok?", "Is it really so?")]
    assert [reply.text for reply in replies] == ["Yes.", "A long answer."]
    assert walk == ["look", "brief", "look"]
    started = [each.event_data["name"] for each in await log_of(support, hub, CALL_STARTED)]
    assert started == ["step:look", "step:look", "model"]
