"""The events of the turn that answers a message, projected from its channel's log.

An event passes four stages on its way to an HTTP client:

1. `runtime/subscriptions.tail_pages` reads the log from a cursor as it grows;
2. `turn_stream.follow_turn` has them projected to events here, each with its sequence, with tokens between them;
3. `server/agent_routes`, or `server/chat_protocol`, frames them: event ids, what a resumed stream leaves out, errors;
4. `server/event_streams.EventStream` writes frames and heartbeats to the socket, and closes stalled connections.

Each stage pulls from the one before, so a slow client holds up nothing but its own cursor.

Rule 1: events come from the log, so they are the same whichever process ran the turn, and however often it is followed.
Rule 2: tokens are not recorded. They are streamed while the model speaks, and a resumed stream does not repeat them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import msgspec

from antiphon.agents.call_results import NO_USAGE, Reply, SummaryOutcome, ToolOutcome, ToolResult, Usage, decode_outcome
from antiphon.agents.progress import INVALID_OUTPUT, MemberPath, has_partial_answer
from antiphon.agents.team import AgentFields, parse_member_path
from antiphon.agents.turn_channel import AgentReply
from antiphon.core.approval_rules import Approval
from antiphon.core.codec import as_type
from antiphon.core.envelope import NEVER, Envelope, Json
from antiphon.core.event_data import event_of
from antiphon.core.events import (
    SPEECH_TYPES,
    ChannelClosed,
    FailedTurn,
    Packet,
    TaskEnded,
    TaskWaiting,
    Text,
    TurnAssigned,
)
from antiphon.core.execution_events import (
    ApprovalExpired,
    ApprovalRequested,
    CallDoubted,
    CallFailed,
    CallFinished,
    CallStarted,
    TurnReleased,
    TurnSuspended,
)
from antiphon.core.state import State
from antiphon.core.step import owed_turn
from antiphon.core.turns import expired_call
from antiphon.hub.feed import TokenSubscriber


class ToolUsageEvent(msgspec.Struct, frozen=True):
    """The agent's model asked for a tool."""

    agent: str
    tool: str
    args: Json
    call_id: str
    """The same in the response."""


class ToolResponseEvent(msgspec.Struct, frozen=True):
    """A tool returned, or failed; the text is what the model reads."""

    agent: str
    tool: str
    text: str
    call_id: str
    failed: bool = False


class TokenEvent(msgspec.Struct, frozen=True):
    """A piece of text on its way; only if asked for, and only while it comes."""

    agent: str
    text: str


class AIMessageEvent(msgspec.Struct, frozen=True):
    """The agent's answer, whole."""

    agent: str
    text: str


class ApprovalEvent(msgspec.Struct, frozen=True):
    """A call waits for a person's decision. The turn goes on when there is one."""

    agent: str
    """Who makes the call."""
    approval: Approval


class FinalStateEvent(msgspec.Struct, frozen=True):
    """The turn has ended, or waits for a person. Last, and once, also if it failed."""

    agent: str
    text: str = ""
    stopped: str | None = None
    """The named limit, or the reason the turn failed for; None if it ended by itself."""
    detail: str = ""
    usage: Usage = NO_USAGE
    channel_id: str = ""
    """The channel that is the thread."""
    approvals: tuple[Approval, ...] = ()
    """What waits for a person, if `stopped` is `approval`."""


AgentEvent = ToolUsageEvent | ToolResponseEvent | TokenEvent | AIMessageEvent | ApprovalEvent | FinalStateEvent


IN_DOUBT = "in_doubt"
SUSPENDED = "suspended"
APPROVAL = "approval"
"""What stops a turn until a person has decided about its calls. None of them has left."""
WAITING_REASONS = frozenset({IN_DOUBT, SUSPENDED})
"""What stops a turn until a person has decided what became of it."""
APPROVAL_ADVICE = "decide with participant.decide, see hub.approvals, or `antiphon approvals`; then ask again"

