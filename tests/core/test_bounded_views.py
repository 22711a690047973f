"""Views that keep a prompt short: as much as a budget allows, or a summary of what is long ago."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon import FullTranscript, Message, SummarisedTranscript, TokenBudget, UsageError
from antiphon.agents.call_results import Summary
from antiphon.agents.history import as_summarising
from antiphon.core.views import estimate_tokens, transcript_messages
from tests.support.envelopes import created, log_of, packed, said


def user(text: str) -> Message:
    return Message("user", text)


def assistant(text: str) -> Message:
    return Message("assistant", text)


LOG = log_of(created("alice", "bob"), said("alice", "one"), packed("bob", "two"), said("alice", "for her", ["carol"]))


def letters(text: str) -> int:
    return len(text)


# A budget of tokens

FIVE = [user("aaaa"), assistant("bb"), user("ccc"), assistant(""), user("d")]


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (11, FIVE),
        (10, FIVE),
        (9, [user("[1 earlier message not shown]"), *FIVE[1:]]),
        (6, [user("[1 earlier message not shown]"), *FIVE[1:]]),
        (5, [user("[2 earlier messages not shown]"), *FIVE[2:]]),
        (4, [user("[2 earlier messages not shown]"), *FIVE[2:]]),
        (3, [user("[3 earlier messages not shown]"), *FIVE[3:]]),
        (1, [user("[3 earlier messages not shown]"), *FIVE[3:]]),
    ],
)
def test_as_many_of_the_last_messages_as_fit(tokens: int, expected: list[Message]) -> None:
    assert TokenBudget(tokens, count=letters).shown(FIVE) == expected


@pytest.mark.parametrize("before", [[], [user("")], [user("a"), assistant("")]])
def test_the_last_message_is_shown_however_long_it_is(before: list[Message]) -> None:
    line = {0: [], 1: [user("[1 earlier message not shown]")], 2: [user("[2 earlier messages not shown]")]}
    assert TokenBudget(2, count=letters).shown([*before, user("too long")]) == [*line[len(before)], user("too long")]


@pytest.mark.parametrize(
    ("text", "tokens"), [("", 0), ("a", 1), ("abcd", 1), ("abcde", 2), ("a" * 400, 100), ("ä" * 5, 2)]
)
def test_a_token_is_four_characters_if_nothing_else_is_said(text: str, tokens: int) -> None:
    assert estimate_tokens(text) == tokens
    assert TokenBudget(max(1, tokens)).shown([user("x"), user(text)])[-1] == user(text)
    assert TokenBudget(tokens + 1).shown([user("x"), user(text)]) == [user("x"), user(text)]


def test_a_budget_is_spent_on_what_the_reader_sees() -> None:
    line = user("[1 earlier message not shown]")
    assert TokenBudget(3, count=letters).project(LOG, "bob") == [line, assistant("two")]
    assert TokenBudget(99, count=letters).project(LOG, "bob") == [user("one"), assistant("two")]
    named = TokenBudget(13, count=letters, named=True)
    assert named.project(LOG, "bob") == [user("alice: one"), assistant("two")]
    assert TokenBudget(12, count=letters, named=True).project(LOG, "bob") == [line, assistant("two")]


@pytest.mark.parametrize("tokens", [0, -1, 2.0, "3", True, None])
def test_a_budget_that_is_none_is_refused(tokens: object) -> None:
    with pytest.raises(UsageError, match=f"tokens is {tokens!r}; give a number of tokens, 1 or more"):
        TokenBudget(tokens)  # type: ignore[arg-type]  # on purpose


@pytest.mark.parametrize("count", [None, 4, "len"])
def test_what_cannot_count_is_refused(count: object) -> None:
    with pytest.raises(UsageError, match=f"count is {count!r}; give a function of a text that counts its tokens"):
        TokenBudget(5, count=count)  # type: ignore[arg-type]  # on purpose


messages = st.lists(
    st.builds(Message, st.sampled_from(["user", "assistant"]), st.text(alphabet="ab", max_size=6)), max_size=12
)


@given(messages, st.integers(1, 30))
def test_what_fits_is_shown_whole_in_order_and_the_rest_is_counted(log: list[Message], tokens: int) -> None:
    shown = list(TokenBudget(tokens, count=letters).shown(log))
    fitting = next(n for n in range(len(log), -1, -1) if sum(len(text) for _, text in log[len(log) - n :]) <= tokens)
    kept = max(fitting, min(1, len(log)))
    assert shown[len(shown) - kept :] == log[len(log) - kept :]
    earlier = len(log) - kept
    line = [user(f"[{earlier} earlier message{'' if earlier == 1 else 's'} not shown]")] if earlier else []
    assert shown[: len(shown) - kept] == line


@given(messages, st.integers(1, 30), st.integers(0, 30))
def test_a_larger_budget_shows_no_less(log: list[Message], tokens: int, more: int) -> None:
    smaller, larger = (TokenBudget(size, count=letters).shown(log) for size in (tokens, tokens + more))
    said_in = [[message for message in shown if "not shown]" not in message.text] for shown in (smaller, larger)]
    assert said_in[1][len(said_in[1]) - len(said_in[0]) :] == said_in[0]


# Summaries


def nothing(_: Sequence[Message]) -> str:
    return ""


TWO = SummarisedTranscript(nothing, recent_n=2)
SEVEN = [user(letter) for letter in "abcdefg"]


@pytest.mark.parametrize(
    ("count", "last", "due"),
    [
        (0, None, None),
        (4, None, None),
        (5, None, "abc"),
        (7, None, "abcde"),
        (7, 3, None),
        (7, 2, "cde"),
        (7, 1, "bcde"),
        (7, 0, "abcde"),
        (6, 2, None),
    ],
)
def test_when_a_summary_is_due_and_of_what(count: int, last: int | None, due: str | None) -> None:
    before = None if last is None else Summary("so far", last)
    told = [] if last is None else [user(f"[What the {last} messages before came to]\nso far")]
    assert TWO.due(SEVEN[:count], before) == (None if due is None else [*told, *map(user, due)])


def test_a_summary_stands_for_all_but_the_most_recent() -> None:
    made = TWO.summary_of(SEVEN, "in short", "ada")
    assert made == Summary("in short", 5, "ada")
    line = user("[What the 5 messages before came to]\nin short")
    assert TWO.with_summary(SEVEN, made) == [line, user("f"), user("g")]
    assert TWO.with_summary([*SEVEN, user("h")], made) == [line, user("f"), user("g"), user("h")]


def test_without_a_summary_everything_is_shown() -> None:
    assert TWO.with_summary(SEVEN, None) == SEVEN
    assert TWO.shown(SEVEN) == SEVEN
    assert TWO.project(LOG, "bob") == transcript_messages(LOG, "bob", named=False)
    named = SummarisedTranscript(nothing, recent_n=2, named=True)
    assert named.project(LOG, "bob") == transcript_messages(LOG, "bob", named=True)


@pytest.mark.parametrize("recent_n", [0, -1, 2.0, "3", True, None])
def test_a_window_that_is_none_is_refused(recent_n: object) -> None:
    with pytest.raises(UsageError, match=f"recent_n is {recent_n!r}; give a number of messages, 1 or more"):
        SummarisedTranscript(nothing, recent_n)  # type: ignore[arg-type]  # on purpose


@pytest.mark.parametrize("summarise", [None, "shorter", 7])
def test_what_cannot_sum_up_is_refused(summarise: object) -> None:
    with pytest.raises(UsageError, match=f"summarise is {summarise!r}; give a function of the messages"):
        SummarisedTranscript(summarise)  # type: ignore[arg-type]  # on purpose


def test_which_views_sum_up() -> None:
    assert as_summarising(TWO) is TWO
    assert as_summarising(FullTranscript()) is None
    assert as_summarising(TokenBudget(5)) is None


def test_views_are_values() -> None:
    assert TokenBudget(5) == TokenBudget(5)
    assert TokenBudget(5) != TokenBudget(5, named=True)
    assert SummarisedTranscript(nothing, 2) == TWO
    assert SummarisedTranscript(nothing) != TWO
    assert SummarisedTranscript(nothing).recent_n == 20


@given(st.lists(st.integers(1, 9), max_size=30), st.integers(1, 5))
def test_every_message_is_summed_up_once_or_shown_and_none_is_both(growth: list[int], recent_n: int) -> None:
    """A conversation grows by so many messages at a time; before each turn a summary is made if one is due."""
    view = SummarisedTranscript(nothing, recent_n)
    log: list[Message] = []
    last: Summary | None = None
    handed: list[Message] = []
    for many in growth:
        log += [user(f"m{len(log) + n}") for n in range(many)]
        due = view.due(log, last)
        if due is not None:
            told = [] if last is None else list(view.with_summary([], last))
            assert due[: len(told)] == told, "the last summary comes first"
            assert len(due) > len(told), "something is new"
            handed += due[len(told) :]
            last = view.summary_of(log, f"s{len(log)}", "ada")
            assert view.due(log, last) is None, "once is enough"
        shown = list(view.with_summary(log, last))
        since = shown if last is None else shown[1:]
        assert handed + since == log
        assert min(recent_n, len(log)) <= len(since) <= 2 * recent_n
        assert (last is None) == (not handed)
        assert last is None or (last.count, shown[0].text) == (
            len(handed),
            f"[What the {len(handed)} messages before came to]\n{last.text}",
        )
