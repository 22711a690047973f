"""A connection to a file that nobody writes to.

It takes no lock, so that it needs no permission but to read, and leaves nothing behind. In return it must notice when
somebody begins to write: what was read meanwhile is not believed, and whoever asked opens the file anew.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from antiphon.store.sqlite_connection import Connection, Cursor, Values
from antiphon.store.sqlite_files import connect_still, has_log


class StillConnection:
    """Reads, as long as the file is what it was."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._seen = _sight(path)
        self._inner: Connection = connect_still(path)

    def execute(self, sql: str, parameters: Values = ()) -> StillCursor:
        with self.unchanged():
            return StillCursor(self._inner.execute(sql, parameters), self)

    def executemany(self, sql: str, parameters: Iterable[Values]) -> object:
        return self._inner.executemany(sql, parameters)

    def close(self) -> None:
        self._inner.close()

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """What is read inside holds only if the file is still the same afterwards."""
        try:
            yield
        finally:
            if _sight(self._path) != self._seen:
                raise _changed()


class StillCursor:
    """The rows of a statement, each of them checked."""

    def __init__(self, inner: Cursor, connection: StillConnection) -> None:
        self._inner, self._connection = inner, connection

    def fetchone(self) -> object:
        with self._connection.unchanged():
            return self._inner.fetchone()

    def fetchall(self) -> list[object]:
        with self._connection.unchanged():
            return list(self._inner.fetchall())


def _sight(path: str) -> tuple[object, ...]:
    """What would not be the same if somebody had written."""
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, has_log(path)


def _changed() -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("somebody began to write to it while it was read; try again")
    error.sqlite_errorcode = sqlite3.SQLITE_ABORT
    return error
