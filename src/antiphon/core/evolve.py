"""How facts change a channel's state.

Rule 1: what an envelope changes in State is said in this file; what it changes in one turn that is owed, in `state`
        (`claimed_turn` and its neighbours) and `waiting_turns`; in the context variables, in `state`; for tombstones,
        in `redaction`. Only a quarantine makes a State that no envelope led to.
Rule 2: nothing here can fail. A strange envelope is a fact too; it just moves nothing.
Rule 3: nothing here decides. If you are reaching for a rule or a limit, see `ruleset` or `guard`.

Time comes from `envelope.created_at`. There is no other clock.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from antiphon.core.codec import copy_json
from antiphon.core.envelope import (
    ERASED,
    HUB,
    NEVER,
    Envelope,
    Instant,
    add_seconds,
    expiry,
    is_tombstone,
    is_uuid7,
    seconds_between,
    to_datetime,
)
from antiphon.core.event_data import event_of
from antiphon.core.events import (
    ASIDE_FIELD,
    NO_ROUTING,
    ChannelClosed,
    ChannelCreated,
    ChannelExpired,
    ChannelForked,
    ChannelOpened,
    ChannelPaused,
    ContextSet,
    DeadlineExtended,
    Event,
    FailedTurn,
    FirstWordsPrepared,
    InviteAccepted,
    InviteRejected,
    Packet,
    Routing,
    TaskEnded,
    TaskStarted,
    TaskWaiting,
    Text,
    TurnAssigned,
)
from antiphon.core.execution_events import (
    EV_CALL_CONFLICTED,
    EV_CALL_RETURNED_LATE,
    EV_CALL_STARTED,
    ApprovalExpired,
    ApprovalReminded,
    ApprovalRequested,
    CallApproved,
    CallCleared,
    CallDoubted,
    CallFailed,
    CallFinished,
    TurnClaimed,
    TurnDelayed,
    TurnReleased,
    TurnResumed,
    TurnSuspended,
)
from antiphon.core.redaction import state_after_tombstone
from antiphon.core.state import (
    State,
    Turn,
    assigned_turn,
    claimed_turn,
    merge_context,
    settled_turn,
    without_name,
)
from antiphon.core.waiting_turns import recovering_turn, released_turn, waiting_turn

AGENT_FIELD = "agent"
DEFAULT_TASK_SECONDS = 600.0
"""How long a task without a time to live may take, by default."""
CLOCK_SET_REASON = "clock"
"""Why an expectation was extended, if no time passed at all: the clock was set."""
INERT_TYPES = frozenset({EV_CALL_STARTED, EV_CALL_CONFLICTED, EV_CALL_RETURNED_LATE})


def evolve(state: State, envelope: Envelope) -> State:
    """The state once this envelope is part of the log."""
    at = envelope.created_at
    if state.newest_id < envelope.envelope_id and is_uuid7(envelope.envelope_id):
        state = replace(state, newest_id=envelope.envelope_id)
    if ERASED in envelope.event_data and is_tombstone(envelope):
        return state_after_tombstone(
            replace(state, sequence=envelope.sequence, updated_at=at, erased=True), event_of(envelope)
        )
    if state.ended or envelope.event_type in INERT_TYPES:
        return replace(state, sequence=envelope.sequence, updated_at=at)
    event = event_of(envelope)
    if isinstance(event, Text):
        state = merge_context(state, ContextSet(event.set)) if event.set else state
        routed = state.hops or state.stays or state.routing is not NO_ROUTING
        return _apply_speech(_end_handoff_chain(state, envelope) if routed else state, envelope)
    active = state.active_at if envelope.sender_id == HUB else at
    return _apply_event(replace(state, sequence=envelope.sequence, updated_at=at, active_at=active), envelope, event)


def _apply_event(state: State, envelope: Envelope, event: Event) -> State:
    match event:
        case Packet(context_updates=updates, routing=routing):
            return _apply_speech(merge_context(_count_handoff(state, envelope, routing), updates), envelope)
        case ContextSet() as updates:
            return merge_context(state, updates)
        case TurnAssigned() as assigned:
            return _apply_assignment(state, envelope, assigned)
        case TaskStarted() | TaskEnded() if envelope.sender_id == HUB:
            state = _track_open_task(state, event)
            return (_apply_turn_event(state, event) if state.owed else None) or state
        case _:
            worked = _apply_turn_event(state, event) if state.owed and envelope.sender_id == HUB else None
            return _apply_lifecycle(state, envelope, event) if worked is None else worked


def _apply_lifecycle(state: State, envelope: Envelope, event: Event) -> State:
    match event:
        case ChannelCreated() if not state.created_at:
            return _apply_creation(state, envelope, event)
        case InviteAccepted() | InviteRejected():
            return replace(state, awaiting=without_name(state.awaiting, envelope.sender_id))
        case FirstWordsPrepared(text=text) if state.status == "invited":
            return replace(state, prepared=text)
        case ChannelOpened() if state.status == "invited":
            return replace(state, status="active", active_at=envelope.created_at)
        case ChannelPaused(reason=reason):
            return replace(state, paused=reason)
        case ChannelForked() as provenance:
            return _apply_fork(state, envelope.created_at, provenance)
        case DeadlineExtended(since=since, reason=reason) if envelope.sender_id == HUB:
            return _apply_extension(state, since, reason)
        case ChannelExpired():
            return replace(state, status="expired", close_reason="expired", speakers=(), owed=(), tasks={}, paused="")
        case ChannelClosed(reason=reason):
            return replace(state, status="closed", close_reason=reason, speakers=(), owed=(), tasks={}, paused="")
        case _:
            return state


def _apply_creation(state: State, envelope: Envelope, event: ChannelCreated) -> State:
    at = envelope.created_at
    return replace(
        state,
        channel_id=envelope.channel_id,
        type=event.type,
        creator_id=event.creator,
        participants={seat.name: seat.kind for seat in event.participants},
        knobs=copy_json(event.knobs),
        ordered=event.ordered,
        created_at=at,
        expires_at=expiry(at, event.ttl),
        awaiting=tuple(seat.name for seat in event.participants if seat.name != event.creator),
        context_vars=copy_json(event.context_vars),
        active=event.active or {},
    )


def _apply_fork(state: State, at: Instant, provenance: ChannelForked) -> State:
    """The state when its clocks begin anew: nothing is late because of what was copied from long ago."""
    try:
        expires = add_seconds(state.expires_at, seconds_between(provenance.since, at)) if state.expires_at else NEVER
    except ValueError:
        expires = state.expires_at
    heard = max(0, provenance.said - 1)
    # A task reports to the channel that gave it, which a fork of that channel is not.
    return replace(state, assigned_at=at, active_at=at, expires_at=expires, heard=heard, open_tasks={})


def _apply_extension(state: State, since: Instant, reason: str) -> State:
    """The state when expectations count from `since`. A task that was given has its whole time again, too."""
    try:
        to_datetime(since)
    except ValueError:
        return state
    least = add_seconds(since, DEFAULT_TASK_SECONDS)
    tasks = {task: until and max(until, least) for task, until in state.tasks.items()}
    if reason == CLOCK_SET_REASON:
        return replace(state, clock_set_at=since, tasks=tasks)
    return replace(state, resumed_at=since, tasks=tasks)


def _apply_speech(state: State, envelope: Envelope) -> State:
    # An interjection changes neither `turn_count`, `speakers` nor `owed`: the turn stays where it is. `_count_handoff`
    # and `_end_handoff_chain` ask `_is_interjection` too, so they must come before `speakers` shrinks here.
    speaker, at = envelope.sender_id, envelope.created_at
    active = state.active_at if speaker == HUB else at
    if envelope.audience is not None:
        state = _apply_private_speech(state, envelope)
    if state.prepared is not None:
        state = replace(state, prepared=None)
    if _is_interjection(state, envelope):
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
    if AGENT_FIELD in envelope.event_data:
        spoken = _set_active_agent(spoken, speaker, envelope.event_data[AGENT_FIELD])
    return _end_answered_turn(spoken, envelope) if state.owed or state.unattended or state.paused else spoken


def _apply_private_speech(state: State, envelope: Envelope) -> State:
    """The state after private words: an agent answers only the participants that heard all that it heard."""
    hearers = tuple(dict.fromkeys((*(envelope.audience or ()), envelope.sender_id)))
    told = dict(state.whispered)
    for name in hearers:
        if state.participants.get(name) == "agent" and name != envelope.sender_id:
            told[name] = tuple(each for each in told.get(name, hearers) if each in hearers)
    return replace(state, whispered=told)


def _answer_audiences(state: State, *, again: bool) -> dict[str, tuple[str, ...]]:
    """Who heard what the turn that is given now answers: what was said since it was last given, if anything was.

    A turn that is given again answers what it was to answer before as well.
    """
    if not again:
        return state.whispered if state.spoken else state.answering
    both = state.answering | state.whispered
    return {name: tuple(each for each in state.answering.get(name, who) if each in who) for name, who in both.items()}


def _set_active_agent(state: State, speaker: str, agent: object) -> State:
    """The state when a member of a speaker's team has answered, which answers from now on."""
    if state.participants.get(speaker) != "agent" or not isinstance(agent, str):
        return state
    others = {name: who for name, who in state.active.items() if name != speaker}
    return replace(state, active={**others, speaker: agent} if agent.startswith(f"{speaker}/") else others)


