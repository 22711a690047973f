"""A team as one participant among others: in a workflow, in a discussion, and handing the turn out of the team."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from antiphon import (
    EV_PACKET,
    Agent,
    AgentTarget,
    Answered,
    ContextEquals,
    Finish,
    FromSpeaker,
    Handoff,
    Limits,
    RevertToInitiatorTarget,
    TerminateTarget,
    ToolCalled,
    Transition,
    TransitionGraph,
    TurnChannel,
    calls,
    set_context,
    tool,
)
from tests.acceptance.agent_flow import agent, asked, look_up, said_in, turns_taken
from tests.acceptance.workflow_team import Team, a_team, rule


@tool
async def pass_on(to: str) -> Handoff:
    """Give the turn to somebody else."""
    return Handoff(to, "needs a lawyer", "the customer threatens to sue")


@pytest.fixture
async def team() -> AsyncIterator[Team]:
    async with a_team("dana:human", "alice") as found:
        yield found


def support_team(*, tax: object = (), billing: object = (), support: object = (), **options: object) -> Agent:
    """Three levels, each with its script, all with a tool that hands over."""
    lowest = agent("tax", *tax, tools=[pass_on, look_up])  # type: ignore[misc]  # scripts
    middle = agent("billing", *billing, tools=[pass_on], agents=[lowest])  # type: ignore[misc]
    return agent("support", *support, tools=[pass_on], agents=[middle], **options)  # type: ignore[misc]


DOWN = {"billing": [calls("transfer_to_tax")], "support": [calls("transfer_to_billing")]}
BACK_AND_FORTH = TransitionGraph("dana", [rule("dana", "support")], AgentTarget("dana"))


# In a workflow


async def test_workflow_a_team_takes_one_turn_whoever_of_it_answers(team: Team) -> None:
    """Its sub-agents are no participants; the packet is the lead's, and says who spoke."""
    await team.hire(support_team(tax=[calls("look_up", {"order": "7"}), "7 euros of tax"], **DOWN))
    workflow = await team.open(TransitionGraph.sequence(["dana", "support", "alice"]), "dana", "support", "alice")
    await workflow.say("dana", "how much tax?")
    await workflow.comes_to("alice")
    assert await workflow.packet_of("support") == {
        "body": "7 euros of tax",
        "routing": {},
        "context_updates": {"set": {}, "delete": []},
        "agent": "support/billing/tax",
    }
    assert workflow.state.active == {"support": "support/billing/tax"}
    assert list(workflow.state.participant_order) == ["dana", "support", "alice"]
    assert await workflow.assigned() == [["dana"], ["support"], ["alice"]]


async def test_workflow_the_active_one_of_a_team_answers_its_next_turn(team: Team) -> None:
    script = [calls("request_help", {"reason": "not mine"})]
    await team.hire(
        support_team(tax=["one", "two", *script], billing=[calls("transfer_to_tax"), "three"], support=DOWN["support"])
    )
    workflow = await team.open(BACK_AND_FORTH, "dana", "support")
    for number, (said, answered) in enumerate((("a", "tax"), ("b", "tax"), ("c", "billing")), 1):
        await workflow.say("dana", said)
        await workflow.comes_to("dana")
        assert workflow.state.active["support"].split("/")[-1] == answered
        assert len(await workflow.log(EV_PACKET)) == number
    assert [text for name, text in await workflow.said() if name == "support"] == ["one", "two", "three"]


async def test_workflow_a_person_may_address_anybody_of_the_team(team: Team) -> None:
    await team.hire(support_team(tax=["tax here"], support=["support here"]))
    workflow = await team.open(BACK_AND_FORTH, "dana", "support")
    for said in ("@tax hello", "@lead hello"):
        await workflow.say("dana", said)
        await workflow.comes_to("dana")
    assert [text for name, text in await workflow.said() if name == "support"] == ["tax here", "support here"]
    assert workflow.state.active == {}


@pytest.mark.parametrize("depth", ["support", "billing", "tax"])
async def test_workflow_a_tool_hands_the_turn_to_another_participant_from_any_depth(team: Team, depth: str) -> None:
    out = calls("pass_on", {"to": "legal"}, text="I pass you on.")
    scripts = {"support": {"support": [out]}, "billing": {**DOWN, "billing": [out]}, "tax": {**DOWN, "tax": [out]}}
    await team.hire(support_team(**scripts[depth]))
    legal = await team.agent("legal", "legal here")
    workflow = await team.open(
        TransitionGraph("dana", [rule("dana", "support")], TerminateTarget("over")), "dana", "support", "legal"
    )
    await workflow.say("dana", "I will sue you")
    assert await workflow.ended() == "over"
    assert await workflow.routing_of("support") == {
        "target": "legal",
        "reason": "needs a lawyer",
        "summary": "the customer threatens to sue",
    }
    assert await workflow.said() == [("dana", "I will sue you"), ("support", "I pass you on."), ("legal", "legal here")]
    assert "the customer threatens to sue" in legal.requests[0].messages[-1].text
    places = {"support": {}, "billing": {"support": "support/billing"}, "tax": {"support": "support/billing/tax"}}
    assert workflow.state.active == places[depth]


