"""A thread's own connection, and how outcomes come back from a thread to the event loop.

Rule 1: the loop never waits for SQLite; a thread never touches a future except through the loop.
Rule 2: a connection that failed is dropped, and opened again when it is next needed.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TypeVar

from antiphon.core.errors import StoreRefused, StoreUnavailable
from antiphon.store.sqlite_connection import Connection

T = TypeVar("T")


class Line:
    """The connection of one thread."""

    def __init__(self, first: Callable[[], Connection], again: Callable[[], Connection]) -> None:
        self._open, self._again = first, again
        self._connection: Connection | None = None

    def get(self) -> Connection:
        """The connection, opened if there is none. A file that could be opened once is refused only for now."""
        if self._connection is None:
            self._connection = self._open()
            self._open = self._opened_again
        return self._connection

    def _opened_again(self) -> Connection:
        try:
            return self._again()
        except StoreRefused as error:
            raise StoreUnavailable(f"{error}; nothing was recorded") from error

    def roll_back(self) -> None:
        """End the transaction, if there is one."""
        if self._connection is not None:
            with suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")

    def drop(self, *last: str) -> None:
        """Close it, after some last statements. What was not committed is gone."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        with suppress(sqlite3.Error):
            for statement in last:
                connection.execute(statement).fetchall()
        with suppress(sqlite3.Error):
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
