"""A table as a board on which the turn moves: who may speak, with what in the context, and where it goes then.

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
from typing import TYPE_CHECKING

import msgspec

from antiphon.core.conditions import AllOf, AnyOf, ContextEquals, ContextIn, Not, Once, TransitionCondition
from antiphon.core.envelope import Envelope
from antiphon.core.events import EV_PACKET
from antiphon.core.rules import Seating
from antiphon.core.state import State
from antiphon.core.targets import TARGETS, TransitionTarget
from antiphon.orchestration.domains import Domain, Oracle, context_leaves, domain_of, oracles_of, tools_of
from antiphon.orchestration.table import Rule, Table

if TYPE_CHECKING:
    from antiphon.orchestration.graph import TransitionGraph

Holders = tuple[str, ...]
Values = tuple[int, ...]
"""Which value each context variable has."""
END: Holders = ()
LIGHT = 8
"""How many leaves of a condition, or variables of a context, count as one step."""
# There may be very many nodes, moves and words. They hold no cycles, and `gc=False` keeps the garbage collector from
# walking all of them while the event loop waits.


class Node(msgspec.Struct, frozen=True, gc=False):
    """Who has the turn, what the context is, and which rules with `Once` have fired."""

    holders: Holders
    values: Values
    spent: frozenset[int] = frozenset()


class Move(msgspec.Struct, frozen=True, gc=False):
    """One turn: who ended it, with which values and which tool, and the rule that decided."""

    speaker: str
    values: Values
    tool: str | None
    rule: int | None
    to: Holders
    put_in: bool = False
    """Whether it was a word out of turn that moved the turn."""
    failed: tuple[str, ...] = ()
    """Who of a group failed in it."""


NATURAL, POSSIBLE, PUT_IN = 0, 1, 2
"""How likely a move is: what somebody would do, what somebody could do, and what nobody was asked to do."""


class Word(msgspec.Struct, frozen=True, gc=False):
    """Somebody has spoken: in turn, or while others have it."""

    speaker: str
    values: Values
    spent: frozenset[int]
    holders: Holders | None = None
    failed: tuple[str, ...] = ()
    """Who of a group has failed; the speaker too, if all of it have and nothing was said."""

    @property
    def unsaid(self) -> bool:
        """Whether nothing was said, because the whole group has failed."""
        return self.speaker in self.failed


class Board:
    """A graph among its participants."""

    def __init__(self, graph: TransitionGraph, seating: Seating) -> None:
        self.graph, self.seating = graph, seating
        self.table = Table(graph)
        self.effort, self.most = 0, 0
        """How many steps have been taken so far, and how many may be: a step is about one rule that is asked."""
        self._participants = dict(seating.kinds)
        self.rules = {rule.place: rule for rule in self.table.rules}
        self._weights = {rule.place: 1 + _size(rule.when) // LIGHT for rule in self.table.rules}
        conditions = [rule.when for rule in graph.transitions]
        fixed = {key for key, names in (seating.writers or {}).items() if not names}
        self.domains: list[Domain] = [
            domain_of(key, found, begins=seating.context_vars.get(key), fixed=key in fixed)
            for key, found in context_leaves(conditions).items()
        ]
        self.breadth = 1 + len(self.domains) // LIGHT
        """The steps that one situation counts, which is made of all variables."""
        self.start = Node((graph.initial_speaker,), tuple(domain.start for domain in self.domains))
        self._tools: tuple[str | None, ...] = (None, *tools_of(conditions))
        self._oracles, self.partial = oracles_of(conditions)
        """Whether not everything is looked at, because there is too much of it."""
        self._keys = {rule.place: frozenset(context_leaves([rule.when])) for rule in self.table.rules}
        """The variables that each rule reads."""
        self._branches = any(rule.after_failure for rule in self.table.rules)
        """Whether any rule asks for failed branches, so that failures are looked at."""
        self._known: dict[Word, list[Move]] = {}
        self.people = tuple(
            name for name, kind in seating.kinds.items() if kind == "human" or name in seating.interjectors
        )
        """Those who may put in a word."""

    def allow(self, budget: int) -> None:
        """Let so many more steps be taken."""
        self.most = self.effort + budget

    @property
    def spent(self) -> bool:
        """Whether all steps that may be taken have been."""
        return self.effort >= self.most

    def words(self, node: Node) -> Iterator[Word]:
        """Everything that may be said next; also by those who may put in a word."""
        for speaker in node.holders:
            for values in self._later(node.values):
                yield Word(speaker, values, node.spent)
        yield from self.failures(node)
        for person in self.people:
            if person not in node.holders:
                for values in self._later(node.values):
                    yield Word(person, values, node.spent, node.holders)

    def failures(self, node: Node) -> Iterator[Word]:
        """What may be said next in a group of which some fail: one, all but one, or all. Only agents fail."""
        if not self._branches or len(node.holders) < 2:
            return
        agents = tuple(name for name in node.holders if self.seating.kinds.get(name) == "agent")
        for speaker in node.holders:
            others = tuple(name for name in agents if name != speaker)
            for failed in dict.fromkeys((*((name,) for name in others), others)):
                if failed:
                    yield from (Word(speaker, values, node.spent, failed=failed) for values in self._later(node.values))
        if agents == node.holders:
            yield from (Word(speaker, node.values, node.spent, failed=agents) for speaker in agents)

    def _later(self, values: Values) -> Iterator[Values]:
        """What the context may be after the next word; what it is now comes first."""
        yield values
        ways = [domain.after(now) for domain, now in zip(self.domains, values, strict=True)]
        yield from (way for way in product(*ways) if way != values)

    def likelihood(self, node: Node, move: Move) -> int:
        """Whether this move is one that somebody would make, and not only could."""
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

    def follows_context(self, node: Node, move: Move) -> bool:
        """Whether the rule that decides reads a variable that has been given a value."""
        read = self._keys[move.rule] if move.rule is not None else frozenset()
        pairs = zip(self.domains, node.values, strict=True)
        return any(domain.key in read and not domain.is_blank(value) for domain, value in pairs)

    def quiet(self, node: Node) -> Iterator[Move]:
        """How the turn goes on if nobody changes anything."""
        for speaker in node.holders:
            yield from self.moves(Word(speaker, node.values, node.spent))

    def after(self, node: Node, move: Move) -> Node:
        """Where a move leads."""
        rule = move.rule
        spent = node.spent | {rule} if rule is not None and self.rules[rule].once else node.spent
        return Node(move.to, move.values, spent)

    def moves(self, word: Word) -> list[Move]:
        """Where the turn may go after this word."""
        known = self._known.get(word)
        if known is None:
            known = list(self._walk(word))
            if self.effort <= self.most:  # cut short, it would be taken for all there is
                self._known[word] = known
        return known

    def _walk(self, word: Word) -> Iterator[Move]:
        seen: set[tuple[int | None, Holders]] = set()
        state = self._situation(word)
        for tool, oracle in self._ways(word):
            if self.effort > self.most:
                self.partial = True
                return
            envelope = _packet(word.speaker, tool)
            rule = self._first_match(word, state, envelope, oracle=oracle)
            if rule is None and (word.holders is not None or word.unsaid):
                continue
            target = self.graph.default_target if rule is None else rule.then
            ends = self._resolved(target, state, envelope)
            self.effort += len(ends) // LIGHT
            for to in ends:
                place = None if rule is None else rule.place
                if (place, to) not in seen:
                    seen.add((place, to))
                    yield Move(word.speaker, word.values, tool, place, to, word.holders is not None, word.failed)

    def _ways(self, word: Word) -> Iterator[tuple[str | None, Oracle]]:
        """Which tool may have been called, and what conditions say that cannot be looked into. People call no tools."""
        none = word.unsaid or self.seating.kinds.get(word.speaker) == "human"
        tools = (None,) if none else self._tools
        return product(tools, self._oracles)

    def _situation(self, word: Word) -> State:
        """A channel in which somebody has just spoken."""
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

    def _first_match(self, word: Word, state: State, envelope: Envelope, *, oracle: Oracle) -> Rule | None:
        """The rule that decides. Where nothing was said, only those about failed branches are read."""
        candidates = self.table.candidates(envelope.sender_id)
        self.effort += not candidates
        for rule in candidates:
            self.effort += self._weights[rule.place]
            if word.unsaid and not rule.after_failure:
                continue
            if said_to_hold(rule.when, state, envelope, spent=rule.place in word.spent, oracle=oracle):
                return rule
        return None

    def instead(self, place: int, word: Word) -> int | None:
        """The rule that decides on this word although the one at this place would have matched as well."""
        rule, state = self.rules[place], self._situation(word)
        for tool, oracle in self._ways(word):
            if self.spent:
                return None
            self.effort += self._weights[place]
            envelope = _packet(word.speaker, tool)
            if said_to_hold(rule.when, state, envelope, spent=place in word.spent, oracle=oracle):
                first = self._first_match(word, state, envelope, oracle=oracle)
                return None if first is None else first.place
        return None

    def quietly(self, word: Word) -> list[Holders]:
        """Where the turn may go after this word, if no tool is called."""
        return [move.to for move in self.moves(word) if move.tool is None]

    def _resolved(self, target: TransitionTarget, state: State, envelope: Envelope) -> list[Holders]:
        if not TARGETS.is_built_in(type(target)):
            return [END, *((name,) for name in self.seating.kinds)]
        decision = target.resolve(state, envelope)
        if decision.next_speaker is None:
            return [END]
        return [decision.speakers or (decision.next_speaker,)]


def said_to_hold(
    condition: TransitionCondition, state: State, envelope: Envelope, *, spent: bool, oracle: Oracle
) -> bool:
    """Whether a condition holds, if those that cannot be looked into say what the oracle does."""
    match condition:
        case Once(inner):
            return not spent and said_to_hold(inner, state, envelope, spent=spent, oracle=oracle)
        case AllOf(parts):
            return all(said_to_hold(part, state, envelope, spent=spent, oracle=oracle) for part in parts)
        case AnyOf(parts):
            return any(said_to_hold(part, state, envelope, spent=spent, oracle=oracle) for part in parts)
        case Not(inner):
            return not said_to_hold(inner, state, envelope, spent=spent, oracle=oracle)
        case _ if id(condition) in oracle:
            return oracle[id(condition)]
        case _:
            return condition.evaluate(state, envelope)


def _size(value: object) -> int:
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


def _packet(speaker: str, tool: str | None) -> Envelope:
    routing = {} if tool is None else {"tool": tool}
    return Envelope(sender_id=speaker, event_type=EV_PACKET, event_data={"body": "", "routing": routing})
