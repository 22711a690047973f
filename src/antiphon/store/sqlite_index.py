"""The tables beside the log: the listing of channels, positions of members, snapshots, and leases.

Rule 1: every function runs inside a transaction, or on a reading connection, of its caller.
Rule 2: a channel has a row since its first batch, and a row for each member since it names them.
Rule 3: a member is done with a channel once it has ended and everything in it is acknowledged.
Rule 4: a row that cannot be read affects its own channel only, and a snapshot that cannot be trusted is ignored.
Rule 5: leases and due channels are hints: nothing is lost or doubled if all are granted to all.
"""

from __future__ import annotations

import hashlib
import logging
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import msgspec

from antiphon.core.codec import Malformed, as_type, decode_envelope, from_json, to_json
from antiphon.core.envelope import NEVER, Envelope, Instant
from antiphon.core.errors import LogCorrupt
from antiphon.core.state import ENDED_STATUSES
from antiphon.store.protocol import ChannelRow, Due, Lease, Position, Snapshot
from antiphon.store.records import (
    QUARANTINED_STATUS,
    ROW_EVENT_TYPES,
    LeaseClaim,
    encoded_envelope_of,
    rebuild_row,
    row_after_batch,
)
from antiphon.store.sqlite_connection import SqliteConnection, decode_blob_text, fetch_one, is_damage
from antiphon.store.sqlite_reads import read_hash, read_head

logger = logging.getLogger("antiphon.store")

