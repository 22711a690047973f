"""Targets: who gets the turn when a rule matches, or that the channel ends.

A target is a value like a condition is. It is asked after the fact: the state includes what was just said.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol, TypeVar, cast

import msgspec
from msgspec.structs import force_setattr

from antiphon.core.conditions import check_text_field
from antiphon.core.envelope import Envelope
from antiphon.core.errors import RulesInvalid
from antiphon.core.registry import Registry
from antiphon.core.state import State
from antiphon.core.text import describe


class TransitionDecision(msgspec.Struct, frozen=True):
    """Who speaks next; None if the channel ends, with the reason."""

    next_speaker: str | None
    close_reason: str = ""
    speakers: tuple[str, ...] = ()
    """Everybody who has the turn, if it is more than one."""


class TransitionTarget(Protocol):
    """Says who speaks next. A class with a unique `name`; its dataclass fields are its arguments."""

    name: ClassVar[str]

    def resolve(self, state: State, envelope: Envelope) -> TransitionDecision: ...


T = TypeVar("T", bound=type[TransitionTarget])

TARGETS: Registry[TransitionTarget] = Registry("target", "resolve")


def register_target(target: T) -> T:
    """Make a target available by its name. Usable as a decorator; a built-in name is refused."""
    return cast(T, TARGETS.register(target))


class AgentTarget(msgspec.Struct, frozen=True):
    """This participant."""

    name: ClassVar[str] = "agent"
    agent_id: str

    def __post_init__(self) -> None:
        check_text_field(self, "agent_id", "a name")

    def resolve(self, state: State, envelope: Envelope) -> TransitionDecision:
        return TransitionDecision(self.agent_id)


class AgentsTarget(msgspec.Struct, frozen=True):
    """All of these at once. The rules are read again when the last of them has answered."""

    name: ClassVar[str] = "agents"
    agent_ids: Sequence[str]

    def __post_init__(self) -> None:
        given = self.agent_ids
        if not isinstance(given, list | tuple) or not given or not all(isinstance(each, str) for each in given):
            raise RulesInvalid(f"agent_ids of agents is {describe(given)}; give a list of at least one name")
        if len(set(given)) < len(given):
            raise RulesInvalid(f"agent_ids of agents is {describe(given)}; name everybody once")
        force_setattr(self, "agent_ids", tuple(given))

    def resolve(self, state: State, envelope: Envelope) -> TransitionDecision:
        return TransitionDecision(self.agent_ids[0], speakers=tuple(self.agent_ids))


class RoundRobinTarget(msgspec.Struct, frozen=True):
    """The participant after the last speaker, in their order. An interjection moves nothing."""

    name: ClassVar[str] = "round_robin"

    def resolve(self, state: State, envelope: Envelope) -> TransitionDecision:
        if state.interjected and state.speakers:
            return _current_speakers(state)
        order = state.participant_order
        last = state.last_speaker_id
        return TransitionDecision(order[(order.index(last) + 1) % len(order)] if last in order else order[0])


class StayTarget(msgspec.Struct, frozen=True):
    """The same speaker again."""

    name: ClassVar[str] = "stay"

    def resolve(self, state: State, envelope: Envelope) -> TransitionDecision:
        return (
            _current_speakers(state) if state.interjected and state.speakers else TransitionDecision(envelope.sender_id)
        )


class RevertToInitiatorTarget(msgspec.Struct, frozen=True):
    """The participant that opened the channel."""

    name: ClassVar[str] = "revert_to_initiator"

    def resolve(self, state: State, envelope: Envelope) -> TransitionDecision:
        return TransitionDecision(state.creator_id)


class TerminateTarget(msgspec.Struct, frozen=True):
    """No participant: the channel ends, for this reason."""

    name: ClassVar[str] = "terminate"
    reason: str = "terminated"

    def __post_init__(self) -> None:
        check_text_field(self, "reason", "a text")

    def resolve(self, state: State, envelope: Envelope) -> TransitionDecision:
        return TransitionDecision(None, self.reason)


TARGETS.add_built_in(AgentTarget, AgentsTarget, RoundRobinTarget, StayTarget, RevertToInitiatorTarget, TerminateTarget)


def target_participants(target: TransitionTarget) -> tuple[str, ...]:
    """The participants that a target of ours names."""
    match target:
        case AgentTarget(agent_id):
            return (agent_id,)
        case AgentsTarget(agent_ids):
            return tuple(agent_ids)
        case _:
            return ()


def _current_speakers(state: State) -> TransitionDecision:
    return TransitionDecision(state.speakers[0], speakers=state.speakers)
