"""One evening at a small newspaper: `python examples/demo [--keep PATH] [--json]`.

The longer story behind `antiphon demo`: several channels in one file, a hub that is killed while it writes, a turn that
another process resumes, a speaker who is refused, an inbox, and one conversation held with `antiphon run` and
`antiphon serve`. `story` is what is said, `newsroom` the process that is killed, `play` the one that kills it, `beats`
what passes between them, `narration` how it looks.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path

import beats
from callers import Callers
from narration import Narrator
from play import TENANT, DemoFailed, Play, Tell

from antiphon.cli.console_output import CommandOutput, select_output, write_json
from antiphon.cli.log_command import LogView, show_log
from antiphon.cli.store_options import open_store_to_read
from antiphon.cli.table_layout import Cell
from antiphon.store.verification import verify_store

PACE = 0.8
"""Seconds between two lines at a terminal."""


def main() -> None:
    parser = argparse.ArgumentParser(description="One evening at a small newspaper.")
    parser.add_argument("--keep", type=Path, metavar="PATH", help="a new SQLite file, which stays")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="antiphon-gazette-") as folder:
        url = f"sqlite:///{(options.keep or Path(folder) / 'gazette.db').absolute()}"
        try:
            asyncio.run(as_json(url) if options.json else as_story(url, select_output()))
        except DemoFailed as error:
            sys.exit(f"Error: {error}")


async def as_json(url: str) -> None:
    begun = time.monotonic()
    play = Play(url, write_json, pace=0)
    await play.run()
    await Callers(url, write_json, pace=0).run()
    await verify(url, write_json)
    write_json(beats.Finished(url, play.desk, round(time.monotonic() - begun, 3)))


async def as_story(url: str, out: CommandOutput) -> None:
    narrator = Narrator(out)
    narrator.introduce(url)
    pace = 0.0 if not sys.stdout.isatty() or os.environ.get("CI") else PACE
    play = Play(url, narrator.tell, pace=pace)
    await play.run()
    await Callers(url, narrator.tell, pace=pace).run()
    out.heading("8  What the log says")
    await show_log(url, TENANT, play.desk, view=LogView(out))
    out.line(Cell("       The numbers between are bookkeeping: whose turn it is, and why.", "dim"))
    await verify(url, narrator.tell)


async def verify(url: str, tell: Tell) -> None:
    async with open_store_to_read(url, TENANT) as store:
        report = await verify_store(store)
    tell(beats.Verified(report.channels, report.envelopes, len(report.problems)))
    if report.problems:
        raise DemoFailed("the log does not fit its hash chain: this must not happen; please report it")


main()
