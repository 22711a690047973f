"""Texts and tables before they are written: escaping, cells, columns and their widths.

Every text passes `escape_unprintable`, so nothing that was recorded can move a cursor or colour a screen.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

UNSAFE_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
JOINER_CHARACTERS = "\u200c\u200d"
"""Format characters that some scripts and emoji sequences need."""
HIDDEN_CATEGORIES = UNSAFE_CATEGORIES | {"Zs", "Cn", "Co"}
HIDDEN_CHARACTERS = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0").union(map(chr, range(0xFE00, 0xFE10)))
"""Letters and marks that show nothing: fillers, blanks and variation selectors."""
COLUMN_GAP = "  "
PARTICIPANT_COLOURS = ("cyan", "green", "magenta", "yellow", "blue", "bright_red")


def escape_unprintable(text: str, *, keep: str = "") -> str:
    """The text with every invisible character escaped, except those in `keep`."""
    if text.isprintable():
        return text
    kept = keep + JOINER_CHARACTERS
    return "".join(
        each
        if each in kept or unicodedata.category(each) not in UNSAFE_CATEGORIES
        else each.encode("unicode_escape").decode("ascii")
        for each in text
    )


def escape_hidden(text: str) -> str:
    """The text with every character escaped that a reader does not see: also those that some scripts need, and blanks
    that are no space. For what a person decides about.
    """
    return "".join(map(_shown_character, text))


def _shown_character(each: str) -> str:
    hidden = each in HIDDEN_CHARACTERS or unicodedata.category(each) in HIDDEN_CATEGORIES
    return each.encode("unicode_escape").decode("ascii") if hidden and each != " " else each


def number_ranges(numbers: Iterable[int]) -> str:
    """Numbers with ranges: 2, 4, 7–9."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}–{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)


def pluralize(number: int, noun: str, plural: str = "") -> str:
    """A number and its noun: 1 channel, 2 channels."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


class Cell(NamedTuple):
    """A text and its style on a terminal."""

    text: str
    style: str = ""


CellLike = str | Cell
TableRow = Sequence[CellLike]


class Column(NamedTuple):
    """One column of a layout. The last one takes the remaining width."""

    title: str
    width: int = 0
    right: bool = False


TableLayout = Sequence[Column]


def fit_columns(layout: TableLayout, rows: Iterable[TableRow], *, measure: Callable[[str], int] = len) -> list[Column]:
    """The layout with each column as wide as its widest text and its title."""
    widths = [max(column.width, measure(column.title)) for column in layout]
    for row in rows:
        texts = [escape_unprintable(cell_of(word).text) for word in row]
        widths = [max(width, measure(text)) for width, text in zip(widths, texts, strict=True)]
    return [column._replace(width=width) for column, width in zip(layout, widths, strict=True)]


def title_cells(layout: TableLayout) -> list[Cell]:
    """The titles as a row."""
    return [Cell(column.title, "dim") for column in layout]


def cell_of(word: CellLike) -> Cell:
    """The text with its style."""
    return word if isinstance(word, Cell) else Cell(word)


def participant_colour(name: str, names: list[str]) -> str:
    """The colour of a participant, by its place among the names."""
    if name not in names:
        return "dim"
    return PARTICIPANT_COLOURS[names.index(name) % len(PARTICIPANT_COLOURS)]
