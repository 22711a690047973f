"""Where a command writes: lines and rows, for a person at a terminal or for a program behind a pipe.

Rule 1: nobody else asks whether there is a terminal. `screen` is for one, and loaded only then.
Rule 2: piped, a row is one line, columns are as wide as the layout says, and nothing is cut off.
Rule 3: every text passes `printable`, whoever wrote it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

import click
import msgspec

from antiphon.cli.plain import printable

GAP = "  "


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

    def command(self, *words: Words) -> None:
        """A line that may be copied: it is never broken."""
        ...

    def heading(self, title: str) -> None:
        """The title of what follows."""
        ...

    def row(self, layout: Layout, cells: Sequence[Words]) -> None:
        """One row of a table whose widths are settled, because nobody knows yet what else will come."""
        ...

    def table(self, layout: Layout, rows: Sequence[Sequence[Words]]) -> None:
        """A whole table with its titles, as wide as its texts need."""
        ...


class PlainOutput:
    """Plain text, one row a line."""

    terminal = False

    def line(self, *words: Words) -> None:
        click.echo("".join(printable(cell_of(word).text) for word in words).rstrip())

    def command(self, *words: Words) -> None:
        self.line(*words)

    def heading(self, title: str) -> None:
        self.line()
        self.line(title)

    def row(self, layout: Layout, cells: Sequence[Words]) -> None:
        texts = [printable(cell_of(word).text) for word in cells]
        padded = [_padded(text, column) for text, column in zip(texts, layout, strict=True)]
        click.echo(GAP.join(padded).rstrip())

    def table(self, layout: Layout, rows: Sequence[Sequence[Words]]) -> None:
        layout = fitted(layout, rows)
        for cells in (titles_of(layout), *rows):
            self.row(layout, cells)


def output() -> Output:
    """The one that fits where standard output goes."""
    if not sys.stdout.isatty():
        return PlainOutput()
    from antiphon.cli.screen import ScreenOutput

    return ScreenOutput()


def fitted(layout: Layout, rows: Iterable[Sequence[Words]], *, measure: Callable[[str], int] = len) -> list[Column]:
    """The layout with each column as wide as its widest text and its title."""
    widths = [max(column.width, measure(column.title)) for column in layout]
    for row in rows:
        texts = [printable(cell_of(word).text) for word in row]
        widths = [max(width, measure(text)) for width, text in zip(widths, texts, strict=True)]
    return [column._replace(width=width) for column, width in zip(layout, widths, strict=True)]


def titles(out: Output, layout: Layout) -> None:
    """The titles of a layout's columns."""
    out.row(layout, titles_of(layout))


def write_json(value: object) -> None:
    """One JSON document on a line of its own, in ASCII: so it is JSON in whatever encoding it is written."""
    click.echo(json.dumps(msgspec.to_builtins(value), separators=(",", ":")))


def titles_of(layout: Layout) -> list[Cell]:
    """The titles as a row."""
    return [Cell(column.title, "dim") for column in layout]


def cell_of(word: Words) -> Cell:
    """A piece of text with its style."""
    return word if isinstance(word, Cell) else Cell(word)


def _padded(text: str, column: Column) -> str:
    return text.rjust(column.width) if column.right else text.ljust(column.width)