async def test_workflow_a_sub_agent_goes_before_a_participant_of_the_same_name(team: Team) -> None:
    mine = agent("billing", "billing of the team")
    await team.hire(agent("support", calls("pass_on", {"to": "billing"}), tools=[pass_on], agents=[mine]))
    await team.agent("billing", "billing of the channel")
    workflow = await team.open(BACK_AND_FORTH, "dana", "support", "billing")
    await workflow.say("dana", "hello")
    await workflow.comes_to("dana")
    assert (await workflow.said())[-1] == ("support", "billing of the team")
    assert await workflow.routing_of("support") == {}


async def test_workflow_a_handoff_to_somebody_who_does_not_take_part_is_refused_in_words(team: Team) -> None:
    tax = [calls("pass_on", {"to": "carol"}), "Then I answer."]
    support = support_team(tax=tax, **DOWN)
    await team.hire(support)
    workflow = await team.open(BACK_AND_FORTH, "dana", "support")
    await workflow.say("dana", "hello")
    await workflow.comes_to("dana")
    lowest = support.agents[0].agents[0]
    assert isinstance(lowest, Agent)
    [refusal] = [item for item in asked(lowest)[1].exchange if isinstance(item, Answered) and item.failed]
    assert refusal.text == "Nobody called 'carol' takes part here; there are: dana, support."
    assert (await workflow.said())[-1] == ("support", "Then I answer.")


async def test_workflow_a_handoff_out_of_the_team_beside_one_within_it_the_first_wins(team: Team) -> None:
    await team.agent("legal", "legal here")
    for name, message in (
        ("support", [calls("pass_on", {"to": "legal"}), calls("transfer_to_billing")]),
        ("other", [calls("transfer_to_billing"), calls("pass_on", {"to": "legal"})]),
    ):
        await team.hire(agent(name, message, tools=[pass_on], agents=[agent("billing", "billing here")]))
        graph = TransitionGraph("dana", [rule("dana", name)], TerminateTarget("over"))
        workflow = await team.open(graph, "dana", name, "legal")
        await workflow.say("dana", "hello")
        assert await workflow.ended() == "over"
        last = ("legal", "legal here") if name == "support" else ("other", "billing here")
        assert (await workflow.said())[-1] == last


async def test_workflow_rules_see_the_tools_and_the_context_of_whoever_answered(team: Team) -> None:
    @tool
    async def flag(channel: TurnChannel) -> str:
        """Flag it."""
        await set_context(channel, urgent=True)
        return f"flagged by {channel.agent} for {channel.lead} in the name of {channel.speaker}"

    billing = agent("billing", calls("flag"), "done", tools=[flag])
    await team.hire(agent("support", calls("transfer_to_billing"), agents=[billing]))
    rules = [
        Transition(
            FromSpeaker("support") & ToolCalled("flag") & ContextEquals("urgent", True), TerminateTarget("flagged")
        ),
        rule("dana", "support"),
    ]
    workflow = await team.open(TransitionGraph("dana", rules, AgentTarget("dana")), "dana", "support")
    await workflow.say("dana", "it is urgent")
    assert await workflow.ended() == "flagged"
    packet = await workflow.packet_of("support")
    assert (packet["context_updates"], packet["agent"]) == ({"set": {"urgent": True}, "delete": []}, "support/billing")
    assert asked(billing)[1].messages[-1].text == "flagged by billing for support in the name of support"


async def test_workflow_finish_from_within_a_sub_agent_ends_the_channel(team: Team) -> None:
    @tool
    async def leave() -> Finish:
        """Say goodbye."""
        return Finish("all settled")

    billing = agent("billing", calls("leave", text="Goodbye."), tools=[leave])
    await team.hire(agent("support", calls("transfer_to_billing"), agents=[billing]))
    workflow = await team.open(BACK_AND_FORTH, "dana", "support")
    await workflow.say("dana", "that is all")
    assert await workflow.ended() == "all settled"
    assert (await workflow.said())[-1] == ("support", "Goodbye.")


