"""Blocking calls, each in a daemon thread of its own.

A thread cannot be stopped. In the pool that asyncio shares, a call that waits for the network would take the place of
others, and the program would not end before it does.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


async def run_blocking(work: Callable[[], T], name: str) -> T:
    """The result of a blocking call. If the caller is cancelled, the call goes on, and its result is dropped."""
    outcome: Future[T] = Future()
    outcome.set_running_or_notify_cancel()  # from now on a cancellation leaves it alone

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, name=f"antiphon {name}", daemon=True).start()
    return await asyncio.wrap_future(outcome)
