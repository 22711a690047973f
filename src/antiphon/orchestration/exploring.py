"""Every way a table can be walked, as far as the table itself can tell.

Rule 1: a speaker may write any variable that can be written, call any tool that a rule names, or do nothing of it.
Rule 2: who comes next is asked of the real conditions and targets, with a state made for the purpose.
Rule 3: it is bounded. What was not looked at is taken to be fine, and the exploration says that it is not complete.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import product
from typing import TYPE_CHECKING

import msgspec

from antiphon.core.conditions import AllOf, AnyOf, Not, Once, TransitionCondition
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


class Node(msgspec.Struct, frozen=True):
    """Who has the turn, what the context is, and which rules with `Once` have fired."""

    holders: Holders
    values: Values
    spent: frozenset[int] = frozenset()


class Move(msgspec.Struct, frozen=True):
    """One turn: who ended it, with which values and which tool, and the rule that decided."""

    speaker: str
    values: Values
    tool: str | None
    rule: int | None
    to: Holders


class Word(msgspec.Struct, frozen=True):
    """Somebody has spoken: in turn, or while others have it."""

    speaker: str
    values: Values
    spent: frozenset[int]
    holders: Holders | None = None


class Model:
    """A graph among its participants."""

    def __init__(self, graph: TransitionGraph, seating: Seating) -> None:
        self.graph, self.seating = graph, seating
        self.table = Table(graph)
        self.effort = 0
        """How many rules have been asked so far."""
        self._participants = dict(seating.kinds)
        self._rules = {rule.place: rule for rule in self.table.rules}
        conditions = [rule.when for rule in graph.transitions]
        fixed = {key for key, names in (seating.writers or {}).items() if not names}
        self.domains: list[Domain] = [
            domain_of(key, found, begins=seating.context_vars.get(key), fixed=key in fixed)
            for key, found in context_leaves(conditions).items()
        ]
        self._tools: tuple[str | None, ...] = (None, *tools_of(conditions))
        self._oracles = oracles_of(conditions)
        self._known: dict[Word, list[Move]] = {}
        self.people = tuple(
            name for name, kind in seating.kinds.items() if kind == "human" or name in seating.interjectors
        )
        """Those who may put in a word."""

    @property
    def start(self) -> Node:
        return Node((self.graph.initial_speaker,), tuple(domain.start for domain in self.domains))

    def later(self, values: Values, *, clearing: bool) -> Iterator[Values]:
        """What the context may be when the next turn ends; what it is now comes first."""
        yield values
        ways = [domain.after(now, clearing=clearing) for domain, now in zip(self.domains, values, strict=True)]
        yield from (way for way in product(*ways) if way != values)

    def moves(self, node: Node, values: Values) -> Iterator[Move]:
        """How the turn may go on when it ends with this context; also by a word that somebody puts in."""
        for speaker in node.holders:
            yield from self._after(Word(speaker, values, node.spent))
        for person in self.people:
            if person not in node.holders:
                yield from self._after(Word(person, values, node.spent, node.holders))

    def after(self, node: Node, move: Move) -> Node:
        """Where a move leads."""
        rule = move.rule
        spent = node.spent | {rule} if rule is not None and self._rules[rule].once else node.spent
        return Node(move.to, move.values, spent)

    def _after(self, word: Word) -> list[Move]:
        known = self._known.get(word)
        if known is None:
            known = self._known[word] = list(self._walk(word))
        return known

    def _walk(self, word: Word) -> Iterator[Move]:
        seen: set[tuple[int | None, Holders]] = set()
        state = self._situation(word)
        for tool, oracle in product(self._tools, self._oracles):
            envelope = _packet(word.speaker, tool)
            rule = self._first_match(state, envelope, spent=word.spent, oracle=oracle)
            if rule is None and word.holders is not None:
                continue
            target = self.graph.default_target if rule is None else rule.then
            for to in self._resolved(target, state, envelope):
                place = None if rule is None else rule.place
                if (place, to) not in seen:
                    seen.add((place, to))
                    yield Move(word.speaker, word.values, tool, place, to)

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
            context_vars=context,
        )

    def _first_match(self, state: State, envelope: Envelope, *, spent: frozenset[int], oracle: Oracle) -> Rule | None:
        """The rule that decides."""
        for rule in self.table.candidates(envelope.sender_id):
            self.effort += 1
            if said_to_hold(rule.when, state, envelope, spent=rule.place in spent, oracle=oracle):
                return rule
        return None

    def instead(self, place: int, word: Word) -> int | None:
        """The rule that decides on this word although the one at this place would have matched as well."""
        rule, state = self._rules[place], self._situation(word)
        for tool, oracle in product(self._tools, self._oracles):
            envelope = _packet(word.speaker, tool)
            if said_to_hold(rule.when, state, envelope, spent=place in word.spent, oracle=oracle):
                first = self._first_match(state, envelope, spent=word.spent, oracle=oracle)
                return None if first is None else first.place
        return None

    def quietly(self, word: Word) -> list[Holders]:
        """Where the turn may go after this word, if no tool is called."""
        return [move.to for move in self._after(word) if move.tool is None]

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


def _packet(speaker: str, tool: str | None) -> Envelope:
    routing = {} if tool is None else {"tool": tool}
    return Envelope(sender_id=speaker, event_type=EV_PACKET, event_data={"body": "", "routing": routing})


class Exploration:
    """Where one can get from the start, and from where one can get to an end."""

    def __init__(self, model: Model, *, clearing: bool, budget: int) -> None:
        self._model, self._clearing = model, clearing
        self.came_by: dict[Node, tuple[Node, Move] | None] = {model.start: None}
        """Every node that was reached, in the order of distance, and how."""
        self.fired: set[int] = set()
        self.held: set[str] = set()
        """Everybody who may get the turn."""
        self._before: dict[Node, list[Node]] = {}
        self._last: list[Node] = []
        """The nodes from which one turn leads to an end."""
        self._unseen: list[Node] = []
        self._explore(model.effort + budget)
        self.can_end = self._backwards()
        """The nodes from which an end can be reached, or from which nobody looked any further."""

    @property
    def complete(self) -> bool:
        return not self._unseen

    def _explore(self, most: int) -> None:
        line = deque(self.came_by)
        while line:
            node = line.popleft()
            self.held.update(node.holders)
            for values in self._model.later(node.values, clearing=self._clearing):
                if self._model.effort >= most:
                    self._unseen.append(node)
                    break
                self._model.effort += 1
                line.extend(self._follow(node, values))

    def _follow(self, node: Node, values: Values) -> Iterator[Node]:
        for move in self._model.moves(node, values):
            if move.rule is not None:
                self.fired.add(move.rule)
            if move.to == END:
                self._last.append(node)
                continue
            found = self._known(self._model.after(node, move))
            self._before.setdefault(found, []).append(node)
            if found not in self.came_by:
                self.came_by[found] = node, move
                yield found

    def _known(self, node: Node) -> Node:
        """Where everything may be cleared it does not matter what the context is."""
        return Node(node.holders, self._model.start.values, node.spent) if self._clearing else node

    def cleared(self, node: Node) -> Node:
        """The node of this exploration that stands for one of the other kind."""
        return self._known(node)

    def _backwards(self) -> set[Node]:
        found = {*self._last, *self._unseen}
        line = deque(found)
        while line:
            new = [node for node in self._before.get(line.popleft(), ()) if node not in found]
            found.update(new)
            line.extend(new)
        return found

    def distance_to_end(self) -> int | None:
        """How many steps at least the way from the start to an end takes; None if there is none."""
        ends = set(self._last)
        nearest = next((node for node in self.came_by if node in ends), None)
        return None if nearest is None else len(self.path_to(nearest)) + 1

    def path_to(self, node: Node) -> Sequence[tuple[Node, Move]]:
        """The shortest way from the start."""
        path: list[tuple[Node, Move]] = []
        while (came := self.came_by[node]) is not None:
            path.append(came)
            node = came[0]
        return path[::-1]

    def loop_from(self, node: Node) -> Sequence[tuple[Node, Move]]:
        """How it goes on from here if nobody changes anything, until it comes round."""
        steps: list[tuple[Node, Move]] = []
        seen: set[Node] = set()
        while node not in seen:
            seen.add(node)
            quiet = next((move for move in self._model.moves(node, node.values) if move.to != END), None)
            if quiet is None:
                break
            steps.append((node, quiet))
            node = self._known(self._model.after(node, quiet))
        return steps
