"""Speakers who play a graph through the real core, by lot: what they write, what they call, who puts in a word.

But for one manner they are fair: whatever a rule may wait for is done sooner or later (see `Manner`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import count
from random import Random

from antiphon import (
    EV_PACKET,
    ContextEquals,
    ContextIn,
    ContextThreshold,
    Envelope,
    State,
    TerminateTarget,
    ToolCalled,
    TransitionGraph,
)
from antiphon.core.conditions import leaf_conditions, values_equal
from antiphon.core.creation import opening_batch
from antiphon.core.envelope import Json
from antiphon.core.events import ChannelCreated, Seat
from antiphon.core.step import Admitted, step
from antiphon.orchestration.catalogue import ruleset_for
from antiphon.testing.manual_clock import MANUAL_CLOCK_START

ELSE: tuple[object, ...] = ("elsewhere", -97.5, 9999.25)
"""Values that no graph names."""
NEAR = (-1, -0.25, 0, 0.25, 1)
IDLE = 0.4
"""How often a variable is left as it is."""
PUTS_IN = 0.2
"""How often somebody who may puts in a word."""
CLEAR = object()


class Manner(Enum):
    """What speakers do with a context variable."""

    FREE = "write any value that rules name, or another one; clear nothing"
    STUBBORN = "write what rules tell apart from nothing, and from then on nothing else"
    FORGETFUL = "write any value, and clear it now and then"
    SETTLED = "write what rules tell apart from nothing, and then never again: not fair, but common"


FAIR = (Manner.FREE, Manner.STUBBORN, Manner.FORGETFUL)


@dataclass(frozen=True)
class Outcome:
    """How a play went. Without a reason it has not ended."""

    reason: str
    turns: int
    state: State


@dataclass(frozen=True)
class Variable:
    """A context variable, and the values that may be written to it."""

    key: str
    told_apart: tuple[object, ...]
    """Values that some rule tells apart from an unset variable, and from one with a value that no rule names."""
    alike: tuple[object, ...]
    """All the others."""

    def write(self, lot: Random, manner: Manner, now: object) -> object:
        """The next value of it, `CLEAR` included."""
        if manner in (Manner.STUBBORN, Manner.SETTLED) and any(values_equal(now, each) for each in self.told_apart):
            return lot.choice(self.told_apart) if manner is Manner.STUBBORN else now
        cleared = (CLEAR,) if manner is Manner.FORGETFUL else ()
        return lot.choice((*self.told_apart, *self.alike, *cleared))


def variables(graph: TransitionGraph) -> Iterator[Variable]:
    """The context variables that the rules ask about."""
    asked: dict[str, list[ContextEquals | ContextIn | ContextThreshold]] = {}
    for rule in graph.transitions:
        for leaf in leaf_conditions(rule.when):
            if isinstance(leaf, ContextEquals | ContextIn | ContextThreshold):
                asked.setdefault(leaf.key, []).append(leaf)
    for key, conditions in asked.items():

        def answers(
            context: Json, conditions: list[ContextEquals | ContextIn | ContextThreshold] = conditions
        ) -> tuple[bool, ...]:
            return tuple(each.evaluate(State(context_vars=context), Envelope()) for each in conditions)

        plain = {answers({}), answers({key: ELSE[0]})}
        values = [*(value for each in conditions for value in _named(each) if value is not None), *ELSE]
        told_apart = tuple(value for value in values if answers({key: value}) not in plain)
        yield Variable(key, told_apart, tuple(value for value in values if answers({key: value}) in plain))


def _named(condition: ContextEquals | ContextIn | ContextThreshold) -> Iterator[object]:
    match condition:
        case ContextEquals(value=value):
            yield value
        case ContextIn(values=values):
            yield from values
        case ContextThreshold(value=edge):
            yield from (edge + step for step in NEAR)


def tools(graph: TransitionGraph) -> list[str]:
    """The tools that the rules ask about."""
    called = (leaf for rule in graph.transitions for leaf in leaf_conditions(rule.when) if isinstance(leaf, ToolCalled))
    return sorted({leaf.tool_name for leaf in called})


def endings(graph: TransitionGraph) -> set[str]:
    """The reasons for which rules may end it."""
    targets = (*(rule.then for rule in graph.transitions), graph.default_target)
    return {each.reason for each in targets if isinstance(each, TerminateTarget)}


def play(graph: TransitionGraph, kinds: Mapping[str, str], lot: Random, manner: Manner, *, most: int) -> Outcome:
    """A channel with this graph, until it ends, or until so many words were said in it."""
    knobs: Json = {"graph": graph.to_dict()}
    ruleset = ruleset_for("workflow", knobs)
    numbers = count(1)
    options = {"ruleset": ruleset, "at": MANUAL_CLOCK_START, "new_id": lambda: f"id{next(numbers)}"}
    first = next(iter(kinds))
    created = ChannelCreated("workflow", first, [Seat(*each) for each in kinds.items()], knobs, ruleset.adapter.ordered)
    fold = opening_batch(ruleset.begin("here"), created, set(kinds), **options).fold  # type: ignore[arg-type]  # see options
    asked, callable_ = list(variables(graph)), [None, *tools(graph)]
    turns = 0
    while turns < most and not fold.state.ended:
        draft = _packet(fold.state, lot, asked, callable_, manner)
        outcome = step(fold, draft, **options)  # type: ignore[arg-type]  # see options
        assert isinstance(outcome, Admitted), outcome
        fold, turns = outcome.fold, turns + 1
    return Outcome(fold.state.close_reason, turns, fold.state)


def _packet(state: State, lot: Random, asked: list[Variable], tools: list[str | None], manner: Manner) -> Envelope:
    """What somebody says who has the turn, or may put in a word. People call no tools."""
    speaker = _speaker(state, lot)
    writes = {
        each.key: each.write(lot, manner, state.context_vars.get(each.key)) for each in asked if lot.random() >= IDLE
    }
    tool = lot.choice(tools) if state.participants[speaker] != "human" else None
    data: Json = {
        "body": "",
        "routing": {} if tool is None else {"tool": tool},
        "context_updates": {
            "set": {key: value for key, value in writes.items() if value is not CLEAR},
            "delete": [key for key, value in writes.items() if value is CLEAR],
        },
    }
    return Envelope(channel_id="here", sender_id=speaker, event_type=EV_PACKET, event_data=data)


def _speaker(state: State, lot: Random) -> str:
    idle = [name for name, kind in state.participants.items() if kind == "human" and name not in state.speakers]
    return lot.choice(idle) if idle and lot.random() < PUTS_IN else lot.choice(state.speakers)