def _is_interjection(state: State, envelope: Envelope) -> bool:
    """Whether this is said out of turn, or beside it."""
    return state.ordered and (envelope.sender_id not in state.speakers or envelope.event_data.get(ASIDE_FIELD) is True)


def _end_handoff_chain(state: State, envelope: Envelope) -> State:
    """The state after words that hand nothing on. If no agent said them, they end a chain of handoffs."""
    if not _is_interjection(state, envelope):
        state = replace(state, routing=NO_ROUTING, stays=0)
    if not state.hops or state.participants.get(envelope.sender_id) == "agent":
        return state
    return replace(state, hops=0)


def _count_handoff(state: State, envelope: Envelope, routing: Routing) -> State:
    """The state with one more handoff, if this is one."""
    target = routing.target
    if _is_interjection(state, envelope):
        return _end_handoff_chain(state, envelope)
    if target not in state.participants or routing.rejected or routing.finish is not None:
        return replace(_end_handoff_chain(state, envelope), routing=routing)
    if target == envelope.sender_id:
        return replace(state, stays=state.stays + 1, routing=routing)
    return replace(state, hops=state.hops + 1, stays=0, routing=routing)


def _end_answered_turn(state: State, envelope: Envelope) -> State:
    """What was said may end a turn that was owed. Said by a person or by code, it ends a pause too."""
    mine = [turn for turn in state.owed if turn.speaker == envelope.sender_id]
    ended = next((turn for turn in mine if turn.cause == envelope.causation_id), mine[0] if mine else None)
    unattended = state.unattended + 1 if ended is not None and ended.owner else 0
    state = replace(state, unattended=unattended, paused="")
    return state if ended is None else _remove_turn(state, ended.turn_id, envelope.created_at)


