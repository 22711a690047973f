"""The state space of the model checker: who has the turn, with which context, and which moves lead on.

Rule 1: a speaker may write any variable, call any tool that a rule names, or do nothing of it.
Rule 2: who comes next is asked of the real conditions and targets, with a state made for the purpose.
Rule 3: effort is counted in proportion to time: a rule counts by the size of its condition, a situation by the number
        of variables. So a budget bounds the time, and one graph is always explored equally far.
Rule 4: some writes are natural, others are not. To give a variable its first value is. To replace a value is if the
        rule that decides then reads it; to replace or clear it only to be rid of it is not.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import msgspec

from antiphon.core.conditions import AllOf, AnyOf, ContextEquals, ContextIn, Not, Once, OpaqueAnswers, condition_holds
from antiphon.core.envelope import Envelope
from antiphon.core.events import EV_PACKET
from antiphon.core.ruleset import ChannelRoster
from antiphon.core.state import State
from antiphon.core.targets import TARGETS, TransitionTarget
from antiphon.orchestration.abstraction import (
    VariableDomain,
    context_leaves,
    opaque_answers_of,
    tools_named_in,
    variable_domain_of,
)
from antiphon.orchestration.rendering import GraphFields
from antiphon.orchestration.rule_table import Rule, RuleTable

TurnHolders = tuple[str, ...]
ValueIndexes = tuple[int, ...]
"""Which value each context variable has."""
NO_HOLDERS: TurnHolders = ()
PARTS_PER_STEP = 8
"""How many leaves of a condition, or variables of a context, count as one step."""
# There may be very many nodes, moves and words. They hold no cycles, and `gc=False` keeps the garbage collector from
# walking all of them while the event loop waits.


class StateNode(msgspec.Struct, frozen=True, gc=False):
    """Who has the turn, what the context is, and which rules with `Once` have fired."""

    holders: TurnHolders
    values: ValueIndexes
    spent: frozenset[int] = frozenset()


class CheckerMove(msgspec.Struct, frozen=True, gc=False):
    """One turn: who ended it, with which values and which tool, and the rule that decided."""

    speaker: str
    values: ValueIndexes
    tool: str | None
    rule: int | None
    to: TurnHolders
    put_in: bool = False
    """Whether an interjection moved the turn."""
    failed: tuple[str, ...] = ()
    """Who of a group failed in it."""


NATURAL, POSSIBLE, PUT_IN = 0, 1, 2
"""How likely a move is: a natural one, a possible one, and an interjection."""


class Utterance(msgspec.Struct, frozen=True, gc=False):
    """One thing said: in turn, or while others have it."""

    speaker: str
    values: ValueIndexes
    spent: frozenset[int]
    holders: TurnHolders | None = None
    failed: tuple[str, ...] = ()
    """Who of a group has failed; the speaker too, if all of it have and nothing was said."""

    @property
    def is_silent(self) -> bool:
        """Whether nothing was said, because the whole group has failed."""
        return self.speaker in self.failed


class StateSpace:
    """A graph among its participants."""

    def __init__(self, graph: GraphFields, roster: ChannelRoster) -> None:
        self.graph, self.roster = graph, roster
        self.table = RuleTable(graph)
        self.effort, self.effort_limit = 0, 0
        """How many steps have been taken so far, and how many may be: a step is about one rule that is asked."""
        self._participants = dict(roster.kinds)
        self.rules = {rule.place: rule for rule in self.table.rules}
        self._weights = {rule.place: 1 + _condition_size(rule.when) // PARTS_PER_STEP for rule in self.table.rules}
        conditions = [rule.when for rule in graph.transitions]
        fixed = {key for key, names in (roster.writers or {}).items() if not names}
        self.domains: list[VariableDomain] = [
            variable_domain_of(key, found, begins=roster.context_vars.get(key), fixed=key in fixed)
            for key, found in context_leaves(conditions).items()
        ]
        self.breadth = 1 + len(self.domains) // PARTS_PER_STEP
        """The steps that one situation counts, which is made of all variables."""
        self.start = StateNode((graph.initial_speaker,), tuple(domain.start for domain in self.domains))
        self._tools: tuple[str | None, ...] = (None, *tools_named_in(conditions))
        self._opaque_answers, self.partial = opaque_answers_of(conditions)
        """Whether some combinations are left out, because there are too many."""
        self._keys = {rule.place: frozenset(context_leaves([rule.when])) for rule in self.table.rules}
        """The variables that each rule reads."""
        self._branches = any(rule.after_failure for rule in self.table.rules)
        """Whether any rule asks for failed branches, so that failures are looked at."""
        self._move_cache: dict[Utterance, list[CheckerMove]] = {}
        self.people = tuple(
            name for name, kind in roster.kinds.items() if kind == "human" or name in roster.interjectors
        )
        """The participants that may interject."""

    def allow(self, budget: int) -> None:
        """Let so many more steps be taken."""
        self.effort_limit = self.effort + budget

    @property
    def is_exhausted(self) -> bool:
        """Whether all steps that may be taken have been."""
        return self.effort >= self.effort_limit

    def utterances(self, node: StateNode) -> Iterator[Utterance]:
        """Everything that may be said next, interjections included."""
        for speaker in node.holders:
            for values in self._next_contexts(node.values):
                yield Utterance(speaker, values, node.spent)
        yield from self.failures(node)
        for person in self.people:
            if person not in node.holders:
                for values in self._next_contexts(node.values):
                    yield Utterance(person, values, node.spent, node.holders)

    def failures(self, node: StateNode) -> Iterator[Utterance]:
        """What may be said next in a group of which some fail: one, all but one, or all. Only agents fail."""
        if not self._branches or len(node.holders) < 2:
            return
        agents = tuple(name for name in node.holders if self.roster.kinds.get(name) == "agent")
        for speaker in node.holders:
            others = tuple(name for name in agents if name != speaker)
            for failed in dict.fromkeys((*((name,) for name in others), others)):
                if failed:
                    yield from (
                        Utterance(speaker, values, node.spent, failed=failed)
                        for values in self._next_contexts(node.values)
                    )
        if agents == node.holders:
            yield from (Utterance(speaker, node.values, node.spent, failed=agents) for speaker in agents)

    def _next_contexts(self, values: ValueIndexes) -> Iterator[ValueIndexes]:
        """What the context may be after the next word; what it is now comes first."""
        yield values
        ways = [domain.next_values(now) for domain, now in zip(self.domains, values, strict=True)]
        yield from (way for way in product(*ways) if way != values)

    def likelihood(self, node: StateNode, move: CheckerMove) -> int:
        """Whether this move is natural, only possible, or an interjection."""
        if move.put_in:
            return PUT_IN
        if move.failed:
            return POSSIBLE
        read = self._keys[move.rule] if move.rule is not None else frozenset()
        natural = all(
            (domain.is_blank(before) and now != 0) or (domain.key in read and not domain.is_blank(now))
            for domain, before, now in zip(self.domains, node.values, move.values, strict=True)
            if before != now
        )
        return NATURAL if natural else POSSIBLE

    def follows_context(self, node: StateNode, move: CheckerMove) -> bool:
        """Whether the rule that decides reads a variable that has been given a value."""
        read = self._keys[move.rule] if move.rule is not None else frozenset()
        pairs = zip(self.domains, node.values, strict=True)
        return any(domain.key in read and not domain.is_blank(value) for domain, value in pairs)

    def successor(self, node: StateNode, move: CheckerMove) -> StateNode:
        """Where a move leads."""
        rule = move.rule
        spent = node.spent | {rule} if rule is not None and self.rules[rule].once else node.spent
        return StateNode(move.to, move.values, spent)

    def moves(self, word: Utterance) -> list[CheckerMove]:
        """Where the turn may go after this word."""
        known = self._move_cache.get(word)
        if known is None:
            known = list(self._enumerate_moves(word))
            if self.effort <= self.effort_limit:  # cut short, it would be taken for all there is
                self._move_cache[word] = known
        return known

    def _enumerate_moves(self, word: Utterance) -> Iterator[CheckerMove]:
        seen: set[tuple[int | None, TurnHolders]] = set()
        state = self._state_after(word)
        for tool, answers in self._tool_answer_pairs(word):
            if self.effort > self.effort_limit:
                self.partial = True
                return
            envelope = _empty_packet(word.speaker, tool)
            rule = self._first_match(word, state, envelope, answers=answers)
            if rule is None and (word.holders is not None or word.is_silent):
                continue
            target = self.graph.default_target if rule is None else rule.then
            ends = self._resolve_holders(target, state, envelope)
            self.effort += len(ends) // PARTS_PER_STEP
            for to in ends:
                place = None if rule is None else rule.place
                if (place, to) not in seen:
                    seen.add((place, to))
                    yield CheckerMove(word.speaker, word.values, tool, place, to, word.holders is not None, word.failed)

    def _tool_answer_pairs(self, word: Utterance) -> Iterator[tuple[str | None, OpaqueAnswers]]:
        """The tools that may have been called, each with the answers of opaque conditions. People call no tools."""
        none = word.is_silent or self.roster.kinds.get(word.speaker) == "human"
        tools = (None,) if none else self._tools
        return product(tools, self._opaque_answers)

    def _state_after(self, word: Utterance) -> State:
        """The state of a channel in which this was just said."""
        pairs = zip(self.domains, word.values, strict=True)
        context = {domain.key: domain.values[value] for domain, value in pairs if value}
        return State(
            participants=self._participants,
            creator_id=next(iter(self._participants)),
            ordered=True,
            status="active",
            speakers=word.holders or (),
            interjected=word.holders is not None,
            last_speaker_id=word.speaker,
            turn_count=1,
            failed_branches=dict.fromkeys(word.failed, "failed"),
            context_vars=context,
        )

    def _first_match(self, word: Utterance, state: State, envelope: Envelope, *, answers: OpaqueAnswers) -> Rule | None:
        """The rule that decides. Where nothing was said, only those about failed branches are read."""
        candidates = self.table.candidates(envelope.sender_id)
        self.effort += not candidates
        for rule in candidates:
            self.effort += self._weights[rule.place]
            if word.is_silent and not rule.after_failure:
                continue
            if condition_holds(rule.when, state, envelope, spent=rule.place in word.spent, answers=answers):
                return rule
        return None

    def preempting_rule(self, place: int, word: Utterance) -> int | None:
        """The rule that decides on this word although the one at this place would have matched as well."""
        rule, state = self.rules[place], self._state_after(word)
        for tool, answers in self._tool_answer_pairs(word):
            if self.is_exhausted:
                return None
            self.effort += self._weights[place]
            envelope = _empty_packet(word.speaker, tool)
            if condition_holds(rule.when, state, envelope, spent=place in word.spent, answers=answers):
                first = self._first_match(word, state, envelope, answers=answers)
                return None if first is None else first.place
        return None

    def _resolve_holders(self, target: TransitionTarget, state: State, envelope: Envelope) -> list[TurnHolders]:
        if not TARGETS.is_built_in(type(target)):
            return [NO_HOLDERS, *((name,) for name in self.roster.kinds)]
        decision = target.resolve(state, envelope)
        if decision.next_speaker is None:
            return [NO_HOLDERS]
        return [decision.speakers or (decision.next_speaker,)]


def _condition_size(value: object) -> int:
    """How much there is to compare in a condition: its parts, and those of the values that it names."""
    size, rest = 0, [value]
    while rest:
        part = rest.pop()
        size += 1
        match part:
            case ContextEquals(value=named):
                rest.append(named)
            case ContextIn(values=values):
                rest.extend(values)
            case Once(inner) | Not(inner):
                rest.append(inner)
            case AllOf(parts) | AnyOf(parts):
                rest.extend(parts)
            case dict():
                rest.extend(part.values())
            case list() | tuple():
                rest.extend(part)
    return size


def _empty_packet(speaker: str, tool: str | None) -> Envelope:
    routing = {} if tool is None else {"tool": tool}
    return Envelope(sender_id=speaker, event_type=EV_PACKET, event_data={"body": "", "routing": routing})
