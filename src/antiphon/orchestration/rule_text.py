"""The rules of a recorded channel by their text: which one gave the turn, and which one ended the channel.

Rule 1: nothing here fails. A rule that cannot be read, because it names a condition that is not registered in this
        process, has no text; what was recorded about it is shown then.
"""

from __future__ import annotations

from antiphon.core.envelope import Envelope, Json
from antiphon.core.errors import RulesInvalid
from antiphon.core.state import Close, State
from antiphon.orchestration.graph import TransitionGraph
from antiphon.orchestration.rendering import describe_condition, describe_target
from antiphon.orchestration.router import ConversationRouter
from antiphon.orchestration.rule_table import RuleTable
from antiphon.orchestration.workflow import MAX_TURNS_REASON


def rule_text(knobs: Json, rule: int) -> str:
    """The rule at this place of the graph or router of a channel with these knobs; "" if it cannot be read."""
    graph = graph_of(knobs)
    if graph is not None and 0 <= rule < len(graph.transitions):
        found = graph.transitions[rule]
        return f"{describe_condition(found.when)} → {describe_target(found.then)}"
    router = _router_of(knobs)
    if router is not None and 0 <= rule < len(router.rules):
        entry = router.rules[rule]
        return f"{entry.conditions.describe()} → to {entry.agent_id}"
    return ""


def default_text(knobs: Json) -> str:
    """Where the turn goes if no rule matches; "" if that cannot be read."""
    graph, router = graph_of(knobs), _router_of(knobs)
    if graph is not None:
        return describe_target(graph.default_target)
    return f"to {router.default_agent_id}" if router is not None and router.default_agent_id else ""


def closing_rule(knobs: Json, state: State, envelope: Envelope) -> int | None:
    """The place of the rule that ended the channel after this envelope; None if no rule of a graph did.

    It is not recorded, so the rules are asked again. `state` is that of the channel with the envelope.
    """
    graph = graph_of(knobs)
    if graph is None or (graph.max_turns is not None and state.turn_count >= graph.max_turns):
        return None
    decision = RuleTable(graph).decide(state, envelope)
    return decision.rule if isinstance(decision, Close) and decision.reason != MAX_TURNS_REASON else None


def graph_of(knobs: Json) -> TransitionGraph | None:
    """The graph of a channel with these knobs; None if it has none that can be read here."""
    data = knobs.get("graph")
    try:
        return TransitionGraph.loads(data) if isinstance(data, dict) else None
    except RulesInvalid:
        return None


def _router_of(knobs: Json) -> ConversationRouter | None:
    data = knobs.get("router")
    try:
        return ConversationRouter.loads(data) if isinstance(data, dict) else None
    except RulesInvalid:
        return None
