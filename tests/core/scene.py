"""Short ways to write down what happens to a turn, and a channel in which it happens."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

from antiphon import Envelope
from antiphon.core import events, turns
from antiphon.core.events import CallDoubted, CallFinished, CallStarted
from antiphon.core.guard import Deny
from antiphon.core.state import State, Turn
from antiphon.core.step import Admitted, pending, step, tick
from antiphon.core.turns import Claim, Ending, Failure, Work, noted
from tests.core.cases import acked, at, created, fact, opened, said
from tests.core.test_step import begun

PEOPLE = ("alice", "ada:agent", "bob:agent", "hugo:human")
ACKS = (acked("ada"), acked("bob"), acked("hugo"), opened())
FREE = (created(*PEOPLE, ordered=False), *ACKS)
ORDERED = (created(*PEOPLE), *ACKS)
"""Five facts: the first that follows is `e6`."""


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


class Scene:
    """A channel under its laws, one move after the other. What is denied leaves it as it was."""

    def __init__(self, channel_type: str, *people: str, **knobs: object) -> None:
        self.laws, self.fold, opened = begun(channel_type, *people, **knobs)
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
        return self.took(step(self.fold, draft, laws=self.laws, at=at(self.now), new_id=self.new_id))

    def claims(self, turn: Turn, owner: str = "one") -> list[str]:
        return self.took(turns.claimed(self.fold, turn, owner, laws=self.laws, at=at(self.now), new_id=self.new_id))

    def writes(self, by: Claim, *entries: Envelope) -> list[str]:
        work = Work(by, entries)
        return self.took(turns.written(self.fold, work, laws=self.laws, at=at(self.now), new_id=self.new_id))

    def releases(self, by: Claim, *entries: Envelope) -> list[str]:
        work = Work(by, entries)
        return self.took(turns.released(self.fold, work, laws=self.laws, at=at(self.now), new_id=self.new_id))

    def ends(
        self, by: Claim, *drafts: Envelope, close: str | None = None, entries: tuple[Envelope, ...] = ()
    ) -> list[str]:
        options = {"laws": self.laws, "at": at(self.now), "new_id": self.new_id}
        return self.took(turns.ended(self.fold, Work(by, entries), Ending(drafts, close), **options))

    def fails(self, by: Claim, reason: str = "model_error", *entries: Envelope) -> list[str]:
        options = {"laws": self.laws, "at": at(self.now), "new_id": self.new_id}
        return self.took(turns.failed(self.fold, Work(by, entries), Failure(reason, "why"), **options))

    def waits(self, seconds: float) -> list[str]:
        self.now += seconds
        return self.took(tick(self.fold, laws=self.laws, at=at(self.now), new_id=self.new_id))

    def running(self) -> tuple[Turn, Claim]:
        """The first turn to be run, claimed."""
        turn = pending(self.state)[0]
        assert self.claims(turn) == ["turn.claimed"]
        return turn, Claim(turn.turn_id, turn.epoch + 1)

    def answers(self) -> list[str]:
        """The first turn to be run, claimed and answered."""
        turn, by = self.running()
        return self.ends(by, because(turn.cause or "", said(turn.speaker)))


def asked(channel_type: str = "conversation", *people: str, **knobs: object) -> Scene:
    """A channel in which alice has said something to ada."""
    scene = Scene(channel_type, *(people or ("alice", "ada:agent")), **knobs)
    scene.says("alice")
    assert [turn.speaker for turn in pending(scene.state)] == ["ada"]
    return scene


def entry(turn: str, index: int = 0) -> Envelope:
    return noted(events.EV_CALL_STARTED, CallStarted(turn, index, "look", "d", {}))


def result(turn: str, index: int = 0) -> Envelope:
    return noted(events.EV_CALL_FINISHED, CallFinished(turn, index, {"text": "7"}))


def doubt(turn: str, index: int = 0) -> Envelope:
    return noted(events.EV_CALL_DOUBTED, CallDoubted(turn, index, "pay"))
