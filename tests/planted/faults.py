"""Faults that are planted on purpose, each with the test that must find it.

`plant` changes the package in a process of its own, in which the named test is then run. It has to fail there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import httpx2
import pytest

from antiphon.core import state
from antiphon.guards import gates
from antiphon.guards.gate_checks import CheckFault, CheckResult
from antiphon.hub import live
from antiphon.runtime import cedar_policy, gate_runs, subscriptions

Plant = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Fault:
    """A fault, and the test that finds it."""

    plant: Plant
    found_by: str


FAULTS: dict[str, Fault] = {}


def fault(name: str, *, found_by: str) -> Callable[[Plant], Plant]:
    """A decorator that lists a fault under its name."""

    def listed(plant: Plant) -> Plant:
        assert name not in FAULTS, f"{name} is listed already"
        FAULTS[name] = Fault(plant, found_by)
        return plant

    return listed


# What the log promises


@fault("no_dedupe", found_by="tests/hub/test_admission.py::test_the_same_id_with_other_content_is_a_conflict")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(live, "first_or_conflict", lambda draft, first: first)


@fault("missing_audience_filter", found_by="tests/laws/test_audience.py")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(subscriptions, "visible_to", lambda envelope, reader: True)


@fault("redirect_followed", found_by="tests/transports/test_webhook.py::test_redirects_are_not_followed")
def _(patch: pytest.MonkeyPatch) -> None:
    made = httpx2.AsyncClient

    def following(**options: object) -> object:
        return made(**{**options, "follow_redirects": True})  # type: ignore[arg-type]

    patch.setattr(httpx2, "AsyncClient", following)


# Gates and policies


@fault("rerolled_gate", found_by="tests/guards/test_gates.py::test_a_recorded_verdict_is_not_made_again")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(gate_runs, "recorded_verdict", lambda *args, **options: None)


@fault("gate_error_passes", found_by="tests/guards/test_gates.py::test_an_error_of_a_check_is_a_failure")
def _(patch: pytest.MonkeyPatch) -> None:
    checked = gates._check_of

    def lenient(name: str, answer: CheckResult | CheckFault, ms: int, *, lenient: bool) -> object:
        passed = CheckResult(True) if isinstance(answer, CheckFault) else answer
        return checked(name, passed, ms, lenient=lenient)

    patch.setattr(gates, "_check_of", lenient)


@fault(
    "diagnostics_errors_ignored", found_by="tests/guards/test_cedar_policy.py::test_an_allow_with_an_error_is_a_denial"
)
def _(patch: pytest.MonkeyPatch) -> None:
    decide = cedar_policy.CedarPolicy.decide

    def blind(self: cedar_policy.CedarPolicy, request: object) -> object:
        decision = decide(self, request)  # type: ignore[arg-type]
        return cedar_policy.PolicyDecision("allow") if decision.error == "allow_with_errors" else decision

    patch.setattr(cedar_policy.CedarPolicy, "decide", blind)


# Limits, deadlines and deadlocks


@fault(
    "depth_reset_by_a_new_channel",
    found_by="tests/guards/test_run_limits.py::test_opening_a_new_channel_does_not_reset_the_depth",
)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(state.State, "task_depth", 0)
