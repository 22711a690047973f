"""Whether the database file is still the one that was opened.

A process that has a file open goes on writing to it after the file was deleted or replaced, and SQLite does not look.
An acknowledgement would then be of something that no other process can ever read.

Rule 1: the file is looked at after each commit and before its outcome is told, so that the answer is never early.
Rule 2: a path is looked at without following links: SQLite names what it keeps beside the file by the path it opened.
Rule 3: once the file is gone the store stays refused. A file that comes back may lack what was written meanwhile.
Rule 4: the loss is reported once, by the thread that finds it, and ends all waits. The writing thread also looks
        when it has had nothing to do for a while: a hub in which everything only waits would otherwise never find out.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

from antiphon.core.errors import OutcomeUnknown, StoreError, StoreGone
from antiphon.store.sqlite_files import LOG, MEMORY

log = logging.getLogger("antiphon.store")

Identity = tuple[int, int]
"""Device and inode of a file."""


class FileIdentity:
    """The file that a store was opened on, and its write-ahead log. Used by both threads of the store."""

    def __init__(self, path: str, *, on_loss: Callable[[], None]) -> None:
        self._path, self._on_loss = path, on_loss
        self._file = _identity(path)
        self._wal: Identity | None = None
        self._gone: str = ""

    def opened(self) -> None:
        """Remember which write-ahead log belongs to a writing connection that was just opened."""
        self._wal = _identity(self._path + LOG)

    def has_file(self) -> bool:
        """Whether the file itself is in its place, whatever became of its log."""
        return self._file is not None and _identity(self._path) == self._file

    def refusal(self) -> StoreGone | None:
        """The error of a store whose file is known to be gone. It looks at nothing."""
        return StoreGone(self._gone) if self._gone else None

    def check(self) -> None:
        """`StoreGone` if the file is not the one that was opened."""
        if not self._gone and not self.has_file():
            self._give_up(self._path)
        if self._gone:
            raise StoreGone(self._gone)

    def look(self) -> StoreError | None:
        """The error, if what was just committed may be in a file that nothing can open any more."""
        try:
            if not self._gone and not self.has_file():
                self._give_up(self._path)
            elif not self._gone and (self._wal is None or _identity(self._path + LOG) != self._wal):
                self._give_up(self._path + LOG)
        except OSError as error:
            return OutcomeUnknown(f"{self._path} cannot be looked at after a commit ({error.strerror})")
        return self.refusal()

    def lost(self) -> StoreGone:
        """The error of a store whose write-ahead log has gone, and with it something that was acknowledged."""
        self._give_up(self._path + LOG)
        return StoreGone(self._gone)

    def _give_up(self, part: str) -> None:
        self._gone = (
            f"{part} was deleted, replaced or moved away while a hub had it open, so nothing more is acknowledged or"
            f" read; stop this hub, put the file back (or remove {self._path}{LOG} and {self._path}{MEMORY}, and"
            " restore a copy), and open the hub again"
        )
        log.error("%s", self._gone)
        self._on_loss()


def _identity(path: str) -> Identity | None:
    """What tells a file from any other; None if nothing has this name."""
    try:
        found = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino
