"""The output of commands: lines and rows, for a terminal or for a pipe.

Rule 1: only this file looks for a terminal. `terminal_output` serves one, and is imported only then.
Rule 2: piped, a row is one line, columns have the widths of the layout, and nothing is cut off.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TextIO, TypeAlias, TypeVar

import click
import msgspec

from antiphon.cli.table_layout import (
    COLUMN_GAP,
    CellLike,
    Column,
    TableLayout,
    TableRow,
    cell_of,
    escape_unprintable,
    fit_columns,
    title_cells,
)

if TYPE_CHECKING:
    from antiphon.cli.terminal_output import TerminalOutput

T = TypeVar("T")


class PlainOutput:
    """Plain text, one row a line."""

    terminal = False

    def line(self, *words: CellLike) -> None:
        """A line of text, joined from parts."""
        click.echo("".join(escape_unprintable(cell_of(word).text) for word in words).rstrip())

    def command(self, *words: CellLike) -> None:
        """A line to copy: it is never wrapped."""
        self.line(*words)

    def heading(self, title: str) -> None:
        self.line()
        self.line(title)

    def row(self, layout: TableLayout, cells: TableRow) -> None:
        """One row of a table that is written as it grows, with fixed widths."""
        padded = [
            text.rjust(column.width) if column.right else text.ljust(column.width)
            for text, column in zip((escape_unprintable(cell_of(word).text) for word in cells), layout, strict=True)
        ]
        click.echo(COLUMN_GAP.join(padded).rstrip())

    def table(self, layout: TableLayout, rows: Sequence[TableRow]) -> None:
        """A whole table with its titles, with columns as wide as their texts."""
        layout = fit_columns(layout, rows)
        for cells in (title_cells(layout), *rows):
            self.row(layout, cells)


CommandOutput: TypeAlias = "PlainOutput | TerminalOutput"


def select_output() -> CommandOutput:
    """The output for a terminal, if standard output is one, or else for a pipe."""
    if not sys.stdout.isatty():
        return PlainOutput()
    from antiphon.cli.terminal_output import TerminalOutput

    return TerminalOutput()


def write_json(value: object, *, file: TextIO | None = None) -> None:
    """One JSON document on a line of its own, in ASCII, so that the encoding of the output does not matter."""
    click.echo(json.dumps(msgspec.to_builtins(value), separators=(",", ":")), file=file)


def write_listing(
    titles: Sequence[str],
    found: Sequence[T],
    cells: Callable[[T], TableRow],
    *,
    as_json: bool,
    empty: str,
    record: Callable[[T], object] | None = None,
) -> None:
    """A table with a row for each item, or each item, or its record, as JSON; on standard error that there is none."""
    if not found:
        click.echo(empty, err=True)
    elif as_json:
        for each in found:
            write_json(record(each) if record else each)
    else:
        select_output().table([Column(title) for title in titles], [cells(each) for each in found])
