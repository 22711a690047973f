"""Calls that a person decides about before they leave: which they are, how they wait, and what each decision does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import ClassVar

import msgspec
import pytest

from antiphon import (
    ALLOW,
    ApprovalEvent,
    Ask,
    Deny,
    Envelope,
    FinalStateEvent,
    Permission,
    ScriptedModel,
    State,
    ToolResponseEvent,
    ToolUsageEvent,
    UsageError,
    calls,
    register_guard,
    says,
    tool,
)
from antiphon.agents.messages import ToolSpec
from antiphon.agents.tool import tool_from_schema
from antiphon.core.codec import digest_of
from tests.support.approval_desk import QUESTION, ApprovalDesk, approval_desk
from tests.support.waiting import soon


@pytest.fixture
async def desk() -> AsyncIterator[ApprovalDesk]:
    async with approval_desk() as opened:
        yield opened


@register_guard
class Ceiling(msgspec.Struct, frozen=True):
    """Denies refunds above its limit, and has a person asked about calls of some names."""

    name: ClassVar[str] = "tests_ceiling"
    most: int = 1000
    asks: tuple[str, ...] = ()
    approvers: tuple[str, ...] = ()

    def permit(self, memory: object, state: State, draft: Envelope) -> Permission:
        if state.context_vars.get("frozen") and draft.event_data.get("name") == "refund":
            return Deny("policy", "the till is closed")
        args = draft.event_data.get("args") or {}
        if isinstance(args, dict) and args.get("cents", 0) > self.most:
            return Deny("policy", f"more than {self.most}")
        if draft.event_data.get("name") in self.asks:
            return Ask("the guard wants it", self.approvers)
        return ALLOW


async def test_a_call_that_needs_approval_waits_and_invoke_says_what_waits(desk: ApprovalDesk) -> None:
    approval = await desk.asked()
    assert desk.paid == []
    assert (approval.kind, approval.agent, approval.tool) == ("approval", "support", "refund")
    assert approval.args == {"order": "7", "cents": 900}
    assert approval.digest == digest_of(["refund", approval.args])
    assert approval.options == ["approve", "edit", "reject", "respond"]
    assert (approval.approvers, approval.decide_by, approval.why) == ([], None, "refund needs approval")
    assert await desk.hub.approvals() == [approval] == await desk.hub.approvals(approval.channel_id)
    assert approval.cause == (await desk.log(approval.channel_id, "msg.text"))[0].envelope_id
    again = await desk.ask()
    assert (again.stopped, again.approvals) == ("approval", (approval,))


async def test_approve_lets_the_call_leave_once_and_the_same_message_gives_the_answer(desk: ApprovalDesk) -> None:
    approval = await desk.asked()
    await desk.dana.decide(approval.approval_id, "approve", reason="a regular customer")
    reply = await desk.ask()
    assert (reply.text, reply.stopped, reply.approvals) == ("Refunded.", None, ())
    assert desk.paid == [("7", 900)]
    [decided] = await desk.told(approval.channel_id, "approval.decided")
    assert decided["by"] == "dana"
    assert (decided["decision"], decided["reason"], decided["digest"]) == (
        "approve",
        "a regular customer",
        approval.digest,
    )
    [started] = [each for each in await desk.told(approval.channel_id, "call.started") if each["name"] == "refund"]
    assert started["approved"] == "dana"
    assert await desk.hub.approvals() == []


async def test_edit_lets_the_call_leave_with_other_arguments(desk: ApprovalDesk) -> None:
    approval = await desk.asked()
    await desk.dana.decide(approval.approval_id, "edit", args={"order": "7", "cents": 5})
    assert (await desk.ask()).text == "Refunded."
    assert desk.paid == [("7", 5)]
    [decided] = await desk.told(approval.channel_id, "approval.decided")
    assert decided["edit_digest"] == digest_of(["refund", {"order": "7", "cents": 5}])
    assert "5 for 7" in desk.model_read()


@pytest.mark.parametrize(
    ("args", "why"),
    [
        ({"order": "7", "cents": "5"}, "cents"),
        ({"cents": 5}, "order is missing"),
        ({"order": "7", "euros": 5}, "no parameter 'euros'"),
    ],
)
async def test_an_edit_that_does_not_fit_the_tool_is_refused_and_nothing_is_recorded(
    desk: ApprovalDesk, args: dict[str, object], why: str
) -> None:
    approval = await desk.asked()
    before = await desk.log(approval.channel_id)
    with pytest.raises(UsageError, match=why):
        await desk.dana.decide(approval.approval_id, "edit", args=args)
    assert await desk.log(approval.channel_id) == before
    await desk.dana.decide(approval.approval_id, "edit", args={"order": "7", "cents": 5})
    await desk.ask()
    assert desk.paid == [("7", 5)]


async def test_an_edit_is_checked_by_the_recorded_schema_where_the_agent_is_not_registered(desk: ApprovalDesk) -> None:
    approval = await desk.asked()
    await desk.hub.close()
    await desk.next_hub()
    for args in ({"order": "7", "cents": "5"}, {"cents": 5}, {"order": "7", "euros": 5}, {"order": "7", "cents": True}):
        with pytest.raises(UsageError, match="The arguments of refund do not fit"):
            await desk.dana.decide(approval.approval_id, "edit", args=args)
    await desk.dana.decide(approval.approval_id, "edit", args={"order": "7", "cents": 5})
    assert (await desk.ask()).text == "Refunded."
    assert desk.paid == [("7", 5)]


async def test_an_edit_is_asked_about_by_all_guards_again(desk: ApprovalDesk) -> None:
    approval = await desk.asked(guards=[Ceiling(most=1000)])
    await desk.dana.decide(approval.approval_id, "edit", args={"order": "7", "cents": 5000})
    assert (await desk.ask()).text == "Refunded."
    assert desk.paid == []
    [failed] = await desk.told(approval.channel_id, "call.failed")
    assert (failed["denied"], failed["error"], failed["guard"]) == ("policy", "more than 1000", "tests_ceiling")
    assert "more than 1000" in desk.model_read()


async def test_an_approved_call_is_asked_about_by_all_guards_when_it_leaves(desk: ApprovalDesk) -> None:
    approval = await desk.asked(guards=[Ceiling()])
    channel = await desk.agent.channel("t", desk.hub)
    await channel.set_context(frozen=True)
    await desk.dana.decide(approval.approval_id, "approve")
    assert (await desk.ask()).text == "Refunded."
    assert desk.paid == []
    assert desk.model_read()[-1] == "the till is closed"


async def test_no_person_is_asked_about_what_guards_deny(desk: ApprovalDesk) -> None:
    reply = await desk.ask(desk.support(guards=[Ceiling(most=100)]))
    assert (reply.text, desk.paid) == ("Refunded.", [])
    assert await desk.told(reply.channel_id, "approval.requested") == []


@pytest.mark.parametrize(
    ("decision", "options", "read"),
    [
        ("reject", {"reason": "too much"}, "Not called: a person did not allow it: too much"),
        ("reject", {}, "Not called: a person did not allow it."),
        ("respond", {"text": "I have paid it in cash."}, "I have paid it in cash."),
    ],
)
async def test_a_call_that_is_rejected_or_answered_never_leaves(
    desk: ApprovalDesk, decision: str, options: dict[str, str], read: str
) -> None:
    approval = await desk.asked()
    await desk.dana.decide(approval.approval_id, decision, **options)
    assert (await desk.ask()).text == "Refunded."
    assert desk.paid == []
    assert desk.model_read()[-1] == read
    assert [each["name"] for each in await desk.told(approval.channel_id, "call.started")] == ["model", "model"]


async def test_while_a_call_of_a_message_waits_the_others_run(desk: ApprovalDesk) -> None:
    looked: list[str] = []

    @tool
    async def look(order: str) -> str:
        looked.append(order)
        return f"order {order} is there"

    script = [calls("refund", {"order": "7"}), calls("look", {"order": "7"}), calls("refund", {"order": "8"})]
    agent = desk.support(script, says("Both."), tools=[desk.refund(), look])
    reply = await desk.ask(agent)
    assert looked == ["7"]
    first, second = reply.approvals
    assert (first.args, second.args) == ({"order": "7"}, {"order": "8"})
    await desk.dana.decide(second.approval_id, "approve")
    [left] = await desk.waiting()
    assert left == first
    await desk.dana.decide(first.approval_id, "reject")
    assert (await desk.ask(agent)).text == "Both."
    assert (desk.paid, looked) == ([("8", 100)], ["7"])


def _fails(args: dict[str, object]) -> bool:
    raise KeyError("nothing")


def _exits(args: dict[str, object]) -> bool:
    raise SystemExit(3)


async def _large(args: dict[str, object]) -> bool:
    return args["cents"] > 500  # type: ignore[operator]


@pytest.mark.parametrize(
    ("needs", "cents", "why"),
    [
        (lambda args: args["cents"] > 500, 900, "refund needs approval with these arguments"),
        (lambda args: args["cents"] > 500, 100, ""),
        (lambda args: args["cents"] > 50, None, "refund needs approval with these arguments"),
        (_large, 900, "refund needs approval with these arguments"),
        (_large, 100, ""),
        (_fails, 100, "whether refund needs approval could not be found out"),
        (_exits, 100, "could not be found out"),
        (lambda args: None, 100, "could not be found out"),
        (lambda args: args.clear() or False, 100, ""),
    ],
)
async def test_a_function_of_the_arguments_says_whether(
    desk: ApprovalDesk, needs: Callable[[dict[str, object]], bool], cents: int | None, why: str
) -> None:
    args = {"order": "7"} if cents is None else {"order": "7", "cents": cents}
    reply = await desk.ask(desk.support(calls("refund", args), says("Done."), tools=[desk.refund(approval=needs)]))
    if why:
        assert why in reply.approvals[0].why
        assert (reply.approvals[0].args, desk.paid) == (args, [])
    else:
        assert (reply.stopped, desk.paid) == (None, [("7", 100)])


async def test_an_agent_may_want_approval_for_tools_that_want_none(desk: ApprovalDesk) -> None:
    plain = desk.refund(approval=False)
    for number, approve in enumerate((["refund"], ["*"], {"refund": True}, {"*": lambda args: True})):
        agent = desk.support(tools=[plain], approve=approve)
        reply = await soon(agent.invoke(QUESTION, thread_id=f"t{number}", hub=desk.hub))
        assert reply.stopped == "approval", approve
        await desk.hub.close()
        await desk.next_hub()
    agent = desk.support(tools=[plain], approve={"refund": ["finance", "dana"]})
    reply = await soon(agent.invoke(QUESTION, thread_id="named", hub=desk.hub))
    assert reply.approvals[0].approvers == ["finance", "dana"]
    assert plain.protections.approval is False


async def test_a_tool_of_a_server_may_need_approval(desk: ApprovalDesk) -> None:
    async def call(**arguments: object) -> str:
        desk.paid.append((str(arguments["order"]), 0))
        return "paid"

    schema: dict[str, object] = {"type": "object", "properties": {"order": {"type": "string"}}, "required": ["order"]}
    spec = ToolSpec("bank_pay", "Pay.", schema)
    served = tool_from_schema(call, spec, idempotency="natural", timeout=5.0, source="the bank")
    agent = desk.support(calls("bank_pay", {"order": "7"}), says("Done."), tools=[served], approve=["bank_pay"])
    [approval] = (await desk.ask(agent)).approvals
    assert (approval.parameters, approval.tool) == (schema, "bank_pay")
    with pytest.raises(UsageError, match="order"):
        await desk.dana.decide(approval.approval_id, "edit", args={"order": 7})
    await desk.dana.decide(approval.approval_id, "edit", args={"order": "8"})
    assert (await desk.ask(agent)).text == "Done."
    assert desk.paid == [("8", 0)]


@pytest.mark.parametrize(
    ("approve", "why"),
    [
        (["refunds"], "names 'refunds', which is no tool of its own; its tools are: refund"),
        ("refund", "give a list of names of tools"),
        ({"refund": False}, "has False for 'refund'; give True, a function"),
        ({"refund": []}, r"has \[\] for 'refund'"),
        ([7], "give a list of names"),
    ],
)
def test_what_an_agent_cannot_want_is_refused(approve: object, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        ApprovalDesk().support(approve=approve)


async def test_a_guard_names_why_and_who_beside_the_tool(desk: ApprovalDesk) -> None:
    guard = Ceiling(asks=("refund",), approvers=("finance",))
    approval = await desk.asked(guards=[guard], tools=[desk.refund(approvers=["dana"])])
    assert approval.why == "refund needs approval; the guard wants it"
    assert approval.approvers == ["finance"]


@pytest.mark.parametrize(
    ("decision", "options", "text", "stopped", "asked"),
    [
        ("approve", {}, "Hello.", None, 1),
        ("respond", {"text": "Ask me tomorrow."}, "Ask me tomorrow.", None, 0),
        ("reject", {"reason": "no"}, "", "denied:rejected", 0),
    ],
)
async def test_a_call_of_a_model_is_decided_too(
    desk: ApprovalDesk, decision: str, options: dict[str, str], text: str, stopped: str | None, asked: int
) -> None:
    approval = await desk.asked(says("Hello."), guards=[Ceiling(asks=("model",))])
    assert (approval.tool, approval.args) == ("model", {})
    assert approval.options == ["approve", "reject", "respond"]
    with pytest.raises(UsageError, match="'edit' is not possible about the call of 'model'"):
        await desk.dana.decide(approval.approval_id, "edit", args={})
    await desk.dana.decide(approval.approval_id, decision, **options)
    reply = await desk.ask()
    assert (reply.text, reply.stopped) == (text, stopped)
    assert isinstance(desk.agent.model, ScriptedModel)
    assert len(desk.agent.model.requests) == asked


async def test_a_stream_tells_what_waits_and_ends(desk: ApprovalDesk) -> None:
    agent = desk.support()

    async def events() -> list[object]:
        stream = agent.stream_invoke(QUESTION, thread_id="t", hub=desk.hub, message_id="m")
        return [event async for event in stream]

    used, waits, final = await soon(events())
    [approval] = await desk.hub.approvals()
    assert isinstance(used, ToolUsageEvent)
    assert used.args == approval.args
    assert waits == ApprovalEvent("support", approval)
    assert isinstance(final, FinalStateEvent)
    assert (final.stopped, final.approvals) == ("approval", (approval,))
    await desk.dana.decide(approval.approval_id, "edit", args={"order": "7", "cents": 1})
    used_again, returned, _, end = await soon(events())
    assert used_again == used
    assert isinstance(returned, ToolResponseEvent)
    assert (returned.text, returned.call_id) == ("1 for 7", used.call_id)
    assert isinstance(end, FinalStateEvent)
    assert end.stopped is None


async def test_a_later_message_is_told_what_it_waits_behind(desk: ApprovalDesk) -> None:
    approval = await desk.asked()
    later = await desk.ask(text="And now?", message_id="later")
    assert (later.stopped, later.approvals) == ("approval", (approval,))
    await desk.dana.decide(approval.approval_id, "approve")
    assert (await desk.ask()).text == "Refunded."


async def test_a_hundred_calls_of_one_message_are_each_decided_on_their_own(desk: ApprovalDesk) -> None:
    script = [calls("refund", {"order": str(number), "cents": number}) for number in range(100)]
    reply = await desk.ask(desk.support(script, says("All.")))
    assert [approval.args["cents"] for approval in reply.approvals] == list(range(100))
    assert len({approval.approval_id for approval in reply.approvals}) == 100

    async def decide(number: int) -> None:
        approval_id = reply.approvals[number].approval_id
        match number % 4:
            case 0:
                await desk.dana.decide(approval_id, "approve")
            case 1:
                await desk.dana.decide(approval_id, "edit", args={"order": str(number), "cents": -number})
            case 2:
                await desk.dana.decide(approval_id, "reject")
            case _:
                await desk.dana.decide(approval_id, "respond", text=f"cash {number}")

    await soon(asyncio.gather(*(decide(number) for number in reversed(range(100)))))
    while (final := await desk.ask()).stopped == "approval":
        pass
    assert final.text == "All."
    approved = [(str(number), number) for number in range(0, 100, 4)]
    edited = [(str(number), -number) for number in range(1, 100, 4)]
    assert sorted(desk.paid) == sorted(approved + edited)
    assert [f"cash {number}" for number in range(3, 100, 4)] == [
        text for text in desk.model_read() if text.startswith("cash")
    ]
