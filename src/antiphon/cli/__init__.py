"""The command line, `antiphon`.

Rule 1: this file knows what the commands are called. A command's module is imported when the command is used.
Rule 2: exit codes are 0 fine, 1 what was asked failed, 2 used wrongly. An error of ours is one sentence, never a trace.
Rule 3: what goes to a terminal may be coloured; what is piped is plain text in stable columns, or JSON.
"""

from __future__ import annotations

import io
import sys
from importlib import import_module

import click

from antiphon.cli.plain import printable
from antiphon.core.errors import AntiphonError, BadName, BadUrl

MODULES = {
    "demo": "antiphon.cli.demo.command",
    "channels": "antiphon.cli.channels",
    "log": "antiphon.cli.log",
    "verify": "antiphon.cli.verify",
    "doctor": "antiphon.cli.doctor",
}
"""Where each command lives, in the order in which the help lists them. The module calls it `command`."""


class Commands(click.Group):
    """Commands that are imported on use, and whose errors become sentences."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in MODULES:
            return None
        found = import_module(MODULES[cmd_name]).command
        assert isinstance(found, click.Command), f"{MODULES[cmd_name]} has no command"
        return found

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except (BadUrl, BadName) as error:
            raise click.UsageError(printable(str(error))) from error
        except AntiphonError as error:
            raise click.ClickException(printable(str(error))) from error


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="antiphon", message="%(package)s %(version)s")
def commands() -> None:
    """A durable runtime for teams of AI agents.

    Begin with `antiphon demo`: it needs no key and no network.

    Commands that read a store take its URL from --store or from ANTIPHON_STORE, and work while a hub is using it.
    Every command takes --json. Exit codes: 0 fine, 1 what was asked failed, 2 used wrongly.
    """


def main() -> None:
    """Run the command line and exit."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    commands(prog_name="antiphon")
