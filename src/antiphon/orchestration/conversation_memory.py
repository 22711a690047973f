"""What the log of a routed conversation amounts to: its state, the messages that wait, and the replies that must leave.

Rule 1: everything here is folded from the log. A message waits from when it is recorded until its turn is assigned, or
        until it is recorded that no agent answers it.
Rule 2: while a person has the conversation no message waits, unless it is addressed to an agent: what is said then is
        for the person, and is not answered by an agent later.
Rule 3: of a message that waits only what routing needs is kept, unless predicates are shown all of it, so that a long
        queue makes no large snapshot.
Rule 4: a reply is due for delivery if its transport was connected when it was recorded. Others are labels, so that a
        transport that is connected later does not send old replies.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from antiphon.core.conversation_events import (
    EV_CONVERSATION_MOVED,
    EV_CONVERSATION_REFUSED,
    EV_CONVERSATION_RELEASED,
    EV_CONVERSATION_UNROUTED,
    EV_REPLY_DELIVERED,
    EV_REPLY_UNDELIVERABLE,
    EV_TRANSPORT_CONNECTED,
    LEAVES_BY_FIELD,
    RECIPIENT_FIELD,
    TRANSPORT_FIELD,
    ConversationMoved,
    ConversationRefused,
    ConversationReleased,
    ConversationUnrouted,
    ReplyDelivered,
    ReplyUndeliverable,
    TransportConnected,
    leaving_transport,
    text_field,
)
from antiphon.core.envelope import HUB, NEVER, Envelope, Instant, Json, visible_to
from antiphon.core.event_data import event_of
from antiphon.core.events import (
    EV_CHANNEL_CREATED,
    EV_CHANNEL_FORKED,
    EV_PACKET,
    EV_TEXT,
    EV_TURN_ASSIGNED,
    SPEECH_TYPES,
    ChannelCreated,
    ChannelForked,
)
from antiphon.orchestration.conversation import ConversationState, PhaseTransition

SOURCE_FIELD, INTENT_FIELD, ADDRESSED_FIELD = "source", "intent", "addressed_to"
"""Fields of messages, beside the transport."""
ROUTING_FIELDS = (TRANSPORT_FIELD, SOURCE_FIELD, INTENT_FIELD, ADDRESSED_FIELD)


OBSERVES = "observes"
"""The reason with which the observer is given its turn."""


class WaitingMessage(msgspec.Struct, frozen=True):
    """A message that agents have to answer, or are answering."""

    envelope_id: str
    sequence: int
    sender: str
    data: Json
    """What it says, or its routing fields alone."""
    audience: tuple[str, ...] | None = None
    at: Instant = NEVER

    @property
    def transport(self) -> str:
        """The transport it came by; "" if none is named."""
        return text_field(self.data, TRANSPORT_FIELD)

    @property
    def addressed_to(self) -> str:
        """The participant it is addressed to; "" if it is routed."""
        return text_field(self.data, ADDRESSED_FIELD)

    def envelope(self, channel_id: str) -> Envelope:
        """The message as it stands in the log, for conditions that look at it when its turn begins."""
        audience = None if self.audience is None else list(self.audience)
        return Envelope(
            self.envelope_id,
            channel_id,
            self.sender,
            audience,
            EV_TEXT,
            self.data,
            created_at=self.at,
            sequence=self.sequence,
        )


class ReplyCursor(msgspec.Struct, frozen=True):
    """How far one transport has delivered the replies of a channel."""

    newest: int
    """The sequence of the last reply that leaves by it."""
    done: int = 0
    """The sequence of the last reply it has taken or refused for good."""
    since: Instant = NEVER
    """When the oldest reply that is not done was recorded."""

    @property
    def pending(self) -> bool:
        """Whether a reply has not left yet."""
        return self.done < self.newest


class TransportSwitch(msgspec.Struct, frozen=True):
    """The transport that replies were switched to, and where in the log."""

    transport: str
    sequence: int


class ConversationMemory(msgspec.Struct, frozen=True):
    """The fold of a routed conversation."""

    state: ConversationState = ConversationState()
    kinds: dict[str, str] = {}
    """Name to kind of every participant."""
    creator: str = ""
    waiting: tuple[WaitingMessage, ...] = ()
    """In the order in which they are answered."""
    current: WaitingMessage | None = None
    """The message that was answered last, or is being answered."""
    answering: str = ""
    """The agent that was given the last turn about it, the observer aside."""
    hops: int = 0
    """How many handoffs there have been since that message."""
    observed: bool = True
    """Whether the observer has had its turn about that message, or is to have none."""
    person: str = ""
    """The person that has the conversation, or `human`; "" while agents have it."""
    contacts: dict[str, WaitingMessage] = {}
    """The last message that each participant has sent by a transport."""
    contact: WaitingMessage | None = None
    """While a person has the conversation: the message to whose sender the person's words leave."""
    switched: dict[str, TransportSwitch] = {}
    """The transport that the replies to a participant were switched to; to others they leave as the message came."""
    addresses: dict[str, dict[str, str]] = {}
    """For each participant the last source by each transport that a message has come by."""
    connected: tuple[str, ...] = ()
    """The transports by which replies really leave."""
    outbox: dict[str, ReplyCursor] = {}


