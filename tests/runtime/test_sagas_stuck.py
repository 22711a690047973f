"""Compensations that fail, and those that no retry helps: a person decides, and everything behind them waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from antiphon import (
    ALLOW,
    Agent,
    Approval,
    Ask,
    Channel,
    Denied,
    Deny,
    Envelope,
    Hub,
    Participant,
    Permission,
    ScriptedModel,
    State,
    UnknownApproval,
    UsageError,
    calls,
    register_guard,
    says,
    tool,
)
from antiphon.agents.compensation import register_compensation
from antiphon.core.saga_events import EV_SAGA_COMPENSATION
from antiphon.core.sagas import MAX_RETRIES
from antiphon.testing import ManualClock
from tests.support.trips import Travel
from tests.support.waiting import NEVER_COMES, let_others_run, wait_until

MISSING = "compensation_missing"


@pytest.fixture
async def travel() -> AsyncIterator[Travel]:
    async with Hub.open("memory:", clock=ManualClock()) as hub:
        yield Travel(hub)


async def waiting(hub: Hub) -> Approval:
    """The one compensation that waits for a person."""
    async with asyncio.timeout(NEVER_COMES):
        while not (found := await hub.approvals()):
            await let_others_run(1)
    [approval] = found
    return approval


async def exhausted(travel: Travel, channel: Channel) -> Approval:
    """What waits after all retries: the clock passes over the pauses."""
    async with asyncio.timeout(NEVER_COMES):
        while not await travel.hub.approvals():
            travel.clock.advance(1)
            await let_others_run(1)
    return await waiting(travel.hub)


async def moves(travel: Travel, channel: Channel) -> list[tuple[object, object]]:
    return [
        (each.event_data["status"], each.event_data["attempt"])
        for each in await travel.log(channel, EV_SAGA_COMPENSATION)
    ]


async def person(travel: Travel, name: str = "dana") -> Participant:
    return await travel.hub.register(name, kind="human")


async def test_a_compensation_that_fails_is_retried_with_growing_pauses(travel: Travel) -> None:
    travel.world.refuses["hotel"] = 3
    channel = await travel.open(*travel.world.booking(["flight", "hotel"]))
    await travel.answered(channel)
    await channel.abort()
    for attempt, pause in ((1, 1), (2, 2), (3, 4)):
        await travel.until(channel, EV_SAGA_COMPENSATION, status="failed", attempt=attempt)
        await let_others_run()
        assert travel.world.calls["hotel"] == attempt
        travel.clock.advance(pause)
    await travel.finished(channel)
    assert travel.world.order == ["hotel", "flight"]
    assert (await moves(travel, channel))[:8] == [
        ("running", 1),
        ("failed", 1),
        ("running", 2),
        ("failed", 2),
        ("running", 3),
        ("failed", 3),
        ("running", 4),
        ("done", 4),
    ]


async def test_after_five_retries_a_person_decides_and_the_rest_waits(travel: Travel) -> None:
    travel.world.refuses["hotel"] = 100
    channel = await travel.open(*travel.world.booking(["flight", "hotel"]))
    await travel.answered(channel)
    await channel.abort()
    approval = await exhausted(travel, channel)
    assert travel.world.calls["hotel"] == 1 + MAX_RETRIES == 6
    assert (approval.kind, approval.tool, approval.agent) == ("compensation", "cancel", "bob")
    assert approval.options == ["retry", "skip", "done"]
    assert approval.args == {"what": "hotel", "result": "hotel booked"}
    assert approval.why == "error: RuntimeError: no answer about hotel"
    assert travel.world.order == []
    travel.world.refuses["hotel"] = 0
    dana = await person(travel)
    await dana.decide(approval.approval_id, "retry", digest=approval.digest)
    assert await travel.finished(channel) == {"done": 2, "stuck": 1, "skipped": 0}
    assert travel.world.order == ["hotel", "flight"]
    assert await travel.hub.approvals() == []


async def test_a_retry_begins_to_count_anew(travel: Travel) -> None:
    travel.world.refuses["hotel"] = 7
    channel = await travel.open(*travel.world.booking(["hotel"]))
    await travel.answered(channel)
    await channel.abort()
    approval = await exhausted(travel, channel)
    await (await person(travel)).decide(approval.approval_id, "retry")
    async with asyncio.timeout(NEVER_COMES):
        while (await moves(travel, channel))[-1] != ("done", 2):
            travel.clock.advance(0.5)
            await let_others_run(1)
    assert await travel.finished(channel) == {"done": 1, "stuck": 1, "skipped": 0}


@pytest.mark.parametrize(
    ("decision", "finished"),
    [("skip", {"done": 1, "stuck": 1, "skipped": 1}), ("done", {"done": 2, "stuck": 1, "skipped": 0})],
)
async def test_a_person_leaves_it_or_says_that_it_is_done(
    travel: Travel, decision: str, finished: dict[str, int]
) -> None:
    travel.world.refuses["hotel"] = 100
    channel = await travel.open(*travel.world.booking(["flight", "hotel"]))
    await travel.answered(channel)
    await channel.abort()
    approval = await exhausted(travel, channel)
    await (await person(travel)).decide(approval.approval_id, decision, reason="by phone")
    assert await travel.finished(channel) == finished
    assert travel.world.order == ["flight"]


async def test_the_first_decision_wins_and_agents_and_services_never_decide(travel: Travel) -> None:
    travel.world.refuses["hotel"] = 100
    channel = await travel.open(*travel.world.booking(["hotel"]))
    await travel.answered(channel)
    await channel.abort()
    approval = await exhausted(travel, channel)
    dana, robot = await person(travel), await travel.hub.register("robot")
    with pytest.raises(Denied) as denied:
        await robot.decide(approval.approval_id, "skip")
    assert denied.value.reason == "not_a_person"
    with pytest.raises(Denied) as denied:
        await dana.decide(approval.approval_id, "skip", digest="another")
    assert denied.value.reason == "stale_decision"
    with pytest.raises(UsageError, match="give one of retry, skip, done"):
        await dana.decide(approval.approval_id, "edit", args={})
    await dana.decide(approval.approval_id, "skip")
    with pytest.raises(Denied) as denied:
        await dana.decide(approval.approval_id, "done")
    assert (denied.value.reason, denied.value.detail) == ("decided", "'dana' decided before: skip")
    with pytest.raises(UnknownApproval):
        await dana.decide(f"{channel.channel_id}.1.1.1.compensation", "skip")


async def test_only_the_approvers_of_the_channel_decide(travel: Travel) -> None:
    travel.world.refuses["hotel"] = 100
    channel = await travel.open(*travel.world.booking(["hotel"]), knobs={"approvers": ["finance"]})
    await travel.answered(channel)
    await channel.abort()
    approval = await exhausted(travel, channel)
    with pytest.raises(Denied) as denied:
        await (await person(travel)).decide(approval.approval_id, "skip")
    assert denied.value.reason == "not_an_approver"
    fay = await travel.hub.register("fay", kind="human", roles=["finance"])
    await fay.decide(approval.approval_id, "skip")
    await travel.finished(channel)


async def test_a_name_that_there_is_not_any_more_waits_for_a_person(travel: Travel) -> None:
    @tool(compensate="unmake_test_thing")
    async def make(what: str) -> str:
        return what

    model = ScriptedModel([calls("make", {"what": "a"}), says("Made.")])
    await travel.hub.register(Agent("maker", model=model, tools=[make]))
    ann = await person(travel, "ann")
    channel = await ann.open(target="maker", say="Make")
    await travel.answered(channel)
    await channel.abort()
    approval = await waiting(travel.hub)
    assert (approval.why, approval.tool) == (MISSING, "unmake_test_thing")
    unmade: list[str] = []

    @register_compensation(name="unmake_test_thing")
    def unmake(what: str, result: str) -> None:
        unmade.append(f"{what} {result}")

    await ann.decide(approval.approval_id, "retry")
    await travel.finished(channel)
    assert unmade == ["a a"]


async def test_a_compensation_that_needs_what_the_call_does_not_have_waits_for_a_person(travel: Travel) -> None:
    @tool
    async def unmake(what: str, size: int) -> str:
        return what

    @tool(compensate=unmake)
    async def make(what: str) -> str:
        return what

    model = ScriptedModel([calls("make", {"what": "a"}), says("Made.")])
    await travel.hub.register(Agent("maker", model=model, tools=[make]))
    channel = await (await person(travel, "ann")).open(target="maker", say="Make")
    await travel.answered(channel)
    await channel.abort()
    assert (await waiting(travel.hub)).why == "arguments"


@register_guard
class GuardOfCancellations:
    """Says about each cancellation what the test wants."""

    name = "tests_cancellations"
    says: str = "allow"

    def permit(self, memory: None, state: State, draft: Envelope) -> Permission:
        if draft.event_data["name"] != "cancel":
            return ALLOW
        match GuardOfCancellations.says:
            case "allow":
                return ALLOW
            case "ask":
                return Ask("it costs")
            case reason:
                return Deny(reason)


@pytest.fixture(autouse=True)
def _allowing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GuardOfCancellations, "says", "allow")


async def test_a_policy_is_asked_about_a_compensation(travel: Travel) -> None:
    GuardOfCancellations.says = "policy"
    channel = await travel.open(*travel.world.booking(["hotel"]), knobs={"guards": ["tests_cancellations"]})
    await travel.answered(channel)
    await channel.abort()
    approval = await waiting(travel.hub)
    assert (approval.why, travel.world.calls["hotel"]) == ("policy", 0)
    GuardOfCancellations.says = "allow"
    await (await person(travel)).decide(approval.approval_id, "retry")
    await travel.finished(channel)


async def test_a_guard_that_wants_a_person_asked_has_one_asked_once(travel: Travel) -> None:
    GuardOfCancellations.says = "ask"
    channel = await travel.open(*travel.world.booking(["hotel"]), knobs={"guards": ["tests_cancellations"]})
    await travel.answered(channel)
    await channel.abort()
    approval = await waiting(travel.hub)
    assert (approval.why, travel.world.calls["hotel"]) == ("approval", 0)
    await (await person(travel)).decide(approval.approval_id, "retry")
    await travel.finished(channel)
    assert travel.world.order == ["hotel"]


async def test_an_open_breaker_is_waited_for(travel: Travel) -> None:
    GuardOfCancellations.says = "breaker_open"
    channel = await travel.open(*travel.world.booking(["hotel"]), knobs={"guards": ["tests_cancellations"]})
    await travel.answered(channel)
    await channel.abort()
    for _ in range(100):
        travel.clock.advance(5)
        await let_others_run(2)
    assert (travel.world.calls["hotel"], await travel.hub.approvals()) == (0, [])
    GuardOfCancellations.says = "allow"
    travel.clock.advance(5)
    await travel.finished(channel)


async def test_the_limits_of_a_run_do_not_hold_for_undoing_it(travel: Travel) -> None:
    guards = [{"name": "budget", "model_calls": 2, "tool_calls": 1}]
    channel = await travel.open(*travel.world.booking(["hotel"]), knobs={"guards": guards})
    await travel.answered(channel)
    await channel.abort()
    await travel.finished(channel)
    assert travel.world.order == ["hotel"]


async def test_an_unsafe_compensation_that_timed_out_is_not_made_again(travel: Travel) -> None:
    made: list[str] = []

    @tool(idempotency="unsafe")
    async def unmake(what: str) -> None:
        made.append(what)
        await asyncio.Event().wait()

    @tool(compensate=unmake)
    async def make(what: str) -> str:
        return what

    model = ScriptedModel([calls("make", {"what": "a"}), says("Made.")])
    await travel.hub.register(Agent("maker", model=model, tools=[make]))
    channel = await (await person(travel, "ann")).open(target="maker", say="Make")
    await travel.answered(channel)
    await channel.abort()
    await wait_until(lambda: bool(made))
    travel.clock.advance(300)
    assert (await waiting(travel.hub)).why.startswith("in_doubt")
    assert made == ["a"]


async def test_a_breaker_that_a_compensation_has_opened_is_waited_for_until_it_lets_one_try(
    travel: Travel,
) -> None:
    travel.world.refuses["hotel"] = 4
    guards = [{"name": "breaker", "transport": 1, "identical": "unlimited"}]
    channel = await travel.open(*travel.world.booking(["hotel"]), knobs={"guards": guards})
    await travel.answered(channel)
    await channel.abort()
    async with asyncio.timeout(NEVER_COMES):
        while (await moves(travel, channel) or [("", 0)])[-1] != ("done", 5):
            travel.clock.advance(5)
            await let_others_run(1)
    assert await travel.finished(channel) == {"done": 1, "stuck": 0, "skipped": 0}


async def test_what_is_not_undone_yet_is_not_erased(travel: Travel) -> None:
    travel.world.refuses["hotel"] = 100
    channel = await travel.open(*travel.world.booking(["hotel"]))
    await travel.answered(channel)
    await channel.abort()
    approval = await exhausted(travel, channel)
    with pytest.raises(Denied, match="the calls of its run are not undone yet"):
        await travel.hub.erase(channel.channel_id)
    await (await person(travel)).decide(approval.approval_id, "skip")
    await travel.finished(channel)
    assert (await travel.hub.erase(channel.channel_id)).records > 10
