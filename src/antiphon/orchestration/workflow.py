"""The workflow adapter: turns go where a transition graph says.

Rule 1: a turn that says it is finished ends the channel; then a handoff that is possible wins; then the table is read.
Rule 2: `max_turns` is a hard cap: no turn begins that could not end within it. On the last turn, a rule that ends the
        channel still names the reason.
Rule 3: an interjection moves the turn only if a rule matches it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import ClassVar

from antiphon.core.codec import from_json, to_json
from antiphon.core.conditions import ToolCalled, leaf_conditions
from antiphon.core.envelope import Envelope, Json, visible_to
from antiphon.core.errors import RulesInvalid
from antiphon.core.event_data import event_of
from antiphon.core.events import EV_CHANNEL_OPENED, EV_PACKET, FailedTurn, Packet
from antiphon.core.ruleset import ChannelRoster, Expectation, Finding, Seats, TurnEnd
from antiphon.core.state import Assign, Close, Decision, State
from antiphon.core.text import describe
from antiphon.core.views import NamedWindowedSummary, View, WindowedSummary
from antiphon.orchestration.adapters import ORDERED_EXPECTATIONS, finish_decision, recover_from_failure
from antiphon.orchestration.graph import TransitionGraph
from antiphon.orchestration.graph_checks import find_graph_faults
from antiphon.orchestration.rule_table import RuleTable

MAX_TURNS_REASON = "max_turns"
OPENING_BUDGET = 50_000
"""How far a graph is explored when a channel is opened, which waits for it; `check` explores further."""


class Workflow:
    """Two or more take turns as a `TransitionGraph` says, until it says that it is over."""

    name: ClassVar[str] = "workflow"
    seats: ClassVar[Seats] = Seats(2)
    ordered: ClassVar[bool] = True
    ends_in: ClassVar[TurnEnd] = "packet"
    knobs: ClassVar[frozenset[str]] = frozenset({"graph"})
    expectations: ClassVar[tuple[Expectation, ...]] = ORDERED_EXPECTATIONS

    def __init__(self, knobs: Json) -> None:
        data = knobs.get("graph")
        if not isinstance(data, dict):
            given = "is missing" if data is None else f"is {describe(data)}"
            raise RulesInvalid(f"the knob 'graph' of a workflow {given}; give TransitionGraph(…).to_dict()")
        self._data = data
        self.graph = TransitionGraph.loads(data)
        self._table = RuleTable(self.graph)
        self._findings: tuple[ChannelRoster, tuple[Finding, ...]] | None = None
        self.routing_tools = frozenset(
            leaf.tool_name
            for rule in self.graph.transitions
            for leaf in leaf_conditions(rule.when)
            if isinstance(leaf, ToolCalled)
        )
        """The tools that the rules name; a packet holds the first of them that its turn called."""

    def decide(self, memory: object, state: State, envelope: Envelope) -> Decision:
        if envelope.event_type == EV_CHANNEL_OPENED:
            return Assign((self.graph.initial_speaker,), "initial speaker")
        if state.interjected:
            return self._cap_turns(self._table.decide(state, envelope, default=False), state)
        decision = _packet_decision(envelope) if envelope.event_type == EV_PACKET else None
        return self._cap_turns(decision or self._table.decide(state, envelope), state)

    def recover(self, memory: object, state: State, failed: FailedTurn) -> Decision:
        """As usual; but when a whole group has failed, the rules about failed branches are read first."""
        return recover_from_failure(self, state, failed, memory=memory, after_group=self._after_group)

    def _after_group(self, state: State, envelope: Envelope) -> Decision:
        return self._cap_turns(self._table.recover(state, envelope), state)

    def check(self, roster: ChannelRoster) -> list[Finding]:
        """What is wrong with the graph in the channel that is about to be opened.

        The last findings are kept: they are looked at again while the opening is recorded, on the event loop.
        """
        if self._findings is None or self._findings[0] != roster:
            self._findings = roster, _cached_findings(to_json(self._data), to_json(roster))
        return list(self._findings[1])

    def view(self, participants: int) -> View:
        """What an agent is shown that says nothing else: two rounds of what everybody said."""
        window = 2 * participants
        return WindowedSummary(window) if participants <= 2 else NamedWindowedSummary(window)

    def _cap_turns(self, decision: Decision, state: State) -> Decision:
        most = self.graph.max_turns
        if most is None or not isinstance(decision, Assign):
            return decision
        fits = state.turn_count + len(decision.speakers) <= most
        return decision if fits else Close(MAX_TURNS_REASON, errors=decision.errors)


@lru_cache(maxsize=256)
def _cached_findings(graph: bytes, roster: bytes) -> tuple[Finding, ...]:
    """Many channels are opened with one graph; it is looked through once."""
    return tuple(
        find_graph_faults(TransitionGraph.loads(graph), from_json(roster, ChannelRoster), budget=OPENING_BUDGET)
    )


def _packet_decision(envelope: Envelope) -> Decision | None:
    """Where the packet itself says the turn goes; None if that is for the table to say."""
    finished = finish_decision(envelope)
    if finished is not None:
        return finished
    event = event_of(envelope)
    if not isinstance(event, Packet):
        return None
    routing = event.routing
    if routing.target is None or routing.rejected:
        return None
    reason_visible = routing.reason and visible_to(envelope, routing.target)  # an assignment is seen by its speakers
    return Assign((routing.target,), f"handoff: {routing.reason}" if reason_visible else "handoff")
