"""Retries: how many attempts, how many retries all together, and what is left of both after a restart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon import Agent, Deny, Envelope, Hub, Limits, ModelRefused, Reply, Request, RulesInvalid, State
from antiphon.core.codec import from_json, to_json
from antiphon.core.envelope import Instant, add_seconds, seconds_between
from antiphon.core.errors import StoreUnavailable
from antiphon.core.event_data import data_of
from antiphon.core.execution_events import EV_CALL_RETRIED, EV_CALL_STARTED, CallRetried, CallStarted
from antiphon.core.guard import LedgerEntry
from antiphon.core.protection_events import EV_RETRY_CHARGED, EV_RETRY_DENIED
from antiphon.engines import model_calls
from antiphon.guards.retry_budget import RetryBuckets, RetryBudget, RetryLedger, RetryMemory
from antiphon.store.protocol import Appended
from antiphon.testing import ManualClock, check_guard
from tests.guards.breaker_desk import Provider, data_in, outcome_of
from tests.guards.breaker_play import BEGAN
from tests.support.kept_store import KeptStore
from tests.support.waiting import let_others_run, soon, wait_until

LEDGER = "system:retries"
BUDGET = RetryBudget()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def hub(clock: ManualClock) -> AsyncIterator[Hub]:
    async with Hub.open("memory:", clock=clock) as hub:
        yield hub


class Reporter:
    """A channel that makes calls of one provider, and asks the ledger about its retries."""

    def __init__(self, name: str, guard: RetryBudget = BUDGET) -> None:
        self.name, self.guard = name, guard
        self.memory, self.index = RetryMemory(), 0

    def first_attempt(self, at: Instant, model: str = "far:away") -> None:
        self.index += 1
        started = CallStarted("1/bob", self.index, "model", "d", model=model)
        envelope = Envelope(event_type=EV_CALL_STARTED, event_data=data_of(started), created_at=at)
        self.memory = self.guard.evolve(self.memory, envelope)

    def entry(self, at: Instant, *, attempt: int = 1, failure: str = "transport") -> LedgerEntry:
        retried = CallRetried("1/bob", self.index, attempt, "down", 0.1, failure=failure)  # type: ignore[arg-type]
        draft = Envelope(event_type=EV_CALL_RETRIED, event_data=data_of(retried), created_at=at)
        [entry] = self.guard.ask(self.memory, State(channel_id=self.name), draft)
        return entry


class Ledger:
    """The ledger of retries, without a hub."""

    def __init__(self) -> None:
        self.guard, self.memory = RetryLedger(), RetryBuckets()
        self.balances: list[object] = []

    def pays(self, entry: LedgerEntry, at: Instant) -> bool:
        offer = Envelope(event_type=entry.event_type, event_data=entry.data, created_at=at)
        answered = self.guard.answer(self.memory, State(), offer)
        if isinstance(answered, Deny):
            assert answered.reason == "retry_budget"
            return False
        [fact] = answered
        self.balances.append(fact.data.get("balance", 0))
        recorded = Envelope(event_type=fact.event_type, event_data=fact.data, created_at=at)
        self.memory = self.guard.evolve(self.memory, recorded)
        return True


def test_a_new_bucket_holds_ten_retries_and_a_tenth_for_each_first_attempt() -> None:
    ledger, channel = Ledger(), Reporter("a")
    for _ in range(10):
        channel.first_attempt(BEGAN)
    paid = [ledger.pays(channel.entry(BEGAN), BEGAN) for _ in range(13)]
    assert paid == [True] * 11 + [False] * 2
    assert ledger.balances == [1000 * left for left in range(10, -1, -1)]


def test_it_fills_with_time_up_to_its_capacity() -> None:
    ledger, channel = Ledger(), Reporter("a")
    assert [ledger.pays(channel.entry(BEGAN), BEGAN) for _ in range(11)] == [True] * 10 + [False]
    assert not ledger.pays(channel.entry(BEGAN), add_seconds(BEGAN, 9.9))
    assert ledger.pays(channel.entry(BEGAN), add_seconds(BEGAN, 10))
    later = add_seconds(BEGAN, 10_000)
    assert [ledger.pays(channel.entry(later), later) for _ in range(21)] == [True] * 20 + [False]


def test_a_retry_after_a_timeout_costs_two() -> None:
    ledger, channel = Ledger(), Reporter("a")
    assert [ledger.pays(channel.entry(BEGAN, failure="timeout"), BEGAN) for _ in range(6)] == [True] * 5 + [False]


def test_first_attempts_are_credited_once_however_often_they_are_reported() -> None:
    ledger, one, other = Ledger(), Reporter("a"), Reporter("b")
    for _ in range(20):
        one.first_attempt(BEGAN)
    assert ledger.pays(one.entry(BEGAN), BEGAN)
    assert ledger.pays(one.entry(BEGAN), BEGAN)
    assert ledger.balances == [11_000, 10_000]
    for _ in range(10):
        other.first_attempt(BEGAN)
    one.first_attempt(BEGAN)
    assert ledger.pays(other.entry(BEGAN), BEGAN)
    assert ledger.pays(one.entry(BEGAN), BEGAN)
    assert ledger.balances[2:] == [10_000, 9_100]


def test_first_attempts_of_long_ago_are_not_credited() -> None:
    ledger, channel = Ledger(), Reporter("a")
    for _ in range(1000):
        channel.first_attempt(BEGAN)
    later = add_seconds(BEGAN, 61)
    assert ledger.pays(channel.entry(later), later)
    assert ledger.balances == [9000]


def test_providers_have_buckets_of_their_own() -> None:
    ledger, channel = Ledger(), Reporter("a")
    channel.first_attempt(BEGAN, "far:one")
    assert [ledger.pays(channel.entry(BEGAN), BEGAN) for _ in range(11)] == [True] * 10 + [False]
    channel.first_attempt(BEGAN, "far:another")
    assert not ledger.pays(channel.entry(BEGAN), BEGAN)
    channel.first_attempt(BEGAN, "near")
    assert ledger.pays(channel.entry(BEGAN), BEGAN)
    assert list(ledger.memory.buckets) == ["far", "near"]


Step = tuple[float, int, int, int, bool]
STEPS = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.001, 0.4, 1.0, 3.7, 20.0, 61.0]),
        st.integers(0, 2),
        st.integers(0, 30),
        st.integers(0, 12),
        st.booleans(),
    ),
    max_size=60,
)


@given(STEPS)
def test_in_any_minute_retries_are_few(steps: Sequence[Step]) -> None:
    """At most 20 + 6 + a tenth of the first attempts, whoever reports them and whenever."""
    ledger, channels = Ledger(), [Reporter(name) for name in "abc"]
    at, firsts, retries = BEGAN, [], []
    for seconds, place, first_attempts, wanted, timeout in steps:
        at = add_seconds(at, seconds)
        for _ in range(first_attempts):
            channels[place].first_attempt(at)
            firsts.append(at)
        for _ in range(wanted):
            if ledger.pays(channels[place].entry(at, failure="timeout" if timeout else "transport"), at):
                retries.append(at)
    for first in retries:
        within = [each for each in retries if 0 <= seconds_between(first, each) <= 60]
        begun = [each for each in firsts if 0 <= seconds_between(first, each) <= 60]
        assert len(within) <= 20 + 6 + 0.1 * len(begun) + 1e-6


@given(STEPS)
def test_a_bucket_that_is_read_back_pays_the_same(steps: Sequence[Step]) -> None:

    kept, restarted, channel = Ledger(), Ledger(), Reporter("a")
    at = BEGAN
    for seconds, _, first_attempts, wanted, _ in steps[:20]:
        at = add_seconds(at, seconds)
        for _ in range(first_attempts):
            channel.first_attempt(at)
        for _ in range(wanted):
            restarted.memory = from_json(to_json(restarted.memory), RetryBuckets)
            assert kept.pays(channel.entry(at), at) == restarted.pays(channel.entry(at), at)
    assert kept.balances == restarted.balances


@pytest.mark.parametrize(
    ("tier", "said", "limits", "asked"),
    [
        (None, None, None, 3),
        ("interactive", None, None, 3),
        ("batch", None, None, 5),
        ("regulated", None, None, 3),
        ("batch", 2, None, 2),
        ("batch", None, 2, 2),
        ("batch", None, 1, 1),
        ("interactive", None, 9, 3),
        (None, "unlimited", 4, 4),
    ],
)
async def test_attempts_are_those_of_the_tier_unless_something_else_is_said(
    hub: Hub, clock: ManualClock, tier: str | None, said: object, limits: int | None, asked: int
) -> None:
    provider = Provider()
    guards = [{"name": "breaker", "transport": 99, "error_share": 1.0, "least_calls": 99}]
    agent = Agent(
        "bob",
        model=provider.named("far"),
        guards=[*guards, {"name": "retry_budget", "attempts": said}] if said or tier is None else guards,  # type: ignore[list-item]
        tier=tier,  # type: ignore[arg-type]
        limits=Limits() if limits is None else Limits(model_attempts=limits),
    )
    await outcome_of(agent, hub, clock)
    assert provider.asked == asked


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"attempts": 0}, "attempts of retry_budget is 0; give a number, 1 or more, or 'unlimited'"),
        ({"attempts": 2.5}, "attempts of retry_budget is 2.5"),
        ({"capacity": -1}, "capacity of retry_budget is -1; give a number, 0 or more"),
        ({"per_call": True}, "per_call of retry_budget is True"),
        ({"per_second": float("inf")}, "per_second of retry_budget is inf"),
    ],
)
def test_what_cannot_be_is_refused_with_the_field_and_the_fix(fields: dict[str, object], why: str) -> None:
    with pytest.raises(RulesInvalid, match=why):
        RetryBudget(**fields)  # type: ignore[arg-type]
    with pytest.raises(RulesInvalid, match="the regulated tier refuses"):
        RetryBudget(attempts="unlimited").for_tier("regulated")


async def test_an_empty_bucket_denies_the_retry_and_says_so(hub: Hub, clock: ManualClock) -> None:
    provider = Provider()
    agent = Agent("bob", model=provider.named("far"), guards=[RetryBudget(start=2, per_second=0)])
    assert [await outcome_of(agent, hub, clock) for _ in range(2)] == ["model_error", "denied:retry_budget"]
    assert provider.asked == 4
    denied = [each for row in await hub.channels() for each in await data_in(hub, row.channel_id, EV_RETRY_DENIED)]
    assert [(each["reason"], each["model"]) for each in denied] == [("bucket", "far")]


async def test_what_cannot_help_is_not_retried_and_costs_nothing(hub: Hub) -> None:
    async def far(request: Request) -> Reply:
        raise ModelRefused("wrong key", status=401)

    agent = Agent("bob", model=far, guards=[RetryBudget()])
    with pytest.raises(Exception, match="wrong key"):
        await soon(agent.invoke("Go", hub=hub))
    assert await hub.core.store.head(LEDGER) == 0


async def test_a_model_that_never_fails_costs_no_write(hub: Hub, clock: ManualClock) -> None:
    agent = Agent("bob", model=Provider(down=False).named("far"), guards=[RetryBudget()])
    for _ in range(3):
        assert await outcome_of(agent, hub, clock) == "here"
    assert await hub.core.store.head(LEDGER) == 0


async def test_a_restart_continues_from_the_balance(clock: ManualClock) -> None:
    store, provider = KeptStore(clock=clock), Provider()
    agent = Agent("bob", model=provider.named("far"), guards=[RetryBudget(start=3, per_second=0, per_call=0)])
    found = []
    for _ in range(3):
        hub = await Hub.over(store, clock=clock)
        found.append(await outcome_of(agent, hub, clock))
        await hub.close()
    assert found == ["model_error", "denied:retry_budget", "denied:retry_budget"]
    assert provider.asked == 3 + 2 + 1
    hub = await Hub.over(store, clock=clock, engine=None)
    assert [each.get("balance", 0) for each in await data_in(hub, LEDGER, EV_RETRY_CHARGED)] == [2000, 1000, 0]
    await hub.close()


async def test_two_hubs_pay_from_one_bucket(clock: ManualClock) -> None:
    store = KeptStore(clock=clock)
    hubs = [await Hub.over(store, clock=clock, engine=None) for _ in range(2)]
    channels = [Reporter(f"c{number}") for number in range(2)]

    async def pay(number: int) -> bool:
        place = number % 2
        entry = channels[place].entry(clock.now())
        return await hubs[place].core.ledgers.offer(entry, run="", key=f"retry {number}") is None

    paid = await soon(asyncio.gather(*map(pay, range(30))))
    assert sum(paid) == 10
    for hub in hubs:
        await hub.close()


class NoLedgerStore(KeptStore):
    """A store whose ledger of retries cannot be written."""

    async def append(
        self, channel: str, batch: Sequence[Envelope], *, expected: int, due: Instant | None = None
    ) -> Appended:
        if channel == LEDGER:
            raise StoreUnavailable("away")
        return await super().append(channel, batch, expected=expected, due=due)


async def test_while_the_ledger_cannot_be_asked_nothing_is_retried(clock: ManualClock) -> None:
    hub, provider = await Hub.over(NoLedgerStore(clock=clock), clock=clock), Provider()
    agent = Agent("bob", model=provider.named("far"), guards=[RetryBudget()])
    assert await outcome_of(agent, hub, clock) == "denied:retry_budget"
    assert provider.asked == 1
    await hub.close()


async def test_the_delay_is_drawn_once_and_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that dies in the delay leaves its record: the next one draws nothing, and asks again."""
    clock, provider = ManualClock(), Provider()
    store = KeptStore(clock=clock)
    agent = Agent("bob", model=provider.named("far"), guards=[RetryBudget()])
    hub = await Hub.over(store, clock=clock)
    asking = asyncio.create_task(agent.invoke("Go", hub=hub, thread_id="t", message_id="m"))
    channel = await agent.channel("t", hub)

    await wait_until(lambda: provider.asked == 1)
    await let_others_run(100)
    recorded = await data_in(hub, channel.channel_id, EV_CALL_RETRIED)
    assert len(recorded) == 1
    await hub.close()
    await asyncio.gather(asking, return_exceptions=True)
    monkeypatch.setattr(model_calls, "Random", _no_dice)
    provider.down = False
    hub = await Hub.over(store, clock=clock)
    assert (await soon(agent.invoke("Go", hub=hub, thread_id="t", message_id="m"))).text == "here"
    assert await data_in(hub, channel.channel_id, EV_CALL_RETRIED) == recorded
    assert 0 <= float(str(recorded[0]["delay"])) <= 0.5
    await hub.close()


