"""Erasing a channel from a SQLite file, so that no byte of its content is left in any file of the store.

Rule 1: the tombstones of a channel, and all that goes with its content, are one transaction.
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

from antiphon.core.codec import as_type, encode
from antiphon.core.erasing import tombstone
from antiphon.core.errors import Conflict, StoreUnavailable
from antiphon.store.records import genesis, sealed
from antiphon.store.rows import check_ended, erased_row
from antiphon.store.sqlite_connection import Connection
from antiphon.store.sqlite_index import put_row, read_row
from antiphon.store.sqlite_reads import Stretch, read_head, read_page

log = logging.getLogger("antiphon.store")

_BLANK = (
    "UPDATE log SET body = zeroblob(length(body)), kind = substr(hex(zeroblob(length(kind))), 1, length(kind))"
    " WHERE tenant = ? AND channel = ? AND seq > ? AND seq <= ?"
)
_BURY = "UPDATE log SET id = ?, kind = ?, body = ? WHERE tenant = ? AND channel = ? AND seq = ?"
_HASHES = "SELECT hash FROM log WHERE tenant = ? AND channel = ? AND seq > ? ORDER BY seq LIMIT ?"
_FORGET = (
    "DELETE FROM snapshot WHERE tenant = ? AND channel = ?",
    "DELETE FROM member WHERE tenant = ? AND channel = ?",
)
_RENEWED = ("channel", "snapshot")
_RENEW = (
    "CREATE TABLE renewed AS SELECT * FROM {}",
    "DELETE FROM {}",
    "INSERT INTO {} SELECT * FROM renewed",
    "DROP TABLE renewed",
)
_OWE = "INSERT OR IGNORE INTO sweep (work) VALUES ('truncate')"
_OWED = "SELECT work FROM sweep"
_TRUNCATE = "PRAGMA wal_checkpoint(TRUNCATE)"
_PAGE = 1000
_AT_ONCE = 100
"""How many records one statement blanks."""


class Tombstone(NamedTuple):
    """What is written over one record."""

    envelope_id: str
    event_type: str
    body: bytes


def tombstones_of(connection: Connection, tenant: str, channel: str) -> list[Tombstone]:
    """What is to be left of a channel; `LogCorrupt` if its log is damaged."""
    found: list[Tombstone] = []
    previous, more = genesis(tenant, channel), True
    while more:
        page = read_page(connection, tenant, Stretch(channel, len(found), _PAGE))
        stretch = (tenant, channel, len(found), len(page.envelopes))
        hashes = as_type(connection.execute(_HASHES, stretch).fetchall(), list[tuple[bytes]])
        for envelope, (digest,) in zip(page.envelopes, hashes, strict=True):
            left = tombstone(envelope)
            found.append(Tombstone(left.envelope_id, left.event_type, sealed(encode(left), previous, digest)))
            previous = digest
        more = page.more
    return found


def bury(connection: Connection, tenant: str, channel: str, *, tombstones: Sequence[Tombstone]) -> None:
    """Write the tombstones of an ended channel, and remove all that was derived from its content."""
    row = read_row(connection, tenant, channel)
    check_ended(channel, row)
    head = read_head(connection, tenant, channel)
    if row is None or head != len(tombstones):
        raise Conflict(channel, len(tombstones), head)
    for done in range(0, head, _AT_ONCE):
        connection.execute(_BLANK, (tenant, channel, done, done + _AT_ONCE))
    connection.executemany(
        _BURY,
        [(*left, tenant, channel, place) for place, left in enumerate(tombstones, 1)],
    )
    for forget in _FORGET:
        connection.execute(forget, (tenant, channel))
    put_row(connection, tenant, erased_row(row))
    connection.execute(_OWE)


def sweep(connection: Connection) -> None:
    """Overwrite what may be left of erased content beside the records. It runs outside of any transaction."""
    owed = {work for (work,) in as_type(connection.execute(_OWED).fetchall(), list[tuple[str]])}
    if "truncate" not in owed:
        return
    if "vacuum" in owed:
        connection.execute("PRAGMA temp_store = FILE").fetchall()  # the whole file might not fit into memory
        connection.execute("VACUUM").fetchall()
        connection.execute("PRAGMA temp_store = MEMORY").fetchall()
    else:
        _renew(connection)
    [(busy, _, _)] = as_type(connection.execute(_TRUNCATE).fetchall(), list[tuple[int, int, int]])
    if busy:
        raise StoreUnavailable(
            "the channel is erased, but another process is reading the store, so that its write-ahead log cannot be"
            " truncated yet; end that process and erase the channel again"
        )
    connection.execute("DELETE FROM sweep").fetchall()


def _renew(connection: Connection) -> None:
    """Write the tables anew whose pages may hold copies of rows that were moved."""
    connection.execute("BEGIN IMMEDIATE")
    for table in _RENEWED:
        for statement in _RENEW:
            connection.execute(statement.format(table)).fetchall()
    connection.execute("COMMIT")


def sweep_left(connection: Connection, path: str) -> None:
    """Do what an erasure that was cut off has left to do. If that is not possible now, the next erasure does it."""
    try:
        sweep(connection)
    except StoreUnavailable as error:
        log.warning("%s: %s", path, error)
