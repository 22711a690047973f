"""The transports of a hub, and the replies that leave by them. What comes in is `inbound`.

Rule 1: what has to leave is folded from the log of each channel (`ConversationMemory.outbox`), and stored nowhere else.
Rule 2: a reply leaves at least once, with one id, and in order within its channel. What a transport has taken is
        recorded in that channel, and so is what it refuses for good.
Rule 3: a transport that is down is asked again, with growing pauses. It holds up no other transport, and no channel
        another one, but that only so many are sent by one transport at once.
Rule 4: a channel whose replies have not left is due in the store, so that another process takes up where this one
        ended, also if the channel has ended.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import TypedDict

import msgspec

from antiphon.core.conversation_events import (
    EV_REPLY_DELIVERED,
    EV_REPLY_UNDELIVERABLE,
    EV_TRANSPORT_CONNECTED,
    RECIPIENT_FIELD,
    TRANSPORT_FIELD,
    ReplyDelivered,
    ReplyUndeliverable,
    TransportConnected,
    leaving_transport,
    text_field,
)
from antiphon.core.envelope import OPERATORS, Envelope, IdSource, Instant, add_seconds
from antiphon.core.errors import StoreGone, TransportRefused, TransportUnavailable, UsageError
from antiphon.core.event_data import data_of
from antiphon.core.events import SPEECH_TYPES
from antiphon.core.ruleset import Fold, Ruleset
from antiphon.core.step import Admitted, hub_draft, record
from antiphon.core.text import MAX_ERROR_CHARS, describe, sanitize
from antiphon.core.transport import InboundMessage, InboundReader, OutboundReply
from antiphon.engines.user_code import run_contained
from antiphon.hub.admission import AdmissionPlan
from antiphon.hub.clock import Clock, TimerQueue
from antiphon.hub.known_secrets import redact_error, redact_text
from antiphon.hub.live import Channels, LiveChannel
from antiphon.orchestration.conversation_memory import ConversationMemory, ReplyCursor, reply_text
from antiphon.runtime.arguments import check_option_names
from antiphon.runtime.hook_calls import Spawn
from antiphon.runtime.inbound import (
    FIRST_PAUSE_SECONDS,
    FindChannel,
    MessageReceiver,
    ReceiveMessages,
    longer_pause,
    record_message,
)

logger = logging.getLogger("antiphon.transport")

TRANSPORT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,47}\Z")
MAX_RETRY_AFTER_SECONDS = 86_400.0
MAX_SENDS_AT_ONCE = 32
SEND_SECONDS = 60.0

SendReply = Callable[[OutboundReply], Awaitable[object]]


class TransportOptions(TypedDict, total=False):
    """What a transport can do."""

    send: SendReply | None
    """Sends a reply once. `TransportRefused` if it can never be sent; anything else it raises: later again."""
    receive: ReceiveMessages | None
    """Gives the messages that come in. The next one is asked for when the last is recorded or refused."""
    channel: FindChannel | None
    """Opens or finds the channel of a message that has come in."""
    inbound: InboundReader | None
    """What reads the requests to the server's endpoint for this transport, such as a `WebhookTransport`."""


class TransportPort:
    """One transport of a hub."""

    def __init__(self, name: str, options: TransportOptions) -> None:
        self.name = name
        self.send, self.receive = options.get("send"), options.get("receive")
        self.channel, self.inbound = options.get("channel"), options.get("inbound")
        self.slots = asyncio.Semaphore(MAX_SENDS_AT_ONCE)


