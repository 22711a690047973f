"""Failures: which of eight kinds something is, and what follows from it, by a table.

Rule 1: the table is total and pure. The same failure, tier, counts and states give the same decision, always.
Rule 2: every decision is recorded; there is no silent retry and no silent abort.
Rule 3: a retry is not a replan. A replan resets the retries of its stage, and nothing else.
Rule 4: what needs a model (correct, retry, replan, reroute) is left out while the budget is exhausted or the breaker of
        the model is open: the decision is then the one that stands at the end of the row.
Rule 5: of several failures at once the gravest is decided about.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple, get_args

import msgspec

from antiphon.core.errors import UsageError
from antiphon.core.protection_events import FailureDecided
from antiphon.core.text import describe
from antiphon.guards.named_guards import TIERS, Tier

Failure = Literal["tool_loop", "deadlock", "cost", "provider", "schema", "plan", "no_progress", "unsafe"]
"""What has failed: equal calls; participants that wait for each other; spending; a model's provider; an output that
does not fit, or is not grounded; a malformed plan; no progress; an output that is not safe."""
FailureCause = Literal["transient", "semantic", "policy", "budget"]
"""Whether trying again may help, or another plan, or neither."""
BreakerState = Literal["closed", "half_open", "open"]
BudgetState = Literal["ok", "exhausted"]
FailureAction = Literal[
    "correct",
    "terminate",
    "surface",
    "retry",
    "fallback_model",
    "wait",
    "reroute",
    "replan",
    "critique",
    "compensate",
    "abort",
    "escalate",
    "suspend",
    "deny",
    "alert",
    "block",
    "safe_text",
    "audit",
    "ticket",
]

FAILURES: tuple[Failure, ...] = get_args(Failure)
FAILURE_ROWS: dict[Failure, str] = {failure: f"F{number}" for number, failure in enumerate(FAILURES, 1)}
"""The row of each failure in the table."""
FAILURE_CAUSES: dict[Failure, FailureCause] = {
    "tool_loop": "semantic",
    "deadlock": "semantic",
    "cost": "budget",
    "provider": "transient",
    "schema": "semantic",
    "plan": "semantic",
    "no_progress": "semantic",
    "unsafe": "policy",
}
FAILURE_PRECEDENCE: tuple[Failure, ...] = (
    *("unsafe", "cost", "deadlock", "tool_loop", "no_progress", "plan", "schema", "provider"),
)
"""The gravest first."""

MAX_REPLANS = 2
"""How often a stage is planned anew."""
MAX_PROVIDER_RETRIES: dict[Tier, int] = {"interactive": 2, "batch": 4, "regulated": 2}
FINANCE_ROLE = "finance"


class FailureDecision(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """What follows from a failure."""

    failure: Failure
    tier: Tier
    row: str
    """Its row of the table, such as `F4`."""
    actions: tuple[FailureAction, ...]
    """What is done, in this order."""
    reason: str
    """Why, in a stable word."""
    otherwise: tuple[FailureAction, ...] = ()
    """What is done if the actions cannot be, or if the stage's deadline passes while they wait."""
    approvers: tuple[str, ...] = ()
    """Who decides, if a person must have a role for it."""
    counters: dict[str, int] = msgspec.field(default_factory=dict)

    def to_event(self) -> FailureDecided:
        """The data of its `antiphon.flow.decision`."""
        return FailureDecided(
            self.failure,
            self.tier,
            self.row,
            list(self.actions),
            self.counters,
            reason=self.reason,
            otherwise=list(self.otherwise),
        )


class _Outcome(NamedTuple):
    """A cell's answer."""

    reason: str
    actions: tuple[FailureAction, ...]
    otherwise: tuple[FailureAction, ...] = ()
    approvers: tuple[str, ...] = ()


class _Circumstances(NamedTuple):
    """What a cell may depend on."""

    replans: int
    retries: int
    breaker: BreakerState
    budget: BudgetState

    @property
    def can_ask_model(self) -> bool:
        return self.budget == "ok" and self.breaker != "open"


_Cell = Callable[[_Circumstances], _Outcome]


def decide_failure(
    tier: Tier,
    failure: Failure,
    *,
    replans: int = 0,
    retries: int = 0,
    breaker: BreakerState = "closed",
    budget: BudgetState = "ok",
) -> FailureDecision:
    """What follows from a failure in this tier: one cell of the decision table.

    `replans`: how often the stage was planned anew. `retries`: how often the failure was answered since then, by a
    retry, a correction or a reroute. `breaker`: that of the model that would be asked again.
    """
    _check_word("tier", tier, TIERS)
    _check_word("failure", failure, FAILURES)
    _check_word("breaker", breaker, get_args(BreakerState))
    _check_word("budget", budget, get_args(BudgetState))
    for name, count in (("replans", replans), ("retries", retries)):
        if type(count) is not int or count < 0:
            raise UsageError(f"{name} is {describe(count)}; give a whole number, 0 or more")
    outcome = _CELLS[failure][TIERS.index(tier)](_Circumstances(replans, retries, breaker, budget))
    return FailureDecision(
        failure,
        tier,
        FAILURE_ROWS[failure],
        outcome.actions,
        outcome.reason,
        outcome.otherwise,
        outcome.approvers,
        {"replans": replans, "retries": retries},
    )


