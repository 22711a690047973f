"""Calls of tasks that wait for a person: the task waits, the turn that gave it waits, and a restart changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from antiphon import Agent, Denied, Limits, Reply, Request, ScriptedModel, TurnChannel, calls, delegate, says, tool
from antiphon.core.envelope import NEVER
from antiphon.testing import ManualClock
from tests.support.approval_desk import QUESTION, ApprovalDesk, approval_desk
from tests.support.waiting import soon, wait_until


@pytest.fixture
async def desk() -> AsyncIterator[ApprovalDesk]:
    async with approval_desk() as opened:
        yield opened


def lead_of(desk: ApprovalDesk, depth: int = 1, count: int = 1) -> Agent:
    """An agent that has others do the refunds, so many tasks deep and so many at once."""
    worker: Agent = desk.support()
    for level in range(depth):
        wanted = [calls(f"delegate_to_{worker.name}", {"task": f"Refund {number}."}) for number in range(count)]
        script = [wanted, says(f"level {level} is done")]
        worker = Agent(f"lead{level}", model=ScriptedModel(script, by="position"), tools=[delegate(worker)])
        count = 1
    desk.agent = worker
    return worker


async def test_a_task_whose_call_waits_waits_and_so_does_the_turn_that_gave_it(desk: ApprovalDesk) -> None:
    reply = await desk.ask(lead_of(desk))
    assert (reply.stopped, desk.paid) == ("approval", [])
    [approval] = reply.approvals
    assert (approval.agent, approval.tool) == ("support", "refund")
    assert approval.channel_id != reply.channel_id
    assert await desk.hub.approvals() == [approval]
    [row] = [each for each in await desk.hub.channels() if each.channel_id == approval.channel_id]
    assert row.status == "active"
    await desk.dana.decide(approval.approval_id, "edit", args={"order": "7", "cents": 5})
    reply = await desk.ask()
    assert (reply.text, reply.stopped, desk.paid) == ("level 0 is done", None, [("7", 5)])
    assert len(await desk.told(reply.channel_id, "task.waiting")) == 1
    assert len(await desk.told(reply.channel_id, "task.continued")) == 1


async def test_time_stands_still_above_a_task_that_waits(desk: ApprovalDesk) -> None:
    agent = lead_of(desk, depth=2)
    reply = await desk.ask(agent)
    channel = await agent.channel("t", desk.hub)
    await wait_until(lambda: NEVER in channel.state.tasks.values())
    for _ in range(5):
        await desk.clock.advance(86_400)
    assert channel.state.clock_stopped
    assert [turn.speaker for turn in channel.state.owed] == ["lead1"]
    [approval] = await desk.hub.approvals()
    assert (approval,) == reply.approvals
    await desk.dana.decide(approval.approval_id, "approve")
    assert (await desk.ask()).text == "level 1 is done"
    assert desk.paid == [("7", 900)]


@pytest.mark.parametrize("depth", [1, 3])
async def test_it_waits_over_restarts(desk: ApprovalDesk, depth: int) -> None:
    agent = lead_of(desk, depth)
    [approval] = (await desk.ask(agent)).approvals
    for _ in range(2):
        await desk.hub.close()
        desk.clock = ManualClock(desk.clock.now())
        desk.clock.advance(86_400)
        await desk.next_hub()
        again = await desk.ask(agent)
        assert (again.stopped, again.approvals) == ("approval", (approval,))
    await desk.hub.close()
    await desk.next_hub()
    await desk.dana.decide(approval.approval_id, "approve")  # no agent is registered
    assert (await desk.ask(agent)).text == f"level {depth - 1} is done"
    assert desk.paid == [("7", 900)]


async def test_tasks_in_parallel_wait_each_for_its_own(desk: ApprovalDesk) -> None:
    agent = lead_of(desk, count=5)
    reply = await desk.ask(agent)
    assert len({approval.channel_id for approval in reply.approvals}) == 5
    for number, approval in enumerate(reply.approvals):
        args = {"order": str(number), "cents": number}
        await desk.dana.decide(approval.approval_id, "edit", args=args)
    while (reply := await desk.ask()).stopped == "approval":
        pass
    assert reply.text == "level 0 is done"
    assert sorted(desk.paid) == [(str(number), number) for number in range(5)]


async def test_the_person_behind_the_turn_above_may_not_decide_about_a_task(desk: ApprovalDesk) -> None:
    [approval] = (await desk.ask(lead_of(desk, depth=2))).approvals
    from antiphon.runtime.participant import Participant

    user = Participant(desk.hub.core, "user", "human")
    with pytest.raises(Denied) as denied:
        await user.decide(approval.approval_id, "approve")
    assert denied.value.reason == "not_an_approver"


async def test_what_the_channel_above_says_holds_in_a_task(desk: ApprovalDesk) -> None:
    worker = desk.support(approvers=["nobody-else"])
    script = [calls("delegate_to_support", {"task": "Refund."}), says("Done.")]
    lead = Agent("lead", model=ScriptedModel(script), tools=[delegate(worker)], approvers=["erin"], self_approval=True)
    [approval] = (await desk.ask(lead)).approvals
    assert approval.approvers == ["erin"]


async def test_cancelling_the_turn_above_cancels_the_approval(desk: ApprovalDesk) -> None:
    agent = lead_of(desk)
    [approval] = (await desk.ask(agent)).approvals
    channel = await agent.channel("t", desk.hub)
    await channel.cancel("never mind")
    await desk.waiting(0)
    with pytest.raises(Denied) as denied:
        await desk.dana.decide(approval.approval_id, "approve")
    assert denied.value.reason == "cancelled"
    assert desk.paid == []


async def test_while_another_call_of_the_message_runs_invoke_waits_for_it(desk: ApprovalDesk) -> None:
    going = asyncio.Event()

    @tool(timeout=None)
    async def look() -> str:
        await going.wait()
        return "looked"

    script = [[calls("delegate_to_support", {"task": "Refund."}), calls("look")], says("Done.")]
    worker = desk.support()
    lead = Agent("lead", model=ScriptedModel(script, by="position"), tools=[delegate(worker), look])
    asking = asyncio.create_task(lead.invoke(QUESTION, thread_id="t", hub=desk.hub, message_id="m"))
    [approval] = await desk.waiting()
    assert not asking.done()
    going.set()
    reply = await soon(asking)
    assert (reply.stopped, reply.approvals) == ("approval", (approval,))
    await desk.dana.decide(approval.approval_id, "reject")
    assert (await desk.ask(lead)).text == "Done."


async def test_the_timeout_of_a_tool_stands_still_while_its_task_waits(desk: ApprovalDesk) -> None:
    worker = desk.support()

    @tool(timeout=5)
    async def pass_on(channel: TurnChannel) -> str:
        """Have it done."""
        return (await channel.delegate(worker, "Refund.")).text

    script = [calls("pass_on", {}), says("Passed on.")]
    lead = Agent("lead", model=ScriptedModel(script, by="position"), tools=[pass_on])
    [approval] = (await desk.ask(lead)).approvals
    for _ in range(20):
        await desk.clock.advance(6)
    await desk.dana.decide(approval.approval_id, "approve")
    assert (await desk.ask(lead)).text == "Passed on."
    assert desk.paid == [("7", 900)]


async def test_the_timeout_of_a_tool_holds_when_its_task_goes_on(desk: ApprovalDesk) -> None:
    thinking = asyncio.Event()

    async def model(request: Request) -> Reply:
        if not request.exchange:
            return calls("refund", {"order": "7"})
        thinking.set()
        await asyncio.Event().wait()
        raise AssertionError

    worker = Agent("support", model=model, tools=[desk.refund()], limits=Limits(model_seconds=None))

    @tool(timeout=5)
    async def pass_on(channel: TurnChannel) -> str:
        """Have it done."""
        return (await channel.delegate(worker, "Refund.")).text

    script = [calls("pass_on", {}), says("It took too long.")]
    lead = Agent("lead", model=ScriptedModel(script, by="position"), tools=[pass_on])
    [approval] = (await desk.ask(lead)).approvals
    await desk.clock.advance(60)
    await desk.dana.decide(approval.approval_id, "approve")
    await soon(thinking.wait())
    for _ in range(4):
        await desk.clock.advance(5)
    assert (await desk.ask(lead)).text == "It took too long."
