"""Regular expressions of JSON schemas, matched without backtracking.

Rule 1: a match takes time in proportion to the text: all ways through a pattern are followed side by side. The sets of
        states that a pattern has been in are kept, so that a text of usual characters costs one look-up for each.
Rule 2: the cost of one check is bounded on top of that, by a count and not by a clock, so that it is the same on every
        machine.
Rule 3: a pattern counts as fast in an engine that backtracks, such as Python's `re`, only if at every place in a text
        there is one way to go on, and a match is not begun again at each character of a long text.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, count
from typing import NamedTuple

from antiphon.core.regex_syntax import (
    WORD_RANGES,
    BadPattern,
    PatternAssertion,
    PatternChars,
    PatternChoice,
    PatternNode,
    PatternParser,
    PatternRepeat,
    PatternSequence,
    UnsupportedPattern,
    complement_ranges,
)
from antiphon.core.text import describe

MAX_PATTERN_NODES = 5000
"""How many parts a pattern may have, each counted as often as it is repeated."""
MATCH_STEPS = 500_000
"""How many states one check may look at: a fraction of a second."""
MAX_CACHED_STATES = 200_000
"""How many states are remembered before all are forgotten."""


class TooMuchWork(ValueError):
    """A value cannot be checked within the budget."""


class WorkBudget:
    """A number of steps that may be taken. Everything that is checked of one value shares one."""

    def __init__(self, steps: int = MATCH_STEPS) -> None:
        self._steps = self._left = steps

    @property
    def spent(self) -> int:
        """How many steps the check has taken."""
        return self._steps - self._left

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
        self._numbers, self._nodes, self._text = count(MATCHED_STATE + 1), 0, text
        self.start = self._compile(node, MATCHED_STATE)

    def _compile(self, node: PatternNode, behind: int) -> int:
        """The state in which a node begins that goes on in another."""
        self._nodes += 1  # nodes and not states: what is empty is repeated without any
        if self._nodes > MAX_PATTERN_NODES:
            raise UnsupportedPattern(
                f"pattern {describe(self._text)} is too large: more than {MAX_PATTERN_NODES} parts; repeat less"
            )
        match node:
            case PatternChars():
                state = next(self._numbers)
                self.chars[state] = node, behind
                return state
            case PatternAssertion(kind=kind):
                state = next(self._numbers)
                self.places[state] = kind, behind
                return state
            case PatternSequence(parts=parts):
                for part in reversed(parts):
                    behind = self._compile(part, behind)
                return behind
            case PatternChoice(parts=parts):
                return self._add_branch([self._compile(part, behind) for part in parts])
            case PatternRepeat():
                return self._compile_repeat(node, behind)

    def _add_branch(self, ways: Sequence[int]) -> int:
        state = next(self._numbers)
        self.ways[state] = ways
        return state

    def _compile_repeat(self, node: PatternRepeat, behind: int) -> int:
        if node.most is None:
            loop = self._add_branch(())
            self.ways[loop] = self._compile(node.part, loop), behind
            first = loop
        else:
            first = behind
            for _ in range(node.most - node.least):
                first = self._add_branch((self._compile(node.part, first), behind))
        for _ in range(node.least):
            first = self._compile(node.part, first)
        return first


MATCHED_STATE = 0
"""The state in which a pattern has matched."""
AT_TEXT_START, WORD_CHAR, OTHER_CHAR, AT_TEXT_END = range(4)
"""What stands beside a place: the beginning, a character of a word, another one, or the end."""
WORD_CHARS = PatternChars(WORD_RANGES)
MatchPosition = tuple[frozenset[int], int]
"""Where a match may be: the states it may be in, and what stands before."""


class LinearPattern:
    """A pattern that can be looked for in a text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._program = PatternProgram(PatternParser(text).parse(), text)
        self._start = frozenset({self._program.start})
        self._steps: dict[tuple[MatchPosition, str], MatchPosition | None] = {}
        """From where, by which character or the end (""), to where; None if the pattern has matched before it."""
        self._cached = 0

    def found_in(self, text: str, budget: WorkBudget) -> bool:
        """Whether the pattern matches anywhere; `TooMuchWork` if finding out would exceed the budget."""
        here: MatchPosition = self._start, AT_TEXT_START
        for char in chain(text, ("",)):
            if not budget.spend(1 if (here, char) in self._steps else self._step(here, char)):
                raise TooMuchWork(
                    f"a text of {len(text)} characters is too long for the pattern {describe(self._text)}: "
                    f"matching takes more than {MATCH_STEPS} steps"
                )
            following = self._steps[here, char]
            if following is None:
                return True
            here = following
        return False

    def _step(self, here: MatchPosition, char: str) -> int:
        """Find out where a character leads to. Returns how many states that took."""
        if self._cached >= MAX_CACHED_STATES:
            self._steps.clear()
            self._cached = 0
        code = ord(char) if char else -1
        kind = AT_TEXT_END if not char else WORD_CHAR if WORD_CHARS.has(code) else OTHER_CHAR
        reached = self._reached(here, kind)
        readers = (self._program.chars[state] for state in reached if char and state in self._program.chars)
        behind = frozenset(following for chars, following in readers if chars.has(code))
        self._steps[here, char] = None if MATCHED_STATE in reached else (self._start | behind, kind)
        self._cached += len(behind) + 1
        return len(reached)

    def _reached(self, here: MatchPosition, after: int) -> set[int]:
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
                if _assertion_holds(kind, before, after):
                    left.append(behind)
        return seen


