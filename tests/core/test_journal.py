"""The journal of a turn, read back from a log."""

from __future__ import annotations

from dataclasses import replace

import pytest

from antiphon import Envelope
from antiphon.core.execution_events import (
    EV_CALL_CLEARED,
    EV_CALL_CONFLICTED,
    EV_CALL_DOUBTED,
    EV_CALL_FAILED,
    EV_CALL_FINISHED,
    EV_CALL_RETRIED,
    EV_CALL_STARTED,
    CallCleared,
    CallConflicted,
    CallDoubted,
    CallFailed,
    CallFinished,
    CallRetried,
    CallStarted,
)
from antiphon.core.state import State, Turn
from antiphon.core.step import journal_draft
from antiphon.core.turns import EMPTY_CALL_RECORD, CallRecord, Journal, idempotency_key, journal_of
from tests.support.envelopes import assigned, at, fact, log_of, said

HERE = State(channel_id="here", created_at=at(0))

MINE, OTHER = "6/ada", "6/bob"
LOOK = CallStarted(MINE, 1, "look", "d1", {"at": 7}, "key")
AGAIN = CallStarted(MINE, 1, "look", "d2", {"at": 8}, "key")
SEEN = CallFinished(MINE, 1, {"text": "a cat"})
BLIND = CallFailed(MINE, 1, "It is dark.")

started, finished, failed = (
    journal_draft(EV_CALL_STARTED, LOOK),
    journal_draft(EV_CALL_FINISHED, SEEN),
    journal_draft(EV_CALL_FAILED, BLIND),
)
doubted = journal_draft(EV_CALL_DOUBTED, CallDoubted(MINE, 1, "look"))
cleared = journal_draft(EV_CALL_CLEARED, CallCleared(MINE, 1, "hugo"))
conflicted = journal_draft(EV_CALL_CONFLICTED, CallConflicted(MINE, 1, "look", "d1", "d2"))
again = journal_draft(EV_CALL_STARTED, AGAIN)
retried = journal_draft(EV_CALL_RETRIED, CallRetried(MINE, 1, 1, "busy", 0.5, 503))


@pytest.mark.parametrize(
    ("facts", "entry"),
    [
        ((started,), CallRecord(LOOK)),
        ((started, finished), CallRecord(LOOK, SEEN)),
        ((started, failed), CallRecord(LOOK, BLIND)),
        ((finished,), CallRecord(None, SEEN)),
        ((started, failed, finished), CallRecord(LOOK, SEEN)),
        ((started, doubted), CallRecord(LOOK)),
        ((started, doubted, finished), CallRecord(LOOK, SEEN)),
        ((started, doubted, cleared), EMPTY_CALL_RECORD),
        ((started, doubted, cleared, again), CallRecord(AGAIN)),
        ((started, finished, cleared), EMPTY_CALL_RECORD),
        ((started, started), CallRecord(LOOK)),
        ((started, finished, again), CallRecord(AGAIN)),
        ((started, finished, conflicted), CallRecord(LOOK, SEEN, True)),
        ((started, conflicted, finished), CallRecord(LOOK, SEEN, True)),
        ((started, conflicted, again), CallRecord(AGAIN)),
        ((started, retried), CallRecord(LOOK, retries=1)),
        ((started, retried, retried, finished), CallRecord(LOOK, SEEN, retries=2)),
        ((started, retried, again), CallRecord(AGAIN, retries=1)),
        ((started, retried, again, retried, failed), CallRecord(AGAIN, BLIND, retries=2)),
        ((started, retried, doubted, cleared), EMPTY_CALL_RECORD),
    ],
)
def test_what_is_known_of_a_call(facts: tuple[Envelope, ...], entry: CallRecord) -> None:
    assert journal_of(log_of(*facts), MINE) == {1: entry}


@pytest.mark.parametrize(
    ("entry", "in_flight"),
    [
        (EMPTY_CALL_RECORD, False),
        (CallRecord(LOOK), True),
        (CallRecord(LOOK, conflicted=True), True),
        (CallRecord(LOOK, SEEN), False),
        (CallRecord(LOOK, BLIND), False),
        (CallRecord(None, SEEN), False),
    ],
)
def test_a_call_without_an_outcome_was_in_flight(entry: CallRecord, in_flight: bool) -> None:
    assert entry.in_flight == in_flight


def test_calls_are_known_by_their_position() -> None:
    model = CallStarted(MINE, 0, "model", "d0")
    reply = CallFinished(MINE, 0, {"text": ""})
    log = log_of(
        journal_draft(EV_CALL_STARTED, LOOK),
        journal_draft(EV_CALL_STARTED, model),
        journal_draft(EV_CALL_FINISHED, reply),
        journal_draft(EV_CALL_FAILED, BLIND),
    )
    expected: Journal = {0: CallRecord(model, reply), 1: CallRecord(LOOK, BLIND)}
    assert journal_of(log, MINE) == expected


@pytest.mark.parametrize(
    "stranger",
    [
        journal_draft(EV_CALL_STARTED, CallStarted(OTHER, 1, "look", "d")),
        journal_draft(EV_CALL_FINISHED, CallFinished(OTHER, 1, {})),
        journal_draft(EV_CALL_CLEARED, CallCleared(OTHER, 1)),
        replace(finished, sender_id="ada"),
        replace(failed, sender_id="mallory"),
        replace(cleared, sender_id="hugo"),
        replace(again, sender_id=""),
        replace(retried, sender_id="ada"),
        journal_draft(EV_CALL_RETRIED, CallRetried(OTHER, 1, 1, "busy", 0.5)),
        fact("hub", EV_CALL_FINISHED, {"turn": MINE, "index": "1", "result": {}}),
        fact("hub", EV_CALL_FINISHED, {"turn": MINE, "index": 1, "result": "a cat"}),
        fact("hub", "myapp.call.finished", {"turn": MINE, "index": 1, "result": {}}),
        assigned("ada"),
        said("ada"),
    ],
)
def test_nothing_else_is_part_of_a_journal(stranger: Envelope) -> None:
    assert journal_of(log_of(stranger, started, stranger), MINE) == {1: CallRecord(LOOK)}
    assert journal_of(log_of(stranger), MINE) == {}


# Keys

TURN = Turn(MINE, "ada", "e5", 6)


def test_one_call_has_one_key() -> None:
    key = idempotency_key(HERE, TURN, 1, tool="pay", tenant="t")
    assert key == idempotency_key(HERE, TURN, 1, tool="pay", tenant="t")
    later = Turn(MINE, "ada", "e5", 6, epoch=3, owner="two", attempts=2, doubts=(1,))
    assert key == idempotency_key(HERE, later, 1, tool="pay", tenant="t")


def test_no_two_calls_have_the_same_key() -> None:
    keys = [
        idempotency_key(state, Turn(turn, "ada", cause, 6), index, tool=tool, tenant=tenant)
        for tenant in ("t", "u")
        for state in (HERE, State(channel_id="there"), State(channel_id="here", created_at=at(1)))
        for turn in (MINE, OTHER, "7/ada")
        for cause in ("e5", "e4", "", None)
        for index in (0, 1, 10)
        for tool in ("pay", "look", "")
    ]
    assert len(set(keys)) == len(keys)
