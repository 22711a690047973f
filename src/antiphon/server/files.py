"""How many connections fit into the number of files that a process may open.

Rule 1: connections never take the last files. The store, models and tools need some, also when a server is full.
"""

from __future__ import annotations

import logging
import os
import sys

import msgspec

from antiphon.core.errors import UsageError

if sys.platform != "win32":  # where there is no such limit
    import resource

log = logging.getLogger("antiphon.server")

EXTRA = 64
"""How many connections are taken beyond the limit, to answer `/health` and to refuse everything else."""
LEAST_KEPT = 64
FILES_EACH = 2
"""How many files there should be for each connection: models and tools need some too."""
FEWEST = 8
"""With room for fewer connections there is no point in serving."""


class Capacity(msgspec.Struct, frozen=True):
    """How many connections a server takes."""

    limit: int
    """How many it answers."""
    most: int
    """How many it accepts, those included that it only refuses."""


def capacity_of(wanted: int) -> Capacity:
    """The capacity of a server that should answer so many connections; `UsageError` if there are too few files."""
    files = file_limit()
    if files is None:
        return Capacity(wanted, wanted + EXTRA)
    kept = min(max(LEAST_KEPT, files // 8), files // 2)
    room = files - open_files() - kept
    if room < FEWEST:
        said = f"the limit of open files is {files}, which leaves room for {max(0, room)} connections"
        raise UsageError(f"{said}; raise it: ulimit -n 4096")
    if room >= wanted + EXTRA:
        return Capacity(wanted, wanted + EXTRA)
    limit = min(wanted, room - min(EXTRA, room // 4))
    if limit < wanted:
        said = "the limit of open files is %d: %d connections are answered at once, not %d; raise it: ulimit -n %d"
        log.warning(said, files, limit, wanted, FILES_EACH * wanted)
    return Capacity(limit, room)


def raise_file_limit(connections: int) -> None:
    """Let this process open files for so many connections, as far as the system allows.

    Shells set a soft limit of 1,024 for the sake of old programs. A process may raise its own up to the hard limit.
    """
    if sys.platform == "win32":
        return
    wanted = FILES_EACH * connections
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


def open_files() -> int:
    """How many files this process has open; a few too many rather than too few, where that cannot be known."""
    try:
        return len(os.listdir("/dev/fd"))
    except OSError:
        return LEAST_KEPT // 2
