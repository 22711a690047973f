"""Damage to the hub's own channels does not stop the hub."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

from antiphon import Denied, Hub
from antiphon.testing import ManualClock
from tests.support.waiting import let_others_run


def damage(path: Path, channel: str, sequence: int) -> None:
    with sqlite3.connect(path) as connection:
        changed = connection.execute(
            "UPDATE log SET body = CAST('{}' AS BLOB) WHERE channel = ? AND seq = ?", (channel, sequence)
        ).rowcount
    connection.close()
    assert changed == 1


async def used(url: str) -> str:
    async with Hub.open(url) as hub:
        alice, _ = await hub.register("alice"), await hub.register("bob")
        channel = await alice.open(type="consulting", target="bob")
        await channel.send("a question")
        with pytest.raises(Denied):
            await channel.send("and another")
        return channel.channel_id


@pytest.mark.parametrize("sequence", [1, 2, 3])
@pytest.mark.parametrize("own", ["system:registry", "system:audit"])
async def test_the_hub_goes_on_in_a_new_volume(tmp_path: Path, own: str, sequence: int) -> None:
    path = tmp_path / "team.db"
    url = f"sqlite:///{path}"
    channel_id = await used(url)
    damage(path, own, sequence)
    for _ in range(2):
        async with Hub.open(url) as hub:
            alice, bob = await hub.register("alice"), await hub.register("bob")
            with pytest.raises(Denied):
                await (await alice.channel(channel_id)).send("out of turn")
            assert (await bob.channel(channel_id)).state.expected_next_speaker == "bob"
            async with asyncio.timeout(5):
                while not (quarantined := await hub.channels(status="quarantined", system=True)):
                    await let_others_run(1)
            assert [row.channel_id for row in quarantined] == [own]
            audit = "system:audit-2" if own == "system:audit" else "system:audit"
            told = [envelope.event_type for envelope in await hub.log(audit)]
            assert told.count("antiphon.hub.quarantined") == 1
            assert "antiphon.draft.refused" in told


async def test_a_clock_that_was_set_is_told(tmp_path: Path) -> None:
    clock = ManualClock()
    async with Hub.open(f"sqlite:///{tmp_path / 'team.db'}", clock=clock) as hub:
        alice, _ = await hub.register("alice"), await hub.register("bob")
        channel = await alice.open(type="conversation", target="bob", ttl=60)
        before = (await channel.send("before")).created_at
        await clock.set(-3600)
        assert (await channel.send("after")).created_at == before
        await clock.set(7200)
        assert channel.state.status == "expired"
        jumps = [e.event_data for e in await hub.log("system:audit") if e.event_type == "antiphon.hub.clock_jump"]
    assert jumps == [{"delta_ms": -3_600_000}, {"delta_ms": 7_200_000}]
