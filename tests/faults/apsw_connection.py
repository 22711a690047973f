"""An apsw connection that passes for one of the standard library's.

Rule 1: a caller that knows `sqlite3` sees its results, its exceptions and its rule of one thread a connection.
Rule 2: nothing is retried, softened or swallowed here. A fault of the VFS arrives as the exception SQLite means.

apsw lets a VFS be written in Python; the standard library does not. That is the whole reason for this file.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

import apsw

from antiphon.store.sqlite_connection import ConnectSqlite, SqlValue, SqlValues

Row = tuple[SqlValue, ...]

COUNTED = ("INSERT", "UPDATE", "DELETE", "REPLACE")

# By primary result code, as CPython's own `sqlite3` sorts them; what is not listed is a DatabaseError.
KINDS: dict[int, type[sqlite3.Error]] = {
    apsw.SQLITE_INTERNAL: sqlite3.InternalError,
    apsw.SQLITE_NOTFOUND: sqlite3.InternalError,
    **dict.fromkeys(
        (
            apsw.SQLITE_ERROR,
            apsw.SQLITE_PERM,
            apsw.SQLITE_ABORT,
            apsw.SQLITE_BUSY,
            apsw.SQLITE_LOCKED,
            apsw.SQLITE_READONLY,
            apsw.SQLITE_INTERRUPT,
            apsw.SQLITE_IOERR,
            apsw.SQLITE_FULL,
            apsw.SQLITE_CANTOPEN,
            apsw.SQLITE_PROTOCOL,
            apsw.SQLITE_EMPTY,
            apsw.SQLITE_SCHEMA,
        ),
        sqlite3.OperationalError,
    ),
    apsw.SQLITE_CONSTRAINT: sqlite3.IntegrityError,
    apsw.SQLITE_MISMATCH: sqlite3.IntegrityError,
    apsw.SQLITE_TOOBIG: sqlite3.DataError,
    apsw.SQLITE_MISUSE: sqlite3.InterfaceError,
    apsw.SQLITE_RANGE: sqlite3.InterfaceError,
}


def translated(error: apsw.Error) -> sqlite3.Error:
    """The exception that the standard library would have raised."""
    code = getattr(error, "extendedresult", getattr(error, "result", apsw.SQLITE_ERROR))
    kind = KINDS.get(code & 0xFF, sqlite3.DatabaseError)
    same = kind(str(error))
    same.sqlite_errorcode = code
    same.sqlite_errorname = str(apsw.mapping_extended_result_codes.get(code) or apsw.mapping_result_codes[code & 0xFF])
    return same


def failure(kind: type[apsw.Error], code: int, message: str) -> apsw.Error:
    """What a VFS raises to have SQLite meet this result code."""
    error = kind(message)
    vars(error)["extendedresult"] = code
    return error


@contextmanager
def translating() -> Iterator[None]:
    try:
        yield
    except apsw.Error as error:
        raise translated(error) from error


class Result:
    """The rows of one statement, fetched already, and how many it changed."""

    def __init__(self, rows: Sequence[Row], rowcount: int) -> None:
        self._rows = iter(rows)
        self.rowcount = rowcount

    def __iter__(self) -> Iterator[Row]:
        return self._rows

    def fetchone(self) -> Row | None:
        return next(self._rows, None)

    def fetchall(self) -> list[Row]:
        return list(self._rows)


class ApswConnection:
    """What a store uses of `sqlite3.Connection`, in autocommit mode.

    apsw raises what a VFS raised even where SQLite shrugs it off: when a connection closes. The standard library hears
    nothing of it then, and neither does a caller here.
    """

    def __init__(self, path: str, *, vfs: str = "", read_only: bool = False) -> None:
        flags = apsw.SQLITE_OPEN_READONLY if read_only else apsw.SQLITE_OPEN_READWRITE
        with translating():
            self._inner = apsw.Connection(path, flags=flags, vfs=vfs or None)
        self._owner = threading.get_ident()

    @property
    def in_transaction(self) -> bool:
        return self._inner.in_transaction

    def execute(self, sql: str, values: SqlValues = ()) -> Result:
        self._check_thread()
        with translating():
            rows = self._inner.execute(sql, tuple(values)).fetchall()
        counted = sql.lstrip().upper().startswith(COUNTED)
        return Result(rows, self._inner.changes() if counted else -1)

    def executemany(self, sql: str, rows: Iterable[SqlValues]) -> Result:
        self._check_thread()
        before = self._inner.total_changes()
        with translating():
            self._inner.executemany(sql, [tuple(row) for row in rows]).fetchall()
        return Result((), self._inner.total_changes() - before)

    def close(self) -> None:
        self._check_thread()
        with suppress(apsw.Error):
            self._inner.close()

    def _check_thread(self) -> None:
        if threading.get_ident() != self._owner:
            raise sqlite3.ProgrammingError("a connection was used in another thread than the one that opened it")


def connects_through(vfs: str) -> ConnectSqlite:
    """A `connect` for the store that opens everything through this VFS."""

    def connect(path: str, read_only: bool) -> ApswConnection:
        return ApswConnection(path, vfs=vfs, read_only=read_only)

    return connect