_SELECT_ROWS = """
    SELECT CAST(c.channel AS BLOB), CAST(c.type AS BLOB), CAST(c.status AS BLOB), CAST(c.close_reason AS BLOB),
        CAST(c.creator AS BLOB), CAST(c.participants AS BLOB), CAST(c.due AS BLOB)
    FROM channel AS c
"""
_SELECT_ROW = _SELECT_ROWS + "WHERE c.tenant = ? AND c.channel = ?"
_ROWS = _SELECT_ROWS + "WHERE c.tenant = ? AND c.channel > ? ORDER BY c.channel LIMIT ?"
_ROWS_OF_STATUS = _SELECT_ROWS + "WHERE c.tenant = ? AND c.status = ? AND c.channel > ? ORDER BY c.channel LIMIT ?"
_ROWS_OF_MEMBER = (
    _SELECT_ROWS
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
_UPDATE_ROW = """
    UPDATE channel SET
        status = coalesce(?1, status), held = CASE WHEN due = coalesce(?2, due) THEN held ELSE '' END,
        due = coalesce(?2, due)
    WHERE tenant = ?3 AND channel = ?4
"""
_SELECT_STATUS = "SELECT status FROM channel WHERE tenant = ? AND channel = ?"
_INSERT_MEMBERS = """
    INSERT OR IGNORE INTO member (tenant, participant, channel, acked, done)
    SELECT ?, value, ?, 0, 0 FROM json_each(?)
"""
_UPDATE_DONE = """
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
_SELECT_KINDS = "SELECT seq, kind FROM log WHERE tenant = ? AND channel = ? ORDER BY seq"
_SELECT_BODY = "SELECT body FROM log WHERE tenant = ? AND channel = ? AND seq = ?"
_PUT_SNAPSHOT = """
    INSERT INTO snapshot (tenant, channel, seq, version, blob) VALUES (?, ?, ?, ?, ?)
    ON CONFLICT (tenant, channel) DO UPDATE SET
        seq = excluded.seq, version = excluded.version, blob = excluded.blob
"""
_SNAPSHOT = "SELECT seq, version, blob FROM snapshot WHERE tenant = ? AND channel = ?"
_DIGEST_BYTES = hashlib.sha256().digest_size


def project_batch(
    connection: SqliteConnection, tenant: str, batch: Sequence[Envelope], *, due: Instant | None, head: int
) -> ChannelRow:
    """Update the row and the members of a channel after a batch was recorded, and is its head."""
    channel = batch[0].channel_id
    found = None if head == len(batch) else fetch_one(connection, _SELECT_ROW, (tenant, channel))
    old = None if found is None else _channel_row_of(found)
    row = row_after_batch(old or ChannelRow(channel), batch, due)
    put_row(connection, tenant, row)
    if old is not None and ENDED_STATUSES & {old.status, row.status}:
        _update_done_members(connection, tenant, row, head=head)
    return row


def put_row(connection: SqliteConnection, tenant: str, row: ChannelRow) -> None:
    """Write a row of the listing, and one for each member it names."""
    names = to_json(row.participants).decode()
    shown = (row.type, row.status, row.close_reason, row.creator_id, names, row.due)
    connection.execute(_PUT_ROW, (tenant, row.channel_id, *shown))
    if row.participants:
        connection.execute(_INSERT_MEMBERS, (tenant, row.channel_id, names))


def read_row(connection: SqliteConnection, tenant: str, channel: str) -> ChannelRow | None:
    """One row of the listing; quarantined if it cannot be read."""
    found = fetch_one(connection, _SELECT_ROW, (tenant, channel))
    return None if found is None else next(_listed_rows([found]), None)


def read_rows(
    connection: SqliteConnection, tenant: str, after: str, *, limit: int, status: str | None, participant: str | None
) -> list[ChannelRow]:
    """Rows in order of channel id."""
    if participant is not None:
        found = connection.execute(_ROWS_OF_MEMBER, (tenant, participant, after, status, limit))
    elif status is not None:
        found = connection.execute(_ROWS_OF_STATUS, (tenant, status, after, limit))
    else:
        found = connection.execute(_ROWS, (tenant, after, limit))
    return list(_listed_rows(found.fetchall()))


def change_row(
    connection: SqliteConnection, tenant: str, channel: str, *, status: str | None, due: Instant | None
) -> None:
    """Change a row that exists. The log is looked at only if the channel has ended: a damaged one can be marked."""
    connection.execute(_UPDATE_ROW, (status, due, tenant, channel))
    row = None if status is None else read_row(connection, tenant, channel)
    if row is not None:
        _update_done_members(connection, tenant, row)


def move_position(connection: SqliteConnection, tenant: str, position: tuple[str, str, int]) -> None:
    """Move the position of (participant, channel) forward to a sequence, at most to the head."""
    participant, channel, sequence = position
    head, found = read_head(connection, tenant, channel), fetch_one(connection, _SELECT_STATUS, (tenant, channel))
    ended = found is not None and as_type(found, tuple[str])[0] in ENDED_STATUSES
    connection.execute(_ACKNOWLEDGE, (min(sequence, head), ended, head, tenant, participant, channel))


def read_positions(connection: SqliteConnection, tenant: str, participant: str) -> list[Position]:
    """The positions in all channels that this participant is not done with."""
    found = connection.execute(_POSITIONS, (tenant, participant)).fetchall()
    return [Position(channel, acked) for channel, acked in as_type(found, list[tuple[str, int]])]


def put_snapshot(connection: SqliteConnection, tenant: str, channel: str, *, snapshot: Snapshot) -> None:
    """Keep a fold of a channel, unless it leads the log."""
    recorded = read_hash(connection, tenant, channel, sequence=snapshot.sequence)
    if recorded is not None:
        sealed = _snapshot_seal(recorded, snapshot.version, snapshot.blob) + recorded + snapshot.blob
        connection.execute(_PUT_SNAPSHOT, (tenant, channel, snapshot.sequence, snapshot.version, sealed))


def read_snapshot(connection: SqliteConnection, tenant: str, channel: str) -> Snapshot | None:
    """The fold that was kept last; None if its seal is broken, or its record has another hash.

    It stays valid if the log has become shorter: then it is all that is left of the end.
    """
    try:
        found = fetch_one(connection, _SNAPSHOT, (tenant, channel))
        if found is None:
            return None
        sequence, version, sealed = as_type(found, tuple[int, str, bytes])
        recorded = read_hash(connection, tenant, channel, sequence=sequence)
    except (sqlite3.Error, Malformed, LogCorrupt) as error:
        if is_damage(error):
            return None
        raise
    seal, folded, blob = sealed[:_DIGEST_BYTES], sealed[_DIGEST_BYTES : 2 * _DIGEST_BYTES], sealed[2 * _DIGEST_BYTES :]
    if recorded not in (None, folded) or seal != _snapshot_seal(folded, version, blob):
        return None
    return Snapshot(sequence, version, blob)


def _snapshot_seal(folded: bytes, version: str, blob: bytes) -> bytes:
    """The checksum of a fold up to the record of this hash."""
    return hashlib.sha256(folded + f"{len(version)}:{version}".encode() + blob).digest()


def rebuild_listed_row(connection: SqliteConnection, tenant: str, channel: str, *, now: Instant) -> None:
    """Rebuild the row of a channel. If it was lost the channel is due at once: its due time is not in the log."""
    found = fetch_one(connection, _SELECT_ROW, (tenant, channel))
    try:
        old = None if found is None else _channel_row_of(found)
    except Malformed:
        old = None
    row = rebuild_row(old or ChannelRow(channel), _row_events(connection, tenant, channel))
    if old is None and row.status not in ENDED_STATUSES:
        row = msgspec.structs.replace(row, due=now)
    put_row(connection, tenant, row)
    _update_done_members(connection, tenant, row)


def read_names(connection: SqliteConnection, tenant: str, after: str, *, limit: int) -> list[str]:
    """The channels that have a log, in order, behind a name. If one index is damaged, the other is read."""
    try:
        return list(islice(_readable_names(_following_names(connection, tenant, after.encode())), limit))
    except sqlite3.Error as error:
        if not is_damage(error):
            raise
        logger.warning("the names of channels are searched for in all envelope ids: %s", error)
    found = connection.execute(_NAMES, (tenant, after.encode())).fetchall()
    return list(islice(_readable_names(name for (name,) in as_type(found, list[tuple[bytes]])), limit))


def _following_names(connection: SqliteConnection, tenant: str, after: bytes) -> Iterator[bytes]:
    name: bytes | None = after
    while True:
        (name,) = as_type(fetch_one(connection, _NEXT_NAME, (tenant, name)), tuple[bytes | None])
        if name is None:
            return
        yield name


def _readable_names(names: Iterable[object]) -> Iterator[str]:
    for name in names:
        try:
            yield decode_blob_text(name)
        except Malformed as error:
            logger.warning("a channel has no readable name and is passed over: %s", error)


def _row_events(connection: SqliteConnection, tenant: str, channel: str) -> Iterator[Envelope]:
    kinds = as_type(connection.execute(_SELECT_KINDS, (tenant, channel)).fetchall(), list[tuple[int, str]])
    for sequence, kind in kinds:
        if kind in ROW_EVENT_TYPES:
            (body,) = as_type(fetch_one(connection, _SELECT_BODY, (tenant, channel, sequence)), tuple[bytes])
            yield decode_envelope(encoded_envelope_of(body))


def _update_done_members(
    connection: SqliteConnection, tenant: str, row: ChannelRow, *, head: int | None = None
) -> None:
    """Write which members are done. The head is read only for an ended channel."""
    ended, names = row.status in ENDED_STATUSES, to_json(row.participants).decode()
    if ended and head is None:
        head = read_head(connection, tenant, row.channel_id)
    connection.execute(_UPDATE_DONE, (ended, head, tenant, row.channel_id, names))


def _listed_rows(rows: Sequence[object]) -> Iterator[ChannelRow]:
    """Rows as a listing shows them. One that cannot be read is quarantined, if its name can be read."""
    for found in as_type(rows, list[tuple[object, ...]]):
        try:
            yield _channel_row_of(found)
        except Malformed as error:
            logger.warning("a row of the listing cannot be read (%s); rebuild the listing", error)
            yield from (ChannelRow(name, status=QUARANTINED_STATUS) for name in _readable_names(found[:1]))


def _channel_row_of(found: object) -> ChannelRow:
    """A row; `Malformed` if it cannot be read."""
    channel, kind, status, reason, creator, names, due = map(decode_blob_text, as_type(found, tuple[bytes, ...]))
    return ChannelRow(
        channel_id=channel,
        type=kind,
        status=status,
        close_reason=reason,
        creator_id=creator,
        participants=from_json(names.encode(), list[str]),
        due=due or NEVER,
    )


_LEASE = "SELECT owner, epoch, until FROM lease WHERE tenant = ? AND name = ?"
_PUT_LEASE = """
    INSERT INTO lease (tenant, name, owner, epoch, until) VALUES (?, ?, ?, ?, ?)
    ON CONFLICT (tenant, name) DO UPDATE SET owner = excluded.owner, epoch = excluded.epoch, until = excluded.until
"""
_RELEASE = "UPDATE lease SET until = '' WHERE tenant = ? AND name = ? AND epoch = ?"
_SELECT_FREE = """
    SELECT CAST(channel AS BLOB), CAST(due AS BLOB) FROM channel
    WHERE tenant = ? AND due <> '' AND due <= ? AND (held <= ? OR held > ?)
    ORDER BY due, channel LIMIT ?
"""
_HOLD_CHANNEL = "UPDATE channel SET held = ? WHERE tenant = ? AND channel = ?"
_NEXT_FREE = """
    SELECT coalesce(min(due), '') FROM channel WHERE tenant = ? AND due <> '' AND held = ''
"""
_NEXT_HELD = """
    SELECT coalesce(min(max(due, held)), '') FROM channel WHERE tenant = ? AND due <> '' AND held <> ''
"""


ATTENDANCE_LEASE = "hubs"
"""The lease that every open hub renews."""


def take_lease(connection: SqliteConnection, tenant: str, name: str, *, claim: LeaseClaim) -> Lease | None:
    """Take or renew a lease; None while another owner holds it."""
    found = fetch_one(connection, _LEASE, (tenant, name))
    lease = claim.lease(name, None if found is None else Lease(name, *as_type(found, tuple[str, int, str])))
    if lease is not None:
        connection.execute(_PUT_LEASE, (tenant, name, lease.owner, lease.epoch, lease.until))
    return lease


def release_lease(connection: SqliteConnection, tenant: str, lease: Lease) -> None:
    """Release a lease, if it is still held in this epoch."""
    connection.execute(_RELEASE, (tenant, lease.name, lease.epoch))


def take_due(connection: SqliteConnection, tenant: str, due_at: Instant, *, claim: LeaseClaim, limit: int) -> list[Due]:
    """Channels due at an instant that no owner holds, earliest first."""
    found = connection.execute(_SELECT_FREE, (tenant, due_at, claim.now, claim.latest_until, limit)).fetchall()
    taken = list(_readable_dues(as_type(found, list[tuple[bytes, bytes]])))
    connection.executemany(_HOLD_CHANNEL, [(claim.until, tenant, due.channel_id) for due in taken])
    return taken


def note_attendance(connection: SqliteConnection, tenant: str, claim: LeaseClaim) -> Instant:
    """Renew the attendance of hubs. Returns since when one has been open without a break.

    It is a row of the lease table that keeps the instant of the opening in the column of the owner.
    """
    found = fetch_one(connection, _LEASE, (tenant, ATTENDANCE_LEASE))
    noted, _, lasts = (NEVER, 0, NEVER) if found is None else as_type(found, tuple[str, int, str])
    since = claim.attended_since(noted, lasts)
    connection.execute(_PUT_LEASE, (tenant, ATTENDANCE_LEASE, since, 0, claim.until))
    return since


def _readable_dues(found: Sequence[tuple[bytes, bytes]]) -> Iterator[Due]:
    for channel, at in found:
        try:
            yield Due(decode_blob_text(channel), decode_blob_text(at))
        except Malformed as error:
            logger.warning("a channel is due, but its row cannot be read (%s); rebuild the listing", error)


def read_next_due(connection: SqliteConnection, tenant: str) -> Instant:
    """The earliest instant at which a channel is due and free."""
    (free,) = as_type(fetch_one(connection, _NEXT_FREE, (tenant,)), tuple[str])
    (held,) = as_type(fetch_one(connection, _NEXT_HELD, (tenant,)), tuple[str])
    return min(filter(None, (free, held)), default=NEVER)
