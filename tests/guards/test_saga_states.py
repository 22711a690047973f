"""The states of a compensation, and every move between them, against the recorded table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import pytest

from antiphon import RulesInvalid
from antiphon.core.envelope import Envelope
from antiphon.core.saga_events import (
    EV_SAGA_COMPENSATION,
    EV_SAGA_EXECUTED,
    EV_SAGA_REGISTERED,
    CompensationStatus,
)
from antiphon.core.sagas import (
    ENDED_COMPENSATIONS,
    MAX_RETRIES,
    CallRef,
    failure_move,
    is_owed,
    last_first,
    next_owed,
    next_status,
    parse_call_ref,
    retry_pause,
    steps_of,
)
from antiphon.guards.saga import FAILURE_REASONS, Saga
from antiphon.orchestration.catalogue import ruleset_for
from antiphon.testing import check_guard

GOLDEN = Path(__file__).parent / "golden" / "compensation_states.json"
STATES: tuple[CompensationStatus, ...] = get_args(CompensationStatus)
EVERY_MOVE = ("start", "succeed", "fail", "give_up", "refuse", "retry", "skip", "done")


def test_the_moves_of_a_compensation_are_those_of_the_recorded_table() -> None:
    table = {state: {move: next_status(state, move) for move in EVERY_MOVE} for state in STATES}
    assert table == json.loads(GOLDEN.read_text())


def test_every_compensation_can_come_to_an_end_and_no_end_is_left() -> None:
    for state in STATES:
        reached, found = {state}, {state}
        while found:
            found = {after for each in found for move in EVERY_MOVE if (after := next_status(each, move))} - reached
            reached |= found
        assert reached & ENDED_COMPENSATIONS
        assert state not in ENDED_COMPENSATIONS or reached == {state}


def test_five_retries_and_then_a_person() -> None:
    assert [failure_move(attempt) for attempt in range(1, 8)] == ["fail"] * MAX_RETRIES + ["give_up"] * 2
    assert [retry_pause(attempt) for attempt in range(1, 6)] == [1, 2, 4, 8, 16]


def fact(sequence: int, event_type: str, **data: object) -> Envelope:
    return Envelope(sender_id="hub", event_type=event_type, event_data=data, sequence=sequence)


def registered(sequence: int, step: str) -> Envelope:
    data = {"step": step, "comp_name": "undo", "args_ref": f"here {step}", "order": sequence}
    return fact(sequence, EV_SAGA_REGISTERED, **data)


def executed(sequence: int, step: str, status: str = "done") -> Envelope:
    return fact(sequence, EV_SAGA_EXECUTED, step=step, status=status)


def test_steps_are_undone_in_the_reverse_order_of_their_outcomes_and_those_in_flight_first() -> None:
    log = [registered(place, f"4/bob#{place}") for place in range(1, 6)]
    log += [
        executed(6, "4/bob#3"),
        executed(7, "4/bob#1"),
        executed(8, "4/bob#2", "unknown"),
        executed(9, "4/bob#5", "failed"),
    ]
    steps = last_first(steps_of(log).values())
    assert [step.step for step in steps if is_owed(step)] == ["4/bob#4", "4/bob#2", "4/bob#1", "4/bob#3"]


@pytest.mark.parametrize(
    ("status", "owed"), [("done", True), ("unknown", True), ("failed", False), ("repeated", False)]
)
def test_what_has_taken_effect_or_may_have_is_owed(status: str, owed: bool) -> None:
    [step] = steps_of([registered(1, "4/bob#1"), executed(2, "4/bob#1", status)]).values()
    assert is_owed(step) is owed


def test_a_registration_and_facts_of_others_change_no_step_twice() -> None:
    moved = fact(3, EV_SAGA_COMPENSATION, step="4/bob#1", comp_name="undo", order=1, attempt=1, status="done")
    forged = Envelope(sender_id="eve", event_type=moved.event_type, event_data=moved.event_data, sequence=3)
    steps = steps_of([registered(1, "4/bob#1"), registered(2, "4/bob#1"), forged])
    assert (len(steps), steps["4/bob#1"].order, steps["4/bob#1"].status) == (1, 1, "pending")
    assert next_owed(list(steps_of([moved], steps).values())) is None


@pytest.mark.parametrize("call", [CallRef("ch", "17/bob", 3), CallRef("01a-b", "4/a-b_c", 0)])
def test_a_call_is_found_by_what_names_it(call: CallRef) -> None:
    assert parse_call_ref(str(call)) == call
    assert call.step_in(call.channel) == f"{call.turn}#{call.index}"
    assert call.step_in("another") == str(call)


def test_the_guard_keeps_the_rules_of_guards() -> None:
    check_guard(Saga())
    check_guard(Saga(on=("withdrawn",), seconds=10))


@pytest.mark.parametrize("reason", [*FAILURE_REASONS, *(f"{reason}:why" for reason in FAILURE_REASONS)])
def test_reasons_that_mean_failure(reason: str) -> None:
    assert Saga().means_failure(reason)
    assert not Saga().means_failure(f"{reason}ly" if ":" not in reason else f"not {reason}")


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"on": [""]}, "on of saga has ''; give reasons such as 'aborted' or 'expired'"),
        ({"on": [" aborted"]}, "on of saga has ' aborted'"),
        ({"seconds": 0}, "seconds of saga is 0.0; give seconds above 0"),
        ({"seconds": -1}, "seconds of saga is -1.0"),
    ],
)
def test_a_field_that_means_nothing_is_refused(fields: dict[str, object], complaint: str) -> None:
    with pytest.raises(RulesInvalid, match=complaint):
        ruleset_for("conversation", {"guards": [{"name": "saga", **fields}]})


def test_every_channel_has_the_guard_once_and_last() -> None:
    for knobs in (
        {},
        {"tier": "batch"},
        {"guards": ["saga", "hop_limit"]},
        {"guards": [{"name": "saga", "seconds": 9}]},
    ):
        guards = ruleset_for("conversation", knobs).guards
        assert [place for place, guard in enumerate(guards) if guard.name == "saga"] == [len(guards) - 1]
