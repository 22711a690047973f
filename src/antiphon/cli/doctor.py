"""`antiphon doctor`: whether this machine, and a store on it, will do."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import click

from antiphon.cli import checkup
from antiphon.cli.checkup import Finding
from antiphon.cli.options import VARIABLE, store_argument, store_if_any, tenant_option
from antiphon.cli.output import Cell, Column, Output, fitted, output, write_json
from antiphon.core.errors import AntiphonError
from antiphon.store.ownership import resolved
from antiphon.store.urls import file_of

LAYOUT = [Column("CHECK"), Column("", len("problem")), Column("FOUND")]
STYLES = {"ok": "green", "warning": "yellow", "problem": "bold red"}
UNNAMED = Finding("store", "ok", f"none was named: STORE, --store or {VARIABLE} has one looked at")


@click.command()
@store_argument
@click.option(
    "--store",
    metavar="STORE",
    envvar=VARIABLE,
    show_envvar=True,
    callback=store_if_any,
    help="A store to look at too, by its path or URL.",
)
@tenant_option
@click.option("--json", "as_json", is_flag=True, help='One JSON document: {"ok": …, "findings": […]}.')
def command(*, store: str | None, tenant: str, as_json: bool) -> None:
    """See whether this machine, and STORE on it, will do.

    Looks at Python, SQLite and the parts; whether commits are really synced and how fast, where the store is; the space
    left on the disk; and, if a store is named, whether it opens, whether a channel of it is quarantined, and which hub
    owns it. Nothing is changed. Each line is ok, a warning or a problem, with what to do about it; a problem makes the
    exit code 1.
    """
    file = _file(store) if store else None
    found = [*checkup.machine(file.parent if file else Path(tempfile.gettempdir()))]
    found += asyncio.run(checkup.store(store, tenant)) if store else [UNNAMED]
    found += [checkup.owner(file)] if file else []
    ok = all(finding.level != "problem" for finding in found)
    if as_json:
        write_json({"ok": ok, "findings": found})
    else:
        _show(output(), found)
    if not ok:
        raise SystemExit(1)


def _file(url: str) -> Path | None:
    """The file itself, whatever links lead to it. If there is no such place, looking at the store says why."""
    try:
        path = file_of(url)
        return resolved(path) if path else None
    except AntiphonError:
        return None


def _show(out: Output, found: list[Finding]) -> None:
    rows = [[Cell(each.check, "bold"), Cell(each.level, STYLES[each.level]), Cell(each.found)] for each in found]
    layout = fitted(LAYOUT, rows)
    for row, finding in zip(rows, found, strict=True):
        out.row(layout, row)
        if finding.advice:
            out.row(layout, ["", "", Cell(f"→ {finding.advice}", "italic")])
