"""Writes docs/cli.md from what the command line says about itself: `python docs/generate.py`."""

from __future__ import annotations

from pathlib import Path

import click

from antiphon.cli import commands

PAGE = Path(__file__).parent / "cli.md"
WIDTH = 98
OPENING = """\
# Command line

Each command explains itself with `--help`; this page is what they say. It is written by `python docs/generate.py`.
"""


def page() -> str:
    """The whole page."""
    root = click.Context(commands, info_name="antiphon", **settings())
    parts = [OPENING, section(commands, root)]
    for name in commands.list_commands(root):
        command = commands.get_command(root, name)
        assert command is not None, f"{name} is listed and not there"
        parts.append(section(command, click.Context(command, info_name=name, parent=root, **settings())))
    return "\n".join(parts)


def section(command: click.Command, context: click.Context) -> str:
    """One command: its heading, and its help as a terminal shows it."""
    lines = (line.rstrip() for line in command.get_help(context).splitlines())
    return "\n".join([f"## {context.command_path}", "", "```", *lines, "```", ""])


def settings() -> dict[str, int]:
    return {"terminal_width": WIDTH, "max_content_width": WIDTH}


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
