"""Text that is safe to show: nothing that was recorded can move a cursor or colour a screen."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from itertools import pairwise

UNSAFE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
JOINERS = "\u200c\u200d"
"""Format characters that some scripts, and families of emoji, cannot be written without."""


def printable(text: str, *, keep: str = "") -> str:
    """The text on one line, with everything that is no visible character escaped, except those to `keep`."""
    if text.isprintable():
        return text
    return "".join(character if _is_safe(character, keep) else _escaped(character) for character in text)


def _is_safe(character: str, keep: str) -> bool:
    return character in keep or character in JOINERS or unicodedata.category(character) not in UNSAFE


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def stretches(numbers: Iterable[int]) -> str:
    """Numbers as a person writes them: 2, 4, 7–9."""
    ordered = sorted(set(numbers))
    breaks = [place for place, (left, right) in enumerate(pairwise(ordered), 1) if right != left + 1]
    edges = [0, *breaks, len(ordered)]
    return ", ".join(_stretch(ordered[begin:end]) for begin, end in pairwise(edges) if begin < end)


def _stretch(run: Sequence[int]) -> str:
    if len(run) < 3:
        return ", ".join(map(str, run))
    return f"{run[0]}–{run[-1]}"


def counted(number: int, noun: str, plural: str = "") -> str:
    """A number and its noun: 1 channel, 2 channels."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