PersonEvent = CallDoubted | TurnSuspended | TurnReleased | TaskWaiting | ApprovalRequested | ApprovalExpired
"""What may say that a turn waits for a person."""
NumberedEvent = tuple[int, AgentEvent | None]
"""An event with the sequence of its envelope; `NO_SEQUENCE` for a token, which is not recorded."""
NO_SEQUENCE = 0


class MessageEvents(Protocol):
    """Projects the envelopes of a channel to the events of what answers a message."""

    message: Envelope | None
    over: bool

    def project_page(self, page: Sequence[Envelope], subscriber: TokenSubscriber | None) -> Iterator[NumberedEvent]:
        """The events of a page, and the tokens that have come. The first page is empty: what is known already."""
        ...


class TurnEvents:
    """Projects the envelopes of a channel to the events of the turn that answers a message."""

    def __init__(self, agent: str, now: Callable[[], State]) -> None:
        self.agent, self._now = agent, now
        self.message: Envelope | None = None
        """What is to be answered."""
        self.started: set[int] = set()
        """The positions of the calls that have begun."""
        self.turn_id = ""
        """The turn that answers it."""
        self._turn_sequence = 0
        self.path: MemberPath = ()
        """Who of the agent's team answered, or was active last; empty if the agent itself did."""
        self.doubt = ""
        """What a person must settle first, if anything."""
        self._doubts: dict[tuple[str, int], str] = {}
        self._waiting_tasks: dict[str, str] = {}
        """The tasks of the turn that have waited for a person, each with the key of the call that gave it."""
        self._calls: dict[int, CallStarted] = {}
        """The first start of each call."""
        self._answered: set[int] = set()
        self._models_usage: Usage = NO_USAGE
        self._tasks_usage: dict[str, Usage] = {}
        self.over = False
        """Whether the turn has ended."""

    @property
    def usage(self) -> Usage:
        """What the turn has consumed so far: its models, and every task that has ended.

        A tool's call counts through its tasks: if it is cut off, there is no other record of what they consumed.
        """
        return sum(self._tasks_usage.values(), self._models_usage)

    def project(self, envelope: Envelope) -> list[AgentEvent]:
        """The events that this envelope adds to the turn that answers the message."""
        events = self._events_of(envelope)
        return [*events, *self._task_events()] if self._waiting_tasks and not self.over else events

    def _events_of(self, envelope: Envelope) -> list[AgentEvent]:
        event = event_of(envelope)
        match event:
            case TurnAssigned() if self._is_caused_by_message(envelope):
                self.turn_id, self._turn_sequence = f"{envelope.sequence}/{self.agent}", envelope.sequence
                return self._waiting_events(by_others=True)
            case CallStarted() | CallFinished() | CallFailed() if event.turn == self.turn_id:
                return self._call_events(event)
            case TaskEnded(task=task) if envelope.event_data.get("turn") == self.turn_id:
                usage = envelope.event_data.get("usage")
                self._tasks_usage[task] = as_type(usage, Usage) if isinstance(usage, dict) else NO_USAGE
                return []
            case _ if isinstance(event, PersonEvent):
                return self._person_events(event)
            case FailedTurn(turn=turn, reason=reason, detail=detail) if turn == self.turn_id:
                if event.agent:
                    self.path = parse_member_path(event.agent)[1:]
                return [self._final(stopped=reason, detail=detail)]
            case ChannelClosed(reason=reason):
                return [self._final(stopped="channel_closed", detail=reason)]
            case _ if envelope.event_type in SPEECH_TYPES and self._is_answer(envelope):
                return self._answer_events(envelope)
            case _:
                pass
        return []

    def project_page(self, page: Sequence[Envelope], subscriber: TokenSubscriber | None) -> Iterator[NumberedEvent]:
        """The events of a page, until the turn is over, and the tokens that have come."""
        for envelope in page:
            events = self.project(envelope)
            yield from self._tokens_in(subscriber)  # before the events: the answer follows its tokens
            yield from ((envelope.sequence, event) for event in events)
            if self.over:
                return
        yield from self._tokens_in(subscriber)

    def _tokens_in(self, subscriber: TokenSubscriber | None) -> Iterator[NumberedEvent]:
        """Take the tokens of this turn off the signals, up to those of a call whose start has not been read yet."""
        while subscriber is not None and subscriber.signals:
            signal = subscriber.signals[0]
            if signal.turn_id == self.turn_id and signal.index not in self.started:
                return
            subscriber.signals.popleft()
            if signal.turn_id == self.turn_id:
                yield NO_SEQUENCE, TokenEvent(signal.speaker, signal.text)

    def _is_answer(self, envelope: Envelope) -> bool:
        return envelope.sender_id == self.agent and self._is_caused_by_message(envelope)

    def _is_caused_by_message(self, envelope: Envelope) -> bool:
        return self.message is not None and envelope.causation_id == self.message.envelope_id

    def _waiting_events(self, *, by_others: bool = False) -> list[AgentEvent]:
        """That a person must decide first, if that is so now: about this turn, or about one before it."""
        state = self._now()
        waiting = next((turn for turn in state.owed if turn.speaker == self.agent and turn.waits_for_person), None)
        if waiting is None or owed_turn(state, self.turn_id) is None or waiting.sequence > self._turn_sequence:
            return []
        if by_others and waiting.turn_id == self.turn_id:  # it is reported when that turn waits, in more detail
            return []
        if waiting.suspended:
            self.doubt = f"turn {waiting.turn_id} was in progress during {waiting.crashes} crashes in a row"
            advice = "decide what becomes of it: `antiphon approvals`, or hub.approvals and participant.decide"
            return [self._final(stopped=SUSPENDED, detail=f"{self.doubt}; {advice}")]
        if not waiting.doubts:
            return [
                self._final(stopped=APPROVAL, detail=f"turn {waiting.turn_id} waits for approval; {APPROVAL_ADVICE}")
            ]
        index = waiting.doubts[0]
        self.doubt = self._doubts.get((waiting.turn_id, index), f"call {index} of an earlier turn")
        detail = f"{self.doubt}; say what became of it with channel.settle({waiting.turn_id!r}, {index}, …)"
        return [self._final(stopped=IN_DOUBT, detail=detail)]

    def _person_events(self, event: PersonEvent) -> list[AgentEvent]:
        """What the turn has to wait for a person for, or no longer."""
        match event:
            case CallDoubted():
                self._doubts[event.turn, event.index] = f"{event.name}: {event.why}"
                return self._waiting_events()
            case TurnSuspended():
                return self._waiting_events()
            case TurnReleased(turn=turn, epoch=epoch) if self._awaits_approval_since(turn, epoch):
                return self._waiting_events()
            case TaskWaiting(task=task, key=key) if event.turn == self.turn_id and key:
                self._waiting_tasks[task] = key
            case ApprovalRequested() | ApprovalExpired() if event.turn == self.turn_id:
                return self._asked_events(event)
            case _:
                pass
        return []

    def _awaits_approval_since(self, turn_id: str, epoch: int) -> bool:
        """Whether this turn has been waiting for approval since it was given back under this claim."""
        turn = owed_turn(self._now(), turn_id)
        return turn is not None and turn.awaits_approval and turn.epoch == epoch

    def _task_events(self) -> list[AgentEvent]:
        """That a person must decide first, if every call in progress waits for tasks that wait for one."""
        state = self._now()
        tasks = [task for task, turn in state.open_tasks.items() if turn == self.turn_id]
        if not tasks or any(state.tasks.get(task) != NEVER for task in tasks):
            return []
        waiting = {self._waiting_tasks.get(task) for task in tasks}
        in_progress = {call.key for index, call in self._calls.items() if call.key and index not in self._answered}
        if not in_progress <= waiting:
            return []
        return [self._final(stopped=APPROVAL, detail=f"a task of turn {self.turn_id} waits; {APPROVAL_ADVICE}")]

    def _asked_events(self, event: ApprovalRequested | ApprovalExpired) -> list[AgentEvent]:
        """A call that a person is asked about, as if it had begun; or its end, if no person has decided in time."""
        if isinstance(event, ApprovalExpired):
            return self._call_events(expired_call(event))
        if event.kind == "model":
            return []
        call = CallStarted(event.turn, event.index, event.name, event.digest, event.args, agent=event.agent)
        return self._call_events(call)

    def _call_events(self, event: CallStarted | CallFinished | CallFailed) -> list[AgentEvent]:
        self.started.add(event.index)
        match event:
            case CallStarted() if event.index not in self._calls:
                self._calls[event.index] = event
                self.path = parse_member_path(event.agent)[1:]
                if event.args is None:
                    return []
                return [ToolUsageEvent(self._caller_of(event), event.name, event.args, self._call_id(event.index))]
            case CallStarted(key=key) if key:  # it had to wait for a person, or is made again
                self._calls[event.index] = event
                return []
            case CallFinished() | CallFailed() if event.index not in self._answered:
                self._answered.add(event.index)
                started = self._calls.get(event.index)
                if started is not None and started.args is not None:
                    return [self._tool_response(started, event)]
                self._models_usage += _call_usage(event)
                return []
            case _:
                return []

    def _tool_response(self, started: CallStarted, event: CallFinished | CallFailed) -> ToolResponseEvent:
        result, call_id = _tool_result(event), self._call_id(event.index)
        return ToolResponseEvent(self._caller_of(started), started.name, result.text, call_id, failed=result.failed)

    def _caller_of(self, started: CallStarted) -> str:
        return started.agent.rpartition("/")[2] or self.agent

    def _answer_events(self, envelope: Envelope) -> list[AgentEvent]:
        event, data = event_of(envelope), envelope.event_data
        text = event.body if isinstance(event, Packet) else str(data.get("text", ""))
        if isinstance(event, Text | Packet):
            self.path = parse_member_path(event.agent)[1:]
        stopped = event.routing.stopped if isinstance(event, Packet) else data.get("stopped")
        final = self._final(text, stopped if isinstance(stopped, str) else None)
        return [AIMessageEvent(final.agent, text), final] if text else [final]

    def _final(self, text: str = "", stopped: str | None = None, detail: str = "") -> FinalStateEvent:
        self.over = True
        who = self.path[-1] if self.path else self.agent
        return FinalStateEvent(who, text, stopped, detail, self.usage, self._now().channel_id)

    def _call_id(self, index: int) -> str:
        return f"{self.turn_id}/{index}"


