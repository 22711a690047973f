"""Builders: three shapes of teams, made of what channels, tasks and graphs offer.

Rule 1: a builder returns plain values, which can be looked at, changed and stored. Nothing runs, and nothing of the
        agents that are given changes.
Rule 2: prompts stay as they are. What a model is offered is a tool, with a description.
Rule 3: a mistake is found here, before a channel is opened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from antiphon.agents.declaration import Declaration, delegate
from antiphon.core.conditions import Approved, FromSpeaker, Once, TransitionCondition, is_condition
from antiphon.core.envelope import Json, check_name, match_name, spelling_advice
from antiphon.core.errors import BadName, RulesInvalid, UsageError
from antiphon.core.targets import AgentTarget, TerminateTarget
from antiphon.core.text import describe
from antiphon.orchestration.graph import Transition, TransitionGraph
from antiphon.orchestration.handoff_rules import HUMAN, HandoffRules
from antiphon.orchestration.router import ConversationRouter
from antiphon.runtime.conversations import HandoffHandler, setup_handoff
from antiphon.runtime.hub import Hub
from antiphon.runtime.participant import Participant

D = TypeVar("D", bound=Declaration)

MAX_REVIEW_ROUNDS = 100
APPROVED_REASON, NOT_APPROVED_REASON = "approved", "not_approved"


@dataclass(frozen=True)
class ConversationSetup:
    """Agents that hand conversations over to each other, and the rules of the routed channels they meet in."""

    agents: tuple[Declaration, ...]
    """Each with the tool `handoff_conversation`."""
    router: ConversationRouter
    handoff_rules: HandoffRules

    @property
    def handoff(self) -> Json:
        """The rules for handoffs, as the knob `handoff` takes them."""
        return self.handoff_rules.to_dict()

    @property
    def knobs(self) -> Json:
        """The knobs of a routed channel."""
        return {"router": self.router.to_dict(), "handoff": self.handoff}

    @property
    def participants(self) -> list[str]:
        """The names of the agents, and of the observer: the targets of a routed channel."""
        names = [agent.name for agent in self.agents]
        return list(dict.fromkeys([*names, *self.router.participants]))

    async def register(self, hub: Hub) -> list[Participant]:
        """Register the agents with a hub."""
        if not isinstance(hub, Hub):
            raise UsageError(f"hub is {describe(hub)}; give an open Hub")
        return [await hub.register(agent) for agent in self.agents]


def swarm(
    agents: Sequence[Declaration],
    *,
    entry: str | None = None,
    supervisor_id: str | None = None,
    aliases: Mapping[str, str] | None = None,
) -> ConversationSetup:
    """Agents of which each can hand a conversation over to each other one, and to a person.

    A conversation begins with the agent named by `entry`, by default the first. The observer, `supervisor_id`, may be
    one of the agents or not. `aliases` are other names by which models may hand over.
    """
    names = _check_agents(agents, "agents")
    first = names[0] if entry is None else _find_agent(entry, names, "entry")
    if supervisor_id is not None and supervisor_id == first:
        raise UsageError(f"{supervisor_id!r} is the observer, which no message is routed to; let another be the entry")
    router = ConversationRouter(default_agent_id=first, supervisor_id=supervisor_id)
    rules = HandoffRules(agent_aliases=dict(aliases or {}))
    _check_alias_targets(rules.agent_aliases, names)
    handler = HandoffHandler(router=router)
    return ConversationSetup(tuple(setup_handoff(agent, handler) for agent in agents), router, rules)


def supervised(lead: D, agents: Sequence[Declaration], *, ttl: float | None = None) -> D:
    """The lead, with a tool `delegate_to_<name>` for each of these agents. The lead that is given stays as it is.

    Each call is a task in a channel of its own, and its result is the report on that task. `ttl` is how many seconds
    a task may take.
    """
    if not isinstance(lead, Declaration):
        raise UsageError(f"{describe(lead)} is no agent; give an Agent as the lead")
    names = _check_agents(agents, "agents")
    if match_name(lead.name, names) is not None:
        raise UsageError(f"{lead.name!r} is the lead and one of its agents; no agent gives itself a task")
    tools = [delegate(agent, ttl=ttl) for agent in agents]
    return replace(lead, tools=(*lead.tools, *(tool for tool in tools if tool not in lead.toolbox)))


def review_loop(
    author: Declaration | str,
    reviewer: Declaration | str,
    *,
    most_rounds: int = 3,
    approved: TransitionCondition | None = None,
    opener: str | None = None,
) -> TransitionGraph:
    """A workflow in which one writes and the other reviews, until a review approves: it ends with `approved` then.

    It ends with `not_approved` after so many reviews of which none did, and when anyone else has had a turn. `approved`
    is asked of what the reviewer says; by default it is `Approved()`. `opener` has the first turn, to say what is to
    be written. Without it the author begins, and a person may interject what is to be written.
    """
    writes, reviews = _name_of(author, "author"), _name_of(reviewer, "reviewer")
    starts = writes if opener is None else _name_of(opener, "opener")
    if writes == reviews:
        raise UsageError(f"{writes!r} is the author and the reviewer; let another agent or person review")
    if type(most_rounds) is not int or not 1 <= most_rounds <= MAX_REVIEW_ROUNDS:
        raise UsageError(f"most_rounds is {describe(most_rounds)}; give a number of reviews, 1 to {MAX_REVIEW_ROUNDS}")
    if approved is not None and not is_condition(approved):
        raise RulesInvalid(f"approved is {describe(approved)}, which is no condition; give one such as Approved()")
    reviewed = FromSpeaker(reviews)
    # Each of these rules fires once in the life of the channel, so their number is the number of returns.
    returns = [Transition(Once(reviewed), AgentTarget(writes)) for _ in range(most_rounds - 1)]
    # Read first: what the reviewer says as the opener is no review.
    opening = [] if starts == writes else [Transition(Once(FromSpeaker(starts)), AgentTarget(writes))]
    rules = [
        *opening,
        Transition(FromSpeaker(writes), AgentTarget(reviews)),
        Transition(reviewed & (Approved() if approved is None else approved), TerminateTarget(APPROVED_REASON)),
        *returns,
        Transition(reviewed, TerminateTarget(NOT_APPROVED_REASON)),
    ]
    return TransitionGraph(starts, rules, TerminateTarget(NOT_APPROVED_REASON))


def _check_agents(given: object, what: str) -> list[str]:
    """The names of these agents."""
    if not isinstance(given, list | tuple) or not given:
        raise UsageError(f"{what} is {describe(given)}; give a list of at least one agent")
    names: list[str] = []
    for agent in given:
        if not isinstance(agent, Declaration):
            raise UsageError(f"{what} holds {describe(agent)}; give a list of agents")
        if match_name(agent.name, names) is not None:
            raise UsageError(f"{what} has two agents called {agent.name!r}; give one of them another name")
        names.append(agent.name)
    return names


def _find_agent(given: object, names: Sequence[str], what: str) -> str:
    if not isinstance(given, str) or given not in names:
        advice = spelling_advice(given, names) or f"give the name of one of: {', '.join(names)}"
        raise UsageError(f"{what} is {describe(given)}, which is none of the agents; {advice}")
    return given


def _check_alias_targets(aliases: Mapping[str, str], names: Sequence[str]) -> None:
    """Refuse an alias of an unknown agent, and one that is itself the name of another."""
    known = [*names, HUMAN]
    for alias, target in aliases.items():
        if target not in known:
            advice = spelling_advice(target, known) or f"there are: {', '.join(known)}"
            raise RulesInvalid(f"aliases[{alias!r}] is {target!r}, which is neither an agent nor 'human'; {advice}")
        hidden = match_name(alias, known)
        if hidden is not None and hidden != target:
            raise RulesInvalid(f"the alias {alias!r} for {target!r} would hide {hidden!r}; give another alias")


def _name_of(given: object, what: str) -> str:
    if isinstance(given, Declaration):
        return given.name
    if not isinstance(given, str):
        raise UsageError(f"{what} is {describe(given)}; give an agent, or the name of a participant")
    try:
        check_name(given)
    except BadName as error:
        raise BadName(f"{what}: {error}") from error
    return given
