"""Envelopes for trying out stores, and the words in which a check fails."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from antiphon.core.envelope import HUB, Envelope
from antiphon.core.errors import AntiphonError
from antiphon.core.events import (
    EV_CHANNEL_CREATED,
    EV_CHANNEL_OPENED,
    EV_TEXT,
    Created,
    Event,
    Opened,
    Seat,
    Text,
    data_of,
)
from antiphon.hub.ids import TimeOrderedIds
from antiphon.store.protocol import Store

OpenStore = Callable[[], Awaitable[Store]]

AT = "2026-01-01T00:00:00.000000Z"
LATER = "2026-01-01T00:00:01.000000Z"

new_id = TimeOrderedIds()


def said(channel: str, *sequences: int) -> list[Envelope]:
    """A batch of texts, stamped with these sequences."""
    return [told(channel, sequence, EV_TEXT, event=Text(f"text {sequence}")) for sequence in sequences]


def opening(channel: str, *participants: str) -> list[Envelope]:
    """The two envelopes that open a channel."""
    seats = [Seat(name) for name in participants]
    return [
        told(channel, 1, EV_CHANNEL_CREATED, event=Created("discussion", participants[0], seats)),
        told(channel, 2, EV_CHANNEL_OPENED, event=Opened()),
    ]


def told(channel: str, sequence: int, event_type: str, *, event: Event) -> Envelope:
    """One stamped envelope of the hub's."""
    return Envelope(
        envelope_id=new_id(),
        channel_id=channel,
        sender_id=HUB,
        event_type=event_type,
        event_data=data_of(event),
        created_at=AT,
        sequence=sequence,
    )


def hold(promise: bool, sentence: str) -> None:
    """Fail with the sentence unless the promise holds."""
    if not promise:
        raise AssertionError(sentence)


async def refused(kind: type[AntiphonError], call: Awaitable[object], sentence: str) -> None:
    """Fail with the sentence unless the call raises this error."""
    try:
        await call
    except kind:
        return
    except AntiphonError as error:
        raise AssertionError(f"{sentence}; it raised {type(error).__name__}: {error}") from error
    raise AssertionError(f"{sentence}; it was accepted")


@asynccontextmanager
async def opened(open_store: OpenStore) -> AsyncIterator[Store]:
    """A store, closed afterwards."""
    store = await open_store()
    try:
        yield store
    finally:
        await store.close()


async def whole_log(store: Store, channel: str, limit: int = 1000) -> list[Envelope]:
    """Everything in a channel, read in pages of this size."""
    found: list[Envelope] = []
    more = True
    while more:
        page = await store.read(channel, after=len(found), limit=limit)
        found += page.envelopes
        more = page.more
    return found
