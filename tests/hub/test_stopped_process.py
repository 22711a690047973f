"""A process that was stopped for a while (SIGSTOP, a paused container) goes on, and nothing that it owes is late."""

from __future__ import annotations

import asyncio
import time

import pytest

from antiphon import EV_PACKET, EV_TEXT, Agent, Hub, Reply, Request, TransitionGraph, says
from antiphon.core.envelope import NEVER, add_seconds, seconds_between
from antiphon.hub import clock as clock_module
from antiphon.hub.clock import MAX_CLOCK_WAIT_SECONDS, SystemClock, steady_now
from tests.support.waiting import let_others_run


class Machine:
    """The time functions of a machine. Time that passes here passes for no timer of the event loop."""

    def __init__(self) -> None:
        self.passed = 0.0

    def time_ns(self) -> int:
        return time.time_ns() + int(self.passed * 1e9)

    def monotonic_ns(self) -> int:
        return time.monotonic_ns() + int(self.passed * 1e9)

    def monotonic(self) -> float:
        return time.monotonic() + self.passed


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine()
    monkeypatch.setattr(clock_module, "time", machine)
    return machine


async def test_the_steady_clock_leaves_out_the_time_in_which_nothing_ran(machine: Machine) -> None:
    clock, wake = SystemClock(), asyncio.Event()
    waits = [asyncio.create_task(clock.wait(wake, until)) for until in (NEVER, add_seconds(clock.now(), 30))]
    await let_others_run(2)
    before = steady_now(clock)
    machine.passed += 1000
    assert 29 < seconds_between(before, steady_now(clock)) < 35  # the shortest wait would have ended after 30 seconds
    wake.set()
    await asyncio.gather(*waits)
    machine.passed += 1000  # nothing waits now, so nothing is known to be late
    assert seconds_between(before, steady_now(clock)) > 1000


async def test_a_wait_that_ends_in_time_changes_nothing(machine: Machine) -> None:
    clock, wake = SystemClock(), asyncio.Event()
    waiting = asyncio.create_task(clock.wait(wake, NEVER))
    await let_others_run(2)
    machine.passed += MAX_CLOCK_WAIT_SECONDS
    assert abs(clock.drift()) < 1
    wake.set()
    await waiting


@pytest.mark.parametrize("kind", ["conversation", "consulting", "discussion", "workflow"])
async def test_a_turn_in_progress_is_answered_by_a_process_that_was_stopped(kind: str, machine: Machine) -> None:
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def slow(request: Request) -> Reply:
        asked.set()
        await go_on.wait()
        return says("Here I am.")

    knobs = {"graph": TransitionGraph.sequence(["ann", "bob"])} if kind == "workflow" else None
    async with Hub.open("memory:", clock=SystemClock()) as hub, asyncio.timeout(20):
        await hub.register(Agent("bob", model=slow))
        ann = await hub.register("ann")
        channel = await ann.open(type=kind, target="bob", knobs=knobs, say="Hello?")
        await asked.wait()
        machine.passed += 7200
        go_on.set()
        async for envelope in hub.subscribe(channel.channel_id):
            assert envelope.event_type not in ("antiphon.turn.failed", "antiphon.expectation.missed")
            if envelope.sender_id == "bob" and envelope.event_type in (EV_TEXT, EV_PACKET):
                break
