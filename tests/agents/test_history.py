"""What an agent is shown of a channel, as it grows."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon import Envelope, Message
from antiphon.agents.history import EMPTY_HISTORY_DIGEST, History
from tests.support.envelopes import acked, assigned, closed, created, fact, log_of, opened, packed, said, written

BEGUN = (created("alice", "ada:agent", ordered=False), acked("ada"), opened())
"""Three facts: the first that follows is `e4`."""


def because(cause: str, then: Envelope) -> Envelope:
    return replace(then, causation_id=cause)


def read(*facts: Envelope, reader: str = "ada", named: bool = False) -> History:
    history = History(reader, named=named)
    history.extend(log_of(*BEGUN, *facts))
    return history


def texts(history: History, sequence: int = 1000) -> list[str]:
    return [message.text for message in history.messages_before(sequence)[0]]


def user(text: str) -> Message:
    return Message("user", text)


def assistant(text: str) -> Message:
    return Message("assistant", text)


def test_what_was_said_is_shown_in_order_and_with_its_role() -> None:
    history = read(said("alice", "one"), because("e4", packed("ada", "two")), said("alice", "three"))
    assert history.messages_before(1000)[0] == [user("one"), assistant("two"), user("three")]
    assert history.cursor == 6


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ([because("e4", said("ada", "a1")), because("e5", said("ada", "a2"))], ["one", "a1", "two", "a2"]),
        ([because("e5", said("ada", "a2")), because("e4", said("ada", "a1"))], ["one", "a1", "two", "a2"]),
        ([because("e4", said("ada", "a1")), because("e4", said("ada", "more"))], ["one", "a1", "more", "two"]),
        ([said("ada", "a1")], ["one", "two", "a1"]),
        ([because("nobody knows", said("ada", "a1"))], ["one", "two", "a1"]),
        ([because("e3", said("ada", "a1"))], ["one", "two", "a1"]),
        ([because("e4", said("alice", "three"))], ["one", "two", "three"]),
        ([said("alice", "three"), because("e4", said("ada", "a1"))], ["one", "a1", "two", "three"]),
    ],
)
def test_an_answer_stands_where_its_cause_stands(facts: list[Envelope], expected: list[str]) -> None:
    """Two messages came at once, `e4` and `e5`. Only ada's own answers are moved, for ada."""
    assert texts(read(said("alice", "one"), said("alice", "two"), *facts)) == expected


def test_others_see_answers_where_they_were_given() -> None:
    facts = (said("alice", "one"), said("alice", "two"), because("e4", said("ada", "a1")))
    assert texts(read(*facts, reader="alice")) == ["one", "two", "a1"]


@pytest.mark.parametrize(
    ("sequence", "expected"),
    [
        (0, []),
        (3, []),
        (4, ["one", "a1"]),
        (5, ["one", "a1"]),
        (6, ["one", "a1", "two", "a2"]),
        (8, ["one", "a1", "two", "a2"]),
        (10, ["one", "a1", "two", "a2", "three"]),
    ],
)
def test_a_turn_is_shown_what_came_before_it(sequence: int, expected: list[str]) -> None:
    history = read(
        said("alice", "one"),
        because("e4", assigned("ada")),
        said("alice", "two"),
        because("e6", assigned("ada")),
        because("e4", said("ada", "a1")),
        because("e6", said("ada", "a2")),
        said("alice", "three"),
    )
    assert texts(history, sequence) == expected


@pytest.mark.parametrize(
    ("people", "expected"),
    [
        ({"alice"}, ["Tax?", "@tax a1", "two", "Bill?"]),
        ((), ["@tax Tax?", "@tax a1", "two", "@bill Bill?"]),
    ],
)
def test_what_people_said_to_an_agent_is_shown_as_it_is_meant(people: Container[str], expected: list[str]) -> None:
    """An answer that comes late stands before messages with and without a mention."""
    history = read(
        said("alice", "@tax Tax?"),
        said("alice", "two"),
        said("alice", "@bill Bill?"),
        because("e4", said("ada", "@tax a1")),
    )
    messages, digest = history.messages_before(1000, people=people, meant=lambda text: text.partition(" ")[2])
    assert [message.text for message in messages] == expected
    assert digest == history.messages_before(1000)[1]
    assert history.messages_before(4, people={"alice"}, meant=str.upper)[0][0].text == "@TAX TAX?"


