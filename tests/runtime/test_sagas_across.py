"""Sagas across tasks, restarts and hubs, in real files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from antiphon import Agent, Hub, ScriptedModel, calls, delegate, says, tool
from antiphon.core.errors import Denied
from antiphon.core.saga_events import EV_SAGA_CLAIMED, EV_SAGA_COMPENSATION, EV_SAGA_FINISHED, EV_SAGA_REGISTERED
from antiphon.core.sagas import steps_of
from antiphon.engines.saga_records import CompensationMove, RecordSagaEntries, move_draft
from antiphon.guards.saga import saga_memory_of
from antiphon.runtime.approvals import stored_approvals
from antiphon.store.sqlite import SqliteStore
from antiphon.testing import ManualClock
from tests.support.crashing_hubs import crashes
from tests.support.trips import Travel, TripWorld
from tests.support.waiting import NEVER_COMES, let_others_run, soon, wait_until


@asynccontextmanager
async def hub_on(path: Path, *, shared: bool = False, clock: ManualClock | None = None) -> AsyncIterator[Hub]:
    clock = clock or ManualClock()
    hub = await Hub.over(await SqliteStore.open(str(path), clock=clock, exclusive=not shared), clock=clock)
    try:
        yield hub
    finally:
        await hub.close()


async def test_what_a_closed_hub_has_begun_the_next_one_finishes(tmp_path: Path) -> None:
    path, world = tmp_path / "team.db", TripWorld()
    clock = ManualClock()
    async with hub_on(path, clock=clock) as hub:
        travel = Travel(hub, world)
        channel = await travel.open(*world.booking(["flight", "hotel", "car"]))
        await travel.answered(channel)
        world.refuses["hotel"] = 1
        await channel.abort("withdrawn")
        await travel.until(channel, EV_SAGA_COMPENSATION, status="failed")
        assert world.order == ["car"]
    async with hub_on(path, clock=clock) as hub:
        await hub.register(world.agent())
        travel = Travel(hub, world)
        clock.advance(40)
        await travel.finished(channel)
        assert world.order == ["car", "hotel", "flight"]
        assert (world.calls["car"], world.calls["hotel"], world.calls["flight"]) == (1, 2, 1)
        owners = {str(each.event_data["owner"]) for each in await travel.log(channel, EV_SAGA_CLAIMED)}
        assert len(owners) == 2


async def test_a_hub_without_the_agent_leaves_the_saga_until_it_is_registered(tmp_path: Path) -> None:
    path, world, clock = tmp_path / "team.db", TripWorld(), ManualClock()
    async with hub_on(path, clock=clock) as hub:
        travel = Travel(hub, world)
        channel = await travel.open(*world.booking(["flight"]))
        await travel.answered(channel)
    async with hub_on(path, clock=clock) as hub:
        ann = await hub.register("ann", kind="human")
        held = await ann.channel(channel.channel_id)
        await held.abort()
        await let_others_run(50)
        assert (world.order, await hub.approvals()) == ([], [])
        await hub.register(world.agent())
        await Travel(hub, world).finished(channel)
        assert world.order == ["flight"]


@pytest.mark.parametrize("ttl", [None, 60])
async def test_a_stuck_compensation_is_listed_by_the_next_hub_and_by_a_reader_of_the_store(
    tmp_path: Path, ttl: float | None
) -> None:
    path, world, clock = tmp_path / "team.db", TripWorld(), ManualClock()
    world.refuses["flight"] = 100
    async with hub_on(path, clock=clock) as hub:
        travel = Travel(hub, world)
        channel = await travel.open(*world.booking(["flight"]), ttl=ttl)
        await travel.answered(channel)
        clock.advance(61)
        if ttl is None:
            await channel.abort()

        async def stuck() -> None:
            while not await hub.approvals():
                clock.advance(1)
                await let_others_run(1)

        await soon(stuck())
        [before] = await hub.approvals(channel.channel_id)
        assert await stored_approvals(hub.core.store) == [before]
    async with hub_on(path, clock=clock) as hub:
        clock.advance(40)

        async def listed() -> None:
            while not await hub.approvals():
                await let_others_run(1)

        await soon(listed())
        [after] = await hub.approvals()
        assert after == before
        world.refuses["flight"] = 0
        await hub.register(world.agent())
        dana = await hub.register("dana", kind="human")
        await dana.decide(after.approval_id, "retry")
        await Travel(hub, world).finished(channel)


async def test_two_hubs_on_one_store_do_not_both_run_a_saga(tmp_path: Path) -> None:
    path, world, clock = tmp_path / "team.db", TripWorld(), ManualClock()
    world.slow["flight"] = asyncio.Event()
    async with hub_on(path, shared=True, clock=clock) as one, hub_on(path, shared=True, clock=clock) as other:
        travel = Travel(one, world)
        channel = await travel.open(*world.booking(["flight"]))
        await travel.answered(channel)
        await other.register(world.agent())
        await channel.abort()
        await wait_until(lambda: world.calls["flight"] == 1)
        other.core.sagas.look_at(await other.core.live(channel.channel_id))
        await let_others_run(200)
        assert world.calls["flight"] == 1
        world.slow["flight"].set()
        await travel.finished(channel)
        assert len(await travel.log(channel, EV_SAGA_CLAIMED)) == 1


async def test_what_an_owner_records_under_an_earlier_claim_is_refused(tmp_path: Path) -> None:
    path, world, clock = tmp_path / "team.db", TripWorld(), ManualClock()
    async with hub_on(path, clock=clock) as hub:
        travel = Travel(hub, world)
        channel = await travel.open(*world.booking(["flight"]))
        await travel.answered(channel)
        world.slow["flight"] = asyncio.Event()
        await channel.abort()
        await wait_until(lambda: world.calls["flight"] == 1)
        [step] = steps_of(await travel.log(channel)).values()
        late = move_draft(channel.channel_id, step, CompensationMove("done"))
        with pytest.raises(Denied) as denied:
            await channel._live.submit(RecordSagaEntries((late,), 0, hub.core.new_id))
        assert denied.value.reason == "fenced"
        world.slow["flight"].set()
        await travel.finished(channel)


async def test_calls_of_tasks_are_registered_in_the_channel_of_the_run_and_undone_with_it(tmp_path: Path) -> None:
    world, clock = TripWorld(), ManualClock()
    async with hub_on(tmp_path / "team.db", clock=clock) as hub:
        worker = world.agent(calls("book", {"what": "hotel"}), says("Hotel booked."), name="worker")
        model = ScriptedModel(
            [
                calls("book", {"what": "flight"}),
                calls("delegate_to_worker", {"task": "Book a hotel"}),
                calls("book", {"what": "car"}),
                says("All booked."),
            ]
        )
        lead = Agent("bob", model=model, tools=[world.book, delegate(worker)])
        ann = await hub.register("ann", kind="human")
        await hub.register(lead)
        await hub.register(worker)
        channel = await ann.open(target="bob", say="Book")
        travel = Travel(hub, world)
        await travel.answered(channel)
        registered = [each.event_data["step"] for each in await travel.log(channel, EV_SAGA_REGISTERED)]
        assert len(registered) == 3
        task = str(registered[1]).partition(" ")[0]
        assert task != channel.channel_id
        assert not [each for each in await hub.log(task) if each.event_type.startswith("antiphon.saga")]
        await channel.abort()
        await travel.finished(channel)
        assert world.order == ["car", "hotel", "flight"]
        assert world.results == ["car booked", "hotel booked", "flight booked"]


async def test_a_task_that_still_runs_is_ended_first_and_its_call_undone(tmp_path: Path) -> None:
    world, clock = TripWorld(), ManualClock()
    world.gates["hotel"] = asyncio.Event()
    async with hub_on(tmp_path / "team.db", clock=clock) as hub:
        worker = world.agent(calls("book", {"what": "hotel"}), says("Hotel booked."), name="worker")
        model = ScriptedModel(
            [calls("book", {"what": "flight"}), calls("delegate_to_worker", {"task": "Book"}), says("Booked.")]
        )
        ann = await hub.register("ann", kind="human")
        await hub.register(Agent("bob", model=model, tools=[world.book, delegate(worker)]))
        await hub.register(worker)
        channel = await ann.open(target="bob", say="Book")
        await wait_until(lambda: "hotel" in world.booked.values())
        await channel.abort()
        travel = Travel(hub, world)
        await travel.finished(channel)
        assert world.order == ["hotel", "flight"]
        [finished] = await travel.log(channel, EV_SAGA_FINISHED)
        assert finished.event_data == {"done": 2, "stuck": 0, "skipped": 0}


async def test_an_unsafe_compensation_in_flight_at_a_crash_waits_for_a_person() -> None:
    undone: list[str] = []
    gone = asyncio.Event()

    @tool(idempotency="unsafe")
    async def unmake(what: str) -> None:
        undone.append(what)
        await gone.wait()

    @tool(compensate=unmake)
    async def make(what: str) -> str:
        return what

    async with crashes() as place:
        await place.next_hub(ScriptedModel([calls("make", {"what": "a"}), says("Made.")]), tools=[make])
        channel = await place.open()
        await place.answered()
        await channel.abort()
        await wait_until(lambda: bool(undone))
        hub = await place.next_hub(ScriptedModel([]), tools=[make])
        place.clock.advance(40)

        async def listed() -> None:
            while not await hub.approvals():
                await let_others_run(1)

        await soon(listed())
        [approval] = await hub.approvals()
        assert (approval.why, approval.tool, undone) == ("in_doubt", "unmake", ["a"])
        await place.people["ann"].decide(approval.approval_id, "done")
        await place.until("saga.finished")
        assert undone == ["a"]
        gone.set()


async def test_another_hub_takes_a_saga_over_whose_owner_has_died(tmp_path: Path) -> None:
    path, world, clock = tmp_path / "team.db", TripWorld(), ManualClock()
    world.slow["flight"] = asyncio.Event()
    async with hub_on(path, shared=True, clock=clock) as one, hub_on(path, shared=True, clock=clock) as other:
        travel = Travel(one, world)
        channel = await travel.open(*world.booking(["flight"]))
        await travel.answered(channel)
        await other.register(world.agent())
        assert not (await other.core.live(channel.channel_id)).state.ended  # what it knows is older than the log
        await channel.abort()
        await wait_until(lambda: world.calls["flight"] == 1)
        for task in list(one.core._tasks):  # what a dead process does no more
            task.cancel()
        await let_others_run()
        del world.slow["flight"]
        async with asyncio.timeout(NEVER_COMES):
            while not saga_memory_of((await other.core.live(channel.channel_id)).fold).finished:
                clock.advance(1)  # the lease and the claim of the dead hub run out
                await let_others_run(50)
        assert (world.calls["flight"], world.order) == (2, ["flight"])
        assert len(await travel.log(channel, EV_SAGA_CLAIMED)) == 2
