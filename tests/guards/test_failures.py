"""The failure decision table: all its inputs against a golden file, its cells, and how failures are told apart.

To write the golden file anew: python -m tests.guards.test_failures
"""

import json
from itertools import product
from pathlib import Path

import pytest

from antiphon import Denied, ModelRefused, ModelUnavailable, ReplyMalformed, RulesInvalid, TurnFailed, UsageError
from antiphon.core.event_data import Deny, data_of
from antiphon.core.events import FailedTurn
from antiphon.core.execution_events import CallFailed
from antiphon.core.protection_events import (
    BreakerChanged,
    BudgetChanged,
    CostExceeded,
    DeadlineExpired,
    DeadlockDetected,
    LimitReached,
    LoopDetected,
    PolicyDenied,
    RetryDenied,
    ValidationResult,
)
from antiphon.guards.named_guards import TIERS
from antiphon.orchestration.failure_classes import classify_failure
from antiphon.orchestration.failures import (
    FAILURE_CAUSES,
    FAILURE_PRECEDENCE,
    FAILURE_ROWS,
    FAILURES,
    FailureDecision,
    decide_failure,
    worst_failure,
)

GOLDEN = Path(__file__).parent / "golden" / "decisions.json"
COUNTS = range(4)
BREAKERS = ("closed", "half_open", "open")
BUDGETS = ("ok", "exhausted")
SYMBOLS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def decided(tier: str, failure: str, circumstances: tuple[int, int, str, str]) -> FailureDecision:
    replans, retries, breaker, budget = circumstances
    return decide_failure(tier, failure, replans=replans, retries=retries, breaker=breaker, budget=budget)


def written(decision: FailureDecision) -> str:
    told = [" ".join(decision.actions), " ".join(decision.otherwise), " ".join(decision.approvers), decision.reason]
    return " | ".join(told)


def table() -> dict[str, object]:
    """Every cell as one character for each of its 96 circumstances, and what the characters stand for."""
    outcomes: dict[str, str] = {}
    cells: dict[str, str] = {}
    for failure, tier in product(FAILURES, TIERS):
        texts = [written(decided(tier, failure, each)) for each in product(COUNTS, COUNTS, BREAKERS, BUDGETS)]
        cells[f"{FAILURE_ROWS[failure]} {tier}"] = "".join(
            outcomes.setdefault(text, SYMBOLS[len(outcomes)]) for text in texts
        )
    return {"outcomes": {symbol: text for text, symbol in outcomes.items()}, "cells": cells}


def test_the_table_is_what_it_was() -> None:
    golden, now = json.loads(GOLDEN.read_text(encoding="utf-8")), table()
    assert sum(map(len, golden["cells"].values())) == 2304
    assert now["cells"].keys() == golden["cells"].keys()
    for cell, symbols in golden["cells"].items():
        before = [golden["outcomes"][symbol] for symbol in symbols]
        assert before == [now["outcomes"][symbol] for symbol in now["cells"][cell]], cell


def test_every_decision_is_recorded_with_what_it_was_made_from() -> None:
    decision = decide_failure("batch", "provider", retries=1, breaker="open")
    assert data_of(decision.to_event()) == {
        "failure": "provider",
        "tier": "batch",
        "row": "F4",
        "actions": ["wait"],
        "counters": {"replans": 0, "retries": 1},
        "reason": "breaker_open",
        "otherwise": ["escalate"],
    }


def cells(*rows: tuple[str, str, dict[str, object], str]) -> list[object]:
    return [pytest.param(*row, id=f"{FAILURE_ROWS[row[0]]}-{row[1]}-{row[2]}") for row in rows]


