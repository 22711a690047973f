"""Guards over time: a channel's life span, and what is expected to happen within a while.

Rule 1: a deadline is computed from recorded instants; nobody counts down.
Rule 2: an occurrence has a mark (the fact that started the clock). It is told once per mark, also after a restart.
Rule 3: nobody hurries a person: what only people owe has no deadline.
Rule 4: time in which no hub was open does not count for a default, and a clock that is set counts for nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import msgspec

from antiphon.core.envelope import OPERATORS, Envelope
from antiphon.core.events import (
    EV_CHANNEL_EXPIRED,
    EV_CHANNEL_FORKED,
    EV_EXPECTATION_MISSED,
    EV_EXPECTATION_VIOLATED,
    SUBSTANTIVE,
    Json,
    Violated,
    event_of,
)
from antiphon.core.guard import Deadline
from antiphon.core.instants import NEVER, Instant, after
from antiphon.core.rules import Expectation
from antiphon.core.state import State
from antiphon.core.step import said_by_hub

TELLING = frozenset({EV_EXPECTATION_VIOLATED, EV_EXPECTATION_MISSED})
HANDLERS = ("audit", "warn", "auto_close", "fail")


class LifeSpan(msgspec.Struct, frozen=True):
    """Ends the channel when its time to live is over, counted from its creation."""

    name: ClassVar[str] = "ttl"

    def due(self, memory: object, state: State) -> Deadline | None:
        return Deadline(state.expires_at, said_by_hub(EV_CHANNEL_EXPIRED, {})) if state.expires_at else None


class Awaited(msgspec.Struct, frozen=True):
    """What an expectation remembers: the mark last told, and the first thing said that nobody has answered."""

    told: str = ""
    asker: str = ""
    asked: str = ""
    asked_at: Instant = NEVER


class Within(msgspec.Struct, frozen=True):
    """Watches one expectation."""

    memory: ClassVar[type] = Awaited
    expectation: Expectation
    is_default: bool = False
    """Whether it comes with the channel's type, and not from the user."""

    @property
    def name(self) -> str:
        return f"{self.expectation.name}:{self.expectation.seconds}:{self.expectation.handler}"

    def evolve(self, memory: Awaited, envelope: Envelope) -> Awaited:
        if envelope.event_type in SUBSTANTIVE:
            return _asked(memory, envelope)
        if envelope.event_type == EV_CHANNEL_FORKED and memory.asked:
            return Awaited("", memory.asker, memory.asked, envelope.created_at)
        if envelope.event_type not in TELLING:
            return memory
        match event_of(envelope):
            case Violated(expectation=name, mark=mark, handler=handler, seconds=seconds):
                mine = Expectation(name, seconds, handler) == self.expectation
                return msgspec.structs.replace(memory, told=mark) if mine else memory
            case _:
                return memory

    def due(self, memory: Awaited, state: State) -> Deadline | None:
        if state.clock_stopped:
            return None
        since, mark = CLOCKS[self.expectation.name](memory, state)
        if not since or mark == memory.told or (self.expectation.handler == "fail" and not state.owed):
            return None
        since = max(since, state.clock_set_at, state.resumed_at if self.is_default else NEVER)
        at = after(since, self.expectation.seconds)
        return Deadline(at, self._violation(state, mark), since, self.is_default)

    def _violation(self, state: State, mark: str) -> Envelope:
        wanted = self.expectation
        owing = list(state.awaiting if state.status == "invited" else state.speakers)
        data: Json = {
            "expectation": wanted.name,
            "mark": mark,
            "handler": wanted.handler,
            "seconds": wanted.seconds,
            "speakers": owing,
        }
        if wanted.handler == "warn":
            return said_by_hub(EV_EXPECTATION_VIOLATED, data)
        return said_by_hub(EV_EXPECTATION_MISSED, data, audience=[OPERATORS])


def _asked(memory: Awaited, envelope: Envelope) -> Awaited:
    if memory.asker == envelope.sender_id:
        return memory
    return Awaited(memory.told, envelope.sender_id, envelope.envelope_id, envelope.created_at)


Clock = Callable[[Awaited, State], tuple[Instant, str]]
"""Since when something is awaited, and the mark of that occurrence; NEVER while nothing is."""

IDLE: tuple[Instant, str] = (NEVER, "")


def _acks(memory: Awaited, state: State) -> tuple[Instant, str]:
    return (state.created_at, state.created_at) if state.status == "invited" else IDLE


def _reply(memory: Awaited, state: State) -> tuple[Instant, str]:
    others = [kind for name, kind in state.participants.items() if name != memory.asker]
    if state.status != "active" or all(kind == "human" for kind in others):
        return IDLE
    return _rebased(memory.asked_at, state), memory.asked


def _silence(memory: Awaited, state: State) -> tuple[Instant, str]:
    return (_rebased(state.active_at, state), state.active_at) if state.status == "active" else IDLE


def _rebased(since: Instant, state: State) -> Instant:
    """Time that a turn spent waiting for a person or a task does not count: it is owed from when that was over."""
    return max(since, state.assigned_at, *state.tasks.values()) if state.owed else since


def _turn(memory: Awaited, state: State) -> tuple[Instant, str]:
    if state.status != "active" or all(state.participants.get(name) == "human" for name in state.speakers):
        return IDLE
    return _rebased(state.assigned_at, state), state.assigned_at


CLOCKS: dict[str, Clock] = {
    "acks_within": _acks,
    "reply_within": _reply,
    "max_silence": _silence,
    "turn_within": _turn,
}
