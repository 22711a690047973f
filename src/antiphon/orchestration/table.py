"""A graph's rules, ready to be asked.

Rule 1: the table is made once for a channel; asking it costs what the rules that could match cost, not all there are.
Rule 2: a rule that raises, in its condition or in its target, does not match, and the decision says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from antiphon.core.conditions import (
    CONDITIONS,
    BranchFailed,
    Once,
    TransitionCondition,
    holds,
    inner_of,
    leaves,
    speakers_of,
)
from antiphon.core.decision import Assign, Close, Decision, RuleError, Wait
from antiphon.core.envelope import Envelope
from antiphon.core.state import State, detached
from antiphon.core.targets import TARGETS, TransitionDecision, TransitionTarget
from antiphon.core.words import shown, told
from antiphon.orchestration.wording import as_words

if TYPE_CHECKING:
    from antiphon.orchestration.graph import TransitionGraph

MOST_ERRORS = 10
LONGEST_REASON = 200


class Rule(msgspec.Struct, frozen=True):
    """One transition and its place in the graph."""

    place: int
    when: TransitionCondition
    then: TransitionTarget
    speakers: frozenset[str] | None
    """Those without whose word it cannot match; None if anybody's may do."""
    once: bool
    reason: str
    after_failure: bool = False
    """Whether it is read when a whole group has failed, and nothing was said."""

    def matches(self, state: State, envelope: Envelope) -> bool:
        """Whether it matches what was just said."""
        return holds(self.when, state, envelope, spent=self.once and self.place in state.fired)


class Table:
    """The rules of a graph in the order in which they are read."""

    def __init__(self, graph: TransitionGraph) -> None:
        rules = [_rule(place, each.when, each.then) for place, each in enumerate(graph.transitions)]
        self.rules = sorted(rules, key=lambda rule: graph.transitions[rule.place].priority)
        self._default = graph.default_target
        parts = [*(leaf for rule in rules for leaf in leaves(rule.when)), *(rule.then for rule in rules), self._default]
        self._foreign = not all(CONDITIONS.is_built_in(type(part)) or TARGETS.is_built_in(type(part)) for part in parts)
        """Whether code that is not ours is asked, which must not change the state it is shown."""
        self._of_speaker: dict[str, list[tuple[int, Rule]]] = {}
        self._of_anybody: list[tuple[int, Rule]] = []
        for rank, rule in enumerate(self.rules):
            if rule.speakers is None:
                self._of_anybody.append((rank, rule))
            for name in rule.speakers or ():
                self._of_speaker.setdefault(name, []).append((rank, rule))
        self._known: dict[str, Sequence[Rule]] = {}

    def recover(self, state: State, envelope: Envelope) -> Decision:
        """What the first matching rule about failed branches says; `Wait` if there is none."""
        rules = [rule for rule in self.candidates(envelope.sender_id) if rule.after_failure]
        return self._first(rules, state, envelope, default=False)

    def decide(self, state: State, envelope: Envelope, *, default: bool = True) -> Decision:
        """What the first matching rule says; what the default target says if none does, or else nothing."""
        return self._first(self.candidates(envelope.sender_id), state, envelope, default=default)

    def _first(self, rules: Sequence[Rule], state: State, envelope: Envelope, *, default: bool) -> Decision:
        errors: list[RuleError] = []
        if self._foreign:
            state = detached(state)
        for rule in rules:
            try:
                if rule.matches(state, envelope):
                    return _decided(rule.then, state, envelope, rule=rule, errors=tuple(errors))
            except KeyboardInterrupt:  # the operator's
                raise
            except BaseException as error:  # a user-defined condition or target may raise anything, SystemExit too
                errors.append(RuleError(rule.place, told(error)))
                del errors[MOST_ERRORS:]
        if not default:
            return Wait(errors=tuple(errors))
        try:
            return _decided(self._default, state, envelope, rule=None, errors=tuple(errors))
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return Close("rules_failed", errors=(*errors, RuleError(None, told(error))))

    def candidates(self, speaker: str) -> Sequence[Rule]:
        """The rules that could match a word of this speaker, in order."""
        named = self._of_speaker.get(speaker)
        key = speaker if named else ""
        known = self._known.get(key)
        if known is None:
            known = [rule for _, rule in sorted([*(named or ()), *self._of_anybody], key=lambda ranked: ranked[0])]
            self._known[key] = known
        return known


def _rule(place: int, when: TransitionCondition, then: TransitionTarget) -> Rule:
    branches = any(isinstance(leaf, BranchFailed) for leaf in leaves(when))
    return Rule(place, when, then, speakers_of(when), has_once(when), as_words(when)[:LONGEST_REASON], branches)


def has_once(condition: TransitionCondition) -> bool:
    """Whether it matters to this condition that its rule has fired."""
    return isinstance(condition, Once) or any(map(has_once, inner_of(condition)))


def _decided(
    target: TransitionTarget, state: State, envelope: Envelope, *, rule: Rule | None, errors: tuple[RuleError, ...]
) -> Decision:
    resolved: object = target.resolve(state, envelope)
    if not isinstance(resolved, TransitionDecision):
        raise TypeError(f"resolve returned {shown(resolved)}; return a TransitionDecision")
    place, reason = (rule.place, rule.reason) if rule is not None else (None, "default")
    if resolved.next_speaker is None:
        return Close(resolved.close_reason or "terminated", place, errors)
    speakers: object = resolved.speakers or (resolved.next_speaker,)
    if not isinstance(speakers, tuple | list) or not all(isinstance(name, str) for name in speakers):
        raise TypeError(f"resolve returned {shown(resolved)}; name participants")
    return Assign(tuple(speakers), reason, place, errors)
