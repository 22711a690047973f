"""A draft and all that follows from it, as one batch, in order, with its causes."""

from __future__ import annotations

from itertools import count
from typing import ClassVar

import pytest

from antiphon import Assign, Close, Decision, Envelope, Expectation, Seats, State, Wait
from antiphon.core.events import Created, Seat
from antiphon.core.guard import ALLOW, Change, Deadline, Deny, Verdict
from antiphon.core.laws import Fold, Laws
from antiphon.core.opening import opening
from antiphon.core.step import Admitted, pending, said_by_hub, step, tick
from antiphon.orchestration.lawbook import laws_for
from tests.core.cases import ASSIGNED, assigned, at, fact, packed, said, state_of
from tests.core.test_evolve import BEGUN


class Ids:
    def __init__(self) -> None:
        self._numbers = count(1)

    def __call__(self) -> str:
        return f"id{next(self._numbers)}"


def begun(channel_type: str, *people: str, **knobs: object) -> tuple[Laws, Fold, Admitted]:
    laws = laws_for(channel_type, knobs)
    seats = [Seat(*each.split(":")) for each in people]
    created = Created(channel_type, seats[0].name, seats, knobs, laws.adapter.ordered)
    admitted = opening(laws.begin("here"), created, {seat.name for seat in seats}, laws=laws, at=at(0), new_id=Ids())
    return laws, admitted.fold, admitted


def stepped(laws: Laws, fold: Fold, draft: Envelope, seconds: float = 5) -> Admitted | Deny:
    return step(fold, draft, laws=laws, at=at(seconds), new_id=Ids())


def admitted(outcome: Admitted | Deny) -> Admitted:
    assert isinstance(outcome, Admitted)
    return outcome


def test_an_opening_is_one_batch() -> None:
    _, fold, batch = begun("discussion", "alice", "bob", "carol")
    assert [(each.sender_id, each.event_type.split(".", 1)[1]) for each in batch.batch] == [
        ("hub", "channel.created"),
        ("hub", "channel.invite"),
        ("hub", "channel.invite"),
        ("bob", "channel.invite.ack"),
        ("carol", "channel.invite.ack"),
        ("hub", "channel.opened"),
        ("hub", "turn.assigned"),
    ]
    assert [each.sequence for each in batch.batch] == [1, 2, 3, 4, 5, 6, 7]
    assert len({each.envelope_id for each in batch.batch}) == 7
    assert (fold.state.status, fold.state.speakers) == ("active", ("alice",))


def test_nobody_alone_opens_at_once() -> None:
    laws = laws_for("system", {})
    outcome = opening(laws.begin("own"), Created("system", "hub", []), (), laws=laws, at=at(0), new_id=Ids())
    assert [each.event_type for each in outcome.batch] == ["antiphon.channel.created", "ag2.channel.opened"]


@pytest.mark.parametrize(
    ("channel_type", "people", "drafts", "expected"),
    [
        ("conversation", ("alice", "bob"), [said("alice")], ["ag2.msg.text"]),
        ("conversation", ("alice", "ada:agent"), [said("alice")], ["ag2.msg.text", ASSIGNED]),
        ("conversation", ("alice", "ada:agent"), [said("ada")], ["ag2.msg.text"]),
        ("consulting", ("alice", "bob"), [said("alice")], ["ag2.msg.text", ASSIGNED]),
        ("consulting", ("alice", "bob"), [said("alice"), said("bob")], ["ag2.msg.text", "ag2.channel.closed"]),
        ("discussion", ("alice", "bob"), [packed("alice")], ["ag2.packet", ASSIGNED]),
        ("discussion", ("alice", "hugo:human"), [said("hugo")], ["ag2.msg.text"]),
        ("discussion", ("alice", "bob"), [fact("bob", "myapp.thing")], ["myapp.thing"]),
        ("discussion", ("alice", "bob"), [fact("bob", "ag2.context.set", {"set": {}})], ["ag2.context.set"]),
    ],
)
def test_what_follows(channel_type: str, people: tuple[str, ...], drafts: list[Envelope], expected: list[str]) -> None:
    laws, fold, _ = begun(channel_type, *people)
    for draft in drafts:
        last = admitted(stepped(laws, fold, draft))
        fold = last.fold
    assert [each.event_type for each in last.batch] == expected
    assert fold.state.sequence == last.batch[-1].sequence
    first, *rest = last.batch
    for cause, effect in zip([first, *rest], rest, strict=False):
        assert (effect.causation_id, effect.sender_id) == (cause.envelope_id, "hub")
        assert effect.created_at == cause.created_at


@pytest.mark.parametrize(
    ("draft", "reason"),
    [
        (said("bob"), "not_expected_speaker"),
        (said("mallory"), "not_a_participant"),
        (said("hub"), "not_a_participant"),
        (said("alice", audience=["mallory"]), "unknown_audience"),
        (fact("bob", "ag2.context.set", {"set": {"key": 1}}), "not_a_writer"),
        (packed("alice", set={"key": 1}), "not_a_writer"),
    ],
)
def test_what_is_denied(draft: Envelope, reason: str) -> None:
    laws, fold, _ = begun("discussion", "alice", "bob", writers={"key": []})
    outcome = stepped(laws, fold, draft)
    assert isinstance(outcome, Deny)
    assert outcome.reason == reason
    assert outcome.detail


def test_time_never_runs_backwards_in_a_log() -> None:
    laws, fold, _ = begun("discussion", "alice", "bob")
    first = admitted(stepped(laws, fold, said("alice"), 100))
    then = admitted(stepped(laws, first.fold, said("bob"), 50))
    assert [each.created_at for each in then.batch] == [at(100), at(100)]


