"""The listing: what is derived from the logs so that nobody has to fold them.

Rule 1: everything here runs inside a transaction, or on a reading connection, that somebody else holds.
Rule 2: a channel has a row since its first batch, and a row for each member since it names them.
Rule 3: a member is done with a channel once it has ended and everything in it is acknowledged.
Rule 4: a row that cannot be read costs only its own channel, and a snapshot that cannot be trusted is none.
"""

from __future__ import annotations

import hashlib
import logging
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import msgspec

from antiphon.core.codec import Malformed, as_type, decode, from_json, to_json
from antiphon.core.envelope import Envelope
from antiphon.core.errors import LogCorrupt
from antiphon.core.instants import NEVER, Instant
from antiphon.core.state import ENDED
from antiphon.store.protocol import ChannelRow, Position, Snapshot
from antiphon.store.records import unsealed
from antiphon.store.rows import MOVES_A_ROW, QUARANTINED, rebuilt, row_after
from antiphon.store.sqlite_connection import Connection, is_damage, one, text_of
from antiphon.store.sqlite_reads import read_hash, read_head

log = logging.getLogger("antiphon.store")

_SHOWN = """
    SELECT CAST(c.channel AS BLOB), CAST(c.type AS BLOB), CAST(c.status AS BLOB), CAST(c.close_reason AS BLOB),
        CAST(c.creator AS BLOB), CAST(c.participants AS BLOB), CAST(c.due AS BLOB)
    FROM channel AS c
"""
_ROW = _SHOWN + "WHERE c.tenant = ? AND c.channel = ?"
_ROWS = _SHOWN + "WHERE c.tenant = ? AND c.channel > ? ORDER BY c.channel LIMIT ?"
_ROWS_OF_STATUS = _SHOWN + "WHERE c.tenant = ? AND c.status = ? AND c.channel > ? ORDER BY c.channel LIMIT ?"
_ROWS_OF_MEMBER = (
    _SHOWN
    + """
    JOIN member AS m ON m.tenant = c.tenant AND m.channel = c.channel
    WHERE m.tenant = ? AND m.participant = ? AND m.channel > ? AND (?4 IS NULL OR c.status = ?4)
    ORDER BY m.channel LIMIT ?
    """
)
_PUT_ROW = """
    INSERT INTO channel (tenant, channel, type, status, close_reason, creator, participants, due, held)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, '')
    ON CONFLICT (tenant, channel) DO UPDATE SET
        type = excluded.type, status = excluded.status, close_reason = excluded.close_reason,
        creator = excluded.creator, participants = excluded.participants,
        held = CASE WHEN due = excluded.due THEN held ELSE '' END, due = excluded.due
"""
_MARK = """
    UPDATE channel SET
        status = coalesce(?1, status), held = CASE WHEN due = coalesce(?2, due) THEN held ELSE '' END,
        due = coalesce(?2, due)
    WHERE tenant = ?3 AND channel = ?4
"""
_STATUS = "SELECT status FROM channel WHERE tenant = ? AND channel = ?"
_JOIN = """
    INSERT OR IGNORE INTO member (tenant, participant, channel, acked, done)
    SELECT ?, value, ?, 0, 0 FROM json_each(?)
"""
_SETTLE = """
    UPDATE member SET done = (? AND acked >= ?)
    WHERE tenant = ? AND channel = ? AND participant IN (SELECT value FROM json_each(?))
"""
_ACKNOWLEDGE = """
    UPDATE member SET acked = max(acked, ?1), done = (?2 AND max(acked, ?1) >= ?3)
    WHERE tenant = ?4 AND participant = ?5 AND channel = ?6
"""
_POSITIONS = """
    SELECT channel, acked FROM member WHERE tenant = ? AND participant = ? AND done = 0 ORDER BY channel
"""
_NEXT_NAME = "SELECT CAST(min(channel) AS BLOB) FROM log WHERE tenant = ? AND channel > CAST(? AS TEXT)"
_NAMES = """
    SELECT DISTINCT CAST(channel AS BLOB) FROM log INDEXED BY log_id
    WHERE tenant = ? AND channel > CAST(? AS TEXT) ORDER BY 1
"""
_KINDS = "SELECT seq, kind FROM log WHERE tenant = ? AND channel = ? ORDER BY seq"
_BODY = "SELECT body FROM log WHERE tenant = ? AND channel = ? AND seq = ?"
_PUT_SNAPSHOT = """
    INSERT INTO snapshot (tenant, channel, seq, version, blob) VALUES (?, ?, ?, ?, ?)
    ON CONFLICT (tenant, channel) DO UPDATE SET
        seq = excluded.seq, version = excluded.version, blob = excluded.blob
"""
_SNAPSHOT = "SELECT seq, version, blob FROM snapshot WHERE tenant = ? AND channel = ?"
_DIGEST = hashlib.sha256().digest_size


