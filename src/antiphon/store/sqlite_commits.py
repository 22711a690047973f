"""What the writing thread commits together, and how batches get into the log table.

Rule 1: a plan assumes that no other process writes; the unique indexes make a wrong assumption harmless.
Rule 2: an append that cannot be planned is decided alone, after reading. Only that tells a conflict from a repetition
        and from a reused id.
Rule 3: cached heads are believed until the first error, and kept only after a commit.
Rule 4: nothing is recorded behind a record that is not tied to the one before it.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain

from antiphon.core.envelope import Envelope, Instant
from antiphon.core.errors import AntiphonError, LogCorrupt, StoreError, UsageError
from antiphon.core.state import ENDED_STATUSES
from antiphon.store import sqlite_index as index
from antiphon.store.protocol import Appended
from antiphon.store.records import ROW_EVENT_TYPES, chain_hash, has_expected_sequences, resolve_append
from antiphon.store.sqlite_connection import (
    SqliteConnection,
    SqlValue,
    TransactionDamaged,
    is_damage,
    is_store_wide_failure,
    settle_futures,
    unusable_error,
)
from antiphon.store.sqlite_reads import LogHead, find_envelope, read_log_head

MAX_CACHED_HEADS = 10_000
"""How many channels' heads are cached."""
MAX_ROWS_PER_INSERT = 96
"""The most rows that go into one statement; each number of rows is a statement that the driver caches."""

_INSERT_INTO = "INSERT INTO log (tenant, channel, seq, id, kind, body, hash, at) VALUES "
_ROW_PLACEHOLDERS = "(?, ?, ?, ?, ?, ?, ?, ?)"
_INSERT_ROW = _INSERT_INTO + _ROW_PLACEHOLDERS

AppendOutcome = Appended | AntiphonError
InsertedRow = tuple[SqlValue, ...]


@dataclass(slots=True, eq=False)
class Append:
    """A batch to record, and the future of its result."""

    channel: str
    batch: Sequence[Envelope]
    records: Sequence[bytes]
    expected: int
    due: Instant | None
    done: asyncio.Future[Appended]

    def moves_a_row(self, status: str) -> bool:
        """Whether the listing, or what a member owes to a channel that has ended, differs afterwards."""
        if self.expected == 0 or self.due is not None or status in ENDED_STATUSES:
            return True
        return any(envelope.event_type in ROW_EVENT_TYPES for envelope in self.batch)


@dataclass(slots=True, eq=False)
class AppendPlan:
    """The rows to insert for some appends, and their outcomes. An outcome of None is decided after reading."""

    appends: Sequence[Append]
    outcomes: list[AppendOutcome | None] = field(default_factory=list)
    rows: list[InsertedRow] = field(default_factory=list)
    moving: list[Append] = field(default_factory=list)
    heads: dict[str, LogHead] = field(default_factory=dict)

    def is_plain(self) -> bool:
        """Whether it is nothing but a few inserts, and so fits into one statement."""
        return (
            bool(self.rows) and not self.moving and len(self.rows) <= MAX_ROWS_PER_INSERT and None not in self.outcomes
        )

    def start_again(self) -> None:
        """Leave every append to be decided after reading, except for those at a damaged end."""
        self.outcomes = [outcome if isinstance(outcome, LogCorrupt) else None for outcome in self.outcomes]
        self.rows, self.moving, self.heads = [], [], {}

    def decided_outcomes(self) -> list[AppendOutcome]:
        """The outcome of each append, once all are decided."""
        return [outcome for outcome in self.outcomes if outcome is not None]

    def written(self) -> int:
        """How many envelopes are recorded, once all are decided."""
        appended = (outcome for outcome in self.outcomes if isinstance(outcome, Appended) and not outcome.duplicate)
        return sum(outcome.last - outcome.first + 1 for outcome in appended)


