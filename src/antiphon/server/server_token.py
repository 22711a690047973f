"""The token of a server without keys, and the announcement by which a command of this user finds it.

Rule 1: a token is made once for a store and kept in a file beside it; for a store in memory, for as long as its server
        runs. The first key replaces it, and the file is removed.
Rule 2: the file is created with mode 0600, atomically, and never through a link. One that other users can access is
        refused, because its token may be known to them.
Rule 3: the token appears in no `repr`, error, log or trace.
Rule 4: a server is announced by a small file in the user's state directory, locked while it runs. A file that is
        not locked belongs to a server that has ended, and is ignored: its address may be another server's now.
Rule 5: an announcement names the store's file, beside which the token is. It never holds the token itself.
Rule 6: a directory that other users can write to is not used.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hmac import compare_digest
from pathlib import Path
from tempfile import mkstemp
from urllib.parse import urlsplit

import msgspec

from antiphon._net import is_loopback
from antiphon.core.codec import Malformed, from_json, to_json
from antiphon.core.errors import UsageError
from antiphon.hub.known_secrets import KNOWN_SECRETS
from antiphon.runtime.hub import Hub

logger = logging.getLogger("antiphon.server")

TOKEN_PATTERN = re.compile(r"at_[A-Za-z0-9_-]{43}\Z")
TOKEN_SUFFIX = "-token"
TOKEN_BYTES = 32
TOKEN_RENEWAL_ADVICE = "remove the file, and the next start makes a new token"


class ServerToken:
    """The credential of a server without keys."""

    def __init__(self, secret: str, path: str | None = None) -> None:
        self.secret, self.path = secret, path
        KNOWN_SECRETS.know(secret)

    def __repr__(self) -> str:
        return f"<Token in {self.path or 'memory'}>"

    @property
    def whereabouts(self) -> str:
        """Where to find it, without the directory: a client may read this."""
        if self.path is None:
            return "the server printed it when it started"
        return f"it is in the file {os.path.basename(self.path)!r} beside the store"

    def opens(self, shown: str) -> bool:
        """Whether this is the token, compared in constant time."""
        return compare_digest(shown.encode("utf-8", "surrogateescape"), self.secret.encode())


def store_path_of(hub: Hub) -> str | None:
    """The absolute path of the file that a hub's store is in; None for a store in memory."""
    path: object = getattr(hub.core.store, "path", None)
    return path if isinstance(path, str) else None


def token_for(store: str | None) -> ServerToken:
    """The token of the store in this file, made if there is none; a new one for a store in memory."""
    if store is None:
        return ServerToken(_new_token_secret())
    path = store + TOKEN_SUFFIX
    found = read_token(path)
    return ServerToken(_write_new_token(path) if found is None else found, path)


def remove_token(store: str | None) -> None:
    """Remove the token's file: from the first key on it opens nothing."""
    if store is None:
        return
    try:
        Path(store + TOKEN_SUFFIX).unlink(missing_ok=True)
    except OSError as error:
        logger.warning("%s opens nothing any more, and cannot be removed (%s)", store + TOKEN_SUFFIX, error.strerror)


def read_token(path: str) -> str | None:
    """The token in a file; None if there is no file. `UsageError` if the file is not private."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        why = "it is a link" if error.errno == errno.ELOOP else error.strerror
        raise UsageError(f"the token in {path} cannot be read ({why}); {TOKEN_RENEWAL_ADVICE}") from error
    try:
        _check_private_file(path, os.fstat(descriptor))
        text = os.read(descriptor, 100).decode("ascii", "replace").strip()
    finally:
        os.close(descriptor)
    if not TOKEN_PATTERN.match(text):
        raise UsageError(f"{path} holds no token; {TOKEN_RENEWAL_ADVICE}")
    return text


def _check_private_file(path: str, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        raise UsageError(f"{path} is no file of its own; {TOKEN_RENEWAL_ADVICE}")
    if found.st_uid != os.geteuid():
        raise UsageError(f"{path} belongs to another user ({found.st_uid}); {TOKEN_RENEWAL_ADVICE}")
    if found.st_mode & 0o077:
        mode = stat.S_IMODE(found.st_mode)
        raise UsageError(
            f"{path} can be used by others (its mode is {mode:o}), who may know the token; {TOKEN_RENEWAL_ADVICE}"
        )


def _write_new_token(path: str) -> str:
    """A new token, written under another name and renamed, so that no reader sees a part of it."""
    secret, made = _new_token_secret(), ""
    try:
        descriptor, made = mkstemp(prefix=f"{os.path.basename(path)}.", dir=os.path.dirname(path))
        with open(descriptor, "w", encoding="ascii") as file:
            os.fchmod(descriptor, 0o600)
            file.write(f"{secret}\n")
            file.flush()
            os.fsync(descriptor)
        os.rename(made, path)
    except OSError as error:
        with suppress(OSError):
            os.unlink(made)
        why = f"the token of a server without keys cannot be kept in {path} ({error.strerror})"
        raise UsageError(f"{why}; make a key instead, or check who may write there") from error
    return secret


def _new_token_secret() -> str:
    return f"at_{secrets.token_urlsafe(TOKEN_BYTES)}"


STATE_VARIABLE = "XDG_STATE_HOME"
MAX_ANNOUNCEMENT_BYTES = 64 * 1024

_lock_descriptors: set[int] = set()


class ServerAnnouncement(msgspec.Struct, frozen=True):
    """A server that runs here."""

    url: str
    store: str
    """The absolute path of the store's file."""
    tenant: str