def test_a_step_changes_nothing_it_was_given() -> None:
    laws, fold, _ = begun("discussion", "alice", "bob")
    before = laws.save(fold)
    stepped(laws, fold, said("alice"))
    stepped(laws, fold, said("bob"))
    assert laws.save(fold) == before


def test_what_is_due_is_done_in_order_and_once() -> None:
    laws, fold, _ = begun("discussion", "alice", "bob")
    assert tick(fold, laws=laws, at=at(119), new_id=Ids()) is None
    warned = tick(fold, laws=laws, at=at(120), new_id=Ids())
    assert warned is not None
    assert [each.event_type for each in warned.batch] == ["ag2.channel.expectation_violated"]
    assert tick(warned.fold, laws=laws, at=at(121), new_id=Ids()) is None
    both = tick(fold, laws=laws, at=at(1000), new_id=Ids())
    assert both is not None
    assert [each.event_type for each in both.batch] == [
        "ag2.channel.expectation_violated",
        "antiphon.expectation.missed",
        "ag2.channel.closed",
    ]
    assert both.fold.state.close_reason == "expectation_violated:turn_within"
    assert tick(both.fold, laws=laws, at=at(10_000), new_id=Ids()) is None


@pytest.mark.parametrize(
    ("facts", "owed"),
    [
        ((), []),
        ((assigned("carol"),), ["carol"]),
        ((assigned("alice", "bob", "carol"),), ["carol"]),
        ((assigned("bob"),), []),
        ((assigned("carol"), fact("hub", "ag2.channel.closed", {"reason": "x"})), []),
    ],
)
def test_only_agents_owe_turns(facts: tuple[Envelope, ...], owed: list[str]) -> None:
    """bob is a person and alice is code: they speak when they like to."""
    state = state_of(*BEGUN, *facts)
    assert [(turn.turn_id, turn.speaker) for turn in pending(state)] == [
        (f"{state.sequence}/{name}", name) for name in owed
    ]


def test_nothing_is_owed_before_a_channel_is_open() -> None:
    assert pending(state_of(*BEGUN[:3], assigned("carol"))) == ()


# Guards, one opinion at a time


class Loud:
    """Records everything in capitals."""

    name = "loud"

    def judge(self, memory: object, state: State, draft: Envelope) -> Verdict:
        text = str(draft.event_data.get("text", ""))
        return Change(fact(draft.sender_id, draft.event_type, {"text": text.upper()})) if text else ALLOW


class Strict:
    """Lets only capitals pass."""

    name = "strict"

    def judge(self, memory: object, state: State, draft: Envelope) -> Verdict:
        return ALLOW if str(draft.event_data["text"]).isupper() else Deny("mumbled")


class Patience:
    """Ends the channel after so many turns, and counts them by folding."""

    name = "patience"
    memory: ClassVar[type] = int

    def evolve(self, memory: int, envelope: Envelope) -> int:
        return memory + (envelope.event_type == "ag2.msg.text")

    def review(self, memory: int, state: State, decision: Decision) -> Decision:
        return Close("enough") if memory >= 2 else decision

    def due(self, memory: int, state: State) -> Deadline | None:
        return Deadline(at(memory), said_by_hub("myapp.due", {"count": memory}))


class Plain:
    name: ClassVar[str] = "plain"
    seats: ClassVar[Seats] = Seats()
    ordered: ClassVar[bool] = False
    knobs: ClassVar[frozenset[str]] = frozenset()
    expectations: ClassVar[tuple[Expectation, ...]] = ()

    def __init__(self, knobs: dict[str, object]) -> None:
        self.decision: Decision = Wait()

    def decide(self, memory: object, state: State, envelope: Envelope) -> Decision:
        return self.decision


def test_a_guard_may_change_a_draft_and_the_next_sees_the_change() -> None:
    fold = Laws(Plain({})).begin("here")
    for guards, expected in (([Loud(), Strict()], "HELLO"), ([Strict(), Loud()], None)):
        outcome = stepped(Laws(Plain({}), guards), fold, said("alice"))
        if expected is None:
            assert outcome == Deny("mumbled")
        else:
            assert admitted(outcome).batch[0].event_data == {"text": expected}


def test_a_guard_may_change_what_happens_next() -> None:
    adapter = Plain({})
    adapter.decision = Assign(("bob",))
    laws = Laws(adapter, [Patience()])
    fold = Fold(begun("conversation", "alice", "bob")[1].state, (0,))
    types = []
    for _ in range(2):
        outcome = admitted(stepped(laws, fold, said("alice")))
        fold = outcome.fold
        types.append([each.event_type for each in outcome.batch])
    assert types == [["ag2.msg.text", ASSIGNED], ["ag2.msg.text", "ag2.channel.closed"]]
    assert fold.memories == (2,)
    assert laws.due(fold) is None


def test_the_earliest_deadline_counts() -> None:
    laws = Laws(Plain({}), [Patience(), Patience()])
    fold = Fold(State(), (7, 3))
    deadline = laws.due(fold)
    assert deadline is not None
    assert (deadline.at, deadline.draft.event_data) == (at(3), {"count": 3})


def test_a_snapshot_of_other_laws_is_not_used() -> None:
    plain, patient = Laws(Plain({})), Laws(Plain({}), [Patience()])
    assert plain.version != patient.version
    assert plain.version == Laws(Plain({})).version
