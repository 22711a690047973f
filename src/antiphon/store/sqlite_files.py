"""The files of a database: whose they are, and what this process may do with them.

Rule 1: a database file is opened by SQLite and by nobody else. Closing any descriptor of a file gives up every lock
        that this process has on it, also those of a hub that is open; SQLite knows that, and closes its own in time.
Rule 2: nothing here makes, changes or removes a file.
Rule 3: whoever may only read leaves nothing beside a file that its owner could not write.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Literal

from antiphon.core.codec import as_type
from antiphon.core.errors import StoreRefused
from antiphon.store.sqlite_connection import Connection, connect, is_damage, one

APPLICATION_ID = 1097757808

LOG, MEMORY, JOURNAL = "-wal", "-shm", "-journal"
"""What SQLite keeps beside a file: what was committed and is not in the file yet, an index into that, and, while the
file is being made, what it was before."""

Way = Literal["beside", "tidily", "still"]
"""How to read: beside the locks of others and with their log; so, and with SQLite tidying up at the end; or without
any lock, because nothing will be written meanwhile."""


def may(path: str, mode: int) -> bool:
    """Whether this process may read or write something, as whoever it acts for."""
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)


def owner_of(path: str) -> str:
    """The name of the user to whom a file belongs."""
    number = os.stat(path).st_uid
    try:
        import pwd

        return pwd.getpwuid(number).pw_name
    except (ImportError, KeyError):
        return f"user {number}"


def has_log(path: str) -> bool:
    """Whether something may have been committed that is not in the file itself yet."""
    return _has(path + LOG)


def is_half_made(path: str) -> bool:
    """Whether the making of this file was cut off. SQLite undoes that, if it is let."""
    return _has(path + JOURNAL)


def _has(beside: str) -> bool:
    try:
        return os.stat(beside).st_size > 0
    except FileNotFoundError:
        return False
    except OSError:
        return True


def way_to_read(path: str) -> Way:
    """How this process can read a file, whoever else uses it; refused if it lacks a permission for every way."""
    if has_log(path):
        _check_log(path)
        return "beside"
    if is_half_made(path):
        raise StoreRefused(f"{path} was left half made; let {owner_of(path)} open and close a hub on it once")
    if _is_ours_to_write(path):
        return "tidily"
    return "beside" if all(may(path + suffix, os.R_OK) for suffix in (LOG, MEMORY)) else "still"


def _check_log(path: str) -> None:
    for beside in (path + LOG, path + MEMORY):
        if os.path.lexists(beside) and not may(beside, os.R_OK):
            raise StoreRefused(
                f"{beside} may not be read by you, and a part of the store is in it; ask {owner_of(beside)} to let you"
            )
    if not os.path.lexists(path + MEMORY) and not _is_ours_to_write(path):
        raise StoreRefused(
            f"{path} was left by a hub that did not end well, and to read it you must be able to write it and its"
            f" directory; let {owner_of(path)} open and close a hub on it once"
        )


def _is_ours_to_write(path: str) -> bool:
    beside = [path + suffix for suffix in (LOG, MEMORY) if os.path.lexists(path + suffix)]
    return all(may(place, os.W_OK) for place in (os.path.dirname(path), path, *beside))


def refuse_unwritable(path: str) -> None:
    """Refuse a file if this process may not write every part of it."""
    for part in (path, path + LOG, path + MEMORY):
        if os.path.lexists(part) and not may(part, os.W_OK):
            raise StoreRefused(
                f"{part} cannot be written by you: it belongs to {owner_of(part)}; give it, with chown, to the user who"
                " runs the hub"
            )
    if not may(os.path.dirname(path), os.W_OK):
        raise StoreRefused(
            f"{os.path.dirname(path)} cannot be written by you: it belongs to {owner_of(os.path.dirname(path))}; the"
            f" store needs room there for files beside {path}"
        )


def refuse_orphaned_log(path: str) -> None:
    """Refuse to make a new store where the log of another is left. SQLite would remove it, and what is in it."""
    try:
        left = os.stat(path + LOG).st_size
        size = os.stat(path).st_size
    except FileNotFoundError as missing:
        if missing.filename != path:
            return
        size = 0
    except OSError:
        return  # whoever opens the file is told
    if left and not size:
        raise StoreRefused(
            f"{path} is missing or empty, but {path}{LOG} holds {left} bytes that were committed to it; put the file"
            f" back from where it was moved, or remove {path}{LOG} to begin a new store"
        )


def refuse_foreign(path: str) -> None:
    """Refuse what is no database, or another program's. What cannot be read now is left to whoever opens it."""
    if is_half_made(path):
        return
    with suppress(sqlite3.Error), closing(connect_still(path)) as still:
        if count_of(still, "PRAGMA application_id") == APPLICATION_ID:
            return  # it says so itself; a log need not be gone through, which may take a while
    try:
        with closing(connect(path, True) if has_log(path) else connect_still(path)) as connection:
            shape_of(connection, path)
    except sqlite3.Error as error:
        if is_damage(error):
            raise damaged(path, error) from error


def connect_still(path: str) -> Connection:
    """A connection that takes no lock, makes no file and knows no log: for a file that nobody writes to now."""
    return sqlite3.connect(f"{Path(path).as_uri()}?mode=ro&immutable=1", uri=True, isolation_level=None)


def shape_of(connection: Connection, path: str) -> int:
    """The number of the last migration of a database of ours; 0 if it is empty. Another program's is refused."""
    owner, version = count_of(connection, "PRAGMA application_id"), count_of(connection, "PRAGMA user_version")
    tables = count_of(connection, "SELECT count(*) FROM sqlite_master")
    if owner == APPLICATION_ID:
        return version
    if owner or version or tables:
        raise StoreRefused(f"{path} is a database of another program; name a file of its own for the store")
    return 0


def damaged(path: str, error: sqlite3.Error) -> StoreRefused:
    """The refusal of a file that SQLite does not understand."""
    return StoreRefused(f"{path} is no database, or is damaged ({error}); restore it from a copy")


def count_of(connection: Connection, sql: str) -> int:
    """The one number that a query gives."""
    return as_type(one(connection, sql), tuple[int])[0]
