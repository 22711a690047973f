"""The states of a turn under deadlines: each that can be reached, and what each event makes of it, as a golden table.

To write the golden file anew: python -m tests.guards.test_deadline_states
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from antiphon.core.envelope import seconds_between
from antiphon.core.execution_events import (
    EV_APPROVAL_REQUESTED,
    EV_CALL_APPROVED,
    EV_CALL_DOUBTED,
    EV_CALL_FINISHED,
    EV_CALL_STARTED,
)
from antiphon.core.turns import TurnClaim
from antiphon.orchestration.catalogue import ruleset_for
from antiphon.testing.manual_clock import MANUAL_CLOCK_START
from tests.guards.test_deadlines import Timed
from tests.support.envelopes import fact, said
from tests.support.pure_channel import because

GOLDEN = Path(__file__).parent / "golden" / "deadline_states.json"
TIERS = ("batch", "interactive")
TOLD = ("flow.deadline_expired", "flow.deadline_rebased", "turn.failed", "call.doubted")
Table = dict[str, dict[str, dict[str, str]]]


def state_of(channel: Timed) -> str:
    """What matters of a turn, in words."""
    turn = next(iter(channel.state.owed), None)
    if turn is None:
        return "ended"
    memory = next(guard for guard in channel.fold.memories if hasattr(guard, "expired"))
    what = "in doubt" if turn.doubts else "asking" if turn.awaits_approval else "running"
    called = ", tool called" if memory.calls else ""
    over = ", over" if memory.expired else ""
    return f"{what}{called}{over}"


def write(channel: Timed, event_type: str, **data: object) -> list[str]:
    turn = channel.state.owed[0]
    entry = fact("hub", event_type, {"turn": turn.turn_id, "index": 0, **data})
    return channel.writes(TurnClaim(turn.turn_id, turn.epoch), entry)


def asks(channel: Timed) -> list[str]:
    asked = write(channel, EV_APPROVAL_REQUESTED, name="pay", args={}, digest="d")
    turn = channel.state.owed[0]
    return [*asked, *channel.releases(TurnClaim(turn.turn_id, turn.epoch))]


def decides(channel: Timed) -> list[str]:
    if channel.state.owed[0].doubts:
        return write(channel, EV_CALL_FINISHED, result={})
    return write(channel, EV_CALL_APPROVED, by="dana")


def answers(channel: Timed) -> list[str]:
    turn = channel.state.owed[0]
    return channel.ends(TurnClaim(turn.turn_id, turn.epoch), because(turn.cause or "", said("ada")))


def falls_due(channel: Timed) -> list[str]:
    """Time goes on to the next deadline."""
    due = channel.ruleset.due(channel.fold)
    before = len(channel.log)
    if due is not None:
        channel.at(max(channel.now, seconds_between(MANUAL_CLOCK_START, due.at)))
    return [each.event_type.split(".", 1)[1] for each in channel.log[before:]]


def is_running(channel: Timed) -> bool:
    return bool(channel.state.owed) and not channel.state.owed[0].waits_for_person


def is_waiting(channel: Timed) -> bool:
    return bool(channel.state.owed) and channel.state.owed[0].waits_for_person


def has_call(channel: Timed) -> bool:
    return is_running(channel) and "tool called" in state_of(channel)


EVENTS: dict[str, tuple[Callable[[Timed], bool], Callable[[Timed], list[str]]]] = {
    "a tool is called": (
        is_running,
        lambda channel: write(channel, EV_CALL_STARTED, name="pay", digest="d", args={}),
    ),
    "it returns": (has_call, lambda channel: write(channel, EV_CALL_FINISHED, result={})),
    "it is in doubt": (has_call, lambda channel: write(channel, EV_CALL_DOUBTED, name="pay")),
    "a person is asked": (is_running, asks),
    "a person decides": (is_waiting, decides),
    "the turn is answered": (is_running, answers),
    "the next deadline comes": (lambda channel: bool(channel.state.owed), falls_due),
}
MAX_STATES = 40


def played(tier: str, path: tuple[str, ...]) -> tuple[Timed, list[str]]:
    limits: dict[str, object] = {"step": 30, "stage": 60, "run": "unlimited"}
    channel = Timed(**limits)
    # Without the knob: the other guards of a tier have deadlines of their own.
    channel.ruleset = ruleset_for("conversation", {"guards": [{"name": "deadlines", "tier": tier, **limits}]})
    recorded: list[str] = []
    for event in path:
        recorded = EVENTS[event][1](channel)
    return channel, recorded


def table() -> Table:
    """For each tier and each state that can be reached, what each event leads to."""
    made: Table = {}
    for tier in TIERS:
        rows: dict[str, dict[str, str]] = {}
        paths = {state_of(played(tier, ())[0]): ()}
        left: list[tuple[str, ...]] = [()]
        while left:
            path = left.pop(0)
            before = state_of(played(tier, path)[0])
            rows[before] = {}
            for event, (possible, _) in EVENTS.items():
                if not possible(played(tier, path)[0]):
                    continue
                channel, recorded = played(tier, (*path, event))
                after, told = state_of(channel), [each for each in recorded if each in TOLD]
                rows[before][event] = f"{after} [{', '.join(told)}]" if told else after
                if after not in paths:
                    paths[after] = (*path, event)
                    left.append(paths[after])
        assert len(rows) < MAX_STATES
        made[tier] = rows
    return made


def test_the_machine_is_the_golden_one() -> None:
    assert table() == json.loads(GOLDEN.read_text(encoding="utf-8"))


@pytest.mark.parametrize("tier", TIERS)
def test_every_state_leads_to_an_end_and_none_in_doubt_is_ended_by_time(tier: str) -> None:
    rows = json.loads(GOLDEN.read_text(encoding="utf-8"))[tier]
    ends = {"ended"}
    while True:
        more = {state for state, row in rows.items() if any(to.split(" [")[0] in ends for to in row.values())}
        if more <= ends:
            break
        ends |= more
    assert ends >= rows.keys()
    for state, row in rows.items():
        if state.startswith("in doubt"):
            assert not row["the next deadline comes"].startswith("ended")


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(table(), indent=1, sort_keys=True) + "\n", encoding="utf-8")
