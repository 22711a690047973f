"""A turn that was in progress when a process died: it pauses, runs alone among its kind, and at the limit waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise

import pytest

from antiphon import Agent, Channel, Denied, Hub, Limits, Reply, Request, UsageError, calls, delegate, says, tool
from antiphon.agents.tool import Tool
from antiphon.core.envelope import seconds_between
from antiphon.core.execution_events import MAX_CRASH_PAUSE_SECONDS, crash_pause
from antiphon.engines.local import LocalEngine
from antiphon.testing.takeover_checks import HeldModel as LongMind
from antiphon.testing.takeover_checks import TakeoverFixture
from tests.support.crashing_hubs import Crashes, Mind, crashes
from tests.support.waiting import let_others_run, wait_until


async def crash(place: Crashes, times: int, **options: object) -> None:
    """Let so many hubs, one after the other, die while the model is asked."""
    for _ in range(times):
        mind = Mind()
        await place.next_hub(mind, **options)
        await wait_until(lambda mind=mind: mind.thinks)


async def asked_and_crashed(place: Crashes, times: int = 10, type: str = "conversation", **options: object) -> None:
    """A turn whose process has died so many times."""
    mind = Mind()
    await place.next_hub(mind, **options)
    await place.open(type)
    await wait_until(lambda: mind.thinks)
    await crash(place, times - 1, **options)


async def suspended(place: Crashes, type: str = "conversation") -> None:
    await asked_and_crashed(place, 10, type)
    await place.next_hub(Mind(says("at last")))
    await place.until("turn.suspended")


@pytest.mark.parametrize("jitter", [0.0, 0.5, 1.0])
def test_pauses_double_from_a_second_to_five_minutes(jitter: float) -> None:
    pauses = [crash_pause(crashes, jitter) for crashes in range(1, 13)]
    assert 1.0 <= pauses[0] <= 1.25
    for shorter, longer in pairwise(pauses[:8]):
        assert longer == pytest.approx(2 * shorter)
    assert 240.0 <= pauses[-1] <= MAX_CRASH_PAUSE_SECONDS
    assert pauses == sorted(pauses)


async def test_a_turn_pauses_after_a_crash_and_longer_after_the_next() -> None:
    async with crashes() as place:
        place.store.pauses = True
        await asked_and_crashed(place, 1)
        for count in (1, 2, 3):
            mind = Mind()
            await place.next_hub(mind)
            delayed = (await place.until("turn.delayed", count))[-1]
            data = delayed.event_data
            assert data["crashes"] == count
            pause = seconds_between(delayed.created_at, str(data["until"]))
            assert 2 ** (count - 1) <= pause <= 1.25 * 2 ** (count - 1)
            [turn] = (await place.state()).owed
            assert (turn.not_before, turn.crashes) == (data["until"], count)
            await place.clock.advance(pause - 0.01)
            await let_others_run(30)
            assert mind.requests == []
            await place.clock.advance(0.02)
            await wait_until(lambda mind=mind: mind.thinks)
            assert (await place.state()).owed[0].not_before == ""


async def test_a_kill_during_the_pause_starts_no_new_one() -> None:
    async with crashes() as place:
        place.store.pauses = True
        await asked_and_crashed(place, 1)
        await place.next_hub(Mind())
        [delayed] = await place.until("turn.delayed")
        for _ in range(3):
            await place.clock.advance(0.1)
            await place.next_hub(Mind(says("here")))
            await let_others_run(50)
        assert await place.told("turn.delayed") == [delayed]
        await place.clock.advance(seconds_between(place.now(), str(delayed.event_data["until"])))
        assert await place.answered() == ["here"]
        assert await place.told("turn.delayed") == [delayed]


async def test_a_pause_that_a_clock_set_back_would_make_endless_is_over() -> None:
    async with crashes() as place:
        place.store.pauses = True
        await asked_and_crashed(place, 1)
        await place.next_hub(Mind())
        await place.until("turn.delayed")
        place.clock.set(-7200)
        await place.next_hub(Mind(says("here")))
        assert await place.answered() == ["here"]


async def test_a_clean_shutdown_is_no_crash_and_causes_no_pause() -> None:
    async with crashes() as place:
        place.store.pauses = True
        for number in range(12):
            mind = Mind()
            hub = await place.next_hub(mind)
            if number == 0:
                await place.open()
            await wait_until(lambda mind=mind: mind.thinks)
            await hub.close()
        await place.next_hub(Mind(says("still here")))
        assert await place.answered() == ["still here"]
        assert len(await place.told("turn.released")) == 12
        assert await place.told("turn.delayed", "turn.suspended", "turn.failed") == []


async def test_a_decision_about_a_doubt_after_a_restart_causes_no_pause() -> None:
    async with crashes() as place:
        place.store.pauses = True

        paying = asyncio.Event()

        @tool(idempotency="unsafe", timeout=0.5)
        async def pay() -> str:
            paying.set()
            await asyncio.Event().wait()
            return "paid"

        await place.next_hub(Mind(calls("pay")), tools=[pay])
        await place.open()
        await wait_until(paying.is_set)
        await place.clock.advance(1)
        await place.until("call.doubted")
        hub = await place.next_hub(Mind(says("fine")), tools=[pay])
        [waiting] = await hub.approvals()
        await place.people["ann"].decide(waiting.approval_id, "respond", text="receipt 7")
        assert await place.answered() == ["fine"]
        assert await place.told("turn.delayed") == []


async def test_at_the_limit_the_turn_waits_for_a_person() -> None:
    async with crashes() as place:
        await suspended(place)
        [told] = await place.told("turn.suspended")
        assert (told.event_data["crashes"], told.audience) == (10, None)
        assert len(await place.told("turn.claimed")) == 10
        [turn] = (await place.state()).owed
        assert turn.suspended
        assert turn.waits_for_person
        assert await place.told("turn.failed") == []
        mind = Mind(says("nobody asked"))
        await place.next_hub(mind)
        await place.clock.advance(86_400 * 365)
        await let_others_run(50)
        assert mind.requests == []
        assert (await place.state()).owed == (turn,)


@pytest.mark.parametrize("type", ["discussion", "consulting"])
async def test_deadlines_stand_still_while_a_turn_waits_for_a_person(type: str) -> None:
    async with crashes() as place:
        await suspended(place, type)
        await place.clock.advance(86_400)
        await let_others_run(50)
        state = await place.state()
        assert (state.status, state.owed[0].suspended) == ("active", True)


async def test_pauses_do_not_use_up_the_time_of_a_turn() -> None:
    """In a discussion a turn has 600 seconds. Ten crashes have pauses of more than that in between."""
    async with crashes() as place:
        await asked_and_crashed(place, 9, "discussion")
        await place.next_hub(Mind(says("at last")))
        assert await place.answered() == ["at last"]
        assert await place.told("channel.expectation_violated", "expectation.missed") == []


async def test_nine_crashes_are_forgiven() -> None:
    async with crashes() as place:
        await asked_and_crashed(place, 9)
        await place.next_hub(Mind(says("at last")))
        assert await place.answered() == ["at last"]


async def test_the_limit_is_a_setting() -> None:
    async with crashes() as place:
        place.limits = Limits(model_seconds=None, crashes=2)
        await asked_and_crashed(place, 2)
        await place.next_hub(Mind(says("too late")))
        [told] = await place.until("turn.suspended")
        assert told.event_data["crashes"] == 2


async def test_without_a_limit_it_never_stops() -> None:
    async with crashes() as place:
        place.limits = Limits(model_seconds=None, crashes=None)
        await asked_and_crashed(place, 25)
        await place.next_hub(Mind(says("at last")))
        assert await place.answered() == ["at last"]
        assert len(await place.told("turn.delayed")) == 25


@pytest.mark.parametrize("wrong", [0, -1, True, 2.5, "10"])
def test_what_is_no_limit_is_refused(wrong: object) -> None:
    with pytest.raises(UsageError, match=r"crashes is .* give a number of crashes"):
        Limits(crashes=wrong)  # type: ignore[arg-type]


async def look(place: int) -> str:
    return f"seen {place}"


async def test_a_call_that_has_returned_is_progress() -> None:
    """One step forward in each process: it takes many, and comes to its end."""
    async with crashes() as place:
        for number in range(12):
            mind = Mind(calls("look", {"place": number}))
            await place.next_hub(mind, tools=[look])
            if number == 0:
                await place.open()
            await wait_until(lambda mind=mind: len(mind.requests) == 2)
            assert (await place.state()).owed[0].crashes == 0
        await place.next_hub(Mind(says("seen it all")), tools=[look])
        assert await place.answered() == ["seen it all"]


async def test_suspects_run_one_at_a_time_however_long_that_takes() -> None:
    async with crashes() as place:
        mind = Mind()
        await place.next_hub(mind)
        channels = [await place.open(text=f"question {each}") for each in range(3)]
        await wait_until(lambda: len(mind.requests) == 3)
        asked: list[Request] = []
        gates = [asyncio.Event() for _ in channels]

        async def one_by_one(request: Request) -> Reply:
            asked.append(request)
            await gates[len(asked) - 1].wait()
            return says("safe")

        await place.next_hub(one_by_one)
        for number in range(3):
            await wait_until(lambda number=number: len(asked) == number + 1)
            await place.clock.advance(100)
            await let_others_run(50)
            assert len(asked) == number + 1
            gates[number].set()
        for channel in channels:
            place.channel_id = channel.channel_id
            assert await place.answered() == ["safe"]


async def test_a_suspect_waits_for_a_cleared_turn_which_a_crash_would_hit_again() -> None:
    async with crashes() as place:
        mind = Mind()
        await place.next_hub(mind, tools=[look])
        first, second = [await place.open(text=text) for text in ("first", "second")]
        await wait_until(lambda: len(mind.requests) == 2)
        seen: list[str] = []
        go_on = asyncio.Event()

        async def model(request: Request) -> Reply:
            text = request.messages[0].text
            seen.append(text)
            if seen.count(text) == 1:
                return calls("look", {"place": 1})
            await go_on.wait()
            return says("done")

        await place.next_hub(model, tools=[look])
        await wait_until(lambda: len(seen) == 2)
        await place.clock.advance(100)
        await let_others_run(50)
        assert len(set(seen)) == 1
        go_on.set()
        for channel in (first, second):
            place.channel_id = channel.channel_id
            assert await place.answered() == ["done"]


async def test_fresh_turns_do_not_wait_for_suspects() -> None:
    async with crashes() as place:
        await asked_and_crashed(place, 1)
        mind = Mind()
        await place.next_hub(mind)
        await wait_until(lambda: mind.thinks)
        fresh = await place.people["ann"].open(target="bob")
        await fresh.send("something else")
        await wait_until(lambda: len(mind.requests) == 2)


async def test_who_stops_while_suspects_wait_for_their_place_stops_at_once() -> None:
    async with crashes() as place:
        mind = Mind()
        await place.next_hub(mind)
        for _ in range(3):
            await place.open()
        await wait_until(lambda: len(mind.requests) == 3)
        mind = Mind()
        hub = await place.next_hub(mind)
        await wait_until(lambda: mind.thinks)
        await asyncio.wait_for(hub.close(), 2)
        assert len(mind.requests) == 1


async def test_a_suspect_that_asks_a_suspect_lends_its_place() -> None:
    """The tool of one turn waits for a turn of another channel, and both were in progress during the crash."""
    async with crashes() as place:
        lives = [Mind(), Mind(says("the other says so"))]

        async def resume(mind: Mind) -> list[int]:
            other = Agent("other", model=mind)
            asked: list[int] = []

            async def ask() -> str:
                asked.append(1)
                return (await other.invoke("Well?", thread_id="t", message_id="m", hub=hub)).text

            lead = Mind(calls("ask")) if mind is lives[0] else Mind(says("so it is"))
            hub = await place.next_hub(lead, tools=[tool(idempotency="natural")(ask)])
            await hub.register(other)
            return asked

        await resume(lives[0])
        await place.open()
        await wait_until(lambda: lives[0].thinks)
        await resume(lives[1])
        assert await place.answered() == ["so it is"]


async def test_a_suspect_that_waits_for_a_task_lends_its_place() -> None:
    async with crashes() as place:
        for number, mind in enumerate((Mind(), Mind(says("done")))):
            helper = Agent("helper", model=mind)
            lead = Mind(says("it is done") if number else calls("delegate_to_helper", {"task": "Do it."}))
            hub = await place.next_hub(lead, tools=[delegate(helper)])
            await hub.register(helper)
            if number == 0:
                await place.open()
                await wait_until(lambda mind=mind: mind.thinks)
        assert await place.answered() == ["it is done"]


async def test_a_suspect_that_waits_for_a_channel_to_close_lends_its_place() -> None:
    async with crashes() as place:
        opened: list[str] = []

        async def resume(mind: Mind) -> None:
            async def wait() -> str:
                if not opened:
                    channel = await place.people["sue"].open(target="other", type="consulting")
                    opened.append(channel.channel_id)
                    await channel.send("Well?")
                channel = await place.people["sue"].channel(opened[0])
                return await channel.closed()

            natural = tool(idempotency="natural")(wait)
            hub = await place.next_hub(None)
            lead = Mind(says("it is closed")) if opened else Mind(calls("wait"))
            await hub.register(Agent("bob", model=lead, tools=[natural], limits=place.limits))
            await let_others_run(50)  # bob has the place when the other wants it
            await hub.register(Agent("other", model=mind))

        await resume(mind := Mind())
        await place.open()
        await wait_until(lambda: mind.thinks)
        await resume(Mind(says("Well enough.")))
        assert await place.answered() == ["it is closed"]


async def test_a_turn_that_ends_its_process_every_time_takes_another_along_once() -> None:
    """The killer is what hangs: whenever it has been asked, the process is gone."""
    async with crashes() as place:
        innocent: list[Channel] = []
        for life in range(12):
            killed = asyncio.Event()

            async def model(request: Request, life: int = life, killed: asyncio.Event = killed) -> Reply:
                if request.messages[0].text == "kill":
                    killed.set()
                    await asyncio.Event().wait()
                if life == 0:
                    await asyncio.Event().wait()
                return says("fine")

            await place.next_hub(model)
            if life == 0:
                killer = await place.open(text="kill")
                innocent = [await place.open(text=f"question {number}") for number in range(3)]
                await let_others_run(100)
            place.channel_id = killer.channel_id
            if life < 10:
                await asyncio.wait_for(killed.wait(), 5)
                await let_others_run(30)
        await place.until("turn.suspended")
        for channel in innocent:
            place.channel_id = channel.channel_id
            assert await place.answered() == ["fine"]
            assert len(await place.told("turn.claimed")) == 2


def asking(other: Agent, hub: Callable[[], Hub]) -> Tool:
    """A tool that asks another agent in a thread of its own."""

    @tool(idempotency="natural", timeout=None)
    async def ask() -> str:
        return (await other.invoke("Well?", thread_id="t", message_id="m", hub=hub())).text

    return ask


async def test_it_takes_a_turn_along_once_that_waits_for_another_turn() -> None:
    """The innocent turn asks another agent, which takes longer than the killer needs."""
    async with crashes() as place:
        innocent: Channel | None = None
        for life in range(12):
            killed, thought = asyncio.Event(), asyncio.Event()

            async def model(request: Request, killed: asyncio.Event = killed) -> Reply:
                if request.messages[0].text == "kill":
                    killed.set()
                    await asyncio.Event().wait()
                return says("so it is") if request.exchange else calls("ask")

            async def slow(request: Request, thought: asyncio.Event = thought) -> Reply:
                await thought.wait()
                return says("yes")

            other = Agent("other", model=slow, limits=place.limits)

            hub = await place.next_hub(model, tools=[asking(other, lambda: place.hub)])
            await hub.register(other)
            if life == 0:
                killer, innocent = await place.open(text="kill"), await place.open(text="ask")
            await let_others_run(100)
            if life > 0:
                thought.set()
            place.channel_id = killer.channel_id
            if life < 10:
                await asyncio.wait_for(killed.wait(), 5)
                await let_others_run(30)
        await place.until("turn.suspended")
        assert innocent is not None
        place.channel_id = innocent.channel_id
        assert await place.answered() == ["so it is"]
        assert len(await place.told("turn.claimed")) == 2


async def test_messages_behind_a_suspended_turn_wait_too() -> None:
    async with crashes() as place:
        await suspended(place)
        channel = await place.held_by("ann")
        await channel.send("And this?")
        mind = Mind(says("this is easy"))
        hub = await place.next_hub(mind)
        await let_others_run(50)
        assert mind.requests == []
        [waiting] = await hub.approvals()
        await place.people["ann"].decide(waiting.approval_id, "reject", reason="never mind")
        assert await place.answered() == ["this is easy"]


async def test_a_person_is_told_instead_of_waiting_for_a_suspended_turn() -> None:
    async with crashes() as place:
        await suspended(place, "discussion")
        with pytest.raises(Denied, match="waits for a person") as denied:
            await (await place.held_by("ann")).send("Hello?")
        assert denied.value.reason == "suspended"


async def test_a_lost_lease_that_its_owner_notices_is_no_crash() -> None:
    """The store gives no leases for a while. The process lives, and goes on when it has one again, without a pause."""
    scene = TakeoverFixture(LocalEngine)
    try:
        mind = LongMind(says("still here"))
        hub = await scene.hub(mind)
        await scene.ask(hub, mind)
        scene.store.without_leases = True
        await scene.pass_time(3)
        log = [envelope.event_type.split(".", 1)[1] for envelope in await scene.store.log(scene.channel_id)]
        assert log[-1] == "turn.released"
        scene.store.without_leases = False
        mind.may_speak.set()
        await scene.pass_time(5)
        assert await scene.answers() == ["still here"]
        log = [envelope.event_type.split(".", 1)[1] for envelope in await scene.store.log(scene.channel_id)]
        assert (log.count("turn.claimed"), log.count("turn.delayed")) == (2, 0)
    finally:
        await scene.close()
