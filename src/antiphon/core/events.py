"""What an envelope says, read once.

Rule 1: event strings are constants, here, in `calls` (the calls of a turn) and in `recovery` (crashes and decisions);
        they are written nowhere else.
Rule 2: `event_of` cannot fail. Data that does not have its type's shape is `OTHER`: a fact that moves nothing.
Rule 3: types under `ag2.` and `antiphon.` are ours; `SENDABLE` are the few of them a participant may send.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from antiphon.core.calls import EV_CALL_CLEARED as EV_CALL_CLEARED
from antiphon.core.calls import EV_CALL_CONFLICTED as EV_CALL_CONFLICTED
from antiphon.core.calls import EV_CALL_DOUBTED as EV_CALL_DOUBTED
from antiphon.core.calls import EV_CALL_FAILED as EV_CALL_FAILED
from antiphon.core.calls import EV_CALL_FINISHED as EV_CALL_FINISHED
from antiphon.core.calls import EV_CALL_RETRIED as EV_CALL_RETRIED
from antiphon.core.calls import EV_CALL_STARTED as EV_CALL_STARTED
from antiphon.core.calls import CallCleared as CallCleared
from antiphon.core.calls import CallConflicted as CallConflicted
from antiphon.core.calls import CallDoubted as CallDoubted
from antiphon.core.calls import CallFailed as CallFailed
from antiphon.core.calls import CallFinished as CallFinished
from antiphon.core.calls import CallRetried as CallRetried
from antiphon.core.calls import CallStarted as CallStarted
from antiphon.core.calls import Json as Json
from antiphon.core.envelope import Envelope
from antiphon.core.invited import Acknowledged as Acknowledged
from antiphon.core.invited import Prepared as Prepared
from antiphon.core.invited import Rejected as Rejected
from antiphon.core.recovery import EV_APPROVAL_DECIDED as EV_APPROVAL_DECIDED
from antiphon.core.recovery import EV_TURN_DELAYED as EV_TURN_DELAYED
from antiphon.core.recovery import EV_TURN_RESUMED as EV_TURN_RESUMED
from antiphon.core.recovery import EV_TURN_SUSPENDED as EV_TURN_SUSPENDED
from antiphon.core.recovery import ApprovalDecided as ApprovalDecided
from antiphon.core.recovery import TurnDelayed as TurnDelayed
from antiphon.core.recovery import TurnResumed as TurnResumed
from antiphon.core.recovery import TurnSuspended as TurnSuspended
from antiphon.core.words import plainly

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
EV_TURN_CLAIMED = "antiphon.turn.claimed"
EV_TURN_RELEASED = "antiphon.turn.released"
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

RESERVED = ("ag2.", "antiphon.")
SUBSTANTIVE = frozenset({EV_TEXT, EV_PACKET})
JOURNAL = frozenset(
    {
        EV_TURN_CLAIMED,
        EV_TURN_RELEASED,
        EV_TURN_DELAYED,
        EV_CALL_STARTED,
        EV_CALL_FINISHED,
        EV_CALL_FAILED,
        EV_CALL_RETRIED,
        EV_CALL_CONFLICTED,
        EV_AGENT_WARNED,
    }
)
"""What whoever runs a turn writes down. It is checked where it is made."""
TASK_ENDS = frozenset({EV_TASK_COMPLETED, EV_TASK_FAILED, EV_TASK_EXPIRED})
SENDABLE = frozenset({EV_TEXT, EV_PACKET, EV_CONTEXT_SET})

ASIDE = "aside"
"""A field of what is said: true if it is a word put in by somebody who has the turn, and does not use it up. Logs of
earlier versions also have it on imported history, which is an event of its own now."""


class Text(msgspec.Struct, frozen=True):
    """Somebody said something in plain words."""

    text: str
    agent: str = ""
    """Who of the sender's team answered: the names from the sender down, `support/billing`; "" if that is not said."""


