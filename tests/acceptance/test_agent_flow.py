"""How an agent answers a message: the way through its steps, and how agents of a team hand over to each other.

Who comes to which step is noted by steps that are put in before each of the five, so that a way is a list of pairs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from antiphon import (
    EV_TEXT,
    Agent,
    Answered,
    Asked,
    Call,
    Handoff,
    Hub,
    Limits,
    Progress,
    Steps,
    ToolResponseEvent,
    ToolUsageEvent,
    UsageError,
    calls,
    says,
    tool,
)
from antiphon.testing import ManualClock
from tests.acceptance.agent_flow import (
    ASK,
    FIVE,
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
    log_of,
    look_up,
    receipt,
    walking,
)
from tests.support.waiting import soon

HELP = {"reason": "the customer wants a refund"}


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    async with Hub.open("memory:", clock=ManualClock()) as hub:
        yield hub


def steps_of(*pairs: tuple[str, str]) -> Walk:
    """Who took which steps, each pair being a name and steps in one text."""
    return [(name, step) for name, steps in pairs for step in steps.split()]


TO_MODEL = f"{RENDER} {ROUTE} {GO_ON} {ASK}"


# The graph: its boxes


def test_the_five_steps_have_names_and_an_order() -> None:
    seen: list[Steps] = []

    def look(steps: Steps) -> Steps:
        seen.append(steps)
        return steps

    agent("support", patcher=look)
    assert seen[0].names == FIVE


def test_the_graph_can_be_drawn() -> None:
    assert agent("support").steps.to_mermaid().splitlines() == [
        "flowchart TD",
        "    render_system_prompt --> current_active_agent",
        "    current_active_agent --> continue_conversation",
        "    continue_conversation --> call_model",
        "    call_model -->|answered| END([end])",
        "    call_model -->|calls| call_tools",
        "    call_model --> call_model",
        "    call_tools -->|answered| END([end])",
        "    call_tools --> call_model",
    ]


async def test_render_system_prompt_leaves_the_prompt_for_every_step_after_it(hub: Hub) -> None:
    seen: list[tuple[str, str]] = []

    def noting(name: str) -> object:
        def note(progress: Progress) -> None:
            seen.append((name, progress.system))

        note.__name__ = f"see_{name}"
        return note

    def patch(steps: Steps) -> Steps:
        for name in FIVE:
            steps = steps.insert_before(name, noting(name))  # type: ignore[arg-type]  # a function of the progress
        return steps

    support = agent(
        "support", calls("add", {"a": 1, "b": 2}), "3", tools=[add], system_prompt="Be brief.", patcher=patch
    )
    await support.invoke("1+2?", hub=hub)
    whole = "Be brief.\n\nCurrent date: 2026-01-01"
    assert seen == [
        (RENDER, ""),
        (ROUTE, "Be brief."),
        (GO_ON, whole),
        (ASK, whole),
        (TOOLS, whole),
        (ASK, whole),
    ]
    assert [request.system for request in asked(support)] == [whole, whole]


async def test_current_active_agent_decides_who_handles_the_turn(hub: Hub) -> None:
    """What stands after it is done by whoever it has chosen, and by nobody else."""
    walk: Walk = []
    billing = agent("billing", "billing", patcher=walking(walk))
    support = agent("support", agents=[billing], patcher=walking(walk))
    await support.invoke("@billing hello", hub=hub)
    assert walk == steps_of(("support", f"{RENDER} {ROUTE}"), ("billing", TO_MODEL))


async def test_continue_conversation_changes_nothing(hub: Hub) -> None:
    seen: list[Progress] = []

    def note(progress: Progress) -> None:
        seen.append(progress)

    def note_again(progress: Progress) -> None:
        seen.append(progress)

    def patch(steps: Steps) -> Steps:
        return steps.insert_before(GO_ON, note).insert_after(GO_ON, note_again)

    await agent("support", "hello", patcher=patch).invoke("hello", hub=hub)
    before, after = seen
    assert before == after


async def test_call_model_is_given_the_prompt_and_the_messages(hub: Hub) -> None:
    support = agent("support", "one", "two", system_prompt="Be brief.")
    for text in ("a", "b"):
        await support.invoke(text, thread_id="t", hub=hub)
    request = asked(support)[1]
    assert request.system == "Be brief.\n\nCurrent date: 2026-01-01"
    assert request.messages == [("user", "a"), ("assistant", "one"), ("user", "b")]


async def test_call_tools_makes_each_call_that_was_asked_for(hub: Hub) -> None:
    message = [calls("add", {"a": 1, "b": 2}), calls("look_up", {"order": "7"}), calls("add", {"a": 3, "b": 4})]
    support = agent("support", message, "done", tools=[add, look_up])
    await support.invoke("go", hub=hub)
    assert asked(support)[1].messages[1:] == [("assistant", ""), ("tool", "3"), ("tool", "42 euros"), ("tool", "7")]


# The graph: its arrows


async def test_from_the_user_through_the_agent_and_back(hub: Hub) -> None:
    """A message is sent, the graph is begun at its first step, words end it, and the response goes to the user."""
    walk: Walk = []
    support = agent("support", "Good day.", patcher=walking(walk))
    reply = await support.invoke("Good day?", thread_id="t", hub=hub)
    assert walk == steps_of(("support", TO_MODEL))
    assert (reply.text, reply.agent, reply.stopped) == ("Good day.", "support", None)
    said = await log_of(support, hub, EV_TEXT)
    assert [(each.sender_id, each.event_data) for each in said] == [
        ("user", {"text": "Good day?"}),
        ("support", {"text": "Good day."}),
    ]
    assert said[1].causation_id == said[0].envelope_id


async def test_from_routing_to_a_sub_agent_whom_the_user_addresses(hub: Hub) -> None:
    billing = agent("billing", "billing here")
    support = agent("support", agents=[billing])
    reply = await support.invoke("@billing hello", hub=hub)
    assert (reply.text, reply.agent) == ("billing here", "billing")
    assert asked(support) == []


async def test_from_routing_to_the_sub_agent_that_is_active(hub: Hub) -> None:
    billing = agent("billing", "one", "two")
    support = agent("support", calls("transfer_to_billing"), agents=[billing])
    await support.invoke("a", thread_id="t", hub=hub)
    reply = await support.invoke("b", thread_id="t", hub=hub)
    assert (reply.text, reply.agent) == ("two", "billing")
    assert len(asked(support)) == 1


async def test_from_routing_on_if_nobody_else_is_meant(hub: Hub) -> None:
    walk: Walk = []
    support = agent("support", "support here", agents=[agent("billing")], patcher=walking(walk))
    assert (await support.invoke("hello", hub=hub)).agent == "support"
    assert walk == steps_of(("support", TO_MODEL))


async def test_from_the_model_to_its_tools_and_back_to_the_model(hub: Hub) -> None:
    walk: Walk = []
    support = agent("support", calls("add", {"a": 1, "b": 2}), "3", tools=[add], patcher=walking(walk))
    assert (await support.invoke("1+2?", hub=hub)).text == "3"
    assert walk == steps_of(("support", f"{TO_MODEL} {TOOLS} {ASK}"))


async def test_from_a_tool_that_fails_back_to_the_model(hub: Hub) -> None:
    walk: Walk = []
    support = agent(
        "support", calls("receipt", {"order": "8"}), "There is none.", tools=[receipt], patcher=walking(walk)
    )
    assert (await support.invoke("receipt?", hub=hub)).text == "There is none."
    assert walk == steps_of(("support", f"{TO_MODEL} {TOOLS} {ASK}"))
    assert asked(support)[1].messages[-1] == ("tool", "LookupError: no order 8")


async def test_from_a_tool_that_returns_directly_to_the_end(hub: Hub) -> None:
    walk: Walk = []
    support = agent("support", calls("receipt", {"order": "7"}), tools=[receipt], patcher=walking(walk))
    assert (await support.invoke("receipt?", hub=hub)).text == "RECEIPT 7: 42 euros"
    assert walk == steps_of(("support", f"{TO_MODEL} {TOOLS}"))


async def test_from_call_tools_to_a_sub_agent_by_its_transfer(hub: Hub) -> None:
    walk: Walk = []
    billing = agent("billing", "billing here", patcher=walking(walk))
    support = agent("support", calls("transfer_to_billing"), agents=[billing], patcher=walking(walk))
    assert (await support.invoke("hello", hub=hub)).agent == "billing"
    assert walk == steps_of(("support", f"{TO_MODEL} {TOOLS}"), ("billing", TO_MODEL))


async def test_from_call_tools_to_the_lead_by_a_request_for_help(hub: Hub) -> None:
    """The lead's prompt is rendered anew, in the same turn."""
    walk: Walk = []
    billing = agent("billing", calls("request_help", HELP), patcher=walking(walk))
    support = agent("support", calls("transfer_to_billing"), "I see.", agents=[billing], patcher=walking(walk))
    assert (await support.invoke("hello", hub=hub)).agent == "support"
    assert walk == steps_of(
        ("support", f"{TO_MODEL} {TOOLS}"),
        ("billing", f"{TO_MODEL} {TOOLS}"),
        ("support", TO_MODEL),
    )


