"""A turn that ends its process again and again is given up, and the channel goes on without it."""

from __future__ import annotations

import asyncio

import pytest

from antiphon import Channel, Reply, Request, calls, says
from antiphon.engines.turn import MOST_ATTEMPTS
from tests.engines.crashes import Crashes, Mind, crashes, so


async def crash(place: Crashes, times: int = MOST_ATTEMPTS) -> None:
    """Let so many hubs, one after the other, die while the model is asked. The first asks it something."""
    for _ in range(times):
        mind = Mind()
        await place.next_hub(mind)
        await so(lambda mind=mind: mind.thinks)


async def asked_and_crashed(place: Crashes, type: str = "conversation", *, by: str = "ann") -> None:
    """A turn that has ended its process as often as it may."""
    mind = Mind()
    await place.next_hub(mind)
    await place.open(type, by=by)
    await so(lambda: mind.thinks)
    await crash(place, MOST_ATTEMPTS - 1)


async def test_a_turn_that_ends_its_process_three_times_is_not_begun_again() -> None:
    async with crashes() as place:
        await asked_and_crashed(place)
        assert (await place.state()).owed[0].attempts == 3
        mind = Mind(says("at last"))
        await place.next_hub(mind)
        [failed] = await place.until("turn.failed")
        assert failed.event_data["reason"] == "poisoned"
        assert "3 times" in str(failed.event_data["detail"])
        assert failed.audience is None
        assert mind.requests == []
        assert len(await place.told("turn.claimed")) == 3
        assert (await place.state()).owed == ()


async def test_two_crashes_are_forgiven() -> None:
    async with crashes() as place:
        mind = Mind()
        await place.next_hub(mind)
        await place.open()
        await so(lambda: mind.thinks)
        await crash(place, 1)
        await place.next_hub(Mind(says("at last")))
        assert await place.answered() == ["at last"]


async def test_a_conversation_stays_open_and_the_next_message_is_answered() -> None:
    async with crashes() as place:
        await asked_and_crashed(place)
        await place.next_hub(Mind(says("better now")))
        await place.until("turn.failed")
        channel = await place.held_by("ann")
        assert channel.state.status == "active"
        assert channel.state.paused == ""
        await channel.send("And now?")
        assert await place.answered() == ["better now"]


async def test_the_messages_that_wait_behind_it_are_answered() -> None:
    async with crashes() as place:
        await asked_and_crashed(place)
        await (await place.held_by("ann")).send("And this?")
        await place.next_hub(Mind(says("this is easy")))
        assert await place.answered() == ["this is easy"]
        assert len(await place.told("turn.failed")) == 1


async def test_in_a_discussion_the_turn_goes_to_a_person() -> None:
    async with crashes() as place:
        await asked_and_crashed(place, "discussion")
        await place.next_hub(Mind(says("better now")))
        await place.until("turn.failed")
        state = await place.state()
        assert (state.status, state.speakers) == ("active", ("ann",))
        assert (await place.told("turn.assigned"))[-1].event_data["reason"] == "turn_failed:poisoned"
        await (await place.held_by("ann")).send("Then I say it again.")
        assert await place.answered() == ["better now"]


async def test_a_consulting_between_programs_ends() -> None:
    async with crashes() as place:
        await asked_and_crashed(place, "consulting", by="sue")
        await place.next_hub(Mind())
        assert await (await place.held_by("sue")).closed(timeout=5) == "turn_failed:poisoned"


async def test_in_a_consulting_a_person_may_ask_again() -> None:
    async with crashes() as place:
        await asked_and_crashed(place, "consulting")
        await place.next_hub(Mind(says("now I know")))
        await place.until("turn.failed")
        channel = await place.held_by("ann")
        assert channel.state.speakers == ("ann",)
        await channel.send("Once more, please.")
        assert await channel.closed(timeout=5) == "answered"


async def look(place: int) -> str:
    return f"seen {place}"


async def test_a_call_that_has_returned_is_progress() -> None:
    """One step forward in each process: it takes many, and comes to its end."""
    async with crashes() as place:
        for number in range(6):
            mind = Mind(calls("look", {"place": number}))
            await place.next_hub(mind, tools=[look])
            if number == 0:
                await place.open()
            await so(lambda mind=mind: len(mind.requests) == 2)
            assert (await place.state()).owed[0].attempts == 0
        mind = Mind(says("seen it all"))
        await place.next_hub(mind, tools=[look])
        assert await place.answered() == ["seen it all"]
        told = [message.text for message in mind.requests[0].messages if message.role == "tool"]
        assert told == [f"seen {number}" for number in range(6)]


