"""The digest of a log: the same for the same story, however often it was tried and whatever it was numbered."""

from __future__ import annotations

from dataclasses import replace

import pytest

from antiphon import Envelope
from antiphon.core.conversation_events import EV_CONVERSATION_UNROUTED, EV_REPLY_DELIVERED, EV_REPLY_UNDELIVERABLE
from antiphon.core.envelope import Json
from antiphon.core.events import (
    EV_TASK_COMPLETED,
    EV_TASK_FAILED,
    EV_TASK_PROGRESS,
    EV_TASK_STARTED,
    EV_TURN_FAILED,
    FailedTurn,
)
from antiphon.core.execution_events import (
    EV_CALL_FAILED,
    EV_CALL_FINISHED,
    EV_CALL_RETRIED,
    EV_CALL_STARTED,
    EV_TURN_CLAIMED,
    EV_TURN_RELEASED,
    CallFailed,
    CallFinished,
    CallRetried,
    CallStarted,
    TurnClaimed,
    TurnReleased,
)
from antiphon.core.step import journal_draft
from antiphon.testing.digest import canonical_digest
from tests.support.envelopes import acked, assigned, at, created, fact, opened, said


def told(*facts: Envelope, numbers: int = 0, prefix: str = "e", start: float = 0) -> list[Envelope]:
    """The facts as a log, stamped from here on. A cause is given as the text that was said in it."""
    log: list[Envelope] = []
    for place, each in enumerate(facts):
        sequence = numbers + place + 1
        cause = next((old.envelope_id for old in log if old.event_data.get("text") == each.causation_id), None)
        named = f"{prefix}{sequence}"
        log.append(
            replace(each, envelope_id=named, sequence=sequence, created_at=at(start + place), causation_id=cause)
        )
    return log


def because(text: str, then: Envelope) -> Envelope:
    return replace(then, causation_id=text)


def turn(name: str, **changes: object) -> dict[str, Envelope]:
    """All that may be said of a turn of two calls, by what it is."""
    args = changes.get("args", {"at": 7})
    assert isinstance(args, dict)
    key = str(changes.get("key", "k"))
    outcome = {"text": changes.get("result", "a cat")}
    return {
        "claimed": journal_draft(EV_TURN_CLAIMED, TurnClaimed(name, 1, "one")),
        "claimed again": journal_draft(EV_TURN_CLAIMED, TurnClaimed(name, 2, "two")),
        "retried": journal_draft(EV_CALL_RETRIED, CallRetried(name, 2, 1, "busy", 0.25, 503)),
        "released": journal_draft(EV_TURN_RELEASED, TurnReleased(name, 1)),
        "look": journal_draft(
            EV_CALL_STARTED, CallStarted(name, 1, "look", str(changes.get("digest", "d1")), args, key)
        ),
        "ask": journal_draft(EV_CALL_STARTED, CallStarted(name, 2, "ask", "d2", {}, key)),
        "looked": journal_draft(EV_CALL_FINISHED, CallFinished(name, 1, outcome)),
        "asked": journal_draft(EV_CALL_FAILED, CallFailed(name, 2, str(changes.get("error", "Nobody is there.")))),
        "failed": journal_draft(EV_TURN_FAILED, FailedTurn(name, "ada", "model_error")),
    }


BEGUN = (created("alice", "ada:agent", ordered=False), acked("ada"), opened(), said("alice", "hi"), assigned("ada"))
PLAIN = ("claimed", "look", "looked", "ask", "asked")


def story(*steps: str, name: str = "5/ada", last: str = "hello", **changes: object) -> tuple[Envelope, ...]:
    parts = turn(name, **changes)
    return (*BEGUN, *(parts[step] for step in steps), because("hi", said("ada", last)))


WHOLE = canonical_digest(told(*story(*PLAIN)))


@pytest.mark.parametrize(
    "log",
    [
        told(*story(*PLAIN)),
        told(*story(*PLAIN), prefix="x"),
        told(*story(*PLAIN), start=1000),
        told(*story(*PLAIN, name="7/ada"), numbers=2),
        told(*story(*PLAIN, key="another")),
        told(*story("look", "looked", "ask", "asked")),
        told(*story("claimed", "released", "claimed again", "look", "looked", "ask", "asked")),
        told(*story("claimed", "look", "claimed again", "look", "looked", "ask", "asked")),
        told(*story("claimed", "look", "looked", "ask", "released", "claimed again", "ask", "asked")),
        told(*story("claimed", "ask", "look", "asked", "looked")),
        told(*story("claimed", "look", "looked", "ask", "retried", "retried", "asked")),
        told(*story("claimed", "look", "looked", "ask", "retried", "claimed again", "ask", "asked")),
        told(*story("claimed", "look", "ask", "looked", "asked", "released")),
    ],
)
def test_the_same_story(log: list[Envelope]) -> None:
    assert canonical_digest(log) == WHOLE


