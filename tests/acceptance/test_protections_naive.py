"""Where naive protections go wrong, a test for each mistake. Names: what is naive, then what comes of it elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from antiphon import (
    Agent,
    AgentTarget,
    Answered,
    Channel,
    DeadlockMonitor,
    FromSpeaker,
    Hub,
    Progress,
    Reply,
    Request,
    ScriptedModel,
    SpawnLimit,
    Step,
    TerminateTarget,
    Transition,
    TransitionGraph,
    TurnFailed,
    calls,
    delegate,
    says,
    tool,
)
from antiphon.testing import ManualClock
from tests.acceptance.protections_desk import Desk, Provider
from tests.support.crashing_hubs import Mind, crashes
from tests.support.kept_store import KeptStore
from tests.support.waiting import soon, wait_until

LOOPS = "antiphon.flow.loop_detected"
BREAKER = "antiphon.flow.breaker"
RETRIED, STARTED, FAILED = "antiphon.call.retried", "antiphon.call.started", "antiphon.call.failed"
BREAKERS = "system:breakers"
Say = Callable[[int], str]
"""What an agent says the nth time."""


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def desk(clock: ManualClock) -> AsyncIterator[Desk]:
    async with Hub.open("memory:", clock=clock) as hub:
        yield Desk(hub, clock)


async def stopped(desk: Desk, agent: Agent, **options: object) -> str:
    """How a turn ends: why it stopped, why it failed, or what it says."""
    try:
        reply = await desk.ask(agent, **options)
    except TurnFailed as failed:
        return failed.reason
    return reply.stopped or reply.text


# Idempotency


async def test_key_of_step_and_inputs__a_rephrased_call_runs_twice() -> None:
    """A turn is resumed by a model that would phrase the refund differently: the first one stands in the journal."""
    paid: list[str] = []

    @tool(idempotency="keyed")
    async def refund(order: str, idempotency_key: str = "") -> str:
        """Pay an order back."""
        paid.append(order)
        return "paid back"

    async with crashes() as place:
        dies = Mind(calls("refund", {"order": "order 7"}))
        await place.next_hub(dies, tools=[refund])
        await place.open(text="Refund 7")
        await wait_until(lambda: len(dies.requests) == 2)
        resumed = Mind(says("It is paid back."))
        await place.next_hub(resumed, tools=[refund])
        assert await place.answered() == ["It is paid back."]
        [request] = resumed.requests
    assert paid == ["order 7"]
    assert [item.text for item in request.exchange if isinstance(item, Answered)] == ["paid back"]


async def test_key_of_step_and_inputs__two_equal_calls_merge(desk: Desk) -> None:
    model = ScriptedModel([[calls("pay", {"order": "7"}), calls("pay", {"order": "7"})], says("Twice, as you said.")])
    reply = await desk.ask(desk.agent(model))
    assert desk.done == [("pay", "7"), ("pay", "7")]
    started = [each for each in await desk.events(reply.channel_id, STARTED) if each["name"] == "pay"]
    assert len({each["index"] for each in started}) == 2


async def test_cached_result_without_digest_compare__other_arguments_get_the_old_answer() -> None:
    """The program was changed before the turn is resumed, and asks for something else first. Nothing is called."""

    async def looks(progress: Progress) -> None:
        raise AssertionError("nothing runs")

    async with crashes() as place:
        dies = Mind(calls("get_time_date"))
        await place.next_hub(dies)
        await place.open()
        await wait_until(lambda: len(dies.requests) == 2)
        resumed = Mind(says("never asked"))
        await place.next_hub(resumed, patcher=lambda steps: steps.insert_before("call_model", Step("looks", looks)))
        [failed] = await place.until("turn.failed")
        assert failed.event_data["reason"] == "idempotency_conflict"
        assert (resumed.requests, await place.answers()) == ([], [])


# Retries


async def test_jitter_drawn_again_on_replay__replay_diverges(clock: ManualClock) -> None:
    provider, store = Provider(down=True), KeptStore(clock=clock)
    async with kept_hub(store, clock) as desk:
        agent = desk.agent(provider.model(), guards=[{"name": "retry_budget", "attempts": 4}])
        assert await stopped(desk, agent, thread_id="t") == "model_error"
        [row] = await desk.hub.channels()
        delays = [float(str(each["delay"])) for each in await desk.events(row.channel_id, RETRIED)]
        log = await desk.log(row.channel_id)
    assert len(delays) == 3
    assert all(0 <= delay <= 0.5 * 2**number for number, delay in enumerate(delays))
    async with kept_hub(store, clock) as again:
        assert await again.log(row.channel_id) == log


@asynccontextmanager
async def kept_hub(store: KeptStore, clock: ManualClock) -> AsyncIterator[Desk]:
    """A hub over a store that outlives it."""
    hub = await Hub.over(store, clock=clock)
    try:
        yield Desk(hub, clock)
    finally:
        await hub.close()


EMPTYING = {"name": "retry_budget", "capacity": 2, "start": 2, "per_call": 0, "per_second": 0}


async def test_a_bucket_for_each_process__n_processes_make_n_times_the_retries(desk: Desk) -> None:
    """Channels, agents and hubs share the bucket of a provider."""
    provider = Provider(down=True)
    agents = [desk.agent(provider.model(), name=name, guards=[EMPTYING]) for name in ("bob", "cleo")]
    outcomes = [await stopped(desk, agent) for agent in agents]
    assert provider.asked == 2 + 2, "two first attempts, and two retries of all together"
    assert outcomes[1] == "denied:retry_budget"


async def test_a_bucket_for_each_process__two_hubs_at_once(clock: ManualClock) -> None:
    provider, store = Provider(down=True), KeptStore(clock=clock)
    async with kept_hub(store, clock) as one, kept_hub(store, clock) as two:
        for desk, name in ((one, "bob"), (two, "cleo")):
            await stopped(desk, desk.agent(provider.model(), name=name, guards=[EMPTYING]))
    assert provider.asked == 2 + 2


async def test_a_bucket_that_is_full_after_a_restart__storm(clock: ManualClock) -> None:
    provider, store = Provider(down=True), KeptStore(clock=clock)
    for expected in (3, 4):  # the first attempt and two retries; then a first attempt alone
        async with kept_hub(store, clock) as desk:
            await stopped(desk, desk.agent(provider.model(), guards=[EMPTYING]))
            assert provider.asked == expected


async def test_retries_of_the_sdk_under_ours__three_times_three_calls(desk: Desk) -> None:
    provider = Provider(down=True)
    await stopped(desk, desk.agent(provider.model(), guards=[{"name": "retry_budget", "attempts": 3}]))
    assert provider.asked == 3


# Circuit breakers


async def opened(desk: Desk, provider: Provider, agent: Agent) -> None:
    """Let the provider fail until its breaker is open."""
    provider.down = True
    for _ in range(2):  # of three attempts each
        await stopped(desk, agent)
    assert await states_of(desk) == ["open"]


async def states_of(desk: Desk) -> list[object]:
    return [each["target"] for each in await desk.events(BREAKERS, BREAKER)]


def guarded(desk: Desk, provider: Provider, name: str = "bob", **fields: object) -> Agent:
    return desk.agent(provider.model(), name=name, guards=[{"name": "breaker", **fields}])


async def test_half_open_lets_all_waiting_calls_in__herd(desk: Desk) -> None:
    provider = Provider()
    agents = [guarded(desk, provider, name=f"agent{number}") for number in range(20)]
    await opened(desk, provider, agents[0])
    await desk.clock.advance(40)
    provider.down, provider.asked, provider.gate = False, 0, asyncio.Event()
    asking = [asyncio.ensure_future(stopped(desk, agent)) for agent in agents]
    await wait_until(lambda: sum(task.done() for task in asking) == len(agents) - 1)
    assert provider.asked == 1
    provider.gate.set()
    outcomes = await soon(asyncio.gather(*asking))
    assert sorted(outcomes) == ["denied:breaker_open"] * 19 + ["here"]
    assert await states_of(desk) == ["open", "half_open", "closed"]


async def test_half_open_forgets_the_probe__stuck_for_ever(desk: Desk) -> None:
    """The call that tries never comes back. Its lease ends, and later another one tries."""
    provider = Provider()
    agent, other = guarded(desk, provider, lease=20), guarded(desk, provider, name="cleo", lease=20)
    await opened(desk, provider, agent)
    await desk.clock.advance(40)
    provider.down, provider.gate = False, asyncio.Event()
    probing = asyncio.ensure_future(agent.invoke("Go", hub=desk.hub))
    await wait_until(lambda: provider.gate is not None and provider.asked > 5)
    provider.gate = None
    await desk.clock.advance(25)
    assert await stopped(desk, other) == "denied:breaker_open"
    await desk.clock.advance(100)
    assert await stopped(desk, other) == "here"
    assert (await states_of(desk))[-1] == "closed"
    probing.cancel()


async def test_a_late_success_closes_a_newer_open_period__flapping(desk: Desk) -> None:
    """A call from before the breaker opened succeeds while another one tries. That says nothing about the provider."""
    slow, provider = Provider(), Provider()
    slow.gate = asyncio.Event()
    late = asyncio.ensure_future(guarded(desk, slow, name="cleo").invoke("Go", hub=desk.hub))
    await wait_until(lambda: slow.asked == 1)
    agent = guarded(desk, provider)
    await opened(desk, provider, agent)
    await desk.clock.advance(40)
    provider.asked, provider.gate = 0, asyncio.Event()
    probing = asyncio.ensure_future(stopped(desk, guarded(desk, provider, name="dan")))
    await wait_until(lambda: provider.asked == 1)
    slow.gate.set()
    assert (await soon(late)).text == "here"
    assert await states_of(desk) == ["open", "half_open"]
    assert await stopped(desk, agent) == "denied:breaker_open"
    provider.gate.set()
    await soon(probing)
    assert await states_of(desk) == ["open", "half_open", "open"]


async def test_one_counter_for_all_failures__schema_errors_hide_behind_http_200(desk: Desk) -> None:
    """Each answer arrives, and none has the shape that is wanted: the calls succeed, and the breaker opens."""
    asked = 0

    async def model(request: Request) -> Reply:
        nonlocal asked
        asked += 1
        return says("not the JSON that is wanted")

    agent = Agent("bob", model=model, output=dict[str, int], guards=[{"name": "breaker"}])
    outcomes = [await stopped(desk, agent) for _ in range(3)]
    assert outcomes[-1] == "denied:breaker_open"
    assert asked == 2
    [change] = await desk.events(BREAKERS, BREAKER)
    assert (change["target"], change["reason"], change["counts"]) == ("open", "schema", {"schema": 2})


# Loops


LOOP = [{"name": "loop"}]


@pytest.mark.parametrize(
    "others",
    [
        [{"n": 1.0, "q": "x"}, {"q": "x", "n": 1}],
        [{"q": "x"}, {"q": "x", "exact": None}],
        [{"q": "x", "reason": "I try again"}, {"q": "x", "reason": "once more"}],
    ],
    ids=["order of keys, 1 and 1.0", "defaults and null", "a field that only describes"],
)
async def test_a_hash_of_the_text_of_arguments__what_does_not_matter_bypasses_it(
    desk: Desk, others: list[dict[str, object]]
) -> None:
    asked = [{"q": "x", "n": 1}, *others]
    model = ScriptedModel([*(calls("search", args) for args in asked), says("Nothing.")])
    reply = await desk.ask(desk.agent(model, guards=LOOP))
    assert desk.done == [("search", "x")] * 2
    [loop] = await desk.events(reply.channel_id, LOOPS)
    assert (loop["detector"], loop["count"], loop["window"], loop["action"]) == ("tool", 3, 5, "correct")


async def test_a_hash_of_the_text_of_arguments__one_text_in_two_normal_forms(desk: Desk) -> None:
    model = ScriptedModel([calls("search", {"q": q}) for q in ("é", "e\u0301", "é")] + [says("Nothing.")])
    reply = await desk.ask(desk.agent(model, guards=LOOP))
    assert len(desk.done) == 2
    assert len(await desk.events(reply.channel_id, LOOPS)) == 1


async def test_values_that_only_python_takes_for_equal_are_no_loop(desk: Desk) -> None:
    asked = [{"q": "x", "exact": True}, {"q": "x", "exact": False}, {"q": "x"}, {"q": "X"}]
    model = ScriptedModel([*(calls("search", args) for args in asked), says("Nothing.")])
    reply = await desk.ask(desk.agent(model, guards=LOOP))
    assert len(desk.done) == 4
    assert await desk.events(reply.channel_id, LOOPS) == []


async def test_a_window_over_all_agents__interleaving_hides_a_loop(desk: Desk) -> None:
    """Among the last five calls of all agents there are never three of bob's: each agent has a window of its own."""
    numbers = iter(range(100))

    async def busy(request: Request) -> Reply | list[Reply]:
        if request.exchange:
            return says(f"cleo is at number {next(numbers)}")
        return [calls("search", {"q": f"c{next(numbers)}"}) for _ in range(4)]

    repeats = [entry for number in range(3) for entry in (calls("search", {"q": "b"}), says(f"bob, round {number}"))]
    for agent in (desk.agent(ScriptedModel(repeats)), desk.agent(busy, name="cleo")):
        await desk.hub.register(agent)
    ann = await desk.hub.register("ann")
    rules = [
        Transition(FromSpeaker("bob"), AgentTarget("cleo")),
        Transition(FromSpeaker("cleo") | FromSpeaker("ann"), AgentTarget("bob")),
    ]
    graph = TransitionGraph("ann", rules, TerminateTarget("over"), max_turns=7)
    knobs = {"graph": graph.to_dict(), "guards": LOOP}
    channel = await ann.open(type="workflow", target=["bob", "cleo"], knobs=knobs)
    await channel.send("Begin, please")
    assert await soon(channel.closed()) == "max_turns"
    assert [q for _, q in desk.done if q == "b"] == ["b", "b"]
    assert [loop["agent"] for loop in await desk.events(channel.channel_id, LOOPS)] == ["bob"]


