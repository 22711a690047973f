"""The guard of sagas: which ends of a channel mean that its calls are undone.

Rule 1: each channel has it, and it hears only of what belongs to sagas and of the end of the channel.
Rule 2: its memory has one size, however many calls are registered: the list is the log.
Rule 3: what it decides is recorded (`antiphon.saga.owed`), so that an old log folds to the same under another `on`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec
from msgspec.structs import replace

from antiphon.core.envelope import NEVER, OPERATORS, Envelope, Instant
from antiphon.core.errors import RulesInvalid
from antiphon.core.event_data import Deny, data_of, event_of
from antiphon.core.events import EV_CHANNEL_CLOSED, EV_CHANNEL_FORKED, ChannelForked
from antiphon.core.guard import Deadline
from antiphon.core.ruleset import Fold, Ruleset
from antiphon.core.saga_events import (
    EV_SAGA_CLAIMED,
    EV_SAGA_COMPENSATION,
    EV_SAGA_EXECUTED,
    EV_SAGA_FINISHED,
    EV_SAGA_OWED,
    EV_SAGA_REGISTERED,
    SagaClaimed,
    SagaCompensation,
    SagaFinished,
    SagaOwed,
    SagaRegistered,
)
from antiphon.core.state import RelatedFact, State
from antiphon.core.text import describe

FAILURE_REASONS = (
    "aborted",
    "denied",
    "expired",
    "deadline",
    "expectation_violated",
    "rejected",
    "deadlock",
    "loop",
)
"""The reasons for which a channel ends that mean failure, with or without something behind a colon."""
DEFAULT_COMPENSATION_SECONDS = 300.0
SAGA_TYPES = frozenset({EV_SAGA_REGISTERED, EV_SAGA_OWED, EV_SAGA_CLAIMED, EV_SAGA_COMPENSATION, EV_SAGA_FINISHED})


class SagaMemory(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far the saga of a channel is."""

    registered: int = 0
    first: int = 0
    """Where the first registration stands."""
    owed_at: Instant = NEVER
    """When the channel ended in failure."""
    epoch: int = 0
    owner: str = ""
    stuck: str = ""
    """The step that waits for a person."""
    stuck_at: int = 0
    """Where that is recorded."""
    finished: bool = False

    @property
    def is_owed(self) -> bool:
        """Whether compensations are left."""
        return bool(self.owed_at) and not self.finished


class Saga(msgspec.Struct, frozen=True):
    """Has the calls of a run undone when its channel ends in failure."""

    name: ClassVar[str] = "saga"
    memory: ClassVar[type] = SagaMemory
    hears: ClassVar[frozenset[str]] = SAGA_TYPES | {EV_CHANNEL_CLOSED, EV_CHANNEL_FORKED}
    watches_after_end: ClassVar[bool] = True
    watches_only_after_end: ClassVar[bool] = True
    joins_snapshots: ClassVar[bool] = True
    on: tuple[str, ...] | None = None
    """The reasons that mean failure; None for `FAILURE_REASONS`."""
    seconds: float | None = None
    """How long each attempt at a compensation may take; None for 300 seconds."""

    def __post_init__(self) -> None:
        for reason in self.on or ():
            if not reason or reason != reason.strip():
                raise RulesInvalid(f"on of saga has {describe(reason)}; give reasons such as 'aborted' or 'expired'")
        if self.seconds is not None and not 0 < self.seconds < float("inf"):
            raise RulesInvalid(f"seconds of saga is {describe(self.seconds)}; give seconds above 0")

    @property
    def compensation_seconds(self) -> float:
        """How long each attempt at a compensation may take."""
        return self.seconds or DEFAULT_COMPENSATION_SECONDS

    def evolve(self, memory: SagaMemory, envelope: Envelope) -> SagaMemory:
        match event_of(envelope):
            case SagaRegistered():
                first = memory.first or envelope.sequence
                return replace(memory, registered=memory.registered + 1, first=first)
            case SagaOwed():
                return replace(memory, owed_at=envelope.created_at)
            case SagaClaimed(owner=owner, epoch=epoch):
                return replace(memory, owner=owner, epoch=epoch)
            case SagaCompensation(step=step, status="stuck"):
                return replace(memory, stuck=step, stuck_at=envelope.sequence)
            case SagaCompensation() if memory.stuck:
                return replace(memory, stuck="", stuck_at=0)
            case SagaFinished():
                return replace(memory, finished=True)
            case ChannelForked():  # what was done before belongs to the channel it was copied from
                return SagaMemory()
            case _:
                return memory

    def notice(self, memory: SagaMemory, state: State, envelope: Envelope) -> Sequence[RelatedFact]:
        if envelope.event_type != EV_CHANNEL_CLOSED or not memory.registered or memory.owed_at:
            return ()
        if not self.means_failure(state.close_reason):
            return ()
        owed = SagaOwed(state.close_reason, memory.registered)
        return (RelatedFact(EV_SAGA_OWED, data_of(owed), (OPERATORS,)),)

    def answer(self, memory: SagaMemory, state: State, offer: Envelope) -> Deny | Sequence[RelatedFact]:
        """What is recorded of a call that can be undone: its place in the order, and that of its outcome."""
        data = offer.event_data
        if offer.event_type == EV_SAGA_REGISTERED:
            if state.ended:
                return Deny("channel_closed", "The run has ended; this cannot be undone any more, and was not called.")
            kept = {name: data[name] for name in SagaRegistered.__struct_fields__ if name in data}
            return (RelatedFact(EV_SAGA_REGISTERED, {**kept, "order": memory.registered + 1}, (OPERATORS,)),)
        if offer.event_type == EV_SAGA_EXECUTED and not state.ended:
            outcome = {"step": data["step"], "status": data["status"], "sequence": data.get("sequence", state.sequence)}
            return (RelatedFact(EV_SAGA_EXECUTED, outcome, (OPERATORS,)),)
        return ()

    def due(self, memory: SagaMemory, state: State) -> Deadline | None:
        """While compensations are left, a hub looks at the channel again and again."""
        return Deadline(memory.owed_at, None) if memory.is_owed else None

    def means_failure(self, reason: str) -> bool:
        """Whether a channel that ended for this reason has failed."""
        return any(reason == each or reason.startswith(f"{each}:") for each in self.on or FAILURE_REASONS)


def saga_guard_of(ruleset: Ruleset) -> Saga | None:
    """The guard of sagas of a channel; the hub's own channels have none."""
    return next((guard for guard in ruleset.guards if isinstance(guard, Saga)), None)


def saga_memory_of(fold: Fold) -> SagaMemory:
    """What the guard of sagas remembers in a channel."""
    return next((memory for memory in fold.memories if isinstance(memory, SagaMemory)), SagaMemory())