def _no_dice(key: str) -> object:
    raise AssertionError("a recorded delay is not drawn again")


async def test_delays_double_within_their_bounds_and_end_at_the_deadline(hub: Hub, clock: ManualClock) -> None:
    delays = [await _delays(hub, clock, f"bob{number}") for number in range(20)]
    for found in delays:
        assert all(0 <= delay <= min(20.0, 0.5 * 2**place) for place, delay in enumerate(found))
    assert max(found[4] for found in delays) > 4
    assert len({tuple(found) for found in delays}) == len(delays)


async def _delays(hub: Hub, clock: ManualClock, name: str) -> list[float]:
    provider = Provider()
    agent = Agent(name, model=provider.named(name), guards=[RetryBudget(attempts=6)], limits=Limits(model_seconds=100))
    await outcome_of(agent, hub, clock, thread_id="t")
    channel = await agent.channel("t", hub)
    return [float(str(each["delay"])) for each in await data_in(hub, channel.channel_id, EV_CALL_RETRIED)]


def test_guards_of_retries_are_sound_and_bounded() -> None:
    check_guard(RetryBudget())
    channel = Reporter("a")
    for number in range(1000):
        channel.first_attempt(add_seconds(BEGAN, number))
    assert len(channel.memory.providers) <= 256
    assert len(channel.memory.firsts["far"].rows) <= 60