class Appender:
    """Writes the batches of one tenant."""

    def __init__(self, tenant: str) -> None:
        self._tenant = tenant
        self._heads: dict[str, LogHead] = {}

    def keep(self, plan: AppendPlan) -> None:
        """Cache the heads of a plan that was committed."""
        for channel, head in plan.heads.items():
            self._heads.pop(channel, None)
            self._heads[channel] = head
        while len(self._heads) > MAX_CACHED_HEADS:
            del self._heads[next(iter(self._heads))]

    def forget(self) -> None:
        """Drop the cached heads: they may be wrong."""
        self._heads.clear()

    def make_plan(self, connection: SqliteConnection, appends: Sequence[Append]) -> AppendPlan:
        """The plan for some appends. It writes nothing."""
        plan = AppendPlan(appends)
        for append in appends:
            head = self._head(connection, plan, append)
            if not isinstance(head, LogHead):
                plan.outcomes.append(head)
                continue
            if append.expected != head.sequence or not has_expected_sequences(append.batch, append.expected):
                plan.outcomes.append(None)
                continue
            plan.outcomes.append(Appended(append.expected + 1, append.expected + len(append.batch)))
            plan.rows.extend(self._linked_rows(plan, append, head))
            if append.moves_a_row(head.status):
                plan.moving.append(append)
        return plan

    def write_at_once(self, connection: SqliteConnection, plan: AppendPlan) -> None:
        """Write a plain plan as one statement, which is a transaction by itself."""
        connection.execute(_insert_statement(len(plan.rows)), list(chain.from_iterable(plan.rows)))

    def write(self, connection: SqliteConnection, plan: AppendPlan) -> None:
        """Write a plan inside a transaction, and decide the appends that were left to reading."""
        if plan.rows:
            connection.executemany(_INSERT_ROW, plan.rows)
        for append in plan.moving:
            self._project(connection, plan, append)
        for place, append in enumerate(plan.appends):
            if plan.outcomes[place] is None:
                plan.outcomes[place] = self._append_alone(connection, plan, append)

    def _append_alone(self, connection: SqliteConnection, plan: AppendPlan, append: Append) -> AppendOutcome:
        connection.execute("SAVEPOINT alone")
        try:
            outcome: AppendOutcome = self._append_after_reading(connection, plan, append)
        except Exception as error:
            if is_store_wide_failure(error):
                raise
            self._heads.pop(append.channel, None)
            plan.heads.pop(append.channel, None)
            outcome = _append_error(append, error)
            if is_damage(error):  # ROLLBACK TO would succeed, and COMMIT fail for the whole group
                raise TransactionDamaged(append, outcome) from error
            connection.execute("ROLLBACK TO alone")
        connection.execute("RELEASE alone")
        return outcome

    def _append_after_reading(self, connection: SqliteConnection, plan: AppendPlan, append: Append) -> Appended:
        def find(envelope_id: str) -> Envelope | None:
            return find_envelope(connection, self._tenant, append.channel, envelope_id=envelope_id)

        plan.heads[append.channel] = head = read_log_head(connection, self._tenant, append.channel)
        appended = resolve_append(append.batch, expected=append.expected, head=head.sequence, find=find)
        if not appended.duplicate:
            connection.executemany(_INSERT_ROW, self._linked_rows(plan, append, head))
            if append.moves_a_row(head.status):
                self._project(connection, plan, append)
        return appended

    def _linked_rows(self, plan: AppendPlan, append: Append, head: LogHead) -> list[InsertedRow]:
        """The rows of a batch behind a head, and the head behind them."""
        tenant, channel, digest, sequence = self._tenant, append.channel, head.hash, head.sequence
        rows: list[InsertedRow] = []
        for said, body in zip(append.batch, append.records, strict=True):
            sequence += 1
            digest = chain_hash(digest, body)
            rows.append((tenant, channel, sequence, said.envelope_id, said.event_type, body, digest, said.created_at))
        plan.heads[channel] = LogHead(sequence, digest, head.status)
        return rows

    def _project(self, connection: SqliteConnection, plan: AppendPlan, append: Append) -> None:
        head = plan.heads[append.channel]
        row = index.project_batch(connection, self._tenant, append.batch, due=append.due, head=head.sequence)
        plan.heads[append.channel] = head._replace(status=row.status)

    def _head(self, connection: SqliteConnection, plan: AppendPlan, append: Append) -> LogHead | AntiphonError | None:
        """The head of a channel, or the error of its damaged end; None if it is to be decided after reading."""
        head = plan.heads.get(append.channel) or self._heads.get(append.channel)
        if head is not None:
            return head
        try:
            return read_log_head(connection, self._tenant, append.channel)
        except Exception as error:
            if is_store_wide_failure(error):
                raise
            return _append_error(append, error) if is_damage(error) or isinstance(error, LogCorrupt) else None


