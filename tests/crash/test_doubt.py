"""When the store's answer is lost, nothing is lost and nothing is doubled; without the ids' promise it would be."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from antiphon import EV_TEXT, Channel, Hub, StoreUnavailable
from antiphon.store.memory_store import MemoryStore
from antiphon.store.protocol import Store
from antiphon.store.sqlite import SqliteStore
from antiphon.testing import Faults, with_faults

SENDS = 60


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return MemoryStore() if request.param == "memory" else await SqliteStore.open(tmp_path / "team.db")


@asynccontextmanager
async def conversation(store: Store, faults: Faults) -> AsyncIterator[tuple[Hub, Channel]]:
    hub = await Hub.over(with_faults(store, faults))
    try:
        alice, _ = await hub.register("alice"), await hub.register("bob")
        yield hub, await alice.open(type="conversation", target="bob")
    finally:
        await hub.close()


async def texts(hub: Hub, channel: Channel) -> list[object]:
    log = await hub.log(channel.channel_id)
    assert [envelope.sequence for envelope in log] == list(range(1, len(log) + 1))
    return [envelope.event_data["text"] for envelope in log if envelope.event_type == EV_TEXT]


async def test_a_lost_answer_is_asked_for_again(store: Store) -> None:
    faults = Faults(lose_reply_every=3)
    async with conversation(store, faults) as (hub, channel):
        for number in range(SENDS):
            await channel.send(f"line {number}")
        assert await texts(hub, channel) == [f"line {number}" for number in range(SENDS)]
    assert faults.lost_replies > SENDS / 4


async def test_control_without_the_promise_of_ids_lines_are_doubled(store: Store) -> None:
    faults = Faults(lose_reply_every=3, forget_ids=True)
    async with conversation(store, faults) as (hub, channel):
        for number in range(SENDS):
            await channel.send(f"line {number}")
        said = await texts(hub, channel)
    assert len(said) > len(set(said)) == SENDS


async def test_a_repeated_message_is_recorded_once(store: Store) -> None:
    async with conversation(store, Faults()) as (hub, channel):
        first = await channel.send("once", message_id="m")
        assert await channel.send("once", message_id="m") == first
        assert await texts(hub, channel) == ["once"]


async def test_control_without_the_promise_of_ids_a_repeated_message_is_doubled(store: Store) -> None:
    async with conversation(store, Faults(forget_ids=True)) as (hub, channel):
        await channel.send("once", message_id="m")
        await channel.send("once", message_id="m")
        assert await texts(hub, channel) == ["once", "once"]


async def test_a_failed_append_is_told_and_the_next_one_works(store: Store) -> None:
    faults = Faults(fail_every=5)
    told = 0
    async with conversation(store, faults) as (hub, channel):
        for number in range(SENDS):
            try:
                await channel.send(f"line {number}")
            except StoreUnavailable:
                told += 1
        assert len(await texts(hub, channel)) == SENDS - told
    assert told > SENDS / 10
