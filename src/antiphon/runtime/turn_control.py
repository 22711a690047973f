"""What people and code do to the turns of a channel: decide on what waits for them, cancel, settle calls in doubt.

Rule 1: whether something still waits is asked inside the append that records the decision, so that one of two wins.
Rule 2: what a person answers for an agent is recorded as the agent's answer, and names the person.
"""

from __future__ import annotations

import msgspec

from antiphon.agents.call_results import Reply, settled_outcome
from antiphon.core.approval_rules import decision_id_of
from antiphon.core.call_permits import JournalBatch, TurnClaim
from antiphon.core.codec import plain_data
from antiphon.core.envelope import HUB, Envelope, IdSource, Instant, Json, derived_id
from antiphon.core.errors import Denied
from antiphon.core.event_data import Deny, check_event, data_of
from antiphon.core.events import EV_PACKET, EV_TEXT
from antiphon.core.execution_events import (
    EV_APPROVAL_DECIDED,
    EV_CALL_APPROVED,
    EV_CALL_CLEARED,
    EV_CALL_FAILED,
    EV_CALL_FINISHED,
    EV_TURN_RESUMED,
    ApprovalDecided,
    CallApproved,
    CallCleared,
    CallFailed,
    CallFinished,
    TurnResumed,
)
from antiphon.core.ruleset import Fold, Ruleset
from antiphon.core.state import State, Turn
from antiphon.core.step import Admitted, journal_draft, owed_turn, turn_audience
from antiphon.core.turns import TurnEnding, TurnFailure, end_turn, fail_turn, write_entries
from antiphon.hub.live import LiveChannel
from antiphon.runtime.arguments import check_text_argument
from antiphon.runtime.core import denial_of_turns

APPROVE, REJECT, RESPOND = "approve", "reject", "respond"
APPROVAL_DECISIONS = (APPROVE, REJECT, RESPOND)
SUSPENDED_TURN = "turn"
"""The last part of the id of a suspended turn, where that of a call has its position."""
REJECTED = "rejected"
"""Why a call was denied that a person has rejected."""
NOT_ALLOWED_TEXT = "Not called: a person did not allow it"
REJECTED_CALL_TEXT = "A person decided that this call is not to be made again, and not to be relied on"


class WaitingItem(msgspec.Struct, frozen=True):
    """Something that waits for a person, or did."""

    approval_id: str
    live: LiveChannel
    turn_id: str
    epoch: int
    """The claim under which it began to wait. A later wait of the same turn has a later one."""
    index: int | None
    """The position of the call; None for a suspended turn."""
    asked: bool = False
    """Whether the call has not left: a person is asked about it. Of these `epoch` says nothing."""
    model: bool = False
    """Whether it is the call of a model."""

    def is_waiting(self, turn: Turn | None) -> bool:
        """Whether it waits now, in this turn as it stands."""
        if turn is not None and self.asked:
            return self.index in turn.asked_until
        if turn is None or turn.epoch != self.epoch:
            return False
        return turn.suspended if self.index is None else self.index in turn.doubts


def approval_id_of(state: State, turn: Turn, index: int | None) -> str:
    """The id of one occurrence of a wait: of a call in doubt by its position, of a suspended turn without."""
    return (
        f"{state.channel_id}.{turn.sequence}.{turn.speaker}.{turn.epoch}.{SUSPENDED_TURN if index is None else index}"
    )


class RecordDecision(msgspec.Struct, frozen=True):
    """Plans a person's decision with what follows from it; `Deny("decided")` if nothing waits any more."""

    waiting: WaitingItem
    decided: ApprovalDecided
    text: str
    new_id: IdSource
    args: Json | None = None
    """Other arguments for the call."""

    def __call__(self, fold: Fold, ruleset: Ruleset, at: Instant) -> Admitted | Deny:
        waiting, decided, new_id = self.waiting, self.decided, self.new_id
        turn = owed_turn(fold.state, waiting.turn_id)
        if turn is None or not waiting.is_waiting(turn) or fold.state.status != "active":
            return Deny("decided", "it does not wait any more")
        work = JournalBatch(TurnClaim(turn.turn_id, turn.epoch), (decision_record(fold.state, turn, decided),))
        if waiting.asked:
            entry = _asked_call_entry(waiting, turn, decided, text=self.text, args=self.args)
            return write_entries(fold, work.with_entry(entry), ruleset=ruleset, at=at, new_id=new_id)
        if waiting.index is not None:
            entry = _call_settlement(turn, waiting.index, decided, text=self.text)
            return write_entries(fold, work.with_entry(entry), ruleset=ruleset, at=at, new_id=new_id)
        match decided.decision:
            case "approve":
                resumed = journal_draft(EV_TURN_RESUMED, TurnResumed(turn.turn_id, decided.by), cause=turn.cause)
                return write_entries(fold, work.with_entry(resumed), ruleset=ruleset, at=at, new_id=new_id)
            case "respond":
                answer = answer_for_agent(ruleset, fold.state, turn, text=self.text, by=decided.by)
                denial = check_event(answer)
                if denial is not None:
                    return denial
                return end_turn(fold, work, TurnEnding((answer,)), ruleset=ruleset, at=at, new_id=new_id)
            case _:
                why = f"by {decided.by}: {decided.reason}" if decided.reason else f"by {decided.by}"
                return fail_turn(fold, work, TurnFailure("rejected", why), ruleset=ruleset, at=at, new_id=new_id)


def decision_record(state: State, turn: Turn, decided: ApprovalDecided) -> Envelope:
    """The record of a decision, for those who have heard that it was needed."""
    envelope_id = decision_id_of(state.channel_id, decided.approval_id)
    return Envelope(envelope_id, "", HUB, turn_audience(turn), EV_APPROVAL_DECIDED, data_of(decided), turn.cause)


