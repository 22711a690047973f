"""The event types, and the shape of the data of each.

Rule 1: event strings are constants, here and in the other modules of events (conversations; calls, crashes and
        decisions; protections); they are written nowhere else.
Rule 2: types under `ag2.` and `antiphon.` are ours; `SENDABLE_TYPES` are the few of them a participant may send.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from antiphon.core.conversation_events import CONVERSATION_HUB_FIELDS, CONVERSATION_STRUCTS, ConversationEvent
from antiphon.core.envelope import Json
from antiphon.core.execution_events import (
    EV_CALL_CONFLICTED,
    EV_CALL_FAILED,
    EV_CALL_FINISHED,
    EV_CALL_RETRIED,
    EV_CALL_RETURNED_LATE,
    EV_CALL_STARTED,
    EV_TURN_CLAIMED,
    EV_TURN_DELAYED,
    EV_TURN_RELEASED,
    EXECUTION_STRUCTS,
    ExecutionEvent,
)
from antiphon.core.protection_events import PROTECTION_STRUCTS, ProtectionEvent
from antiphon.core.saga_events import SAGA_STRUCTS, SagaEvent


class InviteAccepted(msgspec.Struct, frozen=True):
    """The sender accepted the invitation."""


class InviteRejected(msgspec.Struct, frozen=True):
    """The sender turned the invitation down."""

    reason: str = ""


class FirstWordsPrepared(msgspec.Struct, frozen=True):
    """What the creator says first, once every guest has accepted."""

    text: str


EV_TEXT = "ag2.msg.text"
EV_PACKET = "ag2.packet"
EV_CONTEXT_SET = "ag2.context.set"
EV_CHANNEL_INVITE = "ag2.channel.invite"
EV_CHANNEL_INVITE_ACK = "ag2.channel.invite.ack"
EV_CHANNEL_INVITE_REJECT = "ag2.channel.invite.reject"
EV_CHANNEL_OPENED = "ag2.channel.opened"
EV_CHANNEL_CLOSED = "ag2.channel.closed"
EV_CHANNEL_EXPIRED = "ag2.channel.expired"
EV_EXPECTATION_VIOLATED = "ag2.channel.expectation_violated"
EV_TASK_STARTED = "ag2.task.started"
EV_TASK_PROGRESS = "ag2.task.progress"
EV_TASK_WAITING = "antiphon.task.waiting"
EV_TASK_CONTINUED = "antiphon.task.continued"
EV_TASK_COMPLETED = "ag2.task.completed"
EV_TASK_FAILED = "ag2.task.failed"
EV_TASK_EXPIRED = "ag2.task.expired"

EV_CHANNEL_CREATED = "antiphon.channel.created"
EV_CHANNEL_PREPARED = "antiphon.channel.prepared"
EV_CHANNEL_PAUSED = "antiphon.channel.paused"
EV_CHANNEL_FORKED = "antiphon.channel.forked"
EV_HISTORY_IMPORTED = "antiphon.history.imported"
EV_GRAPH_WARNED = "antiphon.graph.warned"
EV_RULE_FAILED = "antiphon.rule.failed"
EV_TURN_ASSIGNED = "antiphon.turn.assigned"
EV_TURN_FAILED = "antiphon.turn.failed"
EV_EXPECTATION_MISSED = "antiphon.expectation.missed"
EV_DEADLINE_EXTENDED = "antiphon.deadline.extended"
EV_PARTICIPANT_REGISTERED = "antiphon.participant.registered"
EV_DRAFT_REFUSED = "antiphon.draft.refused"
EV_CHANNEL_QUARANTINED = "antiphon.hub.quarantined"
EV_CHANNEL_ERASED = "antiphon.channel.erased"
EV_ENVELOPE_ERASED = "antiphon.envelope.erased"
EV_CLOCK_JUMPED = "antiphon.hub.clock_jump"
EV_TURN_FENCED = "antiphon.turn.fenced"
EV_AGENT_WARNED = "antiphon.agent.warned"
EV_HOOK_FAILED = "antiphon.hook.failed"

RESERVED_PREFIXES = ("ag2.", "antiphon.")
SPEECH_TYPES = frozenset({EV_TEXT, EV_PACKET})
JOURNAL_TYPES = frozenset(
    {
        EV_TURN_CLAIMED,
        EV_TURN_RELEASED,
        EV_TURN_DELAYED,
        EV_CALL_STARTED,
        EV_CALL_FINISHED,
        EV_CALL_FAILED,
        EV_CALL_RETRIED,
        EV_CALL_CONFLICTED,
        EV_CALL_RETURNED_LATE,
        EV_AGENT_WARNED,
    }
)
"""Entries of turn journals from which nothing follows: rules are not asked, and data is checked where it is made.
Doubts, suspensions and what people decide about them are for participants too, so they are not listed."""
TASK_END_TYPES = frozenset({EV_TASK_COMPLETED, EV_TASK_FAILED, EV_TASK_EXPIRED})
SENDABLE_TYPES = frozenset({EV_TEXT, EV_PACKET, EV_CONTEXT_SET})

ASIDE_FIELD = "aside"
"""A field of speech: true for an interjection by a participant that has the turn, which does not use the turn up. Logs
of earlier versions also have it on imported history, which is an event of its own now."""
ORIGINAL_FIELD = "original"
"""A field of speech that a hook has rewritten: the digest of what was sent, by which a repeated send is recognised."""
GATE_FIELD = "gated"
"""A field of speech that a gate has replaced by its safe text: the verdict, without what was said."""
HUB_FIELDS = (ASIDE_FIELD, ORIGINAL_FIELD, GATE_FIELD, *CONVERSATION_HUB_FIELDS)
"""Fields of speech that only the hub writes."""


class Text(msgspec.Struct, frozen=True):
    """A message in plain words."""

    text: str
    agent: str = ""
    """Who of the sender's team answered: the names from the sender down, `support/billing`; "" if that is not said."""
    set: Json | None = None
    """Context variables that are written with the words."""


