"""The handoffs that are possible in one routed channel: its rules, its participants, and the limit for a message.

Rule 1: neither an observer that is an agent nor the creator can be handed a conversation.
Rule 2: while a person has the conversation, and beyond the limit, only people can be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from antiphon.core.ruleset import HandoffObjection
from antiphon.core.state import State
from antiphon.guards.run_limits import Limit, is_reached
from antiphon.orchestration.conversation_memory import ConversationMemory
from antiphon.orchestration.handoff_rules import (
    HUMAN,
    TARGET_NOT_FOUND,
    HandoffRules,
    RefusedHandoff,
    ResolvedHandoff,
    handoff_targets,
    resolve_handoff,
)


class RoutedHandoffs:
    """The handoffs that the rules of one channel allow."""

    def __init__(self, rules: HandoffRules, most: Limit, observer: str | None) -> None:
        self._rules, self._most, self._observer = rules, most, observer
        self._targets: dict[str, Sequence[str]] = {}

    def targets(self, state: State, speaker: str) -> Sequence[str]:
        """The names that the speaker may hand over to."""
        known = self._targets.get(speaker)
        if known is None:  # the participants of a channel never change
            known = self._targets[speaker] = tuple(
                handoff_targets(self._rules, self._reachable(state, speaker), speaker)
            )
        return known

    def _reachable(self, state: State, speaker: str) -> Mapping[str, str]:
        """The participants that a conversation can be handed over to, by kind.

        Neither an observer that is an agent, nor the person who opened the channel and is to be helped.
        """
        kinds, observer = state.participants, self._observer
        hidden = [observer] if observer != speaker and kinds.get(observer or "") == "agent" else []
        hidden += [state.creator_id] if kinds.get(state.creator_id) == HUMAN else []
        return {name: kind for name, kind in kinds.items() if name not in hidden} if hidden else kinds

    def agents(self, state: State) -> list[str]:
        """The agents that a conversation can be given to: all but the observer."""
        return [name for name, kind in self._reachable(state, "").items() if kind == "agent"]

    def objection(
        self, memory: object, state: State, *, speaker: str, target: str, phase: str
    ) -> HandoffObjection | None:
        """Why the speaker cannot hand over to this target, into this phase; None if it can."""
        assert isinstance(memory, ConversationMemory), "a routed channel remembers its conversation"
        found = self.resolve(memory, state, speaker=speaker, target=target, phase=phase)
        return HandoffObjection(found.reason, found.advice) if isinstance(found, RefusedHandoff) else None

    def resolve(
        self, memory: ConversationMemory, state: State, *, speaker: str, target: str, phase: str
    ) -> ResolvedHandoff | RefusedHandoff:
        """Where a handoff leads, or why it leads nowhere. Only people can be reached beyond the limit."""
        found = resolve_handoff(
            self._rules,
            target,
            phase or None,
            kinds=self._reachable(state, speaker),
            speaker=speaker,
            conversation=memory.state,
        )
        if isinstance(found, ResolvedHandoff) and found.agent is not None and memory.person:
            advice = "A person has this conversation now, and decides who continues; answer yourself."
            return RefusedHandoff(TARGET_NOT_FOUND, advice)
        if isinstance(found, ResolvedHandoff) and found.agent is not None and is_reached(memory.hops, self._most):
            advice = f"There have been {memory.hops} handoffs for this message, the limit; answer yourself."
            return RefusedHandoff(f"hop_limit:{self._most}", advice)
        return found
