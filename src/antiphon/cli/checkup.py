"""What `antiphon doctor` looks at: this machine, and a store on it.

Rule 1: a check gives findings and raises nothing; what it cannot find out is a finding too.
Rule 2: a warning or a problem says what to do.
Rule 3: a store is only read. Scratch files are made in the temporary directory, and removed.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Literal

import msgspec

from antiphon.cli.options import reading, shown_url
from antiphon.cli.plain import counted
from antiphon.core.errors import AntiphonError
from antiphon.store.ownership import SUFFIX
from antiphon.store.sqlite_connection import connect
from antiphon.store.sqlite_schema import Database

Level = Literal["ok", "warning", "problem"]

PYTHON = (3, 11)
SQLITE = (3, 24)
"""The first SQLite with `ON CONFLICT … DO UPDATE`, which the store uses."""
SYNCS = 50
SYNC_SECONDS = 0.5
BLOCK = b"\0" * 4096
TOO_FAST, TOO_SLOW = 0.00002, 0.02
"""Seconds that a sync takes: below the first nothing is written to a disk; above the second, commits are felt."""
LITTLE, TOO_LITTLE = 1 << 30, 100 << 20
REQUIRED = ("msgspec", "click", "rich")
EXTRA = re.compile(r"""^([A-Za-z0-9._-]+).*;.*\bextra\s*==\s*['"]([^'"]+)['"]""")


class Finding(msgspec.Struct, frozen=True):
    """What one check found."""

    check: str
    level: Level
    found: str
    advice: str = ""


def machine(directory: Path) -> Iterator[Finding]:
    """This machine: what runs here, and how safe a file in this directory is."""
    yield python(sys.version_info[:2])
    yield sqlite(sqlite3.sqlite_version_info)
    yield parts()
    yield extras(metadata.requires("antiphon") or [])
    with tempfile.TemporaryDirectory(prefix="antiphon-doctor-") as scratch:
        yield durability(Path(scratch) / "scratch.db")
        yield syncing(Path(scratch) / "scratch.bin")
    yield space(directory)


def python(version: tuple[int, ...]) -> Finding:
    """Whether this Python will do."""
    found = f"{platform.python_implementation()} {platform.python_version()}"
    if version < PYTHON:
        return Finding("python", "problem", found, "install Python 3.11 or newer")
    return Finding("python", "ok", found)


def sqlite(version: tuple[int, ...]) -> Finding:
    """Whether this SQLite will do."""
    found = ".".join(map(str, version))
    if version < SQLITE:
        least = ".".join(map(str, SQLITE))
        return Finding("sqlite", "problem", found, f"use a Python that is built with SQLite {least} or newer")
    return Finding("sqlite", "ok", found)


def parts() -> Finding:
    """What Antiphon cannot do without."""
    found = {name: _version(name) for name in REQUIRED}
    missing = [name for name, version in found.items() if not version]
    told = ", ".join(f"{name} {version or 'missing'}" for name, version in found.items())
    return Finding("parts", "problem" if missing else "ok", told, "install antiphon again" if missing else "")


def extras(requirements: list[str]) -> Finding:
    """Which of the optional parts are here. Nothing is wrong without them."""
    wanted: dict[str, list[str]] = {}
    for requirement in requirements:
        match = EXTRA.match(requirement)
        if match and match[2] != "dev":
            wanted.setdefault(match[2], []).append(match[1])
    here = [f"{extra} {'yes' if all(map(_version, names)) else 'no'}" for extra, names in wanted.items()]
    return Finding("extras", "ok", ", ".join(here) or "this version has none")


def durability(path: Path) -> Finding:
    """Whether SQLite does for a scratch file what the store asks of it."""
    try:
        path.touch()
        connection = Database(str(path), connect, "FULL").to_write()
    except (AntiphonError, OSError) as error:
        return Finding("durability", "problem", str(error), "point TMPDIR, and the store, to a local disk")
    try:
        mode = connection.execute("PRAGMA journal_mode").fetchone()
        level = connection.execute("PRAGMA synchronous").fetchone()
    finally:
        connection.close()
    if (mode, level) != (("wal",), (2,)):
        return Finding("durability", "problem", f"journal {mode}, synchronous {level}", "use another build of SQLite")
    return Finding("durability", "ok", "write-ahead log and synchronous=FULL are in force")


def syncing(path: Path) -> Finding:
    """How long a sync takes in the temporary directory."""
    try:
        seconds = statistics.median(_synced(path))
    except OSError as error:
        return Finding("sync", "problem", f"a file cannot be synced: {error.strerror}", "use another disk")
    told = f"{seconds * 1000:.3g} ms a sync in {path.parent.parent}"
    if seconds > TOO_SLOW:
        return Finding("sync", "warning", told, "acknowledgements will wait for it: a faster disk helps")
    if seconds < TOO_FAST:
        return Finding("sync", "warning", told, "too fast for a disk: keep the store where a sync is one")
    return Finding("sync", "ok", told)


def space(directory: Path) -> Finding:
    """How much space is left."""
    try:
        free = shutil.disk_usage(directory).free
    except OSError as error:
        return Finding("disk", "problem", f"{directory}: {error.strerror}", "name a directory that exists")
    told = f"{free / (1 << 30):.1f} GiB free in {directory}"
    if free < LITTLE:
        level: Level = "problem" if free < TOO_LITTLE else "warning"
        return Finding("disk", level, told, "make space: what cannot be synced is not acknowledged")
    return Finding("disk", "ok", told)


async def store(url: str, tenant: str) -> Finding:
    """Whether a store can be opened and read."""
    try:
        async with reading(url, tenant) as opened:
            some = len(await opened.channels(limit=1000))
    except AntiphonError as error:
        return Finding("store", "problem", str(error), "see whether the URL is right, and the file yours to read")
    told = f"{counted(some, 'channel')} and more" if some == 1000 else counted(some, "channel")
    return Finding("store", "ok", f"{shown_url(url)} opens: {told}")


def owner(path: Path) -> Finding:
    """Which hub owns a SQLite file now.

    The lock is tried for an instant, shared, and only where there is one: a hub that opens the file in that very
    instant is refused, and has to be started again.
    """
    beside = Path(str(path) + SUFFIX)
    try:
        process = _holder(beside)
    except FileNotFoundError:
        return Finding("owner", "ok", "no hub has owned it yet")
    except (OSError, ImportError, ValueError) as error:
        return Finding("owner", "warning", f"unknown: {error}", f"see whether you may read {beside}")
    return Finding("owner", "ok", f"a hub in process {process}" if process else "no hub at the moment")


def _holder(beside: Path) -> str:
    """The process that holds the lock; "" if none does."""
    import fcntl

    with beside.open(encoding="ascii") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return file.read().strip() or "unknown"
    return ""


def _synced(path: Path) -> list[float]:
    times: list[float] = []
    end = time.monotonic() + SYNC_SECONDS
    with path.open("wb", buffering=0) as file:
        while len(times) < SYNCS and (not times or time.monotonic() < end):
            begun = time.perf_counter()
            file.write(BLOCK)
            os.fsync(file.fileno())
            times.append(time.perf_counter() - begun)
    return times


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
