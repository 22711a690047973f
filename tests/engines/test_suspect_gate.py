"""Which turns may run together after a crash: the gate by itself, on channels and waits that a test makes up."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable

import pytest

from antiphon.engines.crash_recovery import ANY_CHANNEL, GatedTurn, SuspectGate
from tests.support.waiting import let_others_run, soon


class Call:
    """A call of a turn that waits for another channel, until the test ends the wait."""

    def __init__(self, run: GatedTurn, channel_id: str) -> None:
        self.ended = asyncio.Event()
        self.returned = asyncio.create_task(self._wait(run, channel_id))

    async def _wait(self, run: GatedTurn, channel_id: str) -> None:
        async with run.waiting_for(channel_id):
            await self.ended.wait()

    async def end(self) -> None:
        self.ended.set()
        await let_others_run(5)


class Process:
    """A gate, the turns at it, and what the logs say."""

    def __init__(self) -> None:
        self.gate = SuspectGate(self)
        self.owed: dict[str, list[str]] = {}
        self.given: dict[str, list[str]] = {}
        self.heads: Counter[str] = Counter()
        self.started: list[str] = []
        """The channels whose turns may run, in the order in which they were let."""
        self._tasks: list[asyncio.Task[None]] = []
        self.stopping = asyncio.Event()

    def speakers(self, channel_id: str) -> Iterable[str]:
        return self.owed.get(channel_id, ())

    def tasks(self, channel_id: str) -> Iterable[str]:
        return self.given.get(channel_id, ())

    def head(self, channel_id: str) -> int:
        return self.heads[channel_id]

    async def turn(self, channel_id: str, *, crashes: int = 1) -> GatedTurn:
        """A turn of the agent `a` that wants to run."""
        run = GatedTurn(self.gate, channel_id, "a", crashes=crashes)
        self.owed[channel_id] = ["a"]

        async def enter() -> None:
            if await run.enter(self.stopping):
                self.started.append(channel_id)

        self._tasks.append(asyncio.create_task(enter()))
        await let_others_run(5)
        return run

    async def wait(self, run: GatedTurn, channel_id: str) -> Call:
        """A call of this turn waits for a channel from now on."""
        call = Call(run, channel_id)
        self._tasks.append(call.returned)
        await let_others_run(5)
        return call

    async def over(self, run: GatedTurn) -> None:
        self.owed[run.channel_id] = []
        self.heads[run.channel_id] += 1
        run.leave()
        await let_others_run(5)


@pytest.fixture
async def process() -> Process:
    return Process()


async def test_suspects_run_one_after_the_other_those_that_crashed_least_first(process: Process) -> None:
    first = await process.turn("first")
    await process.turn("often", crashes=5)
    await process.turn("seldom", crashes=2)
    assert process.started == ["first"]
    await process.over(first)
    assert process.started == ["first", "seldom"]


async def test_turns_that_no_crash_interrupted_do_not_wait(process: Process) -> None:
    await process.turn("suspect")
    await process.turn("fresh", crashes=0)
    assert process.started == ["suspect", "fresh"]


async def test_a_cleared_turn_is_waited_for(process: Process) -> None:
    cleared = await process.turn("cleared")
    cleared.clear()
    await process.turn("next")
    assert process.started == ["cleared"]
    await process.over(cleared)
    assert process.started == ["cleared", "next"]


async def test_a_stopping_engine_ends_the_wait(process: Process) -> None:
    await process.turn("first")
    waiting = GatedTurn(process.gate, "second", "a", crashes=1)
    entering = asyncio.create_task(waiting.enter(process.stopping))
    await let_others_run(5)
    process.stopping.set()
    assert await soon(entering) is False


@pytest.mark.parametrize("cleared", [False, True])
async def test_a_turn_that_waits_lets_start_what_it_waits_for_and_nothing_else(process: Process, cleared: bool) -> None:
    asker = await process.turn("asker")
    await process.turn("stranger")
    answerer = await process.turn("answerer", crashes=9)
    if cleared:
        asker.clear()
    call = await process.wait(asker, "answerer")
    assert process.started == ["asker", "answerer"]
    await process.over(answerer)
    await call.end()
    assert call.returned.done()
    assert process.started == ["asker", "answerer"]
    await process.over(asker)
    assert process.started == ["asker", "answerer", "stranger"]


async def test_what_an_uninterrupted_turn_waits_for_in_between_may_start(process: Process) -> None:
    asker = await process.turn("asker")
    between = await process.turn("between", crashes=0)
    await process.turn("stranger")
    await process.turn("last", crashes=9)
    await process.wait(asker, "between")
    assert process.started == ["asker", "between"]
    await process.wait(between, "last")
    assert process.started == ["asker", "between", "last"]


async def test_a_turn_whose_wait_has_just_been_ended_is_waited_for(process: Process) -> None:
    """It has not gone on yet: the call is woken in the next step of the event loop."""
    asker = await process.turn("asker")
    between = await process.turn("between", crashes=0)
    await process.turn("stranger")
    process.owed["fresh"] = ["a"]
    await process.wait(asker, "between")
    await process.wait(between, "fresh")
    process.owed["fresh"] = []
    process.heads["fresh"] += 1
    process.gate.let_run()
    await let_others_run(5)
    assert process.started == ["asker", "between"]


async def test_another_turn_of_the_same_channel_may_end_the_wait(process: Process) -> None:
    asker = await process.turn("asker")
    between = await process.turn("between", crashes=0)
    await process.turn("stranger")
    process.owed["asker"] = ["a", "another"]
    await process.wait(between, "asker")
    await process.wait(asker, "between")
    assert process.started == ["asker", "between"]


async def test_a_turn_that_is_owed_and_has_not_started_is_waited_for(process: Process) -> None:
    asker = await process.turn("asker")
    await process.turn("stranger")
    process.owed["answerer"] = ["a"]  # it pauses after its crash, or is about to be submitted
    await process.wait(asker, "answerer")
    assert process.started == ["asker"]


async def test_where_no_turn_can_end_the_wait_any_suspect_may_start(process: Process) -> None:
    asker = await process.turn("asker")
    await process.turn("stranger")
    await process.wait(asker, "a channel in which a person has the turn")
    assert process.started == ["asker", "stranger"]


async def test_a_wait_for_any_channel_lets_any_suspect_start(process: Process) -> None:
    asker = await process.turn("asker")
    await process.turn("stranger")
    process.owed["fresh"] = ["a"]
    await process.wait(asker, "fresh")
    assert process.started == ["asker"]
    await process.wait(asker, ANY_CHANNEL)
    assert process.started == ["asker", "stranger"]


async def test_turns_that_wait_for_each_others_channels_stop_nothing(process: Process) -> None:
    """Neither can go on by itself; a third may be what one of them waits for."""
    one = await process.turn("one")
    await process.wait(one, "two")
    two = await process.turn("two")
    await process.wait(two, "one")
    await process.turn("three")
    assert process.started == ["one", "two", "three"]


async def test_the_end_of_a_wait_waits_for_the_turn_that_was_let_start(process: Process) -> None:
    asker = await process.turn("asker")
    call = await process.wait(asker, "answerer")
    answerer = await process.turn("answerer")
    await call.end()
    assert not call.returned.done()
    await process.over(answerer)
    await soon(call.returned)


async def test_waits_of_two_calls_that_end_together_both_go_on(process: Process) -> None:
    asker = await process.turn("asker")
    first, second = await process.wait(asker, "answerer"), await process.wait(asker, "answerer")
    answerer = await process.turn("answerer")
    await asyncio.gather(first.end(), second.end())
    await process.over(answerer)
    await soon(asyncio.gather(first.returned, second.returned))


async def test_a_turn_that_is_cleared_while_it_wants_to_go_on_goes_on(process: Process) -> None:
    asker = await process.turn("asker")
    call = await process.wait(asker, "answerer")
    await process.turn("answerer")
    await call.end()
    asker.clear()
    await soon(call.returned)


@pytest.mark.parametrize("ended", [False, True])
async def test_a_cancelled_wait_holds_nothing_up(process: Process, ended: bool) -> None:
    asker = await process.turn("asker")
    call = await process.wait(asker, "answerer")
    answerer = await process.turn("answerer")
    if ended:
        await call.end()
    call.returned.cancel()
    await asyncio.gather(call.returned, return_exceptions=True)
    await process.turn("next")
    await process.over(asker)
    assert process.started == ["asker", "answerer"]
    await process.over(answerer)
    assert process.started == ["asker", "answerer", "next"]


async def test_a_turn_starts_beside_its_own_tasks_and_theirs_and_beside_no_other(process: Process) -> None:
    """It has to be there to stop them: a task may last until its giver loses patience."""
    process.given = {"giver": ["task"], "task": ["task of the task"]}
    inner = await process.turn("task of the task")
    await process.turn("giver")
    await process.turn("stranger")
    assert process.started == ["task of the task", "giver"]
    await process.over(inner)
    assert process.started == ["task of the task", "giver"]


async def test_a_giver_does_not_start_beside_a_turn_that_waits_for_its_task_to_go_on(process: Process) -> None:
    process.given = {"giver": ["task"]}
    asker = await process.turn("asker")
    call = await process.wait(asker, "task")
    await process.turn("task")
    await call.end()
    await process.turn("giver")
    assert process.started == ["asker", "task"]


async def test_a_giver_does_not_start_beside_a_stranger(process: Process) -> None:
    process.given = {"giver": ["task"]}
    stranger = await process.turn("stranger")
    await process.turn("giver")
    assert process.started == ["stranger"]
    await process.over(stranger)
    assert process.started == ["stranger", "giver"]


async def test_a_wait_of_code_that_outlives_its_turn_changes_nothing(process: Process) -> None:
    ended = await process.turn("ended")
    await process.over(ended)
    call = await process.wait(ended, ANY_CHANNEL)
    await process.turn("next")
    await process.turn("behind")
    assert process.started == ["ended", "next"]
    await call.end()
    await soon(call.returned)
