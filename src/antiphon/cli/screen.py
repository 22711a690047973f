"""A terminal: colours, and rows that fit it however narrow it is.

Rule 1: no word is broken that fits on a line of its own.
Rule 2: what does not fit beside the rest goes on the next line, further in. No column is left out.
Rule 3: nobody else imports rich.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from antiphon.cli.output import GAP, Cell, Column, Layout, Words, cell_of, fitted, titles_of
from antiphon.cli.plain import printable

WORD = re.compile(r"\S+")
ENOUGH = 20
"""The last column begins where it has so much room, or all that it needs."""
WIDEST = 24
"""Where a table does not fit, longer texts in all columns but the last are folded between words."""
FURTHER_IN, FURTHEST_IN = 2, 8
"""How far in a row goes on: below its second column, if that is not too far."""


class Slot(NamedTuple):
    """The room of one column on a line."""

    place: int
    width: int
    right: bool


class ScreenOutput:
    """Shows lines and rows on standard output."""

    terminal = True

    def __init__(self) -> None:
        self._console = Console(highlight=False, markup=False, emoji=False, soft_wrap=False)

    def line(self, *words: Words) -> None:
        text = Text.assemble(*map(_styled, words))
        indent = len(text.plain) - len(text.plain.lstrip())
        for number, part in enumerate(text.divide(_breaks(text.plain, self._console.width - indent))):
            part.rstrip()
            self._console.print(Text(" " * indent if number else "") + part, soft_wrap=True)

    def command(self, *words: Words) -> None:
        self._console.print(Text.assemble(*map(_styled, words)), soft_wrap=True)

    def heading(self, title: str) -> None:
        self.line()
        self.line(Cell(title, "bold"))

    def row(self, layout: Layout, cells: Sequence[Words]) -> None:
        self._print(_widened(layout, cells), cells)

    def table(self, layout: Layout, rows: Sequence[Sequence[Words]]) -> None:
        everything = [titles_of(layout), *rows]
        layout = fitted(layout, rows, measure=cell_len)
        if len(lines_of(layout, self._console.width)) > 1:
            layout = _narrowed(layout, everything)
        for cells in everything:
            self._print(layout, cells)

    def _print(self, layout: Layout, cells: Sequence[Words]) -> None:
        texts = [_styled(word) for word in cells]
        indent = _indent(layout)
        for number, slots in enumerate(lines_of(layout, self._console.width)):
            if number and all(texts[slot.place].plain in ("", "-") for slot in slots):
                continue  # there is nothing to say on this line
            self._console.print(Padding.indent(_grid(slots, texts), indent if number else 0))


def lines_of(layout: Layout, room: int) -> list[list[Slot]]:
    """The columns, put on as many lines as they need."""
    lines: list[list[Slot]] = [[]]
    start = 0
    for place, column in enumerate(layout):
        is_last = place == len(layout) - 1
        least = min(column.width or ENOUGH, ENOUGH) if is_last else column.width
        if lines[-1] and start + least > room:
            lines.append([])
            start = _indent(layout)
        width = room - start if is_last else min(column.width, room - start)
        lines[-1].append(Slot(place, max(width, 1), column.right))
        start += width + len(GAP)
    return lines


def _breaks(text: str, width: int) -> list[int]:
    """Where a text goes on on the next line: before each word that does not fit, but never inside one."""
    breaks, start = [], 0
    for word in WORD.finditer(text):
        if text[start : word.start()].strip() and cell_len(text[start : word.end()].lstrip()) > width:
            start = word.start()
            breaks.append(start)
    return breaks


def _indent(layout: Layout) -> int:
    below = layout[0].width + len(GAP)
    return below if below <= FURTHEST_IN else FURTHER_IN


def _grid(slots: Sequence[Slot], texts: Sequence[Text]) -> Table:
    grid = Table.grid(padding=(0, len(GAP), 0, 0))
    for slot in slots[:-1]:
        grid.add_column(width=slot.width, justify="right" if slot.right else "left", overflow="fold")
    grid.add_column(max_width=slots[-1].width, overflow="fold")
    grid.add_row(*(texts[slot.place] for slot in slots))
    return grid


def _widened(layout: Layout, cells: Sequence[Words]) -> list[Column]:
    """The layout with room for each of these words; the last column takes what there is."""
    widths = [max(column.width, _longest([word])) for column, word in zip(layout, cells, strict=True)]
    widened = [column._replace(width=width) for column, width in zip(layout, widths, strict=True)]
    return [*widened[:-1], layout[-1]]


def _narrowed(layout: Layout, rows: Sequence[Sequence[Words]]) -> list[Column]:
    """The layout with long texts folded, but no word of theirs."""
    least = [max(WIDEST, _longest(column)) for column in zip(*rows, strict=True)]
    return [column._replace(width=min(column.width, width)) for column, width in zip(layout, least, strict=True)]


def _longest(words: Iterable[Words]) -> int:
    """The width of the longest word in some texts."""
    return max(
        (cell_len(part) for word in words for part in printable(cell_of(word).text, keep="\n").split()), default=0
    )


def _styled(word: Words) -> Text:
    cell = cell_of(word)
    return Text(printable(cell.text, keep="\n"), style=cell.style)