@pytest.mark.parametrize(
    ("failure", "tier", "circumstances", "actions"),
    cells(
        ("tool_loop", "interactive", {}, "correct"),
        ("tool_loop", "interactive", {"retries": 1}, "terminate surface"),
        ("tool_loop", "batch", {}, "correct"),
        ("tool_loop", "batch", {"retries": 1}, "replan"),
        ("tool_loop", "batch", {"replans": 1}, "replan"),
        ("tool_loop", "batch", {"replans": 2}, "compensate abort"),
        ("tool_loop", "regulated", {}, "block escalate"),
        ("deadlock", "interactive", {}, "wait"),
        ("deadlock", "batch", {}, "reroute"),
        ("deadlock", "batch", {"retries": 1}, "compensate abort"),
        ("deadlock", "regulated", {}, "escalate"),
        ("cost", "interactive", {}, "deny surface"),
        ("cost", "batch", {}, "deny alert suspend"),
        ("cost", "regulated", {}, "deny escalate"),
        ("provider", "interactive", {"retries": 1}, "retry"),
        ("provider", "interactive", {"retries": 2}, "fallback_model"),
        ("provider", "interactive", {"retries": 3}, "surface"),
        ("provider", "interactive", {"breaker": "open"}, "fallback_model"),
        ("provider", "batch", {"retries": 3}, "retry"),
        ("provider", "batch", {"retries": 4}, "escalate"),
        ("provider", "batch", {"breaker": "open"}, "wait"),
        ("provider", "batch", {"breaker": "half_open"}, "retry"),
        ("provider", "regulated", {"retries": 1}, "retry"),
        ("provider", "regulated", {"retries": 2}, "escalate"),
        ("provider", "regulated", {"breaker": "open"}, "escalate"),
        ("schema", "interactive", {}, "retry"),
        ("schema", "interactive", {"retries": 1}, "surface"),
        ("schema", "batch", {"replans": 1}, "replan"),
        ("schema", "batch", {"replans": 2}, "abort"),
        ("schema", "regulated", {}, "block escalate"),
        ("plan", "interactive", {}, "abort surface"),
        ("plan", "batch", {"replans": 1}, "critique replan"),
        ("plan", "batch", {"replans": 2}, "abort"),
        ("plan", "regulated", {}, "abort ticket"),
        ("no_progress", "interactive", {}, "terminate"),
        ("no_progress", "batch", {}, "replan"),
        ("no_progress", "batch", {"replans": 1}, "escalate"),
        ("no_progress", "regulated", {}, "escalate"),
        ("unsafe", "interactive", {}, "block safe_text"),
        ("unsafe", "batch", {}, "block compensate abort"),
        ("unsafe", "regulated", {}, "block audit escalate"),
    ),
)
def test_cell(failure: str, tier: str, circumstances: dict[str, object], actions: str) -> None:
    assert " ".join(decide_failure(tier, failure, **circumstances).actions) == actions


def all_decisions() -> list[tuple[tuple[int, int, str, str], FailureDecision]]:
    return [
        (each, decided(tier, failure, each))
        for tier, failure in product(TIERS, FAILURES)
        for each in product(COUNTS, COUNTS, BREAKERS, BUDGETS)
    ]


def test_what_needs_a_model_is_not_done_without_budget_or_behind_an_open_breaker() -> None:
    asking = {"correct", "retry", "replan", "critique", "reroute"}
    stopped = [one for (_, _, breaker, budget), one in all_decisions() if budget == "exhausted" or breaker == "open"]
    assert len(stopped) == 24 * 16 * 4
    assert [one for one in stopped if asking & set(one.actions)] == []


def test_no_cell_replans_more_than_twice_and_regulated_never_does() -> None:
    replanning = [(each, one) for each, one in all_decisions() if "replan" in one.actions]
    assert {each[0] for each, _ in replanning} == {0, 1}
    assert {one.tier for _, one in replanning} == {"batch"}


def test_a_regulated_run_swaps_no_model_and_finance_approves_its_spending() -> None:
    regulated = [one for _, one in all_decisions() if one.tier == "regulated"]
    assert not any("fallback_model" in one.actions + one.otherwise for one in regulated)
    assert {one.approvers for one in regulated if one.failure == "cost"} == {("finance",)}


def test_every_decision_does_something() -> None:
    assert all(one.actions and one.reason for _, one in all_decisions())


@pytest.mark.parametrize(
    ("asked", "complaint"),
    [
        ({"tier": "casual"}, "no tier is called 'casual'; there are: interactive, batch, regulated"),
        ({"failure": "F1"}, "no failure is called 'F1'; there are: tool_loop, deadlock, cost, provider, schema, plan"),
        ({"breaker": "stopped"}, "no breaker is called 'stopped'; there are: closed, half_open, open"),
        ({"budget": 0}, "no budget is called 0; there are: ok, exhausted"),
        ({"replans": -1}, "replans is -1; give a whole number, 0 or more"),
        ({"retries": True}, "retries is True; give a whole number, 0 or more"),
    ],
)
def test_a_wrong_question_is_refused(asked: dict[str, object], complaint: str) -> None:
    with pytest.raises(UsageError) as refused:
        decide_failure(**{"tier": "batch", "failure": "cost", **asked})
    assert str(refused.value).startswith(complaint)


