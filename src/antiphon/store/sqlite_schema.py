"""Opening a database file: to write, with migrations and syncing, or to read, with as few traces as possible.

Rule 1: nothing is changed before the file is known to be a store or empty.
Rule 2: migrations are numbered files that only go forward, each in one transaction.
Rule 3: a setting of SQLite is read back; one that is not in force is refused, never assumed.
Rule 4: a process that may only read leaves nothing beside a file that its owner could not write.
Rule 5: a file that no process writes to is read without a lock, so that no permission but to read is needed and no file
        is left beside it. If a process begins to write, what was read is discarded and the file is opened again.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from typing import Literal

import msgspec

from antiphon.core.codec import as_type
from antiphon.core.errors import StoreError, StoreRefused
from antiphon.store.sqlite_connection import (
    LOG_SUFFIX,
    SHARED_MEMORY_SUFFIX,
    ConnectSqlite,
    SqliteConnection,
    SqliteCursor,
    SqlValues,
    closed_on_error,
    fetch_number,
    fetch_one,
    is_access_refusal,
    is_damage,
    unavailable_error,
)
from antiphon.store.sqlite_files import (
    connect_immutable,
    damaged_file_error,
    file_owner_of,
    has_log,
    is_half_made,
    is_owned_here,
    may_access,
    schema_version_of,
)

Synchronous = Literal["NORMAL", "FULL", "EXTRA"]

DEFAULT_SETTLE_PAGES = 4000
OLDEST_READABLE_SCHEMA = 1
"""The oldest schema that can be read as it is: later ones only added what is used to write."""

_SYNCHRONOUS_LEVELS = {"NORMAL": 1, "FULL": 2, "EXTRA": 3}
DEFAULT_BUSY_TIMEOUT = "PRAGMA busy_timeout = 5000"
_WRITE_PRAGMAS = (
    "PRAGMA secure_delete = ON",
    "PRAGMA temp_store = MEMORY",  # or else pages with content are copied to the system's temporary directory
    "PRAGMA fullfsync = ON",
    "PRAGMA cache_size = -16384",
    "PRAGMA wal_autocheckpoint = 0",
)
_READ_PRAGMAS = ("PRAGMA query_only = ON", "PRAGMA fullfsync = ON", "PRAGMA wal_autocheckpoint = 0")


class SqliteDatabase(msgspec.Struct, frozen=True):
    """A database file, and how connections to it are opened."""

    path: str
    connect: ConnectSqlite
    synchronous: Synchronous
    settle_after: int = DEFAULT_SETTLE_PAGES
    """About how many pages the write-ahead log may hold before it is moved into the file."""

    def to_write(self) -> SqliteConnection:
        """A connection that writes; an empty file gets the newest schema."""
        return self._open(lambda: self.connect(self.path, False), read_only=False)

    def to_write_on(self) -> SqliteConnection:
        """A connection to the database that was open before; a file that has become empty is refused."""
        self._open_shared().close()  # to read only, an empty file is refused; to write, it would become a new store
        return self.to_write()

    def to_read(self) -> SqliteConnection:
        """A connection that only reads, and never moves an existing write-ahead log into the file.

        Beside a file that was closed cleanly it leaves nothing.
        """
        mode = "shared" if is_owned_here(self.path) else read_mode_of(self.path)
        if mode == "shared":
            return self._open_shared()
        immutable = self._open(lambda: ImmutableConnection(self.path), read_only=True)
        if mode == "immutable":
            return immutable
        immutable.close()  # it is a store, and writable: opened to write, SQLite removes what it makes beside the file
        return self._open(lambda: self.connect(self.path, False), read_only=True)

    def _open_shared(self) -> SqliteConnection:
        return self._open(lambda: self.connect(self.path, True), read_only=True)

    def _open(self, connect: Callable[[], SqliteConnection], *, read_only: bool) -> SqliteConnection:
        try:
            connection = connect()
            with closed_on_error(connection):
                self._prepare(connection, read_only=read_only)
        except sqlite3.Error as error:
            raise self._opening_error(error) from error
        return connection

    def _prepare(self, connection: SqliteConnection, *, read_only: bool) -> None:
        connection.execute(DEFAULT_BUSY_TIMEOUT)
        shape, newest = schema_version_of(connection, self.path), len(migrations())
        if shape > newest:
            raise StoreRefused(
                f"{self.path} was written by a newer version (its shape is {shape}, the newest known here is"
                f" {newest}); upgrade antiphon to open it"
            )
        if not read_only:
            self._sync(connection)
            _migrate(connection, shape)
        elif shape < OLDEST_READABLE_SCHEMA:
            raise StoreRefused(
                f"{self.path} is empty: there is no store in it; if there was one, restore it from a copy (a hub that"
                " opens this path begins a new store)"
            )
        for pragma in _READ_PRAGMAS if read_only else _WRITE_PRAGMAS:
            connection.execute(pragma)

    def _sync(self, connection: SqliteConnection) -> None:
        mode = as_type(fetch_one(connection, "PRAGMA journal_mode = WAL"), tuple[str])[0]
        if mode != "wal":
            raise StoreRefused(
                f"{self.path} cannot be kept in write-ahead mode (SQLite says {mode!r}); put it on a local disk"
            )
        level = _SYNCHRONOUS_LEVELS[self.synchronous]
        connection.execute(f"PRAGMA synchronous = {self.synchronous}")
        found = fetch_number(connection, "PRAGMA synchronous")
        if found != level:
            raise StoreRefused(f"{self.path} is synced at level {found} where {level} ({self.synchronous}) was asked")

    def _opening_error(self, error: sqlite3.Error) -> StoreError:
        if is_damage(error):
            return damaged_file_error(self.path, error)
        if is_access_refusal(error):
            return StoreRefused(f"{self.path} cannot be opened ({error}); check that it exists and may be written")
        return unavailable_error(self.path, error)


def _migrate(connection: SqliteConnection, version: int) -> None:
    for number, statements in enumerate(migrations(), 1):
        if number <= version:
            continue
        connection.execute("BEGIN IMMEDIATE")
        if fetch_number(connection, "PRAGMA user_version") < number:
            for statement in statements:
                connection.execute(statement)
        connection.execute("COMMIT")


@cache
def migrations() -> tuple[tuple[str, ...], ...]:
    """The statements of every migration; the first brings a database to schema 1, and so on."""
    found = sorted(
        (file for file in files("antiphon.store").joinpath("migrations").iterdir() if file.name.endswith(".sql")),
        key=lambda file: file.name,
    )
    return tuple(_split_statements(file.read_text(encoding="utf-8")) for file in found)


def _split_statements(text: str) -> tuple[str, ...]:
    found: list[str] = []
    pending = ""
    for line in text.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            found.append(pending.strip())
            pending = ""
    return tuple(found)


SqliteReadMode = Literal["shared", "cleaning", "immutable"]
"""How to read: with locks and the write-ahead log; so, and SQLite removes its files at the end; or without any lock,
because no process writes."""


def read_mode_of(path: str) -> SqliteReadMode:
    """How this process can read a file that other processes may use; refused if it may not in any way."""
    if has_log(path):
        _check_log_readable(path)
        return "shared"
    if is_half_made(path):
        raise StoreRefused(f"{path} was left half made; let {file_owner_of(path)} open and close a hub on it once")
    if _may_write_all(path):
        return "cleaning"
    are_readable = all(may_access(path + suffix, os.R_OK) for suffix in (LOG_SUFFIX, SHARED_MEMORY_SUFFIX))
    return "shared" if are_readable else "immutable"


def _check_log_readable(path: str) -> None:
    for beside in (path + LOG_SUFFIX, path + SHARED_MEMORY_SUFFIX):
        if os.path.lexists(beside) and not may_access(beside, os.R_OK):
            raise StoreRefused(
                f"{beside} may not be read by you, and a part of the store is in it;"
                f" ask {file_owner_of(beside)} to let you"
            )
    if not os.path.lexists(path + SHARED_MEMORY_SUFFIX) and not _may_write_all(path):
        raise StoreRefused(
            f"{path} was left by a hub that did not end well, and to read it you must be able to write it and its"
            f" directory; let {file_owner_of(path)} open and close a hub on it once"
        )


def _may_write_all(path: str) -> bool:
    beside = [path + suffix for suffix in (LOG_SUFFIX, SHARED_MEMORY_SUFFIX) if os.path.lexists(path + suffix)]
    return all(may_access(place, os.W_OK) for place in (os.path.dirname(path), path, *beside))


class ImmutableConnection:
    """A connection without locks; every read fails once the file has changed."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._seen = _file_fingerprint(path)
        self._inner: SqliteConnection = connect_immutable(path)

    def execute(self, sql: str, parameters: SqlValues = ()) -> ImmutableCursor:
        with self.unchanged():
            return ImmutableCursor(self._inner.execute(sql, parameters), self)

    def executemany(self, sql: str, parameters: Iterable[SqlValues]) -> object:
        return self._inner.executemany(sql, parameters)

    def close(self) -> None:
        self._inner.close()

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Inside, a read fails with SQLITE_ABORT unless the file is the same afterwards."""
        try:
            yield
        finally:
            if _file_fingerprint(self._path) != self._seen:
                error = sqlite3.OperationalError("a process began to write to it while it was read; try again")
                error.sqlite_errorcode = sqlite3.SQLITE_ABORT
                raise error


class ImmutableCursor:
    """The rows of a statement, each read checked."""

    def __init__(self, inner: SqliteCursor, connection: ImmutableConnection) -> None:
        self._inner, self._connection = inner, connection

    def fetchone(self) -> object:
        with self._connection.unchanged():
            return self._inner.fetchone()

    def fetchall(self) -> list[object]:
        with self._connection.unchanged():
            return list(self._inner.fetchall())


def _file_fingerprint(path: str) -> tuple[object, ...]:
    """What every write to the file changes."""
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, has_log(path)