async def test_what_happened_below_is_known_to_the_agent_above_and_the_other_way_round(hub: Hub) -> None:
    """Who is active is part of the channel, and everybody of the team reads the same messages."""
    billing = agent("billing", calls("look_up", {"order": "7"}), calls("request_help", HELP), tools=[look_up])
    support = agent("support", calls("transfer_to_billing"), "I see.", agents=[billing])
    assert await active_in(support, hub) == "support"
    await support.invoke("order 7", thread_id="t", hub=hub)
    assert [item.text for item in asked(support)[1].exchange if isinstance(item, Answered)] == [
        "Conversation transferred to billing.",
        "42 euros",
        HELP["reason"],
    ]
    assert asked(support)[1].history == asked(billing)[0].history == [("user", "order 7")]


# Handing over


async def test_handing_over_is_a_call_whose_result_says_so(hub: Hub) -> None:
    billing = agent("billing", "billing here")
    support = agent("support", calls("transfer_to_billing", {"reason": "money"}, call_id="c1"), agents=[billing])
    events = await events_of(support, "hello", hub)
    text = "Conversation transferred to billing."
    assert events[:2] == [
        ToolUsageEvent("support", "transfer_to_billing", {"reason": "money"}, "6/support/1"),
        ToolResponseEvent("support", "transfer_to_billing", text, "6/support/1"),
    ]
    call = Call("transfer_to_billing", {"reason": "money"}, "c1")
    assert asked(billing)[0].exchange == (Asked("", (call,)), Answered(call, text))