async def test_a_window_over_all_agents__agents_that_do_the_same_once_trip_it(desk: Desk) -> None:
    for name in ("bob", "cleo", "dan"):
        await desk.hub.register(desk.agent(ScriptedModel([calls("search", {"q": "x"}), says(f"{name} is done")]), name))
    ann = await desk.hub.register("ann")
    channel = await ann.open(type="discussion", target=["bob", "cleo", "dan"], knobs={"guards": LOOP})
    await channel.send("Search, each of you")
    await wait_until(lambda: channel.state.expected_next_speaker == "ann")
    assert desk.done == [("search", "x")] * 3
    assert await desk.events(channel.channel_id, LOOPS) == []


async def test_a_call_that_a_crash_repeats_counts_twice__an_innocent_call_is_denied() -> None:
    """The second of three equal calls is under way when the process dies. It is made again, and is still the second."""
    made: list[int] = []
    comes_back: list[bool] = []

    @tool(idempotency="natural")
    async def search(q: str) -> str:
        """Search."""
        made.append(len(made))
        if len(made) == 2 and not comes_back:
            await asyncio.Event().wait()
        return "nothing"

    again = calls("search", {"q": "x"})
    async with crashes() as place:
        await place.next_hub(Mind(again, again), tools=[search])
        channel = await place.people["ann"].open(target="bob", knobs={"guards": LOOP})
        place.channel_id = channel.channel_id
        await channel.send("Search.")
        await wait_until(lambda: len(made) == 2)
        comes_back.append(True)
        await place.next_hub(Mind(again, says("Nothing.")), tools=[search])
        assert await place.answered() == ["Nothing."]
        assert [each.event_data["count"] for each in await place.told("flow.loop_detected")] == [3]
    assert len(made) == 3


