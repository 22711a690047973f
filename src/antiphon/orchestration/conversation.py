"""The state of a routed conversation: its phase, the agent that has it, and how it moved.

Rule 1: a state is a value. A transition makes a new one, at a cost that does not grow with the number of handoffs.
Rule 2: the number of handoffs and the previous agent change only if the agent does, the start of the phase only if the
        phase does.
Rule 3: `apply` cannot fail: it folds what was recorded. `transition` checks what a caller gives.
Rule 4: time comes in as an argument.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

import msgspec
from msgspec.structs import asdict, force_setattr, replace

from antiphon.core.codec import Malformed, as_type, check_json, copy_json, plain_data
from antiphon.core.envelope import NEVER, Instant, Json, to_datetime
from antiphon.core.errors import RulesInvalid
from antiphon.core.text import describe, explain_decode_error
from antiphon.orchestration.plain_rules import check_agent_name, check_phase, error_prefix, parse_rules

MAX_PHASE_HISTORY = 50
"""How many transitions a state keeps, the last ones."""
FIRST_PHASE = "intake"


class ConversationPhase(enum.StrEnum):
    """The usual phases of a conversation. Any other text can be a phase too."""

    INTAKE = "intake"
    QUALIFICATION = "qualification"
    HANDLING = "handling"
    ESCALATION = "escalation"
    RESOLUTION = "resolution"
    FOLLOWUP = "followup"


class PhaseTransition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One move of a conversation: to another phase, to another agent, or both."""

    from_phase: str
    to_phase: str
    from_agent: str | None
    to_agent: str | None
    """None if no agent has the conversation from then on."""
    reason: str = ""
    at: Instant = NEVER

    def __post_init__(self) -> None:
        _use_plain_texts(self, "from_phase", "to_phase")


class ConversationState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a conversation is."""

    phase: str = FIRST_PHASE
    active_agent_id: str | None = None
    """The agent that answers; None if each message is routed, or if a person has the conversation."""
    previous_agent_id: str | None = None
    """What `active_agent_id` was before the last handoff."""
    handoff_count: int = 0
    phase_started_at: Instant = NEVER
    phase_history: tuple[PhaseTransition, ...] = ()
    """The last transitions, oldest first."""
    context: Json = msgspec.field(default_factory=dict)
    revision: int = 0
    """How many changes this state has seen, recorded or prepared."""

    def __post_init__(self) -> None:
        _use_plain_texts(self, "phase")

    def transition(
        self, *, to_phase: str, to_agent: str | None = None, reason: str = "", at: Instant = NEVER
    ) -> ConversationState:
        """A new state in this phase, with this agent. Without `to_agent` no agent is active any more."""
        if not isinstance(reason, str) or not isinstance(at, str):
            raise RulesInvalid(f"reason and at are {describe(reason)} and {describe(at)}; give texts")
        phase = check_phase(to_phase, "to_phase")
        agent = None if to_agent is None else check_agent_name(to_agent, "to_agent")
        return self.apply(PhaseTransition(self.phase, phase, self.active_agent_id, agent, reason, at))

    def apply(self, moved: PhaseTransition) -> ConversationState:
        """The state after this transition, which is taken as it was recorded."""
        # Not `active_agent_id`: an agent that a rule named answers, and hands over, without being active.
        handed = moved.to_agent != moved.from_agent
        return ConversationState(
            phase=moved.to_phase,
            active_agent_id=moved.to_agent,
            previous_agent_id=moved.from_agent if handed else self.previous_agent_id,
            handoff_count=self.handoff_count + handed,
            phase_started_at=moved.at if moved.to_phase != self.phase else self.phase_started_at,
            phase_history=(*self.phase_history, moved)[-MAX_PHASE_HISTORY:],
            context=self.context,
            revision=self.revision + 1,
        )

    def check(self) -> None:
        """`RulesInvalid` names the first field whose value no state can have."""
        with error_prefix("the conversation state"):
            moves: object = self.phase_history
            if not isinstance(moves, tuple) or not all(isinstance(move, PhaseTransition) for move in moves):
                raise RulesInvalid(f"phase_history is {describe(moves)}; give a tuple of PhaseTransition")
            try:  # not by way of JSON: a value that is none would fail without the name of its field
                as_type({**asdict(self), "phase_history": [asdict(move) for move in moves]}, ConversationState)
            except Malformed as error:
                raise RulesInvalid(explain_decode_error(str(error))) from error
            _check_state(self)
            _check_context(self.context)

    def to_dict(self) -> Json:
        """The state as plain data."""
        return plain_data(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, object] | str | bytes) -> ConversationState:
        """The state of plain data, or of JSON; `RulesInvalid` if it is none."""
        what = "the conversation state"
        given = parse_rules(data, what)
        try:
            check_json(given)
            state = as_type(given, cls)
        except Malformed as error:
            raise RulesInvalid(f"{what}: {explain_decode_error(str(error))}; give what to_dict() gave") from error
        with error_prefix(what):
            _check_state(state)
        return replace(state, context=copy_json(state.context))


def pending_transitions(current: ConversationState, wanted: ConversationState) -> tuple[PhaseTransition, ...] | None:
    """The transitions that lead from one state to another, in order; None if they do not: `wanted` is stale.

    So they are if `wanted` is ahead by more transitions than a state keeps. The contexts are not compared, and of the
    transitions that `current` does not have, the time is not.
    """
    new = wanted.revision - current.revision
    moves = wanted.phase_history[-new:] if new else ()
    reached = current
    for move in moves:
        if (move.from_phase, move.from_agent) != (reached.phase, reached.active_agent_id):
            return None
        reached = reached.apply(move)
    started = wanted.phase_started_at if moves else current.phase_started_at
    same = replace(reached, context=wanted.context, phase_started_at=started) == wanted
    return moves if same else None


def _use_plain_texts(value: msgspec.Struct, *fields: str) -> None:
    """Put plain texts in place of members of a StrEnum, which cannot be recorded."""
    for field in fields:
        given = getattr(value, field)
        if isinstance(given, str) and type(given) is not str:
            force_setattr(value, field, str.__str__(given))


def _check_state(state: ConversationState) -> None:
    check_phase(state.phase, "phase")
    for field in ("active_agent_id", "previous_agent_id"):
        name = getattr(state, field)
        if name is not None:
            check_agent_name(name, field)
    for field in ("handoff_count", "revision"):
        if getattr(state, field) < 0:
            raise RulesInvalid(f"{field} is {getattr(state, field)}; give 0 or more")
    if len(state.phase_history) > MAX_PHASE_HISTORY:
        have = len(state.phase_history)
        raise RulesInvalid(f"phase_history has {have} transitions; give the last {MAX_PHASE_HISTORY}")
    _check_instant(state.phase_started_at, "phase_started_at")
    for move in state.phase_history:
        with error_prefix("phase_history"):
            _check_move(move)


def _check_context(context: Json) -> None:
    try:
        check_json(context)
    except Malformed as error:
        raise RulesInvalid(f"context cannot be recorded: {error}") from error


def _check_move(move: PhaseTransition) -> None:
    for field in ("from_phase", "to_phase"):
        check_phase(getattr(move, field), field)
    for field in ("from_agent", "to_agent"):
        if getattr(move, field) is not None:
            check_agent_name(getattr(move, field), field)
    _check_instant(move.at, "at")


def _check_instant(at: Instant, field: str) -> None:
    try:
        if at != NEVER:
            to_datetime(at)
    except (ValueError, OverflowError) as error:
        raise RulesInvalid(f"{field} is {describe(at)}; give an instant in ISO 8601, or '' for never") from error
