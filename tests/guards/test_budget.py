"""The budget as a guard: what it counts, denies and asks about, and what crashes and late results change."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon import Ask, Deny, RulesInvalid
from antiphon.core.codec import as_type, plain_data
from antiphon.core.envelope import Envelope
from antiphon.core.execution_events import EV_APPROVAL_REQUESTED
from antiphon.core.protection_events import EV_BUDGET_CHANGED, EV_RUN_CHARGED, EV_RUN_SETTLED
from antiphon.guards.budget import Budget
from antiphon.guards.named_guards import guard_to_data, guards_of, inherit_guards
from antiphon.guards.spending import Spending
from antiphon.testing import check_guard
from tests.guards.counted import (
    Counting,
    all_answers,
    at,
    created,
    entry,
    failed,
    finished,
    said,
    started,
)

CENT = 10_000
EXPIRED = entry(EV_BUDGET_CHANGED, op="expire", scope="run", turn="17/bob")
"""What is recorded when the time of call 0 is over."""


def spent(counting: Counting[Budget], who: str = "") -> int:
    assert isinstance(counting.memory, Spending)
    return counting.memory.run[who].micro if who in counting.memory.run else 0


# What fits


@pytest.mark.parametrize(
    ("budget", "call", "allowed"),
    [
        (Budget(dollars="1"), {"most": 34 * CENT}, 2),
        (Budget(dollars="1.02"), {"most": 34 * CENT}, 3),  # exactly the cap
        (Budget(dollars="1.019999"), {"most": 34 * CENT}, 2),
        (Budget(dollars=0), {"most": 1}, 0),
        (Budget(dollars="unlimited"), {"most": 10**12}, 9),
        (Budget(tokens=900), {"tokens": 300}, 3),
        (Budget(tokens=899), {"tokens": 300}, 2),
        (Budget(model_calls=4), {"most": CENT}, 4),
        (Budget(model_calls=0), {}, 0),
        (Budget(tool_calls=5), {"tool": "look"}, 5),
        (Budget(tool_calls=0), {"most": CENT}, 9),
        (Budget(model_calls=0, tokens=0, dollars=0), {"tool": "look"}, 9),
        (Budget(dollars="0.02", model_calls=9), {"most": CENT}, 2),
    ],
)
def test_calls_that_leave_at_once_stay_within_the_cap(budget: Budget, call: dict[str, object], allowed: int) -> None:
    drafts = [started(index, **call) for index in range(9)]  # type: ignore[arg-type]
    assert all_answers(Counting(budget), drafts) == [True] * allowed + [False] * (9 - allowed)


def test_what_a_call_has_not_used_is_free_again() -> None:
    counting = Counting(Budget(dollars="1", tokens=1000))
    assert counting.try_call(started(0, most=90 * CENT, tokens=900))
    assert counting.answer(started(1, most=11 * CENT)) == counting.answer(started(1, tokens=101)) == "deny"
    counting.hear(finished(0, cost=20 * CENT, tokens=50))
    assert counting.answer(started(1, most=80 * CENT, tokens=950)) == "allow"
    assert counting.answer(started(1, most=80 * CENT + 1)) == counting.answer(started(1, tokens=951)) == "deny"


def test_more_than_was_reserved_is_booked_as_well() -> None:
    counting = Counting(Budget(dollars="1"))
    assert counting.try_call(started(0, most=10 * CENT))
    counting.hear(finished(0, cost=130 * CENT))
    assert spent(counting) == 130 * CENT
    assert counting.answer(started(1)) == "deny"  # though it may cost nothing
    assert counting.answer(started(1, tool="look")) == "allow"


def test_a_failed_call_counts_with_what_it_has_cost() -> None:
    counting = Counting(Budget(dollars="1", model_calls=3))
    assert all_answers(counting, [started(index, most=30 * CENT) for index in range(3)]) == [True] * 3
    counting.hear(failed(0, failure="transport"), failed(1, failure="timeout", cost=30 * CENT), finished(2))
    assert spent(counting) == 30 * CENT
    assert counting.answer(started(3)) == "deny"  # it was called three times all the same


def test_a_denied_call_counts_for_nothing() -> None:
    counting = Counting(Budget(model_calls=2, tool_calls=2, dollars="1"))
    counting.hear(started(0, most=99 * CENT), failed(0, denied="policy", guard="policy"))
    counting.hear(started(1, tool="pay"), failed(1, denied="loop"))
    counting.hear(started(2, tool="unknown"), failed(2), started(3, tool="pay"), failed(3, failure="schema"))
    assert all_answers(counting, [started(index, most=50 * CENT) for index in (4, 5)]) == [True, True]
    assert all_answers(counting, [started(index, tool="pay") for index in (6, 7, 8)]) == [True, True, False]
    counting.hear(failed(6, failure="error"))
    assert counting.answer(started(9, tool="pay")) == "deny"


def test_steps_are_not_counted() -> None:
    counting = Counting(Budget(model_calls=0, tool_calls=0))
    step = entry("antiphon.call.started", turn="17/bob", index=0, name="step:check", digest="d")
    assert counting.answer(step) == "allow"
    assert counting.answer(entry("antiphon.call.retried", turn="17/bob", index=0, attempt=1)) == "allow"


# Crashes


def test_a_call_that_is_started_again_is_one_call_with_one_reservation() -> None:
    counting = Counting(Budget(dollars="1", model_calls=2, tool_calls=1))
    assert counting.try_call(started(0, most=60 * CENT))
    assert counting.answer(started(1, most=60 * CENT)) == "deny"
    for _ in range(3):
        assert counting.try_call(started(0, most=60 * CENT, seconds=5))
    assert counting.answer(started(0, most=101 * CENT)) == "deny"  # another prompt than before
    assert counting.try_call(started(1, most=40 * CENT))
    assert counting.try_call(started(2, tool="pay"))
    assert counting.try_call(started(2, tool="pay"))
    counting.hear(finished(0, cost=CENT))
    assert spent(counting) == 41 * CENT


def test_a_call_that_is_started_again_is_not_denied_what_it_has_reserved() -> None:
    counting = Counting(Budget(dollars="1"))
    counting.hear(started(0, most=30 * CENT), started(1, most=30 * CENT), finished(1, cost=200 * CENT))
    assert counting.answer(started(0, most=30 * CENT)) == "allow"  # it may have been paid for
    assert counting.answer(started(0, most=31 * CENT)) == counting.answer(started(2)) == "deny"


def test_a_call_that_is_denied_when_it_is_started_again_counts_in_full() -> None:
    counting = Counting(Budget(dollars="1", model_calls=2))
    counting.hear(started(0, most=30 * CENT), started(0, most=30 * CENT), failed(0, denied="policy", guard="policy"))
    assert spent(counting) == 30 * CENT
    assert [counting.try_call(started(index)) for index in (1, 2)] == [True, False]


def test_a_reservation_whose_call_is_lost_is_booked_in_full() -> None:
    counting = Counting(Budget(dollars="1"))
    counting.hear(started(0, most=60 * CENT, tokens=70, seconds=10), started(1, most=10 * CENT, seconds=0))
    deadline = counting.guard.due(counting.memory, counting.state)  # type: ignore[arg-type]
    assert deadline is not None
    assert deadline.at == at(120)
    counting.hear(deadline.make_draft())
    deadline = counting.guard.due(counting.memory, counting.state)  # type: ignore[arg-type]
    assert deadline is not None
    assert deadline.at == at(130)
    booked = deadline.make_draft()
    assert (booked.event_type, booked.audience) == (EV_BUDGET_CHANGED, ["hub:operators"])
    assert booked.event_data == {
        "op": "expire",
        "scope": "run",
        "unit": "micro",
        "need": 60 * CENT,
        "turn": "17/bob",
        "tokens": 70,
    }
    counting.hear(booked)
    assert counting.guard.due(counting.memory, counting.state) is None  # type: ignore[arg-type]
    assert spent(counting) == 70 * CENT
    assert (counting.answer(started(2, most=30 * CENT)), counting.answer(started(2, most=31 * CENT))) == (
        "allow",
        "deny",
    )


def test_a_late_result_is_settled() -> None:
    counting = Counting(Budget(dollars="1"))
    counting.hear(started(0, most=60 * CENT), EXPIRED)
    assert spent(counting) == 60 * CENT
    counting.hear(finished(0, cost=2 * CENT, seconds=500))
    assert spent(counting) == 2 * CENT
    counting.hear(finished(0, cost=2 * CENT, seconds=501))
    assert spent(counting) == 2 * CENT


def test_a_call_that_is_made_again_after_its_time_reserves_anew() -> None:
    counting = Counting(Budget(dollars="1", model_calls=1))
    counting.hear(started(0, most=60 * CENT), EXPIRED)
    assert counting.answer(started(0, most=41 * CENT, seconds=600)) == "deny"
    counting = Counting(Budget(dollars="1"))
    counting.hear(started(0, most=60 * CENT), EXPIRED)
    assert counting.try_call(started(0, most=40 * CENT, seconds=600))
    counting.hear(finished(0, cost=5 * CENT))
    assert spent(counting) == 65 * CENT


# Whose, and since when


def test_agents_have_each_their_own_budget_with_the_scope_agent() -> None:
    counting = Counting(Budget(model_calls=2, scope="agent"))
    drafts = [started(index, turn=turn) for index in range(3) for turn in ("17/bob", "17/cyd")]
    assert all_answers(counting, drafts) == [True, True, True, True, False, False]
    assert counting.answer(started(9, agent="bob/dee")) == "allow"
    assert Counting(Budget(model_calls=2)).guard.scope == "run"
    shared = Counting(Budget(model_calls=2))
    assert all_answers(shared, drafts) == [True, True, False, False, False, False]


def test_the_amounts_of_a_tier_begin_anew_with_each_message() -> None:
    counting = Counting(Budget().for_tier("interactive"))
    counting.hear(created(), said("ann"))
    assert all_answers(counting, [started(index) for index in range(26)]) == [True] * 25 + [False]
    counting.hear(said("bob"))
    assert counting.answer(started(30, turn="40/bob")) == "deny"
    counting.hear(said("ann"))  # of the 25 calls none has an outcome
    assert counting.answer(started(30, turn="40/bob")) == "deny"
    counting.hear(*(finished(index, tokens=2000) for index in range(5)), said("ann"))
    assert all_answers(counting, [started(index, turn="40/bob") for index in range(6)]) == [True] * 5 + [False]


def test_named_amounts_hold_for_the_whole_run() -> None:
    counting = Counting(Budget(model_calls=3).for_tier("interactive"))
    counting.hear(created())
    for index in range(3):
        counting.hear(said("ann"))
        assert counting.try_call(started(index, tokens=50_000, most=90 * CENT))
        counting.hear(finished(index, tokens=50_000, cost=90 * CENT))
    counting.hear(said("ann"))
    assert counting.answer(started(3)) == "deny"
    by_message = Counting(Budget(model_calls=1, per="message"))
    by_message.hear(created())
    for index in range(3):
        by_message.hear(said("ann"))
        assert by_message.try_call(started(index))
        by_message.hear(finished(index))
        assert by_message.answer(started(9)) == "deny"


def test_a_lost_call_of_an_earlier_message_does_not_count_in_a_later_one() -> None:
    counting = Counting(Budget(dollars="1", per="message"))
    counting.hear(created(), started(0, most=60 * CENT))
    counting.hear(EXPIRED, said("ann"))
    assert counting.answer(started(1, most=100 * CENT)) == "allow"
    counting.hear(finished(0, cost=20 * CENT))  # late: it is no part of this message
    assert (counting.answer(started(1, most=100 * CENT)), spent(counting)) == ("allow", 20 * CENT)


# What follows


def test_tiers_differ_in_amounts_and_in_what_follows() -> None:
    for tier, models, tools, answer in (
        ("interactive", 25, 50, "deny"),
        ("batch", 200, 500, "ask"),
        ("regulated", 100, 200, "ask"),
    ):
        budget = Budget().for_tier(tier)
        assert {cap.unit: cap.most for cap in budget.caps}["tool_calls"] == tools
        counting = Counting(budget)
        counting.hear(*(started(index, turn=f"{index}/bob") for index in range(models)))
        assert counting.answer(started(0, turn="x/bob")) == answer
    assert counting.why(started(0, turn="x/bob")) == Ask(
        "budget: 100 of 100 model calls were made since the last message", ("finance",), "budget"
    )
    assert {cap.unit: cap.most for cap in budget.caps} == {
        "model_calls": 100,
        "tool_calls": 200,
        "tokens": 500_000,
        "micro": 10_000_000,
    }
    assert Counting(Budget(model_calls=0, then="ask", approvers=("owner",))).why(started(0)) == Ask(
        "budget: 0 of 0 model calls were made in this run", ("owner",), "budget"
    )
    assert Counting(Budget(model_calls=0, then="deny").for_tier("batch")).answer(started(0)) == "deny"
    assert Counting(Budget(model_calls=0).for_tier("batch"), task=True).answer(started(0)) == "ask"


def test_what_was_allowed_beyond_the_cap_is_counted() -> None:
    counting = Counting(Budget(dollars="1", then="ask"))
    counting.hear(started(0, most=90 * CENT), finished(0, cost=90 * CENT))
    assert counting.answer(started(1, most=20 * CENT)) == "ask"
    counting.hear(started(1, most=20 * CENT, approved="ann"), finished(1, cost=20 * CENT))
    assert spent(counting) == 110 * CENT


def test_an_unknown_price_is_denied_where_mistakes_cannot_be_undone() -> None:
    call = started(0, most=CENT, unpriced=True, model="openai:gpt-99")
    assert Counting(Budget().for_tier("batch")).answer(call) == "allow"
    regulated = Counting(Budget().for_tier("regulated"))
    assert str(getattr(regulated.why(call), "detail", "")) == (
        "budget: the price of openai:gpt-99 is unknown; give the model a price"
    )
    regulated.hear(call)
    denied = failed(0, denied="budget", guard="budget")
    denied.event_data["error"] = regulated.why(call).detail  # type: ignore[union-attr]
    regulated.hear(denied)
    [fact] = regulated.notices(denied)
    assert (fact.data["unit"], fact.data["need"]) == ("micro", CENT)


def test_a_denial_and_a_question_are_recorded_with_what_was_counted() -> None:
    counting = Counting(Budget(dollars="1"))
    counting.hear(started(0, most=50 * CENT), started(1, most=40 * CENT), finished(1, cost=30 * CENT))
    counting.hear(started(2, most=21 * CENT))
    denied = failed(2, denied="budget", guard="budget")
    counting.hear(denied)
    [fact] = counting.notices(denied)
    told = {"scope": "run", "unit": "micro", "need": 21 * CENT, "spent": 30 * CENT, "reserved": 50 * CENT}
    about = {"cap": 100 * CENT, "turn": "17/bob", "index": 2}
    assert (fact.event_type, fact.audience) == (EV_BUDGET_CHANGED, ("hub:operators",))
    assert fact.data == {"op": "deny", **told, **about}
    asked = entry(
        EV_APPROVAL_REQUESTED,
        turn="17/bob",
        index=2,
        name="model",
        kind="model",
        args={},
        guard="budget",
        most=21 * CENT,
    )
    assert [fact.data for fact in counting.notices(asked)] == [{"op": "ask", **told, **about}]
    other = failed(2, denied="budget", guard="cost_velocity")
    assert counting.notices(other) == counting.notices(failed(2, denied="loop")) == counting.notices(finished(2)) == []


# The log of a run as a ledger


def charge(channel: str, index: int, *, kind: str = "model", **data: object) -> Envelope:
    return entry(EV_RUN_CHARGED, channel=channel, turn="3/bob", index=index, kind=kind, agent="bob", **data)


def settled(channel: str, index: int, **data: object) -> Envelope:
    return entry(EV_RUN_SETTLED, channel=channel, turn="3/bob", index=index, **data)


def test_tasks_count_in_the_run() -> None:
    root = Counting(Budget(dollars="1"))
    assert root.try_call(started(0, most=40 * CENT))
    assert len(root.offered(charge("t1", 0, most=30 * CENT))) == 1  # type: ignore[arg-type]
    assert len(root.offered(charge("t2", 0, most=30 * CENT))) == 1  # type: ignore[arg-type]
    over = root.offered(charge("t3", 0, most=1))
    assert getattr(over, "reason", "") == "budget"
    assert getattr(over, "guard", "") == "budget"
    assert root.offered(charge("t1", 0, most=30 * CENT)) == ()  # known by its call
    assert len(root.offered(settled("t1", 0, cost=10 * CENT))) == 1  # type: ignore[arg-type]
    assert root.offered(settled("t1", 0, cost=10 * CENT)) == root.offered(settled("t9", 0, cost=10 * CENT)) == ()
    assert root.try_call(started(1, most=20 * CENT))
    assert len(root.offered(charge("t3", 0, most=CENT, approved=True))) == 1  # type: ignore[arg-type]
    assert len(root.offered(settled("t2", 0, denied=True))) == 1  # type: ignore[arg-type]
    assert spent(root) == 40 * CENT + 10 * CENT + 20 * CENT + CENT
    assert root.offered(charge("t4", 0, kind="task")) == ()


def test_tools_of_tasks_are_counted_when_they_leave() -> None:
    root = Counting(Budget(tool_calls=2))
    assert len(root.offered(charge("t1", 0, kind="tool"))) == 1  # type: ignore[arg-type]
    assert root.offered(settled("t1", 0)) == ()
    assert len(root.offered(charge("t2", 0, kind="tool"))) == 1  # type: ignore[arg-type]
    assert getattr(root.offered(charge("t3", 0, kind="tool")), "reason", "") == "budget"
    assert len(root.offered(settled("t2", 0, denied=True))) == 1  # type: ignore[arg-type]
    assert len(root.offered(charge("t3", 0, kind="tool"))) == 1  # type: ignore[arg-type]


def test_only_tasks_and_tenants_ask_a_ledger() -> None:
    call, tool = started(0, most=CENT, tokens=5), started(1, tool="pay")
    root, task = Counting(Budget(dollars="1")), Counting(Budget(dollars="1"), task=True)
    assert root.guard.ask(Spending(), root.state, call) == root.guard.settle(Spending(), root.state, finished(0)) == ()
    [asked] = task.guard.ask(Spending(), task.state, call)
    assert (asked.ledger, asked.data["most"], asked.data["channel"]) == ("run", CENT, "room")
    assert asked.otherwise is not None
    assert asked.otherwise(Deny("budget", "no")) == Deny("budget", "no")
    assert task.guard.ask(Spending(), task.state, tool) == ()  # tools are not limited
    [told] = task.guard.settle(Spending(), task.state, finished(0, cost=CENT))
    assert (told.ledger, told.data["cost"]) == ("run", CENT)
    tenant = Counting(Budget(dollars="1", tool_calls=3, scope="tenant").for_tier("regulated"))
    asked, _ = (*tenant.guard.ask(Spending(), tenant.state, call), *tenant.guard.ask(Spending(), tenant.state, tool))
    assert (asked.ledger, asked.data["limits"]) == ("spend", {"micro": 100 * CENT, "tool_calls": 3})
    assert asked.otherwise is not None
    assert asked.otherwise(Deny("budget", "budget: no")) == Ask("budget: no", ("finance",), "budget")
    assert tenant.answer(started(0, most=10**9)) == "allow"  # as far as the channel knows
    [approved] = tenant.guard.ask(Spending(), tenant.state, started(0, most=CENT, approved="ann"))
    assert approved.data["approved"] is True


# Its values


def test_bad_values_are_refused_with_what_to_give_instead() -> None:
    for fields, why in (
        ({"dollars": 2.5}, r"dollars of budget is 2.5; give a text with at most six decimal places, such as '2.50'"),
        ({"dollars": "-1"}, "dollars of budget is '-1'"),
        ({"dollars": "1.0000001"}, "at most six decimal places"),
        ({"dollars": "1e3"}, "dollars of budget is '1e3'"),
        ({"dollars": True}, "dollars of budget is True"),
        ({"tokens": -1}, "tokens of budget is -1; give a number, 0 or more, or 'unlimited'"),
        ({"model_calls": "many"}, "model_calls of budget is 'many'"),
        ({"scope": "world"}, "scope of budget is 'world'; give one of 'run', 'agent', 'tenant'"),
        ({"per": "day"}, "per of budget is 'day'; give one of 'run', 'message'"),
        ({"then": "shout"}, "then of budget is 'shout'"),
        ({"scope": "tenant"}, "the budget with scope 'tenant' has no amount"),
        ({"scope": "tenant", "tokens": 5, "per": "message"}, "counts all channels"),
    ):
        with pytest.raises(RulesInvalid, match=why):
            Budget(**fields)  # type: ignore[arg-type]
    with pytest.raises(
        RulesInvalid, match="tokens of budget is 'unlimited', which the tier 'regulated' does not allow"
    ):
        Budget(tokens="unlimited").for_tier("regulated")


def test_dollars_are_whole_millionths() -> None:
    for dollars, micro in (("2.50", 2_500_000), ("0.000001", 1), (3, 3_000_000), ("0.1", 100_000), ("10", 10_000_000)):
        [cap] = Budget(dollars=dollars).caps
        assert cap.most == micro


def test_without_a_tier_and_amounts_it_has_those_of_interactive() -> None:
    assert {cap.unit: cap.most for cap in Budget().caps} == {
        "model_calls": 25,
        "tool_calls": 50,
        "tokens": 100_000,
        "micro": 1_000_000,
    }
    assert [cap.unit for cap in Budget(tokens=5).caps] == ["tokens"]
    assert [cap.unit for cap in Budget(tokens=5, scope="agent").for_tier("batch").caps] == ["tokens"]


def test_a_channel_may_have_one_of_each_scope() -> None:
    tenant, run = Budget(dollars="9", scope="tenant"), Budget(model_calls=7)
    entries = [guard_to_data(tenant), {"name": "budget", "model_calls": 7}]
    found = [guard for guard in guards_of({"guards": entries}) if isinstance(guard, Budget)]
    assert found == [tenant, run]
    with pytest.raises(RulesInvalid, match="guards names 'budget' twice"):
        guards_of({"guards": [*entries, {"name": "budget", "dollars": "3"}]})
    of_tier = [guard for guard in guards_of({"guards": entries[:1], "tier": "batch"}) if isinstance(guard, Budget)]
    assert [(guard.scope, [cap.unit for cap in guard.caps]) for guard in of_tier] == [
        ("tenant", ["micro"]),
        ("run", ["model_calls", "tool_calls", "tokens", "micro"]),
    ]


def test_a_task_inherits_one_of_each_scope() -> None:
    above = {"guards": [guard_to_data(Budget(dollars="9", scope="tenant")), "budget"]}
    own = {"guards": [guard_to_data(Budget(tokens=5)), guard_to_data(Budget(tokens=6, scope="agent"))]}
    inherited = [guard for guard in guards_of(inherit_guards(above, own)) if isinstance(guard, Budget)]
    assert [(guard.scope, guard.tokens) for guard in inherited] == [("tenant", None), ("run", None), ("agent", 6)]


def test_lost_calls_of_tools_are_forgotten_and_stay_counted() -> None:
    counting = Counting(Budget(tool_calls=500))
    counting.hear(*(started(0, tool="look", turn=f"{place}/bob") for place in range(500)))
    assert isinstance(counting.memory, Spending)
    assert len(counting.memory.open) <= 65
    assert counting.answer(started(0, tool="look", turn="501/bob")) == "deny"


def test_it_is_a_guard() -> None:
    check_guard(Budget(dollars="1"))
    check_guard(Budget(dollars="1", scope="agent").for_tier("regulated"))


# Random schedules


STEPS = st.lists(
    st.tuples(st.sampled_from(["start", "again", "finish", "fail", "expire", "crash"]), st.integers(0, 11)), max_size=60
)


@settings(max_examples=200, deadline=None)
@given(STEPS, st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=12, max_size=12))
def test_what_is_spent_never_exceeds_the_cap(steps: list[tuple[str, int]], sizes: list[tuple[int, int]]) -> None:
    """Each call costs at most what it reserves. A crash reads the memory back; a call is in flight until it is not."""
    counting, cap, paid = Counting(Budget(dollars="0.0001")), 100, 0
    flight: dict[int, bool] = {}
    for action, index in steps:
        most, cost = max(sizes[index]), min(sizes[index])
        if action == "start" and index not in flight and counting.try_call(started(index, most=most)):
            flight[index] = False
        elif action == "again" and flight.get(index) is False:
            assert counting.try_call(started(index, most=most))
        elif action == "finish" and index in flight:
            counting.hear(finished(index, cost=cost))
            paid += cost
            del flight[index]
        elif action == "fail" and index in flight:
            counting.hear(failed(index, failure="timeout", cost=most))
            paid += most
            del flight[index]
        elif action == "expire" and flight.get(index) is False:
            counting.hear(entry(EV_BUDGET_CHANGED, op="expire", scope="run", turn="17/bob", index=index))
            flight[index] = True
        elif action == "crash":
            counting.memory = as_type(plain_data(counting.memory), Spending)
        in_flight = sum(max(sizes[index]) for index in flight)
        assert spent(counting) == paid + in_flight <= cap
