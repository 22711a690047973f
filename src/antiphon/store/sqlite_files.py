"""The files of a database before it is opened: where it is, what this process may do with it, and which hub owns it.

One hub at a time owns a file, by a lock of the operating system. The lock is on a file beside the database and ends
with the process that holds it. That file stays: only the lock counts, and its text names the process.

Rule 1: a database file is opened by SQLite alone. Closing any descriptor of a file gives up every lock that this
        process has on it, also those of an open hub; SQLite takes care of that for its own descriptors.
Rule 2: nothing here changes or removes a database file; one that is missing is made empty, by the hub that will write.
Rule 3: a lock counts if it is on the file that is beside the database now. Links are not followed.
Rule 4: a child process owns nothing. Its copy of a lock would outlive the hub.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import stat
import threading
from contextlib import ExitStack, closing, suppress
from pathlib import Path

from antiphon.core.errors import StoreRefused
from antiphon.store.sqlite_connection import (
    JOURNAL_SUFFIX,
    LOG_SUFFIX,
    SHARED_MEMORY_SUFFIX,
    SqliteConnection,
    connect_sqlite,
    fetch_number,
    is_damage,
)

APPLICATION_ID = 1097757808
OWNER_SUFFIX = "-owner"


def may_access(path: str, mode: int) -> bool:
    """Whether the effective user of this process may access a path."""
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)


def file_owner_of(path: str) -> str:
    """The name of the user who owns a file."""
    number = os.stat(path).st_uid
    try:
        import pwd

        return pwd.getpwuid(number).pw_name
    except (ImportError, KeyError):
        return f"user {number}"


def has_log(path: str) -> bool:
    """Whether commits may be in the write-ahead log that are not in the file yet."""
    return _is_nonempty_file(path + LOG_SUFFIX)


def is_half_made(path: str) -> bool:
    """Whether the creation of this file was cut off. SQLite undoes that when it may write."""
    return _is_nonempty_file(path + JOURNAL_SUFFIX)


def _is_nonempty_file(beside: str) -> bool:
    try:
        return os.stat(beside).st_size > 0
    except OSError as error:
        return not isinstance(error, FileNotFoundError)


def _refuse_unwritable(path: str) -> None:
    """Refuse a file if this process may not write every part of it."""
    for part in (path, path + LOG_SUFFIX, path + SHARED_MEMORY_SUFFIX):
        if os.path.lexists(part) and not may_access(part, os.W_OK):
            raise StoreRefused(
                f"{part} cannot be written by you: it belongs to {file_owner_of(part)}; give it, with chown,"
                " to the user who runs the hub"
            )
    directory = os.path.dirname(path)
    if not may_access(directory, os.W_OK):
        raise StoreRefused(
            f"{directory} cannot be written by you: it belongs to {file_owner_of(directory)};"
            f" the store needs room there for files beside {path}"
        )


def _refuse_orphaned_log(path: str) -> None:
    """Refuse to create a store beside a write-ahead log that was left. SQLite would remove it with its commits."""
    try:
        left = os.stat(path + LOG_SUFFIX).st_size
        size = os.stat(path).st_size
    except OSError as error:
        if not isinstance(error, FileNotFoundError) or error.filename != path:
            return  # there is no log, or opening the file reports what is wrong
        size = 0
    if left and not size:
        raise StoreRefused(
            f"{path} is missing or empty, but {path}{LOG_SUFFIX} holds {left} bytes that were committed to it; put"
            f" the file back from where it was moved, or remove {path}{LOG_SUFFIX} to begin a new store"
        )


def _refuse_foreign(path: str) -> None:
    """Refuse a file that is no database, or of another program. An error that is no damage is left to the opening."""
    if is_half_made(path):
        return
    with suppress(sqlite3.Error), closing(connect_immutable(path)) as header:
        if fetch_number(header, "PRAGMA application_id") == APPLICATION_ID:
            return  # a store by its own header; recovering a long write-ahead log, which takes a while, is not needed
    try:
        with closing(connect_sqlite(path, True) if has_log(path) else connect_immutable(path)) as connection:
            schema_version_of(connection, path)
    except sqlite3.Error as error:
        if is_damage(error):
            raise damaged_file_error(path, error) from error


def connect_immutable(path: str) -> SqliteConnection:
    """A connection without locks, new files or the write-ahead log: for a file that no process writes to."""
    return sqlite3.connect(f"{Path(path).as_uri()}?mode=ro&immutable=1", uri=True, isolation_level=None)


def schema_version_of(connection: SqliteConnection, path: str) -> int:
    """The number of the last migration; 0 if the database is empty. One of another program is refused."""
    owner, version = fetch_number(connection, "PRAGMA application_id"), fetch_number(connection, "PRAGMA user_version")
    tables = fetch_number(connection, "SELECT count(*) FROM sqlite_master")
    if owner == APPLICATION_ID:
        return version
    if owner or version or tables:
        raise StoreRefused(f"{path} is a database of another program; name a file of its own for the store")
    return 0


def damaged_file_error(path: str, error: sqlite3.Error) -> StoreRefused:
    """The refusal of a file that SQLite cannot read."""
    return StoreRefused(f"{path} is no database, or is damaged ({error}); restore it from a copy")


_making_lock = threading.Lock()


class Ownership:
    """A held lock."""

    def __init__(self, path: str, descriptor: int) -> None:
        self.path, self._descriptor = path, descriptor
        _held_locks.add(self)

    def release(self) -> None:
        """Give the lock up. Releasing twice is fine."""
        _held_locks.discard(self)
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


_held_locks: set[Ownership] = set()


def _release_in_child() -> None:
    for ownership in tuple(_held_locks):
        ownership.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_in_child)


def is_owned_here(path: str) -> bool:
    """Whether a hub of this process owns the file, under this name or another."""
    return any(held.path == path or _is_same_file(held.path, path) for held in tuple(_held_locks))


def resolve_path(path: str | os.PathLike[str]) -> Path:
    """The absolute path of a file, with every link followed."""
    text = os.fspath(path)
    if not text or "\0" in text or text == ":memory:":
        raise StoreRefused(f"{text!r} is no path of a file")
    try:
        return Path(text).resolve()
    except RuntimeError as error:
        raise StoreRefused(f"{text} cannot be reached (its links go in a circle); name the file itself") from error
    except OSError as error:
        raise _unreachable_path_error(text, error) from error


def prepare_database_path(path: str | os.PathLike[str], *, read_only: bool) -> str:
    """The absolute path of a database file that can be opened. To write, a missing file is created empty."""
    place = resolve_path(path)
    if not read_only:
        _refuse_orphaned_log(str(place))
        _make_empty_file(place)
    found = _stat_or_none(place)
    if found is None:
        raise StoreRefused(f"{place} does not exist; there is nothing to read until a hub opens, and so creates, it")
    _check_regular_file(place, found)
    if not may_access(str(place), os.R_OK):
        raise StoreRefused(f"{place} may not be read by you; ask {file_owner_of(str(place))}, to whom it belongs")
    if not read_only:
        _refuse_unwritable(str(place))
    return str(place)


def take_ownership(path: str) -> Ownership:
    """Lock a database file, or refuse at once. Beside a file of another program nothing is left."""
    if is_owned_here(path):
        raise _owned_error(path, f"of this process ({os.getpid()})")
    ownership, is_new = _acquire_lock(path)
    try:
        _refuse_foreign(path)
    except BaseException:
        if is_new:
            with suppress(OSError):
                os.unlink(path + OWNER_SUFFIX)
        ownership.release()
        raise
    return ownership


def owner_process(path: str) -> str | None:
    """The process of the hub that owns a file; None if none does. `FileNotFoundError` if none ever did.

    The lock is taken shared for an instant: a hub that opens the file in that instant is refused.
    """
    if is_owned_here(path):
        return str(os.getpid())
    import fcntl

    descriptor = os.open(path + OWNER_SUFFIX, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _read_pid(descriptor)
    finally:
        os.close(descriptor)
    return None


def _stat_or_none(place: Path) -> os.stat_result | None:
    try:
        return place.stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unreachable_path_error(str(place), error) from error


def _unreachable_path_error(path: str, error: OSError) -> StoreRefused:
    return StoreRefused(f"{path} cannot be reached ({error.strerror}); check the path, and who may enter its directory")


def _check_regular_file(place: Path, found: os.stat_result) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise StoreRefused(f"{place} is a directory; name a file in it")
    if not stat.S_ISREG(found.st_mode):
        raise StoreRefused(f"{place} is no regular file; name one for the store")
    if found.st_nlink > 1:
        raise StoreRefused(
            f"{place} has {found.st_nlink} names (hard links), and what is written under one of them is lost under"
            " another; copy the file, or remove all names but one"
        )


def _make_empty_file(place: Path) -> None:
    """Create an empty file, unless the path exists; then it is not even opened."""
    with _making_lock:  # closing the descriptor would drop the locks of another thread that opened the new file
        if _stat_or_none(place) is not None:
            return
        parent = _stat_or_none(place.parent)
        if parent is None or not stat.S_ISDIR(parent.st_mode):
            raise StoreRefused(f"the directory {place.parent} does not exist; create it first")
        try:
            os.close(os.open(place, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644))
        except FileExistsError:
            return  # another process was faster
        except OSError as error:
            raise StoreRefused(f"{place} cannot be written ({error.strerror}); check who may write there") from error


def _acquire_lock(path: str) -> tuple[Ownership, bool]:
    """The lock, and whether the file that carries it is new."""
    try:
        import fcntl
    except ImportError as error:
        raise StoreRefused(f"{path} cannot be owned: this platform has no file locks, which a store needs") from error
    while True:
        descriptor, is_new = _open_lock_file(path)
        with ExitStack() as undoing:
            undoing.callback(os.close, descriptor)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise _owned_error(path, f"(process {_read_pid(descriptor)})") from error
            except OSError as error:
                raise StoreRefused(f"{path} cannot be locked ({error.strerror}); put it on a local disk") from error
            # A lock on a file that was removed meanwhile excludes no other process: try again.
            if _is_lock_in_place(descriptor, path + OWNER_SUFFIX):
                undoing.pop_all()
                _write_pid(descriptor)
                return Ownership(path, descriptor), is_new


def _owned_error(path: str, whose: str) -> StoreRefused:
    return StoreRefused(
        f"{path} is owned by another hub {whose}; a SQLite store serves one hub at a time. Close that one; several"
        " hubs on one store need PostgreSQL, which this version does not have yet"
    )


def _open_lock_file(path: str) -> tuple[int, bool]:
    beside = path + OWNER_SUFFIX
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        try:
            descriptor, is_new = os.open(beside, flags | os.O_EXCL, 0o644), True
        except FileExistsError:
            descriptor, is_new = os.open(beside, flags, 0o644), False
    except OSError as error:
        why = "it is a link: remove it" if error.errno == errno.ELOOP else error.strerror
        raise StoreRefused(f"{beside} cannot be written ({why}); the store needs it beside {path}") from error
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        os.close(descriptor)
        raise StoreRefused(f"{beside} is no file of its own; remove it: the store needs one beside {path}")
    return descriptor, is_new


def _is_lock_in_place(descriptor: int, beside: str) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(beside))
    except FileNotFoundError:
        return False


def _write_pid(descriptor: int) -> None:
    """Write the id of this process. The lock holds even if there is no room for it."""
    with suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)


def _read_pid(descriptor: int) -> str:
    written = os.pread(descriptor, 20, 0).strip()
    return written.decode() if written.isdigit() else "unknown"


def _is_same_file(one: str, other: str) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False
