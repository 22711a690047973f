"""Every planted fault is found, told with its shortest trace, and only it."""

from __future__ import annotations

import json

import pytest

from antiphon import RulesInvalid, TransitionGraph
from tests.orchestration.planted_faults import IMPOSSIBLE, SHADOWED, STRANGERS, UNREACHED, Fault, by, table, to
from tests.orchestration.planted_loops import ENDLESS, KEYS, LATE, RACES, STICKY, STICKY_UNTIL_CLEARED

FAULTS: list[Fault] = [
    *STRANGERS,
    *SHADOWED,
    *IMPOSSIBLE,
    *UNREACHED,
    *ENDLESS,
    *STICKY,
    *STICKY_UNTIL_CLEARED,
    *LATE,
    *RACES,
    *KEYS,
]
CODES = {
    "unknown_initial_speaker",
    "unknown_target",
    "dead_rule",
    "unreachable_participant",
    "no_way_to_end",
    "sticky_loop",
    "cap_before_end",
    "order_matters",
    "key_without_writers",
}
LEVELS = {"unknown_initial_speaker": "error", "unknown_target": "error"}

named = pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.code}: {fault.name}")


def test_there_is_a_fault_of_every_kind() -> None:
    assert len(FAULTS) >= 30
    assert {fault.code for fault in FAULTS} == CODES
    assert len({(fault.code, fault.name) for fault in FAULTS}) == len(FAULTS)


@named
def test_a_planted_fault_is_found(fault: Fault) -> None:
    found = fault.faulty.check()
    matching = [(each.level, each.message) for each in found if each.code == fault.code]
    assert [level for level, message in matching if fault.says in message] == [fault.level], found


@named
def test_without_the_fault_nothing_is_found(fault: Fault) -> None:
    assert fault.sound.check() == []


@pytest.mark.parametrize("fault", STICKY, ids=lambda fault: fault.name)
def test_a_loop_is_told_with_its_shortest_trace(fault: Fault) -> None:
    message = next(each.message for each in fault.faulty.check() if each.code == "sticky_loop")
    told = message.partition(": ")[2].partition("; ")[0]
    assert told == fault.trace
    assert message.endswith(
        "; put a rule that ends before it, wrap its condition in Once, or let somebody clear the variable"
    )


@pytest.mark.parametrize("fault", [*ENDLESS, *STICKY_UNTIL_CLEARED], ids=lambda fault: fault.name)
def test_a_trace_names_no_value_that_nobody_wrote(fault: Fault) -> None:
    """What stands for every value that no rule names is told in words, not as it is kept."""
    assert not [each.message for each in fault.faulty.check() if "{" in each.message]


def test_strangers_are_told_before_anything_else_and_all_of_them() -> None:
    faulty = table("zoe", (by("ann"), to("yan")), (by("xia"), to("ann", "yan")), otherwise=to("wim"))
    assert [(each.level, each.code, each.message.split(",")[0]) for each in faulty.check(["ann", "ben"])] == [
        ("error", "unknown_initial_speaker", "initial_speaker is 'zoe'"),
        ("error", "unknown_target", "transition 0 gives the turn to 'yan'"),
        ("error", "unknown_target", "transition 1 gives the turn to 'yan'"),
        ("error", "unknown_target", "default_target gives the turn to 'wim'"),
    ]


# What is wrong already in how it is written down

ALL_CONDITIONS = (
    *("all_of", "always", "any_of", "context_equals", "context_in", "context_threshold"),
    *("from_speaker", "not", "once", "tool_called"),
)
ALL_TARGETS = ("agent", "agents", "revert_to_initiator", "round_robin", "stay", "terminate")
GOOD = {"when": {"name": "from_speaker", "args": {"agent_id": "ann"}}, "then": {"name": "stay", "args": {}}}


def written(**changes: object) -> dict[str, object]:
    """A graph as plain data, with one rule that is different."""
    rule = {**GOOD, **changes}
    return {"initial_speaker": "ann", "transitions": [GOOD, rule], "default_target": {"name": "stay"}}


def when(name: object, /, **args: object) -> dict[str, object]:
    return written(when={"name": name, "args": args})


def then(name: object, /, **args: object) -> dict[str, object]:
    return written(then={"name": name, "args": args})