async def test_handing_over_makes_the_sub_agent_the_active_one(hub: Hub) -> None:
    support = agent("support", calls("transfer_to_billing"), agents=[agent("billing", "billing here")])
    await support.invoke("hello", thread_id="t", hub=hub)
    assert await active_in(support, hub) == "support/billing"
    [answer] = [each for each in await log_of(support, hub, EV_TEXT) if each.sender_id == "support"]
    assert answer.event_data == {"text": "billing here", "agent": "support/billing"}


async def test_handing_over_shows_the_sub_agent_everything_that_was_said(hub: Hub) -> None:
    billing = agent("billing", "billing here")
    script = ["Hello.", calls("add", {"a": 1, "b": 2}, text="One moment."), calls("transfer_to_billing", text="Over.")]
    support = agent("support", *script, tools=[add], agents=[billing])
    for text in ("a", "b"):
        await support.invoke(text, thread_id="t", hub=hub)
    assert asked(billing)[0].messages == [
        ("user", "a"),
        ("assistant", "Hello."),
        ("user", "b"),
        ("assistant", "One moment."),
        ("tool", "3"),
        ("assistant", "Over."),
        ("tool", "Conversation transferred to billing."),
    ]


async def test_handing_over_lets_the_sub_agent_go_through_a_whole_cycle_of_its_own(hub: Hub) -> None:
    walk: Walk = []
    script = [calls("look_up", {"order": "8"}), calls("look_up", {"order": "7"}), "42 euros"]
    billing = agent("billing", *script, tools=[look_up], patcher=walking(walk))
    support = agent("support", calls("transfer_to_billing"), agents=[billing])
    assert (await support.invoke("order 7?", hub=hub)).text == "42 euros"
    assert walk == steps_of(("billing", f"{TO_MODEL} {TOOLS} {ASK} {TOOLS} {ASK}"))