def _assertion_holds(kind: str, before: int, after: int) -> bool:
    match kind:
        case "start":
            return before == AT_TEXT_START
        case "end":
            return after == AT_TEXT_END
        case _:
            return ((before == WORD_CHAR) != (after == WORD_CHAR)) == (kind == "edge")


MAX_PATTERN_PATHS = 200
"""How many characters of a pattern without loops may be tried at each place of a text."""
MAX_COMPARED_PAIRS = 100_000
"""How many pairs of characters are compared before a pattern counts as ambiguous."""


class _FollowStates(NamedTuple):
    """What may follow a state."""

    chars: list[int]
    """The states that read the next character."""
    matched: bool
    """Whether the pattern has matched, independent of the rest of the text."""
    ambiguous: bool
    """Whether one of them is reached in several ways."""


def is_linear_with_backtracking(text: str) -> bool:
    """Whether Python's `re` searches any text for the pattern in time that is proportional to the text."""
    try:
        program = PatternProgram(PatternParser(text, widened=True).parse(), text)
    except BadPattern:
        return False
    following = {state: _follow_states(program, behind) for state, (_, behind) in program.chars.items()}
    start = _follow_states(program, program.start)
    if _has_few_paths(start, following):
        return True
    if not _is_deterministic_pattern(program, [start, *following.values()]):
        return False
    if not _follow_states(program, program.start, anchored=False).chars:
        return True
    # A match begins at any character. That is quick if it is found, or fails, within a few characters.
    until_matched = {
        state: _FollowStates([], True, False) if each.matched else each for state, each in following.items()
    }
    return _has_few_paths(start, until_matched)


def _follow_states(program: PatternProgram, state: int, *, anchored: bool = True) -> _FollowStates:
    """What may follow a state; not `anchored`: elsewhere than at the beginning of a text."""
    seen, chars, ambiguous, matched = set[int](), list[int](), False, False
    left = [(state, True)]
    while left:
        state, free = left.pop()
        matched = matched or (state == MATCHED_STATE and free)
        if state in seen:
            ambiguous = True
            continue
        seen.add(state)
        if state in program.chars:
            chars.append(state)
        if state in program.places:
            kind, behind = program.places[state]
            if anchored or kind != "start":
                left.append((behind, False))
        left.extend((way, free) for way in program.ways.get(state, ()))
    return _FollowStates(chars, matched, ambiguous)


def _has_few_paths(start: _FollowStates, following: dict[int, _FollowStates]) -> bool:
    """Whether a pattern has no loops, and few characters are tried on all ways through it."""
    paths: dict[int, int] = {}
    begun = set[int]()
    left = [(state, False) for state in start.chars]
    while left:
        state, done = left.pop()
        if state in paths:
            continue
        chars = following[state].chars
        if done:
            paths[state] = min(1 + sum(paths[each] for each in chars), MAX_PATTERN_PATHS + 1)
        elif state in begun:
            return False
        else:
            begun.add(state)
            left.append((state, True))
            left.extend((each, False) for each in chars)
    return sum(paths[each] for each in start.chars) <= MAX_PATTERN_PATHS


def _is_deterministic_pattern(program: PatternProgram, places: list[_FollowStates]) -> bool:
    compared = 0
    for place in places:
        compared += len(place.chars) ** 2
        if place.ambiguous or compared > MAX_COMPARED_PAIRS:
            return False
        ways = [program.chars[state][0] for state in place.chars]
        if any(_chars_overlap(one, other) for at, one in enumerate(ways) for other in ways[:at]):
            return False
    return True


def _chars_overlap(one: PatternChars, other: PatternChars) -> bool:
    if one.categories or other.categories:
        return True
    ranges, others = (complement_ranges(each.ranges) if each.negated else each.ranges for each in (one, other))
    return any(low <= last and first <= high for low, high in ranges for first, last in others)
