"""Laws of turns: whoever does what in whichever order, only the latest claim writes, and the log is the truth."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from antiphon import Envelope
from antiphon.core import execution_events, turns
from antiphon.core.call_permits import TurnClaim
from antiphon.core.evolve import evolve
from antiphon.core.execution_events import CallCleared
from antiphon.core.state import State, Turn
from antiphon.core.step import journal_draft, pending_turns
from tests.support.envelopes import ASSIGNED, assigned, closed, log_of, said, state_of
from tests.support.pure_channel import (
    FREE,
    ORDERED,
    PureChannel,
    because,
    call,
    claim,
    doubt,
    entry,
    failure,
    owed_ids,
    paused,
    release,
    result,
)


@st.composite
def moves(draw: st.DrawFn) -> tuple[str, int]:
    """What somebody does, and who of those who have ever seen or claimed a turn."""
    what = ["ask", "handle", "see", "claim", "write", "doubt", "clear", "release", "end", "fail"]
    return draw(st.sampled_from(what)), draw(st.integers(0, 9))


class Rivals:
    """Writers who claim turns as they saw them, long ago perhaps, and write with claims they may have lost."""

    def __init__(self, scene: PureChannel) -> None:
        self.scene = scene
        self.seen: list[Turn] = []
        self.held: list[tuple[Turn, TurnClaim]] = []
        self.latest: dict[str, int] = {}
        """The turns that have not ended, oldest first, and how often each was claimed."""
        self.read = 0

    def does(self, what: str, who: int) -> None:
        scene = self.scene
        if what == "ask":
            self.says("alice")
        elif what == "handle":
            self.says("ada")
        elif what == "see":
            self.seen.extend(pending_turns(scene.state))
        elif what == "claim" and self.seen:
            self.claims(self.seen[who % len(self.seen)])
        elif self.held:
            self.writes(what, *self.held[who % len(self.held)])
        self.assigns()

    def says(self, name: str) -> None:
        """Code speaks in this name, which ends the oldest turn that is owed in it."""
        self.scene.says(name)
        self.ends(next((turn for turn in self.latest if turn.endswith(f"/{name}")), None))

    def claims(self, turn: Turn) -> None:
        mine = turn.turn_id
        free = self.latest.get(mine) == turn.epoch and turns.owed_turn(self.scene.state, mine) in pending_turns(
            self.scene.state
        )
        assert (self.scene.claims(turn) == ["turn.claimed"]) == free
        if free:
            self.latest[mine] = turn.epoch + 1
            self.held.append((turn, TurnClaim(mine, turn.epoch + 1)))

    def writes(self, what: str, turn: Turn, by: TurnClaim) -> None:
        scene, mine = self.scene, turn.turn_id
        before = scene.fold
        recorded = {
            "write": lambda: scene.writes(by, entry(mine)),
            "doubt": lambda: scene.writes(by, doubt(mine)),
            "clear": lambda: scene.writes(by, journal_draft(execution_events.EV_CALL_CLEARED, CallCleared(mine, 0))),
            "release": lambda: scene.releases(by),
            "end": lambda: scene.ends(by, because(turn.cause or "", said(turn.speaker))),
            "fail": lambda: scene.fails(by),
        }.get(what, lambda: scene.writes(by, result(mine)))()
        if self.latest.get(mine) != by.epoch:
            assert recorded == ["denied:fenced"]
            assert scene.fold == before
            return
        assert recorded[0] != "denied:fenced"
        if what in {"end", "fail"}:
            self.ends(mine)

    def ends(self, turn_id: str | None) -> None:
        self.latest.pop(turn_id or "", None)

    def assigns(self) -> None:
        """Note what has become owed since the last move."""
        for each in self.scene.log[self.read :]:
            if each.event_type == ASSIGNED:
                self.latest |= {f"{each.sequence}/{name}": 0 for name in each.event_data["speakers"]}
        self.read = len(self.scene.log)


@given(
    st.lists(moves(), max_size=40), st.sampled_from([("alice", "ada:agent"), ("alice:agent", "ada:agent")]), st.data()
)
def test_only_the_latest_claim_writes(
    script: list[tuple[str, int]], people: tuple[str, ...], data: st.DataObject
) -> None:
    scene = PureChannel("conversation", *people)
    rivals = Rivals(scene)
    for what, who in [("ask", 0), ("see", 0), ("claim", 0), *script]:
        rivals.does(what, who)
        assert {turn.turn_id: turn.epoch for turn in scene.state.owed} == rivals.latest
    cut = data.draw(st.integers(0, len(scene.log)))
    begun_with = scene.ruleset.fold_all(scene.ruleset.begin("here"), scene.log[:cut])
    assert scene.ruleset.fold_all(begun_with, scene.log[cut:]) == scene.fold


some_turns = st.sampled_from(["6/ada", "6/bob", "7/ada", "8/ada", "nonsense"])
calls = st.sampled_from(["started", "finished", "failed", "doubted", "cleared", "conflicted"])
names = st.sampled_from(["alice", "ada", "bob", "hugo"])
anything = st.one_of(
    st.builds(because, st.sampled_from(["e5", "e6", "e7"]), names.map(said)),
    st.lists(names, max_size=3).map(lambda speakers: because("e6", assigned(*speakers))),
    st.builds(claim, some_turns, st.integers(-1, 3)),
    st.builds(release, some_turns, st.integers(-1, 3)),
    st.builds(call, calls, some_turns, st.integers(-1, 2)),
    st.builds(failure, some_turns, names),
    st.just(paused("x")),
    st.just(closed()),
)


@given(st.sampled_from([FREE, ORDERED]), st.lists(anything, max_size=15), st.data())
def test_whatever_is_recorded_folds(before: tuple[Envelope, ...], facts: list[Envelope], data: st.DataObject) -> None:
    """Nothing of it fails, also what no hub would record; and a prefix and the rest are the whole."""
    log = log_of(*before, assigned("ada", "bob"), *facts)
    cut = data.draw(st.integers(0, len(log)))
    state = state_of(*before, assigned("ada", "bob"), *facts)
    prefix = State()
    for envelope in log[:cut]:
        prefix = evolve(prefix, envelope)
    for envelope in log[cut:]:
        prefix = evolve(prefix, envelope)
    assert prefix == state
    ids = owed_ids(state)
    assert len(ids) == len(set(ids))
    assert {turn.speaker for turn in state.owed} <= set(state.speakers)
    assert all(turn.attempts >= 0 for turn in state.owed)
    assert not (state.ended and state.owed)