# Several failures at once


def test_the_gravest_failure_is_decided_about() -> None:
    assert [FAILURE_ROWS[each] for each in FAILURE_PRECEDENCE] == ["F8", "F3", "F2", "F1", "F7", "F6", "F5", "F4"]
    for place, gravest in enumerate(FAILURE_PRECEDENCE):
        assert worst_failure(reversed(FAILURE_PRECEDENCE[place:])) == gravest
    assert worst_failure([]) is None
    with pytest.raises(UsageError, match="no failure is called 'fire'"):
        worst_failure(["cost", "fire"])


# What happened


GATE = {"gate": "plan", "side": "post"}


@pytest.mark.parametrize(
    ("happened", "failure"),
    [
        (ModelUnavailable("503", status=503), "provider"),
        (TimeoutError(), "provider"),
        (ModelRefused("no such model"), "plan"),
        (ReplyMalformed("no reply"), "schema"),
        (RulesInvalid("no graph"), "plan"),
        (ValueError("anything else"), "schema"),
        (Denied("blocked"), "unsafe"),
        (TurnFailed("denied:budget"), "cost"),
        (TurnFailed("model_error"), "provider"),
        (FailedTurn("3/bob", "bob", "denied:loop"), "tool_loop"),
        (FailedTurn("3/bob", "bob", "deadline"), "deadlock"),
        (FailedTurn("3/bob", "bob", "cancelled"), None),
        (Deny("breaker_open"), "provider"),
        (Deny("retry_budget"), "provider"),
        (Deny("policy"), "unsafe"),
        (Deny("something_of_a_user"), "schema"),
        ("hop_limit:5", "tool_loop"),
        ("depth_limit", "deadlock"),
        ("no_progress", "no_progress"),
        ("aborted:deadlock", "deadlock"),
        ("rejected", None),
        (CallFailed("3/bob", 1, "denied", denied="loop"), "tool_loop"),
        (CallFailed("3/bob", 1, "503", failure="transport"), "provider"),
        (CallFailed("3/bob", 1, "late", failure="timeout"), "provider"),
        (CallFailed("3/bob", 1, "no JSON", failure="schema"), "schema"),
        (CallFailed("3/bob", 1, "stopped", failure="cancelled"), None),
        (ValidationResult(**GATE, verdict="fail", failure_type="plan"), "plan"),
        (ValidationResult(**GATE, verdict="fail", failure_type="unsafe"), "unsafe"),
        (ValidationResult(**GATE, verdict="pass"), None),
        (LoopDetected("tool", "k", "correct"), "tool_loop"),
        (DeadlockDetected("stalled", ["a"], 1, "d", "trip"), "deadlock"),
        (DeadlineExpired("stage", "2026-01-01T00:00:00.000000Z"), "deadlock"),
        (BudgetChanged("deny", "run", "micro"), "cost"),
        (CostExceeded("run", 60, "micro", 2, 0, 1, "deny"), "cost"),
        (LimitReached("turns", 50, 50), "tool_loop"),
        (LimitReached("spawn", 32, 32), "deadlock"),
        (BreakerChanged("cost:run", "closed", "open", 1), "cost"),
        (BreakerChanged("tool:refund@bob", "closed", "open", 1), "tool_loop"),
        (BreakerChanged("model:m", "closed", "open", 1), "provider"),
        (RetryDenied("bucket"), "provider"),
        (PolicyDenied("bob", "refund"), "unsafe"),
    ],
)
def test_classified(happened: object, failure: str | None) -> None:
    assert classify_failure(happened) == failure


def test_the_cause_says_whether_to_try_again() -> None:
    assert {
        cause: [each for each in FAILURES if FAILURE_CAUSES[each] == cause] for cause in FAILURE_CAUSES.values()
    } == {
        "semantic": ["tool_loop", "deadlock", "schema", "plan", "no_progress"],
        "budget": ["cost"],
        "transient": ["provider"],
        "policy": ["unsafe"],
    }


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(table(), indent=1) + "\n", encoding="utf-8")
