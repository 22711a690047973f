"""A draft and all that follows from it, as one batch, in order, with its causes."""

from __future__ import annotations

from typing import ClassVar

import pytest

from antiphon import Assign, Close, Decision, Envelope, Expectation, Seats, State, Wait
from antiphon.core.codec import to_json
from antiphon.core.creation import opening_batch
from antiphon.core.event_data import Deny
from antiphon.core.events import ChannelCreated
from antiphon.core.guard import ALLOW, Change, Deadline, Verdict
from antiphon.core.ruleset import Fold, Ruleset
from antiphon.core.step import Admitted, hub_draft, pending_turns, step, tick
from antiphon.orchestration.catalogue import ruleset_for
from tests.core.test_evolve import BEGUN
from tests.support.envelopes import ASSIGNED, assigned, at, fact, packed, said, state_of
from tests.support.pure_channel import Ids, open_channel


def stepped(ruleset: Ruleset, fold: Fold, draft: Envelope, seconds: float = 5) -> Admitted | Deny:
    return step(fold, draft, ruleset=ruleset, at=at(seconds), new_id=Ids())


def admitted(outcome: Admitted | Deny) -> Admitted:
    assert isinstance(outcome, Admitted)
    return outcome


def test_an_opening_is_one_batch() -> None:
    _, fold, batch = open_channel("discussion", "alice", "bob", "carol")
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
    ruleset = ruleset_for("system", {})
    outcome = opening_batch(
        ruleset.begin("own"), ChannelCreated("system", "hub", []), (), ruleset=ruleset, at=at(0), new_id=Ids()
    )
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
    ruleset, fold, _ = open_channel(channel_type, *people)
    for draft in drafts:
        last = admitted(stepped(ruleset, fold, draft))
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
    ruleset, fold, _ = open_channel("discussion", "alice", "bob", writers={"key": []})
    outcome = stepped(ruleset, fold, draft)
    assert isinstance(outcome, Deny)
    assert outcome.reason == reason
    assert outcome.detail


def test_time_never_runs_backwards_in_a_log() -> None:
    ruleset, fold, _ = open_channel("discussion", "alice", "bob")
    first = admitted(stepped(ruleset, fold, said("alice"), 100))
    then = admitted(stepped(ruleset, first.fold, said("bob"), 50))
    assert [each.created_at for each in then.batch] == [at(100), at(100)]


def test_a_step_changes_nothing_it_was_given() -> None:
    ruleset, fold, _ = open_channel("discussion", "alice", "bob")
    before = to_json(fold)
    stepped(ruleset, fold, said("alice"))
    stepped(ruleset, fold, said("bob"))
    assert to_json(fold) == before


def test_what_is_due_is_done_in_order_and_once() -> None:
    ruleset, fold, _ = open_channel("discussion", "alice", "bob")
    assert tick(fold, ruleset=ruleset, at=at(119), new_id=Ids()) is None
    warned = tick(fold, ruleset=ruleset, at=at(120), new_id=Ids())
    assert warned is not None
    assert [each.event_type for each in warned.batch] == ["ag2.channel.expectation_violated"]
    assert tick(warned.fold, ruleset=ruleset, at=at(121), new_id=Ids()) is None
    both = tick(fold, ruleset=ruleset, at=at(1000), new_id=Ids())
    assert both is not None
    assert [each.event_type for each in both.batch] == [
        "ag2.channel.expectation_violated",
        "antiphon.expectation.missed",
        "ag2.channel.closed",
    ]
    assert both.fold.state.close_reason == "expectation_violated:turn_within"
    assert tick(both.fold, ruleset=ruleset, at=at(10_000), new_id=Ids()) is None


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
    assert [(turn.turn_id, turn.speaker) for turn in pending_turns(state)] == [
        (f"{state.sequence}/{name}", name) for name in owed
    ]


def test_nothing_is_owed_before_a_channel_is_open() -> None:
    assert pending_turns(state_of(*BEGUN[:3], assigned("carol"))) == ()


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
        return Deadline(at(memory), hub_draft("myapp.due", {"count": memory}))


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
    fold = Ruleset(Plain({})).begin("here")
    for guards, expected in (([Loud(), Strict()], "HELLO"), ([Strict(), Loud()], None)):
        outcome = stepped(Ruleset(Plain({}), guards), fold, said("alice"))
        if expected is None:
            assert outcome == Deny("mumbled")
        else:
            assert admitted(outcome).batch[0].event_data == {"text": expected}


def test_a_guard_may_change_what_happens_next() -> None:
    adapter = Plain({})
    adapter.decision = Assign(("bob",))
    ruleset = Ruleset(adapter, [Patience()])
    fold = Fold(open_channel("conversation", "alice", "bob")[1].state, (0,))
    types = []
    for _ in range(2):
        outcome = admitted(stepped(ruleset, fold, said("alice")))
        fold = outcome.fold
        types.append([each.event_type for each in outcome.batch])
    assert types == [["ag2.msg.text", ASSIGNED], ["ag2.msg.text", "ag2.channel.closed"]]
    assert fold.memories == (2,)
    assert ruleset.due(fold) is None


def test_the_earliest_deadline_counts() -> None:
    ruleset = Ruleset(Plain({}), [Patience(), Patience()])
    fold = Fold(State(), (7, 3))
    deadline = ruleset.due(fold)
    assert deadline is not None
    assert (deadline.at, deadline.draft.event_data) == (at(3), {"count": 3})


def test_a_snapshot_of_other_laws_is_not_used() -> None:
    plain, patient = Ruleset(Plain({})), Ruleset(Plain({}), [Patience()])
    assert plain.version != patient.version
    assert plain.version == Ruleset(Plain({})).version
