"""An envelope in words: who did what.

Rule 1: nothing here fails. What has no words of its own is shown as its type and data.
Rule 2: what was said is shown as it was said; what the hub and the channel did is told as a sentence without a subject.
"""

from __future__ import annotations

import msgspec

from antiphon.core.envelope import HUB, OPERATORS, Envelope
from antiphon.core.erasing import is_erased
from antiphon.core.events import (
    EV_AGENT_WARNED,
    EV_CHANNEL_ERASED,
    EV_CHANNEL_INVITE,
    EV_CHANNEL_QUARANTINED,
    EV_DRAFT_REFUSED,
    EV_GRAPH_WARNED,
    EV_PARTICIPANT_REGISTERED,
    EV_RULE_FAILED,
    EV_TASK_COMPLETED,
    EV_TASK_EXPIRED,
    EV_TASK_FAILED,
    EV_TASK_PROGRESS,
    EV_TASK_STARTED,
    EV_TURN_FENCED,
    Acknowledged,
    ApprovalDecided,
    Assigned,
    CallCleared,
    CallConflicted,
    CallDoubted,
    CallFailed,
    CallFinished,
    CallRetried,
    CallStarted,
    Claimed,
    Closed,
    ContextSet,
    Created,
    Event,
    Expired,
    Extended,
    Failed,
    Forked,
    Imported,
    Json,
    Opened,
    Packet,
    Paused,
    Prepared,
    Rejected,
    Released,
    Text,
    TurnDelayed,
    TurnResumed,
    TurnSuspended,
    Violated,
    event_of,
)

COLOURS = ("cyan", "green", "magenta", "yellow", "blue", "bright_red")


def is_bookkeeping(envelope: Envelope) -> bool:
    """Whether only the operator's view shows it."""
    return envelope.audience is not None and OPERATORS in envelope.audience


def is_speech(envelope: Envelope) -> bool:
    """Whether somebody said something in words."""
    return isinstance(event_of(envelope), Text | Packet)


def told(envelope: Envelope) -> str:
    """What the envelope says."""
    if is_erased(envelope):
        return f"[erased] {envelope.event_type}"
    said = _said(event_of(envelope)) or _managed(envelope) or ("" if is_speech(envelope) else _plain(envelope))
    return f"{_aside(envelope)}{said}{_stopped(envelope.event_data)}".strip()


def _stopped(data: Json) -> str:
    """The limit that ended a turn with what there was, or a task."""
    routing = data.get("routing")
    limit = data.get("stopped") or (routing.get("stopped") if isinstance(routing, dict) else None)
    return f" [stopped: {limit}]" if isinstance(limit, str) else ""


def colour_of(name: str, names: list[str]) -> str:
    """The colour of a participant: the same for as long as the order is."""
    if name not in names:
        return "dim"
    return COLOURS[names.index(name) % len(COLOURS)]


def _aside(envelope: Envelope) -> str:
    if envelope.sender_id == HUB or not envelope.audience or is_bookkeeping(envelope):
        return ""
    return f"(to {', '.join(envelope.audience)}) "


def _said(event: Event) -> str:
    match event:
        case Imported(role=role, text=text, key_id=key_id):
            return f"[imported as {role}{f' with key {key_id}' if key_id else ''}] {text}"
        case Text(text=text, agent=agent):
            return f"{text} [{aside}]" if (aside := _by(agent)) else text
        case Packet() as packet:
            return f"{packet.body} [{aside}]" if (aside := _beside(packet)) else packet.body
        case ContextSet() as updates:
            return _changes(updates)
        case _:
            return _lived(event)


def _beside(packet: Packet) -> str:
    """What a packet does beside saying something."""
    updates, routing = packet.context_updates, packet.routing
    return "; ".join(
        part
        for part in (
            _by(packet.agent),
            _changes(updates) if updates.set or updates.delete else "",
            f"routes by {routing.tool}" if routing.tool is not None else "",
            f"hands off to {routing.target}" if routing.target is not None else "",
            f"which is refused: {routing.rejected}" if routing.rejected else "",
            "says it is finished" if routing.finish is not None else "",
        )
        if part
    )