class Transports:
    """The transports of a hub, and the deliveries in progress."""

    def __init__(
        self, channels: Channels, clock: Clock, new_id: IdSource, *, spawn: Spawn, closing: asyncio.Event
    ) -> None:
        self._channels, self._clock, self._new_id = channels, clock, new_id
        self._spawn, self._closing = spawn, closing
        self.in_use = False
        """Whether any is registered. Senders look at this alone while none is."""
        self._timers = TimerQueue(clock)
        self._ports: dict[str, TransportPort] = {}
        self._deliveries: dict[tuple[str, str], asyncio.Event] = {}
        """By transport and channel: set when there is more to deliver."""
        self._waiting: set[str] = set()
        """Channels with replies for a transport that is not registered here yet."""

    def register(self, name: str, options: TransportOptions) -> None:
        """Make a transport known, and take up what has to leave by it."""
        _check_transport(name, options)
        if name in self._ports:
            raise UsageError(f"a transport {name!r} is registered in this hub already")
        if not self._ports:
            self._channels.deps.on_recorded.append(self.recorded)
            self._spawn(self._timers.run(), "timeouts of transports")
            self.in_use = True
        port = self._ports[name] = TransportPort(name, options)
        if port.receive is not None:
            self._spawn(self._receiver(port, port.receive).run(), f"messages by {name}")
        for channel_id in list(self._waiting):
            self._spawn(self._look_at_id(channel_id), f"replies of {channel_id}")

    def sends(self, name: str) -> bool:
        """Whether replies really leave by this transport."""
        port = self._ports.get(name)
        return port is not None and port.send is not None

    def inbound(self, name: str) -> InboundReader | None:
        """What reads requests for this transport; None if nothing does."""
        port = self._ports.get(name)
        return None if port is None or port.channel is None else port.inbound

    async def accept(self, name: str, message: InboundMessage) -> Envelope:
        """Record a message that has come in. The same message again gives the envelope of the first time."""
        find = self._ports[name].channel
        assert find is not None, "a transport without channels takes no messages"
        return await record_message(name, find, message)

    def _receiver(self, port: TransportPort, receive: ReceiveMessages) -> MessageReceiver:
        async def record(message: InboundMessage) -> object:
            return await self.accept(port.name, message)

        return MessageReceiver(port.name, receive, record, timers=self._timers, closing=self._closing)

    def connection(self, live: LiveChannel, draft: Envelope) -> AdmissionPlan | None:
        """Plans the fact by which transports replies of this channel leave; None if this message changes nothing."""
        name = draft.event_data.get(TRANSPORT_FIELD) if draft.event_type in SPEECH_TYPES else None
        if not isinstance(name, str) or not self.sends(name):
            return None
        memory = live.ruleset.adapter_memory(live.fold)
        names = {each for each in self._ports if self.sends(each)}
        if not isinstance(memory, ConversationMemory) or names <= set(memory.connected):
            return None
        return ConnectTransports(frozenset(names), self._new_id)

    def look_at(self, live: LiveChannel) -> None:
        """Start to deliver what has to leave from this channel."""
        memory = live.ruleset.adapter_memory(live.fold)
        if not isinstance(memory, ConversationMemory) or not memory.outbox:
            return
        channel_id = live.state.channel_id
        for name, cursor in memory.outbox.items():
            if not cursor.pending:
                continue
            if not self.sends(name):
                self._waiting.add(channel_id)
            elif (name, channel_id) in self._deliveries:
                self._deliveries[name, channel_id].set()
            else:
                more = self._deliveries[name, channel_id] = asyncio.Event()
                self._spawn(self._deliver(self._ports[name], channel_id, more), f"replies by {name}")

    def recorded(self, channel_id: str, batch: list[Envelope]) -> None:
        """Look at a channel in which a reply was recorded just now."""
        if self._ports and any(RECIPIENT_FIELD in envelope.event_data for envelope in batch):
            live = self._channels.loaded(channel_id)
            if live is not None:
                self.look_at(live)

    async def _look_at_id(self, channel_id: str) -> None:
        self._waiting.discard(channel_id)
        self.look_at(await self._channels.get(channel_id))

    async def _deliver(self, port: TransportPort, channel_id: str, more: asyncio.Event) -> None:
        """Deliver the replies of one channel, one after the other, until none is left."""
        try:
            while True:
                more.clear()
                live = await self._channels.get(channel_id)
                found = await self._next_reply(live, port.name)
                if found is not None:
                    await self._deliver_reply(port, live, found)
                elif not more.is_set():
                    return
        except StoreGone:
            return
        finally:
            del self._deliveries[port.name, channel_id]

    async def _next_reply(self, live: LiveChannel, name: str) -> Envelope | None:
        cursor = _cursor_of(live, name)
        after = 0 if cursor is None else cursor.done
        while cursor is not None and cursor.pending and (page := await live.read(after)):
            found = next((each for each in page if _leaves_by(each, name)), None)
            if found is not None:
                return found
            after = page[-1].sequence
        return None

    async def _deliver_reply(self, port: TransportPort, live: LiveChannel, envelope: Envelope) -> None:
        assert port.send is not None, "only a transport that sends has deliveries"
        attempt, pause = 0, FIRST_PAUSE_SECONDS
        sequence, reply_id = envelope.sequence, envelope.envelope_id
        send = port.send

        async def send_once() -> None:
            sent = send(_outbound(envelope, port.name, attempt))
            if isawaitable(sent):
                await sent

        while self._is_due(live, port.name, sequence):
            attempt += 1
            try:
                async with port.slots, self._timers.within(SEND_SECONDS):
                    await run_contained(send_once, f"the transport {port.name!r}", port.send)
            except TransportRefused as error:
                why = sanitize(redact_text(str(error)))[:MAX_ERROR_CHARS]
                logger.warning("%s refuses the reply %s for good: %s", port.name, reply_id, why)
                failed = ReplyUndeliverable(port.name, reply_id, sequence, why, attempt)
                await self._record(live, EV_REPLY_UNDELIVERABLE, failed)
            except Exception as error:  # of any kind: a transport is code of the user's
                why = redact_error(error)
                logger.warning("%s did not take the reply %s: %s", port.name, reply_id, why)
                wanted = error.retry_after if isinstance(error, TransportUnavailable) else None
                clock = self._clock
                asked = min(wanted, MAX_RETRY_AFTER_SECONDS) if wanted and wanted > 0 else 0.0
                await clock.wait(asyncio.Event(), add_seconds(clock.now(), max(pause, asked)))
                pause = longer_pause(pause)
            else:
                delivered = ReplyDelivered(port.name, reply_id, sequence, attempt)
                await self._record(live, EV_REPLY_DELIVERED, delivered)

    def _is_due(self, live: LiveChannel, name: str, sequence: int) -> bool:
        """Whether this reply has still to leave: not once its channel was erased, or another hub has delivered it."""
        cursor = _cursor_of(live, name)
        return cursor is not None and cursor.done < sequence

    async def _record(self, live: LiveChannel, event_type: str, event: ReplyDelivered | ReplyUndeliverable) -> None:
        await live.submit(RecordDelivery(event_type, event, self._new_id))