def worst_failure(failures: Iterable[Failure]) -> Failure | None:
    """The gravest of several failures, which is the one that is decided about; None if there are none."""
    found = set(failures)
    for failure in found:
        _check_word("failure", failure, FAILURES)
    return next((failure for failure in FAILURE_PRECEDENCE if failure in found), None)


def _check_word(name: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UsageError(f"no {name} is called {describe(value)}; there are: {', '.join(known)}")


# The cells of the table


def _always(reason: str, *actions: FailureAction, approvers: tuple[str, ...] = ()) -> _Cell:
    outcome = _Outcome(reason, actions, approvers=approvers)
    return lambda now: outcome


def _loop_interactive(now: _Circumstances) -> _Outcome:
    if now.retries == now.replans == 0 and now.can_ask_model:
        return _Outcome("first_trip", ("correct",))
    return _Outcome("repeated", ("terminate", "surface"))


def _loop_batch(now: _Circumstances) -> _Outcome:
    if now.retries == now.replans == 0 and now.can_ask_model:
        return _Outcome("first_trip", ("correct",))
    return _replan_or(now, "compensate", "abort")


def _deadlock_interactive(now: _Circumstances) -> _Outcome:
    return _Outcome("until_deadline", ("wait",), ("abort",))


def _deadlock_batch(now: _Circumstances) -> _Outcome:
    if now.retries == now.replans == 0 and now.can_ask_model:
        return _Outcome("first_trip", ("reroute",), ("compensate", "abort"))
    return _Outcome("repeated", ("compensate", "abort"))


def _provider_interactive(now: _Circumstances) -> _Outcome:
    most = MAX_PROVIDER_RETRIES["interactive"]
    if now.budget == "exhausted":
        return _Outcome("budget_exhausted", ("surface",))
    if now.retries < most and now.breaker != "open":
        return _Outcome("retries_left", ("retry",), ("surface",))
    if now.retries <= most:
        return _Outcome("retries_used" if now.retries == most else "breaker_open", ("fallback_model",), ("surface",))
    return _Outcome("fallback_used", ("surface",))


def _provider_batch(now: _Circumstances) -> _Outcome:
    if now.budget == "exhausted":
        return _Outcome("budget_exhausted", ("escalate",))
    if now.breaker == "open":
        return _Outcome("breaker_open", ("wait",), ("escalate",))
    if now.retries < MAX_PROVIDER_RETRIES["batch"]:
        return _Outcome("retries_left", ("retry",), ("wait", "escalate"))
    return _Outcome("retries_used", ("escalate",))


def _provider_regulated(now: _Circumstances) -> _Outcome:
    if now.budget == "exhausted":
        return _Outcome("budget_exhausted", ("escalate",))
    if now.breaker == "open":
        return _Outcome("breaker_open", ("escalate",))
    if now.retries < MAX_PROVIDER_RETRIES["regulated"]:
        return _Outcome("retries_left", ("retry",), ("escalate",))
    return _Outcome("retries_used", ("escalate",))


def _schema_interactive(now: _Circumstances) -> _Outcome:
    if now.retries == 0 and now.can_ask_model:
        return _Outcome("retries_left", ("retry",), ("surface",))
    return _Outcome("retries_used" if now.can_ask_model else _stop_reason(now), ("surface",))


def _schema_batch(now: _Circumstances) -> _Outcome:
    return _replan_or(now, "abort")


def _plan_batch(now: _Circumstances) -> _Outcome:
    if now.replans < MAX_REPLANS and now.can_ask_model:
        return _Outcome("replans_left", ("critique", "replan"), ("abort",))
    return _Outcome("replans_used" if now.can_ask_model else _stop_reason(now), ("abort",))


def _no_progress_batch(now: _Circumstances) -> _Outcome:
    return _replan_or(now, "escalate", most=1)


def _replan_or(now: _Circumstances, *last: FailureAction, most: int = MAX_REPLANS) -> _Outcome:
    """Another plan, if one is left; else what the row ends in."""
    if now.replans < most and now.can_ask_model:
        return _Outcome("replans_left", ("replan",), last)
    return _Outcome("replans_used" if now.can_ask_model else _stop_reason(now), last)


def _stop_reason(now: _Circumstances) -> str:
    return "budget_exhausted" if now.budget == "exhausted" else "breaker_open"


_CELLS: dict[Failure, tuple[_Cell, _Cell, _Cell]] = {
    "tool_loop": (_loop_interactive, _loop_batch, _always("by_tier", "block", "escalate")),
    "deadlock": (_deadlock_interactive, _deadlock_batch, _always("by_tier", "escalate")),
    "cost": (
        _always("by_tier", "deny", "surface"),
        _always("by_tier", "deny", "alert", "suspend"),
        _always("by_tier", "deny", "escalate", approvers=(FINANCE_ROLE,)),
    ),
    "provider": (_provider_interactive, _provider_batch, _provider_regulated),
    "schema": (_schema_interactive, _schema_batch, _always("by_tier", "block", "escalate")),
    "plan": (_always("by_tier", "abort", "surface"), _plan_batch, _always("by_tier", "abort", "ticket")),
    "no_progress": (
        _always("by_tier", "terminate"),
        _no_progress_batch,
        _always("by_tier", "escalate"),
    ),
    "unsafe": (
        _always("by_tier", "block", "safe_text"),
        _always("by_tier", "block", "compensate", "abort"),
        _always("by_tier", "block", "audit", "escalate"),
    ),
}
"""The decision table: for each failure its cells for the tiers interactive, batch and regulated."""