def _by(agent: str) -> str:
    """Who of a team answered, if it was not whoever was asked."""
    _, _, below = agent.partition("/")
    return f"by {below.rpartition('/')[2]}" if below else ""


def _lived(event: Event) -> str:
    match event:
        case Created(type=kind, participants=seats):
            return f"creates a channel: {kind}" + (f" of {_names([seat.name for seat in seats])}" if seats else "")
        case Acknowledged():
            return "accepts the invitation"
        case Rejected(reason=reason):
            return "declines the invitation" + (f": {reason}" if reason else "")
        case Prepared(text=text):
            return f"says when all have accepted: {text}"
        case Opened():
            return "opens the channel"
        case Forked(origin=origin, at=at, by=by):
            return f"forks {origin} at {at}" + (f" for {by}" if by else "")
        case Assigned(speakers=speakers, reason=reason):
            return f"gives the turn to {_names(speakers)}" + (f": {reason}" if reason else "")
        case _:
            return _recovered(event)


def _recovered(event: Event) -> str:
    match event:
        case TurnDelayed(turn=turn, crashes=crashes, until=until):
            return f"attempts turn {turn} again after {until}: its process died ({crashes} in a row)"
        case TurnSuspended(turn=turn, why=why):
            return f"suspends turn {turn} until a person decides: {why}"
        case TurnResumed(turn=turn, by=by):
            return f"lets turn {turn} be attempted again, says {by}"
        case ApprovalDecided(approval_id=approval_id, decision=decision, by=by, reason=reason):
            return f"{by} decides {approval_id}: {decision}" + (f" ({reason})" if reason else "")
        case _:
            return _worked(event)


def _worked(event: Event) -> str:
    match event:
        case Claimed(turn=turn, epoch=epoch):
            return f"runs turn {turn}" + (f", attempt {epoch}" if epoch > 1 else "")
        case Released(turn=turn):
            return f"puts turn {turn} back in order"
        case Failed(turn=turn, reason=reason, detail=detail):
            return f"ends turn {turn} without an answer: {reason}" + (f" ({detail})" if detail else "")
        case Paused(reason=reason):
            return f"pauses the channel: {reason}"
        case CallStarted() as started:
            return _started(started)
        case CallFinished(index=index, result=result, by=by):
            return f"{index}: {_outcome(result)}" + (f", says {by}" if by else "")
        case CallFailed(index=index, error=error):
            return f"{index}: failed: {error}"
        case CallDoubted(index=index, name=name, why=why):
            return f"{index}: does not know what became of {name}: {why}"
        case CallCleared(index=index, by=by):
            return f"{index}: is to be made again, says {by}"
        case _:
            return _compared(event)


def _compared(event: Event) -> str:
    match event:
        case CallRetried(index=index, attempt=attempt, error=error, delay=delay):
            return f"{index}: failed, attempt {attempt}, and is made again in {delay:.3g} seconds: {error}"
        case CallConflicted(index=index, name=name):
            return f"{index}: was {name}, and something else is asked for now"
        case _:
            return _ended(event)


def _started(call: CallStarted) -> str:
    """What a call is about to do, and for whom of a team."""
    if call.args is not None:
        what = f"calls {call.name}({_arguments(call.args)})"
    else:
        step = call.name.removeprefix("step:")
        what = f"runs the step {step}" if step != call.name else f"asks {_ASKED.get(call.name, call.name)}"
    who = _by(call.agent)
    return f"{call.index}: {what}" + (f" [{who}]" if who else "")


_ASKED = {"model": "the model", "summary": "for a summary"}


def _arguments(args: Json) -> str:
    return ", ".join(f"{key}={msgspec.json.encode(value).decode()}" for key, value in args.items())


