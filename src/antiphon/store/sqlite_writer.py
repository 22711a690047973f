"""Group commit: one thread writes all that is queued in one transaction and reports it to the loop in one message.

Rule 1: no outcome is reported before the commit has returned. If the commit fails, the outcome of the whole group is
        unknown, refusals included: the record that caused a refusal may not be there.
Rule 2: a failure before the commit has recorded nothing, and says so.
Rule 3: a bad append affects no other: the group is rolled back, and each append is decided after reading.
Rule 4: an item that meets damage fails at once, and the group starts again without it. SQLite commits no transaction
        in which damage was met, even after a rollback to a savepoint.
Rule 5: the order of requests is kept: a group is some appends, followed by some tasks.
Rule 6: acknowledgements wait for an append to be committed with, but not for long.
Rule 7: the write-ahead log is moved into the file whole and synced there, or it is moved again. A partial checkpoint,
        which SQLite makes around readers, would trust pages that a failed sync has lost.

The states of a group, from `_commit`:

    planned      -> inserted         only inserts: one statement that commits itself, without BEGIN (`_write_at_once`)
    planned      -> in transaction   anything else, or the one statement was refused before its commit (`_write`)
    inserted, in transaction -> committed    the statement, or COMMIT, has returned
    in transaction -> in transaction         a constraint failed: ROLLBACK, then each append alone in a savepoint
    in transaction -> planned                damage: ROLLBACK, its item fails (`_leave_out`), the others start again
    inserted, in transaction -> failed       no room, no lock, no memory before the commit: nothing is recorded
    inserted, in transaction -> unknown      the commit itself failed: `OutcomeUnknown`, and the connection is dropped
    committed    -> gone             the file was deleted or replaced meanwhile: `StoreGone` (`_loss_error`)

Every statement makes this thread wait for the interpreter lock behind a busy loop. That is why a group of inserts is
one statement, and why acknowledgements do not break such a group up.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from time import monotonic
from typing import TypeVar

from antiphon.core.codec import as_type
from antiphon.core.errors import OutcomeUnknown, StoreError, StoreGone
from antiphon.store import sqlite_index as index
from antiphon.store.sqlite_commits import (
    Append,
    Appender,
    AppendPlan,
    CommitGroup,
    PositionUpdate,
    WriterItem,
    WriteTask,
    perform_task,
)
from antiphon.store.sqlite_connection import (
    FileIdentity,
    ServingThread,
    SqliteConnection,
    ThreadConnection,
    TransactionDamaged,
    call_on_loop,
    closed_on_error,
    error_message,
    is_busy,
    is_store_wide_failure,
    may_be_committed,
    settle_futures,
    unusable_error,
)
from antiphon.store.sqlite_erase import TRUNCATE_LOG, finish_sweep
from antiphon.store.sqlite_reads import read_last_position
from antiphon.store.sqlite_schema import DEFAULT_BUSY_TIMEOUT, SqliteDatabase

T = TypeVar("T")

logger = logging.getLogger("antiphon.store")

MAX_GROUP_ROWS = 64
"""The number of rows with which a group is full."""
POSITION_DELAY_SECONDS = 0.05
"""How long an acknowledgement waits for an append to be committed with."""
FILE_CHECK_SECONDS = 1.0
"""How long the thread is idle before it checks that the file is still there."""
PAGES_PER_COMMIT = 4
"""About how many pages a commit costs beside those of its rows."""
LOG_MOVE_BUSY_TIMEOUT = "PRAGMA busy_timeout = 250"
MOVE_LOG_INTO_FILE = "PRAGMA wal_checkpoint(FULL)"
LOG_NOT_MOVED = "%s keeps what was committed beside the file for now: %s"
POSITION_RETRY_SECONDS = 1.0
"""How long acknowledgements wait after they could not be written."""


class SqliteWriter:
    """Owns the writing connection of one store."""

    def __init__(
        self, database: SqliteDatabase, identity: FileIdentity, tenant: str, *, committed: Callable[[], None]
    ) -> None:
        self._path, self._database, self._identity = database.path, database, identity
        self._tenant = tenant
        self._committed = committed
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[WriterItem] = SimpleQueue()
        self._next_append: Append | None = None
        """The first of the next group: it was queued behind a task of this one (Rule 5)."""
        self._connection = ThreadConnection(self._open, self._reopen)
        self._appender = Appender(tenant)
        self._positions: dict[tuple[str, str], int] = {}
        self._positions_due_at = 0.0
        self._unsettled, self._settle_after = 0, database.settle_after
        self._thread = ServingThread(self._serve, name="antiphon-writer")
        self.last = 0
        """The position of the last envelope that was recorded."""
        self._last_known_position = 0
        """The same, on the side of the thread: a file opened again must not end before it."""

    async def start(self) -> None:
        """Open the database, or raise why it is refused."""
        self._thread.start()
        self.last = await self.run(read_last_position)

    def append(self, append: Append) -> None:
        """Queue a batch. Its future is settled once it is committed."""
        self._queue.put(append)

    async def run(
        self, job: Callable[[SqliteConnection], T], *, channel: str = "", forget: bool = False, outside: bool = False
    ) -> T:
        """Run a job inside the next transaction, and again if that starts again; `outside`: after it, and in none."""
        results: list[T] = []
        done: asyncio.Future[None] = self._loop.create_future()
        self._queue.put(WriteTask(lambda connection: results.append(job(connection)), done, channel, forget, outside))
        await done
        return results[-1]

    def acknowledge(self, participant: str, channel: str, sequence: int) -> None:
        """Move a position with one of the next transactions."""
        self._queue.put(PositionUpdate(participant, channel, sequence))

    async def stop(self) -> None:
        """Write what is queued, move the log into the file, and end the thread."""
        self._queue.put(None)
        await self._thread.ended()

    def _serve(self) -> None:
        is_last = False
        while not is_last:
            group = self._gather_group()
            is_last = group.is_last
            if not group.is_empty() or self._are_positions_due(group):
                self._commit(group)
        if self._identity.has_file():  # never checkpoint into a file that replaced the one this log belongs to
            self._connection.drop(TRUNCATE_LOG)
        self._connection.drop()

    def _open(self) -> SqliteConnection:
        connection = self._database.to_write()
        with closed_on_error(connection):
            self._identity.remember_log()
            self._last_known_position = read_last_position(connection)
            finish_sweep(connection, self._path)
        return connection

    def _reopen(self) -> SqliteConnection:
        self._identity.check()
        connection = self._database.to_write_on()
        with closed_on_error(connection):
            if read_last_position(connection) < self._last_known_position:  # the write-ahead log was lost meanwhile
                raise self._identity.log_lost_error()
            self._identity.remember_log()
        return connection

    def _are_positions_due(self, group: CommitGroup) -> bool:
        """Whether acknowledgements have waited long enough."""
        return bool(self._positions) and (group.is_last or monotonic() >= self._positions_due_at)

    def _gather_group(self) -> CommitGroup:
        """Wait for an item, then take all that are queued, up to the size of a group."""
        group = CommitGroup()
        first, self._next_append = self._next_append, None
        try:
            self._sort(first or self._queue.get(timeout=self._wait_seconds()), group)
        except Empty:
            self._look()
            return group
        while (
            group.size < MAX_GROUP_ROWS and not group.is_last and self._next_append is None and not self._queue.empty()
        ):
            self._sort(self._queue.get(), group)
        return group

    def _wait_seconds(self) -> float | None:
        """How long to wait for an item; None for a store that is gone, whose file is not checked any more."""
        if self._positions:
            return max(0.0, self._positions_due_at - monotonic())
        return None if self._identity.refusal() else FILE_CHECK_SECONDS

    def _look(self) -> None:
        """Notice that the file is gone although nothing is written. If the check fails, the next one decides.

        Without a connection the write-ahead log is not checked: closing the last connection removes it.
        """
        if self._connection.is_open:
            self._loss_error()
            return
        with suppress(StoreGone, OSError):
            self._identity.check()

    def _sort(self, item: WriterItem, group: CommitGroup) -> None:
        match item:
            case Append():
                if group.tasks:
                    self._next_append = item
                    return
                group.appends.append(item)
                group.size += len(item.batch)
            case WriteTask(outside=True):
                group.outside.append(item)
            case WriteTask():
                group.tasks.append(item)
                group.size += 1
            case PositionUpdate(participant, channel, sequence):
                if not self._positions:
                    self._positions_due_at = monotonic() + POSITION_DELAY_SECONDS
                key = (participant, channel)
                self._positions[key] = max(sequence, self._positions.get(key, 0))
            case None:
                group.is_last = True

    def _commit(self, group: CommitGroup) -> None:
        failure = self._identity.refusal() or self._record_group(group) or self._loss_error()
        if failure is not None:
            self._positions_due_at = monotonic() + POSITION_RETRY_SECONDS
            group.fail(failure)
        call_on_loop(self._loop, partial(self._deliver, group))
        if group.outside:
            outcomes = [(task.done, failure or self._run_outside_task(task)) for task in group.outside]
            call_on_loop(self._loop, partial(settle_futures, outcomes))
        self._unsettled += PAGES_PER_COMMIT + group.size
        if failure is None and self._unsettled >= self._settle_after:
            self._settle()

    def _run_outside_task(self, task: WriteTask) -> StoreError | None:
        try:
            task.job(self._connection.get())
        except StoreError as error:
            return error
        except Exception as error:  # of any kind: the thread must not end
            self._abandon(error)
            return unusable_error(self._path, error)
        return None

    def _loss_error(self) -> StoreError | None:
        """The error, if the commit went to a file that is gone. If only its log is gone, its pages are saved first."""
        failure = self._identity.failure_after_commit()
        if failure is not None:
            self._appender.forget()
            if isinstance(failure, StoreGone) and self._identity.has_file():
                self._settle()
        return failure

    def _settle(self) -> None:
        """Move the write-ahead log into the file. After a failure it is tried again when as much was written again."""
        self._unsettled = 0
        try:
            connection = self._connection.get()
            connection.execute(LOG_MOVE_BUSY_TIMEOUT)
            [(busy, _, _)] = as_type(connection.execute(MOVE_LOG_INTO_FILE).fetchall(), list[tuple[int, int, int]])
            connection.execute(DEFAULT_BUSY_TIMEOUT)
        except Exception as error:  # of any kind: the thread must not end
            logger.warning(LOG_NOT_MOVED, self._path, error_message(error))
            self._connection.drop()
        else:
            if busy:
                logger.warning(LOG_NOT_MOVED, self._path, "a process has been reading for too long")

    def _record_group(self, group: CommitGroup) -> StoreError | None:
        """Commit a group in one transaction; the error if it was not committed, or may not be."""
        try:
            while (plan := self._try_commit(group)) is None:
                pass
        except StoreError as error:
            return error
        except Exception as error:  # of any kind: the thread must not end
            self._abandon(error)
            return unusable_error(self._path, error)
        # Heads are believed only after the commit; a plan that was not committed never reaches this line.
        self._appender.keep(plan)
        if any(task.forget for task in group.tasks):
            self._appender.forget()
        group.appended, group.written = plan.decided_outcomes(), plan.written()
        self._last_known_position += group.written
        return None

    def _try_commit(self, group: CommitGroup) -> AppendPlan | None:
        """The plan that was committed; None if an item met damage and the group is to be tried again without it."""
        connection = self._connection.get()
        plan = self._appender.make_plan(connection, group.appends)
        plainly = plan.is_plain() and not group.tasks and not self._are_positions_due(group)
        try:
            if not (plainly and self._write_at_once(connection, plan)):
                self._write(connection, group, plan)
        except TransactionDamaged as damage:
            self._connection.roll_back()  # the whole of it: SQLite would refuse to commit the rest (Rule 4)
            self._leave_out(group, damage)
            return None
        return plan

    def _leave_out(self, group: CommitGroup, damage: TransactionDamaged) -> None:
        """Fail the item that met damage. A position fails silently: it may lag."""
        match damage.culprit:
            case Append(done=appended) as append:
                group.appends.remove(append)
                call_on_loop(self._loop, partial(settle_futures, [(appended, damage.error)]))
            case WriteTask(done=done) as task:
                group.tasks.remove(task)
                call_on_loop(self._loop, partial(settle_futures, [(done, damage.error)]))
            case position:
                self._positions = {key: at for key, at in self._positions.items() if key != position}

    def _write_at_once(self, connection: SqliteConnection, plan: AppendPlan) -> bool:
        """Whether a plain plan was committed; False if nothing was, and each append is to be decided after reading."""
        try:
            self._appender.write_at_once(connection, plan)
        except Exception as error:
            # The statement is its own COMMIT: after an I/O error it is not known which side of it was reached.
            if may_be_committed(error):
                raise self._unknown_outcome(error) from error
            if is_store_wide_failure(error):
                raise
            self._appender.forget()
            plan.start_again()
            return False
        return True

    def _write(self, connection: SqliteConnection, group: CommitGroup, plan: AppendPlan) -> None:
        connection.execute("BEGIN IMMEDIATE")
        try:
            self._appender.write(connection, plan)
        except Exception as error:
            if is_store_wide_failure(error) or isinstance(error, TransactionDamaged):
                raise
            connection.execute("ROLLBACK")
            self._appender.forget()
            plan.start_again()
            connection.execute("BEGIN IMMEDIATE")
            self._appender.write(connection, plan)
        self._move_positions(connection)
        group.performed = [perform_task(connection, task, self._path) for task in group.tasks]
        try:
            connection.execute("COMMIT")
        except Exception as error:
            raise self._unknown_outcome(error) from error
        self._positions.clear()

    def _unknown_outcome(self, error: Exception) -> OutcomeUnknown:
        self._abandon(error)
        return OutcomeUnknown(f"{self._path} failed while committing ({error_message(error)})")

    def _move_positions(self, connection: SqliteConnection) -> None:
        for (participant, channel), sequence in self._positions.items():
            try:
                index.move_position(connection, self._tenant, (participant, channel, sequence))
            except Exception as error:
                if is_store_wide_failure(error):
                    raise
                raise TransactionDamaged((participant, channel), error) from error

    def _abandon(self, error: Exception) -> None:
        """Roll back, and forget the cached heads. A connection that failed other than by a lock is dropped."""
        self._appender.forget()
        self._connection.roll_back()
        if not (isinstance(error, sqlite3.Error) and is_busy(error)):
            self._connection.drop()

    def _deliver(self, group: CommitGroup) -> None:
        """Report the outcomes. Runs on the loop."""
        self.last += group.written
        group.settle()
        if group.written:
            self._committed()
