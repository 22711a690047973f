"""Conditions: what may be asked about what was just said, and about the channel it was said in.

Rule 1: a condition is a value. It prints, compares, and survives a round trip through JSON.
Rule 2: it is asked after the fact: the state includes the envelope, and what its packet wrote to the context.
Rule 3: values are compared as JSON has them: `True` is not 1, and 1 is 1.0.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import ge, gt, le, lt
from typing import ClassVar, Protocol, TypeGuard, TypeVar, cast

import msgspec
from msgspec.structs import force_setattr

from antiphon.core.codec import Malformed, check_json
from antiphon.core.envelope import Envelope
from antiphon.core.errors import RulesInvalid
from antiphon.core.event_data import event_of
from antiphon.core.events import EV_PACKET, Packet, Text
from antiphon.core.registry import Registry
from antiphon.core.state import State
from antiphon.core.text import describe
from antiphon.core.verdicts import is_approved


class TransitionCondition(Protocol):
    """Says whether a rule matches. A class with a unique `name`; its dataclass fields are its arguments."""

    name: ClassVar[str]

    def evaluate(self, state: State, envelope: Envelope) -> bool: ...


C = TypeVar("C", bound=type[TransitionCondition])

CONDITIONS: Registry[TransitionCondition] = Registry("condition", "evaluate")


def register_condition(condition: C) -> C:
    """Make a condition available by its name. Usable as a decorator; a built-in name is refused."""
    return cast(C, CONDITIONS.register(condition))


class ComposableCondition(msgspec.Struct, frozen=True):
    """What every condition of ours can do: be joined with others by `&`, `|` and `~`."""

    def __and__(self, other: TransitionCondition) -> AllOf:
        return AllOf(*_conditions_to_join(self, AllOf), *_conditions_to_join(other, AllOf))

    def __rand__(self, other: TransitionCondition) -> AllOf:
        return AllOf(*_conditions_to_join(other, AllOf), *_conditions_to_join(self, AllOf))

    def __or__(self, other: TransitionCondition) -> AnyOf:
        return AnyOf(*_conditions_to_join(self, AnyOf), *_conditions_to_join(other, AnyOf))

    def __ror__(self, other: TransitionCondition) -> AnyOf:
        return AnyOf(*_conditions_to_join(other, AnyOf), *_conditions_to_join(self, AnyOf))

    def __invert__(self) -> Not:
        return Not(cast(TransitionCondition, self))


class Always(ComposableCondition, frozen=True):
    """Matches everything that is said."""

    name: ClassVar[str] = "always"

    def evaluate(self, state: State, envelope: Envelope) -> bool:
        return True


class FromSpeaker(ComposableCondition, frozen=True):
    """Matches what this participant says."""

    name: ClassVar[str] = "from_speaker"
    agent_id: str

    def __post_init__(self) -> None:
        check_text_field(self, "agent_id", "a name")

    def evaluate(self, state: State, envelope: Envelope) -> bool:
        return envelope.sender_id == self.agent_id


class ToolCalled(ComposableCondition, frozen=True):
    """Matches a packet whose turn called this tool, before any other that the table names."""

    name: ClassVar[str] = "tool_called"
    tool_name: str

    def __post_init__(self) -> None:
        check_text_field(self, "tool_name", "the name of a tool")

    def evaluate(self, state: State, envelope: Envelope) -> bool:
        if envelope.event_type != EV_PACKET:
            return False
        event = event_of(envelope)
        return isinstance(event, Packet) and event.routing.tool == self.tool_name


class ContextEquals(ComposableCondition, frozen=True):
    """Matches while a context variable has this value. One that is not set has the value None."""

    name: ClassVar[str] = "context_equals"
    key: str
    value: object

    def __post_init__(self) -> None:
        check_text_field(self, "key", "the name of a context variable")
        force_setattr(self, "value", _plain_value(self.name, self.value))

    def evaluate(self, state: State, envelope: Envelope) -> bool:
        return values_equal(state.context_vars.get(self.key), self.value)


class ContextIn(ComposableCondition, frozen=True):
    """Matches while a context variable has one of these values."""

    name: ClassVar[str] = "context_in"
    key: str
    values: Sequence[object]

    def __post_init__(self) -> None:
        check_text_field(self, "key", "the name of a context variable")
        if not isinstance(self.values, list | tuple) or not self.values:
            raise RulesInvalid(f"values of context_in is {describe(self.values)}; give a list of at least one value")
        force_setattr(self, "values", tuple(_plain_value(self.name, value) for value in self.values))

    def evaluate(self, state: State, envelope: Envelope) -> bool:
        value = state.context_vars.get(self.key)
        return any(values_equal(value, wanted) for wanted in self.values)


COMPARISONS: dict[str, Callable[[float, float], bool]] = {">=": ge, ">": gt, "<=": le, "<": lt}


class ContextThreshold(ComposableCondition, frozen=True):
    """Matches while a context variable is a number on this side of a value: `ContextThreshold("score", ">=", 8)`."""

    name: ClassVar[str] = "context_threshold"
    key: str
    op: str
    value: float

    def __post_init__(self) -> None:
        check_text_field(self, "key", "the name of a context variable")
        if self.op not in COMPARISONS:
            raise RulesInvalid(f"op of context_threshold is {describe(self.op)}; give one of {', '.join(COMPARISONS)}")
        if not is_number(self.value):
            raise RulesInvalid(f"value of context_threshold is {describe(self.value)}; give a number")
        _plain_value(self.name, self.value)

    def evaluate(self, state: State, envelope: Envelope) -> bool:
        value = state.context_vars.get(self.key)
        return is_number(value) and COMPARISONS[self.op](value, self.value)


class BranchFailed(ComposableCondition, frozen=True, omit_defaults=True):
    """Matches a group (`AgentsTarget`) that has ended, and of which one failed; with a name, this one."""

    name: ClassVar[str] = "branch_failed"
    agent_id: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.agent_id, str):
            raise RulesInvalid(f"agent_id of branch_failed is {describe(self.agent_id)}; give a name, or leave it out")

    def evaluate(self, state: State, envelope: Envelope) -> bool:
        if state.speakers:  # others of the group have yet to answer
            return False
        return self.agent_id in state.failed_branches if self.agent_id else bool(state.failed_branches)


class Approved(ComposableCondition, frozen=True):
    """Matches a text that approves, as `is_approved` reads it. What a turn said that was stopped approves nothing."""

    name: ClassVar[str] = "approved"

    def evaluate(self, state: State, envelope: Envelope) -> bool:
        match event_of(envelope):
            case Packet(body=body, routing=routing):
                return routing.stopped is None and is_approved(body)
            case Text(text=text):
                return is_approved(text)
            case _:
                return False


@dataclass(frozen=True, init=False)
class ConditionGroup:
    """Several conditions as one: `AllOf(a, b)`, or `AllOf([a, b])`."""

    name: ClassVar[str] = ""
    conditions: tuple[TransitionCondition, ...]

    def __init__(self, *given: TransitionCondition | Sequence[TransitionCondition], conditions: object = None) -> None:
        one_list = len(given) == 1 and isinstance(given[0], list | tuple)
        parts = conditions if conditions is not None else given[0] if one_list else given
        object.__setattr__(self, "conditions", _check_conditions(self.name, parts))

    __and__, __rand__ = ComposableCondition.__and__, ComposableCondition.__rand__
    __or__, __ror__ = ComposableCondition.__or__, ComposableCondition.__ror__
    __invert__ = ComposableCondition.__invert__

    def evaluate(self, state: State, envelope: Envelope) -> bool:
        return condition_holds(self, state, envelope, spent=False)


class AllOf(ConditionGroup):
    """Matches when all of these do. `a & b` makes one."""

    name: ClassVar[str] = "all_of"


class AnyOf(ConditionGroup):
    """Matches when one of these does. `a | b` makes one."""

    name: ClassVar[str] = "any_of"


class Not(ComposableCondition, frozen=True):
    """Matches when this does not. `~a` makes one."""

    name: ClassVar[str] = "not"
    condition: TransitionCondition

    def __post_init__(self) -> None:
        _check_conditions(self.name, [self.condition])

    def evaluate(self, state: State, envelope: Envelope) -> bool:
        return condition_holds(self, state, envelope, spent=False)


class Once(ComposableCondition, frozen=True):
    """Matches when this does, until the rule it stands in has assigned a turn. Then it never does again."""

    name: ClassVar[str] = "once"
    condition: TransitionCondition

    def __post_init__(self) -> None:
        _check_conditions(self.name, [self.condition])

    def evaluate(self, state: State, envelope: Envelope) -> bool:
        return condition_holds(self, state, envelope, spent=False)


CONDITIONS.add_built_in(Always, FromSpeaker, ToolCalled, ContextEquals, ContextIn, ContextThreshold, BranchFailed)
CONDITIONS.add_built_in(Approved, AllOf, AnyOf, Not, Once)

OpaqueAnswers = Mapping[int, bool]
"""Answers of conditions that are not asked, by their identity: the model checker tries all of them."""
NO_ANSWERS: OpaqueAnswers = {}


def condition_holds(
    condition: TransitionCondition,
    state: State,
    envelope: Envelope,
    *,
    spent: bool,
    answers: OpaqueAnswers = NO_ANSWERS,
) -> bool:
    """Whether a condition matches, in a rule that has fired before (`spent`) or has not.

    The conditions within it that have an answer here are not asked.
    """
    match condition:
        case Once(inner):
            return not spent and condition_holds(inner, state, envelope, spent=spent, answers=answers)
        case AllOf(parts):
            return all(condition_holds(part, state, envelope, spent=spent, answers=answers) for part in parts)
        case AnyOf(parts):
            return any(condition_holds(part, state, envelope, spent=spent, answers=answers) for part in parts)
        case Not(inner):
            return not condition_holds(inner, state, envelope, spent=spent, answers=answers)
        case _ if answers and id(condition) in answers:
            return answers[id(condition)]
        case _:
            return require_bool(condition.evaluate(state, envelope))


def require_bool(answer: object) -> bool:
    """What a condition said; `TypeError` if that is neither yes nor no."""
    if not isinstance(answer, bool):
        if inspect.iscoroutine(answer):
            answer.close()
        raise TypeError(f"evaluate returned {describe(answer)}; return True or False")
    return answer


def inner_conditions(condition: TransitionCondition) -> tuple[TransitionCondition, ...]:
    """The conditions that a composed one of ours consists of."""
    match condition:
        case AllOf(parts) | AnyOf(parts):
            return tuple(parts)
        case Not(inner) | Once(inner):
            return (inner,)
        case _:
            return ()


def leaf_conditions(condition: TransitionCondition) -> Iterator[TransitionCondition]:
    """The simple conditions that one is made of."""
    inner = inner_conditions(condition)
    if not inner:
        yield condition
    for part in inner:
        yield from leaf_conditions(part)


def required_speakers(condition: TransitionCondition) -> frozenset[str] | None:
    """The speakers of whom one must have spoken for a condition to match; None for any speaker."""
    match condition:
        case FromSpeaker(agent_id):
            return frozenset({agent_id})
        case AllOf(parts):
            named = [names for part in parts if (names := required_speakers(part)) is not None]
            return frozenset.intersection(*named) if named else None
        case AnyOf(parts):
            each = [required_speakers(part) for part in parts]
            return frozenset().union(*(names for names in each if names)) if None not in each else None
        case Once(inner):
            return required_speakers(inner)
        case _:
            return None


def is_number(value: object) -> TypeGuard[float]:
    """Whether this is a number. A bool is none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def values_equal(one: object, other: object) -> bool:
    """Whether two values are the same JSON: numbers by value, and no bool is a number."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(values_equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(values_equal, one, other))
    return isinstance(one, bool) == isinstance(other, bool) and one == other


def _plain_value(name: str, value: object) -> object:
    """The value as a log keeps it; `RulesInvalid` if it cannot."""
    try:
        plain = _tuples_to_lists(value)
        check_json(plain)
    except (Malformed, RecursionError) as error:
        raise RulesInvalid(f"{name} is given {describe(value)}: {error}") from error
    return plain


def _tuples_to_lists(value: object) -> object:
    if isinstance(value, list | tuple):
        return [_tuples_to_lists(item) for item in value]
    return {key: _tuples_to_lists(item) for key, item in value.items()} if isinstance(value, dict) else value


def check_text_field(value: object, field: str, what: str) -> None:
    """`RulesInvalid` unless this field is a text with something in it."""
    given = getattr(value, field)
    if not isinstance(given, str) or not given.strip():
        raise RulesInvalid(f"{field} of {getattr(type(value), 'name', '')} is {describe(given)}; give {what}")


def _conditions_to_join(condition: object, kind: type[ConditionGroup]) -> Sequence[TransitionCondition]:
    return condition.conditions if isinstance(condition, kind) else [cast(TransitionCondition, condition)]


def is_condition(given: object) -> bool:
    """Whether this can be asked as a condition. A class cannot."""
    return not isinstance(given, type) and callable(getattr(given, "evaluate", None))


def _check_conditions(name: str, conditions: object) -> tuple[TransitionCondition, ...]:
    if not isinstance(conditions, list | tuple) or not conditions:
        raise RulesInvalid(f"{name} is given {describe(conditions)}; give a list of at least one condition")
    for condition in conditions:
        if not is_condition(condition):
            raise RulesInvalid(f"{name} is given {describe(condition)}, which is no condition")
    return tuple(conditions)
