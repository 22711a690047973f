"""How facts change a channel's state.

Rule 1: every change of State happens in this file and nowhere else, but for tombstones: see `erasing`.
Rule 2: nothing here can fail. A strange envelope is a fact too; it just moves nothing.
Rule 3: nothing here decides. If you are reaching for a rule or a limit, see `rules` or `guard`.

Time comes from `envelope.created_at`. There is no other clock.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from antiphon.core.codec import copied
from antiphon.core.envelope import HUB, Envelope
from antiphon.core.erasing import ERASED, buried, is_erased
from antiphon.core.events import (
    ASIDE,
    EV_CALL_CONFLICTED,
    EV_CALL_STARTED,
    NO_ROUTING,
    Acknowledged,
    Assigned,
    CallCleared,
    CallDoubted,
    CallFailed,
    CallFinished,
    Claimed,
    Closed,
    ContextSet,
    Created,
    Event,
    Expired,
    Extended,
    Failed,
    Forked,
    Json,
    Opened,
    Packet,
    Paused,
    Prepared,
    Rejected,
    Released,
    Routing,
    TaskGiven,
    TaskOver,
    Text,
    TurnDelayed,
    TurnResumed,
    TurnSuspended,
    event_of,
)
from antiphon.core.ids import is_time_ordered
from antiphon.core.instants import NEVER, Instant, after, expiry, moment, seconds_between
from antiphon.core.owed import claimed_turn, doubted_turn, recovering_turn, released_turn
from antiphon.core.state import State, Turn

AGENT = "agent"
TASK_SECONDS = 600.0
"""How long a task without a time to live may take, by default."""
CLOCK_SET = "clock"
"""Why an expectation was extended, if no time passed at all: the clock was set."""
MOVES_NOTHING = frozenset({EV_CALL_STARTED, EV_CALL_CONFLICTED})


def evolve(state: State, envelope: Envelope) -> State:
    """The state once this envelope is part of the log."""
    at = envelope.created_at
    if state.newest_id < envelope.envelope_id and is_time_ordered(envelope.envelope_id):
        state = replace(state, newest_id=envelope.envelope_id)
    if ERASED in envelope.event_data and is_erased(envelope):
        return buried(replace(state, sequence=envelope.sequence, updated_at=at, erased=True), event_of(envelope))
    if state.ended or envelope.event_type in MOVES_NOTHING:
        return replace(state, sequence=envelope.sequence, updated_at=at)
    event = event_of(envelope)
    if isinstance(event, Text):
        routed = state.hops or state.stays or state.routing is not NO_ROUTING
        return _spoken(_grounded(state, envelope) if routed else state, envelope)
    active = state.active_at if envelope.sender_id == HUB else at
    return _moved(replace(state, sequence=envelope.sequence, updated_at=at, active_at=active), envelope, event)


def _moved(state: State, envelope: Envelope, event: Event) -> State:
    match event:
        case Packet(context_updates=updates, routing=routing):
            return _spoken(merged(_hopped(state, envelope, routing), updates), envelope)
        case ContextSet() as updates:
            return merged(state, updates)
        case Assigned() as assigned:
            return _assigned(state, envelope, assigned)
        case TaskGiven() | TaskOver() if envelope.sender_id == HUB:
            state = _with_task(state, event)
            return (_worked(state, event) if state.owed else None) or state
        case _:
            worked = _worked(state, event) if state.owed and envelope.sender_id == HUB else None
            return _lived(state, envelope, event) if worked is None else worked


def _lived(state: State, envelope: Envelope, event: Event) -> State:
    match event:
        case Created() if not state.created_at:
            return _created(state, envelope, event)
        case Acknowledged() | Rejected():
            return replace(state, awaiting=tuple(name for name in state.awaiting if name != envelope.sender_id))
        case Prepared(text=text) if state.status == "invited":
            return replace(state, prepared=text)
        case Opened() if state.status == "invited":
            return replace(state, status="active", active_at=envelope.created_at)
        case Paused(reason=reason):
            return replace(state, paused=reason)
        case Forked() as provenance:
            return _rebased(state, envelope.created_at, provenance)
        case Extended(since=since, reason=reason) if envelope.sender_id == HUB:
            return _extended(state, since, reason)
        case Expired():
            return replace(state, status="expired", close_reason="expired", speakers=(), owed=(), tasks={}, paused="")
        case Closed(reason=reason):
            return replace(state, status="closed", close_reason=reason, speakers=(), owed=(), tasks={}, paused="")
        case _:
            return state


def _created(state: State, envelope: Envelope, event: Created) -> State:
    at = envelope.created_at
    return replace(
        state,
        channel_id=envelope.channel_id,
        type=event.type,
        creator_id=event.creator,
        participants={seat.name: seat.kind for seat in event.participants},
        knobs=copied(event.knobs),
        ordered=event.ordered,
        created_at=at,
        expires_at=expiry(at, event.ttl),
        awaiting=tuple(seat.name for seat in event.participants if seat.name != event.creator),
        context_vars=copied(event.context_vars),
        active=event.active or {},
    )


def _rebased(state: State, at: Instant, provenance: Forked) -> State:
    """The state when its clocks begin anew: nobody is late because of what was copied from long ago."""
    try:
        expires = after(state.expires_at, seconds_between(provenance.since, at)) if state.expires_at else NEVER
    except ValueError:
        expires = state.expires_at
    heard = max(0, provenance.said - 1)
    # A task reports to the channel that gave it, which a fork of that channel is not.
    return replace(state, assigned_at=at, active_at=at, expires_at=expires, heard=heard, open_tasks={})


def _extended(state: State, since: Instant, reason: str) -> State:
    """The state when expectations count from `since`. A task that was given has its whole time again, too."""
    try:
        moment(since)
    except ValueError:
        return state
    tasks = {task: max(until, after(since, TASK_SECONDS)) for task, until in state.tasks.items()}
    if reason == CLOCK_SET:
        return replace(state, clock_set_at=since, tasks=tasks)
    return replace(state, resumed_at=since, tasks=tasks)


def _spoken(state: State, envelope: Envelope) -> State:
    speaker, at = envelope.sender_id, envelope.created_at
    active = state.active_at if speaker == HUB else at
    if envelope.audience is not None:
        state = _whispered(state, envelope)
    if state.prepared is not None:
        state = replace(state, prepared=None)
    if _is_put_in(state, envelope):
        return replace(
            state,
            sequence=envelope.sequence,
            updated_at=at,
            active_at=active,
            spoken=True,
            interjected=True,
            last_envelope_id=envelope.envelope_id,
            paused="",
            unattended=0,
        )
    spoken = replace(
        state,
        sequence=envelope.sequence,
        updated_at=at,
        active_at=active,
        spoken=True,
        interjected=False,
        failures=0,
        turn_count=state.turn_count + 1,
        speakers=tuple(name for name in state.speakers if name != speaker) if state.speakers else (),
        last_speaker_id=speaker,
        last_envelope_id=envelope.envelope_id,
    )
    if AGENT in envelope.event_data:
        spoken = _led(spoken, speaker, envelope.event_data[AGENT])
    return _answered(spoken, envelope) if state.owed or state.unattended or state.paused else spoken


def _whispered(state: State, envelope: Envelope) -> State:
    """The state after something was said in private: an agent answers only those who heard all that it was told."""
    hearers = tuple(dict.fromkeys((*(envelope.audience or ()), envelope.sender_id)))
    told = dict(state.whispered)
    for name in hearers:
        if state.participants.get(name) == "agent" and name != envelope.sender_id:
            told[name] = tuple(each for each in told.get(name, hearers) if each in hearers)
    return replace(state, whispered=told)


def _to_answer(state: State, *, again: bool) -> dict[str, tuple[str, ...]]:
    """Who heard what the turn that is given now answers: what was said since it was last given, if anything was.

    A turn that is given again answers what it was to answer before as well.
    """
    if not again:
        return state.whispered if state.spoken else state.answering
    both = state.answering | state.whispered
    return {name: tuple(each for each in state.answering.get(name, who) if each in who) for name, who in both.items()}


def _led(state: State, speaker: str, agent: object) -> State:
    """The state when somebody of a speaker's team has answered, who answers from now on."""
    if state.participants.get(speaker) != "agent" or not isinstance(agent, str):
        return state
    others = {name: who for name, who in state.active.items() if name != speaker}
    return replace(state, active={**others, speaker: agent} if agent.startswith(f"{speaker}/") else others)


