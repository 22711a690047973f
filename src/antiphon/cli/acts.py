"""What the envelopes of a workflow tell somebody who watches it.

Rule 1: every turn is told on its own, so that agents who work at the same time are not taken for one another.
Rule 2: of those who speak at the same time the first is shown as it speaks; the others are shown whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from antiphon.cli.chat import SETTLING, Handovers, Note, Shown, TurnGiven, Unanswered, UserMessage
from antiphon.cli.telling import told
from antiphon.core.envelope import Envelope
from antiphon.core.events import (
    EV_GRAPH_WARNED,
    EV_RULE_FAILED,
    Assigned,
    CallDoubted,
    CallFailed,
    CallFinished,
    CallStarted,
    Closed,
    Expired,
    Failed,
    Packet,
    Paused,
    Text,
    Violated,
    event_of,
)
from antiphon.hub.feed import Signal
from antiphon.runtime.channel import Channel
from antiphon.runtime.events import AgentEvent, AIMessageEvent, FinalStateEvent, TokenEvent
from antiphon.runtime.told import Told

TOLD = (EV_GRAPH_WARNED, EV_RULE_FAILED)


class Acts:
    """What has been told of a channel so far."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._kinds = channel.state.participants
        self._turns: dict[str, _Act] = {}
        """The turns of agents that have not ended, by their ids."""
        self._spoke = ""
        self._floor = ""
        """The turn that is shown as its agent speaks."""
        self.failed = False
        """Whether a turn ended without an answer."""

    def of(self, envelope: Envelope) -> Iterator[Shown]:
        """What this envelope tells."""
        event = event_of(envelope)
        match event:
            case Text() | Packet():
                yield from self._said(envelope, event)
            case Assigned(speakers=speakers, reason=reason, rule=rule):
                yield TurnGiven(speakers, self._spoke, reason, rule)
                for name in speakers:
                    self._begin(f"{envelope.sequence}/{name}", name)
            case CallStarted() | CallFinished() | CallFailed() if event.turn in self._turns:
                yield from self._turns[event.turn].of(envelope)
            case Failed(turn=turn, speaker=speaker, reason=reason, detail=detail):
                self.failed = True
                self._end([turn])
                yield Unanswered(speaker, reason, detail)
            case _:
                yield from self._noted(envelope)

    def _noted(self, envelope: Envelope) -> Iterator[Shown]:
        match event_of(envelope):
            case CallDoubted(name=name, why=why):
                yield Note(f"It is in doubt what became of {name}: {why}")
                yield Note(SETTLING)
            case Closed(reason=reason):
                yield FinalStateEvent("", stopped=reason, channel_id=envelope.channel_id)
            case Expired():
                yield FinalStateEvent("", stopped="expired", channel_id=envelope.channel_id)
            case Paused() | Violated():
                yield Note(told(envelope))
            case _ if envelope.event_type in TOLD:
                yield Note(told(envelope))
            case _:
                pass

    def has_begun(self, signal: Signal) -> bool:
        """Whether this piece of text may be shown by now: its call has been, or its turn is over."""
        act = self._turns.get(signal.turn_id)
        return act is None or signal.index in act.started

    def of_signal(self, signal: Signal) -> Iterable[Shown]:
        """What a piece of text shows: itself, if its speaker is the one who is listened to."""
        act = self._turns.get(signal.turn_id)
        if act is None or self._floor not in ("", signal.turn_id):
            return ()
        self._floor = signal.turn_id
        return act.around(TokenEvent(signal.speaker, signal.text))

    def _said(self, envelope: Envelope, event: Text | Packet) -> Iterator[Shown]:
        sender, text = said_by(envelope)
        self._spoke = sender
        if self._kinds.get(sender) != "agent":
            yield UserMessage(sender, text)
            return
        mine = [turn for turn in self._turns if turn.partition("/")[2] == sender]
        answer = AIMessageEvent(event.agent.rpartition("/")[2] or sender, text)
        if text:
            yield from self._turns[mine[0]].around(answer) if mine else [answer]
        self._end(mine)
        if isinstance(event, Packet) and event.routing.stopped is not None:
            yield FinalStateEvent(answer.agent, text, event.routing.stopped)

    def _begin(self, turn: str, name: str) -> None:
        if self._kinds.get(name) == "agent":
            self._turns[turn] = _Act(name, turn, self._channel)

    def _end(self, turns: Iterable[str]) -> None:
        for turn in turns:
            self._turns.pop(turn, None)
            self._floor = "" if self._floor == turn else self._floor


class _Act:
    """One turn of one agent."""

    def __init__(self, name: str, turn: str, channel: Channel) -> None:
        self._told, self._handovers = Told(name, lambda: channel.state), Handovers()
        self._told.turn_id = turn

    @property
    def started(self) -> set[int]:
        """The positions of the calls that have been told."""
        return self._told.started

    def of(self, envelope: Envelope) -> Iterator[Shown]:
        """What is told of a call."""
        for event in self._told.of(envelope):
            yield from self.around(event)

    def around(self, event: AgentEvent) -> Iterator[Shown]:
        """The event, and the handover it shows."""
        return self._handovers.around(event)


def said_by(envelope: Envelope) -> tuple[str, str]:
    """Who said what; nothing if nothing was said."""
    match event_of(envelope):
        case Text(text=text) | Packet(body=text):
            return envelope.sender_id, text
        case _:
            return "", ""
