"""What every store shares: records and their hash chain, the answer to an append, rows, leases, a wake-up.

Rule 1: a record is an encoded envelope. It is written once and read back as it is, or not at all.
Rule 2: hash(n) = SHA-256(hash(n-1) || record n); hash(0) names the tenant and the channel.
Rule 3: the record of an erased envelope is a sealed tombstone: hash(n) stays, although nothing is left to compute it
        from, and the seal ties it to hash(n-1) and to the tombstone.
Rule 4: two envelopes of one id have the same content if they differ only in the stamps, sequence and time.
Rule 5: the row of a channel follows from its log alone, but for its due time and its quarantine.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import msgspec

from antiphon.core.codec import MAX_EVENT_BYTES, Malformed, as_type, decode_envelope, encode_envelope, same_json
from antiphon.core.envelope import ERASED, Envelope, Instant, add_seconds
from antiphon.core.errors import Conflict, IdReused, LogCorrupt, TooLarge, UsageError
from antiphon.core.event_data import event_of
from antiphon.core.events import (
    EV_CHANNEL_CLOSED,
    EV_CHANNEL_CREATED,
    EV_CHANNEL_EXPIRED,
    EV_CHANNEL_OPENED,
    ChannelClosed,
    ChannelCreated,
    ChannelExpired,
    ChannelOpened,
)
from antiphon.core.state import ENDED_STATUSES
from antiphon.core.text import describe
from antiphon.store.protocol import MAX_CLOCK_SKEW_SECONDS, Appended, ChannelRow, Lease, Page

MAX_RECORD_BYTES = MAX_EVENT_BYTES + 16 * 1024
"""Room for the largest event data and the nine other fields."""
MAX_PAGE_BYTES = 1024 * 1024
"""The size of the records that are read at once. A page with one record may be larger."""
ENVELOPES_PER_SLICE = 1000
"""How many envelopes are encoded at once."""
TAIL_BATCH_ENVELOPES = 1000
"""The most envelopes that a tail gives at once."""
MAX_STORE_INTEGER = 2**63 - 1
"""The highest integer that every store can keep."""

FindEnvelope = Callable[[str], Envelope | None]
"""The recorded envelope of an id, in one channel."""


class LogRow(NamedTuple):
    """One record as a table holds it."""

    sequence: int
    envelope_id: str
    body: bytes
    hash: bytes


def genesis_hash(tenant: str, channel: str) -> bytes:
    """The hash that a channel's first record is tied to."""
    return hashlib.sha256(f"{len(tenant)}:{tenant}{len(channel)}:{channel}".encode()).digest()


def chain_hash(previous: bytes, record: bytes) -> bytes:
    """The hash of a record, given the hash of the one before."""
    return hashlib.sha256(previous + record).digest()


_SEAL_PREFIX, _RECORD_PREFIX = b'{"seal":"', b'","record":'
_SEAL_LENGTH = len(_SEAL_PREFIX) + 64


def seal_tombstone(tombstone: bytes, previous: bytes, digest: bytes) -> bytes:
    """The record of a tombstone, which keeps the hash of what was erased."""
    seal = hashlib.sha256(previous + digest + tombstone).hexdigest().encode()
    return _SEAL_PREFIX + seal + _RECORD_PREFIX + tombstone + b"}"


def encoded_envelope_of(body: bytes) -> bytes:
    """The encoded envelope of a record, whether it was erased or not."""
    if not body.startswith(_SEAL_PREFIX):
        return body
    return body[_SEAL_LENGTH + len(_RECORD_PREFIX) : -1]


def encode_records(channel: str, batch: Sequence[Envelope]) -> list[bytes]:
    """The records of a batch; refused if a store could not give back exactly this batch for this channel."""
    if not batch:
        raise UsageError(f"the batch for channel {channel!r} is empty")
    for envelope in batch:
        if envelope.channel_id != channel or not envelope.envelope_id:
            given = f"envelope {envelope.envelope_id!r} of channel {envelope.channel_id!r}"
            raise UsageError(f"{given} cannot be recorded in {channel!r}")
    try:
        records = [encode_envelope(envelope) for envelope in batch]
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise UsageError(f"an envelope for channel {channel!r} is no JSON: {error}") from error
    largest = max(map(len, records))
    if largest > MAX_RECORD_BYTES:
        raise TooLarge(channel, largest, MAX_RECORD_BYTES)
    return records


async def encode_records_in_slices(channel: str, batch: Sequence[Envelope]) -> list[bytes]:
    """The same, yielding to the event loop between the slices of a long batch."""
    if len(batch) <= ENVELOPES_PER_SLICE:
        return encode_records(channel, batch)
    records: list[bytes] = []
    for begin in range(0, len(batch), ENVELOPES_PER_SLICE):
        records += encode_records(channel, batch[begin : begin + ENVELOPES_PER_SLICE])
        await asyncio.sleep(0)
    return records


