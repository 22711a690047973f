"""Limits on how far work may spread: handoffs in a row, the depth of tasks, turns, and tasks of a run.

Rule 1: a handoff that is not possible is recorded as rejected, and the rules decide instead: the work is kept.
Rule 2: a limit is a number, or explicitly `unlimited`, which the regulated tier refuses. 0 allows none.
Rule 3: a task is counted where it is given, and in the log of the channel in which the run began. So a new channel
        begins no count anew, and a task that is resumed after a crash counts once.
Rule 4: what is refused is recorded as `antiphon.flow.limit`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Literal

import msgspec

from antiphon.core.envelope import HUB, OPERATORS, Envelope, Json, match_name
from antiphon.core.errors import RulesInvalid
from antiphon.core.event_data import Deny, data_of, event_of
from antiphon.core.events import EV_CHANNEL_CREATED, EV_PACKET, EV_TASK_STARTED, SPEECH_TYPES, Packet
from antiphon.core.guard import ALLOW, Change, LedgerEntry, Permission, Verdict
from antiphon.core.protection_events import EV_LIMIT_REACHED, EV_RUN_CHARGED, LimitReached, RunCharged
from antiphon.core.state import Assign, Close, Decision, RelatedFact, State
from antiphon.core.text import describe
from antiphon.guards.waiting_messages import Waiting, with_message, without_answered

Limit = int | Literal["unlimited"]
UNLIMITED: Literal["unlimited"] = "unlimited"


def check_limit(limit: object, what: str) -> None:
    """`RulesInvalid` if this is no limit."""
    if limit == UNLIMITED or (type(limit) is int and limit >= 0):
        return
    raise RulesInvalid(f"{what} is {describe(limit)}; give a number, 0 or more, or {UNLIMITED!r}")


def is_reached(count: int, limit: Limit) -> bool:
    """Whether there may be no more than there are."""
    return not isinstance(limit, str) and count >= limit


def check_limit_in_tier(limit: Limit, what: str, tier: str) -> None:
    """`RulesInvalid` if this tier does not take the limit."""
    if tier == "regulated" and limit == UNLIMITED:
        raise RulesInvalid(f"{what} is {UNLIMITED!r}, which the regulated tier does not take; give a number")


def limit_fact(reached: LimitReached) -> RelatedFact:
    """The record of a limit that was reached."""
    return RelatedFact(EV_LIMIT_REACHED, data_of(reached), (OPERATORS,))


def limit_number(limit: Limit) -> int:
    """The limit as events name it."""
    return 0 if isinstance(limit, str) else limit


DEFAULT_HOP_LIMIT = 5
HOP_LIMIT_REASON = "hop_limit"
OTHERS_HAVE_TURN = "others_have_the_turn"


class HopLimit(msgspec.Struct, frozen=True):
    """A handoff goes to a participant, and only so many follow each other without a person or code speaking.

    Where several have the turn at once, only the last of them to answer can hand it on.
    """

    recorded_as: ClassVar[str] = "HandoffLimit"
    name: ClassVar[str] = HOP_LIMIT_REASON
    hears: ClassVar[frozenset[str]] = frozenset({EV_PACKET})
    most: Limit = DEFAULT_HOP_LIMIT

    def __post_init__(self) -> None:
        check_limit(self.most, "most of hop_limit")

    def for_tier(self, tier: str) -> HopLimit:
        """The same limit; `unlimited` is refused in the regulated tier."""
        check_limit_in_tier(self.most, "most of hop_limit", tier)
        return self

    def judge(self, memory: object, state: State, draft: Envelope) -> Verdict:
        if draft.event_type != EV_PACKET:
            return ALLOW
        event = event_of(draft)
        if not isinstance(event, Packet) or event.routing.target is None:
            return ALLOW
        given = event.routing.target
        target = match_name(given, state.participants) or given
        why = self.refusal(state, draft.sender_id, target)
        if why is None and target == given:
            return ALLOW
        return Change(_rewrite_target(draft, target, {} if why is None else {"rejected": why}))

    def refusal(self, state: State, speaker: str, target: str) -> str | None:
        """Why the speaker cannot hand the turn to this target; None if it can."""
        if target not in state.participants:
            return "not_a_participant"
        if speaker not in state.speakers:
            return "not_in_turn"
        if len(state.speakers) > 1:
            return OTHERS_HAVE_TURN
        if is_reached(state.stays if target == speaker else state.hops, self.most):
            return f"{HOP_LIMIT_REASON}:{self.most}"
        return None

    def notice(self, memory: object, state: State, envelope: Envelope) -> Sequence[RelatedFact]:
        routing = envelope.event_data.get("routing")
        if not isinstance(routing, dict) or "rejected" not in routing:
            return ()
        reached = hop_refusal(str(routing["rejected"]), envelope.sender_id, str(routing.get("target")))
        return () if reached is None else (limit_fact(reached),)


def hop_refusal(rejected: str, speaker: str, target: str) -> LimitReached | None:
    """What is recorded of a handoff that was rejected for this reason, if it was one too many."""
    word, _, limit = rejected.partition(":")
    if word != HOP_LIMIT_REASON:
        return None
    most = int(limit) if limit.isdecimal() else 0
    return LimitReached("hop", most, most, [speaker], target)


def _rewrite_target(draft: Envelope, target: str, told: Json) -> Envelope:
    """The packet with the target as its channel spells it, and why it is refused, if it is."""
    routing = draft.event_data["routing"]
    assert isinstance(routing, dict), "a packet with a target has routing"
    return replace(draft, event_data={**draft.event_data, "routing": {**routing, "target": target, **told}})


DEFAULT_DEPTH_LIMIT = 8
DEPTH_LIMIT_REASON = "depth_limit"


class DepthLimit(msgspec.Struct, frozen=True):
    """Only so many tasks stand inside each other. The channel in which the run began has the depth 0."""

    name: ClassVar[str] = DEPTH_LIMIT_REASON
    about_tasks: ClassVar[bool] = True
    most: Limit = DEFAULT_DEPTH_LIMIT

    def __post_init__(self) -> None:
        check_limit(self.most, "most of depth_limit")

    def for_tier(self, tier: str) -> DepthLimit:
        """The same limit; `unlimited` is refused in the regulated tier."""
        check_limit_in_tier(self.most, "most of depth_limit", tier)
        return self

    def permit(self, memory: object, state: State, draft: Envelope) -> Permission:
        if not is_reached(state.task_depth, self.most):
            return ALLOW
        return Deny(DEPTH_LIMIT_REASON, self.advice)

    @property
    def advice(self) -> str:
        """What the model reads whose task stands too deep."""
        if self.most == 0:
            return "no tasks may be given here; do it without another"
        inside = "task stands inside another" if self.most == 1 else "tasks stand inside each other"
        return f"{self.most} {inside} already, the limit; do it without another"

    def task_facts(self, memory: object, state: State, draft: Envelope) -> Sequence[RelatedFact]:
        """What is recorded of a task that stands too deep."""
        data = draft.event_data
        by, agent = str(data.get("by", "")), str(data.get("agent", ""))
        return [limit_fact(LimitReached("depth", limit_number(self.most), state.task_depth, [by], agent))]


Per = Literal["channel", "message"]
"""What a limit counts in: a channel for as long as it lives, or what follows from one message of a person or code."""


def _check_per(per: object, what: str) -> None:
    if per not in (None, "channel", "message"):
        raise RulesInvalid(f"per of {what} is {describe(per)}; give 'channel' or 'message'")


def agents_among(created: Json) -> tuple[str, ...]:
    """The names of the agents of a channel, from the data of its creation."""
    seats = created.get("participants")
    found = [seat for seat in seats if isinstance(seat, dict)] if isinstance(seats, list) else []
    return tuple(str(seat.get("name")) for seat in found if seat.get("kind") == "agent")


class GivenTasks(msgspec.Struct, frozen=True):
    """How many tasks were given: in all, and since a person or code last spoke in this channel."""

    agents: tuple[str, ...] = ()
    total: int = 0
    since_message: int = 0
    waiting: Waiting = ()
    """The messages of people and outside code that have no answer yet."""


DEFAULT_SPAWN_LIMIT = 32
SPAWN_LIMIT_REASON = "spawn_limit"


class SpawnLimit(msgspec.Struct, frozen=True):
    """Only so many tasks are given in a run: in its channel, and in the channels of its tasks together."""

    name: ClassVar[str] = SPAWN_LIMIT_REASON
    memory: ClassVar[type] = GivenTasks
    hears: ClassVar[frozenset[str]] = SPEECH_TYPES | {EV_CHANNEL_CREATED, EV_TASK_STARTED, EV_RUN_CHARGED}
    about_tasks: ClassVar[bool] = True
    most: Limit = DEFAULT_SPAWN_LIMIT
    per: Per | None = None
    """`channel` counts all tasks of the run's channel, `message` those since a person or code last spoke in it. Without
    it: `message` in a tier, else `channel`."""

    def __post_init__(self) -> None:
        check_limit(self.most, "most of spawn_limit")
        _check_per(self.per, "spawn_limit")

    def for_tier(self, tier: str) -> SpawnLimit:
        """The limit as this tier counts."""
        check_limit_in_tier(self.most, "most of spawn_limit", tier)
        return SpawnLimit(self.most, self.per or "message")

    def evolve(self, memory: GivenTasks, envelope: Envelope) -> GivenTasks:
        kind = envelope.event_type
        if kind in SPEECH_TYPES:
            return self._after_speech(memory, envelope)
        if envelope.sender_id != HUB:
            return memory
        if kind == EV_CHANNEL_CREATED:
            return GivenTasks(agents_among(envelope.event_data))
        if kind == EV_RUN_CHARGED and envelope.event_data.get("kind") != "task":
            return memory
        return GivenTasks(memory.agents, memory.total + 1, memory.since_message + 1, memory.waiting)

    def _after_speech(self, memory: GivenTasks, envelope: Envelope) -> GivenTasks:
        if envelope.sender_id not in memory.agents:
            return GivenTasks(memory.agents, memory.total, 0, with_message(memory.waiting, envelope))
        waiting = without_answered(memory.waiting, envelope)
        if waiting is memory.waiting:
            return memory
        return GivenTasks(memory.agents, memory.total, 0 if waiting else memory.since_message, waiting)

    def permit(self, memory: GivenTasks, state: State, draft: Envelope) -> Permission:
        return self._denial() if is_reached(self._count(memory), self.most) else ALLOW

    def ask(self, memory: GivenTasks, state: State, draft: Envelope) -> Sequence[LedgerEntry]:
        data = draft.event_data
        turn, by, agent = str(data.get("turn", "")), str(data.get("by", "")), str(data.get("agent", ""))
        charged = RunCharged(state.channel_id, turn, 0, "task", agent=by, name=agent)
        return [LedgerEntry("run", EV_RUN_CHARGED, data_of(charged))]

    def settle(self, memory: GivenTasks, state: State, outcome: Envelope) -> Sequence[LedgerEntry]:
        return ()

    def answer(self, memory: GivenTasks, state: State, offer: Envelope) -> Deny | Sequence[RelatedFact]:
        if offer.event_type != EV_RUN_CHARGED or offer.event_data.get("kind") != "task":
            return ()
        if is_reached(self._count(memory), self.most):
            return self._denial()
        return [RelatedFact(EV_RUN_CHARGED, offer.event_data, (OPERATORS,))]

    def task_facts(self, memory: GivenTasks, state: State, draft: Envelope) -> Sequence[RelatedFact]:
        """What is recorded of a task beyond the limit."""
        data, most = draft.event_data, limit_number(self.most)
        by, agent = str(data.get("by", "")), str(data.get("agent", ""))
        return [limit_fact(LimitReached("spawn", most, max(most, self._count(memory)), [by], agent))]

    def _count(self, memory: GivenTasks) -> int:
        return memory.since_message if self.per == "message" else memory.total

    def _denial(self) -> Deny:
        given = (
            "no tasks may be given here" if self.most == 0 else f"this run has given its limit of tasks ({self.most})"
        )
        return Deny(SPAWN_LIMIT_REASON, f"{given}; do it without another")


class TakenTurns(msgspec.Struct, frozen=True):
    """How many turns were taken since a person or code last spoke, that message included."""

    agents: tuple[str, ...] = ()
    since_message: int = 0
    waiting: Waiting = ()
    """The messages of people and outside code that have no answer yet."""


DEFAULT_TURN_LIMIT = 50
MAX_TURNS_REASON = "max_turns"


class TurnLimit(msgspec.Struct, frozen=True):
    """The channel ends before a turn that is one too many. What ends it by a rule is left as it is."""

    name: ClassVar[str] = "turn_limit"
    memory: ClassVar[type] = TakenTurns
    hears: ClassVar[frozenset[str]] = SPEECH_TYPES | {EV_CHANNEL_CREATED}
    most: Limit = DEFAULT_TURN_LIMIT
    per: Per | None = None
    """`channel` counts all turns of the channel, `message` those since a person or code last spoke in it. Without it:
    `message` in a tier, else `channel`."""

    def __post_init__(self) -> None:
        check_limit(self.most, "most of turn_limit")
        _check_per(self.per, "turn_limit")

    def for_tier(self, tier: str) -> TurnLimit:
        """The limit as this tier counts."""
        check_limit_in_tier(self.most, "most of turn_limit", tier)
        return TurnLimit(self.most, self.per or "message")

    def evolve(self, memory: TakenTurns, envelope: Envelope) -> TakenTurns:
        if envelope.event_type in SPEECH_TYPES:
            if envelope.sender_id not in memory.agents:
                return TakenTurns(memory.agents, 1, with_message(memory.waiting, envelope))
            waiting = without_answered(memory.waiting, envelope)
            begins = bool(waiting) and waiting is not memory.waiting
            return TakenTurns(memory.agents, 1 if begins else memory.since_message + 1, waiting)
        return TakenTurns(agents_among(envelope.event_data)) if envelope.sender_id == HUB else memory

    def review(self, memory: TakenTurns, state: State, decision: Decision) -> Decision:
        if not isinstance(decision, Assign) or isinstance(self.most, str):
            return decision
        count = memory.since_message if self.per == "message" else state.turn_count
        if count + len(decision.speakers) <= self.most:
            return decision
        last = [] if state.last_speaker_id is None else [state.last_speaker_id]
        reached = LimitReached("turns", self.most, count, last, ", ".join(decision.speakers))
        return Close(MAX_TURNS_REASON, decision.rule, decision.errors, (*decision.facts, limit_fact(reached)))
