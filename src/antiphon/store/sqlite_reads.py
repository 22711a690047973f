"""Reading the log table, on a thread and a connection that only read.

Rule 1: a read sees every commit that was acknowledged before the read was called.
Rule 2: damage in one channel is reported for that channel; all others can be read.
Rule 3: no envelope is returned that is not tied to the one before it by its hash.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from queue import SimpleQueue
from typing import NamedTuple, TypeVar

from antiphon.core.codec import Malformed, as_type
from antiphon.core.envelope import Envelope
from antiphon.core.errors import AntiphonError, LogCorrupt
from antiphon.store.protocol import Page
from antiphon.store.records import (
    MAX_PAGE_BYTES,
    MAX_STORE_INTEGER,
    LogRow,
    decode_linked_row,
    genesis_hash,
    page_of_rows,
)
from antiphon.store.sqlite_connection import (
    FileIdentity,
    ServingThread,
    SqliteConnection,
    SqliteCursor,
    SqlValues,
    ThreadConnection,
    call_on_loop,
    damage_as_log_corrupt,
    decode_blob_text,
    error_message,
    fetch_number,
    fetch_one,
    is_damage,
    settle_futures,
    unusable_error,
)
from antiphon.store.sqlite_schema import SqliteDatabase

T = TypeVar("T")

logger = logging.getLogger("antiphon.store")

MAX_FOLLOWED_CHANNELS = 10_000
"""How many channels' ends a tail caches."""

_HEAD = "SELECT coalesce(max(seq), 0) FROM log WHERE tenant = ? AND channel = ?"
_SEQUENCES = "SELECT seq FROM log WHERE tenant = ? AND channel = ? ORDER BY seq"
_HASH = "SELECT hash FROM log WHERE tenant = ? AND channel = ? AND seq = ?"
_SELECT_PAGE = "SELECT seq, id, body, hash FROM log WHERE tenant = ? AND channel = ? AND seq > ? ORDER BY seq LIMIT ?"
_LINKED_COLUMNS = """
    l.seq, l.id, l.body, l.hash,
    (SELECT p.hash FROM log AS p WHERE p.tenant = l.tenant AND p.channel = l.channel AND p.seq = l.seq - 1)
"""
_FIND = f"SELECT {_LINKED_COLUMNS} FROM log AS l WHERE l.tenant = ? AND l.channel = ? AND l.id = ?"
_SELECT_END = f"""
    SELECT {_LINKED_COLUMNS},
    coalesce((SELECT c.status FROM channel AS c WHERE c.tenant = l.tenant AND c.channel = l.channel), '')
    FROM log AS l WHERE l.tenant = ? AND l.channel = ? ORDER BY l.seq DESC LIMIT 1
"""
_SELECT_LAST = "SELECT coalesce(max(pos), 0) FROM log"
_SELECT_TAIL = """
    SELECT pos, CAST(channel AS BLOB), seq, CAST(id AS BLOB), body, hash
    FROM log NOT INDEXED WHERE pos > ? AND pos <= ? AND tenant = ? ORDER BY pos LIMIT ?
"""


class SqliteReader:
    """Owns one reading connection."""

    def __init__(self, database: SqliteDatabase, identity: FileIdentity) -> None:
        self._path = database.path
        self._identity = identity
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._connection = ThreadConnection(database.to_read, database.to_read)
        self._thread = ServingThread(self._serve, name="antiphon-reader")

    async def start(self) -> None:
        """Open the database, or raise why it is refused."""
        self._thread.start()
        await self.run(lambda _: None)

    def run(self, job: Callable[[SqliteConnection], T]) -> asyncio.Future[T]:
        """Run a job with the connection, after all that are queued."""
        done: asyncio.Future[T] = self._loop.create_future()
        self._queue.put(lambda: call_on_loop(self._loop, partial(settle_futures, [(done, self._try_job(job))])))
        return done

    async def stop(self) -> None:
        """Answer what is queued and end the thread."""
        self._queue.put(None)
        await self._thread.ended()

    def _serve(self) -> None:
        while (job := self._queue.get()) is not None:
            job()
        self._connection.drop()

    def _try_job(self, job: Callable[[SqliteConnection], T]) -> T | Exception:
        try:
            self._identity.check()
            return job(self._connection.get())
        except AntiphonError as error:
            return error
        except Exception as error:  # of any kind: the thread must not end
            self._connection.drop()
            return unusable_error(self._path, error)


