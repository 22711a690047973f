"""Who may decide about a call that has not left, by when, and what a second or a late decision is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from antiphon import (
    Agent,
    Deadlines,
    Denied,
    Hub,
    RulesInvalid,
    ScriptedModel,
    UnknownApproval,
    UsageError,
    calls,
    says,
)
from antiphon.core.envelope import seconds_between
from tests.support.approval_desk import QUESTION, ApprovalDesk, approval_desk
from tests.support.waiting import soon, wait_until

REFUND = calls("refund", {"order": "7", "cents": 900})


@pytest.fixture
async def desk() -> AsyncIterator[ApprovalDesk]:
    async with approval_desk() as opened:
        yield opened


async def refused(desk: ApprovalDesk, name: str, approval_id: str, kind: str = "human", **options: object) -> str:
    """Why this participant may not approve it."""
    who = await desk.hub.register(name, kind=kind) if name not in desk.hub.core.acceptors else None
    participant = who or await _held(desk.hub, name)
    with pytest.raises(Denied) as denied:
        await participant.decide(approval_id, "approve", **options)  # type: ignore[arg-type]
    return denied.value.reason


async def _held(hub: Hub, name: str) -> object:
    from antiphon.runtime.participant import Participant

    return Participant(hub.core, name, hub.core.directory.find(name).kind)


async def test_only_people_decide_and_not_the_one_who_asked(desk: ApprovalDesk) -> None:
    approval = await desk.asked()
    assert await refused(desk, "cron", approval.approval_id, "service") == "not_a_person"
    assert await refused(desk, "support", approval.approval_id) == "not_a_person"
    assert await refused(desk, "user", approval.approval_id) == "not_an_approver"
    assert desk.paid == []
    erin = await desk.hub.register("erin", kind="human")
    await erin.decide(approval.approval_id, "approve")
    assert (await desk.ask()).text == "Refunded."


async def test_the_channel_may_let_the_one_who_asked_decide(desk: ApprovalDesk) -> None:
    approval = await desk.asked(self_approval=True)
    await (await _held(desk.hub, "user")).decide(approval.approval_id, "approve")  # type: ignore[attr-defined]
    assert (await desk.ask()).text == "Refunded."


async def test_a_tool_names_people_and_roles(desk: ApprovalDesk) -> None:
    tools = [desk.refund(approvers=["finance", "erin"])]
    approval = await desk.asked(tools=tools, approvers=["dana"])
    assert approval.approvers == ["finance", "erin"]
    assert await refused(desk, "dana", approval.approval_id) == "not_an_approver"
    fred = await desk.hub.register("fred", kind="human", roles=["finance"])
    await fred.decide(approval.approval_id, "approve")
    assert (await desk.ask()).text == "Refunded."


async def test_the_channel_names_them_where_the_tool_does_not(desk: ApprovalDesk) -> None:
    approval = await desk.asked(approvers=["erin"])
    assert await refused(desk, "dana", approval.approval_id) == "not_an_approver"
    erin = await desk.hub.register("erin", kind="human")
    await erin.decide(approval.approval_id, "approve")


async def test_roles_are_kept_over_restarts_until_they_are_changed(desk: ApprovalDesk) -> None:
    await desk.hub.register("fred", kind="human", roles=["finance"])
    await desk.hub.close()
    await desk.next_hub()
    fred = await desk.hub.register("fred", kind="human")
    assert desk.hub.core.directory.roles_of("fred") == ("finance",)
    approval = await desk.asked(approvers=["finance"])
    await desk.hub.close()
    await desk.next_hub()
    fred = await desk.hub.register("fred", kind="human", roles=[])
    with pytest.raises(Denied, match="those may: finance"):
        await fred.decide(approval.approval_id, "approve")
    records = [each.event_data for each in await desk.hub.log("system:registry")]
    assert [each.get("roles") for each in records if each.get("name") == "fred"] == [["finance"], None]


@pytest.mark.parametrize(("name", "kind", "roles"), [("bot", "service", ["x"]), ("fred", "human", "finance")])
async def test_roles_that_make_no_sense_are_refused(desk: ApprovalDesk, name: str, kind: str, roles: object) -> None:
    with pytest.raises(UsageError, match="roles"):
        await desk.hub.register(name, kind=kind, roles=roles)  # type: ignore[arg-type]
    assert not desk.hub.core.directory.knows(name)


async def test_in_the_regulated_tier_the_one_who_started_the_run_never_decides(desk: ApprovalDesk) -> None:
    approval = await desk.asked(tier="regulated", self_approval=True, approvers=["user", "dana"])
    assert await refused(desk, "user", approval.approval_id) == "not_an_approver"
    await desk.dana.decide(approval.approval_id, "approve")
    assert (await desk.ask()).text == "Refunded."


async def test_in_a_chain_of_agents_the_person_that_began_it_does_not_decide(desk: ApprovalDesk) -> None:
    writer = Agent("writer", model=ScriptedModel([says("Please refund it.")]))
    await desk.hub.register(writer)
    await desk.hub.register(desk.support())
    ann = await desk.hub.register("ann", kind="human")
    room = await ann.open(type="discussion", target=["writer", "support"])
    await room.send("Order 7 is broken.")
    [approval] = await desk.waiting()
    assert await refused(desk, "ann", approval.approval_id) == "not_an_approver"
    await desk.dana.decide(approval.approval_id, "approve")
    await wait_until(lambda: desk.paid == [("7", 900)])


@pytest.mark.parametrize(
    ("knobs", "why"),
    [
        ({"approvers": "dana"}, "approvers is 'dana'; give a list"),
        ({"self_approval": 1}, "self_approval is 1; give True or False"),
        ({"approval_seconds": 0}, "approval_seconds is 0; give seconds above 0"),
        ({"approval_seconds": "unlimited", "tier": "regulated"}, "needs a number of seconds"),
    ],
)
async def test_knobs_that_make_no_sense_are_refused(desk: ApprovalDesk, knobs: dict[str, object], why: str) -> None:
    await desk.hub.register(desk.support())
    with pytest.raises(RulesInvalid, match=why):
        await desk.dana.open(target="support", knobs=knobs)
    with pytest.raises((RulesInvalid, UsageError), match="approv"):
        desk.support(**knobs)


async def test_the_first_decision_wins_and_the_second_is_told_the_first(desk: ApprovalDesk) -> None:
    approval = await desk.asked()
    erin = await desk.hub.register("erin", kind="human")
    await desk.dana.decide(approval.approval_id, "reject", reason="too much")
    for decision in ("approve", "reject"):
        with pytest.raises(Denied, match="'dana' decided before: reject: too much") as denied:
            await erin.decide(approval.approval_id, decision)
        assert denied.value.reason == "decided"
    await desk.ask()
    with pytest.raises(Denied, match="decided before"):
        await erin.decide(approval.approval_id, "approve")
    assert desk.paid == []
    assert len(await desk.told(approval.channel_id, "approval.decided")) == 1


async def test_of_two_decisions_at_once_one_wins(desk: ApprovalDesk) -> None:
    approval = await desk.asked()
    people = [await desk.hub.register(f"person{number}", kind="human") for number in range(8)]
    words = ["approve", "reject"] * 4
    deciding = (who.decide(approval.approval_id, word) for who, word in zip(people, words, strict=True))
    outcomes = await asyncio.gather(*deciding, return_exceptions=True)
    [first] = await desk.told(approval.channel_id, "approval.decided")
    lost = [outcome for outcome in outcomes if isinstance(outcome, Denied)]
    assert [outcome.reason for outcome in lost] == ["decided"] * 7
    assert all(f"'{first['by']}' decided before: {first['decision']}" in outcome.detail for outcome in lost)
    await desk.ask()
    assert desk.paid == ([("7", 900)] if first["decision"] == "approve" else [])


async def test_a_decision_about_another_digest_is_stale(desk: ApprovalDesk) -> None:
    approval = await desk.asked()
    with pytest.raises(Denied) as denied:
        await desk.dana.decide(approval.approval_id, "approve", digest="0" * 64)
    assert denied.value.reason == "stale_decision"
    assert await desk.told(approval.channel_id, "approval.decided") == []
    await desk.dana.decide(approval.approval_id, "approve", digest=approval.digest)


async def test_what_was_cancelled_is_not_decided_any_more(desk: ApprovalDesk) -> None:
    approval = await desk.asked()
    channel = await desk.agent.channel("t", desk.hub)
    assert await channel.cancel("never mind") == 1
    assert await desk.hub.approvals() == []
    with pytest.raises(Denied) as denied:
        await desk.dana.decide(approval.approval_id, "approve")
    assert denied.value.reason == "cancelled"
    for strange in (approval.approval_id.replace(".1.ask", ".9.ask"), "nothing", f"{approval.approval_id}.x"):
        with pytest.raises(UnknownApproval):
            await desk.dana.decide(strange, "approve")


@pytest.mark.parametrize(
    ("word", "options", "why"),
    [
        ("allow", {}, "no decision is called 'allow'"),
        ("approve", {"args": {}}, "args belongs to 'edit'"),
        ("edit", {}, "'edit' needs args"),
        ("edit", {"args": ["7"]}, "'edit' needs args"),
        ("edit", {"args": {"cents": float("nan")}}, "args cannot be recorded"),
        ("respond", {}, "'respond' needs text"),
        ("reject", {"text": "no"}, "text belongs to 'respond'"),
    ],
)
async def test_a_decision_with_what_it_does_not_take_is_refused(
    desk: ApprovalDesk, word: str, options: dict[str, object], why: str
) -> None:
    approval = await desk.asked()
    with pytest.raises(UsageError, match=why):
        await desk.dana.decide(approval.approval_id, word, **options)  # type: ignore[arg-type]
    assert await desk.hub.approvals() == [approval]


@pytest.mark.parametrize(
    ("options", "seconds"),
    [
        ({"tier": "interactive"}, 60.0),
        ({"tier": "interactive", "guards": [Deadlines(step=10, stage=5000, run=6000)]}, 900.0),
        ({"tier": "interactive", "approval_seconds": 20}, 20.0),
        ({"approval_seconds": 60.5}, 60.5),
    ],
)
async def test_what_nobody_decides_in_time_ends_the_turn(
    desk: ApprovalDesk, options: dict[str, object], seconds: float
) -> None:
    approval = await desk.asked(**options)
    assert approval.decide_by is not None
    assert seconds_between(approval.since, approval.decide_by) == seconds
    await desk.clock.advance(seconds - 0.01)
    assert await desk.hub.approvals() == [approval]
    await desk.clock.advance(0.02)
    reply = await desk.ask()
    assert (reply.text, reply.stopped, desk.paid) == ("", "denied:approval_expired", [])
    with pytest.raises(Denied, match="it expired before") as denied:
        await desk.dana.decide(approval.approval_id, "approve")
    assert denied.value.reason == "decided"
    assert len(await desk.told(approval.channel_id, "approval.expired")) == 1


@pytest.mark.parametrize(("options", "seconds"), [({}, 86_400.0), ({"approval_seconds": 60}, 60.0)])
async def test_in_the_batch_tier_the_run_is_aborted(
    desk: ApprovalDesk, options: dict[str, object], seconds: float
) -> None:
    approval = await desk.asked(tier="batch", **options)
    assert approval.decide_by is not None
    assert seconds_between(approval.since, approval.decide_by) == seconds
    await desk.clock.advance(seconds + 0.01)
    [row] = [each for each in await desk.hub.channels() if each.channel_id == approval.channel_id]
    assert (row.status, row.close_reason, desk.paid) == ("closed", "aborted:approval_expired", [])
    with pytest.raises(Denied, match="it expired before"):
        await desk.dana.decide(approval.approval_id, "approve")


async def test_in_the_regulated_tier_it_waits_on_and_its_people_are_reminded(desk: ApprovalDesk) -> None:
    approval = await desk.asked(tier="regulated", approval_seconds=60)
    for count in (1, 2):
        await desk.clock.advance(60)
        assert len(await desk.told(approval.channel_id, "approval.reminded")) == count
    [waiting] = await desk.hub.approvals()
    assert waiting.approval_id == approval.approval_id
    assert waiting.decide_by is not None
    assert seconds_between(approval.since, waiting.decide_by) == 180
    await desk.hub.close()
    desk.clock.advance(100_000)
    await desk.next_hub()
    [waiting] = await desk.waiting()
    assert len(await desk.told(approval.channel_id, "approval.reminded")) == 3
    await desk.dana.decide(waiting.approval_id, "approve")
    assert (await desk.ask()).text == "Refunded."


async def test_what_expires_while_no_hub_is_open_expires_once_at_the_next_start(desk: ApprovalDesk) -> None:
    approval = await desk.asked(approval_seconds=60)
    await desk.hub.close()
    desk.clock.advance(7200)
    await desk.next_hub()
    assert (await desk.ask()).stopped == "denied:approval_expired"
    assert len(await desk.told(approval.channel_id, "approval.expired")) == 1
    assert desk.paid == []


async def test_one_of_two_expires_and_the_other_was_decided(desk: ApprovalDesk) -> None:
    agent = desk.support([REFUND, calls("refund", {"order": "8", "cents": 1})], says("Done."), approval_seconds=60)
    first, second = (await desk.ask(agent)).approvals
    await desk.dana.decide(first.approval_id, "approve")
    await wait_until(lambda: desk.paid == [("7", 900)])
    await desk.clock.advance(60)
    assert (await desk.ask()).stopped == "denied:approval_expired"
    assert desk.paid == [("7", 900)]
    assert second.approval_id not in {each.approval_id for each in await desk.hub.approvals()}


async def test_without_a_tier_a_call_waits_for_ever_and_defaults_stand_still(desk: ApprovalDesk) -> None:
    approval = await desk.asked()
    await desk.clock.advance(400 * 86_400)
    assert await desk.hub.approvals() == [approval]
    await desk.dana.decide(approval.approval_id, "approve")
    assert (await desk.ask()).text == "Refunded."


async def test_a_person_may_interject_while_a_call_waits(desk: ApprovalDesk) -> None:
    await desk.hub.register(desk.support())
    ann = await desk.hub.register("ann", kind="human")
    await desk.hub.register("bob")
    room = await ann.open(type="discussion", target=["support", "bob"])
    await room.send(QUESTION)
    [approval] = await desk.waiting()
    said = await soon(room.send("Be quick."))
    assert said.event_data["text"] == "Be quick."
    assert await desk.hub.approvals() == [approval]
    await desk.dana.decide(approval.approval_id, "approve")
    await wait_until(lambda: room.state.last_speaker_id == "support")
    assert desk.paid == [("7", 900)]