class HistoryImported(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message of a conversation held elsewhere, as the client reports it that is the sender.

    It is no speech: no turn, rule or guard counts it, in any role.
    """

    role: Literal["system", "user", "assistant"]
    """Who said it, as the client reports it."""
    text: str
    key_id: str = ""
    """The key that the client showed; "" if it showed none."""


class ContextSet(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Context variables changed: first `delete`, then `set`."""

    set: Json = msgspec.field(default_factory=dict)
    delete: list[str] = msgspec.field(default_factory=list)


class Routing(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a turn wants to go next."""

    tool: str | None = None
    """The first tool called in it that the channel's rules name."""
    target: str | None = None
    """Who is handed the turn."""
    reason: str = ""
    summary: str = ""
    finish: str | None = None
    """Why there is nothing left to do, if the turn says so."""
    stopped: str | None = None
    """The named limit that ended the turn."""
    rejected: str = ""
    """Why the handoff was refused. The rules decide then."""
    phase: str = ""
    """The phase of the conversation that the handoff asks for; "" if it names none."""
    escalation: str = ""
    """The transport that the handoff asks for; "" if the replies are to leave as before."""
    briefing: bool = False
    """Whether the summary is for the next agent alone, and not something that was said."""


NO_ROUTING = Routing()


class Packet(msgspec.Struct, frozen=True):
    """A turn as one fact: what was said, how to route on, and what changed in the context."""

    body: str
    routing: Routing = NO_ROUTING
    context_updates: ContextSet = msgspec.field(default_factory=ContextSet)
    agent: str = ""
    """Who of the sender's team answered, as in a text."""


class Seat(msgspec.Struct, frozen=True):
    """One participant of a channel, and whether it is an agent, a human or a service."""

    name: str
    kind: str = "service"


class ChannelCreated(msgspec.Struct, frozen=True):
    """The channel's own record: everything that was agreed before anybody spoke."""

    type: str
    creator: str
    participants: list[Seat]
    knobs: Json = msgspec.field(default_factory=dict)
    ordered: bool = False
    """Whether only those who were given the turn may speak."""
    ttl: float | None = None
    context_vars: Json = msgspec.field(default_factory=dict)
    active: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    """Who answers for an agent that has a team, if the channel carries on from another one."""


class ChannelOpened(msgspec.Struct, frozen=True):
    """Everybody invited has accepted."""


class TurnAssigned(msgspec.Struct, frozen=True):
    """These participants have the turn."""

    speakers: list[str]
    reason: str = ""
    rule: int | None = None
    """The place in the table of the rule that said so."""
    shown: int = 0
    """Up to where the speakers are shown what was said; 0 for all of it. What came later has a turn of its own."""
    audience: tuple[str, ...] | None = None
    """Who sees the answer, if `shown` says what it answers; None for all participants."""


class ChannelPaused(msgspec.Struct, frozen=True):
    """No participant has the turn until one speaks, and why."""

    reason: str


class FailedTurn(msgspec.Struct, frozen=True):
    """This turn ended without an answer."""

    turn: str
    speaker: str
    reason: str
    detail: str = ""
    agent: str = ""
    """The agent of the speaker's team that was active, as in a text; "" if that is not recorded."""


class TaskStarted(msgspec.Struct, frozen=True):
    """A turn has given a task to another agent, and waits for it until then at the longest."""

    task: str
    until: str = ""
    turn: str = ""


class TaskWaiting(msgspec.Struct, frozen=True):
    """A task waits for a person, without an end of its time; or goes on, until then at the longest."""

    task: str
    turn: str = ""
    until: str = ""
    key: str = ""
    """The idempotency key of the call that gave it, while it waits."""


class TaskEnded(msgspec.Struct, frozen=True):
    """A task has ended, with a report or without."""

    task: str


class ChannelForked(msgspec.Struct, frozen=True):
    """Everything before this is a copy of another channel's log up to a place; time counts from here."""

    origin: str
    at: int
    by: str = ""
    since: str = ""
    """When the last of what was copied had happened."""
    said: int = 0
    """Where the last thing was said in what was copied. What stands before it was heard elsewhere."""


class ChannelExpired(msgspec.Struct, frozen=True):
    """The channel's time to live is over."""


class ChannelClosed(msgspec.Struct, frozen=True):
    """The channel has ended, and why."""

    reason: str = ""
    by: str = ""


class ExpectationViolated(msgspec.Struct, frozen=True):
    """An expectation was not met; `mark` says which occurrence, so that it is recorded once."""

    expectation: str
    mark: str = ""
    handler: str = ""
    seconds: float = 0.0
    speakers: list[str] = msgspec.field(default_factory=list)


class DeadlineExtended(msgspec.Struct, frozen=True):
    """The time for an expectation counts from `since`, because of a break in which no time was to count."""

    since: str
    reason: str
    """`outage`: no hub was open; `clock`: the clock was set; `backlog`: a turn waits for a slot after a restart."""
    expectation: str = ""


class OtherEvent(msgspec.Struct, frozen=True):
    """Anything that moves no state: custom events, and data without the shape of its type."""


OTHER_EVENT = OtherEvent()

Event = (
    Text
    | HistoryImported
    | Packet
    | ContextSet
    | ChannelCreated
    | InviteAccepted
    | InviteRejected
    | FirstWordsPrepared
    | ChannelOpened
    | TurnAssigned
    | ChannelPaused
    | FailedTurn
    | TaskStarted
    | TaskWaiting
    | TaskEnded
    | ChannelForked
    | ChannelExpired
    | ChannelClosed
    | ExpectationViolated
    | DeadlineExtended
    | ConversationEvent
    | ExecutionEvent
    | ProtectionEvent
    | SagaEvent
    | OtherEvent
)

EVENT_STRUCTS: dict[str, type[Event]] = {
    EV_PACKET: Packet,
    EV_CONTEXT_SET: ContextSet,
    EV_HISTORY_IMPORTED: HistoryImported,
    EV_CHANNEL_CREATED: ChannelCreated,
    EV_CHANNEL_INVITE_ACK: InviteAccepted,
    EV_CHANNEL_INVITE_REJECT: InviteRejected,
    EV_CHANNEL_PREPARED: FirstWordsPrepared,
    EV_CHANNEL_OPENED: ChannelOpened,
    EV_CHANNEL_PAUSED: ChannelPaused,
    EV_TURN_ASSIGNED: TurnAssigned,
    EV_TURN_FAILED: FailedTurn,
    EV_TASK_STARTED: TaskStarted,
    EV_TASK_WAITING: TaskWaiting,
    EV_TASK_CONTINUED: TaskWaiting,
    **dict.fromkeys(TASK_END_TYPES, TaskEnded),
    EV_CHANNEL_FORKED: ChannelForked,
    EV_CHANNEL_EXPIRED: ChannelExpired,
    EV_CHANNEL_CLOSED: ChannelClosed,
    EV_EXPECTATION_VIOLATED: ExpectationViolated,
    EV_EXPECTATION_MISSED: ExpectationViolated,
    EV_DEADLINE_EXTENDED: DeadlineExtended,
    **CONVERSATION_STRUCTS,
    **EXECUTION_STRUCTS,
    **PROTECTION_STRUCTS,
    **SAGA_STRUCTS,
}
"""The shape of the data of each type but `EV_TEXT`, which is read by hand: it is by far the most common."""