def is_staff(memory: ConversationMemory, name: str) -> bool:
    """Whether this is a person other than the creator, who is to be helped."""
    return memory.kinds.get(name) == "human" and name != memory.creator


def reply_text(envelope: Envelope) -> str:
    """What is said in a packet or a text; "" if nothing is."""
    return text_field(envelope.event_data, "body" if envelope.event_type == EV_PACKET else "text")


HEARD_TYPES = frozenset(
    {
        *SPEECH_TYPES,
        EV_CHANNEL_CREATED,
        EV_CHANNEL_FORKED,
        EV_TURN_ASSIGNED,
        EV_CONVERSATION_MOVED,
        EV_CONVERSATION_REFUSED,
        EV_CONVERSATION_RELEASED,
        EV_CONVERSATION_UNROUTED,
        EV_TRANSPORT_CONNECTED,
        EV_REPLY_DELIVERED,
        EV_REPLY_UNDELIVERABLE,
    }
)


def fold_conversation(
    memory: ConversationMemory, envelope: Envelope, *, first_phase: str, observer: str | None, keep_texts: bool
) -> ConversationMemory:
    """The conversation once this envelope is part of its log. `keep_texts` keeps all that waiting messages say."""
    kind = envelope.event_type
    if kind not in HEARD_TYPES:
        return memory
    if kind in SPEECH_TYPES:
        return _fold_speech(memory, envelope, observer, keep_texts=keep_texts)
    if envelope.sender_id != HUB:
        return memory
    if kind == EV_TURN_ASSIGNED:
        return _fold_assignment(memory, envelope, observer)
    if kind == EV_CHANNEL_CREATED:
        return _fold_creation(memory, envelope, first_phase)
    return _fold_event(memory, envelope)


def _fold_creation(memory: ConversationMemory, envelope: Envelope, first_phase: str) -> ConversationMemory:
    created = event_of(envelope)
    if not isinstance(created, ChannelCreated):
        return memory
    kinds = {seat.name: seat.kind for seat in created.participants}
    state = ConversationState(phase=first_phase, phase_started_at=envelope.created_at)
    return replace(memory, state=state, kinds=kinds, creator=created.creator)


def _fold_event(memory: ConversationMemory, envelope: Envelope) -> ConversationMemory:
    at = envelope.created_at
    match event_of(envelope):
        case ConversationMoved() as moved:
            return _fold_moved(memory, moved, envelope)
        case ConversationRefused(late=True):
            return replace(memory, hops=memory.hops + 1)
        case ConversationReleased(to=to):
            return _fold_release(memory, to, at)
        case ConversationUnrouted(message=message):
            return _take_up(memory, message)
        case TransportConnected(names=names):
            return replace(memory, connected=tuple(names))
        case ChannelForked():  # what has to leave, leaves from the channel that was forked
            return replace(memory, outbox={}, connected=())
        case ReplyDelivered(transport=name, sequence=done) | ReplyUndeliverable(transport=name, sequence=done):
            return _fold_delivery(memory, name, done=done, at=at)
        case _:
            return memory


