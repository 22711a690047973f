"""The listing: what is derived from the logs so that nobody has to fold them.

Rule 1: everything here runs inside a transaction, or on a reading connection, that somebody else holds.
Rule 2: a channel has a row since its first batch, and a row for each member since it names them.
Rule 3: a member is done with a channel once it has ended and everything in it is acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import msgspec

from antiphon.core.codec import Malformed, as_type, decode, from_json, to_json
from antiphon.core.envelope import Envelope
from antiphon.core.instants import NEVER, Instant
from antiphon.store.protocol import ChannelRow, Position, Snapshot
from antiphon.store.rows import ENDED, MOVES_A_ROW, rebuilt, row_after
from antiphon.store.sqlite_connection import Connection, one

_SHOWN = "SELECT c.channel, c.type, c.status, c.close_reason, c.creator, c.participants, c.due FROM channel AS c "
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
_HEAD = "SELECT coalesce(max(seq), 0) FROM log WHERE tenant = ? AND channel = ?"
_NEXT_NAME = "SELECT min(channel) FROM log WHERE tenant = ? AND channel > ?"
_KINDS = "SELECT seq, kind FROM log WHERE tenant = ? AND channel = ? ORDER BY seq"
_BODY = "SELECT body FROM log WHERE tenant = ? AND channel = ? AND seq = ?"
_PUT_SNAPSHOT = """
    INSERT INTO snapshot (tenant, channel, seq, version, blob) VALUES (?, ?, ?, ?, ?)
    ON CONFLICT (tenant, channel) DO UPDATE SET
        seq = excluded.seq, version = excluded.version, blob = excluded.blob
"""
_SNAPSHOT = "SELECT seq, version, blob FROM snapshot WHERE tenant = ? AND channel = ?"


class Projected(NamedTuple):
    """What an append means for a channel's row."""

    channel: str
    batch: Sequence[Envelope]
    due: Instant | None
    head: int


def project(connection: Connection, tenant: str, moved: Projected) -> ChannelRow:
    """Bring a channel's row and its members up to what was just recorded."""
    is_first = moved.head == len(moved.batch)
    old = None if is_first else read_row(connection, tenant, moved.channel)
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
    """One row of the listing."""
    found = one(connection, _ROW, (tenant, channel))
    return None if found is None else _shown(found)


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
    return [_shown(row) for row in found.fetchall()]


class Mark(NamedTuple):
    """What to change of a row."""

    channel: str
    status: str | None
    due: Instant | None


def mark(connection: Connection, tenant: str, change: Mark) -> ChannelRow | None:
    """Change a row that exists."""
    row = read_row(connection, tenant, change.channel)
    if row is None:
        return None
    if change.status is not None:
        row = msgspec.structs.replace(row, status=change.status)
    if change.due is not None:
        row = msgspec.structs.replace(row, due=change.due)
    put_row(connection, tenant, row)
    _settle(connection, tenant, row, head=_head(connection, tenant, change.channel))
    return row


def acknowledge(connection: Connection, tenant: str, position: tuple[str, str, int]) -> None:
    """Move the position of (participant, channel) forward to a sequence, at most to the head."""
    participant, channel, sequence = position
    head, row = _head(connection, tenant, channel), read_row(connection, tenant, channel)
    ended = row is not None and row.status in ENDED
    connection.execute(_ACKNOWLEDGE, (min(sequence, head), ended, head, tenant, participant, channel))


def read_positions(connection: Connection, tenant: str, participant: str) -> list[Position]:
    """The positions in all channels that this participant is not done with."""
    found = connection.execute(_POSITIONS, (tenant, participant)).fetchall()
    return [Position(channel, acked) for channel, acked in as_type(found, list[tuple[str, int]])]


def put_snapshot(connection: Connection, tenant: str, channel: str, *, snapshot: Snapshot) -> None:
    """Keep a fold of a channel that has a log."""
    if _head(connection, tenant, channel):
        values = (tenant, channel, snapshot.sequence, snapshot.version, snapshot.blob)
        connection.execute(_PUT_SNAPSHOT, values)


def read_snapshot(connection: Connection, tenant: str, channel: str) -> Snapshot | None:
    """The fold that was kept last."""
    found = one(connection, _SNAPSHOT, (tenant, channel))
    return None if found is None else Snapshot(*as_type(found, tuple[int, str, bytes]))


def rebuild(connection: Connection, tenant: str, now: Instant) -> None:
    """Make all rows anew. A channel whose row was lost is due at once: nobody knows when it would have been."""
    for channel in _names(connection, tenant, ""):
        old = read_row(connection, tenant, channel)
        try:
            row = rebuilt(old or ChannelRow(channel), _moves(connection, tenant, channel))
        except Malformed:
            continue  # its reader will say so; the row stays as it was
        if old is None and row.status not in ENDED:
            row = msgspec.structs.replace(row, due=now)
        put_row(connection, tenant, row)
        _settle(connection, tenant, row, head=_head(connection, tenant, channel))


def read_names(connection: Connection, tenant: str, after: str, *, limit: int) -> list[str]:
    """The channels that have a log, in order, behind a name."""
    return list(islice(_names(connection, tenant, after), limit))


def _names(connection: Connection, tenant: str, after: str) -> Iterator[str]:
    name: str | None = after
    while True:
        (name,) = as_type(one(connection, _NEXT_NAME, (tenant, name)), tuple[str | None])
        if name is None:
            return
        yield name


def _moves(connection: Connection, tenant: str, channel: str) -> Iterator[Envelope]:
    kinds = as_type(connection.execute(_KINDS, (tenant, channel)).fetchall(), list[tuple[int, str]])
    for sequence, kind in kinds:
        if kind in MOVES_A_ROW:
            (body,) = as_type(one(connection, _BODY, (tenant, channel, sequence)), tuple[bytes])
            yield decode(body)


def _settle(connection: Connection, tenant: str, row: ChannelRow, *, head: int) -> None:
    names = to_json(row.participants).decode()
    connection.execute(_SETTLE, (row.status in ENDED, head, tenant, row.channel_id, names))


def _head(connection: Connection, tenant: str, channel: str) -> int:
    return as_type(one(connection, _HEAD, (tenant, channel)), tuple[int])[0]


def _shown(found: object) -> ChannelRow:
    channel, kind, status, reason, creator, names, due = as_type(found, tuple[str, str, str, str, str, str, str])
    return ChannelRow(
        channel_id=channel,
        type=kind,
        status=status,
        close_reason=reason,
        creator_id=creator,
        participants=from_json(names.encode(), list[str]),
        due=due or NEVER,
    )
