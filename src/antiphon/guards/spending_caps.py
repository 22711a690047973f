"""The caps of a budget, and which of them a call does not fit into."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from antiphon.guards.amounts import format_dollars
from antiphon.guards.counted_calls import CountedCall
from antiphon.guards.spending import NO_TOTALS, Spending, reserved_totals

Unit = Literal["micro", "tokens", "model_calls", "tool_calls"]
MODEL_UNITS = frozenset({"micro", "tokens", "model_calls"})
CALL_UNITS = frozenset({"model_calls", "tool_calls"})
SCOPE_WORDS = {"run": "in this run", "agent": "by this agent", "tenant": "in this hub"}
MESSAGE_WORDS = "since the last message"
"""Where it was taken, at the end of each description."""


class Cap(NamedTuple):
    """How much of a unit may be taken."""

    unit: Unit
    most: int
    per_message: bool
    """Whether it counts from the last message of a person or outside code."""


class Excess(NamedTuple):
    """Why a call does not fit into a budget."""

    unit: Unit
    need: int
    spent: int
    reserved: int
    cap: int
    per_message: bool

    def describe(self, scope: str) -> str:
        """For the person or the model that reads it."""
        where = MESSAGE_WORDS if self.per_message else SCOPE_WORDS[scope]
        taken = self.spent + self.reserved
        match self.unit:
            case "micro":
                amounts = f"{format_dollars(taken)} of {format_dollars(self.cap)} are spent or reserved"
                return f"the call may cost {format_dollars(self.need)}, and {amounts} {where}"
            case "tokens":
                return f"the call may use {self.need:,} tokens, and {taken:,} of {self.cap:,} are used {where}"
            case "model_calls":
                return f"{taken} of {self.cap} model calls were made {where}"
            case "tool_calls":
                return f"{taken} of {self.cap} tool calls were made {where}"


def find_excess(caps: Sequence[Cap], spending: Spending, call: CountedCall, *, who: str) -> Excess | None:
    """The first cap that this call does not fit into; None if it fits into all of them."""
    before = spending.open.get(call.key)
    if before is not None and before.booked:
        before = None
    is_model = call.kind == "model"
    for cap in caps:
        unit = cap.unit
        if (unit in MODEL_UNITS) != is_model:
            continue
        totals = (spending.message if cap.per_message else spending.run).get(who, NO_TOTALS)
        taken: int = getattr(totals, unit)
        need: int = 1 if unit in CALL_UNITS else getattr(call, unit)
        again: int = 0 if before is None else 1 if unit in CALL_UNITS else getattr(before, unit)
        if before is not None and need <= again:  # started again after a crash: it has reserved that already
            continue
        if taken - again + need > cap.most:
            reserved: int = getattr(reserved_totals(spending, who), cap.unit) - again
            return Excess(cap.unit, need, taken - again - reserved, reserved, cap.most, cap.per_message)
    return None
