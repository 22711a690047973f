"""Naive protections around time, people and what is undone; and what people decide, on a real hub."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from antiphon import (
    Agent,
    Approval,
    ApprovalEvent,
    Channel,
    Deadlines,
    Denied,
    FinalStateEvent,
    Gate,
    GateGuard,
    Hub,
    Participant,
    Reply,
    Request,
    ScriptedModel,
    calls,
    says,
    tool,
)
from antiphon.testing import ManualClock
from tests.acceptance.protections_desk import Data, Desk, Provider
from tests.support.crashing_hubs import Mind, crashes
from tests.support.waiting import let_others_run, soon, wait_until

EXPIRED, REBASED = "antiphon.flow.deadline_expired", "antiphon.flow.deadline_rebased"
SAGA_FINISHED = "antiphon.saga.finished"
LEASE_SECONDS = 60
"""After which a process that is gone is not waited for any more."""


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    clock = ManualClock()
    async with Hub.open("memory:", clock=clock) as hub:
        yield Desk(hub, clock)


async def recorded(desk: Desk, channel: Channel, event_type: str, count: int = 1) -> list[Data]:
    """The data of an event, once it is recorded so often."""
    async with asyncio.timeout(30):
        while len(found := await desk.events(channel.channel_id, event_type)) < count:
            await let_others_run(1)
    return found


# Undoing what was done


class Shop:
    """What is bought, and what is given back, outside of the hub."""

    def __init__(self) -> None:
        self.bought: list[str] = []
        self.returned: list[str] = []
        self.gates: dict[str, asyncio.Event] = {}
        """Purchases, and returns as `-thing`, that take effect and come back only then."""

        @tool
        async def give_back(thing: str, idempotency_key: str, result: str = "") -> str:
            """Give something back."""
            if thing not in self.returned:
                self.returned.append(thing)
            await self._pass(f"-{thing}")
            return f"{thing} is back"

        @tool(compensate=give_back, timeout=20)
        async def buy(thing: str, idempotency_key: str) -> str:
            """Buy something."""
            self.bought.append(thing)
            await self._pass(thing)
            return f"{thing} is bought"

        self.tools = [buy]

    async def _pass(self, what: str) -> None:
        if what in self.gates:
            await self.gates[what].wait()

    def buying(self, *things: str) -> ScriptedModel:
        return ScriptedModel(
            [*(calls("buy", {"thing": thing}) for thing in things), says("All bought.")], by="position"
        )


async def bought(desk: Desk, shop: Shop, model: object, **options: object) -> Channel:
    """A channel in which a person has asked an agent to buy, after its answer."""
    ann = await desk.hub.register("ann", kind="human")
    await desk.hub.register(Agent("bob", model=model, tools=shop.tools))  # type: ignore[arg-type]
    channel = await ann.open(target="bob", say="Buy", **options)  # type: ignore[arg-type]
    await desk.meanwhile(turn_ended(channel))
    return channel


async def turn_ended(channel: Channel) -> None:
    await wait_until(lambda: channel.state.turn_count == 2)


async def test_a_compensation_list_in_memory__a_crash_mid_way_leaves_effects() -> None:
    """The process dies inside the second compensation. The next one goes on with it, and does none of them twice."""
    effects: list[tuple[str, str]] = []
    released = asyncio.Event()

    def tools(hangs: str) -> list[object]:
        @tool
        async def give_back(thing: str, idempotency_key: str) -> str:
            """Give something back."""
            if idempotency_key not in [key for key, _ in effects]:
                effects.append((idempotency_key, thing))
            if thing == hangs:
                await released.wait()
            return "back"

        @tool(compensate=give_back)
        async def buy(thing: str, idempotency_key: str) -> str:
            """Buy something."""
            return f"{thing} is bought"

        return [buy]

    things = ("lamp", "desk", "chair")
    script = [*(calls("buy", {"thing": thing}) for thing in things), says("All bought.")]
    async with crashes() as place:
        await place.next_hub(Mind(*script), tools=tools(hangs="desk"))
        channel = await place.open(text="Buy")
        assert await place.answered() == ["All bought."]
        await channel.abort("too dear")
        await wait_until(lambda: len(effects) == 2)
        await place.next_hub(Mind(), tools=tools(hangs=""))
        await place.clock.advance(LEASE_SECONDS)
        [finished] = await place.until("saga.finished")
        released.set()
    assert [thing for _, thing in effects] == ["chair", "desk", "lamp"]
    assert finished.event_data == {"done": 3, "stuck": 0, "skipped": 0}


async def test_compensation_inside_the_expired_deadline__it_never_runs(desk: Desk) -> None:
    shop = Shop()
    shop.gates["-lamp"] = asyncio.Event()
    channel = await bought(desk, shop, shop.buying("lamp"), ttl=60)
    await desk.clock.advance(70)
    await wait_until(lambda: shop.returned == ["lamp"])
    await desk.clock.advance(200)
    shop.gates["-lamp"].set()
    [finished] = await recorded(desk, channel, SAGA_FINISHED)
    assert (channel.state.close_reason, finished["done"]) == ("expired", 1)


async def test_compensating_only_what_returned__an_effect_that_timed_out_stays(desk: Desk) -> None:
    shop = Shop()
    shop.gates["desk"] = asyncio.Event()
    channel = await bought(desk, shop, shop.buying("lamp", "desk"))
    await channel.abort()
    await recorded(desk, channel, SAGA_FINISHED)
    assert shop.bought == ["lamp", "desk"]
    assert shop.returned == ["desk", "lamp"]


async def test_last_in_first_out_by_registration__wrong_for_parallel_branches(desk: Desk) -> None:
    shop = Shop()
    things = ("lamp", "desk", "chair")
    shop.gates = {thing: asyncio.Event() for thing in things}
    together = [calls("buy", {"thing": thing}) for thing in things]
    ann = await desk.hub.register("ann", kind="human")
    model = ScriptedModel([together, says("All bought.")])
    await desk.hub.register(Agent("bob", model=model, tools=shop.tools))
    channel = await ann.open(target="bob", say="Buy")
    for number, thing in enumerate(("desk", "chair", "lamp"), 1):
        await wait_until(lambda: len(shop.bought) == 3)
        shop.gates[thing].set()
        await recorded(desk, channel, "antiphon.saga.executed", number)
    await turn_ended(channel)
    await channel.abort()
    await recorded(desk, channel, SAGA_FINISHED)
    assert shop.returned == ["lamp", "chair", "desk"]


# Time


async def test_a_timeout_as_a_duration__each_retry_starts_afresh(desk: Desk) -> None:
    """A provider takes four seconds to fail. The call has ten, with its retries."""
    begun = desk.clock.now()
    asked: list[str] = []

    async def model(request: Request) -> Reply:
        asked.append(desk.clock.now())
        await desk.clock.advance(4)
        return await Provider(down=True).model()(request)

    guards = [Deadlines(step=10), {"name": "retry_budget", "attempts": 9}]
    reply = await desk.ask(desk.agent(model, guards=guards))
    assert reply.stopped == "denied:deadline"
    assert 1 < len(asked) <= 3
    assert all(seconds(at) - seconds(begun) < 10 for at in asked)


async def test_a_timeout_as_a_duration__an_attempt_after_a_crash_starts_afresh() -> None:
    async with crashes() as place:
        dies = Mind()
        await place.next_hub(dies)
        ann = place.people["ann"]
        channel = await ann.open(type="discussion", target="bob", knobs={"guards": [Deadlines(step=30)]})
        place.channel_id = channel.channel_id
        await channel.send("Think.")
        await wait_until(lambda: len(dies.requests) == 1)
        await place.clock.advance(20)
        resumed = Mind()
        await place.next_hub(resumed)
        await wait_until(lambda: len(resumed.requests) == 1)
        await place.clock.advance(11)
        assert (await place.until("flow.deadline_expired"))[0].event_data["layer"] == "step"


def seconds(at: str) -> float:
    hours, minutes, rest = at[11:-1].split(":")
    return int(hours) * 3600 + int(minutes) * 60 + float(rest)


class Till:
    """An agent with a tool that needs approval, a person who asks, and one who decides."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.paid: list[tuple[str, int]] = []

        @tool(approval=True)
        async def refund(order: str, cents: int) -> str:
            """Pay an order back."""
            self.paid.append((order, cents))
            return f"{cents} cents are paid back"

        self.tools = [refund]

    async def open(self, *script: object, **knobs: object) -> tuple[Channel, Participant]:
        """A channel in which a refund waits for a person, and that person."""
        hub = self.desk.hub
        self.asking = ann = await hub.register("ann", kind="human")
        dana = await hub.register("dana", kind="human", roles=["finance"])
        wanted = script or (calls("refund", {"order": "7", "cents": 100}), says("Done."))
        await hub.register(Agent("bob", model=ScriptedModel(wanted), tools=self.tools))
        channel = await ann.open(type="discussion", target=["bob", "dana"], knobs=knobs)
        await channel.send("Refund order 7")
        await self.waiting()
        return channel, dana

    async def waiting(self) -> Approval:
        async with asyncio.timeout(30):
            while not (found := await self.desk.hub.approvals()):
                await let_others_run(1)
        return found[0]

    async def said(self, channel: Channel) -> str:
        await wait_until(lambda: channel.state.expected_next_speaker == "dana")
        texts = await self.desk.events(channel.channel_id, "ag2.msg.text")
        return str(texts[-1]["text"])


