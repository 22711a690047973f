"""What the deadlines of a channel are counted from: its runs, turns and calls, and the time that people took to decide.

Rule 1: a run begins when a message from outside (of a person or of code) gives an agent a turn while none is owed, or
        when the turn of such a message comes up behind others. What agents cause belongs to the run that goes on.
Rule 2: the time of a turn begins when it is the first of its speaker. The time of a call begins when it is first
        recorded as started: one that is made again after a crash has no time of its own.
Rule 3: a turn waits for a person under the same conditions as in `core.state.Turn`.
Rule 4: instants are kept, and no deadlines: with other limits a log folds to the same.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from antiphon.core.envelope import HUB, NEVER, Envelope, Instant, add_seconds, seconds_between
from antiphon.core.events import (
    EV_CHANNEL_CREATED,
    EV_CHANNEL_FORKED,
    EV_DEADLINE_EXTENDED,
    EV_TURN_ASSIGNED,
    EV_TURN_FAILED,
    SPEECH_TYPES,
)
from antiphon.core.evolve import CLOCK_SET_REASON
from antiphon.core.execution_events import (
    EV_APPROVAL_REQUESTED,
    EV_CALL_APPROVED,
    EV_CALL_CLEARED,
    EV_CALL_DOUBTED,
    EV_CALL_FAILED,
    EV_CALL_FINISHED,
    EV_CALL_STARTED,
    EV_TURN_CLAIMED,
    EV_TURN_RELEASED,
    EV_TURN_RESUMED,
    EV_TURN_SUSPENDED,
)
from antiphon.core.protection_events import EV_DEADLINE_EXPIRED, EV_DEADLINE_REBASED
from antiphon.guards.run_limits import agents_among

RUN_LAYER = "run"
MAX_UNANSWERED = 256
"""How many messages from outside are remembered that have no turn yet."""


class CountedSince(msgspec.Struct, frozen=True):
    """Since when a time counts."""

    given: Instant
    """For a limit that a user has set."""
    default: Instant
    """For a limit of a tier: time in which no hub was open does not count."""

    def later(self, seconds: float) -> CountedSince:
        """The same, so many seconds later."""
        return CountedSince(add_seconds(self.given, seconds), add_seconds(self.default, seconds))

    def not_before(self, at: Instant, *, clock_set: bool) -> CountedSince:
        """The same after a break that ended at this instant."""
        return CountedSince(max(self.given, at) if clock_set else self.given, max(self.default, at))


def counted_from(at: Instant) -> CountedSince:
    """A time that begins now."""
    return CountedSince(at, at)


class TimedTurn(msgspec.Struct, frozen=True):
    """A turn that is owed."""

    turn_id: str
    speaker: str
    cause: str | None
    since: CountedSince
    from_outside: bool = False
    """Whether it answers a message from outside."""
    running: bool = False
    """Whether an attempt at it is in progress, as far as the log tells."""
    doubts: tuple[int, ...] = ()
    asked: tuple[int, ...] = ()
    approved: tuple[int, ...] = ()
    suspended: bool = False
    waits_since: Instant = NEVER
    """Since when it waits for a person; `NEVER` if it does not."""

    @property
    def waits(self) -> bool:
        """Whether a person must decide before it goes on."""
        return self.suspended or bool(self.doubts) or (bool(self.asked) and not self.approved and not self.running)


class TimedCall(msgspec.Struct, frozen=True):
    """A call without an outcome."""

    turn_id: str
    index: int
    name: str
    since: CountedSince
    is_tool: bool


class EndedWait(msgspec.Struct, frozen=True):
    """A person has decided, and a turn goes on."""

    envelope_id: str
    """The envelope with which it goes on."""
    turn_id: str
    since: Instant
    run_since: Instant
    """Since when nothing else was done in the run; `NEVER` if something is."""


class RunTimes(msgspec.Struct, frozen=True):
    """What deadlines are counted from."""

    agents: tuple[str, ...] = ()
    ordered: bool = False
    created: CountedSince | None = None
    unanswered: tuple[str, ...] = ()
    """The messages from outside that have no turn yet."""
    said_outside: bool = False
    """Whether the last thing was said from outside."""
    run: CountedSince | None = None
    turns: tuple[TimedTurn, ...] = ()
    calls: tuple[TimedCall, ...] = ()
    settled: TimedCall | None = None
    """The call that had an outcome last."""
    ended_wait: EndedWait | None = None
    last_end: Instant = NEVER
    """When a turn last ended."""
    suspended: float = 0.0
    """By how many seconds the deadline of the run was moved."""
    expired: dict[str, Instant] = msgspec.field(default_factory=dict)
    """When it was recorded that the time of the run (`run`), or of a turn, is over; later, if it waited meanwhile."""

    def turn(self, turn_id: object) -> TimedTurn | None:
        """The turn of this id, if it is owed."""
        for turn in self.turns:
            if turn.turn_id == turn_id:
                return turn
        return None

    def call(self, turn_id: object, index: object) -> TimedCall | None:
        """The call at this position, if it has no outcome."""
        for call in self.calls:
            if call.index == index and call.turn_id == turn_id:
                return call
        return None


def fold_times(memory: RunTimes, envelope: Envelope) -> RunTimes:
    """The memory once this envelope is part of the log."""
    kind = envelope.event_type
    if kind in SPEECH_TYPES:
        return _after_speech(memory, envelope)
    fold = HUB_FOLDS.get(kind)
    return memory if fold is None or envelope.sender_id != HUB else fold(memory, envelope)


def _after_speech(memory: RunTimes, envelope: Envelope) -> RunTimes:
    speaker = envelope.sender_id
    if speaker not in memory.agents:
        unanswered = (*memory.unanswered, envelope.envelope_id)[-MAX_UNANSWERED:]
        return replace(memory, unanswered=unanswered, said_outside=True)
    if memory.said_outside:
        memory = replace(memory, said_outside=False)
    mine = [turn for turn in memory.turns if turn.speaker == speaker]
    if not mine:
        return memory
    ended = next((turn for turn in mine if turn.cause == envelope.causation_id), mine[0])
    return _without_turn(memory, ended, envelope.created_at)


def _without_turn(memory: RunTimes, ended: TimedTurn, at: Instant) -> RunTimes:
    """The memory when a turn has ended. The time of the next turn of its speaker begins, and perhaps a run."""
    turns = tuple(turn for turn in memory.turns if turn is not ended)
    following = next((turn for turn in turns if turn.speaker == ended.speaker), None)
    run, expired = memory.run, {key: when for key, when in memory.expired.items() if key != ended.turn_id}
    suspended = memory.suspended
    if following is not None:
        begun = replace(following, since=counted_from(at))
        turns = tuple(begun if turn is following else turn for turn in turns)
        if following.from_outside and all(turn.speaker == ended.speaker for turn in turns):
            run, expired, suspended = counted_from(at), {}, 0.0
    calls = tuple(call for call in memory.calls if call.turn_id != ended.turn_id)
    return replace(memory, turns=turns, calls=calls, run=run, expired=expired, suspended=suspended, last_end=at)


def _after_creation(memory: RunTimes, envelope: Envelope) -> RunTimes:
    data, created = envelope.event_data, counted_from(envelope.created_at)
    return RunTimes(agents_among(data), data.get("ordered") is True, created)


def _after_assignment(memory: RunTimes, envelope: Envelope) -> RunTimes:
    given, cause = envelope.event_data.get("speakers"), envelope.causation_id
    since = counted_from(envelope.created_at)
    names = [name for name in given if name in memory.agents] if isinstance(given, list) else []
    outside = cause in memory.unanswered
    unanswered = memory.unanswered[memory.unanswered.index(cause) + 1 :] if outside else memory.unanswered
    kept = () if memory.ordered else memory.turns
    new = tuple(TimedTurn(f"{envelope.sequence}/{name}", name, cause, since, outside) for name in dict.fromkeys(names))
    begins = bool(new) and (memory.run is None or (outside and not memory.turns))
    memory = replace(memory, turns=(*kept, *new), unanswered=unanswered)
    if memory.ordered and memory.calls:
        memory = replace(memory, calls=())
    return replace(memory, run=since, expired={}, suspended=0.0) if begins else memory


def _after_failure(memory: RunTimes, envelope: Envelope) -> RunTimes:
    failed = memory.turn(envelope.event_data.get("turn"))
    memory = replace(memory, said_outside=False)
    return memory if failed is None else _without_turn(memory, failed, envelope.created_at)


def _after_start(memory: RunTimes, envelope: Envelope) -> RunTimes:
    data = envelope.event_data
    turn_id, index = data.get("turn"), data.get("index")
    if not isinstance(turn_id, str) or not isinstance(index, int) or memory.call(turn_id, index) is not None:
        return memory
    call = TimedCall(
        turn_id, index, str(data.get("name", "")), counted_from(envelope.created_at), data.get("args") is not None
    )
    return replace(memory, calls=(*memory.calls, call))


def _after_outcome(memory: RunTimes, envelope: Envelope) -> RunTimes:
    data = envelope.event_data
    settled = memory.call(data.get("turn"), data.get("index"))
    if settled is not None:
        others = tuple([call for call in memory.calls if call is not settled]) if len(memory.calls) > 1 else ()
        memory = replace(memory, calls=others, settled=settled)
    turn = memory.turn(data.get("turn"))
    if turn is None or not (turn.doubts or turn.asked or turn.approved):
        return memory
    return _update_turn(memory, envelope, lambda turn: _without_index(turn, data.get("index")))


def _without_index(turn: TimedTurn, index: object) -> TimedTurn:
    doubts, asked, approved = (
        tuple(each for each in calls if each != index) for calls in (turn.doubts, turn.asked, turn.approved)
    )
    return replace(turn, doubts=doubts, asked=asked, approved=approved)


def _after_clearing(memory: RunTimes, envelope: Envelope) -> RunTimes:
    """A person has decided that a call is made again: it has its whole time."""
    return replace(_after_outcome(memory, envelope), settled=None)


def _changing(change: Callable[[TimedTurn, object], TimedTurn]) -> Callable[[RunTimes, Envelope], RunTimes]:
    """What follows from an event that changes one turn. `change` gets the index of the call, if it is about one."""

    def fold(memory: RunTimes, envelope: Envelope) -> RunTimes:
        index = envelope.event_data.get("index")
        return _update_turn(memory, envelope, lambda turn: change(turn, index))

    return fold


def _update_turn(memory: RunTimes, envelope: Envelope, change: Callable[[TimedTurn], TimedTurn]) -> RunTimes:
    """The memory with one turn changed, which may begin to wait for a person with that, or go on."""
    before, at = memory.turn(envelope.event_data.get("turn")), envelope.created_at
    if before is None:
        return memory
    turn = change(before)
    if turn.waits and not turn.waits_since:
        turn = replace(turn, waits_since=at)
    elif turn.waits_since and not turn.waits:
        memory = _after_wait(memory, turn, envelope)
        turn = replace(turn, waits_since=NEVER)
    return replace(memory, turns=tuple(turn if each is before else each for each in memory.turns))


def _after_wait(memory: RunTimes, turn: TimedTurn, envelope: Envelope) -> RunTimes:
    others = [each for each in memory.turns if each.turn_id != turn.turn_id]
    idle = all(each.waits_since for each in others)
    run_since = max(turn.waits_since, memory.last_end, *(each.waits_since for each in others)) if idle else NEVER
    ended = EndedWait(envelope.envelope_id, turn.turn_id, turn.waits_since, run_since)
    expired = {
        key: envelope.created_at if key in (RUN_LAYER, turn.turn_id) else memory.expired[key] for key in memory.expired
    }
    return replace(memory, ended_wait=ended, expired=expired)


def _after_rebase(memory: RunTimes, envelope: Envelope) -> RunTimes:
    """The memory when the deadlines were moved by the time that a person took."""
    ended, moved = memory.ended_wait, envelope.event_data.get("suspended_ms")
    if ended is None or not isinstance(moved, int):
        return memory
    seconds, at = moved / 1000, envelope.created_at
    turns = tuple(
        replace(turn, since=turn.since.later(seconds)) if turn.turn_id == ended.turn_id else turn
        for turn in memory.turns
    )
    idle = min(seconds, seconds_between(ended.run_since, at)) if ended.run_since else 0.0
    run = None if memory.run is None else memory.run.later(idle)
    return replace(memory, turns=turns, run=run, suspended=memory.suspended + idle, ended_wait=None)


def _after_break(memory: RunTimes, envelope: Envelope) -> RunTimes:
    """The memory after an outage that defaults do not count, or after the clock was set."""
    since, clock_set = envelope.event_data.get("since"), envelope.event_data.get("reason") == CLOCK_SET_REASON
    return _moved(memory, lambda each: each.not_before(str(since), clock_set=clock_set)) if since else memory


def _after_fork(memory: RunTimes, envelope: Envelope) -> RunTimes:
    at = envelope.created_at
    return replace(_moved(memory, lambda each: counted_from(at)), expired={})


def _moved(memory: RunTimes, move: Callable[[CountedSince], CountedSince]) -> RunTimes:
    return replace(
        memory,
        created=None if memory.created is None else move(memory.created),
        run=None if memory.run is None else move(memory.run),
        turns=tuple(replace(turn, since=move(turn.since)) for turn in memory.turns),
        calls=tuple(replace(call, since=move(call.since)) for call in memory.calls),
    )


def _after_expiry(memory: RunTimes, envelope: Envelope) -> RunTimes:
    data = envelope.event_data
    key = RUN_LAYER if data.get("layer") == RUN_LAYER else str(data.get("turn", ""))
    if data.get("layer") == "step" or (key != RUN_LAYER and memory.turn(key) is None):
        return memory
    return replace(memory, expired={**memory.expired, key: envelope.created_at})


def _with(calls: tuple[int, ...], index: object) -> tuple[int, ...]:
    return calls if index in calls or not isinstance(index, int) else (*calls, index)


HUB_FOLDS: dict[str, Callable[[RunTimes, Envelope], RunTimes]] = {
    EV_CHANNEL_CREATED: _after_creation,
    EV_CHANNEL_FORKED: _after_fork,
    EV_TURN_ASSIGNED: _after_assignment,
    EV_TURN_FAILED: _after_failure,
    EV_TURN_CLAIMED: _changing(lambda turn, index: replace(turn, running=True)),
    EV_TURN_RELEASED: _changing(lambda turn, index: replace(turn, running=False)),
    EV_TURN_SUSPENDED: _changing(lambda turn, index: replace(turn, running=False, suspended=True)),
    EV_TURN_RESUMED: _changing(lambda turn, index: replace(turn, suspended=False)),
    EV_CALL_STARTED: _after_start,
    EV_CALL_FINISHED: _after_outcome,
    EV_CALL_FAILED: _after_outcome,
    EV_CALL_CLEARED: _after_clearing,
    EV_CALL_DOUBTED: _changing(lambda turn, index: replace(turn, running=False, doubts=_with(turn.doubts, index))),
    EV_APPROVAL_REQUESTED: _changing(lambda turn, index: replace(turn, asked=_with(turn.asked, index))),
    EV_CALL_APPROVED: _changing(
        lambda turn, index: replace(_without_index(turn, index), approved=_with(turn.approved, index))
    ),
    EV_DEADLINE_EXTENDED: _after_break,
    EV_DEADLINE_EXPIRED: _after_expiry,
    EV_DEADLINE_REBASED: _after_rebase,
}
"""What follows from each type of the hub's envelopes."""
HEARD_TYPES = SPEECH_TYPES | HUB_FOLDS.keys()
