"""Stops the server on a signal, and ends the process by force if that takes too long.

Rule 1: the deadline holds whatever user code does. It is kept by a thread, because a tool that blocks the event loop
        blocks everything else too. Only code that keeps the interpreter's lock for good can delay it.
Rule 2: nothing is lost by force. What was acknowledged is on disk, and the next process resumes from it.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from antiphon.agents.isolation import names_of_running

log = logging.getLogger("antiphon.server")

SIGNALS = (signal.SIGINT, signal.SIGTERM)
FORCED = 1
"""The exit code of a process that was ended by force."""
STDERR = 2
LAST_WORDS = 1.0
"""For how many seconds the last line of the log may take: a pipe that is full must not hold up the end."""


class Watchdog:
    """Tells the server to stop when a signal comes; ends the process some seconds later, if it is still there."""

    def __init__(self, seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._seconds = seconds
        self._deadline: threading.Thread | None = None
        self.stopping = asyncio.Event()
        """Set when a signal has come."""

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take the signals of the process; for good, once one has come: the process is about to end.

        `loop.add_signal_handler` would not do: its handlers run in the event loop, which a tool may hold.
        """
        before = {number: signal.signal(number, self._take) for number in SIGNALS}
        try:
            yield
        finally:
            if self._deadline is None:
                for number, handler in before.items():
                    signal.signal(number, handler)

    def _take(self, number: int, _: FrameType | None) -> None:
        with suppress(RuntimeError):  # the loop is closed: it has stopped, and the process ends
            self._loop.call_soon_threadsafe(self.stopping.set)
        if self._deadline is None:
            name = signal.Signals(number).name
            self._deadline = threading.Thread(target=self._end, args=(name,), name="antiphon watchdog", daemon=True)
            self._deadline.start()
            # This one does not run Python: it also ends a process that hangs while the interpreter shuts down.
            faulthandler.dump_traceback_later(self._seconds + LAST_WORDS, file=STDERR, exit=True)

    def _end(self, name: str) -> None:
        time.sleep(self._seconds)
        telling = threading.Thread(target=self._tell, args=(name,), daemon=True)
        telling.start()
        telling.join(LAST_WORDS)
        os._exit(FORCED)

    def _tell(self, name: str) -> None:
        log.critical(
            "the server did not stop within %g seconds of %s and is ended by force (exit code %d); still running: %s; "
            "the main thread is at %s. What was acknowledged is recorded, and resumes at the next start",
            self._seconds,
            name,
            FORCED,
            ", ".join(names_of_running()) or "nothing of an agent's",
            _place_of_main(),
        )


def _place_of_main() -> str:
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return "its end" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"