@pytest.fixture
def till(desk: Desk) -> Till:
    return Till(desk)


async def test_a_deadline_runs_while_a_person_thinks__the_run_dies(desk: Desk, till: Till) -> None:
    channel, dana = await till.open(guards=[Deadlines(stage=60, run=120)])
    await desk.clock.advance(3600)
    await dana.decide((await till.waiting()).approval_id, "approve")
    assert await till.said(channel) == "Done."
    assert till.paid == [("7", 100)]
    moved = await desk.events(channel.channel_id, REBASED)
    assert {each["suspended_ms"] for each in moved} == {3_600_000}
    assert await desk.events(channel.channel_id, EXPIRED) == []


async def test_a_deadline_is_computed_again_on_resume__the_run_lives_for_ever(desk: Desk) -> None:
    """Two waits move the deadline by exactly their time; the work between them counts."""
    till = Till(desk)

    async def slow(request: Request) -> Reply:
        await desk.clock.advance(50)
        return calls("refund", {"order": str(len(request.exchange)), "cents": 1}, text="I work on it.")

    ann, dana = await desk.hub.register("ann", kind="human"), await desk.hub.register("dana", kind="human")
    await desk.hub.register(Agent("bob", model=slow, tools=till.tools))
    knobs = {"guards": [Deadlines(stage=120)]}
    channel = await ann.open(type="discussion", target=["bob", "dana"], knobs=knobs)
    await channel.send("Refund everything")
    for _ in range(2):
        approval = await till.waiting()
        await desk.clock.advance(1000)
        await dana.decide(approval.approval_id, "approve")
        await wait_until(lambda: not any(turn.asked for turn in channel.state.owed))
    await wait_until(lambda: channel.state.expected_next_speaker == "dana")
    assert len(till.paid) == 2
    assert [each["layer"] for each in await desk.events(channel.channel_id, EXPIRED)] == ["stage"]


