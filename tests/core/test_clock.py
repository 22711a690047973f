"""A clock that a test moves: forward as time passes, back only as somebody sets it."""

from __future__ import annotations

import asyncio
import math

import pytest

from antiphon import UsageError
from antiphon.testing import ManualClock
from antiphon.testing.manual_clock import MANUAL_CLOCK_START
from tests.support.envelopes import at


def test_it_moves_when_it_is_told_to() -> None:
    clock = ManualClock()
    assert clock.now() == MANUAL_CLOCK_START
    clock.advance(1.5)
    clock.advance(0)
    assert (clock.now(), clock.drift()) == (at(1.5), 0)
    clock.set(-1)
    clock.set(3)
    assert (clock.now(), clock.drift()) == (at(3.5), 2)


@pytest.mark.parametrize("seconds", ["x", None, True, math.nan, math.inf, -math.inf], ids=repr)
def test_a_time_that_is_none_moves_nothing(seconds: object) -> None:
    clock = ManualClock()
    for move in (clock.advance, clock.set):
        with pytest.raises(UsageError, match=f"seconds is {seconds!r}; give a number of seconds"):
            move(seconds)  # type: ignore[arg-type]
    assert (clock.now(), clock.drift()) == (MANUAL_CLOCK_START, 0)


def test_time_does_not_run_backwards() -> None:
    clock = ManualClock()
    with pytest.raises(UsageError, match=r"by -1 seconds; give 0 or more, or put the clock back with set"):
        clock.advance(-1)
    assert clock.now() == MANUAL_CLOCK_START


def test_the_end_of_the_calendar_is_the_end() -> None:
    clock = ManualClock()
    clock.advance(10**400)
    assert clock.now() == "9999-12-31T23:59:59.999999Z"


async def test_whoever_has_waited_may_move_it_too() -> None:
    clock = ManualClock()

    async def waits_and_moves() -> str:
        await clock.wait(asyncio.Event(), "2026-01-01T00:00:05.000000Z")
        await clock.advance(5)
        return clock.now()

    waiting = asyncio.ensure_future(waits_and_moves())
    await asyncio.sleep(0)
    clock.advance(10)
    assert await asyncio.wait_for(waiting, 5) == "2026-01-01T00:00:15.000000Z"