@pytest.mark.parametrize(
    "facts",
    [
        (),
        BEGUN,
        story(),
        story("claimed", "look", "looked"),
        story("claimed", "look", "looked", "ask"),
        story(*PLAIN, last="Hello"),
        story(*PLAIN, result="a dog"),
        story(*PLAIN, error="Nobody is here."),
        story(*PLAIN, args={"at": 8}),
        story(*PLAIN, digest="d0"),
        story(*PLAIN, "failed"),
        story(*PLAIN)[:-1],
        (*story(*PLAIN)[:-1], said("ada", "hello")),
        (*story(*PLAIN)[:-1], because("hi", said("alice", "hello"))),
        (*story(*PLAIN)[:-1], because("hi", said("ada", "hello", ["alice"]))),
        (*story(*PLAIN), said("alice", "bye")),
    ],
)
def test_another_story(facts: tuple[Envelope, ...]) -> None:
    assert canonical_digest(told(*facts)) != WHOLE


def test_the_order_of_what_was_said_is_part_of_the_story() -> None:
    one, other = said("alice", "one"), said("alice", "other")
    assert canonical_digest(told(*BEGUN, one, other)) != canonical_digest(told(*BEGUN, other, one))


def test_to_which_call_a_result_belongs_is_part_of_the_story() -> None:
    swapped = story("claimed", "look", "ask")[:-1]
    one = (journal_draft(EV_CALL_FINISHED, CallFinished("5/ada", index, {"text": str(index)})) for index in (1, 2))
    other = (
        journal_draft(EV_CALL_FINISHED, CallFinished("5/ada", 3 - index, {"text": str(index)})) for index in (1, 2)
    )
    assert canonical_digest(told(*swapped, *one)) != canonical_digest(told(*swapped, *other))


def test_to_which_turn_a_call_belongs_is_part_of_the_story() -> None:
    first, second = turn("5/ada"), turn("7/ada")
    together = (first["look"], first["looked"], first["ask"], first["asked"])
    apart = (first["look"], first["looked"], second["ask"], second["asked"])
    assert canonical_digest(told(*BEGUN, *together)) != canonical_digest(told(*BEGUN, *apart))


def test_a_turn_that_failed_is_told_without_its_number() -> None:
    def failing(name: str) -> list[Envelope]:
        parts = turn(name)
        return told(*BEGUN, parts["claimed"], parts["look"], parts["failed"])

    assert canonical_digest(failing("5/ada")) == canonical_digest(failing("9/ada"))
    assert canonical_digest(failing("5/ada")) != canonical_digest(failing("5/ada")[:-1])


# Tasks

DONE: Json = {"usage": {"input_tokens": 3, "output_tokens": 1}, "stopped": None}


def task(number: int, event_type: str, data: Json | None = None, *, ids: str = "t", turn: str = "5/ada") -> Envelope:
    about: Json = {"task": f"{ids}{number}", "agent": "eve", "by": "ada", "turn": turn}
    return fact("hub", event_type, about if data is None else {**about, **data})


def two_tasks(ids: str = "t", turn: str = "5/ada") -> list[Envelope]:
    return [
        task(1, EV_TASK_STARTED, ids=ids, turn=turn),
        task(1, EV_TASK_PROGRESS, {"tool": "look", "who": "eve"}, ids=ids, turn=turn),
        task(1, EV_TASK_COMPLETED, DONE, ids=ids, turn=turn),
        task(2, EV_TASK_STARTED, ids=ids, turn=turn),
        task(2, EV_TASK_FAILED, {"reason": "model_error"}, ids=ids, turn=turn),
    ]


TASKED = canonical_digest(told(*BEGUN, *two_tasks()))


@pytest.mark.parametrize(
    "facts",
    [
        two_tasks(),
        two_tasks(ids="x"),
        two_tasks(turn="9/ada"),
        [two_tasks()[place] for place in (0, 3, 4, 1, 2)],
        [two_tasks()[place] for place in (0, 1, 3, 2, 4)],
    ],
)
def test_the_same_tasks(facts: list[Envelope]) -> None:
    assert canonical_digest(told(*BEGUN, *facts)) == TASKED


