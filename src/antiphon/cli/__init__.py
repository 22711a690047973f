"""The command line, `antiphon`.

Rule 1: this file holds the names of the commands. A command's module is imported when the command is used.
Rule 2: exit codes are 0 success, 1 failure, 2 usage error. An error of this package is one sentence, never a traceback.
Rule 3: output to a terminal may be coloured; piped output is plain text in stable columns, or JSON.
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

from antiphon.cli.table_layout import escape_unprintable
from antiphon.core.errors import AntiphonError, BadName, BadUrl

COMMAND_MODULES = {
    "demo": "antiphon.cli.demo:demo_command",
    "run": "antiphon.cli.program_commands:run_command",
    "serve": "antiphon.cli.program_commands:serve_command",
    "channels": "antiphon.cli.channels_command:channels_command",
    "log": "antiphon.cli.log_command:log_command",
    "explain": "antiphon.cli.explain_command:explain_command",
    "replay": "antiphon.cli.graph_commands:replay_command",
    "approvals": "antiphon.cli.approvals_command:approvals_command",
    "check": "antiphon.cli.graph_commands:check_command",
    "draw": "antiphon.cli.graph_commands:draw_command",
    "inspect": "antiphon.cli.inspect_command:inspect_command",
    "verify": "antiphon.cli.verify_command:verify_command",
    "retention": "antiphon.cli.erasure_commands:retention_command",
    "keys": "antiphon.cli.keys_command:keys_command",
    "doctor": "antiphon.cli.doctor_command:doctor_command",
}
"""The commands as `module:function`, in the order of the help."""

UNWRITABLE_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
"""Errors of an output that cannot be written."""


class LazyCommands(click.Group):
    """Imports commands on use, and turns their errors into sentences."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMAND_MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMAND_MODULES:
            return None
        module, _, name = COMMAND_MODULES[cmd_name].partition(":")
        found = getattr(import_module(module), name)
        assert isinstance(found, click.Command), f"{COMMAND_MODULES[cmd_name]} has no command"
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        near = get_close_matches(args[0], COMMAND_MODULES, n=1)
        if near and args[0] not in COMMAND_MODULES:
            ctx.fail(f"No such command {args[0]!r}. Did you mean {near[0]!r}?")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except (BadUrl, BadName) as error:
            raise click.UsageError(escape_unprintable(str(error))) from error
        except AntiphonError as error:
            raise click.ClickException(escape_unprintable(str(error))) from error


@click.group(
    cls=LazyCommands,
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
    URL such as sqlite:///team.db. They work while a hub is using it. They leave no files beside a store that was closed
    gracefully; one that still reads when the hub ends may leave team.db-wal and team.db-shm to the next.

    Every command takes --json. Exit codes: 0 success, 1 failure, 2 usage error.
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
        _print_error(f"Error: {escape_unprintable(_describe_os_error(error))}")
        sys.exit(1)
    finally:
        _flush_streams()


def _describe_os_error(error: OSError) -> str:
    if error.filename is not None or error.errno not in UNWRITABLE_ERRNOS:
        return str(error)
    _redirect_to_null(sys.stdout)
    return f"standard output cannot be written ({error.strerror})"


def _print_error(text: str) -> None:
    """Write to standard error, if it can still be written."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        _redirect_to_null(sys.stderr)


def _flush_streams() -> None:
    """Flush both streams; exit code 1 if that fails, as on a closed terminal."""
    gone = False
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            _redirect_to_null(stream)
            gone = True
    if gone:
        sys.exit(1)


def _redirect_to_null(stream: TextIO) -> None:
    """Keep Python from flushing the stream again at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
