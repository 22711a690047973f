"""After a restart, owed turns are resumed a few at a time, and nothing that is fresh waits behind them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from antiphon import (
    EV_PACKET,
    EV_TEXT,
    Agent,
    Channel,
    Envelope,
    Hub,
    Limits,
    Participant,
    Reply,
    Request,
    TransitionGraph,
    UsageError,
    says,
)
from antiphon.testing import ManualClock
from tests.support.given_tasks import Kept, giver
from tests.support.kept_store import KeptStore
from tests.support.waiting import NEVER_COMES, let_others_run, soon

MOST = 3
PROOF = os.environ.get("ANTIPHON_PROOF") == "1"


class Crowd:
    """A model that counts how many ask it at once, and answers them when it may."""

    def __init__(self, *, open_gate: bool = False) -> None:
        self.now = self.most = self.answered = 0
        self.heard: list[str] = []
        self._gate = asyncio.Semaphore(0)
        self._open = open_gate

    async def __call__(self, request: Request) -> Reply:
        self.heard.append(request.messages[-1][1])
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            if self._open:
                await let_others_run(2)
            else:
                await self._gate.acquire()
        finally:
            self.now -= 1
        self.answered += 1
        return says(f"re: {self.heard[-1]}")

    def let(self, many: int = 1) -> None:
        """Let so many be answered."""
        for _ in range(many):
            self._gate.release()

    def let_all(self) -> None:
        self._open = True
        self.let(10_000)


async def until(so: object, *, within: float = NEVER_COMES) -> None:
    async with asyncio.timeout(within):
        while not so():  # type: ignore[operator]
            await let_others_run(1)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> KeptStore:
    return KeptStore(clock=clock)


async def owed(store: KeptStore, clock: ManualClock, many: int) -> list[str]:
    """So many channels, in each of which an agent owes an answer."""
    hub = await Hub.over(store, clock=clock, engine=None)
    await hub.register(Agent("bob", model=says_nothing))
    ann = await hub.register("ann")
    found = []
    for number in range(many):
        channel = await ann.open(target="bob")
        await channel.send(f"old {number}")
        found.append(channel.channel_id)
    await hub.close()
    return found


async def says_nothing(request: Request) -> Reply:
    raise AssertionError("this hub runs no turns")


@pytest.fixture
async def hub(store: KeptStore, clock: ManualClock) -> AsyncIterator[Hub]:
    """A hub that is opened after ten turns were owed."""
    await owed(store, clock, 10)
    hub = await Hub.over(store, clock=clock, resume_at_once=MOST)
    yield hub
    await hub.close()


async def ask(hub: Hub, text: str) -> Channel:
    ann = hub.core.acceptors.get("ann")
    speaker = await hub.register("ann") if "ann" not in hub.core.acceptors else await hub.register(f"ann-{text}")
    assert ann is None
    channel = await speaker.open(target="bob")
    await channel.send(text)
    return channel


async def answers(hub: Hub) -> int:
    rows = await hub.channels()
    logs = [await hub.log(row.channel_id) for row in rows]
    return sum(each.sender_id == "bob" and each.event_type == EV_TEXT for log in logs for each in log)


async def test_no_more_than_the_limit_ask_at_once_and_all_are_answered(hub: Hub) -> None:
    model = Crowd()
    await hub.register(Agent("bob", model=model))
    await until(lambda: model.now == MOST)
    await let_others_run(100)
    assert (model.now, len(model.heard)) == (MOST, MOST)
    model.let_all()
    await until(lambda: model.answered == 10)
    assert model.most == MOST
    await until(lambda: not hub.core.dispatch._limit._resumed)


async def test_what_has_not_begun_is_not_claimed(hub: Hub) -> None:
    model = Crowd()
    await hub.register(Agent("bob", model=model))
    await until(lambda: model.now == MOST)
    await let_others_run(100)
    logs = [await hub.log(row.channel_id) for row in await hub.channels()]
    assert sum(each.event_type == "antiphon.turn.claimed" for log in logs for each in log) == MOST
    model.let_all()


async def test_a_fresh_message_has_the_next_place(hub: Hub) -> None:
    model = Crowd()
    await hub.register(Agent("bob", model=model))
    await until(lambda: model.now == MOST)
    await ask(hub, "fresh")
    await let_others_run(100)
    model.let()
    await until(lambda: "fresh" in model.heard)
    assert (model.heard.index("fresh"), model.most) == (MOST, MOST)
    model.let_all()
    await until(lambda: model.answered == 11)


async def test_the_backlog_does_not_starve_behind_fresh_messages(hub: Hub) -> None:
    model = Crowd()
    await hub.register(Agent("bob", model=model))
    await until(lambda: model.now == MOST)
    for number in range(80):
        await ask(hub, f"fresh-{number}")
    await let_others_run(100)
    for _ in range(75):
        model.let()
        await let_others_run(20)
    assert sum(text.startswith("old") for text in model.heard) > MOST
    model.let_all()
    await until(lambda: model.answered == 90)
    assert model.most == MOST


async def test_when_all_are_resumed_there_is_no_limit(hub: Hub) -> None:
    model = Crowd()
    await hub.register(Agent("bob", model=model))
    model.let(10)
    await until(lambda: model.answered == 10)
    for number in range(2 * MOST):
        await ask(hub, f"fresh-{number}")
    await until(lambda: model.now == 2 * MOST)
    model.let_all()


async def test_turns_that_wait_for_a_task_hold_no_place(clock: ManualClock) -> None:
    """Each resumed turn goes on with a task of another agent, whose turn is resumed too: with one place for all."""
    kept = Kept(clock)
    first, stuck = await kept.hub(), Crowd()
    boss = giver(Agent("worker", model=stuck))
    await first.register(boss)
    ann = await first.register("ann")
    channels = [await ann.open(target=boss.name) for _ in range(4)]
    for channel in channels:
        await channel.send("go")
    await until(lambda: stuck.now == 4)
    await soon(first.close())
    assert kept.store is not None
    worker = Agent("worker", model=Crowd(open_gate=True))
    hub = await Hub.over(kept.store, clock=clock, resume_at_once=1)
    await hub.register(giver(worker))
    async with asyncio.timeout(20):
        for channel in channels:
            while (await hub.log(channel.channel_id))[-1].event_data.get("text") != "re: look":
                await let_others_run(1)
    assert worker.model.most == 1
    await hub.close()


async def test_a_model_that_asks_another_agent_gives_its_place_up(store: KeptStore, clock: ManualClock) -> None:
    first = await Hub.over(store, clock=clock, engine=None)
    await first.register(Agent("bob", model=says_nothing))
    channel = await (await first.register("ann")).open(target="bob")
    await channel.send("go")
    await first.close()
    hub = await Hub.over(store, clock=clock, resume_at_once=1)
    sage = Agent("sage", model=Crowd(open_gate=True))

    async def asks(request: Request) -> Reply:
        return says((await sage.invoke("why?", hub=hub)).text)

    await hub.register(Agent("bob", model=asks))
    async with asyncio.timeout(20):
        while (await hub.log(channel.channel_id))[-1].event_data.get("text") != "re: why?":
            await let_others_run(1)
    await hub.close()


async def _closed(hub: Hub, helper: Participant, channel: Channel) -> None:
    await channel.closed()


async def _subscribed(hub: Hub, helper: Participant, channel: Channel) -> None:
    async for envelope in hub.subscribe(channel.channel_id):
        if envelope.event_type == EV_PACKET:
            return


async def _read(hub: Hub, helper: Participant, channel: Channel) -> None:
    async for envelope in helper.inbox():
        if envelope.event_type == EV_PACKET:
            return


@pytest.mark.parametrize("waits", [_closed, _subscribed, _read])
async def test_a_model_that_waits_for_another_channel_gives_its_place_up(
    waits: Callable[[Hub, Participant, Channel], Awaitable[None]], store: KeptStore, clock: ManualClock
) -> None:
    first = await Hub.over(store, clock=clock, engine=None)
    await first.register(Agent("bob", model=says_nothing))
    channel = await (await first.register("ann")).open(target="bob", say="go")
    await first.close()
    hub = await Hub.over(store, clock=clock, resume_at_once=1)
    helper = await hub.register("helper")
    await hub.register(Agent("sage", model=Crowd(open_gate=True)))
    graph = TransitionGraph.sequence(["helper", "sage"])

    async def asks(request: Request) -> Reply:
        asked = await helper.open(type="workflow", target="sage", knobs={"graph": graph}, say="why?")
        await waits(hub, helper, asked)
        return says("heard")

    await hub.register(Agent("bob", model=asks))
    async with asyncio.timeout(20):
        while (await hub.log(channel.channel_id))[-1].event_data.get("text") != "heard":
            await let_others_run(1)
    await hub.close()


async def test_waiting_for_a_place_does_not_count_against_a_default(hub: Hub, clock: ManualClock) -> None:
    model = Crowd()
    await hub.register(Agent("bob", model=model, limits=Limits(model_seconds=None)))
    await until(lambda: model.now == MOST)
    for _ in range(62):
        await clock.advance(10)
    await until(lambda: len(model.heard) == 2 * MOST)
    logs = [await hub.log(row.channel_id) for row in await hub.channels()]
    assert _reasons(logs, "antiphon.turn.failed") == ["deadline"] * MOST
    assert _reasons(logs, "antiphon.deadline.extended") == ["backlog"] * (10 - MOST)
    model.let_all()
    await until(lambda: model.answered == 10 - MOST)


def _reasons(logs: list[list[Envelope]], event_type: str) -> list[object]:
    return [each.event_data["reason"] for log in logs for each in log if each.event_type == event_type]


async def test_a_turn_that_waits_for_a_place_is_put_back_when_the_hub_closes(hub: Hub) -> None:
    model = Crowd()
    await hub.register(Agent("bob", model=model))
    await until(lambda: model.now == MOST)
    await ask(hub, "fresh")
    await let_others_run(50)
    closing = asyncio.ensure_future(hub.close())
    await let_others_run(50)
    model.let(MOST)
    await soon(closing)
    assert (len(model.heard), model.answered) == (MOST, MOST)


@pytest.mark.parametrize("most", [0, -1, 1.5, True, "many", None])
async def test_a_limit_that_is_none_is_refused(most: object, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"resume_at_once is {most!r}; give a number of turns, 1 or more"):
        Hub.open(f"sqlite:///{tmp_path / 'team.db'}", resume_at_once=most)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.proof
async def test_many_turns_on_a_file(tmp_path: Path) -> None:
    url, many, limit = f"sqlite:///{tmp_path / 'team.db'}", 2000 if PROOF else 200, 64
    async with Hub.open(url, engine=None) as hub:
        await hub.register(Agent("bob", model=says_nothing))
        ann = await hub.register("ann")
        channels = await asyncio.gather(*(ann.open(target="bob") for _ in range(many)))
        await asyncio.gather(*(channel.send("old") for channel in channels))
    model = Crowd(open_gate=True)
    async with Hub.open(url, resume_at_once=limit) as hub:
        await hub.register(Agent("bob", model=model))
        await until(lambda: model.answered)
        fresh = await (await hub.register("eve")).open(target="bob")
        await fresh.send("fresh")
        async with asyncio.timeout(60):
            while (await hub.log(fresh.channel_id))[-1].sender_id != "bob":
                await let_others_run(1)
        assert model.answered < many
        await until(lambda: model.answered == many + 1, within=10 * NEVER_COMES)  # 2,000 turns, on a busy disk
        assert model.most <= limit
        rows = await hub.channels(participant="bob")
        logs = [await hub.log(row.channel_id) for row in rows[:20]]
        assert all(any(each.sender_id == "bob" for each in log) for log in logs)