async def test_handing_over_leaves_the_sub_agent_s_answer_where_everybody_reads_it(hub: Hub) -> None:
    support = agent("support", calls("transfer_to_billing"), "lead here", agents=[agent("billing", "You owe 42.")])
    for text in ("what do I owe?", "@lead is that right?"):
        await support.invoke(text, thread_id="t", hub=hub)
    assert asked(support)[1].messages == [
        ("user", "what do I owe?"),
        ("assistant", "You owe 42."),
        ("user", "is that right?"),
    ]


async def test_after_handing_over_the_next_turn_begins_with_the_sub_agent(hub: Hub) -> None:
    walk: Walk = []
    billing = agent("billing", "one", "two", patcher=walking(walk))
    support = agent("support", calls("transfer_to_billing"), agents=[billing], patcher=walking(walk))
    await support.invoke("a", thread_id="t", hub=hub)
    walk.clear()
    await support.invoke("b", thread_id="t", hub=hub)
    assert walk == steps_of(("support", f"{RENDER} {ROUTE}"), ("billing", TO_MODEL))


# Asking for help


async def test_asking_for_help_tells_the_lead_s_model_why(hub: Hub) -> None:
    billing = agent("billing", calls("request_help", HELP, call_id="h"))
    support = agent("support", calls("transfer_to_billing"), "I see.", agents=[billing])
    events = await events_of(support, "hello", hub)
    assert asked(support)[1].exchange[-1] == Answered(Call("request_help", HELP, "h"), HELP["reason"])
    assert ToolResponseEvent("billing", "request_help", HELP["reason"], "6/support/3") in events


async def test_asking_for_help_makes_the_lead_the_active_one(hub: Hub) -> None:
    billing = agent("billing", "one", calls("request_help", HELP))
    support = agent("support", calls("transfer_to_billing"), "I see.", "lead again", agents=[billing])
    for text, active in (("a", "support/billing"), ("b", "support"), ("c", "support")):
        await support.invoke(text, thread_id="t", hub=hub)
        assert await active_in(support, hub) == active
    assert asked(support)[2].messages[-3:] == [("user", "b"), ("assistant", "I see."), ("user", "c")]


async def test_asking_for_help_renders_the_lead_s_prompt_anew(hub: Hub) -> None:
    rendered = iter(range(1, 9))
    billing = agent("billing", calls("request_help", HELP))
    script = [calls("transfer_to_billing"), "I see."]
    support = agent("support", *script, agents=[billing], system_prompt=lambda messages: f"number {next(rendered)}")
    await support.invoke("hello", hub=hub)
    assert [request.system.splitlines()[0] for request in asked(support)] == ["number 1", "number 2"]


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
async def test_asking_for_help_goes_up_one_level_at_a_time_from_any_depth(hub: Hub, depth: int) -> None:
    """On the way up each reason is the result of its own call, which the model one level up reads last."""
    team: list[Agent] = [agent(f"level{depth}", calls("request_help", {"reason": f"why {depth}"}))]
    for level in range(depth - 1, -1, -1):
        up = calls("request_help", {"reason": f"why {level}"}) if level else says("I see.")
        below = team[0]
        limits = Limits(handoffs=2 * depth)
        team.insert(0, agent(f"level{level}", calls(f"transfer_to_{below.name}"), up, agents=[below], limits=limits))
    reply = await soon(team[0].invoke("hello", thread_id="t", hub=hub))
    assert (reply.text, reply.agent, reply.stopped) == ("I see.", "level0", None)
    assert await active_in(team[0], hub) == "level0"
    for level in range(depth):
        last = asked(team[level])[1].exchange[-1]
        assert isinstance(last, Answered)
        assert (last.call.name, last.text, last.failed) == ("request_help", f"why {level + 1}", False)
    shown = [item.text for item in asked(team[0])[1].exchange if isinstance(item, Answered)]
    down = [f"Conversation transferred to level{level}." for level in range(1, depth + 1)]
    assert shown == [*down, *(f"why {level}" for level in range(depth, 0, -1))]


