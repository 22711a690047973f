"""Short ways to write down what happens to a turn, and a channel in which it happens."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

from antiphon import Envelope
from antiphon.core import execution_events, turns
from antiphon.core.call_permits import JournalBatch, TurnClaim
from antiphon.core.creation import opening_batch
from antiphon.core.event_data import Deny
from antiphon.core.events import ChannelCreated, Seat
from antiphon.core.execution_events import CallDoubted, CallFinished, CallStarted
from antiphon.core.ruleset import Fold, Ruleset
from antiphon.core.state import State, Turn
from antiphon.core.step import Admitted, journal_draft, pending_turns, step, tick
from antiphon.core.turns import TurnEnding, TurnFailure
from antiphon.orchestration.catalogue import ruleset_for
from tests.support.envelopes import acked, at, created, fact, opened, said

PEOPLE = ("alice", "ada:agent", "bob:agent", "hugo:human")
ACKS = (acked("ada"), acked("bob"), acked("hugo"), opened())
FREE = (created(*PEOPLE, ordered=False), *ACKS)
ORDERED = (created(*PEOPLE), *ACKS)
"""Five facts: the first that follows is `e6`."""


class Ids:
    """Ids in order: `id1`, `id2`."""

    def __init__(self) -> None:
        self._numbers = count(1)

    def __call__(self) -> str:
        return f"id{next(self._numbers)}"


def open_channel(channel_type: str, *people: str, **knobs: object) -> tuple[Ruleset, Fold, Admitted]:
    """The ruleset of a channel that everybody has joined, its fold, and the batch that opened it."""
    ruleset = ruleset_for(channel_type, knobs)
    seats = [Seat(*each.split(":")) for each in people]
    creation = ChannelCreated(channel_type, seats[0].name, seats, knobs, ruleset.adapter.ordered)
    admitted = opening_batch(
        ruleset.begin("here"), creation, {seat.name for seat in seats}, ruleset=ruleset, at=at(0), new_id=Ids()
    )
    return ruleset, admitted.fold, admitted


def because(cause: str, then: Envelope) -> Envelope:
    return replace(then, causation_id=cause)


def claim(turn: str, epoch: int = 1, owner: str = "one") -> Envelope:
    return fact("hub", "antiphon.turn.claimed", {"turn": turn, "epoch": epoch, "owner": owner})


def release(turn: str, epoch: int = 1) -> Envelope:
    return fact("hub", "antiphon.turn.released", {"turn": turn, "epoch": epoch})


def failure(turn: str, speaker: str, reason: str = "model_error") -> Envelope:
    return fact("hub", "antiphon.turn.failed", {"turn": turn, "speaker": speaker, "reason": reason})


def call(what: str, turn: str, index: int = 0) -> Envelope:
    """A fact about a call, with everything any of them needs."""
    data = {"turn": turn, "index": index, "name": "look", "digest": "d", "result": {}, "error": "no"}
    return fact("hub", f"antiphon.call.{what}", {**data, "recorded": "d", "asked": "e"})


def paused(reason: str) -> Envelope:
    return fact("hub", "antiphon.channel.paused", {"reason": reason})


def owed_ids(state: State) -> list[str]:
    return [turn.turn_id for turn in state.owed]


class PureChannel:
    """A channel under its ruleset, one move after the other. What is denied leaves it as it was."""

    def __init__(self, channel_type: str, *people: str, **knobs: object) -> None:
        self.ruleset, self.fold, opened = open_channel(channel_type, *people, **knobs)
        self.log = list(opened.batch)
        self.now = 1.0
        numbers = count(1)
        self.new_id = lambda: f"m{next(numbers)}"

    @property
    def state(self) -> State:
        return self.fold.state

    def took(self, outcome: Admitted | Deny | None) -> list[str]:
        """What was recorded, by type; what was not, by reason."""
        if isinstance(outcome, Deny):
            assert outcome.detail
            return [f"denied:{outcome.reason}"]
        batch = () if outcome is None else outcome.batch
        self.fold = self.fold if outcome is None else outcome.fold
        self.log.extend(batch)
        self.now += 1
        return [each.event_type.split(".", 1)[1] for each in batch]

    def says(self, who: str, text: str = "hello", cause: str | None = None) -> list[str]:
        draft = replace(said(who, text), causation_id=cause)
        return self.took(step(self.fold, draft, ruleset=self.ruleset, at=at(self.now), new_id=self.new_id))

    def claims(self, turn: Turn, owner: str = "one") -> list[str]:
        return self.took(
            turns.claim_turn(self.fold, turn, owner, ruleset=self.ruleset, at=at(self.now), new_id=self.new_id)
        )

    def writes(self, by: TurnClaim, *entries: Envelope) -> list[str]:
        work = JournalBatch(by, entries)
        return self.took(
            turns.write_entries(self.fold, work, ruleset=self.ruleset, at=at(self.now), new_id=self.new_id)
        )

    def releases(self, by: TurnClaim, *entries: Envelope) -> list[str]:
        work = JournalBatch(by, entries)
        return self.took(turns.release_turn(self.fold, work, ruleset=self.ruleset, at=at(self.now), new_id=self.new_id))

    def ends(
        self, by: TurnClaim, *drafts: Envelope, close: str | None = None, entries: tuple[Envelope, ...] = ()
    ) -> list[str]:
        options = {"ruleset": self.ruleset, "at": at(self.now), "new_id": self.new_id}
        return self.took(turns.end_turn(self.fold, JournalBatch(by, entries), TurnEnding(drafts, close), **options))

    def fails(self, by: TurnClaim, reason: str = "model_error", *entries: Envelope) -> list[str]:
        options = {"ruleset": self.ruleset, "at": at(self.now), "new_id": self.new_id}
        return self.took(turns.fail_turn(self.fold, JournalBatch(by, entries), TurnFailure(reason, "why"), **options))

    def waits(self, seconds: float) -> list[str]:
        self.now += seconds
        return self.took(tick(self.fold, ruleset=self.ruleset, at=at(self.now), new_id=self.new_id))

    def running(self) -> tuple[Turn, TurnClaim]:
        """The first turn to be run, claimed."""
        turn = pending_turns(self.state)[0]
        assert self.claims(turn) == ["turn.claimed"]
        return turn, TurnClaim(turn.turn_id, turn.epoch + 1)

    def answers(self) -> list[str]:
        """The first turn to be run, claimed and answered."""
        turn, by = self.running()
        return self.ends(by, because(turn.cause or "", said(turn.speaker)))


def asked(channel_type: str = "conversation", *people: str, **knobs: object) -> PureChannel:
    """A channel in which alice has said something to ada."""
    channel = PureChannel(channel_type, *(people or ("alice", "ada:agent")), **knobs)
    channel.says("alice")
    assert [turn.speaker for turn in pending_turns(channel.state)] == ["ada"]
    return channel


def entry(turn: str, index: int = 0) -> Envelope:
    return journal_draft(execution_events.EV_CALL_STARTED, CallStarted(turn, index, "look", "d", {}))


def result(turn: str, index: int = 0) -> Envelope:
    return journal_draft(execution_events.EV_CALL_FINISHED, CallFinished(turn, index, {"text": "7"}))


def doubt(turn: str, index: int = 0) -> Envelope:
    return journal_draft(execution_events.EV_CALL_DOUBTED, CallDoubted(turn, index, "pay"))
