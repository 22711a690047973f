"""Where a command writes: lines and rows, for a person at a terminal or for a program behind a pipe.

Rule 1: nobody else asks whether there is a terminal, and nobody else imports rich.
Rule 2: piped, a row is one line, columns are as wide as the layout says, and nothing is cut off.
Rule 3: every text passes `printable`, whoever wrote it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import click
import msgspec

from antiphon.cli.plain import printable

if TYPE_CHECKING:
    from rich.text import Text

GAP = "  "
WIDEST = 24
"""No settled column of a terminal but the last is wider than this; longer texts are folded."""


class Cell(NamedTuple):
    """A piece of text, and how a terminal shows it."""

    text: str
    style: str = ""


Words = str | Cell


class Column(NamedTuple):
    """One column of a layout. The last one takes what room there is."""

    title: str
    width: int = 0
    right: bool = False


Layout = Sequence[Column]


class Output(Protocol):
    """Takes lines and rows."""

    terminal: bool

    def line(self, *words: Words) -> None:
        """A line of text, made of parts; without any, an empty line."""
        ...

    def heading(self, title: str) -> None:
        """The title of what follows."""
        ...

    def row(self, layout: Layout, cells: Sequence[Words]) -> None:
        """One row of a table whose widths are settled, because nobody knows yet what else will come."""
        ...

    def table(self, layout: Layout, rows: Sequence[Sequence[Words]]) -> None:
        """A whole table with its titles, as wide as its texts need. Its first column is never folded."""
        ...


class PlainOutput:
    """Plain text, one row a line."""

    terminal = False

    def line(self, *words: Words) -> None:
        click.echo("".join(printable(_cell(word).text) for word in words).rstrip())

    def heading(self, title: str) -> None:
        self.line()
        self.line(title)

    def row(self, layout: Layout, cells: Sequence[Words]) -> None:
        texts = [printable(_cell(word).text) for word in cells]
        padded = [_padded(text, column) for text, column in zip(texts, layout, strict=True)]
        click.echo(GAP.join(padded).rstrip())

    def table(self, layout: Layout, rows: Sequence[Sequence[Words]]) -> None:
        layout = fitted(layout, rows)
        for cells in (_titles(layout), *rows):
            self.row(layout, cells)


class ScreenOutput:
    """A terminal: colours, and texts folded below their own column."""

    terminal = True

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(highlight=False, markup=False, emoji=False, soft_wrap=False)

    def line(self, *words: Words) -> None:
        from rich.text import Text

        self._console.print(Text.assemble(*map(_styled, words)), soft_wrap=True)

    def heading(self, title: str) -> None:
        self.line()
        self.line(Cell(title, "bold"))

    def row(self, layout: Layout, cells: Sequence[Words]) -> None:
        from rich.table import Table

        grid = Table.grid(padding=(0, len(GAP), 0, 0), expand=False)
        for column in layout[:-1]:
            width = min(column.width, WIDEST)
            grid.add_column(width=width, justify="right" if column.right else "left", overflow="fold")
        grid.add_column(overflow="fold")
        grid.add_row(*map(_styled, cells))
        self._console.print(grid)

    def table(self, layout: Layout, rows: Sequence[Sequence[Words]]) -> None:
        from rich.table import Table

        grid = Table.grid(padding=(0, len(GAP), 0, 0))
        for place, column in enumerate(layout):
            grid.add_column(justify="right" if column.right else "left", no_wrap=place == 0, overflow="fold")
        for cells in (_titles(layout), *rows):
            grid.add_row(*map(_styled, cells))
        self._console.print(grid)


def output() -> Output:
    """The one that fits where standard output goes."""
    return ScreenOutput() if sys.stdout.isatty() else PlainOutput()


def fitted(layout: Layout, rows: Iterable[Sequence[Words]]) -> list[Column]:
    """The layout with each column as wide as its widest text."""
    widths = [len(column.title) for column in layout]
    for row in rows:
        widths = [max(width, len(printable(_cell(word).text))) for width, word in zip(widths, row, strict=True)]
    return [column._replace(width=width) for column, width in zip(layout, widths, strict=True)]


def titles(out: Output, layout: Layout) -> None:
    """The titles of a layout's columns."""
    out.row(layout, _titles(layout))


def write_json(value: object) -> None:
    """One JSON document on a line of its own."""
    click.echo(msgspec.json.encode(value).decode())


def _titles(layout: Layout) -> list[Cell]:
    return [Cell(column.title, "dim") for column in layout]


def _cell(word: Words) -> Cell:
    return word if isinstance(word, Cell) else Cell(word)


def _styled(word: Words) -> Text:
    from rich.text import Text

    cell = _cell(word)
    return Text(printable(cell.text, keep="\n"), style=cell.style)


def _padded(text: str, column: Column) -> str:
    return text.rjust(column.width) if column.right else text.ljust(column.width)