async def test_asking_for_help_is_only_for_those_who_have_a_lead(hub: Hub) -> None:
    support = agent("support", calls("request_help", HELP), "Then not.", agents=[agent("billing")])
    await support.invoke("hello", hub=hub)
    assert "request_help" not in asked(support)[0].tools
    assert asked(support)[1].messages[-1].text.startswith("There is no tool 'request_help'; there are: ")


async def test_asking_for_help_needs_a_reason(hub: Hub) -> None:
    billing = agent("billing", calls("request_help"), "Then not.")
    support = agent("support", calls("transfer_to_billing"), agents=[billing])
    reply = await support.invoke("hello", hub=hub)
    assert (reply.text, reply.agent) == ("Then not.", "billing")
    assert asked(billing)[1].messages[-1] == ("tool", "The arguments of request_help do not fit: reason is missing.")


# Several calls in one message


async def test_a_handoff_beside_other_calls_all_of_them_run_and_get_a_result(hub: Hub) -> None:
    """In whatever order they stand; the turn goes on with whoever it was handed to."""
    ran: list[str] = []

    @tool
    async def note(what: str) -> str:
        """Note something."""
        ran.append(what)
        return f"noted {what}"

    message = [calls("note", {"what": "a"}), calls("transfer_to_billing"), calls("note", {"what": "b"})]
    billing = agent("billing", "billing here")
    support = agent("support", message, tools=[note], agents=[billing])
    reply = await support.invoke("hello", hub=hub)
    assert (reply.agent, sorted(ran)) == ("billing", ["a", "b"])
    answers = [item for item in asked(billing)[0].exchange if isinstance(item, Answered)]
    assert [(item.text, item.failed) for item in answers] == [
        ("noted a", False),
        ("Conversation transferred to billing.", False),
        ("noted b", False),
    ]


async def test_of_several_handoffs_the_first_wins_and_the_others_are_told_that_they_were_ignored(hub: Hub) -> None:
    message = [calls("transfer_to_legal"), calls("transfer_to_billing"), calls("transfer_to_legal")]
    billing, legal = agent("billing"), agent("legal", "legal here")
    reply = await agent("support", message, agents=[billing, legal]).invoke("hello", hub=hub)
    assert reply.agent == "legal"
    answers = [item for item in asked(legal)[0].exchange if isinstance(item, Answered)]
    assert [(item.call.name, item.text, item.failed) for item in answers] == [
        ("transfer_to_legal", "Conversation transferred to legal.", False),
        ("transfer_to_billing", "Ignored: the turn goes to legal.", True),
        ("transfer_to_legal", "Ignored: the turn goes to legal.", True),
    ]


async def test_a_handoff_that_cannot_be_made_leaves_the_next_one_its_chance(hub: Hub) -> None:
    message = [calls("transfer_to_nobody"), calls("transfer_to_legal", {"why": 1}), calls("transfer_to_billing")]
    support = agent("support", message, agents=[agent("legal"), agent("billing", "billing here")])
    assert (await support.invoke("hello", hub=hub)).agent == "billing"


async def test_a_transfer_beside_a_request_for_help_is_a_handoff_like_any_other(hub: Hub) -> None:
    tax = agent("tax", "tax here")
    message = [calls("request_help", HELP), calls("transfer_to_tax")]
    billing = agent("billing", message, agents=[tax])
    support = agent("support", calls("transfer_to_billing"), "lead here", agents=[billing])
    assert (await support.invoke("hello", hub=hub)).agent == "support"
    assert asked(support)[1].messages[-2:] == [("tool", HELP["reason"]), ("tool", "Ignored: the turn goes to support.")]


