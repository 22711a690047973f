"""Tasks that user code starts: a SystemExit in one of them is an error of the code, and the loop goes on."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Coroutine

import pytest

from antiphon.core.text import describe_error
from antiphon.engines.user_code import Interrupted, RaisedError, end_abandoned_tasks, run_isolated, user_code_tasks


async def leaves(code: int = 3) -> str:
    await asyncio.sleep(0)
    raise SystemExit(code)


async def waits() -> str:
    await asyncio.Event().wait()
    return "never"


async def with_create_task() -> object:
    return await asyncio.create_task(leaves())


async def with_gather() -> object:
    return await asyncio.gather(leaves(), asyncio.sleep(0))


async def with_a_group() -> object:
    async with asyncio.TaskGroup() as group:
        group.create_task(waits())
        group.create_task(leaves())
    return "never"


async def with_wait_for() -> object:
    return await asyncio.wait_for(leaves(), 60)


async def from_a_task_of_a_task() -> object:
    return await asyncio.create_task(with_create_task())


async def after_a_cancellation() -> object:
    async def cleans_up() -> None:
        try:
            await waits()
        except asyncio.CancelledError:
            raise SystemExit(3) from None

    task = asyncio.create_task(cleans_up())
    await asyncio.sleep(0)
    task.cancel()
    return await task


@pytest.mark.parametrize(
    ("work", "said"),
    [
        (with_create_task, "Interrupted: SystemExit: 3"),
        (with_gather, "Interrupted: SystemExit: 3"),
        (
            with_a_group,
            "ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception): Interrupted: SystemExit: 3",
        ),
        (with_wait_for, "Interrupted: SystemExit: 3"),
        (from_a_task_of_a_task, "Interrupted: SystemExit: 3"),
        (after_a_cancellation, "Interrupted: SystemExit: 3"),
    ],
)
async def test_a_task_that_exits_is_an_error_of_the_code(work: Callable[[], Awaitable[object]], said: str) -> None:
    outcome = await run_isolated(work, "tool 'work'")
    assert isinstance(outcome, RaisedError)
    assert describe_error(outcome.error) == said


async def test_the_cause_is_kept() -> None:
    outcome = await run_isolated(with_create_task, "tool 'work'")
    assert isinstance(outcome, RaisedError)
    assert isinstance(outcome.error, Interrupted)
    assert isinstance(outcome.error.__cause__, SystemExit)
    assert outcome.error.__cause__.code == 3


async def test_a_task_that_outlives_the_code_is_contained_with_the_tasks_it_starts() -> None:
    go = asyncio.Event()
    started: list[asyncio.Task[object]] = []

    async def later() -> object:
        await go.wait()
        return await asyncio.create_task(leaves())

    async def work() -> None:
        started.append(asyncio.create_task(later()))

    await run_isolated(work, "tool 'work'")
    go.set()
    await asyncio.wait(started)
    assert describe_error(started[0].exception() or ValueError()) == "Interrupted: SystemExit: 3"


async def test_a_task_that_is_cancelled_before_its_first_step_warns_of_nothing() -> None:
    async def work() -> bool:
        task = asyncio.create_task(leaves())
        task.cancel()
        await asyncio.wait((task,))
        return task.cancelled()

    assert await run_isolated(work, "tool 'work'") is True
    gc.collect()  # warnings are errors in this suite, also those of a coroutine that was never awaited


async def test_a_task_is_named_by_its_own_code() -> None:
    async def work() -> str:
        task = asyncio.create_task(waits(), name="mine")
        await asyncio.sleep(0)
        seen = f"{task.get_name()} {task!r} {task.get_stack()}"
        task.cancel()
        return seen

    seen = await run_isolated(work, "tool 'work'")
    assert isinstance(seen, str)
    assert seen.startswith("mine ")
    assert seen.count("waits") == 2


# The factory of the loop

Made = list[str]


def recording(made: Made) -> Callable[..., asyncio.Task[object]]:
    def factory(
        loop: asyncio.AbstractEventLoop, coro: Coroutine[object, None, object], **options: object
    ) -> asyncio.Task[object]:
        made.append(coro.__qualname__)
        return asyncio.Task(coro, loop=loop, **options)

    return factory


async def test_the_factory_of_the_program_makes_every_task_and_is_put_back() -> None:
    loop, made = asyncio.get_running_loop(), Made()
    mine = recording(made)
    loop.set_task_factory(mine)
    try:
        await run_isolated(with_create_task, "tool 'work'")
        await asyncio.sleep(0)
        assert loop.get_task_factory() is mine
    finally:
        loop.set_task_factory(None)
    assert made == ["_UserCodeOutcome.run", "leaves"]


async def test_a_loop_without_a_factory_has_none_afterwards() -> None:
    loop = asyncio.get_running_loop()
    await asyncio.gather(*(run_isolated(with_create_task, "tool 'work'") for _ in range(3)))
    await asyncio.sleep(0)
    assert loop.get_task_factory() is None


async def test_a_factory_that_is_set_while_code_runs_stays_and_is_used() -> None:
    loop, made = asyncio.get_running_loop(), Made()
    mine = recording(made)

    async def work() -> None:
        loop.set_task_factory(mine)

    try:
        await run_isolated(work, "tool 'work'")
        assert loop.get_task_factory() is mine
        outcome = await run_isolated(with_create_task, "tool 'work'")
        await asyncio.sleep(0)
        assert loop.get_task_factory() is mine
    finally:
        loop.set_task_factory(None)
    assert isinstance(outcome, RaisedError)
    assert made == ["_UserCodeOutcome.run", "leaves"]


async def test_tasks_of_other_code_are_left_as_they_are() -> None:
    inside, go = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        inside.set()
        await go.wait()

    code = asyncio.create_task(run_isolated(work, "tool 'work'"))
    await inside.wait()
    coroutine = asyncio.sleep(0)
    task = asyncio.create_task(coroutine)
    go.set()
    await code
    await task
    assert task.get_coro() is coroutine


async def test_code_that_is_closed_from_another_task_leaves_no_factory() -> None:
    loop = asyncio.get_running_loop()

    async def work() -> None:
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue

    code = asyncio.create_task(run_isolated(work, "tool 'stubborn'"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    stubborn = [task for task in user_code_tasks if task.get_name() == "tool 'stubborn'"]
    await end_abandoned_tasks(stubborn)
    await code
    assert loop.get_task_factory() is None