async def test_an_edit_by_a_person_skips_the_gates__input_that_nobody_checked(desk: Desk, till: Till) -> None:
    small = {"type": "object", "properties": {"cents": {"type": "integer", "maximum": 500}}}
    gate = GateGuard(gate=Gate(name="small", schema=small), applies_to="tool:refund")
    channel, dana = await till.open(guards=[gate])
    await dana.decide((await till.waiting()).approval_id, "edit", args={"order": "7", "cents": 90_000})
    assert await till.said(channel) == "Done."
    assert till.paid == []
    [verdict] = await desk.events(channel.channel_id, "antiphon.flow.gate")
    assert (verdict["gate"], verdict["verdict"]) == ("small", "fail")


# What people decide


@pytest.mark.parametrize(
    ("decision", "options", "paid", "reads"),
    [
        ("approve", {}, [("7", 100)], "100 cents are paid back"),
        ("edit", {"args": {"order": "7", "cents": 50}}, [("7", 50)], "50 cents are paid back"),
        ("reject", {"reason": "not this one"}, [], "not this one"),
        ("respond", {"text": "Paid by hand."}, [], "Paid by hand."),
    ],
)
async def test_the_four_decisions(
    desk: Desk, till: Till, decision: str, options: dict[str, object], paid: list[object], reads: str
) -> None:
    seen: list[Request] = []

    def answer(request: Request) -> Reply:
        seen.append(request)
        return says("Done.")

    channel, dana = await till.open(calls("refund", {"order": "7", "cents": 100}), answer)
    approval = await till.waiting()
    assert (approval.agent, approval.tool, approval.args) == ("bob", "refund", {"order": "7", "cents": 100})
    assert set(approval.options) == {"approve", "edit", "reject", "respond"}
    await dana.decide(approval.approval_id, decision, **options)  # type: ignore[arg-type]
    assert await till.said(channel) == "Done."
    assert till.paid == paid
    assert reads in str(seen[0].exchange[-1])
    assert await desk.hub.approvals() == []


