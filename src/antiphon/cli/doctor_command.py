"""`antiphon doctor`: whether this machine, and a store on it, will do.

Rule 1: a check returns findings and raises nothing; what cannot be determined is a finding too.
Rule 2: a warning or a problem says what to do.
Rule 3: a store is only read. Scratch files are made beside it, or else in the temporary directory, and removed.
"""

from __future__ import annotations

import asyncio
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
from contextlib import closing
from importlib import metadata
from pathlib import Path
from typing import Literal

import click
import msgspec

from antiphon.cli.console_output import CommandOutput, select_output, write_json
from antiphon.cli.store_options import (
    STORE_VARIABLE,
    json_option,
    open_store_to_read,
    optional_store_option,
    store_argument,
    tenant_option,
    url_without_password,
)
from antiphon.cli.table_layout import Cell, Column, fit_columns, pluralize
from antiphon.core.errors import AntiphonError
from antiphon.store.records import QUARANTINED_STATUS
from antiphon.store.sqlite_connection import connect_sqlite
from antiphon.store.sqlite_files import OWNER_SUFFIX, is_owned_here, may_access, owner_process, resolve_path
from antiphon.store.sqlite_schema import SqliteDatabase
from antiphon.store.urls import sqlite_path_of

FindingLevel = Literal["ok", "warning", "problem"]

MIN_PYTHON_VERSION = (3, 11)
MIN_SQLITE_VERSION = (3, 24)
"""The first SQLite with `ON CONFLICT … DO UPDATE`, which the store uses."""
MAX_TIMED_SYNCS = 50
MAX_SYNC_TEST_SECONDS = 0.5
SYNC_BLOCK = b"\0" * 4096
MIN_DISK_SYNC_SECONDS, MAX_GOOD_SYNC_SECONDS = 0.00002, 0.02
"""Seconds that a sync takes: below the first nothing is written to a disk; above the second, commits are felt."""
LOW_SPACE_BYTES, MIN_SPACE_BYTES = 1 << 30, 100 << 20
MAX_COUNTED_CHANNELS = 1000
"""The largest number of channels that is counted."""
REQUIRED_PACKAGES = ("msgspec", "click", "rich")
EXTRA_REQUIREMENT = re.compile(r"""^([A-Za-z0-9._-]+).*;.*\bextra\s*==\s*['"]([^'"]+)['"]""")
DOCTOR_COLUMNS = [Column("CHECK"), Column("", len("problem")), Column("FOUND")]
DOCTOR_STYLES = {"ok": "green", "warning": "yellow", "problem": "bold red"}


class DoctorFinding(msgspec.Struct, frozen=True):
    """The result of one check."""

    check: str
    level: FindingLevel
    found: str
    advice: str = ""


@click.command()
@store_argument
@optional_store_option("A store to look at too, by its path or URL.")
@tenant_option
@json_option('One JSON document: {"ok": …, "findings": […]}.')
def doctor_command(*, store: str | None, tenant: str, as_json: bool) -> None:
    """See whether this machine, and STORE on it, will do.

    Looks at Python, SQLite and the parts; whether commits are really synced and how fast, where the store is; the space
    left on the disk; and, if a store is named, whether it opens, whether a channel of it is quarantined, and which hub
    owns it. Nothing is changed. Each line is ok, a warning or a problem, with what to do about it; a problem makes the
    exit code 1.
    """
    file = _store_file(store) if store else None
    found = [*check_machine(file.parent if file else Path(tempfile.gettempdir()))]
    if store:
        found += asyncio.run(check_store_opens(store, tenant))
    else:
        found.append(_finding("store", f"none was named: STORE, --store or {STORE_VARIABLE} has one looked at"))
    found += [check_owner(file)] if file else []
    ok = all(finding.level != "problem" for finding in found)
    if as_json:
        write_json({"ok": ok, "findings": found})
    else:
        _print_findings(select_output(), found)
    if not ok:
        raise SystemExit(1)


def _finding(check: str, found: str, advice: str = "", *, level: FindingLevel = "problem") -> DoctorFinding:
    """What a check found: a problem, or of this level, if there is advice; else it is ok."""
    return DoctorFinding(check, level if advice else "ok", found, advice)


def _store_file(url: str) -> Path | None:
    """The file of a store with links resolved; None if there is none, which `check_store_opens` then explains."""
    try:
        path = sqlite_path_of(url)
        return resolve_path(path) if path else None
    except AntiphonError:
        return None


def _print_findings(out: CommandOutput, found: list[DoctorFinding]) -> None:
    rows = [(Cell(each.check, "bold"), Cell(each.level, DOCTOR_STYLES[each.level]), each.found) for each in found]
    layout = fit_columns(DOCTOR_COLUMNS, rows)
    for row, finding in zip(rows, found, strict=True):
        out.row(layout, row)
        if finding.advice:
            out.row(layout, ["", "", Cell(f"→ {finding.advice}", "italic")])


def check_machine(directory: Path) -> Iterator[DoctorFinding]:
    """The checks of this machine, and of the disk with this directory."""
    yield check_python(sys.version_info[:2])
    yield check_sqlite(sqlite3.sqlite_version_info)
    yield check_packages()
    yield check_extras(metadata.requires("antiphon") or [])
    yield from check_disk(directory)
    yield check_space(directory)


def check_disk(directory: Path) -> Iterator[DoctorFinding]:
    """The checks with scratch files: in this directory, or in the temporary one if it is not writable."""
    place = directory if may_access(str(directory), os.W_OK | os.X_OK) else None
    try:
        with tempfile.TemporaryDirectory(prefix="antiphon-doctor-", dir=place) as scratch:
            yield check_durability(Path(scratch) / "scratch.db")
            yield check_sync(Path(scratch) / "scratch.bin")
    except OSError as error:
        yield _finding("sync", f"no scratch file can be made: {error}", "make room, or set TMPDIR")


