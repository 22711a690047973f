"""Verification of a store: every log is what was written, and a SQLite file is sound as a whole.

Rule 1: logs are read through the protocol alone, so that any store can be verified, also one that a hub is using.
Rule 2: a log has the sequences 1 … head, each record readable and tied to the one before. A log that lost its end is
        noticed by its snapshot; one that lost both is not.
Rule 3: the parts of a SQLite file that reading logs does not pass, such as the table of members, SQLite checks itself.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing

import msgspec

from antiphon.core.codec import Malformed, as_type
from antiphon.core.errors import LogCorrupt, StoreError
from antiphon.store.protocol import Store
from antiphon.store.sqlite_connection import SqliteConnection, connect_sqlite, is_damage, unavailable_error
from antiphon.store.sqlite_files import prepare_database_path
from antiphon.store.sqlite_schema import SqliteDatabase


class LogProblem(msgspec.Struct, frozen=True):
    """The first sequence of a channel that cannot be trusted, and why."""

    channel_id: str
    sequence: int
    why: str


class VerificationReport(msgspec.Struct, frozen=True):
    """How much was read, and its problems."""

    channels: int
    envelopes: int
    problems: list[LogProblem]


async def verify_store(store: Store) -> VerificationReport:
    """Read every log of the store's tenant from its beginning, and compare the listing with them."""
    envelopes = 0
    problems: list[LogProblem] = []
    recorded = [name async for name in _recorded_channels(store)]
    listed = {name async for name in _listed_channels(store)}
    for channel_id in recorded:
        good, problem = await verify_channel(store, channel_id)
        envelopes += good
        if problem is None and channel_id not in listed:
            problem = LogProblem(channel_id, 1, "the listing has lost this channel; rebuild it")
        if problem is not None:
            problems.append(problem)
    gone = "the listing has this channel, but its log is gone"
    problems.extend(LogProblem(channel_id, 1, gone) for channel_id in sorted(listed.difference(recorded)))
    return VerificationReport(len(recorded), envelopes, problems)


async def verify_channel(store: Store, channel_id: str) -> tuple[int, LogProblem | None]:
    """How many envelopes of one channel are good, and the problem of the next."""
    good, more = 0, True
    try:
        # First: a hub may be using the store, and a snapshot that is read later may be of a longer log.
        folded = await _snapshot_sequence(store, channel_id)
        while more:
            page = await store.read(channel_id, after=good)
            good, more = good + len(page.envelopes), page.more
        head = await store.head(channel_id)
    except LogCorrupt as error:
        return good, LogProblem(channel_id, error.sequence, error.why)
    if head < good:
        return good, LogProblem(channel_id, head + 1, f"the head is {head}, but {good} envelopes were read")
    if head < folded:
        return good, LogProblem(
            channel_id, head + 1, f"the log has lost its end: it had {folded} envelopes when a snapshot was made of it"
        )
    return good, None


async def _snapshot_sequence(store: Store, channel_id: str) -> int:
    """How long the log was when a snapshot was made of it; 0 if there is none, or none that can be read."""
    try:
        snapshot = await store.get_snapshot(channel_id)
    except StoreError:
        return 0  # it is only a cache, which a hub makes again
    return snapshot.sequence if snapshot else 0


async def _recorded_channels(store: Store) -> AsyncIterator[str]:
    after = ""
    while names := await store.names(after=after):
        for name in names:
            yield name
        after = names[-1]


async def _listed_channels(store: Store) -> AsyncIterator[str]:
    after = ""
    while rows := await store.channels(after=after, limit=1000):
        for row in rows:
            yield row.channel_id
        after = rows[-1].channel_id


MAX_INTEGRITY_PROBLEMS = 20
"""How many problems SQLite reports at most."""

_CHECK_FILE = f"PRAGMA integrity_check({MAX_INTEGRITY_PROBLEMS})"
_CHECK_TABLE = "PRAGMA integrity_check('{}')"
_SELECT_TABLES = "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name"
_SELECT_TENANTS = (
    "SELECT DISTINCT tenant FROM log NOT INDEXED",  # a damaged index hides no tenant
    "SELECT DISTINCT tenant FROM channel NOT INDEXED",
)


class SqliteFileReport(msgspec.Struct, frozen=True):
    """The tenants of a file, and the problems that SQLite reports."""

    tenants: list[str]
    problems: list[str]


def check_sqlite_file(path: str | os.PathLike[str]) -> SqliteFileReport:
    """Let SQLite check every page. It takes as long as reading the file; a hub may use it meanwhile."""
    database = SqliteDatabase(prepare_database_path(path, read_only=True), connect_sqlite, "FULL")
    try:
        with closing(database.to_read()) as connection:
            found = [_fetch_texts(connection, sql) for sql in _SELECT_TENANTS]
            problems = [*_integrity_problems(connection), *(damage for _, damage in found if damage)]
    except sqlite3.Error as error:
        raise unavailable_error(database.path, error) from error
    tenants = {name for names, _ in found for name in names}
    return SqliteFileReport(sorted(tenants), list(dict.fromkeys(problems))[:MAX_INTEGRITY_PROBLEMS])


def _integrity_problems(connection: SqliteConnection) -> list[str]:
    """The problems that SQLite reports. Where damage ends the check of the file, each table is checked by itself."""
    said, damage = _fetch_texts(connection, _CHECK_FILE)
    if not damage:
        return _problem_lines(said)
    tables, _ = _fetch_texts(connection, _SELECT_TABLES)
    heard = ((table, *_fetch_texts(connection, _CHECK_TABLE.format(table))) for table in tables)
    told = [f"table {table}: {line}" for table, lines, why in heard for line in (*_problem_lines(lines), why) if line]
    return _problem_lines(said) + (told or [damage])


def _problem_lines(said: list[str]) -> list[str]:
    lines = [line for text in said for line in text.splitlines()]
    return [line for line in lines if line != "ok" and not line.startswith("***")]


def _fetch_texts(connection: SqliteConnection, sql: str) -> tuple[list[str], str]:
    """The texts of a query, and the damage that ended it."""
    texts: list[str] = []
    try:
        cursor = connection.execute(sql)
        while (row := cursor.fetchone()) is not None:
            texts.append(as_type(row, tuple[str])[0])
    except (sqlite3.Error, Malformed) as error:
        if not is_damage(error):
            raise
        return texts, str(error)
    return texts, ""
