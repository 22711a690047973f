"""Deadlines as a pure machine: what they are counted from, what moves them, and what is recorded when they pass."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon import AgentsTarget, Deadlines, FromSpeaker, RulesInvalid, TerminateTarget, Transition, TransitionGraph
from antiphon.core.codec import from_json, to_json
from antiphon.core.envelope import Envelope, add_seconds
from antiphon.core.execution_events import (
    EV_APPROVAL_REQUESTED,
    EV_CALL_APPROVED,
    EV_CALL_DOUBTED,
    EV_CALL_FAILED,
    EV_CALL_FINISHED,
    EV_CALL_STARTED,
    EV_TURN_RESUMED,
    EV_TURN_SUSPENDED,
)
from antiphon.core.guard import TimeBreaks
from antiphon.core.ruleset import SavedFold, restore_fold
from antiphon.core.state import Turn
from antiphon.core.step import pending_turns, tick
from antiphon.core.turns import TurnClaim
from antiphon.guards.named_guards import guards_of
from antiphon.testing import check_guard
from tests.support.envelopes import at, fact
from tests.support.pure_channel import PureChannel, because, said

EXPIRED, REBASED = "antiphon.flow.deadline_expired", "antiphon.flow.deadline_rebased"
HOUR = 3600.0
DEADLINES = {"name": "deadlines", "step": 30, "stage": 60, "run": 120}
LIMITS = {"step": 30, "stage": 60, "run": 120}


class Timed(PureChannel):
    """A channel in which alice has asked ada something at the second 1, and its turn is claimed at the second 2."""

    __test__ = False

    def __init__(self, *people: str, tier: str | None = None, kind: str = "conversation", **limits: object) -> None:
        knobs: dict[str, object] = {"guards": [{"name": "deadlines", **limits}]}
        if tier is not None:
            knobs["tier"] = tier
        super().__init__(kind, *(people or ("alice", "ada:agent")), **knobs)
        self.says("alice")
        self.turn, self.claim = self.running()

    def calls(self, index: int = 0, name: str = "look", **data: object) -> str | None:
        """A call leaves now; until when. None if it is denied."""
        self.writes(self.claim, self.started(index, name, **data))
        outcomes = [
            each for each in self.log if each.event_type == EV_CALL_FAILED and each.event_data["index"] == index
        ]
        if outcomes and outcomes[-1].event_data.get("denied"):
            return None
        started = [each.event_data for each in self.log if each.event_type == EV_CALL_STARTED]
        until = next(each for each in reversed(started) if each["index"] == index).get("until", "")
        return str(until)

    def started(self, index: int, name: str = "look", **data: object) -> Envelope:
        call = {"turn": self.turn.turn_id, "index": index, "name": name, "digest": "d", "args": {}, **data}
        return fact("hub", EV_CALL_STARTED, call)

    def about(self, event_type: str, index: int = 0, **data: object) -> list[str]:
        return self.writes(self.claim, fact("hub", event_type, {"turn": self.turn.turn_id, "index": index, **data}))

    def returned(self, index: int = 0) -> list[str]:
        return self.about(EV_CALL_FINISHED, index, result={})

    def at(self, seconds: float) -> Timed:
        """The same at this second."""
        self.now = seconds
        self.took(tick(self.fold, ruleset=self.ruleset, at=at(seconds), new_id=self.new_id))
        self.now = seconds
        return self

    def expired(self) -> list[tuple[object, object]]:
        found = [each.event_data for each in self.log if each.event_type == EXPIRED]
        return [(each["layer"], each["deadline"]) for each in found]

    def failures(self) -> list[object]:
        return [each.event_data["reason"] for each in self.log if each.event_type == "antiphon.turn.failed"]


# The instant of a call


@pytest.mark.parametrize(
    ("limits", "now", "until"),
    [
        ({"step": 30}, 10, 40),
        ({"step": 30, "stage": 60}, 10, 40),
        ({"step": 30, "stage": 60}, 45, 61),  # the turn was assigned at the second 1
        ({"stage": 60, "run": 50}, 10, 51),
        ({"step": "unlimited", "stage": "unlimited", "run": 50}, 10, 51),
        ({}, 10, 40),  # those of the interactive tier
        ({}, 40, 61),
    ],
)
def test_a_call_has_the_earliest_of_its_deadlines(limits: dict[str, object], now: float, until: float) -> None:
    assert Timed(**limits).at(now).calls() == at(until)


def test_without_any_limit_a_call_has_no_deadline() -> None:
    assert Timed(step="unlimited").calls() == ""


@pytest.mark.parametrize(("now", "leaves"), [(59.9, True), (60, True), (60.000001, False), (60.5, False), (61, False)])
def test_a_call_with_less_than_a_second_left_is_denied_for_good(now: float, leaves: bool) -> None:
    channel = Timed(stage=60).at(now)
    assert (channel.calls() is not None) == leaves
    if not leaves:
        [failed] = [each.event_data for each in channel.log if each.event_type == EV_CALL_FAILED]
        assert (failed["denied"], failed["final"], failed["guard"]) == ("deadline", True, "deadlines")
        assert channel.expired() == [("stage", at(61))]


def test_a_call_that_starts_again_keeps_its_time() -> None:
    """After a crash it is recorded as started again, at the same place. A duration would begin anew."""
    channel = Timed(step=30).at(10)
    assert channel.calls() == at(40)
    assert channel.at(25).calls() == at(40)
    assert channel.at(39.5).calls() is None
    [failed] = [each.event_data for each in channel.log if each.event_type == EV_CALL_FAILED]
    assert "may have taken effect" in str(failed["error"])


def test_the_next_call_has_a_step_of_its_own() -> None:
    channel = Timed(step=30).at(10)
    assert channel.calls() == at(40)
    channel.returned()
    assert channel.at(20).calls(1) == at(50)


def test_a_tool_that_gives_tasks_has_no_step() -> None:
    assert Timed(step=30, stage=100).at(10).calls(open_ended=True) == at(101)


@pytest.mark.parametrize("field", ["step", "stage", "run"])
def test_0_allows_nothing(field: str) -> None:
    assert Timed(**{field: 0}).calls() is None


# When a time is over


def test_an_expired_turn_has_a_grace_and_ends_once() -> None:
    channel = Timed(stage=60).at(61)
    assert (channel.expired(), channel.failures()) == ([("stage", at(61))], [])
    channel.at(65.9)
    assert channel.failures() == []
    channel.at(66)
    assert (channel.failures(), channel.state.owed) == (["denied:deadline"], ())
    channel.at(1000)
    assert len(channel.expired()) == 1


def test_how_late_it_was_noticed_and_what_was_in_flight_is_recorded() -> None:
    channel = Timed(stage=60)
    channel.calls(0)
    channel.calls(1)
    channel.at(64)
    [told] = [each.event_data for each in channel.log if each.event_type == EXPIRED]
    assert (told["overrun_ms"], told["in_flight"], told["turn"]) == (3000, 2, channel.turn.turn_id)


def test_a_tool_call_without_an_outcome_is_in_doubt_and_no_model_call_is() -> None:
    channel = Timed(stage=60)
    channel.calls(0, "model", args=None)
    channel.calls(1, "pay")
    channel.at(61).at(66)
    assert [turn.doubts for turn in channel.state.owed] == [(1,)]
    channel.at(10 * HOUR)
    assert [turn.doubts for turn in channel.state.owed] == [(1,)]


def test_the_turn_behind_has_its_own_time_and_its_own_run() -> None:
    """A second message waits for the first: the time of its turn begins when it comes up."""
    channel = Timed(stage=60, run=60).at(50)
    channel.says("alice", "And another thing.")
    channel.at(60)
    channel.ends(channel.claim, because(channel.turn.cause or "", said("ada")))
    channel.turn, channel.claim = channel.running()
    assert channel.at(70).calls() == at(120)


def test_a_run_does_not_begin_anew_with_a_turn_that_an_agent_causes() -> None:
    channel = Timed("alice", "ada:agent", "bob:agent", kind="discussion", run=100)
    assert channel.turn.speaker == "ada"
    channel.at(50).ends(channel.claim, because(channel.turn.cause or "", said("ada")))
    channel.turn, channel.claim = channel.running()
    assert (channel.turn.speaker, channel.calls()) == ("bob", at(101))


# Waiting for a person


def waiting(channel: Timed, how: str) -> None:
    """The turn begins to wait for a person."""
    if how == "doubt":
        channel.calls(0, "pay")
        channel.about(EV_CALL_DOUBTED, name="pay")
    elif how == "approval":
        channel.about(EV_APPROVAL_REQUESTED, name="pay", args={}, digest="d")
        channel.releases(channel.claim)
    else:
        suspended = {"turn": channel.turn.turn_id, "speaker": "ada", "crashes": 10}
        channel.writes(channel.claim, fact("hub", EV_TURN_SUSPENDED, suspended))
    assert [turn.waits_for_person for turn in channel.state.owed] == [True]


def decided(channel: Timed, how: str) -> None:
    turn = channel.turn.turn_id
    entry = {
        "doubt": fact("hub", EV_CALL_FINISHED, {"turn": turn, "index": 0, "result": {}}),
        "approval": fact("hub", EV_CALL_APPROVED, {"turn": turn, "index": 0, "by": "dana"}),
        "suspension": fact("hub", EV_TURN_RESUMED, {"turn": turn, "by": "dana"}),
    }[how]
    channel.writes(TurnClaim(turn, channel.state.owed[0].epoch), entry)
    assert [turn.waits_for_person for turn in channel.state.owed] == [False]


@pytest.mark.parametrize("how", ["doubt", "approval", "suspension"])
@pytest.mark.parametrize("tier", [None, "batch", "regulated"])
def test_the_time_that_a_person_takes_moves_the_deadlines_by_exactly_that(how: str, tier: str | None) -> None:
    channel = Timed(tier=tier, **LIMITS).at(20)
    waiting(channel, how)
    since = channel.log[-1].created_at
    channel.at(20 + HOUR)
    assert channel.expired() == []
    decided(channel, how)
    moved = [each.event_data for each in channel.log if each.event_type == REBASED]
    waited = HOUR if since == at(20) else HOUR - 1  # releasing it has taken a second here
    assert moved == [
        {
            "old": at(121),
            "new": add_seconds(at(121), waited),
            "suspended_ms": waited * 1000,
            "turn": channel.turn.turn_id,
        }
    ]
    channel.at(61 + waited - 0.5)
    assert channel.expired() == []
    assert channel.at(61 + waited).expired() == [("stage", add_seconds(at(61), waited))]


@pytest.mark.parametrize("how", ["approval"])
def test_the_interactive_tier_waits_for_no_person(how: str) -> None:
    channel = Timed(tier="interactive", **LIMITS).at(20)
    waiting(channel, how)
    channel.at(61).at(66)
    assert (channel.expired(), channel.failures()) == ([("stage", at(61))], ["denied:deadline"])


@pytest.mark.parametrize("how", ["doubt", "suspension"])
def test_no_tier_ends_a_turn_whose_effects_a_person_must_judge(how: str) -> None:
    channel = Timed(tier="interactive", **LIMITS).at(20)
    waiting(channel, how)
    channel.at(100 * HOUR).at(101 * HOUR)
    assert (channel.failures(), len(channel.state.owed)) == ([], 1)


def test_people_move_a_deadline_by_72_hours_at_most() -> None:
    channel = Timed(**LIMITS).at(20)
    waiting(channel, "approval")
    channel.at(72 * HOUR + 60)
    assert channel.expired() == []
    channel.at(72 * HOUR + 62).at(72 * HOUR + 70)
    assert ("stage", at(61)) in channel.expired()
    assert channel.failures() == ["denied:deadline"]


def test_in_the_regulated_tier_what_waits_for_a_person_stays_open() -> None:
    channel = Timed(tier="regulated", **LIMITS).at(20)
    waiting(channel, "approval")
    channel.at(30 * 24 * HOUR)
    assert (channel.expired(), channel.failures()) == ([], [])


def test_a_run_in_which_another_works_meanwhile_is_not_moved() -> None:
    """Two have the turn together. One waits for a person from the start; the other works for 40 seconds."""
    rules = [Transition(FromSpeaker("alice"), AgentsTarget(["ada", "bob"]))]
    graph = TransitionGraph("alice", rules, TerminateTarget("done"))
    channel = PureChannel("workflow", "alice", "ada:agent", "bob:agent", graph=graph.to_dict(), guards=[DEADLINES])
    channel.says("alice")
    first, second = pending_turns(channel.state)
    channel.claims(first)
    channel.claims(second)
    doubted = {"turn": first.turn_id, "index": 0, "name": "pay"}
    channel.now = 10
    channel.writes(TurnClaim(first.turn_id, 1), fact("hub", EV_CALL_DOUBTED, doubted))
    channel.now = 50
    packet = fact("bob", "ag2.packet", {"body": "mine"})
    channel.ends(TurnClaim(second.turn_id, 1), because(second.cause or "", packet))
    channel.now = 70
    settled = fact("hub", EV_CALL_FINISHED, {"turn": first.turn_id, "index": 0, "result": {}})
    channel.writes(TurnClaim(first.turn_id, 1), settled)
    [moved] = [each.event_data for each in channel.log if each.event_type == REBASED]
    assert (moved["suspended_ms"], moved["old"], moved["new"]) == (60_000, at(121), at(141))


# Outages and restarts


def broken(channel: Timed, seconds: float, *, opened: float) -> Timed:
    """The same when a hub that was opened at this second looks."""
    breaks = TimeBreaks(at(opened))
    channel.now = seconds
    options = {"ruleset": channel.ruleset, "at": at(seconds), "new_id": channel.new_id, "breaks": breaks}
    channel.took(tick(channel.fold, **options))  # type: ignore[arg-type]
    channel.now = seconds
    return channel


def test_an_outage_counts_against_the_times_of_a_user_and_not_against_those_of_a_tier() -> None:
    mine = broken(Timed(**LIMITS), 2 * HOUR, opened=2 * HOUR)
    assert sorted(layer for layer, _ in mine.expired()) == ["run", "stage"]
    tiers = broken(Timed(tier="interactive"), 2 * HOUR, opened=2 * HOUR)
    assert (tiers.expired(), tiers.calls()) == ([], at(2 * HOUR + 30))
    tiers.at(2 * HOUR + 60)
    assert [layer for layer, _ in tiers.expired()] == ["stage"]


def test_of_a_tier_only_what_was_left_open_is_a_default() -> None:
    channel = broken(Timed(tier="interactive", stage=60), 2 * HOUR, opened=2 * HOUR)
    assert channel.expired() == [("stage", at(61))]


# A task


def task_channel(until: float, *, default: bool = False, **limits: object) -> PureChannel:
    origin = {"parent": "p", "turn": "1/x", "depth": 1, "root": "p", "until": at(until)}
    if default:
        origin["until_default"] = True
    guards = [{"name": "deadlines", **limits}]
    channel = PureChannel("consulting", "boss:agent", "ada:agent", task=origin, guards=guards)
    channel.says("boss")
    return channel


@pytest.mark.parametrize(("until", "expected"), [(40, 40), (500, 120)])
def test_a_task_has_the_time_of_its_turn_or_its_own_whichever_ends_first(until: float, expected: float) -> None:
    channel = task_channel(until, stage="unlimited", run=120)
    turn = pending_turns(channel.state)[0]
    channel.claims(turn)
    data = {"turn": turn.turn_id, "index": 0, "name": "look", "digest": "d", "args": {}}
    channel.writes(TurnClaim(turn.turn_id, turn.epoch + 1), fact("hub", EV_CALL_STARTED, data))
    [started] = [each for each in channel.log if each.event_type == EV_CALL_STARTED]
    assert started.event_data["until"] == at(expected)


# The guard itself


def test_bad_values_are_named() -> None:
    check_guard(Deadlines())
    check_guard(Deadlines(step=30, stage=60, run=120))
    for wrong in (-1, float("nan"), float("inf"), True, "30"):
        with pytest.raises(RulesInvalid, match=r"stage of deadlines is [^;]*; give seconds, 0 or more, or 'unlimited'"):
            Deadlines(stage=wrong)  # type: ignore[arg-type]
    with pytest.raises(RulesInvalid, match="run of deadlines is 'unlimited', which the regulated tier does not take"):
        guards_of({"tier": "regulated", "guards": [{"name": "deadlines", "run": "unlimited"}]})
    with pytest.raises(RulesInvalid, match="leave tier and defaults out"):
        Deadlines(defaults=("hour",))


@pytest.mark.parametrize(
    ("tier", "times"),
    [("interactive", (30, 60, 120)), ("batch", (120, 1800, 86_400)), ("regulated", (60, 900, 14_400))],
)
def test_each_tier_has_its_times(tier: str, times: tuple[float, ...]) -> None:
    [found] = [guard for guard in guards_of({"tier": tier}) if isinstance(guard, Deadlines)]
    assert (found.step, found.stage, found.run) == times
    assert found.defaults == ("step", "stage", "run")


MOVES = st.sampled_from(["call", "return", "doubt", "ask", "release", "approve", "settle", "say", "wait", "hour"])


@given(st.lists(MOVES, max_size=25))
@settings(max_examples=60, deadline=None)
def test_no_call_leaves_at_or_after_its_deadline_and_every_log_folds_the_same(moves: list[str]) -> None:
    channel = Timed(**LIMITS)
    for place, move in enumerate(moves):
        _play(channel, move, place)
    for each in channel.log:
        if each.event_type == EV_CALL_STARTED and "until" in each.event_data:
            assert each.created_at < str(each.event_data["until"])
    again = channel.ruleset.fold_all(channel.ruleset.begin("here"), channel.log)
    assert again == channel.fold
    assert restore_fold(channel.ruleset, from_json(to_json(again), SavedFold)) == again


def _play(channel: Timed, move: str, place: int) -> None:
    turn: Turn | None = next(iter(pending_turns(channel.state)), None)
    if move in ("wait", "hour"):
        channel.at(channel.now + (20 if move == "wait" else HOUR))
    elif move == "say":
        channel.says("alice", f"And {place}?")
        if channel.state.owed and not channel.state.owed[0].epoch:
            channel.turn, channel.claim = channel.running()
    elif turn is not None and turn.turn_id == channel.turn.turn_id:
        entries = {
            "call": channel.started(place),
            "return": fact("hub", EV_CALL_FINISHED, {"turn": turn.turn_id, "index": place - 1, "result": {}}),
            "doubt": fact("hub", EV_CALL_DOUBTED, {"turn": turn.turn_id, "index": place - 1, "name": "pay"}),
            "ask": fact(
                "hub",
                EV_APPROVAL_REQUESTED,
                {"turn": turn.turn_id, "index": place, "name": "pay", "args": {}, "digest": "d"},
            ),
            "approve": fact("hub", EV_CALL_APPROVED, {"turn": turn.turn_id, "index": place - 2, "by": "dana"}),
            "settle": fact("hub", EV_CALL_FINISHED, {"turn": turn.turn_id, "index": place - 2, "result": {}}),
        }
        if move == "release":
            channel.releases(channel.claim)
        else:
            channel.writes(channel.claim, entries[move])