def has_expected_sequences(batch: Sequence[Envelope], expected: int) -> bool:
    """Whether the batch carries the sequences that follow `expected`."""
    return all(envelope.sequence == expected + place for place, envelope in enumerate(batch, 1))


def resolve_append(batch: Sequence[Envelope], *, expected: int, head: int, find: FindEnvelope) -> Appended:
    """The result of an append: where the batch stands already, or will stand once it is written.

    A first id that is recorded makes it a duplicate, regardless of what `expected` says.
    """
    channel = batch[0].channel_id
    first = find(batch[0].envelope_id)
    if first is not None:
        return Appended(first.sequence, _last_repeated_sequence(batch, first, find), duplicate=True)
    if expected != head:
        raise Conflict(channel, expected, head)
    seen: set[str] = set()
    for envelope in batch:
        if envelope.envelope_id in seen or find(envelope.envelope_id) is not None:
            raise IdReused(channel, envelope.envelope_id)
        seen.add(envelope.envelope_id)
    if not has_expected_sequences(batch, expected):
        stamps = [envelope.sequence for envelope in batch]
        raise UsageError(f"the batch for channel {channel!r} at {expected} is stamped {stamps}")
    return Appended(expected + 1, expected + len(batch))


def _last_repeated_sequence(batch: Sequence[Envelope], first: Envelope, find: FindEnvelope) -> int:
    sequence = first.sequence
    for place, given in enumerate(batch):
        recorded = find(given.envelope_id)
        if recorded is None:
            break  # a repeated post is decided again: only the part that it shares with the first result is recorded
        if recorded.sequence != first.sequence + place or not _has_same_content(recorded, given):
            raise IdReused(given.channel_id, given.envelope_id)
        sequence = recorded.sequence
    return sequence


def _has_same_content(recorded: Envelope, given: Envelope) -> bool:
    return same_json(replace(given, sequence=recorded.sequence, created_at=recorded.created_at), recorded)


def decode_record(channel: str, sequence: int, body: bytes, *, envelope_id: str | None = None) -> Envelope:
    """The envelope of a record; `LogCorrupt` if it is not the one its place in the log says."""
    try:
        envelope = decode_envelope(encoded_envelope_of(body))
    except Malformed as error:
        raise LogCorrupt(channel, sequence, str(error)) from error
    if envelope.sequence != sequence or envelope.channel_id != channel:
        said = f"{envelope.channel_id!r}, sequence {envelope.sequence}"
        raise LogCorrupt(channel, sequence, f"the record here says that it is channel {said}")
    if envelope_id is not None and envelope.envelope_id != envelope_id:
        raise LogCorrupt(channel, sequence, f"the record of id {envelope_id!r} says {envelope.envelope_id!r}")
    return envelope


def decode_linked_row(channel: str, row: LogRow, previous: bytes) -> Envelope:
    """The envelope of a row; `LogCorrupt` if it is not the one its place says, or not tied to the one before."""
    envelope = decode_record(channel, row.sequence, row.body, envelope_id=row.envelope_id)
    if not _fits_hash_chain(row, previous):
        raise LogCorrupt(channel, row.sequence, "the record does not fit the hash chain")
    return envelope


def _fits_hash_chain(row: LogRow, previous: bytes) -> bool:
    record = encoded_envelope_of(row.body)
    if record is row.body:
        return chain_hash(previous, record) == row.hash
    return seal_tombstone(record, previous, row.hash) == row.body


def page_of_rows(channel: str, rows: Iterable[object], previous: bytes, *, after: int, limit: int) -> Page:
    """The good prefix of the rows behind `after`, each tied to the one before by its hash.

    `LogCorrupt` if the very first is bad. A later bad one ends the page; the next page meets it first.
    """
    envelopes: list[Envelope] = []
    try:
        for sequence, found in enumerate(rows, after + 1):
            if len(envelopes) == limit:
                return Page(envelopes, more=True)
            row = _log_row_of(channel, sequence, found)
            envelopes.append(decode_linked_row(channel, row, previous))
            previous = row.hash
    except LogCorrupt:
        if not envelopes:
            raise
        return Page(envelopes, more=True)
    return Page(envelopes, more=False)


def _log_row_of(channel: str, sequence: int, found: object) -> LogRow:
    try:
        row = as_type(found, LogRow)
    except Malformed as error:
        raise LogCorrupt(channel, sequence, f"the row is not of its shape: {error}") from error
    if row.sequence != sequence:
        raise LogCorrupt(channel, sequence, f"the record is missing; the next one is {row.sequence}")
    return row


def cursor_position(cursor: str) -> int:
    """The position that a tail's cursor names."""
    if not re.fullmatch("[0-9]{1,19}", cursor) or int(cursor) > MAX_STORE_INTEGER:
        raise UsageError(f"{describe(cursor)} is no cursor of a tail")
    return int(cursor)


