"""Deadlines: how long a call, a turn and a run may take, as instants that nothing moves but a person's decision.

Rule 1: a retry, an attempt after a crash, and a task that is given move no deadline. A task has at most the time that
        is left to the turn that gives it.
Rule 2: a call leaves with the earliest of the deadlines that hold for it, at which the engine ends it. One with less
        than a second left does not leave, and its turn ends with `denied:deadline`.
Rule 3: when the time of a turn or of a run is over, that is recorded. A turn that has not ended `GRACE_SECONDS` later
        is ended then; a tool call of it that has no outcome is in doubt.
Rule 4: while a turn waits for a person, its time stands still, and with it that of a run in which nothing else is done;
        not in the interactive tier. A turn with a call in doubt is never ended here.
Rule 5: time in which no hub was open does not count against the limits of a tier, and counts against those of a user.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from math import inf
from operator import attrgetter
from typing import ClassVar, Literal

import msgspec

from antiphon.core.envelope import (
    NEVER,
    OPERATORS,
    Envelope,
    Instant,
    Json,
    add_seconds,
    seconds_between,
    with_event_data,
)
from antiphon.core.errors import RulesInvalid
from antiphon.core.event_data import Deny, data_of
from antiphon.core.execution_events import (
    EV_CALL_APPROVED,
    EV_CALL_CLEARED,
    EV_CALL_DOUBTED,
    EV_CALL_FAILED,
    EV_CALL_FINISHED,
    EV_CALL_STARTED,
    EV_TURN_RESUMED,
    CallDoubted,
)
from antiphon.core.guard import ALLOW, Change, Deadline, Permission
from antiphon.core.protection_events import (
    EV_DEADLINE_EXPIRED,
    EV_DEADLINE_REBASED,
    DeadlineExpired,
    DeadlineRebased,
)
from antiphon.core.ruleset import Fold, Ruleset
from antiphon.core.state import TASK_KNOB, Assign, Close, Decision, RelatedFact, State, Turn, Wait
from antiphon.core.step import hub_draft, starting_agent, turn_audience, turn_failed_draft
from antiphon.core.text import describe
from antiphon.guards.deadline_layers import (
    LAYERS,
    Layer,
    LayerDeadline,
    LayerLimit,
    earlier,
    first_layer,
    layer_deadline,
)
from antiphon.guards.deadline_memory import (
    HEARD_TYPES,
    RUN_LAYER,
    CountedSince,
    RunTimes,
    TimedCall,
    fold_times,
)
from antiphon.guards.run_limits import UNLIMITED

Seconds = float | Literal["unlimited"]
DEADLINE_REASON = "deadline"
ENDED_BY_DEADLINE = f"denied:{DEADLINE_REASON}"
LEAST_SECONDS = 1.0
"""A call with less time left does not leave."""
GRACE_SECONDS = 5.0
"""How long a turn may take to end by itself when its time is over."""
MAX_SUSPENDED_SECONDS = 72 * 3600.0
"""By how much people's decisions may move the deadline of a run, in all."""
MAX_REGULATED_SUSPENDED_SECONDS = 10 * 365 * 86_400.0
"""The same in the regulated tier, where nothing that waits for a person expires."""
TIER_SECONDS: dict[str, dict[Layer, float]] = {
    "interactive": {"step": 30.0, "stage": 60.0, "run": 120.0},
    "batch": {"step": 120.0, "stage": 1800.0, "run": 86_400.0},
    "regulated": {"step": 60.0, "stage": 900.0, "run": 14_400.0},
}
WAIT_END_TYPES = frozenset({EV_CALL_APPROVED, EV_CALL_CLEARED, EV_CALL_FINISHED, EV_CALL_FAILED, EV_TURN_RESUMED})
TASK_UNTIL, TASK_UNTIL_DEFAULT = "until", "until_default"
"""The fields of a task's origin that say how much time the turn which gave it has left."""