def _apply_assignment(state: State, envelope: Envelope, event: TurnAssigned) -> State:
    """In an ordered channel a new assignment replaces the one before; in a free one it waits behind it."""
    at, kinds, fired = envelope.created_at, state.participants, state.fired
    if event.rule is not None and event.rule not in fired:
        state = replace(state, fired=(*fired, event.rule))
    again = state.interjected and tuple(event.speakers) == state.speakers
    answering = _answer_audiences(state, again=again)
    new = tuple(
        assigned_turn(name, envelope, event, heard_by=answering.get(name))
        for name in dict.fromkeys(event.speakers)
        if kinds.get(name) == "agent"
    )
    state = replace(state, answering=answering, whispered={}, spoken=False)
    if again:  # the time for it counts from the first assignment
        return replace(state, owed=new, paused="")
    state = _start_group(state, tuple(dict.fromkeys(event.speakers)))
    if state.ordered or not state.owed:
        turns = state.turn_count
        return replace(state, speakers=tuple(event.speakers), assigned_at=at, assigned_turns=turns, owed=new, paused="")
    speakers = tuple(dict.fromkeys((*state.speakers, *event.speakers)))
    return replace(state, speakers=speakers, owed=(*state.owed, *new), paused="")


def _start_group(state: State, speakers: tuple[str, ...]) -> State:
    """The state when the turn is given anew: what failed before it is forgotten."""
    group = speakers if state.ordered and len(speakers) > 1 else ()
    if group == state.group and not state.failed_branches:
        return state
    return replace(state, group=group, failed_branches={})


