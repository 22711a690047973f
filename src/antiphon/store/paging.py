"""Reads what a store gives in pages, to its end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from antiphon.core.envelope import Envelope
from antiphon.store.protocol import ChannelRow, Log, Store

LIST_PAGE_ROWS = 1000


async def channel_rows(
    store: Store, *, status: str | None = None, participant: str | None = None
) -> AsyncIterator[ChannelRow]:
    """Every matching row, a page at a time."""
    after = ""
    while page := await store.channels(status=status, participant=participant, after=after, limit=LIST_PAGE_ROWS):
        for row in page:
            yield row
        after = page[-1].channel_id


async def all_channel_rows(
    store: Store, *, status: str | None = None, participant: str | None = None
) -> list[ChannelRow]:
    """Every matching row, read before the first is used."""
    return [row async for row in channel_rows(store, status=status, participant=participant)]


ReadLogPage = Callable[[int], Awaitable[Sequence[Envelope]]]
"""Reads the envelopes of a channel behind a sequence, as far as one page goes; none at the end."""


def log_page_reader(store: Log, channel_id: str) -> ReadLogPage:
    """Reads a channel in the store."""

    async def read(after: int) -> Sequence[Envelope]:
        return (await store.read(channel_id, after=after)).envelopes

    return read


async def all_envelopes(read: ReadLogPage, after: int = 0) -> AsyncIterator[Envelope]:
    """Every envelope behind a sequence, over all pages."""
    while page := await read(after):
        for envelope in page:
            yield envelope
        after = page[-1].sequence
