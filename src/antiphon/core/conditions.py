"""Conditions: what may be asked about what was just said, and about the channel it was said in.

Rule 1: a condition is a value. It prints, compares, and survives a round trip through JSON.
Rule 2: it is asked after the fact: the state includes the envelope, and what its packet wrote to the context.
Rule 3: values are compared as JSON has them: `True` is not 1, and 1 is 1.0.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import ge, gt, le, lt
from typing import ClassVar, Protocol, TypeGuard, TypeVar, cast

import msgspec
from msgspec.structs import force_setattr

from antiphon.core.codec import Malformed, check_json
from antiphon.core.envelope import Envelope
from antiphon.core.errors import RulesInvalid
from antiphon.core.events import EV_PACKET, Packet, event_of
from antiphon.core.naming import Names
from antiphon.core.state import State
from antiphon.core.words import shown


class TransitionCondition(Protocol):
    """Says whether a rule matches. A class with a unique `name`; its dataclass fields are its arguments."""

    name: ClassVar[str]

    def evaluate(self, state: State, envelope: Envelope) -> bool: ...


C = TypeVar("C", bound=type[TransitionCondition])

CONDITIONS: Names[TransitionCondition] = Names("condition", "evaluate")


def register_condition(condition: C) -> C:
    """Make a condition available by its name. Usable as a decorator; a built-in name is refused."""
    return cast(C, CONDITIONS.register(condition))


class Condition(msgspec.Struct, frozen=True):
    """What every condition of ours can do: be joined with others by `&`, `|` and `~`."""

    def __and__(self, other: TransitionCondition) -> AllOf:
        return AllOf(*_parts(self, AllOf), *_parts(other, AllOf))

    def __rand__(self, other: TransitionCondition) -> AllOf:
        return AllOf(*_parts(other, AllOf), *_parts(self, AllOf))

    def __or__(self, other: TransitionCondition) -> AnyOf:
        return AnyOf(*_parts(self, AnyOf), *_parts(other, AnyOf))

    def __ror__(self, other: TransitionCondition) -> AnyOf:
        return AnyOf(*_parts(other, AnyOf), *_parts(self, AnyOf))

    def __invert__(self) -> Not:
        return Not(cast(TransitionCondition, self))


class Always(Condition, frozen=True):
    """Matches everything that is said."""

    name: ClassVar[str] = "always"

    def evaluate(self, state: State, envelope: Envelope) -> bool:
        return True


class FromSpeaker(Condition, frozen=True):
    """Matches what this participant says."""

    name: ClassVar[str] = "from_speaker"
    agent_id: str

    def __post_init__(self) -> None:
        check_word(self, "agent_id", "a name")

    def evaluate(self, state: State, envelope: Envelope) -> bool:
        return envelope.sender_id == self.agent_id


class ToolCalled(Condition, frozen=True):
    """Matches a packet whose turn called this tool, before any other that the table names."""

    name: ClassVar[str] = "tool_called"
    tool_name: str

    def __post_init__(self) -> None:
        check_word(self, "tool_name", "the name of a tool")

    def evaluate(self, state: State, envelope: Envelope) -> bool:
        if envelope.event_type != EV_PACKET:
            return False
        event = event_of(envelope)
        return isinstance(event, Packet) and event.routing.tool == self.tool_name


class ContextEquals(Condition, frozen=True):
    """Matches while a context variable has this value. One that is not set has the value None."""

    name: ClassVar[str] = "context_equals"
    key: str
    value: object

    def __post_init__(self) -> None:
        check_word(self, "key", "the name of a context variable")
        force_setattr(self, "value", _storable(self.name, self.value))

    def evaluate(self, state: State, envelope: Envelope) -> bool:
        return equal(state.context_vars.get(self.key), self.value)


class ContextIn(Condition, frozen=True):
    """Matches while a context variable has one of these values."""

    name: ClassVar[str] = "context_in"
    key: str
    values: Sequence[object]

    def __post_init__(self) -> None:
        check_word(self, "key", "the name of a context variable")
        if not isinstance(self.values, list | tuple) or not self.values:
            raise RulesInvalid(f"values of context_in is {shown(self.values)}; give a list of at least one value")
        force_setattr(self, "values", tuple(_storable(self.name, value) for value in self.values))

    def evaluate(self, state: State, envelope: Envelope) -> bool:
        value = state.context_vars.get(self.key)
        return any(equal(value, wanted) for wanted in self.values)


COMPARISONS: dict[str, Callable[[float, float], bool]] = {">=": ge, ">": gt, "<=": le, "<": lt}


class ContextThreshold(Condition, frozen=True):
    """Matches while a context variable is a number on this side of a value: `ContextThreshold("score", ">=", 8)`."""

    name: ClassVar[str] = "context_threshold"
    key: str
    op: str
    value: float

    def __post_init__(self) -> None:
        check_word(self, "key", "the name of a context variable")
        if self.op not in COMPARISONS:
            raise RulesInvalid(f"op of context_threshold is {shown(self.op)}; give one of {', '.join(COMPARISONS)}")
        if not is_number(self.value):
            raise RulesInvalid(f"value of context_threshold is {shown(self.value)}; give a number")
        _storable(self.name, self.value)

    def evaluate(self, state: State, envelope: Envelope) -> bool:
        value = state.context_vars.get(self.key)
        return is_number(value) and COMPARISONS[self.op](value, self.value)


class BranchFailed(Condition, frozen=True, omit_defaults=True):
    """Matches a group (`AgentsTarget`) that has ended, and of which one failed; with a name, this one."""

    name: ClassVar[str] = "branch_failed"
    agent_id: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.agent_id, str):
            raise RulesInvalid(f"agent_id of branch_failed is {shown(self.agent_id)}; give a name, or leave it out")

    def evaluate(self, state: State, envelope: Envelope) -> bool:
        if state.speakers:  # others of the group have yet to answer
            return False
        return self.agent_id in state.failed_branches if self.agent_id else bool(state.failed_branches)


@dataclass(frozen=True, init=False)
class Joined:
    """Several conditions as one: `AllOf(a, b)`, or `AllOf([a, b])`."""

    name: ClassVar[str] = ""
    conditions: tuple[TransitionCondition, ...]

    def __init__(self, *given: TransitionCondition | Sequence[TransitionCondition], conditions: object = None) -> None:
        one_list = len(given) == 1 and isinstance(given[0], list | tuple)
        parts = conditions if conditions is not None else given[0] if one_list else given
        object.__setattr__(self, "conditions", _checked(self.name, parts))

    __and__, __rand__ = Condition.__and__, Condition.__rand__
    __or__, __ror__ = Condition.__or__, Condition.__ror__
    __invert__ = Condition.__invert__

    def evaluate(self, state: State, envelope: Envelope) -> bool:
        return holds(self, state, envelope, spent=False)


class AllOf(Joined):
    """Matches when all of these do. `a & b` makes one."""

    name: ClassVar[str] = "all_of"


class AnyOf(Joined):
    """Matches when one of these does. `a | b` makes one."""

    name: ClassVar[str] = "any_of"


class Not(Condition, frozen=True):
    """Matches when this does not. `~a` makes one."""

    name: ClassVar[str] = "not"
    condition: TransitionCondition

    def __post_init__(self) -> None:
        _checked(self.name, [self.condition])

    def evaluate(self, state: State, envelope: Envelope) -> bool:
        return holds(self, state, envelope, spent=False)


class Once(Condition, frozen=True):
    """Matches when this does, until the rule it stands in has given somebody the turn. Then it never does again."""

    name: ClassVar[str] = "once"
    condition: TransitionCondition

    def __post_init__(self) -> None:
        _checked(self.name, [self.condition])

    def evaluate(self, state: State, envelope: Envelope) -> bool:
        return holds(self, state, envelope, spent=False)


BUILT_IN = (
    Always,
    FromSpeaker,
    ToolCalled,
    ContextEquals,
    ContextIn,
    ContextThreshold,
    BranchFailed,
    AllOf,
    AnyOf,
    Not,
    Once,
)
CONDITIONS.build_in(*BUILT_IN)


def holds(condition: TransitionCondition, state: State, envelope: Envelope, *, spent: bool) -> bool:
    """Whether a condition matches, in a rule that has fired before (`spent`) or has not."""
    match condition:
        case Once(inner):
            return not spent and holds(inner, state, envelope, spent=spent)
        case AllOf(parts):
            return all(holds(part, state, envelope, spent=spent) for part in parts)
        case AnyOf(parts):
            return any(holds(part, state, envelope, spent=spent) for part in parts)
        case Not(inner):
            return not holds(inner, state, envelope, spent=spent)
        case _:
            return answered(condition.evaluate(state, envelope))


def answered(answer: object) -> bool:
    """What a condition said; `TypeError` if that is neither yes nor no."""
    if not isinstance(answer, bool):
        if inspect.iscoroutine(answer):
            answer.close()
        raise TypeError(f"evaluate returned {shown(answer)}; return True or False")
    return answer


def inner_of(condition: TransitionCondition) -> tuple[TransitionCondition, ...]:
    """The conditions that a composed one of ours consists of."""
    match condition:
        case AllOf(parts) | AnyOf(parts):
            return tuple(parts)
        case Not(inner) | Once(inner):
            return (inner,)
        case _:
            return ()


def leaves(condition: TransitionCondition) -> Iterator[TransitionCondition]:
    """The simple conditions that one is made of."""
    inner = inner_of(condition)
    if not inner:
        yield condition
    for part in inner:
        yield from leaves(part)


def speakers_of(condition: TransitionCondition) -> frozenset[str] | None:
    """Those without whose word it cannot match; None if anybody's may do."""
    match condition:
        case FromSpeaker(agent_id):
            return frozenset({agent_id})
        case AllOf(parts):
            named = [names for part in parts if (names := speakers_of(part)) is not None]
            return frozenset.intersection(*named) if named else None
        case AnyOf(parts):
            each = [speakers_of(part) for part in parts]
            return frozenset().union(*(names for names in each if names)) if None not in each else None
        case Once(inner):
            return speakers_of(inner)
        case _:
            return None


