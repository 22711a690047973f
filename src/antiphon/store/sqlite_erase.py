"""Erasing a channel from a SQLite file, so that no byte of its content is left in any file of the store.

Rule 1: the tombstones of a channel, and the removal of what was derived from its content, are one transaction.
Rule 2: that same transaction notes that the write-ahead log is to be truncated, because the content is still in it. The
        note goes when that is done: after a crash the next opening, or the next erasure, does it.
Rule 3: deleted content is overwritten where it was (`secure_delete`). A file that was written without it is rewritten
        whole, once, at its first erasure.
Rule 4: SQLite leaves copies of rows behind when it moves them between pages, which it does when rows change their size,
        and overwrites those not even then. So records are blanked before they change their size, and the two tables in
        which rows with content come and go are written anew.
Rule 5: to undo a statement SQLite copies the pages it changes. The copies are kept in memory, not in a temporary file,
        so records are blanked a few at a time. Only VACUUM uses such a file: by then the erased content is gone.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from antiphon.core.codec import as_type, encode_envelope
from antiphon.core.errors import Conflict, StoreUnavailable
from antiphon.core.redaction import tombstone_of
from antiphon.store.records import check_channel_ended, erased_row, genesis_hash, seal_tombstone
from antiphon.store.sqlite_connection import SqliteConnection
from antiphon.store.sqlite_index import put_row, read_row
from antiphon.store.sqlite_reads import read_head, read_page

logger = logging.getLogger("antiphon.store")

_BLANK_RECORDS = (
    "UPDATE log SET body = zeroblob(length(body)), kind = substr(hex(zeroblob(length(kind))), 1, length(kind))"
    " WHERE tenant = ? AND channel = ? AND seq > ? AND seq <= ?"
)
_WRITE_TOMBSTONE = "UPDATE log SET id = ?, kind = ?, body = ? WHERE tenant = ? AND channel = ? AND seq = ?"
_SELECT_HASHES = "SELECT hash FROM log WHERE tenant = ? AND channel = ? AND seq > ? ORDER BY seq LIMIT ?"
_DELETE_DERIVED = (
    "DELETE FROM snapshot WHERE tenant = ? AND channel = ?",
    "DELETE FROM member WHERE tenant = ? AND channel = ?",
)
_REWRITTEN_TABLES = ("channel", "snapshot")
_REWRITE_TABLE = (
    "CREATE TABLE renewed AS SELECT * FROM {}",
    "DELETE FROM {}",
    "INSERT INTO {} SELECT * FROM renewed",
    "DROP TABLE renewed",
)
_NOTE_SWEEP = "INSERT OR IGNORE INTO sweep (work) VALUES ('truncate')"
_SELECT_SWEEP = "SELECT work FROM sweep"
TRUNCATE_LOG = "PRAGMA wal_checkpoint(TRUNCATE)"
_ERASE_PAGE_RECORDS = 1000
_RECORDS_PER_BLANKING = 100
"""How many records one statement blanks."""


class TombstoneRow(NamedTuple):
    """What is written over one record."""

    envelope_id: str
    event_type: str
    body: bytes


def tombstone_rows_of(connection: SqliteConnection, tenant: str, channel: str) -> list[TombstoneRow]:
    """The tombstones of a channel; `LogCorrupt` if its log is damaged."""
    found: list[TombstoneRow] = []
    previous, more = genesis_hash(tenant, channel), True
    while more:
        page = read_page(connection, tenant, channel, after=len(found), limit=_ERASE_PAGE_RECORDS)
        stretch = (tenant, channel, len(found), len(page.envelopes))
        hashes = as_type(connection.execute(_SELECT_HASHES, stretch).fetchall(), list[tuple[bytes]])
        for envelope, (digest,) in zip(page.envelopes, hashes, strict=True):
            left = tombstone_of(envelope)
            found.append(
                TombstoneRow(left.envelope_id, left.event_type, seal_tombstone(encode_envelope(left), previous, digest))
            )
            previous = digest
        more = page.more
    return found


def write_tombstones(
    connection: SqliteConnection, tenant: str, channel: str, *, tombstones: Sequence[TombstoneRow]
) -> None:
    """Write the tombstones of an ended channel, and remove what was derived from its content."""
    row = read_row(connection, tenant, channel)
    check_channel_ended(channel, row)
    head = read_head(connection, tenant, channel)
    if row is None or head != len(tombstones):
        raise Conflict(channel, len(tombstones), head)
    for done in range(0, head, _RECORDS_PER_BLANKING):
        connection.execute(_BLANK_RECORDS, (tenant, channel, done, done + _RECORDS_PER_BLANKING))
    connection.executemany(
        _WRITE_TOMBSTONE,
        [(*left, tenant, channel, place) for place, left in enumerate(tombstones, 1)],
    )
    for forget in _DELETE_DERIVED:
        connection.execute(forget, (tenant, channel))
    put_row(connection, tenant, erased_row(row))
    connection.execute(_NOTE_SWEEP)


def sweep_erased(connection: SqliteConnection) -> None:
    """Overwrite what may be left of erased content beside the records. It runs outside of any transaction."""
    owed = {work for (work,) in as_type(connection.execute(_SELECT_SWEEP).fetchall(), list[tuple[str]])}
    if "truncate" not in owed:
        return
    if "vacuum" in owed:
        connection.execute("PRAGMA temp_store = FILE").fetchall()  # the whole file might not fit into memory
        connection.execute("VACUUM").fetchall()
        connection.execute("PRAGMA temp_store = MEMORY").fetchall()
    else:
        _rewrite_tables(connection)
    [(busy, _, _)] = as_type(connection.execute(TRUNCATE_LOG).fetchall(), list[tuple[int, int, int]])
    if busy:
        raise StoreUnavailable(
            "the channel is erased, but another process is reading the store, so that its write-ahead log cannot be"
            " truncated yet; end that process and erase the channel again"
        )
    connection.execute("DELETE FROM sweep").fetchall()


def _rewrite_tables(connection: SqliteConnection) -> None:
    """Rewrite the tables whose pages may hold copies of rows that were moved."""
    connection.execute("BEGIN IMMEDIATE")
    for table in _REWRITTEN_TABLES:
        for statement in _REWRITE_TABLE:
            connection.execute(statement.format(table)).fetchall()
    connection.execute("COMMIT")


def finish_sweep(connection: SqliteConnection, path: str) -> None:
    """Complete an erasure that was cut off. If that is not possible now, the next erasure does it."""
    try:
        sweep_erased(connection)
    except StoreUnavailable as error:
        logger.warning("%s: %s", path, error)
