"""What a turn tells whoever asked, from the envelopes of its channel."""

from __future__ import annotations

from collections.abc import Callable

from antiphon.agents.declaration import Declaration
from antiphon.agents.messages import NO_USAGE, Usage
from antiphon.agents.progress import Path
from antiphon.agents.results import AgentReply
from antiphon.agents.routine import INVALID_OUTPUT
from antiphon.agents.team import read_path
from antiphon.core.codec import as_type
from antiphon.core.envelope import Envelope
from antiphon.core.events import (
    SUBSTANTIVE,
    Assigned,
    CallDoubted,
    CallFailed,
    CallFinished,
    CallStarted,
    Closed,
    Failed,
    Json,
    Packet,
    TaskOver,
    Text,
    TurnSuspended,
    event_of,
)
from antiphon.core.state import State
from antiphon.core.turns import owed_turn
from antiphon.runtime.events import (
    AgentEvent,
    AIMessageEvent,
    FinalStateEvent,
    ToolResponseEvent,
    ToolUsageEvent,
)

IN_DOUBT = "in_doubt"
SUSPENDED = "suspended"
WAITING = frozenset({IN_DOUBT, SUSPENDED})
"""What stops a turn until a person has decided."""


class Told:
    """What a turn has told so far."""

    def __init__(self, agent: str, now: Callable[[], State]) -> None:
        self.agent, self._now = agent, now
        self.message: Envelope | None = None
        """What is to be answered."""
        self.started: set[int] = set()
        """The positions of the calls that have begun."""
        self.progress: Callable[[], None] = lambda: None
        """Called after every envelope."""
        self.turn_id = ""
        """The turn that answers it."""
        self._place = 0
        self.path: Path = ()
        """Who of the agent's team answered, or was active last; empty if the agent itself did."""
        self.doubt = ""
        """What a person must settle first, if anything."""
        self._doubts: dict[tuple[str, int], str] = {}
        self._callers: set[int] = set()
        """The positions of the calls whose agent is known."""
        self._tools: dict[int, CallStarted] = {}
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

    def of(self, envelope: Envelope) -> list[AgentEvent]:
        """What this envelope tells of the turn that answers the message."""
        events = self._of(envelope)
        self.progress()
        return events

    def _of(self, envelope: Envelope) -> list[AgentEvent]:
        event = event_of(envelope)
        match event:
            case Assigned() if self._is_because(envelope):
                self.turn_id, self._place = f"{envelope.sequence}/{self.agent}", envelope.sequence
                return self._held_up(by_others=True)
            case CallStarted() | CallFinished() | CallFailed() if event.turn == self.turn_id:
                return self._of_call(event)
            case TaskOver(task=task) if envelope.event_data.get("turn") == self.turn_id:
                self._tasks_usage[task] = _read_usage(envelope.event_data.get("usage"))
                return []
            case CallDoubted():
                self._doubts[event.turn, event.index] = f"{event.name}: {event.why}"
                return self._held_up()
            case TurnSuspended():
                return self._held_up()
            case Failed(turn=turn, reason=reason, detail=detail) if turn == self.turn_id:
                if event.agent:
                    self.path = read_path(event.agent)[1:]
                return [self._final(stopped=reason, detail=detail)]
            case Closed(reason=reason):
                return [self._final(stopped="channel_closed", detail=reason)]
            case _ if envelope.event_type in SUBSTANTIVE and self._is_answer(envelope):
                return self._of_answer(envelope)
            case _:
                pass
        return []

    def _is_answer(self, envelope: Envelope) -> bool:
        return envelope.sender_id == self.agent and self._is_because(envelope)

    def _is_because(self, envelope: Envelope) -> bool:
        return self.message is not None and envelope.causation_id == self.message.envelope_id

    def _held_up(self, *, by_others: bool = False) -> list[AgentEvent]:
        """That a person must decide first, if that is so now: about this turn, or about one before it."""
        state = self._now()
        waiting = next((turn for turn in state.owed if turn.speaker == self.agent and turn.waits_for_person), None)
        if waiting is None or owed_turn(state, self.turn_id) is None or waiting.sequence > self._place:
            return []
        if by_others and waiting.turn_id == self.turn_id:  # that is told further on, and better
            return []
        if waiting.suspended:
            self.doubt = f"turn {waiting.turn_id} was in progress during {waiting.crashes} crashes in a row"
            advice = "decide what becomes of it: `antiphon approvals`, or hub.approvals and participant.decide"
            return [self._final(stopped=SUSPENDED, detail=f"{self.doubt}; {advice}")]
        index = waiting.doubts[0]
        self.doubt = self._doubts.get((waiting.turn_id, index), f"call {index} of an earlier turn")
        detail = f"{self.doubt}; say what became of it with channel.settle({waiting.turn_id!r}, {index}, …)"
        return [self._final(stopped=IN_DOUBT, detail=detail)]

    def _of_call(self, event: CallStarted | CallFinished | CallFailed) -> list[AgentEvent]:
        self.started.add(event.index)
        match event:
            case CallStarted() if event.index not in self._callers:
                self._callers.add(event.index)
                self.path = read_path(event.agent)[1:]
                if event.args is None:
                    return []
                self._tools[event.index] = event
                return [ToolUsageEvent(self._who(event), event.name, event.args, self._call_id(event.index))]
            case CallFinished() | CallFailed() if event.index not in self._answered:
                self._answered.add(event.index)
                if event.index in self._tools:
                    return self._response(event)
                self._models_usage += _usage_of(event)
                return []
            case _:
                return []

    def _response(self, event: CallFinished | CallFailed) -> list[AgentEvent]:
        started = self._tools[event.index]
        text, failed = (event.error, True) if isinstance(event, CallFailed) else _told(event.result)
        call_id = self._call_id(event.index)
        return [ToolResponseEvent(self._who(started), started.name, text, call_id, failed=failed)]

    def _who(self, started: CallStarted) -> str:
        return started.agent.rpartition("/")[2] or self.agent

    def _of_answer(self, envelope: Envelope) -> list[AgentEvent]:
        event, data = event_of(envelope), envelope.event_data
        text = event.body if isinstance(event, Packet) else str(data.get("text", ""))
        if isinstance(event, Text | Packet):
            self.path = read_path(event.agent)[1:]
        stopped = event.routing.stopped if isinstance(event, Packet) else data.get("stopped")
        final = self._final(text, stopped if isinstance(stopped, str) else None)
        return [AIMessageEvent(final.agent, text), final] if text else [final]

    def _final(self, text: str = "", stopped: str | None = None, detail: str = "") -> FinalStateEvent:
        self.over = True
        who = self.path[-1] if self.path else self.agent
        return FinalStateEvent(who, text, stopped, detail, self.usage, self._now().channel_id)

    def _call_id(self, index: int) -> str:
        return f"{self.turn_id}/{index}"


def reply_of(agent: Declaration, path: Path, final: FinalStateEvent) -> AgentReply:
    """What an agent that was asked came to. An answer of another time may not be what is wanted now."""
    team = agent.team
    place = (*team.root, *path)
    output = team.output_at(place if place in team.members else team.root)
    value, stopped = None, final.stopped
    if output is not None and stopped is None:
        try:
            value = output.read(final.text)
        except ValueError:
            stopped = INVALID_OUTPUT
    return AgentReply(final.text, final.agent, stopped, final.usage, final.channel_id, value)


def _usage_of(event: CallFinished | CallFailed) -> Usage:
    """What a call of a model, or of a summary, consumed."""
    return _read_usage(event.result.get("usage") if isinstance(event, CallFinished) else event.usage)


def _read_usage(recorded: object) -> Usage:
    return as_type(recorded, Usage) if isinstance(recorded, dict) else NO_USAGE


def _told(result: Json) -> tuple[str, bool]:
    """What a call came to in words, and whether that is that it failed."""
    returned = result.get("returned")
    return (str(returned.get("text", "")), bool(returned.get("failed"))) if isinstance(returned, dict) else ("", False)
