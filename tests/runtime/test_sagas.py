"""Sagas: what a run has done is undone when it ends in failure, the last first, and once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from antiphon import Channel, Denied, Hub, UsageError, calls, says, tool
from antiphon.core.saga_events import (
    EV_SAGA_COMPENSATION,
    EV_SAGA_EXECUTED,
    EV_SAGA_OWED,
    EV_SAGA_REGISTERED,
)
from antiphon.testing import ManualClock
from tests.support.trips import STEPS, Travel
from tests.support.waiting import NEVER_COMES, let_others_run, wait_until


@pytest.fixture
async def travel() -> AsyncIterator[Travel]:
    async with Hub.open("memory:", clock=ManualClock()) as hub:
        yield Travel(hub)


async def test_an_aborted_run_is_undone_last_first(travel: Travel) -> None:
    channel = await travel.open(*travel.world.booking())
    await travel.answered(channel)
    assert await channel.abort("no budget") == "aborted:no budget"
    assert await travel.finished(channel) == {"done": 5, "stuck": 0, "skipped": 0}
    assert travel.world.order == list(reversed(STEPS))
    assert set(travel.world.cancelled) == {f"{key}:c" for key in travel.world.booked}
    assert travel.world.results == [f"{each} booked" for each in reversed(STEPS)]


async def test_a_call_is_registered_in_the_batch_that_records_it_and_before_it(travel: Travel) -> None:
    channel = await travel.open(*travel.world.booking(["flight"]))
    await travel.answered(channel)
    log = await travel.log(channel)
    at = next(place for place, each in enumerate(log) if each.event_type == EV_SAGA_REGISTERED)
    registered, started = log[at : at + 2]
    turn, index = started.event_data["turn"], started.event_data["index"]
    assert registered.event_data == {
        "step": f"{turn}#{index}",
        "comp_name": "cancel",
        "args_ref": f"{channel.channel_id} {turn}#{index}",
        "order": 1,
        "tool": "book",
    }
    assert (registered.audience, registered.created_at) == (["hub:operators"], started.created_at)
    [executed] = await travel.log(channel, EV_SAGA_EXECUTED)
    outcome = log[executed.sequence - 2]
    assert executed.event_data == {"step": f"{turn}#{index}", "status": "done", "sequence": outcome.sequence}


@pytest.mark.parametrize("reason", ["done", "finished", "abortedly", "max_turns"])
async def test_a_run_that_ends_well_is_not_undone(travel: Travel, reason: str) -> None:
    channel = await travel.open(*travel.world.booking(["flight"]))
    await travel.answered(channel)
    await channel.close(reason)
    await let_others_run()
    assert travel.world.order == []
    assert await travel.log(channel, EV_SAGA_OWED) == []


@pytest.mark.parametrize("reason", ["aborted", "denied:budget", "expired", "deadline", "rejected", "deadlock", "loop"])
async def test_every_end_in_failure_is_undone(travel: Travel, reason: str) -> None:
    channel = await travel.open(*travel.world.booking(["flight"]))
    await travel.answered(channel)
    await channel.close(reason)
    await travel.finished(channel)
    assert travel.world.order == ["flight"]


async def test_a_run_without_calls_that_can_be_undone_owes_nothing(travel: Travel) -> None:
    channel = await travel.open(says("Nothing to book."))
    await travel.answered(channel)
    await channel.abort()
    assert channel.state.close_reason == "aborted"
    assert not any(each.event_type.startswith("antiphon.saga") for each in await travel.log(channel))


async def test_the_reasons_that_mean_failure_can_be_chosen(travel: Travel) -> None:
    channel = await travel.open(
        *travel.world.booking(["flight"]), knobs={"guards": [{"name": "saga", "on": ["withdrawn"]}]}
    )
    await travel.answered(channel)
    await channel.close("withdrawn:by the customer")
    await travel.finished(channel)
    assert travel.world.order == ["flight"]


async def test_a_call_that_failed_is_not_undone(travel: Travel) -> None:
    channel = await travel.open(*travel.world.booking(["flight", "no hotel", "car"]))
    await travel.answered(channel)
    await channel.abort()
    assert (await travel.finished(channel))["done"] == 2
    assert travel.world.order == ["car", "flight"]


async def test_parallel_branches_are_undone_in_the_reverse_order_of_their_outcomes(travel: Travel) -> None:
    """Not in that of their registrations."""
    world = travel.world
    world.gates = {each: asyncio.Event() for each in ("flight", "hotel", "car")}
    both = [calls("book", {"what": each}) for each in ("flight", "hotel", "car")]
    channel = await travel.open(both, says("Booked."))
    for number, each in enumerate(("hotel", "car", "flight"), 1):
        await wait_until(lambda: len(world.booked) == 3)
        world.gates[each].set()
        async with asyncio.timeout(NEVER_COMES):
            while len(await travel.log(channel, EV_SAGA_EXECUTED)) < number and number < 3:
                await let_others_run(1)
    await travel.answered(channel)
    await channel.abort()
    await travel.finished(channel)
    assert world.order == ["flight", "car", "hotel"]


async def test_a_call_that_timed_out_may_have_taken_effect_and_is_undone(travel: Travel) -> None:
    world = travel.world
    world.gates["hotel"] = asyncio.Event()
    channel = await travel.open(*world.booking(["flight", "hotel", "car"]))
    await wait_until(lambda: "hotel" in world.booked.values())
    travel.clock.advance(20)
    await travel.answered(channel)
    [unknown] = [each for each in await travel.log(channel, EV_SAGA_EXECUTED) if each.event_data["status"] != "done"]
    assert unknown.event_data["status"] == "unknown"
    await channel.abort()
    await travel.finished(channel)
    assert world.order == ["car", "hotel", "flight"]


async def test_a_call_in_flight_is_undone_first_and_not_before_it_has_ended(travel: Travel) -> None:
    world = travel.world
    world.gates["hotel"] = asyncio.Event()
    channel = await travel.open(*world.booking(["flight", "hotel"]))
    await wait_until(lambda: "hotel" in world.booked.values())
    await channel.abort()
    await travel.finished(channel)
    assert world.order == ["hotel", "flight"]
    assert world.results == ["", "flight booked"]


async def test_the_compensation_of_an_expired_run_has_time_of_its_own(travel: Travel) -> None:
    world = travel.world
    world.slow["flight"] = asyncio.Event()
    channel = await travel.open(*world.booking(["flight"]), ttl=60)
    await travel.answered(channel)
    travel.clock.advance(61)
    await wait_until(lambda: world.calls["flight"] == 1)
    travel.clock.advance(299)
    await let_others_run()
    assert [each.event_data["status"] for each in await travel.log(channel, EV_SAGA_COMPENSATION)] == ["running"]
    world.slow["flight"].set()
    assert await travel.finished(channel) == {"done": 1, "stuck": 0, "skipped": 0}
    assert channel.state.close_reason == "expired"
    assert world.calls["flight"] == 1


async def test_a_compensation_has_three_hundred_seconds_an_attempt(travel: Travel) -> None:
    world = travel.world
    world.slow["flight"] = asyncio.Event()
    channel = await travel.open(*world.booking(["flight"]))
    await travel.answered(channel)
    await channel.abort()
    await wait_until(lambda: world.calls["flight"] == 1)
    travel.clock.advance(300)
    failed = await travel.until(channel, EV_SAGA_COMPENSATION, status="failed")
    assert (failed.event_data["why"], failed.event_data["attempt"]) == ("timeout", 1)
    world.slow["flight"].set()
    travel.clock.advance(1)
    await travel.finished(channel)
    assert world.order == ["flight"]


async def test_cancelling_and_closing_do_not_cut_a_compensation_off(travel: Travel) -> None:
    world = travel.world
    world.slow["hotel"] = asyncio.Event()
    channel = await travel.open(*world.booking(["flight", "hotel"]))
    await travel.answered(channel)
    await channel.abort()
    await wait_until(lambda: world.calls["hotel"] == 1)
    assert await channel.cancel("stop it") == 0
    assert await channel.close("really") == "aborted"
    await channel.abort("once more")
    world.slow["hotel"].set()
    await travel.finished(channel)
    assert (world.order, world.calls["hotel"]) == (["hotel", "flight"], 1)


async def test_people_and_code_abort_and_agents_do_not(travel: Travel) -> None:
    channel = await travel.open(*travel.world.booking(["flight"]))
    await travel.answered(channel)
    with pytest.raises(Denied) as denied:
        await Channel(channel._core, channel._live, "bob").abort()
    assert denied.value.reason == "not_a_person"
    with pytest.raises(UsageError, match="the reason is 'xxxx"):
        await channel.abort("x" * 500)
    assert channel.state.status == "active"


async def test_a_fork_undoes_what_it_has_done_itself_and_nothing_of_before(travel: Travel) -> None:
    channel = await travel.open(*travel.world.booking(["flight"]))
    await travel.answered(channel)
    fork = await channel.fork(at=channel.state.sequence)
    await fork.send("Another one")
    await wait_until(lambda: fork.state.turn_count == 4)
    before, after = travel.world.booked
    await fork.abort()
    await travel.finished(fork)
    assert list(travel.world.cancelled) == [f"{after}:c"]
    await channel.abort()
    await travel.finished(channel)
    assert list(travel.world.cancelled) == [f"{after}:c", f"{before}:c"]


async def test_a_call_that_another_one_was_made_for_is_undone_with_that_alone(travel: Travel) -> None:
    world = travel.world
    world.book = tool(world.book.function, name="book", once=("what",), compensate=world.cancel)  # type: ignore[assignment]
    three = [calls("book", {"what": "flight", "price": price}) for price in range(3)]
    channel = await travel.open(three, calls("book", {"what": "flight"}), says("Booked."))
    await travel.answered(channel)
    assert [each.event_data["status"] for each in await travel.log(channel, EV_SAGA_EXECUTED)].count("repeated") == 3
    await channel.abort()
    assert await travel.finished(channel) == {"done": 1, "stuck": 0, "skipped": 0}
    assert (len(world.booked), world.order) == (1, ["flight"])


async def test_a_finished_saga_is_not_kept_in_mind(travel: Travel) -> None:
    channel = await travel.open(*travel.world.booking(["flight"]))
    await travel.answered(channel)
    await channel.abort()
    await travel.finished(channel)
    await wait_until(lambda: not travel.hub.core.sagas.channel_ids)
    travel.clock.advance(31)  # it is looked at once more
    async with asyncio.timeout(NEVER_COMES):
        while await travel.hub.core.store.next_due():
            await let_others_run(1)


async def test_the_deadline_of_a_run_does_not_hold_for_undoing_it(travel: Travel) -> None:
    knobs = {"guards": [{"name": "deadlines", "run": 60}]}
    channel = await travel.open(*travel.world.booking(["flight", "hotel"]), knobs=knobs)
    await travel.answered(channel)
    travel.clock.advance(3600)
    await channel.abort()
    assert await travel.finished(channel) == {"done": 2, "stuck": 0, "skipped": 0}
    assert travel.world.order == ["hotel", "flight"]


async def test_a_call_in_doubt_may_have_taken_effect_and_is_undone(travel: Travel) -> None:
    """The person who was asked about it is not asked any more."""
    world, made = travel.world, []

    @tool(idempotency="unsafe", timeout=5, compensate=world.cancel)
    async def wire(what: str) -> str:
        made.append(what)
        await asyncio.Event().wait()
        return "wired"

    world.book = wire  # type: ignore[assignment]
    channel = await travel.open(calls("wire", {"what": "money"}), says("Wired."))
    await wait_until(lambda: bool(made))
    travel.clock.advance(5)
    async with asyncio.timeout(NEVER_COMES):
        while not await travel.hub.approvals():
            await let_others_run(1)
    await channel.abort()
    await travel.finished(channel)
    assert (world.order, made) == (["money"], ["money"])
    assert await travel.hub.approvals() == []


async def test_a_call_that_a_deadline_of_the_run_cut_off_may_have_taken_effect_and_is_undone(travel: Travel) -> None:
    world = travel.world
    world.gates["hotel"] = asyncio.Event()
    knobs = {"guards": [{"name": "deadlines", "step": "unlimited", "stage": "unlimited", "run": 10}]}
    channel = await travel.open(*world.booking(["flight", "hotel"]), knobs=knobs)
    await wait_until(lambda: "hotel" in world.booked.values())
    travel.clock.advance(10)
    async with asyncio.timeout(NEVER_COMES):
        while len(await travel.log(channel, EV_SAGA_EXECUTED)) < 2:
            await let_others_run(1)
    assert [each.event_data["status"] for each in await travel.log(channel, EV_SAGA_EXECUTED)] == ["done", "unknown"]
    await channel.abort()
    await travel.finished(channel)
    assert world.order == ["hotel", "flight"]
