"""Turns: how they are owed, claimed, worked on and ended, and what follows when one fails."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from antiphon import Envelope
from antiphon.core import execution_events, turns
from antiphon.core.call_permits import JournalBatch
from antiphon.core.event_data import Deny
from antiphon.core.execution_events import CallCleared
from antiphon.core.state import Turn
from antiphon.core.step import journal_draft, pending_turns
from tests.support.envelopes import assigned, at, closed, fact, said, state_of
from tests.support.pure_channel import (
    FREE,
    ORDERED,
    PureChannel,
    asked,
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

# How a turn changes

MINE = "6/ada"
NEW = Turn(MINE, "ada", "e4", 6)


def ada(**changes: object) -> Turn:
    return msgspec.structs.replace(NEW, **changes)


@pytest.mark.parametrize("before", [FREE, ORDERED], ids=["free", "ordered"])
@pytest.mark.parametrize(
    ("facts", "turn"),
    [
        ((), NEW),
        ((claim(MINE),), ada(epoch=1, owner="one", attempts=1)),
        ((claim(MINE), claim(MINE, 2, "two")), ada(epoch=2, owner="two", attempts=2)),
        ((claim(MINE), release(MINE)), ada(epoch=1)),
        ((claim(MINE), claim(MINE, 2, "two"), release(MINE, 2)), ada(epoch=2, attempts=1)),
        ((claim(MINE), claim(MINE, 2)), ada(epoch=2, owner="one", attempts=1)),
        ((claim(MINE), claim(MINE, 2, "two"), release(MINE, 1)), ada(epoch=2, owner="two", attempts=2)),
        ((release(MINE, 0),), NEW),
        ((claim("6/bob"), claim("5/ada")), NEW),
        ((claim(MINE), call("started", MINE)), ada(epoch=1, owner="one", attempts=1)),
        ((claim(MINE), call("conflicted", MINE)), ada(epoch=1, owner="one", attempts=1)),
        ((claim(MINE), claim(MINE, 2), call("finished", MINE)), ada(epoch=2, owner="one")),
        ((claim(MINE), call("failed", MINE)), ada(epoch=1, owner="one")),
        ((claim(MINE), call("cleared", MINE)), ada(epoch=1, owner="one")),
        ((claim(MINE), call("finished", "6/bob")), ada(epoch=1, owner="one", attempts=1)),
        ((call("doubted", MINE, 1), call("doubted", MINE, 2)), ada(doubts=(1, 2))),
        ((call("doubted", MINE, 1), call("doubted", MINE, 2), call("finished", MINE, 1)), ada(doubts=(2,))),
        ((call("doubted", MINE, 1), call("doubted", MINE, 2), call("failed", MINE, 2)), ada(doubts=(1,))),
        ((call("doubted", MINE, 1), call("cleared", MINE, 1)), NEW),
        ((call("doubted", MINE, 1), call("cleared", MINE, 2)), ada(doubts=(1,))),
        ((call("doubted", "6/bob", 1),), NEW),
        ((failure("6/bob", "bob"),), NEW),
        ((failure(MINE, "ada"),), None),
        ((said("ada"),), None),
        ((said("bob"),), NEW),
        ((said("alice"),), NEW),
        ((fact("ada", "ag2.packet", {"body": "done"}),), None),
        ((fact("ada", "ag2.msg.text", {"text": 7}),), NEW),
        ((closed(),), None),
        ((fact("hub", "ag2.channel.expired"),), None),
    ],
)
def test_what_becomes_of_a_turn(before: tuple[Envelope, ...], facts: tuple[Envelope, ...], turn: Turn | None) -> None:
    state = state_of(*before, because("e4", assigned("ada")), *facts)
    assert state.owed == (() if turn is None else (turn,))


def test_every_agent_of_an_assignment_owes_its_own_turn() -> None:
    state = state_of(*ORDERED, because("e5", assigned("hugo", "bob", "alice", "ada", "bob")))
    assert state.owed == (Turn("6/bob", "bob", "e5", 6), Turn("6/ada", "ada", "e5", 6))


@pytest.mark.parametrize(
    ("facts", "owed", "speakers"),
    [
        ((said("ada"),), ["6/bob"], ("bob", "hugo")),
        ((said("hugo"),), ["6/bob", "6/ada"], ("bob", "ada")),
        ((said("ada"), said("bob")), [], ("hugo",)),
        ((said("ada"), said("hugo"), said("bob")), [], ()),
        ((failure("6/bob", "bob"),), ["6/ada"], ("ada", "hugo")),
        ((failure("6/bob", "bob"), said("ada")), [], ("hugo",)),
        ((failure("9/bob", "bob"),), ["6/bob", "6/ada"], ("bob", "ada", "hugo")),
    ],
)
def test_several_speakers(facts: tuple[Envelope, ...], owed: list[str], speakers: tuple[str, ...]) -> None:
    state = state_of(*ORDERED, assigned("bob", "ada", "hugo"), *facts)
    assert owed_ids(state) == owed
    assert sorted(state.speakers) == sorted(speakers)


def test_in_an_ordered_channel_a_new_assignment_replaces_the_one_before() -> None:
    state = state_of(*ORDERED, assigned("ada"), claim("6/ada"), assigned("bob"))
    assert (owed_ids(state), state.speakers, state.assigned_at) == (["8/bob"], ("bob",), at(8))


# What waits in a conversation

QUEUE = (*FREE, said("alice"), because("e6", assigned("ada")), said("alice"), because("e8", assigned("ada")))
"""Two messages to ada: `7/ada` answers `e6`, and `9/ada` answers `e8`."""


def test_in_a_free_channel_a_new_assignment_waits_behind_the_one_before() -> None:
    state = state_of(*QUEUE)
    assert state.owed == (Turn("7/ada", "ada", "e6", 7), Turn("9/ada", "ada", "e8", 9))
    assert (state.speakers, state.assigned_at) == (("ada",), at(7))
    both = state_of(*QUEUE, assigned("bob"))
    assert (owed_ids(both), both.speakers) == (["7/ada", "9/ada", "10/bob"], ("ada", "bob"))


@pytest.mark.parametrize(
    ("answer", "left"),
    [
        (because("e6", said("ada")), ["9/ada"]),
        (because("e8", said("ada")), ["7/ada"]),
        (said("ada"), ["9/ada"]),
        (because("e1", said("ada")), ["9/ada"]),
        (because("e6", said("bob")), ["7/ada", "9/ada"]),
        (because("e6", said("alice")), ["7/ada", "9/ada"]),
    ],
)
def test_an_answer_ends_the_turn_of_its_cause_or_else_the_oldest(answer: Envelope, left: list[str]) -> None:
    state = state_of(*QUEUE, answer)
    assert owed_ids(state) == left
    assert state.speakers == ("ada",)


def test_the_next_in_line_is_owed_from_when_it_became_the_first() -> None:
    assert state_of(*QUEUE, because("e6", said("ada"))).assigned_at == at(10)
    assert state_of(*QUEUE, failure("7/ada", "ada")).assigned_at == at(10)
    last = state_of(*QUEUE, because("e6", said("ada")), because("e8", said("ada")))
    assert (last.owed, last.speakers, last.assigned_at) == ((), (), at(10))
    again = state_of(*QUEUE, said("ada"), said("ada"), assigned("ada"))
    assert again.assigned_at == at(12)


@pytest.mark.parametrize("last", [closed(), fact("hub", "ag2.channel.expired")])
def test_what_has_ended_owes_nothing(last: Envelope) -> None:
    state = state_of(*QUEUE, paused("x"), last)
    assert (state.owed, state.speakers, state.paused, pending_turns(state)) == ((), (), "", ())


# Who is attended


@pytest.mark.parametrize(
    ("facts", "unattended"),
    [
        ((claim("7/ada"), because("e6", said("ada"))), 1),
        ((claim("7/ada"), because("e6", said("ada")), claim("9/ada"), said("ada")), 2),
        ((claim("7/ada"), because("e6", said("ada")), said("ada")), 0),  # nobody has claimed 9/ada
        ((because("e6", said("ada")),), 0),
        ((claim("7/ada"), because("e6", said("ada")), said("alice")), 0),
        ((claim("7/ada"), because("e6", said("ada")), said("hugo")), 0),
        ((claim("7/ada"), because("e6", said("ada")), said("bob")), 0),
        ((claim("7/ada"), failure("7/ada", "ada")), 0),
        ((claim("7/ada"), said("ada"), fact("alice", "myapp.thing")), 1),
        ((claim("7/ada"), said("ada"), claim("9/ada"), failure("9/ada", "ada")), 1),
    ],
)
def test_turns_that_agents_took_in_a_row(facts: tuple[Envelope, ...], unattended: int) -> None:
    assert state_of(*QUEUE, *facts).unattended == unattended


@pytest.mark.parametrize(
    ("then", "reason"),
    [
        (said("alice"), ""),
        (said("hugo"), ""),
        (said("ada"), ""),
        (assigned("ada"), ""),
        (closed(), ""),
        (paused("y"), "y"),
        (fact("alice", "myapp.thing"), "x"),
        (fact("alice", "ag2.context.set", {"set": {"a": 1}}), "x"),
    ],
)
def test_what_ends_a_pause(then: Envelope, reason: str) -> None:
    assert state_of(*FREE, paused("x")).paused == "x"
    assert state_of(*FREE, paused("x"), then).paused == reason


# What is to be run


@pytest.mark.parametrize(
    ("facts", "ids"),
    [
        ((), ["7/ada"]),
        ((assigned("bob"),), ["7/ada", "10/bob"]),
        ((claim("7/ada"),), ["7/ada"]),
        ((call("doubted", "7/ada"),), []),
        ((call("doubted", "9/ada"),), ["7/ada"]),
        ((call("doubted", "7/ada"), assigned("bob")), ["11/bob"]),
        ((call("doubted", "7/ada"), call("cleared", "7/ada")), ["7/ada"]),
        ((because("e8", said("ada")),), ["7/ada"]),
        ((because("e6", said("ada")),), ["9/ada"]),
        ((failure("7/ada", "ada"),), ["9/ada"]),
        ((closed(),), []),
    ],
)
def test_of_each_agent_the_oldest_is_pending(facts: tuple[Envelope, ...], ids: list[str]) -> None:
    assert [turn.turn_id for turn in pending_turns(state_of(*QUEUE, *facts))] == ids


# What the owner of a turn may record


def test_a_claim_is_for_operators_and_names_its_turn() -> None:
    scene = asked()
    turn = pending_turns(scene.state)[0]
    assert scene.claims(turn, "me") == ["turn.claimed"]
    note = scene.log[-1]
    assert (note.sender_id, note.audience, note.causation_id) == ("hub", ["hub:operators"], turn.cause)
    assert note.event_data == {"turn": turn.turn_id, "epoch": 1, "owner": "me"}
    assert turns.owed_turn(scene.state, turn.turn_id) == msgspec.structs.replace(turn, epoch=1, owner="me", attempts=1)
    assert turns.owed_turn(scene.state, "1/ada") is None


def test_of_two_that_saw_the_same_turn_one_claims_it() -> None:
    scene = asked()
    seen = pending_turns(scene.state)[0]
    assert scene.claims(seen, "one") == ["turn.claimed"]
    assert scene.claims(seen, "two") == ["denied:fenced"]
    assert scene.claims(pending_turns(scene.state)[0], "two") == ["turn.claimed"]
    assert (scene.state.owed[0].epoch, scene.state.owed[0].owner) == (2, "two")


def test_neither_what_ended_nor_what_waits_in_line_nor_what_is_in_doubt_is_claimed() -> None:
    scene = asked()
    scene.says("alice")
    first, second = scene.state.owed
    assert scene.claims(second) == ["denied:fenced"]
    scene.says("ada", cause=first.cause)
    assert scene.claims(first) == ["denied:fenced"]
    _, by = scene.running()
    scene.writes(by, doubt(by.turn_id))
    assert scene.claims(scene.state.owed[0]) == ["denied:fenced"]


@pytest.mark.parametrize("over", ["claimed again", "answered", "failed", "closed"])
@pytest.mark.parametrize("move", ["write", "release", "end", "fail"])
def test_who_lost_a_turn_is_fenced_and_nothing_is_recorded(over: str, move: str) -> None:
    scene = asked()
    turn, by = scene.running()
    mine = turn.turn_id
    match over:
        case "claimed again":
            scene.claims(scene.state.owed[0], "two")
        case "answered":
            scene.says("ada")
        case "failed":
            scene.fails(by)
        case "closed":
            scene.ends(by, said("ada"), close="done")
    before = scene.fold
    moves = {
        "write": lambda: scene.writes(by, entry(mine)),
        "release": lambda: scene.releases(by, entry(mine)),
        "end": lambda: scene.ends(by, said("ada"), entries=(entry(mine),)),
        "fail": lambda: scene.fails(by, "late", entry(mine)),
    }
    assert moves[move]() == ["denied:fenced"]
    assert scene.fold == before


def test_who_was_fenced_is_told_who_has_the_turn() -> None:
    scene = asked()
    _, by = scene.running()
    scene.claims(scene.state.owed[0], "two")
    outcome = turns.write_entries(scene.fold, JournalBatch(by), ruleset=scene.ruleset, at=at(9), new_id=scene.new_id)
    assert outcome == Deny("fenced", f"turn {by.turn_id} was claimed again, by two: 2 > 1")


def test_entries_are_one_batch_in_their_order() -> None:
    scene = asked()
    turn, by = scene.running()
    head = scene.state.sequence
    mine = turn.turn_id
    assert scene.writes(by, entry(mine, 0), entry(mine, 1), result(mine, 1)) == [
        "call.started",
        "call.started",
        "call.finished",
    ]
    assert [each.sequence for each in scene.log[-3:]] == [head + 1, head + 2, head + 3]
    assert {tuple(each.audience or ()) for each in scene.log[-3:]} == {("hub:operators",)}
    assert JournalBatch(by).with_entry(entry(mine)).with_entry(result(mine)) == JournalBatch(
        by, (entry(mine), result(mine))
    )


def test_an_answer_is_recorded_with_the_last_of_the_journal() -> None:
    scene = asked()
    turn, by = scene.running()
    recorded = scene.ends(by, said("ada"), entries=(entry(turn.turn_id), result(turn.turn_id)))
    assert recorded == ["call.started", "call.finished", "msg.text"]
    assert (scene.state.owed, scene.state.unattended) == ((), 1)


@pytest.mark.parametrize(
    ("drafts", "reason"),
    [
        ([fact("ada", "ag2.context.set", {"set": {"key": 1}}), said("ada")], "not_a_writer"),
        ([said("ada"), said("ada")], "not_expected_speaker"),
        ([said("ada", audience=["mallory"])], "unknown_audience"),
    ],
)
def test_an_answer_that_is_denied_leaves_nothing(drafts: list[Envelope], reason: str) -> None:
    scene = asked("discussion", writers={"key": []})
    turn, by = scene.running()
    before = scene.fold
    assert scene.ends(by, *drafts, entries=(entry(turn.turn_id),)) == [f"denied:{reason}"]
    assert scene.fold == before
    assert scene.fails(by, f"refused:{reason}")[0] == "turn.failed"


def test_an_answer_may_end_the_channel() -> None:
    scene = asked("discussion")
    _, by = scene.running()
    assert scene.ends(by, said("ada"), close="done") == ["msg.text", "turn.assigned", "channel.closed"]
    assert (scene.state.status, scene.state.close_reason, scene.state.owed) == ("closed", "done", ())
    assert scene.log[-1].causation_id == scene.log[-2].envelope_id


def test_what_an_answer_has_closed_is_not_closed_twice() -> None:
    scene = asked("consulting")
    _, by = scene.running()
    assert scene.ends(by, said("ada"), close="done") == ["msg.text", "channel.closed"]
    assert scene.state.close_reason == "answered"


def test_a_turn_that_was_put_back_is_claimed_again() -> None:
    scene = asked()
    turn, by = scene.running()
    assert scene.releases(by, entry(turn.turn_id)) == ["call.started", "turn.released"]
    [again] = pending_turns(scene.state)
    assert again == msgspec.structs.replace(turn, epoch=1)
    assert scene.claims(again) == ["turn.claimed"]
    assert scene.state.owed[0].attempts == 1


# What follows from failure


@pytest.mark.parametrize(
    ("channel_type", "people", "recorded"),
    [
        ("conversation", ("alice", "ada:agent"), ["turn.failed"]),
        ("conversation", ("alice:human", "ada:agent"), ["turn.failed"]),
        ("conversation", ("alice:agent", "ada:agent"), ["turn.failed", "channel.paused"]),
        ("discussion", ("alice", "ada:agent"), ["turn.failed", "channel.closed"]),
        ("discussion", ("alice", "ada:agent", "hugo:human"), ["turn.failed", "turn.assigned"]),
        ("consulting", ("alice", "ada:agent"), ["turn.failed", "channel.closed"]),
        ("consulting", ("alice:human", "ada:agent"), ["turn.failed", "turn.assigned"]),
    ],
)
def test_what_follows_from_failure(channel_type: str, people: tuple[str, ...], recorded: list[str]) -> None:
    scene = asked(channel_type, *people)
    turn, by = scene.running()
    assert scene.fails(by, "model_error") == recorded
    failed, *rest = scene.log[-len(recorded) :]
    assert (failed.sender_id, failed.audience, failed.causation_id) == ("hub", None, turn.cause)
    assert failed.event_data == {"turn": turn.turn_id, "speaker": "ada", "reason": "model_error", "detail": "why"}
    assert [each.event_data["reason"] for each in rest] == ["turn_failed:model_error"] * len(rest)
    assert scene.state.owed == ()
    if recorded[-1] == "turn.assigned":
        assert [scene.state.participants[name] for name in scene.state.speakers] == ["human"]
    else:
        assert scene.state.speakers == ()
    assert scene.state.paused == ("turn_failed:model_error" if recorded[-1] == "channel.paused" else "")
    assert scene.state.ended == (recorded[-1] == "channel.closed")


def test_while_another_agent_owes_an_answer_a_failure_pauses_nothing() -> None:
    scene = asked("conversation", "alice:agent", "ada:agent")
    scene.says("alice")
    _, by = scene.running()
    assert scene.fails(by) == ["turn.failed"]
    assert scene.answers() == ["msg.text", "turn.assigned"]


def test_in_an_ordered_channel_the_others_who_owe_are_waited_for() -> None:
    scene = PureChannel("discussion", "alice", "ada:agent", "bob:agent")
    scene.fold = scene.ruleset.fold(scene.fold, replace(assigned("ada", "bob"), created_at=at(1), sequence=50))
    turn, by = scene.running()
    assert (turn.speaker, scene.fails(by)) == ("ada", ["turn.failed"])
    assert (scene.state.speakers, scene.state.ended) == (("bob",), False)
    assert scene.answers() == ["msg.text", "turn.assigned"]
    assert scene.state.speakers == ("alice",)


# Time


@pytest.mark.parametrize(("claim_it", "reason"), [(False, "not_run"), (True, "deadline")])
def test_no_turn_is_owed_for_ever(claim_it: bool, reason: str) -> None:
    scene = asked()
    if claim_it:
        scene.running()
    assert scene.waits(590) == []
    assert scene.waits(10) == ["expectation.missed", "turn.failed"]
    missed, failed = scene.log[-2:]
    assert (missed.event_data["handler"], failed.causation_id) == ("fail", missed.envelope_id)
    assert failed.event_data["reason"] == reason
    assert failed.event_data["detail"]
    assert (scene.state.owed, scene.state.status) == ((), "active")
    assert scene.waits(10_000) == []


def test_the_next_in_line_has_its_own_time() -> None:
    scene = asked()
    scene.says("alice")
    assert scene.waits(600) == ["expectation.missed", "turn.failed"]
    assert [turn.speaker for turn in pending_turns(scene.state)] == ["ada"]
    assert scene.waits(590) == []
    assert scene.waits(10) == ["expectation.missed", "turn.failed"]
    assert scene.state.owed == ()


def test_an_overdue_turn_of_an_ordered_channel_goes_to_a_person() -> None:
    expected = [{"name": "turn_within", "seconds": 10, "handler": "fail"}]
    scene = asked("discussion", "alice", "ada:agent", "hugo:human", expectations=expected)
    assert scene.waits(10) == ["expectation.missed", "turn.failed", "turn.assigned"]
    assert scene.state.speakers == ("hugo",)
    assert scene.log[-1].event_data["reason"] == "turn_failed:not_run"
    assert scene.waits(10_000) == []


def test_what_only_people_and_code_owe_does_not_fail() -> None:
    expected = [{"name": "turn_within", "seconds": 10, "handler": "fail"}]
    scene = PureChannel("discussion", "alice", "ada:agent", expectations=expected)
    assert scene.waits(1000) == []


@pytest.mark.parametrize("channel_type", ["conversation", "discussion"])
def test_while_a_call_is_in_doubt_nothing_is_due(channel_type: str) -> None:
    scene = asked(channel_type)
    _, by = scene.running()
    assert scene.ruleset.due(scene.fold) is not None
    scene.writes(by, entry(by.turn_id), doubt(by.turn_id))
    assert scene.ruleset.due(scene.fold) is None
    assert (scene.waits(100_000), pending_turns(scene.state)) == ([], ())
    scene.writes(by, journal_draft(execution_events.EV_CALL_CLEARED, CallCleared(by.turn_id, 0, "hugo")))
    assert [turn.turn_id for turn in pending_turns(scene.state)] == [by.turn_id]
    assert scene.ruleset.due(scene.fold) is not None


def test_two_agents_left_alone_pause_after_twenty_turns_and_go_on_when_code_speaks() -> None:
    scene = asked("conversation", "alice:agent", "ada:agent")
    for taken in range(1, 20):
        assert scene.answers() == ["msg.text", "turn.assigned"]
        assert scene.state.unattended == taken
    assert scene.answers() == ["msg.text", "channel.paused"]
    assert (scene.state.paused, scene.state.unattended) == ("unattended:20", 20)
    assert (pending_turns(scene.state), scene.waits(100_000)) == ((), [])
    assert scene.says("alice") == ["msg.text", "turn.assigned"]
    assert (scene.state.paused, scene.state.unattended) == ("", 0)
    assert scene.answers() == ["msg.text", "turn.assigned"]


# Waiting for a person


@pytest.mark.parametrize(
    ("channel_type", "then"),
    [
        ("conversation", ["expectation.missed", "turn.failed"]),
        ("consulting", ["channel.expectation_violated"]),
        ("discussion", ["channel.expectation_violated"]),
    ],
)
def test_time_spent_waiting_for_a_person_does_not_count(channel_type: str, then: list[str]) -> None:
    """However long the person takes, the turn has its whole time again, and then no more."""
    scene = asked(channel_type)
    turn, by = scene.running()
    scene.writes(by, entry(turn.turn_id), doubt(turn.turn_id))
    assert scene.waits(4000) == []
    cleared = journal_draft(execution_events.EV_CALL_CLEARED, CallCleared(turn.turn_id, 0, "hugo"))
    assert scene.writes(by, cleared) == ["call.cleared"]
    limit = 600 if channel_type == "conversation" else 120
    assert scene.waits(limit - 5) == []
    assert [each.split(".", 1)[-1] for each in scene.waits(10)] == [each.split(".", 1)[-1] for each in then]


def test_silence_is_not_held_against_whoever_waits_for_a_person() -> None:
    scene = asked(expectations=[{"name": "max_silence", "seconds": 60, "handler": "auto_close"}])
    turn, by = scene.running()
    scene.writes(by, entry(turn.turn_id), doubt(turn.turn_id))
    assert scene.waits(4000) == []


def test_a_word_put_in_ends_a_pause() -> None:
    state = state_of(*ORDERED, assigned("ada"), paused("x"), said("hugo"))
    assert (state.paused, state.interjected) == ("", True)
    state = state_of(*ORDERED, assigned("ada"), claim("6/ada"), said("ada"), said("hugo"))
    assert state.unattended == 0


def test_whoever_was_first_in_line_stays_so_since_then() -> None:
    state = state_of(*ORDERED, assigned("ada", "bob"), said("bob"))
    assert (owed_ids(state), state.assigned_at) == (["6/ada"], at(6))
    state = state_of(*ORDERED, assigned("ada", "bob"), said("ada"))
    assert (owed_ids(state), state.assigned_at) == (["6/bob"], at(7))


def test_what_strangers_say_about_a_turn_moves_nothing() -> None:
    forged = replace(claim("6/ada", 7, "mallory"), sender_id="mallory")
    state = state_of(*ORDERED, assigned("ada"), forged)
    assert state.owed[0].epoch == 0
