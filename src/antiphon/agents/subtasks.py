"""Tasks that user code starts, and that must not end the event loop.

asyncio lets a SystemExit out of any task: it leaves `run_forever`, and every other turn of the process ends with it. A
task that user code starts (`create_task`, `gather`, a TaskGroup) ends with `Interrupted` instead, which reaches the
code that awaits it as an ordinary error.

Rule 1: the task factory of the loop is replaced only while user code runs, and calls the one that was there before.
        Tasks that were not started by user code are left as they are.
Rule 2: a KeyboardInterrupt passes. A signal handler raises it in the code that runs at that moment, so it cannot be
        told from one that the code raises itself, and the operator's Ctrl-C must end the program.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Coroutine, Generator, Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar
from typing import Protocol, cast

from antiphon.core.words import told

_in_user_code: ContextVar[bool] = ContextVar("in_user_code", default=False)
"""Whether the running code is user code. A task inherits it from the code that starts the task."""


class Factory(Protocol):
    """What asyncio calls to make a task of a coroutine."""

    def __call__(
        self, loop: asyncio.AbstractEventLoop, coro: Coroutine[object, object, object], /, **options: object
    ) -> asyncio.Future[object]:
        """The task. Options are what `asyncio.Task` takes, such as its context."""
        ...


class Interrupted(Exception):
    """User code ended itself with something that is no `Exception`, such as SystemExit."""


@contextmanager
def subtasks_contained() -> Iterator[None]:
    """Contain the tasks that the caller's task starts from now on. That task runs user code, and nothing else."""
    factory = _factory(asyncio.get_running_loop())
    factory.begin()
    _in_user_code.set(True)  # not reset: code that is closed from another task ends in the context of that one
    try:
        yield
    finally:
        factory.end()


def _factory(loop: asyncio.AbstractEventLoop) -> _Factory:
    current = loop.get_task_factory()
    return current if isinstance(current, _Factory) else _Factory(loop, cast("Factory | None", current))


class _Factory:
    """The task factory of a loop in which user code runs."""

    def __init__(self, loop: asyncio.AbstractEventLoop, earlier: Factory | None) -> None:
        self._loop = loop
        self._earlier = earlier
        self._users = 0
        """How many tasks of user code have not ended."""

    def __call__(
        self, loop: asyncio.AbstractEventLoop, coro: Coroutine[object, object, object], /, **options: object
    ) -> asyncio.Future[object]:
        context = options.get("context")
        contained = context.get(_in_user_code, False) if isinstance(context, Context) else _in_user_code.get()
        if not contained or not inspect.iscoroutine(coro):
            return self._create(loop, coro, options)
        self.begin()  # what the task starts is contained too, also when the code that started it has ended
        try:
            task = self._create(loop, cast("Coroutine[object, object, object]", _Contained(coro)), options)
        except BaseException:
            self.end()
            raise
        task.add_done_callback(self.end)
        return task

    def begin(self) -> None:
        self._users += 1
        if self._users == 1:
            self._loop.set_task_factory(cast("asyncio.events._TaskFactory", self))

    def end(self, _task: object = None) -> None:
        self._users -= 1
        # The program may have set another factory meanwhile, which stays.
        if not self._users and cast("object", self._loop.get_task_factory()) is self:
            self._loop.set_task_factory(cast("asyncio.events._TaskFactory", self._earlier))

    def _create(
        self, loop: asyncio.AbstractEventLoop, coro: Coroutine[object, object, object], options: dict[str, object]
    ) -> asyncio.Future[object]:
        if self._earlier is not None:
            return self._earlier(loop, coro, **options)
        return asyncio.Task(coro, loop=loop, **options)  # type: ignore[arg-type]  # options are what Task takes


class _Contained:
    """A coroutine that raises `Interrupted` where another one raises SystemExit.

    It is no coroutine function around the other: a task that is cancelled before its first step would never await the
    other one, and Python would warn of that.
    """

    def __init__(self, coro: Coroutine[object, object, object]) -> None:
        self._coro = coro

    def __getattr__(self, name: str) -> object:
        return getattr(self._coro, name)  # what tracebacks and the repr of a task show

    def __await__(self) -> Generator[object, None, object]:
        return self._coro.__await__()

    def send(self, value: object) -> object:
        try:
            return self._coro.send(value)
        except SystemExit as error:
            raise Interrupted(told(error)) from error

    def throw(self, error: BaseException) -> object:
        try:
            return self._coro.throw(error)
        except SystemExit as raised:
            raise Interrupted(told(raised)) from raised

    def close(self) -> None:
        self._coro.close()


Coroutine.register(_Contained)
