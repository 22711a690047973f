"""Writes docs/cli.md from what the command line says about itself: `python docs/generate.py`."""

from __future__ import annotations

from pathlib import Path

import click
from click.testing import CliRunner

from antiphon.cli import COMMAND_MODULES, commands

PAGE = Path(__file__).parent / "cli.md"
WIDTH = 98  # what a terminal of a hundred columns shows
OPENING = """\
# Command line

Each command explains itself with `--help`; this page is what they say. It is written by `python docs/generate.py`.
"""


def page() -> str:
    """The whole page."""
    return "\n".join([OPENING, section(), *(section(*words) for words in every_command())])


def every_command() -> list[tuple[str, ...]]:
    """The words of every command, those of a group behind it."""
    found: list[tuple[str, ...]] = []
    for name in COMMAND_MODULES:
        command = commands.get_command(click.Context(commands), name)
        below = command.list_commands(click.Context(command)) if isinstance(command, click.Group) else []
        found += [(name,), *((name, each) for each in below)]
    return found


def section(*words: str) -> str:
    """One command: its heading, and its help as a terminal shows it."""
    said = CliRunner().invoke(commands, [*words, "--help"], prog_name="antiphon", terminal_width=WIDTH, color=False)
    assert said.exit_code == 0, said.output
    lines = (line.rstrip() for line in said.output.splitlines())
    return "\n".join([f"## {' '.join(['antiphon', *words])}", "", "```", *lines, "```", ""])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
