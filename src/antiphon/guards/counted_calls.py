"""Calls as budgets count them, read from the journal of a channel and from what other channels have charged to it.

Rule 1: a call is known by its key: its turn and its position, and its channel if that is another one.
Rule 2: models and tools are counted. Steps, which are code of the user, are not.
Rule 3: what has no such shape is nothing that is counted. Nothing here fails.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from antiphon.core.envelope import NEVER, OPERATORS, Envelope, Instant, Json
from antiphon.core.event_data import data_of
from antiphon.core.execution_events import (
    EV_APPROVAL_REQUESTED,
    EV_CALL_FAILED,
    EV_CALL_FINISHED,
    EV_CALL_STARTED,
)
from antiphon.core.guard import LedgerEntry
from antiphon.core.protection_events import EV_RUN_CHARGED, EV_RUN_SETTLED, RunCharged, RunSettled
from antiphon.core.state import TASK_KNOB, RelatedFact, State

CallKind = Literal["model", "tool"]
STEP_PREFIX = "step:"
NEVER_LEFT = frozenset({"", "schema"})
"""How a failed call of a tool is marked that never left."""
BUDGET_REASON = "budget"
RUN_LEDGER, SPEND_LEDGER = "run", "spend"
TENANT_SCOPE = "tenant"
START_TYPES = frozenset({EV_CALL_STARTED, EV_RUN_CHARGED})
OUTCOME_TYPES = frozenset({EV_CALL_FINISHED, EV_CALL_FAILED, EV_RUN_SETTLED})


class CountedCall(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A call that is about to leave, with what it reserves."""

    key: str
    kind: CallKind
    agent: str = ""
    micro: int = 0
    """In millionths of a dollar."""
    tokens: int = 0
    until: Instant = NEVER
    """When its reservation ends; `NEVER` if it does not."""


class CountedOutcome(msgspec.Struct, frozen=True, gc=False):
    """The outcome of a call: what it has used, and whether it left at all."""

    key: str
    micro: int
    tokens: int
    left: bool


class _Latest:
    """What was read last. The guards of a channel read each call one after the other, as a draft and as recorded."""

    def __init__(self) -> None:
        self.call: tuple[Json, str, CountedCall | None] = {}, "", None
        self.outcome: tuple[Json, str, CountedOutcome | None] = {}, "", None


_latest = _Latest()


def counted_call(envelope: Envelope) -> CountedCall | None:
    """The call of a `call.started`, of a request for approval, or of a charge; None for anything else."""
    data, kind, call = _latest.call
    if data is not envelope.event_data or kind != envelope.event_type:
        call = _read_call(envelope)
        _latest.call = envelope.event_data, envelope.event_type, call
    return call


def counted_outcome(envelope: Envelope) -> CountedOutcome | None:
    """The outcome of a `call.finished`, a `call.failed`, or a settlement; None for anything else."""
    data, kind, outcome = _latest.outcome
    if data is not envelope.event_data or kind != envelope.event_type:
        outcome = _read_outcome(envelope)
        _latest.outcome = envelope.event_data, envelope.event_type, outcome
    return outcome


def _read_call(envelope: Envelope) -> CountedCall | None:
    data = envelope.event_data
    key = counted_key(data)
    kind = _kind_of(data, envelope.event_type)
    if kind is None or key is None:
        return None
    agent = data.get("agent")
    if not isinstance(agent, str) or not agent:
        agent = str(data.get("turn")).partition("/")[2]
    until = data.get("until")
    return CountedCall(
        key,
        kind,
        agent,
        whole_number(data.get("most")),
        whole_number(data.get("tokens")),
        until if isinstance(until, str) else NEVER,
    )


def _read_outcome(envelope: Envelope) -> CountedOutcome | None:
    data = envelope.event_data
    key = counted_key(data)
    if key is None:
        return None
    left = True
    if envelope.event_type == EV_RUN_SETTLED:
        left = data.get("denied") is not True
    elif envelope.event_type == EV_CALL_FAILED:
        left = not data.get("denied") and (bool(data.get("by")) or data.get("failure", "") not in NEVER_LEFT)
    return CountedOutcome(key, whole_number(data.get("cost")), whole_number(data.get("tokens")), left)


