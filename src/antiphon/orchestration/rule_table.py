"""A graph's rules, ready to be asked.

Rule 1: the table is made once for a channel; asking it costs what the rules that could match cost, not all there are.
Rule 2: a rule that raises, in its condition or in its target, does not match, and the decision says so.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from antiphon.core.conditions import (
    CONDITIONS,
    BranchFailed,
    Once,
    TransitionCondition,
    condition_holds,
    inner_conditions,
    leaf_conditions,
    required_speakers,
)
from antiphon.core.envelope import Envelope
from antiphon.core.state import Assign, Close, Decision, RuleError, State, Wait, detach_state
from antiphon.core.targets import TARGETS, TransitionDecision, TransitionTarget
from antiphon.core.text import describe, describe_error
from antiphon.orchestration.rendering import GraphFields, describe_condition, ranked_rules

MAX_RULE_ERRORS = 10
MAX_REASON_CHARS = 200


class Rule(msgspec.Struct, frozen=True):
    """One transition and its place in the graph."""

    place: int
    when: TransitionCondition
    then: TransitionTarget
    speakers: frozenset[str] | None
    """The speakers of whom one must have spoken for it to match; None for any speaker."""
    once: bool
    reason: str
    after_failure: bool = False
    """Whether it is read when a whole group has failed, and nothing was said."""

    def matches(self, state: State, envelope: Envelope) -> bool:
        """Whether it matches what was just said."""
        return condition_holds(self.when, state, envelope, spent=self.once and self.place in state.fired)


class RuleTable:
    """The rules of a graph in the order in which they are read."""

    def __init__(self, graph: GraphFields) -> None:
        self.rules = [_table_rule(place, each.when, each.then) for place, each in ranked_rules(graph)]
        self._default = graph.default_target
        parts = [
            *(leaf for rule in self.rules for leaf in leaf_conditions(rule.when)),
            *(rule.then for rule in self.rules),
            self._default,
        ]
        self._has_custom_code = not all(
            CONDITIONS.is_built_in(type(part)) or TARGETS.is_built_in(type(part)) for part in parts
        )
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
        return self._first_decision(rules, state, envelope, default=False)

    def decide(self, state: State, envelope: Envelope, *, default: bool = True) -> Decision:
        """What the first matching rule says; what the default target says if none does, or else nothing."""
        return self._first_decision(self.candidates(envelope.sender_id), state, envelope, default=default)

    def _first_decision(self, rules: Sequence[Rule], state: State, envelope: Envelope, *, default: bool) -> Decision:
        errors: list[RuleError] = []
        if self._has_custom_code:
            state = detach_state(state)
        for rule in rules:
            try:
                if rule.matches(state, envelope):
                    return _decision_of(rule.then, state, envelope, rule=rule, errors=tuple(errors))
            except KeyboardInterrupt:  # by the operator
                raise
            except BaseException as error:  # a user-defined condition or target may raise anything, SystemExit too
                errors.append(RuleError(rule.place, describe_error(error)))
                del errors[MAX_RULE_ERRORS:]
        if not default:
            return Wait(errors=tuple(errors))
        try:
            return _decision_of(self._default, state, envelope, rule=None, errors=tuple(errors))
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return Close("rules_failed", errors=(*errors, RuleError(None, describe_error(error))))

    def candidates(self, speaker: str) -> Sequence[Rule]:
        """The rules that could match a word of this speaker, in order."""
        named = self._of_speaker.get(speaker)
        key = speaker if named else ""
        known = self._known.get(key)
        if known is None:
            known = [rule for _, rule in sorted([*(named or ()), *self._of_anybody], key=lambda ranked: ranked[0])]
            self._known[key] = known
        return known


def _table_rule(place: int, when: TransitionCondition, then: TransitionTarget) -> Rule:
    branches, reason = any(isinstance(leaf, BranchFailed) for leaf in leaf_conditions(when)), describe_condition(when)
    return Rule(place, when, then, required_speakers(when), has_once(when), reason[:MAX_REASON_CHARS], branches)


def has_once(condition: TransitionCondition) -> bool:
    """Whether it matters to this condition that its rule has fired."""
    return isinstance(condition, Once) or any(map(has_once, inner_conditions(condition)))


def _decision_of(
    target: TransitionTarget, state: State, envelope: Envelope, *, rule: Rule | None, errors: tuple[RuleError, ...]
) -> Decision:
    resolved: object = target.resolve(state, envelope)
    if not isinstance(resolved, TransitionDecision):
        raise TypeError(f"resolve returned {describe(resolved)}; return a TransitionDecision")
    place, reason = (rule.place, rule.reason) if rule is not None else (None, "default")
    if resolved.next_speaker is None:
        return Close(resolved.close_reason or "terminated", place, errors)
    speakers: object = resolved.speakers or (resolved.next_speaker,)
    if not isinstance(speakers, tuple | list) or not all(isinstance(name, str) for name in speakers):
        raise TypeError(f"resolve returned {describe(resolved)}; name participants")
    return Assign(tuple(speakers), reason, place, errors)