class Projected(NamedTuple):
    """What an append means for a channel's row."""

    channel: str
    batch: Sequence[Envelope]
    due: Instant | None
    head: int


def project(connection: Connection, tenant: str, moved: Projected) -> ChannelRow:
    """Bring a channel's row and its members up to what was just recorded."""
    is_first = moved.head == len(moved.batch)
    found = None if is_first else one(connection, _ROW, (tenant, moved.channel))
    old = None if found is None else _row_of(found)
    row = old or ChannelRow(moved.channel)
    for envelope in moved.batch:
        if envelope.event_type in MOVES_A_ROW:
            row = row_after(row, envelope)
    if moved.due is not None:
        row = msgspec.structs.replace(row, due=moved.due)
    put_row(connection, tenant, row)
    if old is not None and ENDED & {old.status, row.status}:
        _settle(connection, tenant, row, head=moved.head)
    return row


def put_row(connection: Connection, tenant: str, row: ChannelRow) -> None:
    """Write a row of the listing, and a place for each member it names."""
    names = to_json(row.participants).decode()
    shown = (row.type, row.status, row.close_reason, row.creator_id, names, row.due)
    connection.execute(_PUT_ROW, (tenant, row.channel_id, *shown))
    if row.participants:
        connection.execute(_JOIN, (tenant, row.channel_id, names))


def read_row(connection: Connection, tenant: str, channel: str) -> ChannelRow | None:
    """One row of the listing, as far as it can be read."""
    found = one(connection, _ROW, (tenant, channel))
    return None if found is None else next(_shown([found]), None)


class Wanted(NamedTuple):
    """Which rows of the listing are asked for."""

    status: str | None
    participant: str | None
    after: str
    limit: int


def read_rows(connection: Connection, tenant: str, wanted: Wanted) -> list[ChannelRow]:
    """Rows in order of channel id."""
    status, participant, after, limit = wanted
    if participant is not None:
        found = connection.execute(_ROWS_OF_MEMBER, (tenant, participant, after, status, limit))
    elif status is not None:
        found = connection.execute(_ROWS_OF_STATUS, (tenant, status, after, limit))
    else:
        found = connection.execute(_ROWS, (tenant, after, limit))
    return list(_shown(found.fetchall()))


class Mark(NamedTuple):
    """What to change of a row."""

    channel: str
    status: str | None
    due: Instant | None


def mark(connection: Connection, tenant: str, change: Mark) -> None:
    """Change a row that exists. The log is looked at only if the channel has ended: a damaged one can be marked."""
    connection.execute(_MARK, (change.status, change.due, tenant, change.channel))
    row = None if change.status is None else read_row(connection, tenant, change.channel)
    if row is not None:
        _settle(connection, tenant, row)


def acknowledge(connection: Connection, tenant: str, position: tuple[str, str, int]) -> None:
    """Move the position of (participant, channel) forward to a sequence, at most to the head."""
    participant, channel, sequence = position
    head, found = read_head(connection, tenant, channel), one(connection, _STATUS, (tenant, channel))
    ended = found is not None and as_type(found, tuple[str])[0] in ENDED
    connection.execute(_ACKNOWLEDGE, (min(sequence, head), ended, head, tenant, participant, channel))


def read_positions(connection: Connection, tenant: str, participant: str) -> list[Position]:
    """The positions in all channels that this participant is not done with."""
    found = connection.execute(_POSITIONS, (tenant, participant)).fetchall()
    return [Position(channel, acked) for channel, acked in as_type(found, list[tuple[str, int]])]


def put_snapshot(connection: Connection, tenant: str, channel: str, *, snapshot: Snapshot) -> None:
    """Keep a fold of a channel that has a log, as far as that goes."""
    recorded = read_hash(connection, tenant, channel, sequence=snapshot.sequence)
    if recorded is not None:
        sealed = _seal(recorded, snapshot.version, snapshot.blob) + recorded + snapshot.blob
        connection.execute(_PUT_SNAPSHOT, (tenant, channel, snapshot.sequence, snapshot.version, sealed))