class ConnectTransports(msgspec.Struct, frozen=True):
    """Plans the fact by which transports the replies of a channel leave. One that was connected stays so."""

    names: frozenset[str]
    new_id: IdSource

    def __call__(self, fold: Fold, ruleset: Ruleset, at: Instant) -> Admitted | None:
        memory = ruleset.adapter_memory(fold)
        if fold.state.ended or not isinstance(memory, ConversationMemory) or self.names <= set(memory.connected):
            return None
        data = data_of(TransportConnected(sorted({*memory.connected, *self.names})))
        draft = hub_draft(EV_TRANSPORT_CONNECTED, data, audience=[OPERATORS])
        return record(fold, draft, ruleset=ruleset, at=at, new_id=self.new_id)


class RecordDelivery(msgspec.Struct, frozen=True):
    """Plans the result of a delivery. It is recorded in a channel that has ended, too."""

    event_type: str
    event: ReplyDelivered | ReplyUndeliverable
    new_id: IdSource

    def __call__(self, fold: Fold, ruleset: Ruleset, at: Instant) -> Admitted | None:
        memory, event = ruleset.adapter_memory(fold), self.event
        cursor = memory.outbox.get(event.transport) if isinstance(memory, ConversationMemory) else None
        if cursor is None or event.sequence <= cursor.done:  # another hub has recorded it
            return None
        draft = hub_draft(self.event_type, data_of(event), cause=event.reply, audience=[OPERATORS])
        return record(fold, draft, ruleset=ruleset, at=at, new_id=self.new_id)


def _cursor_of(live: LiveChannel, name: str) -> ReplyCursor | None:
    memory = live.ruleset.adapter_memory(live.fold)
    return memory.outbox.get(name) if isinstance(memory, ConversationMemory) else None


def _leaves_by(envelope: Envelope, name: str) -> bool:
    leaves = envelope.event_type in SPEECH_TYPES and RECIPIENT_FIELD in envelope.event_data
    return leaves and leaving_transport(envelope) == name and bool(reply_text(envelope))


def _outbound(envelope: Envelope, name: str, attempt: int) -> OutboundReply:
    return OutboundReply(
        envelope.envelope_id,
        envelope.channel_id,
        name,
        text_field(envelope.event_data, RECIPIENT_FIELD),
        reply_text(envelope),
        envelope.sender_id,
        envelope.causation_id,
        attempt,
    )


def _check_transport(name: object, options: TransportOptions) -> None:
    if not isinstance(name, str) or not TRANSPORT_NAME.match(name):
        raise UsageError(f"{describe(name)} is no name of a transport; use letters, digits, '-' and '_' (1-48)")
    check_option_names(options, TransportOptions.__optional_keys__)
    given: dict[str, object] = {**options}
    for option in ("send", "receive", "channel"):
        if given.get(option) is not None and not callable(given[option]):
            raise UsageError(f"{option} of the transport {name!r} is {describe(given[option])}; give a function")
    reader = given.get("inbound")
    if reader is not None and (isinstance(reader, type) or not callable(getattr(reader, "read_inbound", None))):
        advice = "give an object with read_inbound, such as WebhookTransport(…)"
        raise UsageError(f"inbound of the transport {name!r} is {describe(reader)}; {advice}")
    if (given.get("receive") or given.get("inbound")) and given.get("channel") is None:
        raise UsageError(f"the transport {name!r} receives messages; give channel=, which finds the channel of each")
    if not any(given.get(option) for option in ("send", "receive", "inbound")):
        raise UsageError(f"the transport {name!r} neither sends nor receives; give send=, receive= or inbound=")
