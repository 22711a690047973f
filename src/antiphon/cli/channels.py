"""`antiphon channels`: what there is in a store."""

from __future__ import annotations

import asyncio
from typing import get_args

import click

from antiphon.cli.options import known_name, reading, store_argument, store_option, tenant_option
from antiphon.cli.output import Cell, Column, output, write_json
from antiphon.core.state import Status
from antiphon.store.protocol import ChannelRow, Store
from antiphon.store.rows import SYSTEM

PAGE = 1000
LAYOUT = [Column("CHANNEL"), Column("TYPE"), Column("STATUS"), Column("PARTICIPANTS"), Column("CLOSED BECAUSE")]
STYLES = {"active": "green", "invited": "yellow", "quarantined": "bold red", "expired": "dim", "closed": "dim"}


@click.command()
@store_argument
@store_option
@tenant_option
@click.option("--status", type=click.Choice(get_args(Status)), help="Only channels that are so.")
@click.option("--participant", metavar="NAME", callback=known_name, help="Only channels this participant is in.")
@click.option("--system", is_flag=True, help="The hub's own channels too: the registry, and what was refused.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, one for each channel.")
def command(
    *, store: str, tenant: str, status: str | None, participant: str | None, system: bool, as_json: bool
) -> None:
    """List the channels of a store, oldest first.

    \b
    antiphon channels team.db --status active
    """
    rows = asyncio.run(_listed(store, tenant, status=status, participant=participant))
    shown = [row for row in rows if system or not row.channel_id.startswith(SYSTEM)]
    if not shown:
        wanted = "such channels" if status or participant else "channels"
        click.echo(f"There are no {wanted} here.", err=True)
    elif as_json:
        for row in shown:
            write_json(row)
    else:
        output().table(LAYOUT, [_cells(row) for row in shown])


async def _listed(url: str, tenant: str, *, status: str | None, participant: str | None) -> list[ChannelRow]:
    async with reading(url, tenant) as store:
        return await listed(store, status=status, participant=participant)


async def listed(store: Store, *, status: str | None = None, participant: str | None = None) -> list[ChannelRow]:
    """Every row that fits, over all pages."""
    rows: list[ChannelRow] = []
    after = ""
    while page := await store.channels(status=status, participant=participant, after=after, limit=PAGE):
        rows.extend(page)
        after = page[-1].channel_id
    return rows


def _cells(row: ChannelRow) -> list[Cell]:
    return [
        Cell(row.channel_id, "bold"),
        Cell(row.type),
        Cell(row.status, STYLES.get(row.status, "")),
        Cell(", ".join(row.participants) or "-"),
        Cell(row.close_reason or "-"),
    ]
