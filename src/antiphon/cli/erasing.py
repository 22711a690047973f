"""Where channels are erased from the command line: in a store, or by the server that uses it.

Rule 1: a store is opened as a hub that runs no turns, and only to erase something; candidates are read beside any hub.
Rule 2: each channel is erased whole or not at all. A server is asked for one after the other.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import ParamSpec, Protocol, TypedDict

import msgspec

from antiphon.cli.channels import listed
from antiphon.cli.keepers import BY, AtServer, in_use
from antiphon.cli.options import file_outside, reading
from antiphon.core.erasing import is_erased
from antiphon.core.errors import StoreRefused
from antiphon.core.instants import Instant
from antiphon.core.state import ENDED
from antiphon.runtime.erasing import Erasure
from antiphon.runtime.hub import Hub
from antiphon.store.ownership import checked_place
from antiphon.store.protocol import ChannelRow, Store
from antiphon.store.rows import SYSTEM

P = ParamSpec("P")

PAGE = 1000


class Candidate(msgspec.Struct, frozen=True):
    """A channel that has ended and is not erased yet."""

    channel_id: str
    type: str
    closed_at: Instant
    records: int


class Place(TypedDict):
    """Where channels are to be erased."""

    store: str | None
    server: str | None
    tenant: str


class Eraser(Protocol):
    """Erases channels."""

    async def erase(self, channel_id: str) -> Erasure:
        """Erase one channel, and its tasks."""
        ...


@asynccontextmanager
async def eraser_at(place: Place) -> AsyncIterator[Eraser]:
    """What erases channels there. A store that is not there is not made."""
    if place["server"]:
        yield _ServerEraser(place["server"])
        return
    assert place["store"], "without a server there is a store"
    path = file_outside(place["store"])
    checked_place(path, read_only=True)
    async with reading(place["store"], place["tenant"]):
        pass  # an empty file is refused here, and not made a store
    try:
        hub = await Hub.open(place["store"], engine=None, tenant=place["tenant"])
    except StoreRefused as error:
        raise in_use(path, error, what="change its channels", scope="operate") from error
    try:
        yield _StoreEraser(hub)
    finally:
        await hub.close()


async def candidates_at(place: Place, before: Instant) -> list[Candidate]:
    """The channels that ended before an instant and are not erased yet, oldest first."""
    if place["server"]:
        found = _served(place["server"], before)
    else:
        assert place["store"], "without a server there is a store"
        async with reading(place["store"], place["tenant"]) as store:
            found = await _stored(store, before)
    return sorted(found, key=lambda each: (each.closed_at, each.channel_id))


class _StoreEraser:
    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    async def erase(self, channel_id: str) -> Erasure:
        return await self._hub.erase(channel_id, by=BY)


class _ServerEraser:
    def __init__(self, url: str) -> None:
        self._url = url

    async def erase(self, channel_id: str) -> Erasure:
        return AtServer(self._url).answered("DELETE", f"/channels/{channel_id}", Erasure)


async def _stored(store: Store, before: Instant) -> list[Candidate]:
    found: list[Candidate] = []
    for status in sorted(ENDED):
        for row in await listed(store, status=status):
            head = await store.head(row.channel_id)
            page = await store.read(row.channel_id, after=max(0, head - 1), limit=1)
            if not row.channel_id.startswith(SYSTEM) and page.envelopes and not is_erased(page.envelopes[0]):
                found.append(Candidate(row.channel_id, row.type, page.envelopes[0].created_at, head))
    return [each for each in found if each.closed_at < before]


class _ServedRows(msgspec.Struct, frozen=True):
    channels: list[ChannelRow]
    next: str | None = None


class _ServedChannel(msgspec.Struct, frozen=True):
    channel_id: str
    type: str
    sequence: int
    updated_at: str
    erased: bool


def _served(url: str, before: Instant) -> list[Candidate]:
    rows = (row for status in sorted(ENDED) for row in _served_rows(url, status))
    shown = (AtServer(url).answered("GET", f"/channels/{row.channel_id}", _ServedChannel) for row in rows)
    return [
        Candidate(each.channel_id, each.type, each.updated_at, each.sequence)
        for each in shown
        if not each.erased and each.updated_at < before
    ]


def _served_rows(url: str, status: str) -> Iterator[ChannelRow]:
    after: str | None = ""
    while after is not None:
        wanted = f"view=operator&status={status}&limit={PAGE}&after={after}"
        page = AtServer(url).answered("GET", f"/channels?{wanted}", _ServedRows)
        yield from page.channels
        after = page.next
