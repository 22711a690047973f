"""Connections to a database file: the threads that own them, what errors mean, and whether the file is still there.

Rule 1: a connection is used by the thread that opened it and by no other. A future is settled on the event loop only.
Rule 2: transactions are written out: BEGIN IMMEDIATE, COMMIT, ROLLBACK. The driver begins none by itself.
Rule 3: what an error means is decided here, once, by SQLite's own result code.
Rule 4: a connection that failed is dropped, and opened again when it is next needed.
Rule 5: SQLite goes on writing to a file that was deleted or replaced, which no other process can ever read. So the
        file is checked after each commit and before its outcome is reported, and when the writer is idle.
Rule 6: a path is checked without following links: SQLite names its other files by the path it opened.
Rule 7: once the file is gone the store stays refused: a file that comes back may lack what was written meanwhile. The
        loss is reported once, by the thread that finds it, and ends all waits.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol, TypeVar

from antiphon.core.codec import Malformed, as_type
from antiphon.core.errors import (
    AntiphonError,
    LogCorrupt,
    OutcomeUnknown,
    StoreError,
    StoreGone,
    StoreRefused,
    StoreUnavailable,
)

T = TypeVar("T")

logger = logging.getLogger("antiphon.store")

SqlValue = str | int | float | bytes | None
SqlValues = Sequence[SqlValue]

STATEMENT_ERRORS = (sqlite3.Error, MemoryError)
"""How a statement fails whose parameters are right."""

LOG_SUFFIX, SHARED_MEMORY_SUFFIX, JOURNAL_SUFFIX = "-wal", "-shm", "-journal"
"""What SQLite keeps beside a file: its write-ahead log, an index of that, and, while it is being created, a rollback
journal."""

_CACHED_STATEMENTS = 256


class SqliteCursor(Protocol):
    """The rows that a statement found."""

    def fetchone(self) -> object: ...

    def fetchall(self) -> Sequence[object]: ...


class SqliteConnection(Protocol):
    """What the store uses of `sqlite3.Connection`."""

    def execute(self, sql: str, parameters: SqlValues = ..., /) -> SqliteCursor: ...

    def executemany(self, sql: str, parameters: Iterable[SqlValues], /) -> object: ...

    def close(self) -> None: ...


ConnectSqlite = Callable[[str, bool], SqliteConnection]
"""Opens the database file at a path, with True to read only. It creates no file."""


def connect_sqlite(path: str, read_only: bool) -> SqliteConnection:
    """A connection of the standard library."""
    url = f"{Path(path).as_uri()}?mode={'ro' if read_only else 'rw'}"
    return sqlite3.connect(url, uri=True, isolation_level=None, cached_statements=_CACHED_STATEMENTS)


@contextmanager
def closed_on_error(connection: SqliteConnection) -> Iterator[None]:
    """Inside, an error of any kind closes the connection."""
    try:
        yield
    except BaseException:
        connection.close()
        raise


def fetch_one(connection: SqliteConnection, sql: str, values: SqlValues = ()) -> object:
    """The single row of a query; None if there is none."""
    return connection.execute(sql, values).fetchone()


def fetch_number(connection: SqliteConnection, sql: str, values: SqlValues = ()) -> int:
    """The single number of a query."""
    return as_type(fetch_one(connection, sql, values), tuple[int])[0]


def decode_blob_text(found: object) -> str:
    """A text that was fetched as a blob; `Malformed` if it is none.

    Fetched as text, one that is no UTF-8 would keep the driver from every row behind it.
    """
    try:
        return as_type(found, bytes).decode()
    except UnicodeDecodeError as error:
        raise Malformed("malformed", str(error)) from error


def is_busy(error: sqlite3.Error) -> bool:
    """Another connection holds the file."""
    return _result_code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def is_damage(error: BaseException | None) -> bool:
    """What is stored is not what was written, or this error is one of ours that says so.

    A text that is no UTF-8 is met by the driver, without a code.
    """
    if isinstance(error, AntiphonError):
        return is_damage(error.__cause__)
    if isinstance(error, sqlite3.OperationalError) and not _result_code(error):
        return True
    if isinstance(error, sqlite3.Error):
        return _result_code(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
    return isinstance(error, Malformed)


def is_access_refusal(error: sqlite3.Error) -> bool:
    """Trying again will not help: the file may not be opened, read or written."""
    return is_damage(error) or _result_code(error) in (
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_AUTH,
    )


def is_store_wide_failure(error: Exception) -> bool:
    """The file as a whole cannot be used now: no room, no disk, no lock, no memory. Any other statement fails too."""
    return isinstance(error, MemoryError) or (isinstance(error, sqlite3.OperationalError) and not is_damage(error))


def may_be_committed(error: Exception) -> bool:
    """Whether a statement that is its own transaction may have been committed although it failed with this error.

    A lock, a full disk, damage, a violated constraint or a value of a wrong type is met before the commit.
    """
    if not isinstance(error, sqlite3.Error):
        return not isinstance(error, TypeError | ValueError | OverflowError)
    before = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN)
    return is_store_wide_failure(error) and not is_busy(error) and _result_code(error) not in before


def unusable_error(path: str, error: Exception) -> StoreError:
    """The error of a failed statement: `StoreRefused` for damage, which no retry mends; else `StoreUnavailable`."""
    if is_damage(error):
        return StoreRefused(f"{path} is damaged ({error_message(error)}); restore it from a copy")
    return unavailable_error(path, error)


def unavailable_error(path: str, error: Exception) -> StoreUnavailable:
    """The error of a statement that may succeed later, with its reason."""
    if isinstance(error, sqlite3.Error) and is_busy(error):
        return StoreUnavailable(f"{path} is locked by another process; nothing was recorded")
    if isinstance(error, sqlite3.Error) and _result_code(error) == sqlite3.SQLITE_FULL:
        return StoreUnavailable(f"there is no room left for {path}; nothing was recorded")
    return StoreUnavailable(f"{path} cannot be used now ({error_message(error)}); nothing was recorded")


def error_message(error: Exception) -> str:
    """The message of an error; its type, if it has none."""
    return str(error) or type(error).__name__


@contextmanager
def damage_as_log_corrupt(channel: str, sequence: int) -> Iterator[None]:
    """Inside, damage is reported as `LogCorrupt` of this channel."""
    try:
        yield
    except (sqlite3.Error, Malformed) as error:
        if is_damage(error):
            raise LogCorrupt(channel, sequence, str(error)) from error
        raise


class TransactionDamaged(Exception):
    """An item of a group met damage. Its transaction can no longer be committed, not even after ROLLBACK TO."""

    def __init__(self, culprit: object, error: Exception) -> None:
        super().__init__(str(error))
        self.culprit, self.error = culprit, error


def _result_code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


class ServingThread:
    """A thread that runs `serve` once. Its end is reported to the loop, even if `serve` raises."""

    def __init__(self, serve: Callable[[], None], *, name: str) -> None:
        self._serve = serve
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread; `StoreUnavailable` if the system has none left."""
        try:
            self._thread.start()
        except RuntimeError as error:
            raise StoreUnavailable(f"no thread can be started now ({error}); nothing was recorded") from error

    async def ended(self) -> None:
        """Wait for the end of the thread. One that was never started has ended."""
        if self._thread.ident is not None:
            await self._ended.wait()
            self._thread.join()

    def _run(self) -> None:
        try:
            self._serve()
        finally:
            call_on_loop(self._loop, self._ended.set)


