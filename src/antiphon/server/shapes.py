"""What goes over the wire: the types that the verbs take and give, and that the OpenAPI document is made from."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from antiphon.agents.messages import NO_USAGE, Usage
from antiphon.core.envelope import Envelope
from antiphon.core.events import Json
from antiphon.core.state import State, Status
from antiphon.hub.keys import Key
from antiphon.runtime.approvals import Approval
from antiphon.store.protocol import ChannelRow

LONGEST = 200
NAME = "^[A-Za-z0-9][A-Za-z0-9_-]{0,47}$"

Name = Annotated[str, Meta(pattern=NAME)]
Word = Annotated[str, Meta(min_length=1, max_length=LONGEST)]
View = Literal["own", "operator"]
"""What the participant may see that the key speaks for, or everything, which needs the scope `operate`."""


class Given(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Something that is sent to the server: a field that it does not know is a mistake."""


# Agents


class Question(Given, frozen=True):
    """What is said to an agent."""

    text: str
    thread_id: Word | None = None
    """The conversation that it belongs to; None for a new one."""
    message_id: Word | None = None
    """Makes the request repeatable: asked again with the same, nothing is said twice."""


class Tokens(Given, frozen=True):
    """How an answer is followed."""

    tokens: bool = False
    """Whether it comes in pieces too, as the model speaks: events `token`, which have no id."""


class Answer(msgspec.Struct, frozen=True):
    """What an agent came to."""

    text: str
    agent: str
    """Who answered."""
    stopped: str | None
    """The named limit that ended the turn; None if it ended by itself."""
    usage: Usage = NO_USAGE
    channel_id: str = ""
    output: object = None
    """The answer as a value, if the agent gives values."""


class AgentRow(msgspec.Struct, frozen=True):
    """An agent that can be asked."""

    name: str
    description: str
    team: list[str]
    """Everybody who may answer for it, as paths."""


class AgentList(msgspec.Struct, frozen=True):
    """The agents that can be asked."""

    agents: list[AgentRow]


# Channels


class ChannelQuery(Given, frozen=True):
    """Which channels to list."""

    status: Status | None = None
    participant: Name | None = None
    view: View = "own"
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


class Opening(Given, frozen=True):
    """A channel to be opened by whoever asks."""

    target: Annotated[list[Name], Meta(min_length=1, max_length=100)]
    """The other participants, in order."""
    type: Annotated[str, Meta(min_length=1, max_length=48)] = "conversation"
    knobs: Json = {}
    ttl: Annotated[float, Meta(gt=0)] | None = None
    context_vars: Json = {}
    say: str | None = None
    """The first words of the participant that opens it, recorded with the opening."""
    key: Word | None = None
    """Makes the request repeatable: with the same key, the same channel is answered."""


class ChannelState(msgspec.Struct, frozen=True):
    """A channel as its log leaves it now."""

    channel_id: str
    type: str
    status: Status
    creator_id: str
    participants: dict[str, str]
    """Name to kind, in order."""
    speakers: list[str]
    """Who has the turn."""
    turn_count: int
    sequence: int
    context_vars: Json
    close_reason: str
    paused: str
    active: dict[str, str]
    """Who answers for an agent that has a team, if not the agent itself."""
    created_at: str
    updated_at: str
    erased: bool
    """Whether its content was erased: tombstones are left."""


def shown(state: State) -> ChannelState:
    """A state as it is sent."""
    return ChannelState(
        state.channel_id,
        state.type,
        state.status,
        state.creator_id,
        state.participants,
        list(state.speakers),
        state.turn_count,
        state.sequence,
        state.context_vars,
        state.close_reason,
        state.paused,
        state.active,
        state.created_at,
        state.updated_at,
        state.erased,
    )


class Cursor(Given, frozen=True):
    """From where on to follow a log."""

    after: Annotated[int, Meta(ge=0)] = 0
    view: View = "own"


class LogQuery(Cursor, frozen=True):
    """Which part of a log to read."""

    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class Log(msgspec.Struct, frozen=True):
    """A part of a log, in the order of admission."""

    envelopes: list[Envelope]
    next: int | None = None
    """Where the next part begins; None if there is nothing behind this one yet."""


class Message(Given, frozen=True):
    """Something to be recorded in a channel: a text, or an event of a type with a namespace of its own."""

    text: str | None = None
    event_type: Word | None = None
    data: Json | None = None
    audience: Annotated[list[Name], Meta(max_length=100)] | None = None
    causation_id: Word | None = None
    priority: Literal[0, 1, 2] = 1
    message_id: Word | None = None
    sender_id: Name | None = None
    """Who sends it is whoever the key speaks for. Another name here is refused, and that is recorded."""


class Changes(Given, frozen=True):
    """What changes among the context variables of a channel: first `delete`, then `set`."""

    set: Json = {}
    delete: Annotated[list[str], Meta(max_length=1000)] = []


class Reason(Given, frozen=True):
    """Why something is ended."""

    reason: Word = "closed"


class Ended(msgspec.Struct, frozen=True):
    """Why a channel has ended: for the reason given, unless it had ended before."""

    reason: str


class Cancelled(msgspec.Struct, frozen=True):
    """How many turns were stopped."""

    turns: int


# Approvals


class ApprovalQuery(Given, frozen=True):
    """Which of what waits for a person to list."""

    view: View = "own"
    after: Annotated[str, Meta(max_length=128)] = ""
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    """How many channels to look through."""


class ApprovalList(msgspec.Struct, frozen=True):
    """What waits for a person."""

    approvals: list[Approval]
    next: str | None = None
    """The channel behind which to look on; None if all have been looked through."""


class Choice(Given, frozen=True):
    """What a person decides."""

    decision: Literal["approve", "edit", "reject", "respond"]
    """`approve`: the call or turn is retried. `respond`: `text` is the call's result, or the agent's answer. `reject`:
    it is given up; `reason`, or `text`, says why. `edit` is refused for what has left already."""
    digest: Word
    text: str = ""
    reason: str = ""


class Decided(msgspec.Struct, frozen=True):
    """What was decided, and by whom."""

    approval_id: str
    decision: str
    by: str


# Keys and the server itself


class KeyWish(Given, frozen=True):
    """A key to be made."""

    participant: Name
    scopes: Annotated[list[Literal["invoke", "read", "write", "approve", "operate"]], Meta(min_length=1)]
    kind: Literal["human", "service"] = "service"
    expires_at: Word | None = None
    label: Annotated[str, Meta(max_length=LONGEST)] = ""


class KeyMade(msgspec.Struct, frozen=True):
    """A new key. The secret is told here and never again."""

    secret: str
    key: Key


class KeyList(msgspec.Struct, frozen=True):
    """All keys, oldest first; nothing here opens anything."""

    keys: list[Key]


class Health(msgspec.Struct, frozen=True):
    """That the server is there, and its store can be read. A server whose store cannot be used answers 503."""

    status: Literal["ok"]
    version: str
