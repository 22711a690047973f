"""Entries of a turn's journal, recorded as guards allow the calls among them.

Rule 1: guards are asked about a call in the append that records it, and so is whether a person decides about it.
Rule 2: a call that is denied is recorded with its denial as the outcome.
Rule 3: no person is asked about a call that guards deny.
Rule 4: a call that can be undone is registered in the batch that records it, and only if it leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import msgspec

from antiphon.core.approval_rules import approval_rules
from antiphon.core.envelope import NEVER, OPERATORS, Envelope, IdSource, Instant, Json, with_event_data
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
from antiphon.core.opinions import HeldCall
from antiphon.core.ruleset import Fold, Ruleset
from antiphon.core.saga_events import EV_SAGA_EXECUTED, EV_SAGA_REGISTERED
from antiphon.core.state import State
from antiphon.core.step import (
    Admitted,
    dated_draft,
    fact_drafts,
    hub_draft,
    journal_draft,
    owed_turn,
    record,
    turn_audience,
)

OUTCOME_TYPES = frozenset({EV_CALL_FINISHED, EV_CALL_FAILED})
SAGA_OFFER_TYPES = frozenset({EV_SAGA_REGISTERED, EV_SAGA_EXECUTED})
"""Entries that the guard of sagas completes: a registration is recorded with the call that it is about."""
QUESTIONED_TYPES = frozenset({EV_CALL_STARTED, EV_CALL_RETRIED, EV_APPROVAL_REQUESTED})
"""Entries about which guards are asked."""
COMPLETED_TYPES = SAGA_OFFER_TYPES | {EV_APPROVAL_REQUESTED}
"""Entries that are completed when they are recorded, also where guards are asked about no calls."""


NOTHING_ASKED = Ask("")


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
    parameters: Mapping[int, Callable[[], Json]] = msgspec.field(default_factory=dict)
    """What gives the JSON schemas of the arguments of calls among them, by position: few of them are needed."""

    def with_entry(self, entry: Envelope) -> JournalBatch:
        """The same, and one more."""
        return msgspec.structs.replace(self, entries=(*self.entries, entry))


def record_permitted(fold: Fold, work: JournalBatch, *, ruleset: Ruleset, at: Instant, new_id: IdSource) -> Admitted:
    """Record entries. Guards are asked about each call that is to leave; one that is denied is followed by its failure.

    A call that has an outcome among the entries does not leave, so that they are not asked about it.
    """
    settled: set[tuple[str, int]] = set()
    offers: dict[tuple[str, int], Envelope] = {}
    for entry in work.entries:
        if entry.event_type in OUTCOME_TYPES:
            settled.add(call_position(entry))
        elif entry.event_type == EV_SAGA_REGISTERED:
            offers[call_position(entry)] = entry
    batch: list[Envelope] = []
    for entry in work.entries:
        if entry.event_type in QUESTIONED_TYPES and call_position(entry) not in settled:
            drafts = _questioned(fold, entry, work, ruleset=ruleset, at=max(at, fold.state.updated_at))
        elif entry.event_type in SAGA_OFFER_TYPES:
            drafts = _offered(ruleset, fold, entry, at=at) if entry.event_type == EV_SAGA_EXECUTED else ()
        else:
            drafts = (entry,)
        if offers and [each.event_type for each in drafts] == [EV_CALL_STARTED]:
            offer = offers.get(call_position(entry))
            drafts = drafts if offer is None else (*_offered(ruleset, fold, offer, at=at), *drafts)
        for draft in drafts:
            admitted = record(fold, draft, ruleset=ruleset, at=at, new_id=new_id)
            batch.extend(admitted.batch)
            fold = admitted.fold
    return Admitted(tuple(batch), fold)


def _questioned(
    fold: Fold, entry: Envelope, work: JournalBatch, *, ruleset: Ruleset, at: Instant
) -> tuple[Envelope, ...]:
    """What is recorded for an entry about which guards and ledgers are asked."""
    objection = work.objections.get(call_position(entry)[1]) if work.objections else None
    match objection:
        case Deny() as denial:
            return _denied(entry, denial)
        case Ask() as wanted if not entry.event_data.get("approved"):
            by = _decide_by(ruleset, fold, entry, at=at)
            return _held(HeldCall(wanted, entry), fold.state, work, by=by)
        case Change(draft=changed):
            return _permitted(fold, with_event_data(entry, changed.event_data), work, ruleset=ruleset, at=at)
        case _:
            return _permitted(fold, entry, work, ruleset=ruleset, at=at)


def _offered(ruleset: Ruleset, fold: Fold, offer: Envelope, *, at: Instant) -> tuple[Envelope, ...]:
    """What the guard of sagas records of a call that can be undone."""
    answered = ruleset.calls.answer(fold, dated_draft(offer, fold.state, at=max(at, fold.state.updated_at)))
    return () if isinstance(answered, Deny) else fact_drafts(answered, offer.causation_id)


def _permitted(
    fold: Fold, entry: Envelope, work: JournalBatch, *, ruleset: Ruleset, at: Instant
) -> tuple[Envelope, ...]:
    """What is recorded for a call that is to leave: the call, its denial, or that a person is asked about it."""
    call, asks = entry, entry.event_type == EV_APPROVAL_REQUESTED
    if asks:
        call = replace(entry, event_type=EV_CALL_STARTED, event_data=_call_of_request(entry.event_data))
    said = ruleset.calls.permit(fold, dated_draft(call, fold.state, at=at))
    if not asks and isinstance(said, Envelope):  # by far the most common
        return (with_event_data(call, said.event_data) if said.event_data is not call.event_data else call,)
    by = _decide_by(ruleset, fold, call, at=at)
    match said:
        case Envelope() as allowed:
            return (_request_draft(entry, NOTHING_ASKED, allowed, state=fold.state, by=by),)
        case HeldCall() as held if asks:
            return (_request_draft(entry, held.wanted, held.draft, state=fold.state, by=by),)
        case HeldCall() as held:
            return _held(held, fold.state, work, by=by)
        case Deny() as denial:
            return _denied(call, denial)


def _decide_by(ruleset: Ruleset, fold: Fold, call: Envelope, *, at: Instant) -> Instant:
    """When a person has to have decided about a call that waits from now on; `NEVER` if at no time."""
    rules, before = approval_rules(fold.state.knobs), ruleset.calls.decide_before(fold, call_position(call)[0])
    return min((each for each in (rules.due_after(at), before) if each), default=NEVER)


def _held(held: HeldCall, state: State, work: JournalBatch, *, by: Instant) -> tuple[Envelope, ...]:
    """What is recorded for a call that guards have a person asked about. No person is asked about a retry."""
    if held.draft.event_type == EV_CALL_RETRIED:
        return _denied(held.draft, Deny("policy", held.wanted.why, guard=held.wanted.guard))
    schema = work.parameters.get(call_position(held.draft)[1])
    request = _request_of(held.draft, {} if schema is None else schema(), state)
    return (_request_draft(request, held.wanted, held.draft, state=state, by=by),)


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


def _request_of(call: Envelope, parameters: Json, state: State) -> Envelope:
    """The draft that asks a person about a call, which has the form of its `call.started`."""
    data = call.event_data
    turn = owed_turn(state, str(data["turn"]))
    args = data.get("args")
    request = ApprovalRequested(
        str(data["turn"]),
        call_position(call)[1],
        str(data["name"]),
        _plain_json(args),
        str(data["digest"]),
        "" if turn is None else turn.speaker,
        str(data.get("agent", "")),
        kind="model" if args is None else "tool",
        parameters=parameters,
    )
    audience = [OPERATORS] if turn is None else turn_audience(turn)
    return hub_draft(EV_APPROVAL_REQUESTED, data_of(request), cause=call.causation_id, audience=audience)


def _request_draft(request: Envelope, wanted: Ask, call: Envelope, *, state: State, by: Instant) -> Envelope:
    """A request with what guards and the channel say about it: the arguments, why, who decides, and by when.

    The people that a guard names come before those of the tool, and these before those of the channel.
    """
    data, rules = request.event_data, approval_rules(state.knobs)
    told = {
        "args": _plain_json(call.event_data.get("args")),
        "why": "; ".join(filter(None, (str(data.get("why", "")), wanted.why))),
        "approvers": list(wanted.approvers) or data.get("approvers") or list(rules.approvers),
        "decide_by": by,
        "guard": wanted.guard,
        **{name: call.event_data.get(name) for name in ("same", "most", "tokens")},
    }
    return replace(request, event_data={**data, **{name: value for name, value in told.items() if value}})


def _call_of_request(data: Json) -> Json:
    """The data of the `call.started` that an approval is requested for."""
    return {name: data[name] for name in CALL_FIELDS if name in data}


CALL_FIELDS = ("turn", "index", "name", "digest", "args", "agent", "same")


def _plain_json(value: object) -> Json:
    """The value if it is an object, otherwise an empty one."""
    return value if isinstance(value, dict) else {}