async def test_the_first_decision_wins_and_the_second_is_told_it(desk: Desk, till: Till) -> None:
    _, dana = await till.open()
    approval = await till.waiting()
    eve = await desk.hub.register("eve", kind="human")
    await dana.decide(approval.approval_id, "reject", reason="no")
    with pytest.raises(Denied, match="dana") as denied:
        await eve.decide(approval.approval_id, "approve")
    assert denied.value.reason == "decided"
    assert till.paid == []


async def test_neither_services_nor_agents_nor_the_person_who_asked_decide(desk: Desk, till: Till) -> None:
    await till.open()
    approval, found = await till.waiting(), []
    helper = await desk.hub.register(Agent("helper", model=ScriptedModel([])))
    for other in (await desk.hub.register("robot"), helper, till.asking):
        with pytest.raises(Denied) as denied:
            await other.decide(approval.approval_id, "approve")
        found.append(denied.value.reason)
    assert found == ["not_a_person", "not_a_person", "not_an_approver"]
    assert till.paid == []


async def test_a_role_is_named_and_others_do_not_decide(desk: Desk, till: Till) -> None:
    _, dana = await till.open(approvers=["finance"])
    approval = await till.waiting()
    assert approval.approvers == ["finance"]
    eve = await desk.hub.register("eve", kind="human")
    with pytest.raises(Denied) as denied:
        await eve.decide(approval.approval_id, "approve")
    assert denied.value.reason == "not_an_approver"
    await dana.decide(approval.approval_id, "approve")


async def test_a_decision_about_something_else_is_refused(till: Till) -> None:
    _, dana = await till.open()
    with pytest.raises(Denied) as denied:
        await dana.decide((await till.waiting()).approval_id, "approve", digest="0" * 64)
    assert denied.value.reason == "stale_decision"


async def test_invoke_says_that_it_waits_and_gives_the_answer_when_it_is_asked_again(desk: Desk, till: Till) -> None:
    dana = await desk.hub.register("dana", kind="human")
    script = [calls("refund", {"order": "7", "cents": 100}, text="I refund it."), says("Done.")]
    agent = Agent("bob", model=ScriptedModel(script), tools=till.tools)
    asked = {"thread_id": "t", "message_id": "m", "hub": desk.hub}
    reply = await soon(agent.invoke("Refund order 7", **asked))  # type: ignore[arg-type]
    assert reply.stopped == "approval"
    [approval] = reply.approvals
    await dana.decide(approval.approval_id, "approve")
    again = await soon(agent.invoke("Refund order 7", **asked))  # type: ignore[arg-type]
    assert (again.text, again.stopped) == ("Done.", None)
    assert till.paid == [("7", 100)]


async def test_a_stream_shows_that_it_waits(desk: Desk, till: Till) -> None:
    agent = Agent("bob", model=ScriptedModel([calls("refund", {"order": "7", "cents": 1})]), tools=till.tools)
    events = [event async for event in agent.stream_invoke("Refund order 7", thread_id="t", hub=desk.hub)]
    assert any(isinstance(event, ApprovalEvent) for event in events)
    assert isinstance(events[-1], FinalStateEvent)


async def test_a_decision_survives_a_restart() -> None:
    paid: list[str] = []

    @tool(approval=True)
    async def refund(order: str) -> str:
        """Pay an order back."""
        paid.append(order)
        return "paid back"

    async with crashes() as place:
        await place.next_hub(Mind(calls("refund", {"order": "7"})), tools=[refund])
        await place.open(text="Refund")
        [requested] = await place.until("approval.requested")
        hub = await place.next_hub(Mind(says("Done.")), tools=[refund])
        dana = await hub.register("dana", kind="human")
        [approval] = await hub.approvals()
        assert approval.digest == requested.event_data["digest"]
        await dana.decide(approval.approval_id, "approve")
        assert await place.answered() == ["Done."]
    assert paid == ["7"]


# Retry with escalation