async def test_progress_counts_from_the_beginning_again() -> None:
    async with crashes() as place:
        mind = Mind(calls("look", {"place": 1}))
        await place.next_hub(mind, tools=[look])
        await place.open()
        await so(lambda: len(mind.requests) == 2)
        for attempts in range(1, MOST_ATTEMPTS + 1):
            mind = Mind()
            await place.next_hub(mind, tools=[look])
            await so(lambda mind=mind: mind.thinks)
            assert (await place.state()).owed[0].attempts == attempts
        await place.next_hub(Mind(says("too late")), tools=[look])
        [failed] = await place.until("turn.failed")
        assert failed.event_data["reason"] == "poisoned"


async def test_a_clean_shutdown_is_no_crash() -> None:
    async with crashes() as place:
        for number in range(10):
            mind = Mind()
            hub = await place.next_hub(mind)
            if number == 0:
                await place.open()
            await so(lambda mind=mind: mind.thinks)
            await hub.close()
        await place.next_hub(Mind(says("still here")))
        assert await place.answered() == ["still here"]
        assert len(await place.told("turn.released")) == 10
        assert len(await place.told("turn.claimed")) == 11
        assert await place.told("turn.failed") == []


async def test_crashes_before_and_after_a_clean_shutdown_add_up() -> None:
    async with crashes() as place:
        mind = Mind()
        await place.next_hub(mind)
        await place.open()
        await so(lambda: mind.thinks)
        await crash(place, 1)
        mind = Mind()
        hub = await place.next_hub(mind)
        await so(lambda: mind.thinks)
        await hub.close()
        await crash(place, 1)
        await place.next_hub(Mind(says("too late")))
        [failed] = await place.until("turn.failed")
        assert failed.event_data["reason"] == "poisoned"


async def test_who_stops_between_two_calls_has_kept_what_the_first_came_to() -> None:
    async with crashes() as place:
        made: list[int] = []
        gate = asyncio.Event()

        async def slow(number: int) -> str:
            made.append(number)
            await gate.wait()
            return "done"

        hub = await place.next_hub(Mind(calls("slow", {"number": 1})), tools=[slow])
        await place.open()
        await so(lambda: made == [1])
        closing = asyncio.ensure_future(hub.close())
        gate.set()
        await closing
        await place.next_hub(Mind(says("done, it says")), tools=[slow])
        assert await place.answered() == ["done, it says"]
        assert made == [1]


async def test_turns_that_have_ended_two_processes_run_one_at_a_time() -> None:
    """So that one that ends its process takes no innocent one along."""
    async with crashes() as place:
        channels: list[Channel] = []
        for number in range(MOST_ATTEMPTS - 1):
            mind = Mind()
            await place.next_hub(mind)
            if number == 0:
                channels = [await place.open(text=f"question {each}") for each in range(3)]
            await so(lambda mind=mind: len(mind.requests) == 3)
        asked: list[Request] = []
        gates = [asyncio.Event() for _ in channels]

        async def one_by_one(request: Request) -> Reply:
            asked.append(request)
            await gates[len(asked) - 1].wait()
            return says("safe")

        await place.next_hub(one_by_one)
        for number in range(3):
            await so(lambda number=number: len(asked) == number + 1)
            for _ in range(50):
                await asyncio.sleep(0)
            assert len(asked) == number + 1
            gates[number].set()
        for channel in channels:
            place.channel_id = channel.channel_id
            assert await place.answered() == ["safe"]


@pytest.mark.parametrize("type", ["conversation", "discussion"])
async def test_a_poisoned_turn_stays_so_when_the_log_is_read_again(type: str) -> None:
    async with crashes() as place:
        await asked_and_crashed(place, type)
        await place.next_hub(Mind())
        await place.until("turn.failed")
        before = await place.log()
        mind = Mind(says("nobody asked"))
        await place.next_hub(mind)
        for _ in range(50):
            await asyncio.sleep(0)
        assert mind.requests == []
        assert await place.log() == before
