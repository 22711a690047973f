"""The little of SQLite's driver that the store stands on, and what its errors mean.

Rule 1: a connection is used by the thread that opened it and by no other.
Rule 2: transactions are written out: BEGIN IMMEDIATE, COMMIT, ROLLBACK. The driver begins none by itself.
Rule 3: what an error means is decided here, once, by SQLite's own result code.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from antiphon.core.codec import Malformed, as_type
from antiphon.core.errors import AntiphonError, LogCorrupt, StoreError, StoreRefused, StoreUnavailable

Value = str | int | float | bytes | None
Values = Sequence[Value]

_CACHED = 256
_MODES = {True: "ro", False: "rw"}


class Cursor(Protocol):
    """The rows that a statement found."""

    def fetchone(self) -> object: ...

    def fetchall(self) -> Sequence[object]: ...


class Connection(Protocol):
    """What the store uses of `sqlite3.Connection`."""

    def execute(self, sql: str, parameters: Values = ..., /) -> Cursor: ...

    def executemany(self, sql: str, parameters: Iterable[Values], /) -> object: ...

    def close(self) -> None: ...


Connect = Callable[[str, bool], Connection]
"""Opens the database file at a path, to read only if so told. It creates no file."""


def connect(path: str, read_only: bool) -> Connection:
    """A connection of the standard library's."""
    url = f"{Path(path).as_uri()}?mode={_MODES[read_only]}"
    return sqlite3.connect(url, uri=True, isolation_level=None, cached_statements=_CACHED)


def one(connection: Connection, sql: str, values: Values = ()) -> object:
    """The single row of a query; None if there is none."""
    return connection.execute(sql, values).fetchone()


def text_of(found: object) -> str:
    """A text that was fetched as a blob; `Malformed` if it is none.

    Fetched as text, one that is no UTF-8 would keep the driver from every row behind it.
    """
    try:
        return as_type(found, bytes).decode()
    except UnicodeDecodeError as error:
        raise Malformed("malformed", str(error)) from error


def is_busy(error: sqlite3.Error) -> bool:
    """Somebody else holds the file."""
    return _code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def is_damage(error: BaseException | None) -> bool:
    """What is stored is not what was written, or this error is one of ours that says so.

    A text that is no UTF-8 is met by the driver, without a code.
    """
    if isinstance(error, AntiphonError):
        return is_damage(error.__cause__)
    if isinstance(error, sqlite3.OperationalError) and not _code(error):
        return True
    if isinstance(error, sqlite3.Error):
        return _code(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
    return isinstance(error, Malformed)


def is_refusal(error: sqlite3.Error) -> bool:
    """Trying again will not help: the file may not be opened, read or written."""
    return is_damage(error) or _code(error) in (
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_AUTH,
    )


def is_nobodys_fault(error: Exception) -> bool:
    """The file as a whole cannot be used now: no room, no disk, no lock, no memory. Everybody would have met it."""
    return isinstance(error, MemoryError) or (isinstance(error, sqlite3.OperationalError) and not is_damage(error))


def may_be_committed(error: Exception) -> bool:
    """A statement that is its own transaction failed with this: perhaps only after it had been committed.

    A lock, a full disk, damage, a broken rule or a value that cannot be passed on is met before that.
    """
    if not isinstance(error, sqlite3.Error):
        return not isinstance(error, TypeError | ValueError | OverflowError)
    before = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN)
    return is_nobodys_fault(error) and not is_busy(error) and _code(error) not in before


def unusable(path: str, error: Exception) -> StoreError:
    """Why nothing could be read or recorded, as a sentence; damage is refused, for trying again would not help."""
    if is_damage(error):
        return StoreRefused(f"{path} is damaged ({why(error)}); restore it from a copy")
    return unavailable(path, error)


def unavailable(path: str, error: Exception) -> StoreUnavailable:
    """Why nothing could be read or recorded, as a sentence."""
    if isinstance(error, sqlite3.Error) and is_busy(error):
        return StoreUnavailable(f"{path} is locked by another process; nothing was recorded")
    if isinstance(error, sqlite3.Error) and _code(error) == sqlite3.SQLITE_FULL:
        return StoreUnavailable(f"there is no room left for {path}; nothing was recorded")
    return StoreUnavailable(f"{path} cannot be used now ({why(error)}); nothing was recorded")


def why(error: Exception) -> str:
    """What an error says; its name, if it says nothing."""
    return str(error) or type(error).__name__


@contextmanager
def damage_in(channel: str, sequence: int) -> Iterator[None]:
    """Inside, damage to the file is damage to this one channel."""
    try:
        yield
    except (sqlite3.Error, Malformed) as error:
        if is_damage(error):
            raise LogCorrupt(channel, sequence, str(error)) from error
        raise


class Damaged(Exception):
    """Somebody met damage inside a transaction, which can no longer be committed: not even after ROLLBACK TO."""

    def __init__(self, culprit: object, error: Exception) -> None:
        super().__init__(str(error))
        self.culprit, self.error = culprit, error


def _code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF
