"""The embedded store keeps every promise, across restarts, tenants and neighbours."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

from antiphon.core.errors import Conflict, StoreRefused
from antiphon.core.events import EV_CHANNEL_CLOSED, ChannelClosed
from antiphon.store.memory_store import MemoryStore
from antiphon.store.protocol import Appended, Position
from antiphon.store.sqlite import SqliteStore
from antiphon.store.verification import VerificationReport, verify_store
from antiphon.testing import ManualClock
from antiphon.testing.store_checks import STORE_CHECKS
from antiphon.testing.store_fixtures import OpenStore, hub_envelope, new_id, opening_envelopes, text_batch, whole_log
from tests.store.conftest import Tamper


@pytest.mark.parametrize("check", STORE_CHECKS)
async def test_it_is_a_store(check: OpenStore, path: Path) -> None:
    await check(lambda: SqliteStore.open(path))


async def test_it_survives_power_only_if_synced_for_it(path: Path) -> None:
    for synchronous, survives in (("FULL", "power"), ("EXTRA", "power"), ("NORMAL", "process")):
        store = await SqliteStore.open(path, synchronous=synchronous)
        assert store.caps.survives == survives
        await store.close()


async def test_closing_leaves_one_file_with_everything_in_it(store: SqliteStore, path: Path) -> None:
    await store.append("c", text_batch("c", 1), expected=0)
    await store.close()
    assert not path.with_name("team.db-wal").exists()
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT count(*) FROM log").fetchone() == (1,)
    connection.close()


async def test_closing_writes_what_is_queued(store: SqliteStore, path: Path) -> None:
    await store.append("c", opening_envelopes("c", "alice", "bob"), expected=0)
    await store.acknowledge("alice", "c", 2)
    waiting = asyncio.ensure_future(store.append("c", text_batch("c", 3), expected=2))
    await asyncio.sleep(0)
    await asyncio.gather(store.close(), store.close())
    assert await waiting == Appended(3, 3)
    again = await SqliteStore.open(path)
    assert await again.head("c") == 3
    assert await again.positions("alice") == [Position("c", 2)]
    await again.close()


async def test_acknowledgements_are_written_without_an_append(store: SqliteStore) -> None:
    await store.append("c", opening_envelopes("c", "alice", "bob"), expected=0)
    reader = await SqliteStore.open(store.path, read_only=True)
    await store.acknowledge("alice", "c", 1)
    async with asyncio.timeout(10):
        while await reader.positions("alice") != [Position("c", 1)]:
            pass
    await reader.close()


async def test_tenants_share_a_file_and_nothing_else(path: Path) -> None:
    one = await SqliteStore.open(path, tenant="one", exclusive=False)
    two = await SqliteStore.open(path, tenant="two", exclusive=False)
    first, second = opening_envelopes("c", "alice", "bob"), opening_envelopes("c", "alice", "carol")
    await one.append("c", first, expected=0)
    assert await two.head("c") == 0
    assert await two.channels() == []
    assert await two.find("c", [first[0].envelope_id]) == {}
    await two.append("c", second, expected=0)
    assert await whole_log(one, "c") == first
    assert await whole_log(two, "c") == second
    tail = two.tail(cursor="0")
    assert (await anext(tail)).envelopes == second
    await tail.aclose()
    await one.close()
    await two.close()


async def test_two_hubs_without_a_lock_cannot_both_win(path: Path) -> None:
    stores = [await SqliteStore.open(path, exclusive=False) for _ in range(2)]
    channel = new_id()
    for head in range(40):
        outcomes = await asyncio.gather(
            *(store.append(channel, text_batch(channel, head + 1), expected=head) for store in stores),
            return_exceptions=True,
        )
        assert outcomes.count(Appended(head + 1, head + 1)) == 1
        assert sum(isinstance(outcome, Conflict) for outcome in outcomes) == 1
    assert await verify_store(stores[0]) == VerificationReport(1, 40, [])
    for store in stores:
        await store.close()


async def test_a_reader_beside_the_owner_reads_and_never_writes(store: SqliteStore) -> None:
    await store.append("c", opening_envelopes("c", "alice", "bob"), expected=0)
    reader = await SqliteStore.open(store.path, read_only=True)
    assert await reader.head("c") == 2
    await store.append("c", text_batch("c", 3), expected=2)
    assert await reader.head("c") == 3
    assert await verify_store(reader) == VerificationReport(1, 3, [])
    for call in (
        reader.append("c", text_batch("c", 4), expected=3),
        reader.mark("c", status="quarantined"),
        reader.acknowledge("alice", "c", 1),
        reader.rebuild(),
        reader.lease("name", "owner", 1),
    ):
        with pytest.raises(StoreRefused, match="read only"):
            await call
    await reader.close()


async def test_a_reader_follows_the_owner(store: SqliteStore) -> None:
    reader = await SqliteStore.open(store.path, read_only=True)
    tail = reader.tail(cursor="0")
    await store.append("c", text_batch("c", 1), expected=0)
    async with asyncio.timeout(10):
        assert (await anext(tail)).envelopes == await whole_log(store, "c")
    await tail.aclose()
    await reader.close()


async def test_a_lost_index_is_made_again(store: SqliteStore, tamper: Tamper) -> None:
    await store.append("open", opening_envelopes("open", "alice", "bob"), expected=0)
    done = hub_envelope("done", 3, EV_CHANNEL_CLOSED, event=ChannelClosed("over"))
    await store.append("done", [*opening_envelopes("done", "alice"), done], expected=0)
    before = [await store.row("open"), await store.row("done")]
    for table in ("channel", "member", "snapshot"):
        tamper(f"DELETE FROM {table}")
    assert await store.channels() == []
    await store.rebuild()
    found = {row.channel_id: row for row in await store.channels()}
    assert found["done"] == before[1]
    assert found["open"].participants == ["alice", "bob"]
    assert found["open"].status == "active"
    assert found["open"].due, "nobody knows when it was due, so it is due now"
    assert await store.positions("bob") == [Position("open", 0)]


async def test_quarantine_and_due_survive_a_rebuild(store: SqliteStore) -> None:
    await store.append("c", opening_envelopes("c", "alice"), expected=0)
    await store.mark("c", status="quarantined", due="2030-01-01T00:00:00.000000Z")
    before = await store.row("c")
    await store.rebuild()
    assert await store.row("c") == before


async def test_leases_and_claims_run_out_by_the_stores_clock(path: Path) -> None:
    clock = ManualClock()
    store = await SqliteStore.open(path, clock=clock)
    await store.append("c", text_batch("c", 1), expected=0, due=clock.now())
    first = await store.lease("name", "a", 10)
    assert [due.channel_id for due in await store.take_due("a", now=clock.now(), limit=9, ttl=10)] == ["c"]
    clock.advance(9)
    assert await store.lease("name", "b", 10) is None
    assert await store.take_due("b", now=clock.now(), limit=9, ttl=10) == []
    clock.advance(1)
    assert await store.next_due() == clock.now()
    second = await store.lease("name", "b", 10)
    assert first is not None
    assert second is not None
    assert second.epoch == first.epoch + 1
    assert [due.channel_id for due in await store.take_due("b", now=clock.now(), limit=9, ttl=10)] == ["c"]
    await store.close()


async def test_due_channels_come_earliest_first(store: SqliteStore) -> None:
    days = {"b": "2026-01-02", "c": "2026-01-01", "a": "2026-01-03", "d": ""}
    for channel, day in days.items():
        due = f"{day}T00:00:00.000000Z" if day else ""
        await store.append(channel, text_batch(channel, 1), expected=0, due=due)
    taken = await store.take_due("x", now="2026-01-02T12:00:00.000000Z", limit=9, ttl=60)
    assert [due.channel_id for due in taken] == ["c", "b"]


async def test_an_envelope_behind_the_end_is_still_owed(store: SqliteStore) -> None:
    await store.append("c", opening_envelopes("c", "alice", "bob"), expected=0)
    await store.append("c", [hub_envelope("c", 3, EV_CHANNEL_CLOSED, event=ChannelClosed("over"))], expected=2)
    await store.acknowledge("alice", "c", 3)
    assert await store.positions("alice") == []
    await store.append("c", text_batch("c", 4), expected=3)
    assert await store.positions("alice") == [Position("c", 3)]


async def test_a_channel_that_was_marked_as_ended_is_owed_what_comes_later(store: SqliteStore) -> None:
    await store.append("c", opening_envelopes("c", "alice", "bob"), expected=0)
    await store.mark("c", status="closed")
    await store.acknowledge("alice", "c", 2)
    assert await store.positions("alice") == []
    await store.append("c", text_batch("c", 3), expected=2)
    assert await store.positions("alice") == [Position("c", 2)]


async def test_a_tail_is_woken_and_need_not_look(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.store.records.TAIL_POLL_SECONDS", 3600)
    for each in (store, MemoryStore()):
        tail = each.tail()
        waiting = asyncio.ensure_future(anext(tail))
        await each.head("c")
        for sequence in range(1, 4):
            await each.append("c", text_batch("c", sequence), expected=sequence - 1)
            async with asyncio.timeout(10):
                assert [envelope.sequence for envelope in (await waiting).envelopes] == [sequence]
            waiting = asyncio.ensure_future(anext(tail))
        waiting.cancel()


async def test_listing_in_pages(store: SqliteStore) -> None:
    names = [f"c{number:02}" for number in range(25)]
    for name in reversed(names):
        await store.append(name, opening_envelopes(name, "alice", name), expected=0)
    found: list[str] = []
    while rows := await store.channels(status="active", participant="alice", after=found[-1] if found else "", limit=7):
        found += [row.channel_id for row in rows]
    assert found == names
    assert await store.channels(status="closed") == []
    assert [row.channel_id for row in await store.channels(participant="c07")] == ["c07"]