def counted_key(data: Json) -> str | None:
    """What a call is known by: `17/bob#3`, and before that its channel if it is not this one."""
    turn, index, channel = data.get("turn"), data.get("index"), data.get("channel")
    if not isinstance(turn, str) or type(index) is not int:
        return None
    return f"{channel} {turn}#{index}" if isinstance(channel, str) and channel else f"{turn}#{index}"


def _kind_of(data: Json, event_type: str) -> CallKind | None:
    name = data.get("name")
    if event_type == EV_RUN_CHARGED:
        kind = data.get("kind")
        return "model" if kind == "model" else "tool" if kind == "tool" else None
    if not isinstance(name, str):
        return None
    if event_type == EV_APPROVAL_REQUESTED:
        return "model" if data.get("kind") == "model" else "tool"
    if isinstance(data.get("args"), dict):
        return "tool"
    return None if name.startswith(STEP_PREFIX) else "model"


def whole_number(value: object) -> int:
    """The value if it is a whole number that is not negative; otherwise 0."""
    return value if type(value) is int and value > 0 else 0


# What is offered to ledgers


def is_task(state: State) -> bool:
    """Whether this channel is that of a task, so that its run began in another one."""
    return TASK_KNOB in state.knobs and state.run_id != state.channel_id


def charge_in_scope(scope: str, state: State, draft: Envelope, *, name: str, limits: Json) -> LedgerEntry | None:
    """What the ledger of a scope is asked about a call; None if the call is not counted.

    The ledger of a tenant is the hub's and gets the limits of the guard of this name; the log of a run has guards.
    """
    if scope == TENANT_SCOPE:
        return charge_entry(SPEND_LEDGER, state, draft, scope=name, limits=limits)
    return charge_entry(RUN_LEDGER, state, draft)


def settlements_in_scope(scope: str, state: State, outcome: Envelope) -> tuple[LedgerEntry, ...]:
    """What is offered to the ledger that counts a call beyond its channel, once the outcome is known."""
    if scope != TENANT_SCOPE and not is_task(state):
        return ()
    entry = settlement_entry(SPEND_LEDGER if scope == TENANT_SCOPE else RUN_LEDGER, state, outcome)
    return () if entry is None else (entry,)


def charge_entry(
    ledger: str, state: State, draft: Envelope, *, scope: str = "", limits: Json | None = None
) -> LedgerEntry | None:
    """What a ledger is asked about a call; None if the call is not counted."""
    call, data = counted_call(draft), draft.event_data
    if call is None:
        return None
    charge = RunCharged(
        state.channel_id,
        str(data.get("turn")),
        whole_number(data.get("index")),
        call.kind,
        scope=scope,
        agent=call.agent,
        most=call.micro,
        tokens=call.tokens,
        until=call.until,
        limits=limits or {},
        approved=bool(data.get("approved")),
    )
    return LedgerEntry(ledger, EV_RUN_CHARGED, data_of(charge))


def settlement_entry(ledger: str, state: State, outcome: Envelope) -> LedgerEntry | None:
    """What a ledger is offered once the outcome of a call is known."""
    found, data = counted_outcome(outcome), outcome.event_data
    if found is None:
        return None
    settled = RunSettled(
        state.channel_id,
        str(data.get("turn")),
        whole_number(data.get("index")),
        cost=found.micro,
        tokens=found.tokens,
        denied=not found.left,
    )
    return LedgerEntry(ledger, EV_RUN_SETTLED, data_of(settled))


def ledger_fact(offer: Envelope) -> RelatedFact:
    """What a ledger records of an offer that it accepts."""
    return RelatedFact(offer.event_type, offer.event_data, (OPERATORS,))
