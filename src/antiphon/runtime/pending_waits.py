"""What waits for whom in a channel now, and what can be done about it.

Rule 1: what waits is read from the state, and from what is recorded about a conversation that a person holds.
Rule 2: whether a process that has claimed a turn still lives cannot be read from a log, and is not claimed.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

import msgspec

from antiphon.core.approval_rules import Approval
from antiphon.core.conversation_events import ConversationMoved, ConversationReleased
from antiphon.core.envelope import Envelope
from antiphon.core.event_data import event_of
from antiphon.core.events import ChannelClosed, FailedTurn, Packet
from antiphon.core.execution_events import CallFailed
from antiphon.core.protection_events import BreakerChanged, DeadlineExpired, DeadlockDetected, LimitReached
from antiphon.core.saga_events import SagaFinished, SagaOwed
from antiphon.core.state import TASK_KNOB, State, Turn
from antiphon.runtime.conversation_text import holder_name
from antiphon.runtime.event_wording import format_arguments
from antiphon.runtime.reason_meanings import meaning_of

NOTHING_TO_WAIT_FOR = "nothing: any participant may speak"
START_COMMAND = "antiphon serve FILE --store STORE"
MODEL = "model"
"""What the tool of an approval is called if a model is to be asked."""
LIMIT_REASONS = {"hop": "hop_limit", "depth": "depth_limit", "turns": "max_turns", "spawn": "spawn_limit"}
"""The reason that each kind of limit is."""
DECISIONS = {
    "approve": ("approve it", "approve", ""),
    "edit": ("let it leave with other arguments", "edit", " --args JSON"),
    "reject": ("reject it", "reject", ""),
    "respond": ("give its result instead", "respond", " --text TEXT"),
    "retry": ("have it tried again", "approve", ""),
    "skip": ("leave it as it is", "reject", ""),
    "done": ("say that it is undone already", "respond", " --text TEXT"),
}
"""By the option of an approval: what it does, in words, the command for it, and what the command needs."""


class PossibleAction(msgspec.Struct, frozen=True):
    """Something that can be done, and the command or the Python code for it."""

    what: str
    command: str = ""


class PendingWait(msgspec.Struct, frozen=True):
    """Something that waits, and for what."""

    told: str
    actions: tuple[PossibleAction, ...] = ()


def pending_waits(log: Sequence[Envelope], state: State, approvals: Sequence[Approval]) -> list[PendingWait]:
    """What waits in a channel now."""
    if state.ended:
        undone = [*map(_approval_wait, approvals), *_owed_compensations(log, approvals)]
        return undone or [PendingWait(f"nothing: the channel is {state.status}", _after_end(state))]
    if state.status == "invited":
        return [PendingWait(f"the channel waits until {name} accepts the invitation") for name in state.awaiting]
    found = [_approval_wait(approval) for approval in approvals]
    decided = {approval.turn_id for approval in approvals}
    found += [_turn_wait(state, turn) for turn in state.owed if turn.turn_id not in decided]
    owing = {turn.speaker for turn in state.owed}
    found += [_speaker_wait(state, name) for name in state.speakers if name not in owing]
    found += [*_holds(log, state), *_pauses(state), *_open_breakers(log)]
    return found or [PendingWait(NOTHING_TO_WAIT_FOR)]


def damage_wait(damage: str) -> PendingWait:
    """What a channel waits for whose log is damaged."""
    see = PossibleAction("see what is damaged", "antiphon verify STORE")
    return PendingWait(f"nothing can be said here, because the log is damaged: {damage}", (see,))


def possible_actions(
    waits: Sequence[PendingWait], state: State, *, trail: Sequence[Envelope], store: str
) -> list[PossibleAction]:
    """What can be done: about what waits, about what was denied on the way, and to see more."""
    found = [action for wait in waits for action in wait.actions]
    found += [PossibleAction(remedy) for remedy in dict.fromkeys(_remedies(trail))]
    task = state.knobs.get(TASK_KNOB)
    if isinstance(task, dict) and task.get("parent"):
        found.append(PossibleAction("see why this task was given", f"antiphon explain {task['parent']} STORE"))
    channel = state.channel_id
    found.append(PossibleAction("see everything that was decided", f"antiphon log {channel} STORE --audit"))
    named = shlex.quote(store)
    return [msgspec.structs.replace(each, command=each.command.replace("STORE", named)) for each in found]


def _approval_wait(approval: Approval) -> PendingWait:
    why = f" ({approval.why})" if approval.why else ""
    who = f" ({', '.join(approval.approvers)})" if approval.approvers else ""
    until = f", until {approval.decide_by}" if approval.decide_by else ""
    told = (
        f"{approval.agent or 'the run'} waits until a person{who} decides about {_decided_call(approval)}{why}{until}"
    )
    command = f"antiphon approvals {{}} {approval.approval_id} STORE --as NAME{{}}"
    found = (DECISIONS[option] for option in approval.options if option in DECISIONS)
    actions = (PossibleAction(f"{words}, as a person", command.format(name, extra)) for words, name, extra in found)
    return PendingWait(told, tuple(actions))


def _decided_call(approval: Approval) -> str:
    """What the decision is about."""
    if not approval.tool:
        return "its turn"
    if approval.tool == MODEL:
        return "a call of its model"
    return f"the call {approval.tool}({format_arguments(approval.args)})"


def _owed_compensations(log: Sequence[Envelope], approvals: Sequence[Approval]) -> Iterator[PendingWait]:
    """The compensations that are left, if no person has to decide before."""
    events = [event for event in map(event_of, log) if isinstance(event, SagaOwed | SagaFinished)]
    if approvals or not events or not isinstance(events[-1], SagaOwed):
        return
    start = PossibleAction("start a program that registers the agents of this channel", START_COMMAND)
    yield PendingWait("calls of this channel are being undone; a hub with the tools of its agents does it", (start,))


def _turn_wait(state: State, turn: Turn) -> PendingWait:
    name = turn.speaker
    register = PossibleAction(
        f"start a program that registers {name} on this store", "antiphon serve FILE --store STORE"
    )
    tasks = [task for task, given_by in state.open_tasks.items() if given_by == turn.turn_id]
    if tasks:
        see = tuple(PossibleAction("see how the task stands", f"antiphon explain {task} STORE") for task in tasks)
        return PendingWait(f"{name} waits for the report of {_listed('the task', tasks)}", see)
    if turn.not_before:
        died = f"{turn.crashes} processes in a row have died during it"
        return PendingWait(f"the turn of {name} pauses until {turn.not_before}: {died}", (register,))
    earlier = next((each for each in state.owed if each.speaker == name), turn)
    if earlier is not turn:
        return PendingWait(f"turn {turn.turn_id} of {name} waits for its turn {earlier.turn_id}")
    if turn.owner:
        told = f"{name} is at work on turn {turn.turn_id}; if its process is gone, the next one resumes it"
        return PendingWait(told, (register,))
    begun = "no hub runs it now" if turn.epoch else "no hub has begun it"
    return PendingWait(f"{name} owes an answer (turn {turn.turn_id}), and {begun}", (register,))


def _speaker_wait(state: State, name: str) -> PendingWait:
    kind = "a person" if state.participants.get(name) == "human" else "driven by code"
    speak = f'await (await {name}.channel("{state.channel_id}")).send("…")'
    return PendingWait(f"the channel waits for {name}, {kind}, to speak", (PossibleAction(f"speak as {name}", speak),))


def _holds(log: Sequence[Envelope], state: State) -> Iterator[PendingWait]:
    """The hold of a person over a routed conversation."""
    holder = ""
    for envelope in log:
        match event_of(envelope):
            case ConversationMoved(person=person, to_agent=to_agent, noted=noted) if not noted:
                holder = person or ("" if to_agent is not None else holder)
            case ConversationReleased():
                holder = ""
            case _:
                pass
    if holder:
        release = f'await (await person.channel("{state.channel_id}")).release()'
        told = f"{holder_name(holder)} has the conversation, so that no agent answers"
        yield PendingWait(told, (PossibleAction("give it back to the agents, as a person", release),))


def _pauses(state: State) -> Iterator[PendingWait]:
    if not state.paused:
        return
    found = meaning_of(state.paused)
    means = f": {found.means}" if found else ""
    remedy = (PossibleAction(found.remedy),) if found and found.remedy else ()
    yield PendingWait(f"the channel is paused ({state.paused}{means})", remedy)


def _open_breakers(log: Sequence[Envelope]) -> Iterator[PendingWait]:
    latest: dict[str, BreakerChanged] = {}
    for envelope in log:
        event = event_of(envelope)
        if isinstance(event, BreakerChanged):
            latest[event.scope] = event
    for event in latest.values():
        if event.target == "open":
            yield PendingWait(f"calls of {event.scope} are denied until {event.retry_at or 'the breaker closes'}")
        if event.target == "stopped":
            yield PendingWait(f"calls of {event.scope} are denied until a person reopens the breaker")


def _after_end(state: State) -> tuple[PossibleAction, ...]:
    if state.erased:
        return ()
    fork = f'await (await participant.channel("{state.channel_id}")).fork(at=SEQUENCE)'
    return (PossibleAction("go on from a place before the end, in a copy of this channel", fork),)


def _remedies(trail: Sequence[Envelope]) -> Iterator[str]:
    """What helps against the reasons that stand in a chain, the latest first."""
    for envelope in reversed(trail):
        for reason in _reasons_in(envelope):
            found = meaning_of(reason)
            if found is not None and found.remedy:
                yield found.remedy


def _reasons_in(envelope: Envelope) -> tuple[str, ...]:
    match event_of(envelope):
        case CallFailed(denied=denied):
            return (denied,)
        case ChannelClosed(reason=reason):
            return (reason,)
        case Packet(routing=routing):
            return (routing.rejected, routing.stopped or "")
        case FailedTurn(reason=reason):
            return (reason,)
        case LimitReached(kind=kind):
            return (LIMIT_REASONS[kind],)
        case DeadlockDetected(action="trip"):
            return ("deadlock",)
        case DeadlineExpired():
            return ("deadline",)
        case _:
            stopped = envelope.event_data.get("stopped")
            return (stopped,) if isinstance(stopped, str) else ()


def _listed(noun: str, names: Sequence[str]) -> str:
    return f"{noun} {names[0]}" if len(names) == 1 else f"{noun}s {', '.join(names)}"