def test_what_was_read_once_is_not_read_again() -> None:
    """The history keeps the message object, so that word counts are kept too; other rules read it anew."""
    history = read(said("alice", "@tax Tax?"), said("alice", "two"))
    heard: list[str] = []

    def meant(text: str) -> str:
        heard.append(text)
        return text.partition(" ")[2]

    first = history.messages_before(1000, people={"alice"}, meant=meant)[0]
    history.extend(log_of(*BEGUN, said("alice", "@tax Tax?"), said("alice", "two"), said("alice", "@bill Bill?"))[5:])
    second = history.messages_before(1000, people={"alice"}, meant=meant)[0]
    assert second[0] is first[0]
    assert [message.text for message in second] == ["Tax?", "two", "Bill?"]
    assert heard == ["@tax Tax?", "@bill Bill?"]
    assert texts(history) == ["@tax Tax?", "two", "@bill Bill?"]


def test_a_second_attempt_is_shown_the_same() -> None:
    facts = (said("alice", "one"), because("e4", assigned("ada")))
    first = read(*facts).messages_before(5)
    meanwhile = (said("alice", "two"), because("e6", assigned("ada")), said("alice", "three"))
    assert read(*facts, *meanwhile).messages_before(5) == first


def test_what_is_said_to_others_is_not_shown() -> None:
    facts = (
        said("alice", "for bob", ["bob"]),
        said("alice", "for ada", ["ada"]),
        said("ada", "to bob", ["bob"]),
        said("bob", "for nobody", []),
    )
    assert texts(read(*facts)) == ["for ada", "to bob"]
    assert texts(read(*facts, reader="bob")) == ["for bob", "to bob", "for nobody"]
    assert texts(read(*facts, reader="carol")) == []


def test_an_answer_to_what_was_not_shown_stands_where_it_was_given() -> None:
    facts = (said("alice", "for bob", ["bob"]), said("alice", "one"), because("e4", said("ada", "a1")))
    assert texts(read(*facts)) == ["one", "a1"]


def test_only_what_was_said_is_shown() -> None:
    noise = (assigned("ada"), written("alice", {"a": 1}), fact("alice", "myapp.thing", {"text": "no"}), closed())
    history = read(*noise)
    assert history.messages_before(1000) == ([], EMPTY_HISTORY_DIGEST.hex())
    assert history.cursor == 7


def test_names_stand_before_what_others_said() -> None:
    facts = (said("alice", "one"), because("e4", said("ada", "a1")))
    assert read(*facts, named=True).messages_before(9)[0] == [user("alice: one"), assistant("a1")]
    assert read(*facts, named=False).messages_before(9)[0] == [user("one"), assistant("a1")]


def test_what_is_given_is_a_copy() -> None:
    history = read(said("alice", "one"))
    history.messages_before(9)[0].clear()
    assert texts(history) == ["one"]


# Digests

ONE = (said("alice", "one"), because("e4", said("ada", "a1")), said("alice", "two"))


@pytest.mark.parametrize(
    "facts",
    [
        (),
        ONE[:1],
        ONE[:2],
        (said("alice", "One"), *ONE[1:]),
        (ONE[0], said("alice", "a1"), ONE[2]),
        (ONE[2], ONE[1], ONE[0]),
        (said("alice", "onea1"), said("ada", ""), ONE[2]),
        (*ONE, said("alice", "")),
    ],
)
def test_different_histories_have_different_digests(facts: tuple[Envelope, ...]) -> None:
    assert read(*facts).messages_before(1000)[1] != read(*ONE).messages_before(1000)[1]