async def test_workflow_a_limit_is_in_the_packet_and_the_rules_go_on(team: Team) -> None:
    back = calls("request_help", {"reason": "not mine"}, text="I cannot.")
    billing = agent("billing", back, back)
    options = {"agents": [billing], "limits": Limits(handoffs=1)}
    await team.hire(agent("support", calls("transfer_to_billing"), **options))
    workflow = await team.open(TransitionGraph.sequence(["dana", "support"]), "dana", "support")
    await workflow.say("dana", "hello")
    assert await workflow.ended() == "sequence_complete"
    assert await workflow.packet_of("support") == {
        "body": "I cannot.",
        "routing": {"stopped": "max_handoffs"},
        "context_updates": {"set": {}, "delete": []},
        "agent": "support/billing",
    }


async def test_workflow_handoffs_within_a_team_are_no_handoffs_of_the_channel(team: Team) -> None:
    """The channel counts only turns that move from one participant to another."""
    there, back = calls("transfer_to_billing"), calls("request_help", {"reason": "not mine"})
    billing = agent("billing", *[back] * 12)
    await team.hire(agent("support", *[there, there, "done"] * 6, agents=[billing]))
    workflow = await team.open(BACK_AND_FORTH, "dana", "support")
    for _ in range(6):
        await workflow.say("dana", "hello")
        await workflow.comes_to("dana")
    assert [text for name, text in await workflow.said() if name == "support"] == ["done"] * 6


async def test_workflow_a_team_that_fails_gives_the_turn_as_the_rules_say(team: Team) -> None:
    billing = agent("billing", RuntimeError("no capacity"))
    await team.hire(agent("support", calls("transfer_to_billing"), agents=[billing]))
    graph = TransitionGraph("dana", [rule("dana", "support")], RevertToInitiatorTarget())
    workflow = await team.open(graph, "dana", "support")
    await workflow.say("dana", "hello")
    await workflow.until(lambda state: state.expected_next_speaker != "support")
    [failed] = await workflow.log("antiphon.turn.failed")
    assert failed.event_data["reason"] == "model_error"
    assert workflow.state.active == {}


# In a discussion


async def test_discussion_teams_speak_in_turn_each_with_an_active_one_of_its_own(team: Team) -> None:
    """Everybody reads who said what under the name of the team."""
    billing = agent("billing", "billing: 42", "billing: 43")
    tower = agent("tower", "tower: high", "tower: higher")
    await team.hire(agent("support", calls("transfer_to_billing"), agents=[billing]))
    await team.hire(agent("planner", calls("transfer_to_tower"), agents=[tower]))
    channel = await team.people["dana"].open(type="discussion", target=["support", "planner"])
    for number, said in enumerate(("what do we do?", "and then?"), 1):
        await channel.send(said)
        await turns_taken(channel, 3 * number)
    assert await said_in(team.hub, channel.channel_id) == [
        ("dana", "what do we do?"),
        ("support", "billing: 42"),
        ("planner", "tower: high"),
        ("dana", "and then?"),
        ("support", "billing: 43"),
        ("planner", "tower: higher"),
    ]
    assert channel.state.active == {"support": "support/billing", "planner": "planner/tower"}
    assert asked(tower)[1].messages == [
        ("user", "dana: what do we do?"),
        ("user", "support: billing: 42"),
        ("assistant", "tower: high"),
        ("user", "dana: and then?"),
        ("user", "support: billing: 43"),
    ]


async def test_discussion_nobody_can_be_handed_the_turn_out_of_the_team(team: Team) -> None:
    billing = agent("billing", calls("pass_on", {"to": "dana"}), "Then I answer.", tools=[pass_on])
    await team.hire(agent("support", calls("transfer_to_billing"), agents=[billing]))
    channel = await team.people["dana"].open(type="discussion", target=["support"])
    await channel.send("hello")
    await turns_taken(channel, 2)
    assert (await said_in(team.hub, channel.channel_id))[-1] == ("support", "Then I answer.")
    assert (
        asked(billing)[1].messages[-1].text == "Nobody can be handed anything in a discussion channel; answer yourself."
    )


async def test_discussion_one_agent_may_stand_in_two_teams(team: Team) -> None:
    shared = agent("expert", "for one", "for two")
    await team.hire(agent("one", calls("transfer_to_expert"), agents=[shared]))
    await team.hire(agent("two", calls("transfer_to_expert"), agents=[shared]))
    channel = await team.people["dana"].open(type="discussion", target=["one", "two"])
    await channel.send("hello")
    await turns_taken(channel, 3)
    assert channel.state.active == {"one": "one/expert", "two": "two/expert"}
    assert [request.system.splitlines()[1].partition(".")[0] for request in asked(shared)] == [
        "You are a specialist who works for one",
        "You are a specialist who works for two",
    ]
