"""`antiphon channels`: what there is in a store, and `antiphon channels delete`, which erases some of it."""

from __future__ import annotations

import asyncio
from importlib import import_module
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


class ChannelCommands(click.Group):
    """Lists channels, unless another command is named. That one is imported on use, because it needs a whole hub."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return ["list", "delete"]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name == "delete" and cmd_name not in self.commands:
            self.add_command(import_module("antiphon.cli.deleting").delete, "delete")
        return super().get_command(ctx, cmd_name)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        named = bool(args) and args[0] in (*self.list_commands(ctx), *ctx.help_option_names)
        return super().parse_args(ctx, args if named else ["list", *args])


@click.group(cls=ChannelCommands, subcommand_metavar="[COMMAND] [ARGS]...")
def command() -> None:
    """List the channels of a store, or erase the content of some.

    Without the name of a command, `antiphon channels` lists. Both take --json.

    \b
    antiphon channels team.db --status active
    antiphon channels delete 0199d0a7-4c11-7c3e-b0a4-6f1d2e3c4b5a --store team.db
    """


@command.command(name="list")
@store_argument
@store_option
@tenant_option
@click.option("--status", type=click.Choice(get_args(Status)), help="Only channels that are so.")
@click.option("--participant", metavar="NAME", callback=known_name, help="Only channels this participant is in.")
@click.option("--system", is_flag=True, help="The hub's own channels too: the registry, and what was refused.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, one for each channel.")
def list_command(
    *, store: str, tenant: str, status: str | None, participant: str | None, system: bool, as_json: bool
) -> None:
    """List the channels of a store, oldest first. One whose content was erased is marked so as its close reason.

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
