"""The events of protections: what guards, gates and sagas have decided, and what a run has spent.

Rule 1: the hub records all of these, and operators alone see them unless their guard says otherwise.
Rule 2: none holds arguments, prompts or secrets: digests, names and numbers alone.
Rule 3: amounts are whole millionths of a dollar, and whole tokens.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from antiphon.core.envelope import NEVER, Instant, Json

EV_LOOP_DETECTED = "antiphon.flow.loop_detected"
EV_BREAKER_CHANGED = "antiphon.flow.breaker"
EV_BREAKER_COUNTED = "antiphon.breaker.counted"
EV_RETRY_DENIED = "antiphon.flow.retry_denied"
EV_RETRY_CHARGED = "antiphon.retry.charged"
EV_BUDGET_CHANGED = "antiphon.flow.budget"
EV_COST_EXCEEDED = "antiphon.flow.cost"
EV_DEADLINE_EXPIRED = "antiphon.flow.deadline_expired"
EV_DEADLINE_REBASED = "antiphon.flow.deadline_rebased"
EV_LIMIT_REACHED = "antiphon.flow.limit"
EV_DEADLOCK_DETECTED = "antiphon.flow.deadlock"
EV_GATE_CHECKED = "antiphon.flow.gate"
EV_FAILURE_DECIDED = "antiphon.flow.decision"
EV_POLICY_DENIED = "antiphon.authz.denied"
EV_POLICY_FAILED = "antiphon.authz.error"
EV_RUN_CHARGED = "antiphon.run.charged"
EV_RUN_SETTLED = "antiphon.run.settled"
EV_ONCE_REGISTERED = "antiphon.once.registered"
EV_AGENT_CORRECTED = "antiphon.agent.corrected"


class LoopDetected(msgspec.Struct, frozen=True, omit_defaults=True):
    """An agent repeats itself."""

    detector: Literal["tool", "text", "cycle"]
    key: str
    """The digest of what is repeated."""
    action: Literal["correct", "terminate", "escalate"]
    """Tell the agent; stop its turn, or the channel; or have a person decide."""
    agent: str = ""
    tool: str = ""
    count: int = 0
    window: int = 0
    threshold: int = 0
    period: int = 0
    """The length of the cycle; 0 if it is no cycle."""
    first_seq: int = 0
    last_seq: int = 0


class BreakerChanged(msgspec.Struct, frozen=True, omit_defaults=True):
    """A circuit breaker has gone from one state to another."""

    scope: str
    """`model:<name>`, `tool:<name>`, `tool:<name>@<agent>` or `cost:<what>`."""
    source: str
    """The state before: `closed`, `open`, `half_open` or `stopped`."""
    target: str
    epoch: int
    reason: str = ""
    counts: dict[str, int] = msgspec.field(default_factory=dict)
    retry_at: Instant = NEVER
    trips: int = 0
    fallback: str = ""
    rolling_cost: int = 0
    ceiling: int = 0
    probe: str = ""
    """The call that probes: its turn and its index, `17/bob#3`; in a breaker that channels share, with its channel."""
    until: Instant = NEVER
    """When the time of the probe is over."""


class BreakerCounted(msgspec.Struct, frozen=True, omit_defaults=True):
    """The outcome of a call is counted in a breaker that channels share."""

    scope: str
    call: str
    """As `BreakerChanged.probe`."""
    channel: str
    attempt: int
    failure: str = ""
    """The class in which it failed; "" for a success, `neutral` if its caller has ended it."""
    began: Instant = NEVER
    """When this attempt left."""
    passed: dict[str, Instant] = msgspec.field(default_factory=dict)
    """When a call of the channel has last passed each class of failure before."""
    total: int = 0
    """How many calls of the channel have ended in all, of those that this breaker counts."""
    rows: list[tuple[str, int]] = msgspec.field(default_factory=list)
    """How many in each of the last seconds in which one has."""
    limits: Json = msgspec.field(default_factory=dict)


class RetryCharged(msgspec.Struct, frozen=True, omit_defaults=True):
    """A retry is paid for from the bucket of a provider."""

    bucket: str
    channel: str
    turn: str
    index: int
    attempt: int
    cost: float
    total: int = 0
    """How many first attempts the channel has made in all."""
    rows: list[tuple[str, int]] = msgspec.field(default_factory=list)
    """How many in each of the last seconds in which it has made one."""
    limits: Json = msgspec.field(default_factory=dict)
    balance: int = 0
    """What is left, in thousandths of a retry."""


class RetryDenied(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call is not retried."""

    reason: str
    model: str = ""
    turn: str = ""
    index: int = 0
    balance: int = 0
    """In thousandths of a retry."""