async def test_a_handoff_goes_before_a_result_that_would_be_the_answer(hub: Hub) -> None:
    message = [calls("receipt", {"order": "7"}), calls("transfer_to_billing")]
    billing = agent("billing", "billing here")
    reply = await agent("support", message, tools=[receipt], agents=[billing]).invoke("hello", hub=hub)
    assert (reply.text, reply.agent) == ("billing here", "billing")
    assert ("tool", "RECEIPT 7: 42 euros") in asked(billing)[0].messages


@tool
async def pass_on(to: str) -> Handoff:
    """Give it to somebody else."""
    return Handoff(to, "better there")


async def test_a_tool_of_one_s_own_may_hand_over_to_a_sub_agent_and_to_the_lead(hub: Hub) -> None:
    billing = agent("billing", "billing here", calls("pass_on", {"to": "support"}), tools=[pass_on])
    support = agent("support", calls("pass_on", {"to": "billing"}), "lead here", tools=[pass_on], agents=[billing])
    for text, name, place in (("a", "billing", "support/billing"), ("b", "support", "support")):
        reply = await support.invoke(text, thread_id="t", hub=hub)
        assert (reply.text, reply.agent) == ({"billing": "billing here", "support": "lead here"}[name], name)
        assert await active_in(support, hub) == place
    assert asked(support)[1].messages[-1] == ("tool", "Handed off to support.")


async def test_a_tool_of_one_s_own_hands_over_to_nobody_else_on_a_thread(hub: Hub) -> None:
    support = agent("support", calls("pass_on", {"to": "carol"}), "I stay.", tools=[pass_on], agents=[agent("billing")])
    reply = await support.invoke("hello", hub=hub)
    assert (reply.text, reply.agent) == ("I stay.", "support")
    [last] = [item for item in asked(support)[1].exchange if isinstance(item, Answered)]
    assert (last.text, last.failed) == (
        "Nobody can be handed anything in a conversation channel; answer yourself.",
        True,
    )


# How sub-agents come to be


@pytest.mark.parametrize("where", ["agents", "tools", "both"])
async def test_every_agent_given_becomes_one_transfer_tool_and_a_place_to_go_to(hub: Hub, where: str) -> None:
    analytics, report = agent("AnalyticsAgent", "numbers"), agent("ReportAgent", "a page")
    given = {
        "agents": {"agents": [analytics, report]},
        "tools": {"tools": [analytics, add, report]},
        "both": {"agents": [analytics], "tools": [analytics, report, add]},
    }[where]
    lead = agent("lead_agent", "hello", **given)
    await lead.invoke("hello", thread_id="t", hub=hub)
    transfers = [name for name in asked(lead)[0].tools if name.startswith("transfer_to_")]
    assert transfers == ["transfer_to_AnalyticsAgent", "transfer_to_ReportAgent"]
    for name, text in (("AnalyticsAgent", "numbers"), ("ReportAgent", "a page")):
        reply = await lead.invoke(f"@{name} go", thread_id="t", hub=hub)
        assert (reply.agent, reply.text) == (name, text)


def test_whatever_is_wrong_with_a_team_is_said_when_it_is_made() -> None:
    billing = agent("billing")
    with pytest.raises(UsageError, match="two sub-agents called 'billing'"):
        agent("support", agents=[billing, agent("Billing")])
    with pytest.raises(UsageError, match="support/billing/support: an agent cannot work for one of its own name"):
        agent("support", agents=[agent("billing", agents=[agent("support")])])
    with pytest.raises(UsageError, match="a tool 'transfer_to_billing' of its own"):
        agent("support", agents=[billing], tools=[tool(add.function, name="transfer_to_billing")])


async def test_the_transfer_tool_tells_the_lead_what_the_sub_agent_is_for(hub: Hub) -> None:
    support = agent("support", "hello", agents=[agent("billing", description="Knows about money.")])
    await support.invoke("hello", hub=hub)
    [spec] = [spec for spec in asked(support)[0].specs if spec.name == "transfer_to_billing"]
    assert spec.description == ("Hand the conversation over to billing, who answers from then on. Knows about money.")