def check_python(version: tuple[int, ...]) -> DoctorFinding:
    """Whether Python is new enough."""
    found = f"{platform.python_implementation()} {platform.python_version()}"
    return _finding("python", found, "install Python 3.11 or newer" if version < MIN_PYTHON_VERSION else "")


def check_sqlite(version: tuple[int, ...]) -> DoctorFinding:
    """Whether SQLite is new enough."""
    found, least = (".".join(map(str, each)) for each in (version, MIN_SQLITE_VERSION))
    advice = f"use a Python that is built with SQLite {least} or newer"
    return _finding("sqlite", found, advice if version < MIN_SQLITE_VERSION else "")


def check_packages() -> DoctorFinding:
    """Whether the required packages are installed."""
    found = {name: _package_version(name) for name in REQUIRED_PACKAGES}
    told = ", ".join(f"{name} {version or 'missing'}" for name, version in found.items())
    return _finding("parts", told, "" if all(found.values()) else "install antiphon again")


def check_extras(requirements: list[str]) -> DoctorFinding:
    """Which extras are installed. None is required."""
    wanted: dict[str, list[str]] = {}
    for requirement in requirements:
        match = EXTRA_REQUIREMENT.match(requirement)
        if match and match[2] != "dev":
            wanted.setdefault(match[2], []).append(match[1])
    here = [f"{extra} {'yes' if all(map(_package_version, names)) else 'no'}" for extra, names in wanted.items()]
    return _finding("extras", ", ".join(here) or "this version has none")


def check_durability(path: Path) -> DoctorFinding:
    """Whether SQLite accepts the durability settings of the store."""
    try:
        path.touch()
        connection = SqliteDatabase(str(path), connect_sqlite, "FULL").to_write()
    except (AntiphonError, OSError) as error:
        return _finding("durability", str(error), "point TMPDIR, and the store, to a local disk")
    with closing(connection):
        mode = connection.execute("PRAGMA journal_mode").fetchone()
        level = connection.execute("PRAGMA synchronous").fetchone()
    if (mode, level) != (("wal",), (2,)):
        return _finding("durability", f"journal {mode}, synchronous {level}", "use another build of SQLite")
    return _finding("durability", "write-ahead log and synchronous=FULL are in force")


def check_sync(path: Path) -> DoctorFinding:
    """How long a sync takes on the disk of this file."""
    try:
        seconds = statistics.median(_time_syncs(path))
    except OSError as error:
        return _finding("sync", f"a file cannot be synced: {error.strerror}", "use another disk")
    advice = ""
    if seconds > MAX_GOOD_SYNC_SECONDS:
        advice = "acknowledgements will wait for it: a faster disk helps"
    elif seconds < MIN_DISK_SYNC_SECONDS:
        advice = "too fast for a disk: keep the store where a sync is one"
    return _finding("sync", f"{seconds * 1000:.3g} ms a sync in {path.parent.parent}", advice, level="warning")


def check_space(directory: Path) -> DoctorFinding:
    """How much space is left."""
    try:
        free = shutil.disk_usage(directory).free
    except OSError as error:
        return _finding("disk", f"{directory}: {error.strerror}", "name a directory that exists")
    advice = "make space: what cannot be synced is not acknowledged" if free < LOW_SPACE_BYTES else ""
    level: FindingLevel = "problem" if free < MIN_SPACE_BYTES else "warning"
    return _finding("disk", f"{free / (1 << 30):.1f} GiB free in {directory}", advice, level=level)


async def check_store_opens(url: str, tenant: str) -> list[DoctorFinding]:
    """Whether a store can be opened and read, and whether every channel of it can be trusted."""
    try:
        async with open_store_to_read(url, tenant) as opened:
            some = len(await opened.channels(limit=MAX_COUNTED_CHANNELS))
            bad = await opened.channels(status=QUARANTINED_STATUS, limit=MAX_COUNTED_CHANNELS)
    except AntiphonError as error:
        return [_finding("store", str(error), "do what it says, or name another store")]
    more = " and more" if some == MAX_COUNTED_CHANNELS else ""
    found = [_finding("store", f"{url_without_password(url)} opens: {pluralize(some, 'channel')}{more}")]
    if bad:
        told = f"{pluralize(len(bad), 'quarantined channel')}: {', '.join(row.channel_id for row in bad)}"
        advice = "they can only be read; `antiphon verify` says where they are damaged"
        found.append(_finding("channels", told, advice, level="warning"))
    return found


def check_owner(path: Path) -> DoctorFinding:
    """Which hub owns a SQLite file now."""
    try:
        process = owner_process(str(path))
    except FileNotFoundError:
        return _finding("owner", "no hub has owned it yet")
    except (OSError, ImportError) as error:
        return _finding("owner", f"unknown: {error}", f"see whether you may read {path}{OWNER_SUFFIX}", level="warning")
    if process is None:
        return _finding("owner", "no hub at the moment")
    here = is_owned_here(str(path))
    return _finding("owner", f"a hub in this process ({process})" if here else f"a hub in process {process}")


def _time_syncs(path: Path) -> list[float]:
    times: list[float] = []
    end = time.monotonic() + MAX_SYNC_TEST_SECONDS
    with path.open("wb", buffering=0) as file:
        while len(times) < MAX_TIMED_SYNCS and (not times or time.monotonic() < end):
            begun = time.perf_counter()
            file.write(SYNC_BLOCK)
            os.fsync(file.fileno())
            times.append(time.perf_counter() - begun)
    return times


def _package_version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