def _asked_call_entry(
    waiting: WaitingItem, turn: Turn, decided: ApprovalDecided, *, text: str, args: Json | None
) -> Envelope:
    """What becomes of a call that has not left: it may leave, or it has this outcome."""
    turn_id, index, by = turn.turn_id, waiting.index, decided.by
    assert index is not None, "a person is asked about a call"
    match decided.decision:
        case "approve" | "edit":
            return journal_draft(EV_CALL_APPROVED, CallApproved(turn_id, index, by, args), cause=turn.cause)
        case "respond":
            result = plain_data(Reply(text)) if waiting.model else settled_outcome(text)
            return journal_draft(EV_CALL_FINISHED, CallFinished(turn_id, index, result, by), cause=turn.cause)
        case _:
            said = f"{NOT_ALLOWED_TEXT}: {decided.reason}" if decided.reason else f"{NOT_ALLOWED_TEXT}."
            failed = CallFailed(turn_id, index, said, by, denied=REJECTED)
            return journal_draft(EV_CALL_FAILED, failed, cause=turn.cause)


def _call_settlement(turn: Turn, index: int, decided: ApprovalDecided, *, text: str) -> Envelope:
    turn_id, cause = turn.turn_id, turn.cause
    match decided.decision:
        case "approve":
            return journal_draft(EV_CALL_CLEARED, CallCleared(turn_id, index, decided.by), cause=cause)
        case "respond":
            said = text
        case _:
            said = f"{REJECTED_CALL_TEXT}: {decided.reason}" if decided.reason else f"{REJECTED_CALL_TEXT}."
    finished = CallFinished(turn_id, index, settled_outcome(said), decided.by)
    return journal_draft(EV_CALL_FINISHED, finished, cause=cause)


def answer_for_agent(ruleset: Ruleset, state: State, turn: Turn, *, text: str, by: str) -> Envelope:
    """What a person answers in the place of an agent."""
    packets = ruleset.traits.ends_in == "packet"
    data: Json = {"body": text, "by": by} if packets else {"text": text, "by": by}
    event_type = EV_PACKET if packets else EV_TEXT
    reply_id = derived_id(state.channel_id, turn.turn_id, "reply")
    return Envelope(reply_id, state.channel_id, turn.speaker, turn_audience(turn), event_type, data, turn.cause)


class CancelTurns(msgspec.Struct, frozen=True):
    """Ends turns without an answer, those of them that are still owed."""

    turn_ids: list[str]
    failure: TurnFailure
    may_run: bool
    """Whether the rules may then give an agent a turn; otherwise it is refused as a whole."""
    new_id: IdSource

    def __call__(self, fold: Fold, ruleset: Ruleset, at: Instant) -> Admitted | Deny | None:
        batch: list[Envelope] = []
        before = fold.state
        for turn in filter(None, (owed_turn(before, turn_id) for turn_id in self.turn_ids)):
            work = JournalBatch(TurnClaim(turn.turn_id, turn.epoch))
            ended = fail_turn(fold, work, self.failure, ruleset=ruleset, at=at, new_id=self.new_id)
            if isinstance(ended, Admitted):  # the end of an earlier one may have ended this one too
                batch.extend(ended.batch)
                fold = ended.fold
        denial = None if self.may_run else denial_of_turns(before, fold.state)
        return denial or (Admitted(tuple(batch), fold) if batch else None)


class SettleCall(msgspec.Struct, frozen=True):
    """Plans the result of a call in doubt, or that it is retried; its turn resumes from there."""

    entry: CallFinished | CallCleared
    by: str
    new_id: IdSource

    def __call__(self, fold: Fold, ruleset: Ruleset, at: Instant) -> Admitted | Deny:
        entry = self.entry
        turn = owed_turn(fold.state, entry.turn)
        if turn is None or entry.index not in turn.doubts:
            return Deny("not_in_doubt", f"call {entry.index} of turn {entry.turn!r} is not in doubt")
        finished = isinstance(entry, CallFinished)
        approval_id = approval_id_of(fold.state, turn, entry.index)
        decided = ApprovalDecided(approval_id, RESPOND if finished else APPROVE, self.by)
        note = journal_draft(EV_CALL_FINISHED if finished else EV_CALL_CLEARED, entry, cause=turn.cause)
        work = JournalBatch(TurnClaim(turn.turn_id, turn.epoch), (decision_record(fold.state, turn, decided), note))
        return write_entries(fold, work, ruleset=ruleset, at=at, new_id=self.new_id)


async def cancel_owed_turns(live: LiveChannel, by: str, reason: str, *, may_run: bool, new_id: IdSource) -> int:
    """End every turn that is owed now, without an answer. Returns their number."""
    check_not_agent(live.state, by)
    turns = [turn.turn_id for turn in live.state.owed]
    await live.submit(CancelTurns(turns, TurnFailure("cancelled", f"by {by}: {reason}"), may_run, new_id))
    return len(turns)


async def settle_call(live: LiveChannel, by: str, entry: CallFinished | CallCleared, *, new_id: IdSource) -> None:
    """Record the result of a call in doubt, or that it is retried."""
    check_not_agent(live.state, by)
    await live.submit(SettleCall(entry, by, new_id))


def call_result_of(text: object) -> Json:
    """The result that a person gives for a call, as the journal keeps it."""
    return settled_outcome(check_text_argument(text, "result", "the text that the agent is to read"))


def check_not_agent(state: State, by: str) -> None:
    if state.participants.get(by) == "agent":
        raise Denied("not_a_person", state.channel_id, f"{by!r} is an agent; people and code decide this")
