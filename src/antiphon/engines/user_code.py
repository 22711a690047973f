"""User code in a task of its own: tools, models, prompts, steps, and the tasks that they start; and code that holds the
event loop.

Rule 1: a cancellation that reaches the waiting task comes from outside. One that the code causes, of itself or of
        something it waits for, stays in the task of the code and is an ordinary failure.
Rule 2: code that is cancelled has `CLEAN_UP_SECONDS` seconds to end. Code that still runs then is left behind, and
        a warning names it.
Rule 3: nothing but an ordinary error leaves the task. asyncio lets a SystemExit out of any task: it would leave
        `run_forever`, and end every other turn of the process without a record. A task that user code starts
        (`create_task`, `gather`, a TaskGroup) ends with `Interrupted` instead.
Rule 4: for that the task factory of the loop is replaced, but only while user code runs, and it calls the one that was
        there before. Tasks that were not started by user code are left as they are.
Rule 5: a KeyboardInterrupt in such a task passes. A signal handler raises it in the code that runs at that moment, so
        it cannot be told from one that the code raises itself, and the operator's Ctrl-C must end the program.
Rule 6: a blocking call in an `async def` tool stops every other turn of the process, so nothing in the loop can report
        it. A thread samples what the loop runs. When that is user code, the thread leaves a callback with the loop; if
        it has not run after `HELD_LOOP_SECONDS` seconds, a warning names the code. A loop that is idle, or goes on, is
        not woken up.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
import time
from asyncio import AbstractEventLoop, Future
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import Context, ContextVar
from typing import Generic, Protocol, TypeVar, cast
from weakref import WeakKeyDictionary

import msgspec

from antiphon.core.text import describe_error

_in_user_code: ContextVar[bool] = ContextVar("in_user_code", default=False)
"""Whether the running code is user code. A task inherits it from the code that starts the task."""


AnyCoroutine = Coroutine[object, object, object]


class TaskFactory(Protocol):
    """What asyncio calls to make a task. Options are what `asyncio.Task` takes, such as its context."""

    def __call__(self, loop: AbstractEventLoop, coro: AnyCoroutine, /, **options: object) -> Future[object]: ...


class Interrupted(Exception):
    """User code ended itself with something that is no `Exception`, such as SystemExit."""


@contextmanager
def contain_subtasks() -> Iterator[None]:
    """Contain the tasks that the caller's task starts from now on. That task runs user code, and nothing else."""
    loop = asyncio.get_running_loop()
    current = cast("TaskFactory | None", loop.get_task_factory())
    factory = current if isinstance(current, _ContainingTaskFactory) else _ContainingTaskFactory(loop, current)
    factory.begin()
    _in_user_code.set(True)  # not reset: code that is closed from another task ends in the context of that one
    try:
        yield
    finally:
        factory.end()


class _ContainingTaskFactory:
    """The task factory of a loop in which user code runs."""

    def __init__(self, loop: AbstractEventLoop, earlier: TaskFactory | None) -> None:
        self._loop = loop
        self._earlier = earlier
        self._users = 0
        """How many tasks of user code have not ended."""

    def __call__(self, loop: AbstractEventLoop, coro: AnyCoroutine, /, **options: object) -> Future[object]:
        context = options.get("context")
        contained = context.get(_in_user_code, False) if isinstance(context, Context) else _in_user_code.get()
        if not contained or not inspect.iscoroutine(coro):
            return self._create(loop, coro, options)
        self.begin()  # what the task starts is contained too, also when the code that started it has ended
        try:
            task = self._create(loop, cast("AnyCoroutine", _ContainedCoroutine(coro)), options)
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

    def _create(self, loop: AbstractEventLoop, coro: AnyCoroutine, options: dict[str, object]) -> Future[object]:
        if self._earlier is not None:
            return self._earlier(loop, coro, **options)
        return asyncio.Task(coro, loop=loop, **options)  # type: ignore[arg-type]  # options are what Task takes


class _ContainedCoroutine:
    """A coroutine that raises `Interrupted` where another one raises SystemExit.

    It is no coroutine function around the other: a task that is cancelled before its first step would never await the
    other one, and Python would warn of that.
    """

    def __init__(self, coro: AnyCoroutine) -> None:
        self._coro = coro

    def __getattr__(self, name: str) -> object:
        return getattr(self._coro, name)  # what tracebacks and the repr of a task show

    def __await__(self) -> Generator[object, None, object]:
        return self._coro.__await__()

    def send(self, value: object) -> object:
        try:
            return self._coro.send(value)
        except SystemExit as error:
            raise Interrupted(describe_error(error)) from error

    def throw(self, error: BaseException) -> object:
        try:
            return self._coro.throw(error)
        except SystemExit as raised:
            raise Interrupted(describe_error(raised)) from raised

    def close(self) -> None:
        self._coro.close()


Coroutine.register(_ContainedCoroutine)


T = TypeVar("T")

