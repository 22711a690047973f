"""Whatever operation fails, callers hear the truth, and the store works again when the fault is over."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import apsw
import pytest

from antiphon.core.envelope import Envelope
from antiphon.core.errors import OutcomeUnknown, StoreUnavailable
from antiphon.store.protocol import Appended
from antiphon.store.sqlite import SqliteStore
from antiphon.store.sqlite_connection import SqlValues
from tests.faults import nth
from tests.faults.apsw_connection import ApswConnection, failure, translated
from tests.faults.searches import nth_sweep

PROOF = os.environ.get("ANTIPHON_PROOF") == "1"
STRIDES = {"ioerr": 12, "full": 10, "busy": 4, "short_read": 6, "sync": 4, "answer_lost": 3}
"""Every so many operations in the ordinary run; a kind that has few is looked at more closely."""


@pytest.mark.parametrize("kind", nth.KINDS)
def test_every_operation_may_fail(kind: str) -> None:
    result = nth_sweep(1 if PROOF else STRIDES[kind], [kind])
    assert result["violations"] == 0, "\n".join(result["findings"])
    assert result["sprung"] == result["runs"] > 0
    assert sum(result["errors"].values()) > 0, "no caller ever met the fault"


def test_each_kind_is_told_as_what_it_is() -> None:
    """Where nothing was recorded the store says so; where it cannot know, it says that."""
    told = {kind: nth_sweep(STRIDES[kind], [kind])["errors"] for kind in ("busy", "answer_lost")}
    assert told["busy"]["append StoreUnavailable"] > 0
    assert "append OutcomeUnknown" not in told["busy"]
    assert told["answer_lost"]["append OutcomeUnknown"] > 0
    assert "append StoreUnavailable" not in told["answer_lost"]


# What the search can find


async def violations(tmp_path: Path, kind: str, *, lasting: bool = False) -> list[str]:
    """What is found with a fault at every operation of a kind."""
    found: list[str] = []
    dry = await nth.run(tmp_path / "dry.db", nth.Trap(kind))
    for place in range(1, dry.trap.seen + 1):
        one = await nth.run(tmp_path / f"{place}.db", nth.Trap(kind, place, lasting=lasting))
        found += one.violations
    return found


class Append(Protocol):
    async def __call__(
        self, store: SqliteStore, channel: str, batch: list[Envelope], /, *, expected: int
    ) -> Appended: ...


def acknowledging_too_early(append: Append) -> Append:
    async def wrapped(store: SqliteStore, channel: str, batch: list[Envelope], *, expected: int) -> Appended:
        try:
            return await append(store, channel, batch, expected=expected)
        except (OutcomeUnknown, StoreUnavailable):
            return Appended(expected + 1, expected + len(batch))

    return wrapped


def too_sure(append: Append) -> Append:
    async def wrapped(store: SqliteStore, channel: str, batch: list[Envelope], *, expected: int) -> Appended:
        try:
            return await append(store, channel, batch, expected=expected)
        except OutcomeUnknown as error:
            raise StoreUnavailable(str(error)) from error

    return wrapped


def never_again(append: Append) -> Append:
    broken: set[SqliteStore] = set()

    async def wrapped(store: SqliteStore, channel: str, batch: list[Envelope], *, expected: int) -> Appended:
        if store in broken:
            raise StoreUnavailable("it failed once")
        try:
            return await append(store, channel, batch, expected=expected)
        except (OutcomeUnknown, StoreUnavailable):
            broken.add(store)
            raise

    return wrapped


def silent(append: Append) -> Append:
    async def wrapped(store: SqliteStore, channel: str, batch: list[Envelope], *, expected: int) -> Appended:
        try:
            return await append(store, channel, batch, expected=expected)
        except (OutcomeUnknown, StoreUnavailable) as error:
            raise sqlite3.OperationalError("disk I/O error") from error

    return wrapped


@pytest.mark.parametrize(
    ("kind", "mistake", "finding"),
    [
        ("busy", acknowledging_too_early, " at "),
        ("answer_lost", too_sure, "the store had said that nothing was"),
        ("busy", never_again, "it failed once"),
        ("busy", silent, "OperationalError"),
    ],
)
async def test_a_store_that_gets_it_wrong_is_found_out(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    mistake: Callable[[Append], Append],
    finding: str,
) -> None:
    monkeypatch.setattr(SqliteStore, "append", mistake(SqliteStore.append))
    assert any(finding in one for one in await violations(tmp_path, kind))


# The tools


def test_a_trap_springs_once_or_until_it_is_lifted() -> None:
    once, lasting = nth.Trap("sync", 2), nth.Trap("sync", 2, lasting=True)
    assert [once.springs(name) for name in ("sync", "write", "sync", "sync")] == [False, False, True, False]
    assert [lasting.springs(name) for name in ("sync", "write", "sync", "sync")] == [False, False, True, True]
    lasting.lifted = True
    assert not lasting.springs("sync")
    assert (once.sprung, lasting.sprung) == (1, 2)


@pytest.mark.parametrize(
    ("raised", "code", "expected"),
    [
        (apsw.ConstraintError, apsw.SQLITE_CONSTRAINT_UNIQUE, sqlite3.IntegrityError),
        (apsw.BusyError, apsw.SQLITE_BUSY, sqlite3.OperationalError),
        (apsw.FullError, apsw.SQLITE_FULL, sqlite3.OperationalError),
        (apsw.IOError, apsw.SQLITE_IOERR_FSYNC, sqlite3.OperationalError),
        (apsw.ReadOnlyError, apsw.SQLITE_READONLY, sqlite3.OperationalError),
        (apsw.CorruptError, apsw.SQLITE_CORRUPT, sqlite3.DatabaseError),
        (apsw.NotADBError, apsw.SQLITE_NOTADB, sqlite3.DatabaseError),
    ],
)
def test_errors_are_the_standard_library_s(raised: type[apsw.Error], code: int, expected: type[sqlite3.Error]) -> None:
    error = translated(failure(raised, code, "what happened"))
    assert type(error) is expected
    assert (str(error), error.sqlite_errorcode) == ("what happened", code)


def statements() -> list[tuple[str, SqlValues]]:
    return [
        ("CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT UNIQUE)", ()),
        ("INSERT INTO t (b) VALUES (?), (?)", ("x", "y")),
        ("SELECT a, b FROM t ORDER BY a", ()),
        ("UPDATE t SET b = b || b", ()),
        ("INSERT INTO t (b) VALUES (?)", ("xx",)),
        ("SELECT nothing FROM t", ()),
        ("BEGIN IMMEDIATE", ()),
        ("DELETE FROM t WHERE a = ?", (1,)),
        ("ROLLBACK", ()),
        ("COMMIT", ()),
        ("SELECT count(*), NULL, x'00', 1.5 FROM t", ()),
    ]


def test_both_drivers_answer_alike(tmp_path: Path) -> None:
    (tmp_path / "apsw.db").touch()
    ours = ApswConnection(str(tmp_path / "apsw.db"))
    theirs = sqlite3.connect(tmp_path / "sqlite3.db", isolation_level=None)
    try:
        assert [answer(ours, *one) for one in statements()] == [answer(theirs, *one) for one in statements()]
    finally:
        ours.close()
        theirs.close()


def answer(connection: ApswConnection | sqlite3.Connection, sql: str, values: SqlValues) -> object:
    try:
        result = connection.execute(sql, values)
        return result.fetchall(), result.rowcount
    except sqlite3.Error as error:
        return type(error), error.sqlite_errorcode
