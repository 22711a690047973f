"""The workflow adapter: turns go where a transition graph says.

Rule 1: a turn that says it is finished ends the channel; then a handoff that is possible wins; then the table is read.
Rule 2: `max_turns` is a hard cap. Whatever ends the channel on the last turn names the reason; nothing begins that
        could not end within it.
Rule 3: a word that somebody puts in out of turn moves the turn only if a rule matches it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import ClassVar

from antiphon.core.codec import from_json, to_json
from antiphon.core.conditions import ToolCalled, leaves
from antiphon.core.decision import Assign, Close, Decision
from antiphon.core.envelope import Envelope, visible_to
from antiphon.core.errors import RulesInvalid
from antiphon.core.events import EV_CHANNEL_OPENED, EV_PACKET, Json, Packet, event_of
from antiphon.core.rules import Expectation, Finding, Seating, Seats
from antiphon.core.state import State
from antiphon.core.views import NamedWindowedSummary, View, WindowedSummary
from antiphon.core.words import shown
from antiphon.orchestration.adapters import ACKS, closed_by
from antiphon.orchestration.checking import check_seated
from antiphon.orchestration.graph import TransitionGraph
from antiphon.orchestration.table import Table

MAX_TURNS = "max_turns"
OPENING_BUDGET = 50_000
"""Whoever opens a channel waits for it, so its graph is looked through less far than by `check`."""


class Workflow:
    """Two or more take turns as a `TransitionGraph` says, until it says that it is over."""

    name: ClassVar[str] = "workflow"
    seats: ClassVar[Seats] = Seats(2)
    ordered: ClassVar[bool] = True
    packets: ClassVar[bool] = True
    knobs: ClassVar[frozenset[str]] = frozenset({"graph"})
    expectations: ClassVar[tuple[Expectation, ...]] = (
        ACKS,
        Expectation("turn_within", 120, "warn"),
        Expectation("turn_within", 600, "auto_close"),
    )

    def __init__(self, knobs: Json) -> None:
        data = knobs.get("graph")
        if not isinstance(data, dict):
            given = "is missing" if data is None else f"is {shown(data)}"
            raise RulesInvalid(f"the knob 'graph' of a workflow {given}; give TransitionGraph(…).to_dict()")
        self._data = data
        self.graph = TransitionGraph.loads(data)
        self._table = Table(self.graph)
        self._findings: tuple[Seating, tuple[Finding, ...]] | None = None
        self.routing_tools = frozenset(
            leaf.tool_name
            for rule in self.graph.transitions
            for leaf in leaves(rule.when)
            if isinstance(leaf, ToolCalled)
        )
        """The tools that the rules name: the first of them that a turn calls is told in its packet."""

    def decide(self, memory: object, state: State, envelope: Envelope) -> Decision:
        if envelope.event_type == EV_CHANNEL_OPENED:
            return Assign((self.graph.initial_speaker,), "initial speaker")
        if state.interjected:
            return self._capped(self._table.decide(state, envelope, default=False), state)
        decision = _routed(envelope) if envelope.event_type == EV_PACKET else None
        return self._capped(decision or self._table.decide(state, envelope), state)

    def recover(self, memory: object, state: State, envelope: Envelope) -> Decision:
        """What the rules about failed branches say when a whole group has failed."""
        return self._capped(self._table.recover(state, envelope), state)

    def check(self, seating: Seating) -> list[Finding]:
        """What is wrong with the graph in the channel that is about to be opened.

        The last findings are kept: they are looked at again while the opening is recorded, on the event loop.
        """
        if self._findings is None or self._findings[0] != seating:
            self._findings = seating, _checked(to_json(self._data), to_json(seating))
        return list(self._findings[1])

    def view(self, participants: int) -> View:
        """What an agent is shown that says nothing else: two rounds of what everybody said."""
        window = 2 * participants
        return WindowedSummary(window) if participants <= 2 else NamedWindowedSummary(window)

    def _capped(self, decision: Decision, state: State) -> Decision:
        most = self.graph.max_turns
        if most is None or not isinstance(decision, Assign):
            return decision
        fits = state.turn_count + len(decision.speakers) <= most
        return decision if fits else Close(MAX_TURNS, errors=decision.errors)


@lru_cache(maxsize=256)
def _checked(graph: bytes, seating: bytes) -> tuple[Finding, ...]:
    """Many channels are opened with one graph; it is looked through once."""
    return tuple(check_seated(TransitionGraph.loads(graph), from_json(seating, Seating), budget=OPENING_BUDGET))


def _routed(envelope: Envelope) -> Decision | None:
    """Where the packet itself says the turn goes; None if that is for the table to say."""
    finished = closed_by(envelope)
    if finished is not None:
        return finished
    event = event_of(envelope)
    if not isinstance(event, Packet):
        return None
    routing = event.routing
    if routing.target is None or routing.rejected:
        return None
    told = routing.reason and visible_to(envelope, routing.target)  # an assignment is told to its speakers
    return Assign((routing.target,), f"handoff: {routing.reason}" if told else "handoff")
