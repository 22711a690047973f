"""What a budget remembers: how much was taken, in the whole run and since a person last spoke, and by which calls.

Rule 1: what is taken is what was settled, and what calls without an outcome have reserved.
Rule 2: a call is counted once, however often it is started again.
Rule 3: a reservation whose time is over stays taken in full, until the outcome of its call is known after all.
Rule 4: it follows what is recorded and knows no limits, so that a log folds the same with others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import msgspec
from msgspec.structs import replace

from antiphon.core.envelope import HUB, NEVER, OPERATORS, Envelope, Instant
from antiphon.core.event_data import Deny, data_of
from antiphon.core.events import EV_CHANNEL_CREATED, SPEECH_TYPES
from antiphon.core.guard import Deadline
from antiphon.core.protection_events import EV_BUDGET_CHANGED, EV_RUN_CHARGED, BudgetChanged
from antiphon.core.state import RelatedFact
from antiphon.core.step import hub_draft
from antiphon.guards.counted_calls import (
    BUDGET_REASON,
    OUTCOME_TYPES,
    START_TYPES,
    CallKind,
    CountedCall,
    CountedOutcome,
    counted_call,
    counted_key,
    counted_outcome,
    ledger_fact,
)
from antiphon.guards.waiting_messages import Waiting, with_message, without_answered

MAX_OPEN_CALLS = 4096
"""Of how many calls without an outcome it is remembered. What older ones have reserved stays taken."""
OPEN_CALLS_TO_TIDY = 64


class Totals(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What was taken: settled, and reserved by calls without an outcome."""

    micro: int = 0
    """In millionths of a dollar."""
    tokens: int = 0
    model_calls: int = 0
    tool_calls: int = 0

    def __add__(self, other: Totals) -> Totals:
        return Totals(
            self.micro + other.micro,
            self.tokens + other.tokens,
            self.model_calls + other.model_calls,
            self.tool_calls + other.tool_calls,
        )


NO_TOTALS = Totals()


def totals_of(kind: CallKind, *, count: int, micro: int, tokens: int) -> Totals:
    """So many calls of a kind, and what they take together."""
    return Totals(micro, tokens, count, 0) if kind == "model" else Totals(micro, tokens, 0, count)


