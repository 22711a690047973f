"""`antiphon demo`."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import sys
import tempfile
import time
from pathlib import Path

import click

from antiphon.cli.demo import beats
from antiphon.cli.demo.callers import Callers
from antiphon.cli.demo.narration import Narrator
from antiphon.cli.demo.play import TENANT, DemoFailed, Play, Tell
from antiphon.cli.log import View, show
from antiphon.cli.options import SQLITE, VARIABLE, reading
from antiphon.cli.output import Cell, Output, output, write_json
from antiphon.store.verify import verify_store

PACE = 0.8
"""How many seconds pass before the next line, for somebody who reads along."""
FOLDER, FILE = "antiphon-demo-", "gazette.db"


@click.command()
@click.option(
    "--keep",
    metavar="PATH",
    type=click.Path(path_type=Path),
    help="Where to make the SQLite file; without it, in a new temporary directory. It stays there.",
)
@click.option("--fast", is_flag=True, help="Do not wait between the lines; so it is also when piped, and under CI.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, one for each thing that happens.")
def command(*, keep: Path | None, fast: bool, as_json: bool) -> None:
    """Watch a team go on after its hub is killed, in mid-turn.

    A newsroom talks over a hub that runs in a process of its own; its clerk, an agent, has just made a payment. That
    process is killed with SIGKILL while it writes. Another one opens the same file: everything acknowledged is there,
    once, and the clerk's turn is finished from its journal, with nothing paid twice. Then somebody talks to the paper's
    counter, a team of two, with `antiphon run` and, over HTTP on this machine, with `antiphon serve`. It takes about
    half a minute; no key, no network.
    """
    path = _place(keep)
    url = SQLITE + str(path)
    pace = 0.0 if fast or as_json or not sys.stdout.isatty() or os.environ.get("CI") else PACE
    if as_json:
        asyncio.run(_as_json(url))
    else:
        asyncio.run(_as_story(url, path, output(), pace=pace))


async def _as_json(url: str) -> None:
    begun = time.monotonic()
    play = Play(url, write_json, pace=0)
    await play.run()
    await Callers(url, write_json, pace=0).run()
    await _verify(url, write_json)
    write_json(beats.Ended(url, play.desk, round(time.monotonic() - begun, 3)))


async def _as_story(url: str, path: Path, out: Output, *, pace: float) -> None:
    narrator = Narrator(out)
    narrator.introduce(str(path))
    play = Play(url, narrator.tell, pace=pace)
    await play.run()
    await Callers(url, narrator.tell, pace=pace).run()
    out.heading("8  What the log says")
    await show(url, TENANT, play.desk, view=View(out))
    out.line(Cell("       The numbers between are bookkeeping: whose turn it is, and why.", "dim"))
    await _verify(url, narrator.tell)
    _part(out, path)
    _suggest(out, url, play.errand)


async def _verify(url: str, tell: Tell) -> None:
    async with reading(url, TENANT) as store:
        report = await verify_store(store)
    tell(beats.Verified(report.channels, report.envelopes, len(report.problems)))
    if report.problems:
        raise DemoFailed("the log does not fit its hash chain: this must not happen; please report it")


def _part(out: Output, path: Path) -> None:
    """Say what stays, and how to be rid of it."""
    out.heading("10  What is left")
    out.line("   The file stays, for you to look into. This removes it:")
    out.command("     ", Cell(_removal(path), "bold"))
    out.line("   While a hub is open, `antiphon log CHANNEL --follow` shows what is said.")
    out.line("   Programs to begin with are in the folder examples of the source.")


def _removal(path: Path) -> str:
    if path.name == FILE and path.parent.name.startswith(FOLDER):
        return f"rm -r {shlex.quote(str(path.parent))}"
    return f"rm {shlex.quote(str(path))}*"


def _suggest(out: Output, url: str, channel: str) -> None:
    program = _program()
    out.heading("Try next")
    for tried in (
        f"export {VARIABLE}={shlex.quote(url)}",
        f"{program} channels --system",
        f"{program} log {channel} --audit",
        f"{program} verify",
        f"{program} doctor",
    ):
        out.command("  ", Cell(tried, "bold"))


def _program() -> str:
    """How this program is called from here."""
    called = Path(sys.argv[0])
    if shutil.which("antiphon") or called.name != "antiphon":
        return "antiphon"
    return shlex.quote(os.path.relpath(called))


def _place(keep: Path | None) -> Path:
    """Where the file is to be. One that is there already is not ours to write to."""
    if keep is None:
        return Path(tempfile.mkdtemp(prefix=FOLDER)) / FILE
    path = keep.absolute()
    if os.path.lexists(path):
        raise click.BadParameter(f"{str(keep)!r} exists already; name a new file.", param_hint="--keep")
    if not os.path.isdir(path.parent):
        raise click.BadParameter(f"there is no directory {str(path.parent)!r}.", param_hint="--keep")
    return path
