"""`antiphon verify`: whether every record of a store is what was written."""

from __future__ import annotations

import asyncio

import click

from antiphon.cli.options import reading, shown_url, store_argument, tenant_option
from antiphon.cli.output import Cell, Column, Output, output, write_json
from antiphon.cli.plain import counted
from antiphon.store.verify import Report, verify_store

LAYOUT = [Column("CHANNEL"), Column("BAD FROM", right=True), Column("BECAUSE")]


@click.command()
@store_argument
@tenant_option
@click.option("--json", "as_json", is_flag=True, help='One JSON document: {"ok": …, "channels": …, "problems": […]}.')
def command(*, store: str, tenant: str, as_json: bool) -> None:
    """Check every log of STORE, a URL or the path of a SQLite file.

    STORE may also come from ANTIPHON_STORE. Each record is read and decoded, sequences must have no gap, and each
    record must fit the hash chain. Of each damaged channel the first bad sequence is named; the exit code is then 1.

    \b
    antiphon verify sqlite:///team.db
    """
    report = asyncio.run(_verified(store, tenant))
    ok = not report.problems
    if as_json:
        write_json({"ok": ok, **{name: getattr(report, name) for name in report.__struct_fields__}})
    else:
        _show(output(), shown_url(store), report)
    if not ok:
        raise SystemExit(1)


async def _verified(url: str, tenant: str) -> Report:
    async with reading(url, tenant) as store:
        return await verify_store(store)


def _show(out: Output, name: str, report: Report) -> None:
    size = f"{counted(report.channels, 'channel')}, {counted(report.envelopes, 'good envelope')}"
    if not report.problems:
        out.line(Cell("ok", "bold green"), f"  {name}: {size}, no gaps, hash chain intact")
        return
    out.line(Cell(counted(len(report.problems), "problem"), "bold red"), f"  {name}: {size}")
    rows = [[Cell(each.channel_id, "bold"), Cell(str(each.sequence)), Cell(each.why)] for each in report.problems]
    out.table(LAYOUT, rows)
