"""The events of sagas: which calls can be undone, what became of them, and how far they are undone.

Rule 1: the hub records all of these, and operators alone see them.
Rule 2: none holds arguments or results: they are in the journal, and named by `args_ref`.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from antiphon.core.envelope import NEVER, Instant

EV_SAGA_REGISTERED = "antiphon.saga.registered"
EV_SAGA_EXECUTED = "antiphon.saga.executed"
EV_SAGA_OWED = "antiphon.saga.owed"
EV_SAGA_CLAIMED = "antiphon.saga.claimed"
EV_SAGA_COMPENSATION = "antiphon.saga.compensation"
EV_SAGA_FINISHED = "antiphon.saga.finished"


class SagaRegistered(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call is about to leave that another tool undoes. Recorded before its start, in the channel of the run."""

    step: str
    """The call: its turn and position, `17/bob#3`, behind the channel if that is one of a task."""
    comp_name: str
    """The tool that undoes it."""
    args_ref: str
    """Where its arguments are recorded: the channel, the turn and the position of the call."""
    order: int
    """Which registration of the run it is, counted from 1."""
    tool: str = ""


StepStatus = Literal["done", "failed", "unknown", "repeated"]
"""What has become of a call that can be undone: it returned, it failed, it is unknown, or another was made instead."""


class SagaExecuted(msgspec.Struct, frozen=True, omit_defaults=True):
    """The outcome of a call that can be undone."""

    step: str
    status: StepStatus
    sequence: int = 0
    """Where the outcome stands in the log of its channel."""


class SagaOwed(msgspec.Struct, frozen=True):
    """The channel has ended in a way after which its calls are undone."""

    reason: str
    steps: int
    """How many calls are registered."""


class SagaClaimed(msgspec.Struct, frozen=True):
    """An owner runs the compensations from now on. Entries under earlier claims are refused."""

    owner: str
    epoch: int


CompensationStatus = Literal["pending", "running", "failed", "stuck", "done", "skipped"]


class SagaCompensation(msgspec.Struct, frozen=True, omit_defaults=True):
    """A compensation has come into another state."""

    step: str
    comp_name: str
    order: int
    """The place of its call in the order of registrations."""
    attempt: int
    status: CompensationStatus
    why: str = ""
    """A stable word: `error`, `timeout`, `compensation_missing`, `arguments`, `in_doubt`, `policy`, `approval`."""
    by: str = ""
    """The person who decided, if one had to."""
    until: Instant = NEVER
    """The end of the pause before the next attempt."""
    approvers: list[str] = []
    """The people and roles that may decide, where a guard or the tool names them."""


class SagaFinished(msgspec.Struct, frozen=True):
    """No compensation is owed any more."""

    done: int
    stuck: int
    """How many of them a person had to decide about."""
    skipped: int


SagaEvent = SagaRegistered | SagaExecuted | SagaOwed | SagaClaimed | SagaCompensation | SagaFinished

SAGA_STRUCTS: dict[str, type[SagaEvent]] = {
    EV_SAGA_REGISTERED: SagaRegistered,
    EV_SAGA_EXECUTED: SagaExecuted,
    EV_SAGA_OWED: SagaOwed,
    EV_SAGA_CLAIMED: SagaClaimed,
    EV_SAGA_COMPENSATION: SagaCompensation,
    EV_SAGA_FINISHED: SagaFinished,
}
"""The shape of the data of each type."""