def _is_put_in(state: State, envelope: Envelope) -> bool:
    """Whether this is said out of turn, or beside it."""
    return state.ordered and (envelope.sender_id not in state.speakers or envelope.event_data.get(ASIDE) is True)


def _grounded(state: State, envelope: Envelope) -> State:
    """Somebody has spoken without handing the turn on. If that was no agent, it ends a chain of handoffs."""
    if not _is_put_in(state, envelope):
        state = replace(state, routing=NO_ROUTING, stays=0)
    if not state.hops or state.participants.get(envelope.sender_id) == "agent":
        return state
    return replace(state, hops=0)


def _hopped(state: State, envelope: Envelope, routing: Routing) -> State:
    """The state with one more handoff, if this is one."""
    target = routing.target
    if _is_put_in(state, envelope):
        return _grounded(state, envelope)
    if target not in state.participants or routing.rejected or routing.finish is not None:
        return replace(_grounded(state, envelope), routing=routing)
    if target == envelope.sender_id:
        return replace(state, stays=state.stays + 1, routing=routing)
    return replace(state, hops=state.hops + 1, stays=0, routing=routing)


def _answered(state: State, envelope: Envelope) -> State:
    """What was said may end a turn that was owed. Said by a person or by code, it ends a pause too."""
    mine = [turn for turn in state.owed if turn.speaker == envelope.sender_id]
    ended = next((turn for turn in mine if turn.cause == envelope.causation_id), mine[0] if mine else None)
    unattended = state.unattended + 1 if ended is not None and ended.owner else 0
    state = replace(state, unattended=unattended, paused="")
    return state if ended is None else _without(state, ended.turn_id, envelope.created_at)


