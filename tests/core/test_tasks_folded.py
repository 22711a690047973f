"""The tasks that turns wait for, as a log leaves them."""

from __future__ import annotations

import msgspec
import pytest

from antiphon import (
    EV_CHANNEL_CLOSED,
    EV_TASK_COMPLETED,
    EV_TASK_EXPIRED,
    EV_TASK_FAILED,
    EV_TASK_PROGRESS,
    EV_TASK_STARTED,
    Envelope,
    State,
)
from antiphon.core.events import EV_TURN_FAILED
from antiphon.core.evolve import evolve
from antiphon.core.state import Turn, detach_state

LATE, LATER = "2026-01-01T01:00:00.000000Z", "2026-01-01T02:00:00.000000Z"
NOW = "2026-01-01T00:30:00.000000Z"
OWED = State(
    channel_id="c",
    status="active",
    participants={"ann": "human", "bob": "agent"},
    owed=(Turn("5/bob", "bob", "m", 5),),
    assigned_at="2026-01-01T00:00:00.000000Z",
)


def after(state: State, *facts: tuple[str, dict[str, object]], sender: str = "hub") -> State:
    for event_type, data in facts:
        state = evolve(state, Envelope("e", "c", sender, None, event_type, data, created_at=NOW, sequence=9))
    return state


ONE = (EV_TASK_STARTED, {"task": "one", "until": LATE})
TWO = (EV_TASK_STARTED, {"task": "two", "until": LATER})


def test_tasks_are_waited_for_from_when_they_are_given() -> None:
    state = after(OWED, ONE, TWO, (EV_TASK_PROGRESS, {"task": "one", "tool": "look"}))
    assert (state.tasks, state.assigned_at) == ({"one": LATE, "two": LATER}, OWED.assigned_at)


@pytest.mark.parametrize("end", [EV_TASK_COMPLETED, EV_TASK_FAILED, EV_TASK_EXPIRED])
def test_a_turn_has_its_whole_time_again_when_the_last_task_is_over(end: str) -> None:
    one_left = after(OWED, ONE, TWO, (end, {"task": "two"}))
    assert (one_left.tasks, one_left.assigned_at) == ({"one": LATE}, OWED.assigned_at)
    none_left = after(one_left, (end, {"task": "one"}))
    assert (none_left.tasks, none_left.assigned_at) == ({}, NOW)
    assert after(none_left, (end, {"task": "one"})).assigned_at == NOW
    assert after(OWED, (end, {"task": "stranger"})).assigned_at == OWED.assigned_at


@pytest.mark.parametrize(
    "end", [(EV_TURN_FAILED, {"turn": "5/bob", "speaker": "bob", "reason": "x"}), (EV_CHANNEL_CLOSED, {"reason": "x"})]
)
def test_nothing_is_waited_for_when_nobody_owes_a_turn(end: tuple[str, dict[str, object]]) -> None:
    assert after(OWED, ONE, end).tasks == {}


@pytest.mark.parametrize("data", [{}, {"task": 7}, {"task": "one", "until": None}])
def test_what_has_not_the_shape_of_a_task_moves_nothing(data: dict[str, object]) -> None:
    assert after(OWED, (EV_TASK_STARTED, data)).tasks == {}


def test_nobody_but_the_hub_gives_tasks() -> None:
    assert after(OWED, ONE, sender="bob").tasks == {}


def test_a_state_that_is_handed_out_shares_no_tasks() -> None:
    state = after(OWED, ONE)
    handed = detach_state(msgspec.structs.replace(state, active={"bob": "bob/sub"}))
    handed.tasks.clear()
    handed.active.clear()
    assert state.tasks == {"one": LATE}
