"""The catalogue of protections on a real hub: what each of them does, what it records, and who sees that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

import antiphon
from antiphon import (
    AccessPolicy,
    Agent,
    AgentTarget,
    Answered,
    ArgumentRule,
    CostVelocityMonitor,
    Denied,
    DepthLimit,
    FromSpeaker,
    Handoff,
    Hub,
    ModelRefused,
    Reply,
    Request,
    RulesInvalid,
    ScriptedModel,
    TerminateTarget,
    Transition,
    TransitionGraph,
    TurnLimit,
    Usage,
    calls,
    decide_failure,
    delegate,
    says,
    tool,
)
from antiphon.testing import ManualClock
from tests.acceptance.protections_desk import Desk, Provider
from tests.support.waiting import let_others_run, soon, wait_until

LIMIT, LOOPS, BREAKER = "antiphon.flow.limit", "antiphon.flow.loop_detected", "antiphon.flow.breaker"
OPERATORS_ONLY = ["hub:operators"]
TIERS = ("interactive", "batch", "regulated")


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    clock = ManualClock()
    async with Hub.open("memory:", clock=clock) as hub:
        yield Desk(hub, clock)


NAMES = """
LoopDetector Budget CircuitBreaker RetryBudget Deadlines DeadlockMonitor CostVelocityMonitor HopLimit DepthLimit
Gate ValidationResult Policy Saga Tier decide_failure ApprovalEvent ALLOW Deny Change register_guard
"""


@pytest.mark.parametrize("name", NAMES.split())
def test_the_names_of_the_contract_are_importable(name: str) -> None:
    assert name in antiphon.__all__
    assert getattr(antiphon, name) is not None


# Hop limit and recursion limit


def passing_on(name: str, to: str) -> Agent:
    """An agent that hands the turn on, until it reads that it cannot."""

    @tool
    async def pass_on() -> Handoff:
        """Pass the turn on."""
        return Handoff(to, reason="not mine")

    async def model(request: Request) -> Reply:
        return says("I keep it.") if request.exchange else calls("pass_on")

    return Agent(name, model=model, tools=[pass_on])


async def test_the_sixth_handoff_in_a_row_is_refused_and_the_work_is_kept(desk: Desk) -> None:
    for name, to in (("bob", "cleo"), ("cleo", "bob")):
        await desk.hub.register(passing_on(name, to))
    ann = await desk.hub.register("ann")
    graph = TransitionGraph("ann", [Transition(FromSpeaker("ann"), AgentTarget("bob"))], TerminateTarget("done"))
    channel = await ann.open(type="workflow", target=["bob", "cleo"], knobs={"graph": graph.to_dict()})
    await channel.send("Whose is it?")
    assert await soon(channel.closed()) == "done"
    packets = [each for each in await desk.log(channel.channel_id) if each.event_type == antiphon.EV_PACKET]
    assert len(packets) == 6
    assert packets[-1].event_data["body"] == "I keep it."
    [limit] = await desk.events(channel.channel_id, LIMIT)
    assert (limit["kind"], limit["limit"], limit["rejected_target"]) == ("hop", 5, "bob")


async def test_a_word_of_a_person_starts_the_handoffs_anew(desk: Desk) -> None:
    await desk.hub.register(passing_on("bob", "dana"))
    dana = await desk.hub.register("dana", kind="human")
    graph = TransitionGraph("dana", [Transition(FromSpeaker("dana"), AgentTarget("bob"))], TerminateTarget("done"))
    guards = [{"name": "hop_limit", "most": 1}]
    channel = await dana.open(type="workflow", target=["bob"], knobs={"graph": graph.to_dict(), "guards": guards})
    for number in range(3):
        await channel.send(f"Message {number}")
        await wait_until(lambda: channel.state.expected_next_speaker == "dana")
    assert await desk.events(channel.channel_id, LIMIT) == []


def nest(depth: int, guards: list[object]) -> tuple[Agent, list[int]]:
    """Agents of which each gives a task to the next, this many inside each other, and those that were run."""
    ran: list[int] = []

    def at(level: int, below: Agent | None) -> Agent:
        async def model(request: Request) -> Reply:
            ran.append(level)
            answers = [item.text for item in request.exchange if isinstance(item, Answered)]
            if below is None or answers:
                return says(answers[0] if answers else "the bottom")
            return calls(f"delegate_to_{below.name}", {"task": "go down"})

        tools = [] if below is None else [delegate(below)]
        return Agent(f"level{level}", model=model, tools=tools, guards=[] if level else guards)

    agent: Agent | None = None
    for level in range(depth, -1, -1):
        agent = at(level, agent)
    assert agent is not None
    return agent, ran


@pytest.mark.parametrize("guards", [[], [DepthLimit()]], ids=["by default", "with the guard"])
@pytest.mark.parametrize(("depth", "reached"), [(8, "the bottom"), (9, "limit")])
async def test_eight_tasks_stand_inside_each_other_and_the_ninth_is_refused(
    desk: Desk, depth: int, reached: str, guards: list[object]
) -> None:
    top, ran = nest(depth, guards)
    reply = await desk.ask(top)
    assert reached in reply.text
    assert max(ran) == 8
    limits = [each for row in await desk.hub.channels() for each in await desk.events(row.channel_id, LIMIT)]
    assert [(each["kind"], each["limit"], each["count"]) for each in limits] == [("depth", 8, 8)] * (depth - 8)


async def test_depth_is_no_business_of_clients(desk: Desk) -> None:
    ann = await desk.hub.register("ann")
    await desk.hub.register("ben")
    with pytest.raises(RulesInvalid, match="task"):
        await ann.open(type="consulting", target="ben", knobs={"task": {"depth": 0, "root": "elsewhere"}})


async def test_turns_are_limited_in_any_channel(desk: Desk) -> None:
    ann, ben = await desk.hub.register("ann"), await desk.hub.register("ben")
    channel = await ann.open(type="discussion", target="ben", knobs={"guards": [TurnLimit(most=3)]})
    held = [channel, await ben.channel(channel.channel_id)]
    for number in range(3):
        await held[number % 2].send(f"word {number}")
    assert channel.state.close_reason == "max_turns"
    [limit] = await desk.events(channel.channel_id, LIMIT)
    assert (limit["kind"], limit["limit"]) == ("turns", 3)


# Loop detector


async def test_a_repeated_call_is_corrected_first_and_ends_the_turn_then(desk: Desk) -> None:
    same = calls("search", {"q": "x"}, text="I search.")
    model = ScriptedModel([same] * 6)
    reply = await desk.ask(desk.agent(model, guards=[{"name": "loop"}]))
    assert desk.done == [("search", "x")] * 2
    assert reply.stopped == "denied:loop"
    assert reply.text == "I search."
    loops = await desk.events(reply.channel_id, LOOPS)
    assert [(loop["action"], loop["count"], loop["tool"]) for loop in loops] == [
        ("correct", 3, "search"),
        ("terminate", 4, "search"),
    ]
    assert any("was not called again" in text for _, text in model.requests[3].messages)


async def test_texts_that_come_again_and_again_end_a_discussion_of_agents(desk: Desk) -> None:
    for name, text in (("bob", "Please continue with it."), ("cleo", "I cannot, I need the data.")):
        await desk.hub.register(Agent(name, model=ScriptedModel([says(text)] * 20)))
    ann = await desk.hub.register("ann")
    graph = TransitionGraph(
        "ann",
        [
            Transition(FromSpeaker("bob"), AgentTarget("cleo")),
            Transition(FromSpeaker("cleo") | FromSpeaker("ann"), AgentTarget("bob")),
        ],
        TerminateTarget("over"),
        max_turns=50,
    )
    channel = await ann.open(
        type="workflow", target=["bob", "cleo"], knobs={"graph": graph.to_dict(), "guards": [{"name": "loop"}]}
    )
    await channel.send("Solve it, you two")
    assert await soon(channel.closed()) == "loop"
    assert channel.state.turn_count <= 10
    loops = await desk.events(channel.channel_id, LOOPS)
    assert (loops[0]["detector"], loops[0]["action"]) == ("text", "correct")


# Circuit breaker


async def test_a_breaker_goes_round_its_states_and_asks_a_person_after_too_many_trips(desk: Desk) -> None:
    provider = Provider(down=True)
    agent = desk.agent(provider.model(), guards=[{"name": "breaker", "max_trips": 2, "cooldown": 10}])
    for _ in range(4):
        with suppress(antiphon.TurnFailed):
            assert (await desk.ask(agent)).stopped == "denied:breaker_open"
        await desk.clock.advance(60)
    targets = [each["target"] for each in await desk.events("system:breakers", BREAKER)]
    assert targets == ["open", "half_open", "open", "half_open", "open", "stopped"]
    asked = provider.asked
    await desk.clock.advance(10_000)
    waiting = asyncio.ensure_future(agent.invoke("Go", hub=desk.hub))
    await wait_until_waiting(desk)
    assert provider.asked == asked
    waiting.cancel()


async def wait_until_waiting(desk: Desk) -> None:
    async with asyncio.timeout(30):
        while not await desk.hub.approvals():
            await let_others_run(1)


@pytest.mark.parametrize(
    ("fallback", "outcome"), [({"say": "Try again later."}, "Try again later."), ({"model": "spare"}, "from the spare")]
)
async def test_an_open_breaker_uses_its_fallback(desk: Desk, fallback: dict[str, str], outcome: str) -> None:
    async def spare(request: Request) -> Reply:
        return says("from the spare")

    desk.hub.fallback_model("spare", spare)
    provider = Provider(down=True)
    agent = desk.agent(provider.model(), guards=[{"name": "breaker", "fallback": fallback}])
    texts = []
    for _ in range(4):
        try:
            texts.append((await desk.ask(agent)).text)
        except antiphon.TurnFailed as failed:
            texts.append(failed.reason)
    assert texts[-1] == outcome
    assert provider.asked == 5


def test_no_other_model_answers_in_the_regulated_tier() -> None:
    with pytest.raises(RulesInvalid, match="regulated"):
        Agent(
            "bob", model=ScriptedModel([]), tier="regulated", guards=[{"name": "breaker", "fallback": {"model": "x"}}]
        )


# Retries and the cost of calls


@pytest.mark.parametrize(("status", "attempts"), [(503, 3), (429, 3)])
async def test_what_is_transient_is_retried_with_a_pause(desk: Desk, status: int, attempts: int) -> None:
    provider = Provider(down=True, status=status)
    agent = desk.agent(provider.model(), guards=[{"name": "retry_budget"}])
    with pytest.raises(antiphon.TurnFailed):
        await desk.ask(agent)
    assert provider.asked == attempts


async def test_what_a_provider_does_not_take_is_not_sent_again(desk: Desk) -> None:
    asked = 0

    async def model(request: Request) -> Reply:
        nonlocal asked
        asked += 1
        raise ModelRefused("the prompt is too long", status=400)

    with pytest.raises(antiphon.TurnFailed):
        await desk.ask(desk.agent(model, guards=[{"name": "retry_budget"}]))
    assert asked == 1


async def test_an_exhausted_budget_denies_at_once_and_retries_nothing(desk: Desk) -> None:
    provider = Provider()
    guards = [{"name": "budget", "model_calls": 0}, {"name": "retry_budget"}, {"name": "breaker"}]
    reply = await desk.ask(desk.agent(provider.model(), guards=guards))
    assert (reply.stopped, provider.asked) == ("denied:budget", 0)
    assert await desk.events(reply.channel_id, "antiphon.call.retried") == []
    assert await desk.events("system:breakers", BREAKER) == []


async def test_spend_that_is_too_fast_is_kept_back(desk: Desk) -> None:
    model = ScriptedModel([says("Done.", usage=Usage(cost=6_000_000))] * 9)
    agent = Agent("bob", model=model, guards=[CostVelocityMonitor(dollars_per_hour="10")])
    outcomes = [(await desk.ask(agent, thread_id="t", text=f"m{number}")).stopped for number in range(3)]
    assert outcomes == [None, None, "denied:budget"]
    await desk.clock.advance(3700)
    assert (await desk.ask(agent, thread_id="t", text="later")).stopped is None


# Policy


async def test_a_policy_denies_before_anything_leaves(desk: Desk) -> None:
    policy = AccessPolicy(
        roles={"bob": "support"}, allow={"support": ["pay"]}, rules=[ArgumentRule("pay", "cents", ">", 1000)]
    )
    script = [calls("search", {"q": "x"}), calls("pay", {"order": "7", "cents": 5000}), says("I may not.")]
    reply = await desk.ask(desk.agent(ScriptedModel(script), guards=[policy]))
    assert (desk.done, reply.text) == ([], "I may not.")
    denied = await desk.events(reply.channel_id, "antiphon.authz.denied")
    assert [each["tool"] for each in denied] == ["search", "pay"]


# What every protection keeps to


async def test_governance_is_for_operators_and_holds_no_arguments(desk: Desk) -> None:
    secret = "4111-1111-1111-1111"
    script = [calls("search", {"q": secret})] * 6
    guards = [{"name": "loop"}, {"name": "budget", "model_calls": 20}, {"name": "breaker"}]
    reply = await desk.ask(desk.agent(ScriptedModel(script), guards=guards))
    flow = [each for each in await desk.log(reply.channel_id) if each.event_type.startswith("antiphon.flow.")]
    assert flow
    assert [each for each in flow if each.audience != OPERATORS_ONLY] == []
    assert secret not in str([each.event_data for each in flow])


@pytest.mark.parametrize(
    "guard",
    [
        {"name": "hop_limit", "most": "unlimited"},
        {"name": "depth_limit", "most": "unlimited"},
        {"name": "budget", "dollars": "unlimited"},
        {"name": "loop", "threshold": "unlimited"},
        {"name": "retry_budget", "attempts": "unlimited"},
        {"name": "cost_velocity", "dollars_per_hour": "unlimited"},
        {"name": "breaker", "transport": "unlimited"},
    ],
    ids=lambda guard: guard["name"],
)
async def test_nothing_is_unlimited_in_the_regulated_tier(desk: Desk, guard: dict[str, object]) -> None:
    ann = await desk.hub.register("ann")
    await desk.hub.register("ben")
    assert (await ann.open(target="ben", knobs={"guards": [guard]})).state.status == "active"
    with pytest.raises(RulesInvalid, match="unlimited"):
        await ann.open(target="ben", knobs={"tier": "regulated", "guards": [guard]})


@pytest.mark.parametrize(
    ("guard", "named"),
    [
        ({"name": "lop"}, "lop"),
        ({"name": "loop", "windw": 5}, "windw"),
        ({"name": "loop", "window": -1}, "-1"),
        ({"name": "budget", "dollars": 2.5}, "2.5"),
        ({"name": "hop_limit", "most": -1}, "-1"),
        ("retry", "retry"),
    ],
)
async def test_a_guard_that_makes_no_sense_is_named(desk: Desk, guard: object, named: str) -> None:
    ann = await desk.hub.register("ann")
    await desk.hub.register("ben")
    with pytest.raises(RulesInvalid, match=named):
        await ann.open(target="ben", knobs={"guards": [guard]})


@pytest.mark.parametrize("tier", TIERS)
async def test_each_tier_brings_its_guards_and_healthy_work_passes(desk: Desk, tier: str) -> None:
    script = [calls("search", {"q": "x"}), calls("search", {"q": "y"}), says("Found.")]
    reply = await desk.ask(desk.agent(ScriptedModel(script), tier=tier, tools=desk.tools[:1]))
    assert (reply.text, reply.stopped) == ("Found.", None)
    types = [each.event_type for each in await desk.log(reply.channel_id)]
    assert [each for each in types if each.startswith("antiphon.flow.")] == []


@pytest.mark.parametrize(
    ("tier", "failure", "first"),
    [
        ("interactive", "provider", "retry"),
        ("batch", "provider", "retry"),
        ("regulated", "cost", "deny"),
        ("batch", "schema", "replan"),
        ("regulated", "plan", "abort"),
        ("interactive", "unsafe", "block"),
    ],
)
def test_what_follows_from_a_failure_is_decided_by_the_table(tier: str, failure: str, first: str) -> None:
    assert decide_failure(tier, failure).actions[0] == first  # type: ignore[arg-type]


async def test_an_agent_out_of_turn_is_refused_and_the_run_goes_on(desk: Desk) -> None:
    ann, ben = await desk.hub.register("ann"), await desk.hub.register("ben")
    channel = await ann.open(type="discussion", target="ben")
    with pytest.raises(Denied, match="not_expected_speaker"):
        await (await ben.channel(channel.channel_id)).send("Me!")
    await channel.send("Now you.")
    assert channel.state.expected_next_speaker == "ben"