def _fold_moved(memory: ConversationMemory, moved: ConversationMoved, envelope: Envelope) -> ConversationMemory:
    """The conversation in its next phase, with its next agent, or with a person."""
    before, at, sequence = memory.state, envelope.created_at, envelope.sequence
    if moved.noted and moved.context is not msgspec.UNSET:
        noted = replace(before, context=moved.context, revision=before.revision + 1)
        return replace(memory, state=noted)
    # The state is shown to every participant: why a conversation moved after a private message is not in it.
    reason = moved.reason if envelope.audience is None else ""
    transition = PhaseTransition(before.phase, moved.to_phase, moved.from_agent, moved.to_agent, reason, at)
    state = before.apply(transition)
    if moved.context is not msgspec.UNSET:
        state = replace(state, context=moved.context)
    if moved.transport and memory.current is not None:
        switch = TransportSwitch(moved.transport, sequence)
        memory = replace(memory, switched={**memory.switched, memory.current.sender: switch})
    if moved.person:
        return _begin_hold(replace(memory, state=state), moved.person)
    if moved.to_agent is None:  # the phase alone has changed, or no agent is active any more: a hold goes on
        return replace(memory, state=state)
    by_agent = memory.kinds.get(moved.by) == "agent"
    return replace(memory, state=state, person="", contact=None, hops=memory.hops + by_agent)


def _begin_hold(memory: ConversationMemory, person: str) -> ConversationMemory:
    """The conversation once this person has it."""
    contact = memory.contact if memory.person else _last_contact(memory)
    addressed = tuple(message for message in memory.waiting if message.addressed_to)
    return replace(memory, person=person, contact=contact, waiting=addressed, observed=True)


def _last_contact(memory: ConversationMemory) -> WaitingMessage | None:
    """The last message by a transport of the participant that is answered now; of any customer, if that is staff."""
    current = memory.current
    if current is not None and not is_staff(memory, current.sender):
        return memory.contacts.get(current.sender, current)
    by_customers = [message for name, message in memory.contacts.items() if not is_staff(memory, name)]
    return max(by_customers, key=lambda message: message.sequence, default=current)


def _fold_release(memory: ConversationMemory, to: str | None, at: Instant) -> ConversationMemory:
    state = memory.state
    if to is not None:
        state = state.apply(PhaseTransition(state.phase, state.phase, None, to, "released", at))
    return replace(memory, state=state, person="", contact=None)


def _fold_speech(
    memory: ConversationMemory, envelope: Envelope, observer: str | None, *, keep_texts: bool
) -> ConversationMemory:
    speaker, data = envelope.sender_id, envelope.event_data
    if RECIPIENT_FIELD in data:
        memory = _fold_reply(memory, envelope, leaving_transport(envelope))
    if memory.kinds.get(speaker) == "agent" or (RECIPIENT_FIELD in data and LEAVES_BY_FIELD not in data):
        return memory
    message = WaitingMessage(
        envelope.envelope_id,
        envelope.sequence,
        speaker,
        data if keep_texts else {field: data[field] for field in ROUTING_FIELDS if field in data},
        None if envelope.audience is None else tuple(envelope.audience),
        envelope.created_at,
    )
    if message.transport:
        memory = _fold_contact(memory, message)
    if _waits(memory, message, observer):
        return replace(memory, waiting=(*memory.waiting, message))
    return _without_switch(memory, message)


def _fold_contact(memory: ConversationMemory, message: WaitingMessage) -> ConversationMemory:
    """The conversation with how a sender was reached last. Its source stays known if a later message names none."""
    sender, source = message.sender, text_field(message.data, SOURCE_FIELD)
    known = memory.addresses.get(sender, {})
    if source and known.get(message.transport) != source:
        memory = replace(memory, addresses={**memory.addresses, sender: {**known, message.transport: source}})
    memory = replace(memory, contacts={**memory.contacts, sender: message})
    before = memory.contact
    by_other_staff = is_staff(memory, sender) and (before is None or before.sender != sender)
    return memory if not memory.person or by_other_staff else replace(memory, contact=message)


