"""An envelope in words: who did what.

Rule 1: nothing here fails. An unknown envelope is shown as its type and data.
Rule 2: speech is shown verbatim; other events are sentences without a subject.
"""

from __future__ import annotations

import re
from collections import defaultdict

import msgspec

from antiphon.agents.call_results import Reply, StepChanges, SummaryOutcome, ToolOutcome, decode_outcome
from antiphon.cli.conversation_text import describe_move
from antiphon.core import conversation_events as conversation
from antiphon.core import events, execution_events
from antiphon.core.codec import Malformed, plain_data
from antiphon.core.envelope import HUB, OPERATORS, Envelope, Json, is_tombstone
from antiphon.core.event_data import event_of

PARTICIPANT_COLOURS = ("cyan", "green", "magenta", "yellow", "blue", "bright_red")
ASKED_PARTIES = {"model": "the model", "summary": "for a summary"}
ROUTER_WARNING_CODES = frozenset(
    {"absent_agent", "hidden_agent", "not_an_agent", "observer_routed", "routes_nothing", "unreachable_rule"}
)
"""What a router warns of. The warnings of a graph have other codes, in the same event."""
OPTIONAL_PART = re.compile(r"<([^<>{]*\{(\w+)[^<>]*)>")

SENTENCES: dict[type[events.Event] | str, str] = {
    events.HistoryImported: "[imported as {role}< with key {key_id}>] {text}",
    events.InviteAccepted: "accepts the invitation",
    events.InviteRejected: "declines the invitation<: {reason}>",
    events.FirstWordsPrepared: "says when all have accepted: {text}",
    events.ChannelOpened: "opens the channel",
    events.ChannelForked: "forks {origin} at {at}< for {by}>",
    events.ChannelPaused: "pauses the channel: {reason}",
    events.ChannelExpired: "notes that the channel's time is over",
    events.ChannelClosed: "closes the channel< for {by}>: {reason}",
    events.ExpectationViolated: "has waited {seconds:g} seconds for {speakers} ({expectation})",
    events.DeadlineExtended: "counts the time for {expectation} from {since}: {reason}",
    events.TurnAssigned: "gives the turn to {speakers}<: {reason}>",
    events.FailedTurn: "ends turn {turn} without an answer: {reason}< ({detail})>",
    execution_events.TurnClaimed: "runs turn {turn}",
    execution_events.TurnReleased: "puts turn {turn} back in order",
    execution_events.TurnDelayed: "attempts turn {turn} again after {until}: its process died ({crashes} in a row)",
    execution_events.TurnSuspended: "suspends turn {turn} until a person decides: {why}",
    execution_events.TurnResumed: "lets turn {turn} be attempted again, says {by}",
    execution_events.ApprovalDecided: "{by} decides {approval_id}: {decision}< ({reason})>",
    execution_events.CallFailed: "{index}: failed: {error}",
    execution_events.CallDoubted: "{index}: does not know what became of {name}: {why}",
    execution_events.CallCleared: "{index}: is to be made again, says {by}",
    execution_events.CallRetried: (
        "{index}: failed, attempt {attempt}, and is made again in {delay:.3g} seconds: {error}"
    ),
    execution_events.CallConflicted: "{index}: was {name}, and something else is asked for now",
    events.EV_PARTICIPANT_REGISTERED: "registers {name} ({kind})",
    events.EV_DRAFT_REFUSED: "refuses {sender_id} in {channel_id}: {reason}",
    events.EV_CHANNEL_QUARANTINED: "quarantines {channel_id} from sequence {sequence}: {error}",
    events.EV_CHANNEL_ERASED: "erases {channel_id} for {by}: {records} records",
    events.EV_AGENT_WARNED: "warns of {agent}: {message}",
    events.EV_HOOK_FAILED: "could not ask hook {hook} ({trigger}): {error}",
    events.EV_TURN_FENCED: "fences turn {turn} in {channel_id}: {why}",
    conversation.ConversationRefused: "refuses the handoff of {from_agent} to {target}: {reason}",
    conversation.ConversationReleased: "ends the hold for {by}<; {to} answers next>",
    conversation.ConversationUnrouted: "finds no agent for message {message}",
    conversation.TransportConnected: "connects the transports {names}",
    conversation.ReplyDelivered: "has delivered reply {sequence} by {transport}",
    conversation.ReplyUndeliverable: "cannot deliver reply {sequence} by {transport}: {error}",
    events.EV_TASK_STARTED: "gives a task to {agent} in {task}<: {reason}>",
    events.EV_TASK_PROGRESS: "hears of the task of {agent} in {task}<: calls {tool}>",
    events.EV_TASK_COMPLETED: "has the report of {agent} in {task}<: {reason}>",
    events.EV_TASK_FAILED: "gets nothing from {agent} in {task}<: {reason}>",
    events.EV_TASK_EXPIRED: "waits no longer for {agent} in {task}<: {reason}>",
}
"""By the event, or by its type if it has no shape of its own. A part in <> is left out if its field is empty."""


