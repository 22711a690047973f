"""The command line, `antiphon`.

Rule 1: this file knows what the commands are called. A command's module is imported when the command is used.
Rule 2: exit codes are 0 fine, 1 what was asked failed, 2 used wrongly. An error of ours is one sentence, never a trace.
Rule 3: what goes to a terminal may be coloured; what is piped is plain text in stable columns, or JSON.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from difflib import get_close_matches
from importlib import import_module
from typing import TextIO

import click

from antiphon.cli.plain import printable
from antiphon.core.errors import AntiphonError, BadName, BadUrl

MODULES = {
    "demo": "antiphon.cli.demo.command",
    "run": "antiphon.cli.run",
    "serve": "antiphon.cli.serve",
    "channels": "antiphon.cli.channels",
    "log": "antiphon.cli.log",
    "replay": "antiphon.cli.replay",
    "approvals": "antiphon.cli.approvals",
    "check": "antiphon.cli.check",
    "draw": "antiphon.cli.draw",
    "verify": "antiphon.cli.verify",
    "retention": "antiphon.cli.retention",
    "keys": "antiphon.cli.keys",
    "doctor": "antiphon.cli.doctor",
}
"""Where each command lives, in the order in which the help lists them. The module calls it `command`."""

UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
"""What the system says of an output that takes nothing."""


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

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        near = get_close_matches(args[0], MODULES, n=1)
        if near and args[0] not in MODULES:
            ctx.fail(f"No such command {args[0]!r}. Did you mean {near[0]!r}?")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except (BadUrl, BadName) as error:
            raise click.UsageError(printable(str(error))) from error
        except AntiphonError as error:
            raise click.ClickException(printable(str(error))) from error


@click.group(
    cls=Commands,
    invoke_without_command=True,
    subcommand_metavar="COMMAND [ARGS]...",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="antiphon", message="%(package)s %(version)s")
@click.pass_context
def commands(ctx: click.Context) -> None:
    """A durable runtime for teams of AI agents.

    Begin with `antiphon demo`: it needs no key and no network.

    Commands that read a store take it as STORE, from --store or from ANTIPHON_STORE: the path of a SQLite file, or a
    URL such as sqlite:///team.db. They work while a hub is using it. Beside a store that was closed in good order they
    leave nothing; one that goes on reading when the hub ends may leave team.db-wal and team.db-shm to the next.

    Every command takes --json. Exit codes: 0 fine, 1 what was asked failed, 2 used wrongly.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main() -> None:
    """Run the command line and exit."""
    if sys.stdout is None:
        sys.exit("Error: there is no standard output to write to")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        commands(prog_name="antiphon")
    except OSError as error:
        _complain(f"Error: {printable(_told(error))}")
        sys.exit(1)
    finally:
        _flush()


def _told(error: OSError) -> str:
    if error.filename is not None or error.errno not in UNWRITABLE:
        return str(error)
    _write_nowhere(sys.stdout)
    return f"standard output cannot be written ({error.strerror})"


def _complain(text: str) -> None:
    """Say what went wrong, if there still is somebody to say it to."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        _write_nowhere(sys.stderr)


def _flush() -> None:
    """Write what is left. If a terminal that has gone away does not take it, what was asked for has failed."""
    gone = [stream for stream in (sys.stdout, sys.stderr) if not _takes(stream)]
    for stream in gone:
        _write_nowhere(stream)
    if gone:
        sys.exit(1)


def _takes(stream: TextIO) -> bool:
    try:
        stream.flush()
    except OSError:
        return False
    return True


def _write_nowhere(stream: TextIO) -> None:
    """What a stream did not take is not tried again while Python exits."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
