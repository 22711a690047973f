"""What `antiphon channels delete` does, and `antiphon retention`: erase the content of channels that have ended.

Rule 1: a store is opened as a hub that runs no turns, and only to erase something; candidates are read beside any hub.
Rule 2: each channel is erased whole or not at all. A server is asked for one after the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Literal, Unpack

import click
import msgspec
from msgspec.structs import replace

from antiphon.cli.console_output import select_output, write_json
from antiphon.cli.server_client import COMMAND_LINE_ACTOR, ServerClient, open_hub_to_change
from antiphon.cli.store_options import (
    StorePlace,
    json_option,
    open_store_to_read,
    read_store,
    span_seconds,
    store_or_server_options,
)
from antiphon.cli.table_layout import Cell, Column, TableRow, escape_unprintable, pluralize
from antiphon.core.envelope import Instant, is_tombstone, to_datetime, to_instant
from antiphon.core.errors import AntiphonError
from antiphon.core.state import ENDED_STATUSES
from antiphon.hub.clock import SystemClock
from antiphon.runtime.channel_lifecycle import Erasure
from antiphon.server.schemas import ChannelList, ChannelState
from antiphon.store.paging import all_channel_rows
from antiphon.store.protocol import Store
from antiphon.store.records import SYSTEM_CHANNEL_PREFIX

EraseChannel = Callable[[str], Awaitable[Erasure]]
"""Erases a channel and its tasks."""


class RetentionResult(msgspec.Struct, frozen=True):
    """A channel that has ended and was not erased before, and whether it is erased now."""

    channel_id: str
    type: str
    closed_at: Instant
    records: int
    """How many records were erased, with those of its tasks; of a channel that was not, how many it has."""
    outcome: Literal["erased", "would erase", "failed"] = "would erase"
    why: str = ""


@asynccontextmanager
async def open_eraser(place: StorePlace) -> AsyncIterator[EraseChannel]:
    """What erases channels there. A store that does not exist is not created."""
    if place["server"]:
        server = ServerClient(place["server"])

        async def erase(channel_id: str) -> Erasure:
            return server.request("DELETE", f"/channels/{channel_id}", Erasure)

        yield erase
        return
    async with open_store_to_read(place["store"] or "", place["tenant"]):
        pass  # an empty file is refused here, and not made a store
    async with open_hub_to_change(place, what="change its channels", scope="operate") as hub:
        yield partial(hub.erase, by=COMMAND_LINE_ACTOR)


async def erasure_candidates(place: StorePlace, before: Instant) -> list[RetentionResult]:
    """The channels that ended before an instant and are not erased yet, oldest first."""
    if place["server"]:
        found = _served_candidates(place["server"])
    else:
        found = await read_store(place["store"] or "", place["tenant"], _stored_candidates)
    return sorted(
        (each for each in found if each.closed_at < before), key=lambda each: (each.closed_at, each.channel_id)
    )


async def _stored_candidates(store: Store) -> list[RetentionResult]:
    found: list[RetentionResult] = []
    for row in [row for status in sorted(ENDED_STATUSES) for row in await all_channel_rows(store, status=status)]:
        head = await store.head(row.channel_id)
        last = (await store.read(row.channel_id, after=max(0, head - 1), limit=1)).envelopes
        if last and not is_tombstone(last[0]) and not row.channel_id.startswith(SYSTEM_CHANNEL_PREFIX):
            found.append(RetentionResult(row.channel_id, row.type, last[0].created_at, head))
    return found


def _served_candidates(url: str) -> list[RetentionResult]:
    server = ServerClient(url)
    listed = (server.pages("/channels", ChannelList, view="operator", status=each) for each in sorted(ENDED_STATUSES))
    rows = (row for pages in listed for page in pages for row in page.channels)
    shown = (server.request("GET", f"/channels/{row.channel_id}", ChannelState) for row in rows)
    return [
        RetentionResult(each.channel_id, each.type, each.updated_at, each.sequence) for each in shown if not each.erased
    ]


async def delete_channels(channels: tuple[str, ...], place: StorePlace, *, as_json: bool) -> bool:
    """Whether all of them are erased."""
    failed = 0
    async with open_eraser(place) as erase:
        for channel_id in channels:
            try:
                erasure = await erase(channel_id)
            except (AntiphonError, click.ClickException) as error:
                failed += 1
                click.echo(f"Error: {escape_unprintable(str(error))}", err=True)
                continue
            if as_json:
                write_json(erasure)
                continue
            tasks = f", with {pluralize(len(erasure.tasks), 'task')}" if erasure.tasks else ""
            words = f"  {erasure.channel_id}: {pluralize(erasure.records, 'record')}{tasks}"
            select_output().line(Cell("erased", "green"), words)
    return not failed


RETENTION_COLUMNS = [
    Column("CHANNEL", 36),
    Column("CLOSED", 20),
    Column("RECORDS", 7, right=True),
    Column("OUTCOME", 11),
    Column("WHY"),
]
ERASURES_AT_ONCE = 16
"""How many channels are erased together: what a store has to do after an erasure, it does once for all of them."""
RETENTION_STYLES = {"erased": "green", "would erase": "yellow", "failed": "bold red"}


def instant_before_span(ctx: click.Context, param: click.Parameter, value: str) -> Instant:
    """The instant that is so long ago."""
    seconds = span_seconds(value)
    if seconds is None:
        raise click.BadParameter(f"{value!r} is no span such as 12h, 90d or 52w.", ctx, param)
    try:
        # Not `add_seconds`: beyond the calendar that gives the last instant, and everything would be old enough.
        return to_instant(to_datetime(SystemClock().now()) - timedelta(seconds=seconds))
    except OverflowError as error:
        raise click.BadParameter(f"{value!r} is longer ago than there are dates.", ctx, param) from error


@click.command()
@store_or_server_options("operate")
@click.option(
    "--older-than",
    "before",
    metavar="SPAN",
    required=True,
    callback=instant_before_span,
    help="How long ago a channel must have ended: 12h, 90d or 52w.",
)
@click.option("--dry-run", is_flag=True, help="List what would be erased, and change nothing.")
@json_option("One JSON object a line, one for each channel.")
def retention_command(*, before: Instant, dry_run: bool, as_json: bool, **place: Unpack[StorePlace]) -> None:
    """Erase the content of every channel that was closed, or expired, longer ago than a span.

    The content is gone from every file of the store; tombstones stay, with sequence, time and type of each envelope, so
    that `antiphon verify` still holds. Channels of tasks are erased with the channel they were given from. Each
    erasure is recorded in the channel system:audit. Open channels are never touched.

    A store that a server uses can only be changed by that server: name it with --server. If a channel cannot be erased,
    the others are; the exit code is 1 then.

    \b
    antiphon retention --older-than 90d --dry-run team.db
    """
    done = asyncio.run(_erase_old_channels(place, before, dry_run=dry_run, as_json=as_json))
    if not done:
        click.echo("There is nothing to erase here.", err=True)
    elif not as_json:
        select_output().table(RETENTION_COLUMNS, [_retention_cells(each) for each in done])
    if any(each.outcome == "failed" for each in done):
        raise SystemExit(1)


async def _erase_old_channels(
    place: StorePlace, before: Instant, *, dry_run: bool, as_json: bool
) -> list[RetentionResult]:
    found, done = await erasure_candidates(place, before), list[RetentionResult]()

    def add(results: Iterable[RetentionResult]) -> None:
        for each in results:
            done.append(each)
            if as_json:
                write_json(each)

    if dry_run or not found:
        add(found)
        return done
    async with open_eraser(place) as erase:
        for begin in range(0, len(found), ERASURES_AT_ONCE):
            batch = (_erase_candidate(erase, each) for each in found[begin : begin + ERASURES_AT_ONCE])
            add(await asyncio.gather(*batch))
    return done


async def _erase_candidate(erase: EraseChannel, candidate: RetentionResult) -> RetentionResult:
    try:
        erasure = await erase(candidate.channel_id)
    except (AntiphonError, click.ClickException) as error:
        return replace(candidate, outcome="failed", why=str(error))
    return replace(candidate, outcome="erased", records=erasure.records)


def _retention_cells(each: RetentionResult) -> TableRow:
    outcome = Cell(each.outcome, RETENTION_STYLES[each.outcome])
    return Cell(each.channel_id, "bold"), each.closed_at[:19] + "Z", str(each.records), outcome, each.why or "-"
