"""`antiphon doctor`: whether this machine, and a store on it, will do."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import click

from antiphon.cli import checkup
from antiphon.cli.checkup import Finding
from antiphon.cli.options import SQLITE, VARIABLE, as_url, tenant_option
from antiphon.cli.output import Cell, Column, Output, fitted, output, write_json

LAYOUT = [Column("CHECK"), Column("", len("problem")), Column("FOUND")]
STYLES = {"ok": "green", "warning": "yellow", "problem": "bold red"}
UNNAMED = Finding("store", "ok", f"none was named: --store URL, or {VARIABLE}, has one looked at")


@click.command()
@click.option(
    "--store", metavar="URL", envvar=VARIABLE, show_envvar=True, help="A store to look at too, by its URL or path."
)
@tenant_option
@click.option("--json", "as_json", is_flag=True, help='One JSON document: {"ok": …, "findings": […]}.')
def command(*, store: str | None, tenant: str, as_json: bool) -> None:
    """See whether this machine, and a store on it, will do.

    Looks at Python, SQLite and the parts; whether commits are really synced and how fast; the space left on the disk;
    and, if a store is named, whether it opens and which hub owns it. Nothing is changed. Each line is ok, a warning
    or a problem, with what to do about it; a problem makes the exit code 1.
    """
    url = as_url(store) if store else None
    found = [*checkup.machine(_directory(url)), *asyncio.run(_of_store(url, tenant))]
    ok = all(finding.level != "problem" for finding in found)
    if as_json:
        write_json({"ok": ok, "findings": found})
    else:
        _show(output(), found)
    if not ok:
        raise SystemExit(1)


async def _of_store(url: str | None, tenant: str) -> list[Finding]:
    if url is None:
        return [UNNAMED]
    found = [await checkup.store(url, tenant)]
    file = _file(url)
    return [*found, checkup.owner(file)] if file is not None else found


def _directory(url: str | None) -> Path:
    file = _file(url) if url else None
    return Path(tempfile.gettempdir()) if file is None else file.parent


def _file(url: str) -> Path | None:
    return Path(url.removeprefix(SQLITE)).absolute() if url.startswith(SQLITE) else None


def _show(out: Output, found: list[Finding]) -> None:
    rows = [[Cell(each.check, "bold"), Cell(each.level, STYLES[each.level]), Cell(each.found)] for each in found]
    layout = fitted(LAYOUT, rows)
    for row, finding in zip(rows, found, strict=True):
        out.row(layout, row)
        if finding.advice:
            out.row(layout, ["", "", Cell(f"→ {finding.advice}", "italic")])
