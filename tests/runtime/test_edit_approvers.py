"""Edits of calls that wait: arguments that others than the person who edits would have to allow."""

from __future__ import annotations

import asyncio

import pytest

from antiphon import AccessPolicy, Agent, Approval, ArgumentRule, Denied, Hub, ScriptedModel, calls, says, tool
from tests.support.waiting import NEVER_COMES, let_others_run

RULE = ArgumentRule("pay", "cents", ">", 1000, then="ask", approvers=("finance",))


async def waiting(hub: Hub) -> Approval:
    async with asyncio.timeout(NEVER_COMES):
        while not (found := await hub.approvals()):
            await let_others_run(1)
    return found[0]


async def test_a_person_edits_a_call_to_no_arguments_that_others_must_allow() -> None:
    paid: list[int] = []

    @tool(approval=True)
    async def pay(cents: int) -> str:
        """Pay."""
        paid.append(cents)
        return "paid"

    async with Hub.open("memory:") as hub:
        model = ScriptedModel([calls("pay", {"cents": 10}), says("Paid.")])
        await hub.register(Agent("till", model=model, tools=[pay]))
        ann, dana = [await hub.register(name, kind="human") for name in ("ann", "dana")]
        fay = await hub.register("fay", kind="human", roles=["finance"])
        room = await ann.open(target="till", say="Pay", knobs={"guards": [AccessPolicy(rules=[RULE])]})
        approval = await waiting(hub)
        with pytest.raises(Denied, match="those may: finance") as denied:
            await dana.decide(approval.approval_id, "edit", args={"cents": 5000})
        assert (denied.value.reason, await hub.approvals(), paid) == ("not_an_approver", [approval], [])
        await fay.decide(approval.approval_id, "edit", args={"cents": 5000})
        async with asyncio.timeout(NEVER_COMES):
            while room.state.turn_count < 2:
                await let_others_run(1)
    assert paid == [5000]


async def test_a_person_edits_a_call_within_what_that_person_may_allow() -> None:
    paid: list[int] = []

    @tool(approval=True)
    async def pay(cents: int) -> str:
        """Pay."""
        paid.append(cents)
        return "paid"

    async with Hub.open("memory:") as hub:
        model = ScriptedModel([calls("pay", {"cents": 10}), says("Paid.")])
        await hub.register(Agent("till", model=model, tools=[pay]))
        ann, dana = [await hub.register(name, kind="human") for name in ("ann", "dana")]
        room = await ann.open(target="till", say="Pay", knobs={"guards": [AccessPolicy(rules=[RULE])]})
        await dana.decide((await waiting(hub)).approval_id, "edit", args={"cents": 900})
        async with asyncio.timeout(NEVER_COMES):
            while room.state.turn_count < 2:
                await let_others_run(1)
    assert paid == [900]
