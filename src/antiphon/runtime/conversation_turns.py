"""The events of all turns that answer one message of a routed conversation, projected from its channel's log.

Rule 1: the answer ends with the first packet that hands over to no agent, with a turn that fails, when a person has the
        conversation, or when it is recorded that no agent answers. The observer's turn is no part of it.
Rule 2: a message of which nothing follows, as in a hold, is over at once: nothing is waited for.
Rule 3: texts that agents say before they hand over are part of the answer, in their order.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager

from msgspec.structs import replace

from antiphon.agents.call_results import NO_USAGE, Usage
from antiphon.core.conversation_events import ConversationMoved, ConversationReleased, ConversationUnrouted
from antiphon.core.envelope import Envelope
from antiphon.core.event_data import event_of
from antiphon.core.events import ChannelClosed, Event, Packet, Text, TurnAssigned
from antiphon.core.execution_events import CallDoubted, TurnReleased, TurnSuspended
from antiphon.hub.feed import TokenSubscriber
from antiphon.hub.live import LiveChannel
from antiphon.orchestration.conversation_memory import OBSERVES
from antiphon.runtime.channel import Channel
from antiphon.runtime.conversation_plans import conversation_memory
from antiphon.runtime.turn_events import (
    APPROVAL,
    IN_DOUBT,
    NO_SEQUENCE,
    SUSPENDED,
    AgentEvent,
    FinalStateEvent,
    MessageEvents,
    NumberedEvent,
    TokenEvent,
    TurnEvents,
)
from antiphon.runtime.turn_stream import follow_turn

ANSWER_GAP = "\n\n"
"""Separates the texts of several agents in one answer."""


class ConversationTurns:
    """Projects the envelopes of a routed channel to the events of the turns that answer a message."""

    def __init__(self, live: LiveChannel) -> None:
        self._live = live
        self.message: Envelope | None = None
        """What is to be answered."""
        self.over = False
        """Whether the answer is complete, or there is none."""
        self.handoffs: list[ConversationMoved] = []
        """The handoffs by which the message has moved on."""
        self.person = ""
        """The person that has the conversation, or `human`, if that is why no agent answers further."""
        self.unrouted = False
        """Whether it is recorded that no agent answers."""
        self._turn: TurnEvents | None = None
        """The turn that was assigned last for the message."""
        self._in_turn = False
        self._packet_id: str | None = None
        """The packet that was the last to end a turn of the message."""
        self._last_final: FinalStateEvent | None = None
        self._decided_by: int | None = None
        """The sequence up to which a turn must have been assigned; None if one is in progress, or is owed later."""
        self._read = 0
        self._texts: list[str] = []
        self._usage: Usage = NO_USAGE

    def project_page(self, page: Sequence[Envelope], subscriber: TokenSubscriber | None) -> Iterator[NumberedEvent]:
        """The events of a page, until the answer is complete, and the tokens that have come."""
        if not self._read:
            yield from ((self._read, event) for event in self._begin())
        for envelope in page:
            if self.over:
                return
            self._read = envelope.sequence
            events = self._project(envelope)
            if not self.over and self._decided_by is not None and self._read >= self._decided_by:
                events = [*events, self._finish(self._last_final)]
            yield from self._tokens_in(subscriber)  # before the events: the answer follows its tokens
            yield from ((envelope.sequence, event) for event in events)
        yield from self._tokens_in(subscriber)

    def _begin(self) -> list[AgentEvent]:
        """What is known when the message is recorded."""
        assert self.message is not None, "it is recorded before anything is projected"
        self._read = self.message.sequence
        memory, sequence = conversation_memory(self._live), self._live.state.sequence
        if any(message.envelope_id == self.message.envelope_id for message in memory.waiting):
            return self._blocked_events()
        self._decided_by, self.person = sequence, memory.person
        return [self._finish(None)] if sequence <= self._read else []

    def _project(self, envelope: Envelope) -> list[AgentEvent]:
        event = event_of(envelope)
        if isinstance(event, TurnAssigned) and self._is_for_message(envelope) and event.reason != OBSERVES:
            turn = TurnEvents(event.speakers[0], lambda: self._live.state)
            turn.message = self.message
            self._turn, self._in_turn, self._decided_by, self.person = turn, True, None, ""
        if self._in_turn and self._turn is not None:
            return self._turn_events(self._turn, envelope, event)
        return self._events_between_turns(envelope, event)

    def _turn_events(self, turn: TurnEvents, envelope: Envelope, event: Event) -> list[AgentEvent]:
        if isinstance(event, Text):  # its turn ends with a packet
            return []
        events = turn.project(envelope)
        if not turn.over:
            return events
        *before, final = events
        assert isinstance(final, FinalStateEvent), "the last event is the final one"
        if final.stopped == APPROVAL:  # the turn is not over: it is followed on if that was decided meanwhile
            turn.over = False
            return [*before, replace(self._finish(final), usage=self._usage + final.usage)]
        self._usage += final.usage
        if final.text:
            self._texts.append(final.text)
        if not isinstance(event, Packet) or not _may_continue(event):
            return [*before, self._finish(final)]
        self._in_turn, self._packet_id, self._last_final = False, envelope.envelope_id, final
        # What follows from a packet is recorded with it: the fold is never behind what was read.
        self._decided_by = max(envelope.sequence, self._live.state.sequence)
        return list(before)

    def _events_between_turns(self, envelope: Envelope, event: Event) -> list[AgentEvent]:
        match event:
            case ConversationMoved() if envelope.causation_id == self._packet_id is not None:
                self.handoffs.append(event)
                return self._held_events(event)
            case ConversationReleased(person=person) if self._turn is None:
                return self._released_events(person)
            case ConversationMoved(released=person) if self._turn is None and person:
                return self._released_events(person)
            case ConversationMoved() if self._turn is None and not self._is_addressed():
                return self._held_events(event)
            case ConversationUnrouted(message=message) if self._is_message(message):
                self.unrouted = True
                return [self._finish(self._last_final)]
            case ChannelClosed(reason=reason):
                return [self._finish(None, stopped="channel_closed", detail=reason)]
            case CallDoubted() | TurnSuspended() | TurnReleased() if self._turn is None:
                return self._blocked_events()
            case _:
                return []

    def _held_events(self, moved: ConversationMoved) -> list[AgentEvent]:
        if not moved.person:
            return []
        self.person = moved.person
        return [self._finish(self._last_final)]

    def _released_events(self, person: str) -> list[AgentEvent]:
        """The end of the hold in which the message was said: if it is repeated later, it was for the person of then."""
        self.person = person
        return [] if self._is_addressed() else [self._finish(None)]

    def _blocked_events(self) -> list[AgentEvent]:
        """That a turn for an earlier message waits for a person, if one does."""
        waiting = next((turn for turn in self._live.state.owed if turn.waits_for_person), None)
        if waiting is None:
            return []
        detail = f"turn {waiting.turn_id} for an earlier message waits for a person; see `antiphon approvals`"
        stopped = SUSPENDED if waiting.suspended else IN_DOUBT if waiting.doubts else APPROVAL
        return [self._finish(None, stopped=stopped, detail=detail)]

    def _finish(self, last: FinalStateEvent | None, *, stopped: str | None = None, detail: str = "") -> FinalStateEvent:
        self.over = True
        last = last or FinalStateEvent("", stopped=stopped, detail=detail)
        text, channel_id = ANSWER_GAP.join(self._texts), self._live.state.channel_id
        return FinalStateEvent(last.agent, text, last.stopped, last.detail, self._usage, channel_id)

    def _is_for_message(self, envelope: Envelope) -> bool:
        return self._is_message(envelope.causation_id)

    def _is_message(self, envelope_id: str | None) -> bool:
        return self.message is not None and self.message.envelope_id == envelope_id

    def _is_addressed(self) -> bool:
        return self.message is not None and bool(self.message.event_data.get("addressed_to"))

    def _tokens_in(self, subscriber: TokenSubscriber | None) -> Iterator[NumberedEvent]:
        """Take the tokens of the message's turn off the signals, up to those of a turn or call not read yet."""
        turn = self._turn
        while subscriber is not None and subscriber.signals:
            signal = subscriber.signals[0]
            ours = turn is not None and signal.turn_id == turn.turn_id
            if ours and turn is not None and signal.index not in turn.started:
                return
            if not ours and _assigned_at(signal.turn_id) > self._read:
                return
            subscriber.signals.popleft()
            if ours:
                yield NO_SEQUENCE, TokenEvent(signal.speaker, signal.text)


def _may_continue(packet: Packet) -> bool:
    """Whether another turn may follow for the same message: a handoff, or a refused one of which nothing was said."""
    routing = packet.routing
    return routing.target is not None and (not routing.rejected or not packet.body)


def _assigned_at(turn_id: str) -> int:
    """The sequence at which a turn was assigned."""
    sequence = turn_id.partition("/")[0]
    return int(sequence) if sequence.isdecimal() else 0


def send_and_follow_message(
    channel: Channel, events: MessageEvents, text: str, *, message_id: str | None, tokens: bool
) -> AsyncGenerator[NumberedEvent, None]:
    """Say something in a channel, and follow what answers it. See `follow_turn`."""
    return follow_turn(channel, events, _recorded_message(channel, text, message_id), tokens=tokens)


@asynccontextmanager
async def _recorded_message(channel: Channel, text: str, message_id: str | None) -> AsyncIterator[Envelope]:
    yield await channel.send(text, message_id=message_id)
