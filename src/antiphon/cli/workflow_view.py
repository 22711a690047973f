"""A workflow or a routed conversation at a terminal: agents talk as its rules say, and a person takes part.

Rule 1: the person at the terminal speaks for every participant that is no agent: in a workflow for the one that has the
        turn, in a routed conversation, once no agent has a turn, for the creator until another is chosen.
Rule 2: the display follows the channel's log, in its order. Each turn is tracked on its own.
Rule 3: tokens are shown after their call, and of one turn at a time; other concurrent answers are shown whole.
Rule 4: while a person edits a line nothing is shown; it is shown afterwards.
Rule 5: a message that no agent answers because a person has the conversation is followed by a line that says so.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from enum import Enum
from functools import partial
from typing import NamedTuple

from antiphon.cli.chat_decisions import WaitingCallDecision, settle_doubt
from antiphon.cli.chat_view import ChatContext
from antiphon.cli.event_display import (
    IN_DOUBT_ADVICE,
    DisplayEvent,
    DisplayNote,
    HandoffTracker,
    TurnGiven,
    UnansweredTurn,
    UserMessage,
    approval_notes,
    input_prompt,
)
from antiphon.cli.store_options import MEMORY_URL
from antiphon.core import conversation_events, events
from antiphon.core.envelope import Envelope
from antiphon.core.errors import AntiphonError, Denied, UsageError
from antiphon.core.event_data import event_of
from antiphon.core.execution_events import ApprovalRequested, CallDoubted, CallFailed, CallFinished, CallStarted
from antiphon.core.text import describe
from antiphon.hub.feed import Signal
from antiphon.orchestration.conversation_memory import ADDRESSED_FIELD
from antiphon.runtime.channel import Channel
from antiphon.runtime.conversation_defaults import ROUTED
from antiphon.runtime.conversation_text import ConversationNotice, holder_name
from antiphon.runtime.envelope_text import describe_envelope
from antiphon.runtime.hub import Hub
from antiphon.runtime.turn_events import AIMessageEvent, FinalStateEvent, TokenEvent, TurnEvents

NOTED_EVENT_TYPES = (
    events.EV_CHANNEL_PAUSED,
    events.EV_EXPECTATION_VIOLATED,
    events.EV_EXPECTATION_MISSED,
    events.EV_GRAPH_WARNED,
    events.EV_RULE_FAILED,
)


class AgentTurn(NamedTuple):
    """The events of one turn of one agent, and the handoffs in it."""

    events: TurnEvents
    handoffs: HandoffTracker


class WorkflowEvents:
    """Projects the envelopes of a channel to display events."""

    def __init__(self, channel: Channel, *, hold_end: str = "it is released") -> None:
        self._channel, self._hold_end = channel, hold_end
        state = channel.state
        self._holder = ""
        """The person that has the conversation, or `human`; "" while agents have it."""
        self._kinds, self._routed = state.participants, state.type == ROUTED
        self._begun_at = state.sequence
        self._turns: dict[str, AgentTurn] = {}
        """The unfinished turns of agents, by id."""
        self._last_speaker = ""
        self._streaming_turn = ""
        """The turn whose tokens are shown."""
        self.failed = False
        """Whether a turn ended without an answer."""

    def of(self, envelope: Envelope) -> Iterator[DisplayEvent]:
        """The events of an envelope."""
        event = event_of(envelope)
        match event:
            case events.Text() | events.Packet():
                yield from self._speech_events(envelope, event)
            case events.TurnAssigned(speakers=speakers, reason=reason, rule=rule):
                if not self._routed:  # there a handoff says so, and the answer who speaks
                    yield TurnGiven(speakers, self._last_speaker, reason, rule)
                for name in speakers:
                    self._begin(f"{envelope.sequence}/{name}", name)
            case CallStarted() | CallFinished() | CallFailed() if event.turn in self._turns:
                turn = self._turns[event.turn]
                for each in turn.events.project(envelope):
                    yield from turn.handoffs.with_handoffs(each)
            case events.FailedTurn(turn=ended, speaker=speaker, reason=reason, detail=detail):
                # A routed conversation goes on after a turn that failed in an earlier run; a graph may have no way.
                self.failed = self.failed or not self._routed or envelope.sequence > self._begun_at
                self._end([ended])
                yield UnansweredTurn(speaker, reason, detail)
            case (
                conversation_events.ConversationMoved()
                | conversation_events.ConversationRefused()
                | conversation_events.ConversationReleased()
                | conversation_events.ConversationUnrouted()
            ):
                self._note_holder(event)
                yield event
            case _:
                yield from self._note_events(envelope)

    def _note_holder(self, event: ConversationNotice) -> None:
        match event:
            case conversation_events.ConversationMoved(person=person, to_agent=agent) if person or agent is not None:
                self._holder = person
            case conversation_events.ConversationReleased():
                self._holder = ""
            case _:
                pass

    def _hold_notes(self, envelope: Envelope) -> Iterator[DisplayEvent]:
        """That a message is for the person who has the conversation; nothing about what staff say."""
        sender, state = envelope.sender_id, self._channel.state
        by_staff = self._kinds.get(sender) == "human" and sender != state.creator_id
        addressed = ADDRESSED_FIELD in envelope.event_data
        if self._holder and not by_staff and not addressed and envelope.sequence > self._begun_at:
            holder = holder_name(self._holder)
            yield DisplayNote(f"— for {holder}: no agent answers until {self._hold_end}")

    def _note_events(self, envelope: Envelope) -> Iterator[DisplayEvent]:
        match event_of(envelope):
            case ApprovalRequested() as request:
                yield from approval_notes(request.name, request.args, request.why, approvers=request.approvers)
            case CallDoubted(name=name, why=why):
                yield DisplayNote(f"It is in doubt what became of {name}: {why}")
                yield DisplayNote(IN_DOUBT_ADVICE)
            case events.ChannelClosed(reason=reason):
                yield FinalStateEvent("", stopped=reason, channel_id=envelope.channel_id)
            case events.ChannelExpired():
                yield FinalStateEvent("", stopped="expired", channel_id=envelope.channel_id)
            case _ if envelope.event_type in NOTED_EVENT_TYPES:
                yield DisplayNote(describe_envelope(envelope))
            case _:
                pass

    def has_begun(self, signal: Signal) -> bool:
        """Whether a token may be shown: its call was shown, or its turn is over."""
        turn = self._turns.get(signal.turn_id)
        return turn is None or signal.index in turn.events.started

    def of_signal(self, signal: Signal) -> Iterable[DisplayEvent]:
        """The event of a token; none if another turn is being streamed."""
        turn = self._turns.get(signal.turn_id)
        if turn is None or self._streaming_turn not in ("", signal.turn_id):
            return ()
        self._streaming_turn = signal.turn_id
        return turn.handoffs.with_handoffs(TokenEvent(signal.speaker, signal.text))

    def _speech_events(self, envelope: Envelope, event: events.Text | events.Packet) -> Iterator[DisplayEvent]:
        sender, text = speaker_and_text(envelope)
        self._last_speaker = sender
        if self._kinds.get(sender) != "agent":
            yield UserMessage(sender, text)
            yield from self._hold_notes(envelope)
            return
        mine = [turn for turn in self._turns if turn.partition("/")[2] == sender]
        answer = AIMessageEvent(event.agent.rpartition("/")[2] or sender, text)
        if text:
            yield from self._turns[mine[0]].handoffs.with_handoffs(answer) if mine else [answer]
        self._end(mine)
        if isinstance(event, events.Packet) and event.routing.stopped is not None:
            yield FinalStateEvent(answer.agent, text, event.routing.stopped)

    def _begin(self, turn_id: str, name: str) -> None:
        if self._kinds.get(name) == "agent":
            turn_events = TurnEvents(name, lambda: self._channel.state)
            turn_events.turn_id = turn_id
            self._turns[turn_id] = AgentTurn(turn_events, HandoffTracker())

    def _end(self, turns: Iterable[str]) -> None:
        for turn in turns:
            self._turns.pop(turn, None)
            self._streaming_turn = "" if self._streaming_turn == turn else self._streaming_turn


def speaker_and_text(envelope: Envelope) -> tuple[str, str]:
    """The speaker and the text of a message; empty for other envelopes."""
    match event_of(envelope):
        case events.Text(text=text) | events.Packet(body=text):
            return envelope.sender_id, text
        case _:
            return "", ""


class WorkflowMarker(Enum):
    """Inputs beside envelopes and tokens."""

    OVER = "the channel has ended"
    BEGUN = "a line is begun"
    SENT = "a message is recorded, or refused"


WorkflowInput = Envelope | Signal | WorkflowMarker | AntiphonError


class WorkflowView:
    """One channel as it grows, and the person who takes part in it."""

    def __init__(self, hub: Hub, people: dict[str, Channel], context: ChatContext) -> None:
        self._hub, self._people, self._context = hub, people, context
        self._display, self._lines = context.display, context.lines
        self._speaker, self._channel = next(iter(people.items()))
        """The person who speaks or interjects without having the turn, and the channel as the first one sees it."""
        settle = partial(settle_doubt, hub, self._channel, by=self._speaker)
        self._handlers: dict[str, Callable[[str], Awaitable[object]]] = {"/settle": settle}
        for decision in ("approve", "reject"):
            self._handlers[f"/{decision}"] = WaitingCallDecision(hub, self._channel, decision, self._speaker)
        self._routed = self._channel.state.type == ROUTED
        if self._routed:
            self._handlers |= {"/as": self._speak_as, "/release": self._release}
        hold_end = "/release" if self._lines.interactive else "it is released"
        self._events = WorkflowEvents(self._channel, hold_end=hold_end)
        self._inputs: asyncio.Queue[WorkflowInput] = asyncio.Queue()
        self._early_signals: deque[Signal] = deque()
        self._typed: list[tuple[str, str]] = []
        """Messages that are on the screen already, because they were typed there."""
        self._sending: set[asyncio.Task[None]] = set()
        self._shown_sequence = 0

    async def run(self) -> bool:
        """Show and prompt until the channel closes or the person leaves; False if a turn failed."""
        async with self._listening():
            outcome = None
            while outcome is None:
                outcome = await self._step()
        return outcome

    async def _step(self) -> bool | None:
        """Take a line if one is due or typed, or show the next input; the outcome of the view at its end."""
        asked = self._person_with_turn()
        line = None if asked else self._lines.take_typed_line()
        if not asked and line is None:
            with self._context.stopping_turns(self._channel):
                item = await self._next_input()
            if item is WorkflowMarker.OVER:
                await asyncio.gather(*self._sending)  # so that a message that came too late is reported
                return self._lines.interactive or not self._events.failed
            if item is not WorkflowMarker.BEGUN:
                self._show_input(item)
                return False if self._events.failed and not self._lines.interactive else None
            line = self._lines.take_typed_line()
        return None if await self._take_line(asked or self._speaker, line, aside=asked is None) else True

    async def _next_input(self) -> WorkflowInput:
        """The next input of the channel, or that a line is begun.

        While an answer is streamed only a whole line counts: there is no place to edit one.
        """
        heard = asyncio.create_task(self._inputs.get())
        begun = asyncio.create_task(self._lines.wait_for_typing(whole=self._display.open))
        try:
            await asyncio.wait({heard, begun}, return_when=asyncio.FIRST_COMPLETED)
            item = heard.result() if heard.done() else WorkflowMarker.BEGUN
        finally:
            begun.cancel()
            heard.cancel()
        if isinstance(item, BaseException):
            raise item
        return item

    def _show_input(self, item: WorkflowInput) -> None:
        if isinstance(item, Signal):
            self._early_signals.append(item)
        elif isinstance(item, Envelope):
            self._shown_sequence = item.sequence
            self._tell(item)
        while self._early_signals and self._events.has_begun(self._early_signals[0]):
            self._context.tell(self._events.of_signal(self._early_signals.popleft()))

    def _tell(self, envelope: Envelope) -> None:
        events, said = list(self._events.of(envelope)), speaker_and_text(envelope)
        if said in self._typed:
            self._typed.remove(said)
            events = [each for each in events if not isinstance(each, UserMessage)]
        self._context.tell(events)

    def _person_with_turn(self) -> str | None:
        """The person who has the turn, once everything before it was shown."""
        state = self._channel.state
        if state.ended or self._shown_sequence < state.sequence or self._sending:
            return None
        if self._routed:
            return None if state.owed else self._speaker
        return next((name for name in state.speakers if name in self._people), None)

    async def _take_line(self, name: str, line: str | None, *, aside: bool) -> bool:
        """Send this line of a person, or the next one, or run it as a command; False if they leave."""
        typed_now = line is None
        if line is None:
            line = await self._lines.line(input_prompt(name))
        if line is None or self._context.ends_with(line):
            self._display.tell(FinalStateEvent("", channel_id=self._channel.channel_id))
            if not self._channel.state.ended:
                kept = "" if self._context.url == MEMORY_URL else " The same command goes on from here."
                leaving = "You leave." if aside or self._routed else f"{name} has the turn, and says nothing more."
                self._context.note(leaving + kept)
            return False
        if line.startswith("/") and self._lines.interactive:
            await self._context.run_slash_command(line, self._channel, self._handlers)
        elif line.strip():
            if typed_now and self._lines.interactive:
                self._typed.append((name, line.strip()))
            self._say(name, line.strip())
        return True

    async def _speak_as(self, name: str) -> None:
        if name not in self._people:
            raise UsageError(f"no person is called {describe(name)} here; there are: {', '.join(self._people)}")
        self._speaker = name
        self._context.note(f"You are {name}.")

    async def _release(self, to: str) -> None:
        """End a hold, as the first person who may."""
        *_, name = list(self._people)[:2]
        await self._people[name].release(to or None)

    def _say(self, name: str, text: str) -> None:
        """Send a message in the background: during a turn it waits."""
        task = asyncio.create_task(self._send(name, text))
        self._sending.add(task)

        def sent(task: asyncio.Task[None]) -> None:
            self._sending.discard(task)
            self._inputs.put_nowait(WorkflowMarker.SENT)

        task.add_done_callback(sent)

    async def _send(self, name: str, text: str) -> None:
        try:
            await self._people[name].send(text)
        except (Denied, UsageError) as error:
            self._typed = [each for each in self._typed if each != (name, text)]
            self._context.note(f"That was not said: {error}")

    @asynccontextmanager
    async def _listening(self) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(self._follow())]
        if self._context.tokens:
            tasks.append(asyncio.create_task(self._follow_signals()))
        try:
            yield
        finally:
            for task in (*tasks, *self._sending):
                task.cancel()
            await asyncio.gather(*tasks, *self._sending, return_exceptions=True)

    async def _follow(self) -> None:
        end: WorkflowInput = WorkflowMarker.OVER
        try:
            async for envelope in self._hub.subscribe(self._channel.channel_id):
                self._inputs.put_nowait(envelope)
        except AntiphonError as error:
            end = error
        self._inputs.put_nowait(end)

    async def _follow_signals(self) -> None:
        async for signal in self._hub.signals(self._channel.channel_id):
            self._inputs.put_nowait(signal)
