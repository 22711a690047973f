"""`antiphon retention`: erase the channels that ended long ago."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Literal, Unpack

import click
import msgspec

from antiphon.cli.erasing import Candidate, Eraser, Place, candidates_at, eraser_at
from antiphon.cli.keys import SECONDS, SPAN
from antiphon.cli.options import store_argument
from antiphon.cli.output import Cell, Column, output, write_json
from antiphon.cli.places import place_options
from antiphon.core.errors import AntiphonError
from antiphon.core.instants import Instant, after
from antiphon.hub.clock import SystemClock

LAYOUT = [
    Column("CHANNEL", 36),
    Column("CLOSED", 20),
    Column("RECORDS", 7, right=True),
    Column("OUTCOME", 11),
    Column("WHY"),
]
AT_ONCE = 16
"""How many channels are erased together: what a store has to do after an erasure, it does once for all of them."""
STYLES = {"erased": "green", "would erase": "yellow", "failed": "bold red"}


class Retained(msgspec.Struct, frozen=True):
    """One channel that ended long ago, and whether it was erased."""

    channel_id: str
    type: str
    closed_at: Instant
    records: int
    """How many records were erased, with those of its tasks; of one that was not, how many it has."""
    outcome: Literal["erased", "would erase", "failed"]
    why: str = ""


def age_of(ctx: click.Context, param: click.Parameter, value: str) -> Instant:
    """The instant that is so long ago."""
    span = SPAN.match(value)
    if span is None:
        raise click.BadParameter(f"{value!r} is no span such as 12h, 90d or 52w.", ctx, param)
    try:
        return after(SystemClock().now(), -int(span[1]) * SECONDS[span[2]])
    except (ValueError, OverflowError) as error:
        raise click.BadParameter(f"{value!r} is longer ago than there are dates.", ctx, param) from error


@click.command()
@store_argument
@place_options("operate", argument=False)
@click.option(
    "--older-than",
    "before",
    metavar="SPAN",
    required=True,
    callback=age_of,
    help="How long ago a channel must have ended: 12h, 90d or 52w.",
)
@click.option("--dry-run", is_flag=True, help="List what would be erased, and change nothing.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, one for each channel.")
def command(*, before: Instant, dry_run: bool, as_json: bool, **place: Unpack[Place]) -> None:
    """Erase the content of every channel that was closed, or expired, longer ago than a span.

    The content is gone from every file of the store; tombstones stay, with sequence, time and type of each envelope, so
    that `antiphon verify` still holds. Channels of tasks are erased with the channel they were given from. Each
    erasure is recorded in the channel system:audit. Open channels are never touched.

    A store that a server uses can only be changed by that server: name it with --server. If a channel cannot be erased,
    the others are; the exit code is 1 then.

    \b
    antiphon retention --older-than 90d --dry-run team.db
    """
    done = asyncio.run(_retained(place, before, dry_run=dry_run, as_json=as_json))
    if not done:
        click.echo("There is nothing to erase here.", err=True)
    elif not as_json:
        output().table(LAYOUT, [_cells(each) for each in done])
    if any(each.outcome == "failed" for each in done):
        raise SystemExit(1)


async def _retained(place: Place, before: Instant, *, dry_run: bool, as_json: bool) -> list[Retained]:
    done: list[Retained] = []
    async with aclosing(_outcomes(place, await candidates_at(place, before), dry_run=dry_run)) as outcomes:
        async for each in outcomes:
            done.append(each)
            if as_json:
                write_json(each)
    return done


async def _outcomes(place: Place, found: list[Candidate], *, dry_run: bool) -> AsyncGenerator[Retained, None]:
    if dry_run or not found:
        for each in found:
            yield _outcome(each, "would erase")
        return
    async with eraser_at(place) as eraser:
        for begin in range(0, len(found), AT_ONCE):
            batch = (_erased(eraser, each) for each in found[begin : begin + AT_ONCE])
            for done in await asyncio.gather(*batch):
                yield done


async def _erased(eraser: Eraser, candidate: Candidate) -> Retained:
    try:
        erasure = await eraser.erase(candidate.channel_id)
    except (AntiphonError, click.ClickException) as error:
        return _outcome(candidate, "failed", why=str(error))
    return _outcome(candidate, "erased", records=erasure.records)


def _outcome(
    each: Candidate, outcome: Literal["erased", "would erase", "failed"], *, records: int | None = None, why: str = ""
) -> Retained:
    counted = each.records if records is None else records
    return Retained(each.channel_id, each.type, each.closed_at, counted, outcome, why)


def _cells(each: Retained) -> list[Cell]:
    return [
        Cell(each.channel_id, "bold"),
        Cell(each.closed_at[:19] + "Z"),
        Cell(str(each.records)),
        Cell(each.outcome, STYLES[each.outcome]),
        Cell(each.why or "-"),
    ]
