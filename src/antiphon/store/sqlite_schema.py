"""Opening a database file: whether it is ours, what shape it has, how it is synced.

Rule 1: nothing is changed before the file is known to be ours or empty.
Rule 2: migrations are numbered files that only go forward, each in one transaction.
Rule 3: what was asked of SQLite is read back; what is not in force is refused, never assumed.
"""

from __future__ import annotations

import sqlite3
from functools import cache
from importlib.resources import files
from typing import Literal

import msgspec

from antiphon.core.codec import as_type
from antiphon.core.errors import StoreError, StoreRefused
from antiphon.store.protocol import Survives
from antiphon.store.sqlite_connection import Connect, Connection, is_damage, is_refusal, one, unavailable

Synchronous = Literal["NORMAL", "FULL", "EXTRA"]

SETTLE_AFTER = 4000
APPLICATION_ID = 1097757808

_SYNCHRONOUS = {
    "NORMAL": ("PRAGMA synchronous = NORMAL", 1),
    "FULL": ("PRAGMA synchronous = FULL", 2),
    "EXTRA": ("PRAGMA synchronous = EXTRA", 3),
}
_PATIENCE = "PRAGMA busy_timeout = 5000"
_WRITING = ("PRAGMA fullfsync = ON", "PRAGMA cache_size = -16384", "PRAGMA wal_autocheckpoint = 0")
_READING = ("PRAGMA query_only = ON", "PRAGMA wal_autocheckpoint = 0")


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
        return self._opened(read_only=False)

    def to_write_on(self) -> Connection:
        """A connection to the database that was open before; a file that has become empty is refused."""
        self._opened(read_only=True).close()
        return self._opened(read_only=False)

    def to_read(self) -> Connection:
        """A connection that only reads, and never moves the log into the file."""
        return self._opened(read_only=True)

    def _opened(self, *, read_only: bool) -> Connection:
        try:
            connection = self.connect(self.path, read_only)
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
        version = self._version(connection)
        newest = len(migrations())
        if version > newest:
            raise StoreRefused(
                f"{self.path} was written by a newer version (its shape is {version}, the newest known here is"
                f" {newest}); upgrade antiphon to open it"
            )
        if not read_only:
            self._sync(connection)
            _migrate(connection, version)
        elif version < newest:
            raise StoreRefused(f"{self.path} has an older shape ({version} of {newest}); let a hub open it once")
        for pragma in _READING if read_only else _WRITING:
            connection.execute(pragma)

    def _version(self, connection: Connection) -> int:
        owner, version = _number(connection, "PRAGMA application_id"), _number(connection, "PRAGMA user_version")
        tables = _number(connection, "SELECT count(*) FROM sqlite_master")
        if owner == APPLICATION_ID:
            return version
        if owner or version or tables:
            raise StoreRefused(f"{self.path} is a database of another program; name a file of its own for the store")
        return 0

    def _sync(self, connection: Connection) -> None:
        mode = as_type(one(connection, "PRAGMA journal_mode = WAL"), tuple[str])[0]
        if mode != "wal":
            raise StoreRefused(
                f"{self.path} cannot be kept in write-ahead mode (SQLite says {mode!r}); put it on a local disk"
            )
        ask, level = _SYNCHRONOUS[self.synchronous]
        connection.execute(ask)
        found = _number(connection, "PRAGMA synchronous")
        if found != level:
            raise StoreRefused(f"{self.path} is synced at level {found} where {level} ({self.synchronous}) was asked")

    def _met(self, error: sqlite3.Error) -> StoreError:
        if is_damage(error):
            return StoreRefused(f"{self.path} is no database, or is damaged ({error}); restore it from a copy")
        if is_refusal(error):
            return StoreRefused(f"{self.path} cannot be opened ({error}); check that it exists and may be written")
        return unavailable(self.path, error)


def _migrate(connection: Connection, version: int) -> None:
    for number, statements in enumerate(migrations(), 1):
        if number <= version:
            continue
        connection.execute("BEGIN IMMEDIATE")
        if _number(connection, "PRAGMA user_version") < number:
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


def _number(connection: Connection, sql: str) -> int:
    return as_type(one(connection, sql), tuple[int])[0]