@pytest.mark.parametrize(
    "facts",
    [
        two_tasks()[:-1],
        [*two_tasks(), two_tasks()[0]],
        [two_tasks()[place] for place in (3, 4, 0, 1, 2)],
        [two_tasks()[place] for place in (0, 2, 1, 3, 4)],
        [*two_tasks()[:2], task(2, EV_TASK_COMPLETED, DONE), *two_tasks()[3:]],
        [*two_tasks()[:-1], task(2, EV_TASK_FAILED, {"reason": "expired"})],
        [*two_tasks()[:-1], task(2, EV_TASK_FAILED, {"reason": "model_error"}, turn="7/ada")],
    ],
)
def test_other_tasks(facts: list[Envelope]) -> None:
    assert canonical_digest(told(*BEGUN, *facts)) != TASKED


def given_from(parent: str, turn: str, depth: int) -> str:
    channel = created("ada:agent", "eve:agent")
    knobs = {"task": {"parent": parent, "turn": turn, "depth": depth}}
    return canonical_digest(told(replace(channel, event_data={**channel.event_data, "knobs": knobs})))


def test_from_where_a_task_was_given_is_no_part_of_its_story() -> None:
    assert given_from("one", "5/ada", 1) == given_from("other", "9/ada", 1)
    assert given_from("one", "5/ada", 1) != given_from("one", "5/ada", 2)
    assert given_from("one", "5/ada", 1) != canonical_digest(told(created("ada:agent", "eve:agent")))


# Replies that leave, and places in the log that data names


def delivered(log: list[Envelope], *texts: str, attempts: int = 1, kind: str = EV_REPLY_DELIVERED) -> list[Envelope]:
    """The log with the deliveries of what was said in it, in this order."""
    facts: list[Envelope] = []
    for text in texts:
        reply = next(each for each in log if each.event_data.get("text") == text)
        data: Json = {"transport": "sms", "reply": reply.envelope_id, "sequence": reply.sequence, "attempts": attempts}
        sequence = log[-1].sequence + len(facts) + 1
        number = f"d{sequence}"
        facts.append(replace(fact("hub", kind, data), envelope_id=number, sequence=sequence, created_at=at(sequence)))
    return [*log, *facts]


def two_replies(*more: Envelope, prefix: str = "e") -> list[Envelope]:
    shown = assigned("ada")
    claims = [each for each in more if each.event_type == EV_TURN_CLAIMED]
    place = len(claims) + 4
    shown = replace(shown, event_data={**shown.event_data, "shown": place})
    facts = [*BEGUN[:3], *claims, said("alice", "hi"), shown, said("ada", "one"), said("ada", "two")]
    return told(*facts, prefix=prefix)


REPLIED = canonical_digest(delivered(two_replies(), "one", "two"))


def test_attempts_and_the_places_of_deliveries_are_no_part_of_the_story() -> None:
    assert canonical_digest(delivered(two_replies(), "one", "two", attempts=7)) == REPLIED
    assert canonical_digest(delivered(two_replies(prefix="x"), "one", "two")) == REPLIED
    assert canonical_digest(delivered(two_replies(turn("1/ada")["claimed"]), "one", "two")) == REPLIED
    early = delivered(two_replies()[:-1], "one")
    last = replace(two_replies()[-1], sequence=len(early) + 1)
    assert canonical_digest(delivered([*early, last], "two")) == REPLIED


def test_which_replies_have_left_is_part_of_the_story() -> None:
    assert canonical_digest(two_replies()) != REPLIED
    assert canonical_digest(delivered(two_replies(), "one")) != REPLIED
    assert canonical_digest(delivered(two_replies(), "two", "one")) != REPLIED
    assert canonical_digest(delivered(two_replies(), "one", "two", "two")) != REPLIED
    refused = delivered(two_replies(), "one", "two", kind=EV_REPLY_UNDELIVERABLE)
    assert canonical_digest(refused) != REPLIED


def test_what_a_turn_is_shown_is_part_of_the_story() -> None:
    log = two_replies()
    other = [
        replace(each, event_data={**each.event_data, "shown": 3}) if "shown" in each.event_data else each
        for each in log
    ]
    assert canonical_digest(other) != canonical_digest(log)


def test_which_message_no_agent_answers_is_part_of_the_story() -> None:
    def unrouted(message: str, prefix: str = "e") -> str:
        log = two_replies(prefix=prefix)
        about = fact("hub", EV_CONVERSATION_UNROUTED, {"message": f"{prefix}{message}"})
        return canonical_digest([*log, replace(about, envelope_id="last", sequence=len(log) + 1)])

    assert unrouted("4") == unrouted("4", prefix="x")
    assert unrouted("4") != unrouted("6")
