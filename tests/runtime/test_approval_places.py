"""Calls wait for approval wherever agents have turns: in every type of channel, in teams, and beside calls that run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from antiphon import (
    Agent,
    AgentTarget,
    Channel,
    FinalStateEvent,
    FromSpeaker,
    RoutingRule,
    ScriptedModel,
    TerminateTarget,
    Transition,
    TransitionGraph,
    calls,
    says,
    tool,
)
from antiphon.orchestration.router import ConversationRouter
from antiphon.runtime.conversation_turns import ConversationTurns, send_and_follow_message
from tests.support.approval_desk import QUESTION, ApprovalDesk, approval_desk
from tests.support.waiting import let_others_run, soon, wait_until


@pytest.fixture
async def desk() -> AsyncIterator[ApprovalDesk]:
    async with approval_desk() as opened:
        yield opened


async def opened(desk: ApprovalDesk, type: str) -> Channel:
    """A channel of this type in which support is asked first, with a colleague where one is wanted."""
    ann = await desk.hub.register("ann", kind="human")
    await desk.hub.register(desk.support())
    if type in ("conversation", "consulting"):
        return await ann.open(type=type, target="support")
    await desk.hub.register(Agent("clerk", model=ScriptedModel([says("Filed.")])))
    graph = TransitionGraph(
        "ann",
        [
            Transition(FromSpeaker("ann"), AgentTarget("support")),
            Transition(FromSpeaker("support"), AgentTarget("clerk")),
        ],
        TerminateTarget("done"),
    )
    router = ConversationRouter(rules=[RoutingRule(agent_id="support")])
    knobs = {"workflow": {"graph": graph.to_dict()}, "routed": {"router": router.to_dict()}}.get(type, {})
    return await ann.open(type=type, target=["support", "clerk"], knobs=knobs)


@pytest.mark.parametrize("type", ["conversation", "consulting", "discussion", "workflow", "routed"])
async def test_in_every_type_of_channel(desk: ApprovalDesk, type: str) -> None:
    channel = await opened(desk, type)
    await channel.send(QUESTION)
    [approval] = await desk.waiting()
    [turn] = channel.state.owed
    await desk.clock.advance(7 * 86_400)
    assert channel.state.owed == (turn,)
    assert channel.state.status == "active"
    await desk.dana.decide(approval.approval_id, "edit", args={"order": "7", "cents": 5})
    await wait_until(lambda: channel.state.last_speaker_id not in (None, "ann"))
    assert desk.paid == [("7", 5)]
    assert await desk.hub.approvals() == []


async def test_the_call_of_a_member_of_a_team(desk: ApprovalDesk) -> None:
    billing = Agent(
        "billing",
        model=ScriptedModel([calls("refund", {"order": "7", "cents": 900}), says("Refunded by billing.")]),
        tools=[desk.refund(approvers=["dana"])],
    )
    lead = ScriptedModel([calls("transfer_to_billing", {})])
    agent = Agent("desk", model=lead, agents=[billing])
    reply = await desk.ask(agent)
    [approval] = reply.approvals
    assert (reply.stopped, approval.agent) == ("approval", "desk/billing")
    await desk.dana.decide(approval.approval_id, "edit", args={"order": "7", "cents": 5})
    reply = await desk.ask(agent)
    assert (reply.text, reply.agent, desk.paid) == ("Refunded by billing.", "billing", [("7", 5)])


@pytest.mark.parametrize("decision", ["approve", "reject", "respond"])
async def test_a_decision_while_another_call_of_the_message_runs(desk: ApprovalDesk, decision: str) -> None:
    looking, going = asyncio.Event(), asyncio.Event()

    @tool(timeout=None)
    async def look() -> str:
        looking.set()
        await going.wait()
        return "looked"

    script = [[calls("look"), calls("refund", {"order": "7", "cents": 900})], says("Both.")]
    agent = Agent("support", model=ScriptedModel(script, by="position"), tools=[desk.refund(), look])
    asking = asyncio.create_task(agent.invoke(QUESTION, thread_id="t", hub=desk.hub, message_id="m"))
    await soon(looking.wait())
    [approval] = await desk.waiting()
    await desk.dana.decide(approval.approval_id, decision, text="cash" if decision == "respond" else None)
    await let_others_run()
    assert not asking.done()
    assert desk.paid == []
    going.set()
    reply = await soon(asking)
    assert (reply.text, reply.stopped) == ("Both.", None)
    assert desk.paid == ([("7", 900)] if decision == "approve" else [])


async def test_the_turn_of_another_agent_goes_on_meanwhile(desk: ApprovalDesk) -> None:
    ann = await desk.hub.register("ann", kind="human")
    await desk.hub.register(desk.support())
    await desk.hub.register(Agent("clerk", model=ScriptedModel([says("Hello.")])))
    held, free = await ann.open(target="support"), await ann.open(target="clerk")
    await held.send(QUESTION)
    await desk.waiting()
    await free.send("Hello?")
    await wait_until(lambda: free.state.last_speaker_id == "clerk")
    assert len(await desk.hub.approvals()) == 1


async def test_a_call_that_is_made_once_may_need_approval(desk: ApprovalDesk) -> None:
    twice = [calls("refund", {"order": "7", "cents": 1}), calls("refund", {"order": "7", "cents": 2})]
    agent = desk.support(*twice, says("Done."), tools=[desk.refund(once=["order"])])
    reply = await desk.ask(agent)
    [approval] = reply.approvals
    await desk.dana.decide(approval.approval_id, "approve")
    reply = await desk.ask(agent)  # nobody is asked about the second one, which is answered with the first result
    assert (reply.text, reply.stopped, len(desk.paid)) == ("Done.", None, 1)


async def test_a_rejected_call_is_no_result_for_the_next_one(desk: ApprovalDesk) -> None:
    twice = [calls("refund", {"order": "7", "cents": 1}), calls("refund", {"order": "7", "cents": 1})]
    agent = desk.support(*twice, says("Done."), tools=[desk.refund(once=["order"])])
    for decision in ("reject", "approve"):
        [approval] = (await desk.ask(agent)).approvals
        await desk.dana.decide(approval.approval_id, decision)
    assert ((await desk.ask(agent)).text, len(desk.paid)) == ("Done.", 1)


async def test_who_follows_a_routed_conversation_is_told_what_waits(desk: ApprovalDesk) -> None:
    channel = await opened(desk, "routed")
    live = await desk.hub.core.live(channel.channel_id)

    async def follow(text: str, message_id: str) -> FinalStateEvent:
        turns = ConversationTurns(live)
        events = send_and_follow_message(channel, turns, text, message_id=message_id, tokens=False)
        *_, (_, final) = [numbered async for numbered in events]
        assert isinstance(final, FinalStateEvent)
        return final

    first = await soon(follow(QUESTION, "m1"))
    [approval] = await desk.hub.approvals()
    assert (first.stopped, first.approvals) == ("approval", (approval,))
    assert first.usage.input_tokens > 0
    behind = await soon(follow("And now?", "m2"))
    assert (behind.stopped, behind.approvals) == ("approval", (approval,))
    await desk.dana.decide(approval.approval_id, "approve")
    last = await soon(follow(QUESTION, "m1"))
    assert (last.text, last.stopped, desk.paid) == ("Refunded.", None, [("7", 900)])
