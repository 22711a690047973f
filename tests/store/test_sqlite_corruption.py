"""Damage is noticed, is told by its place, and stays with the channel that has it."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from antiphon import Hub
from antiphon.core.codec import encode_envelope
from antiphon.core.envelope import Envelope
from antiphon.core.errors import AntiphonError, LogCorrupt, StoreError, StoreRefused
from antiphon.core.events import EV_CHANNEL_CLOSED, ChannelClosed
from antiphon.store.protocol import Appended
from antiphon.store.records import chain_hash, genesis_hash
from antiphon.store.sqlite import SqliteStore
from antiphon.store.verification import LogProblem, verify_store
from antiphon.testing.store_fixtures import hub_envelope, opening_envelopes, text_batch, whole_log
from tests.store.conftest import Tamper

LENGTH = 6
BAD = 4


@pytest.fixture
async def filled(store: SqliteStore) -> SqliteStore:
    for channel in ("bad", "good"):
        await store.append(channel, text_batch(channel, *range(1, LENGTH + 1)), expected=0)
    return store


DAMAGE = {
    "a flipped byte in a text": "UPDATE log SET body = replace(body, 'text 4', 'text 5') WHERE channel = ? AND seq = ?",
    "a record that is no JSON": "UPDATE log SET body = x'00ff' WHERE channel = ? AND seq = ?",
    "a record of the wrong shape": "UPDATE log SET body = x'7b7d' WHERE channel = ? AND seq = ?",
    "a body that is no blob": "UPDATE log SET body = 7 WHERE channel = ? AND seq = ?",
    "another id": "UPDATE log SET id = 'another' WHERE channel = ? AND seq = ?",
    "an id that is no text": "UPDATE log SET id = CAST(x'ff' AS TEXT) WHERE channel = ? AND seq = ?",
    "a flipped hash": "UPDATE log SET hash = zeroblob(32) WHERE channel = ? AND seq = ?",
    "a deleted row": "DELETE FROM log WHERE channel = ? AND seq = ?",
}


@pytest.mark.parametrize("sql", DAMAGE.values(), ids=DAMAGE)
async def test_damage_is_told_by_its_place(filled: SqliteStore, tamper: Tamper, sql: str) -> None:
    good = await whole_log(filled, "bad")
    tamper(sql, "bad", BAD)
    page = await filled.read("bad")
    assert page.envelopes == good[: BAD - 1]
    assert page.more
    with pytest.raises(LogCorrupt) as caught:
        await filled.read("bad", after=BAD - 1)
    assert (caught.value.channel_id, caught.value.sequence) == ("bad", BAD)
    report = await verify_store(filled)
    assert report.problems == [LogProblem("bad", BAD, caught.value.why)]
    assert (report.channels, report.envelopes) == (2, LENGTH + BAD - 1)
    assert len(await whole_log(filled, "good")) == LENGTH
    await filled.append("good", text_batch("good", LENGTH + 1), expected=LENGTH)


async def test_a_deleted_row_is_called_missing(filled: SqliteStore, tamper: Tamper) -> None:
    tamper("DELETE FROM log WHERE channel = 'bad' AND seq IN (2, 3)")
    with pytest.raises(LogCorrupt, match="missing; the next one is 4"):
        await filled.read("bad", after=1)


async def test_swapped_records_are_noticed(filled: SqliteStore, tamper: Tamper) -> None:
    tamper("UPDATE log SET seq = -seq WHERE channel = 'bad' AND seq IN (2, 3)")
    tamper("UPDATE log SET seq = CASE seq WHEN -2 THEN 3 ELSE 2 END WHERE channel = 'bad' AND seq < 0")
    report = await verify_store(filled)
    assert [(problem.channel_id, problem.sequence) for problem in report.problems] == [("bad", 2)]


async def test_a_record_of_another_channel_is_noticed(filled: SqliteStore, tamper: Tamper) -> None:
    there = "SELECT body FROM log WHERE channel = 'good' AND seq = 2"
    tamper(f"UPDATE log SET body = ({there}) WHERE channel = 'bad' AND seq = 2")
    with pytest.raises(LogCorrupt, match="'good'"):
        await filled.read("bad", after=1)


async def test_a_whole_log_moved_to_another_channel_is_noticed(filled: SqliteStore, tamper: Tamper) -> None:
    tamper("DELETE FROM log WHERE channel = 'bad'")
    tamper("UPDATE log SET channel = 'bad', body = replace(body, '\"good\"', '\"bad\"') WHERE channel = 'good'")
    with pytest.raises(LogCorrupt) as caught:
        await filled.read("bad")
    assert caught.value.sequence == 1


async def test_a_hash_of_another_record_is_noticed(filled: SqliteStore, tamper: Tamper) -> None:
    there = "SELECT hash FROM log WHERE channel = 'bad' AND seq = 3"
    tamper(f"UPDATE log SET hash = ({there}) WHERE channel = 'bad' AND seq = 2")
    with pytest.raises(LogCorrupt) as caught:
        await filled.read("bad", after=1)
    assert caught.value.sequence == 2


async def test_appends_go_on_beside_a_channel_whose_end_is_damaged(filled: SqliteStore, tamper: Tamper) -> None:
    await filled.close()
    tamper("UPDATE log SET hash = 7 WHERE channel = 'bad' AND seq = ?", LENGTH)
    store = await SqliteStore.open(filled.path)
    bad, good = await asyncio.gather(
        store.append("bad", text_batch("bad", LENGTH + 1), expected=LENGTH),
        store.append("good", text_batch("good", LENGTH + 1), expected=LENGTH),
        return_exceptions=True,
    )
    assert isinstance(bad, LogCorrupt)
    assert bad.channel_id == "bad"
    assert not isinstance(good, BaseException)
    assert await store.head("good") == LENGTH + 1
    await store.close()


@pytest.mark.parametrize("torn", ["substr(body, 1, length(body) - 3)", "substr(body, 1, 1)", "x''"])
async def test_nothing_is_recorded_behind_a_torn_last_record(filled: SqliteStore, tamper: Tamper, torn: str) -> None:
    await filled.close()
    tamper(f"UPDATE log SET body = {torn} WHERE channel = 'bad' AND seq = ?", LENGTH)
    store = await SqliteStore.open(filled.path)
    with pytest.raises(LogCorrupt) as caught:
        await store.append("bad", text_batch("bad", LENGTH + 1), expected=LENGTH)
    assert (caught.value.channel_id, caught.value.sequence) == ("bad", LENGTH)
    assert await store.head("bad") == LENGTH
    assert len((await store.read("bad")).envelopes) == LENGTH - 1
    await store.close()


async def test_a_tail_goes_on_without_the_damaged_channel(filled: SqliteStore, tamper: Tamper) -> None:
    tamper("UPDATE log SET body = x'00' WHERE channel = 'bad' AND seq = ?", BAD)
    tail = filled.tail(cursor="0")
    async with asyncio.timeout(10):
        envelopes = (await anext(tail)).envelopes
    await tail.aclose()
    seen = [(envelope.channel_id, envelope.sequence) for envelope in envelopes]
    assert [sequence for channel, sequence in seen if channel == "bad"] == [1, 2, 3]
    assert [sequence for channel, sequence in seen if channel == "good"] == list(range(1, LENGTH + 1))


async def test_a_flipped_byte_anywhere_is_noticed_or_harmless(filled: SqliteStore, path: Path) -> None:
    before = {channel: await whole_log(filled, channel) for channel in ("bad", "good")}
    await filled.close()
    clean = path.read_bytes()
    noticed = 0
    for place in range(100, len(clean), 97):
        path.write_bytes(clean[:place] + bytes([clean[place] ^ 0x10]) + clean[place + 1 :])
        try:
            store = await SqliteStore.open(path, read_only=True)
        except StoreRefused:
            noticed += 1
            continue
        for channel, log in before.items():
            try:
                found = await whole_log(store, channel)
            except StoreError:
                noticed += 1
            else:
                assert found == log[: len(found)], f"a changed envelope was given at byte {place}"
                noticed += len(found) < len(log)
        await store.close()
    assert noticed > 10


async def test_a_torn_file_is_refused_or_loses_nothing_silently(filled: SqliteStore, path: Path) -> None:
    await filled.close()
    clean = path.read_bytes()
    for kept in range(0, len(clean), 1000):
        path.write_bytes(clean[:kept])
        if kept == 0:
            continue
        with pytest.raises(AntiphonError):
            await _read_all(path)


async def _read_all(path: Path) -> None:
    store = await SqliteStore.open(path, read_only=True)
    try:
        for channel in ("bad", "good"):
            if len(await whole_log(store, channel)) < LENGTH:
                raise LogCorrupt(channel, 0, "the log is short")
    finally:
        await store.close()


async def test_a_torn_write_ahead_log_loses_only_what_was_not_committed(path: Path) -> None:
    store = await SqliteStore.open(path)
    log = path.with_name("team.db-wal")
    sizes = []
    for sequence in range(1, 5):
        await store.append("c", text_batch("c", sequence), expected=sequence - 1)
        sizes.append(log.stat().st_size)
    database, whole = path.read_bytes(), log.read_bytes()
    await store.close()
    for torn in range(sizes[0], sizes[-1] + 1, 499):
        path.write_bytes(database)
        log.write_bytes(whole[:torn])
        store = await SqliteStore.open(path)
        assert await store.head("c") == sum(size <= torn for size in sizes)
        assert (await verify_store(store)).problems == []
        await store.append("c", text_batch("c", await store.head("c") + 1), expected=await store.head("c"))
        await store.close()


async def test_a_forged_record_with_a_fitting_hash_breaks_the_chain_behind_it(
    filled: SqliteStore, tamper: Tamper
) -> None:
    log = await whole_log(filled, "bad")
    digest = genesis_hash("default", "bad")
    for envelope in log[: BAD - 1]:
        digest = chain_hash(digest, encode_envelope(envelope))
    forged = encode_envelope(replace(log[BAD - 1], event_data={"text": "forged"}))
    change = "UPDATE log SET body = ?, hash = ? WHERE channel = 'bad' AND seq = ?"
    tamper(change, forged, chain_hash(digest, forged), BAD)
    [problem] = (await verify_store(filled)).problems
    assert (problem.channel_id, problem.sequence) == ("bad", BAD + 1)


async def test_a_log_moved_to_another_tenant_is_noticed(filled: SqliteStore, tamper: Tamper) -> None:
    tamper("UPDATE log SET tenant = 'another'")
    other = await SqliteStore.open(filled.path, tenant="another", read_only=True)
    with pytest.raises(LogCorrupt, match="hash chain"):
        await other.read("good")
    await other.close()


async def test_a_damaged_row_of_the_listing_costs_only_its_channel(store: SqliteStore, tamper: Tamper) -> None:
    for channel in ("bad", "good"):
        await store.append(channel, opening_envelopes(channel, "alice", "bob"), expected=0)
    tamper("UPDATE channel SET participants = 'alice' WHERE channel = 'bad'")
    bad, good = await asyncio.gather(
        *(store.append(channel, [closing(channel)], expected=2) for channel in ("bad", "good")),
        return_exceptions=True,
    )
    assert isinstance(bad, LogCorrupt)
    assert good == Appended(3, 3)
    assert [await store.head(channel) for channel in ("bad", "good")] == [2, 3]


def closing(channel: str) -> Envelope:
    return hub_envelope(channel, 3, EV_CHANNEL_CLOSED, event=ChannelClosed("over"))


async def test_a_log_that_is_gone_or_not_listed_is_found_by_verify(tmp_path: Path) -> None:
    path = tmp_path / "team.db"
    async with Hub.open(f"sqlite:///{path}") as hub:
        ann, _ = await hub.register("ann"), await hub.register("ben")
        gone, unlisted = [(await ann.open(target="ben")).channel_id for _ in range(2)]
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DELETE FROM log WHERE channel = ?", (gone,))
        connection.execute("DELETE FROM channel WHERE channel = ?", (unlisted,))
    store = await SqliteStore.open(path)
    report = await verify_store(store)
    await store.close()
    assert {(problem.channel_id, problem.why.split(";")[0].split(",")[0]) for problem in report.problems} == {
        (gone, "the listing has this channel"),
        (unlisted, "the listing has lost this channel"),
    }
