"""The retry budget: how often a model is asked for one answer, and how many retries all calls of a provider may make.

Rule 1: the attempts at one call are counted by the engine. A guard names their number, and denies what exceeds it.
Rule 2: retries are paid from a bucket of the provider, which all channels share through a ledger (`retry_bucket`). An
        empty bucket denies, and so does a store that cannot be asked: a provider in trouble is not asked more often.
Rule 3: first attempts fill the bucket. A channel counts its own, and reports them with its next retry, so that a call
        that needs no retry costs no write.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

import msgspec
from msgspec.structs import replace

from antiphon.core.codec import Malformed, as_type
from antiphon.core.envelope import OPERATORS, Envelope, Json
from antiphon.core.errors import RulesInvalid
from antiphon.core.event_data import data_of
from antiphon.core.execution_events import EV_CALL_FAILED, EV_CALL_RETRIED, EV_CALL_STARTED
from antiphon.core.guard import ALLOW, Deny, LedgerEntry, Permission
from antiphon.core.protection_events import EV_RETRY_CHARGED, EV_RETRY_DENIED, RetryCharged, RetryDenied
from antiphon.core.state import RelatedFact, State
from antiphon.core.text import describe
from antiphon.guards.breaker_memory import call_mark
from antiphon.guards.named_guards import Tier
from antiphon.guards.recent_counts import NO_COUNT, RecentCount
from antiphon.guards.retry_bucket import NEW_BUCKET, Bucket, BucketLimits, balance_of, can_pay, credit, pay
from antiphon.guards.run_limits import UNLIMITED, Limit, is_reached

RETRY_REASON = "retry_budget"
RETRIES_LEDGER = "retries"
TIER_ATTEMPTS: dict[Tier, int] = {"interactive": 3, "batch": 5, "regulated": 3}
DEFAULT_ATTEMPTS = 3
TIMEOUT_COST = 2.0
MAX_CALLS = 64
THOUSANDTHS = 1000
BUCKET_FIELDS = {"capacity": "capacity", "start": "starts", "per_call": "ratio", "per_second": "per_second"}
"""The limit of the bucket that each field sets."""


class RetryMemory(msgspec.Struct, frozen=True, omit_defaults=True):
    """The calls of models in this channel."""

    providers: dict[str, str] = msgspec.field(default_factory=dict)
    """Of the last calls, by turn and index: the bucket that a retry is paid from."""
    firsts: dict[str, RecentCount] = msgspec.field(default_factory=dict)
    """First attempts, by bucket."""


class RetryBudget(msgspec.Struct, frozen=True, omit_defaults=True):
    """Limits the attempts at one call of a model, and the retries of all."""

    name: ClassVar[str] = "retry_budget"
    memory: ClassVar[type] = RetryMemory
    hears: ClassVar[frozenset[str]] = frozenset({EV_CALL_STARTED})
    notes: ClassVar[frozenset[str]] = frozenset({EV_CALL_FAILED})
    attempts: Limit | None = None
    """How often a model is asked for one answer; 3 if nothing is said, 5 in the batch tier."""
    capacity: float | None = None
    """How many retries the bucket of a provider holds; 20 if nothing is said."""
    start: float | None = None
    """How many it holds at first; 10 if nothing is said."""
    per_call: float | None = None
    """By how much a first attempt fills it; 0.1 if nothing is said."""
    per_second: float | None = None
    """By how much a second fills it; 0.1 if nothing is said."""

    def __post_init__(self) -> None:
        given = self.attempts
        if given is not None and given != UNLIMITED and (type(given) is not int or given < 1):
            wanted = f"give a number, 1 or more, or {UNLIMITED!r}"
            raise RulesInvalid(f"attempts of retry_budget is {describe(given)}; {wanted}")
        for field in BUCKET_FIELDS:
            amount: object = getattr(self, field)
            if amount is not None and not _is_amount(amount):
                raise RulesInvalid(f"{field} of retry_budget is {describe(amount)}; give a number, 0 or more")

    def for_tier(self, tier: Tier) -> RetryBudget:
        """The same, with the attempts of the tier if none are said."""
        if tier == "regulated" and self.attempts == UNLIMITED:
            raise RulesInvalid(
                f"attempts of retry_budget is {UNLIMITED!r}, which the regulated tier refuses; give a number"
            )
        return self if self.attempts is not None else replace(self, attempts=TIER_ATTEMPTS[tier])

    @property
    def most(self) -> Limit:
        """How often a model is asked for one answer."""
        return DEFAULT_ATTEMPTS if self.attempts is None else self.attempts

    def evolve(self, memory: RetryMemory, envelope: Envelope) -> RetryMemory:
        data = envelope.event_data
        if envelope.event_type != EV_CALL_STARTED or isinstance(data.get("args"), dict):
            return memory
        key, bucket = call_mark(data), bucket_of(data)
        if key in memory.providers:  # started again after a crash: one call
            return memory
        providers = {**memory.providers, key: bucket}
        if len(providers) > MAX_CALLS:
            del providers[next(iter(providers))]
        first = memory.firsts.get(bucket, NO_COUNT).plus_one(envelope.created_at)
        return RetryMemory(providers, {**memory.firsts, bucket: first})

    def permit(self, memory: RetryMemory, state: State, draft: Envelope) -> Permission:
        if draft.event_type != EV_CALL_RETRIED:
            return ALLOW
        attempt = draft.event_data.get("attempt")
        if isinstance(attempt, int) and is_reached(attempt, self.most):
            return Deny(RETRY_REASON, f"{attempt} attempts were made, and {self.most} are allowed")
        return ALLOW

    def ask(self, memory: RetryMemory, state: State, draft: Envelope) -> Sequence[LedgerEntry]:
        if draft.event_type != EV_CALL_RETRIED:
            return ()
        data = draft.event_data
        bucket = memory.providers.get(call_mark(data)) or bucket_of(data)
        firsts = memory.firsts.get(bucket, NO_COUNT)
        charged = RetryCharged(
            bucket,
            state.channel_id,
            str(data.get("turn")),
            _whole(data.get("index")),
            _whole(data.get("attempt")),
            TIMEOUT_COST if data.get("failure") == "timeout" else 1.0,
            firsts.total,
            list(firsts.rows),
            self._bucket_limits,
        )
        return (LedgerEntry(RETRIES_LEDGER, EV_RETRY_CHARGED, data_of(charged), unreachable=RETRY_REASON),)

    def settle(self, memory: RetryMemory, state: State, outcome: Envelope) -> Sequence[LedgerEntry]:
        return ()

    def notice(self, memory: RetryMemory, state: State, envelope: Envelope) -> Sequence[RelatedFact]:
        data = envelope.event_data
        if envelope.event_type != EV_CALL_FAILED or data.get("denied") != RETRY_REASON:
            return ()
        bucket = memory.providers.get(call_mark(data), "")
        why = "attempts" if data.get("guard") == self.name else "bucket"
        denied = RetryDenied(why, bucket, str(data.get("turn")), _whole(data.get("index")))
        return (RelatedFact(EV_RETRY_DENIED, data_of(denied), (OPERATORS,)),)

    @property
    def _bucket_limits(self) -> Json:
        said = {limit: getattr(self, field) for field, limit in BUCKET_FIELDS.items()}
        return {limit: float(amount) for limit, amount in said.items() if amount is not None}


class RetryBuckets(msgspec.Struct, frozen=True, omit_defaults=True):
    """The buckets of all providers."""

    buckets: dict[str, Bucket] = msgspec.field(default_factory=dict)


class RetryLedger(msgspec.Struct, frozen=True):
    """Pays for retries, as long as there is something in the bucket."""

    name: ClassVar[str] = "retries"
    memory: ClassVar[type] = RetryBuckets
    hears: ClassVar[frozenset[str]] = frozenset({EV_RETRY_CHARGED})

    def evolve(self, memory: RetryBuckets, envelope: Envelope) -> RetryBuckets:
        try:
            charged = as_type(envelope.event_data, RetryCharged)
            limits = as_type(charged.limits, BucketLimits)
        except Malformed:
            return memory
        bucket = credit(memory.buckets.get(charged.bucket, NEW_BUCKET), charged, limits, at=envelope.created_at)
        return RetryBuckets({**memory.buckets, charged.bucket: pay(bucket, charged.cost, envelope.created_at)})

    def answer(self, memory: RetryBuckets, state: State, offer: Envelope) -> Deny | Sequence[RelatedFact]:
        charged, at = as_type(offer.event_data, RetryCharged), offer.created_at
        limits = as_type(charged.limits, BucketLimits)
        bucket = credit(memory.buckets.get(charged.bucket, NEW_BUCKET), charged, limits, at=at)
        left = balance_of(bucket, limits, at)
        if not can_pay(bucket, charged.cost, limits, at=at):
            return Deny(
                RETRY_REASON, f"the retries of {charged.bucket} are used up: {left:.2f} of {charged.cost:g} are left"
            )
        recorded = replace(charged, balance=round((left - charged.cost) * THOUSANDTHS))
        return (RelatedFact(EV_RETRY_CHARGED, data_of(recorded), (OPERATORS,)),)


def bucket_of(data: Json) -> str:
    """The bucket that retries of a call are paid from: the provider of its model, or the model if it names none."""
    name = str(data.get("via") or data.get("model") or data.get("name") or "model")
    return name.partition(":")[0]


def attempts_of(guards: Iterable[object]) -> int | None:
    """How often a model is asked for one answer, if a guard among these says so."""
    budget = next((guard for guard in guards if isinstance(guard, RetryBudget)), None)
    if budget is None:
        return None
    return MANY_ATTEMPTS if isinstance(budget.most, str) else budget.most


MANY_ATTEMPTS = 1_000_000
"""For an unlimited number of attempts: the time of the call ends them, or the bucket."""


def _is_amount(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf")


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0