class BudgetChanged(msgspec.Struct, frozen=True, omit_defaults=True):
    """A budget has denied a call, has had a person asked about it, or has booked a reservation whose call is lost."""

    op: Literal["deny", "ask", "expire", "warn"]
    scope: str
    """`run`, `agent:<name>` or `tenant`."""
    unit: str
    """`micro`, `tokens`, `model_calls` or `tool_calls`; "" if a ledger has denied it, which keeps that to itself."""
    need: int = 0
    spent: int = 0
    reserved: int = 0
    cap: int = 0
    turn: str = ""
    index: int = 0
    channel: str = ""
    """The channel of the call; "" for this one."""
    tokens: int = 0
    """How many tokens are booked with a reservation."""


class CostExceeded(msgspec.Struct, frozen=True, omit_defaults=True):
    """More was spent within a time than is allowed."""

    scope: str
    window_s: int
    unit: str
    spent: int
    reserved: int
    ceiling: int
    action: str
    """`deny`, or `ask` if a person decides."""
    need: int = 0
    turn: str = ""
    index: int = 0


class DeadlineExpired(msgspec.Struct, frozen=True, omit_defaults=True):
    """The time for a step, a stage or the run is over."""

    layer: Literal["step", "stage", "run"]
    deadline: Instant
    overrun_ms: int = 0
    turn: str = ""
    in_flight: int = 0
    """How many calls were in progress."""


class DeadlineRebased(msgspec.Struct, frozen=True, omit_defaults=True):
    """Deadlines were moved by the time that a turn waited for a person."""

    old: Instant
    """That of the run before; of the turn, if runs have none."""
    new: Instant
    suspended_ms: int
    turn: str = ""


class LimitReached(msgspec.Struct, frozen=True, omit_defaults=True):
    """A limit was reached: of handoffs, of depth, of turns, or of tasks."""

    kind: Literal["hop", "depth", "turns", "spawn"]
    limit: int
    count: int
    chain: list[str] = msgspec.field(default_factory=list)
    rejected_target: str = ""


class DeadlockDetected(msgspec.Struct, frozen=True, omit_defaults=True):
    """Participants make no progress together."""

    kind: Literal["oscillation", "supervisor", "wait_for", "stalled"]
    cycle: list[str]
    occurrences: int
    digest: str
    action: Literal["warn", "trip"]
    routed_to: str = ""


class GateCheck(msgspec.Struct, frozen=True, omit_defaults=True):
    """One check of a gate."""

    name: str
    status: Literal["pass", "fail", "error", "skipped", "warn"]
    code: str = ""
    path: str = ""
    ms: int = 0


class ValidationResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """The verdict of a gate about a subject. It is never made again for the same subject."""

    gate: str
    side: Literal["pre", "post"]
    """Whether the subject goes into a stage, or has come out of it."""
    verdict: Literal["pass", "fail"]
    checks: list[GateCheck] = msgspec.field(default_factory=list)
    """Those of the gate, in their order. After the first that failed, the others are skipped."""
    failure_type: str = ""
    """What the failure decision table calls it; "" if it passes."""
    confidence: float | None = None
    tau: float | None = None
    """The confidence that the gate wants."""
    subject_digest: str = ""
    validator_versions: dict[str, str] = msgspec.field(default_factory=dict)

    @property
    def passed(self) -> bool:
        return self.verdict == "pass"

    @property
    def failed_check(self) -> GateCheck | None:
        """The check because of which the subject does not pass."""
        return next((check for check in self.checks if check.status in ("fail", "error")), None)


