"""What becomes of tasks whose hub is closed, whose turn is cut off, or whose process ends in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import cast

import pytest

from antiphon import (
    Agent,
    Asked,
    Envelope,
    Hub,
    Reply,
    Request,
    ScriptedModel,
    TurnChannel,
    TurnFailed,
    Usage,
    calls,
    delegate,
    says,
    tool,
)
from antiphon.agents.messages import Model
from antiphon.agents.tool import Tool
from antiphon.core.envelope import Instant
from antiphon.core.errors import StoreUnavailable
from antiphon.core.events import EV_CHANNEL_CLOSED, EV_TASK_FAILED, EV_TURN_FAILED
from antiphon.core.execution_events import EV_CALL_STARTED
from antiphon.engines.local import LocalEngine
from antiphon.store.protocol import Appended, Store
from antiphon.testing import ManualClock
from tests.runtime.test_stalls import never
from tests.support.given_tasks import Kept, asking, giver, of_tasks, tasks, used, waiting, words
from tests.support.kept_store import KeptStore
from tests.support.waiting import let_others_run, soon

SPENT = Usage(3, 4)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def hub(clock: ManualClock) -> AsyncIterator[Hub]:
    async with Hub.open("memory:", clock=clock) as hub:
        yield hub


# A hub that is closed


@pytest.mark.parametrize("depth", [1, 3])
async def test_closing_waits_for_the_call_of_a_task_and_not_for_those_who_wait_for_the_task(
    clock: ManualClock, depth: int
) -> None:
    """The call ends at once here, so that the whole grace, a minute, would be waited for nothing but each other."""
    inside, gate = asyncio.Event(), asyncio.Event()
    kept = Kept(clock)

    @tool(timeout=None)
    async def look() -> str:
        """Look."""
        inside.set()
        await gate.wait()
        return "saw"

    agent = Agent("last", model=lambda request: says("Seen.") if request.exchange else calls("look"), tools=[look])
    for number in range(depth):
        agent = giver(agent, name=f"boss{number}")
    hub = await kept.hub(grace=60)
    asked = asyncio.create_task(agent.invoke("go", thread_id="t", hub=hub, message_id="m"))
    await soon(inside.wait())
    closing = asyncio.create_task(hub.close())
    await let_others_run(100)
    assert not closing.done(), "the call of the task is given time"
    gate.set()
    await soon(closing)
    asked.cancel()
    hub = await kept.hub()
    reply = await soon(agent.invoke("go", thread_id="t", hub=hub, message_id="m"))
    assert reply.text == "Seen."
    assert await words(hub, reply.channel_id) == ["started", "progress", "completed"]
    await hub.close()


def gated(name: str, inside: asyncio.Event, gate: asyncio.Event) -> Tool:
    """A tool that returns when its gate opens."""

    @tool(name=name, timeout=None)
    async def look() -> str:
        """Look."""
        inside.set()
        await gate.wait()
        return "saw"

    return look


async def test_closing_gives_time_to_a_call_beside_one_that_waits_for_a_task(clock: ManualClock) -> None:
    here, there = (asyncio.Event(), asyncio.Event()), (asyncio.Event(), asyncio.Event())
    kept = Kept(clock)
    worker = Agent("worker", asking(calls("peek")), tools=[gated("peek", *there)])
    script = asking(calls("delegate_to_worker", {"task": "x"}), calls("look"))
    boss = giver(worker, gated("look", *here), script=script)
    hub = await kept.hub(grace=60)
    asked = asyncio.create_task(boss.invoke("go", thread_id="t", hub=hub, message_id="m"))
    await soon(here[0].wait())
    await soon(there[0].wait())
    closing = asyncio.create_task(hub.close())
    there[1].set()
    done, _ = await asyncio.wait({closing}, timeout=0.3)
    assert not done, "the turn of the task was stopped, and a call beside it goes on"
    here[1].set()
    await soon(closing)
    asked.cancel()
    hub = await kept.hub()
    reply = await soon(boss.invoke("go", thread_id="t", hub=hub, message_id="m"))
    assert reply.text == "saw | saw"
    log = await hub.log(reply.channel_id)
    started = [each.event_data["name"] for each in log if each.event_type == EV_CALL_STARTED]
    assert started.count("look") == 1, "its result was kept"
    assert started.count("delegate_to_worker") == 2
    await hub.close()


# A task that is cut off


def spending(*after: Reply) -> Model:
    """A model that consumes something, asks for what comes next, and then never answers."""
    replies = [calls("get_time_date", usage=SPENT), *after]

    async def model(request: Request) -> Reply:
        done = sum(isinstance(item, Asked) for item in request.exchange)
        return replies[done] if done < len(replies) else await never(request)

    return model


def three_deep(asked: asyncio.Event, **options: float) -> Agent:
    """An agent whose task has a task that is never done. Both of those below consume something."""

    async def last(request: Request) -> Reply:
        if request.exchange:
            asked.set()
        return await spending()(request)

    given = calls("delegate_to_last", {"task": "look"}, usage=Usage(10, 20))
    middle = Agent("middle", spending(given), tools=[delegate(Agent("last", last))])

    @tool(name="ask", timeout=options.get("timeout"))
    async def ask(channel: TurnChannel) -> str:
        """Ask."""
        return (await channel.delegate(middle, "look", ttl=options.get("ttl"))).text

    return giver(ask)


BOTH = SPENT + Usage(10, 20) + SPENT


async def ended(hub: Hub, channel_id: str) -> dict[str, object]:
    """The data of the end of the one task of a channel, as soon as it is recorded."""
    async with asyncio.timeout(5):
        while (last := (await of_tasks(hub, channel_id))[-1])[0] not in ("failed", "expired", "completed"):
            await let_others_run(1)
    return last[1]


@pytest.mark.parametrize(("how", "reason"), [("timeout", "timed_out"), ("ttl", "expired")])
async def test_what_a_task_of_a_task_consumed_counts_when_its_time_is_up(
    hub: Hub, clock: ManualClock, how: str, reason: str
) -> None:
    asked = asyncio.Event()
    asking = asyncio.create_task(three_deep(asked, **{how: 10}).invoke("go", hub=hub))
    await soon(asked.wait())
    await let_others_run(50)
    await clock.advance(10)
    reply = await soon(asking)
    assert reply.usage == BOTH
    end = await ended(hub, reply.channel_id)
    assert (end["reason"], end["usage"]) == (reason, used(16, 28))
    assert {status for status, _ in await tasks(hub)} <= {"closed", "expired"}


async def test_what_a_task_of_a_task_consumed_counts_when_its_turn_is_cancelled(hub: Hub) -> None:
    asked = asyncio.Event()
    boss = three_deep(asked)
    asking = asyncio.create_task(boss.invoke("go", thread_id="t", hub=hub))
    await soon(asked.wait())
    channel = await boss.channel("t", hub)
    await let_others_run(50)
    await channel.cancel("enough")
    with pytest.raises(TurnFailed, match="cancelled"):
        await soon(asking)
    end = await ended(hub, channel.channel_id)
    assert (end["reason"], end["usage"]) == ("cancelled", used(16, 28))


async def test_what_a_finished_task_consumed_counts_once_and_when_its_call_is_cut_off(hub: Hub) -> None:
    """A tool that has had one task done, and waits for another, when its own task is cut off."""
    asked = asyncio.Event()
    done = Agent("done", ScriptedModel([says("Done.", usage=Usage(100, 0))] * 2))
    slow = Agent("slow", waiting(asked, asyncio.Event()))

    @tool(timeout=None)
    async def ask(channel: TurnChannel) -> str:
        """Ask."""
        await channel.delegate(done, "one")
        return (await channel.delegate(slow, "two")).text

    middle = Agent(
        "middle", asking(calls("delegate_to_done", {"task": "x"}), calls("ask")), tools=[ask, delegate(done)]
    )
    boss = giver(middle)
    invoked = asyncio.create_task(boss.invoke("go", thread_id="t", hub=hub))
    await soon(asked.wait())
    channel = await boss.channel("t", hub)
    await let_others_run(50)
    await channel.cancel("enough")
    with pytest.raises(TurnFailed, match="cancelled"):
        await soon(invoked)
    assert (await ended(hub, channel.channel_id))["usage"] == used(200, 0)


# A process that ends in between


class Dying:
    """A store, as seen by a process that ends before it has recorded an event of this type."""

    def __init__(self, store: KeptStore, event_type: str) -> None:
        self._store, self._event_type = store, event_type
        self.dead, self.over = asyncio.Event(), asyncio.Event()

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    async def append(
        self, channel: str, batch: Sequence[Envelope], *, expected: int, due: Instant | None = None
    ) -> Appended:
        if self.dead.is_set() or any(each.event_type == self._event_type for each in batch):
            self.dead.set()
            await self.over.wait()
            raise StoreUnavailable("it is no longer there")
        return await self._store.append(channel, batch, expected=expected, due=due)


@asynccontextmanager
async def hub_over(store: Store) -> AsyncIterator[Hub]:
    """A hub with a clock of its own."""
    clock = ManualClock()
    hub = await Hub.over(store, clock=clock, engine=LocalEngine(store, clock, grace=0.01))
    try:
        yield hub
    finally:
        if isinstance(store, Dying):
            store.over.set()
        await hub.close()


@pytest.mark.parametrize("lost", [EV_TASK_FAILED, EV_CHANNEL_CLOSED], ids=["its report", "its end"])
async def test_a_task_whose_report_was_lost_with_its_process_is_reported_by_the_next(lost: str) -> None:
    asked = asyncio.Event()
    boss = three_deep(asked)
    store = KeptStore(clock=ManualClock())
    dying = Dying(store, lost)
    async with hub_over(cast(Store, dying)) as first, hub_over(store) as second:
        invoked = asyncio.create_task(boss.invoke("go", thread_id="t", hub=first))
        await soon(asked.wait())
        await let_others_run(50)
        channel_id = (await boss.channel("t", first)).channel_id
        await (await boss.channel("t", first)).cancel("enough")
        await soon(dying.dead.wait())
        invoked.cancel()

        assert await words(second, channel_id) == ["started", "progress", "progress"]
        await second.register(boss)
        end = await ended(second, channel_id)
        assert (end["reason"], end["usage"]) == ("cancelled", used(16, 28))
        assert await words(second, channel_id) == ["started", "progress", "progress", "failed"]
        assert {status for status, _ in await tasks(second)} == {"closed"}
        assert (await boss.channel("t", second)).state.open_tasks == {}


async def test_a_fork_answers_for_no_task_of_the_channel_that_it_was_made_of(hub: Hub) -> None:
    asked = asyncio.Event()
    boss = three_deep(asked)
    invoked = asyncio.create_task(boss.invoke("go", thread_id="t", hub=hub))
    await soon(asked.wait())
    channel = await boss.channel("t", hub)
    await channel.cancel("enough")
    with pytest.raises(TurnFailed):
        await soon(invoked)
    await ended(hub, channel.channel_id)
    before = len(await hub.log(channel.channel_id))
    started = next(each.sequence for each in await hub.log(channel.channel_id) if each.event_type == EV_TURN_FAILED)
    fork = await channel.fork(at=started)
    await let_others_run(50)
    assert fork.state.open_tasks == {}
    assert len(await hub.log(channel.channel_id)) == before
