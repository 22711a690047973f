"""Request and response types of the routes, from which the OpenAPI document is made."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from antiphon.agents.call_results import NO_USAGE, Usage
from antiphon.core.approval_rules import Approval
from antiphon.core.envelope import Envelope, Json
from antiphon.core.state import ChannelStatus, State
from antiphon.orchestration.conversation import PhaseTransition
from antiphon.orchestration.conversation_memory import ConversationMemory
from antiphon.server.api_keys import Key, KeyHolderKind, KeyScope
from antiphon.store.protocol import ChannelRow

MAX_WORD_CHARS = 200
NAME_SCHEMA_PATTERN = "^[A-Za-z0-9][A-Za-z0-9_-]{0,47}$"

ParticipantName = Annotated[str, Meta(pattern=NAME_SCHEMA_PATTERN)]
ShortText = Annotated[str, Meta(min_length=1, max_length=MAX_WORD_CHARS)]
ChannelView = Literal["own", "operator"]
"""What the participant of the key may see, or everything, which needs the scope `operate`."""


class StrictParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request type: unknown fields are refused."""


class Question(StrictParams, frozen=True):
    """A message to an agent."""

    text: str
    thread_id: ShortText | None = None
    """The conversation; None for a new one."""
    message_id: ShortText | None = None
    """Makes the request idempotent: repeated with the same id, nothing is sent twice."""


class TokensQuery(StrictParams, frozen=True):
    """How an answer is streamed."""

    tokens: bool = False
    """Whether tokens are streamed, too: events `token`, which have no id."""


class Answer(msgspec.Struct, frozen=True):
    """An agent's answer."""

    text: str
    agent: str
    """The member of the team that answered."""
    stopped: str | None
    """The named limit that ended the turn; None if it ended by itself."""
    usage: Usage = NO_USAGE
    channel_id: str = ""
    output: object = None
    """The answer as a value, if the agent has an output type."""
    approvals: list[Approval] = []
    """What waits for a person, if `stopped` is `approval`."""


class AgentRow(msgspec.Struct, frozen=True):
    """An agent of the server."""

    name: str
    description: str
    team: list[str]
    """The members of its team, as paths."""


class AgentList(msgspec.Struct, frozen=True):
    """The agents of the server."""

    agents: list[AgentRow]


class ChannelQuery(StrictParams, frozen=True):
    """Which channels to list."""

    status: ChannelStatus | None = None
    participant: ParticipantName | None = None
    view: ChannelView = "own"
    system: bool = False
    """The hub's own channels too; for operators."""
    after: Annotated[str, Meta(max_length=128)] = ""
    """The channel behind which to begin: `next` of the page before."""
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class ChannelList(msgspec.Struct, frozen=True):
    """A page of channels, oldest first."""

    channels: list[ChannelRow]
    next: str | None = None
    """Where the next page begins; None if this was the last."""


class Opening(StrictParams, frozen=True):
    """A channel to open."""

    target: Annotated[list[ParticipantName], Meta(min_length=1, max_length=100)]
    """The other participants, in order."""
    type: Annotated[str, Meta(min_length=1, max_length=48)] = "conversation"
    knobs: Json = {}
    ttl: Annotated[float, Meta(gt=0)] | None = None
    context_vars: Json = {}
    say: str | None = None
    """The first message, recorded with the opening."""
    key: ShortText | None = None
    """Makes the request idempotent: the same key returns the same channel."""


class ChannelConversation(msgspec.Struct, frozen=True):
    """Where a routed conversation is now."""

    phase: str
    active_agent_id: str | None
    """The agent that answers; None if each message is routed, or if a person has the conversation."""
    previous_agent_id: str | None
    handoff_count: int
    phase_started_at: str
    phase_history: list[PhaseTransition]
    """The last transitions, oldest first."""
    context: Json
    revision: int
    person: str
    """The person that has the conversation, or `human`; empty while agents have it."""


class ChannelState(msgspec.Struct, frozen=True):
    """A channel as it is now."""

    channel_id: str
    type: str
    status: ChannelStatus
    creator_id: str
    participants: dict[str, str]
    """Name to kind, in order."""
    speakers: list[str]
    """The participants that have the turn."""
    turn_count: int
    sequence: int
    context_vars: Json
    close_reason: str
    paused: str
    active: dict[str, str]
    """The member that answers for an agent with a team, if not the agent itself."""
    created_at: str
    updated_at: str
    erased: bool
    """Whether its content was erased: tombstones are left."""
    conversation: ChannelConversation | UnsetType = UNSET
    """Of a routed channel alone."""