class OpenCall(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A call without an outcome."""

    kind: CallKind
    who: str
    """Whose totals it counts in."""
    micro: int = 0
    tokens: int = 0
    until: Instant = NEVER
    message: int = 0
    """The number of the message in whose totals it counts."""
    booked: bool = False
    """Whether its time is over, so that it counts in full."""
    again: bool = False
    """Whether it was started again after a crash: it has left once."""

    @property
    def totals(self) -> Totals:
        """What it takes."""
        return totals_of(self.kind, count=1, micro=self.micro, tokens=self.tokens)


class Spending(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was taken so far."""

    run: dict[str, Totals] = msgspec.field(default_factory=dict)
    """In all, by agent; under "" if agents are not told apart."""
    message: dict[str, Totals] = msgspec.field(default_factory=dict)
    """Since a person or outside code last spoke."""
    open: dict[str, OpenCall] = msgspec.field(default_factory=dict)
    """The calls without an outcome, by key."""
    messages: int = 0
    """How many messages of people and outside code there were."""
    agents: tuple[str, ...] = ()
    """The participants that are agents."""
    last: CountedCall | None = None
    """The call that has started last: a denial is recorded right behind it."""
    waiting: Waiting = ()
    """The messages of people and outside code that have no answer yet."""


def count_start(spending: Spending, call: CountedCall, who: str) -> Spending:
    """With a call that is about to leave. One that is started again keeps its reservation, and is counted once."""
    before = spending.open.get(call.key)
    if before is not None and not before.booked:
        micro, tokens, count = call.micro - before.micro, call.tokens - before.tokens, 0
    else:
        micro, tokens, count = call.micro, call.tokens, int(before is None)
    taken, again = totals_of(call.kind, count=count, micro=micro, tokens=tokens), before is not None
    entry = OpenCall(call.kind, who, call.micro, call.tokens, call.until, message=spending.messages, again=again)
    return Spending(
        _added(spending.run, who, taken),
        _added(spending.message, who, taken),
        _tidied({**spending.open, call.key: entry}, call.key),
        spending.messages,
        spending.agents,
        call,
        spending.waiting,
    )


def count_outcome(spending: Spending, outcome: CountedOutcome) -> Spending:
    """With the outcome of a call. What it has not used is free again; one that never left counts for nothing.

    One that is denied when it is started again after a crash has left before: it counts in full.
    """
    entry = spending.open.get(outcome.key)
    if entry is None:
        return spending
    if not outcome.left and entry.again:
        outcome = CountedOutcome(outcome.key, entry.micro, entry.tokens, left=True)
    micro, tokens = outcome.micro - entry.micro, outcome.tokens - entry.tokens
    others, run, message = {**spending.open}, spending.run, spending.message
    del others[outcome.key]
    if micro or tokens or not outcome.left:
        taken = totals_of(entry.kind, count=0 if outcome.left else -1, micro=micro, tokens=tokens)
        run = _added(run, entry.who, taken)
        if not entry.booked or entry.message == spending.messages:
            message = _added(message, entry.who, taken)
    return Spending(run, message, others, spending.messages, spending.agents, spending.last, spending.waiting)


def book_call(spending: Spending, key: str) -> Spending:
    """With a call whose time is over: it counts in full until its outcome is known after all."""
    entry = spending.open.get(key)
    if entry is None or entry.booked:
        return spending
    booked = replace(entry, booked=True, message=spending.messages)
    return replace(spending, open={**spending.open, key: booked})


def begin_message(spending: Spending) -> Spending:
    """With a new message of a person or outside code: only calls in progress count from now on."""
    if not spending.message:
        return spending
    message: dict[str, Totals] = {}
    for entry in spending.open.values():
        if not entry.booked:
            message = _added(message, entry.who, entry.totals)
    return replace(spending, message=message, messages=spending.messages + 1)


def reserved_totals(spending: Spending, who: str) -> Totals:
    """What calls without an outcome have reserved, if their time is not over."""
    reserved = NO_TOTALS
    for entry in spending.open.values():
        if entry.who == who and not entry.booked:
            reserved += entry.totals
    return reserved


def next_booking(spending: Spending) -> tuple[str, OpenCall] | None:
    """The call whose time is over first; None if no call waits for its outcome."""
    found: tuple[str, OpenCall] | None = None
    for key, entry in spending.open.items():
        if entry.until and not entry.booked and (found is None or entry.until < found[1].until):
            found = key, entry
    return found


def fold_spending(spending: Spending, envelope: Envelope, *, by_agent: bool, scope: str) -> Spending:
    """What was taken, after one more envelope."""
    kind, data = envelope.event_type, envelope.event_data
    if kind in START_TYPES:
        call = counted_call(envelope)
        return spending if call is None else count_start(spending, call, call.agent if by_agent else "")
    if kind in OUTCOME_TYPES:
        outcome = counted_outcome(envelope)
        return spending if outcome is None else count_outcome(spending, outcome)
    if kind in SPEECH_TYPES:
        return _after_speech(spending, envelope)
    if kind == EV_BUDGET_CHANGED:
        key = counted_key({"index": 0, **data})  # which is left out if it is 0
        mine = data.get("op") == "expire" and str(data.get("scope")).partition(":")[0] == scope
        return book_call(spending, key) if mine and key is not None else spending
    if kind == EV_CHANNEL_CREATED:
        return replace(spending, agents=_agents_of(data.get("participants")))
    return spending


def _after_speech(spending: Spending, envelope: Envelope) -> Spending:
    if envelope.sender_id == HUB:
        return spending
    if envelope.sender_id not in spending.agents:
        return replace(begin_message(spending), waiting=with_message(spending.waiting, envelope))
    waiting = without_answered(spending.waiting, envelope)
    if waiting is spending.waiting:
        return spending
    return replace(begin_message(spending) if waiting else spending, waiting=waiting)


def _agents_of(seats: object) -> tuple[str, ...]:
    """The names of the agents among the participants of a channel that is created."""
    known = [seat for seat in seats if isinstance(seat, dict)] if isinstance(seats, list) else []
    return tuple(str(seat.get("name")) for seat in known if seat.get("kind") == "agent")


def booking_deadline(spending: Spending, scope: str) -> Deadline | None:
    """When the next reservation is over, and what is recorded then; None if there is none."""
    if not spending.open:
        return None
    found = next_booking(spending)
    if found is None:
        return None
    key, entry = found
    return Deadline(entry.until, partial(_booking_draft, key, entry, scope))


def _booking_draft(key: str, entry: OpenCall, scope: str) -> Envelope:
    """What is recorded when a reservation is over."""
    place, _, index = key.rpartition("#")
    channel, _, turn = place.rpartition(" ")
    label = f"{scope}:{entry.who}" if entry.who else scope
    booked = BudgetChanged(
        "expire",
        label,
        "micro",
        need=entry.micro,
        turn=turn,
        index=int(index),
        channel=channel,
        tokens=entry.tokens,
    )
    return hub_draft(EV_BUDGET_CHANGED, data_of(booked), audience=[OPERATORS])


def answer_charge(spending: Spending, offer: Envelope, excess: str | None) -> Deny | Sequence[RelatedFact]:
    """What is recorded of a charge or a settlement: nothing of what is known already, or not counted here."""
    if excess is not None:
        return Deny(BUDGET_REASON, excess)
    if offer.event_type == EV_RUN_CHARGED:
        call = counted_call(offer)
        return () if call is None or call.key in spending.open else (ledger_fact(offer),)
    outcome = counted_outcome(offer) if offer.event_type in OUTCOME_TYPES else None
    entry = None if outcome is None else spending.open.get(outcome.key)
    if outcome is None or entry is None or (entry.kind == "tool" and outcome.left):
        return ()
    return (ledger_fact(offer),)


def _added(totals: Mapping[str, Totals], who: str, taken: Totals) -> dict[str, Totals]:
    return {**totals, who: totals.get(who, NO_TOTALS) + taken}


def _tidied(calls: dict[str, OpenCall], newest: str) -> dict[str, OpenCall]:
    """Without calls of tools in turns that are over: a speaker has begun its next one. Their count stays."""
    if len(calls) <= OPEN_CALLS_TO_TIDY:
        return calls
    turn = newest.rpartition("#")[0]
    speaker = turn.partition("/")[2]
    kept = {
        key: call
        for key, call in calls.items()
        if call.kind == "model" or not key.rpartition("#")[0].endswith(f"/{speaker}") or key.startswith(f"{turn}#")
    }
    for key in list(kept)[: max(0, len(kept) - MAX_OPEN_CALLS)]:
        del kept[key]
    return kept
