"""The breakers of models, which all channels share: what channels ask of their ledger, and what it answers.

Rule 1: a call is asked about before it leaves, and counted when it has an outcome. While a breaker is closed and has
        counted no failure, nothing of that is recorded.
Rule 2: of the calls that are asked about at once one alone becomes the probe: it is recorded by compare-and-set.
Rule 3: an outcome counts if its attempt left after the breaker came into its present state, once for each attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import msgspec
from msgspec.structs import replace

from antiphon.core.codec import Malformed, as_type
from antiphon.core.envelope import NEVER, OPERATORS, Envelope, Instant, Json, seconds_between
from antiphon.core.event_data import data_of
from antiphon.core.guard import Deadline, Deny, LedgerEntry, Objection
from antiphon.core.protection_events import EV_BREAKER_CHANGED, EV_BREAKER_COUNTED, BreakerChanged, BreakerCounted
from antiphon.core.state import RelatedFact, State
from antiphon.core.step import hub_draft
from antiphon.guards.breaker_machine import (
    CLOSED,
    NEUTRAL,
    PASSED_BY_SUCCESS,
    SHARE_REASON,
    SHARE_WINDOW_SECONDS,
    Breaker,
    BreakerEvent,
    BreakerLimits,
    Called,
    Ended,
    LeaseOver,
    Opened,
    apply,
    concerns,
    count,
    follow,
    refuses,
    with_calls,
)
from antiphon.guards.breaker_memory import CallNote, ModelUse, call_mark
from antiphon.guards.recent_counts import Reported, Reporters, new_rows, with_report

BREAKERS_LEDGER = "breakers"
EV_BREAKER_ASKED = "antiphon.breaker.asked"
"""What a channel asks about a call. It is offered and never recorded: what is recorded is the change of the breaker."""
BREAKER_REASON = "breaker_open"
STOPPED_REASON = "breaker_stopped"
"""The ledger's word for a breaker that a person alone opens again."""
MAX_COUNTED = 128
NO_LIMITS: Json = {}


class SharedBreaker(msgspec.Struct, frozen=True, omit_defaults=True):
    """One breaker, and who has reported to it."""

    breaker: Breaker = CLOSED
    counted: tuple[str, ...] = ()
    """The attempts that were counted last."""
    reporters: Reporters = msgspec.field(default_factory=dict)
    limits: BreakerLimits = BreakerLimits()
    """Those of the guard that has asked or reported last."""


class SharedBreakers(msgspec.Struct, frozen=True, omit_defaults=True):
    """The breakers of all models."""

    scopes: dict[str, SharedBreaker] = msgspec.field(default_factory=dict)


NEW_BREAKER = SharedBreaker()


def asked_entry(
    draft: Envelope, state: State, *, scope: str, limits: Json, otherwise: Callable[[Deny], Objection]
) -> LedgerEntry:
    """What the ledger is asked about a call of a model that is to leave."""
    data = draft.event_data
    asked: Json = {"scope": scope, "call": shared_key(state, data)}
    if until := data.get("until"):
        asked["until"] = until
    if data.get("approved"):
        asked["approved"] = True
    if limits:
        asked["limits"] = limits
    # The probe is known by its call. One that is made again after a crash is refused if another call tries meanwhile.
    return LedgerEntry(BREAKERS_LEDGER, EV_BREAKER_ASKED, asked, otherwise, repeatable=True)


def counted_entry(
    data: Json, state: State, *, note: CallNote, use: ModelUse, failure: str, limits: Json
) -> LedgerEntry:
    """The report of an attempt's outcome to the ledger."""
    key, began = shared_key(state, data), note.began
    counted = BreakerCounted(note.model, key, state.channel_id, note.attempt, failure, began=began)
    if failure:
        rows = list(use.ended.rows)
        counted = replace(counted, passed=use.passed, total=use.ended.total, rows=rows, limits=limits)
    return LedgerEntry(BREAKERS_LEDGER, EV_BREAKER_COUNTED, data_of(counted))


def shared_key(state: State, data: Json) -> str:
    """A call as a ledger names it: the channel, the turn and the position."""
    return f"{state.channel_id}/{call_mark(data)}"


