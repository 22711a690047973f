"""What stands in a log: records, and the chain that ties each to the one before.

Rule 1: a record is an encoded envelope. It is written once and read back as it is, or not at all.
Rule 2: hash(n) = SHA-256(hash(n-1) || record n); hash(0) names the tenant and the channel.
Rule 3: the record of an erased envelope is a sealed tombstone: hash(n) stays what it was, although nothing is left to
        compute it from, and the seal ties it to hash(n-1) and to the tombstone.
Rule 4: two envelopes of one id say the same if they differ in nothing but the stamps, sequence and time.

Both what a store takes and what it gives pass through here, so that every store judges alike.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from antiphon.core.codec import MAX_BYTES, Malformed, as_type, decode, encode, same
from antiphon.core.envelope import Envelope
from antiphon.core.errors import Conflict, IdReused, LogCorrupt, TooLarge, UsageError
from antiphon.core.words import shown
from antiphon.store.protocol import Appended, Page

MAX_RECORD = MAX_BYTES + 16 * 1024
PAGE_BYTES = 1024 * 1024
"""The size of the records that are read at once. A page with one record may be larger."""
"""Room for the largest event data and the nine other fields."""
SLICE = 1000
"""How many envelopes are encoded at once."""
MOST = 2**63 - 1
"""The highest number that every store can count to."""

Find = Callable[[str], Envelope | None]
"""The recorded envelope of an id, in one channel."""


class Row(NamedTuple):
    """One record as a table holds it."""

    sequence: int
    envelope_id: str
    body: bytes
    hash: bytes


def genesis(tenant: str, channel: str) -> bytes:
    """The hash that a channel's first record is tied to."""
    return hashlib.sha256(f"{len(tenant)}:{tenant}{len(channel)}:{channel}".encode()).digest()


def link(previous: bytes, record: bytes) -> bytes:
    """The hash of a record, given the hash of the one before."""
    return hashlib.sha256(previous + record).digest()


_SEAL, _RECORD = b'{"seal":"', b'","record":'
_SEALED = len(_SEAL) + 64


def sealed(tombstone: bytes, previous: bytes, digest: bytes) -> bytes:
    """The record of a tombstone, which keeps the hash of what was erased."""
    seal = hashlib.sha256(previous + digest + tombstone).hexdigest().encode()
    return _SEAL + seal + _RECORD + tombstone + b"}"


def unsealed(body: bytes) -> bytes:
    """The encoded envelope of a record, whether it was erased or not."""
    if not body.startswith(_SEAL):
        return body
    return body[_SEALED + len(_RECORD) : -1]


def records_of(channel: str, batch: Sequence[Envelope]) -> list[bytes]:
    """The records of a batch; refused if a store could not give back exactly this batch for this channel."""
    if not batch:
        raise UsageError(f"the batch for channel {channel!r} is empty")
    for envelope in batch:
        if envelope.channel_id != channel or not envelope.envelope_id:
            given = f"envelope {envelope.envelope_id!r} of channel {envelope.channel_id!r}"
            raise UsageError(f"{given} cannot be recorded in {channel!r}")
    try:
        records = [encode(envelope) for envelope in batch]
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise UsageError(f"an envelope for channel {channel!r} is no JSON: {error}") from error
    largest = max(map(len, records))
    if largest > MAX_RECORD:
        raise TooLarge(channel, largest, MAX_RECORD)
    return records


async def records_in_slices(channel: str, batch: Sequence[Envelope]) -> list[bytes]:
    """The same, letting others have the event loop in between if the batch is long."""
    if len(batch) <= SLICE:
        return records_of(channel, batch)
    records: list[bytes] = []
    for begin in range(0, len(batch), SLICE):
        records += records_of(channel, batch[begin : begin + SLICE])
        await asyncio.sleep(0)
    return records


def is_stamped(batch: Sequence[Envelope], expected: int) -> bool:
    """Whether the batch carries the sequences that follow `expected`."""
    return all(envelope.sequence == expected + place for place, envelope in enumerate(batch, 1))


def judged(batch: Sequence[Envelope], *, expected: int, head: int, find: Find) -> Appended:
    """Where this batch stands, or will stand once it is written: the whole of what an append promises.

    A recorded first id is answered before `expected` is looked at.
    """
    channel = batch[0].channel_id
    first = find(batch[0].envelope_id)
    if first is not None:
        return Appended(first.sequence, _last_of(batch, first, find), duplicate=True)
    if expected != head:
        raise Conflict(channel, expected, head)
    seen: set[str] = set()
    for envelope in batch:
        if envelope.envelope_id in seen or find(envelope.envelope_id) is not None:
            raise IdReused(channel, envelope.envelope_id)
        seen.add(envelope.envelope_id)
    if not is_stamped(batch, expected):
        stamps = [envelope.sequence for envelope in batch]
        raise UsageError(f"the batch for channel {channel!r} at {expected} is stamped {stamps}")
    return Appended(expected + 1, expected + len(batch))


