"""The breaker of a model, which all channels share: when it opens, whom it lets try, and what is done instead."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from antiphon import Agent, Hub, ModelUnavailable, Reply, Request, RulesInvalid, ScriptedModel, says
from antiphon.core.execution_events import EV_APPROVAL_REQUESTED, EV_CALL_FAILED, EV_CALL_STARTED
from antiphon.core.protection_events import EV_BREAKER_CHANGED, EV_BREAKER_COUNTED
from antiphon.guards.breaker import CircuitBreaker
from antiphon.testing import ManualClock
from tests.guards.breaker_desk import Provider, changes_in, data_in, outcome_of
from tests.support.waiting import let_others_run, soon, wait_until

LEDGER = "system:breakers"
FIVE_FAILURES = [("model:far", "closed", "open")]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def hub(clock: ManualClock) -> AsyncIterator[Hub]:
    async with Hub.open("memory:", clock=clock) as hub:
        yield hub


def agent_of(provider: Provider, breaker: CircuitBreaker | None = None, name: str = "bob") -> Agent:
    return Agent(name, model=provider.named("far"), guards=[breaker or CircuitBreaker()])  # type: ignore[arg-type]


async def open_breaker(hub: Hub, clock: ManualClock, agent: Agent) -> None:
    for _ in range(2):
        await outcome_of(agent, hub, clock)
    assert await changes_in(hub, LEDGER) == FIVE_FAILURES


async def test_five_failures_of_a_model_open_its_breaker_for_every_channel(hub: Hub, clock: ManualClock) -> None:
    provider = Provider()
    agent = agent_of(provider)
    assert [await outcome_of(agent, hub, clock) for _ in range(4)] == [
        "model_error",
        "denied:breaker_open",
        "denied:breaker_open",
        "denied:breaker_open",
    ]
    assert provider.asked == 5
    assert await changes_in(hub, LEDGER) == FIVE_FAILURES
    [change] = await data_in(hub, LEDGER, EV_BREAKER_CHANGED)
    assert (change["reason"], change["counts"], change["epoch"], change["trips"]) == (
        "transport",
        {"transport": 5},
        1,
        1,
    )


async def test_a_model_that_never_fails_costs_its_breaker_nothing(hub: Hub, clock: ManualClock) -> None:
    agent = agent_of(Provider(down=False))
    before = await hub.core.store.head(LEDGER)
    for _ in range(3):
        assert await outcome_of(agent, hub, clock) == "here"
    assert await data_in(hub, LEDGER, EV_BREAKER_COUNTED) == []
    assert (before, await hub.core.store.head(LEDGER)) == (0, 2)  # the ledger is made, and nothing is written there


async def test_after_the_cooldown_one_call_tries_and_its_success_closes(hub: Hub, clock: ManualClock) -> None:
    provider = Provider()
    agent = agent_of(provider)
    await open_breaker(hub, clock, agent)
    provider.down = False
    await clock.advance(33)
    assert await outcome_of(agent, hub, clock) == "here"
    assert await changes_in(hub, LEDGER) == [
        *FIVE_FAILURES,
        ("model:far", "open", "half_open"),
        ("model:far", "half_open", "closed"),
    ]


async def test_a_call_that_tries_and_fails_doubles_the_cooldown(hub: Hub, clock: ManualClock) -> None:
    provider = Provider()
    agent = agent_of(provider)
    await open_breaker(hub, clock, agent)
    await clock.advance(33)
    assert await outcome_of(agent, hub, clock) == "denied:breaker_open"
    assert provider.asked == 6
    await clock.advance(33)
    assert await outcome_of(agent, hub, clock) == "denied:breaker_open"
    assert provider.asked == 6
    assert [change["trips"] for change in await data_in(hub, LEDGER, EV_BREAKER_CHANGED)] == [1, 1, 2]


async def test_a_fallback_model_answers_while_the_breaker_is_open(hub: Hub, clock: ManualClock) -> None:
    async def spare(request: Request) -> Reply:
        return says("from the spare")

    hub.fallback_model("spare", spare)
    provider = Provider()
    agent = agent_of(provider, CircuitBreaker(fallback={"model": "spare"}))
    found = [await outcome_of(agent, hub, clock) for _ in range(3)]
    # The second call is under way when the breaker opens: its next attempt is made with the other model.
    assert found == ["model_error", "from the spare", "from the spare"]
    assert provider.asked == 5
    last = (await hub.channels())[-1]
    [started] = await data_in(hub, last.channel_id, EV_CALL_STARTED)
    assert (started["model"], started["via"]) == ("far", "spare")


async def test_a_retry_that_waits_while_the_breaker_opens_does_not_leave(hub: Hub, clock: ManualClock) -> None:
    asked: list[str] = []

    async def far(request: Request) -> Reply:
        asked.append(request.messages[-1][1])
        raise ModelUnavailable("later", status=503, retry_after=20 if "patient" in asked[-1] else None)

    agent = Agent("bob", model=far, guards=[CircuitBreaker()])
    patient = asyncio.create_task(agent.invoke("patient", hub=hub))
    await wait_until(lambda: len(asked) == 1)
    await let_others_run(50)
    assert await outcome_of(agent, hub, clock) == "model_error"
    assert await outcome_of(agent, hub, clock) == "denied:breaker_open"
    assert (await changes_in(hub, LEDGER), len(asked)) == (FIVE_FAILURES, 5)
    await clock.advance(20)
    assert (await soon(patient)).stopped == "denied:breaker_open"
    assert asked.count("patient") == 1


async def test_a_fallback_text_is_said(hub: Hub, clock: ManualClock) -> None:
    provider = Provider()
    agent = agent_of(provider, CircuitBreaker(fallback={"say": "Please try again later."}))
    await open_breaker(hub, clock, agent)
    reply = await soon(agent.invoke("Go", hub=hub))
    assert (reply.text, reply.stopped) == ("Please try again later.", "denied:breaker_open")
    [failed] = await data_in(hub, reply.channel_id, EV_CALL_FAILED)
    assert "it may be tried again in" in str(failed["error"])


async def test_a_person_is_asked_where_the_fallback_is_to_escalate(hub: Hub, clock: ManualClock) -> None:
    provider = Provider()
    agent = agent_of(provider, CircuitBreaker(fallback="escalate"))
    await open_breaker(hub, clock, agent)
    ann = await hub.register("ann")
    await hub.register(agent)
    channel = await ann.open(target="bob", knobs={"guards": agent.guards})
    await channel.send("Go")
    await wait_until(lambda: any(turn.waits_for_person for turn in channel.state.owed))
    [asked] = await data_in(hub, channel.channel_id, EV_APPROVAL_REQUESTED)
    assert "model:far is not called now" in str(asked["why"])


async def test_a_call_that_a_person_approves_tries_the_model(hub: Hub, clock: ManualClock) -> None:
    provider = Provider()
    agent = agent_of(provider, CircuitBreaker(fallback="escalate"))
    await open_breaker(hub, clock, agent)
    provider.down = False
    ann, dana = await hub.register("ann"), await hub.register("dana", kind="human")
    await hub.register(agent)
    channel = await ann.open(target=["bob", "dana"], type="discussion", knobs={"guards": agent.guards})
    await channel.send("Go")
    await wait_until(lambda: any(turn.waits_for_person for turn in channel.state.owed))
    [approval] = await hub.approvals(channel.channel_id)
    await dana.decide(approval.approval_id, "approve")
    await wait_until(lambda: not channel.state.owed)
    assert provider.asked == 6
    assert [target for _, _, target in await changes_in(hub, LEDGER)] == ["open", "half_open", "closed"]
    assert (await data_in(hub, LEDGER, EV_BREAKER_CHANGED))[1]["reason"] == "approved"


async def test_a_model_that_was_stopped_is_for_a_person_to_try(hub: Hub, clock: ManualClock) -> None:
    """Whatever the guard says: nothing else opens it again."""
    provider = Provider()
    agent = agent_of(provider, CircuitBreaker(max_trips=1))
    await open_breaker(hub, clock, agent)
    await clock.advance(33)
    assert await outcome_of(agent, hub, clock) == "denied:breaker_open"
    assert (await changes_in(hub, LEDGER))[-1] == ("model:far", "open", "stopped")
    await clock.advance(10**5)
    ann = await hub.register("ann")
    channel = await ann.open(target="bob", knobs={"guards": agent.guards})
    await channel.send("Go")
    await wait_until(lambda: any(turn.waits_for_person for turn in channel.state.owed))
    [asked] = await data_in(hub, channel.channel_id, EV_APPROVAL_REQUESTED)
    assert "a person must allow the next call" in str(asked["why"])


def test_the_regulated_tier_refuses_another_model() -> None:
    guard = CircuitBreaker(fallback={"model": "spare"})
    with pytest.raises(RulesInvalid, match="the regulated tier does not change models; give 'escalate'"):
        Agent("bob", model=ScriptedModel([]), guards=[guard], tier="regulated")
    with pytest.raises(RulesInvalid, match="transport of breaker is 'unlimited', which the regulated tier refuses"):
        Agent("bob", model=ScriptedModel([]), guards=[CircuitBreaker(transport="unlimited")], tier="regulated")
    assert CircuitBreaker().for_tier("regulated").fallback == "escalate"
    assert CircuitBreaker().for_tier("batch").fallback == "escalate"
    assert CircuitBreaker().for_tier("interactive").fallback is None


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"transport": 0}, "transport of breaker is 0; give a number, 1 or more, or 'unlimited'"),
        ({"schema": True}, "schema of breaker is True"),
        ({"cooldown": 0}, "cooldown of breaker is 0; give a number above 0"),
        ({"error_share": 1.5}, "error_share of breaker is 1.5; give a number above 0, at most 1"),
        ({"fallback": "spare"}, "fallback of breaker is 'spare'; give"),
        ({"fallback": {"model": ""}}, "fallback of breaker is"),
        ({"fallback": {"model": "a", "say": "b"}}, "fallback of breaker is"),
    ],
)
def test_what_cannot_be_is_refused_with_the_field_and_the_fix(fields: dict[str, object], why: str) -> None:
    with pytest.raises(RulesInvalid, match=why):
        CircuitBreaker(**fields)  # type: ignore[arg-type]


async def test_calls_under_way_when_a_breaker_opens_do_not_close_it(hub: Hub, clock: ManualClock) -> None:
    """A late success of an earlier epoch changes nothing, neither while open nor while another call tries."""
    gate = asyncio.Event()

    async def far(request: Request) -> Reply:
        if "slow" in request.messages[-1][1]:
            await gate.wait()
            return says("at last")
        raise ModelUnavailable("down")

    agent = Agent("bob", model=far, guards=[CircuitBreaker()])
    late = asyncio.create_task(agent.invoke("slow", hub=hub))
    await let_others_run()
    await open_breaker(hub, clock, agent)
    gate.set()
    assert (await soon(late)).text == "at last"
    assert await changes_in(hub, LEDGER) == FIVE_FAILURES
