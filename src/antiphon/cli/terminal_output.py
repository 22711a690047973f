"""Output to a terminal: colours, and rows that fit its width.

Rule 1: no word is broken that fits on a line of its own.
Rule 2: columns that do not fit continue on the next line, indented. No column is left out.
Rule 3: only this file imports rich, because that takes time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from antiphon.cli.table_layout import (
    COLUMN_GAP,
    Cell,
    CellLike,
    Column,
    TableLayout,
    TableRow,
    cell_of,
    escape_unprintable,
    fit_columns,
    title_cells,
)

WORD_PATTERN = re.compile(r"\S+")
MIN_LAST_COLUMN_WIDTH = 20
"""The width that the last column needs to stay on the line."""
MAX_FOLDED_WIDTH = 24
"""In a table that does not fit, texts of all columns but the last are wrapped at this width."""
CONTINUATION_INDENT, MAX_CONTINUATION_INDENT = 2, 8
"""The indent of a continued row: that of its second column, up to a limit."""


class TerminalOutput:
    """Writes lines and rows to standard output."""

    terminal = True

    def __init__(self) -> None:
        self._console = Console(highlight=False, markup=False, emoji=False, soft_wrap=False)

    def line(self, *words: CellLike) -> None:
        text = Text.assemble(*map(_styled_text, words))
        indent = len(text.plain) - len(text.plain.lstrip())
        for number, part in enumerate(text.divide(_line_breaks(text.plain, self._console.width - indent))):
            part.rstrip()
            self._console.print(Text(" " * indent if number else "") + part, soft_wrap=True)

    def command(self, *words: CellLike) -> None:
        self._console.print(Text.assemble(*map(_styled_text, words)), soft_wrap=True)

    def heading(self, title: str) -> None:
        self.line()
        self.line(Cell(title, "bold"))

    def row(self, layout: TableLayout, cells: TableRow) -> None:
        """As in a pipe, but each column has the width that its longest word needs."""
        longest = [max(column.width, _longest_word_width([word])) for column, word in zip(layout, cells, strict=True)]
        self._print([*_with_widths(layout, longest)[:-1], layout[-1]], cells)

    def table(self, layout: TableLayout, rows: Sequence[TableRow]) -> None:
        everything = [title_cells(layout), *rows]
        layout = fit_columns(layout, rows, measure=cell_len)
        if len(table_lines(layout, self._console.width)) > 1:
            least = [max(MAX_FOLDED_WIDTH, _longest_word_width(column)) for column in zip(*everything, strict=True)]
            layout = _with_widths(layout, map(min, least, (column.width for column in layout)))
        for cells in everything:
            self._print(layout, cells)

    def _print(self, layout: TableLayout, cells: TableRow) -> None:
        texts = [_styled_text(word) for word in cells]
        for number, slots in enumerate(table_lines(layout, self._console.width)):
            if number and all(texts[place].plain in ("", "-") for place, _ in slots):
                continue  # an empty line
            grid = Table.grid(padding=(0, len(COLUMN_GAP), 0, 0))
            for place, width in slots[:-1]:
                grid.add_column(width=width, justify="right" if layout[place].right else "left", overflow="fold")
            grid.add_column(max_width=slots[-1][1], overflow="fold")
            grid.add_row(*(texts[place] for place, _ in slots))
            self._console.print(Padding.indent(grid, _continuation_indent(layout) if number else 0))


def table_lines(layout: TableLayout, room: int) -> list[list[tuple[int, int]]]:
    """The columns, each as its place and its width, on as many lines as they need."""
    lines: list[list[tuple[int, int]]] = [[]]
    start = 0
    for place, column in enumerate(layout):
        is_last = place == len(layout) - 1
        least = min(column.width or MIN_LAST_COLUMN_WIDTH, MIN_LAST_COLUMN_WIDTH) if is_last else column.width
        if lines[-1] and start + least > room:
            lines.append([])
            start = _continuation_indent(layout)
        width = room - start if is_last else min(column.width, room - start)
        lines[-1].append((place, max(width, 1)))
        start += width + len(COLUMN_GAP)
    return lines


def _line_breaks(text: str, width: int) -> list[int]:
    """The positions of line breaks: before each word that does not fit, never inside one."""
    breaks, start = [], 0
    for word in WORD_PATTERN.finditer(text):
        if text[start : word.start()].strip() and cell_len(text[start : word.end()].lstrip()) > width:
            start = word.start()
            breaks.append(start)
    return breaks


def _continuation_indent(layout: TableLayout) -> int:
    below = layout[0].width + len(COLUMN_GAP)
    return below if below <= MAX_CONTINUATION_INDENT else CONTINUATION_INDENT


def _with_widths(layout: TableLayout, widths: Iterable[int]) -> list[Column]:
    return [column._replace(width=width) for column, width in zip(layout, widths, strict=True)]


def _longest_word_width(words: TableRow) -> int:
    """The width of the longest word in some texts."""
    return max((cell_len(part) for word in words for part in _styled_text(word).plain.split()), default=0)


def _styled_text(word: CellLike) -> Text:
    cell = cell_of(word)
    return Text(escape_unprintable(cell.text, keep="\n"), style=cell.style)
