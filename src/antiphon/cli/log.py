"""`antiphon log`: one channel, from its first envelope on.

The store is only read, so a hub may be using it; `--follow` looks again a few times a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing
from typing import NamedTuple, Protocol

import click

from antiphon.cli.options import reading, store_argument, store_option, tenant_option
from antiphon.cli.output import Cell, Column, Output, output, titles, write_json
from antiphon.cli.plain import printable
from antiphon.cli.telling import colour_of, is_bookkeeping, is_speech, told
from antiphon.core.envelope import HUB, Envelope
from antiphon.core.ids import CHANNEL_ID
from antiphon.core.state import ENDED
from antiphon.core.words import shown
from antiphon.store.protocol import ChannelRow, Store

LOOK_EVERY = 0.2
MOST_NAMED = 5
"""How many channels are named where the beginning of an id is not enough."""
MOMENT, SECOND, DAY = 23, 19, 10
"""How much of an instant is a moment, a second, a day."""
SEQUENCE = Column("SEQ", 5, right=True)

Pause = Callable[[], Awaitable[None]]


@click.command()
@click.argument("channel")
@store_argument
@store_option
@tenant_option
@click.option("--follow", "-f", is_flag=True, help="Go on as the channel grows, until it ends or you press Ctrl-C.")
@click.option(
    "--audit", is_flag=True, help="Bookkeeping too, with the cause, audience and event type of each envelope."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line: the envelopes as they are recorded.")
def command(*, channel: str, store: str, tenant: str, follow: bool, audit: bool, as_json: bool) -> None:
    """Show what happened in CHANNEL, and who did it.

    CHANNEL is an id as `antiphon channels` lists them, or the beginning of one. Each row is one envelope: sequence,
    time (UTC), who, and what. Sequences that seem to be missing are bookkeeping, such as whose turn it is: --audit
    shows them.

    \b
    antiphon log 0199d0a7-… team.db --follow
    """
    view = View(output(), audit=audit, as_json=as_json)
    try:
        asyncio.run(show(store, tenant, channel, view=view, pause=_pause if follow else None))
    except KeyboardInterrupt:
        if not follow:
            raise


class View(NamedTuple):
    """How much of a channel is shown, and where."""

    out: Output
    audit: bool = False
    as_json: bool = False

    def shows(self, envelope: Envelope) -> bool:
        """Whether this envelope is part of it."""
        return self.audit or not is_bookkeeping(envelope)

    def sheet(self, row: ChannelRow) -> Sheet:
        """What the envelopes of this channel are written on."""
        if self.as_json:
            return JsonSheet()
        return AuditSheet(self.out, row) if self.audit else TalkSheet(self.out, row)


async def show(url: str, tenant: str, channel: str, *, view: View, pause: Pause | None = None) -> None:
    """Show a channel; with a pause to make between two looks, also what comes, until the channel ends."""
    async with reading(url, tenant) as store:
        row = await _known(store, channel)
        sheet = view.sheet(row)
        async with aclosing(followed(store, row.channel_id, pause=pause)) as envelopes:
            shown = (envelope async for envelope in envelopes if view.shows(envelope))
            async for envelope in shown:
                sheet.write(envelope)


async def followed(store: Store, channel: str, *, pause: Pause | None = None) -> AsyncGenerator[Envelope, None]:
    """Everything in a channel; with a pause to make between two looks, also what comes, until the channel ends."""
    after = 0
    while True:
        row = await store.row(channel)
        over = row is None or row.status in ENDED or pause is None
        page = await store.read(channel, after=after)
        for envelope in page.envelopes:
            yield envelope
            after = envelope.sequence
        if page.envelopes:
            continue
        if over or pause is None:
            return
        await pause()


async def _known(store: Store, channel: str) -> ChannelRow:
    """The channel of this id, or the only one whose id begins so."""
    if not CHANNEL_ID.match(channel):
        raise _unknown(channel)
    if await store.head(channel) == 0:
        channel = await _completed(store, channel)
    return await store.row(channel) or ChannelRow(channel)


async def _completed(store: Store, beginning: str) -> str:
    behind = await store.names(after=beginning, limit=MOST_NAMED + 1)
    names = [name for name in behind if name.startswith(beginning)]
    if not names:
        raise _unknown(beginning)
    if len(names) > 1:
        listed = ", ".join(names[:MOST_NAMED]) + ", …" * (len(names) > MOST_NAMED)
        raise click.ClickException(f"{beginning!r} is the beginning of several channels: {listed}; give more of it")
    return names[0]


def _unknown(channel: str) -> click.ClickException:
    return click.ClickException(printable(f"no channel {shown(channel)}; `antiphon channels` lists those there are"))


async def _pause() -> None:
    await asyncio.sleep(LOOK_EVERY)


class Sheet(Protocol):
    """Takes the envelopes of one channel in order."""

    def write(self, envelope: Envelope) -> None: ...


class JsonSheet:
    """Envelopes as they are recorded."""

    def write(self, envelope: Envelope) -> None:
        """One object a line."""
        write_json(envelope)


class TalkSheet:
    """The conversation, and what the channel lived through."""

    def __init__(self, out: Output, row: ChannelRow) -> None:
        self._out, self._names, self._calendar = out, row.participants, Calendar(out)
        time = Column("TIME", SECOND - DAY - 1 if out.terminal else SECOND + 1)
        self._layout = [SEQUENCE, time, _who(row.participants), Column("WHAT")]
        titles(out, self._layout)

    def write(self, envelope: Envelope) -> None:
        """One row."""
        self._calendar.turn_to(envelope)
        style = "" if is_speech(envelope) else "dim"
        who = Cell(envelope.sender_id, colour_of(envelope.sender_id, self._names))
        time = _time(envelope, SECOND, whole=not self._out.terminal)
        self._out.row(
            self._layout, [Cell(str(envelope.sequence), "dim"), Cell(time, "dim"), who, Cell(told(envelope), style)]
        )


class AuditSheet:
    """Everything, with what it was caused by, whom it was for, and which event it is."""

    def __init__(self, out: Output, row: ChannelRow) -> None:
        self._out, self._names, self._calendar = out, row.participants, Calendar(out)
        self._places: dict[str, int] = {}
        time = Column("TIME", MOMENT - DAY - 1 if out.terminal else MOMENT + 1)
        self._layout = [
            SEQUENCE,
            Column("CAUSE", 5, right=True),
            time,
            _who(row.participants),
            Column("FOR", _who(row.participants).width),
            Column("EVENT", 32),
            Column("WHAT"),
        ]
        titles(out, self._layout)

    def write(self, envelope: Envelope) -> None:
        """One row."""
        self._calendar.turn_to(envelope)
        self._places[envelope.envelope_id] = envelope.sequence
        cause = self._places.get(envelope.causation_id or "")
        style = "" if is_speech(envelope) else "dim"
        self._out.row(
            self._layout,
            [
                Cell(str(envelope.sequence), "dim"),
                Cell(str(cause) if cause else "-", "dim"),
                Cell(_time(envelope, MOMENT, whole=not self._out.terminal), "dim"),
                Cell(envelope.sender_id, colour_of(envelope.sender_id, self._names)),
                Cell(_audience(envelope), style),
                Cell(envelope.event_type, style),
                Cell(told(envelope), style),
            ],
        )


def _who(names: Iterable[str]) -> Column:
    return Column("WHO", max(map(len, [*names, HUB])))


def _audience(envelope: Envelope) -> str:
    if is_bookkeeping(envelope):
        return "-"
    return "all" if envelope.audience is None else ", ".join(envelope.audience)


def _time(envelope: Envelope, length: int, *, whole: bool) -> str:
    return f"{envelope.created_at[:length]}Z" if whole else envelope.created_at[DAY + 1 : length]


class Calendar:
    """Says on a terminal which day it is, when another has begun; elsewhere every row has the date in it."""

    def __init__(self, out: Output) -> None:
        self._out, self._day = out, ""

    def turn_to(self, envelope: Envelope) -> None:
        """The next row is of this envelope."""
        day = envelope.created_at[:DAY]
        if self._out.terminal and day != self._day:
            self._out.line(Cell(f"{'':{SEQUENCE.width}}  {day}", "dim"))
        self._day = day
