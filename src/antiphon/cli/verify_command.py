"""`antiphon verify`: checks every record of a store against its hash chain."""

from __future__ import annotations

import asyncio

import click
import msgspec

from antiphon.cli.console_output import CommandOutput, select_output, write_json
from antiphon.cli.store_options import (
    check_name_option,
    json_option,
    read_store,
    store_argument,
    store_file_path,
    store_option,
    url_without_password,
)
from antiphon.cli.table_layout import Cell, Column, TableRow, pluralize
from antiphon.core.errors import AntiphonError, UsageError
from antiphon.store.verification import check_sqlite_file, verify_store

DAMAGE_COLUMNS = [Column("CHANNEL"), Column("BAD FROM", right=True)]


class StoreDamage(msgspec.Struct, frozen=True):
    """The first bad sequence of a channel; without a channel, damage of the file."""

    why: str
    tenant: str = ""
    channel_id: str = ""
    sequence: int = 0


class VerifyReport(msgspec.Struct, frozen=True):
    """What was read, and the damage that was found."""

    ok: bool
    tenants: list[str]
    channels: int
    envelopes: int
    problems: list[StoreDamage]


@click.command()
@store_argument
@store_option
@click.option(
    "--tenant", metavar="NAME", callback=check_name_option, help="Check this tenant only, not every one there is."
)
@json_option('One JSON document: {"ok": …, "tenants": […], …, "problems": […]}.')
def verify_command(*, store: str, tenant: str | None, as_json: bool) -> None:
    """Check every log of STORE, and the file they are in.

    Each record of each tenant is read and decoded, sequences must have no gap, and each record must fit the hash chain.
    Of each damaged channel the first bad sequence is named. SQLite then checks its own file. Any damage makes the
    exit code 1.

    \b
    antiphon verify team.db
    """
    verdict = asyncio.run(verify_url(store, tenant))
    if as_json:
        write_json(verdict)
    else:
        _print_verification(select_output(), url_without_password(store), verdict)
    if not verdict.ok:
        raise SystemExit(1)


async def verify_url(url: str, tenant: str | None = None) -> VerifyReport:
    """Check a store: all of it, or one tenant."""
    file = await asyncio.to_thread(check_sqlite_file, store_file_path(url))
    if tenant is not None and tenant not in file.tenants:
        known = f"there are: {', '.join(file.tenants)}" if file.tenants else "there is none yet"
        raise UsageError(f"{url_without_password(url)} has no tenant {tenant!r}; {known}")
    channels, envelopes = 0, 0
    problems = [StoreDamage(f"SQLite says: {line}") for line in file.problems]
    tenants = file.tenants if tenant is None else [tenant]
    for name in tenants:
        try:
            report = await read_store(url, name, verify_store)
        except AntiphonError as error:
            problems.append(StoreDamage(str(error), name))
            continue
        channels, envelopes = channels + report.channels, envelopes + report.envelopes
        problems += [StoreDamage(each.why, name, each.channel_id, each.sequence) for each in report.problems]
    return VerifyReport(not problems, tenants, channels, envelopes, problems)


def _print_verification(out: CommandOutput, name: str, verdict: VerifyReport) -> None:
    several = len(verdict.tenants) > 1
    whose = f"{'tenants' if several else 'tenant'} {', '.join(verdict.tenants)}" if verdict.tenants else "no tenant yet"
    size = f"{whose}, {pluralize(verdict.channels, 'channel')}, {pluralize(verdict.envelopes, 'good envelope')}"
    if verdict.ok:
        out.line(Cell("ok", "bold green"), f"  {name}: {size}, no gaps, hash chain intact, file sound")
        return
    out.line(Cell(pluralize(len(verdict.problems), "problem"), "bold red"), f"  {name}: {size}")
    layout = [*DAMAGE_COLUMNS, *([Column("TENANT")] if several else []), Column("BECAUSE")]
    out.table(layout, [_damage_cells(each, several=several) for each in verdict.problems])


def _damage_cells(bad: StoreDamage, *, several: bool) -> TableRow:
    tenant = [bad.tenant or "-"] if several else []
    return Cell(bad.channel_id or "-", "bold"), str(bad.sequence or "-"), *tenant, bad.why