def _assigned(state: State, envelope: Envelope, event: Assigned) -> State:
    """In an ordered channel a new assignment replaces the one before; in a free one it waits behind it."""
    at, kinds, fired = envelope.created_at, state.participants, state.fired
    if event.rule is not None and event.rule not in fired:
        state = replace(state, fired=(*fired, event.rule))
    again = state.interjected and tuple(event.speakers) == state.speakers
    answering = _to_answer(state, again=again)
    new = tuple(
        Turn(
            f"{envelope.sequence}/{name}", name, envelope.causation_id, envelope.sequence, audience=answering.get(name)
        )
        for name in dict.fromkeys(event.speakers)
        if kinds.get(name) == "agent"
    )
    state = replace(state, answering=answering, whispered={}, spoken=False)
    if again:  # nobody gains time by that
        return replace(state, owed=new, paused="")
    state = _grouped(state, tuple(dict.fromkeys(event.speakers)))
    if state.ordered or not state.owed:
        turns = state.turn_count
        return replace(state, speakers=tuple(event.speakers), assigned_at=at, assigned_turns=turns, owed=new, paused="")
    speakers = tuple(dict.fromkeys((*state.speakers, *event.speakers)))
    return replace(state, speakers=speakers, owed=(*state.owed, *new), paused="")


def _grouped(state: State, speakers: tuple[str, ...]) -> State:
    """The state when the turn is given anew: what failed before it is forgotten."""
    group = speakers if state.ordered and len(speakers) > 1 else ()
    if group == state.group and not state.failed_branches:
        return state
    return replace(state, group=group, failed_branches={})


