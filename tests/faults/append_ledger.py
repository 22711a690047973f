"""What senders sent and saw acknowledged, and whether a store holds to it.

Rule 1: the ledger is kept by the sender's side. Nothing in it was read from a store.
Rule 2: an envelope is acknowledged when `append` has returned, not before.
Rule 3: the audit reads through the store, so what it accepts has passed the store's own hash chain.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

from antiphon.core.envelope import Envelope, derived_id
from antiphon.core.errors import Conflict, OutcomeUnknown, StoreUnavailable
from antiphon.core.events import EV_TEXT
from antiphon.store.protocol import Appended, Log

MADE = "2030-01-01T00:00:00.000000Z"
TRIES = 50

Contents = dict[str, list[Envelope]]
"""The envelopes of each channel, as a store gave them."""


@dataclass(slots=True)
class Ledger:
    """Everything sent, and for what was acknowledged the sequence that was named."""

    sent: dict[str, Envelope] = field(default_factory=dict)
    acknowledged: dict[str, int] = field(default_factory=dict)

    @property
    def channels(self) -> list[str]:
        return sorted({envelope.channel_id for envelope in self.sent.values()})

    def draft(self, channel: str, name: str, size: int) -> Envelope:
        """A new envelope, noted as sent. The same name makes the same envelope."""
        text = random.Random(name).randbytes(size // 2 + 1).hex()[:size]
        draft = Envelope(
            envelope_id=derived_id(channel, name),
            channel_id=channel,
            sender_id="sender",
            event_type=EV_TEXT,
            event_data={"text": text},
            created_at=MADE,
        )
        self.sent[draft.envelope_id] = draft
        return draft

    def acknowledge(self, batch: Sequence[Envelope], appended: Appended) -> dict[str, int]:
        """Note where a batch stands; returns what is new in the ledger."""
        assert appended.last - appended.first + 1 == len(batch), f"{len(batch)} envelopes at {appended}"
        news = {one.envelope_id: appended.first + place for place, one in enumerate(batch)}
        self.acknowledged |= news
        return news


def stamped(drafts: Sequence[Envelope], expected: int) -> list[Envelope]:
    """The drafts with the sequences they get behind `expected`."""
    return [replace(draft, sequence=expected + place) for place, draft in enumerate(drafts, start=1)]


async def post(
    store: Log, drafts: Sequence[Envelope], expected: int, *, note: Callable[[str], None] = lambda _: None
) -> Appended:
    """Append as a hub does: decide again after a conflict, repeat unchanged after a failure."""
    channel = drafts[0].channel_id
    for _ in range(TRIES):
        try:
            return await store.append(channel, stamped(drafts, expected), expected=expected)
        except Conflict as conflict:
            expected = conflict.head
        except (OutcomeUnknown, StoreUnavailable) as failure:
            note(type(failure).__name__)
            await asyncio.sleep(0)
    raise AssertionError(f"{TRIES} attempts to append to {channel!r} failed")


async def contents(store: Log, channels: Sequence[str]) -> Contents:
    """Every channel from the first envelope to the head."""
    return {channel: await whole(store, channel) for channel in channels}


async def whole(store: Log, channel: str) -> list[Envelope]:
    envelopes: list[Envelope] = []
    more = True
    while more:
        page = await store.read(channel, after=len(envelopes), limit=64)
        envelopes += page.envelopes
        more = page.more
    head = await store.head(channel)
    assert head == len(envelopes), f"the head of {channel!r} is {head}, but {len(envelopes)} envelopes can be read"
    return envelopes


def places_of(found: Contents) -> dict[str, int]:
    """The sequence of every envelope that was found."""
    return {one.envelope_id: one.sequence for envelopes in found.values() for one in envelopes}


def missing(places: Mapping[str, int], acknowledged: Mapping[str, int]) -> list[str]:
    """The acknowledged envelopes that are not where they were said to be."""
    return [f"{one} at {at}" for one, at in acknowledged.items() if places.get(one) != at]


def faults(found: Contents, sent: Mapping[str, Envelope]) -> list[str]:
    """What no log may show, acknowledged or not: holes, doubles, and envelopes nobody sent."""
    wrong = []
    for channel, envelopes in found.items():
        sequences = [one.sequence for one in envelopes]
        if sequences != list(range(1, len(envelopes) + 1)):
            wrong.append(f"{channel}: sequences {sequences}")
        ids = [one.envelope_id for one in envelopes]
        if len(set(ids)) != len(ids):
            wrong.append(f"{channel}: {len(ids) - len(set(ids))} ids occur twice")
        strange = [one.envelope_id for one in envelopes if replace(one, sequence=0) != sent.get(one.envelope_id)]
        if strange:
            wrong.append(f"{channel}: {len(strange)} envelopes that nobody sent: {strange[:3]}")
    return wrong


def integrity(path: Path) -> list[str]:
    """What SQLite itself finds wrong with the structure of a file."""
    try:
        with closing(sqlite3.connect(path)) as connection:
            rows = connection.execute("PRAGMA integrity_check").fetchall()
    except sqlite3.Error as error:
        return [str(error)]
    return [str(row[0]) for row in rows if row[0] != "ok"]
