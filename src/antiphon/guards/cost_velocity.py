"""The monitor of cost velocity: how much may be spent within a minute and within an hour.

Rule 1: what was settled lately and what is reserved count together. Equal to the ceiling is within it.
Rule 2: a call that would exceed it is denied, or asked about, as by a budget; and `antiphon.flow.cost` is recorded,
        from which a breaker learns.
Rule 3: it trips by time, so that the next call may leave as soon as enough has left the window.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar, Literal

import msgspec
from msgspec.structs import replace

from antiphon.core.envelope import OPERATORS, Envelope, Instant
from antiphon.core.errors import RulesInvalid
from antiphon.core.event_data import data_of
from antiphon.core.execution_events import EV_APPROVAL_REQUESTED, EV_CALL_FAILED, EV_CALL_STARTED
from antiphon.core.guard import ALLOW, Ask, Deny, LedgerEntry, Objection, Permission
from antiphon.core.protection_events import EV_COST_EXCEEDED, EV_RUN_CHARGED, CostExceeded
from antiphon.core.state import RelatedFact, State
from antiphon.guards.amounts import Dollars, check_choice, check_count, parse_dollars, refuse_unlimited
from antiphon.guards.budget import ASKING_TIERS, SPEND_SCOPES, TIER_APPROVERS, SpendScope
from antiphon.guards.cost_windows import (
    HOUR,
    MINUTE,
    Ceiling,
    CostWindows,
    RateUnit,
    VelocityExcess,
    find_velocity_excess,
    fold_windows,
)
from antiphon.guards.counted_calls import (
    BUDGET_REASON,
    OUTCOME_TYPES,
    START_TYPES,
    CountedCall,
    charge_in_scope,
    counted_call,
    counted_key,
    counted_outcome,
    is_task,
    ledger_fact,
    settlements_in_scope,
)
from antiphon.guards.run_limits import UNLIMITED, Limit

RATES: tuple[tuple[str, RateUnit, int], ...] = (
    ("dollars_per_minute", "micro", MINUTE),
    ("dollars_per_hour", "micro", HOUR),
    ("tokens_per_minute", "tokens", MINUTE),
    ("tokens_per_hour", "tokens", HOUR),
)
"""The field of each ceiling, its unit, and its window in seconds."""
TIER_DOLLARS_PER_HOUR = {"interactive": "10", "batch": "50", "regulated": "25"}
DEFAULT_TIER = "interactive"
VELOCITY_PREFIX = "cost velocity: "


class CostVelocityMonitor(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, dict=True):
    """Denies the call with which more would be spent within a minute or an hour than is allowed, or asks about it.

    Without any ceiling it has that of the tier, and without a tier that of `interactive`.
    """

    name: ClassVar[str] = "cost_velocity"
    memory: ClassVar[type] = CostWindows
    hears: ClassVar[frozenset[str]] = START_TYPES | OUTCOME_TYPES
    notes: ClassVar[frozenset[str]] = frozenset({EV_APPROVAL_REQUESTED, EV_CALL_FAILED})
    dollars_per_hour: Dollars | None = None
    """As a text: `"10"`."""
    dollars_per_minute: Dollars | None = None
    tokens_per_minute: Limit | None = None
    tokens_per_hour: Limit | None = None
    scope: SpendScope = "run"
    then: Literal["deny", "ask"] | None = None
    """What happens to a call beyond the ceiling. None: `ask` in the tiers `batch` and `regulated`, otherwise `deny`."""
    approvers: tuple[str, ...] = ()
    """The people and roles that are asked; in the tier `regulated` without this the role `finance`."""
    tier: str | None = None
    """That of the channel, which sets it."""

    def __post_init__(self) -> None:
        for name, unit, _ in RATES:
            if unit == "tokens":
                check_count(getattr(self, name), f"{name} of cost_velocity")
        named = self._named  # which reads the dollars
        check_choice(self.scope, "scope of cost_velocity", SPEND_SCOPES)
        check_choice(self.then, "then of cost_velocity", ("deny", "ask", None))
        if self.scope != "run" and not named:
            advice = "give it one, such as dollars_per_hour='50'"
            raise RulesInvalid(f"the cost_velocity with scope {self.scope!r} has no ceiling; {advice}")

    def for_tier(self, tier: str) -> CostVelocityMonitor:
        """The same with what is left open as the tier has it."""
        if tier == "regulated":
            refuse_unlimited(self.name, **{name: getattr(self, name) for name, _, _ in RATES})
        return replace(self, tier=tier)

    @property
    def _named(self) -> dict[str, Limit]:
        """The ceilings that are named."""
        given: dict[str, Limit] = {}
        for name, unit, _ in RATES:
            most: Dollars | None = getattr(self, name)
            if most is not None:
                is_money = unit == "micro"
                given[name] = parse_dollars(most, f"{name} of cost_velocity") if is_money else _limit_of(most)
        return given

    @cached_property
    def ceilings(self) -> tuple[Ceiling, ...]:
        """What holds: the ceilings that are named, and for a run that of the tier."""
        named = self._named
        if self.scope == "run" and "dollars_per_hour" not in named and (self.tier is not None or not named):
            usual = TIER_DOLLARS_PER_HOUR[self.tier or DEFAULT_TIER]
            named["dollars_per_hour"] = parse_dollars(usual, "dollars_per_hour")
        rows = [(unit, window, named[name]) for name, unit, window in RATES if name in named]
        return tuple(Ceiling(unit, window, int(most)) for unit, window, most in rows if most != UNLIMITED)

    def evolve(self, memory: CostWindows, envelope: Envelope) -> CostWindows:
        return fold_windows(memory, envelope, by_agent=self.scope == "agent")

    def permit(self, memory: CostWindows, state: State, draft: Envelope) -> Permission:
        if draft.event_type != EV_CALL_STARTED or self.scope == "tenant":  # whose ledger counts
            return ALLOW
        excess = self._excess(memory, counted_call(draft), draft.created_at)
        if excess is None:
            return ALLOW
        detail = f"{VELOCITY_PREFIX}{excess.describe()}"
        return self._question(detail, self.name) or Deny(BUDGET_REASON, detail)

    def _excess(self, memory: CostWindows, call: CountedCall | None, at: Instant) -> VelocityExcess | None:
        if call is None or call.kind != "model" or self.scope == "tenant":
            return None
        who = call.agent if self.scope == "agent" else ""
        return find_velocity_excess(self.ceilings, memory, call, who=who, at=at)

    def _question(self, detail: str, guard: str) -> Ask | None:
        """What a person is asked; None if none is."""
        if (self.then or ("ask" if self.tier in ASKING_TIERS else "deny")) == "deny":
            return None
        return Ask(detail, self.approvers or TIER_APPROVERS.get(self.tier or "", ()), guard)

    def notice(self, memory: CostWindows, state: State, envelope: Envelope) -> Sequence[RelatedFact]:
        data, call = envelope.event_data, memory.last
        if data.get("guard") != self.name:
            return ()
        if envelope.event_type == EV_APPROVAL_REQUESTED:
            call = counted_call(envelope)
        return () if call is None or call.key != counted_key(data) else self._exceeded_facts(memory, call, envelope)

    def _exceeded_facts(self, memory: CostWindows, call: CountedCall, envelope: Envelope) -> Sequence[RelatedFact]:
        """The record of what was exceeded; if a ledger has denied the call, the first ceiling it was asked about."""
        excess = self._excess(memory, call, envelope.created_at)
        why = envelope.event_data.get("why", envelope.event_data.get("error"))
        if excess is None and self.ceilings and str(why).startswith(VELOCITY_PREFIX):
            excess = VelocityExcess(self.ceilings[0], call.micro, 0, 0)
        if excess is None:
            return ()
        (unit, window, most), need, spent, reserved = excess
        turn, _, index = call.key.rpartition("#")
        scope = f"agent:{call.agent}" if self.scope == "agent" else self.scope
        action = "ask" if envelope.event_type == EV_APPROVAL_REQUESTED else "deny"
        exceeded = CostExceeded(scope, window, unit, spent, reserved, most, action, need, turn, int(index))
        return (RelatedFact(EV_COST_EXCEEDED, data_of(exceeded), (OPERATORS,)),)

    # In ledgers

    def ask(self, memory: CostWindows, state: State, draft: Envelope) -> Sequence[LedgerEntry]:
        if draft.event_type != EV_CALL_STARTED or not self.ceilings or (self.scope != "tenant" and not is_task(state)):
            return ()
        limits: dict[str, object] = {f"{unit}/{window}": most for unit, window, most in self.ceilings}
        entry = charge_in_scope(self.scope, state, draft, name=self.name, limits=limits)
        if entry is None or entry.data.get("kind") != "model":
            return ()
        return (replace(entry, otherwise=self._objection),)

    def _objection(self, denial: Deny) -> Objection:
        """What becomes of a call that a ledger denies."""
        return self._question(denial.detail, denial.guard or self.name) or denial

    def settle(self, memory: CostWindows, state: State, outcome: Envelope) -> Sequence[LedgerEntry]:
        return settlements_in_scope(self.scope, state, outcome)

    def answer(self, memory: CostWindows, state: State, offer: Envelope) -> Deny | Sequence[RelatedFact]:
        if self.scope == "tenant":
            return ()
        if offer.event_type == EV_RUN_CHARGED:
            call = counted_call(offer)
            if call is None or call.kind != "model" or call.key in memory.open:
                return ()
            excess = None if offer.event_data.get("approved") else self._excess(memory, call, offer.created_at)
            return (ledger_fact(offer),) if excess is None else Deny(BUDGET_REASON, VELOCITY_PREFIX + excess.describe())
        outcome = counted_outcome(offer) if offer.event_type in OUTCOME_TYPES else None
        return () if outcome is None or outcome.key not in memory.open else (ledger_fact(offer),)


def _limit_of(given: Dollars) -> Limit:
    return given if isinstance(given, int) else UNLIMITED
