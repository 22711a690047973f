"""User code in a task of its own: tools, models, prompts, steps.

Rule 1: a cancellation that reaches the waiting task comes from outside. One that the code causes, of itself or of
        something it waits for, stays in the task of the code and is an ordinary failure.
Rule 2: code that is cancelled has `CLEAN_UP` seconds to end. Code that still runs then is left behind, and a warning
        names it.
Rule 3: nothing but an ordinary error leaves the task. A KeyboardInterrupt or SystemExit that left it would end the
        event loop, and with it every other turn, without a record. The tasks that the code starts are contained by
        `subtasks`.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from contextvars import ContextVar
from typing import Generic, TypeVar, cast
from weakref import WeakKeyDictionary

import msgspec

from antiphon.agents.subtasks import Interrupted, subtasks_contained
from antiphon.core.words import told

T = TypeVar("T")

log = logging.getLogger("antiphon.engine")

CLEAN_UP = 1.0
"""How many seconds cancelled code may take to end."""
LAST_CHANCE = 0.25
"""How many seconds code that was left behind may take to end when it is cancelled for the last time."""
ATTEMPTS = 100
OFF_LOOP = "`await asyncio.to_thread(…)`"
TOOL_SHOULD = f"await what takes long, run it with {OFF_LOOP}, or declare the tool with `def`, which runs in a thread"
ASYNC_SHOULD = f"await what takes long, or run it with {OFF_LOOP}"
PLAIN_SHOULD = f"make it shorter, or an `async def` that runs what takes long with {OFF_LOOP}"
CODE_PREFIX = "antiphon "
"""How the name of a thread begins that runs user code. Its name follows."""

left_running: ContextVar[set[asyncio.Task[None]] | None] = ContextVar("left_running", default=None)
"""Where the engine keeps the tasks of code that ignores its cancellation."""


class Raised(msgspec.Struct, frozen=True):
    """An error as a value: a Future refuses a StopIteration, and a task lets a KeyboardInterrupt through."""

    error: BaseException


class _Outcome(Generic[T]):
    """The result of user code. It outlives a task that is cancelled in the step in which the code returns."""

    def __init__(self, should: str) -> None:
        self.value: T | Raised = Raised(asyncio.CancelledError())
        self.should = should
        """What the code should do instead of holding the event loop."""

    async def run(self, work: Callable[[], Awaitable[T]]) -> None:
        try:
            with subtasks_contained():
                self.value = await work()
        except BaseException as error:  # user code may raise anything
            self.value = Raised(error)


isolated_tasks: WeakKeyDictionary[asyncio.Task[None], _Outcome[object]] = WeakKeyDictionary()
"""The tasks of user code. The name of each says which code it is."""


def should_not_block(function: object) -> str:
    """What a function that is called on the event loop should do instead of holding it."""
    called = function.__call__ if callable(function) else None  # an object may be called like an async function
    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)
    return ASYNC_SHOULD if is_async else PLAIN_SHOULD


async def outcome_of(work: Callable[[], Awaitable[T]], name: str, should: str = ASYNC_SHOULD) -> T | Raised:
    """Run user code in a task of this name; the value it returns, or the error it raises.

    Cancelling the caller cancels the code, and waits at most `CLEAN_UP` seconds for its end.
    """
    outcome: _Outcome[T] = _Outcome(should)
    task = asyncio.create_task(outcome.run(work), name=name)
    isolated_tasks[task] = cast("_Outcome[object]", outcome)
    try:
        await asyncio.wait((task,))
    except asyncio.CancelledError:
        await _stop(task)
        raise
    return outcome.value


async def contained(work: Callable[[], Awaitable[T]], name: str, function: object) -> T:
    """Run user code in a task of this name. Anything it raises that is no `Exception` becomes `Interrupted`.

    The function is the one that the work calls.
    """
    outcome = await outcome_of(work, name, should_not_block(function))
    if not isinstance(outcome, Raised):
        return outcome
    if isinstance(outcome.error, Exception):
        raise outcome.error
    raise Interrupted(told(outcome.error)) from outcome.error


def call_contained(function: Callable[[], T]) -> T:
    """Call plain user code on the event loop. Anything it raises that is no `Exception` becomes `Interrupted`."""
    try:
        return function()
    except (Exception, KeyboardInterrupt):  # a KeyboardInterrupt may be the operator's
        raise
    except BaseException as error:
        raise Interrupted(told(error)) from error


async def end_left_behind(tasks: Iterable[asyncio.Task[None]]) -> None:
    """End code that ignores its cancellation, so that the event loop can close.

    Its coroutine is closed, as Python closes one that is no longer used: GeneratorExit is raised where it waits, which
    `except CancelledError` does not catch. A coroutine that ignores this too is destroyed.
    """
    pending = [task for task in tasks if not task.done()]
    if not pending:
        return
    for task in pending:
        task.cancel()
    _, stubborn = await asyncio.wait(pending, timeout=LAST_CHANCE)
    for task in stubborn:
        _close(task)
    if stubborn:
        await asyncio.wait(stubborn, timeout=LAST_CHANCE)


def names_of_running() -> list[str]:
    """The names of all user code that runs in this process now. Any thread may ask."""
    tasks: set[str] = set()
    for _ in range(ATTEMPTS):
        with suppress(RuntimeError):  # the loop has begun or ended a task meanwhile
            tasks = {task.get_name() for task in list(isolated_tasks) if not task.done()}
            break
    threads = {each.name for each in threading.enumerate() if each.name.startswith(f"{CODE_PREFIX}tool ")}
    return sorted(tasks | {name.removeprefix(CODE_PREFIX) for name in threads})


def _close(task: asyncio.Task[None]) -> None:
    coroutine = task.get_coro()
    assert coroutine is not None, "a task that has not ended has a coroutine"
    coroutine.close()
    # Code that ignores GeneratorExit lives on in the traceback of that error. It must be destroyed while the loop runs:
    # without one, `while True: try: await … except: pass` would never wait again, and never end.
    isolated_tasks[task].value = Raised(asyncio.CancelledError())
    # The task does not know that its coroutine has ended. Waking it up tells it, with a RuntimeError of no meaning.
    task.add_done_callback(_retrieve)
    task.cancel()


def _retrieve(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()


async def _stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    try:
        await asyncio.wait((task,), timeout=CLEAN_UP)
    finally:
        if not task.done():
            _leave_behind(task)


def _leave_behind(task: asyncio.Task[None]) -> None:
    advice = "it should let CancelledError pass"
    log.warning("%s was cancelled and still runs; its result is dropped; %s", task.get_name(), advice)
    left = left_running.get()
    if left is not None:
        left.add(task)
        task.add_done_callback(left.discard)