logger = logging.getLogger("antiphon.engine")

CLEAN_UP_SECONDS = 1.0
"""How many seconds cancelled code may take to end."""
LAST_CHANCE_SECONDS = 0.25
"""How many seconds code that was left behind may take to end when it is cancelled for the last time."""
LISTING_ATTEMPTS = 100
TO_THREAD_ADVICE = "`await asyncio.to_thread(…)`"
BLOCKING_TOOL_ADVICE = (
    f"await what takes long, run it with {TO_THREAD_ADVICE}, or declare the tool with `def`, which runs in a thread"
)
BLOCKING_ASYNC_ADVICE = f"await what takes long, or run it with {TO_THREAD_ADVICE}"
BLOCKING_SYNC_ADVICE = f"make it shorter, or an `async def` that runs what takes long with {TO_THREAD_ADVICE}"
THREAD_NAME_PREFIX = "antiphon "
"""How the name of a thread begins that runs user code. Its name follows."""

abandoned_tasks: ContextVar[set[asyncio.Task[None]] | None] = ContextVar("left_running", default=None)
"""Where the engine keeps the tasks of code that ignores its cancellation."""


class RaisedError(msgspec.Struct, frozen=True):
    """An error as a value: a Future refuses a StopIteration, and a task lets a KeyboardInterrupt through."""

    error: BaseException


class _UserCodeOutcome(Generic[T]):
    """The result of user code. It outlives a task that is cancelled in the step in which the code returns."""

    def __init__(self, should: str) -> None:
        self.value: T | RaisedError = RaisedError(asyncio.CancelledError())
        self.should = should
        """What the code should do instead of holding the event loop."""

    async def run(self, work: Callable[[], Awaitable[T]]) -> None:
        try:
            with contain_subtasks():
                self.value = await work()
        except BaseException as error:  # user code may raise anything
            self.value = RaisedError(error)


user_code_tasks: WeakKeyDictionary[asyncio.Task[None], _UserCodeOutcome[object]] = WeakKeyDictionary()
"""The tasks of user code. The name of each says which code it is."""


def blocking_advice(function: object) -> str:
    """What a function that is called on the event loop should do instead of holding it."""
    called = function.__call__ if callable(function) else None  # an object may be called like an async function
    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)
    return BLOCKING_ASYNC_ADVICE if is_async else BLOCKING_SYNC_ADVICE


async def run_isolated(
    work: Callable[[], Awaitable[T]], name: str, should: str = BLOCKING_ASYNC_ADVICE
) -> T | RaisedError:
    """Run user code in a task of this name; the value it returns, or the error it raises.

    Cancelling the caller cancels the code, and waits at most `CLEAN_UP_SECONDS` seconds for its end.
    """
    outcome: _UserCodeOutcome[T] = _UserCodeOutcome(should)
    task = asyncio.create_task(outcome.run(work), name=name)
    user_code_tasks[task] = cast("_UserCodeOutcome[object]", outcome)
    try:
        # `wait`, not `await task`: it never raises what the task raises, so a CancelledError here is the caller's own.
        await asyncio.wait((task,))
    except asyncio.CancelledError:
        await cancel_user_code(task)
        raise
    return outcome.value


async def run_contained(work: Callable[[], Awaitable[T]], name: str, function: object) -> T:
    """Run user code in a task of this name. Anything it raises that is no `Exception` becomes `Interrupted`.

    The function is the one that the work calls.
    """
    outcome = await run_isolated(work, name, blocking_advice(function))
    if not isinstance(outcome, RaisedError):
        return outcome
    if isinstance(outcome.error, Exception):
        raise outcome.error
    raise Interrupted(describe_error(outcome.error)) from outcome.error


def call_contained(function: Callable[[], T]) -> T:
    """Call plain user code on the event loop. Anything it raises that is no `Exception` becomes `Interrupted`."""
    try:
        return function()
    except (Exception, KeyboardInterrupt):  # a KeyboardInterrupt may be the operator's
        raise
    except BaseException as error:
        raise Interrupted(describe_error(error)) from error


async def end_abandoned_tasks(tasks: Iterable[asyncio.Task[None]]) -> None:
    """End code that ignores its cancellation, so that the event loop can close.

    Its coroutine is closed, as Python closes one that is no longer used: GeneratorExit is raised where it waits, which
    `except CancelledError` does not catch. A coroutine that ignores this too is destroyed.
    """
    pending = [task for task in tasks if not task.done()]
    if not pending:
        return
    for task in pending:
        task.cancel()
    _, stubborn = await asyncio.wait(pending, timeout=LAST_CHANCE_SECONDS)
    for task in stubborn:
        _close_coroutine(task)
    if stubborn:
        await asyncio.wait(stubborn, timeout=LAST_CHANCE_SECONDS)


