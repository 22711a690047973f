"""Reading the log table, on a thread and a connection that only read.

Rule 1: a read sees every commit that was acknowledged before it was asked for.
Rule 2: damage met while reading one channel is that channel's; all others are read as if nothing were.
Rule 3: no envelope is given that is not tied to the one before it.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import accumulate
from queue import SimpleQueue
from typing import NamedTuple, TypeVar

from antiphon.core.codec import Malformed, as_type
from antiphon.core.envelope import Envelope
from antiphon.core.errors import AntiphonError, LogCorrupt
from antiphon.store.protocol import Page
from antiphon.store.records import MOST, PAGE_BYTES, Row, checked_page, genesis, tied
from antiphon.store.sqlite_connection import (
    Connection,
    Cursor,
    Values,
    damage_in,
    is_damage,
    one,
    text_of,
    unusable,
    why,
)
from antiphon.store.sqlite_identity import FileIdentity
from antiphon.store.sqlite_line import Line, ServingThread, settle, tell
from antiphon.store.sqlite_schema import Database

T = TypeVar("T")

log = logging.getLogger("antiphon.store")

FOLLOWED = 10_000
"""How many channels' ends a tail remembers."""

_HEAD = "SELECT coalesce(max(seq), 0) FROM log WHERE tenant = ? AND channel = ?"
_SEQUENCES = "SELECT seq FROM log WHERE tenant = ? AND channel = ? ORDER BY seq"
_HASH = "SELECT hash FROM log WHERE tenant = ? AND channel = ? AND seq = ?"
_PAGE = "SELECT seq, id, body, hash FROM log WHERE tenant = ? AND channel = ? AND seq > ? ORDER BY seq LIMIT ?"
_LINKED = """
    l.seq, l.id, l.body, l.hash,
    (SELECT p.hash FROM log AS p WHERE p.tenant = l.tenant AND p.channel = l.channel AND p.seq = l.seq - 1)
"""
_FIND = f"SELECT {_LINKED} FROM log AS l WHERE l.tenant = ? AND l.channel = ? AND l.id = ?"
_END = f"""
    SELECT {_LINKED},
    coalesce((SELECT c.status FROM channel AS c WHERE c.tenant = l.tenant AND c.channel = l.channel), '')
    FROM log AS l WHERE l.tenant = ? AND l.channel = ? ORDER BY l.seq DESC LIMIT 1
"""
_LAST = "SELECT coalesce(max(pos), 0) FROM log"
_TAIL = """
    SELECT pos, CAST(channel AS BLOB), seq, CAST(id AS BLOB), body, hash
    FROM log NOT INDEXED WHERE pos > ? AND pos <= ? AND tenant = ? ORDER BY pos LIMIT ?
"""


class Reader:
    """Owns one reading connection."""

    def __init__(self, database: Database, identity: FileIdentity) -> None:
        self._path = database.path
        self._identity = identity
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._line = Line(database.to_read, database.to_read)
        self._thread = ServingThread(self._serve, name="antiphon-reader")

    async def start(self) -> None:
        """Open the database; whatever refuses it is raised here."""
        self._thread.start()
        await self.run(lambda _: None)

    def run(self, job: Callable[[Connection], T]) -> asyncio.Future[T]:
        """Do something with the connection, after all that was asked for before."""
        done: asyncio.Future[T] = self._loop.create_future()
        self._queue.put(lambda: tell(self._loop, partial(settle, [(done, self._tried(job))])))
        return done

    async def stop(self) -> None:
        """Answer what is queued and end the thread."""
        self._queue.put(None)
        await self._thread.ended()

    def _serve(self) -> None:
        while (job := self._queue.get()) is not None:
            job()
        self._line.drop()

    def _tried(self, job: Callable[[Connection], T]) -> T | Exception:
        try:
            self._identity.check()
            return job(self._line.get())
        except AntiphonError as error:
            return error
        except Exception as error:  # whatever it is, it must not end the thread
            self._line.drop()
            return unusable(self._path, error)