@cache
def _insert_statement(rows: int) -> str:
    return _INSERT_INTO + ", ".join([_ROW_PLACEHOLDERS] * rows)


def _append_error(append: Append, error: Exception) -> AntiphonError:
    """The error of one batch, as its caller gets it."""
    match error:
        case AntiphonError():
            return error
        case sqlite3.ProgrammingError() | sqlite3.InterfaceError() | sqlite3.DataError():
            return UsageError(f"the batch for channel {append.channel!r} cannot be recorded: {error}")
        case _:
            return LogCorrupt(append.channel, append.expected + 1, str(error))


@dataclass(slots=True, eq=False)
class WriteTask:
    """A change of the index or of a lease, and the future of its end."""

    job: Callable[[SqliteConnection], None]
    done: asyncio.Future[None]
    channel: str
    """The channel whose log it reads; "" if there is no single one."""
    forget: bool
    """Whether it may change what cached heads say."""
    outside: bool
    """Whether it runs after the commit, outside of any transaction."""


def perform_task(connection: SqliteConnection, task: WriteTask, path: str) -> Exception | None:
    """Run a task in a savepoint of its own; its error, if it failed without damage."""
    connection.execute("SAVEPOINT task")
    outcome: Exception | None = None
    try:
        task.job(connection)
    except Exception as error:
        if is_store_wide_failure(error):
            raise
        outcome = _task_error(task, error, path)
        if is_damage(error):
            raise TransactionDamaged(task, outcome) from error
        connection.execute("ROLLBACK TO task")
    connection.execute("RELEASE task")
    return outcome


def _task_error(task: WriteTask, error: Exception, path: str) -> AntiphonError:
    if isinstance(error, AntiphonError):
        return error
    if task.channel and is_damage(error):
        return LogCorrupt(task.channel, 1, str(error))
    return unusable_error(path, error)


@dataclass(slots=True, eq=False)
class PositionUpdate:
    """An acknowledged position. It has no future: it may lag."""

    participant: str
    channel: str
    sequence: int


@dataclass(slots=True, eq=False)
class CommitGroup:
    """The items that are committed together, and their outcomes."""

    appends: list[Append] = field(default_factory=list)
    tasks: list[WriteTask] = field(default_factory=list)
    outside: list[WriteTask] = field(default_factory=list)
    is_last: bool = False
    size: int = 0
    appended: list[AppendOutcome] = field(default_factory=list)
    performed: list[Exception | None] = field(default_factory=list)
    written: int = 0

    def fail(self, error: StoreError) -> None:
        """Give every append and task this error."""
        self.appended = [type(error)(str(error)) for _ in self.appends]
        self.performed = [type(error)(str(error)) for _ in self.tasks]
        self.written = 0

    def is_empty(self) -> bool:
        """Whether there is nothing in it."""
        return not (self.appends or self.tasks or self.outside)

    def settle(self) -> None:
        """Settle the futures of the group. Runs on the loop."""
        settle_futures(zip((append.done for append in self.appends), self.appended, strict=True))
        settle_futures(zip((task.done for task in self.tasks), self.performed, strict=True))


WriterItem = Append | WriteTask | PositionUpdate | None
"""None ends the thread."""
