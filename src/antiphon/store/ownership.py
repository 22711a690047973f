"""Who owns a database file: one hub at a time, by a lock of the operating system.

The lock is on a file beside the database and ends with the process that holds it, however that ends. The file
stays: only the lock counts, and its text only says whom to look for.
"""

from __future__ import annotations

import os
from pathlib import Path

from antiphon.core.errors import StoreRefused

SUFFIX = "-owner"


class Ownership:
    """A held lock."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        """Let go. Releasing twice is fine."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def checked_place(path: str | os.PathLike[str], *, read_only: bool) -> str:
    """The absolute path of a database file that can be opened; made empty if it is new and to be written."""
    text = os.fspath(path)
    if not text or "\0" in text or text == ":memory:":
        raise StoreRefused(f"{text!r} is no path of a file")
    place = Path(text).resolve()
    if place.is_dir():
        raise StoreRefused(f"{place} is a directory; name a file in it")
    if not place.parent.is_dir():
        raise StoreRefused(f"the directory {place.parent} does not exist; create it first")
    if read_only:
        if not place.exists():
            raise StoreRefused(f"{place} does not exist; there is nothing to read")
        return str(place)
    try:
        place.open("ab").close()
    except OSError as error:
        raise StoreRefused(f"{place} cannot be written ({error.strerror}); check who may write there") from error
    return str(place)


def take_ownership(path: str) -> Ownership:
    """Own this database file, or be refused at once."""
    try:
        import fcntl
    except ImportError as error:
        raise StoreRefused(f"{path} cannot be owned: this platform has no file locks; use PostgreSQL") from error
    beside = Path(path + SUFFIX)
    try:
        descriptor = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise StoreRefused(
            f"{beside} cannot be written ({error.strerror}); the store needs it beside {path}"
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    except BlockingIOError as error:
        os.close(descriptor)
        raise StoreRefused(
            f"{path} is owned by another hub (process {_owner(beside)}); a SQLite store serves one hub at a time:"
            " close that one, or use PostgreSQL for several hubs"
        ) from error
    except OSError as error:
        os.close(descriptor)
        raise StoreRefused(f"{path} cannot be locked ({error.strerror}); put it on a local disk") from error
    return Ownership(descriptor)


def _owner(beside: Path) -> str:
    try:
        return beside.read_text(encoding="ascii").strip() or "unknown"
    except (OSError, ValueError):
        return "unknown"