def _worked(state: State, event: Event) -> State | None:
    """The state after something that happened to a turn that is owed; None if nothing did."""
    match event:
        case Claimed(turn=turn_id, epoch=epoch, owner=owner):
            return _changed(state, turn_id, lambda turn: claimed_turn(turn, epoch, owner))
        case Released(turn=turn_id, epoch=epoch):
            return _changed(state, turn_id, lambda turn: released_turn(turn, epoch))
        case CallFinished() | CallFailed() | CallCleared():
            return _returned(state, event)
        case CallDoubted(turn=turn_id, index=index):
            return _changed(state, turn_id, lambda turn: doubted_turn(turn, index))
        case TurnDelayed() | TurnSuspended() | TurnResumed():
            return _changed(state, event.turn, lambda turn: recovering_turn(turn, event))
        case Failed(turn=turn_id, speaker=speaker, reason=reason):
            failed = _branch_failed(state, speaker, reason) if speaker in state.group else state
            return _without(failed, turn_id, state.updated_at)
        case TaskGiven(task=task, until=until):
            return replace(state, tasks={**state.tasks, task: until})
        case TaskOver(task=task) if task in state.tasks:
            return _with_time(state, {each: until for each, until in state.tasks.items() if each != task})
        case _:
            return None


def _branch_failed(state: State, speaker: str, reason: str) -> State:
    """The state when one of a group has failed."""
    failed = {**state.failed_branches, speaker: reason}
    return replace(state, failed_branches=failed, failures=state.failures + 1)


def _with_task(state: State, event: TaskGiven | TaskOver) -> State:
    """The state when a task has begun or ended, whether or not the turn that gave it is still owed."""
    others = {task: turn for task, turn in state.open_tasks.items() if task != event.task}
    return replace(state, open_tasks={**others, event.task: event.turn} if isinstance(event, TaskGiven) else others)


def _with_time(state: State, tasks: dict[str, Instant]) -> State:
    """The state when a task is over. A turn that has waited for the last one has its whole time again."""
    return replace(state, tasks=tasks, assigned_at=state.assigned_at if tasks else state.updated_at)


def _changed(state: State, turn_id: str, change: Callable[[Turn], Turn]) -> State:
    owed = tuple(change(turn) if turn.turn_id == turn_id else turn for turn in state.owed)
    changed = replace(state, owed=owed)
    return _restarted(state, changed, state.updated_at)


def _restarted(before: State, now: State, at: Instant) -> State:
    """The state with its whole time again, if its clock stood still until now, whichever turn stopped it."""
    return replace(now, assigned_at=at) if before.clock_stopped and not now.clock_stopped else now


def _returned(state: State, event: CallFinished | CallFailed | CallCleared) -> State:
    """A call is no longer under way, nor in doubt. Whatever ended processes before has not ended this one."""

    def settled(turn: Turn) -> Turn:
        left = tuple(doubt for doubt in turn.doubts if doubt != event.index)
        return replace(turn, attempts=0, crashes=0, doubts=left)

    return _changed(state, event.turn, settled)


def _without(state: State, turn_id: str, at: Instant) -> State:
    """The state when a turn has ended. The next in line is owed from now on."""
    owed = tuple(turn for turn in state.owed if turn.turn_id != turn_id)
    gone = {turn.speaker for turn in state.owed if turn.turn_id == turn_id}
    others = (name for name in state.speakers if name not in gone)
    speakers = tuple(dict.fromkeys((*others, *(turn.speaker for turn in owed))))
    next_one = bool(owed) and owed[0] is not state.owed[0]
    since, tasks = at if next_one else state.assigned_at, state.tasks if owed else {}
    ended = replace(state, owed=owed, speakers=speakers, assigned_at=since, tasks=tasks)
    return _restarted(state, ended, at) if owed else ended


def merged(state: State, updates: ContextSet) -> State:
    """The state with these context variables changed: first deleted, then set."""
    if not updates.set and not updates.delete:
        return state
    gone = frozenset(updates.delete)
    kept: Json = {key: value for key, value in state.context_vars.items() if key not in gone}
    return replace(state, context_vars={**kept, **copied(updates.set)})
