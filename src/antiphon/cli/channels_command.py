"""`antiphon channels`: lists the channels of a store, or erases the content of some."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Unpack, get_args

import click

from antiphon.cli.console_output import write_listing
from antiphon.cli.store_options import (
    LIST_COMMAND,
    ListingCommands,
    StorePlace,
    check_name_option,
    json_option,
    read_store,
    reading_options,
    store_or_server_options,
)
from antiphon.cli.table_layout import Cell, TableRow
from antiphon.core.envelope import CHANNEL_ID_PATTERN
from antiphon.core.state import ChannelStatus
from antiphon.core.text import describe
from antiphon.store.paging import all_channel_rows
from antiphon.store.protocol import ChannelRow
from antiphon.store.records import SYSTEM_CHANNEL_PREFIX

CHANNEL_TITLES = ("CHANNEL", "TYPE", "STATUS", "PARTICIPANTS", "CLOSED BECAUSE")
CHANNEL_STATUS_STYLES = {
    "active": "green",
    "invited": "yellow",
    "quarantined": "bold red",
    "expired": "dim",
    "closed": "dim",
}


@click.group(cls=ListingCommands, subcommand_metavar="[COMMAND] [ARGS]...")
def channels_command() -> None:
    """List the channels of a store, or erase the content of some.

    Without the name of a command, `antiphon channels` lists. Both take --json.

    \b
    antiphon channels team.db --status active
    antiphon channels delete 0199d0a7-4c11-7c3e-b0a4-6f1d2e3c4b5a --store team.db
    """


@channels_command.command(name=LIST_COMMAND)
@reading_options
@click.option("--status", type=click.Choice(get_args(ChannelStatus)), help="Only channels of this status.")
@click.option("--participant", metavar="NAME", callback=check_name_option, help="Only channels this participant is in.")
@click.option("--system", is_flag=True, help="The hub's own channels too: the registry, and what was refused.")
@json_option("One JSON object a line, one for each channel.")
def list_channels_command(
    *, store: str, tenant: str, status: str | None, participant: str | None, system: bool, as_json: bool
) -> None:
    """List the channels of a store, oldest first. One whose content was erased is marked so as its close reason.

    \b
    antiphon channels team.db --status active
    """
    rows = asyncio.run(read_store(store, tenant, partial(all_channel_rows, status=status, participant=participant)))
    shown = [row for row in rows if system or not row.channel_id.startswith(SYSTEM_CHANNEL_PREFIX)]
    empty = f"There are no {'such channels' if status or participant else 'channels'} here."
    write_listing(CHANNEL_TITLES, shown, _channel_cells, as_json=as_json, empty=empty)


def _channel_cells(row: ChannelRow) -> TableRow:
    status = Cell(row.status, CHANNEL_STATUS_STYLES.get(row.status, ""))
    return Cell(row.channel_id, "bold"), row.type, status, ", ".join(row.participants) or "-", row.close_reason or "-"


def check_channel_ids(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    """Ids as they are: the beginning of one is not enough to erase a channel."""
    wrong = next((each for each in value if not CHANNEL_ID_PATTERN.match(each)), None)
    if wrong is not None:
        raise click.BadParameter(f"{describe(wrong)} is no channel id.", ctx, param)
    return tuple(dict.fromkeys(value))


@channels_command.command(name="delete")
@click.argument("channels", metavar="CHANNEL...", nargs=-1, required=True, callback=check_channel_ids)
@store_or_server_options("operate", argument=False)
@json_option('One JSON object a line: {"channel_id": …, "records": …, …}.')
def delete_command(*, channels: tuple[str, ...], as_json: bool, **place: Unpack[StorePlace]) -> None:
    """Erase the content of each CHANNEL, for good.

    A channel must have ended: one that is open is refused. Its content is gone from every file of the store;
    tombstones stay, with sequence, time and type of each envelope, so that `antiphon verify` still holds. The channels
    of tasks that were given from it are erased with it. Each erasure is recorded in the channel system:audit.

    A store that a server uses can only be changed by that server: name it with --server. If one channel cannot be
    erased, the others are; the exit code is 1 then.

    \b
    antiphon channels delete 0199d0a7-4c11-7c3e-b0a4-6f1d2e3c4b5a --store team.db
    """
    from antiphon.cli.erasure_commands import delete_channels  # only here, because it needs a hub

    if not asyncio.run(delete_channels(channels, place, as_json=as_json)):
        raise SystemExit(1)