def running_code_names() -> list[str]:
    """The names of all user code that runs in this process now. Any thread may ask."""
    tasks: set[str] = set()
    for _ in range(LISTING_ATTEMPTS):
        with suppress(RuntimeError):  # the loop has begun or ended a task meanwhile
            tasks = {task.get_name() for task in list(user_code_tasks) if not task.done()}
            break
    threads = {each.name for each in threading.enumerate() if each.name.startswith(f"{THREAD_NAME_PREFIX}tool ")}
    return sorted(tasks | {name.removeprefix(THREAD_NAME_PREFIX) for name in threads})


def _close_coroutine(task: asyncio.Task[None]) -> None:
    coroutine = task.get_coro()
    assert coroutine is not None, "a task that has not ended has a coroutine"
    coroutine.close()
    # Code that ignores GeneratorExit lives on in the traceback of that error. It must be destroyed while the loop runs:
    # without one, `while True: try: await … except: pass` would never wait again, and never end.
    user_code_tasks[task].value = RaisedError(asyncio.CancelledError())
    # The task does not know that its coroutine has ended. Waking it up tells it, with a RuntimeError of no meaning.
    task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    task.cancel()


async def cancel_user_code(task: asyncio.Task[None]) -> None:
    """Cancel user code, and leave it behind if it has not ended in time."""
    task.cancel()
    try:
        await asyncio.wait((task,), timeout=CLEAN_UP_SECONDS)
    finally:
        if not task.done():
            advice = "it should let CancelledError pass"
            logger.warning("%s was cancelled and still runs; its result is dropped; %s", task.get_name(), advice)
            left = abandoned_tasks.get()
            if left is not None:
                left.add(task)
                task.add_done_callback(left.discard)


LOOP_SAMPLE_SECONDS = 0.25
"""How many seconds pass between two samples."""
HELD_LOOP_SECONDS = 1.0
"""For how many seconds code may hold the event loop before a warning names it."""


class _LoopProbe:
    """A callback left with a loop that was running user code."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self.ended: float | None = None
        self.name = ""
        """The code that a warning has named."""

    @property
    def seconds(self) -> float:
        """For how long the loop has been held, at least."""
        return (self.ended or time.monotonic()) - self._began

    def end(self) -> None:
        """Called by the loop, as soon as it runs anything else."""
        self.ended = time.monotonic()
        if self.name:
            logger.warning("%s held the event loop for %.1f seconds", self.name, self.seconds)


class LoopWatch:
    """Watches the event loops in which turns run, from one thread for all of them."""

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._turns: dict[AbstractEventLoop, int] = {}
        self._some = threading.Event()
        """Set while any loop is watched. The thread sleeps otherwise."""
        self._thread: threading.Thread | None = None
        self._suspicions: WeakKeyDictionary[AbstractEventLoop, _LoopProbe] = WeakKeyDictionary()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the running loop for as long as a turn runs."""
        loop = asyncio.get_running_loop()
        with self._changing:
            self._turns[loop] = self._turns.get(loop, 0) + 1
            self._some.set()
            if self._thread is None or not self._thread.is_alive():  # a process that was forked has lost its threads
                self._thread = threading.Thread(target=self._run, name="antiphon loop watch", daemon=True)
                self._thread.start()
        try:
            yield
        finally:
            with self._changing:
                self._turns[loop] -= 1
                if not self._turns[loop]:
                    del self._turns[loop]
                if not self._turns:
                    self._some.clear()

    def _run(self) -> None:
        while True:
            self._some.wait()
            time.sleep(LOOP_SAMPLE_SECONDS)
            self._sample()

    def _sample(self) -> None:
        # A function of its own: a variable of `_run` would keep the last loop for as long as the thread waits.
        with self._changing:
            loops = list(self._turns)
        for loop in loops:
            self._look(loop)
        for gone in [loop for loop in self._suspicions if loop not in loops]:
            del self._suspicions[gone]

    def _look(self, loop: AbstractEventLoop) -> None:
        suspicion = self._suspicions.get(loop)
        if suspicion is None:
            self._suspect(loop)
        elif suspicion.ended is not None:
            del self._suspicions[loop]
        elif suspicion.seconds >= HELD_LOOP_SECONDS and not suspicion.name:
            task = _running_user_code(loop)
            if task is not None:
                suspicion.name = task.get_name()
                held = "%s has held the event loop for %.1f seconds, and no other turn goes on meanwhile; %s"
                logger.warning(held, suspicion.name, suspicion.seconds, user_code_tasks[task].should)

    def _suspect(self, loop: AbstractEventLoop) -> None:
        if _running_user_code(loop) is not None:
            suspicion = _LoopProbe()
            with suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(suspicion.end)
                self._suspicions[loop] = suspicion


def _running_user_code(loop: AbstractEventLoop) -> asyncio.Task[None] | None:
    """The task of the user code that the loop runs at this moment; None if it runs none."""
    task = asyncio.current_task(loop)
    return task if task is not None and task in user_code_tasks else None


LOOP_WATCH = LoopWatch()
"""One for the process."""
