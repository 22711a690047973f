"""The token of a server without keys: a file beside the store that only its owner can read.

Rule 1: a token is made once for a store and kept there. A store in memory has one for as long as its server runs.
Rule 2: the file is created with mode 0600, whole, and never through a link. One that others can read or write is
        refused, because its token may be known to them.
Rule 3: the token is accepted while no key was ever made. The first key replaces it, and the file is removed.
Rule 4: the token appears in no `repr`, error, log or trace.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import secrets
import stat
from contextlib import suppress
from hmac import compare_digest
from pathlib import Path

from antiphon.core.errors import UsageError
from antiphon.hub.redacting import KNOWN
from antiphon.runtime.hub import Hub

log = logging.getLogger("antiphon.server")

TOKEN = re.compile(r"at_[A-Za-z0-9_-]{43}\Z")
TOKEN_SUFFIX = "-token"
TOKEN_BYTES = 32
RENEWAL = "remove the file, and the next start makes a new token"


class Token:
    """The credential of a server without keys."""

    def __init__(self, secret: str, path: str | None = None) -> None:
        self.secret, self.path = secret, path
        KNOWN.know(secret)

    def __repr__(self) -> str:
        return f"<Token in {self.path or 'memory'}>"

    @property
    def whereabouts(self) -> str:
        """Where to find it, in words that are safe to tell a client: the name of the file, not its directory."""
        if self.path is None:
            return "the server printed it when it started"
        return f"it is in the file {os.path.basename(self.path)!r} beside the store"

    def opens(self, shown: str) -> bool:
        """Whether a request shows this token. The comparison takes the same time for every wrong one."""
        return compare_digest(shown.encode("utf-8", "surrogateescape"), self.secret.encode())


def store_of(hub: Hub) -> str | None:
    """The absolute path of the file that a hub's store is in; None for a store in memory."""
    path: object = getattr(hub._desk.store, "path", None)
    return path if isinstance(path, str) else None


def token_for(store: str | None) -> Token:
    """The token of the store in this file, made if there is none; a new one for a store in memory."""
    if store is None:
        return Token(_new_secret())
    path = store + TOKEN_SUFFIX
    found = read_token(path)
    return Token(_written(path) if found is None else found, path)


def remove_token(store: str | None) -> None:
    """Remove the token's file: from the first key on it opens nothing."""
    if store is None:
        return
    path = store + TOKEN_SUFFIX
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
    except OSError as error:
        log.warning("%s opens nothing any more, and cannot be removed (%s)", path, error.strerror)


def read_token(path: str) -> str | None:
    """The token in a file; None if there is no file. `UsageError` if it cannot be trusted."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        why = "it is a link" if error.errno == errno.ELOOP else error.strerror
        raise UsageError(f"the token in {path} cannot be read ({why}); {RENEWAL}") from error
    try:
        _check_private(path, os.fstat(descriptor))
        text = os.read(descriptor, 100).decode("ascii", "replace").strip()
    finally:
        os.close(descriptor)
    if not TOKEN.match(text):
        raise UsageError(f"{path} holds no token; {RENEWAL}")
    return text


def _check_private(path: str, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        raise UsageError(f"{path} is no file of its own; {RENEWAL}")
    if found.st_uid != os.geteuid():
        raise UsageError(f"{path} belongs to another user ({found.st_uid}); {RENEWAL}")
    if found.st_mode & 0o077:
        mode = stat.S_IMODE(found.st_mode)
        raise UsageError(f"{path} can be used by others (its mode is {mode:o}), who may know the token; {RENEWAL}")


def _written(path: str) -> str:
    """A new token, written to its file: first under another name, so that nobody reads half of it."""
    secret = _new_secret()
    made = f"{path}.{secrets.token_hex(8)}"
    try:
        descriptor = os.open(made, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.fchmod(descriptor, 0o600)
            with open(descriptor, "w", encoding="ascii", closefd=False) as file:
                file.write(f"{secret}\n")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.rename(made, path)
    except OSError as error:
        with suppress(OSError):
            Path(made).unlink(missing_ok=True)
        why = f"the token of a server without keys cannot be kept in {path} ({error.strerror})"
        raise UsageError(f"{why}; make a key instead, or check who may write there") from error
    return secret


def _new_secret() -> str:
    return f"at_{secrets.token_urlsafe(TOKEN_BYTES)}"
