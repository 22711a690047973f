"""What is recorded of a saga, as plans: the claim, each move of a compensation with its journal, and the end.

Rule 1: each is planned on the present fold. Under another claim than the present one it is refused as `fenced`.
Rule 2: whether a compensation may leave is asked in the append that records it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from antiphon.core.codec import digest_of
from antiphon.core.envelope import NEVER, OPERATORS, Envelope, IdSource, Instant, Json, derived_id
from antiphon.core.event_data import Deny, data_of
from antiphon.core.execution_events import EV_CALL_STARTED, CallStarted
from antiphon.core.guard import Ask
from antiphon.core.ruleset import Fold, Ruleset
from antiphon.core.saga_events import EV_SAGA_COMPENSATION, CompensationStatus, SagaCompensation
from antiphon.core.sagas import COMPENSATION_TURN, SagaStep
from antiphon.core.step import Admitted, hub_draft, journal_draft, record_all, stamp_draft
from antiphon.core.turns import FENCED
from antiphon.guards.saga import saga_memory_of

BREAKER_OPEN = "breaker_open"
APPROVAL = "approval"


class PreparedCompensation(msgspec.Struct, frozen=True):
    """A compensation that can leave."""

    step: SagaStep
    tool_name: str
    args: Json
    key: str
    agent: str


class CompensationMove(msgspec.Struct, frozen=True):
    """The state into which a compensation comes, and why."""

    status: CompensationStatus
    why: str = ""
    until: Instant = NEVER
    by: str = ""
    approvers: tuple[str, ...] = ()


def move_draft(channel_id: str, step: SagaStep, move: CompensationMove) -> Envelope:
    """The draft of a move. Its id makes it the same draft however often it is offered."""
    event = SagaCompensation(
        step.step,
        step.comp_name,
        step.order,
        step.attempt,
        move.status,
        move.why,
        move.by,
        move.until,
        list(move.approvers),
    )
    draft = hub_draft(EV_SAGA_COMPENSATION, data_of(event), audience=[OPERATORS])
    parts = step.step, move.status, str(step.attempt), str(step.changed)
    return replace(draft, envelope_id=derived_id(channel_id, EV_SAGA_COMPENSATION, *parts))


class RecordSagaEntries(msgspec.Struct, frozen=True):
    """Plans entries under a claim."""

    drafts: Sequence[Envelope]
    epoch: int
    new_id: IdSource

    def __call__(self, fold: Fold, ruleset: Ruleset, at: Instant) -> Admitted | Deny:
        denial = claim_denial(fold, self.epoch)
        return denial or record_all(fold, self.drafts, ruleset=ruleset, at=at, new_id=self.new_id)


class StartCompensation(msgspec.Struct):
    """Plans that a compensation leaves, or that a person decides, or nothing while a breaker is open."""

    ready: PreparedCompensation
    epoch: int
    new_id: IdSource
    question: Ask | None = None
    """What its tool wants a person asked about this call."""
    refusal: str = ""
    """Why it does not leave; "" if it does."""
    args: Json | None = None
    """With what it leaves, which guards may have changed."""

    def __call__(self, fold: Fold, ruleset: Ruleset, at: Instant) -> Admitted | Deny | None:
        denial = claim_denial(fold, self.epoch)
        if denial is not None:
            return denial
        drafts = self._drafts(fold, ruleset, at)
        return record_all(fold, drafts, ruleset=ruleset, at=at, new_id=self.new_id) if drafts else None

    def _drafts(self, fold: Fold, ruleset: Ruleset, at: Instant) -> tuple[Envelope, ...]:
        ready, channel_id = self.ready, fold.state.channel_id
        call = self._call_draft()
        stamped = stamp_draft(call, fold.state, at=max(at, fold.state.updated_at), new_id=self.new_id)
        permission = ruleset.calls.permit_compensation(fold, stamped)
        if self.question is not None and isinstance(permission, Envelope):
            permission = self.question
        approvers: tuple[str, ...] = ()
        match permission:
            case Deny(reason=reason):
                self.refusal = reason
            case Ask(approvers=named):
                self.refusal = APPROVAL
                approvers = named or (() if self.question is None else self.question.approvers)
            case Envelope(event_data=data):
                changed = data.get("args")
                self.refusal, self.args = "", changed if isinstance(changed, dict) else ready.args
                leaving = replace(call, event_data={**call.event_data, "args": self.args})
                return (move_draft(channel_id, ready.step, CompensationMove("running")), leaving)
        if self.refusal == BREAKER_OPEN:
            return ()
        return (move_draft(channel_id, ready.step, CompensationMove("stuck", self.refusal, approvers=approvers)),)

    def _call_draft(self) -> Envelope:
        ready, step = self.ready, self.ready.step
        started = CallStarted(
            COMPENSATION_TURN,
            step.order,
            ready.tool_name,
            digest_of([ready.tool_name, ready.args]),
            ready.args,
            ready.key,
            ready.agent,
            approved=step.by,
        )
        return journal_draft(EV_CALL_STARTED, started)


def claim_denial(fold: Fold, epoch: int) -> Deny | None:
    """Why nothing may be recorded under this claim; None if it is the present one."""
    memory = saga_memory_of(fold)
    if memory.epoch == epoch and not memory.finished:
        return None
    return Deny(FENCED, f"the saga was claimed by {memory.owner}: {memory.epoch}, not {epoch}")