class Deadlines(msgspec.Struct, frozen=True, dict=True):
    """How many seconds a call (step), a turn (stage) and a run may take.

    A run is what follows from one message of a person or of code. What is not said is the tier's; without a tier it is
    unlimited, but if nothing is said at all the times are those of the interactive tier.
    """

    name: ClassVar[str] = "deadlines"
    memory: ClassVar[type] = RunTimes
    hears: ClassVar[frozenset[str]] = HEARD_TYPES
    notes: ClassVar[frozenset[str]] = WAIT_END_TYPES
    step: Seconds | None = None
    stage: Seconds | None = None
    run: Seconds | None = None
    tier: str = ""
    defaults: tuple[str, ...] = ()
    """The layers whose times are those of the tier. Both fields are filled in by the tier."""

    def __post_init__(self) -> None:
        for layer in LAYERS:
            _check_seconds(getattr(self, layer), layer)
        strange = next((each for each in self.defaults if each not in LAYERS), None)
        if strange is not None or self.tier not in ("", *TIER_SECONDS):
            advice = "leave tier and defaults out: they are filled in by the knob tier"
            raise RulesInvalid(f"deadlines has the tier {describe(self.tier)} and defaults {self.defaults!r}; {advice}")

    def for_tier(self, tier: str) -> Deadlines:
        """The deadlines with the tier's times for what was not said."""
        given: dict[Layer, Seconds | None] = {"step": self.step, "stage": self.stage, "run": self.run}
        endless = next((layer for layer, seconds in given.items() if seconds == UNLIMITED), None)
        if tier == "regulated" and endless is not None:
            advice = "which the regulated tier does not take; give a number of seconds"
            raise RulesInvalid(f"{endless} of deadlines is {UNLIMITED!r}, {advice}")
        defaults = tuple(layer for layer, seconds in given.items() if seconds is None)
        filled = {**given, **{layer: TIER_SECONDS[tier][layer] for layer in defaults}}
        return Deadlines(filled["step"], filled["stage"], filled["run"], tier, defaults)

    @property
    def _most_suspended(self) -> float:
        """By how much decisions may move the deadline of a run. In the regulated tier what waits stays open."""
        return MAX_REGULATED_SUSPENDED_SECONDS if self.tier == "regulated" else MAX_SUSPENDED_SECONDS

    @property
    def moves(self) -> bool:
        """Whether the time that people take to decide moves deadlines."""
        return self.tier != "interactive"

    def seconds(self, layer: Layer) -> float | None:
        """The seconds of a layer; None if they are not limited."""
        return self._limits[layer][0]

    @cached_property
    def _limits(self) -> dict[Layer, LayerLimit]:
        """The seconds of each layer, and whether they are a default."""
        return {layer: (self._seconds(layer), layer in self.defaults) for layer in LAYERS}

    def _seconds(self, layer: Layer) -> float | None:
        given = self.step if layer == "step" else self.stage if layer == "stage" else self.run
        if given is None and self.step is None and self.stage is None and self.run is None:
            given = TIER_SECONDS["interactive"][layer]
        return None if given is None or isinstance(given, str) else given

    def evolve(self, memory: RunTimes, envelope: Envelope) -> RunTimes:
        return fold_times(memory, envelope)

    # Calls

    def permit(self, memory: RunTimes, state: State, draft: Envelope) -> Permission:
        data, now = draft.event_data, draft.created_at
        turn_id, leaves = data.get("turn"), draft.event_type == EV_CALL_STARTED
        call = memory.call(turn_id, data.get("index")) if memory.calls else None
        first, own = self.first_deadline(memory, state, turn_id), None
        if leaves and not data.get("open_ended"):
            own = self._layer("step", CountedSince(now, now) if call is None else call.since)
        if own is not None and (first is None or own.at < first.at):
            first = own
        if first is None:
            return ALLOW
        is_new = first is own and call is None and first.at > now
        if not is_new and first.at < add_seconds(now, LEAST_SECONDS):
            return Deny(DEADLINE_REASON, _denial_text(first, call), final=True)
        if not leaves:
            return ALLOW
        known = data.get("until")
        until = min(first.at, known) if isinstance(known, str) and known else first.at
        return Change(_with_until(draft, until))

    def _layer(self, layer: Layer, since: CountedSince | None) -> LayerDeadline | None:
        return layer_deadline(layer, self._limits[layer], since)

    def first_deadline(self, memory: RunTimes, state: State, turn_id: object) -> LayerDeadline | None:
        """When the time of a turn is over, its own or that of its run; None if it is not limited."""
        turn, limits = memory.turn(turn_id), self._limits
        own = first_layer((limits["stage"], None if turn is None else turn.since), (limits["run"], memory.run))
        return earlier(own, _inherited_deadline(memory, state)) if TASK_KNOB in state.knobs else own

    def decide_before(self, memory: RunTimes, state: State, turn_id: str) -> Instant:
        """Until when a person can decide about a call of this turn, where waiting moves no deadline."""
        first = None if self.moves else self.first_deadline(memory, state, turn_id)
        return NEVER if first is None else first.at

    def _run_deadline(self, memory: RunTimes, state: State) -> LayerDeadline | None:
        """When the time of the run is over, also that of the turn that has given this task."""
        return earlier(self._layer("run", memory.run), _inherited_deadline(memory, state))

    # What is recorded

    def notice(self, memory: RunTimes, state: State, envelope: Envelope) -> Sequence[RelatedFact]:
        if envelope.event_type not in WAIT_END_TYPES:
            return ()
        if memory.ended_wait is not None and memory.ended_wait.envelope_id == envelope.envelope_id:
            return self._rebase_facts(memory, state, envelope.created_at)
        return self._failure_facts(memory, state, envelope) if envelope.event_type == EV_CALL_FAILED else ()

    def _rebase_facts(self, memory: RunTimes, state: State, at: Instant) -> Sequence[RelatedFact]:
        ended = memory.ended_wait
        assert ended is not None, "a wait has ended"
        left = max(0.0, self._most_suspended - memory.suspended)
        seconds = min(left, seconds_between(ended.since, at))
        run, turn = self._run_deadline(memory, state), memory.turn(ended.turn_id)
        first = run or (None if turn is None else self._layer("stage", turn.since))
        if not self.moves or first is None or seconds <= 0:
            return ()
        moved = seconds if run is None or not ended.run_since else min(seconds, seconds_between(ended.run_since, at))
        new = add_seconds(first.at, 0.0 if run is not None and not ended.run_since else moved)
        rebased = DeadlineRebased(first.at, new, round(seconds * 1000), ended.turn_id)
        return [RelatedFact(EV_DEADLINE_REBASED, data_of(rebased), (OPERATORS,))]

    def _failure_facts(self, memory: RunTimes, state: State, failed: Envelope) -> Sequence[RelatedFact]:
        """What is recorded of a call that has failed because its time was over, or was about to be."""
        data, at, call = failed.event_data, failed.created_at, memory.settled
        turn_id = str(data.get("turn", ""))
        if turn_id in memory.expired or RUN_LAYER in memory.expired:
            return ()
        if data.get("denied") == DEADLINE_REASON:
            first = self.first_deadline(memory, state, turn_id)
            due = add_seconds(at, LEAST_SECONDS)
            if first is not None and first.at < due:
                return [_expiry_fact(first, turn_id, memory, at=at)]
        if call is None or call.turn_id != turn_id or call.index != data.get("index"):
            return ()
        own = self._layer("step", call.since)
        return [_expiry_fact(own, turn_id, memory, at=at)] if own is not None and own.at <= at else ()

    def due(self, memory: RunTimes, state: State) -> Deadline | None:
        if not state.owed or not memory.turns or state.status != "active":
            return None
        if len(state.owed) == 1 and not memory.expired and not memory.turns[0].waits_since:  # by far the most common
            turn_id = state.owed[0].turn_id
            first = self.first_deadline(memory, state, turn_id)
            return None if first is None else self._deadline(first, turn_id, memory, waits=False)
        return min(self._due(memory, state), key=attrgetter("at"), default=None)

    def _due(self, memory: RunTimes, state: State) -> Iterator[Deadline]:
        run = self._run_deadline(memory, state)
        if run is not None and RUN_LAYER not in memory.expired:
            idle = all(turn.waits_since for turn in memory.turns)
            yield self._deadline(run, "", memory, waits=idle)
        seen: set[str] = set()
        for turn in state.owed:
            timed = memory.turn(turn.turn_id)
            if timed is None or turn.speaker in seen:
                continue
            seen.add(turn.speaker)
            over = memory.expired.get(turn.turn_id) or memory.expired.get(RUN_LAYER)
            if over is not None:
                if not turn.doubts and not turn.suspended:
                    yield Deadline(add_seconds(over, GRACE_SECONDS), partial(_end_draft, memory, state, turn))
            elif (stage := self._layer("stage", timed.since)) is not None:
                yield self._deadline(stage, turn.turn_id, memory, waits=bool(timed.waits_since))

    def _deadline(self, layer: LayerDeadline, turn_id: str, memory: RunTimes, *, waits: bool) -> Deadline:
        """When it is recorded that a time is over. While a person is waited for, that is put off as long as can be."""
        at = layer.at
        if waits and self.moves:
            at = add_seconds(at, max(0.0, self._most_suspended - memory.suspended))
        draft = partial(_expiry_draft, layer, turn_id, memory)
        return Deadline(at, draft, layer.since, layer.is_default, late_field="overrun_ms")

    # What happens next

    def review(self, memory: RunTimes, state: State, decision: Decision) -> Decision:
        """Agents get no further turn in a run whose time is over."""
        if RUN_LAYER not in memory.expired or memory.said_outside or not isinstance(decision, Assign):
            return decision
        kinds = state.participants
        if decision.answers is not None or all(kinds.get(name) != "agent" for name in decision.speakers):
            return decision
        if not state.ordered:
            return Wait(DEADLINE_REASON, decision.errors, decision.facts)
        person = next((name for name, kind in kinds.items() if kind == "human"), None)
        if person is not None:
            return Assign((person,), DEADLINE_REASON, errors=decision.errors, facts=decision.facts)
        return Close(DEADLINE_REASON, errors=decision.errors, facts=decision.facts)


