"""Whether a regular expression takes little time even in an engine that backtracks, such as Python's `re`.

The answer is careful: yes only if at every place in a text there is one way to go on, so that there is nothing to go
back to, and if a match is not begun again and again at each character of a long text.
"""

from __future__ import annotations

from typing import NamedTuple

from antiphon.agents.pattern_syntax import BadPattern, PatternChars, PatternParser, others
from antiphon.agents.patterns import MATCHED, PatternProgram

MAX_PATHS = 200
"""How many characters of a pattern without loops may be tried at each place of a text."""
MAX_COMPARED = 100_000
"""How many pairs of characters are compared before a pattern counts as ambiguous."""


class _Next(NamedTuple):
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
    following = {state: _next(program, behind) for state, (_, behind) in program.chars.items()}
    start = _next(program, program.start)
    if _is_small(_paths(start, following)):
        return True
    if not _is_deterministic(program, [start, *following.values()]):
        return False
    if not _next(program, program.start, anchored=False).chars:
        return True
    # A match begins at any character. That is quick if it is found, or fails, within a few characters.
    until_matched = {state: _Next([], True, False) if each.matched else each for state, each in following.items()}
    return _is_small(_paths(start, until_matched))


def _is_small(paths: int | None) -> bool:
    return paths is not None and paths <= MAX_PATHS


def _next(program: PatternProgram, state: int, *, anchored: bool = True) -> _Next:
    """What may follow a state; not `anchored`: elsewhere than at the beginning of a text."""
    seen, chars, ambiguous, matched = set[int](), list[int](), False, False
    left = [(state, True)]
    while left:
        state, free = left.pop()
        matched = matched or (state == MATCHED and free)
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
    return _Next(chars, matched, ambiguous)


def _paths(start: _Next, following: dict[int, _Next]) -> int | None:
    """How many characters are tried on all ways through a pattern; None if it has loops."""
    paths: dict[int, int] = {}
    begun = set[int]()
    left = [(state, False) for state in start.chars]
    while left:
        state, done = left.pop()
        if state in paths:
            continue
        chars = following[state].chars
        if done:
            paths[state] = min(1 + sum(paths[each] for each in chars), MAX_PATHS + 1)
        elif state in begun:
            return None
        else:
            begun.add(state)
            left.append((state, True))
            left.extend((each, False) for each in chars)
    return sum(paths[each] for each in start.chars)


def _is_deterministic(program: PatternProgram, places: list[_Next]) -> bool:
    compared = 0
    for place in places:
        compared += len(place.chars) ** 2
        if place.ambiguous or compared > MAX_COMPARED:
            return False
        ways = [program.chars[state][0] for state in place.chars]
        if any(_overlap(one, other) for at, one in enumerate(ways) for other in ways[:at]):
            return False
    return True


def _overlap(one: PatternChars, other: PatternChars) -> bool:
    if one.categories or other.categories:
        return True
    return any(low <= last and first <= high for low, high in _ranges(one) for first, last in _ranges(other))


def _ranges(chars: PatternChars) -> tuple[tuple[int, int], ...]:
    return others(chars.ranges) if chars.negated else chars.ranges
