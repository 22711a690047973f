"""How tasks end: with an answer or a reason, in time, once; and never because a hub was closed or a store was away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from antiphon import (
    Agent,
    Hub,
    Limits,
    Reply,
    Request,
    ScriptedModel,
    TransitionGraph,
    TurnChannel,
    TurnFailed,
    Usage,
    calls,
    delegate,
    says,
    tool,
)
from antiphon.agents.tool import Tool
from antiphon.agents.turn_channel import DelegatedTask
from antiphon.core.events import EV_TURN_FAILED
from antiphon.runtime.delegation import DelegatedTasks
from antiphon.store.memory_store import MemoryStore
from antiphon.testing import Faults, ManualClock, with_faults
from tests.runtime.test_stalls import broken, never
from tests.support.given_tasks import (
    GIVER,
    Kept,
    asking,
    echo,
    ends,
    giver,
    of_tasks,
    results,
    tasks,
    used,
    waiting,
    words,
)
from tests.support.waiting import let_others_run, soon


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def hub(clock: ManualClock) -> AsyncIterator[Hub]:
    async with Hub.open("memory:", clock=clock) as hub:
        yield hub


@pytest.fixture(params=["memory", "sqlite"])
def kept(request: pytest.FixtureRequest, clock: ManualClock, tmp_path: Path) -> Kept:
    return Kept(clock, None if request.param == "memory" else tmp_path / "team.db")


def asking_for(worker: Agent, **options: float) -> Tool:
    """A tool that gives a task, with a limit of its own."""

    @tool(name="ask", timeout=options.get("timeout"))
    async def ask(channel: TurnChannel) -> str:
        """Ask."""
        return (await channel.delegate(worker, "look", ttl=options.get("ttl"))).text

    return ask


class Never:
    """A model that never answers; it says when it was asked, and when it was stopped."""

    def __init__(self) -> None:
        self.asked, self.stopped = asyncio.Event(), asyncio.Event()

    async def __call__(self, request: Request) -> Reply:
        self.asked.set()
        try:
            return await never(request)
        finally:
            self.stopped.set()


async def log_of_turns(hub: Hub, channel_id: str) -> list[object]:
    return [each.event_data["reason"] for each in await hub.log(channel_id) if each.event_type == EV_TURN_FAILED]


# By themselves


@tool(idempotency="unsafe", timeout=5)
async def launch() -> str:
    """Launch it."""
    await asyncio.Event().wait()
    return "launched"


TROUBLES: dict[str, tuple[Callable[[], Agent], str, str]] = {
    "model error": (
        lambda: Agent("worker", model=ScriptedModel([RuntimeError("boom")])),
        "model_error",
        "RuntimeError: boom",
    ),
    "prompt": (
        lambda: Agent("worker", model=echo, system_prompt=broken),
        "prompt_error",
        "LookupError: no such customer",
    ),
    "no answer": (lambda: Agent("worker", model=never), "model_timeout", "nothing came within 120 seconds"),
    "in doubt": (
        lambda: Agent("worker", model=asking(calls("launch")), tools=[launch]),
        "in_doubt",
        "launch: nothing came within 5 seconds; it may have taken effect all the same",
    ),
}


@pytest.mark.parametrize("trouble", TROUBLES)
async def test_a_task_that_comes_to_nothing_says_why(hub: Hub, clock: ManualClock, trouble: str) -> None:
    make, reason, why = TROUBLES[trouble]
    asked = asyncio.create_task(giver(make()).invoke("go", hub=hub))
    await let_others_run(100)
    await clock.advance(125)
    reply = await soon(asked)
    assert reply.text == f"TurnFailed: {reason}: {why}"
    assert await tasks(hub) == [("closed", "in_doubt" if trouble == "in doubt" else f"turn_failed:{reason}")]
    about = {"task": "t1", "agent": "worker", "by": GIVER, "turn": "6/boss"}
    none = used(0, 0)
    assert (await of_tasks(hub, reply.channel_id))[-1] == ("failed", {**about, "usage": none, "reason": reason})


LIMITED: dict[str, tuple[Callable[[], Agent], str, str]] = {
    "calls": (
        lambda: Agent("worker", model=ScriptedModel([calls("look", text="So far.")]), limits=Limits(model_calls=1)),
        "max_model_calls",
        "So far.\n[It was stopped: max_model_calls]",
    ),
    "nothing said": (
        lambda: Agent("worker", model=ScriptedModel([says("")])),
        "empty_reply",
        "[It was stopped: empty_reply]",
    ),
    "shape": (
        lambda: Agent("worker", model=ScriptedModel(["one", "two"]), output=int),
        "invalid_output",
        "two\n[It was stopped: invalid_output]",
    ),
}


@pytest.mark.parametrize("limit", LIMITED)
async def test_a_task_that_a_limit_ends_reports_what_there_is(hub: Hub, limit: str) -> None:
    make, stopped, text = LIMITED[limit]
    reply = await soon(giver(make()).invoke("go", hub=hub))
    assert reply.text == text
    word, data = (await of_tasks(hub, reply.channel_id))[-1]
    assert (word, data["stopped"]) == ("completed", stopped)
    assert await tasks(hub) == [("closed", "answered")]


# In time


async def test_a_task_expires_when_its_time_is_over(hub: Hub, clock: ManualClock) -> None:
    model = Never()
    asked = asyncio.create_task(giver(asking_for(Agent("worker", model=model), ttl=30)).invoke("go", hub=hub))
    await soon(model.asked.wait())
    await clock.advance(29)
    await let_others_run(50)
    assert (await tasks(hub), asked.done()) == ([("active", "")], False)
    await clock.advance(1)
    reply = await soon(asked)
    assert reply.text == "TurnFailed: expired"
    assert await tasks(hub) == [("expired", "expired")]
    word, data = (await of_tasks(hub, reply.channel_id))[-1]
    assert (word, data["reason"]) == ("expired", "expired")
    await soon(model.stopped.wait())


@pytest.mark.parametrize(
    ("ttl", "seconds", "expected"),
    [(None, 600, "expectation_violated:reply_within"), (3600, 3600, "expired"), (601, 601, "expired")],
)
async def test_a_task_has_ten_minutes_or_the_time_it_is_given(
    hub: Hub, clock: ManualClock, ttl: float | None, seconds: float, expected: str
) -> None:
    """Where the turn that gives it may take longer."""
    model = Never()
    worker = Agent("worker", model=model, limits=Limits(model_seconds=None))
    ann = await hub.register("ann")
    options = {} if ttl is None else {"ttl": ttl}
    await hub.register(giver(asking_for(worker, **options)))
    graph = TransitionGraph.sequence(["ann", "boss"])
    patient = [{"name": "turn_within", "seconds": 0}]
    knobs = {"graph": graph.to_dict(), "expectations": patient}
    channel = await ann.open(type="workflow", target=["boss"], knobs=knobs)
    await channel.send("go")
    await soon(model.asked.wait())
    await clock.advance(seconds - 1)
    await let_others_run(50)
    assert await ends(hub, channel.channel_id) == []
    await clock.advance(1)
    await soon(channel.closed())
    assert await ends(hub, channel.channel_id) == [expected]


async def test_a_turn_waits_as_long_as_its_task_may_take(hub: Hub, clock: ManualClock) -> None:
    model = Never()
    boss = giver(asking_for(Agent("worker", model=model, limits=Limits(model_seconds=None)), ttl=3600))
    asked = asyncio.create_task(boss.invoke("go", thread_id="t", hub=hub))
    await soon(model.asked.wait())
    channel = await boss.channel("t", hub)
    await clock.advance(3599)
    await let_others_run(20)
    assert (len(channel.state.owed), len(channel.state.tasks)) == (1, 1), "the task has its own time"
    await channel.cancel()
    with pytest.raises(TurnFailed, match="cancelled"):
        await soon(asked)
    await soon(model.stopped.wait())
    await until_told(hub, channel.channel_id, 1)
    assert await ends(hub, channel.channel_id) == ["cancelled"]
    assert await tasks(hub) == [("closed", "cancelled")]


async def until_told(hub: Hub, channel_id: str, count: int) -> None:
    """Let everybody go on until so many tasks have ended."""
    async with asyncio.timeout(5):
        while len(await ends(hub, channel_id)) < count:
            await let_others_run(1)


# With the turn that gave it


async def test_cancelling_a_turn_stops_what_it_has_given_all_the_way_down(hub: Hub) -> None:
    model = Never()
    boss = giver(giver(giver(Agent("last", model=model), name="lower"), name="middle"))
    asked = asyncio.create_task(boss.invoke("go", thread_id="t", hub=hub))
    await soon(model.asked.wait())
    channel = await boss.channel("t", hub)
    assert await channel.cancel("enough") == 1
    with pytest.raises(TurnFailed, match="cancelled"):
        await soon(asked)
    await soon(model.stopped.wait())
    await until_told(hub, channel.channel_id, 1)
    assert (await of_tasks(hub, channel.channel_id))[-1] == (
        "failed",
        {
            "task": "t1",
            "agent": "middle",
            "by": "boss",
            "turn": "6/boss",
            "usage": used(0, 0),
            "reason": "cancelled",
        },
    )
    async with asyncio.timeout(5):
        while [status for status, _ in await tasks(hub)] != ["closed"] * 3:
            await let_others_run(1)
    assert await tasks(hub) == [("closed", "cancelled")] * 3
    assert await words(hub, channel.channel_id) == ["started", "progress", "failed"]


async def test_closing_a_channel_stops_the_tasks_that_were_given_there(hub: Hub) -> None:
    model = Never()
    boss = giver(Agent("worker", model=model))
    asked = asyncio.create_task(boss.invoke("go", thread_id="t", hub=hub))
    await soon(model.asked.wait())
    channel = await boss.channel("t", hub)
    await channel.close("enough")
    with pytest.raises(TurnFailed, match="channel_closed"):
        await soon(asked)
    await soon(model.stopped.wait())
    assert await tasks(hub) == [("closed", "cancelled")]
    log = await hub.log(channel.channel_id)
    assert log[-1].event_data["reason"] == "enough", "nothing is written to a channel that has ended"


async def test_a_thread_goes_on_after_a_task_was_cancelled(hub: Hub) -> None:
    model = Never()
    boss = giver(
        Agent("worker", model=model), script=ScriptedModel([calls("delegate_to_worker", {"task": "a"}), "Fine."])
    )
    asked = asyncio.create_task(boss.invoke("go", thread_id="t", hub=hub))
    await soon(model.asked.wait())
    await (await boss.channel("t", hub)).cancel()
    with pytest.raises(TurnFailed, match="cancelled"):
        await soon(asked)
    assert (await soon(boss.invoke("and now?", thread_id="t", hub=hub))).text == "Fine."


# With the tool that gave it


async def test_a_tool_that_is_out_of_time_stops_its_tasks(hub: Hub, clock: ManualClock) -> None:
    model = Never()

    async def costly(request: Request) -> Reply:
        return calls("get_time_date", usage=Usage(3, 4)) if not request.exchange else await model(request)

    boss = giver(asking_for(Agent("worker", model=costly), timeout=10))
    asked = asyncio.create_task(boss.invoke("go", thread_id="t", hub=hub))
    await soon(model.asked.wait())
    await clock.advance(10)
    reply = await soon(asked)
    assert reply.text == "ask: nothing came within 10 seconds; it may have taken effect all the same"
    assert reply.usage == Usage(3, 4), "what it had consumed counts"
    assert await tasks(hub) == [("closed", "timed_out")]
    word, data = (await of_tasks(hub, reply.channel_id))[-1]
    assert (word, data["reason"], data["usage"]) == ("failed", "timed_out", used(3, 4))
    await soon(model.stopped.wait())


async def test_a_task_that_its_tool_does_not_wait_for_is_stopped(hub: Hub) -> None:
    """It waits for the first of two, as anybody may; then it is over, and so is the second."""
    model = Never()
    fast, slow = Agent("fast", model=echo), Agent("slow", model=model)
    left: list[asyncio.Task[object]] = []

    @tool
    async def race(channel: TurnChannel) -> str:
        """Ask both."""
        left.append(asyncio.ensure_future(channel.delegate(slow, "look")))
        await model.asked.wait()
        return (await channel.delegate(fast, "look")).text

    reply = await soon(giver(race).invoke("go", hub=hub))
    assert reply.text == "re: look"
    assert sorted(map(str, await ends(hub, reply.channel_id))) == ["completed", "given_up"]
    assert sorted(await tasks(hub)) == [("closed", "answered"), ("closed", "given_up")]
    with pytest.raises(TurnFailed, match="given_up"):
        await soon(left[0])
    assert (await words(hub, reply.channel_id)).count("failed") == 1


@pytest.mark.parametrize("caught", [True, False])
async def test_a_tool_may_have_less_patience_than_its_task(hub: Hub, caught: bool) -> None:
    model = Never()
    impatient = asyncio.Event()

    @tool
    async def ask(channel: TurnChannel) -> str:
        """Ask, but not for long."""
        work = asyncio.ensure_future(channel.delegate(Agent("worker", model=model), "look"))
        await impatient.wait()
        work.cancel()
        try:
            await work
        except asyncio.CancelledError:
            if not caught:
                raise TimeoutError("too slow") from None
        return "nothing"

    asked = asyncio.create_task(giver(ask).invoke("go", hub=hub))
    await soon(model.asked.wait())
    impatient.set()
    reply = await soon(asked)
    assert reply.text == ("nothing" if caught else "TimeoutError: too slow")
    assert await ends(hub, reply.channel_id) == ["given_up"]
    assert await tasks(hub) == [("closed", "given_up")]
    await soon(model.stopped.wait())


# With the hub


def slow_worker(inside: asyncio.Event, gate: asyncio.Event, made: list[str]) -> Agent:
    """Looks once, by a tool that counts, and then takes its time."""

    @tool(name="look")
    def look() -> str:
        """Look."""
        made.append("look")
        return "saw"

    slow = waiting(inside, gate)

    async def model(request: Request) -> Reply:
        return await slow(request) if results(request) else calls("look")

    return Agent("worker", model=model, tools=[look])


async def test_a_task_goes_on_when_its_hub_is_opened_again(kept: Kept) -> None:
    inside, gate = asyncio.Event(), asyncio.Event()
    made: list[str] = []
    boss = giver(slow_worker(inside, gate, made))
    first = await kept.hub()
    asked = asyncio.create_task(boss.invoke("go", thread_id="t", hub=first, message_id="m"))
    await soon(inside.wait())
    (before,) = [row.channel_id for row in await first.channels() if row.type == "consulting"]
    asked.cancel()
    await soon(first.close())

    gate.set()
    second = await kept.hub()
    reply = await soon(boss.invoke("go", thread_id="t", hub=second, message_id="m"))
    assert (reply.text, made) == ("re: look", ["look"])
    assert [row.channel_id for row in await second.channels() if row.type == "consulting"] == [before]
    assert await words(second, reply.channel_id) == ["started", "progress", "completed"]
    assert await log_of_turns(second, reply.channel_id) == []
    await second.close()


async def test_a_task_that_is_done_while_nobody_waits_is_reported_when_somebody_does(kept: Kept) -> None:
    """The hub that is opened next does not know who gave the task; the one after that does."""
    inside, gate = asyncio.Event(), asyncio.Event()
    made: list[str] = []
    worker = slow_worker(inside, gate, made)
    boss = giver(worker)
    first = await kept.hub()
    asked = asyncio.create_task(boss.invoke("go", thread_id="t", hub=first, message_id="m"))
    await soon(inside.wait())
    asked.cancel()
    await soon(first.close())

    gate.set()
    second = await kept.hub()
    await second.register(worker)
    async with asyncio.timeout(5):
        while await tasks(second) != [("closed", "answered")]:
            await let_others_run(1)
    await second.close()

    third = await kept.hub()
    reply = await soon(boss.invoke("go", thread_id="t", hub=third, message_id="m"))
    assert (reply.text, made) == ("re: look", ["look"])
    assert await words(third, reply.channel_id) == ["started", "progress", "completed"]
    await third.close()


async def test_a_hub_that_closes_between_two_tasks_of_a_call_fails_neither(kept: Kept) -> None:
    """The first ends while the hub is closing; the second is given by the hub that is opened next."""
    inside, gate, again = asyncio.Event(), asyncio.Event(), asyncio.Event()
    worker, other = Agent("worker", model=waiting(inside, gate)), Agent("other", model=echo)

    @tool(timeout=None)
    async def ask(channel: TurnChannel) -> str:
        """Ask both, one after the other."""
        one = await channel.delegate(worker, "one")
        again.set()
        return f"{one.text}, {(await channel.delegate(other, 'two')).text}"

    boss = giver(ask)
    first = await kept.hub(grace=0.5)
    asked = asyncio.create_task(boss.invoke("go", thread_id="t", hub=first, message_id="m"))
    await soon(inside.wait())
    asked.cancel()
    closing = asyncio.create_task(first.close())
    await let_others_run(20)
    gate.set()
    await soon(again.wait())
    await soon(closing)

    second = await kept.hub()
    reply = await soon(boss.invoke("go", thread_id="t", hub=second, message_id="m"))
    assert reply.text == "re: one, re: two"
    assert await words(second, reply.channel_id) == ["started", "completed"] * 2
    await second.close()


async def test_a_task_whose_unsafe_call_was_cut_off_fails_in_doubt_and_the_call_is_not_made_again(kept: Kept) -> None:
    inside, made = asyncio.Event(), []

    @tool(idempotency="unsafe", timeout=None)
    async def pay() -> str:
        """Pay."""
        made.append("pay")
        inside.set()
        await asyncio.Event().wait()
        return "paid"

    boss = giver(Agent("worker", model=asking(calls("pay")), tools=[pay]))
    first = await kept.hub()
    asked = asyncio.create_task(boss.invoke("go", thread_id="t", hub=first, message_id="m"))
    await soon(inside.wait())
    asked.cancel()
    await soon(first.close())

    second = await kept.hub()
    reply = await soon(boss.invoke("go", thread_id="t", hub=second, message_id="m"))
    assert reply.text == "TurnFailed: in_doubt: pay: it was under way when its process ended"
    assert await words(second, reply.channel_id) == ["started", "progress", "failed"]
    assert (await tasks(second), made) == ([("closed", "in_doubt")], ["pay"])
    await second.close()


async def test_a_call_that_gives_another_task_in_its_place_is_told(kept: Kept) -> None:
    """Neither is the one taken for the other, nor are both done."""
    inside, gate = asyncio.Event(), asyncio.Event()
    worker = Agent("worker", model=waiting(inside, gate))
    texts = iter(["this", "that"])

    @tool(timeout=None)
    async def ask(channel: TurnChannel) -> str:
        """Ask something else each time."""
        return (await channel.delegate(worker, next(texts))).text

    boss = giver(ask)
    first = await kept.hub()
    asked = asyncio.create_task(boss.invoke("go", thread_id="t", hub=first, message_id="m"))
    await soon(inside.wait())
    asked.cancel()
    await soon(first.close())

    second = await kept.hub()
    reply = await soon(boss.invoke("go", thread_id="t", hub=second, message_id="m"))
    assert reply.text == "UsageError: this task for 'worker' was given in other words before; give it anew"
    assert await ends(second, reply.channel_id) == ["conflict"]
    assert await tasks(second) == [("closed", "conflict")]
    await second.close()


# Once


async def task_of(hub: Hub, worker: Agent) -> DelegatedTask:
    """A task that a turn gives, whatever becomes of it."""
    reply = await soon(Agent("boss", model=echo).invoke("go", hub=hub))
    return DelegatedTask("0198-task", reply.channel_id, "6/boss", None, "boss", worker, "look")


async def test_a_task_that_is_stopped_before_it_has_a_channel_was_given_and_failed(hub: Hub) -> None:
    task = await task_of(hub, Agent("worker", model=echo))
    assert await DelegatedTasks(hub.core).drop(task, "cancelled") == Usage()
    assert await words(hub, task.parent) == ["started", "failed"]
    assert (await ends(hub, task.parent), await tasks(hub)) == (["cancelled"], [])


async def test_of_the_ends_of_a_task_the_first_is_recorded(hub: Hub) -> None:
    task = await task_of(hub, Agent("worker", model=echo))
    await DelegatedTasks(hub.core).drop(task, "cancelled")
    assert (await soon(DelegatedTasks(hub.core).run(task))).reply.text == "re: look"
    assert await words(hub, task.parent) == ["started", "failed"]


async def test_a_task_that_is_run_or_stopped_again_is_as_it_was(hub: Hub) -> None:
    model = ScriptedModel([calls("get_time_date", usage=Usage(1, 2)), says("Late.", usage=Usage(3, 4))])
    task = await task_of(hub, Agent("worker", model=model))
    first, again = [await soon(DelegatedTasks(hub.core).run(task)) for _ in range(2)]
    assert (again, first.reply.text) == (first, "Late.")
    assert await DelegatedTasks(hub.core).drop(task, "cancelled") == Usage(4, 6)
    assert await words(hub, task.parent) == ["started", "progress", "completed"]
    assert await tasks(hub) == [("closed", "answered")]


# Whatever the store does


@pytest.mark.parametrize("fail_every", [0, 2, 3, 4, 5])
@pytest.mark.parametrize("lose_reply_every", [0, 2, 3])
async def test_a_store_that_is_away_now_and_then_fails_no_task(
    clock: ManualClock, fail_every: int, lose_reply_every: int
) -> None:
    faults = Faults()
    hub = await Hub.over(with_faults(MemoryStore(clock=clock), faults), clock=clock)
    agents = [Agent(name, model=ScriptedModel([calls("get_time_date"), f"from {name}"])) for name in ("one", "two")]
    wanted = [calls(f"delegate_to_{agent.name}", {"task": "look"}) for agent in agents]
    await hub.register(Agent("boss", model=asking(*wanted), tools=[delegate(agent) for agent in agents]))
    ann = await hub.register("ann")
    channel = await ann.open(target="boss")
    await channel.send("go")
    faults.fail_every, faults.lose_reply_every = fail_every, lose_reply_every
    async with asyncio.timeout(10):
        while channel.state.last_speaker_id != "boss":
            await let_others_run(20)
            clock.advance(1)
    faults.fail_every = faults.lose_reply_every = 0
    log = await hub.log(channel.channel_id)
    assert log[-1].event_data == {"text": "from one | from two"}
    assert (
        sorted(await words(hub, channel.channel_id))
        == ["completed", "completed", "progress", "progress"] + ["started"] * 2
    )
    await hub.close()