def channel_state_of(state: State, conversation: ConversationMemory | None = None) -> ChannelState:
    """A state as a response."""
    shown = msgspec.convert(state, ChannelState, from_attributes=True)
    if conversation is None:
        return shown
    fields: Json = {**msgspec.structs.asdict(conversation.state), "person": conversation.person}
    return msgspec.structs.replace(shown, conversation=msgspec.convert(fields, ChannelConversation))


class SubscribeQuery(StrictParams, frozen=True):
    """From where on to follow a log."""

    after: Annotated[int, Meta(ge=0)] = 0
    view: ChannelView = "own"


class LogQuery(SubscribeQuery, frozen=True):
    """Which part of a log to read."""

    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class LogPage(msgspec.Struct, frozen=True):
    """A part of a log, in the order of admission."""

    envelopes: list[Envelope]
    next: int | None = None
    """Where the next part begins; None if there is nothing behind this one yet."""


class MessageBody(StrictParams, frozen=True):
    """A message for a channel: a text, or an event of a type with a namespace of its own."""

    text: str | None = None
    event_type: ShortText | None = None
    data: Json | None = None
    audience: Annotated[list[ParticipantName], Meta(max_length=100)] | None = None
    causation_id: ShortText | None = None
    priority: Literal[0, 1, 2] = 1
    message_id: ShortText | None = None
    sender_id: ParticipantName | None = None
    """The sender is the participant of the key. Another name here is refused, and the refusal is recorded."""
    transport: ShortText | None = None
    """The transport by which a text came: `sms`, `email` …"""
    source: ShortText | None = None
    """Where it came from by this transport."""
    intent: ShortText | None = None
    """What it is about, as rules of a router see it."""
    addressed_to: ParticipantName | None = None
    """The participant of a routed channel that is to answer. Its router is not asked then."""
    set: Json | None = None
    """Context variables that are written with a text."""


class Received(msgspec.Struct, frozen=True):
    """A message that arrived by a transport, and the envelope that it became."""

    message_id: str
    channel_id: str
    envelope_id: str


class Changes(StrictParams, frozen=True):
    """Changes of a channel's context variables: first `delete`, then `set`."""

    set: Json = {}
    delete: Annotated[list[str], Meta(max_length=1000)] = []


class Reason(StrictParams, frozen=True):
    """Why something is ended."""

    reason: ShortText = "closed"


class ChannelEnd(msgspec.Struct, frozen=True):
    """Why a channel has ended: for the reason given, unless it had ended before."""

    reason: str


class Release(StrictParams, frozen=True):
    """To whom a person gives a routed conversation back."""

    to: ParticipantName | None = None
    """The agent that answers the next message; None if it is routed."""


class Cancelled(msgspec.Struct, frozen=True):
    """How many turns were stopped."""

    turns: int


class ApprovalQuery(StrictParams, frozen=True):
    """Which approvals to list."""

    view: ChannelView = "own"
    after: Annotated[str, Meta(max_length=128)] = ""
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    """How many channels to search."""


class ApprovalList(msgspec.Struct, frozen=True):
    """Approvals that are pending."""

    approvals: list[Approval]
    next: str | None = None
    """The channel after which to continue; None if all were searched."""


class Choice(StrictParams, frozen=True):
    """A person's decision."""

    decision: Literal["approve", "edit", "reject", "respond"]
    """`approve`: the call leaves, or what is in doubt is retried. `edit`: it leaves with `args`; refused for what has
    left already. `respond`: `text` is the call's result, or the agent's answer. `reject`: it is given up; `reason`,
    or `text`, says why."""
    digest: ShortText
    text: str = ""
    reason: str = ""
    args: Json | None = None
    """All arguments of the call as they are to be; for `edit` alone."""


class Decided(msgspec.Struct, frozen=True):
    """What was decided, and by whom."""

    approval_id: str
    decision: str
    by: str


class KeyWish(StrictParams, frozen=True):
    """A key to make."""

    participant: ParticipantName
    scopes: Annotated[list[KeyScope], Meta(min_length=1)]
    kind: KeyHolderKind = "service"
    expires_at: ShortText | None = None
    label: Annotated[str, Meta(max_length=MAX_WORD_CHARS)] = ""


class KeyMade(msgspec.Struct, frozen=True):
    """A new key. The secret is shown here and never again."""

    secret: str
    key: Key


class KeyList(msgspec.Struct, frozen=True):
    """All keys, oldest first, without their secrets."""

    keys: list[Key]


class Health(msgspec.Struct, frozen=True):
    """The server runs, and its store can be read. A server whose store cannot be used answers 503."""

    status: Literal["ok"]
    version: str