async def test_all_calls_of_a_message_are_stripped__innocent_calls_die(desk: Desk) -> None:
    again = calls("search", {"q": "x"})
    model = ScriptedModel([again, again, [again, calls("pay", {"order": "7"})], says("Paid.")])
    reply = await desk.ask(desk.agent(model, guards=LOOP))
    assert desk.done == [("search", "x"), ("search", "x"), ("pay", "7")]
    assert (reply.text, reply.stopped) == ("Paid.", None)


# Deadlocks


DEADLOCKS = "antiphon.flow.deadlock"


async def between_two(desk: Desk, says_bob: Say, says_cleo: Say, *, turns: int, **fields: object) -> Channel:
    """Two agents that rules give the turn in turns, after the channel has ended."""
    for name, say in (("bob", says_bob), ("cleo", says_cleo)):
        await desk.hub.register(Agent(name, model=ScriptedModel([says(say(number)) for number in range(turns)])))
    ann = await desk.hub.register("ann")
    rules = [
        Transition(FromSpeaker("bob"), AgentTarget("cleo")),
        Transition(FromSpeaker("cleo") | FromSpeaker("ann"), AgentTarget("bob")),
    ]
    graph = TransitionGraph("ann", rules, TerminateTarget("over"), max_turns=turns)
    knobs = {"graph": graph.to_dict(), "guards": [DeadlockMonitor(**fields)]}  # type: ignore[arg-type]
    channel = await ann.open(type="workflow", target=["bob", "cleo"], knobs=knobs)
    await channel.send("Begin, please")
    await soon(channel.closed())
    return channel


