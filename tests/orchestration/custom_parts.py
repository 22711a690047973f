"""Conditions and targets of somebody else's, which a check cannot look into."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from antiphon import Envelope, State, TransitionDecision, register_condition, register_target
from antiphon.core.conditions import TransitionCondition


@register_condition
@dataclass(frozen=True)
class Moody:
    """Nobody knows when it holds; asked while a graph is checked, it falls."""

    name: ClassVar[str] = "tests.moody"
    mood: str = ""

    def evaluate(self, state: State, envelope: Envelope) -> bool:
        raise RuntimeError("a check does not ask conditions that it does not know")


@register_condition
@dataclass(frozen=True)
class Wrapping:
    """Holds others, as one of ours does."""

    name: ClassVar[str] = "tests.wrapping"
    inner: TransitionCondition
    others: list[TransitionCondition]

    def evaluate(self, state: State, envelope: Envelope) -> bool:
        return self.inner.evaluate(state, envelope)


@register_target
@dataclass(frozen=True)
class Somewhere:
    """Nobody knows where it leads; asked while a graph is checked, it falls."""

    name: ClassVar[str] = "tests.somewhere"
    why: str = ""

    def resolve(self, state: State, envelope: Envelope) -> TransitionDecision:
        raise RuntimeError("a check does not ask targets that it does not know")
