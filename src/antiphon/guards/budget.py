"""The budget of a run: how many calls and tokens, and how much money, it may take. Reserve, call, settle.

Rule 1: a model call reserves what it may take at most, in the append that records it, and is denied if that does not
        fit: taken and needed together may be the cap, and no more. So calls that leave at once stay within it.
Rule 2: its outcome settles what it has really used, also if that is more. A reservation whose time is over without an
        outcome is booked in full, which is recorded.
Rule 3: the channels of tasks count in the log of the channel in which their run began; all channels of a hub count in
        the ledger `spend`, if the scope is `tenant`.
Rule 4: amounts that are named count in the whole run. Those of a tier begin anew when a person or outside code speaks,
        so that a long conversation does not use them up; calls in progress stay counted.
Rule 5: where a person can be asked, in the tiers `batch` and `regulated`, what does not fit is asked about. What is
        allowed beyond the cap is counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar, Literal

import msgspec
from msgspec.structs import replace

from antiphon.core.envelope import OPERATORS, Envelope
from antiphon.core.errors import RulesInvalid
from antiphon.core.event_data import data_of
from antiphon.core.events import EV_CHANNEL_CREATED, SPEECH_TYPES
from antiphon.core.execution_events import EV_APPROVAL_REQUESTED, EV_CALL_FAILED, EV_CALL_STARTED
from antiphon.core.guard import ALLOW, Ask, Deadline, Deny, LedgerEntry, Objection, Permission
from antiphon.core.protection_events import EV_BUDGET_CHANGED, EV_RUN_CHARGED, BudgetChanged
from antiphon.core.state import RelatedFact, State
from antiphon.guards.amounts import Dollars, check_choice, check_count, parse_dollars, refuse_unlimited
from antiphon.guards.counted_calls import (
    BUDGET_REASON,
    OUTCOME_TYPES,
    START_TYPES,
    CountedCall,
    charge_in_scope,
    counted_call,
    counted_key,
    is_task,
    settlements_in_scope,
)
from antiphon.guards.run_limits import UNLIMITED, Limit
from antiphon.guards.spending import Spending, answer_charge, booking_deadline, fold_spending
from antiphon.guards.spending_caps import (
    MESSAGE_WORDS,
    MODEL_UNITS,
    SCOPE_WORDS,
    Cap,
    Excess,
    Unit,
    find_excess,
)

SpendScope = Literal["run", "agent", "tenant"]
"""What counts together: a run with its tasks, each agent of it for itself, or all channels of the hub that say so."""
SPEND_SCOPES = ("run", "agent", "tenant")
UNPRICED_WORDS = "is unknown; give the model a price"
AMOUNTS: tuple[tuple[Unit, str], ...] = (
    ("model_calls", "model_calls"),
    ("tool_calls", "tool_calls"),
    ("tokens", "tokens"),
    ("micro", "dollars"),
)
"""Each unit, and the field that limits it."""
DEFAULT_TIER = "interactive"
TIER_AMOUNTS: dict[str, dict[Unit, int]] = {
    "interactive": {"model_calls": 25, "tool_calls": 50, "tokens": 100_000, "micro": 1_000_000},
    "batch": {"model_calls": 200, "tool_calls": 500, "tokens": 2_000_000, "micro": 20_000_000},
    "regulated": {"model_calls": 100, "tool_calls": 200, "tokens": 500_000, "micro": 10_000_000},
}
ASKING_TIERS = frozenset({"batch", "regulated"})
TIER_APPROVERS: dict[str, tuple[str, ...]] = {"regulated": ("finance",)}


class Budget(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, dict=True):
    """Denies the call that would take more than is allowed, or has a person asked about it.

    Without any amount it has those of the tier, and without a tier those of `interactive`.
    """

    name: ClassVar[str] = "budget"
    memory: ClassVar[type] = Spending
    hears: ClassVar[frozenset[str]] = (
        START_TYPES | OUTCOME_TYPES | SPEECH_TYPES | {EV_BUDGET_CHANGED, EV_CHANNEL_CREATED}
    )
    notes: ClassVar[frozenset[str]] = frozenset({EV_APPROVAL_REQUESTED, EV_CALL_FAILED})
    model_calls: Limit | None = None
    tokens: Limit | None = None
    """Input and output together."""
    dollars: Dollars | None = None
    """As a text: `"2.50"`."""
    tool_calls: Limit | None = None
    scope: SpendScope = "run"
    per: Literal["run", "message"] | None = None
    """`run`: for as long as the channel lives. `message`: anew with each message of a person or outside code. None:
    `run` for amounts that are named here, `message` for those of a tier."""
    then: Literal["deny", "ask"] | None = None
    """What happens to a call that does not fit. None: `ask` in the tiers `batch` and `regulated`, otherwise `deny`."""
    approvers: tuple[str, ...] = ()
    """The people and roles that are asked; in the tier `regulated` without this the role `finance`."""
    tier: str | None = None
    """That of the channel, which sets it."""

    def __post_init__(self) -> None:
        for name in ("model_calls", "tokens", "tool_calls"):
            check_count(getattr(self, name), f"{name} of budget")
        if self.dollars is not None:
            parse_dollars(self.dollars, "dollars of budget")
        check_choice(self.scope, "scope of budget", SPEND_SCOPES)
        check_choice(self.per, "per of budget", ("run", "message", None))
        check_choice(self.then, "then of budget", ("deny", "ask", None))
        if self.scope != "run" and not self._named:
            raise RulesInvalid(f"the budget with scope {self.scope!r} has no amount; give it one, such as dollars='20'")
        if self.scope == "tenant" and self.per == "message":
            raise RulesInvalid("the budget with scope 'tenant' counts all channels; leave per='message' out")

    def for_tier(self, tier: str) -> Budget:
        """The same with what is left open as the tier has it."""
        if tier == "regulated":
            refuse_unlimited(self.name, **{name: getattr(self, name) for _, name in AMOUNTS})
        return replace(self, tier=tier)

    @property
    def _named(self) -> dict[Unit, Limit]:
        """The amounts that are named."""
        given = {unit: getattr(self, name) for unit, name in AMOUNTS}
        if self.dollars is not None:
            given["micro"] = parse_dollars(self.dollars, "dollars of budget")
        return {unit: most for unit, most in given.items() if most is not None}

    @cached_property
    def caps(self) -> tuple[Cap, ...]:
        """What holds: the amounts that are named, and for a run those of the tier."""
        named = self._named
        has_others = self.scope == "run" and (self.tier is not None or not named)
        others = TIER_AMOUNTS[self.tier or DEFAULT_TIER] if has_others else {}
        caps: list[Cap] = []
        for unit, _ in AMOUNTS:
            most: Limit | None = named.get(unit, others.get(unit))
            if most is not None and most != UNLIMITED:
                caps.append(Cap(unit, int(most), (self.per or ("run" if unit in named else "message")) == "message"))
        return tuple(caps)

    @cached_property
    def _counts(self) -> frozenset[str]:
        """The kinds of calls that are counted against a cap."""
        return frozenset("model" if cap.unit in MODEL_UNITS else "tool" for cap in self.caps)

    @cached_property
    def _has_cost_cap(self) -> bool:
        return any(cap.unit == "micro" for cap in self.caps)

    def evolve(self, memory: Spending, envelope: Envelope) -> Spending:
        return fold_spending(memory, envelope, by_agent=self.scope == "agent", scope=self.scope)

    def permit(self, memory: Spending, state: State, draft: Envelope) -> Permission:
        if draft.event_type != EV_CALL_STARTED:
            return ALLOW
        call = counted_call(draft)
        if call is None:
            return ALLOW
        if draft.event_data.get("unpriced") and self.tier == "regulated" and self._has_cost_cap:
            model = draft.event_data.get("model")
            return Deny(BUDGET_REASON, f"budget: the price of {model} {UNPRICED_WORDS}")
        excess = self._excess(memory, call)
        if excess is None:
            return ALLOW
        detail = f"budget: {excess.describe(self.scope)}"
        return self._question(detail, self.name) or Deny(BUDGET_REASON, detail)

    def _excess(self, memory: Spending, call: CountedCall) -> Excess | None:
        if self.scope == "tenant":  # which the ledger counts
            return None
        return find_excess(self.caps, memory, call, who=call.agent if self.scope == "agent" else "")

    def _question(self, detail: str, guard: str) -> Ask | None:
        """What a person is asked; None if none is."""
        if (self.then or ("ask" if self.tier in ASKING_TIERS else "deny")) == "deny":
            return None
        return Ask(detail, self.approvers or TIER_APPROVERS.get(self.tier or "", ()), guard)

    def notice(self, memory: Spending, state: State, envelope: Envelope) -> Sequence[RelatedFact]:
        data, call = envelope.event_data, memory.last
        if data.get("guard") != self.name:
            return ()
        if envelope.event_type == EV_APPROVAL_REQUESTED:
            return self._noticed("ask", memory, counted_call(envelope), why=str(data.get("why")))
        if envelope.event_type != EV_CALL_FAILED:
            return ()
        if call is None or call.key != counted_key(data):
            return ()
        return self._noticed("deny", memory, call, why=str(data.get("error")))

    def _noticed(
        self, op: Literal["deny", "ask"], memory: Spending, call: CountedCall | None, *, why: str
    ) -> Sequence[RelatedFact]:
        """The record of a call that was denied or asked about; nothing if another budget has done that."""
        if call is None:
            return ()
        excess, ending = self._excess(memory, call), SCOPE_WORDS[self.scope]
        words = (ending, UNPRICED_WORDS) if self.scope == "tenant" else (ending, UNPRICED_WORDS, MESSAGE_WORDS)
        if excess is None and not (why.startswith("budget:") and why.endswith(words)):
            return ()
        turn, _, index = call.key.rpartition("#")
        scope = f"agent:{call.agent}" if self.scope == "agent" else self.scope
        unit, need, spent, reserved, cap = (
            excess[:5]
            if excess is not None
            else (
                "micro" if why.endswith(UNPRICED_WORDS) else "",
                call.micro,
                0,
                0,
                0,
            )
        )
        changed = BudgetChanged(op, scope, unit, need, spent, reserved, cap, turn, int(index))
        return (RelatedFact(EV_BUDGET_CHANGED, data_of(changed), (OPERATORS,)),)

    def due(self, memory: Spending, state: State) -> Deadline | None:
        return booking_deadline(memory, self.scope)

    # In ledgers

    def ask(self, memory: Spending, state: State, draft: Envelope) -> Sequence[LedgerEntry]:
        if draft.event_type != EV_CALL_STARTED or (self.scope != "tenant" and not is_task(state)):
            return ()
        limits: dict[str, object] = {cap.unit: cap.most for cap in self.caps}
        entry = charge_in_scope(self.scope, state, draft, name=self.name, limits=limits)
        if entry is None or entry.data.get("kind") not in self._counts:
            return ()
        return (replace(entry, otherwise=self._objection),)

    def _objection(self, denial: Deny) -> Objection:
        """What becomes of a call that a ledger denies."""
        return self._question(denial.detail, denial.guard or self.name) or denial

    def settle(self, memory: Spending, state: State, outcome: Envelope) -> Sequence[LedgerEntry]:
        return settlements_in_scope(self.scope, state, outcome)

    def answer(self, memory: Spending, state: State, offer: Envelope) -> Deny | Sequence[RelatedFact]:
        return () if self.scope == "tenant" else answer_charge(memory, offer, self._charged_excess(memory, offer))

    def _charged_excess(self, memory: Spending, offer: Envelope) -> str | None:
        """Why a call in a channel of a task does not fit; None if it fits, or a person has allowed it."""
        call = counted_call(offer) if offer.event_type == EV_RUN_CHARGED else None
        if call is None or offer.event_data.get("approved"):
            return None
        excess = self._excess(memory, call)
        return None if excess is None else f"budget: {excess.describe(self.scope)}"