async def test_a_cycle_of_two_is_a_deadlock__every_dialogue_is_one(desk: Desk) -> None:
    channel = await between_two(desk, lambda n: f"question {n}", lambda n: f"answer {n}", turns=40)
    assert (channel.state.close_reason, channel.state.turn_count) == ("max_turns", 40)
    assert await desk.events(channel.channel_id, DEADLOCKS) == []


async def test_a_cycle_of_two_without_anything_new_is_one(desk: Desk) -> None:
    channel = await between_two(desk, lambda n: "It is your part.", lambda n: "No,  it is YOUR part.", turns=40)
    assert channel.state.close_reason == "deadlock"
    found = await desk.events(channel.channel_id, DEADLOCKS)
    assert [each["action"] for each in found] == ["warn", "trip"]
    assert sorted(found[-1]["cycle"]) == ["bob", "cleo"]  # type: ignore[type-var, arg-type]
    assert channel.state.turn_count < 12


async def test_reviewer_and_coder_are_counted_as_oscillation__legitimate_work_is_cut(desk: Desk) -> None:
    """Each draft is new, and the reviewer says the same of all of them: they go on, as long as rules let them."""
    channel = await between_two(desk, lambda n: f"draft {n}", lambda n: "Not yet, try again.", turns=30)
    assert (channel.state.close_reason, channel.state.turn_count) == ("max_turns", 30)