MISWRITTEN = [
    (when("form_speaker", agent_id="ann"), ["transition 1: no condition is called 'form_speaker'", *ALL_CONDITIONS]),
    (then("agnet", agent_id="ann"), ["transition 1: no target is called 'agnet'", *ALL_TARGETS]),
    (when("stay"), ["no condition is called 'stay'"]),
    (then("always"), ["no target is called 'always'"]),
    (when(7), ["no condition is called 7"]),
    (when(["always"]), ["no condition is called ['always']"]),
    (when("from_speaker", name="ann"), ["'from_speaker' takes no argument 'name'; it takes: agent_id"]),
    (when("always", often=True), ["'always' takes no argument 'often'; it takes: none"]),
    (when("context_equals", key="k"), ["transition 1: no 'context_equals' can be made of {'key': 'k'}"]),
    (when("from_speaker", agent_id=""), ["agent_id of from_speaker is ''; give a name"]),
    (when("from_speaker", agent_id=3), ["agent_id of from_speaker is 3; give a name"]),
    (when("tool_called", tool_name=None), ["tool_name of tool_called is None; give the name of a tool"]),
    (when("context_in", key="k", values=[]), ["values of context_in is []; give a list of at least one value"]),
    (when("context_in", key="k", values="ab"), ["values of context_in is 'ab'; give a list"]),
    (when("context_threshold", key="k", op="==", value=1), ["op of context_threshold is '=='", ">=, >, <=, <"]),
    (when("context_threshold", key="k", op=">", value=True), ["value of context_threshold is True; give a number"]),
    (when("all_of", conditions=[]), ["all_of is given []; give a list of at least one condition"]),
    (when("all_of", conditions={"name": "always"}), ["all_of is given Always()"]),
    (when("not", condition={"name": "nobody"}), ["transition 1: no condition is called 'nobody'", *ALL_CONDITIONS]),
    (when("not", condition=[{"name": "always"}]), ["not is given [Always()], which is no condition"]),
    (when("any_of", conditions=[{"name": "once", "args": {"condition": 7}}]), ["a condition is 7; give a dict"]),
    (then("agents", agent_ids=[]), ["agent_ids of agents is []; give a list of at least one name"]),
    (then("agents", agent_ids=["ann", "ann"]), ["agent_ids of agents is ['ann', 'ann']; name everybody once"]),
    (then("agents", agent_ids="ann"), ["agent_ids of agents is 'ann'; give a list"]),
    (then("terminate", reason=""), ["reason of terminate is ''; give a text"]),
    (written(when="always"), ["a condition is 'always'; give a dict with a name and args"]),
    (written(when={"name": "always", "arg": {}}), ["a condition has no field 'arg'; it has: name, args"]),
    (written(when={"name": "always", "args": []}), ["the args of 'always' are []; give a dict"]),
    (written(priority="high"), ["transition 1: priority is 'high'; give a whole number"]),
    (written(priority=True), ["priority is True; give a whole number"]),
    (written(prio=1), ["transition 1 has no field 'prio'; it has: when, then, priority"]),
    ({**written(), "transitions": [{"when": GOOD["when"]}]}, ["transition 0 has no 'then'; it needs: when, then"]),
    ({**written(), "transitions": [7]}, ["transition 0 is 7; give a dict with when, then, priority"]),
    ({**written(), "transitions": {}}, ["transitions is {}; give a list"]),
    ({**written(), "max_turns": 0}, ["max_turns is 0; give a number of turns, 1 or more, or None for no limit"]),
    ({**written(), "max_turns": 1.5}, ["max_turns is 1.5"]),
    (
        {**written(), "max_turn": 9},
        ["the graph has no field 'max_turn'", "default_target, max_turns"],
    ),
    ({**written(), "initial_speaker": None}, ["initial_speaker is None; give a name"]),
    ({**written(), "default_target": {"name": "stop"}}, ["no target is called 'stop'", *ALL_TARGETS]),
    ({"initial_speaker": "ann", "transitions": []}, ["the graph has no 'default_target'"]),
]


@pytest.mark.parametrize(("data", "words"), MISWRITTEN, ids=[words[0] for _, words in MISWRITTEN])
def test_what_is_written_wrongly_is_named(data: dict[str, object], words: list[str]) -> None:
    for form in (data, json.dumps(data), json.dumps(data).encode()):
        with pytest.raises(RulesInvalid) as refused:
            TransitionGraph.loads(form)
        assert [word for word in words if word not in str(refused.value)] == []


def test_what_is_written_rightly_is_read() -> None:
    graph = TransitionGraph.loads(written())
    assert [rule.when for rule in graph.transitions] == [by("ann"), by("ann")]


@pytest.mark.parametrize(
    ("participants", "words"),
    [
        ("ann", "participants is 'ann'; give a list of names, or a dict from name to kind"),
        (7, "participants is 7"),
        (["ann", 7], "participants is ['ann', 7]"),
        ([], "participants is empty"),
        ({}, "participants is empty"),
    ],
)
def test_participants_that_are_none_are_refused(participants: object, words: str) -> None:
    with pytest.raises(RulesInvalid) as refused:
        table("ann").check(participants)  # type: ignore[arg-type]  # what is given wrongly is the point
    assert words in str(refused.value)
