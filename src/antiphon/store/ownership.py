"""Who owns a database file: one hub at a time, by a lock of the operating system.

The lock is on a file beside the database and ends with the process that holds it, however that ends. The file
stays: only the lock counts, and its text only says whom to look for.

Rule 1: a database file that is there is never opened here; `sqlite_files` says why.
Rule 2: a lock counts if it is on the file that stands beside the database now. A link is not followed to another.
Rule 3: a child process owns nothing. Its copy of a lock would outlive the hub.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from contextlib import ExitStack, suppress
from pathlib import Path

from antiphon.core.errors import StoreRefused
from antiphon.store.sqlite_files import may, owner_of, refuse_foreign, refuse_orphaned_log, refuse_unwritable

SUFFIX = "-owner"

_making = threading.Lock()


class Ownership:
    """A held lock."""

    def __init__(self, path: str, descriptor: int) -> None:
        self.path, self._descriptor = path, descriptor
        _held.add(self)

    def release(self) -> None:
        """Let go. Releasing twice is fine."""
        _held.discard(self)
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


_held: set[Ownership] = set()


def _disown() -> None:
    for ownership in tuple(_held):
        ownership.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disown)


def owned_here(path: str) -> bool:
    """Whether a hub of this process owns the file, under this name or another."""
    return any(held.path == path or _is_same(held.path, path) for held in tuple(_held))


def resolved(path: str | os.PathLike[str]) -> Path:
    """The absolute path of a file, with every link followed."""
    text = os.fspath(path)
    if not text or "\0" in text or text == ":memory:":
        raise StoreRefused(f"{text!r} is no path of a file")
    try:
        return Path(text).resolve()
    except RuntimeError as error:
        raise StoreRefused(f"{text} cannot be reached (its links go in a circle); name the file itself") from error
    except OSError as error:
        raise _unreachable(text, error) from error


def checked_place(path: str | os.PathLike[str], *, read_only: bool) -> str:
    """The absolute path of a database file that can be opened; made empty if it is new and to be written."""
    place = resolved(path)
    if not read_only:
        refuse_orphaned_log(str(place))
        _make(place)
    found = _looked_at(place)
    if found is None:
        raise StoreRefused(f"{place} does not exist; there is nothing to read until a hub opens, and so creates, it")
    _check_kind(place, found)
    if not may(str(place), os.R_OK):
        raise StoreRefused(f"{place} may not be read by you; ask {owner_of(str(place))}, to whom it belongs")
    if not read_only:
        refuse_unwritable(str(place))
    return str(place)


def take_ownership(path: str) -> Ownership:
    """Own this database file, or be refused at once. Beside a file that is not ours nothing is left."""
    if owned_here(path):
        raise _taken(path, f"of this process ({os.getpid()})")
    ownership, is_new = _locked(path)
    try:
        refuse_foreign(path)
    except BaseException:
        if is_new:
            with suppress(OSError):
                os.unlink(path + SUFFIX)
        ownership.release()
        raise
    return ownership


def holder(path: str) -> str | None:
    """The process of the hub that owns a file; None if none does. `FileNotFoundError` if none ever did.

    The lock is tried for an instant, shared, and only where there is one: a hub that opens the file in that very
    instant is refused, and has to be started again.
    """
    if owned_here(path):
        return str(os.getpid())
    import fcntl

    descriptor = os.open(path + SUFFIX, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _text(descriptor)
    finally:
        os.close(descriptor)
    return None


def _looked_at(place: Path) -> os.stat_result | None:
    try:
        return place.stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unreachable(str(place), error) from error


def _unreachable(path: str, error: OSError) -> StoreRefused:
    return StoreRefused(f"{path} cannot be reached ({error.strerror}); check the path, and who may enter its directory")


def _check_kind(place: Path, found: os.stat_result) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise StoreRefused(f"{place} is a directory; name a file in it")
    if not stat.S_ISREG(found.st_mode):
        raise StoreRefused(f"{place} is no regular file; name one for the store")
    if found.st_nlink > 1:
        raise StoreRefused(
            f"{place} has {found.st_nlink} names (hard links), and what is written under one of them is lost under"
            " another; copy the file, or remove all names but one"
        )


def _make(place: Path) -> None:
    """Make an empty file, unless there is something already; that is not even opened."""
    with _making:  # who finds the file here, and has SQLite lock it, finds it closed
        if _looked_at(place) is not None:
            return
        parent = _looked_at(place.parent)
        if parent is None or not stat.S_ISDIR(parent.st_mode):
            raise StoreRefused(f"the directory {place.parent} does not exist; create it first")
        try:
            os.close(os.open(place, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644))
        except FileExistsError:
            return  # another process was faster
        except OSError as error:
            raise StoreRefused(f"{place} cannot be written ({error.strerror}); check who may write there") from error


def _locked(path: str) -> tuple[Ownership, bool]:
    """The lock, and whether the file that carries it is new."""
    try:
        import fcntl
    except ImportError as error:
        raise StoreRefused(f"{path} cannot be owned: this platform has no file locks, which a store needs") from error
    while True:
        descriptor, is_new = _opened(path)
        with ExitStack() as undoing:
            undoing.callback(os.close, descriptor)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise _taken(path, f"(process {_text(descriptor)})") from error
            except OSError as error:
                raise StoreRefused(f"{path} cannot be locked ({error.strerror}); put it on a local disk") from error
            if _stands_there(descriptor, path + SUFFIX):  # or else it was removed, and the lock keeps nobody away
                undoing.pop_all()
                _sign(descriptor)
                return Ownership(path, descriptor), is_new


def _taken(path: str, whose: str) -> StoreRefused:
    return StoreRefused(
        f"{path} is owned by another hub {whose}; a SQLite store serves one hub at a time. Close that one; several"
        " hubs on one store need PostgreSQL, which this version does not have yet"
    )


def _opened(path: str) -> tuple[int, bool]:
    beside = path + SUFFIX
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


def _stands_there(descriptor: int, beside: str) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(beside))
    except FileNotFoundError:
        return False


def _sign(descriptor: int) -> None:
    """Say which process this is; if there is no room for that, the lock holds all the same."""
    with suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)


def _text(descriptor: int) -> str:
    written = os.pread(descriptor, 20, 0).strip()
    return written.decode() if written.isdigit() else "unknown"


def _is_same(one: str, other: str) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False
