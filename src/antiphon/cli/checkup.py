"""What `antiphon doctor` looks at: this machine, and a store on it.

Rule 1: a check gives findings and raises nothing; what it cannot find out is a finding too.
Rule 2: a warning or a problem says what to do.
Rule 3: a store is only read. Scratch files are made beside it, or else in the temporary directory, and removed.
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
from antiphon.store.ownership import SUFFIX, holder, owned_here
from antiphon.store.rows import QUARANTINED
from antiphon.store.sqlite_connection import connect
from antiphon.store.sqlite_files import may
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
MANY = 1000
"""More channels than that are not counted."""
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
    yield from disk(directory)
    yield space(directory)


def disk(directory: Path) -> Iterator[Finding]:
    """What scratch files show: in this directory, or in the temporary one if nothing can be made there."""
    place = directory if may(str(directory), os.W_OK | os.X_OK) else None
    try:
        with tempfile.TemporaryDirectory(prefix="antiphon-doctor-", dir=place) as scratch:
            yield durability(Path(scratch) / "scratch.db")
            yield syncing(Path(scratch) / "scratch.bin")
    except OSError as error:
        yield Finding("sync", "problem", f"no scratch file can be made: {error}", "make room, or set TMPDIR")


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
    """How long a sync takes where this file is."""
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


async def store(url: str, tenant: str) -> list[Finding]:
    """Whether a store can be opened and read, and whether every channel of it can be trusted."""
    try:
        async with reading(url, tenant) as opened:
            some = len(await opened.channels(limit=MANY))
            bad = [row.channel_id for row in await opened.channels(status=QUARANTINED, limit=MANY)]
    except AntiphonError as error:
        return [Finding("store", "problem", str(error), "do what it says, or name another store")]
    told = f"{counted(some, 'channel')} and more" if some == MANY else counted(some, "channel")
    opens = Finding("store", "ok", f"{shown_url(url)} opens: {told}")
    return [opens, quarantine(bad)] if bad else [opens]


def quarantine(channels: list[str]) -> Finding:
    """Channels that a hub found damaged."""
    told = f"{counted(len(channels), 'quarantined channel')}: {', '.join(channels)}"
    return Finding("channels", "warning", told, "they can only be read; `antiphon verify` says where they are damaged")


def owner(path: Path) -> Finding:
    """Which hub owns a SQLite file now."""
    try:
        process = holder(str(path))
    except FileNotFoundError:
        return Finding("owner", "ok", "no hub has owned it yet")
    except (OSError, ImportError) as error:
        return Finding("owner", "warning", f"unknown: {error}", f"see whether you may read {path}{SUFFIX}")
    if process is None:
        return Finding("owner", "ok", "no hub at the moment")
    here = owned_here(str(path))
    return Finding("owner", "ok", f"a hub in this process ({process})" if here else f"a hub in process {process}")


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
