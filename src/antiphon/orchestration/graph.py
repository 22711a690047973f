"""The transition graph: an ordered table of rules that says who speaks next, as a value.

Rule 1: lower priority numbers are read first, equal ones in the order of the list; the first that matches decides.
Rule 2: a graph is plain data. What `to_dict` gives, `loads` reads back, equal.
Rule 3: what a graph says wrongly is a `RulesInvalid` that names the value, before any channel is made of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import cast

from antiphon.core.codec import Malformed, check_unique_keys, parse_json
from antiphon.core.conditions import CONDITIONS, Always, FromSpeaker, Once, TransitionCondition, inner_conditions
from antiphon.core.envelope import Json
from antiphon.core.errors import RulesInvalid
from antiphon.core.registry import MAX_RULE_DEPTH, Registry, RegistryCodec
from antiphon.core.ruleset import Finding
from antiphon.core.targets import TARGETS, AgentTarget, RoundRobinTarget, TerminateTarget, TransitionTarget
from antiphon.core.text import describe
from antiphon.orchestration.graph_checks import check_graph
from antiphon.orchestration.rendering import GraphFields, TransitionFields, graph_to_mermaid

MAX_TRANSITIONS = 1000
MAX_GRAPH_NUMBER = 10**9
GRAPH_FIELDS = ("initial_speaker", "transitions", "default_target", "max_turns")
TRANSITION_FIELDS = ("when", "then", "priority")

GRAPH_CODEC = RegistryCodec(cast(Registry[object], CONDITIONS), cast(Registry[object], TARGETS))


class Transition(TransitionFields, frozen=True):
    """When the condition matches what was just said, then the target gets the turn."""

    def __post_init__(self) -> None:
        _check_registered(self.when, CONDITIONS, "when")
        _check_registered(self.then, TARGETS, "then")
        if type(self.priority) is not int or not -MAX_GRAPH_NUMBER <= self.priority <= MAX_GRAPH_NUMBER:
            raise RulesInvalid(f"priority is {describe(self.priority)}; give a whole number")
        _check_nesting(self.when, 0)


@dataclass(frozen=True)
class TransitionGraph(GraphFields):
    """Who speaks first, the rules for what follows, what happens if none matches, and after how many turns it ends."""

    transitions: Sequence[Transition]

    def __post_init__(self) -> None:
        if not isinstance(self.initial_speaker, str) or not self.initial_speaker:
            raise RulesInvalid(f"initial_speaker is {describe(self.initial_speaker)}; give a name")
        rules: object = self.transitions
        if not isinstance(rules, list | tuple) or not all(isinstance(rule, Transition) for rule in rules):
            raise RulesInvalid(f"transitions is {describe(rules)}; give a list of Transition(…)")
        if len(rules) > MAX_TRANSITIONS:
            raise RulesInvalid(f"there are {len(rules)} transitions; a graph takes {MAX_TRANSITIONS} at most")
        _check_registered(self.default_target, TARGETS, "default_target")
        turns: object = self.max_turns
        if turns is not None and (type(turns) is not int or not 0 < turns <= MAX_GRAPH_NUMBER):
            raise RulesInvalid(
                f"max_turns is {describe(turns)}; give a number of turns, 1 or more, or None for no limit"
            )
        object.__setattr__(self, "transitions", tuple(rules))

    @classmethod
    def sequence(cls, steps: Sequence[str]) -> TransitionGraph:
        """One after the other, each once; then the channel ends with `sequence_complete`."""
        names = _check_name_list(steps, "steps")
        rules = [Transition(FromSpeaker(one), AgentTarget(after)) for one, after in pairwise(names)]
        return cls(names[0], rules, TerminateTarget("sequence_complete"))

    @classmethod
    def round_robin(cls, participants: Sequence[str], max_turns: int | None = None) -> TransitionGraph:
        """Everybody in the order of the participants of the channel, round and round, for so many turns."""
        names = _check_name_list(participants, "participants")
        return cls(names[0], [Transition(Always(), RoundRobinTarget())], RoundRobinTarget(), max_turns)

    def to_dict(self) -> Json:
        """The graph as plain data, as the knob `graph` of a channel takes it."""
        return {
            "initial_speaker": self.initial_speaker,
            "transitions": [
                {"when": GRAPH_CODEC.dump(rule.when), "then": GRAPH_CODEC.dump(rule.then), "priority": rule.priority}
                for rule in self.transitions
            ],
            "default_target": GRAPH_CODEC.dump(self.default_target),
            "max_turns": self.max_turns,
        }

    @classmethod
    def loads(cls, data: Mapping[str, object] | str | bytes) -> TransitionGraph:
        """The graph of plain data, or of JSON; `RulesInvalid` if it is none."""
        fields = _check_fields(_parse_graph(data), "the graph", GRAPH_FIELDS)
        rules = fields["transitions"]
        if not isinstance(rules, list | tuple):
            raise RulesInvalid(f"transitions is {describe(rules)}; give a list")
        if len(rules) > MAX_TRANSITIONS:
            raise RulesInvalid(f"there are {len(rules)} transitions; a graph takes {MAX_TRANSITIONS} at most")
        return cls(
            cast(str, fields["initial_speaker"]),
            [_load_transition(rule, place) for place, rule in enumerate(rules)],
            _load_default_target(fields["default_target"]),
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
        kinds (agent, human, service), and people may interject. With `writers`, also who may write which keys.

        The effort is bounded by a number of steps, at most a second or two. On an event loop that others use, call it
        with `asyncio.to_thread`.
        """
        return check_graph(self, participants, writers=writers, tier=tier)

    def to_mermaid(self) -> str:
        """The graph as a Mermaid flowchart, made from the table."""
        return graph_to_mermaid(self)


