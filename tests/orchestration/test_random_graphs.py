"""A graph without warnings ends by a rule, whoever plays it fairly; and those with warnings show that this can fail."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cache
from random import Random

import pytest

from antiphon.orchestration import graph_checks
from antiphon.orchestration.rendering import summarize_graph
from tests.orchestration.graph_players import FAIR, Manner, endings, play, tools, variables
from tests.orchestration.random_graphs import MOST_RULES, Drawn, many

PROOF = os.environ.get("ANTIPHON_PROOF") == "1"
COUNT = 10_000 if PROOF else 2_000
MOST_TURNS = 3_000
SOON = 150
"""Enough turns for nearly every graph that can end; of those without warnings only a few take longer."""
TRAPS = {"no_way_to_end", "sticky_loop"}
SAMPLE = 50


@cache
def clean() -> list[Drawn]:
    return [each for each in many(COUNT) if not each.findings]


def trapped(*, saying: str) -> list[Drawn]:
    """Some graphs of agents in which nothing is wrong but that they may not end, as they are told in these words."""
    only = (each for each in many(COUNT) if each.findings and each.codes <= TRAPS)
    alone = (each for each in only if "human" not in each.kinds.values())
    return [each for each in alone if saying in each.findings[0].message][:SAMPLE]


def strayed(graphs: Iterable[Drawn], options: Manner, most: int) -> list[Drawn]:
    """Those that were played for so many turns and did not end by a rule."""
    plays = ((each, play(each.graph, each.kinds, Random(each.number), options, most=most)) for each in graphs)
    return [each for each, outcome in plays if outcome.reason not in endings(each.graph)]


def told(graphs: Iterable[Drawn]) -> str:
    return "\n\n".join(
        "\n".join(
            [f"graph {each.number} of {each.kinds}, {each.graph.initial_speaker} first", *summarize_graph(each.graph)]
        )
        for each in graphs
    )


# What is played


def test_graphs_without_warnings_are_many_and_not_only_the_simple_ones() -> None:
    texts = [repr(each.graph) for each in clean()]
    assert len(texts) >= COUNT // 5
    parts = ("AllOf", "AnyOf", "Not(", "Once", "ContextEquals", "ContextIn", "ContextThreshold", "ToolCalled")
    targets = ("AgentTarget", "AgentsTarget", "RoundRobin", "Stay", "Revert", "Terminate")
    assert [part for part in (*parts, *targets) if sum(part in text for text in texts) < COUNT // 40] == []
    assert sum(len(each.kinds) >= 4 for each in clean()) >= COUNT // 20
    assert sum(len(each.graph.transitions) >= 5 for each in clean()) >= COUNT // 20
    assert sum("human" in each.kinds.values() for each in clean()) >= COUNT // 40


def test_graphs_are_drawn_as_wide_as_they_should_be() -> None:
    graphs = many(COUNT)
    assert {len(each.kinds) for each in graphs} == {2, 3, 4, 5, 6}
    assert {len(each.graph.transitions) for each in graphs} == set(range(MOST_RULES + 1))
    assert {len(list(variables(each.graph))) for each in graphs} == {0, 1, 2, 3}
    assert {len(tools(each.graph)) for each in graphs} == {0, 1, 2}
    assert {each.graph.max_turns for each in graphs} == {None}


# What is promised


@pytest.mark.parametrize("options", FAIR, ids=lambda options: options.name.lower())
def test_a_graph_without_warnings_ends_by_a_rule(options: Manner) -> None:
    assert told(strayed(clean(), options, MOST_TURNS)) == ""


# That it could be otherwise


def test_what_nothing_ends_goes_on_for_ever() -> None:
    graphs = trapped(saying="no rule ends the channel: only")
    assert len(graphs) > 30
    for options in FAIR:
        assert strayed(graphs, options, most=60) == graphs


def test_what_may_come_to_where_nothing_ends_it_often_does() -> None:
    graphs = trapped(saying="once it has come this far")
    assert len(graphs) > 30
    for options in FAIR:
        assert len(strayed(graphs, options, SOON)) > len(graphs) // 4


def test_a_loop_that_sticks_does_so_until_somebody_clears_something() -> None:
    graphs = trapped(saying="while the context stays as it is")
    assert len(graphs) > 30
    assert len(strayed(graphs, Manner.SETTLED, SOON)) > len(graphs) // 4
    assert len(strayed(graphs, Manner.FORGETFUL, SOON)) < len(graphs) // 6


def test_a_checker_that_sees_no_traps_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_checks, "_missing_ends", lambda *walks: iter(()))
    warned = [each for each in many(COUNT) if each.codes & TRAPS][: 2 * SAMPLE]
    passed = [each for each in warned if not each.graph.check(dict(each.kinds))]
    assert len(passed) > SAMPLE // 2
    assert len(strayed(passed, Manner.STUBBORN, SOON)) > len(passed) // 3
