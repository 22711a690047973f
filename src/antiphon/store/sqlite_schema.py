"""Opening a database file: whether it is ours, what shape it has, how it is synced.

Rule 1: nothing is changed before the file is known to be ours or empty.
Rule 2: migrations are numbered files that only go forward, each in one transaction.
Rule 3: what was asked of SQLite is read back; what is not in force is refused, never assumed.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from typing import Literal

import msgspec

from antiphon.core.codec import as_type
from antiphon.core.errors import StoreError, StoreRefused
from antiphon.store.ownership import owned_here
from antiphon.store.protocol import Survives
from antiphon.store.sqlite_connection import Connect, Connection, is_damage, is_refusal, one, unavailable
from antiphon.store.sqlite_files import APPLICATION_ID, count_of, damaged, shape_of, way_to_read
from antiphon.store.sqlite_still import StillConnection

__all__ = ["APPLICATION_ID", "SETTLE_AFTER", "Database", "Synchronous", "migrations"]

Synchronous = Literal["NORMAL", "FULL", "EXTRA"]

SETTLE_AFTER = 4000
OLDEST_READ = 1
"""The oldest shape that can be read as it is: later ones only added what is used to write."""

_SYNCHRONOUS = {
    "NORMAL": ("PRAGMA synchronous = NORMAL", 1),
    "FULL": ("PRAGMA synchronous = FULL", 2),
    "EXTRA": ("PRAGMA synchronous = EXTRA", 3),
}
_PATIENCE = "PRAGMA busy_timeout = 5000"
_WRITING = (
    "PRAGMA secure_delete = ON",
    "PRAGMA temp_store = MEMORY",  # or else pages with content are copied to the system's temporary directory
    "PRAGMA fullfsync = ON",
    "PRAGMA cache_size = -16384",
    "PRAGMA wal_autocheckpoint = 0",
)
_READING = ("PRAGMA query_only = ON", "PRAGMA fullfsync = ON", "PRAGMA wal_autocheckpoint = 0")


class Database(msgspec.Struct, frozen=True):
    """A file, and how it is to be opened."""

    path: str
    connect: Connect
    synchronous: Synchronous
    settle_after: int = SETTLE_AFTER
    """About how many pages may wait beside the file before they are moved into it."""

    @property
    def survives(self) -> Survives:
        """The worst that can happen without losing what was committed."""
        return "process" if self.synchronous == "NORMAL" else "power"

    def to_write(self) -> Connection:
        """A connection that writes; an empty file becomes a database of the newest shape."""
        return self._opened(lambda: self.connect(self.path, False), read_only=False)

    def to_write_on(self) -> Connection:
        """A connection to the database that was open before; a file that has become empty is refused."""
        self._beside().close()
        return self.to_write()

    def to_read(self) -> Connection:
        """A connection that only reads, and never moves a log into the file that it found beside it.

        Beside a file that was closed in good order, it leaves nothing.
        """
        way = "beside" if owned_here(self.path) else way_to_read(self.path)
        if way == "beside":
            return self._beside()
        still = self._opened(lambda: StillConnection(self.path), read_only=True)
        if way == "still":
            return still
        still.close()  # it is ours, and so SQLite may open it to write and remove at the end what it makes beside it
        return self._opened(lambda: self.connect(self.path, False), read_only=True)

    def _beside(self) -> Connection:
        return self._opened(lambda: self.connect(self.path, True), read_only=True)

    def _opened(self, connect: Callable[[], Connection], *, read_only: bool) -> Connection:
        try:
            connection = connect()
        except sqlite3.Error as error:
            raise self._met(error) from error
        try:
            self._prepare(connection, read_only=read_only)
        except sqlite3.Error as error:
            connection.close()
            raise self._met(error) from error
        except StoreError:
            connection.close()
            raise
        return connection

    def _prepare(self, connection: Connection, *, read_only: bool) -> None:
        connection.execute(_PATIENCE)
        shape, newest = shape_of(connection, self.path), len(migrations())
        if shape > newest:
            raise StoreRefused(
                f"{self.path} was written by a newer version (its shape is {shape}, the newest known here is"
                f" {newest}); upgrade antiphon to open it"
            )
        if not read_only:
            self._sync(connection)
            _migrate(connection, shape)
        elif shape < OLDEST_READ:
            raise StoreRefused(
                f"{self.path} is empty: there is no store in it; if there was one, restore it from a copy (a hub that"
                " opens this path begins a new store)"
            )
        for pragma in _READING if read_only else _WRITING:
            connection.execute(pragma)

    def _sync(self, connection: Connection) -> None:
        mode = as_type(one(connection, "PRAGMA journal_mode = WAL"), tuple[str])[0]
        if mode != "wal":
            raise StoreRefused(
                f"{self.path} cannot be kept in write-ahead mode (SQLite says {mode!r}); put it on a local disk"
            )
        ask, level = _SYNCHRONOUS[self.synchronous]
        connection.execute(ask)
        found = count_of(connection, "PRAGMA synchronous")
        if found != level:
            raise StoreRefused(f"{self.path} is synced at level {found} where {level} ({self.synchronous}) was asked")

    def _met(self, error: sqlite3.Error) -> StoreError:
        if is_damage(error):
            return damaged(self.path, error)
        if is_refusal(error):
            return StoreRefused(f"{self.path} cannot be opened ({error}); check that it exists and may be written")
        return unavailable(self.path, error)


def _migrate(connection: Connection, version: int) -> None:
    for number, statements in enumerate(migrations(), 1):
        if number <= version:
            continue
        connection.execute("BEGIN IMMEDIATE")
        if count_of(connection, "PRAGMA user_version") < number:
            for statement in statements:
                connection.execute(statement)
        connection.execute("COMMIT")


@cache
def migrations() -> tuple[tuple[str, ...], ...]:
    """The statements of every migration; the first brings a database to shape 1, and so on."""
    found = sorted(
        (file for file in files("antiphon.store").joinpath("migrations").iterdir() if file.name.endswith(".sql")),
        key=lambda file: file.name,
    )
    return tuple(_statements(file.read_text(encoding="utf-8")) for file in found)


def _statements(text: str) -> tuple[str, ...]:
    found: list[str] = []
    pending = ""
    for line in text.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            found.append(pending.strip())
            pending = ""
    return tuple(found)