@contextmanager
def _damage_after_readable(connection: SqliteConnection, tenant: str, channel: str) -> Iterator[None]:
    """Inside, damage is reported at the first sequence of this channel that cannot be found."""
    try:
        yield
    except (sqlite3.Error, Malformed) as error:
        if not is_damage(error):
            raise
        readable, _ = _fetch_readable(connection, _SEQUENCES, (tenant, channel))
        raise LogCorrupt(channel, len(readable) + 1, error_message(error)) from error


def read_head(connection: SqliteConnection, tenant: str, channel: str) -> int:
    """The last sequence of a channel."""
    with _damage_after_readable(connection, tenant, channel):
        return fetch_number(connection, _HEAD, (tenant, channel))


def read_page(connection: SqliteConnection, tenant: str, channel: str, *, after: int, limit: int) -> Page:
    """The envelopes behind `after`, each checked against the one before."""
    previous = read_hash(connection, tenant, channel, sequence=after) if after else genesis_hash(tenant, channel)
    values = (tenant, channel, after, min(limit, MAX_STORE_INTEGER - 1) + 1)
    rows, damage = _fetch_readable(connection, _SELECT_PAGE, values, most_bytes=MAX_PAGE_BYTES)
    if len(rows) > 1 and sum(map(_body_bytes, rows)) > MAX_PAGE_BYTES:
        limit = min(limit, len(rows) - 1)  # the last row is the one that exceeds the size of a page
    page = page_of_rows(channel, rows, previous or b"", after=after, limit=limit)
    if damage is None or page.more:
        return page
    if not page.envelopes:
        raise LogCorrupt(channel, after + len(rows) + 1, str(damage)) from damage
    return Page(page.envelopes, more=True)


def read_hash(connection: SqliteConnection, tenant: str, channel: str, *, sequence: int) -> bytes | None:
    """The hash of one record; None if there is none."""
    with damage_as_log_corrupt(channel, sequence):
        found = fetch_one(connection, _HASH, (tenant, channel, sequence))
        return None if found is None else as_type(found, tuple[bytes])[0]


def _body_bytes(row: object) -> int:
    """The bytes of a record, which is the third column; 0 if the row is damaged."""
    body = row[2] if isinstance(row, tuple) and len(row) > 2 else None
    return len(body) if isinstance(body, bytes) else 0


def _fetch_readable(
    connection: SqliteConnection, sql: str, values: SqlValues, *, most_bytes: int | None = None
) -> tuple[list[object], sqlite3.Error | None]:
    """The rows of a query as far as they can be read, and the damage behind them.

    With `most_bytes` the row that exceeds it is the last one.
    """
    rows: list[object] = []
    size = 0
    cursor: SqliteCursor | None = None
    try:
        cursor = connection.execute(sql, values)
        while (row := cursor.fetchone()) is not None:
            rows.append(row)
            size += _body_bytes(row)
            if most_bytes is not None and size > most_bytes and len(rows) > 1:
                break
    except sqlite3.Error as error:
        if not is_damage(error):
            raise
        return rows, error
    finally:
        cursor = None  # a kept error keeps this frame, and an open cursor in it would keep the log from shrinking
    return rows, None


class _LinkedRow(NamedTuple):
    """A row, and the hash of the one before; None if there is none."""

    sequence: int
    envelope_id: str
    body: bytes
    hash: bytes
    previous: bytes | None

    def envelope(self, tenant: str, channel: str) -> Envelope:
        """Its envelope, if it is tied to the one before."""
        previous = genesis_hash(tenant, channel) if self.sequence == 1 else self.previous
        if previous is None:
            raise _missing_record(channel, self.sequence - 1, self.sequence)
        return decode_linked_row(channel, LogRow(self.sequence, self.envelope_id, self.body, self.hash), previous)


