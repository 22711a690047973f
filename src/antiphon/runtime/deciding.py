"""What follows from each decision about a call in doubt or a suspended turn, as one batch.

Rule 1: whether something still waits is asked inside the append that records the decision, so that one of two wins.
Rule 2: what a person answers for an agent is recorded as the agent's answer, and names the person.
"""

from __future__ import annotations

import msgspec

from antiphon.core.draft import check_event
from antiphon.core.envelope import HUB, Envelope
from antiphon.core.events import (
    EV_APPROVAL_DECIDED,
    EV_CALL_CLEARED,
    EV_CALL_FINISHED,
    EV_PACKET,
    EV_TEXT,
    EV_TURN_RESUMED,
    ApprovalDecided,
    CallCleared,
    CallFinished,
    Json,
    TurnResumed,
    data_of,
)
from antiphon.core.guard import Deny
from antiphon.core.ids import IdSource, derived_id
from antiphon.core.instants import Instant
from antiphon.core.laws import Fold, Laws
from antiphon.core.state import State, Turn
from antiphon.core.step import Admitted, audience_of
from antiphon.core.turns import Claim, Ending, Failure, Work, ended, failed, noted, owed_turn, written
from antiphon.hub.live import LiveChannel
from antiphon.hub.request import Plan

APPROVE, REJECT, RESPOND = "approve", "reject", "respond"
DECISIONS = (APPROVE, REJECT, RESPOND)
TURN = "turn"
"""The last part of the id of a suspended turn, where that of a call has its position."""
REJECTED = "A person decided that this call is not to be made again, and not to be relied on"


class WaitingItem(msgspec.Struct, frozen=True):
    """Something that waits for a person, or did."""

    approval_id: str
    live: LiveChannel
    turn_id: str
    epoch: int
    """The claim under which it began to wait. A later wait of the same turn has a later one."""
    index: int | None
    """The position of the call in doubt; None for a suspended turn."""

    def found(self, turn: Turn | None) -> bool:
        """Whether it waits now, in this turn as it stands."""
        if turn is None or turn.epoch != self.epoch:
            return False
        return turn.suspended if self.index is None else self.index in turn.doubts


def approval_id_of(state: State, turn: Turn, index: int | None) -> str:
    """The id of one occurrence of a wait: of a call in doubt by its position, of a suspended turn without."""
    return f"{state.channel_id}.{turn.sequence}.{turn.speaker}.{turn.epoch}.{TURN if index is None else index}"


def decided_id(channel_id: str, approval_id: str) -> str:
    """The id of the envelope that records the decision."""
    return derived_id(channel_id, approval_id, EV_APPROVAL_DECIDED)


def decision_plan(waiting: WaitingItem, decided: ApprovalDecided, text: str, *, new_id: IdSource) -> Plan:
    """Records a decision with what follows from it; `Deny("decided")` if nothing waits any more."""

    def plan(fold: Fold, laws: Laws, at: Instant) -> Admitted | Deny:
        turn = owed_turn(fold.state, waiting.turn_id)
        if turn is None or not waiting.found(turn) or fold.state.status != "active":
            return Deny("decided", "it does not wait any more")
        work = Work(Claim(turn.turn_id, turn.epoch), (decision_note(fold.state, turn, decided),))
        if waiting.index is not None:
            entry = _settled(turn, waiting.index, decided, text=text)
            return written(fold, work.and_then(entry), laws=laws, at=at, new_id=new_id)
        match decided.decision:
            case "approve":
                resumed = noted(EV_TURN_RESUMED, TurnResumed(turn.turn_id, decided.by), cause=turn.cause)
                return written(fold, work.and_then(resumed), laws=laws, at=at, new_id=new_id)
            case "respond":
                answer = _answer(laws, fold.state, turn, text=text, by=decided.by)
                denial = check_event(answer)
                if denial is not None:
                    return denial
                return ended(fold, work, Ending((answer,)), laws=laws, at=at, new_id=new_id)
            case _:
                why = f"by {decided.by}: {decided.reason}" if decided.reason else f"by {decided.by}"
                return failed(fold, work, Failure("rejected", why), laws=laws, at=at, new_id=new_id)

    return plan


def decision_note(state: State, turn: Turn, decided: ApprovalDecided) -> Envelope:
    """The record of a decision, for those who have heard that it was needed."""
    envelope_id = decided_id(state.channel_id, decided.approval_id)
    return Envelope(envelope_id, "", HUB, audience_of(turn), EV_APPROVAL_DECIDED, data_of(decided), turn.cause)


def _settled(turn: Turn, index: int, decided: ApprovalDecided, *, text: str) -> Envelope:
    turn_id, cause = turn.turn_id, turn.cause
    match decided.decision:
        case "approve":
            return noted(EV_CALL_CLEARED, CallCleared(turn_id, index, decided.by), cause=cause)
        case "respond":
            result: Json = {"returned": {"text": text}}
        case _:
            result = {"returned": {"text": f"{REJECTED}: {decided.reason}" if decided.reason else f"{REJECTED}."}}
    return noted(EV_CALL_FINISHED, CallFinished(turn_id, index, result, decided.by), cause=cause)


def _answer(laws: Laws, state: State, turn: Turn, *, text: str, by: str) -> Envelope:
    packets = bool(getattr(laws.adapter, "packets", False))
    data: Json = {"body": text, "by": by} if packets else {"text": text, "by": by}
    event_type = EV_PACKET if packets else EV_TEXT
    reply_id = derived_id(state.channel_id, turn.turn_id, "reply")
    return Envelope(reply_id, state.channel_id, turn.speaker, audience_of(turn), event_type, data, turn.cause)