def _without_switch(memory: ConversationMemory, message: WaitingMessage) -> ConversationMemory:
    """The conversation once this message is answered, or is to have no answer: replies leave as it came."""
    switch = memory.switched.get(message.sender)
    if switch is None or not message.transport or message.sequence < switch.sequence:
        return memory
    return replace(memory, switched={name: each for name, each in memory.switched.items() if each is not switch})


def _waits(memory: ConversationMemory, message: WaitingMessage, observer: str | None) -> bool:
    """Whether an agent is to answer this, as far as can be said before it is routed."""
    if message.addressed_to:
        return memory.kinds.get(message.addressed_to) in ("agent", None)
    if memory.person or message.sender == observer:
        return False
    heard = message.audience
    return heard is None or any(memory.kinds.get(name) == "agent" and name != observer for name in heard)


def _fold_reply(memory: ConversationMemory, envelope: Envelope, name: str) -> ConversationMemory:
    """The conversation with one more reply to deliver, if its transport is connected."""
    if name not in memory.connected or not reply_text(envelope):
        return memory
    before = memory.outbox.get(name, ReplyCursor(0))
    # What was said before by the same transport was done, or left by none: its transport was not connected then.
    first = ReplyCursor(envelope.sequence, envelope.sequence - 1, envelope.created_at)
    cursor = replace(before, newest=envelope.sequence) if before.pending else first
    return replace(memory, outbox={**memory.outbox, name: cursor})


def _fold_delivery(memory: ConversationMemory, name: str, *, done: int, at: Instant) -> ConversationMemory:
    before = memory.outbox.get(name)
    if before is None or done <= before.done:
        return memory
    cursor = ReplyCursor(before.newest, done, at if done < before.newest else NEVER)
    return replace(memory, outbox={**memory.outbox, name: cursor})


def _fold_assignment(memory: ConversationMemory, envelope: Envelope, observer: str | None) -> ConversationMemory:
    memory = _take_up(memory, envelope.causation_id or "")
    speakers = envelope.event_data.get("speakers")
    if not isinstance(speakers, list) or not speakers:
        return memory
    return replace(memory, observed=True) if speakers[0] == observer else replace(memory, answering=speakers[0])


def _take_up(memory: ConversationMemory, message_id: str) -> ConversationMemory:
    """The conversation once this message waits no longer; the same if it does not wait."""
    waiting = memory.waiting
    taken = next((message for message in waiting if message.envelope_id == message_id), None)
    if taken is None:
        return memory
    rest = waiting[1:] if waiting[0] is taken else tuple(each for each in waiting if each is not taken)
    memory = _without_switch(memory, taken)
    return replace(memory, waiting=rest, current=taken, hops=0, observed=False)


def reply_route(memory: ConversationMemory, draft: Envelope) -> tuple[str, str] | None:
    """The transport by which this leaves, and the recipient; None if it leaves by none.

    What a person says leaves while the person has the conversation. Otherwise it is a message to the agents.
    """
    speaker, message = draft.sender_id, memory.current
    if memory.kinds.get(speaker) != "agent":
        message = memory.contact if _speaks_for_staff(memory, draft) else None
        if message is None or message.sender == speaker:
            return None
        if draft.event_data.get(ADDRESSED_FIELD, message.sender) != message.sender:
            return None
    if message is None or not visible_to(draft, message.sender):
        return None
    switch = memory.switched.get(message.sender)
    name = message.transport if switch is None else switch.transport
    if name not in memory.connected and message.transport in memory.connected:
        name = message.transport  # a transport that is asked for and not there must not lose the reply
    if not name or not reply_text(draft):
        return None
    own = text_field(message.data, SOURCE_FIELD) if name == message.transport else ""
    return name, own or memory.addresses.get(message.sender, {}).get(name, "")


def _speaks_for_staff(memory: ConversationMemory, draft: Envelope) -> bool:
    """Whether this is said by a person who has the conversation: staff, or the creator where there is none."""
    speaker = draft.sender_id
    if not memory.person or memory.kinds.get(speaker) != "human":
        return False
    alone = not any(is_staff(memory, name) for name in memory.kinds)
    return speaker != memory.creator or (alone and TRANSPORT_FIELD not in draft.event_data)
