"""Deadlines by a clock that the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from antiphon.core.envelope import add_seconds
from antiphon.hub.clock import MIN_TIMERS_TO_TIDY, DeadlineExceeded, TimerQueue
from antiphon.testing import ManualClock
from tests.support.waiting import let_others_run


@asynccontextmanager
async def ringing(clock: ManualClock) -> AsyncIterator[TimerQueue]:
    alarms = TimerQueue(clock)
    task = asyncio.create_task(alarms.run())
    await let_others_run()
    try:
        yield alarms
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def noting(heard: list[str], name: str) -> Callable[[], None]:
    return lambda: heard.append(name)


async def test_alarms_ring_when_their_time_has_come_and_once(clock: ManualClock) -> None:
    heard: list[str] = []
    async with ringing(clock) as alarms:
        for name, seconds in (("late", 5), ("early", 1), ("middle", 3)):
            alarms.at(add_seconds(clock.now(), seconds), noting(heard, name))
        await clock.advance(0.9)
        assert heard == []
        await clock.advance(0.1)
        assert heard == ["early"]
        await clock.advance(10)
        assert heard == ["early", "middle", "late"]
        await clock.advance(10)
        assert heard == ["early", "middle", "late"]


async def test_alarms_of_one_instant_ring_in_the_order_they_were_set(clock: ManualClock) -> None:
    heard: list[str] = []
    async with ringing(clock) as alarms:
        for name in "abc":
            alarms.at(add_seconds(clock.now(), 1), noting(heard, name))
        await clock.advance(1)
    assert heard == ["a", "b", "c"]


async def test_an_alarm_that_is_set_earlier_than_all_others_is_heard_first(clock: ManualClock) -> None:
    heard: list[str] = []
    async with ringing(clock) as alarms:
        alarms.at(add_seconds(clock.now(), 100), noting(heard, "first set"))
        await let_others_run()
        alarms.at(add_seconds(clock.now(), 1), noting(heard, "first due"))
        await clock.advance(1)
        assert heard == ["first due"]


async def test_an_alarm_whose_time_is_over_rings_at_once(clock: ManualClock) -> None:
    heard: list[str] = []
    async with ringing(clock) as alarms:
        alarms.at(clock.now(), noting(heard, "now"))
        await let_others_run()
    assert heard == ["now"]


async def test_a_cancelled_alarm_does_not_ring(clock: ManualClock) -> None:
    heard: list[str] = []
    async with ringing(clock) as alarms:
        alarms.at(add_seconds(clock.now(), 1), noting(heard, "cancelled")).cancel()
        alarms.at(add_seconds(clock.now(), 1), noting(heard, "kept"))
        await clock.advance(1)
    assert heard == ["kept"]


async def test_an_alarm_may_set_another(clock: ManualClock) -> None:
    heard: list[str] = []
    async with ringing(clock) as alarms:

        def ring() -> None:
            heard.append("first")
            alarms.at(add_seconds(clock.now(), 1), noting(heard, "second"))

        alarms.at(add_seconds(clock.now(), 1), ring)
        await clock.advance(1)
        assert heard == ["first"]
        await clock.advance(1)
        assert heard == ["first", "second"]


async def test_cancelled_alarms_are_let_go_and_the_others_ring(clock: ManualClock) -> None:
    heard: list[str] = []
    async with ringing(clock) as alarms:
        alarms.at(add_seconds(clock.now(), 2), noting(heard, "kept"))
        for _ in range(10 * MIN_TIMERS_TO_TIDY):
            alarms.at(add_seconds(clock.now(), 1), noting(heard, "cancelled")).cancel()
        assert len(alarms._heap) <= MIN_TIMERS_TO_TIDY + 1
        await clock.advance(2)
    assert heard == ["kept"]


async def test_many_alarms_are_not_looked_through_for_each_new_one(clock: ManualClock) -> None:
    looked: list[int] = []

    class Counting(TimerQueue):
        def _tidy(self) -> None:
            looked.append(len(self._heap))
            super()._tidy()

    alarms = Counting(clock)
    for _ in range(16 * MIN_TIMERS_TO_TIDY):
        alarms.at(add_seconds(clock.now(), 1), lambda: None)
    assert sum(looked) <= 2 * 16 * MIN_TIMERS_TO_TIDY


async def test_what_takes_too_long_is_out_of_time(clock: ManualClock) -> None:
    async with ringing(clock) as alarms:

        async def work() -> None:
            async with alarms.within(5):
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await let_others_run()
        clock.advance(4.9)
        await let_others_run()
        assert not task.done()
        clock.advance(0.1)
        with pytest.raises(DeadlineExceeded, match="within 5 seconds"):
            await task


async def test_what_is_done_in_time_is_not_disturbed(clock: ManualClock) -> None:
    async with ringing(clock) as alarms:
        async with alarms.within(5):
            await let_others_run()
        await clock.advance(10)
        await let_others_run()
        async with alarms.within(None):
            await clock.advance(10_000)


async def test_an_error_passes_as_it_is(clock: ManualClock) -> None:
    async with ringing(clock) as alarms:
        with pytest.raises(KeyError):
            async with alarms.within(5):
                raise KeyError("lost")
        await clock.advance(10)


async def test_who_is_cancelled_from_outside_is_cancelled(clock: ManualClock) -> None:
    async with ringing(clock) as alarms:

        async def work() -> None:
            async with alarms.within(5):
                await asyncio.Event().wait()

        for also_late in (False, True):
            task = asyncio.create_task(work())
            await let_others_run()
            if also_late:
                clock.advance(5)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task


async def test_the_inner_of_two_limits_is_told_from_the_outer(clock: ManualClock) -> None:
    async with ringing(clock) as alarms:
        told: list[str] = []

        async def work() -> None:
            async with alarms.within(10):
                try:
                    async with alarms.within(1):
                        await asyncio.Event().wait()
                except DeadlineExceeded:
                    told.append("inner")
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await let_others_run()
        clock.advance(1)
        await let_others_run()
        assert told == ["inner"]
        clock.advance(9)
        with pytest.raises(DeadlineExceeded, match="within 10 seconds"):
            await task


@pytest.mark.parametrize("outcome", ["a value", "an error"])
async def test_who_goes_on_although_time_is_up_is_not_cancelled_later(clock: ManualClock, outcome: str) -> None:
    """Code that swallows a cancellation, or makes an error of it, leaves no trace of it behind."""

    async def stubborn() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if outcome == "an error":
                raise ConnectionError("made of a cancellation") from None

    async with ringing(clock) as alarms:

        async def work() -> None:
            try:
                async with alarms.within(1):
                    await stubborn()
            except ConnectionError:
                pass
            async with alarms.within(1):
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        for _ in range(2):
            await let_others_run()
            clock.advance(1)
        with pytest.raises(DeadlineExceeded):
            await task
        assert task.cancelling() == 0


async def test_one_of_several_at_once_runs_out_of_time_alone(clock: ManualClock) -> None:
    async with ringing(clock) as alarms:

        async def work(seconds: float) -> str:
            try:
                async with alarms.within(seconds):
                    await clock.wait(asyncio.Event(), add_seconds(clock.now(), 3))
            except DeadlineExceeded:
                return "late"
            return "done"

        both = asyncio.gather(work(2), work(4))
        await let_others_run()
        clock.advance(2)
        await let_others_run()
        clock.advance(1)
        assert await both == ["late", "done"]