class BreakerLedger(msgspec.Struct, frozen=True):
    """Answers what channels ask about models, and counts how calls of them end."""

    name: ClassVar[str] = "breakers"
    memory: ClassVar[type] = SharedBreakers
    hears: ClassVar[frozenset[str]] = frozenset({EV_BREAKER_CHANGED, EV_BREAKER_COUNTED})

    def evolve(self, memory: SharedBreakers, envelope: Envelope) -> SharedBreakers:
        scope = str(envelope.event_data.get("scope"))
        known = memory.scopes.get(scope, NEW_BREAKER)
        try:
            if envelope.event_type == EV_BREAKER_CHANGED:
                changed = as_type(envelope.event_data, BreakerChanged)
                known = replace(known, breaker=apply(known.breaker, changed, envelope.created_at))
            elif envelope.event_type == EV_BREAKER_COUNTED:
                known = _with_counted(known, as_type(envelope.event_data, BreakerCounted), envelope.created_at)
        except Malformed:
            return memory
        return SharedBreakers({**memory.scopes, scope: known})

    def passes_over(self, memory: SharedBreakers, entry: LedgerEntry) -> bool:
        data = entry.data
        breaker = memory.scopes.get(str(data["scope"]), NEW_BREAKER).breaker
        if entry.event_type == EV_BREAKER_ASKED:
            return breaker.status == "closed"
        return _passes_success(breaker, data)

    def answer(self, memory: SharedBreakers, state: State, offer: Envelope) -> Deny | Sequence[RelatedFact]:
        data = offer.event_data
        known = memory.scopes.get(str(data["scope"]), NEW_BREAKER)
        if offer.event_type == EV_BREAKER_ASKED:
            return _answer_call(known.breaker, data, offer)
        return _answer_outcome(known, data, offer)

    def notice(self, memory: SharedBreakers, state: State, envelope: Envelope) -> Sequence[RelatedFact]:
        scope = str(envelope.event_data.get("scope"))
        known = memory.scopes.get(scope)
        if known is None:
            return ()
        event: BreakerEvent | None = None
        if envelope.event_type == EV_BREAKER_COUNTED:
            event = _ended(known.breaker, as_type(envelope.event_data, BreakerCounted))
        elif envelope.event_type == EV_BREAKER_CHANGED:
            event = Opened()
        if event is None:
            return ()
        change = follow(known.breaker, event, known.limits, at=envelope.created_at, seed=envelope.envelope_id)
        return () if change is None else (breaker_fact(scope, change),)

    def due(self, memory: SharedBreakers, state: State) -> Deadline | None:
        leases = [
            (each.breaker.lease, scope) for scope, each in memory.scopes.items() if each.breaker.status == "half_open"
        ]
        if not leases:
            return None
        lease, scope = min(leases)
        return Deadline(
            lease, lambda: lease_draft(scope, memory.scopes[scope].breaker, limits=memory.scopes[scope].limits)
        )


def _answer_call(breaker: Breaker, data: Json, offer: Envelope) -> Deny | Sequence[RelatedFact]:
    if breaker.status == "closed":
        return ()
    until, limits = data.get("until"), as_type(data.get("limits", NO_LIMITS), BreakerLimits)
    called = Called(str(data["call"]), until if isinstance(until, str) else NEVER, data.get("approved") is True)
    at, scope = offer.created_at, str(data["scope"])
    if refuses(breaker, called, at):
        reason = STOPPED_REASON if breaker.status == "stopped" else BREAKER_REASON
        return Deny(reason, refusal_text(scope, breaker, at))
    change = follow(breaker, called, limits, at=at)
    return () if change is None else (breaker_fact(scope, change),)


def _answer_outcome(known: SharedBreaker, data: Json, offer: Envelope) -> Sequence[RelatedFact]:
    breaker, failure = known.breaker, data.get("failure", "")
    if _passes_success(breaker, data):
        return ()
    counted = as_type(data, BreakerCounted)
    ended = _ended(breaker, counted)
    if not concerns(breaker, ended) or attempt_key(counted) in known.counted:
        return ()
    if failure == NEUTRAL and breaker.status != "half_open":
        return ()
    return (RelatedFact(EV_BREAKER_COUNTED, data, (OPERATORS,)),)


