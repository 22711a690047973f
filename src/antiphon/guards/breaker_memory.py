"""What a channel's circuit breaker remembers: its calls, the breakers of its tools and its spend, its use of models.

Rule 1: a call is known by its turn and its position. One that is started again after a crash is the same call.
Rule 2: everything is bounded: calls in flight, calls that have ended, breakers, seconds and minutes.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from antiphon.core.envelope import NEVER, Envelope, Instant
from antiphon.core.events import EV_TURN_FAILED
from antiphon.core.execution_events import EV_CALL_FAILED, EV_CALL_RETRIED, EV_CALL_STARTED
from antiphon.guards.breaker_machine import CLOSED, NEUTRAL, PASSED_BEFORE, PASSED_BY_SUCCESS, Breaker
from antiphon.guards.recent_counts import MAX_ROWS, NO_COUNT, SECOND_CHARS, RecentCount, second_before

MAX_CALLS = 256
MAX_ENDED = 128
MAX_BREAKERS = 256
MINUTE_CHARS = len("2026-01-01T00:00")
MODEL_SCOPE = "model:"
TOOL_SCOPE = "tool:"
COST_SCOPE = "cost:"
AGENT_COST_SCOPE = "cost:agent:"
TRANSPORT_FAILURES = frozenset({"transport", "timeout"})
"""Failures of models that count as transport errors."""
TOOL_FAILURES = frozenset({"transport", "timeout", "error"})
"""Failures of tools that count as transport errors: what a tool raises is what lies behind it."""


class CallNote(msgspec.Struct, frozen=True, omit_defaults=True):
    """One call that has left, as far as breakers want to know."""

    scopes: tuple[tuple[str, int], ...] = ()
    """The breakers of the channel that count it, each with its epoch when the call left."""
    model: str = ""
    """The breaker that channels share, if a model is called."""
    began: Instant = NEVER
    attempt: int = 1
    failure: str = ""
    """Once it has ended: as it is recorded, or `neutral`."""


class ModelUse(msgspec.Struct, frozen=True, omit_defaults=True):
    """The calls of one model."""

    ended: RecentCount = NO_COUNT
    passed: dict[str, Instant] = msgspec.field(default_factory=dict)
    """When a call has last passed each class of failure."""


NOT_USED = ModelUse()


class CostTrip(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why the breaker of a spend is open."""

    at: Instant
    window_s: int
    unit: str
    ceiling: int
    unseen: int
    """What was spent or reserved in other channels. It counts until the window has passed."""
    most: int | None = None
    """All that it can be until then, if it is the spend of one agent, whose models are not asked meanwhile."""


