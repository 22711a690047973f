"""A SQLite file as a whole: whether it is sound, and whose channels are in it.

`verify` reads the logs through the indexes that a hub uses. What it does not pass on its way, an index of ids or the
table of members, is SQLite's own to check.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing

import msgspec

from antiphon.core.codec import Malformed, as_type
from antiphon.store.ownership import checked_place
from antiphon.store.sqlite_connection import Connection, connect, is_damage, unavailable
from antiphon.store.sqlite_schema import Database

MOST = 20
"""How many complaints of SQLite's are heard."""

_WHOLE = f"PRAGMA integrity_check({MOST})"
_TABLE = "PRAGMA integrity_check('{}')"
_TABLES = "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name"
_TENANTS = (
    "SELECT DISTINCT tenant FROM log NOT INDEXED",  # an index that is damaged hides nobody
    "SELECT DISTINCT tenant FROM channel NOT INDEXED",
)


class FileReport(msgspec.Struct, frozen=True):
    """Whose channels are in a file, and what SQLite says is wrong with it."""

    tenants: list[str]
    problems: list[str]


def check_file(path: str | os.PathLike[str]) -> FileReport:
    """Have SQLite look at every page. It takes as long as reading the file, and a hub may go on using it."""
    database = Database(checked_place(path, read_only=True), connect, "FULL")
    try:
        with closing(database.to_read()) as connection:
            found = [_heard(connection, sql) for sql in _TENANTS]
            problems = [*_complaints(connection), *(damage for _, damage in found if damage)]
    except sqlite3.Error as error:
        raise unavailable(database.path, error) from error
    tenants = {name for names, _ in found for name in names}
    return FileReport(sorted(tenants), list(dict.fromkeys(problems))[:MOST])


def _complaints(connection: Connection) -> list[str]:
    """What SQLite has against the file. Where damage ends its look at the whole, it looks at each table by itself."""
    said, damage = _heard(connection, _WHOLE)
    if not damage:
        return _lines(said)
    tables, _ = _heard(connection, _TABLES)
    heard = ((table, *_heard(connection, _TABLE.format(table))) for table in tables)
    told = [f"table {table}: {line}" for table, lines, why in heard for line in (*_lines(lines), why) if line]
    return _lines(said) + (told or [damage])


def _lines(said: list[str]) -> list[str]:
    lines = [line for text in said for line in text.splitlines()]
    return [line for line in lines if line != "ok" and not line.startswith("***")]


def _heard(connection: Connection, sql: str) -> tuple[list[str], str]:
    """The texts that a query gives, and the damage that ended it."""
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
