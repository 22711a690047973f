"""The protections as their public contract words them, typed as a user types them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import ClassVar

import msgspec
import pytest

import antiphon
from antiphon import (
    ALLOW,
    Agent,
    Approval,
    Budget,
    Change,
    Channel,
    CostVelocityMonitor,
    Deadlines,
    Denied,
    Deny,
    DepthLimit,
    Envelope,
    HopLimit,
    Hub,
    LoopDetector,
    Participant,
    Permission,
    RulesInvalid,
    ScriptedModel,
    State,
    calls,
    register_guard,
    says,
    tool,
)
from antiphon.testing import ManualClock
from tests.acceptance.protections_desk import Desk
from tests.support.waiting import let_others_run, soon, wait_until


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    clock = ManualClock()
    async with Hub.open("memory:", clock=clock) as hub:
        yield Desk(hub, clock)


class Bank:
    """A bank whose refund can be undone, is made once for each order, and needs a person."""

    def __init__(self) -> None:
        self.refunds: list[str] = []
        self.undone: list[str] = []

        @tool
        async def unrefund(order: str, idempotency_key: str) -> str:
            """Take a refund back."""
            self.undone.append(order)
            return "taken back"

        @tool(approval=True, once=("order",), compensate=unrefund)
        async def refund(order: str, cents: int, idempotency_key: str) -> str:
            """Pay an order back."""
            self.refunds.append(order)
            return f"refund {len(self.refunds)} of {order}"

        self.refund, self.unrefund = refund, unrefund


async def approve_until_answered(desk: Desk, person: Participant, channel: Channel) -> None:
    """Approve whatever waits in a channel until its agent has answered."""
    async with asyncio.timeout(30):
        while channel.state.turn_count < 2:
            for approval in await desk.hub.approvals(channel.channel_id):
                await person.decide(approval.approval_id, "approve")
            await let_others_run(1)


async def waiting_approval(desk: Desk, channel: Channel) -> Approval:
    async with asyncio.timeout(30):
        while not (found := await desk.hub.approvals(channel_id=channel.channel_id)):
            await let_others_run(1)
    [approval] = found
    return approval


async def test_a_tool_with_approval_once_and_compensation(desk: Desk) -> None:
    bank = Bank()
    dana, ann = await desk.hub.register("dana", kind="human"), await desk.hub.register("ann", kind="human")
    both = [calls("refund", {"order": "7", "cents": 100}), calls("refund", {"order": "7", "cents": 999})]
    await desk.hub.register(Agent("bob", model=ScriptedModel([*both, says("Done.")]), tools=[bank.refund]))
    channel = await ann.open(target="bob", say="Refund order 7")
    await approve_until_answered(desk, dana, channel)
    assert bank.refunds == ["7"]
    await channel.abort("it was a mistake")
    await wait_until(lambda: bank.undone == ["7"])
    assert channel.state.close_reason == "aborted:it was a mistake"


async def test_what_an_approval_says(desk: Desk) -> None:
    bank = Bank()
    ann = await desk.hub.register("ann", kind="human")
    model = ScriptedModel([calls("refund", {"order": "7", "cents": 100})])
    await desk.hub.register(Agent("bob", model=model, tools=[bank.refund]))
    channel = await ann.open(target="bob")
    message = await channel.send("Refund order 7")
    approval = await waiting_approval(desk, channel)
    assert (approval.channel_id, approval.agent, approval.tool) == (channel.channel_id, "bob", "refund")
    assert (approval.args, approval.cause) == ({"order": "7", "cents": 100}, message.envelope_id)
    assert (len(approval.digest), approval.decide_by) == (64, None)
    assert set(approval.options) == {"approve", "edit", "reject", "respond"}


async def test_approval_may_depend_on_the_arguments(desk: Desk) -> None:
    paid: list[int] = []

    @tool(approval=lambda args: args["cents"] > 1000, approvers=["finance"])
    async def pay(cents: int) -> str:
        """Pay."""
        paid.append(cents)
        return "paid"

    dana = await desk.hub.register("dana", kind="human", roles=["finance"])
    ann = await desk.hub.register("ann", kind="human")
    script = [calls("pay", {"cents": 10}), calls("pay", {"cents": 5000}), says("Done.")]
    await desk.hub.register(Agent("bob", model=ScriptedModel(script), tools=[pay]))
    channel = await ann.open(target="bob", say="Pay both")
    approval = await waiting_approval(desk, channel)
    assert (paid, approval.args, approval.approvers) == ([10], {"cents": 5000}, ["finance"])
    await dana.decide(approval.approval_id, "approve")
    await wait_until(lambda: channel.state.turn_count == 2)
    assert paid == [10, 5000]


@pytest.mark.parametrize(("knobs", "allowed"), [({}, False), ({"self_approval": True}, True)])
async def test_the_person_who_asked_decides_only_where_the_channel_says_so(
    desk: Desk, knobs: dict[str, object], allowed: bool
) -> None:
    bank = Bank()
    ann = await desk.hub.register("ann", kind="human")
    model = ScriptedModel([calls("refund", {"order": "7", "cents": 1}), says("Done.")])
    await desk.hub.register(Agent("bob", model=model, tools=[bank.refund]))
    channel = await ann.open(target="bob", say="Refund order 7", knobs=knobs)
    approval = await waiting_approval(desk, channel)
    if allowed:
        await ann.decide(approval.approval_id, "approve")
        await wait_until(lambda: channel.state.turn_count == 2)
    else:
        with pytest.raises(Denied, match="not_an_approver"):
            await ann.decide(approval.approval_id, "approve")
    assert bank.refunds == ["7"] * allowed


async def test_once_in_a_store_answers_other_channels_with_the_first_result(desk: Desk) -> None:
    charged: list[str] = []

    @tool(once=("invoice",), once_scope="store")
    async def charge(invoice: str, note: str = "") -> str:
        """Charge an invoice."""
        charged.append(invoice)
        return f"receipt {len(charged)}"

    for number in range(2):
        wanted = calls("charge", {"invoice": "i1", "note": f"try {number}"})
        script = [wanted, lambda request: says(request.exchange[-1].text)]
        agent = Agent(f"clerk{number}", model=ScriptedModel(script), tools=[charge])
        assert (await desk.ask(agent)).text == "receipt 1"
    assert charged == ["i1"]


async def test_a_guard_of_a_user_permits_denies_and_changes_calls(desk: Desk) -> None:
    @register_guard
    class SmallChange(msgspec.Struct, frozen=True):
        """Denies some payments, and makes others smaller."""

        name: ClassVar[str] = "acceptance_small_change"
        most: int = 10

        def permit(self, memory: None, state: State, draft: Envelope) -> Permission:
            args = draft.event_data.get("args")
            if not isinstance(args, dict) or "cents" not in args:
                return ALLOW
            if args["cents"] > 100 * self.most:
                return Deny("policy", "That is far too much.")
            changed = {**args, "cents": min(args["cents"], self.most)}
            return Change(replace(draft, event_data={**draft.event_data, "args": changed}))

    paid: list[int] = []

    @tool
    async def pay(cents: int) -> str:
        """Pay."""
        paid.append(cents)
        return f"{cents} paid"

    script = [calls("pay", {"cents": cents}) for cents in (5, 50, 5000)]
    for name, guards in (("bob", [SmallChange(most=10)]), ("cleo", [{"name": "acceptance_small_change", "most": 10}])):
        paid.clear()
        agent = Agent(name, model=ScriptedModel([*script, says("Done.")]), tools=[pay], guards=guards)
        assert (await desk.ask(agent)).text == "Done."
        assert paid == [5, 10]


async def test_a_tool_that_changes_state_needs_compensation_or_approval_in_the_regulated_tier(desk: Desk) -> None:
    @tool(idempotency="unsafe")
    async def launch() -> str:
        """Launch."""
        return "launched"

    @tool(idempotency="unsafe", approval=True)
    async def launch_if_allowed() -> str:
        """Launch."""
        return "launched"

    ann = await desk.hub.register("ann")
    await desk.hub.register(Agent("bob", model=ScriptedModel([]), tools=[launch]))
    await desk.hub.register(Agent("cleo", model=ScriptedModel([]), tools=[launch_if_allowed]))
    with pytest.raises(RulesInvalid, match="launch"):
        await ann.open(target="bob", knobs={"tier": "regulated"})
    assert (await ann.open(target="cleo", knobs={"tier": "regulated"})).state.status == "active"
    assert (await ann.open(target="bob", knobs={"tier": "batch"})).state.status == "active"


async def test_a_guard_of_the_knob_takes_the_place_of_the_one_of_the_tier(desk: Desk) -> None:
    ann = await desk.hub.register("ann")
    script = [calls("search", {"q": str(number)}) for number in range(9)]
    await desk.hub.register(desk.agent(ScriptedModel(script)))
    guards = [
        LoopDetector(window=5, threshold=3),
        Budget(model_calls=4, tokens=200_000, dollars="2.50"),
        Deadlines(step=30, stage=60, run=120),
        CostVelocityMonitor(dollars_per_hour="10"),
        HopLimit(most=5),
        DepthLimit(most=8),
    ]
    channel = await ann.open(target="bob", knobs={"tier": "interactive", "guards": guards})
    await channel.send("Search")
    await wait_until(lambda: channel.state.turn_count == 2)
    said = (await desk.events(channel.channel_id, antiphon.EV_TEXT))[-1]
    assert said["stopped"] == "denied:budget"
    assert len(desk.done) == 4


async def test_an_unknown_tier_is_an_error_that_lists_the_known(desk: Desk) -> None:
    with pytest.raises(RulesInvalid, match="interactive, batch, regulated"):
        await soon(Agent("bob", model=ScriptedModel([]), tier="urgent").invoke("Go", hub=desk.hub))  # type: ignore[arg-type]