def read_snapshot(connection: Connection, tenant: str, channel: str) -> Snapshot | None:
    """The fold that was kept last, if it is what was kept, and the log is what was folded.

    A log that has become shorter does not make it wrong: it is all that is left of the end.
    """
    try:
        found = one(connection, _SNAPSHOT, (tenant, channel))
        if found is None:
            return None
        sequence, version, sealed = as_type(found, tuple[int, str, bytes])
        recorded = read_hash(connection, tenant, channel, sequence=sequence)
    except (sqlite3.Error, Malformed, LogCorrupt) as error:
        if is_damage(error):
            return None
        raise
    seal, folded, blob = sealed[:_DIGEST], sealed[_DIGEST : 2 * _DIGEST], sealed[2 * _DIGEST :]
    if recorded not in (None, folded) or seal != _seal(folded, version, blob):
        return None
    return Snapshot(sequence, version, blob)


def _seal(folded: bytes, version: str, blob: bytes) -> bytes:
    """What a fold up to the record of this hash is recognised by."""
    return hashlib.sha256(folded + f"{len(version)}:{version}".encode() + blob).digest()


def rebuild(connection: Connection, tenant: str, channel: str, *, now: Instant) -> None:
    """Make a channel's row anew. If it was lost the channel is due at once: nobody knows when it would have been."""
    found = one(connection, _ROW, (tenant, channel))
    try:
        old = None if found is None else _row_of(found)
    except Malformed:
        old = None
    row = rebuilt(old or ChannelRow(channel), _moves(connection, tenant, channel))
    if old is None and row.status not in ENDED:
        row = msgspec.structs.replace(row, due=now)
    put_row(connection, tenant, row)
    _settle(connection, tenant, row)


def read_names(connection: Connection, tenant: str, after: str, *, limit: int) -> list[str]:
    """The channels that have a log, in order, behind a name. If one index is damaged, the other knows them too."""
    try:
        return list(islice(_readable(_names(connection, tenant, after.encode())), limit))
    except sqlite3.Error as error:
        if not is_damage(error):
            raise
        log.warning("the names of channels are searched for in all envelope ids: %s", error)
    found = connection.execute(_NAMES, (tenant, after.encode())).fetchall()
    return list(islice(_readable(name for (name,) in as_type(found, list[tuple[bytes]])), limit))


def _names(connection: Connection, tenant: str, after: bytes) -> Iterator[bytes]:
    name: bytes | None = after
    while True:
        (name,) = as_type(one(connection, _NEXT_NAME, (tenant, name)), tuple[bytes | None])
        if name is None:
            return
        yield name


def _readable(names: Iterable[object]) -> Iterator[str]:
    for name in names:
        try:
            yield text_of(name)
        except Malformed as error:
            log.warning("a channel has no readable name and is passed over: %s", error)


def _moves(connection: Connection, tenant: str, channel: str) -> Iterator[Envelope]:
    kinds = as_type(connection.execute(_KINDS, (tenant, channel)).fetchall(), list[tuple[int, str]])
    for sequence, kind in kinds:
        if kind in MOVES_A_ROW:
            (body,) = as_type(one(connection, _BODY, (tenant, channel, sequence)), tuple[bytes])
            yield decode(unsealed(body))


def _settle(connection: Connection, tenant: str, row: ChannelRow, *, head: int | None = None) -> None:
    """Say which members are done. The head is read only if it matters."""
    ended, names = row.status in ENDED, to_json(row.participants).decode()
    if ended and head is None:
        head = read_head(connection, tenant, row.channel_id)
    connection.execute(_SETTLE, (ended, head, tenant, row.channel_id, names))


def _shown(rows: Sequence[object]) -> Iterator[ChannelRow]:
    """Rows as a listing shows them. One that cannot be read is shown as quarantined, if it can be named."""
    for found in as_type(rows, list[tuple[object, ...]]):
        try:
            yield _row_of(found)
        except Malformed as error:
            log.warning("a row of the listing cannot be read (%s); rebuild the listing", error)
            yield from (ChannelRow(name, status=QUARANTINED) for name in _readable(found[:1]))


def _row_of(found: object) -> ChannelRow:
    """A row; `Malformed` if it cannot be read."""
    channel, kind, status, reason, creator, names, due = map(text_of, as_type(found, tuple[bytes, ...]))
    return ChannelRow(
        channel_id=channel,
        type=kind,
        status=status,
        close_reason=reason,
        creator_id=creator,
        participants=from_json(names.encode(), list[str]),
        due=due or NEVER,
    )
