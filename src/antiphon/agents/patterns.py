"""Regular expressions of JSON schemas, matched without backtracking.

Rule 1: a match takes time in proportion to the text: all ways through a pattern are followed side by side.
Rule 2: what one check may cost is bounded on top of that, by a count and not by a clock, so that it is the same on
        every machine.

The sets of states that a pattern has been in are kept, so that a text of usual characters costs one look-up for each.
"""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.agents.pattern_syntax import (
    WORD,
    PatternChars,
    PatternChoice,
    PatternNode,
    PatternParser,
    PatternPlace,
    PatternRepeat,
    PatternSeries,
    UnsupportedPattern,
)
from antiphon.core.words import shown

MAX_NODES = 5000
"""How many parts a pattern may have, each counted as often as it is repeated."""
MATCH_BUDGET = 500_000
"""How many states one check may look at: a fraction of a second."""
MAX_KEPT = 200_000
"""How many states are remembered before all are forgotten."""


class TooMuchWork(ValueError):
    """A value cannot be checked within the budget."""


class WorkBudget:
    """A number of steps that may be taken. Everything that is checked of one value shares one."""

    def __init__(self, steps: int = MATCH_BUDGET) -> None:
        self._steps = self._left = steps

    @property
    def spent(self) -> int:
        """How many steps the check has taken."""
        return self._steps - self._left

    def renew(self) -> None:
        """Begin another check."""
        self._left = self._steps

    def spend(self, steps: int) -> bool:
        """Whether there was so much left."""
        self._left -= steps
        return self._left >= 0


class PatternProgram:
    """A pattern as numbered states: each reads a character, asks about a place, or offers several ways to go on."""

    def __init__(self, node: PatternNode, text: str) -> None:
        self.chars: dict[int, tuple[PatternChars, int]] = {}
        self.places: dict[int, tuple[str, int]] = {}
        self.ways: dict[int, Sequence[int]] = {}
        self._count, self._nodes, self._text = 1, 0, text
        self.start = self._laid(node, MATCHED)

    def _new(self) -> int:
        self._count += 1
        return self._count - 1

    def _laid(self, node: PatternNode, behind: int) -> int:
        """The state in which a node begins that goes on in another."""
        self._nodes += 1  # nodes and not states: what is empty is repeated without any
        if self._nodes > MAX_NODES:
            raise UnsupportedPattern(
                f"pattern {shown(self._text)} is too large: more than {MAX_NODES} parts; repeat less"
            )
        match node:
            case PatternChars():
                state = self._new()
                self.chars[state] = node, behind
                return state
            case PatternPlace(kind=kind):
                state = self._new()
                self.places[state] = kind, behind
                return state
            case PatternSeries(parts=parts):
                for part in reversed(parts):
                    behind = self._laid(part, behind)
                return behind
            case PatternChoice(parts=parts):
                return self._either([self._laid(part, behind) for part in parts])
            case PatternRepeat():
                return self._again(node, behind)

    def _either(self, ways: Sequence[int]) -> int:
        state = self._new()
        self.ways[state] = ways
        return state

    def _again(self, node: PatternRepeat, behind: int) -> int:
        if node.most is None:
            loop = self._either(())
            self.ways[loop] = self._laid(node.part, loop), behind
            first = loop
        else:
            first = behind
            for _ in range(node.most - node.least):
                first = self._either((self._laid(node.part, first), behind))
        for _ in range(node.least):
            first = self._laid(node.part, first)
        return first


MATCHED = 0
"""The state in which a pattern has matched."""
FIRST, LETTER, OTHER, NOTHING = range(4)
"""What stands beside a place: the beginning, a character of a word, another one, or the end."""
IN_WORDS = PatternChars(WORD)
Here = tuple[frozenset[int], int]
"""Where a match may be: the states it may be in, and what stands before."""


class LinearPattern:
    """A pattern that can be looked for in a text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._program = PatternProgram(PatternParser(text).parse(), text)
        self._start = frozenset({self._program.start})
        self._steps: dict[tuple[Here, str], Here | None] = {}
        """From where, by which character, to where; None if the pattern has matched before it."""
        self._ends: dict[Here, bool] = {}
        """Whether the pattern has matched if the text ends there."""
        self._kept = 0

    def found_in(self, text: str, budget: WorkBudget) -> bool:
        """Whether the pattern matches anywhere; `TooMuchWork` if finding out would exceed the budget."""
        here: Here = self._start, FIRST
        for char in text:
            work = 1 if (here, char) in self._steps else self._step(here, char)
            self._pay(budget, work, text)
            following = self._steps[here, char]
            if following is None:
                return True
            here = following
        self._pay(budget, 1 if here in self._ends else self._end(here), text)
        return self._ends[here]

    def _pay(self, budget: WorkBudget, work: int, text: str) -> None:
        if not budget.spend(work):
            raise TooMuchWork(
                f"a text of {len(text)} characters is too long for the pattern {shown(self._text)}: "
                f"matching takes more than {MATCH_BUDGET} steps"
            )

    def _end(self, here: Here) -> int:
        """Find out whether a text may end there; how many states that took."""
        self._forget_if_full()
        reached = self._reached(here, NOTHING)
        self._ends[here] = MATCHED in reached
        self._kept += 1
        return len(reached)

    def _forget_if_full(self) -> None:
        if self._kept >= MAX_KEPT:
            self._steps.clear()
            self._ends.clear()
            self._kept = 0

    def _step(self, here: Here, char: str) -> int:
        """Find out where a character leads to; how many states that took."""
        self._forget_if_full()
        code = ord(char)
        kind = LETTER if IN_WORDS.has(code) else OTHER
        reached = self._reached(here, kind)
        readers = (self._program.chars[state] for state in reached if state in self._program.chars)
        behind = frozenset(following for chars, following in readers if chars.has(code))
        self._steps[here, char] = None if MATCHED in reached else (self._start | behind, kind)
        self._kept += len(behind) + 1
        return len(reached)

    def _reached(self, here: Here, after: int) -> set[int]:
        """The states that a match may be in at a place, the ways between them gone."""
        states, before = here
        seen, left, program = set[int](), list(states), self._program
        while left:
            state = left.pop()
            if state in seen:
                continue
            seen.add(state)
            left.extend(program.ways.get(state, ()))
            if state in program.places:
                kind, behind = program.places[state]
                if _holds(kind, before, after):
                    left.append(behind)
        return seen


def _holds(kind: str, before: int, after: int) -> bool:
    match kind:
        case "start":
            return before == FIRST
        case "end":
            return after == NOTHING
        case _:
            return ((before == LETTER) != (after == LETTER)) == (kind == "edge")