def _outcome(result: Json) -> str:
    """What a call came to: the text of a tool's result, or what a model said and asked for."""
    returned = result.get("returned")
    if isinstance(returned, dict):
        return f"{'failed:' if returned.get('failed') else 'returned'} {returned.get('text', '')}"
    summary = result.get("summary")
    if isinstance(summary, dict):
        return f"summed up {summary.get('count')} messages: {summary.get('text')}"
    if "calls" not in result:
        return f"changed {_names(sorted(name for name in result if name != 'gone'))}" if result else "changed nothing"
    wanted = result.get("calls")
    names = [str(call.get("name")) for call in wanted if isinstance(call, dict)] if isinstance(wanted, list) else []
    said = [f"answered {result.get('text')}"] if result.get("text") else []
    return "; ".join([*said, *([f"asked for {_names(names)}"] if names else [])]) or "answered nothing"


def _ended(event: Event) -> str:
    match event:
        case Expired():
            return "notes that the channel's time is over"
        case Closed(reason=reason, by=by):
            return f"closes the channel{f' for {by}' if by else ''}: {reason}"
        case Violated(expectation=name, seconds=seconds, speakers=owing):
            return f"has waited {seconds:g} seconds for {_names(owing)} ({name})"
        case Extended(since=since, reason=reason, expectation=name):
            return f"counts the time for {name} from {since}: {reason}"
        case _:
            return ""


def _managed(envelope: Envelope) -> str:
    data = envelope.event_data
    match envelope.event_type:
        case t if t == EV_CHANNEL_INVITE:
            return f"invites {_names(envelope.audience or [])}"
        case t if t == EV_PARTICIPANT_REGISTERED:
            return f"registers {_word(data, 'name')} ({_word(data, 'kind')})"
        case t if t == EV_DRAFT_REFUSED:
            return f"refuses {_word(data, 'sender_id')} in {_word(data, 'channel_id')}: {_word(data, 'reason')}"
        case t if t in (EV_CHANNEL_QUARANTINED, EV_CHANNEL_ERASED):
            return _set_aside(data)
        case t if t == EV_RULE_FAILED:
            return f"could not read rule {_word(data, 'rule')}: {_word(data, 'error')}"
        case t if t == EV_GRAPH_WARNED:
            return f"warns of its graph: {_findings(data)}"
        case t if t == EV_AGENT_WARNED:
            return f"warns of {_word(data, 'agent')}: {_word(data, 'message')}"
        case t if t in TASKS:
            return f"{TASKS[t]} {_word(data, 'agent')} in {_word(data, 'task')}{_detail(data)}"
        case t if t == EV_TURN_FENCED:
            return f"fences turn {_word(data, 'turn')} in {_word(data, 'channel_id')}: {_word(data, 'why')}"
        case _:
            return ""


def _set_aside(data: Json) -> str:
    channel = _word(data, "channel_id")
    if "records" in data:
        return f"erases {channel} for {_word(data, 'by')}: {_word(data, 'records')} records"
    return f"quarantines {channel} from sequence {_word(data, 'sequence')}: {_word(data, 'error')}"


TASKS = {
    EV_TASK_STARTED: "gives a task to",
    EV_TASK_PROGRESS: "hears of the task of",
    EV_TASK_COMPLETED: "has the report of",
    EV_TASK_FAILED: "gets nothing from",
    EV_TASK_EXPIRED: "waits no longer for",
}


def _detail(data: Json) -> str:
    """What is to be said of a task beside whose it is."""
    said = data.get("reason") or (f"calls {_word(data, 'tool')}" if "tool" in data else "")
    return f": {said}" if said else ""


def _findings(data: Json) -> str:
    found = data.get("findings")
    each = [_word(one, "message") for one in found if isinstance(one, dict)] if isinstance(found, list) else []
    return "; ".join(each)


def _plain(envelope: Envelope) -> str:
    return f"{envelope.event_type} {msgspec.json.encode(envelope.event_data).decode()}"


def _changes(updates: ContextSet) -> str:
    deleted = f"deletes {_names(updates.delete)}" if updates.delete else ""
    values = (f"{key} = {msgspec.json.encode(value).decode()}" for key, value in updates.set.items())
    changed = f"sets {', '.join(values)}" if updates.set else ""
    return "; ".join(part for part in (deleted, changed) if part) or "changes nothing"


def _names(names: list[str]) -> str:
    return ", ".join(names) or "nobody"


def _word(data: Json, key: str) -> str:
    return str(data.get(key, "?"))
