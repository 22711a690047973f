"""The one thread that writes: whatever waits is one transaction, one commit, one message back to the loop.

Rule 1: nobody is told anything before the commit has returned. If it fails, everybody in the group is told that the
        outcome is unknown: also those who were refused, for what refused them may not be there.
Rule 2: a failure before the commit has recorded nothing, and says so.
Rule 3: one bad append never costs another: in doubt the group is rolled back and each is taken alone.
Rule 4: whoever meets damage is told so at once, and the group is begun again without. SQLite commits no transaction
        in which damage was met, whatever part of it is rolled back.
Rule 5: what is asked first is done first: a group is some appends and then some tasks.
Rule 6: acknowledgements wait for company, but not for long.
Rule 7: what was committed is moved into the file whole and synced there, or it is moved again. SQLite's own way of
        doing it in parts, around readers, would trust what a failed sync has lost.

Each statement makes this thread queue for the interpreter behind a busy loop. That is why a group that only inserts
is one statement, committed by itself, and why acknowledgements do not break such a group up.
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
from antiphon.core.errors import AntiphonError, LogCorrupt, OutcomeUnknown, StoreError, StoreGone
from antiphon.store import sqlite_index as index
from antiphon.store.sqlite_appends import Append, Appender, Plan
from antiphon.store.sqlite_connection import (
    Connection,
    Damaged,
    is_busy,
    is_damage,
    is_nobodys_fault,
    may_be_committed,
    unusable,
    why,
)
from antiphon.store.sqlite_erase import sweep_left
from antiphon.store.sqlite_groups import Acknowledgement, Group, Item, Task
from antiphon.store.sqlite_identity import FileIdentity
from antiphon.store.sqlite_line import Line, ServingThread, settle, tell
from antiphon.store.sqlite_reads import last_position
from antiphon.store.sqlite_schema import Database

T = TypeVar("T")

log = logging.getLogger("antiphon.store")

GROUP = 64
"""A group is full with so many rows."""
LINGER = 0.05
"""How many seconds an acknowledgement waits for an append to travel with."""
LOOK_EVERY = 1.0
"""After how many idle seconds the thread looks whether the file is still there."""
PAGES_A_COMMIT = 4
"""About how many pages a commit costs beside those of its rows."""
BRIEFLY, PATIENTLY = "PRAGMA busy_timeout = 250", "PRAGMA busy_timeout = 5000"
SETTLE = "PRAGMA wal_checkpoint(FULL)"
BESIDE = "%s keeps what was committed beside the file for now: %s"
PAUSE = 1.0
"""How many seconds acknowledgements wait after they could not be written."""


class Writer:
    """Owns the writing connection of one store."""

    def __init__(
        self, database: Database, identity: FileIdentity, tenant: str, *, committed: Callable[[], None]
    ) -> None:
        self._path, self._database, self._identity = database.path, database, identity
        self._tenant = tenant
        self._committed = committed
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[Item] = SimpleQueue()
        self._held: Append | None = None
        """The first of the next group."""
        self._line = Line(self._opened, self._opened_again)
        self._appender = Appender(tenant)
        self._positions: dict[tuple[str, str], int] = {}
        self._leave_at = 0.0
        self._unsettled, self._settle_after = 0, database.settle_after
        self._thread = ServingThread(self._serve, name="antiphon-writer")
        self.last = 0
        """The position of the last envelope that was recorded."""
        self._kept = 0
        """The same, as the thread knows it: what was acknowledged must be found again."""

    async def start(self) -> None:
        """Open the database; whatever refuses it is raised here."""
        self._thread.start()
        self.last = await self.run(last_position)

    def append(self, append: Append) -> None:
        """Queue a batch. Its future is settled once it is committed."""
        self._queue.put(append)

    async def run(self, job: Callable[[Connection], T], *, channel: str = "", forget: bool = False) -> T:
        """Do something inside the next transaction. If that must be begun again, it is done again."""
        results: list[T] = []
        done: asyncio.Future[None] = self._loop.create_future()
        self._queue.put(Task(lambda connection: results.append(job(connection)), done, channel, forget))
        await done
        return results[-1]

    async def run_outside(self, job: Callable[[Connection], None]) -> None:
        """Do something after the next commit, outside of any transaction."""
        done: asyncio.Future[None] = self._loop.create_future()
        self._queue.put(Task(job, done, "", forget=False, outside=True))
        await done

    def acknowledge(self, participant: str, channel: str, sequence: int) -> None:
        """Move a position with one of the next transactions."""
        self._queue.put(Acknowledgement(participant, channel, sequence))

    async def stop(self) -> None:
        """Write what is queued, move the log into the file, and end the thread."""
        self._queue.put(None)
        await self._thread.ended()

    def _serve(self) -> None:
        is_last = False
        while not is_last:
            group = self._gathered()
            is_last = group.is_last
            if not group.is_empty() or self._is_time_to_leave(group):
                self._commit(group)
        if self._identity.has_file():  # what was committed is moved only into the file it is of
            self._line.drop("PRAGMA wal_checkpoint(TRUNCATE)")
        self._line.drop()

    def _opened(self) -> Connection:
        connection = self._database.to_write()
        try:
            self._identity.opened()
            self._kept = last_position(connection)
            sweep_left(connection, self._path)
        except BaseException:
            connection.close()
            raise
        return connection

    def _opened_again(self) -> Connection:
        self._identity.check()
        connection = self._database.to_write_on()
        try:
            if last_position(connection) < self._kept:  # the log beside the file has gone meanwhile
                raise self._identity.lost()
            self._identity.opened()
        except BaseException:
            connection.close()
            raise
        return connection

    def _is_time_to_leave(self, group: Group) -> bool:
        """Whether acknowledgements have waited long enough."""
        return bool(self._positions) and (group.is_last or monotonic() >= self._leave_at)

    def _gathered(self) -> Group:
        """Wait for something to do, then take everything that waits with it."""
        group = Group()
        first, self._held = self._held, None
        try:
            self._sort(first or self._queue.get(timeout=self._patience()), group)
        except Empty:
            self._look()
            return group
        while group.size < GROUP and not group.is_last and self._held is None and not self._queue.empty():
            self._sort(self._queue.get(), group)
        return group

    def _patience(self) -> float | None:
        """How long to wait for something to do. Of a store that is gone there is nothing to look at any more."""
        if self._positions:
            return max(0.0, self._leave_at - monotonic())
        return None if self._identity.refusal() else LOOK_EVERY

    def _look(self) -> None:
        """Find out that the file is gone although nothing is written. What cannot be looked at is looked at again.

        Without a connection the log is not looked at: closing the last connection removes it.
        """
        if self._line.is_open:
            self._is_kept()
            return
        with suppress(StoreGone, OSError):
            self._identity.check()

    def _sort(self, item: Item, group: Group) -> None:
        match item:
            case Append():
                if group.tasks:
                    self._held = item
                    return
                group.appends.append(item)
                group.size += len(item.batch)
            case Task(outside=True):
                group.outside.append(item)
            case Task():
                group.tasks.append(item)
                group.size += 1
            case Acknowledgement(participant, channel, sequence):
                if not self._positions:
                    self._leave_at = monotonic() + LINGER
                key = (participant, channel)
                self._positions[key] = max(sequence, self._positions.get(key, 0))
            case None:
                group.is_last = True

    def _commit(self, group: Group) -> None:
        failure = self._identity.refusal() or self._recorded(group) or self._is_kept()
        if failure is not None:
            self._leave_at = monotonic() + PAUSE
            group.fail(failure)
        tell(self._loop, partial(self._deliver, group))
        if group.outside:
            outcomes = [(task.done, failure or self._done_outside(task)) for task in group.outside]
            tell(self._loop, partial(settle, outcomes))
        self._unsettled += PAGES_A_COMMIT + group.size
        if failure is None and self._unsettled >= self._settle_after:
            self._settle()

    def _done_outside(self, task: Task) -> StoreError | None:
        try:
            task.job(self._line.get())
        except StoreError as error:
            return error
        except Exception as error:  # whatever it is, it must not end the thread
            self._abandon(error)
            return unusable(self._path, error)
        return None

    def _is_kept(self) -> StoreError | None:
        """The error, if what was committed is in a file that has gone. Of its log alone, what there was is saved."""
        failure = self._identity.look()
        if failure is not None:
            self._appender.forget()
            if isinstance(failure, StoreGone) and self._identity.has_file():
                self._settle()
        return failure

    def _settle(self) -> None:
        """Move what was committed into the file. What fails is tried again when as much has come again."""
        self._unsettled = 0
        try:
            connection = self._line.get()
            connection.execute(BRIEFLY)
            [(busy, _, _)] = as_type(connection.execute(SETTLE).fetchall(), list[tuple[int, int, int]])
            connection.execute(PATIENTLY)
        except Exception as error:  # whatever it is, it must not end the thread
            log.warning(BESIDE, self._path, why(error))
            self._line.drop()
        else:
            if busy:
                log.warning(BESIDE, self._path, "somebody has been reading for too long")

    def _recorded(self, group: Group) -> StoreError | None:
        """Everything in one transaction; the error if it did not come to that."""
        try:
            while (plan := self._tried(group)) is None:
                pass
        except StoreError as error:
            return error
        except Exception as error:  # whatever it is, it must not end the thread
            self._abandon(error)
            return unusable(self._path, error)
        self._appender.keep(plan)
        if any(task.forget for task in group.tasks):
            self._appender.forget()
        group.appended, group.written = plan.told(), plan.written
        self._kept += plan.written
        return None

    def _tried(self, group: Group) -> Plan | None:
        """What was committed; None if somebody met damage, was left out, and all must be tried again."""
        connection = self._line.get()
        plan = self._appender.planned(connection, group.appends)
        plainly = plan.is_plain() and not group.tasks and not self._is_time_to_leave(group)
        try:
            if not (plainly and self._written_at_once(connection, plan)):
                self._write(connection, group, plan)
        except Damaged as damage:
            self._line.roll_back()
            self._leave_out(group, damage)
            return None
        return plan

    def _leave_out(self, group: Group, damage: Damaged) -> None:
        """Tell whoever met damage. A position is told to nobody: it may lag."""
        match damage.culprit:
            case Append(done=appended) as append:
                group.appends.remove(append)
                tell(self._loop, partial(settle, [(appended, damage.error)]))
            case Task(done=done) as task:
                group.tasks.remove(task)
                tell(self._loop, partial(settle, [(done, damage.error)]))
            case position:
                self._positions = {key: at for key, at in self._positions.items() if key != position}

    def _written_at_once(self, connection: Connection, plan: Plan) -> bool:
        """Whether a plain plan is committed. If not, nothing of it was, or it is not known."""
        try:
            self._appender.write_at_once(connection, plan)
        except Exception as error:
            if may_be_committed(error):
                raise self._doubt(error) from error
            if is_nobodys_fault(error):
                raise
            self._appender.forget()
            plan.start_again()
            return False
        return True

    def _write(self, connection: Connection, group: Group, plan: Plan) -> None:
        connection.execute("BEGIN IMMEDIATE")
        try:
            self._appender.write(connection, plan)
        except Exception as error:
            if is_nobodys_fault(error) or isinstance(error, Damaged):
                raise
            connection.execute("ROLLBACK")
            self._appender.forget()
            plan.start_again()
            connection.execute("BEGIN IMMEDIATE")
            self._appender.write(connection, plan)
        self._move_positions(connection)
        group.performed = [self._performed(connection, task) for task in group.tasks]
        try:
            connection.execute("COMMIT")
        except Exception as error:
            raise self._doubt(error) from error
        self._positions.clear()

    def _doubt(self, error: Exception) -> OutcomeUnknown:
        self._abandon(error)
        return OutcomeUnknown(f"{self._path} failed while committing ({why(error)})")

    def _performed(self, connection: Connection, task: Task) -> Exception | None:
        connection.execute("SAVEPOINT task")
        outcome: Exception | None = None
        try:
            task.job(connection)
        except Exception as error:
            if is_nobodys_fault(error):
                raise
            outcome = self._blamed(task, error)
            if is_damage(error):
                raise Damaged(task, outcome) from error
            connection.execute("ROLLBACK TO task")
        connection.execute("RELEASE task")
        return outcome

    def _blamed(self, task: Task, error: Exception) -> AntiphonError:
        """What an error says about the one task that met it."""
        if isinstance(error, AntiphonError):
            return error
        if task.channel and is_damage(error):
            return LogCorrupt(task.channel, 1, str(error))
        return unusable(self._path, error)

    def _move_positions(self, connection: Connection) -> None:
        for (participant, channel), sequence in self._positions.items():
            try:
                index.acknowledge(connection, self._tenant, (participant, channel, sequence))
            except Exception as error:
                if is_nobodys_fault(error):
                    raise
                raise Damaged((participant, channel), error) from error

    def _abandon(self, error: Exception) -> None:
        """Undo the transaction and trust nothing that is remembered."""
        self._appender.forget()
        self._line.roll_back()
        if not (isinstance(error, sqlite3.Error) and is_busy(error)):
            self._line.drop()

    def _deliver(self, group: Group) -> None:
        """Runs on the loop."""
        self.last += group.written
        group.settle()
        if group.written:
            self._committed()
