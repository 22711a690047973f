"""Which servers run on this machine for this user, so that a command finds the token of the server it asks.

Rule 1: a server is announced by a small file in the user's own state directory, which it locks while it runs. A file
        that is not locked belongs to a server that has ended, and counts for nothing: its address may be another's now.
Rule 2: an announcement names the store's file, beside which the token is. It never holds the token itself.
Rule 3: a directory that other users can write to is not used.
"""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from antiphon.core.codec import Malformed, from_json, to_json
from antiphon.core.hosts import is_loopback
from antiphon.server.tokens import TOKEN_SUFFIX, read_token

log = logging.getLogger("antiphon.server")

STATE = "XDG_STATE_HOME"
LARGEST = 64 * 1024

_descriptors: set[int] = set()


class Announcement(msgspec.Struct, frozen=True):
    """A server that runs here."""

    url: str
    store: str
    """The absolute path of the store's file."""
    tenant: str


@contextmanager
def announced(url: str, store: str | None, tenant: str) -> Iterator[None]:
    """Announce a server for as long as this is entered. One over a store in memory is not."""
    if store is None:
        yield
        return
    try:
        place, descriptor = _announce(Announcement(url, store, tenant))
    except OSError as error:
        advice = "so commands do not find this server's token; give it to them in ANTIPHON_KEY"
        log.warning("this server cannot be announced in the user's state directory (%s), %s", error, advice)
        yield
        return
    try:
        yield
    finally:
        with suppress(FileNotFoundError):
            place.unlink()
        _descriptors.discard(descriptor)
        os.close(descriptor)


def running() -> list[Announcement]:
    """The servers of this user that run on this machine."""
    try:
        folder = _checked(_folder())
        places = sorted(folder.glob("*.json"))
    except OSError:
        return []
    return [found for place in places if (found := _live(place)) is not None]


def server_of(store: str, tenant: str) -> Announcement | None:
    """The server of a tenant of the store in this file; None if none runs."""
    return next((each for each in running() if (each.store, each.tenant) == (store, tenant)), None)


def token_at(url: str) -> str | None:
    """The token of the server at a URL on this machine; None if no server of this user has one there."""
    try:
        asked = urlsplit(url)
        host, port = asked.hostname or "", asked.port or 80
    except ValueError:  # it is no address
        return None
    if asked.scheme != "http" or not is_loopback(host):
        return None
    for each in running():
        known = urlsplit(each.url)
        if known.port == port and host in (known.hostname, "localhost"):
            return read_token(each.store + TOKEN_SUFFIX)
    return None


def _folder() -> Path:
    """The directory for announcements; `OSError` if this user has no home."""
    state = os.environ.get(STATE, "")
    if os.path.isabs(state):
        return Path(state) / "antiphon" / "servers"
    try:
        return Path.home() / ".local" / "state" / "antiphon" / "servers"
    except RuntimeError as error:
        raise FileNotFoundError(f"there is no home directory, and {STATE} names none") from error


def _checked(folder: Path) -> Path:
    """The directory, if no other user can write to it; `OSError` otherwise."""
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise PermissionError(f"{folder} is no directory of this user alone")
    return folder


def _announce(announcement: Announcement) -> tuple[Path, int]:
    """The file that announces a server, and the descriptor that holds its lock."""
    folder = _folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _tidy(_checked(folder))
    place = folder / f"{os.getpid()}-{secrets.token_hex(4)}.json"
    made = place.with_suffix(".new")
    descriptor = os.open(made, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(descriptor, to_json(announcement))
        made.rename(place)  # seen by others only when it is locked
    except BaseException:
        os.close(descriptor)
        made.unlink(missing_ok=True)
        raise
    _descriptors.add(descriptor)
    return place, descriptor


def _tidy(folder: Path) -> None:
    """Remove what servers that were killed have left."""
    for place in folder.glob("*.json"):
        if _live(place) is None:
            place.unlink(missing_ok=True)


def _live(place: Path) -> Announcement | None:
    """What a file announces; None if its server has ended."""
    try:
        descriptor = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _announcement(os.read(descriptor, LARGEST))
    except OSError:  # there are no locks here, so nothing says that the server runs
        return None
    finally:
        os.close(descriptor)
    return None


def _announcement(text: bytes) -> Announcement | None:
    try:
        return from_json(text, Announcement)
    except Malformed:
        return None


def _forget() -> None:
    """A child process is no server: its copy of the lock would outlive the server."""
    for descriptor in tuple(_descriptors):
        _descriptors.discard(descriptor)
        os.close(descriptor)


os.register_at_fork(after_in_child=_forget)