class BreakerMemory(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a channel remembers."""

    breakers: dict[str, Breaker] = msgspec.field(default_factory=dict)
    calls: dict[str, CallNote] = msgspec.field(default_factory=dict)
    """In flight, by turn and index."""
    ended: dict[str, CallNote] = msgspec.field(default_factory=dict)
    """The last calls of models that have ended, until they are reported."""
    last: tuple[str, CallNote] | None = None
    """The call that has ended last."""
    models: dict[str, ModelUse] = msgspec.field(default_factory=dict)
    trips: dict[str, CostTrip] = msgspec.field(default_factory=dict)
    seconds: tuple[tuple[str, int, int], ...] = ()
    """What was spent in each of the last seconds: micro-dollars and tokens."""
    minutes: tuple[tuple[str, int, int], ...] = ()
    lease: Instant = NEVER
    """When the first lease of a probe ends."""

    def breaker(self, scope: str) -> Breaker:
        return self.breakers.get(scope, CLOSED)


def call_mark(data: dict[str, object]) -> str:
    """A call as breakers name it: `17/bob#3`."""
    return f"{data.get('turn')}#{data.get('index')}"


def tool_scopes(data: dict[str, object]) -> tuple[str, str] | tuple[()]:
    """The breakers of a tool call; none for a call of a model or a step, which has no arguments."""
    if not isinstance(data.get("args"), dict):
        return ()
    tool = f"{TOOL_SCOPE}{data.get('name')}"
    return tool, f"{tool}@{calling_agent(data)}"


def calling_agent(data: dict[str, object]) -> str:
    """Who makes a call: a member of a team by its path, or the speaker."""
    return str(data.get("agent") or str(data.get("turn")).partition("/")[2])


def cost_scopes(memory: BreakerMemory, data: dict[str, object]) -> tuple[str, ...]:
    """The breakers of spend that a call of a model meets: those of all, and that of its agent."""
    if not memory.trips:
        return ()
    own = f"{AGENT_COST_SCOPE}{calling_agent(data)}"
    return tuple(scope for scope in memory.trips if scope == own or not scope.startswith(AGENT_COST_SCOPE))


def model_scope(data: dict[str, object]) -> str:
    """The breaker of the model that is asked; "" for any other call."""
    name = data.get("via") or data.get("model")
    return f"{MODEL_SCOPE}{name}" if name and not isinstance(data.get("args"), dict) else ""


def scopes_of(memory: BreakerMemory, draft: Envelope) -> tuple[str, ...]:
    """The breakers of the channel that a call meets."""
    data = draft.event_data
    return tool_scopes(data) or (cost_scopes(memory, data) if model_scope(data) else ())


def tripped_scopes(memory: BreakerMemory, draft: Envelope) -> Sequence[str]:
    """The breakers of the channel that a call meets, and that are not closed."""
    if not memory.breakers:
        return ()
    known = memory.breakers
    return [scope for scope in scopes_of(memory, draft) if scope in known and known[scope].status != "closed"]


def are_closed(memory: BreakerMemory, note: CallNote) -> bool:
    """Whether the breakers that a call has met are closed."""
    for scope, _ in note.scopes:
        breaker = memory.breakers.get(scope)
        if breaker is not None and breaker.status != "closed":
            return False
    return True


def note_started(memory: BreakerMemory, envelope: Envelope) -> BreakerMemory:
    """The memory with a call in flight."""
    data = envelope.event_data
    model = model_scope(data)
    names: tuple[str, ...] = tool_scopes(data) or (cost_scopes(memory, data) if model else ())
    if not names and not model:
        return memory
    breakers = memory.breakers
    scopes = tuple((name, breakers[name].epoch if name in breakers else 0) for name in names)
    calls = {**memory.calls, call_mark(data): CallNote(scopes, model, envelope.created_at)}
    if len(calls) > MAX_CALLS:
        del calls[next(iter(calls))]
    return BreakerMemory(
        memory.breakers,
        calls,
        memory.ended,
        memory.last,
        memory.models,
        memory.trips,
        memory.seconds,
        memory.minutes,
        memory.lease,
    )


def note_retried(memory: BreakerMemory, envelope: Envelope) -> BreakerMemory:
    """The memory when a call is made again: an attempt has failed, and the next one begins."""
    data = envelope.event_data
    key = call_mark(data)
    note = memory.calls.get(key)
    if note is None:
        return memory
    via = data.get("via")
    model = f"{MODEL_SCOPE}{via}" if via else note.model
    again = replace(note, began=envelope.created_at, attempt=note.attempt + 1, model=model)
    memory = replace(memory, calls={**memory.calls, key: again})
    return replace(memory, models=_with_use(memory.models, note.model, model_failure(data), at=envelope.created_at))


def note_ended(memory: BreakerMemory, envelope: Envelope) -> BreakerMemory:
    """The memory when a call has an outcome. Breakers are counted by the caller."""
    data = envelope.event_data
    key = call_mark(data)
    note = memory.calls.get(key)
    if note is None:
        return memory if memory.last is None else replace(memory, last=None)
    failure = _outcome_class(envelope)
    if failure:
        note = replace(note, failure=failure)
    calls = {**memory.calls}
    del calls[key]
    memory, ended, models = _note_spend(memory, envelope), memory.ended, memory.models
    if note.model:
        ended = {**ended, key: note}
        if len(ended) > MAX_ENDED:
            del ended[next(iter(ended))]
        models = _with_use(models, note.model, model_failure({"failure": failure}), at=envelope.created_at)
    return BreakerMemory(
        memory.breakers,
        calls,
        ended,
        (key, note),
        models,
        memory.trips,
        memory.seconds,
        memory.minutes,
        memory.lease,
    )


def with_counted(memory: BreakerMemory, breakers: dict[str, Breaker]) -> BreakerMemory:
    """The memory with breakers that have counted, and have not changed otherwise."""
    return BreakerMemory(
        breakers,
        memory.calls,
        memory.ended,
        memory.last,
        memory.models,
        memory.trips,
        memory.seconds,
        memory.minutes,
        memory.lease,
    )


def note_turn_over(memory: BreakerMemory, envelope: Envelope) -> BreakerMemory:
    """The memory without the calls of a turn that has ended without an answer."""
    if envelope.event_type != EV_TURN_FAILED or not memory.calls:
        return memory
    prefix = f"{envelope.event_data.get('turn')}#"
    calls = {key: note for key, note in memory.calls.items() if not key.startswith(prefix)}
    return memory if len(calls) == len(memory.calls) else replace(memory, calls=calls)


def _outcome_class(envelope: Envelope) -> str:
    """The failure as it is recorded; `neutral` if the call has not left, or its caller has ended it."""
    data = envelope.event_data
    failure = data.get("failure", "")
    if data.get("by") or failure == "cancelled" or (data.get("denied") and not failure):
        return NEUTRAL
    if not failure and envelope.event_type == EV_CALL_FAILED:
        return NEUTRAL
    return str(failure)


def model_failure(data: dict[str, object]) -> str:
    """A failure of a model in the class in which it is counted; `neutral` for one of the request."""
    failure = str(data.get("failure", ""))
    if failure in TRANSPORT_FAILURES:
        return "transport"
    return failure if failure in ("", "schema", "invariant") else NEUTRAL


def tool_failure(scope: str, failure: str) -> str:
    """A failure of a tool call in the class in which a breaker counts it.

    That of the tool counts what it raises. That of the tool for one agent counts calls that do not fit; what the tool
    makes of a call that does is a success there.
    """
    if failure in ("", NEUTRAL) or not scope.startswith(TOOL_SCOPE):
        return failure if failure == NEUTRAL else ""
    if "@" in scope:
        return "schema" if failure == "schema" else ""
    if failure in TOOL_FAILURES:
        return "transport"
    return failure if failure == "invariant" else NEUTRAL


def _with_use(models: dict[str, ModelUse], scope: str, failure: str, *, at: Instant) -> dict[str, ModelUse]:
    if failure == NEUTRAL or not scope:
        return models
    use = models.get(scope, NOT_USED)
    passed = PASSED_BEFORE[failure] if failure else PASSED_BY_SUCCESS
    known = use.passed
    if passed:
        known = {**known, **dict.fromkeys(passed, at)}
    return {**models, scope: ModelUse(use.ended.plus_one(at), known)}


def _note_spend(memory: BreakerMemory, envelope: Envelope) -> BreakerMemory:
    cost, tokens = envelope.event_data.get("cost", 0), envelope.event_data.get("tokens", 0)
    if not cost and not tokens:
        return memory
    if not isinstance(cost, int) or not isinstance(tokens, int):
        return memory
    at = envelope.created_at
    seconds = _with_spend(memory.seconds, at[:SECOND_CHARS], cost=cost, tokens=tokens)
    return replace(
        memory, seconds=seconds, minutes=_with_spend(memory.minutes, at[:MINUTE_CHARS], cost=cost, tokens=tokens)
    )


def _with_spend(
    rows: tuple[tuple[str, int, int], ...], key: str, *, cost: int, tokens: int
) -> tuple[tuple[str, int, int], ...]:
    if rows and rows[-1][0] == key:
        return (*rows[:-1], (key, rows[-1][1] + cost, rows[-1][2] + tokens))
    return (*rows[-MAX_ROWS:], (key, cost, tokens))


def spent_here(memory: BreakerMemory, window_s: int, *, unit: str, at: Instant) -> int:
    """What this channel has spent within a window."""
    rows = memory.seconds if window_s <= MAX_ROWS else memory.minutes
    first = second_before(window_s, at)
    spent = [(cost, tokens) for key, cost, tokens in rows if key > first[: len(key)]]
    return sum(tokens if unit == "tokens" else cost for cost, tokens in spent)


def rolling_spend(memory: BreakerMemory, trip: CostTrip, at: Instant) -> int:
    """The spend that opened a breaker, as it is now."""
    is_recent = second_before(trip.window_s, at) < trip.at
    here = spent_here(memory, trip.window_s, unit=trip.unit, at=at)
    if trip.most is not None:
        return min(here, trip.most) if is_recent else 0
    return here + (trip.unseen if is_recent else 0)


NOTING = {
    EV_CALL_STARTED: note_started,
    EV_CALL_RETRIED: note_retried,
    EV_TURN_FAILED: note_turn_over,
}


def with_breaker(memory: BreakerMemory, scope: str, breaker: Breaker) -> BreakerMemory:
    """The memory with one breaker changed."""
    breakers = bounded({**memory.breakers, scope: breaker})
    leases = [each.lease for each in breakers.values() if each.status == "half_open"]
    return replace(memory, breakers=breakers, lease=min(leases, default=NEVER))


def bounded(breakers: dict[str, Breaker]) -> dict[str, Breaker]:
    """The breakers without the oldest that is closed, if they are too many."""
    if len(breakers) <= MAX_BREAKERS:
        return breakers
    oldest = next((scope for scope, each in breakers.items() if each.status == "closed"), next(iter(breakers)))
    return {scope: each for scope, each in breakers.items() if scope != oldest}
