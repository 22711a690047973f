"""`antiphon channels delete`: erase the content of channels that have ended."""

from __future__ import annotations

import asyncio
from typing import Unpack

import click

from antiphon.cli.erasing import Place, eraser_at
from antiphon.cli.output import Cell, output, write_json
from antiphon.cli.places import place_options
from antiphon.cli.plain import counted, printable
from antiphon.core.errors import AntiphonError
from antiphon.core.ids import CHANNEL_ID
from antiphon.core.words import shown
from antiphon.runtime.erasing import Erasure


def whole_ids(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    """Ids as they are: the beginning of one is not enough to erase a channel."""
    wrong = next((each for each in value if not CHANNEL_ID.match(each)), None)
    if wrong is not None:
        raise click.BadParameter(f"{shown(wrong)} is no channel id.", ctx, param)
    return tuple(dict.fromkeys(value))


@click.command()
@click.argument("channels", metavar="CHANNEL...", nargs=-1, required=True, callback=whole_ids)
@place_options("operate", argument=False)
@click.option("--json", "as_json", is_flag=True, help='One JSON object a line: {"channel_id": …, "records": …, …}.')
def delete(*, channels: tuple[str, ...], as_json: bool, **place: Unpack[Place]) -> None:
    """Erase the content of each CHANNEL, for good.

    A channel must have ended: one that is open is refused. Its content is gone from every file of the store;
    tombstones stay, with sequence, time and type of each envelope, so that `antiphon verify` still holds. The channels
    of tasks that were given from it are erased with it. Each erasure is recorded in the channel system:audit.

    A store that a server uses can only be changed by that server: name it with --server. If one channel cannot be
    erased, the others are; the exit code is 1 then.

    \b
    antiphon channels delete 0199d0a7-4c11-7c3e-b0a4-6f1d2e3c4b5a --store team.db
    """
    if not asyncio.run(_deleted(channels, place, as_json=as_json)):
        raise SystemExit(1)


async def _deleted(channels: tuple[str, ...], place: Place, *, as_json: bool) -> bool:
    """Whether all of them are erased."""
    failed = 0
    async with eraser_at(place) as eraser:
        for channel_id in channels:
            try:
                erasure = await eraser.erase(channel_id)
            except (AntiphonError, click.ClickException) as error:
                failed += 1
                click.echo(f"Error: {printable(str(error))}", err=True)
            else:
                _show(erasure, as_json=as_json)
    return not failed


def _show(erasure: Erasure, *, as_json: bool) -> None:
    if as_json:
        write_json(erasure)
        return
    tasks = f", with {counted(len(erasure.tasks), 'task')}" if erasure.tasks else ""
    output().line(Cell("erased", "green"), f"  {erasure.channel_id}: {counted(erasure.records, 'record')}{tasks}")
