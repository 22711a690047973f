"""Deadlines in a hub: calls are cut, turns end with what was said, and outages and restarts change what they should."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress

import pytest

from antiphon import (
    Agent,
    AgentReply,
    AgentTarget,
    Channel,
    Deadlines,
    FromSpeaker,
    Hub,
    ModelUnavailable,
    Reply,
    Request,
    ScriptedModel,
    Tier,
    Transition,
    TransitionGraph,
    calls,
    delegate,
    says,
    tool,
)
from antiphon.core.codec import from_json, to_json
from antiphon.core.envelope import add_seconds
from antiphon.core.ruleset import SavedFold, restore_fold
from antiphon.testing import ManualClock
from tests.support.given_tasks import Kept, echo
from tests.support.inspection import fold_of, folded, watched
from tests.support.kept_store import KeptStore
from tests.support.waiting import NEVER_COMES, let_others_run, soon, wait_until

EXPIRED, REBASED = "antiphon.flow.deadline_expired", "antiphon.flow.deadline_rebased"
STARTED, FAILED = "antiphon.call.started", "antiphon.call.failed"
HOUR = 3600


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def hub(clock: ManualClock) -> AsyncIterator[Hub]:
    async with Hub.open("memory:", clock=clock) as hub:
        yield hub


class Gate:
    """Something that says when it was begun, and ends when it may."""

    def __init__(self) -> None:
        self.inside, self.open = asyncio.Event(), asyncio.Event()
        self.times = 0

    async def wait(self) -> str:
        self.times += 1
        self.inside.set()
        await self.open.wait()
        return "found"

    async def model(self, request: Request) -> Reply:
        return says(await self.wait())

    def tool(self, **options: object) -> object:
        @tool(name="look", **options)  # type: ignore[arg-type]
        async def look() -> str:
            """Look something up."""
            return await self.wait()

        return look


LOOK = calls("look", {}, text="I look it up.")


async def data_of(hub: Hub, channel_id: str, *types: str) -> list[Mapping[str, object]]:
    return [each.event_data for each in await hub.log(channel_id) if each.event_type in types]


async def expiries(hub: Hub, channel_id: str) -> list[tuple[object, object, object]]:
    found = await data_of(hub, channel_id, EXPIRED)
    return [(each["layer"], each["deadline"], each.get("overrun_ms", 0)) for each in found]


def instant(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"2026-01-01T{hours:02}:{minutes:02}:{rest:02}.000000Z"


def asking(hub: Hub, agent: Agent) -> asyncio.Task[AgentReply]:
    return asyncio.create_task(agent.invoke("go", hub=hub, thread_id="t"))


async def pass_time(clock: ManualClock, seconds: float, step: float = 10) -> None:
    for _ in range(int(seconds / step)):
        await clock.advance(step)


# Steps


async def test_a_tool_call_beyond_its_step_is_cut_and_its_model_reads_that(hub: Hub, clock: ManualClock) -> None:
    gate = Gate()
    model = ScriptedModel([LOOK, says("I found nothing.")])
    agent = Agent("bob", model=model, tools=[gate.tool()], guards=[Deadlines(step=30)])
    asked = asking(hub, agent)
    await soon(gate.inside.wait())
    await clock.advance(30)
    reply = await soon(asked)
    assert (reply.text, reply.stopped) == ("I found nothing.", None)
    assert await expiries(hub, reply.channel_id) == [("step", instant(30), 0)]


@pytest.mark.parametrize("step", [30, 120])  # 120 seconds are the model's own limit, too
async def test_a_model_call_beyond_its_step_ends_the_turn_with_what_was_said(
    hub: Hub, clock: ManualClock, step: int
) -> None:
    gate, script = Gate(), [LOOK]

    async def model(request: Request) -> Reply:
        return script.pop() if script else await gate.model(request)

    @tool(name="look")
    async def look() -> str:
        return "a page"

    agent = Agent("bob", model=model, tools=[look], guards=[Deadlines(step=step)])
    asked = asking(hub, agent)
    await soon(gate.inside.wait())
    await clock.advance(step)
    reply = await soon(asked)
    assert (reply.text, reply.stopped) == ("I look it up.", "denied:deadline")
    [failed] = await data_of(hub, reply.channel_id, FAILED)
    assert (failed["denied"], failed["guard"], failed["failure"]) == ("deadline", "deadlines", "timeout")
    assert await expiries(hub, reply.channel_id) == [("step", instant(step), 0)]


async def test_retries_share_the_deadline_of_their_call(hub: Hub, clock: ManualClock) -> None:
    """A timeout that is a duration would begin anew with each attempt."""
    gate = Gate()
    script: list[Exception] = [ModelUnavailable("busy", retry_after=20.0)]

    async def model(request: Request) -> Reply:
        if script:
            raise script.pop()
        return await gate.model(request)

    asked = asking(hub, Agent("bob", model=model, guards=[Deadlines(step=30)]))
    for _ in range(4):
        await let_others_run()
        await clock.advance(5)
    await soon(gate.inside.wait())
    await clock.advance(9)
    assert not asked.done()
    await clock.advance(1)
    assert (await soon(asked)).stopped == "denied:deadline"


# Turns and runs


@pytest.mark.parametrize(("layer", "limits"), [("stage", {"stage": 60}), ("run", {"run": 60})])
async def test_a_turn_ends_at_its_deadline_with_partial_text(
    hub: Hub, clock: ManualClock, layer: str, limits: dict[str, float]
) -> None:
    gate = Gate()
    model = ScriptedModel([LOOK, says("never asked")])
    agent = Agent("bob", model=model, tools=[gate.tool(timeout=600)], guards=[Deadlines(**limits)])
    asked = asking(hub, agent)
    await soon(gate.inside.wait())
    await clock.advance(59)
    assert not asked.done()
    await clock.advance(1)
    reply = await soon(asked)
    assert (reply.text, reply.stopped, len(model.requests)) == ("I look it up.", "denied:deadline", 1)
    assert await expiries(hub, reply.channel_id) == [(layer, instant(60), 0)]
    [cut, denied] = await data_of(hub, reply.channel_id, FAILED)
    assert (cut["failure"], denied["denied"]) == ("cancelled", "deadline")


async def test_a_call_with_less_than_a_second_left_does_not_leave(hub: Hub, clock: ManualClock) -> None:
    gate = Gate()
    model = ScriptedModel([LOOK, says("never asked")])
    agent = Agent("bob", model=model, tools=[gate.tool(timeout=600)], guards=[Deadlines(stage=60)])
    asked = asking(hub, agent)
    await soon(gate.inside.wait())
    await clock.advance(59.5)
    gate.open.set()
    reply = await soon(asked)
    assert (reply.stopped, len(model.requests)) == ("denied:deadline", 1)
    assert await expiries(hub, reply.channel_id) == [("stage", instant(60), 0)]


async def test_the_run_begins_with_each_message_and_not_with_each_turn(hub: Hub, clock: ManualClock) -> None:
    model = ScriptedModel([says("one"), says("two")])
    agent = Agent("bob", model=model, guards=[Deadlines(run=60)])
    assert (await soon(agent.invoke("go", hub=hub, thread_id="t"))).text == "one"
    await clock.advance(500)
    assert (await soon(agent.invoke("go", hub=hub, thread_id="t"))).text == "two"


def ping_pong(hub: Hub, clock: ManualClock, seconds: float) -> list[Agent]:
    """Two agents that each take so many seconds for a word."""

    async def model(request: Request) -> Reply:
        await clock.wait(asyncio.Event(), add_seconds(clock.now(), seconds))
        return says(f"word at {clock.now()}")

    return [Agent("ada", model=model), Agent("bob", model=model)]


async def ping_pong_channel(hub: Hub, clock: ManualClock, *people: str) -> Channel:
    for agent in ping_pong(hub, clock, 25):
        await hub.register(agent)
    ann = await hub.register("ann")
    for name in people:
        await hub.register(name, kind="human")
    rules = [(FromSpeaker("bob"), AgentTarget("ada")), (FromSpeaker("ada"), AgentTarget("bob"))]
    graph = TransitionGraph("ann", [Transition(*each) for each in rules], AgentTarget("ada"))
    knobs = {"graph": graph.to_dict(), "guards": [Deadlines(stage=40, run=100)]}
    channel = await ann.open(type="workflow", target=["ada", "bob", *people], knobs=knobs)
    await channel.send("go")
    return channel


async def test_agents_get_no_further_turn_in_a_run_that_is_over(hub: Hub, clock: ManualClock) -> None:
    """No turn of theirs takes too long, and together they would never end."""
    channel = await ping_pong_channel(hub, clock)
    for _ in range(40):
        await let_others_run()
        await clock.advance(5)
    assert channel.state.close_reason == "deadline"
    assert await expiries(hub, channel.channel_id) == [("run", instant(100), 0)]
    assert channel.state.turn_count in (4, 5)


async def test_a_person_gets_the_turn_when_the_run_is_over(hub: Hub, clock: ManualClock) -> None:
    channel = await ping_pong_channel(hub, clock, "dana")
    for _ in range(40):
        await let_others_run()
        await clock.advance(5)
    assert (channel.state.status, channel.state.speakers) == ("active", ("dana",))


# Turns that nobody runs


async def test_a_turn_that_no_hub_runs_ends_a_grace_after_its_deadline(clock: ManualClock) -> None:
    async with Hub.open("memory:", clock=clock, engine=None) as hub:
        await hub.register(Agent("bob", model=echo))
        ann = await hub.register("ann")
        channel = await ann.open(target="bob", knobs={"guards": [Deadlines(stage=60)]})
        await channel.send("go")
        await watched(clock)
        await clock.advance(60)
        await clock.advance(4)
        assert await expiries(hub, channel.channel_id) == [("stage", instant(60), 0)]
        assert len(channel.state.owed) == 1
        await clock.advance(1)
        [failed] = await data_of(hub, channel.channel_id, "antiphon.turn.failed")
        assert (failed["reason"], channel.state.owed) == ("denied:deadline", ())


async def test_a_tool_that_ignores_its_cancellation_is_left_behind(hub: Hub, clock: ManualClock) -> None:
    inside, gate = asyncio.Event(), asyncio.Event()

    @tool(timeout=600)
    async def look() -> str:
        inside.set()
        while not gate.is_set():
            with suppress(asyncio.CancelledError):
                await gate.wait()
        return "too late"

    model = ScriptedModel([LOOK, says("never asked")])
    asked = asking(hub, Agent("bob", model=model, tools=[look], guards=[Deadlines(stage=60)]))
    await soon(inside.wait())
    await clock.advance(60)
    reply = await soon(asked)
    gate.set()
    assert (reply.text, reply.stopped) == ("I look it up.", "denied:deadline")
    assert await late_results(hub, reply.channel_id) == ["too late"]


async def late_results(hub: Hub, channel_id: str) -> list[object]:
    """What has come late, as soon as something has."""
    while not (found := await data_of(hub, channel_id, "antiphon.call.late")):
        await let_others_run()
    return [each["text"] for each in found]


async def test_the_late_result_of_a_thread_is_recorded_and_not_used(hub: Hub, clock: ManualClock) -> None:
    inside, gate = threading.Event(), threading.Event()

    @tool(timeout=600)
    def look() -> str:
        inside.set()
        gate.wait(NEVER_COMES)
        return "too late"

    model = ScriptedModel([LOOK, says("I found nothing.")])
    asked = asking(hub, Agent("bob", model=model, tools=[look], guards=[Deadlines(step=30)]))
    await soon(asyncio.to_thread(inside.wait, NEVER_COMES))
    await clock.advance(30)
    reply = await soon(asked)
    gate.set()
    assert (reply.text, await soon(late_results(hub, reply.channel_id))) == ("I found nothing.", ["too late"])


# People


async def doubted(hub: Hub, clock: ManualClock, **knobs: object) -> Channel:
    """A turn that waits for a person from the tenth second on: an unsafe call has come to nothing."""
    gate = Gate()
    model = ScriptedModel([LOOK, says("All is well."), says("All is well.")])
    await hub.register(
        Agent("bob", model=model, tools=[gate.tool(timeout=10, idempotency="unsafe", compensate="undo")])
    )
    ann = await hub.register("ann")
    channel = await ann.open(target="bob", knobs=knobs)
    await channel.send("go")
    await soon(gate.inside.wait())
    await clock.advance(10)
    await wait_until(lambda: any(turn.waits_for_person for turn in channel.state.owed))
    return channel


async def decided(hub: Hub) -> None:
    dana = await hub.register("dana", kind="human")
    [approval] = await hub.approvals()
    await dana.decide(approval.approval_id, "respond", text="It was done.")


@pytest.mark.parametrize("tier", [None, "batch", "regulated"])
async def test_a_deadline_is_moved_by_exactly_the_time_a_person_takes(
    hub: Hub, clock: ManualClock, tier: str | None
) -> None:
    knobs: dict[str, object] = {"guards": [Deadlines(stage=60, run=120)], **({} if tier is None else {"tier": tier})}
    channel = await doubted(hub, clock, **knobs)
    await pass_time(clock, 2 * HOUR, 600)
    await decided(hub)
    await wait_until(lambda: not channel.state.owed)
    [moved] = await data_of(hub, channel.channel_id, REBASED)
    suspended = 2 * HOUR * 1000
    assert moved == {"old": instant(120), "new": instant(7320), "suspended_ms": suspended, "turn": moved["turn"]}
    untils = [each["until"] for each in await data_of(hub, channel.channel_id, STARTED)]
    assert untils[-1] == min(instant(7260), untils[-1])
    assert await expiries(hub, channel.channel_id) == []
    assert (await hub.log(channel.channel_id))[-1].event_data == {"text": "All is well."}


async def test_in_the_interactive_tier_a_deadline_is_not_moved(hub: Hub, clock: ManualClock) -> None:
    channel = await doubted(hub, clock, tier="interactive")
    await pass_time(clock, HOUR, 600)
    assert [turn.doubts for turn in channel.state.owed] == [(1,)]
    await decided(hub)
    await wait_until(lambda: not channel.state.owed)
    assert await data_of(hub, channel.channel_id, REBASED) == []
    answer = (await hub.log(channel.channel_id))[-1].event_data
    assert (answer["text"], answer["stopped"]) == ("I look it up.", "denied:deadline")


async def test_a_hub_that_opens_again_does_not_compute_a_moved_deadline_anew(clock: ManualClock) -> None:
    """What was moved is recorded: a restart on the way changes nothing."""
    kept = Kept(clock)
    hub = await kept.hub()
    channel = await doubted(hub, clock, guards=[Deadlines(stage=60, run=120)])
    await hub.close()
    clock.advance(HOUR)
    hub = await kept.hub()
    try:
        await hub.register(Agent("bob", model=ScriptedModel([says("All is well.")]), tools=[Gate().tool()]))
        await decided(hub)
        live = await hub.core.live(channel.channel_id)
        await wait_until(lambda: not live.state.owed)
        [moved] = await data_of(hub, channel.channel_id, REBASED)
        assert (moved["old"], moved["new"]) == (instant(120), instant(HOUR + 120))
        log = await hub.log(channel.channel_id)
        assert folded(log).memories == (await fold_of(hub, channel.channel_id)).memories
    finally:
        await hub.close()


@pytest.mark.parametrize(
    ("tier", "stopped"), [(None, None), ("batch", None), ("interactive", "denied:approval_expired")]
)
async def test_an_approval_takes_its_time(hub: Hub, clock: ManualClock, tier: Tier | None, stopped: str | None) -> None:
    paid: list[int] = []

    @tool(approval=True)
    async def pay(cents: int) -> str:
        paid.append(cents)
        return "paid"

    model = ScriptedModel([calls("pay", {"cents": 5}, text="I pay."), says("It is paid.")])
    guards = [Deadlines(stage=60, run=120)]
    agent = Agent("bob", model=model, tools=[pay], guards=guards, tier=tier)
    reply = await soon(agent.invoke("go", hub=hub, thread_id="t", message_id="m"))
    assert reply.stopped == "approval"
    dana = await hub.register("dana", kind="human")
    await watched(clock)
    await pass_time(clock, 30)
    [approval] = await hub.approvals()
    if tier == "interactive":
        await pass_time(clock, 60, 5)
    else:
        await pass_time(clock, 2 * HOUR, 600)
        await dana.decide(approval.approval_id, "approve")
    again = await soon(agent.invoke("go", hub=hub, thread_id="t", message_id="m"))
    assert (again.stopped, paid) == (stopped, [] if stopped else [5])
    assert len(await data_of(hub, reply.channel_id, REBASED)) == (0 if stopped else 1)


# Tasks


async def test_a_task_has_at_most_the_time_left_to_its_turn(hub: Hub, clock: ManualClock) -> None:
    first, second = Gate(), Gate()
    helper = Agent("helper", model=ScriptedModel([LOOK, says("never")]), tools=[second.tool(timeout=600)])
    wanted = [calls("look", {}), calls("delegate_to_helper", {"task": "go"}), says("never")]
    tools = [first.tool(timeout=600), delegate(helper)]
    agent = Agent("bob", model=ScriptedModel(wanted), tools=tools, guards=[Deadlines(step=55, stage=60, run=120)])
    asked = asking(hub, agent)
    await soon(first.inside.wait())
    await clock.advance(20)
    first.open.set()
    await soon(second.inside.wait())
    [row] = [row for row in await hub.channels() if row.type == "consulting"]
    origin = (await fold_of(hub, row.channel_id)).state.knobs["task"]
    assert origin == {**origin, "until": instant(60)}
    [*_, started] = await data_of(hub, row.channel_id, STARTED)
    assert started["until"] == instant(60)  # and not 75, the end of its step, or 80, that of its stage
    await clock.advance(40)
    reply = await soon(asked)
    assert reply.stopped == "denied:deadline"
    assert (await hub.core.live(row.channel_id)).state.ended


# Outages, restarts and clocks


async def begun(hub: Hub, gate: Gate, state: str, **knobs: object) -> Channel:
    """A turn in this state: with its model asked, with a tool called, or waiting for a retry."""
    script: list[Reply] = [LOOK, says("All is well."), says("All is well.")]

    async def model(request: Request) -> Reply:
        if state == "model":
            return await gate.model(request)
        if state == "retry" and not gate.times:
            gate.times += 1
            gate.inside.set()
            raise ModelUnavailable("busy", retry_after=15.0)
        return script.pop(0) if state == "tool" else says("All is well.")

    await hub.register(Agent("bob", model=model, tools=[gate.tool(idempotency="natural")]))
    ann = await hub.register("ann")
    channel = await ann.open(target="bob", knobs=knobs)
    await channel.send("go")
    await soon(gate.inside.wait())
    await let_others_run()
    return channel


@pytest.mark.parametrize("state", ["model", "tool", "retry"])
@pytest.mark.parametrize("given", [False, True])
async def test_a_stop_for_two_hours_counts_against_the_limits_of_a_user_alone(
    clock: ManualClock, state: str, given: bool
) -> None:
    kept, gate = Kept(clock), Gate()
    hub = await kept.hub()
    knobs: dict[str, object] = {"guards": [Deadlines(step=30, stage=60, run=120)]} if given else {"tier": "interactive"}
    channel = await begun(hub, gate, state, **knobs)
    await hub.close()
    clock.advance(2 * HOUR)
    gate.open.set()
    hub = await kept.hub()
    try:
        again = Agent("bob", model=ScriptedModel([says("All is well.")]), tools=[gate.tool(idempotency="natural")])
        await hub.register(again)
        live = await hub.core.live(channel.channel_id)
        await wait_until(lambda: not live.state.owed)
        expired = [layer for layer, _, _ in await expiries(hub, channel.channel_id)]
        last = [each.event_data for each in await hub.log(channel.channel_id) if each.sender_id == "bob"][-1]
        if given:
            assert sorted(set(expired)) == ["run", "stage"]
            assert len(expired) == 2, "what has passed is recorded once"
            assert last["stopped"] == "denied:deadline"
        else:
            assert (expired, last) == ([], {"text": "All is well."})
    finally:
        await hub.close()


@pytest.mark.parametrize("given", [False, True])
async def test_a_turn_that_had_not_begun_before_a_stop_for_two_hours(clock: ManualClock, given: bool) -> None:
    store, knobs = KeptStore(clock=clock), {"tier": "interactive"}
    hub = await Hub.over(store, clock=clock, engine=None)
    bob = Agent("bob", model=ScriptedModel([says("All is well.")]))
    await hub.register(bob)
    ann = await hub.register("ann")
    channel = await ann.open(target="bob", knobs={"guards": [Deadlines(stage=60)]} if given else knobs)
    await channel.send("go")
    await hub.close()
    clock.advance(2 * HOUR)
    hub = await Hub.over(store, clock=clock)
    try:
        await hub.register(bob)
        live = await hub.core.live(channel.channel_id)
        await wait_until(lambda: not live.state.owed)
        answer = [each.event_data for each in await hub.log(channel.channel_id) if each.sender_id == "bob"][-1]
        assert (answer["text"], answer.get("stopped")) == (("", "denied:deadline") if given else ("All is well.", None))
    finally:
        await hub.close()


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
async def test_a_clock_that_is_set_ends_no_turn_and_delays_no_deadline_for_good(
    hub: Hub, clock: ManualClock, jump: float
) -> None:
    gate = Gate()
    model = ScriptedModel([LOOK, says("never asked")])
    asked = asking(hub, Agent("bob", model=model, tools=[gate.tool(timeout=None)], guards=[Deadlines(stage=60)]))
    await soon(gate.inside.wait())
    await clock.advance(30)
    await clock.set(jump)
    await clock.advance(25)
    assert not asked.done()
    await pass_time(clock, 60)
    assert (await soon(asked)).stopped == "denied:deadline"


async def test_a_call_after_a_clock_was_set_back_has_its_step_and_no_more(hub: Hub, clock: ManualClock) -> None:
    first, second = Gate(), Gate()

    async def model(request: Request) -> Reply:
        return LOOK if not first.open.is_set() else await second.model(request)

    guards = [Deadlines(step=30, stage=600)]
    asked = asking(hub, Agent("bob", model=model, tools=[first.tool(timeout=600)], guards=guards))
    await soon(first.inside.wait())
    await clock.advance(10)
    await clock.set(-HOUR)
    first.open.set()
    await soon(second.inside.wait())
    await clock.advance(29)
    assert not asked.done()
    await clock.advance(1)
    assert (await soon(asked)).stopped == "denied:deadline"


async def test_deadlines_survive_a_snapshot_and_fold_the_same(hub: Hub, clock: ManualClock) -> None:
    channel = await doubted(hub, clock, guards=[Deadlines(stage=60, run=120)])
    fold = await fold_of(hub, channel.channel_id)
    live = await hub.core.live(channel.channel_id)
    assert restore_fold(live.ruleset, from_json(to_json(fold), SavedFold)) == fold
    assert folded(await hub.log(channel.channel_id)) == fold