class Imported(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message of a conversation held elsewhere, as the client tells it that brought it. The sender is that client.

    It is no speech: no turn, rule or guard counts it, whatever its role.
    """

    role: Literal["system", "user", "assistant"]
    """Who said it, as the client tells it."""
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


class Created(msgspec.Struct, frozen=True):
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


class Opened(msgspec.Struct, frozen=True):
    """Everybody invited has accepted."""


class Assigned(msgspec.Struct, frozen=True):
    """These participants have the turn."""

    speakers: list[str]
    reason: str = ""
    rule: int | None = None
    """The place in the table of the rule that said so."""


class Paused(msgspec.Struct, frozen=True):
    """Nobody has the turn until somebody speaks, and why."""

    reason: str


class Claimed(msgspec.Struct, frozen=True):
    """An owner runs this turn from now on. Whoever ran it before is refused from here."""

    turn: str
    epoch: int
    owner: str = ""


class Released(msgspec.Struct, frozen=True):
    """The owner has put this turn back in order, to be run again later."""

    turn: str
    epoch: int


class Failed(msgspec.Struct, frozen=True):
    """This turn ended without an answer."""

    turn: str
    speaker: str
    reason: str
    detail: str = ""
    agent: str = ""
    """The agent of the speaker's team that was active, as in a text; "" if that is not recorded."""


class TaskGiven(msgspec.Struct, frozen=True):
    """A turn has given somebody a task, and waits for it until then at the longest."""

    task: str
    until: str = ""
    turn: str = ""


class TaskOver(msgspec.Struct, frozen=True):
    """A task was reported on, or came to nothing."""

    task: str


class Forked(msgspec.Struct, frozen=True):
    """Everything before this is a copy of another channel's log up to a place; time counts from here."""

    origin: str
    at: int
    by: str = ""
    since: str = ""
    """When the last of what was copied had happened."""
    said: int = 0
    """Where the last thing was said in what was copied. What stands before it was heard elsewhere."""


class Expired(msgspec.Struct, frozen=True):
    """The channel's time to live is over."""


class Closed(msgspec.Struct, frozen=True):
    """The channel has ended, and why."""

    reason: str = ""
    by: str = ""


class Violated(msgspec.Struct, frozen=True):
    """An expectation was not met; `mark` says which occurrence, so that it is told once."""

    expectation: str
    mark: str = ""
    handler: str = ""
    seconds: float = 0.0
    speakers: list[str] = msgspec.field(default_factory=list)


class Extended(msgspec.Struct, frozen=True):
    """The time for an expectation counts from `since`, because of a break in which no time was to count."""

    since: str
    reason: str
    """`outage`: no hub was open; `clock`: the clock was set; `backlog`: a turn waits its turn after a restart."""
    expectation: str = ""


class Other(msgspec.Struct, frozen=True):
    """Anything that moves no state: custom events, and data without the shape of its type."""


OTHER = Other()

Event = (
    Text
    | Imported
    | Packet
    | ContextSet
    | Created
    | Acknowledged
    | Rejected
    | Prepared
    | Opened
    | Assigned
    | Paused
    | Claimed
    | Released
    | TurnDelayed
    | TurnSuspended
    | TurnResumed
    | ApprovalDecided
    | Failed
    | CallStarted
    | CallFinished
    | CallFailed
    | CallRetried
    | CallDoubted
    | CallCleared
    | CallConflicted
    | TaskGiven
    | TaskOver
    | Forked
    | Expired
    | Closed
    | Violated
    | Extended
    | Other
)

_SHAPES: dict[str, type[Event]] = {
    EV_PACKET: Packet,
    EV_CONTEXT_SET: ContextSet,
    EV_HISTORY_IMPORTED: Imported,
    EV_CHANNEL_CREATED: Created,
    EV_CHANNEL_INVITE_ACK: Acknowledged,
    EV_CHANNEL_INVITE_REJECT: Rejected,
    EV_CHANNEL_PREPARED: Prepared,
    EV_CHANNEL_OPENED: Opened,
    EV_CHANNEL_PAUSED: Paused,
    EV_TURN_ASSIGNED: Assigned,
    EV_TURN_CLAIMED: Claimed,
    EV_TURN_RELEASED: Released,
    EV_TURN_DELAYED: TurnDelayed,
    EV_TURN_SUSPENDED: TurnSuspended,
    EV_TURN_RESUMED: TurnResumed,
    EV_APPROVAL_DECIDED: ApprovalDecided,
    EV_TURN_FAILED: Failed,
    EV_CALL_STARTED: CallStarted,
    EV_CALL_FINISHED: CallFinished,
    EV_CALL_FAILED: CallFailed,
    EV_CALL_RETRIED: CallRetried,
    EV_CALL_DOUBTED: CallDoubted,
    EV_CALL_CLEARED: CallCleared,
    EV_CALL_CONFLICTED: CallConflicted,
    EV_TASK_STARTED: TaskGiven,
    **dict.fromkeys(TASK_ENDS, TaskOver),
    EV_CHANNEL_FORKED: Forked,
    EV_CHANNEL_EXPIRED: Expired,
    EV_CHANNEL_CLOSED: Closed,
    EV_EXPECTATION_VIOLATED: Violated,
    EV_EXPECTATION_MISSED: Violated,
    EV_DEADLINE_EXTENDED: Extended,
}


def event_of(envelope: Envelope) -> Event:
    """The typed event of an envelope; `OTHER` if its type is not ours or its data does not fit."""
    if envelope.event_type == EV_TEXT:
        text, agent = envelope.event_data.get("text"), envelope.event_data.get("agent", "")
        return Text(text, agent) if isinstance(text, str) and isinstance(agent, str) else OTHER
    shape = _SHAPES.get(envelope.event_type)
    if shape is None:
        return OTHER
    try:
        return msgspec.convert(envelope.event_data, type=shape)
    except (msgspec.ValidationError, RecursionError):
        return OTHER


def data_of(event: msgspec.Struct) -> Json:
    """An event of ours as the `event_data` of its envelope."""
    data: Json = msgspec.to_builtins(event)
    return data


def fits(event_type: str, event_data: Json) -> str | None:
    """Why this data does not have the shape of its type; None if it has, or if the type is not ours."""
    shape: type[Event] | None = Text if event_type == EV_TEXT else _SHAPES.get(event_type)
    if shape is None:
        return None
    try:
        msgspec.convert(event_data, type=shape)
    except msgspec.ValidationError as error:
        return plainly(str(error))
    return None