def _apply_turn_event(state: State, event: Event) -> State | None:
    """The state after something that happened to a turn that is owed; None if nothing did."""
    match event:
        case TurnClaimed(turn=turn_id, epoch=epoch, owner=owner):
            return _update_turn(state, turn_id, lambda turn: claimed_turn(turn, epoch, owner))
        case TurnReleased(turn=turn_id, epoch=epoch):
            return _update_turn(state, turn_id, lambda turn: released_turn(turn, epoch))
        case CallFinished() | CallFailed() | CallCleared() | ApprovalExpired():
            return _update_turn(state, event.turn, lambda turn: settled_turn(turn, event.index))
        case CallDoubted() | ApprovalRequested() | ApprovalReminded() | CallApproved():
            return _update_turn(state, event.turn, lambda turn: waiting_turn(turn, event, state.updated_at))
        case TurnDelayed() | TurnSuspended() | TurnResumed():
            return _update_turn(state, event.turn, lambda turn: recovering_turn(turn, event))
        case FailedTurn(turn=turn_id, speaker=speaker, reason=reason):
            failed = _add_failed_branch(state, speaker, reason) if speaker in state.group else state
            return _remove_turn(failed, turn_id, state.updated_at)
        case TaskWaiting(task=task) if task not in state.tasks:
            return None
        case TaskStarted(task=task, until=until) | TaskWaiting(task=task, until=until):
            return replace(state, tasks={**state.tasks, task: until})
        case TaskEnded(task=task) if task in state.tasks:
            return _set_awaited_tasks(state, {each: until for each, until in state.tasks.items() if each != task})
        case _:
            return None


def _add_failed_branch(state: State, speaker: str, reason: str) -> State:
    """The state when one of a group has failed."""
    failed = {**state.failed_branches, speaker: reason}
    return replace(state, failed_branches=failed, failures=state.failures + 1)


def _track_open_task(state: State, event: TaskStarted | TaskEnded) -> State:
    """The state when a task has begun or ended, whether or not the turn that gave it is still owed."""
    others = {task: turn for task, turn in state.open_tasks.items() if task != event.task}
    return replace(state, open_tasks={**others, event.task: event.turn} if isinstance(event, TaskStarted) else others)


def _set_awaited_tasks(state: State, tasks: dict[str, Instant]) -> State:
    """The state when a task is over. A turn that has waited for the last one has its whole time again."""
    return replace(state, tasks=tasks, assigned_at=state.assigned_at if tasks else state.updated_at)


def _update_turn(state: State, turn_id: str, change: Callable[[Turn], Turn]) -> State:
    # A new `owed` means that a turn has changed. Elsewhere `owed` must stay the same object when nothing about it has
    # changed: the hub compares it with `is` to decide whether to wake the dispatcher and to retry deferred drafts.
    owed = tuple(change(turn) if turn.turn_id == turn_id else turn for turn in state.owed)
    changed = replace(state, owed=owed)
    return _restart_clock(state, changed, state.updated_at)


def _restart_clock(before: State, now: State, at: Instant) -> State:
    """The state with its whole time again, if its clock stood still until now, whichever turn stopped it."""
    return replace(now, assigned_at=at) if before.clock_stopped and not now.clock_stopped else now


def _remove_turn(state: State, turn_id: str, at: Instant) -> State:
    """The state when a turn has ended. The next in line is owed from now on."""
    owed = tuple(turn for turn in state.owed if turn.turn_id != turn_id)
    gone = {turn.speaker for turn in state.owed if turn.turn_id == turn_id}
    others = (name for name in state.speakers if name not in gone)
    speakers = tuple(dict.fromkeys((*others, *(turn.speaker for turn in owed))))
    # Only the oldest turn is on the clock, so that its time begins anew when another one becomes the oldest.
    next_one = bool(owed) and owed[0] is not state.owed[0]
    since, tasks = at if next_one else state.assigned_at, state.tasks if owed else {}
    ended = replace(state, owed=owed, speakers=speakers, assigned_at=since, tasks=tasks)
    return _restart_clock(state, ended, at) if owed else ended
