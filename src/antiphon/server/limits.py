"""Limits of a server: on sizes, times, streams, waiting requests and connections.

Rule 1: streams and waiting requests are limited in total and per holder, which is a key, or an address without one.
Rule 2: connections never take the last files that the process may open: the store, models and tools need some too.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from antiphon.core.errors import UsageError

if sys.platform != "win32":  # where there is no such limit
    import resource

logger = logging.getLogger("antiphon.server")

DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 8484
"""The default address."""


class ServerLimits(msgspec.Struct, frozen=True):
    """What a server allows. Everything beyond is refused by name."""

    body_bytes: int = 1024 * 1024
    """The size of a request's body."""
    body_seconds: float = 30.0
    """How long a body may take to arrive."""
    body_stalled_seconds: float = 5.0
    """How long nothing of a body may arrive."""
    request_seconds: float = 5.0
    """How long a connection may be open without a request, or take to send the head of one."""
    connections: int = 4096
    """How many connections there may be at once; fewer, if the process may not open so many files."""
    connections_each: int = 1024
    """The share of one key, or of one address without a key; the same below."""
    streams: int = 2000
    """How many streams of events there may be at once."""
    streams_each: int = 500
    waiting: int = 2000
    """How many requests may wait for an agent's answer at once."""
    waiting_each: int = 500
    stalled_seconds: float = 30.0
    """How long a client may read nothing of what it is sent before its connection is closed."""
    heartbeat_seconds: float = 15.0
    """How often a silent stream sends a heartbeat."""
    recheck_seconds: float = 30.0
    """How often a stream checks that its key is still valid."""
    lag: int = 10_000
    """How many envelopes a subscriber may be behind those recorded since it began."""
    page_bytes: int = 1024 * 1024
    """The size of a page. A page with one row or envelope may be larger."""
    stop_seconds: float = 10.0
    """How long requests in progress may take when the server stops."""


DEFAULT_SERVER_LIMITS = ServerLimits()


def share_of(each: int, most: int) -> int:
    """The share of one holder: at most three quarters of all, so that some are left for others."""
    return min(each, max(1, most * 3 // 4))


class HolderShares:
    """A number of places, of which each holder takes at most its share."""

    def __init__(self, most: int, each: int) -> None:
        self._most, self._each = most, share_of(each, most)
        self._taken: Counter[str] = Counter()

    @property
    def count(self) -> int:
        """How many are taken."""
        return self._taken.total()

    def has_place_for(self, holder: str) -> bool:
        """Whether this holder may take one more."""
        return self.count < self._most and self._taken[holder] < self._each

    @contextmanager
    def taken(self, holder: str) -> Iterator[None]:
        """Take one more while this is entered."""
        self._taken[holder] += 1
        try:
            yield
        finally:
            self._taken[holder] -= 1
            if not self._taken[holder]:
                del self._taken[holder]


class StreamSlots:
    """The open streams, the waiting requests, and whether the server is stopping."""

    def __init__(self, limits: ServerLimits) -> None:
        self.open = HolderShares(limits.streams, limits.streams_each)
        self.waiting = HolderShares(limits.waiting, limits.waiting_each)
        """For requests that wait for an agent's answer."""
        self.stopping = asyncio.Event()
        """Set when the server stops."""
        self.late = asyncio.Event()
        """Set when the time for waiting requests is over, too."""


EXTRA_CONNECTIONS = 64
"""How many connections are taken beyond the limit, to answer `/health` and to refuse everything else."""
MIN_RESERVED_FILES = 64
FILES_PER_CONNECTION = 2
"""How many files there should be for each connection: models and tools need some too."""
MIN_CONNECTIONS = 8
"""With room for fewer connections there is no point in serving."""


def connection_capacity(wanted: int) -> tuple[int, int]:
    """How many connections a server answers that should answer so many, and how many it accepts to refuse the others.

    `UsageError` if the limit of open files leaves room for too few.
    """
    files = file_limit()
    if files is None:
        return wanted, wanted + EXTRA_CONNECTIONS
    kept = min(max(MIN_RESERVED_FILES, files // 8), files // 2)
    room = files - count_open_files() - kept
    if room < MIN_CONNECTIONS:
        said = f"the limit of open files is {files}, which leaves room for {max(0, room)} connections"
        raise UsageError(f"{said}; raise it: ulimit -n 4096")
    if room >= wanted + EXTRA_CONNECTIONS:
        return wanted, wanted + EXTRA_CONNECTIONS
    limit = min(wanted, room - min(EXTRA_CONNECTIONS, room // 4))
    if limit < wanted:
        said = "the limit of open files is %d: %d connections are answered at once, not %d; raise it: ulimit -n %d"
        logger.warning(said, files, limit, wanted, FILES_PER_CONNECTION * wanted)
    return limit, room


def raise_file_limit(connections: int) -> None:
    """Let this process open files for so many connections, as far as the system allows.

    Shells set a soft limit of 1,024 for the sake of old programs. A process may raise its own up to the hard limit.
    """
    if sys.platform == "win32":
        return
    wanted = FILES_PER_CONNECTION * connections
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))


def file_limit() -> int | None:
    """How many files this process may open; None if there is no limit."""
    if sys.platform == "win32":
        return None
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if files == resource.RLIM_INFINITY else files


def count_open_files() -> int:
    """How many files this process has open; a few too many rather than too few, where that cannot be known."""
    try:
        return len(os.listdir("/dev/fd"))
    except OSError:
        return MIN_RESERVED_FILES // 2
