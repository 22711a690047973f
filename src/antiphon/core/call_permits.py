"""Entries of a turn's journal, recorded as guards allow the calls among them.

Rule 1: guards are asked about a call in the append that records it, and so is whether a person decides about it.
Rule 2: a call that is denied is recorded with its denial as the outcome.
Rule 3: no person is asked about a call that guards deny.
Rule 4: a call that can be undone is registered in the batch that records it, and only if it leaves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import msgspec

from antiphon.core.envelope import OPERATORS, Envelope, IdSource, Instant, Json
from antiphon.core.event_data import Deny, data_of
from antiphon.core.execution_events import (
    EV_APPROVAL_REQUESTED,
    EV_CALL_FAILED,
    EV_CALL_FINISHED,
    EV_CALL_RETRIED,
    EV_CALL_STARTED,
    FAILURE_CLASSES,
    ApprovalRequested,
    CallFailed,
    FailureClass,
)
from antiphon.core.guard import Ask, Change, Objection
from antiphon.core.ruleset import Fold, Ruleset
from antiphon.core.saga_events import EV_SAGA_EXECUTED, EV_SAGA_REGISTERED
from antiphon.core.state import State
from antiphon.core.step import (
    Admitted,
    fact_drafts,
    hub_draft,
    journal_draft,
    owed_turn,
    record_all,
    stamp_draft,
    turn_audience,
)

OUTCOME_TYPES = frozenset({EV_CALL_FINISHED, EV_CALL_FAILED})
SAGA_OFFER_TYPES = frozenset({EV_SAGA_REGISTERED, EV_SAGA_EXECUTED})
"""Entries that the guard of sagas completes: a registration is recorded with the call that it is about."""
QUESTIONED_TYPES = frozenset({EV_CALL_STARTED, EV_CALL_RETRIED, EV_APPROVAL_REQUESTED})
"""Entries about which guards are asked."""


class TurnClaim(msgspec.Struct, frozen=True):
    """The right to write to a turn, until it is claimed again."""

    turn_id: str
    epoch: int


class JournalBatch(msgspec.Struct, frozen=True):
    """Entries for the journal of a turn, under a claim."""

    claim: TurnClaim
    entries: tuple[Envelope, ...] = ()
    objections: Mapping[int, Objection] = msgspec.field(default_factory=dict)
    """What ledgers say about calls among them that cannot leave as they are, by position."""

    def with_entry(self, entry: Envelope) -> JournalBatch:
        """The same, and one more."""
        return msgspec.structs.replace(self, entries=(*self.entries, entry))


def record_permitted(fold: Fold, work: JournalBatch, *, ruleset: Ruleset, at: Instant, new_id: IdSource) -> Admitted:
    """Record entries. Guards are asked about each call that is to leave; one that is denied is followed by its failure.

    A call that has an outcome among the entries does not leave, so that they are not asked about it.
    """
    settled = {call_position(each) for each in work.entries if each.event_type in OUTCOME_TYPES}
    offers = {call_position(each): each for each in work.entries if each.event_type == EV_SAGA_REGISTERED}
    batch: list[Envelope] = []
    for entry in work.entries:
        position = call_position(entry)
        leaving = entry.event_type in QUESTIONED_TYPES and position not in settled
        if entry.event_type in SAGA_OFFER_TYPES:
            drafts = _offered(ruleset, fold, entry, at=at) if entry.event_type == EV_SAGA_EXECUTED else ()
        elif leaving:
            drafts = _questioned(ruleset, fold, entry, objection=work.objections.get(position[1]), at=at)
        else:
            drafts = (entry,)
        if position in offers and [each.event_type for each in drafts] == [EV_CALL_STARTED]:
            drafts = (*_offered(ruleset, fold, offers[position], at=at), *drafts)
        admitted = record_all(fold, drafts, ruleset=ruleset, at=at, new_id=new_id)
        batch.extend(admitted.batch)
        fold = admitted.fold
    return Admitted(tuple(batch), fold)


def _questioned(
    ruleset: Ruleset, fold: Fold, entry: Envelope, *, objection: Objection | None, at: Instant
) -> tuple[Envelope, ...]:
    """What is recorded for an entry about which guards and ledgers are asked."""
    match objection:
        case Deny():
            return _denied(entry, objection)
        case Ask():
            return (request_of_call(entry, objection, fold.state),)
        case Change(draft=changed):
            return _permitted(ruleset, fold, replace(entry, event_data=changed.event_data), at=at)
        case None:
            return _permitted(ruleset, fold, entry, at=at)


def _offered(ruleset: Ruleset, fold: Fold, offer: Envelope, *, at: Instant) -> tuple[Envelope, ...]:
    """What the guard of sagas records of a call that can be undone."""
    stamped = stamp_draft(offer, fold.state, at=max(at, fold.state.updated_at), new_id=str)
    answered = ruleset.calls.answer(fold, stamped)
    return () if isinstance(answered, Deny) else fact_drafts(answered, offer.causation_id)


def _permitted(ruleset: Ruleset, fold: Fold, entry: Envelope, *, at: Instant) -> tuple[Envelope, ...]:
    """What is recorded for a call that is to leave: the call, its denial, or that a person is asked about it."""
    call, wanted = entry, entry.event_type
    if wanted == EV_APPROVAL_REQUESTED:  # no person is asked about a call that guards deny
        call = replace(entry, event_type=EV_CALL_STARTED, event_data=call_of_request(entry.event_data))
    allowed = ruleset.calls.permit(fold, stamp_draft(call, fold.state, at=max(at, fold.state.updated_at), new_id=str))
    match allowed:
        case Envelope():
            changed = replace(call, event_data=allowed.event_data)
            return (entry,) if wanted == EV_APPROVAL_REQUESTED else (changed,)
        case Ask():
            asked = entry if wanted == EV_APPROVAL_REQUESTED else request_of_call(call, allowed, fold.state)
            return (asked,)
        case Deny() as denial:
            return _denied(call, denial)


def _denied(call: Envelope, denial: Deny) -> tuple[Envelope, ...]:
    """What is recorded for a call that was denied: the call, unless it is only retried, and its outcome."""
    turn, index = call_position(call)
    failed = CallFailed(
        turn,
        index,
        denial.detail or f"denied: {denial.reason}",
        denied=denial.reason,
        final=denial.final,
        answer=denial.answer,
        guard=denial.guard,
        failure=failure_of(call.event_data),
    )
    outcome = journal_draft(EV_CALL_FAILED, failed, cause=call.causation_id)
    return (outcome,) if call.event_type == EV_CALL_RETRIED else (call, outcome)


def failure_of(retried: Json) -> FailureClass:
    """The class of the failure because of which a call was to be retried; "" for a call that has not left."""
    failure = retried.get("failure")
    return next((each for each in FAILURE_CLASSES if each == failure), "")


def call_position(entry: Envelope) -> tuple[str, int]:
    """The turn and the index of the call that a journal entry is about."""
    turn, index = entry.event_data.get("turn"), entry.event_data.get("index")
    return (turn if isinstance(turn, str) else "", index if isinstance(index, int) else -1)


def request_of_call(call: Envelope, asked: Ask, state: State) -> Envelope:
    """The draft that asks a person about a call, which has the form of its `call.started`."""
    data = call.event_data
    turn = owed_turn(state, str(data["turn"]))
    request = ApprovalRequested(
        str(data["turn"]),
        call_position(call)[1],
        str(data["name"]),
        plain_json(data.get("args")),
        str(data["digest"]),
        "" if turn is None else turn.speaker,
        str(data.get("agent", "")),
        asked.why,
        list(asked.approvers),
        guard=asked.guard,
        same=str(data.get("same", "")),
        most=_whole_number(data.get("most")),
        tokens=_whole_number(data.get("tokens")),
    )
    audience = [OPERATORS] if turn is None else turn_audience(turn)
    return hub_draft(EV_APPROVAL_REQUESTED, data_of(request), cause=call.causation_id, audience=audience)


def call_of_request(data: Json) -> Json:
    """The data of the `call.started` that an approval is requested for."""
    return {name: data[name] for name in ("turn", "index", "name", "digest", "args", "agent") if name in data}


def _whole_number(value: object) -> int:
    return value if isinstance(value, int) else 0


def plain_json(value: object) -> Json:
    """The value if it is an object, otherwise an empty one."""
    return value if isinstance(value, dict) else {}
