"""The phases of a channel, as they are listed in `hub/live.py`, and what is kept or left out for its readers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from antiphon import EV_CHANNEL_INVITE, Agent, Channel, Envelope, Hub, OutcomeUnknown, ScriptedModel, says
from antiphon.core.creation import MAX_LISTED_PARTICIPANTS
from antiphon.hub.live import CALLER, ERASING, IDLE, TASK, LiveChannel
from antiphon.store.memory_store import MemoryStore
from antiphon.store.protocol import Page
from antiphon.testing import ManualClock
from tests.support.gated_store import GatedStore
from tests.support.hub_team import Team, team
from tests.support.waiting import let_others_run, soon


@pytest.fixture
async def here(clock: ManualClock) -> AsyncIterator[Team]:
    async with team("alice", "bob", store=GatedStore(clock), clock=clock) as found:
        yield found


async def gated(here: Team) -> tuple[Channel, LiveChannel, GatedStore]:
    """A channel at whose gate appends wait."""
    channel = await here["alice"].open(type="conversation", target="bob")
    assert isinstance(here.store, GatedStore)
    here.store.close_gate(channel.channel_id)
    return channel, await here.hub.core.live(channel.channel_id), here.store


async def test_the_caller_of_an_idle_channel_admits_its_own_draft(here: Team) -> None:
    channel, live, store = await gated(here)
    assert live.phase is IDLE
    first = asyncio.ensure_future(channel.send("one"))
    await let_others_run()
    assert live.phase is CALLER
    assert live._task is None
    store.let_pass()
    await soon(first)
    assert live.phase is IDLE


async def test_what_comes_meanwhile_is_admitted_by_a_task(here: Team) -> None:
    channel, live, store = await gated(here)
    sent = [asyncio.ensure_future(channel.send(text)) for text in ("one", "two", "three")]
    await let_others_run()
    assert live.phase is CALLER
    store.let_one_pass()
    await let_others_run()
    assert live.phase is TASK
    store.let_pass()
    assert [each.sequence for each in await soon(asyncio.gather(*sent))] == [5, 6, 7]
    await let_others_run()
    assert live.phase is IDLE
    assert live._task is None


async def test_a_task_ends_the_doubt_that_a_cancelled_caller_leaves(
    here: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel, live, store = await gated(here)
    seen = []
    mark = store.mark

    async def watched(channel_id: str) -> None:
        seen.append((live.phase, live.log.in_doubt))
        await mark(channel_id)

    monkeypatch.setattr(store, "mark", watched)
    sent = asyncio.ensure_future(channel.send("one"))
    await let_others_run()
    assert not live.log.in_doubt
    sent.cancel()
    await asyncio.wait([sent])
    await let_others_run()
    assert seen == [(TASK, True)]
    assert live.phase is IDLE
    assert not live.log.in_doubt


async def test_a_task_that_is_cancelled_before_it_began_is_replaced(
    here: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel, live, store = await gated(here)
    sent = [asyncio.ensure_future(channel.send(text)) for text in ("one", "two")]
    await let_others_run()
    cancelled = []
    pass_on = live._pass_on

    def cancel_the_first() -> None:
        pass_on()
        if live._task is not None and not cancelled:
            live._task.cancel()
            cancelled.append(live._task)

    monkeypatch.setattr(live, "_pass_on", cancel_the_first)
    store.let_pass()
    assert len(await soon(asyncio.gather(*sent))) == 2
    await let_others_run()
    assert cancelled[0].cancelled()
    assert live.phase is IDLE


async def test_a_task_that_is_cancelled_fails_its_batch_and_goes_on_with_what_waits(here: Team) -> None:
    channel, live, store = await gated(here)
    first, second = (asyncio.ensure_future(channel.send(text)) for text in ("one", "two"))
    await let_others_run()
    store.let_one_pass()
    await let_others_run()
    third = asyncio.ensure_future(channel.send("three"))
    await let_others_run()
    assert live.phase is TASK
    assert live._task is not None
    live._task.cancel()
    store.let_pass()
    await soon(first)
    with pytest.raises(OutcomeUnknown):
        await soon(second)
    await soon(third)
    await let_others_run()
    assert live.phase is IDLE


async def test_while_a_channel_is_erased_requests_wait(here: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    channel, live, store = await gated(here)
    store.let_pass()
    await channel.close()
    seen = []
    erase = store.erase

    async def watched(channel_id: str) -> int:
        seen.append(live.phase)
        return await erase(channel_id)

    monkeypatch.setattr(store, "erase", watched)
    await here.hub.erase(channel.channel_id)
    assert seen == [ERASING]
    assert live.phase is IDLE


class CountedReads(MemoryStore):
    """Counts the pages that are read of channels."""

    reads = 0

    async def read(self, channel: str, *, after: int = 0, limit: int = 1000) -> Page:
        self.reads += not channel.startswith("system:")
        return await super().read(channel, after=after, limit=limit)


async def test_a_turn_reads_nothing_from_the_store() -> None:
    store = CountedReads()
    hub = await Hub.over(store)
    ann, _ = await hub.register("ann"), await hub.register(Agent("bob", ScriptedModel([says("yes")] * 3)))
    channel = await ann.open(type="conversation", target="bob")
    for number in range(3):
        await channel.send("Well?")
        while channel.state.turn_count < 2 * (number + 1):
            await let_others_run(1)
    await hub.close()
    assert store.reads == 0


@pytest.mark.parametrize("size", [MAX_LISTED_PARTICIPANTS, MAX_LISTED_PARTICIPANTS + 1])
async def test_a_guest_is_shown_all_participants_whether_its_invitation_lists_them_or_not(size: int) -> None:
    asked: list[Envelope] = []

    def accept(invite: Envelope) -> bool:
        asked.append(invite)
        return True

    names = ["ann", *(f"guest-{number}" for number in range(1, size))]
    async with Hub.open("memory:") as hub:
        ann = await hub.register("ann")
        guests = [await hub.register(name, accept=accept) for name in names[1:]]
        channel = await ann.open(type="discussion", target=names[1:])
        heard = await anext(guests[0].inbox())
        followed = await first_invite(hub, channel.channel_id, names[1])
        recorded = [each for each in await hub.log(channel.channel_id) if each.event_type == EV_CHANNEL_INVITE]
    wanted = {"type": "discussion", "creator": "ann", "participants": names}
    assert [each.event_data for each in asked] == [wanted] * (size - 1)
    assert heard.event_data == followed.event_data == wanted
    listed = [size <= MAX_LISTED_PARTICIPANTS] * (size - 1)
    assert ["participants" in each.event_data for each in recorded] == listed


async def first_invite(hub: Hub, channel_id: str, reader: str) -> Envelope:
    async for envelope in hub.subscribe(channel_id, participant=reader):
        if envelope.event_type == EV_CHANNEL_INVITE:
            return envelope
    raise AssertionError("there is no invitation")