@pytest.mark.parametrize("iterations", [2, 5])
async def test_a_declared_loop_without_a_new_draft_ends_after_its_iterations(desk: Desk, iterations: int) -> None:
    channel = await between_two(
        desk, lambda n: "the same draft", lambda n: "Not yet, try again.", turns=30, max_iterations=iterations
    )
    assert channel.state.close_reason == "deadlock"
    [trip] = [each for each in await desk.events(channel.channel_id, DEADLOCKS) if each["action"] == "trip"]
    assert int(str(trip["occurrences"])) == iterations


# Limits


async def test_limits_for_each_channel__a_new_channel_resets_them(desk: Desk) -> None:
    """The tasks that a task gives count where the run began: two of five are given, however they nest."""
    done: list[str] = []

    async def leaf_model(request: Request) -> Reply:
        done.append("leaf")
        return says("done")

    def passing(below: Agent, count: int) -> object:
        async def model(request: Request) -> Reply | list[Reply]:
            given = [item for item in request.exchange if isinstance(item, Answered)]
            if len(given) < count:
                return calls(f"delegate_to_{below.name}", {"task": f"part {len(given)}"})
            return says("; ".join(item.text for item in given))

        return model

    leaf = Agent("leaf", model=leaf_model)
    middle = Agent("middle", model=passing(leaf, 2), tools=[delegate(leaf)])  # type: ignore[arg-type]
    top = Agent("top", model=passing(middle, 2), tools=[delegate(middle)], guards=[SpawnLimit(most=2)])  # type: ignore[arg-type]
    reply = await desk.ask(top)
    assert done == ["leaf"]
    assert "spawn_limit" in reply.text
