"""Sound graphs that a check might take for faulty ones, and what it knows of the channel that is about to be opened."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from antiphon import (
    ContextThreshold,
    Finding,
    Once,
    RoundRobinTarget,
    StayTarget,
    TerminateTarget,
    ToolCalled,
    TransitionGraph,
)
from antiphon.core.creation import adapter_findings
from antiphon.core.events import ChannelCreated, Seat
from antiphon.core.ruleset import ChannelRoster
from antiphon.orchestration.catalogue import ruleset_for
from antiphon.orchestration.graph_checks import find_graph_faults
from tests.orchestration.planted_faults import ABC, END, HIGH, LOW, Case, by, has, table, to

PAIR = ("ann", "ben")
GOOD = TerminateTarget("good")


def more(edge: float) -> ContextThreshold:
    return ContextThreshold("n", ">", edge)


SOUND: dict[str, Case] = {
    "a sequence": Case(TransitionGraph.sequence(ABC), ABC),
    "one number, and all above another": Case(table("ann", (has("n", 3), END), (more(2), to("ben"))), PAIR),
    "one number between two others": Case(
        table("ann", (by("ben"), END), (has("n", 3), END), (ContextThreshold("n", ">=", 4), END), (more(2), to("ben"))),
        PAIR,
    ),
    "one number, and all below another": Case(
        table("ann", (has("n", 1), END), (ContextThreshold("n", "<", 2), to("ben"))), PAIR
    ),
    "several numbers, and all above the least": Case(
        table("ann", *((has("n", number), END) for number in (3, 3.5, 4, 5)), (more(2) & by("ann"), to("ben"))), PAIR
    ),
    "every side of a score": Case(
        table(
            "ann",
            (by("ben"), to("ann")),
            (HIGH, GOOD),
            (ContextThreshold("score", ">=", 5), to("ben")),
            (ContextThreshold("score", ">=", 0), StayTarget()),
            otherwise=END,
        ),
        PAIR,
    ),
    "true is not one": Case(table("ann", (has("k", 1), to("ben")), (has("k", True), GOOD), (by("ann"), END)), PAIR),
    "revise until approved": Case(
        table(
            "ann",
            (by("ann"), to("ben")),
            (by("ben") & has("verdict", "revise"), to("ann")),
            (by("ben") & has("verdict", "approved"), END),
            otherwise=StayTarget(),
        ),
        PAIR,
    ),
    "revise until somebody else approves, who alone may": Case(
        table(
            "ann",
            (by("ann"), to("ben")),
            (by("ben") & has("verdict", "revise"), to("ann")),
            (by("ben") & has("verdict", "approved"), END),
            otherwise=StayTarget(),
        ),
        PAIR,
        {"verdict": ["ann"]},
    ),
    "revise until the score is high": Case(
        table("ann", (by("ann"), to("ben")), (HIGH, END), (by("ben") & LOW, to("ann"))), PAIR
    ),
    "once more": Case(table("ann", (Once(by("ann")), StayTarget()), (by("ann"), to("ben"))), PAIR),
    "a group that is asked again": Case(
        table("ann", (by("ann"), to("ben", "cleo")), (HIGH, END), otherwise=to("ann")), ABC
    ),
    "a tool that ends it": Case(table("ann", (ToolCalled("stop"), END), otherwise=RoundRobinTarget()), ABC),
    "a person who may put in a word": Case(
        table("ann", (by("hugo"), END), (HIGH, END), (by("ann"), to("ben")), otherwise=to("ann")),
        {"ann": "agent", "ben": "agent", "hugo": "human"},
    ),
    "a long way with few turns and a short one with many": Case(
        table(
            "ann",
            (by("ann") & ToolCalled("ask"), to("ben", "cleo", "dan")),
            (by("ann"), to("eve")),
            (by("eve"), to("fay")),
            (by("fay", "ben", "cleo", "dan"), to("gus")),
            max_turns=4,
        ),
        ("ann", "ben", "cleo", "dan", "eve", "fay", "gus"),
    ),
}


@pytest.mark.parametrize("case", SOUND.values(), ids=SOUND)
def test_a_sound_graph_gives_no_finding(case: Case) -> None:
    assert [(each.code, each.message) for each in case.check() if each.code != "key_without_writers"] == []


def test_a_round_robin_is_told_that_only_its_cap_ends_it() -> None:
    assert [each.code for each in TransitionGraph.round_robin(ABC, max_turns=9).check(ABC)] == ["no_way_to_end"]


# Those who put in a word


def test_a_second_rule_for_a_word_that_is_put_in_is_dead_because_of_the_first() -> None:
    kinds = {"ann": "agent", "ben": "agent", "hugo": "human"}
    graph = table("ann", (by("hugo"), to("ben")), (by("hugo"), END), (by("ann"), to("ben")))
    assert [each.message for each in graph.check(kinds)] == [
        "transition 1 (from hugo) can never fire: transition 0 always matches first"
    ]


# What is known of a channel


def seated(graph: TransitionGraph, **known: object) -> list[Finding]:
    roster = ChannelRoster({"ann": "agent", "ben": "agent"}, **known)  # type: ignore[arg-type]  # what a roster takes
    return find_graph_faults(graph, roster)


def test_what_a_channel_begins_with_counts() -> None:
    graph = table("ann", (has("mode", "fast"), END), (by("ann"), to("ben")))
    assert seated(graph) == []
    nobody: Mapping[str, list[str]] = {"mode": []}
    assert [each.code for each in seated(graph, writers=nobody)] == ["dead_rule"]
    fast = seated(graph, writers=nobody, context_vars={"mode": "fast"})
    assert [each.message for each in fast] == [
        "transition 1 (from ann) can never fire: transition 0 always matches first",
        "no rule ever gives 'ben' the turn; only a handoff could",
    ]
    assert [each.code for each in seated(graph, writers=nobody, context_vars={"mode": "slow"})] == ["dead_rule"]


def test_a_loop_in_which_a_channel_begins() -> None:
    graph = table("ann", (has("mode", "fast"), to("ben")))
    found = seated(graph, context_vars={"mode": "fast"})
    assert [each.code for each in found] == ["sticky_loop"]
    assert ": ann → ben → ben → …; " in found[0].message


def test_an_interjector_may_put_in_a_word() -> None:
    graph = table("ann", (by("ben"), to("ann")), (HIGH, END), otherwise=StayTarget())
    assert [each.code for each in seated(graph)] == ["dead_rule", "unreachable_participant"]
    assert [each.code for each in seated(graph, interjectors=frozenset({"ben"}))] == ["unreachable_participant"]
    assert seated(graph, interjectors=frozenset({"ben"}), spectators=frozenset({"ben"})) == []


def test_a_channel_is_checked_with_what_it_is_opened_with() -> None:
    graph = table("ann", (has("mode", "fast"), to("ben")))
    knobs = {"graph": graph.to_dict(), "writers": {}, "tier": "regulated", "interjectors": ["ben"]}
    seats = [Seat("user", "service"), Seat("ann", "agent"), Seat("ben", "agent")]
    created = ChannelCreated("workflow", "user", seats, knobs, True, context_vars={"mode": "fast"})
    found = adapter_findings(ruleset_for("workflow", knobs).adapter, created)
    assert [(each.level, each.code) for each in found] == [
        ("warning", "sticky_loop"),
        ("error", "key_without_writers"),
    ]


def test_a_stranger_among_those_whose_word_is_waited_for_is_told() -> None:
    graph = table("ann", (by("ann") | by("bne"), to("ben")))
    assert [(each.code, each.message) for each in graph.check(["ann", "ben"])] == [
        ("unknown_speaker", "transition 0 waits for a word of 'bne' too, who is not a participant")
    ]
