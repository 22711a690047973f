"""An envelope in words: who did what.

Rule 1: nothing here fails. An unknown envelope is shown as its type and data.
Rule 2: speech is shown verbatim; other events are sentences without a subject.
"""

from __future__ import annotations

from antiphon.agents.call_results import Reply, StepChanges, SummaryOutcome, ToolOutcome, decode_outcome
from antiphon.core import conversation_events as conversation
from antiphon.core import events, execution_events
from antiphon.core.codec import Malformed, plain_data
from antiphon.core.envelope import HUB, OPERATORS, Envelope, Json, is_tombstone
from antiphon.core.event_data import event_of
from antiphon.runtime.conversation_text import describe_move
from antiphon.runtime.event_wording import (
    SENTENCES,
    fill_sentence,
    format_arguments,
    generic_sentence,
    join_names,
    json_text,
    sentence_of,
    shown_fields,
)

OWN_PREFIX = "antiphon."
ASKED_PARTIES = {"model": "the model", "summary": "for a summary"}
ROUTER_WARNING_CODES = frozenset(
    {"absent_agent", "hidden_agent", "not_an_agent", "observer_routed", "routes_nothing", "unreachable_rule"}
)
"""What a router warns of. The warnings of a graph have other codes, in the same event."""


def is_bookkeeping(envelope: Envelope) -> bool:
    """Whether only the operator's view shows it."""
    return envelope.audience is not None and OPERATORS in envelope.audience


def is_speech(envelope: Envelope) -> bool:
    """Whether it is a message of a participant."""
    return isinstance(event_of(envelope), events.Text | events.Packet)


def describe_envelope(envelope: Envelope) -> str:
    """The envelope as a sentence."""
    if is_tombstone(envelope):
        return f"[erased] {envelope.event_type}"
    said = _describe_event(event_of(envelope)) or _describe_system_event(envelope)
    if not said and not is_speech(envelope):
        said = _describe_other(envelope)
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


def _describe_other(envelope: Envelope) -> str:
    """An event without a sentence. One of ours may be of a later version of the package."""
    if envelope.event_type.startswith(OWN_PREFIX):
        return generic_sentence(envelope.event_type, envelope.event_data)
    return f"{envelope.event_type} {json_text(envelope.event_data)}"


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
            return f"creates a channel: {kind}" + (f" of {join_names([seat.name for seat in seats])}" if seats else "")
        case execution_events.TurnClaimed(turn=turn, epoch=epoch) if epoch > 1:
            return f"runs turn {turn}, attempt {epoch}"
        case execution_events.CallStarted():
            return _describe_call(event)
        case execution_events.CallFinished(index=index, result=result, by=by):
            return f"{index}: {_describe_call_result(result)}" + (f", says {by}" if by else "")
        case _:
            return sentence_of(type(event), shown_fields(event))


def _describe_system_event(envelope: Envelope) -> str:
    """The sentence of an event that concerns the hub or a task; empty if there is none."""
    data = envelope.event_data
    if envelope.event_type == events.EV_CHANNEL_INVITE:
        return f"invites {join_names(envelope.audience or [])}"
    if envelope.event_type == events.EV_GRAPH_WARNED:
        found = data.get("findings")
        rows = [row for row in found if isinstance(row, dict)] if isinstance(found, list) else []
        of = "router" if any(row.get("code") in ROUTER_WARNING_CODES for row in rows) else "graph"
        return f"warns of its {of}: {'; '.join(str(row.get('message', '?')) for row in rows)}"
    if envelope.event_type == events.EV_RULE_FAILED:
        rule = data.get("rule")
        of = "finds a fault in its rules" if rule is None else f"could not apply rule {rule}"
        return f"{of}: {data.get('error', '?')}"
    return fill_sentence(SENTENCES.get(envelope.event_type, ""), data)


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
    """A call, the team member that makes it, the model that a guard has chosen, and who has allowed it."""
    if call.args is not None:
        what = f"calls {call.name}({format_arguments(call.args)})"
    else:
        step = call.name.removeprefix("step:")
        what = f"runs the step {step}" if step != call.name else f"asks {ASKED_PARTIES.get(call.name, call.name)}"
    via, allowed = f"by {call.via}" if call.via else "", f"allowed by {call.approved}" if call.approved else ""
    notes = "; ".join(note for note in (_team_member_note(call.agent), via, allowed) if note)
    return f"{call.index}: {what}" + (f" [{notes}]" if notes else "")


def _describe_call_result(result: Json) -> str:
    """The result of a call: the text of a tool, or the text and the calls of a model."""
    try:
        outcome = decode_outcome(result)
    except Malformed:
        return json_text(result)
    match outcome:
        case ToolOutcome(returned=returned):
            return f"{'failed:' if returned.failed else 'returned'} {returned.text}"
        case SummaryOutcome(summary=summary):
            return f"summed up {summary.count} messages: {summary.text}"
        case StepChanges() as changes:
            names = sorted(name for name in plain_data(changes) if name != "gone")
            return f"changed {join_names(names)}" if result else "changed nothing"
        case Reply(text=text, calls=calls):
            said = [f"answered {text}"] if text else []
            asked = [f"asked for {join_names([call.name for call in calls])}"] if calls else []
            return "; ".join([*said, *asked]) or "answered nothing"


def _describe_context_changes(updates: events.ContextSet) -> str:
    deleted = f"deletes {join_names(updates.delete)}" if updates.delete else ""
    values = (f"{key} = {json_text(value)}" for key, value in updates.set.items())
    changed = f"sets {', '.join(values)}" if updates.set else ""
    return "; ".join(part for part in (deleted, changed) if part) or "changes nothing"
