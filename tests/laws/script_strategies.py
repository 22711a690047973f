"""Values to search with: events that almost fit, envelopes nobody would send, and scripts of what people do."""

from __future__ import annotations

import os
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st

from antiphon import Envelope, Priority
from antiphon.core import events
from antiphon.core.envelope import add_seconds
from antiphon.testing.manual_clock import MANUAL_CLOCK_START
from tests.support.json_strategies import json_objects, json_values, words

PROOF = os.environ.get("ANTIPHON_PROOF") == "1"
COSTLY = settings(max_examples=100 if PROOF else 10)
"""For what opens files."""

PEOPLE = ("alice", "bob", "carol", "hugo", "ada")
KINDS = {"alice": "service", "bob": "service", "carol": "service", "hugo": "human", "ada": "agent"}
TYPES = tuple(sorted(value for name, value in vars(events).items() if name.startswith("EV_")))

names = st.sampled_from(PEOPLE)
instants = st.floats(-1e9, 1e9).map(lambda seconds: add_seconds(MANUAL_CLOCK_START, seconds))


def altered(data: dict[str, object]) -> st.SearchStrategy[dict[str, object]]:
    """The data as it is, with a field gone, or with something strange in a field."""
    keys = st.sampled_from(sorted(data)) if data else st.just("")
    return st.one_of(
        st.just(data),
        keys.map(lambda key: {name: value for name, value in data.items() if name != key}),
        st.tuples(keys, json_values).map(lambda change: {**data, change[0]: change[1]}),
    )


context_updates = st.fixed_dictionaries({"set": json_objects, "delete": st.lists(words, max_size=3)})
seats = st.lists(
    st.fixed_dictionaries({"name": names, "kind": st.sampled_from(["agent", "human", "service"])}), max_size=4
)
shapes: dict[str, st.SearchStrategy[dict[str, object]]] = {
    events.EV_TEXT: st.fixed_dictionaries({"text": words}),
    events.EV_PACKET: st.fixed_dictionaries(
        {"body": words, "routing": json_objects, "context_updates": context_updates}
    ),
    events.EV_CONTEXT_SET: context_updates,
    events.EV_CHANNEL_CREATED: st.fixed_dictionaries(
        {
            "type": st.sampled_from(["conversation", "consulting", "discussion", "system", "nonsense"]),
            "creator": names,
            "participants": seats,
            "knobs": json_objects,
            "ordered": st.booleans(),
            "ttl": st.none() | st.floats(allow_nan=False, allow_infinity=False),
            "context_vars": json_objects,
        }
    ),
    events.EV_CHANNEL_INVITE_REJECT: st.fixed_dictionaries({"reason": words}),
    events.EV_TURN_ASSIGNED: st.fixed_dictionaries({"speakers": st.lists(names, max_size=3), "reason": words}),
    events.EV_CHANNEL_CLOSED: st.fixed_dictionaries({"reason": words, "by": names}),
    events.EV_EXPECTATION_VIOLATED: st.fixed_dictionaries(
        {
            "expectation": st.sampled_from(["acks_within", "turn_within", "nonsense"]),
            "mark": words,
            "handler": st.sampled_from(["audit", "warn", "auto_close", "nonsense"]),
            "seconds": st.floats(allow_nan=False, allow_infinity=False),
            "speakers": st.lists(names, max_size=2),
        }
    ),
}
shapes[events.EV_EXPECTATION_MISSED] = shapes[events.EV_EXPECTATION_VIOLATED]


@st.composite
def envelopes(draw: st.DrawFn) -> Envelope:
    """Anything that decodes as an envelope, most of it almost right."""
    event_type = draw(st.sampled_from(TYPES) | st.just("myapp.thing") | words)
    shaped = shapes.get(event_type, st.just({})).flatmap(altered)
    return Envelope(
        envelope_id=draw(words),
        channel_id=draw(st.just("here") | words),
        sender_id=draw(st.just("hub") | names | words),
        audience=draw(st.none() | st.lists(names | words, max_size=3)),
        event_type=event_type,
        event_data=draw(shaped | json_objects),
        causation_id=draw(st.none() | words),
        priority=draw(st.sampled_from(Priority)),
        created_at=draw(instants | words),
        sequence=draw(st.integers(-3, 2**63 - 1)),
    )


# What people do


@dataclass(frozen=True)
class Open:
    type: str
    creator: str
    others: tuple[str, ...]
    ttl: float | None
    expectations: tuple[tuple[str, float, str], ...] = ()


@dataclass(frozen=True)
class Say:
    channel: int
    who: str
    text: str
    audience: tuple[str, ...] | None = None
    message_id: str | None = None


@dataclass(frozen=True)
class Pack:
    channel: int
    who: str
    body: str
    set: dict[str, object]


@dataclass(frozen=True)
class Write:
    channel: int
    who: str
    set: dict[str, object]
    delete: tuple[str, ...]


@dataclass(frozen=True)
class Custom:
    channel: int
    who: str
    data: dict[str, object]
    audience: tuple[str, ...] | None = None


@dataclass(frozen=True)
class End:
    channel: int
    who: str
    reason: str


@dataclass(frozen=True)
class Pass:
    seconds: float


Act = Open | Say | Pack | Write | Custom | End | Pass

places = st.integers(0, 2)
audiences = st.none() | st.lists(names, min_size=1, max_size=3, unique=True).map(tuple)
keys = st.sampled_from(["a", "b", "c"])
expectations = st.lists(
    st.tuples(
        st.sampled_from(["acks_within", "reply_within", "max_silence", "turn_within"]),
        st.sampled_from([0.0, 5.0, 60.0, 90.5]),
        st.sampled_from(["audit", "warn", "auto_close"]),
    ),
    max_size=2,
).map(tuple)


@st.composite
def openings(draw: st.DrawFn) -> Open:
    kind = draw(st.sampled_from(["conversation", "consulting", "discussion"]))
    most = 4 if kind == "discussion" else 2
    people = draw(st.lists(names, min_size=2, max_size=most, unique=True))
    ttl = draw(st.none() | st.sampled_from([1.0, 60.0, 3600.0]))
    return Open(kind, people[0], tuple(people[1:]), ttl, draw(expectations))


acts = st.one_of(
    openings(),
    st.builds(Say, places, names, words, audiences, st.none() | st.sampled_from(["m1", "m2"])),
    st.builds(Say, places, names, words),
    st.builds(Pack, places, names, words, st.dictionaries(keys, json_values, max_size=2)),
    st.builds(
        Write, places, names, st.dictionaries(keys, json_values, max_size=2), st.lists(keys, max_size=2).map(tuple)
    ),
    st.builds(Custom, places, names, json_objects, audiences),
    st.builds(End, places, names, st.sampled_from(["done", "enough"])),
    st.builds(Pass, st.sampled_from([0.5, 1.0, 30.0, 90.0, 200.0])),
)
scripts = st.tuples(openings(), st.lists(acts, max_size=14)).map(lambda parts: [parts[0], *parts[1]])
