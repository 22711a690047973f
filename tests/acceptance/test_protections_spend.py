"""Naive protections of money and of results, and the amounts of tiers, on a real hub."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from antiphon import (
    Agent,
    Answered,
    Budget,
    CheckResult,
    Denied,
    Gate,
    GateGuard,
    Hub,
    Limits,
    Reply,
    Request,
    ScriptedModel,
    Usage,
    calls,
    delegate,
    register_check,
    run_gate,
    says,
)
from antiphon.testing import ManualClock
from tests.acceptance.protections_desk import Desk
from tests.support.crashing_hubs import Mind, crashes
from tests.support.waiting import let_others_run, wait_until

BUDGET = "antiphon.flow.budget"
COST = 300_000


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    clock = ManualClock()
    async with Hub.open("memory:", clock=clock) as hub:
        yield Desk(hub, clock)


class Priced:
    """A model each call of which costs 30 cents, and that says so before it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    async def __call__(self, request: Request) -> Reply:
        self.asked += 1
        return says("found", usage=Usage(cost=COST))

    def most_usage(self, request: Request) -> Usage:
        return Usage(cost=COST)


async def test_a_budget_checked_after_the_call__a_parallel_fan_out_overspends(desk: Desk) -> None:
    """Ten helpers are asked at once, and a dollar is there: three of them are, and the others are told so."""
    priced = Priced()

    async def lead(request: Request) -> Reply | list[Reply]:
        answers = [item.text for item in request.exchange if isinstance(item, Answered)]
        if answers:
            return says("; ".join(answers))
        return [calls("delegate_to_helper", {"task": f"box {number}"}) for number in range(10)]

    helper = Agent("helper", model=priced)
    reply = await desk.ask(Agent("lead", model=lead, tools=[delegate(helper)], guards=[Budget(dollars="1.00")]))
    assert priced.asked == 3
    settled = await desk.events(reply.channel_id, "antiphon.run.settled")
    assert sum(int(str(each.get("cost", 0))) for each in settled) == 3 * COST
    assert reply.text.count("found") == 3
    assert reply.text.count("budget") == 7


async def test_a_budget_checked_after_the_call__exactly_the_cap_is_allowed(desk: Desk) -> None:
    priced = Priced()
    agent = Agent("bob", model=priced, guards=[Budget(dollars="0.60")])
    outcomes = [(await desk.ask(agent, thread_id="t", text=f"message {number}")).stopped for number in range(3)]
    assert (outcomes, priced.asked) == ([None, None, "denied:budget"], 2)


async def test_a_reservation_lost_with_its_process__overspend() -> None:
    """The process dies while the model is asked. The call that is started again is the same one, and counts once."""
    async with crashes() as place:
        dies = Mind()
        await place.next_hub(dies)
        ann = place.people["ann"]
        channel = await ann.open(target="bob", knobs={"guards": [Budget(model_calls=2)]})
        place.channel_id = channel.channel_id
        await channel.send("Pay.")
        await wait_until(lambda: len(dies.requests) == 1)
        again = Mind(calls("get_time_date"), says("Done."), says("never asked"))
        await place.next_hub(again)
        assert await place.answered() == ["Done."]
        await (await place.held_by("ann")).send("And again.")
        assert (await place.until("flow.budget"))[0].event_data["op"] == "deny"
        assert len(again.requests) == 2


async def test_a_call_that_never_returns_is_booked_in_full() -> None:
    async with crashes() as place:
        place.limits = Limits(model_seconds=60)
        dies = Mind()
        await place.next_hub(dies)
        guards = [Budget(dollars="1.00", tokens=2000)]
        channel = await place.people["ann"].open(target="bob", knobs={"guards": guards, "expectations": []})
        place.channel_id = channel.channel_id
        await channel.send("Pay.")
        await wait_until(lambda: len(dies.requests) == 1)
        [started] = await place.told("call.started")
        reserved = started.event_data["tokens"]
        hub = await place.next_hub()
        for _ in range(10):
            await place.clock.advance(120)
            await let_others_run()
        expired = [each for each in await place.until("flow.budget") if each.event_data["op"] == "expire"]
        assert [each.event_data["tokens"] for each in expired] == [reserved]
        assert (await hub.channels())[0].status == "active"
        again = Mind(says("never asked"))
        await place.next_hub(again)
        await (await place.held_by("ann")).send("And now?")
        await place.until("flow.budget", 2)
        assert again.requests == []


# Gates


@register_check("acceptance_raises")
def raises(subject: object, context: object) -> bool:
    raise RuntimeError("the oracle is down")


ROLLS = iter([False, True, True])


@register_check("acceptance_flaky")
def flaky(subject: object, context: object) -> CheckResult:
    return CheckResult(next(ROLLS))


async def test_an_error_of_a_gate_is_a_pass__unverified_output(desk: Desk) -> None:
    gate = Gate(name="verify", invariants=["acceptance_raises"])
    model = ScriptedModel([says("It is proven.")])
    agent = Agent("bob", model=model, guards=[GateGuard(gate=gate, safe_text="I cannot tell.")])
    reply = await desk.ask(agent)
    assert reply.text == "I cannot tell."
    [verdict] = await desk.events(reply.channel_id, "antiphon.flow.gate")
    assert (verdict["verdict"], verdict["checks"][-1]["status"]) == ("fail", "error")  # type: ignore[index]


async def test_a_gate_is_asked_until_it_passes__unverified_output() -> None:
    gate = Gate(name="verify", invariants=["acceptance_flaky"])
    first = await run_gate(gate, {"claim": "it works"})
    again = await run_gate(gate, {"claim": "it works"}, recorded=[first])
    assert (first.verdict, again) == ("fail", first)
    edited = await run_gate(gate, {"claim": "it works, says d1"}, recorded=[first])
    assert edited.verdict == "pass"


async def test_a_gate_on_what_people_say_refuses_and_records_no_content(desk: Desk) -> None:
    gate = Gate(name="form", schema={"type": "object", "required": ["order"]})
    ann = await desk.hub.register("ann")
    await desk.hub.register(Agent("bob", model=ScriptedModel([])))
    channel = await ann.open(target="bob", knobs={"guards": [GateGuard(gate=gate, applies_to="input")]})
    with pytest.raises(Denied) as denied:
        await channel.send('{"amount": "secret"}')
    assert denied.value.reason == "blocked"
    assert all("secret" not in str(each.event_data) for each in await desk.log("system:audit"))


# The amounts of tiers


@pytest.mark.parametrize(("tier", "most"), [("interactive", 25), (None, 40)])
async def test_a_tier_limits_the_model_calls_of_a_message(desk: Desk, tier: str | None, most: int) -> None:
    script = [calls("search", {"q": f"page {number}"}) for number in range(60)]
    guards = [] if tier else [Budget(model_calls=40)]
    agent = desk.agent(ScriptedModel(script), tier=tier, guards=guards, limits=Limits(model_calls=100))
    reply = await desk.ask(agent)
    assert reply.stopped == "denied:budget"
    assert len(desk.done) == most