def _missing_record(channel: str, sequence: int, following: int) -> LogCorrupt:
    return LogCorrupt(channel, sequence, f"the record is missing; the next one is {following}")


def find_envelope(connection: SqliteConnection, tenant: str, channel: str, *, envelope_id: str) -> Envelope | None:
    """The recorded envelope of an id."""
    with _damage_after_readable(connection, tenant, channel):
        found = fetch_one(connection, _FIND, (tenant, channel, envelope_id))
        return None if found is None else as_type(found, _LinkedRow).envelope(tenant, channel)


def read_envelopes(
    connection: SqliteConnection, tenant: str, channel: str, *, ids: Sequence[str]
) -> Mapping[str, Envelope]:
    """The recorded envelopes of these ids."""
    found = ((each, find_envelope(connection, tenant, channel, envelope_id=each)) for each in ids)
    return {each: envelope for each, envelope in found if envelope is not None}


class LogHead(NamedTuple):
    """Where a channel's log ends."""

    sequence: int
    hash: bytes
    status: str


def read_log_head(connection: SqliteConnection, tenant: str, channel: str) -> LogHead:
    """Where a channel's log ends, if the last record is tied to the one before."""
    found = fetch_one(connection, _SELECT_END, (tenant, channel))
    if found is None:
        return LogHead(0, genesis_hash(tenant, channel), "")
    *row, status = as_type(found, tuple[object, object, object, object, object, str])
    last = as_type(row, _LinkedRow)
    last.envelope(tenant, channel)
    return LogHead(last.sequence, last.hash, status)


def read_last_position(connection: SqliteConnection) -> int:
    """The position of the last envelope over all channels."""
    return fetch_number(connection, _SELECT_LAST)


class _TailRow(NamedTuple):
    """A row as a tail finds it: its columns may be damaged, each by itself."""

    position: int
    channel: object
    sequence: object
    envelope_id: object
    body: object
    hash: object


class TailFollower:
    """The position of a tail. A damaged channel ends at the damage; all others go on."""

    def __init__(self, position: int) -> None:
        self.position = position
        self._ends: dict[str, tuple[int, bytes]] = {}
        self._broken: set[str] = set()

    def read(self, connection: SqliteConnection, tenant: str, *, limit: int) -> list[Envelope]:
        """The envelopes behind the position, which is advanced."""
        last = read_last_position(connection)
        rows, damage = _fetch_readable(connection, _SELECT_TAIL, (self.position, last, tenant, limit))
        if damage is not None and not rows:
            raise damage
        envelopes: list[Envelope] = []
        for followed in as_type(rows, list[_TailRow]):
            envelopes += self._next(connection, tenant, followed)
            self.position = followed.position
        if damage is None and len(rows) < limit:
            self.position = last
        return envelopes

    def _next(self, connection: SqliteConnection, tenant: str, followed: _TailRow) -> list[Envelope]:
        try:
            channel = decode_blob_text(followed.channel)
        except Malformed as error:
            logger.warning("the channel of the record at position %d cannot be read: %s", followed.position, error)
            return []
        if channel in self._broken:
            return []
        sequence = followed.sequence
        try:
            with damage_as_log_corrupt(channel, sequence if isinstance(sequence, int) else 0):
                row = as_type((sequence, decode_blob_text(followed.envelope_id), followed.body, followed.hash), LogRow)
                return [self._decode_next(connection, tenant, channel, row=row)]
        except LogCorrupt as error:
            logger.warning("a tail goes on without a channel: %s", error)
            self._broken.add(channel)
            return []

    def _decode_next(self, connection: SqliteConnection, tenant: str, channel: str, *, row: LogRow) -> Envelope:
        """The envelope of the next row of a channel."""
        end, previous = self._ends.get(channel, (row.sequence - 1, None))
        if row.sequence != end + 1:
            raise _missing_record(channel, end + 1, row.sequence)
        if previous is None and end:
            previous = read_hash(connection, tenant, channel, sequence=end)
        envelope = _LinkedRow(*row, previous).envelope(tenant, channel)
        if len(self._ends) >= MAX_FOLLOWED_CHANNELS:
            self._ends.clear()
        self._ends[channel] = row.sequence, row.hash
        return envelope
