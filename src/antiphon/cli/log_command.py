"""`antiphon log`: one channel, from its first envelope on. `--follow` polls the store, which a hub may be using."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import click

from antiphon.cli.console_output import CommandOutput, select_output, write_json
from antiphon.cli.store_options import find_channel_row, json_option, open_store_to_read, reading_options
from antiphon.cli.table_layout import Cell, Column, participant_colour, title_cells
from antiphon.core.envelope import HUB, NEVER, Envelope
from antiphon.core.state import ENDED_STATUSES
from antiphon.runtime.envelope_text import describe_envelope, is_bookkeeping, is_speech
from antiphon.runtime.refusals import RefusalReader
from antiphon.store.protocol import ChannelRow, Store

LOG_POLL_SECONDS = 0.2
MILLISECOND_CHARS, SECOND_CHARS, DAY_CHARS = 23, 19, 10
"""The length of an instant up to its milliseconds, seconds, and day."""
SEQUENCE_COLUMN = Column("SEQ", 5, right=True)

PollPause = Callable[[], Awaitable[None]]


@click.command()
@click.argument("channel")
@reading_options
@click.option("--follow", "-f", is_flag=True, help="Go on as the channel grows, until it ends or you press Ctrl-C.")
@click.option(
    "--audit",
    is_flag=True,
    help="Bookkeeping too, with the cause, audience and event type of each envelope, and what was refused here.",
)
@json_option("One JSON object a line: the envelopes as they are recorded.")
def log_command(*, channel: str, store: str, tenant: str, follow: bool, audit: bool, as_json: bool) -> None:
    """Show what happened in CHANNEL, and who did it.

    CHANNEL is an id as `antiphon channels` lists them, or the beginning of one. Each row is one envelope: sequence,
    time (UTC), who, and what. Sequences that seem to be missing are bookkeeping, such as whose turn it is: --audit
    shows them, and so each decision with its reason: rules, guards, limits, budgets, gates, approvals, retries.

    A refused message is not part of the log. It is recorded, without its content, in the channel system:audit; --audit
    lists these records at their time, without a sequence.

    \b
    antiphon log 0199d0a7-… team.db --follow
    """
    view = LogView(select_output(), audit=audit, as_json=as_json)
    pause = partial(asyncio.sleep, LOG_POLL_SECONDS) if follow else None
    try:
        asyncio.run(show_log(store, tenant, channel, view=view, pause=pause))
    except KeyboardInterrupt:
        if not follow:
            raise


class LogView(NamedTuple):
    """What is shown of a channel, and on which output."""

    out: CommandOutput
    audit: bool = False
    as_json: bool = False


async def show_log(url: str, tenant: str, channel: str, *, view: LogView, pause: PollPause | None = None) -> None:
    """Show a channel; with a pause between two polls, follow it until it ends."""
    async with open_store_to_read(url, tenant) as store:
        row = await find_channel_row(store, channel)
        write = write_json if view.as_json else TextLogFormat(view.out, row, audit=view.audit).write
        refusals = await _refusals_of(store, row.channel_id) if view.audit and not view.as_json else None
        async with aclosing(follow_log(store, row.channel_id, pause=pause, refusals=refusals)) as envelopes:
            shown = (envelope async for envelope in envelopes if view.audit or not is_bookkeeping(envelope))
            async for envelope in shown:
                write(envelope)


async def _refusals_of(store: Store, channel: str) -> RefusalReader:
    created = (await store.read(channel, limit=1)).envelopes
    return RefusalReader(store, channel, created[0].created_at if created else NEVER)


async def follow_log(
    store: Store, channel: str, *, pause: PollPause | None = None, refusals: RefusalReader | None = None
) -> AsyncGenerator[Envelope, None]:
    """The envelopes of a channel; with a pause between two polls, new ones too, until the channel ends.

    With a reader of refusals, what was refused stands between them, by time.
    """
    after = 0
    refused: deque[Envelope] = deque()
    while True:
        row = await store.row(channel)
        page = await store.read(channel, after=after)
        refused.extend([] if refusals is None else await refusals.read())
        for envelope in page.envelopes:
            while refused and refused[0].created_at < envelope.created_at:
                yield refused.popleft()
            yield envelope
            after = envelope.sequence
        if page.envelopes:
            continue
        while refused:
            yield refused.popleft()
        if pause is None or row is None or row.status in ENDED_STATUSES:
            return
        await pause()


class TextLogFormat:
    """One row an envelope; for an audit every envelope, with its cause, audience and event type.

    On a terminal the date is a line of its own when it changes; in piped output every row has it.
    """

    def __init__(self, out: CommandOutput, row: ChannelRow, *, audit: bool) -> None:
        self._out, self._names, self._audit, self._day = out, row.participants, audit, ""
        self._channel = row.channel_id
        length = MILLISECOND_CHARS if audit else SECOND_CHARS
        self._shown_time = slice(DAY_CHARS + 1 if out.terminal else 0, length)
        self._places: dict[str, int] = {}
        time = Column("TIME", length - DAY_CHARS - 1 if out.terminal else length + 1)
        who = Column("WHO", max(map(len, [*row.participants, HUB])))
        self._layout = [SEQUENCE_COLUMN, time, who, Column("WHAT")]
        if audit:
            cause, details = Column("CAUSE", 5, right=True), [Column("FOR", who.width), Column("EVENT", 32)]
            self._layout = [SEQUENCE_COLUMN, cause, time, who, *details, Column("WHAT")]
        out.row(self._layout, title_cells(self._layout))

    def write(self, envelope: Envelope) -> None:
        day = envelope.created_at[:DAY_CHARS]
        if self._out.terminal and day != self._day:
            self._out.line(Cell(f"{'':{SEQUENCE_COLUMN.width}}  {day}", "dim"))
        self._day = day
        refused = envelope.channel_id != self._channel  # a record of the audit channel
        if refused:  # where it was refused need not be said
            envelope = replace(envelope, event_data={**envelope.event_data, "channel_id": ""})
        else:
            self._places[envelope.envelope_id] = envelope.sequence
        cause = self._places.get(envelope.causation_id or "")
        style = "" if is_speech(envelope) else "dim"
        details = [Cell("-" if refused else _audience_text(envelope), style), Cell(envelope.event_type, style)]
        cells = [
            Cell("-" if refused else str(envelope.sequence), "dim"),
            *([Cell(str(cause or "-"), "dim")] if self._audit else []),
            Cell(envelope.created_at[self._shown_time] + "Z" * (not self._out.terminal), "dim"),
            Cell(envelope.sender_id, participant_colour(envelope.sender_id, self._names)),
            *(details if self._audit else []),
            Cell(describe_envelope(envelope), style),
        ]
        self._out.row(self._layout, cells)


def _audience_text(envelope: Envelope) -> str:
    if is_bookkeeping(envelope):
        return "-"
    return "all" if envelope.audience is None else ", ".join(envelope.audience)
