"""How a gate is run where it may wait: its checks, async ones too, each within its time.

Rule 1: a verdict that is recorded for the digest is given again, and no check is asked.
Rule 2: a check that takes too long is cancelled, and counts as failed. One that is not async cannot be cancelled: it
        fails when it returns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from inspect import isawaitable
from typing import TypedDict, Unpack

from antiphon.core.envelope import Json, add_seconds, seconds_between
from antiphon.core.protection_events import ValidationResult
from antiphon.engines.user_code import run_contained
from antiphon.guards.gate_checks import CheckAnswer, CheckCall, CheckFault, fault_of, read_answer
from antiphon.guards.gates import Gate, GateSide, TimedAnswer, gate_steps, recorded_verdict
from antiphon.guards.named_guards import Tier
from antiphon.hub.clock import Clock, SystemClock, steady_now


class GateOptions(TypedDict, total=False):
    """How a gate is run."""

    side: GateSide
    """Whether the subject goes into something, or has come out of it (`post`, if not given)."""
    context: Json | None
    """What checks are given beside the subject: `artifacts`, `headroom`, `agent`, and what else they need."""
    tier: Tier | None
    clock: Clock
    recorded: Iterable[ValidationResult]
    """The verdicts that are recorded already."""


async def run_gate(gate: Gate, subject: object, **options: Unpack[GateOptions]) -> ValidationResult:
    """The verdict of a gate about a subject, which is plain JSON data.

    It is the verdict in `recorded`, if there is one for this subject and context. The checks are asked otherwise: each
    of them once, in the order of the gate, up to the first that fails.
    """
    side, context = options.get("side", "post"), options.get("context")
    clock = options.get("clock") or SystemClock()
    known = recorded_verdict(gate, gate.digest(subject, context), options.get("recorded", ()), side=side)
    if known is not None:
        return known
    steps = gate_steps(gate, subject, side=side, context=context, tier=options.get("tier"))
    try:
        call = next(steps)
        while True:
            call = steps.send(await _timed_answer(call, clock))
    except StopIteration as end:
        result: ValidationResult = end.value
        return result


async def _timed_answer(call: CheckCall, clock: Clock) -> TimedAnswer:
    started = steady_now(clock)
    answer = await _answer_within(call, clock)
    seconds = seconds_between(started, steady_now(clock))
    if seconds > call.seconds:
        answer = CheckFault("timeout")
    return TimedAnswer(answer, int(seconds * 1000))


async def _answer_within(call: CheckCall, clock: Clock) -> CheckAnswer:
    """The answer of a check; a fault, if it takes too long."""
    done = asyncio.Event()
    work = asyncio.create_task(_answer(call))
    work.add_done_callback(lambda _: done.set())
    started = steady_now(clock)
    try:
        while not done.is_set():
            left = call.seconds - seconds_between(started, steady_now(clock))
            if left <= 0:
                return CheckFault("timeout")
            await clock.wait(done, add_seconds(clock.now(), left))
        return work.result()
    finally:
        work.cancel()


async def _answer(call: CheckCall) -> CheckAnswer:
    async def run() -> object:
        given = call.begin()
        return await given if isawaitable(given) else given

    try:
        return read_answer(await run_contained(run, f"the check {call.name!r}", call.function))
    except Exception as error:  # a check is code of a user
        return fault_of(error)