def ended_with_answer(final: FinalStateEvent) -> bool:
    """Whether a turn has an answer, complete or partial."""
    return final.stopped is None or has_partial_answer(final.stopped)


def agent_reply_of(agent: AgentFields, path: MemberPath, final: FinalStateEvent) -> AgentReply:
    """The reply of an agent. A structured answer of an earlier turn may not have the type wanted now."""
    team = agent.team
    place = (*team.root, *path)
    output = team.output_at(place if place in team.members else team.root)
    value, stopped = None, final.stopped
    if output is not None and stopped is None:
        try:
            value = output.read(final.text)
        except ValueError:
            stopped = INVALID_OUTPUT
    return AgentReply(final.text, final.agent, stopped, final.usage, final.channel_id, value, final.approvals)


def _call_usage(event: CallFinished | CallFailed) -> Usage:
    """The usage of a call of a model, or of a summary."""
    if isinstance(event, CallFailed):
        return as_type(event.usage, Usage)
    outcome = decode_outcome(event.result)
    return outcome.usage if isinstance(outcome, Reply | SummaryOutcome) else NO_USAGE


def _tool_result(event: CallFinished | CallFailed) -> ToolResult:
    if isinstance(event, CallFailed):
        return ToolResult(event.error, failed=True)
    outcome = decode_outcome(event.result)
    return outcome.returned if isinstance(outcome, ToolOutcome) else ToolResult("")