class FailureDecided(msgspec.Struct, frozen=True, omit_defaults=True):
    """What follows from a failure, by the decision table."""

    failure: str
    tier: str
    row: str
    actions: list[str]
    counters: dict[str, int] = msgspec.field(default_factory=dict)
    reason: str = ""
    otherwise: list[str] = msgspec.field(default_factory=list)
    """What is done if the actions cannot be."""


class PolicyDenied(msgspec.Struct, frozen=True, omit_defaults=True):
    """A policy does not allow a call, or could not be asked."""

    agent: str
    tool: str
    rule: str = ""
    turn: str = ""
    index: int = 0
    error: str = ""


class RunCharged(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call in another channel of the same run, or of the same hub, is counted here. It is about to leave."""

    channel: str
    turn: str
    index: int
    kind: Literal["model", "tool", "task"]
    scope: str = ""
    """What is counted, in a ledger that counts several things."""
    agent: str = ""
    name: str = ""
    most: int = 0
    tokens: int = 0
    until: Instant = NEVER
    limits: Json = msgspec.field(default_factory=dict)
    """The limits of the guard that asks, in a ledger that has none of its own."""
    approved: bool = False
    """Whether a person has allowed it, beyond the limits too."""


class RunSettled(msgspec.Struct, frozen=True, omit_defaults=True):
    """The outcome of a call that was counted here is known."""

    channel: str
    turn: str
    index: int
    scope: str = ""
    cost: int = 0
    tokens: int = 0
    denied: bool = False
    """Whether it was denied after all, and so never left."""


class OnceRegistered(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call of a tool with `once` is about to run. Calls with the same digest are answered with its result."""

    digest: str
    """Of the tool and the values that make a call the same."""
    tool: str
    channel: str
    turn: str
    index: int
    key: str = ""
    """The idempotency key that the tool is given."""


class AgentCorrected(msgspec.Struct, frozen=True, omit_defaults=True):
    """A guard tells an agent what to do otherwise. Its model reads the text with its next turn."""

    text: str
    guard: str
    agent: str = ""
    """Who of the participant's team it concerns; "" for the participant itself."""


ProtectionEvent = (
    AgentCorrected
    | LoopDetected
    | BreakerChanged
    | BreakerCounted
    | RetryDenied
    | RetryCharged
    | BudgetChanged
    | CostExceeded
    | DeadlineExpired
    | DeadlineRebased
    | LimitReached
    | DeadlockDetected
    | ValidationResult
    | FailureDecided
    | PolicyDenied
    | RunCharged
    | RunSettled
    | OnceRegistered
)

PROTECTION_STRUCTS: dict[str, type[ProtectionEvent]] = {
    EV_AGENT_CORRECTED: AgentCorrected,
    EV_LOOP_DETECTED: LoopDetected,
    EV_BREAKER_CHANGED: BreakerChanged,
    EV_BREAKER_COUNTED: BreakerCounted,
    EV_RETRY_DENIED: RetryDenied,
    EV_RETRY_CHARGED: RetryCharged,
    EV_BUDGET_CHANGED: BudgetChanged,
    EV_COST_EXCEEDED: CostExceeded,
    EV_DEADLINE_EXPIRED: DeadlineExpired,
    EV_DEADLINE_REBASED: DeadlineRebased,
    EV_LIMIT_REACHED: LimitReached,
    EV_DEADLOCK_DETECTED: DeadlockDetected,
    EV_GATE_CHECKED: ValidationResult,
    EV_FAILURE_DECIDED: FailureDecided,
    EV_POLICY_DENIED: PolicyDenied,
    EV_POLICY_FAILED: PolicyDenied,
    EV_RUN_CHARGED: RunCharged,
    EV_RUN_SETTLED: RunSettled,
    EV_ONCE_REGISTERED: OnceRegistered,
}
"""The shape of the data of each type."""