def _check_seconds(seconds: object, layer: str) -> None:
    if seconds is None or seconds == UNLIMITED:
        return
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < inf:
        advice = f"give seconds, 0 or more, or {UNLIMITED!r}"
        raise RulesInvalid(f"{layer} of deadlines is {describe(seconds)}; {advice}")


def _with_until(draft: Envelope, until: Instant) -> Envelope:
    """The start of a call with the instant at which its time is over."""
    return with_event_data(draft, {**draft.event_data, "until": until})


LAYER_WORDS: dict[Layer, str] = {"step": "this call", "stage": "this turn", "run": "this run"}


def _denial_text(first: LayerDeadline, call: TimedCall | None) -> str:
    over = f"the time for {LAYER_WORDS[first.layer]} is over at {first.at}"
    return over if call is None else f"{over}; the call had left before, and may have taken effect"


def _in_flight(memory: RunTimes, turn_id: str) -> int:
    return sum(call.turn_id == turn_id or not turn_id for call in memory.calls)


def _expired_event(layer: LayerDeadline, turn_id: str, memory: RunTimes, *, overrun_ms: int = 0) -> Json:
    turn_id = "" if layer.layer == "run" else turn_id
    return data_of(DeadlineExpired(layer.layer, layer.at, overrun_ms, turn_id, _in_flight(memory, turn_id)))