class ThreadConnection:
    """The connection of one thread: opened by `first`, and after a failure by `again`."""

    def __init__(self, first: Callable[[], SqliteConnection], again: Callable[[], SqliteConnection]) -> None:
        self._open, self._again = first, again
        self._connection: SqliteConnection | None = None

    @property
    def is_open(self) -> bool:
        """Whether there is a connection now."""
        return self._connection is not None

    def get(self) -> SqliteConnection:
        """The connection, opened if there is none. After the first time a refusal counts as temporary."""
        if self._connection is None:
            self._connection = self._open()
            self._open = self._reopen
        return self._connection

    def _reopen(self) -> SqliteConnection:
        try:
            return self._again()
        except StoreGone:
            raise  # which is for good
        except StoreRefused as error:
            raise StoreUnavailable(f"{error}; nothing was recorded") from error

    def roll_back(self) -> None:
        """End the transaction, if there is one."""
        if self._connection is not None:
            with suppress(*STATEMENT_ERRORS):
                self._connection.execute("ROLLBACK")

    def drop(self, *last: str) -> None:
        """Close the connection after some last statements. What was not committed is lost."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        with suppress(*STATEMENT_ERRORS):
            for statement in last:
                connection.execute(statement).fetchall()
        with suppress(*STATEMENT_ERRORS):
            connection.close()


class FileIdentity:
    """The file that a store was opened on, and its write-ahead log. Used by both threads of the store."""

    def __init__(self, path: str, *, on_loss: Callable[[], None]) -> None:
        self._path, self._on_loss = path, on_loss
        self._file = _device_and_inode(path)
        self._wal: tuple[int, int] | None = None
        self._gone = ""

    def remember_log(self) -> None:
        """Remember which write-ahead log belongs to a writing connection that was just opened."""
        self._wal = _device_and_inode(self._path + LOG_SUFFIX)

    def has_file(self) -> bool:
        """Whether the file itself is in its place. Its write-ahead log is not checked."""
        return self._file is not None and _device_and_inode(self._path) == self._file

    def refusal(self) -> StoreGone | None:
        """The error of a store whose file is known to be gone. Nothing is checked."""
        return StoreGone(self._gone) if self._gone else None

    def check(self) -> None:
        """`StoreGone` if the file is not the one that was opened."""
        if not self._gone and not self.has_file():
            raise self._give_up(self._path)
        if self._gone:
            raise StoreGone(self._gone)

    def failure_after_commit(self) -> StoreError | None:
        """The error, if the last commit may be in a file that cannot be opened any more."""
        try:
            if not self._gone and not self.has_file():
                return self._give_up(self._path)
            if not self._gone and (self._wal is None or _device_and_inode(self._path + LOG_SUFFIX) != self._wal):
                return self._give_up(self._path + LOG_SUFFIX)
        except OSError as error:
            return OutcomeUnknown(f"{self._path} cannot be looked at after a commit ({error.strerror})")
        return self.refusal()

    def log_lost_error(self) -> StoreGone:
        """The error of a store whose write-ahead log is gone, and with it acknowledged envelopes."""
        return self._give_up(self._path + LOG_SUFFIX)

    def _give_up(self, part: str) -> StoreGone:
        self._gone = (
            f"{part} was deleted, replaced or moved away while a hub had it open, so nothing more is acknowledged or"
            f" read; stop this hub, put the file back (or remove {self._path}{LOG_SUFFIX} and"
            f" {self._path}{SHARED_MEMORY_SUFFIX}, and restore a copy), and open the hub again"
        )
        logger.error("%s", self._gone)
        self._on_loss()
        return StoreGone(self._gone)


def _device_and_inode(path: str) -> tuple[int, int] | None:
    """What tells a file from any other; None if there is none at this path."""
    try:
        found = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino


def settle_futures(outcomes: Iterable[tuple[asyncio.Future[T], T | Exception]]) -> None:
    """Give each future its outcome, except for those that were cancelled. Runs on the loop."""
    for future, outcome in outcomes:
        if future.done():
            continue
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)


def call_on_loop(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    """Schedule a call on the loop. On a loop that is closed nothing waits any more."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(call)