def is_bookkeeping(envelope: Envelope) -> bool:
    """Whether only the operator's view shows it."""
    return envelope.audience is not None and OPERATORS in envelope.audience


def is_speech(envelope: Envelope) -> bool:
    """Whether it is a message of a participant."""
    return isinstance(event_of(envelope), events.Text | events.Packet)


def participant_colour(name: str, names: list[str]) -> str:
    """The colour of a participant, by its place among the names."""
    if name not in names:
        return "dim"
    return PARTICIPANT_COLOURS[names.index(name) % len(PARTICIPANT_COLOURS)]


def describe_envelope(envelope: Envelope) -> str:
    """The envelope as a sentence."""
    if is_tombstone(envelope):
        return f"[erased] {envelope.event_type}"
    said = _describe_event(event_of(envelope)) or _describe_system_event(envelope)
    if not said and not is_speech(envelope):
        said = f"{envelope.event_type} {_json_text(envelope.event_data)}"
    return f"{_audience_note(envelope)}{said}{_stop_note(envelope.event_data)}".strip()


def _audience_note(envelope: Envelope) -> str:
    if envelope.sender_id == HUB or not envelope.audience or is_bookkeeping(envelope):
        return ""
    return f"(to {', '.join(envelope.audience)}) "


def _stop_note(data: Json) -> str:
    """The limit that ended a turn early, or a task."""
    routing = data.get("routing")
    limit = data.get("stopped") or (routing.get("stopped") if isinstance(routing, dict) else None)
    return f" [stopped: {limit}]" if isinstance(limit, str) else ""


def _describe_event(event: events.Event) -> str:
    match event:
        case events.Text(text=text, agent=agent):
            return f"{text} [{aside}]" if (aside := _team_member_note(agent)) else text
        case events.Packet(body=body):
            return f"{body} [{aside}]" if (aside := _packet_notes(event)) else body
        case events.ContextSet():
            return _describe_context_changes(event)
        case conversation.ConversationMoved():
            return describe_move(event)
        case events.ChannelCreated(type=kind, participants=seats):
            return f"creates a channel: {kind}" + (f" of {_join_names([seat.name for seat in seats])}" if seats else "")
        case execution_events.TurnClaimed(turn=turn, epoch=epoch) if epoch > 1:
            return f"runs turn {turn}, attempt {epoch}"
        case execution_events.CallStarted():
            return _describe_call(event)
        case execution_events.CallFinished(index=index, result=result, by=by):
            return f"{index}: {_describe_call_result(result)}" + (f", says {by}" if by else "")
        case _:
            fields = msgspec.structs.asdict(event).items()
            shown = {key: _join_names(value) if isinstance(value, list) else value for key, value in fields}
            return _fill_sentence(SENTENCES.get(type(event), ""), shown)