def _load_default_target(data: object) -> TransitionTarget:
    try:
        return GRAPH_CODEC.load(data, TARGETS)
    except RulesInvalid as error:
        raise RulesInvalid(f"default_target: {error}") from error


def _load_transition(data: object, place: int) -> Transition:
    fields = _check_fields(data, f"transition {place}", TRANSITION_FIELDS)
    try:
        return Transition(
            GRAPH_CODEC.load(fields["when"], CONDITIONS),
            GRAPH_CODEC.load(fields["then"], TARGETS),
            cast(int, fields.get("priority", 0)),
        )
    except RulesInvalid as error:
        raise RulesInvalid(f"transition {place}: {error}") from error


def _parse_graph(data: object) -> object:
    if not isinstance(data, str | bytes | bytearray):
        return data
    try:
        text = bytes(data) if isinstance(data, bytearray) else data
        value: object = parse_json(text)
        check_unique_keys(text)
        return value
    except Malformed as error:
        raise RulesInvalid(f"the graph is no JSON: {error}") from error


def _check_fields(data: object, what: str, known: Sequence[str]) -> Mapping[str, object]:
    """The data as an object that has all of these fields but the last, which it may have, and no others."""
    if not isinstance(data, dict):
        raise RulesInvalid(f"{what} is {describe(data)}; give a dict with {', '.join(known)}")
    strange = next((key for key in data if key not in known), None)
    if strange is not None:
        raise RulesInvalid(f"{what} has no field {describe(strange)}; it has: {', '.join(known)}")
    needed = known[:-1]
    missing = next((field for field in needed if field not in data), None)
    if missing is not None:
        raise RulesInvalid(f"{what} has no {missing!r}; it needs: {', '.join(needed)}")
    return data


def _check_name_list(given: object, what: str) -> Sequence[str]:
    if not isinstance(given, list | tuple) or not given or not all(isinstance(name, str) for name in given):
        raise RulesInvalid(f"{what} is {describe(given)}; give a list of names")
    twice = next((name for name in given if given.count(name) > 1), None)
    if twice is not None:
        raise RulesInvalid(f"{what} names {twice!r} twice; name everybody once, or write the transitions yourself")
    return given


def _check_registered(
    value: object, names: Registry[TransitionCondition] | Registry[TransitionTarget], where: str
) -> None:
    if names.knows(value):
        return
    noun = names.noun
    if isinstance(value, type):
        raise RulesInvalid(f"{where} is the class {value.__name__}; give a value of it: {value.__name__}(…)")
    if hasattr(type(value), "name"):
        raise RulesInvalid(f"the {noun} {type(value).__name__} is not registered; call register_{noun} with it first")
    raise RulesInvalid(f"{where} is {describe(value)}; give a {noun}")


def _check_nesting(condition: TransitionCondition, depth: int) -> None:
    """Refuse what is nested too deep, is not registered, or would be `Once` where it is not asked."""
    if depth > MAX_RULE_DEPTH:
        raise RulesInvalid(f"a condition is nested deeper than {MAX_RULE_DEPTH} levels")
    for part in inner_conditions(condition):
        _check_registered(part, CONDITIONS, "a condition")
        _check_nesting(part, depth + 1)
    if not CONDITIONS.is_built_in(type(condition)) and any(
        isinstance(each, Once) for each in _nested_values(condition)
    ):
        name = type(condition).__name__
        raise RulesInvalid(f"Once stands inside of {name}, which cannot know that its rule has fired; put it outside")


def _nested_values(value: object) -> Iterator[object]:
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
        yield from _nested_values(each)