def _passes_success(breaker: Breaker, data: Json) -> bool:
    """Whether this is the report of a success that a breaker has no use for."""
    return not data.get("failure") and breaker.status == "closed" and not _has_streak(breaker)


def _has_streak(breaker: Breaker) -> bool:
    return bool(breaker.counts) and any(breaker.counts.get(name) for name in PASSED_BY_SUCCESS)


def _ended(breaker: Breaker, counted: BreakerCounted) -> Ended:
    """The outcome with the epoch in which its attempt left: the present one, or an earlier one."""
    return Ended(counted.call, breaker.epoch if counted.began >= breaker.since else -1, counted.failure)


def attempt_key(counted: BreakerCounted) -> str:
    """What tells the attempts at a call apart."""
    return f"{counted.call}/{counted.attempt}"


def _with_counted(known: SharedBreaker, counted: BreakerCounted, at: Instant) -> SharedBreaker:
    breaker = known.breaker
    keys = (*known.counted[1 - MAX_COUNTED :], attempt_key(counted))
    limits = as_type(counted.limits, BreakerLimits) if counted.failure else known.limits
    known = replace(known, counted=keys, limits=limits)
    if breaker.status != "closed" or not counted.failure:
        return replace(known, breaker=count(breaker, _ended(breaker, counted), at))
    counts = {
        name: number for name, number in breaker.counts.items() if counted.passed.get(name, NEVER) <= breaker.failed_at
    }
    breaker = count(replace(breaker, counts=counts), _ended(breaker, counted), at)
    # The failure itself is among the rows; what else the channel has called meanwhile is added to them.
    rows = new_rows(counted.rows, counted.total, known.reporters.get(counted.channel))
    window = breaker.window
    for second, calls in rows:
        window = with_calls(window, second, calls, failures=0)
    window = with_calls(window, at[: len(window[-1][0])], -1, failures=0)
    reporters = with_report(
        known.reporters,
        counted.channel,
        Reported(counted.total, window[-1][0]),
        window=SHARE_WINDOW_SECONDS,
        at=at,
    )
    return replace(known, breaker=replace(breaker, window=window), reporters=reporters)


def breaker_fact(scope: str, change: BreakerChanged, fallback: str = "") -> RelatedFact:
    """The record of a change."""
    named = replace(change, scope=scope, fallback=fallback if change.target == "open" else "")
    return RelatedFact(EV_BREAKER_CHANGED, data_of(named), (OPERATORS,))


def lease_draft(scope: str, breaker: Breaker, *, limits: BreakerLimits, fallback: str = "") -> Envelope:
    """What is recorded when the time of a probe is over. The cooldown counts from then."""
    change = follow(breaker, LeaseOver(), limits, at=breaker.lease, seed=f"{scope} {breaker.probe}")
    assert change is not None, "a breaker with a lease is half open"
    fact = breaker_fact(scope, change, fallback)
    return hub_draft(fact.event_type, fact.data, audience=[OPERATORS])


REASON_WORDS = {
    "transport": "calls failed",
    SHARE_REASON: "too many calls failed",
    "schema": "results did not have the wanted form",
    "streak": "the same call was made again and again",
    "invariant": "results broke a rule",
    "cost": "too much was spent",
    "lease_expired": "the last try did not return",
}


def refusal_text(scope: str, breaker: Breaker, at: Instant) -> str:
    """Why a call is refused, and when it may be tried again."""
    why = REASON_WORDS.get(breaker.reason, breaker.reason)
    refused = f"{scope} is not called now" + (f", because {why}" if why else "")
    if breaker.status == "stopped":
        return f"{refused} again and again; a person must allow the next call"
    if breaker.status == "half_open":
        return f"{refused}; one call tries it, until {breaker.lease} at the latest"
    left = max(0.0, seconds_between(at, breaker.retry_at))
    return f"{refused}; it may be tried again in {left:.0f} seconds, at {breaker.retry_at}"
