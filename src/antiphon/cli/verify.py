"""`antiphon verify`: whether every record of a store is what was written."""

from __future__ import annotations

import asyncio

import click
import msgspec

from antiphon.cli.options import (
    file_outside,
    known_name,
    reading,
    shown_url,
    store_argument,
    store_option,
)
from antiphon.cli.output import Cell, Column, Output, output, write_json
from antiphon.cli.plain import counted
from antiphon.core.errors import AntiphonError, UsageError
from antiphon.store.sqlite_check import check_file
from antiphon.store.verify import verify_store

LAYOUT = [Column("CHANNEL"), Column("BAD FROM", right=True)]


class Bad(msgspec.Struct, frozen=True):
    """The first sequence of a channel that cannot be trusted; what is wrong with the whole file is in no channel."""

    why: str
    tenant: str = ""
    channel_id: str = ""
    sequence: int = 0


class Verdict(msgspec.Struct, frozen=True):
    """What was read, and what is wrong with it."""

    ok: bool
    tenants: list[str]
    channels: int
    envelopes: int
    problems: list[Bad]


@click.command()
@store_argument
@store_option
@click.option("--tenant", metavar="NAME", callback=known_name, help="Check this tenant only, not every one there is.")
@click.option(
    "--json", "as_json", is_flag=True, help='One JSON document: {"ok": …, "tenants": […], …, "problems": […]}.'
)
def command(*, store: str, tenant: str | None, as_json: bool) -> None:
    """Check every log of STORE, and the file they are in.

    Each record of each tenant is read and decoded, sequences must have no gap, and each record must fit the hash chain.
    Of each damaged channel the first bad sequence is named. SQLite then checks its own file. Whatever is wrong makes
    the exit code 1.

    \b
    antiphon verify team.db
    """
    verdict = asyncio.run(verified(store, tenant))
    if as_json:
        write_json(verdict)
    else:
        _show(output(), shown_url(store), verdict)
    if not verdict.ok:
        raise SystemExit(1)


async def verified(url: str, tenant: str | None = None) -> Verdict:
    """Check a store: all of it, or what is one tenant's."""
    file = await asyncio.to_thread(check_file, file_outside(url))
    if tenant is not None and tenant not in file.tenants:
        known = f"there are: {', '.join(file.tenants)}" if file.tenants else "there is none yet"
        raise UsageError(f"{shown_url(url)} has no tenant {tenant!r}; {known}")
    channels, envelopes = 0, 0
    problems = [Bad(f"SQLite says: {line}") for line in file.problems]
    tenants = file.tenants if tenant is None else [tenant]
    for name in tenants:
        try:
            async with reading(url, name) as store:
                report = await verify_store(store)
        except AntiphonError as error:
            problems.append(Bad(str(error), name))
            continue
        channels, envelopes = channels + report.channels, envelopes + report.envelopes
        problems += [Bad(each.why, name, each.channel_id, each.sequence) for each in report.problems]
    return Verdict(not problems, tenants, channels, envelopes, problems)


def _show(out: Output, name: str, verdict: Verdict) -> None:
    several = len(verdict.tenants) > 1
    whose = f"{'tenants' if several else 'tenant'} {', '.join(verdict.tenants)}" if verdict.tenants else "no tenant yet"
    size = f"{whose}, {counted(verdict.channels, 'channel')}, {counted(verdict.envelopes, 'good envelope')}"
    if verdict.ok:
        out.line(Cell("ok", "bold green"), f"  {name}: {size}, no gaps, hash chain intact, file sound")
        return
    out.line(Cell(counted(len(verdict.problems), "problem"), "bold red"), f"  {name}: {size}")
    layout = [*LAYOUT, *([Column("TENANT")] if several else []), Column("BECAUSE")]
    out.table(layout, [_cells(each, several=several) for each in verdict.problems])


def _cells(bad: Bad, *, several: bool) -> list[Cell]:
    place = [Cell(bad.channel_id or "-", "bold"), Cell(str(bad.sequence or "-"))]
    return [*place, Cell(bad.tenant or "-"), Cell(bad.why)] if several else [*place, Cell(bad.why)]
