"""Compensations that a person has to allow: what that person sees, and who it may be."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from antiphon import (
    ALLOW,
    Agent,
    Approval,
    Ask,
    Denied,
    Envelope,
    Hub,
    Participant,
    Permission,
    ScriptedModel,
    State,
    UsageError,
    calls,
    delegate,
    register_guard,
    says,
    tool,
)
from antiphon.testing import ManualClock
from tests.support.trips import Travel
from tests.support.waiting import NEVER_COMES, let_others_run


@register_guard
class FinanceAsked:
    """Wants a person of finance asked about each recall."""

    name = "tests_finance_asked"

    def permit(self, memory: None, state: State, draft: Envelope) -> Permission:
        return Ask("it costs", ("finance",)) if draft.event_data.get("name") == "recall" else ALLOW


class Post:
    """Letters that are sent, and recalled if a person allows it."""

    def __init__(self, **options: object) -> None:
        self.recalled: list[str] = []

        @tool(**options)  # type: ignore[call-overload]
        async def recall(to: str, idempotency_key: str) -> str:
            """Recall a letter."""
            self.recalled.append(to)
            return "recalled"

        @tool(compensate=recall)
        async def send_letter(to: str, idempotency_key: str) -> str:
            """Send a letter."""
            return "sent"

        script = [calls("send_letter", {"to": "Bob"}), says("Sent.")]
        self.clerk = Agent("clerk", model=ScriptedModel(script, by="position"), tools=[send_letter])


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    async with Hub.open("memory:", clock=ManualClock()) as opened:
        yield opened


async def undoing(hub: Hub, agent: Agent, **knobs: object) -> Participant:
    """Who has opened and aborted a run of this agent."""
    travel = Travel(hub)
    await hub.register(agent)
    ann = await hub.register("ann", kind="human")
    channel = await ann.open(target=agent.name, say="Write to Bob", knobs=dict(knobs))
    await travel.answered(channel)
    await channel.abort()
    return ann


async def waiting(hub: Hub) -> Approval:
    async with asyncio.timeout(NEVER_COMES):
        while not (found := await hub.approvals()):
            await let_others_run(1)
    [approval] = found
    return approval


async def done(hub: Hub, recalled: list[str]) -> None:
    async with asyncio.timeout(NEVER_COMES):
        while not recalled or await hub.approvals():
            await let_others_run(1)


async def refused(person: Participant, approval: Approval, decision: str = "retry") -> str:
    with pytest.raises(Denied) as denied:
        await person.decide(approval.approval_id, decision)
    return denied.value.reason


def only_bob(args: dict[str, object]) -> bool:
    return args["to"] == "Bob"


def only_carol(args: dict[str, object]) -> bool:
    return args["to"] == "Carol"


@pytest.mark.parametrize("wanted", [True, only_bob])
async def test_a_tool_that_needs_approval_needs_it_as_a_compensation(
    hub: Hub, wanted: bool | Callable[[dict[str, object]], bool]
) -> None:
    post = Post(approval=wanted, approvers=["finance"])
    await undoing(hub, post.clerk)
    approval = await waiting(hub)
    assert (approval.why, approval.tool, approval.args) == ("approval", "recall", {"to": "Bob"})
    assert (approval.approvers, post.recalled) == (["finance"], [])
    assert await refused(await hub.register("erin", kind="human"), approval) == "not_an_approver"
    fay = await hub.register("fay", kind="human", roles=["finance"])
    await fay.decide(approval.approval_id, "approve")
    await done(hub, post.recalled)
    assert post.recalled == ["Bob"]


async def test_a_function_that_says_that_no_person_is_needed(hub: Hub) -> None:
    post = Post(approval=only_carol)
    await undoing(hub, post.clerk)
    await done(hub, post.recalled)
    assert post.recalled == ["Bob"]


async def test_whom_a_guard_names_decides(hub: Hub) -> None:
    post = Post()
    await undoing(hub, post.clerk, guards=["tests_finance_asked"], approvers=["erin"])
    approval = await waiting(hub)
    assert (approval.why, approval.approvers, approval.args) == ("approval", ["finance"], {"to": "Bob"})
    assert await refused(await hub.register("erin", kind="human"), approval) == "not_an_approver"
    fay = await hub.register("fay", kind="human", roles=["finance"])
    await fay.decide(approval.approval_id, "retry")
    await done(hub, post.recalled)


async def test_the_arguments_of_a_call_of_a_task_are_shown(hub: Hub) -> None:
    post = Post(approval=True)
    script = [calls("delegate_to_clerk", {"task": "Write to Bob"}), says("Done.")]
    boss = Agent("boss", model=ScriptedModel(script, by="position"), tools=[delegate(post.clerk)])
    await undoing(hub, boss, approvers=["erin"])
    approval = await waiting(hub)
    assert (approval.args, approval.approvers) == ({"to": "Bob"}, ["erin"])


async def test_in_the_tier_regulated_the_person_who_opened_the_channel_does_not_decide(hub: Hub) -> None:
    post = Post(approval=True)
    ann = await undoing(hub, post.clerk, tier="regulated")
    approval = await waiting(hub)
    assert await refused(ann, approval, "skip") == "not_an_approver"
    erin = await hub.register("erin", kind="human")
    await erin.decide(approval.approval_id, "retry")
    await done(hub, post.recalled)


async def test_nothing_that_is_said_with_a_decision_is_lost(hub: Hub) -> None:
    await undoing(hub, Post(approval=True).clerk)
    approval, erin = await waiting(hub), await hub.register("erin", kind="human")
    with pytest.raises(UsageError, match="args belongs to 'edit'"):
        await erin.decide(approval.approval_id, "retry", args={"to": "Carol"})
    with pytest.raises(Denied) as denied:
        await erin.decide(approval.approval_id, "retry", digest="")
    assert denied.value.reason == "stale_decision"
    await erin.decide(approval.approval_id, "respond", text="the post has it back")
    log = await hub.log(approval.channel_id)
    [decided] = [each.event_data for each in log if each.event_type == "antiphon.approval.decided"]
    assert decided["reason"] == "the post has it back"
