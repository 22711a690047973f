"""Sagas: the calls of a run that can be undone, and how far they are undone, read from the log of its channel.

Rule 1: the log is the only list. What is owed after a crash is what it says.
Rule 2: calls are undone in the reverse order of their outcomes, across branches and tasks. A call without a recorded
        outcome comes first: it may take effect after all others.
Rule 3: a call is undone that has taken effect, or may have. One that failed, or never left, is not.
Rule 4: a compensation has six states, and no other moves between them than those of `MOVES`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from antiphon.core.envelope import HUB, NEVER, Envelope, Instant
from antiphon.core.event_data import event_of
from antiphon.core.saga_events import (
    CompensationStatus,
    SagaCompensation,
    SagaExecuted,
    SagaRegistered,
    StepStatus,
)

COMPENSATION_TURN = "compensation"
"""What stands for the turn in the journal of compensations."""
MAX_RETRIES = 5
"""How often a compensation that failed is retried before a person is asked."""
FIRST_RETRY_SECONDS = 1.0
KEY_SUFFIX = ":c"
"""What the idempotency key of a compensation has behind that of its call."""

MOVES: Mapping[CompensationStatus, Mapping[str, CompensationStatus]] = {
    "pending": {"start": "running", "refuse": "stuck"},
    "running": {"succeed": "done", "fail": "failed", "give_up": "stuck", "refuse": "stuck"},
    "failed": {"start": "running", "refuse": "stuck"},
    "stuck": {"retry": "pending", "skip": "skipped", "done": "done"},
    "done": {},
    "skipped": {},
}
"""The state that follows from each state and move. `refuse` is what no retry changes; the moves of `stuck` are those of
a person."""
ENDED_COMPENSATIONS = frozenset({"done", "skipped"})


def next_status(status: CompensationStatus, move: str) -> CompensationStatus | None:
    """The state after a move; None if there is no such move from here."""
    return MOVES[status].get(move)


def failure_move(attempt: int) -> str:
    """What follows from a failure of this attempt, counted from 1."""
    return "give_up" if attempt > MAX_RETRIES else "fail"


def retry_pause(attempt: int) -> float:
    """The seconds before the attempt that follows this one."""
    return FIRST_RETRY_SECONDS * 2.0 ** (attempt - 1)


class CallRef(msgspec.Struct, frozen=True):
    """A call: its channel, its turn, and its place in it."""

    channel: str
    turn: str
    index: int

    def __str__(self) -> str:
        return f"{self.channel} {self.turn}#{self.index}"

    def step_in(self, run: str) -> str:
        """The name of the call in the saga of this run."""
        return f"{self.turn}#{self.index}" if self.channel == run else str(self)


def parse_call_ref(text: str) -> CallRef:
    """The call that `str` of it names."""
    channel, _, place = text.partition(" ")
    turn, _, index = place.rpartition("#")
    return CallRef(channel, turn, int(index) if index.isdecimal() else -1)


class SagaStep(msgspec.Struct, frozen=True):
    """A call that can be undone, and how far it is."""

    step: str
    comp_name: str
    call: CallRef
    order: int
    tool: str = ""
    registered: int = 0
    """Where its registration stands in the log of the run."""
    outcome: StepStatus | None = None
    """None if it is not recorded."""
    committed: int = 0
    """Where its outcome stands in the log of the run; 0 without one."""
    status: CompensationStatus = "pending"
    attempt: int = 0
    until: Instant = NEVER
    why: str = ""
    changed: int = 0
    """Where the last event of its compensation stands; 0 without one."""
    was_stuck: bool = False
    by: str = ""
    """Who has decided that it is tried again, and so allows it."""
    approvers: tuple[str, ...] = ()
    """The people and roles that may decide while it is stuck, where a guard or its tool names them."""


SagaSteps = dict[str, SagaStep]
"""By name, in the order of registration."""


def steps_of(log: Iterable[Envelope], before: SagaSteps | None = None) -> SagaSteps:
    """The steps of a saga. `before` is what was known before this part of the log."""
    steps: SagaSteps = dict(before or {})
    for envelope in log:
        event = event_of(envelope) if envelope.sender_id == HUB else None
        match event:
            case SagaRegistered(step=step) if step not in steps:
                call = parse_call_ref(event.args_ref)
                steps[step] = SagaStep(step, event.comp_name, call, event.order, event.tool, envelope.sequence)
            case SagaExecuted(step=step, status=status) if step in steps:
                steps[step] = replace(steps[step], outcome=status, committed=envelope.sequence)
            case SagaCompensation(step=step) if step in steps:
                steps[step] = _compensated(steps[step], event, envelope.sequence)
            case _:
                pass
    return steps


def _compensated(step: SagaStep, event: SagaCompensation, sequence: int) -> SagaStep:
    return replace(
        step,
        status=event.status,
        attempt=0 if event.status == "pending" else event.attempt,
        until=event.until,
        why=event.why,
        changed=sequence,
        by=event.by if event.status == "pending" else step.by,
        was_stuck=step.was_stuck or event.status == "stuck",
        approvers=tuple(event.approvers),
    )


def last_first(steps: Iterable[SagaStep]) -> list[SagaStep]:
    """The steps in the order in which they are undone."""

    def commit(step: SagaStep) -> tuple[bool, int, int]:
        return not step.committed, step.committed, step.registered

    return sorted(steps, key=commit, reverse=True)


def is_owed(step: SagaStep) -> bool:
    """Whether a step has taken effect, or may have, and is not undone yet."""
    return step.outcome not in ("failed", "repeated") and step.status not in ENDED_COMPENSATIONS


def next_owed(steps: Sequence[SagaStep]) -> SagaStep | None:
    """The step to be undone next, of steps in their order; None if none is left."""
    return next(filter(is_owed, steps), None)
