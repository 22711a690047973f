"""A thread, its own connection, and how outcomes come back from there to the event loop.

Rule 1: the loop never waits for SQLite; a thread never touches a future except through the loop.
Rule 2: a connection that failed is dropped, and opened again when it is next needed.
Rule 3: whoever waits for a thread's end is told, however it ends.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TypeVar

from antiphon.core.errors import StoreGone, StoreRefused, StoreUnavailable
from antiphon.store.sqlite_connection import Connection

T = TypeVar("T")

FAILS = (sqlite3.Error, MemoryError)
"""How a statement fails whose parameters are right."""


class ServingThread:
    """A thread that serves until it has nothing to do any more."""

    def __init__(self, serve: Callable[[], None], *, name: str) -> None:
        self._serve = serve
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin to serve; `StoreUnavailable` if the system has no thread to give."""
        try:
            self._thread.start()
        except RuntimeError as error:
            raise StoreUnavailable(f"no thread can be started now ({error}); nothing was recorded") from error

    async def ended(self) -> None:
        """Wait for its end. One that could not be started has none."""
        if self._thread.ident is not None:
            await self._ended.wait()
            self._thread.join()

    def _run(self) -> None:
        try:
            self._serve()
        finally:
            tell(self._loop, self._ended.set)


class Line:
    """The connection of one thread."""

    def __init__(self, first: Callable[[], Connection], again: Callable[[], Connection]) -> None:
        self._open, self._again = first, again
        self._connection: Connection | None = None

    @property
    def is_open(self) -> bool:
        """Whether there is a connection now."""
        return self._connection is not None

    def get(self) -> Connection:
        """The connection, opened if there is none. A file that could be opened once is refused only for now."""
        if self._connection is None:
            self._connection = self._open()
            self._open = self._opened_again
        return self._connection

    def _opened_again(self) -> Connection:
        try:
            return self._again()
        except StoreGone:
            raise  # which is for good
        except StoreRefused as error:
            raise StoreUnavailable(f"{error}; nothing was recorded") from error

    def roll_back(self) -> None:
        """End the transaction, if there is one."""
        if self._connection is not None:
            with suppress(*FAILS):
                self._connection.execute("ROLLBACK")

    def drop(self, *last: str) -> None:
        """Close it, after some last statements. What was not committed is gone."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        with suppress(*FAILS):
            for statement in last:
                connection.execute(statement).fetchall()
        with suppress(*FAILS):
            connection.close()


def settle(outcomes: Iterable[tuple[asyncio.Future[T], T | Exception]]) -> None:
    """Give each future its outcome; whoever has stopped waiting is passed over. Runs on the loop."""
    for future, outcome in outcomes:
        if future.done():
            continue
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)


def tell(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    """Have the loop call something; a loop that is closed has nobody left to tell."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(call)
