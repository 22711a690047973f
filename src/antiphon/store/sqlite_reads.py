"""Reading the log table, on a thread and a connection that only read.

Rule 1: a read sees every commit that was acknowledged before it was asked for.
Rule 2: damage met while reading one channel is that channel's; all others are read as if nothing were.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from queue import SimpleQueue
from typing import NamedTuple, TypeVar

from antiphon.core.codec import Malformed, as_type
from antiphon.core.envelope import Envelope
from antiphon.core.errors import AntiphonError, LogCorrupt
from antiphon.store.protocol import Page
from antiphon.store.records import checked_page, genesis, opened
from antiphon.store.sqlite_connection import Connection, damage_in, one, unavailable
from antiphon.store.sqlite_line import Line, settle, tell
from antiphon.store.sqlite_schema import Database

T = TypeVar("T")

_HEAD = "SELECT coalesce(max(seq), 0) FROM log WHERE tenant = ? AND channel = ?"
_HASH = "SELECT hash FROM log WHERE tenant = ? AND channel = ? AND seq = ?"
_PAGE = "SELECT seq, id, body, hash FROM log WHERE tenant = ? AND channel = ? AND seq > ? ORDER BY seq LIMIT ?"
_FIND = "SELECT seq, body FROM log WHERE tenant = ? AND channel = ? AND id = ?"
_LAST = "SELECT coalesce(max(pos), 0) FROM log"
_TAIL = """
    SELECT pos, channel, seq, id, body FROM log WHERE pos > ? AND pos <= ? AND tenant = ? ORDER BY pos LIMIT ?
"""


class Reader:
    """Owns one reading connection."""

    def __init__(self, database: Database) -> None:
        self._path = database.path
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._line = Line(database.to_read, database.to_read)
        self._ended = asyncio.Event()
        self._thread = threading.Thread(target=self._serve, name="antiphon-reader", daemon=True)

    async def start(self) -> None:
        """Open the database; whatever refuses it is raised here."""
        self._thread.start()
        await self.run(last_position)

    async def run(self, job: Callable[[Connection], T]) -> T:
        """Do something with the connection."""
        done: asyncio.Future[T] = self._loop.create_future()
        self._queue.put(lambda: tell(self._loop, partial(settle, [(done, self._tried(job))])))
        return await done

    async def stop(self) -> None:
        """Answer what is queued and end the thread."""
        self._queue.put(None)
        await self._ended.wait()
        self._thread.join()

    def _serve(self) -> None:
        while (job := self._queue.get()) is not None:
            job()
        self._line.drop()
        tell(self._loop, self._ended.set)

    def _tried(self, job: Callable[[Connection], T]) -> T | Exception:
        try:
            return job(self._line.get())
        except AntiphonError as error:
            return error
        except Exception as error:  # whatever it is, it must not end the thread
            self._line.drop()
            return unavailable(self._path, error)


def read_head(connection: Connection, tenant: str, channel: str) -> int:
    """The last sequence of a channel."""
    with damage_in(channel, 1):
        return as_type(one(connection, _HEAD, (tenant, channel)), tuple[int])[0]


class Stretch(NamedTuple):
    """Which part of a log is asked for."""

    channel: str
    after: int
    limit: int


def read_page(connection: Connection, tenant: str, asked: Stretch) -> Page:
    """The envelopes behind `after`, each checked against the one before."""
    channel, after, limit = asked
    with damage_in(channel, after + 1):
        previous = _hash_at(connection, tenant, asked)
    rows, damage = _rows(connection, tenant, asked)
    page = checked_page(channel, rows, previous, after=after, limit=limit)
    if damage is None or page.more:
        return page
    if not page.envelopes:
        raise damage
    return Page(page.envelopes, more=True)


def _hash_at(connection: Connection, tenant: str, asked: Stretch) -> bytes:
    if asked.after == 0:
        return genesis(tenant, asked.channel)
    found = one(connection, _HASH, (tenant, asked.channel, asked.after))
    try:
        return b"" if found is None else as_type(found, tuple[bytes])[0]
    except Malformed as error:
        raise LogCorrupt(asked.channel, asked.after, f"the row is not of its shape: {error}") from error


def _rows(connection: Connection, tenant: str, asked: Stretch) -> tuple[list[object], LogCorrupt | None]:
    """One row more than asked for, if there is one, as far as they can be read."""
    channel, after, limit = asked
    rows: list[object] = []
    with damage_in(channel, after + 1):
        cursor = connection.execute(_PAGE, (tenant, channel, after, limit + 1))
    try:
        with damage_in(channel, after + 1):
            while (row := cursor.fetchone()) is not None:
                rows.append(row)
    except LogCorrupt as error:
        return rows, LogCorrupt(channel, after + len(rows) + 1, error.why)
    finally:
        del cursor  # whoever keeps an error keeps this frame, and a cursor in it would keep the log from shrinking
    return rows, None


def read_envelopes(connection: Connection, tenant: str, channel: str, *, ids: Sequence[str]) -> Mapping[str, Envelope]:
    """The recorded envelopes of these ids."""
    found: dict[str, Envelope] = {}
    for envelope_id in ids:
        with damage_in(channel, 1):
            row = one(connection, _FIND, (tenant, channel, envelope_id))
        if row is not None:
            sequence, body = as_type(row, tuple[int, bytes])
            found[envelope_id] = opened(channel, sequence, body, envelope_id=envelope_id)
    return found


def last_position(connection: Connection) -> int:
    """The position of the last envelope over all channels."""
    return as_type(one(connection, _LAST), tuple[int])[0]


class Following(NamedTuple):
    """Where a tail stands, and which channels it has given up on."""

    position: int
    broken: frozenset[str] = frozenset()


def read_tail(
    connection: Connection, tenant: str, where: Following | None, *, limit: int
) -> tuple[list[Envelope], Following]:
    """What was recorded behind a position, and where to go on. A damaged channel ends where the damage is.

    None is wherever the log ends now.
    """
    last = last_position(connection)
    if where is None:
        return [], Following(last)
    found = connection.execute(_TAIL, (where.position, last, tenant, limit)).fetchall()
    rows = as_type(found, list[tuple[int, str, int, str, bytes]])
    broken = set(where.broken)
    envelopes: list[Envelope] = []
    for _, channel, sequence, envelope_id, body in rows:
        if channel in broken:
            continue
        try:
            envelopes.append(opened(channel, sequence, body, envelope_id=envelope_id))
        except LogCorrupt:
            broken.add(channel)
    position = rows[-1][0] if len(rows) == limit else last
    return envelopes, Following(position, frozenset(broken))
