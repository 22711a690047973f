"""One hub owns a SQLite file. Should two get at it all the same, compare-and-set lets one of them through."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from antiphon import EV_TEXT, Channel, Denied, Hub, StoreRefused
from antiphon.store.sqlite import SqliteStore

RACES = 25


async def test_a_second_hub_is_refused_and_pointed_to_postgresql(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'team.db'}"
    async with Hub.open(url):
        with pytest.raises(StoreRefused, match="PostgreSQL"):
            await Hub.open(url)
    async with Hub.open(url) as later:
        assert await later.channels() == []


async def handle(path: Path, name: str, channel_id: str) -> tuple[Hub, Channel]:
    hub = await Hub.over(await SqliteStore.open(path, exclusive=False))
    person = await hub.register(name)
    return hub, await person.channel(channel_id)


async def test_with_the_refusal_off_one_of_two_racing_hubs_wins(tmp_path: Path) -> None:
    path = tmp_path / "team.db"
    async with Hub.open(f"sqlite:///{path}") as hub:
        alice, _ = await hub.register("alice"), await hub.register("bob")
        opened = [await alice.open(type="consulting", target="bob") for _ in range(RACES)]
        ids = [channel.channel_id for channel in opened]
    for channel_id in ids:
        one, mine = await handle(path, "alice", channel_id)
        other, yours = await handle(path, "alice", channel_id)
        outcomes = await asyncio.gather(mine.send("from one"), yours.send("from the other"), return_exceptions=True)
        refused = [outcome for outcome in outcomes if isinstance(outcome, Denied)]
        assert [denied.reason for denied in refused] == ["not_expected_speaker"]
        said = [envelope for envelope in await one.log(channel_id) if envelope.event_type == EV_TEXT]
        assert len(said) == 1
        await one.close()
        await other.close()
