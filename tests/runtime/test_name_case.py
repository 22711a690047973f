"""Names are unique without regard to case: models and people are understood, programs are told the right spelling."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from antiphon import (
    EV_PACKET,
    Agent,
    AgentsTarget,
    AgentTarget,
    Always,
    Denied,
    FromSpeaker,
    Handoff,
    Hub,
    RulesInvalid,
    ScriptedModel,
    TerminateTarget,
    Transition,
    TransitionGraph,
    UnknownParticipant,
    calls,
    says,
    tool,
)
from antiphon.testing import ManualClock

KNOBS = {
    "graph": TransitionGraph(
        "ann", [Transition(FromSpeaker("ann"), AgentTarget("Bob"))], TerminateTarget("over")
    ).to_dict()
}


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    async with Hub.open("memory:", clock=ManualClock()) as opened:
        yield opened


@tool
def pass_on(to: str) -> Handoff:
    return Handoff(to, "knows best", "For you.")


async def test_handoff_finds_a_participant_whatever_its_case(hub: Hub) -> None:
    ann = await hub.register("ann")
    await hub.register(Agent("Bob", model=ScriptedModel([calls("pass_on", {"to": "xAVIER"})]), tools=[pass_on]))
    await hub.register(Agent("Xavier", model=ScriptedModel(["Here."])))
    channel = await ann.open(type="workflow", target=["Bob", "Xavier"], knobs=KNOBS)
    await channel.send("who knows?")
    assert await channel.closed() == "over"
    packets = [each for each in await hub.log(channel.channel_id) if each.event_type == EV_PACKET]
    assert [each.sender_id for each in packets] == ["Bob", "Xavier"]
    assert packets[0].event_data["routing"] == {"target": "Xavier", "reason": "knows best", "summary": "For you."}


async def test_handoff_of_a_private_turn_finds_it_too(hub: Hub) -> None:
    ann = await hub.register("ann")
    await hub.register(Agent("Bob", model=ScriptedModel([calls("pass_on", {"to": "xavier"})]), tools=[pass_on]))
    await hub.register(Agent("Xavier", model=ScriptedModel(["Here."])))
    channel = await ann.open(type="workflow", target=["Bob", "Xavier"], knobs=KNOBS)
    await channel.send("who knows?", audience=["Bob"])
    assert await channel.closed() == "over"


async def test_hand_built_packet_finds_it_and_can_be_repeated(hub: Hub) -> None:
    ann, _ = await hub.register("ann"), await hub.register("Bob")
    channel = await ann.open(type="workflow", target="Bob", knobs=KNOBS)
    data = {"body": "x", "routing": {"target": "bob"}}
    first = await channel.post(EV_PACKET, data, message_id="m")
    assert (first.event_data["routing"], channel.state.speakers) == ({"target": "Bob"}, ("Bob",))
    assert await channel.post(EV_PACKET, data, message_id="m") == first
    with pytest.raises(Denied, match="conflict"):
        await channel.post(EV_PACKET, {"body": "x", "routing": {"target": "ann"}}, message_id="m")


async def test_handoff_within_a_team_and_its_transfer_tool_are_understood_whatever_their_case(hub: Hub) -> None:
    for script in (
        [calls("pass_on", {"to": "BILLING"})],
        [calls("transfer_to_billing")],
        [calls("Transfer_To_BILLING")],
    ):
        billing = Agent("Billing", model=ScriptedModel(["Paid."]))
        lead = Agent("Support", model=ScriptedModel(script), tools=[pass_on], agents=[billing])
        async with Hub.open("memory:", clock=ManualClock()) as own:
            reply = await lead.invoke("hi", hub=own)
        assert (reply.agent, reply.text) == ("Billing", "Paid.")


async def test_mention_is_understood_whatever_its_case(hub: Hub) -> None:
    billing = Agent("Billing", model=ScriptedModel(["Paid."]))
    lead = Agent("Support", model=ScriptedModel(["never"]), agents=[billing])
    assert (await lead.invoke("@bILLING hi", hub=hub)).agent == "Billing"


async def test_unknown_tool_of_another_case_stays_unknown(hub: Hub) -> None:
    agent = Agent("a", model=ScriptedModel([calls("PASS_ON", {"to": "x"}), says("ok")]), tools=[pass_on])
    events = [event async for event in agent.stream_invoke("hi", hub=hub)]
    assert events[1].failed  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "graph",
    [
        TransitionGraph("ANN", [], TerminateTarget("x")),
        TransitionGraph("ann", [Transition(Always(), AgentTarget("ben"))], TerminateTarget("x")),
        TransitionGraph("ann", [Transition(Always(), AgentsTarget(["ann", "ben"]))], TerminateTarget("x")),
        TransitionGraph("ann", [], AgentTarget("ben")),
    ],
)
async def test_graph_that_spells_a_name_otherwise_is_refused_with_the_right_spelling(
    hub: Hub, graph: TransitionGraph
) -> None:
    ann, _ = await hub.register("ann"), await hub.register("Ben")
    right = "'ann'" if graph.initial_speaker == "ANN" else "'Ben'"
    errors = [each.message for each in graph.check(["ann", "Ben"]) if each.level == "error"]
    assert [f"did you mean {right}?" in message for message in errors] == [True]
    with pytest.raises(RulesInvalid, match=f"did you mean {right}"):
        await ann.open(type="workflow", target="Ben", knobs={"graph": graph.to_dict()})


def test_rule_for_a_speaker_that_is_spelt_otherwise_is_reported_with_the_right_spelling() -> None:
    alone = TransitionGraph("ann", [Transition(FromSpeaker("ben"), TerminateTarget("y"))], TerminateTarget("x"))
    both = Transition(FromSpeaker("ann") | FromSpeaker("ben"), TerminateTarget("y"))
    for graph in (alone, TransitionGraph("ann", [both], TerminateTarget("x"))):
        found = {each.code: each.message for each in graph.check({"ann": "agent", "Ben": "human"})}
        assert "did you mean 'Ben'?" in (found.get("dead_rule") or found["unknown_speaker"])


async def test_program_that_spells_a_name_otherwise_is_told_the_right_spelling(hub: Hub) -> None:
    ann, _ = await hub.register("ann"), await hub.register("Ben")
    with pytest.raises(UnknownParticipant, match="did you mean 'Ben'"):
        await ann.open(target="ben")
    for knobs in ({"interjectors": ["ben"]}, {"writers": {"k": ["ben"]}}):
        with pytest.raises(RulesInvalid, match="did you mean 'Ben'"):
            await ann.open(target="Ben", knobs=knobs)
    channel = await ann.open(target="Ben")
    with pytest.raises(Denied, match="did you mean 'Ben'") as caught:
        await channel.send("psst", audience=["ben"])
    assert caught.value.reason == "unknown_audience"