def check_number(name: str, number: object, *, least: int) -> None:
    """Refuse what is no integer that every store can keep."""
    if not isinstance(number, int) or not least <= number <= MAX_STORE_INTEGER:
        raise UsageError(f"{name} must be a whole number from {least} to {MAX_STORE_INTEGER}, not {describe(number)}")


def check_read_range(after: object, limit: object) -> None:
    """Refuse to read a part of a log that no log can have."""
    check_number("after", after, least=0)
    check_number("limit", limit, least=1)


def check_position(participant: object, channel: object, sequence: object) -> None:
    """Refuse a position that no participant can have in any channel."""
    for name, value in (("participant", participant), ("channel", channel)):
        if not isinstance(value, str):
            raise UsageError(f"{name} must be text, not {describe(value)}")
    check_number("sequence", sequence, least=0)


class LeaseClaim(NamedTuple):
    """An owner, and how long from now it wants something. `Leases.lease` says why what ends too late has ended."""

    owner: str
    now: Instant
    ttl: float

    @property
    def until(self) -> Instant:
        """The end of what is given to this claim."""
        return add_seconds(self.now, self.ttl)

    @property
    def latest_until(self) -> Instant:
        """The latest end of what was given to another claim."""
        return add_seconds(self.now, self.ttl + MAX_CLOCK_SKEW_SECONDS)

    def lease(self, name: str, held: Lease | None) -> Lease | None:
        """The lease that this claim takes or renews; None while another owner holds it."""
        if held is None:
            return Lease(name, self.owner, 1, self.until)
        if held.owner != self.owner and self.now < held.until <= self.latest_until:
            return None
        return Lease(name, self.owner, held.epoch + (held.owner != self.owner), self.until)

    def attended_since(self, since: Instant, until: Instant) -> Instant:
        """Since when at least one hub has been open, if one noted `since` for as long as `until`."""
        return since if self.now <= until <= self.latest_until else self.now


TAIL_POLL_SECONDS = 1.0


class WakeUp:
    """Wakes the followers of a log. It is a hint: a follower also looks once a second.

    `generation` counts the notifications, so that one between looking and waiting is not missed.
    """

    def __init__(self) -> None:
        self.generation = 0
        self._waiting: set[asyncio.Future[None]] = set()

    def notify(self) -> None:
        """Wake all that wait."""
        self.generation += 1
        for future in self._waiting:
            if not future.done():
                future.set_result(None)
        self._waiting.clear()

    async def wait(self, seen: int) -> None:
        """Return once the generation has moved on from `seen`, or when it is time to look anyway."""
        if self.generation != seen:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            async with asyncio.timeout(TAIL_POLL_SECONDS):
                await future
        except TimeoutError:
            return
        finally:
            self._waiting.discard(future)


ROW_EVENT_TYPES = frozenset({EV_CHANNEL_CREATED, EV_CHANNEL_OPENED, EV_CHANNEL_EXPIRED, EV_CHANNEL_CLOSED})
QUARANTINED_STATUS = "quarantined"
SYSTEM_CHANNEL_PREFIX = "system:"
"""Channels with this prefix are the hub's own."""


def row_after_batch(row: ChannelRow, batch: Iterable[Envelope], due: Instant | None = None) -> ChannelRow:
    """The row once a batch is recorded, and with a new due time, if one is given."""
    for envelope in batch:
        if envelope.event_type in ROW_EVENT_TYPES:
            row = _row_after(row, envelope)
    return row if due is None else msgspec.structs.replace(row, due=due)


def _row_after(row: ChannelRow, envelope: Envelope) -> ChannelRow:
    match event_of(envelope):
        case ChannelCreated() as created if not row.type:
            names = [seat.name for seat in created.participants]
            return msgspec.structs.replace(
                row, type=created.type, creator_id=created.creator, participants=names, status="invited"
            )
        case ChannelOpened():
            return msgspec.structs.replace(row, status="active")
        case ChannelExpired():
            return msgspec.structs.replace(row, status="expired")
        case ChannelClosed(reason=reason):
            status = "expired" if row.status == "expired" else "closed"
            return msgspec.structs.replace(row, status=status, close_reason=reason, due="")
        case _:
            return row


def erased_row(row: ChannelRow) -> ChannelRow:
    """The row of a channel once its content was erased."""
    return msgspec.structs.replace(row, close_reason=ERASED, creator_id="", participants=[], due="")


def check_channel_ended(channel: str, row: ChannelRow | None) -> None:
    """Refuse to erase a channel that has not ended."""
    status = "unknown" if row is None else row.status
    if status not in ENDED_STATUSES:
        raise UsageError(f"channel {channel!r} cannot be erased: its status is {status!r}; close it first")


def rebuild_row(old: ChannelRow, log: Iterable[Envelope]) -> ChannelRow:
    """The row rebuilt from its log. Its due time and its quarantine are in no log, and stay."""
    row = row_after_batch(ChannelRow(old.channel_id), log)
    status = old.status if old.status == QUARANTINED_STATUS else row.status
    return msgspec.structs.replace(row, due=old.due, status=status)
