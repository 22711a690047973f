"""A log as somebody may see it, turned into messages."""

from __future__ import annotations

import pytest

from antiphon import (
    Envelope,
    FullTranscript,
    Message,
    NamedTranscript,
    NamedWindowedSummary,
    TransitionGraph,
    UsageError,
    WindowedSummary,
    visible_to,
)
from antiphon.orchestration.workflow import Workflow
from tests.support.envelopes import acked, assigned, closed, created, fact, log_of, opened, packed, said, written

LOG = log_of(
    created("alice", "bob", "carol"),
    acked("bob"),
    opened(),
    assigned("alice"),
    said("alice", "one"),
    packed("bob", "two"),
    written("carol", {"a": 1}),
    fact("carol", "myapp.thing", {"text": "not said"}),
    said("carol", "three, for alice", ["alice"]),
    said("alice", ""),
    said("bob", "five"),
    closed(),
)


def user(text: str) -> Message:
    return Message("user", text)


def assistant(text: str) -> Message:
    return Message("assistant", text)


@pytest.mark.parametrize(
    ("reader", "expected"),
    [
        ("alice", [assistant("one"), user("two"), user("three, for alice"), assistant(""), user("five")]),
        ("bob", [user("one"), assistant("two"), user(""), assistant("five")]),
        ("carol", [user("one"), user("two"), assistant("three, for alice"), user(""), user("five")]),
        ("nobody", [user("one"), user("two"), user(""), user("five")]),
    ],
)
def test_the_full_transcript(reader: str, expected: list[Message]) -> None:
    assert FullTranscript().project(LOG, reader) == expected


def test_names_stand_before_what_others_said() -> None:
    assert NamedTranscript().project(LOG, "bob") == [
        user("alice: one"),
        assistant("two"),
        user("alice: "),
        assistant("five"),
    ]


def test_an_agent_is_shown_what_a_guard_tells_it_and_the_others_are_not() -> None:
    told = fact("hub", "antiphon.agent.corrected", {"text": "Say something else.", "guard": "loop"}, audience=["bob"])
    log = [*LOG[:-1], told]
    assert FullTranscript().project(log, "bob")[-1] == user("[note] Say something else.")
    assert NamedTranscript().project(log, "bob")[-1] == user("hub: [note] Say something else.")
    assert FullTranscript().project(log, "carol") == FullTranscript().project(LOG, "carol")


@pytest.mark.parametrize(
    ("recent_n", "expected"),
    [
        (9, [user("one"), assistant("two"), user(""), assistant("five")]),
        (4, [user("one"), assistant("two"), user(""), assistant("five")]),
        (3, [user("[1 earlier message not shown]"), assistant("two"), user(""), assistant("five")]),
        (1, [user("[3 earlier messages not shown]"), assistant("five")]),
        (0, [user("[4 earlier messages not shown]")]),
    ],
)
def test_the_window(recent_n: int, expected: list[Message]) -> None:
    assert WindowedSummary(recent_n).project(LOG, "bob") == expected


def test_the_window_with_names() -> None:
    assert NamedWindowedSummary(recent_n=2).project(LOG, "bob") == [
        user("[2 earlier messages not shown]"),
        user("alice: "),
        assistant("five"),
    ]


@pytest.mark.parametrize("view", [WindowedSummary, NamedWindowedSummary])
@pytest.mark.parametrize("recent_n", [-1, 2.0, "3", True, None])
def test_a_window_that_is_none_is_refused(
    view: type[WindowedSummary] | type[NamedWindowedSummary], recent_n: object
) -> None:
    with pytest.raises(UsageError, match=f"recent_n is {recent_n!r}; give a number of messages, 0 or more"):
        view(recent_n)  # type: ignore[arg-type]


def test_a_window_counts_only_what_its_reader_may_see() -> None:
    assert WindowedSummary(3).project(LOG, "nobody")[0] == user("[1 earlier message not shown]")
    assert WindowedSummary(3).project(LOG, "alice")[0] == user("[2 earlier messages not shown]")


@pytest.mark.parametrize(("people", "recent_n"), [(2, 4), (3, 6), (10, 20)])
def test_by_default_two_rounds_of_a_workflow_are_shown(people: int, recent_n: int) -> None:
    window = NamedWindowedSummary(recent_n) if people > 2 else WindowedSummary(recent_n)
    graph = TransitionGraph.round_robin(["a", "b"]).to_dict()
    assert Workflow({"graph": graph}).view(people) == window


def test_of_nothing_there_is_nothing_to_see() -> None:
    for view in (FullTranscript(), NamedTranscript(), WindowedSummary(3), NamedWindowedSummary(3)):
        assert view.project([], "alice") == []


def test_views_are_values() -> None:
    assert FullTranscript() == FullTranscript()
    assert WindowedSummary(3) != WindowedSummary(4)
    assert Message("user", "hi") == ("user", "hi")


@pytest.mark.parametrize(
    ("audience", "sender", "reader", "visible"),
    [
        (None, "alice", "bob", True),
        (None, "hub", "bob", True),
        (["bob"], "alice", "bob", True),
        (["bob"], "alice", "carol", False),
        (["bob"], "alice", "alice", True),
        (["bob", "carol"], "alice", "carol", True),
        (["Bob"], "alice", "bob", False),
        (["bobby"], "alice", "bob", False),
        ([], "alice", "bob", False),
        ([], "alice", "alice", True),
        (["hub:operators"], "hub", "alice", False),
    ],
)
def test_who_may_see_an_envelope(audience: list[str] | None, sender: str, reader: str, visible: bool) -> None:
    envelope = Envelope("e1", "here", sender, audience, "myapp.thing", {})
    assert visible_to(envelope, reader) is visible
