"""The transition graph: an ordered table of rules that says who speaks next, as a value.

Rule 1: lower priority numbers are read first, equal ones in the order of the page; the first that matches decides.
Rule 2: a graph is plain data. What `to_dict` gives, `loads` reads back, equal.
Rule 3: what a graph says wrongly is a `RulesInvalid` that names the value, before any channel is made of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import cast

import msgspec

from antiphon.core.codec import Malformed, check_names, parsed
from antiphon.core.conditions import CONDITIONS, Always, FromSpeaker, Once, TransitionCondition, inner_of
from antiphon.core.errors import RulesInvalid
from antiphon.core.events import Json
from antiphon.core.naming import DEEPEST, Names, Vocabulary
from antiphon.core.rules import Finding
from antiphon.core.targets import TARGETS, AgentTarget, RoundRobinTarget, TerminateTarget, TransitionTarget
from antiphon.core.words import shown
from antiphon.orchestration.checking import check_graph
from antiphon.orchestration.drawing import mermaid

MOST_TRANSITIONS = 1000
MOST_TURNS = 10**9
FIELDS = ("initial_speaker", "transitions", "default_target", "max_turns")
RULE_FIELDS = ("when", "then", "priority")

VOCABULARY = Vocabulary(cast(Names[object], CONDITIONS), cast(Names[object], TARGETS))


class Transition(msgspec.Struct, frozen=True):
    """When the condition matches what was just said, then the target gets the turn."""

    when: TransitionCondition
    then: TransitionTarget
    priority: int = 0
    """Lower numbers are read first."""

    def __post_init__(self) -> None:
        _check_value(self.when, CONDITIONS, "when")
        _check_value(self.then, TARGETS, "then")
        if type(self.priority) is not int or not -MOST_TURNS <= self.priority <= MOST_TURNS:
            raise RulesInvalid(f"priority is {shown(self.priority)}; give a whole number")
        _check_inside(self.when, 0)


@dataclass(frozen=True)
class TransitionGraph:
    """Who speaks first, the rules for what follows, what happens if none matches, and after how many turns it ends."""

    initial_speaker: str
    transitions: Sequence[Transition]
    default_target: TransitionTarget
    max_turns: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.initial_speaker, str) or not self.initial_speaker:
            raise RulesInvalid(f"initial_speaker is {shown(self.initial_speaker)}; give a name")
        rules: object = self.transitions
        if not isinstance(rules, list | tuple) or not all(isinstance(rule, Transition) for rule in rules):
            raise RulesInvalid(f"transitions is {shown(rules)}; give a list of Transition(…)")
        if len(rules) > MOST_TRANSITIONS:
            raise RulesInvalid(f"there are {len(rules)} transitions; a graph takes {MOST_TRANSITIONS} at most")
        _check_value(self.default_target, TARGETS, "default_target")
        turns: object = self.max_turns
        if turns is not None and (type(turns) is not int or not 0 < turns <= MOST_TURNS):
            raise RulesInvalid(f"max_turns is {shown(turns)}; give a number of turns, 1 or more, or None for no limit")
        object.__setattr__(self, "transitions", tuple(rules))

    @classmethod
    def sequence(cls, steps: Sequence[str]) -> TransitionGraph:
        """One after the other, each once; then the channel ends with `sequence_complete`."""
        names = _names(steps, "steps")
        rules = [Transition(FromSpeaker(one), AgentTarget(after)) for one, after in pairwise(names)]
        return cls(names[0], rules, TerminateTarget("sequence_complete"))

    @classmethod
    def round_robin(cls, participants: Sequence[str], max_turns: int | None = None) -> TransitionGraph:
        """Everybody in the order of the participants of the channel, round and round, for so many turns."""
        names = _names(participants, "participants")
        return cls(names[0], [Transition(Always(), RoundRobinTarget())], RoundRobinTarget(), max_turns)

    def to_dict(self) -> Json:
        """The graph as plain data, as the knob `graph` of a channel takes it."""
        return {
            "initial_speaker": self.initial_speaker,
            "transitions": [
                {
                    "when": VOCABULARY.dump(rule.when),
                    "then": VOCABULARY.dump(rule.then),
                    "priority": rule.priority,
                }
                for rule in self.transitions
            ],
            "default_target": VOCABULARY.dump(self.default_target),
            "max_turns": self.max_turns,
        }

    @classmethod
    def loads(cls, data: Mapping[str, object] | str | bytes) -> TransitionGraph:
        """The graph of plain data, or of JSON; `RulesInvalid` if it is none."""
        fields = _dict(_parsed(data), "the graph", FIELDS)
        missing = next((field for field in FIELDS[:3] if field not in fields), None)
        if missing is not None:
            raise RulesInvalid(f"the graph has no {missing!r}; it needs: {', '.join(FIELDS[:3])}")
        rules = fields["transitions"]
        if not isinstance(rules, list | tuple):
            raise RulesInvalid(f"transitions is {shown(rules)}; give a list")
        if len(rules) > MOST_TRANSITIONS:
            raise RulesInvalid(f"there are {len(rules)} transitions; a graph takes {MOST_TRANSITIONS} at most")
        return cls(
            cast(str, fields["initial_speaker"]),
            [_rule(rule, place) for place, rule in enumerate(rules)],
            _default(fields["default_target"]),
            cast("int | None", fields.get("max_turns")),
        )

    def check(
        self,
        participants: Sequence[str] | Mapping[str, str],
        *,
        writers: Mapping[str, Sequence[str]] | None = None,
        tier: str | None = None,
    ) -> list[Finding]:
        """What is wrong with this graph among these participants, the one who opens the channel first.

        Errors keep a channel from being opened; warnings are recorded on it. Given as a mapping, participants have
        kinds (agent, human, service), and people may put in a word. With `writers`, also which keys anybody may write.

        The effort is bounded by a number of steps, at most a second or two. On an event loop that others use, call it
        with `asyncio.to_thread`.
        """
        return check_graph(self, participants, writers=writers, tier=tier)

    def to_mermaid(self) -> str:
        """The graph as a Mermaid flowchart, made from the table."""
        return mermaid(self)


def _default(data: object) -> TransitionTarget:
    try:
        return VOCABULARY.load(data, TARGETS)
    except RulesInvalid as error:
        raise RulesInvalid(f"default_target: {error}") from error


def _rule(data: object, place: int) -> Transition:
    fields = _dict(data, f"transition {place}", RULE_FIELDS)
    missing = next((field for field in RULE_FIELDS[:2] if field not in fields), None)
    if missing is not None:
        raise RulesInvalid(f"transition {place} has no {missing!r}; it needs: when, then")
    try:
        return Transition(
            VOCABULARY.load(fields["when"], CONDITIONS),
            VOCABULARY.load(fields["then"], TARGETS),
            cast(int, fields.get("priority", 0)),
        )
    except RulesInvalid as error:
        raise RulesInvalid(f"transition {place}: {error}") from error


def _parsed(data: object) -> object:
    if not isinstance(data, str | bytes | bytearray):
        return data
    try:
        text = bytes(data) if isinstance(data, bytearray) else data
        value: object = parsed(text)
        check_names(text)
        return value
    except Malformed as error:
        raise RulesInvalid(f"the graph is no JSON: {error}") from error


def _dict(data: object, what: str, known: Sequence[str]) -> Mapping[str, object]:
    if not isinstance(data, dict):
        raise RulesInvalid(f"{what} is {shown(data)}; give a dict with {', '.join(known)}")
    strange = next((key for key in data if key not in known), None)
    if strange is not None:
        raise RulesInvalid(f"{what} has no field {shown(strange)}; it has: {', '.join(known)}")
    return data


def _names(given: object, what: str) -> Sequence[str]:
    if not isinstance(given, list | tuple) or not given or not all(isinstance(name, str) for name in given):
        raise RulesInvalid(f"{what} is {shown(given)}; give a list of names")
    twice = next((name for name in given if given.count(name) > 1), None)
    if twice is not None:
        raise RulesInvalid(f"{what} names {twice!r} twice; name everybody once, or write the transitions yourself")
    return given


def _check_value(value: object, names: Names[TransitionCondition] | Names[TransitionTarget], where: str) -> None:
    if names.knows(value):
        return
    noun = names.noun
    if isinstance(value, type):
        raise RulesInvalid(f"{where} is the class {value.__name__}; give a value of it: {value.__name__}(…)")
    if hasattr(type(value), "name"):
        raise RulesInvalid(f"the {noun} {type(value).__name__} is not registered; call register_{noun} with it first")
    raise RulesInvalid(f"{where} is {shown(value)}; give a {noun}")


def _check_inside(condition: TransitionCondition, depth: int) -> None:
    """Refuse what is nested too deep, is not registered, or would be `Once` where nobody asks it."""
    if depth > DEEPEST:
        raise RulesInvalid(f"a condition is nested deeper than {DEEPEST} levels")
    for part in inner_of(condition):
        _check_value(part, CONDITIONS, "a condition")
        _check_inside(part, depth + 1)
    if not CONDITIONS.is_built_in(type(condition)) and any(isinstance(each, Once) for each in _held(condition)):
        name = type(condition).__name__
        raise RulesInvalid(f"Once stands inside of {name}, which cannot know that its rule has fired; put it outside")


def _held(value: object) -> Iterator[object]:
    """Everything that a value holds in its fields."""
    if isinstance(value, list | tuple):
        parts: Sequence[object] = value
    else:
        names: Sequence[str] = getattr(value, "__struct_fields__", None) or [
            *getattr(value, "__dataclass_fields__", ())
        ]
        parts = [getattr(value, name) for name in names]
    for each in parts:
        yield each
        yield from _held(each)
