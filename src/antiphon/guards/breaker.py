"""Circuit breakers: after failures of a kind, calls of a tool or a model are refused for a while, then tried once.

Rule 1: the breakers of tools and of spend belong to the channel. Those of models are shared through a ledger
        (`breaker_ledger`): the channel asks it before a call leaves, and reports to it how the call ended.
Rule 2: `breaker_machine` holds the states, and what changes them. Every change is recorded; memories follow the record.
Rule 3: an identical call is found by the loop detector. What it records counts here, in the same batch.
Rule 4: what happens instead of a refused call of a model is the guard's `fallback`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import ClassVar

import msgspec
from msgspec.structs import replace as with_fields

from antiphon.core.codec import Malformed, as_type
from antiphon.core.envelope import NEVER, Envelope, Instant, Json
from antiphon.core.events import EV_TURN_FAILED
from antiphon.core.execution_events import (
    EV_CALL_FAILED,
    EV_CALL_FINISHED,
    EV_CALL_RETRIED,
    EV_CALL_STARTED,
    EV_TURN_CLAIMED,
)
from antiphon.core.guard import ALLOW, Ask, Change, Deadline, Deny, LedgerEntry, Objection, Permission
from antiphon.core.protection_events import (
    EV_BREAKER_CHANGED,
    EV_COST_EXCEEDED,
    EV_LOOP_DETECTED,
    BreakerChanged,
    CostExceeded,
    LoopDetected,
)
from antiphon.core.state import RelatedFact, State
from antiphon.guards.breaker_knobs import ESCALATE, check_breaker_fields, check_regulated_breaker, said_limits
from antiphon.guards.breaker_ledger import (
    BREAKER_REASON,
    STOPPED_REASON,
    asked_entry,
    breaker_fact,
    counted_entry,
    lease_draft,
    refusal_text,
)
from antiphon.guards.breaker_ledger import BreakerLedger as BreakerLedger  # named beside the guard
from antiphon.guards.breaker_machine import (
    BreakerEvent,
    BreakerLimits,
    Called,
    Ended,
    Opened,
    Overspent,
    ProbeLost,
    Repeated,
    apply,
    count,
    follow,
    refuses,
)
from antiphon.guards.breaker_memory import (
    AGENT_COST_SCOPE,
    COST_SCOPE,
    MODEL_SCOPE,
    NOT_USED,
    NOTING,
    TOOL_SCOPE,
    BreakerMemory,
    CostTrip,
    are_closed,
    bounded,
    call_mark,
    model_failure,
    model_scope,
    note_ended,
    rolling_spend,
    spent_here,
    tool_failure,
    tripped_scopes,
    with_breaker,
    with_counted,
)
from antiphon.guards.named_guards import Tier
from antiphon.guards.run_limits import Limit

OUTCOMES = frozenset({EV_CALL_FINISHED, EV_CALL_FAILED})


class CircuitBreaker(msgspec.Struct, frozen=True, omit_defaults=True, dict=True):
    """Refuses calls of a tool or a model that fails again and again, for a while, and then lets one try."""

    name: ClassVar[str] = "breaker"
    memory: ClassVar[type] = BreakerMemory
    hears: ClassVar[frozenset[str]] = frozenset(
        {
            *OUTCOMES,
            EV_CALL_STARTED,
            EV_CALL_RETRIED,
            EV_LOOP_DETECTED,
            EV_COST_EXCEEDED,
            EV_BREAKER_CHANGED,
            EV_TURN_CLAIMED,
            EV_TURN_FAILED,
        }
    )
    schema: Limit | None = None
    """So many results in a row that do not have the wanted form; 2 if nothing is said."""
    identical: Limit | None = None
    """So many identical calls; 3 if nothing is said."""
    invariant: Limit | None = None
    """So many results that break a rule; 3 if nothing is said."""
    transport: Limit | None = None
    """So many calls in a row that fail; 5 if nothing is said."""
    error_share: float | None = None
    """The share of calls within a minute that fail; 0.5 if nothing is said."""
    least_calls: int | None = None
    """With fewer calls in that minute, the share is not looked at; 10 if nothing is said."""
    cooldown: float | None = None
    """The seconds that it stays open the first time, doubled with each further time; 30 if nothing is said."""
    max_cooldown: float | None = None
    max_trips: Limit | None = None
    """After so many within an hour a person decides; 5 if nothing is said."""
    lease: float | None = None
    """The longest that a call that tries may take, in seconds; 120 if nothing is said."""
    fallback: dict[str, str] | str | None = None
    """What happens instead of a refused call of a model: `{"model": name}`, `{"say": text}` or `escalate`."""

    def __post_init__(self) -> None:
        check_breaker_fields(self.fields)

    def for_tier(self, tier: Tier) -> CircuitBreaker:
        """The same, with what is left open filled in: where no person waits for the answer, one is asked."""
        if tier == "interactive":
            return self
        if tier == "regulated":
            check_regulated_breaker(self.fields)
        return self if self.fallback is not None else with_fields(self, fallback=ESCALATE)

    @property
    def fields(self) -> Json:
        """The fields by name."""
        return msgspec.structs.asdict(self)

    @cached_property
    def limits(self) -> BreakerLimits:
        """The limits, with the usual ones for what is left open."""
        return as_type(self._said_limits, BreakerLimits)

    @cached_property
    def _said_limits(self) -> Json:
        return said_limits(self.fields)

    def evolve(self, memory: BreakerMemory, envelope: Envelope) -> BreakerMemory:
        kind = envelope.event_type
        if kind in OUTCOMES:
            return _count_ended(note_ended(memory, envelope), envelope.created_at)
        if kind in NOTING:
            return NOTING[kind](memory, envelope)
        match _typed(envelope):
            case BreakerChanged(scope=scope) as change:
                return with_breaker(memory, scope, apply(memory.breaker(scope), change, envelope.created_at))
            case LoopDetected(detector="tool") as loop if loop.tool:
                scope = f"{TOOL_SCOPE}{loop.tool}@{loop.agent}"
                counted = count(memory.breaker(scope), Repeated(loop.count), envelope.created_at)
                return with_breaker(memory, scope, counted)
            case CostExceeded() as cost:
                return _with_cost_trip(memory, cost, envelope.created_at)
            case _:
                return memory

    def permit(self, memory: BreakerMemory, state: State, draft: Envelope) -> Permission:
        if draft.event_type != EV_CALL_STARTED or not memory.breakers:
            return ALLOW
        at = draft.created_at
        for scope in tripped_scopes(memory, draft):
            called, breaker = _called(draft), memory.breaker(scope)
            if self._refuses(memory, scope, called=called, at=at):
                return self._refusal(
                    refusal_text(scope, breaker, at), called, scope=scope, stopped=breaker.status == "stopped"
                )
        return ALLOW

    def notice(self, memory: BreakerMemory, state: State, envelope: Envelope) -> Sequence[RelatedFact]:
        if _is_usual(memory, envelope):
            return ()
        events = list(self._events(memory, envelope))
        limits, at, facts = self.limits, envelope.created_at, []
        for scope, event in events:
            seed = f"{envelope.envelope_id} {scope}"
            change = follow(memory.breaker(scope), event, limits, at=at, seed=seed)
            if change is not None:
                facts.append(breaker_fact(scope, change, self._fallback_text))
        return facts

    def due(self, memory: BreakerMemory, state: State) -> Deadline | None:
        if memory.lease == NEVER:
            return None
        scope = next(name for name, each in memory.breakers.items() if each.lease == memory.lease)
        return Deadline(
            memory.lease,
            lambda: lease_draft(scope, memory.breaker(scope), limits=self.limits, fallback=self._fallback_text),
        )

    def ask(self, memory: BreakerMemory, state: State, draft: Envelope) -> Sequence[LedgerEntry]:
        data = draft.event_data
        if draft.event_type == EV_CALL_STARTED:
            scope = model_scope(data)
            return (self._asked(draft, state, scope),) if scope else ()
        note = memory.calls.get(call_mark(data))
        if note is None or not note.model:
            return ()
        use = memory.models.get(note.model, NOT_USED)
        use = with_fields(use, ended=use.ended.plus_one(draft.created_at))
        via = data.get("via")
        asked = self._asked(draft, state, f"{MODEL_SCOPE}{via}" if via else note.model)
        if via:  # what has failed is reported already
            return (asked,)
        return counted_entry(
            data, state, note=note, use=use, failure=model_failure(data), limits=self._said_limits
        ), asked

    def settle(self, memory: BreakerMemory, state: State, outcome: Envelope) -> Sequence[LedgerEntry]:
        data = outcome.event_data
        note = memory.ended.get(call_mark(data))
        if note is None:
            return ()
        use, failure = memory.models.get(note.model, NOT_USED), model_failure({"failure": note.failure})
        return (counted_entry(data, state, note=note, use=use, failure=failure, limits=self._said_limits),)

    def _asked(self, draft: Envelope, state: State, scope: str) -> LedgerEntry:
        return asked_entry(
            draft,
            state,
            scope=scope,
            limits=self._said_limits,
            otherwise=lambda denial: self._instead(draft, denial, scope),
        )

    def _instead(self, draft: Envelope, denial: Deny, scope: str) -> Objection:
        """What happens to a call of a model that the ledger denies."""
        retried, stopped = draft.event_type == EV_CALL_RETRIED, denial.reason == STOPPED_REASON
        name = self.fallback.get("model") if isinstance(self.fallback, dict) else None
        if name and not draft.event_data.get("via"):
            return Change(replace(draft, event_data={**draft.event_data, "via": name}))
        refusal = self._refusal(denial.detail, _called(draft), scope=scope, stopped=stopped)
        # Another call of the turn asks: this one has left, and cannot wait.
        return Deny(BREAKER_REASON, denial.detail) if retried and isinstance(refusal, Ask) else refusal

    def _refusal(self, why: str, called: Called, *, scope: str, stopped: bool) -> Deny | Ask:
        is_tool, shared = scope.startswith(TOOL_SCOPE), scope.startswith(MODEL_SCOPE)
        text = self.fallback.get("say", "") if isinstance(self.fallback, dict) and not is_tool else ""
        if text:
            return Deny(BREAKER_REASON, why, final=True, answer=text)
        escalated = self.fallback == ESCALATE or (stopped and shared)
        if escalated and not called.approved:
            return Ask(why)
        return Deny(BREAKER_REASON, why, final=stopped)

    def _refuses(self, memory: BreakerMemory, scope: str, *, called: Called, at: Instant) -> bool:
        breaker = memory.breaker(scope)
        return refuses(breaker, called, at) or not (called.approved or self._is_spend_low(memory, scope, at))

    def _is_spend_low(self, memory: BreakerMemory, scope: str, at: Instant) -> bool:
        """Whether the spend that opened a breaker has fallen far enough for a call to try."""
        trip = memory.trips.get(scope)
        if trip is None or memory.breaker(scope).status != "open":
            return True
        return rolling_spend(memory, trip, at) < self.limits.cost_share * trip.ceiling

    def _events(self, memory: BreakerMemory, envelope: Envelope) -> Iterator[tuple[str, BreakerEvent]]:
        """What an envelope, which the memory holds already, is for each of the breakers."""
        kind, data = envelope.event_type, envelope.event_data
        if kind in OUTCOMES:
            yield from _ended_calls(memory, data)
        elif kind == EV_CALL_STARTED:
            yield from self._leaving_calls(memory, envelope)
        elif kind in (EV_TURN_CLAIMED, EV_TURN_FAILED):
            yield from _lost_probes(memory, str(data.get("turn")))
        elif kind != EV_CALL_RETRIED:
            match _typed(envelope):
                case BreakerChanged(scope=scope, target="open"):
                    yield scope, Opened()
                case LoopDetected(detector="tool") as loop if loop.tool:
                    yield f"{TOOL_SCOPE}{loop.tool}@{loop.agent}", Repeated(loop.count)
                case CostExceeded() as cost:
                    yield cost_scope(cost), Overspent(cost.spent + cost.reserved, cost.ceiling)

    def _leaving_calls(self, memory: BreakerMemory, envelope: Envelope) -> Iterator[tuple[str, BreakerEvent]]:
        called = _called(envelope)
        for scope in tripped_scopes(memory, envelope):
            if called.approved or self._is_spend_low(memory, scope, envelope.created_at):
                yield scope, called

    @property
    def _fallback_text(self) -> str:
        if not isinstance(self.fallback, dict):
            return self.fallback or ""
        return f"model {self.fallback['model']}" if "model" in self.fallback else "say"


def cost_scope(cost: CostExceeded) -> str:
    """The breaker of a spend."""
    return f"{COST_SCOPE}{cost.scope}"


def _typed(envelope: Envelope) -> object:
    """The event of the protections that an envelope holds; None if it has another shape."""
    shape = TYPED.get(envelope.event_type)
    try:
        return None if shape is None else as_type(envelope.event_data, shape)
    except Malformed:
        return None


TYPED: dict[str, type[msgspec.Struct]] = {
    EV_BREAKER_CHANGED: BreakerChanged,
    EV_LOOP_DETECTED: LoopDetected,
    EV_COST_EXCEEDED: CostExceeded,
}


def _called(draft: Envelope) -> Called:
    data = draft.event_data
    until = data.get("until")
    return Called(call_mark(data), until if isinstance(until, str) else NEVER, bool(data.get("approved")))


def _is_usual(memory: BreakerMemory, envelope: Envelope) -> bool:
    """Whether an envelope is news for no breaker: a call leaves, or ends well, and all that it meets are closed."""
    if envelope.event_type == EV_CALL_STARTED:
        started = memory.calls.get(call_mark(envelope.event_data))
        return started is not None and are_closed(memory, started)
    if envelope.event_type != EV_CALL_FINISHED or memory.last is None:
        return False
    note = memory.last[1]
    return not note.failure and are_closed(memory, note)


def _count_ended(memory: BreakerMemory, at: Instant) -> BreakerMemory:
    """The memory with the call that has ended last counted in the breakers of the channel."""
    if memory.last is None:
        return memory
    key, note = memory.last
    breakers = memory.breakers
    for scope, epoch in note.scopes:
        breaker, failure = memory.breaker(scope), tool_failure(scope, note.failure)
        if failure or breaker.counts or (scope.startswith(TOOL_SCOPE) and "@" not in scope):
            breakers = bounded({**breakers, scope: count(breaker, Ended(key, epoch, failure), at)})
    return memory if breakers is memory.breakers else with_counted(memory, breakers)


def _ended_calls(memory: BreakerMemory, data: Json) -> Iterator[tuple[str, BreakerEvent]]:
    if memory.last is None or memory.last[0] != call_mark(data):
        return
    key, note = memory.last
    for scope, epoch in note.scopes:
        failure = tool_failure(scope, note.failure)
        if failure or memory.breaker(scope).status == "half_open":
            yield scope, Ended(key, epoch, failure)


def _lost_probes(memory: BreakerMemory, turn: str) -> Iterator[tuple[str, BreakerEvent]]:
    """The breakers whose probe is a call of a turn that is attempted again, or has failed."""
    if memory.lease == NEVER:
        return
    for scope, breaker in memory.breakers.items():
        if breaker.status == "half_open" and breaker.probe.startswith(f"{turn}#"):
            yield scope, ProbeLost()


def _with_cost_trip(memory: BreakerMemory, cost: CostExceeded, at: Instant) -> BreakerMemory:
    scope = cost_scope(cost)
    if memory.breaker(scope).status != "closed":
        return memory
    total = cost.spent + cost.reserved
    unseen = max(0, total - spent_here(memory, cost.window_s, unit=cost.unit, at=at))
    most = total if scope.startswith(AGENT_COST_SCOPE) else None
    trip = CostTrip(at, cost.window_s, cost.unit, cost.ceiling, unseen, most)
    return with_fields(memory, trips={**memory.trips, scope: trip})
