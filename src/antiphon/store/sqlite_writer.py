"""The one thread that writes: whatever waits is one transaction, one commit, one message back to the loop.

Rule 1: nobody is told anything before COMMIT has returned. If COMMIT fails, everybody in the group is told that
        the outcome is unknown: also those who were refused, for what refused them may not be there.
Rule 2: a failure before COMMIT has recorded nothing, and says so.
Rule 3: one bad append never costs another: in doubt the group is rolled back and taken one by one.
Rule 4: acknowledgements wait for company, but not for long.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from time import monotonic
from typing import TypeVar

from antiphon.core.errors import OutcomeUnknown, StoreError
from antiphon.store import sqlite_index as index
from antiphon.store.sqlite_appends import Append, Appender, Outcome
from antiphon.store.sqlite_connection import Connection, is_busy, unavailable
from antiphon.store.sqlite_line import Line, Settled, settle, tell
from antiphon.store.sqlite_schema import Database

T = TypeVar("T")

GROUP = 512
"""The most that is committed at once."""
LINGER = 0.05
"""How many seconds an acknowledgement waits for an append to travel with."""


@dataclass(slots=True, eq=False)
class Task:
    """A change of the index or a lease, and whoever waits for it."""

    job: Callable[[Connection], object]
    done: asyncio.Future[object]
    touches: str | None
    """The channel whose remembered head it may make wrong."""


@dataclass(slots=True, eq=False)
class Acknowledgement:
    """How far a participant has come in a channel. Nobody waits for it."""

    participant: str
    channel: str
    sequence: int


@dataclass(slots=True, eq=False)
class Stop:
    """Nothing comes after this."""

    done: asyncio.Future[object]


@dataclass(slots=True, eq=False)
class Group:
    """What is committed together."""

    appends: list[Append] = field(default_factory=list)
    tasks: list[Task] = field(default_factory=list)
    stop: Stop | None = None


class Writer:
    """Owns the writing connection of one store."""

    def __init__(self, database: Database, tenant: str, *, committed: Callable[[int], None]) -> None:
        self._database = database
        self._tenant = tenant
        self._committed = committed
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[Append | Task | Acknowledgement | Stop] = SimpleQueue()
        self._line = Line(database.to_write, database.to_write_on)
        self._appender = Appender(tenant)
        self._positions: dict[tuple[str, str], int] = {}
        self._leave_at = 0.0
        self._thread = threading.Thread(target=self._serve, name="antiphon-writer", daemon=True)
        self.put = self._queue.put

    async def run(self, job: Callable[[Connection], T], *, touches: str | None = None) -> T:
        """Do something inside the next transaction."""
        done: asyncio.Future[T] = self._loop.create_future()
        self.put(Task(job, done, touches))
        return await done