def _expiry_draft(layer: LayerDeadline, turn_id: str, memory: RunTimes) -> Envelope:
    return hub_draft(EV_DEADLINE_EXPIRED, _expired_event(layer, turn_id, memory), audience=[OPERATORS])


def _expiry_fact(layer: LayerDeadline, turn_id: str, memory: RunTimes, *, at: Instant) -> RelatedFact:
    overrun = max(0, round(seconds_between(layer.at, at) * 1000))
    return RelatedFact(EV_DEADLINE_EXPIRED, _expired_event(layer, turn_id, memory, overrun_ms=overrun), (OPERATORS,))


def _end_draft(memory: RunTimes, state: State, turn: Turn) -> Envelope:
    """What ends a turn that has not ended by itself: that a tool call of it is in doubt, or its failure."""
    lost = next((call for call in memory.calls if call.turn_id == turn.turn_id and call.is_tool), None)
    if lost is None:
        detail = "its time was over, and it had not ended by itself"
        agent = starting_agent(state, turn)
        return turn_failed_draft(turn, ENDED_BY_DEADLINE, detail, cause=turn.cause, agent=agent)
    why = "it had no outcome when the time of its turn was over"
    doubted = CallDoubted(turn.turn_id, lost.index, lost.name, turn.speaker, why)
    return hub_draft(EV_CALL_DOUBTED, data_of(doubted), cause=turn.cause, audience=turn_audience(turn))


# Tasks


def _inherited_deadline(memory: RunTimes, state: State) -> LayerDeadline | None:
    """When the time of the turn that has given this task is over; None in the channel of no task."""
    origin = state.knobs.get(TASK_KNOB)
    until = origin.get(TASK_UNTIL) if isinstance(origin, dict) else None
    if not isinstance(until, str) or not until or memory.created is None:
        return None
    assert isinstance(origin, dict), "it has a field"
    is_default = origin.get(TASK_UNTIL_DEFAULT) is True
    begun = memory.created.default if is_default else memory.created.given
    at = until if begun == state.created_at else add_seconds(begun, seconds_between(state.created_at, until))
    return LayerDeadline(at, "run", begun, is_default)


def task_deadline(ruleset: Ruleset, fold: Fold, turn_id: str) -> Json:
    """What the origin of a task says of the time left to the turn that gives it; empty if that is not limited."""
    for guard in ruleset.guards:
        if isinstance(guard, Deadlines):
            memory = ruleset.memory_of(fold, guard)
            assert isinstance(memory, RunTimes), "it is the memory of this guard"
            first = guard.first_deadline(memory, fold.state, turn_id)
            if first is not None:
                return {TASK_UNTIL: first.at, **({TASK_UNTIL_DEFAULT: True} if first.is_default else {})}
    return {}


def is_step_limit(ruleset: Ruleset, seconds: float) -> bool:
    """Whether so many seconds are all that a call may take, and not what is left to its turn or run."""
    guard = next((each for each in ruleset.guards if isinstance(each, Deadlines)), None)
    step = None if guard is None else guard.seconds("step")
    return step is not None and seconds > step - LEAST_SECONDS / 2
