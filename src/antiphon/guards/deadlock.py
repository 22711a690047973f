"""The deadlock monitor: agents that go round and round together, and change nothing by it.

Rule 1: what counts is progress. A cycle of agents is unproductive if everything said in it, the tools called in it and
        the context variables were the same in an earlier round. A loop that brings anything new is never cut.
Rule 2: the second such round is a warning, the third is a deadlock. For loops made by rules (a coder and a reviewer),
        `max_iterations` says which one is.
Rule 3: a message of a person or of code begins everything anew.
Rule 4: a task that is given in the same words by one that works on it already would wait for itself: a deadlock at
        once. So is the third equal task for the same agent while nothing has changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import msgspec
from msgspec.structs import replace

from antiphon.core.envelope import NAME_PATTERN, OPERATORS, Envelope
from antiphon.core.errors import RulesInvalid
from antiphon.core.event_data import Deny, data_of
from antiphon.core.events import EV_TASK_STARTED
from antiphon.core.guard import ALLOW, Permission
from antiphon.core.protection_events import EV_DEADLOCK_DETECTED, DeadlockDetected
from antiphon.core.state import Assign, Close, Decision, RelatedFact, State, Wait
from antiphon.core.text import describe
from antiphon.guards.deadlock_memory import (
    TALK_TYPES,
    TASK_WORDS,
    WARN_AT,
    ClosedRound,
    TeamTalk,
    count_of,
    fold_talk,
    round_closed_by,
    task_chain,
    task_entry,
    task_key,
)

DEADLOCK_REASON = "deadlock"
TRIP_AT = 3


class DeadlockMonitor(msgspec.Struct, frozen=True):
    """Ends what agents do together without progress: another agent gets the turn, or a person, or the channel ends."""

    name: ClassVar[str] = DEADLOCK_REASON
    memory: ClassVar[type] = TeamTalk
    hears: ClassVar[frozenset[str]] = TALK_TYPES
    notes: ClassVar[frozenset[str]] = frozenset({EV_TASK_STARTED})
    about_tasks: ClassVar[bool] = True
    reroute_to: str | None = None
    """The agent that gets the turn at the first deadlock; without one it is escalated at once."""
    max_iterations: int = TRIP_AT
    """How often a loop made by rules may go round without anything new. The first round is always new."""
    tier: str = ""
    """Filled in by the tier. In the regulated tier a person decides, and no other agent."""

    def __post_init__(self) -> None:
        if type(self.max_iterations) is not int or self.max_iterations < 1:
            raise RulesInvalid(
                f"max_iterations of deadlock is {describe(self.max_iterations)}; give a number, 1 or more"
            )
        named = self.reroute_to
        if named is not None and (not isinstance(named, str) or not NAME_PATTERN.match(named)):
            raise RulesInvalid(f"reroute_to of deadlock is {describe(named)}; give the name of an agent, or None")

    def for_tier(self, tier: str) -> DeadlockMonitor:
        """The monitor as this tier escalates."""
        return replace(self, tier=tier)

    def evolve(self, memory: TeamTalk, envelope: Envelope) -> TeamTalk:
        return fold_talk(memory, envelope)

    # Turns

    def review(self, memory: TeamTalk, state: State, decision: Decision) -> Decision:
        if not isinstance(decision, Assign) or len(decision.speakers) != 1 or not memory.chain:
            return decision
        chosen = state.routing.target in decision.speakers and not state.routing.rejected
        closed = round_closed_by(memory, decision.speakers[0])
        if closed is None or closed.occurrences < WARN_AT:
            return decision
        most = TRIP_AT if chosen or closed.kind == "supervisor" else self.max_iterations
        if closed.occurrences >= most:
            return self._tripped(closed, memory, state, decision=decision)
        return replace(decision, facts=(*decision.facts, _round_fact(closed, "warn", "")))

    def _tripped(self, closed: ClosedRound, memory: TeamTalk, state: State, *, decision: Assign) -> Decision:
        agent, person = self._other_agent(closed, memory, state), _person_of(state)
        to = person or agent if self.tier == "regulated" and person else agent or person
        facts = (*decision.facts, _round_fact(closed, "trip", to or ""))
        if to is None:
            return Close(DEADLOCK_REASON, errors=decision.errors, facts=facts)
        if to == person and not state.ordered:  # no turns are held there: the next message goes on
            return Wait(DEADLOCK_REASON, decision.errors, facts)
        return Assign((to,), DEADLOCK_REASON, errors=decision.errors, facts=facts, answers=decision.answers)

    def _other_agent(self, closed: ClosedRound, memory: TeamTalk, state: State) -> str | None:
        """The agent that takes over, once; None if there is none."""
        named = self.reroute_to
        if self.tier == "regulated" or memory.rerouted or named in closed.names or named not in state.participants:
            return None
        return named

    # Tasks

    def permit(self, memory: TeamTalk, state: State, draft: Envelope) -> Permission:
        found = self._task_deadlock(memory, state, draft)
        if found is None:
            return ALLOW
        if found.kind == "wait_for":
            names = " and ".join(dict.fromkeys(found.cycle))
            return Deny("loop", f"{names} would wait for each other, and this task is being worked on; do it yourself")
        agent, times = found.cycle[-1], found.occurrences
        return Deny("loop", f"{agent} would have the same task {times} times, with nothing new between; do it yourself")

    def task_facts(self, memory: TeamTalk, state: State, draft: Envelope) -> Sequence[RelatedFact]:
        """What is recorded of a task that leads to a deadlock."""
        found = self._task_deadlock(memory, state, draft)
        return () if found is None else [_deadlock_fact(found)]

    def notice(self, memory: TeamTalk, state: State, envelope: Envelope) -> Sequence[RelatedFact]:
        if envelope.event_type != EV_TASK_STARTED:
            return ()
        key = task_key(memory, envelope.event_data)
        if count_of(memory.tasks, key) != WARN_AT or self.max_iterations <= WARN_AT:
            return ()
        names = [str(envelope.event_data.get(name, "")) for name in ("by", "agent")]
        return [_deadlock_fact(DeadlockDetected("supervisor", names, WARN_AT, key, "warn"))]

    def _task_deadlock(self, memory: TeamTalk, state: State, draft: Envelope) -> DeadlockDetected | None:
        data = draft.event_data
        agent, by, words = (str(data.get(name, "")) for name in ("agent", "by", TASK_WORDS))
        if not words:
            return None
        ancestors, entry = task_chain(state), task_entry(agent, words)
        if entry in ancestors:
            names = [each.partition(" ")[0] for each in ancestors[ancestors.index(entry) :]]
            return DeadlockDetected("wait_for", [*names, agent], 1, words, "trip")
        key = task_key(memory, data)
        times = count_of(memory.tasks, key) + 1
        if times < self.max_iterations or times < WARN_AT:
            return None
        return DeadlockDetected("supervisor", [by, agent], times, key, "trip")


def _person_of(state: State) -> str | None:
    return next((name for name, kind in state.participants.items() if kind == "human"), None)


def _round_fact(closed: ClosedRound, action: Literal["warn", "trip"], routed_to: str) -> RelatedFact:
    return _deadlock_fact(
        DeadlockDetected(closed.kind, list(closed.names), closed.occurrences, closed.key, action, routed_to)
    )


def _deadlock_fact(found: DeadlockDetected) -> RelatedFact:
    return RelatedFact(EV_DEADLOCK_DETECTED, data_of(found), (OPERATORS,))