@contextmanager
def announce_server(url: str, store: str | None, tenant: str) -> Iterator[None]:
    """Announce a server while this is entered; not one over a store in memory."""
    if store is None:
        yield
        return
    try:
        place, descriptor = _write_announcement(ServerAnnouncement(url, store, tenant))
    except OSError as error:
        advice = "so commands do not find this server's token; give it to them in ANTIPHON_KEY"
        logger.warning("this server cannot be announced in the user's state directory (%s), %s", error, advice)
        yield
        return
    try:
        yield
    finally:
        with suppress(FileNotFoundError):
            place.unlink()
        _lock_descriptors.discard(descriptor)
        os.close(descriptor)


def running_servers() -> list[ServerAnnouncement]:
    """The servers of this user that run on this machine."""
    try:
        folder = _check_folder(_announcements_folder())
        places = sorted(folder.glob("*.json"))
    except OSError:
        return []
    return [found for place in places if (found := _live_announcement(place)) is not None]


def find_server(store: str, tenant: str) -> ServerAnnouncement | None:
    """The server of a tenant of the store in this file; None if none runs."""
    return next((each for each in running_servers() if (each.store, each.tenant) == (store, tenant)), None)


def find_token(url: str) -> str | None:
    """The token of the server at a URL on this machine; None if no server of this user has one there."""
    try:
        asked = urlsplit(url)
        host, port = asked.hostname or "", asked.port or 80
    except ValueError:  # not a URL
        return None
    if asked.scheme != "http" or not is_loopback(host):
        return None
    for each in running_servers():
        known = urlsplit(each.url)
        if known.port == port and host in (known.hostname, "localhost"):
            return read_token(each.store + TOKEN_SUFFIX)
    return None


def _announcements_folder() -> Path:
    """The directory for announcements; `OSError` if this user has no home."""
    state = os.environ.get(STATE_VARIABLE, "")
    if os.path.isabs(state):
        return Path(state) / "antiphon" / "servers"
    try:
        return Path.home() / ".local" / "state" / "antiphon" / "servers"
    except RuntimeError as error:
        raise FileNotFoundError(f"there is no home directory, and {STATE_VARIABLE} names none") from error


def _check_folder(folder: Path) -> Path:
    """The directory, if no other user can write to it; `OSError` otherwise."""
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise PermissionError(f"{folder} is no directory of this user alone")
    return folder


def _write_announcement(announcement: ServerAnnouncement) -> tuple[Path, int]:
    """The file that announces a server, and the descriptor that holds its lock."""
    folder = _announcements_folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _remove_stale(_check_folder(folder))
    descriptor, path = mkstemp(prefix=f"{os.getpid()}-", suffix=".new", dir=folder)
    made, place = Path(path), Path(path).with_suffix(".json")
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(descriptor, to_json(announcement))
        made.rename(place)  # seen by others only when it is locked
    except BaseException:
        os.close(descriptor)
        made.unlink(missing_ok=True)
        raise
    _lock_descriptors.add(descriptor)
    return place, descriptor


def _remove_stale(folder: Path) -> None:
    """Remove what servers that were killed have left."""
    for place in folder.glob("*.json"):
        if _live_announcement(place) is None:
            place.unlink(missing_ok=True)


def _live_announcement(place: Path) -> ServerAnnouncement | None:
    """What a file announces; None if its server has ended."""
    try:
        descriptor = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        with suppress(Malformed):
            return from_json(os.read(descriptor, MAX_ANNOUNCEMENT_BYTES), ServerAnnouncement)
    except OSError:
        pass  # there are no locks here, so nothing says that the server runs
    finally:
        os.close(descriptor)
    return None


def _close_in_child() -> None:
    """A child process is no server: its copy of the lock would outlive the server."""
    for descriptor in tuple(_lock_descriptors):
        _lock_descriptors.discard(descriptor)
        os.close(descriptor)


os.register_at_fork(after_in_child=_close_in_child)
