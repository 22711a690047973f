"""Explanations of real logs: which rule, which guard, which person, what waits, and what can be done."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from antiphon import (
    Agent,
    AgentTarget,
    Channel,
    ContextEquals,
    ConversationRouter,
    Denied,
    FromSpeaker,
    Handoff,
    Hub,
    RoutingConditions,
    RoutingRule,
    ScriptedModel,
    TerminateTarget,
    Transition,
    TransitionGraph,
    UsageError,
    calls,
    says,
)
from antiphon.core.approval_rules import Approval
from antiphon.core.envelope import Envelope
from antiphon.runtime.explanation import Explanation, ExplanationSources, explain
from antiphon.testing import ManualClock
from tests.runtime.test_call_guards import Desk, TestGuard
from tests.support.trips import TripWorld
from tests.support.waiting import let_others_run, soon, wait_until

GRAPH = TransitionGraph(
    "ann",
    [
        Transition(FromSpeaker("ann") & ContextEquals("urgent", True), AgentTarget("cleo")),
        Transition(FromSpeaker("ann"), AgentTarget("ben")),
        Transition(FromSpeaker("cleo"), TerminateTarget("handled")),
    ],
    TerminateTarget("over"),
    max_turns=4,
)


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    async with Hub.open("memory:", clock=ManualClock()) as hub:
        yield hub


async def workflow(hub: Hub, **knobs: object) -> dict[str, Channel]:
    """A workflow of three participants that code drives, as each of them holds it."""
    ann, *others = [await hub.register(name) for name in ("ann", "ben", "cleo")]
    graph = {"graph": GRAPH.to_dict(), "writers": {"urgent": ["ann"]}}
    channel = await ann.open(type="workflow", target=["ben", "cleo"], knobs={**graph, **knobs})
    return {"ann": channel, **{other.agent_id: await other.channel(channel.channel_id) for other in others}}


async def explained(hub: Hub, channel: str, at: int | None = None, **sources: object) -> Explanation:
    log = await hub.log(channel)
    return explain(ExplanationSources(log, **sources), at)  # type: ignore[arg-type]


def told(found: Explanation) -> list[tuple[str, str]]:
    return [(step.who, step.what) for step in found.steps]


async def test_the_rule_that_gave_the_turn_stands_there_by_its_text(hub: Hub) -> None:
    held = await workflow(hub)
    await held["ann"].set_context(urgent=True)
    await held["ann"].send("Order 7 is broken.")
    found = await explained(hub, held["ann"].channel_id)
    rule = "rule 0 matched (from ann and urgent = true → to cleo)"
    assert found.because == [f"cleo got the turn because {rule}."]
    assert told(found) == [("ann", "says: Order 7 is broken."), ("hub", f"gives the turn to cleo: {rule}")]
    assert found.waits == ["the channel waits for cleo, driven by code, to speak"]


async def test_a_refused_handoff_and_the_rule_that_decided_instead(hub: Hub) -> None:
    held = await workflow(hub, guards=[{"name": "hop_limit", "most": 0}])
    await held["ann"].send("Who takes it?")
    build = hub.adapter_for(held["ben"].channel_id)
    packet = build.build_packet_envelope(sender_id="ben", body="Not me.", handoff=Handoff("cleo"))
    await hub.post(packet)
    found = await explained(hub, held["ann"].channel_id)
    assert (found.status, found.close_reason) == ("closed", "over")
    ended, refused = found.because
    assert ended == "The channel ended because no rule matched, so the default decided (end: over)."
    assert refused.startswith("The handoff of ben to cleo was refused: hop_limit:0 (so many handoffs")
    assert found.waits == ["nothing: the channel is closed"]
    assert any("raise HopLimit" in action.what for action in found.actions)


async def test_the_rule_that_ended_the_channel_is_found_again(hub: Hub) -> None:
    held = await workflow(hub)
    await held["ann"].set_context(urgent=True)
    await held["ann"].send("Order 7 is broken.")
    await held["cleo"].send("Mended.")
    found = await explained(hub, held["ann"].channel_id)
    assert found.because == ["The channel ended because rule 2 matched (from cleo → end: handled)."]
    assert [step.who for step in found.steps] == ["ann", "hub", "cleo", "hub"]


async def test_a_channel_that_a_participant_closed(hub: Hub) -> None:
    held = await workflow(hub)
    await held["ben"].close("enough")
    assert (await explained(hub, held["ann"].channel_id)).because == ["ben closed the channel: enough."]


async def test_a_guard_that_denied_a_call_stands_in_the_chain(hub: Hub) -> None:
    desk = Desk(hub)
    model = ScriptedModel([calls("search", {"page": 1}), calls("search", {"page": 1}), says("Only one page.")])
    reply = await soon(desk.agent(model, TestGuard(most={"search": 1})).invoke("Look it up", hub=hub))
    found = await explained(hub, reply.channel_id)
    assert told(found)[0][1] == "says: Look it up"
    denied = "the guard tests_call_guard denies the call search(page=1): loop (the agent repeats itself)"
    [step] = [step for step in found.steps if step.what.startswith(denied)]
    assert found.steps[-1].what == "says: Only one page."
    at_denial = await explained(hub, reply.channel_id, step.sequence)
    assert at_denial.because[0] == "The guard tests_call_guard denied the call: loop (the agent repeats itself)."
    assert at_denial.sequence == at_denial.steps[-1].sequence == step.sequence


async def test_a_denial_that_ended_the_turn(hub: Hub) -> None:
    desk = Desk(hub)
    model = ScriptedModel([calls("search", {"page": 1}, text="I look it up."), says("never asked")])
    reply = await soon(desk.agent(model, TestGuard(most={"model": 1})).invoke("Go", hub=hub))
    assert reply.stopped == "denied:loop"
    found = await explained(hub, reply.channel_id)
    assert "The turn of bob was stopped: denied:loop (the agent repeats itself)." in found.because
    assert any("denies a call of the model" in step.what for step in found.steps)


async def test_a_turn_that_failed(hub: Hub) -> None:
    ann = await hub.register("ann")
    await hub.register(Agent("bob", model=ScriptedModel([])))
    channel = await ann.open(target="bob")
    await channel.send("Hello?")
    await wait_until(lambda: not channel.state.owed and channel.state.sequence > 6)
    [why] = (await explained(hub, channel.channel_id)).because
    assert why.startswith("The turn of bob ended without an answer: model_error (the model could not be asked")


async def test_a_turn_that_no_hub_has_begun_names_what_to_start() -> None:
    async with Hub.open("memory:", engine=None, clock=ManualClock()) as hub:
        ann = await hub.register("ann")
        await hub.register(Agent("bob", model=ScriptedModel([])))
        channel = await ann.open(target="bob")
        await channel.send("Hello?")
        found = await explained(hub, channel.channel_id, store="my team.db")
    assert found.waits == ["bob owes an answer (turn 6/bob), and no hub has begun it"]
    assert found.because == ["bob got the turn because what is said to an agent is a turn that it owes."]
    assert found.actions[0].command == "antiphon serve FILE --store 'my team.db'"


async def test_what_waits_for_a_person_comes_with_the_commands_to_decide(hub: Hub) -> None:
    held = await workflow(hub)
    await held["ann"].send("Pay it back.")
    approval = Approval(
        "c.11.ben.1.2", "c", "call", "ben", "refund", {"cents": 5}, "it is risky", "d", None,
        ["approve", "reject", "respond"], "11/ben",
    )  # fmt: skip
    found = await explained(hub, held["ann"].channel_id, approvals=[approval], store="team.db")
    assert found.waits[0] == "ben waits until a person decides about the call refund(cents=5) (it is risky)"
    assert [action.command for action in found.actions[:3]] == [
        "antiphon approvals approve c.11.ben.1.2 team.db --as NAME",
        "antiphon approvals reject c.11.ben.1.2 team.db --as NAME",
        "antiphon approvals respond c.11.ben.1.2 team.db --as NAME --text TEXT",
    ]


async def test_a_person_who_has_a_conversation(hub: Hub) -> None:
    ann, dana = await hub.register("ann"), await hub.register("dana", kind="human")
    await hub.register(
        Agent(
            "desk",
            model=ScriptedModel(
                [calls("handoff_conversation", {"target": "human", "reason": "upset", "summary": "s"})]
            ),
        )
    )
    router = ConversationRouter(rules=[RoutingRule("desk", RoutingConditions(intents={"help"}))])
    room = await ann.open(type="routed", target=["desk", "dana"], knobs={"router": router.to_dict()})
    await room.send("Help!", intent="help")
    await wait_until(lambda: not room.state.owed and room.state.turn_count == 2)
    found = await explained(hub, room.channel_id)
    assert found.waits == ["a person has the conversation, so that no agent answers"]
    assert any(what == "gives the turn to desk: rule 0 matched (intent is help → to desk)" for _, what in told(found))
    await (await dana.channel(room.channel_id)).release()
    assert (await explained(hub, room.channel_id)).waits == ["nothing: any participant may speak"]


async def test_what_was_undone_stands_behind_the_end_of_the_channel(hub: Hub) -> None:
    world, ann = TripWorld(), await hub.register("ann", kind="human")
    await hub.register(world.agent(*world.booking(["flight"])))
    channel = await ann.open(target="bob", say="Book")
    await wait_until(lambda: channel.state.turn_count == 2)
    world.slow["flight"] = asyncio.Event()
    await channel.abort("too dear")
    await wait_until(lambda: world.calls["flight"] == 1)
    owed = await explained(hub, channel.channel_id)
    assert owed.because == ["ann closed the channel: aborted:too dear (a person or code ended the run in failure)."]
    assert owed.waits == ["calls of this channel are being undone; a hub with the tools of its agents does it"]
    world.slow["flight"].set()
    async with asyncio.timeout(30):
        while (done := await explained(hub, channel.channel_id)).waits == owed.waits:
            await let_others_run(1)
    assert done.waits == ["nothing: the channel is closed"]
    assert done.steps[-1].what.startswith("has finished compensating: 1 undone")


async def test_refusals_are_listed_beside_the_chain(hub: Hub) -> None:
    held = await workflow(hub)
    with pytest.raises(Denied):
        await held["ben"].send("Me first.")
    refusals = [each for each in await hub.log("system:audit") if each.event_type == "antiphon.draft.refused"]
    found = await explained(hub, held["ann"].channel_id, refusals=refusals)
    [refused] = found.refused
    assert (refused.who, refused.sequence) == ("ben", 0)
    assert refused.what == "was refused ag2.msg.text: not_expected_speaker (another participant had the turn)"


async def test_every_envelope_of_a_log_can_be_explained(hub: Hub) -> None:
    desk = Desk(hub)
    model = ScriptedModel([calls("search", {"page": 1}), says("Done.")])
    reply = await soon(desk.agent(model, TestGuard(most={"search": 0})).invoke("Go", hub=hub))
    log = await hub.log(reply.channel_id)
    for envelope in log:
        found = explain(ExplanationSources(log), envelope.sequence)
        assert found.sequence == found.steps[-1].sequence == envelope.sequence
        assert found.because
    with pytest.raises(UsageError, match=f"no envelope {len(log) + 1}; it has 1 to {len(log)}"):
        explain(ExplanationSources(log), len(log) + 1)


def test_causes_that_point_at_each_other_end_somewhere() -> None:
    log = [
        Envelope(str(number), "c", "ann", None, "ag2.msg.text", {"text": "?"}, str(3 - number), sequence=number)
        for number in (1, 2)
    ]
    assert [step.sequence for step in explain(ExplanationSources(log), 2).steps] == [1, 2]