@contextmanager
def _damage_behind_what_is_readable(connection: Connection, tenant: str, channel: str) -> Iterator[None]:
    """Inside, damage is told by the first sequence of this channel that cannot be found."""
    try:
        yield
    except (sqlite3.Error, Malformed) as error:
        if not is_damage(error):
            raise
        readable, _ = _fetched(connection, _SEQUENCES, (tenant, channel))
        raise LogCorrupt(channel, len(readable) + 1, why(error)) from error


def read_head(connection: Connection, tenant: str, channel: str) -> int:
    """The last sequence of a channel."""
    with _damage_behind_what_is_readable(connection, tenant, channel):
        return as_type(one(connection, _HEAD, (tenant, channel)), tuple[int])[0]


class Stretch(NamedTuple):
    """Which part of a log is asked for."""

    channel: str
    after: int
    limit: int


def read_page(connection: Connection, tenant: str, asked: Stretch) -> Page:
    """The envelopes behind `after`, each checked against the one before."""
    channel, after, limit = asked
    previous = read_hash(connection, tenant, channel, sequence=after) if after else genesis(tenant, channel)
    values = (tenant, channel, after, min(limit, MOST - 1) + 1)
    rows, damage = _fetched(connection, _PAGE, values, most_bytes=PAGE_BYTES)
    limit = min(limit, _count_within(rows, PAGE_BYTES))
    page = checked_page(channel, rows, previous or b"", after=after, limit=limit)
    if damage is None or page.more:
        return page
    if not page.envelopes:
        raise LogCorrupt(channel, after + len(rows) + 1, str(damage)) from damage
    return Page(page.envelopes, more=True)


def read_hash(connection: Connection, tenant: str, channel: str, *, sequence: int) -> bytes | None:
    """The hash of one record; None if there is none."""
    with damage_in(channel, sequence):
        found = one(connection, _HASH, (tenant, channel, sequence))
        return None if found is None else as_type(found, tuple[bytes])[0]


def _size(row: object) -> int:
    """The bytes of a record, which is the third column; 0 if the row is damaged."""
    body = row[2] if isinstance(row, tuple) and len(row) > 2 else None
    return len(body) if isinstance(body, bytes) else 0


def _count_within(rows: Sequence[object], most_bytes: int) -> int:
    """How many of the first rows have no more bytes than this; one at least."""
    sizes = accumulate(map(_size, rows))
    return max(1, sum(size <= most_bytes for size in sizes))


def _fetched(
    connection: Connection, sql: str, values: Values, *, most_bytes: int | None = None
) -> tuple[list[object], sqlite3.Error | None]:
    """The rows of a query as far as they can be read, and the damage behind them.

    With `most_bytes` the row that exceeds it is the last one that is read.
    """
    rows: list[object] = []
    size = 0
    cursor: Cursor | None = None
    try:
        cursor = connection.execute(sql, values)
        while (row := cursor.fetchone()) is not None:
            rows.append(row)
            size += _size(row)
            if most_bytes is not None and size > most_bytes and len(rows) > 1:
                break
    except sqlite3.Error as error:
        if not is_damage(error):
            raise
        return rows, error
    finally:
        cursor = None  # whoever keeps an error keeps this frame, and a cursor in it would keep the log from shrinking
    return rows, None


class _Linked(NamedTuple):
    """A row, and the hash of the one before; None if there is none."""

    sequence: int
    envelope_id: str
    body: bytes
    hash: bytes
    previous: bytes | None

    def envelope(self, tenant: str, channel: str) -> Envelope:
        """Its envelope, if it is tied to the one before."""
        previous = genesis(tenant, channel) if self.sequence == 1 else self.previous
        if previous is None:
            raise _missing(channel, self.sequence - 1, self.sequence)
        return tied(channel, Row(self.sequence, self.envelope_id, self.body, self.hash), previous)


def _missing(channel: str, sequence: int, following: int) -> LogCorrupt:
    return LogCorrupt(channel, sequence, f"the record is missing; the next one is {following}")