async def test_an_outage_that_retries_do_not_end_is_a_matter_for_a_person(desk: Desk) -> None:
    """Attempts are made, then the breaker opens, then a person is asked. What they approve is tried once more."""
    provider = Provider(down=True)
    ann, dana = await desk.hub.register("ann", kind="human"), await desk.hub.register("dana", kind="human")
    await desk.hub.register(Agent("bob", model=provider.model(), tools=[]))
    channel = await ann.open(target="bob", knobs={"tier": "batch"})
    await channel.send("Summarize it")
    await desk.meanwhile(waiting_or_failed(desk, channel))
    if not await desk.hub.approvals():
        await channel.send("Again, please")
        await desk.meanwhile(waiting_or_failed(desk, channel))
    [approval] = await desk.hub.approvals()
    assert approval.tool == "model"
    asked, provider.down = provider.asked, False
    await dana.decide(approval.approval_id, "approve")
    await wait_until(lambda: not channel.state.owed)
    assert (await desk.events(channel.channel_id, "ag2.msg.text"))[-1]["text"] == "here"
    assert provider.asked == asked + 1


async def waiting_or_failed(desk: Desk, channel: Channel) -> None:
    failed = len(await desk.events(channel.channel_id, "antiphon.turn.failed"))
    while not await desk.hub.approvals():
        if len(await desk.events(channel.channel_id, "antiphon.turn.failed")) > failed:
            return
        await let_others_run(1)


@pytest.mark.parametrize(("tier", "approvers"), [("interactive", None), ("batch", []), ("regulated", ["finance"])])
async def test_what_follows_when_the_budget_is_used_up(desk: Desk, tier: str, approvers: list[str] | None) -> None:
    """Nobody is asked where a person waits for the answer; elsewhere a person is, in the strictest tier of finance."""
    ann = await desk.hub.register("ann", kind="human")
    script = [calls("search", {"q": str(number)}, text="I search.") for number in range(9)]
    await desk.hub.register(desk.agent(ScriptedModel(script), tools=desk.tools[:1]))
    guards = [{"name": "budget", "model_calls": 2}]
    channel = await ann.open(target="bob", say="Search", knobs={"tier": tier, "guards": guards})
    if approvers is None:
        await wait_until(lambda: channel.state.turn_count == 2)
        said = (await desk.events(channel.channel_id, "ag2.msg.text"))[-1]
        assert (said["text"], said["stopped"]) == ("I search.", "denied:budget")
        return
    async with asyncio.timeout(30):
        while not (found := await desk.hub.approvals()):
            await let_others_run(1)
    assert (found[0].tool, found[0].approvers) == ("model", approvers)


@pytest.mark.parametrize(
    ("tier", "hours", "waits"),
    [("interactive", 1, False), ("batch", 25, False), ("regulated", 60, True), (None, 900, True)],
)
async def test_what_nobody_decides_is_never_approved_by_itself(
    desk: Desk, till: Till, tier: str | None, hours: int, waits: bool
) -> None:
    channel, _ = await till.open(expectations=[], **({} if tier is None else {"tier": tier}))
    for _ in range(hours):
        await desk.clock.advance(3600)
        await let_others_run(5)
    if waits:
        assert [approval.tool for approval in await desk.hub.approvals()] == ["refund"]
    elif tier == "batch":
        await wait_until(lambda: channel.state.close_reason == "aborted:approval_expired")
    else:
        await wait_until(lambda: not channel.state.owed)
        said = (await desk.events(channel.channel_id, "ag2.msg.text"))[-1]
        assert said["stopped"] == "denied:approval_expired"
    assert till.paid == []
    reminded = await desk.events(channel.channel_id, "antiphon.approval.reminded")
    assert bool(reminded) == (tier == "regulated")


async def test_what_a_person_allows_is_checked_again_when_it_leaves(desk: Desk, till: Till) -> None:
    """Two calls wait, and the budget is enough for one: both are allowed, and one is made."""
    both = [calls("refund", {"order": order, "cents": 1}) for order in ("7", "8")]
    channel, dana = await till.open(both, says("Done."), guards=[{"name": "budget", "tool_calls": 1}])
    for approval in await desk.hub.approvals():
        await dana.decide(approval.approval_id, "approve")
    assert await till.said(channel) == "Done."
    assert till.paid == [("7", 1)]
    [denied] = await desk.events(channel.channel_id, "antiphon.call.failed")
    assert (denied["denied"], denied["guard"]) == ("budget", "budget")
