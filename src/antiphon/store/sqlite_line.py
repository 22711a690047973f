"""A thread with a connection of its own: how work leaves the event loop and how its outcome comes back.

Rule 1: the loop never waits for SQLite; a thread never touches a future except through the loop.
Rule 2: a connection that failed is dropped and opened again when it is next needed.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TypeVar

from antiphon.store.sqlite_connection import Connection

T = TypeVar("T")

Settled = tuple[asyncio.Future[T], T | BaseException]


class Line:
    """The connection of one thread, opened when needed."""

    def __init__(self, first: Callable[[], Connection], again: Callable[[], Connection]) -> None:
        self._open, self._again = first, again
        self._connection: Connection | None = None

    def get(self) -> Connection:
        """The connection."""
        if self._connection is None:
            self._connection = self._open()
            self._open = self._again
        return self._connection

    def drop(self) -> None:
        """Close it. What was not committed is gone."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()


def settle(outcomes: Iterable[Settled[T]]) -> None:
    """Give each future its outcome; whoever has stopped waiting is passed over. Runs on the loop."""
    for future, outcome in outcomes:
        if future.done():
            continue
        if isinstance(outcome, BaseException):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)


def tell(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    """Have the loop call something; a loop that is closed has nobody left to tell."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(call)
