"""The events of routed conversations, and of the transports that carry them to people elsewhere.

Rule 1: the hub records all of these. Participants cause them: an agent by a handoff, a person by a release.
Rule 2: the phase and the active agent change by `ConversationMoved` and `ConversationReleased` alone.
"""

from __future__ import annotations

import msgspec

from antiphon.core.envelope import Envelope, Json

EV_CONVERSATION_MOVED = "antiphon.conversation.moved"
EV_CONVERSATION_REFUSED = "antiphon.conversation.refused"
EV_CONVERSATION_RELEASED = "antiphon.conversation.released"
EV_CONVERSATION_UNROUTED = "antiphon.conversation.unrouted"
EV_TRANSPORT_CONNECTED = "antiphon.transport.connected"
EV_REPLY_DELIVERED = "antiphon.transport.delivered"
EV_REPLY_UNDELIVERABLE = "antiphon.transport.undeliverable"

TRANSPORT_FIELD = "transport"
"""A field of speech: the transport by which a message came, or by which a reply leaves."""
RECIPIENT_FIELD = "recipient"
"""A field of a reply: the address it is sent to. The hub writes it, and the transport, unless the sender has."""
LEAVES_BY_FIELD = "leaves_by"
"""A field of a reply that itself came by a transport, as staff may write: the transport by which it leaves."""
OBSERVED_FIELD = "antiphon.observed"
"""A field of a private event: true if the hub has extended its audience by the observer, who comes last in it.

Events of any type have it, so its name must not be one that their data uses."""
CONVERSATION_HUB_FIELDS = (RECIPIENT_FIELD, LEAVES_BY_FIELD, OBSERVED_FIELD)
"""Fields that only the hub writes."""


class ConversationMoved(msgspec.Struct, frozen=True, omit_defaults=True):
    """The conversation is in another phase, or with another agent, or with a person."""

    from_phase: str
    to_phase: str
    from_agent: str | None
    to_agent: str | None
    reason: str
    summary: str = ""
    """What the next agent should know, in the words of the one before."""
    by: str = ""
    """Who caused it: the agent that handed over, or a person."""
    person: str = ""
    """Set if a person has the conversation from now on: `human`, or the name of a person in the channel.

    Without it a person who has the conversation keeps it until `to_agent` is an agent."""
    released: str = ""
    """The person that had the conversation until now, or `human`, if this gives it to an agent again."""
    transport: str = ""
    """The transport by which replies leave from now on; "" if that does not change."""
    noted: bool = False
    """Whether nothing has changed but the notes."""
    context: Json | msgspec.UnsetType = msgspec.UNSET
    """The notes of the conversation from now on, if they change."""


class ConversationRefused(msgspec.Struct, frozen=True, omit_defaults=True):
    """A handoff that was not possible."""

    from_agent: str
    target: str
    reason: str
    """`target_not_found`, `transition_not_allowed` or `hop_limit:5`."""
    next_phase: str = ""
    late: bool = False
    """Whether it was possible when the agent asked for it, and was no longer when its turn ended."""


class ConversationReleased(msgspec.Struct, frozen=True):
    """A person gives the conversation back to agents."""

    by: str
    to: str | None = None
    """The agent that answers the next message; None if it is routed."""
    person: str = ""
    """The person that had the conversation, or `human`."""
    phase: str = ""
    """The phase that the conversation is in."""


class ConversationUnrouted(msgspec.Struct, frozen=True):
    """No agent answers this message: no rule named one that can."""

    message: str
    """The id of its envelope."""


class TransportConnected(msgspec.Struct, frozen=True):
    """The transports by which replies of this channel really leave. Others are labels."""

    names: list[str]


class ReplyDelivered(msgspec.Struct, frozen=True):
    """A transport has taken a reply."""

    transport: str
    reply: str
    """The id of its envelope."""
    sequence: int
    """Where it stands in the log. Replies leave in this order."""
    attempts: int = 1


class ReplyUndeliverable(msgspec.Struct, frozen=True):
    """A transport has refused a reply for good. It is not sent again."""

    transport: str
    reply: str
    sequence: int
    error: str
    attempts: int = 1


ConversationEvent = (
    ConversationMoved
    | ConversationRefused
    | ConversationReleased
    | ConversationUnrouted
    | TransportConnected
    | ReplyDelivered
    | ReplyUndeliverable
)

CONVERSATION_STRUCTS: dict[str, type[ConversationEvent]] = {
    EV_CONVERSATION_MOVED: ConversationMoved,
    EV_CONVERSATION_REFUSED: ConversationRefused,
    EV_CONVERSATION_RELEASED: ConversationReleased,
    EV_CONVERSATION_UNROUTED: ConversationUnrouted,
    EV_TRANSPORT_CONNECTED: TransportConnected,
    EV_REPLY_DELIVERED: ReplyDelivered,
    EV_REPLY_UNDELIVERABLE: ReplyUndeliverable,
}
"""The shape of the data of each type."""


def text_field(data: Json, name: str) -> str:
    """A field that is a text; "" if it is missing or anything else."""
    value = data.get(name)
    return value if isinstance(value, str) else ""


def leaving_transport(envelope: Envelope) -> str:
    """The transport by which a reply leaves."""
    data = envelope.event_data
    return text_field(data, LEAVES_BY_FIELD if LEAVES_BY_FIELD in data else TRANSPORT_FIELD)
