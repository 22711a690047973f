"""Names user code that holds the event loop, while it does.

A blocking call in an `async def` tool stops every other turn of the process, so nothing in the loop can report it. A
thread samples what the loop runs. Code that is running then is suspected: the thread leaves a callback with the loop,
and if that has not run after `THRESHOLD` seconds, the loop is held. A loop that is idle, or goes on, is not woken up.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

from antiphon.agents.isolation import isolated_tasks

log = logging.getLogger("antiphon.engine")

INTERVAL = 0.25
"""How many seconds pass between two samples."""
THRESHOLD = 1.0
"""For how many seconds code may hold the event loop before a warning names it."""


class _Suspicion:
    """A callback left with a loop that was running user code."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._ended: float | None = None
        self.name = ""
        """The code that a warning has named."""

    @property
    def over(self) -> bool:
        return self._ended is not None

    @property
    def seconds(self) -> float:
        """For how long the loop has been held, at least."""
        return (self._ended or time.monotonic()) - self._began

    def end(self) -> None:
        """Called by the loop, as soon as it runs anything else."""
        self._ended = time.monotonic()
        if self.name:
            log.warning("%s held the event loop for %.1f seconds", self.name, self.seconds)


class LoopWatch:
    """Watches the event loops in which turns run, from one thread for all of them."""

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._turns: dict[asyncio.AbstractEventLoop, int] = {}
        self._some = threading.Event()
        """Set while any loop is watched. The thread sleeps otherwise."""
        self._thread: threading.Thread | None = None
        self._suspicions: WeakKeyDictionary[asyncio.AbstractEventLoop, _Suspicion] = WeakKeyDictionary()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the running loop for as long as a turn runs."""
        loop = asyncio.get_running_loop()
        with self._changing:
            self._turns[loop] = self._turns.get(loop, 0) + 1
            self._begin()
        try:
            yield
        finally:
            with self._changing:
                self._turns[loop] -= 1
                if not self._turns[loop]:
                    del self._turns[loop]
                if not self._turns:
                    self._some.clear()

    def _begin(self) -> None:
        self._some.set()
        if self._thread is None or not self._thread.is_alive():  # a process that was forked has lost its threads
            self._thread = threading.Thread(target=self._run, name="antiphon loop watch", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            self._some.wait()
            time.sleep(INTERVAL)
            self._sample()

    def _sample(self) -> None:
        # A function of its own: a variable of `_run` would keep the last loop for as long as the thread waits.
        with self._changing:
            loops = list(self._turns)
        for loop in loops:
            self._look(loop)
        for gone in [loop for loop in self._suspicions if loop not in loops]:
            del self._suspicions[gone]

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        suspicion = self._suspicions.get(loop)
        if suspicion is None:
            self._suspect(loop)
        elif suspicion.over:
            del self._suspicions[loop]
        elif suspicion.seconds >= THRESHOLD and not suspicion.name:
            task = _running(loop)
            if task is not None:
                suspicion.name = task.get_name()
                held = "%s has held the event loop for %.1f seconds, and no other turn goes on meanwhile; %s"
                log.warning(held, suspicion.name, suspicion.seconds, isolated_tasks[task].should)

    def _suspect(self, loop: asyncio.AbstractEventLoop) -> None:
        if _running(loop) is None:
            return
        suspicion = _Suspicion()
        try:
            loop.call_soon_threadsafe(suspicion.end)
        except RuntimeError:  # the loop was closed meanwhile
            return
        self._suspicions[loop] = suspicion


def _running(loop: asyncio.AbstractEventLoop) -> asyncio.Task[None] | None:
    """The task of the user code that the loop runs at this moment; None if it runs none."""
    task = asyncio.current_task(loop)
    return task if task is not None and task in isolated_tasks else None


WATCH = LoopWatch()
"""One for the process."""