def _last_of(batch: Sequence[Envelope], first: Envelope, find: Find) -> int:
    sequence = first.sequence
    for place, given in enumerate(batch):
        recorded = find(given.envelope_id)
        if recorded is None:
            break  # a repeated post was decided anew: only what it has in common with the first result stands
        if recorded.sequence != first.sequence + place or not _says_the_same(recorded, given):
            raise IdReused(given.channel_id, given.envelope_id)
        sequence = recorded.sequence
    return sequence


def _says_the_same(recorded: Envelope, given: Envelope) -> bool:
    return same(replace(given, sequence=recorded.sequence, created_at=recorded.created_at), recorded)


def opened(channel: str, sequence: int, body: bytes, *, envelope_id: str | None = None) -> Envelope:
    """The envelope of a record; `LogCorrupt` if it is not the one its place in the log says."""
    try:
        envelope = decode(unsealed(body))
    except Malformed as error:
        raise LogCorrupt(channel, sequence, str(error)) from error
    if envelope.sequence != sequence or envelope.channel_id != channel:
        said = f"{envelope.channel_id!r}, sequence {envelope.sequence}"
        raise LogCorrupt(channel, sequence, f"the record here says that it is channel {said}")
    if envelope_id is not None and envelope.envelope_id != envelope_id:
        raise LogCorrupt(channel, sequence, f"the record of id {envelope_id!r} says {envelope.envelope_id!r}")
    return envelope


def tied(channel: str, row: Row, previous: bytes) -> Envelope:
    """The envelope of a row; `LogCorrupt` if it is not the one its place says, or not tied to the one before."""
    envelope = opened(channel, row.sequence, row.body, envelope_id=row.envelope_id)
    if not _fits(row, previous):
        raise LogCorrupt(channel, row.sequence, "the record does not fit the hash chain")
    return envelope


def _fits(row: Row, previous: bytes) -> bool:
    record = unsealed(row.body)
    if record is row.body:
        return link(previous, record) == row.hash
    return sealed(record, previous, row.hash) == row.body


def checked_page(channel: str, rows: Iterable[object], previous: bytes, *, after: int, limit: int) -> Page:
    """The good prefix of the rows behind `after`, each tied to the one before by its hash.

    `LogCorrupt` if the very first is bad. A later bad one ends the page; the next page meets it first.
    """
    envelopes: list[Envelope] = []
    try:
        for sequence, found in enumerate(rows, after + 1):
            if len(envelopes) == limit:
                return Page(envelopes, more=True)
            row = _row_of(channel, sequence, found)
            envelopes.append(tied(channel, row, previous))
            previous = row.hash
    except LogCorrupt:
        if not envelopes:
            raise
        return Page(envelopes, more=True)
    return Page(envelopes, more=False)


def _row_of(channel: str, sequence: int, found: object) -> Row:
    try:
        row = as_type(found, Row)
    except Malformed as error:
        raise LogCorrupt(channel, sequence, f"the row is not of its shape: {error}") from error
    if row.sequence != sequence:
        raise LogCorrupt(channel, sequence, f"the record is missing; the next one is {row.sequence}")
    return row


def place_of(cursor: str) -> int:
    """The position that a tail's cursor names."""
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) <= len(str(MOST)) and int(cursor) <= MOST):
        raise UsageError(f"{shown(cursor)} is no cursor of a tail")
    return int(cursor)


def check_number(name: str, number: object, *, least: int) -> None:
    """Refuse what is no number that every store can count with."""
    if not isinstance(number, int) or not least <= number <= MOST:
        raise UsageError(f"{name} must be a whole number from {least} to {MOST}, not {shown(number)}")


def check_stretch(after: object, limit: object) -> None:
    """Refuse to read a part of a log that no log can have."""
    check_number("after", after, least=0)
    check_number("limit", limit, least=1)


def check_position(participant: object, channel: object, sequence: object) -> None:
    """Refuse a position that nobody can have in any channel."""
    for name, value in (("participant", participant), ("channel", channel)):
        if not isinstance(value, str):
            raise UsageError(f"{name} must be text, not {shown(value)}")
    check_number("sequence", sequence, least=0)