def _describe_system_event(envelope: Envelope) -> str:
    """The sentence of an event that concerns the hub or a task; empty if there is none."""
    data = envelope.event_data
    if envelope.event_type == events.EV_CHANNEL_INVITE:
        return f"invites {_join_names(envelope.audience or [])}"
    if envelope.event_type == events.EV_GRAPH_WARNED:
        found = data.get("findings")
        rows = [row for row in found if isinstance(row, dict)] if isinstance(found, list) else []
        of = "router" if any(row.get("code") in ROUTER_WARNING_CODES for row in rows) else "graph"
        return f"warns of its {of}: {'; '.join(str(row.get('message', '?')) for row in rows)}"
    if envelope.event_type == events.EV_RULE_FAILED:
        rule = data.get("rule")
        of = "finds a fault in its rules" if rule is None else f"could not apply rule {rule}"
        return f"{of}: {data.get('error', '?')}"
    return _fill_sentence(SENTENCES.get(envelope.event_type, ""), data)


def _fill_sentence(sentence: str, fields: Json) -> str:
    whole = OPTIONAL_PART.sub(lambda part: part[1] if fields.get(part[2]) else "", sentence)
    return whole.format_map(defaultdict(lambda: "?", fields))


def _packet_notes(packet: events.Packet) -> str:
    """The effects of a packet beside its text."""
    updates, routing = packet.context_updates, packet.routing
    return "; ".join(
        part
        for part in (
            _team_member_note(packet.agent),
            _describe_context_changes(updates) if updates.set or updates.delete else "",
            f"routes by {routing.tool}" if routing.tool is not None else "",
            f"hands off to {routing.target}" if routing.target is not None else "",
            f"which is refused: {routing.rejected}" if routing.rejected else "",
            "says it is finished" if routing.finish is not None else "",
        )
        if part
    )


def _team_member_note(agent: str) -> str:
    """The team member that answered, if it is not the agent that was asked."""
    _, _, below = agent.partition("/")
    return f"by {below.rpartition('/')[2]}" if below else ""


def _describe_call(call: execution_events.CallStarted) -> str:
    """A call, and the team member that makes it."""
    if call.args is not None:
        what = f"calls {call.name}({format_arguments(call.args)})"
    else:
        step = call.name.removeprefix("step:")
        what = f"runs the step {step}" if step != call.name else f"asks {ASKED_PARTIES.get(call.name, call.name)}"
    who = _team_member_note(call.agent)
    return f"{call.index}: {what}" + (f" [{who}]" if who else "")


def format_arguments(args: Json) -> str:
    """The arguments of a call as source text."""
    return ", ".join(f"{key}={_json_text(value)}" for key, value in args.items())


def _describe_call_result(result: Json) -> str:
    """The result of a call: the text of a tool, or the text and the calls of a model."""
    try:
        outcome = decode_outcome(result)
    except Malformed:
        return _json_text(result)
    match outcome:
        case ToolOutcome(returned=returned):
            return f"{'failed:' if returned.failed else 'returned'} {returned.text}"
        case SummaryOutcome(summary=summary):
            return f"summed up {summary.count} messages: {summary.text}"
        case StepChanges() as changes:
            names = sorted(name for name in plain_data(changes) if name != "gone")
            return f"changed {_join_names(names)}" if result else "changed nothing"
        case Reply(text=text, calls=calls):
            said = [f"answered {text}"] if text else []
            asked = [f"asked for {_join_names([call.name for call in calls])}"] if calls else []
            return "; ".join([*said, *asked]) or "answered nothing"


def _describe_context_changes(updates: events.ContextSet) -> str:
    deleted = f"deletes {_join_names(updates.delete)}" if updates.delete else ""
    values = (f"{key} = {_json_text(value)}" for key, value in updates.set.items())
    changed = f"sets {', '.join(values)}" if updates.set else ""
    return "; ".join(part for part in (deleted, changed) if part) or "changes nothing"


def _json_text(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _join_names(names: list[str]) -> str:
    return ", ".join(names) or "nobody"