def find_envelope(connection: Connection, tenant: str, channel: str, *, envelope_id: str) -> Envelope | None:
    """The recorded envelope of an id."""
    with _damage_behind_what_is_readable(connection, tenant, channel):
        found = one(connection, _FIND, (tenant, channel, envelope_id))
        return None if found is None else as_type(found, _Linked).envelope(tenant, channel)


def read_envelopes(connection: Connection, tenant: str, channel: str, *, ids: Sequence[str]) -> Mapping[str, Envelope]:
    """The recorded envelopes of these ids."""
    found = {each: find_envelope(connection, tenant, channel, envelope_id=each) for each in ids}
    return {each: envelope for each, envelope in found.items() if envelope is not None}


class Head(NamedTuple):
    """Where a channel's log ends."""

    sequence: int
    hash: bytes
    status: str


def read_end(connection: Connection, tenant: str, channel: str) -> Head:
    """Where a channel's log ends, if the last record is tied to the one before."""
    found = one(connection, _END, (tenant, channel))
    if found is None:
        return Head(0, genesis(tenant, channel), "")
    *row, status = as_type(found, tuple[object, object, object, object, object, str])
    last = as_type(row, _Linked)
    last.envelope(tenant, channel)
    return Head(last.sequence, last.hash, status)


def last_position(connection: Connection) -> int:
    """The position of the last envelope over all channels."""
    return as_type(one(connection, _LAST), tuple[int])[0]


class _Followed(NamedTuple):
    """A row as a tail meets it: whose it is must be known, whatever else is wrong with it."""

    position: int
    channel: object
    sequence: object
    envelope_id: object
    body: object
    hash: object

    def place(self) -> int:
        """Its sequence; 0 if it has none."""
        return self.sequence if isinstance(self.sequence, int) else 0

    def row(self) -> Row:
        """The row, if it has the shape of one."""
        return as_type((self.sequence, text_of(self.envelope_id), self.body, self.hash), Row)


class Follower:
    """Where a tail stands. A channel that is damaged ends where the damage is; all others go on."""

    def __init__(self, position: int) -> None:
        self.position = position
        self._ends: dict[str, tuple[int, bytes]] = {}
        self._broken: set[str] = set()

    def read(self, connection: Connection, tenant: str, *, limit: int) -> list[Envelope]:
        """What was recorded behind the position, which moves on."""
        last = last_position(connection)
        rows, damage = _fetched(connection, _TAIL, (self.position, last, tenant, limit))
        if damage is not None and not rows:
            raise damage
        envelopes: list[Envelope] = []
        for followed in as_type(rows, list[_Followed]):
            envelopes += self._next(connection, tenant, followed)
            self.position = followed.position
        if damage is None and len(rows) < limit:
            self.position = last
        return envelopes

    def _next(self, connection: Connection, tenant: str, followed: _Followed) -> list[Envelope]:
        try:
            channel = text_of(followed.channel)
        except Malformed as error:
            log.warning("nobody can tell whose record is at position %d: %s", followed.position, error)
            return []
        if channel in self._broken:
            return []
        try:
            with damage_in(channel, followed.place()):
                return [self._tied(connection, tenant, channel, row=followed.row())]
        except LogCorrupt as error:
            log.warning("a tail goes on without a channel: %s", error)
            self._broken.add(channel)
            return []

    def _tied(self, connection: Connection, tenant: str, channel: str, *, row: Row) -> Envelope:
        """The envelope of the next row of a channel."""
        end, previous = self._ends.get(channel, (row.sequence - 1, None))
        if row.sequence != end + 1:
            raise _missing(channel, end + 1, row.sequence)
        if previous is None and end:
            previous = read_hash(connection, tenant, channel, sequence=end)
        envelope = _Linked(*row, previous).envelope(tenant, channel)
        if len(self._ends) >= FOLLOWED:
            self._ends.clear()
        self._ends[channel] = row.sequence, row.hash
        return envelope
