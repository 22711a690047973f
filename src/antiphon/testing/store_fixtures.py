"""Stores and envelopes for tests of a store: stamped batches, checks that fail with a sentence, and injected faults."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import cast

from antiphon.core.envelope import HUB, Envelope, Instant
from antiphon.core.errors import AntiphonError, OutcomeUnknown, StoreUnavailable
from antiphon.core.event_data import data_of
from antiphon.core.events import (
    EV_CHANNEL_CREATED,
    EV_CHANNEL_OPENED,
    EV_TEXT,
    ChannelCreated,
    ChannelOpened,
    Event,
    Seat,
    Text,
)
from antiphon.hub.clock import TimeOrderedIds
from antiphon.store.protocol import Appended, Store

OpenStore = Callable[[], Awaitable[Store]]
StoreCheck = Callable[[OpenStore], Awaitable[None]]

FIRST_INSTANT = "2026-01-01T00:00:00.000000Z"
LATER_INSTANT = "2026-01-01T00:00:01.000000Z"

new_id = TimeOrderedIds()


def text_batch(channel: str, *sequences: int) -> list[Envelope]:
    """A batch of texts, stamped with these sequences."""
    return [hub_envelope(channel, sequence, EV_TEXT, event=Text(f"text {sequence}")) for sequence in sequences]


def opening_envelopes(channel: str, *participants: str) -> list[Envelope]:
    """The two envelopes that open a channel."""
    seats = [Seat(name) for name in participants]
    return [
        hub_envelope(channel, 1, EV_CHANNEL_CREATED, event=ChannelCreated("discussion", participants[0], seats)),
        hub_envelope(channel, 2, EV_CHANNEL_OPENED, event=ChannelOpened()),
    ]


def hub_envelope(channel: str, sequence: int, event_type: str, *, event: Event) -> Envelope:
    """One stamped envelope, sent by the hub."""
    return Envelope(
        envelope_id=new_id(),
        channel_id=channel,
        sender_id=HUB,
        event_type=event_type,
        event_data=data_of(event),
        created_at=FIRST_INSTANT,
        sequence=sequence,
    )


def require(promise: bool, sentence: str) -> None:
    """Fail with the sentence unless the promise holds."""
    if not promise:
        raise AssertionError(sentence)


async def require_error(kind: type[AntiphonError], call: Awaitable[object], sentence: str) -> None:
    """Fail with the sentence unless the call raises this error."""
    try:
        await call
    except kind:
        return
    except AntiphonError as error:
        raise AssertionError(f"{sentence}; it raised {type(error).__name__}: {error}") from error
    raise AssertionError(f"{sentence}; it was accepted")


@asynccontextmanager
async def use_store(open_store: OpenStore) -> AsyncIterator[Store]:
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


@dataclass(kw_only=True)
class Faults:
    """Which appends fail, and how. `appends` and `lost_replies` count what has happened so far."""

    lose_reply_every: int = 0
    """Every n-th append is recorded, and its answer is lost; 0 for none."""
    fail_every: int = 0
    """Every n-th append is not recorded; 0 for none."""
    forget_ids: bool = False
    """A repeated id is not recognised: appends are no longer idempotent."""
    appends: int = field(default=0, init=False)
    lost_replies: int = field(default=0, init=False)

    def before(self) -> int:
        """Count an append, and fail it if it is an n-th one. Returns its number."""
        self.appends += 1
        if self.fail_every and self.appends % self.fail_every == 0:
            raise StoreUnavailable("a fault was injected before the append")
        return self.appends

    def after(self, number: int) -> None:
        """Lose the answer to the append of this number, if it is an n-th one."""
        if self.lose_reply_every and number % self.lose_reply_every == 0:
            self.lost_replies += 1
            raise OutcomeUnknown("a fault was injected after the append")


def with_faults(store: Store, faults: Faults) -> Store:
    """The store with faults in its appends; all other calls pass through."""
    return cast(Store, _FaultyStore(store, faults))


class _FaultyStore:
    def __init__(self, store: Store, faults: Faults) -> None:
        self._store, self._faults = store, faults
        self._new_id = TimeOrderedIds()

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    async def append(
        self, channel: str, batch: Sequence[Envelope], *, expected: int, due: Instant | None = None
    ) -> Appended:
        number = self._faults.before()
        if self._faults.forget_ids:
            batch = [replace(envelope, envelope_id=self._new_id()) for envelope in batch]
        appended = await self._store.append(channel, batch, expected=expected, due=due)
        self._faults.after(number)
        return appended