def is_number(value: object) -> TypeGuard[float]:
    """Whether this is a number. A bool is none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def equal(one: object, other: object) -> bool:
    """Whether two values are the same JSON: numbers by value, and no bool is a number."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return isinstance(one, bool) == isinstance(other, bool) and one == other


def _storable(name: str, value: object) -> object:
    """The value as a log keeps it; `RulesInvalid` if it cannot."""
    try:
        plain = _listed(value)
        check_json(plain)
    except (Malformed, RecursionError) as error:
        raise RulesInvalid(f"{name} is given {shown(value)}: {error}") from error
    return plain


def _listed(value: object) -> object:
    if isinstance(value, list | tuple):
        return [_listed(item) for item in value]
    return {key: _listed(item) for key, item in value.items()} if isinstance(value, dict) else value


def check_word(value: object, field: str, what: str) -> None:
    """`RulesInvalid` unless this field is a text with something in it."""
    given = getattr(value, field)
    if not isinstance(given, str) or not given.strip():
        raise RulesInvalid(f"{field} of {getattr(type(value), 'name', '')} is {shown(given)}; give {what}")


def _parts(condition: object, kind: type[Joined]) -> Sequence[TransitionCondition]:
    return condition.conditions if isinstance(condition, kind) else [cast(TransitionCondition, condition)]


def _checked(name: str, conditions: object) -> tuple[TransitionCondition, ...]:
    if not isinstance(conditions, list | tuple) or not conditions:
        raise RulesInvalid(f"{name} is given {shown(conditions)}; give a list of at least one condition")
    for condition in conditions:
        if isinstance(condition, type) or not callable(getattr(condition, "evaluate", None)):
            raise RulesInvalid(f"{name} is given {shown(condition)}, which is no condition")
    return tuple(conditions)
