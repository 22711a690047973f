"""Routing by what an agent's turn did: tools that rules name, handoffs, and the end of the work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from antiphon import (
    Agent,
    AgentTarget,
    Always,
    Finish,
    FromSpeaker,
    Handoff,
    ScriptedModel,
    TerminateTarget,
    ToolCalled,
    Transition,
    TransitionGraph,
    calls,
    says,
    tool,
)
from tests.acceptance.workflow_team import ASSIGNED, Team, Workflow, a_team, rule

CREW = ("security", "billing", "review")
RULES = [
    Transition(ToolCalled("call_security"), AgentTarget("security")),
    Transition(ToolCalled("ask_billing"), AgentTarget("billing")),
    rule("user", "triage"),
    rule("triage", "review"),
]


@tool
async def call_security(why: str = "") -> str:
    """Let the security people have a look."""
    return "They will."


@tool
async def ask_billing() -> str:
    """Let the accountants have a look."""
    return "They will."


@tool
async def look_up(word: str) -> str:
    """Look something up. No rule names it."""
    return f"{word} means nothing."


@tool
async def fall_over() -> str:
    """Fail."""
    raise OSError("out of order")


@tool
async def hand_to(name: str, reason: str = "", summary: str = "") -> Handoff:
    """Give the turn to somebody."""
    return Handoff(target=name, reason=reason, summary=summary)


@tool
async def wrap_up(reason: str) -> Finish:
    """Say that nothing is left to do."""
    return Finish(reason)


TOOLS = [call_security, ask_billing, look_up, fall_over, hand_to, wrap_up]


@pytest.fixture
async def team() -> AsyncIterator[Team]:
    async with a_team("user", *CREW) as found:
        yield found


async def triaged(team: Team, *script: object, rules: list[Transition] = RULES) -> tuple[Workflow, ScriptedModel]:
    """A channel in which the agent `triage` has taken one turn by this script. Everybody else is code."""
    model = await team.agent("triage", *script, tools=TOOLS)
    workflow = await team.open(TransitionGraph("user", rules, TerminateTarget("over")), "user", "triage", *CREW)
    await workflow.say("user", "It is broken.")
    await workflow.after("triage")
    return workflow, model


# Tools that rules name


async def test_routing_tool_that_a_rule_names_decides_where_the_turn_goes(team: Team) -> None:
    workflow, _ = await triaged(team, calls("call_security", {"why": "odd"}), "I have told them.")
    assert await workflow.routing_of("triage") == {"tool": "call_security"}
    assert workflow.next == "security"
    assert (await workflow.packet_of("triage"))["body"] == "I have told them."


async def test_routing_tool_none_called_leaves_it_to_the_other_rules(team: Team) -> None:
    workflow, _ = await triaged(team, "Nothing to do.")
    assert (await workflow.routing_of("triage"), workflow.next) == ({}, "review")


async def test_routing_tool_that_no_rule_names_routes_nothing(team: Team) -> None:
    workflow, _ = await triaged(team, calls("look_up", {"word": "broken"}), "I do not know.")
    assert (await workflow.routing_of("triage"), workflow.next) == ({}, "review")


EMISSIONS = {
    "in one message": [[calls("look_up", {"word": "x"}), calls("ask_billing"), calls("call_security")], "Both."],
    "one message after the other": [
        calls("look_up", {"word": "x"}),
        calls("ask_billing"),
        calls("call_security"),
        "Both.",
    ],
}


@pytest.mark.parametrize("script", EMISSIONS.values(), ids=EMISSIONS)
async def test_routing_tool_is_the_first_in_order_of_emission_that_a_rule_names(
    team: Team, script: list[object]
) -> None:
    """Not the first in the table: the table names the other one first."""
    workflow, _ = await triaged(team, *script)
    assert await workflow.routing_of("triage") == {"tool": "ask_billing"}
    assert workflow.next == "billing"


async def test_routing_tool_is_the_first_emitted_although_another_is_done_before(team: Team) -> None:
    done = asyncio.Event()

    @tool
    async def slow() -> str:
        """Wait for the other."""
        await done.wait()
        return "at last"

    @tool
    async def quick() -> str:
        """Be done first."""
        done.set()
        return "done"

    model = ScriptedModel([[calls("slow"), calls("quick")], says("Both.")])
    await team.hire(Agent("triage", model=model, tools=[slow, quick]))
    rules = [Transition(ToolCalled(name), TerminateTarget(name)) for name in ("quick", "slow")]
    workflow = await team.open(TransitionGraph("user", rules, AgentTarget("triage")), "user", "triage")
    await workflow.say("user")
    assert await workflow.ended() == "slow"


async def test_routing_tool_that_failed_does_not_count(team: Team) -> None:
    rules = [Transition(ToolCalled("fall_over"), TerminateTarget("wrong")), *RULES]
    workflow, model = await triaged(team, [calls("fall_over"), calls("ask_billing")], "Half of it.", rules=rules)
    assert await workflow.routing_of("triage") == {"tool": "ask_billing"}
    assert workflow.next == "billing"
    assert "out of order" in model.requests[1].messages[-2].text


async def test_routing_tool_the_table_is_read_in_order_of_priority_all_the_same(team: Team) -> None:
    """A rule that stands before the one with the tool, and matches as well, decides."""
    rules = [Transition(FromSpeaker("triage"), AgentTarget("review"), priority=-1), *RULES]
    workflow, _ = await triaged(team, calls("ask_billing"), "They know.", rules=rules)
    assert (await workflow.routing_of("triage"), workflow.next) == ({"tool": "ask_billing"}, "review")


async def test_routing_tool_is_forgotten_with_the_next_turn(team: Team) -> None:
    rules = [Transition(ToolCalled("ask_billing"), AgentTarget("billing")), rule("user", "triage"), *RULES[2:]]
    workflow, _ = await triaged(team, calls("ask_billing"), "They know.", rules=[*rules, rule("billing", "review")])
    assert workflow.next == "billing"
    await workflow.say("billing")
    assert workflow.next == "review"


async def test_routing_tool_named_deep_inside_of_a_rule_counts_too(team: Team) -> None:
    when = FromSpeaker("triage") & (ToolCalled("look_up") | ToolCalled("fall_over"))
    rules = [Transition(when, AgentTarget("billing")), *RULES]
    workflow, _ = await triaged(team, calls("look_up", {"word": "x"}), "So.", rules=rules)
    assert (await workflow.routing_of("triage"), workflow.next) == ({"tool": "look_up"}, "billing")


# Handoffs


async def test_handoff_gives_the_turn_to_whom_the_tool_has_named(team: Team) -> None:
    workflow, model = await triaged(team, calls("hand_to", {"name": "billing", "reason": "an invoice"}, text="Yours."))
    assert await workflow.routing_of("triage") == {"target": "billing", "reason": "an invoice"}
    assert (await workflow.log(ASSIGNED))[-1].event_data == {"speakers": ["billing"], "reason": "handoff: an invoice"}
    assert (await workflow.packet_of("triage"))["body"] == "Yours."
    assert len(model.requests) == 1, "the turn ends with it"


async def test_handoff_carries_its_summary_to_the_next_speaker(team: Team) -> None:
    await team.agent("triage", calls("hand_to", {"name": "ada", "summary": "Paid twice."}, text="Yours."), tools=TOOLS)
    ada = await team.agent("ada", "Mine.")
    graph = TransitionGraph("user", [rule("user", "triage")], TerminateTarget("over"))
    workflow = await team.open(graph, "user", "triage", "ada")
    await workflow.say("user", "My bill!")
    assert await workflow.ended() == "over"
    assert ada.requests[0].messages == [("user", "user: My bill!"), ("user", "triage: Yours.\n    \n    Paid twice.")]


async def test_handoff_shadows_the_rule_that_names_its_tool(team: Team) -> None:
    rules = [Transition(ToolCalled("hand_to"), AgentTarget("security"), priority=-9), *RULES]
    workflow, _ = await triaged(team, calls("hand_to", {"name": "billing"}), rules=rules)
    assert await workflow.routing_of("triage") == {"tool": "hand_to", "target": "billing"}
    assert workflow.next == "billing"


async def test_handoff_wins_over_every_rule(team: Team) -> None:
    """Also over the rule of another tool that was called before, and over one that would end the channel."""
    end = Transition(Always(), TerminateTarget("never"), priority=-1)
    rules = [rule("user", "triage"), Transition(ToolCalled("ask_billing"), AgentTarget("review"), -2)]
    workflow, _ = await triaged(
        team,
        calls("ask_billing"),
        calls("hand_to", {"name": "security"}),
        rules=[Transition(FromSpeaker("user"), AgentTarget("triage"), -3), *rules, end],
    )
    assert workflow.next == "security"


async def test_handoff_to_somebody_unknown_is_told_to_the_model_and_the_table_decides(team: Team) -> None:
    workflow, model = await triaged(team, calls("hand_to", {"name": "zoe"}), "Then I answer myself.")
    told = "Nobody called 'zoe' takes part here; there are: user, triage, security, billing, review."
    assert model.requests[1].messages[-1] == ("tool", told)
    assert (await workflow.routing_of("triage"), workflow.next) == ({}, "review")


async def test_handoff_of_several_in_one_message_the_first_that_is_possible_wins(team: Team) -> None:
    names = ("zoe", "billing", "security")
    workflow, _ = await triaged(team, [calls("hand_to", {"name": name}) for name in names])
    assert await workflow.routing_of("triage") == {"target": "billing"}
    assert workflow.next == "billing"


async def test_handoff_in_a_packet_built_by_hand_that_is_not_possible_is_recorded_as_refused(team: Team) -> None:
    graph = TransitionGraph("user", [], AgentTarget("review"))
    workflow = await team.open(graph, "user", "review")
    sent = await workflow.hand_in("user", handoff=Handoff("zoe", "why not"))
    assert sent.event_data["routing"] == {"target": "zoe", "reason": "why not", "rejected": "not_a_participant"}
    assert workflow.next == "review"


async def test_handoff_the_sixth_in_a_row_is_not_possible(team: Team) -> None:
    """Nobody but agents has spoken since the first. The model is told, and the table decides what follows."""
    await team.agent("ping", *[calls("hand_to", {"name": "pong"})] * 3, tools=TOOLS)
    pong = await team.agent("pong", *[calls("hand_to", {"name": "ping"})] * 3, "I keep it.", tools=TOOLS)
    rules = [rule("user", "ping"), Transition(FromSpeaker("pong"), TerminateTarget("kept"))]
    workflow = await team.open(TransitionGraph("user", rules, TerminateTarget("lost")), "user", "ping", "pong")
    await workflow.say("user")
    assert await workflow.ended() == "kept"
    told = "There have been 5 handoffs in a row, the limit; answer yourself."
    assert pong.requests[-1].messages[-1] == ("tool", told)
    assert await workflow.assigned() == [["user"], ["ping"], *[["pong"], ["ping"]] * 2, ["pong"]]


async def test_handoff_to_oneself_is_no_hop_and_has_the_same_limit(team: Team) -> None:
    ada = await team.agent("ada", *[calls("hand_to", {"name": "ada"})] * 6, "Enough.", tools=TOOLS)
    workflow = await team.open(TransitionGraph("user", [rule("user", "ada")], TerminateTarget("over")), "user", "ada")
    await workflow.say("user")
    assert await workflow.ended() == "over"
    assert len(ada.requests) == 7
    assert (workflow.state.turn_count, workflow.state.hops) == (7, 0)


async def test_handoff_of_somebody_out_of_turn_moves_nothing_and_is_no_hop(team: Team) -> None:
    await team.join("dana:human")
    workflow = await team.open(TransitionGraph("user", [], TerminateTarget("over")), "user", "review", "dana")
    await workflow.hand_in("dana", handoff="review")
    assert (workflow.next, workflow.state.hops) == ("user", 0)


async def test_handoff_that_follows_a_word_of_a_person_or_of_code_is_the_first_again(team: Team) -> None:
    await team.agent("ping", *[calls("hand_to", {"name": "user"})] * 7, tools=TOOLS)
    workflow = await team.open(TransitionGraph("user", [rule("user", "ping")], TerminateTarget()), "user", "ping")
    for _ in range(7):
        await workflow.say("user")
        await workflow.comes_to("user")
    assert workflow.state.turn_count == 14


# The end of the work


async def test_finish_ends_the_channel_whatever_the_rules_and_a_handoff_say(team: Team) -> None:
    both = [calls("hand_to", {"name": "billing"}), calls("wrap_up", {"reason": "solved"})]
    workflow, _ = await triaged(team, both)
    assert await workflow.ended() == "solved"
    routing = await workflow.routing_of("triage")
    assert isinstance(routing, dict)
    assert routing["finish"] == "solved"
    assert await workflow.assigned() == [["user"], ["triage"]]
