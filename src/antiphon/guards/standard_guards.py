"""The standard guards: which of them a channel has follows from its type and its knobs.

Rule 1: a draft that a guard denies is not recorded.
Rule 2: a deadline is computed from recorded instants; nothing counts down.
Rule 3: an occurrence has a mark (the fact that started the clock). It is recorded once per mark, also after a restart.
Rule 4: what only people owe has no deadline.
Rule 5: time in which no hub was open does not count for a default, and a clock that is set counts for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import ClassVar

import msgspec

from antiphon.core.envelope import NEVER, OPERATORS, Envelope, Instant, Json, add_seconds, spelling_advice
from antiphon.core.event_data import Deny, event_of
from antiphon.core.events import (
    ASIDE_FIELD,
    EV_CHANNEL_EXPIRED,
    EV_CHANNEL_FORKED,
    EV_EXPECTATION_MISSED,
    EV_EXPECTATION_VIOLATED,
    SPEECH_TYPES,
    ContextSet,
    ExpectationViolated,
    Packet,
    Text,
)
from antiphon.core.guard import ALLOW, LATER, Deadline, Verdict
from antiphon.core.ruleset import Expectation
from antiphon.core.state import State
from antiphon.core.step import hub_draft
from antiphon.core.text import describe


class Membership(msgspec.Struct, frozen=True):
    """Only participants speak, only in an open channel, and only to participants."""

    name: ClassVar[str] = "membership"

    def judge(self, memory: object, state: State, draft: Envelope) -> Verdict:
        if draft.sender_id not in state.participants and not state.erased:  # whose participants are not known any more
            return Deny("not_a_participant", f"{draft.sender_id!r} is not in this channel")
        if state.status != "active":
            return _not_open_denial(state)
        if draft.audience is None:
            return ALLOW
        stranger = next((name for name in draft.audience if name not in state.participants), None)
        if stranger is None:
            return ALLOW
        advice = spelling_advice(stranger, state.participants)
        return Deny(
            "unknown_audience", f"{describe(stranger)} is not in this channel" + (f"; {advice}" if advice else "")
        )


class TurnOrder(msgspec.Struct, frozen=True):
    """Only participants that hold the turn speak; people, and those named as interjectors, may interject.

    While an agent's turn is in progress, or interrupted and to be resumed, an interjection waits for its end.
    """

    name: ClassVar[str] = "turn_order"
    interjectors: frozenset[str] = frozenset()

    def judge(self, memory: object, state: State, draft: Envelope) -> Verdict:
        speaker = draft.sender_id
        if draft.event_type not in SPEECH_TYPES or (speaker in state.speakers and ASIDE_FIELD not in draft.event_data):
            return ALLOW
        if state.participants.get(speaker) == "human" or speaker in self.interjectors:
            return _judge_interjection(state)
        expected = ", ".join(state.speakers) or "nobody"
        return Deny("not_expected_speaker", f"{speaker!r} spoke; the turn is with {expected}")


def _judge_interjection(state: State) -> Verdict:
    """The verdict on an interjection. It does not wait for a turn that itself waits for a person.

    While calls of a turn wait for approval, nothing of it runs: the interjection is recorded at once.
    """
    begun = [turn for turn in state.owed if turn.epoch]
    doubted = next((turn for turn in begun if turn.doubts), None)
    if doubted is not None:
        what = f"call {doubted.doubts[0]} of turn {doubted.turn_id}"
        return Deny("in_doubt", f"{what} is in doubt; settle it with channel.settle first, or cancel the turn")
    suspended = next((turn for turn in begun if turn.suspended), None)
    if suspended is not None:
        advice = "decide what becomes of it (hub.approvals, participant.decide) or cancel it"
        return Deny("suspended", f"turn {suspended.turn_id} waits for a person; {advice}")
    return ALLOW if all(turn.awaits_approval for turn in begun) else LATER


def _not_open_denial(state: State) -> Deny:
    if state.ended:
        return Deny("channel_closed", f"it ended: {state.close_reason}")
    if state.status == "quarantined":
        return Deny("quarantined", "a record of its log cannot be trusted; it can only be read")
    return Deny("channel_not_open", f"invitations to {', '.join(state.awaiting)} are not answered yet")


class ContextWriters(msgspec.Struct, frozen=True):
    """A context key that names its writers is written by them alone. Other keys are free."""

    recorded_as: ClassVar[str] = "Writers"
    name: ClassVar[str] = "writers"
    allowed: Mapping[str, frozenset[str]] = msgspec.field(default_factory=dict)

    def judge(self, memory: object, state: State, draft: Envelope) -> Verdict:
        match event_of(draft):
            case (ContextSet() as updates) | Packet(context_updates=updates):
                keys = (*updates.set, *updates.delete)
            case Text(set=values):
                keys = tuple(values or ())
            case _:
                return ALLOW
        for key in keys:
            if key in self.allowed and draft.sender_id not in self.allowed[key]:
                return Deny("not_a_writer", f"{draft.sender_id!r} may not write the context variable {key!r}")
        return ALLOW


VIOLATION_TYPES = frozenset({EV_EXPECTATION_VIOLATED, EV_EXPECTATION_MISSED})
EXPECTATION_HANDLERS = ("audit", "warn", "auto_close", "fail")


class TimeToLive(msgspec.Struct, frozen=True):
    """Ends the channel when its time to live is over, counted from its creation."""

    recorded_as: ClassVar[str] = "LifeSpan"
    name: ClassVar[str] = "ttl"

    def due(self, memory: object, state: State) -> Deadline | None:
        return Deadline(state.expires_at, _expiry_draft) if state.expires_at else None


def _expiry_draft() -> Envelope:
    return hub_draft(EV_CHANNEL_EXPIRED, {})


class ExpectationMemory(msgspec.Struct, frozen=True):
    """What an expectation remembers: the mark last recorded, and the first message without an answer."""

    told: str = ""
    asker: str = ""
    asked: str = ""
    asked_at: Instant = NEVER


class ExpectationGuard(msgspec.Struct, frozen=True):
    """Watches one expectation."""

    recorded_as: ClassVar[str] = "Within"
    memory: ClassVar[type] = ExpectationMemory
    hears: ClassVar[frozenset[str]] = SPEECH_TYPES | VIOLATION_TYPES | {EV_CHANNEL_FORKED}
    expectation: Expectation
    is_default: bool = False
    """Whether it comes with the channel's type, and not from the user."""

    @property
    def name(self) -> str:
        return f"{self.expectation.name}:{self.expectation.seconds}:{self.expectation.handler}"

    def evolve(self, memory: ExpectationMemory, envelope: Envelope) -> ExpectationMemory:
        if envelope.event_type in SPEECH_TYPES:
            return _remember_speaker(memory, envelope)
        if envelope.event_type == EV_CHANNEL_FORKED and memory.asked:
            return ExpectationMemory("", memory.asker, memory.asked, envelope.created_at)
        if envelope.event_type not in VIOLATION_TYPES:
            return memory
        match event_of(envelope):
            case ExpectationViolated(expectation=name, mark=mark, handler=handler, seconds=seconds):
                mine = Expectation(name, seconds, handler) == self.expectation
                return msgspec.structs.replace(memory, told=mark) if mine else memory
            case _:
                return memory

    def due(self, memory: ExpectationMemory, state: State) -> Deadline | None:
        if state.clock_stopped:
            return None
        since, mark = EXPECTATION_CLOCKS[self.expectation.name](memory, state)
        if not since or mark == memory.told or (self.expectation.handler == "fail" and not state.owed):
            return None
        since = max(since, state.clock_set_at, state.resumed_at if self.is_default else NEVER)
        at = add_seconds(since, self.expectation.seconds)
        return Deadline(at, partial(self._violation_draft, state, mark), since, self.is_default)

    def _violation_draft(self, state: State, mark: str) -> Envelope:
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
            return hub_draft(EV_EXPECTATION_VIOLATED, data)
        return hub_draft(EV_EXPECTATION_MISSED, data, audience=[OPERATORS])


