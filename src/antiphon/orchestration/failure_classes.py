"""Which of the eight failures something is: an exception, a denial, a failed turn or call, an event of a protection.

Rule 1: everything is classified. What is not known counts as an output that does not fit: another try may help once.
Rule 2: what a person has ended is no failure.
"""

from __future__ import annotations

from collections.abc import Callable

from antiphon.core.errors import (
    Denied,
    ModelRefused,
    ModelUnavailable,
    TurnFailed,
    UsageError,
)
from antiphon.core.event_data import Deny
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
from antiphon.orchestration.failures import FAILURES, Failure

FAILURE_OF_REASON: dict[str, Failure] = {
    **dict.fromkeys(("loop", "hop_limit", "turn_limit", "max_turns"), "tool_loop"),
    **dict.fromkeys(("deadlock", "depth_limit", "spawn_limit", "deadline", "not_run", "stalled"), "deadlock"),
    **dict.fromkeys(("turn_within", "reply_within", "max_silence"), "deadlock"),
    **dict.fromkeys(("budget", "cost_velocity"), "cost"),
    **dict.fromkeys(("breaker_open", "retry_budget", "model_error", "model_timeout"), "provider"),
    **dict.fromkeys(("prompt_error", "tools_required", "idempotency_conflict"), "plan"),
    "no_progress": "no_progress",
    **dict.fromkeys(("policy", "blocked"), "unsafe"),
}
"""By the stable words with which calls and drafts are denied, and turns fail."""
ENDED_BY_PERSON = frozenset({"cancelled", "rejected", "approval"})
FAILURE_OF_CALL: dict[str, Failure] = {"transport": "provider", "timeout": "provider"}
FAILURE_OF_LIMIT: dict[str, Failure] = {"hop": "tool_loop", "turns": "tool_loop"}
UNKNOWN_FAILURE: Failure = "schema"


def classify_failure(happened: object) -> Failure | None:
    """Which failure this is; None if a person has ended it, so that nothing is to be decided.

    `happened` is an exception, a denial, a reason such as `denied:loop`, a failed turn or call, the result of a gate,
    or an event of a protection.
    """
    classify = next((rule for kind, rule in _RULES if isinstance(happened, kind)), None)
    return UNKNOWN_FAILURE if classify is None else classify(happened)


def _of_reason(reason: str) -> Failure | None:
    """The first word of the reason that is known, such as `loop` of `denied:loop`."""
    for word in reason.split(":"):
        if word in ENDED_BY_PERSON:
            return None
        known = FAILURE_OF_REASON.get(word) or next((failure for failure in FAILURES if failure == word), None)
        if known is not None:
            return known
    return UNKNOWN_FAILURE


def _of_call(call: object) -> Failure | None:
    assert isinstance(call, CallFailed)
    if call.denied:
        return _of_reason(call.denied)
    return None if call.failure == "cancelled" else FAILURE_OF_CALL.get(call.failure, UNKNOWN_FAILURE)


def _of_breaker(event: object) -> Failure | None:
    """A breaker counts spending, a tool as one agent calls it, or what others provide."""
    assert isinstance(event, BreakerChanged)
    if event.scope.startswith("cost:"):
        return "cost"
    return "tool_loop" if event.scope.startswith("tool:") and "@" in event.scope else "provider"


def _of_limit(event: object) -> Failure | None:
    assert isinstance(event, LimitReached)
    return FAILURE_OF_LIMIT.get(event.kind, "deadlock")


def _of_gate(result: object) -> Failure | None:
    assert isinstance(result, ValidationResult)
    return None if result.passed else _of_reason(result.failure_type)


def _reason_of(happened: object) -> Failure | None:
    return _of_reason(str(getattr(happened, "reason", "")))


def _is(failure: Failure) -> Callable[[object], Failure | None]:
    return lambda happened: failure


_RULES: tuple[tuple[type | tuple[type, ...], Callable[[object], Failure | None]], ...] = (
    (str, lambda happened: _of_reason(str(happened))),
    ((Deny, FailedTurn, Denied, TurnFailed), _reason_of),
    (CallFailed, _of_call),
    (ValidationResult, _of_gate),
    (BreakerChanged, _of_breaker),
    (LimitReached, _of_limit),
    (LoopDetected, _is("tool_loop")),
    ((DeadlockDetected, DeadlineExpired), _is("deadlock")),
    ((BudgetChanged, CostExceeded), _is("cost")),
    ((RetryDenied, ModelUnavailable, TimeoutError, ConnectionError), _is("provider")),
    (PolicyDenied, _is("unsafe")),
    # The request itself is wrong: asked again, it would fail again.
    ((ModelRefused, UsageError), _is("plan")),
)
"""The first that fits holds."""
