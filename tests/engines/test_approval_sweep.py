"""A crash at every write of turns that wait for a person, are edited and go on: one effect, and the same story."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

import pytest

from antiphon import (
    Agent,
    Denied,
    Envelope,
    Hub,
    Participant,
    Reply,
    Request,
    UnknownApproval,
    calls,
    delegate,
    says,
    tool,
)
from antiphon.core.execution_events import EV_APPROVAL_DECIDED, EV_APPROVAL_REQUESTED
from antiphon.runtime.agent import channel_of
from antiphon.testing import ManualClock, canonical_digest
from tests.engines.test_sweep import AFTER, BEFORE, Died, MortalStore, said
from tests.support.waiting import let_others_run, soon

EDITED = {"order": "7", "cents": 5}
Choice = tuple[str, dict[str, object]]
EDIT: Choice = ("edit", {"args": EDITED})
Ledger = dict[str, tuple[str, int]]


def clerk(ledger: Ledger) -> Agent:
    """An agent that looks an order up, and pays it back, in one message. What is paid is known by its key."""

    @tool
    async def look(order: str) -> str:
        return f"order {order}"

    @tool(approval=True)
    async def refund(order: str, cents: int, idempotency_key: str) -> str:
        ledger[idempotency_key] = order, cents
        return f"{cents} for {order}"

    async def model(request: Request) -> Reply | list[Reply]:
        wanted = [calls("look", {"order": "7"}), calls("refund", {"order": "7", "cents": 900})]
        return says("Refunded.") if request.exchange else wanted

    return Agent("bob", model=model, tools=[look, refund])


def boss(ledger: Ledger) -> Agent:
    """An agent that has the clerk do it."""
    worker = clerk(ledger)
    named = Agent("clerk", model=worker.model, tools=worker.tools)

    async def model(request: Request) -> Reply:
        wanted = calls("delegate_to_clerk", {"task": "Refund order 7."})
        return says("It is refunded.") if request.exchange else wanted

    return Agent("bob", model=model, tools=[delegate(named)])


async def lives(store: MortalStore, clock: ManualClock, agent: Agent, choice: Choice = EDIT) -> list[list[Envelope]]:
    """Ask until there is an answer, in as many lives as it takes. The logs of the channels."""
    others = asyncio.all_tasks()
    for _ in range(3):
        try:
            return await life(store, clock, agent, choice)
        except Died:
            mine = asyncio.all_tasks() - others
            for task in mine:
                task.cancel()
            await asyncio.gather(*mine, return_exceptions=True)
            store.dead, store.fatal = False, None
    raise AssertionError("it did not survive")


async def life(store: MortalStore, clock: ManualClock, agent: Agent, choice: Choice) -> list[list[Envelope]]:
    hub = await Hub.over(store, clock=clock)
    dana = await hub.register("dana", kind="human")
    channel = await channel_of(hub, agent, "t")
    await channel.send("Refund order 7.", message_id="m1")
    deciding: asyncio.Task[None] | None = None
    async with asyncio.timeout(10):
        while store.dead or not await said(hub, channel.channel_id):
            if store.dead:
                raise Died
            await let_others_run(1)
            clock.advance(0.01)
            if deciding is None or deciding.done():
                deciding = asyncio.create_task(decide(hub, dana, choice))
    await deciding if deciding is not None else None
    ids = [channel.channel_id, *(row.channel_id for row in await hub.channels() if row.type == "consulting")]
    logs = [await hub.log(channel_id) for channel_id in ids]
    await hub.close()
    return logs


async def decide(hub: Hub, dana: Participant, choice: Choice) -> None:
    for approval in await hub.approvals():
        with suppress(Denied, UnknownApproval):  # decided by the life before, or in the moment before
            await dana.decide(approval.approval_id, choice[0], **choice[1])  # type: ignore[arg-type]


@pytest.mark.parametrize("when", [BEFORE, AFTER])
@pytest.mark.parametrize("team", [clerk, boss])
async def test_a_crash_at_every_write(team: Callable[[Ledger], Agent], when: str) -> None:
    clock, ledger = ManualClock(), Ledger()
    store = MortalStore(clock)
    logs = await soon(lives(store, clock, team(ledger)))
    digests, appends = [canonical_digest(log) for log in logs], store.appends
    assert list(ledger.values()) == [("7", 5)]
    for place in range(1, appends + 1):
        clock, ledger = ManualClock(), Ledger()
        store = MortalStore(clock)
        store.fatal = place, when
        found = await soon(lives(store, clock, team(ledger)))
        assert store.fatal is None, f"it did not die at append {place}"
        assert list(ledger.values()) == [("7", 5)], f"{when} append {place}"
        assert [canonical_digest(log) for log in found] == digests, f"another story {when} append {place}"
        events = [each.event_type for log in found for each in log]
        assert (events.count(EV_APPROVAL_REQUESTED), events.count(EV_APPROVAL_DECIDED)) == (1, 1)


@pytest.mark.parametrize("when", [BEFORE, AFTER])
@pytest.mark.parametrize("choice", [("reject", {"reason": "no"}), ("respond", {"text": "paid in cash"})])
async def test_a_call_that_never_leaves(choice: Choice, when: str) -> None:
    clock, ledger = ManualClock(), Ledger()
    store = MortalStore(clock)
    digests = [canonical_digest(log) for log in await soon(lives(store, clock, clerk(ledger), choice))]
    for place in range(1, store.appends + 1):
        clock = ManualClock()
        again = MortalStore(clock)
        again.fatal = place, when
        found = await soon(lives(again, clock, clerk(ledger), choice))
        assert [canonical_digest(log) for log in found] == digests, f"another story {when} append {place}"
    assert ledger == {}
