"""The monitor of cost velocity: its windows, what counts in them, and what follows."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon import Ask, Deny, RulesInvalid
from antiphon.core.codec import as_type, plain_data, to_json
from antiphon.core.execution_events import EV_APPROVAL_REQUESTED
from antiphon.core.protection_events import EV_COST_EXCEEDED, EV_RUN_CHARGED, EV_RUN_SETTLED
from antiphon.guards.cost_velocity import CostVelocityMonitor
from antiphon.guards.cost_windows import CostWindows
from antiphon.testing import check_guard
from tests.guards.counted import Counting, entry, failed, finished, said, started

DOLLAR = 1_000_000
HOURLY = CostVelocityMonitor(dollars_per_hour="10")


def spending(monitor: CostVelocityMonitor, *calls: tuple[float, int]) -> Counting[CostVelocityMonitor]:
    """With calls that were made at these times, and cost so many dollars."""
    counting = Counting(monitor)
    for index, (seconds, dollars) in enumerate(calls):
        counting.hear(started(index, seconds=seconds), finished(index, cost=dollars * DOLLAR, seconds=seconds))
    return counting


@pytest.mark.parametrize(
    ("most", "answer"),
    [(3 * DOLLAR, "allow"), (3 * DOLLAR + 1, "deny"), (0, "allow")],
)
def test_equal_to_the_ceiling_is_within_it(most: int, answer: str) -> None:
    counting = spending(HOURLY, (0, 4), (1800, 3))
    assert counting.answer(started(9, most=most, seconds=1900)) == answer
    assert counting.answer(started(9, tool="look", seconds=1900)) == "allow"


def test_what_leaves_the_window_counts_no_more() -> None:
    counting = spending(HOURLY, (30, 4), (1800, 6))
    call = {"most": 4 * DOLLAR}
    assert counting.answer(started(9, seconds=3590, **call)) == "deny"  # type: ignore[arg-type]
    assert counting.answer(started(9, seconds=3600, **call)) == "allow"  # type: ignore[arg-type]
    assert counting.answer(started(9, most=4 * DOLLAR + 1, seconds=5390)) == "deny"
    assert counting.answer(started(9, most=10 * DOLLAR, seconds=5400)) == "allow"


def test_a_minute_has_seconds() -> None:
    counting = Counting(CostVelocityMonitor(tokens_per_minute=1000, dollars_per_minute="unlimited"))
    for index, seconds in enumerate((0.0, 0.9, 30.0)):
        counting.hear(started(index, seconds=seconds), finished(index, tokens=300, seconds=seconds))
    assert counting.answer(started(9, tokens=101, seconds=59.9)) == "deny"
    assert counting.answer(started(9, tokens=700, seconds=60)) == "allow"
    assert counting.answer(started(9, tokens=701, seconds=60)) == "deny"
    assert counting.answer(started(9, tokens=1000, seconds=90)) == "allow"


def test_what_is_reserved_counts_until_its_outcome() -> None:
    counting = Counting(HOURLY)
    assert [counting.try_call(started(index, most=4 * DOLLAR)) for index in range(4)] == [True, True, False, False]
    assert counting.try_call(started(0, most=4 * DOLLAR, seconds=1))  # after a crash: the same call
    counting.hear(finished(0, cost=DOLLAR, seconds=2))
    assert counting.try_call(started(2, most=5 * DOLLAR, seconds=3))
    counting.hear(failed(2, failure="transport", seconds=4), started(3, most=5 * DOLLAR, seconds=4))
    assert counting.answer(started(4, most=1, seconds=5)) == "deny"


def test_a_lost_call_counts_when_its_time_is_over_and_leaves_the_window() -> None:
    counting = Counting(HOURLY)
    counting.hear(started(0, most=10 * DOLLAR))
    assert counting.answer(started(1, most=1, seconds=119)) == "deny"
    assert counting.answer(started(1, most=1, seconds=3600)) == "deny"  # its time was over after two minutes
    assert counting.answer(started(1, most=1, seconds=3720)) == "allow"
    counting.hear(started(1, seconds=4000), finished(0, cost=10 * DOLLAR, seconds=4001))
    assert counting.answer(started(2, most=10 * DOLLAR, seconds=4001)) == "allow"


def test_a_call_that_is_denied_when_it_is_started_again_counts_in_full() -> None:
    counting = Counting(HOURLY)
    counting.hear(started(0, most=8 * DOLLAR), started(1, most=DOLLAR), finished(1, cost=9 * DOLLAR))
    assert counting.answer(started(0, most=8 * DOLLAR, seconds=5)) == "allow"
    assert counting.answer(started(0, most=9 * DOLLAR, seconds=5)) == "deny"
    counting = Counting(HOURLY)
    counting.hear(started(0, most=8 * DOLLAR), started(0, most=8 * DOLLAR), failed(0, denied="policy"))
    assert counting.answer(started(2, most=3 * DOLLAR, seconds=9)) == "deny"
    counting.hear(started(3, most=8 * DOLLAR), failed(3, denied="policy"))
    assert counting.answer(started(4, most=2 * DOLLAR, seconds=9)) == "allow"


def test_people_who_speak_change_nothing() -> None:
    counting = spending(HOURLY, (0, 10))
    counting.hear(said("ann", 10))
    assert counting.answer(started(9, most=1, seconds=20)) == "deny"


def test_agents_have_each_their_own_windows_with_the_scope_agent() -> None:
    counting = Counting(CostVelocityMonitor(dollars_per_hour="10", scope="agent"))
    counting.hear(started(0, most=10 * DOLLAR))
    assert counting.answer(started(1, most=1)) == "deny"
    assert counting.answer(started(1, most=10 * DOLLAR, turn="18/cyd")) == "allow"


def test_tiers_differ_in_the_ceiling_and_in_what_follows() -> None:
    for tier, dollars, answer in (("interactive", 10, "deny"), ("batch", 50, "ask"), ("regulated", 25, "ask")):
        counting = Counting(CostVelocityMonitor().for_tier(tier))
        assert counting.answer(started(0, most=dollars * DOLLAR)) == "allow"
        assert counting.answer(started(0, most=dollars * DOLLAR + 1)) == answer
    why = counting.why(started(0, most=26 * DOLLAR))
    expected = "cost velocity: the call may cost $26.00, and $0.00 of $25.00 are spent or reserved within an hour"
    assert why == Ask(expected, ("finance",), "cost_velocity")
    task = Counting(CostVelocityMonitor().for_tier("batch"), task=True)
    assert task.answer(started(0, most=51 * DOLLAR)) == "ask"
    named = CostVelocityMonitor(tokens_per_minute=5).for_tier("batch")
    assert [(each.unit, each.window, each.most) for each in named.ceilings] == [
        ("micro", 3600, 50 * DOLLAR),
        ("tokens", 60, 5),
    ]
    assert [each.most for each in CostVelocityMonitor().ceilings] == [10 * DOLLAR]
    assert [each.most for each in CostVelocityMonitor(tokens_per_hour=7).ceilings] == [7]


def test_what_is_exceeded_is_recorded_for_operators() -> None:
    counting = spending(HOURLY, (0, 6))
    counting.hear(started(1, most=3 * DOLLAR, seconds=1), started(2, most=2 * DOLLAR, seconds=2))
    denied = failed(2, denied="budget", guard="cost_velocity", seconds=2)
    counting.hear(denied)
    told = {"scope": "run", "window_s": 3600, "unit": "micro", "spent": 6 * DOLLAR, "reserved": 3 * DOLLAR}
    about = {"ceiling": 10 * DOLLAR, "need": 2 * DOLLAR, "turn": "17/bob", "index": 2}
    [fact] = counting.notices(denied)
    assert (fact.event_type, fact.audience) == (EV_COST_EXCEEDED, ("hub:operators",))
    assert fact.data == {**told, **about, "action": "deny"}
    asked = entry(
        EV_APPROVAL_REQUESTED, 2, turn="17/bob", index=2, name="model", kind="model", args={}, most=2 * DOLLAR
    )
    assert counting.notices(asked) == []
    asked.event_data["guard"] = "cost_velocity"
    assert [fact.data for fact in counting.notices(asked)] == [{**told, **about, "action": "ask"}]
    assert counting.notices(failed(2, denied="budget", guard="budget")) == counting.notices(finished(2)) == []


def test_tasks_count_in_the_run() -> None:
    root = Counting(HOURLY)
    charge = {"channel": "t1", "turn": "3/bob", "index": 0, "kind": "model", "agent": "bob", "most": 8 * DOLLAR}
    assert len(root.offered(entry(EV_RUN_CHARGED, **charge))) == 1  # type: ignore[arg-type]
    assert root.offered(entry(EV_RUN_CHARGED, **charge)) == ()
    assert root.answer(started(0, most=3 * DOLLAR)) == "deny"
    over = root.offered(entry(EV_RUN_CHARGED, **{**charge, "channel": "t2"}))
    assert isinstance(over, Deny)
    assert over.detail.startswith("cost velocity: ")
    approved = entry(EV_RUN_CHARGED, **{**charge, "channel": "t2", "most": 1, "approved": True})
    assert len(root.offered(approved)) == 1  # type: ignore[arg-type]
    about = {"channel": "t1", "turn": "3/bob", "index": 0, "cost": DOLLAR}
    assert len(root.offered(entry(EV_RUN_SETTLED, **about))) == 1  # type: ignore[arg-type]
    assert root.offered(entry(EV_RUN_SETTLED, **about)) == ()
    assert root.answer(started(0, most=3 * DOLLAR)) == "allow"
    assert root.offered(entry(EV_RUN_CHARGED, **{**charge, "channel": "t3", "kind": "tool"})) == ()


def test_only_tasks_and_tenants_ask_a_ledger() -> None:
    call, memory = started(0, most=5, tokens=7), CostWindows()
    root, task = Counting(HOURLY), Counting(HOURLY, task=True)
    assert root.guard.ask(memory, root.state, call) == root.guard.settle(memory, root.state, finished(0)) == ()
    [asked] = task.guard.ask(memory, task.state, call)
    assert (asked.ledger, asked.data["most"], asked.data["tokens"]) == ("run", 5, 7)
    assert task.guard.ask(memory, task.state, started(1, tool="look")) == ()
    tenant = Counting(CostVelocityMonitor(dollars_per_hour="7", tokens_per_minute=9, scope="tenant", then="ask"))
    [asked] = tenant.guard.ask(memory, tenant.state, call)
    assert (asked.ledger, asked.data["limits"]) == ("spend", {"micro/3600": 7 * DOLLAR, "tokens/60": 9})
    assert asked.otherwise is not None
    assert asked.otherwise(Deny("budget", "no")) == Ask("no", (), "cost_velocity")


def test_bad_values_are_refused_with_what_to_give_instead() -> None:
    for fields, why in (
        ({"dollars_per_hour": 2.5}, "dollars_per_hour of cost_velocity is 2.5; give a text"),
        ({"dollars_per_minute": "x"}, "dollars_per_minute of cost_velocity is 'x'"),
        ({"tokens_per_minute": -1}, "tokens_per_minute of cost_velocity is -1"),
        ({"tokens_per_hour": "5"}, "tokens_per_hour of cost_velocity is '5'"),
        ({"scope": "all"}, "scope of cost_velocity is 'all'; give one of 'run', 'agent', 'tenant'"),
        ({"then": "warn"}, "then of cost_velocity is 'warn'"),
        ({"scope": "agent"}, "the cost_velocity with scope 'agent' has no ceiling"),
    ):
        with pytest.raises(RulesInvalid, match=why):
            CostVelocityMonitor(**fields)  # type: ignore[arg-type]
    with pytest.raises(RulesInvalid, match="dollars_per_hour of cost_velocity is 'unlimited', which the tier"):
        CostVelocityMonitor(dollars_per_hour="unlimited").for_tier("regulated")


def test_memory_stays_small() -> None:
    counting = Counting(CostVelocityMonitor(dollars_per_hour="unlimited", scope="agent"))
    for number in range(5000):
        turn = f"{number}/agent-{number % 300}"
        counting.hear(started(0, turn=turn, seconds=number * 7), finished(0, cost=1, turn=turn, seconds=number * 7))
    assert len(to_json(counting.memory)) < 25_000


def test_it_is_a_guard() -> None:
    check_guard(HOURLY)
    check_guard(CostVelocityMonitor().for_tier("regulated"))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 900), st.integers(0, 5), st.booleans()), max_size=40), st.data())
def test_windows_agree_with_a_list_of_all_that_was_spent(
    steps: list[tuple[int, int, bool]], data: st.DataObject
) -> None:
    """A reference that forgets nothing: a step counts while less than sixty steps have begun after it."""
    counting, now = Counting(CostVelocityMonitor(dollars_per_hour=10, tokens_per_minute=10)), 0
    spent: list[tuple[int, int]] = []
    for index, (later, amount, crash) in enumerate(steps):
        now += later
        within_hour = sum(cost for second, cost in spent if second // 60 > now // 60 - 60)
        within_minute = sum(cost for second, cost in spent if second > now - 60)
        fits = within_hour + amount <= 10 and within_minute + amount <= 10
        call = started(index, most=amount * DOLLAR, tokens=amount, seconds=now)
        assert counting.try_call(call) is fits
        if fits:
            cost = data.draw(st.integers(0, amount))
            counting.hear(finished(index, cost=cost * DOLLAR, tokens=cost, seconds=now))
            spent.append((now, cost))
        if crash:
            counting.memory = as_type(plain_data(counting.memory), CostWindows)