def test_a_digest_is_of_what_is_shown_and_nothing_else() -> None:
    digest = read(*ONE).messages_before(6)[1]
    assert read(*ONE).messages_before(6)[1] == digest
    assert read(*ONE, said("alice", "three")).messages_before(6)[1] == digest
    assert read(*ONE, said("alice", "three")).messages_before(7)[1] != digest
    assert read(*ONE[:2], fact("alice", "myapp.thing"), ONE[2]).messages_before(7)[1] == digest
    assert read(*ONE, named=True).messages_before(6)[1] != digest
    late = (ONE[0], ONE[2], ONE[1])
    assert read(*late).messages_before(5)[1] == digest


def test_an_answer_that_comes_late_changes_what_stands_after_it() -> None:
    history = read(said("alice", "one"), said("alice", "two"))
    before = [history.messages_before(place)[1] for place in (3, 4, 5)]
    late = log_of(*BEGUN, said("alice", "one"), said("alice", "two"), because("e4", said("ada", "a1")))
    history.extend(late[5:])
    after = [history.messages_before(place)[1] for place in (3, 4, 5)]
    assert before[0] == after[0]
    assert before[1] != after[1]
    assert before[2] != after[2]


# Laws

facts_said = st.builds(
    lambda who, text, cause, audience: replace(said(who, text, audience), causation_id=cause),
    st.sampled_from(["alice", "ada", "bob"]),
    st.sampled_from(["", "one", "two"]),
    st.none() | st.integers(1, 15).map(lambda number: f"e{number}"),
    st.none() | st.just(["ada"]) | st.just(["bob"]),
)
logs = st.lists(facts_said | st.just(assigned("ada")), max_size=12).map(lambda facts: log_of(*BEGUN, *facts))


def in_pieces(log: Sequence[Envelope], cuts: list[int], *, named: bool) -> History:
    history = History("ada", named=named)
    start = 0
    for cut in [*sorted(cut % (len(log) + 1) for cut in cuts), len(log)]:
        history.extend(log[start:cut])
        start = cut
    return history


@given(logs, st.lists(st.integers(0, 20), max_size=5), st.booleans())
def test_a_history_is_the_same_in_one_go_and_in_pieces(log: list[Envelope], cuts: list[int], named: bool) -> None:
    whole, pieces = History("ada", named=named), in_pieces(log, cuts, named=named)
    whole.extend(log)
    assert pieces.cursor == whole.cursor == log[-1].sequence
    for sequence in range(len(log) + 1):
        assert pieces.messages_before(sequence) == whole.messages_before(sequence)


@given(logs, logs)
def test_digests_are_equal_where_messages_are(one: list[Envelope], other: list[Envelope]) -> None:
    first, second = in_pieces(one, [], named=False), in_pieces(other, [], named=False)
    for sequence in range(3, 16):
        messages, digest = first.messages_before(sequence)
        others, another = second.messages_before(sequence)
        assert (messages == others) == (digest == another)


SPOKEN = st.tuples(st.sampled_from(["alice", "ada", "bob"]), st.integers(3, 12))


@given(st.lists(SPOKEN, max_size=10), st.lists(st.integers(3, 14), max_size=4))
def test_own_answers_that_are_added_ahead_leave_the_history_as_it_is_in_order(
    spoken: list[tuple[str, int]], turns: list[int]
) -> None:
    """A turn is shown the same by a history read up to it, with one's own answers, as by one read to the end."""
    # What is answered stands before its answer.
    causes = [f"e{min(cause, len(BEGUN) + number)}" for number, (_, cause) in enumerate(spoken)]
    facts = [
        because(cause, said(who, f"{number}"))
        for number, ((who, _), cause) in enumerate(zip(spoken, causes, strict=True))
    ]
    log, ahead, whole = log_of(*BEGUN, *facts), History("ada", named=True), read(*facts, named=True)
    for place in (*sorted(turns), 1000):
        ahead.extend([each for each in log if ahead.cursor < each.sequence <= place])
        ahead.cursor = max(ahead.cursor, place)
        ahead.add_ahead([each for each in log if each.sequence > place and each.sender_id == "ada"])
        assert ahead.messages_before(place) == whole.messages_before(place)
    assert ahead.size == whole.size
