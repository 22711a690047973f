"""The ledger `spend`: what the channels of a hub take together, for the budgets and monitors with the scope `tenant`.

Rule 1: it has no limits of its own. Each charge brings those of the guard that asks, and is held against all that was
        charged by any channel.
Rule 2: a call that two guards ask about is counted once, and held against the limits of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, cast

import msgspec

from antiphon.core.envelope import Envelope, Instant, Json
from antiphon.core.guard import Deadline, Deny
from antiphon.core.protection_events import EV_BUDGET_CHANGED, EV_RUN_CHARGED, EV_RUN_SETTLED
from antiphon.core.state import RelatedFact, State
from antiphon.guards.cost_velocity import VELOCITY_PREFIX
from antiphon.guards.cost_windows import Ceiling, CostWindows, RateUnit, find_velocity_excess, fold_windows
from antiphon.guards.counted_calls import BUDGET_REASON, CountedCall, counted_call
from antiphon.guards.spending import Spending, answer_charge, booking_deadline, fold_spending
from antiphon.guards.spending_caps import Cap, Unit, find_excess

TENANT_SCOPE = "tenant"


class HubSpending(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was taken in the hub, in all and lately."""

    spending: Spending = msgspec.field(default_factory=Spending)
    windows: CostWindows = msgspec.field(default_factory=CostWindows)


class SpendLedger(msgspec.Struct, frozen=True):
    """Grants what fits into the limits that a charge brings."""

    name: ClassVar[str] = "spend"
    memory: ClassVar[type] = HubSpending
    hears: ClassVar[frozenset[str]] = frozenset({EV_RUN_CHARGED, EV_RUN_SETTLED, EV_BUDGET_CHANGED})

    def evolve(self, memory: HubSpending, envelope: Envelope) -> HubSpending:
        return HubSpending(
            fold_spending(memory.spending, envelope, by_agent=False, scope=TENANT_SCOPE),
            fold_windows(memory.windows, envelope, by_agent=False),
        )

    def answer(self, memory: HubSpending, state: State, offer: Envelope) -> Deny | Sequence[RelatedFact]:
        if offer.event_type != EV_RUN_CHARGED:
            return answer_charge(memory.spending, offer, None)
        call, limits = counted_call(offer), offer.event_data.get("limits")
        if call is None:
            return ()
        excess = None
        if not offer.event_data.get("approved") and isinstance(limits, dict):
            excess = _excess_of(memory, call, limits, at=offer.created_at)
        if excess is not None:  # the name of the guard that asks: it has the denial recorded in its channel
            return Deny(BUDGET_REASON, excess, guard=str(offer.event_data.get("scope")))
        return answer_charge(memory.spending, offer, None)

    def due(self, memory: HubSpending, state: State) -> Deadline | None:
        return booking_deadline(memory.spending, TENANT_SCOPE)


def _excess_of(memory: HubSpending, call: CountedCall, limits: Json, *, at: Instant) -> str | None:
    """Why a call does not fit into these limits; None if it does."""
    given = [(name, most) for name, most in limits.items() if isinstance(most, int)]
    caps = [Cap(cast("Unit", name), most, False) for name, most in given if "/" not in name]
    excess = find_excess(caps, memory.spending, call, who="")
    if excess is not None:
        return f"budget: {excess.describe(TENANT_SCOPE)}"
    rates = [(name.split("/", 1), most) for name, most in given if "/" in name]
    ceilings = [Ceiling(cast("RateUnit", unit), int(window), most) for (unit, window), most in rates]
    found = find_velocity_excess(ceilings, memory.windows, call, who="", at=at)
    return None if found is None else VELOCITY_PREFIX + found.describe()