def _remember_speaker(memory: ExpectationMemory, envelope: Envelope) -> ExpectationMemory:
    if memory.asker == envelope.sender_id:
        return memory
    return ExpectationMemory(memory.told, envelope.sender_id, envelope.envelope_id, envelope.created_at)


ExpectationClock = Callable[[ExpectationMemory, State], tuple[Instant, str]]
"""Since when something is awaited, and the mark of that occurrence; NEVER while nothing is."""

NOTHING_AWAITED: tuple[Instant, str] = (NEVER, "")


def _acks_awaited(memory: ExpectationMemory, state: State) -> tuple[Instant, str]:
    return (state.created_at, state.created_at) if state.status == "invited" else NOTHING_AWAITED


def _reply_awaited(memory: ExpectationMemory, state: State) -> tuple[Instant, str]:
    others = [kind for name, kind in state.participants.items() if name != memory.asker]
    if state.status != "active" or all(kind == "human" for kind in others):
        return NOTHING_AWAITED
    return _since_resumed(memory.asked_at, state), memory.asked


def _silence_awaited(memory: ExpectationMemory, state: State) -> tuple[Instant, str]:
    return (_since_resumed(state.active_at, state), state.active_at) if state.status == "active" else NOTHING_AWAITED


def _since_resumed(since: Instant, state: State) -> Instant:
    """Time that a turn spent waiting for a person or a task does not count: it is owed from when that was over."""
    return max(since, state.assigned_at, *state.tasks.values()) if state.owed else since


def _turn_awaited(memory: ExpectationMemory, state: State) -> tuple[Instant, str]:
    if state.status != "active" or all(state.participants.get(name) == "human" for name in state.speakers):
        return NOTHING_AWAITED
    return _since_resumed(state.assigned_at, state), state.assigned_at


EXPECTATION_CLOCKS: dict[str, ExpectationClock] = {
    "acks_within": _acks_awaited,
    "reply_within": _reply_awaited,
    "max_silence": _silence_awaited,
    "turn_within": _turn_awaited,
}
