"""A crash at every write of a turn, before it and after it: the log tells the same story, and nothing is paid twice."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from antiphon import Envelope, Hub
from antiphon.core.envelope import Instant
from antiphon.core.execution_events import EV_CALL_FINISHED, EV_CALL_RETRIED, EV_CALL_STARTED
from antiphon.runtime.agent import channel_of
from antiphon.store.protocol import Appended
from antiphon.testing import ManualClock, canonical_digest
from tests.engines.crashing_turn import ANSWER, QUESTION, World
from tests.support.kept_store import KeptStore
from tests.support.waiting import let_others_run, soon

BEFORE, AFTER = "before", "after"


class Died(BaseException):
    """The process is no more."""


class MortalStore(KeptStore):
    """Ends whoever uses it at one of its appends. What was recorded stays for the next."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock=clock)
        self.appends = 0
        self.fatal: tuple[int, str] | None = None
        self.dead = False

    async def append(
        self, channel: str, batch: Sequence[Envelope], *, expected: int, due: Instant | None = None
    ) -> Appended:
        if self.dead:
            raise Died
        self.appends += 1
        self.dead = self.fatal is not None and self.fatal[0] == self.appends
        if self.dead and self.fatal == (self.appends, BEFORE):
            raise Died
        appended = await super().append(channel, batch, expected=expected, due=due)
        if self.dead:
            raise Died
        return appended


async def ask(store: MortalStore, clock: ManualClock, world: World) -> tuple[str, list[Envelope]]:
    """Ask until there is an answer, in as many lives as it takes."""
    others = asyncio.all_tasks()
    for _ in range(3):
        try:
            return await life(store, clock, world)
        except Died:
            mine = asyncio.all_tasks() - others
            for task in mine:
                task.cancel()
            await asyncio.gather(*mine, return_exceptions=True)
            store.dead, store.fatal = False, None
    raise AssertionError("it did not survive")


async def life(store: MortalStore, clock: ManualClock, world: World) -> tuple[str, list[Envelope]]:
    hub = await Hub.over(store, clock=clock)
    agent = world.agent()
    channel = await channel_of(hub, agent, "t")
    await channel.send(QUESTION, message_id="m1")
    async with asyncio.timeout(10):
        while store.dead or not (answers := await said(hub, channel.channel_id)):
            if store.dead:
                raise Died
            await let_others_run(1)
            clock.advance(0.01)  # for models that are to be asked again
    log = await hub.log(channel.channel_id)
    await hub.close()
    return answers[-1], log


async def said(hub: Hub, channel_id: str) -> list[str]:
    return [
        str(each.event_data["text"])
        for each in await hub.log(channel_id)
        if each.sender_id == "bob" and "text" in each.event_data
    ]


async def uncrashed(*, flaky: bool = False) -> tuple[str, int]:
    clock = ManualClock()
    store = MortalStore(clock)
    _, log = await ask(store, clock, World(flaky=flaky))
    return canonical_digest(log), store.appends


@pytest.mark.parametrize("rephrasing", [False, True])
@pytest.mark.parametrize("when", [BEFORE, AFTER])
async def test_a_crash_at_every_write(when: str, rephrasing: bool) -> None:
    """A model that is asked again because it was in flight may say something else, and that is another story."""
    digest, appends = await uncrashed()
    assert appends >= 8
    for place in range(1, appends + 1):
        clock, world = ManualClock(), World(rephrasing=rephrasing)
        store = MortalStore(clock)
        store.fatal = place, when
        answer, log = await soon(ask(store, clock, world))
        assert store.fatal is None, f"it did not die at append {place}"
        assert answer == ANSWER
        audit(log, world)
        assert rephrasing or canonical_digest(log) == digest, f"another story after a crash {when} append {place}"


@pytest.mark.parametrize("when", [BEFORE, AFTER])
async def test_a_crash_at_every_write_while_models_come_and_go(when: str) -> None:
    """How often a model had to be asked is no part of the story, and nobody begins to count anew."""
    digest, appends = await uncrashed(flaky=True)
    quiet, fewer = await uncrashed()
    assert (digest, appends) == (quiet, fewer + 4)
    for place in range(1, appends + 1):
        clock, world = ManualClock(), World(flaky=True)
        store = MortalStore(clock)
        store.fatal = place, when
        answer, log = await soon(ask(store, clock, world))
        assert store.fatal is None, f"it did not die at append {place}"
        assert (answer, canonical_digest(log)) == (ANSWER, digest), f"another story, {when} append {place}"
        audit(log, world)
        retried = [entry.event_data for entry in log if entry.event_type == EV_CALL_RETRIED]
        assert all(entry["attempt"] == 1 for entry in retried)
        assert len({entry["index"] for entry in retried}) == len(retried) >= 3


def audit(log: list[Envelope], world: World) -> None:
    """No finished call was made again, and there is one payment."""
    started = [entry.event_data["index"] for entry in log if entry.event_type == EV_CALL_STARTED]
    finished = [entry.event_data["index"] for entry in log if entry.event_type == EV_CALL_FINISHED]
    assert sorted(finished) == list(range(10))
    retried = [entry.event_data["index"] for entry in log if entry.event_type == EV_CALL_RETRIED]
    for name, count in world.asked.items():
        again = len(started) - len(finished) + (name.startswith("model") and bool(retried))
        assert count <= 1 + again, f"{name} was asked {count} times"
    assert len(world.ledger) == 1
    done: set[object] = set()
    for entry in log:
        index = entry.event_data.get("index")
        assert entry.event_type != EV_CALL_STARTED or index not in done, f"call {index} was made again"
        done |= {index} if entry.event_type == EV_CALL_FINISHED else set()
