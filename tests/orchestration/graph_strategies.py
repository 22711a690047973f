"""Graphs to search with, and situations in which to ask them."""

from __future__ import annotations

from hypothesis import strategies as st

from antiphon import (
    EV_PACKET,
    EV_TEXT,
    AgentsTarget,
    AgentTarget,
    AllOf,
    Always,
    AnyOf,
    ContextEquals,
    ContextIn,
    ContextThreshold,
    Envelope,
    FromSpeaker,
    Not,
    Once,
    RevertToInitiatorTarget,
    RoundRobinTarget,
    State,
    StayTarget,
    TerminateTarget,
    ToolCalled,
    Transition,
    TransitionGraph,
)
from antiphon.core.conditions import TransitionCondition
from antiphon.core.targets import TransitionTarget
from tests.support.json_strategies import json_values, words

PEOPLE = ("ann", "ben", "cleo", "dan")
STRANGERS = ("zoe", 'a "quoted" <name>', "anybody", "#1", "many\nlines")
KEYS = ("mood", "score")
TOOLS = ("stop", "go")
VALUES = (None, True, False, 0, 1, 1.0, 2.5, "good", "1", [1, True], {"deep": [None]})

people = st.sampled_from(PEOPLE)
anybody = st.sampled_from((*PEOPLE, *PEOPLE, *STRANGERS))
keys = st.sampled_from(KEYS)
values = st.sampled_from(VALUES)
numbers = st.sampled_from((0, 1, 2.5, -3)) | st.integers(-(10**18), 10**18) | st.floats(-1e18, 1e18)


def conditions_about(
    names: st.SearchStrategy[str], found: st.SearchStrategy[object]
) -> st.SearchStrategy[TransitionCondition]:
    """Conditions of every kind, nested, about these people and values."""
    leaves = st.one_of(
        st.just(Always()),
        st.builds(FromSpeaker, names),
        st.builds(ToolCalled, st.sampled_from(TOOLS)),
        st.builds(ContextEquals, keys, found),
        st.builds(ContextIn, keys, st.lists(found, min_size=1, max_size=3)),
        st.builds(ContextThreshold, keys, st.sampled_from((">=", ">", "<=", "<")), numbers),
    )
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.builds(AllOf, st.lists(inner, min_size=1, max_size=3)),
            st.builds(AnyOf, st.lists(inner, min_size=1, max_size=3)),
            st.builds(Not, inner),
            st.builds(Once, inner),
        ),
        max_leaves=6,
    )


def targets_among(names: st.SearchStrategy[str]) -> st.SearchStrategy[TransitionTarget]:
    return st.one_of(
        st.builds(AgentTarget, names),
        st.builds(AgentsTarget, st.lists(names, min_size=1, max_size=3, unique=True)),
        st.sampled_from((RoundRobinTarget(), StayTarget(), RevertToInitiatorTarget())),
        st.builds(TerminateTarget, words.filter(str.strip)),
    )


def graphs_of(
    names: st.SearchStrategy[str], found: st.SearchStrategy[object], most: int = 6
) -> st.SearchStrategy[TransitionGraph]:
    rules = st.builds(Transition, conditions_about(names, found), targets_among(names), st.integers(-2, 2))
    return st.builds(
        TransitionGraph,
        names,
        st.lists(rules, max_size=most),
        targets_among(names),
        st.none() | st.integers(1, 10**9),
    )


graphs = graphs_of(people, values)
strange_graphs = graphs_of(anybody, json_values)
"""Also with people nobody knows, and values nobody expects."""

packets = st.builds(
    lambda sender, tool: Envelope(
        "e9", "here", sender, None, EV_PACKET, {"body": "", "routing": {} if tool is None else {"tool": tool}}
    ),
    people,
    st.sampled_from((None, *TOOLS, "other")),
)
texts = st.builds(lambda sender: Envelope("e9", "here", sender, None, EV_TEXT, {"text": "hello"}), people)
said = packets | texts


@st.composite
def situations(draw: st.DrawFn, rules: int) -> tuple[State, Envelope]:
    """Somebody has just spoken, in a channel of whatever context, in which some of so many rules have fired."""
    envelope = draw(said)
    interjected = draw(st.booleans())
    return (
        State(
            participants=dict.fromkeys(PEOPLE, "agent"),
            creator_id=draw(people),
            ordered=True,
            status="active",
            speakers=tuple(draw(st.lists(people, min_size=1, unique=True))) if interjected else (),
            interjected=interjected,
            last_speaker_id=draw(people) if interjected else envelope.sender_id,
            turn_count=1,
            fired=tuple(draw(st.sets(st.integers(0, max(rules - 1, 0))))),
            context_vars=draw(st.dictionaries(keys, values | numbers, max_size=2)),
        ),
        envelope,
    )
