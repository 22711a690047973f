"""A row that cannot be read, or is not what was written, costs its own channel and no other."""

from __future__ import annotations

import asyncio

import pytest

from antiphon.core.envelope import Envelope
from antiphon.core.errors import LogCorrupt
from antiphon.store.protocol import Appended, ChannelRow, Position, Snapshot
from antiphon.store.sqlite import SqliteStore
from antiphon.store.verification import VerificationReport, verify_store
from antiphon.testing.store_fixtures import FIRST_INSTANT, opening_envelopes, text_batch
from tests.store.conftest import Tamper

NAMES = ("a", "b", "c")


@pytest.fixture
async def filled(store: SqliteStore) -> SqliteStore:
    for name in NAMES:
        await store.append(name, opening_envelopes(name, "alice", "bob"), expected=0, due=FIRST_INSTANT)
        await store.append(name, text_batch(name, 3), expected=2)
    return store


async def reopened(store: SqliteStore) -> SqliteStore:
    await store.close()
    return await SqliteStore.open(store.path)


# The listing

UNREADABLE = {
    "no JSON": "participants = '[\"alice'",
    "no list": "participants = 7",
    "no UTF-8": "close_reason = CAST(x'ff' AS TEXT)",
    "no text at all": "participants = x'ff00'",
}


@pytest.mark.parametrize("change", UNREADABLE.values(), ids=UNREADABLE)
async def test_an_unreadable_row_is_shown_as_quarantined_and_made_again(
    filled: SqliteStore, tamper: Tamper, change: str
) -> None:
    before = await filled.channels()
    tamper(f"UPDATE channel SET {change} WHERE channel = 'b'")
    lost = ChannelRow("b", status="quarantined")
    assert await filled.channels() == [before[0], lost, before[2]]
    assert await filled.channels(status="active", after="a", limit=1) == [lost]
    assert await filled.row("b") == lost
    assert await verify_store(filled) == VerificationReport(3, 9, [])
    assert [due.channel_id for due in await filled.take_due("owner", now=FIRST_INSTANT, limit=9, ttl=1)] == list(NAMES)
    await filled.rebuild()
    assert [row.status for row in await filled.channels()] == ["active"] * 3
    assert await filled.row("a") == before[0]
    made = await filled.row("b")
    assert made is not None
    assert made.participants == ["alice", "bob"]
    assert made.due > FIRST_INSTANT, "nobody knows when it was due, so it is due now"


async def test_an_unreadable_row_can_be_marked_and_its_channel_acknowledged(
    filled: SqliteStore, tamper: Tamper
) -> None:
    tamper("UPDATE channel SET participants = 'alice' WHERE channel = 'b'")
    await filled.mark("b", status="quarantined", due="")
    await filled.acknowledge("alice", "b", 3)
    assert await filled.positions("alice") == [Position("a", 0), Position("b", 3), Position("c", 0)]
    assert [due.channel_id for due in await filled.take_due("owner", now=FIRST_INSTANT, limit=9, ttl=1)] == ["a", "c"]
    assert await filled.append("b", text_batch("b", 4), expected=3) == Appended(4, 4)


async def test_a_name_that_is_no_text_hides_no_other(filled: SqliteStore, tamper: Tamper) -> None:
    for table in ("channel", "log"):
        tamper(f"UPDATE {table} SET channel = CAST(x'62ff' AS TEXT) WHERE channel = 'b'")
    assert await filled.names() == ["a", "c"]
    assert [row.channel_id for row in await filled.channels()] == ["a", "c"]
    assert [due.channel_id for due in await filled.take_due("owner", now=FIRST_INSTANT, limit=9, ttl=1)] == ["a", "c"]
    await filled.rebuild()


# What is given must be tied to what is before it

CHANGED = "body = CAST(replace(CAST(body AS TEXT), 'text 3', 'forged') AS BLOB)"
CHANGES = {
    "another text": CHANGED,
    "no blob": "body = CAST(body AS TEXT)",
    "no body": "body = 7",
    "another hash": "hash = zeroblob(32)",
    "no sequence": "seq = 'third'",
    "no UTF-8": "id = CAST(x'ff' AS TEXT)",
}


async def first_batch(store: SqliteStore, cursor: str = "0") -> list[Envelope]:
    tail = store.tail(cursor=cursor)
    async with asyncio.timeout(10):
        found = (await anext(tail)).envelopes
    await tail.aclose()
    return found


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
async def test_a_tail_ends_a_changed_channel_and_no_other(filled: SqliteStore, tamper: Tamper, change: str) -> None:
    await filled.append("b", text_batch("b", 4), expected=3)
    tamper(f"UPDATE log SET {change} WHERE channel = 'b' AND seq = 3")
    found = [(each.channel_id, each.sequence) for each in await first_batch(filled)]
    whole = [1, 2, 3]
    assert [(name, [at for channel, at in found if channel == name]) for name in NAMES] == [
        ("a", whole),
        ("b", [1, 2]),
        ("c", whole),
    ]


async def test_a_tail_gives_nothing_behind_a_hole(filled: SqliteStore, tamper: Tamper) -> None:
    await filled.append("b", text_batch("b", 4), expected=3)
    tamper("UPDATE log SET channel = CAST(x'ff' AS TEXT) WHERE channel = 'b' AND seq = 2")
    assert [each.sequence for each in await first_batch(filled) if each.channel_id == "b"] == [1]
    tamper("DELETE FROM log WHERE channel = 'b' AND seq = 3")
    assert [each.sequence for each in await first_batch(filled, "6") if each.channel_id == "b"] == []


async def test_a_tail_goes_on_live_behind_what_it_has_given(filled: SqliteStore, tamper: Tamper) -> None:
    tail = filled.tail(cursor="0")
    await anext(tail)
    tamper("UPDATE log SET hash = zeroblob(32) WHERE channel = 'b' AND seq = 3")
    for name in ("b", "a"):
        await filled.append(name, text_batch(name, 4), expected=3)
    async with asyncio.timeout(10):
        assert [each.channel_id for each in (await anext(tail)).envelopes][:1] == ["b"], "it saw what was there before"
    await tail.aclose()


async def test_a_changed_record_is_not_found(filled: SqliteStore, tamper: Tamper) -> None:
    [last] = (await filled.read("b", after=2)).envelopes
    assert await filled.find("b", [last.envelope_id]) == {last.envelope_id: last}
    tamper(f"UPDATE log SET {CHANGED} WHERE channel = 'b' AND seq = 3")
    with pytest.raises(LogCorrupt, match="hash chain") as caught:
        await filled.find("b", [last.envelope_id])
    assert caught.value.sequence == 3
    with pytest.raises(LogCorrupt, match="hash chain"):
        await filled.append("b", [last], expected=2)


async def test_a_record_without_the_one_before_is_not_found(filled: SqliteStore, tamper: Tamper) -> None:
    [last] = (await filled.read("b", after=2)).envelopes
    tamper("DELETE FROM log WHERE channel = 'b' AND seq = 2")
    with pytest.raises(LogCorrupt, match="missing; the next one is 3"):
        await filled.find("b", [last.envelope_id])


@pytest.mark.parametrize("change", ["hash = zeroblob(32)", CHANGED], ids=["another hash", "another text"])
async def test_nothing_is_recorded_behind_an_end_that_does_not_fit(
    filled: SqliteStore, tamper: Tamper, change: str
) -> None:
    tamper(f"UPDATE log SET {change} WHERE channel = 'b' AND seq = 3")
    store = await reopened(filled)
    bad, good = await asyncio.gather(
        *(store.append(name, text_batch(name, 4), expected=3) for name in ("b", "c")), return_exceptions=True
    )
    assert isinstance(bad, LogCorrupt)
    assert (bad.channel_id, bad.sequence) == ("b", 3)
    assert good == Appended(4, 4)
    assert [await store.head(name) for name in NAMES] == [3, 3, 4]
    await store.close()


# Snapshots


@pytest.mark.parametrize(
    "change",
    [
        "blob = CAST(replace(CAST(blob AS TEXT), 'bob', 'eve') AS BLOB)",
        "blob = x'00'",
        "blob = 'text'",
        "blob = substr(blob, 1, length(blob) - 1)",
        "version = 'v2'",
        "version = CAST(x'ff' AS TEXT)",
        "seq = 1",
        "seq = 'second'",
    ],
)
async def test_a_changed_snapshot_is_none(filled: SqliteStore, tamper: Tamper, change: str) -> None:
    for name in ("a", "b"):
        await filled.put_snapshot(name, Snapshot(2, "v", b"alice and bob"))
    tamper(f"UPDATE snapshot SET {change} WHERE channel = 'b'")
    assert await filled.get_snapshot("b") is None
    assert await filled.get_snapshot("a") == Snapshot(2, "v", b"alice and bob")


async def test_a_snapshot_belongs_to_one_log(filled: SqliteStore, tamper: Tamper) -> None:
    await filled.put_snapshot("a", Snapshot(3, "v", b"alice and bob"))
    tamper("INSERT INTO snapshot SELECT tenant, 'b', seq, version, blob FROM snapshot")
    assert await filled.get_snapshot("a") is not None
    assert await filled.get_snapshot("b") is None


async def test_a_snapshot_tells_of_an_end_that_is_lost(filled: SqliteStore, tamper: Tamper) -> None:
    kept = Snapshot(3, "v", b"alice and bob")
    await filled.put_snapshot("b", kept)
    tamper("DELETE FROM log WHERE channel = 'b' AND seq = 3")
    assert await filled.head("b") == 2
    assert await filled.get_snapshot("b") == kept


# Reading beside the owner


async def test_a_reader_follows_from_the_call_on(filled: SqliteStore) -> None:
    reader = await SqliteStore.open(filled.path, read_only=True)
    tail = reader.tail()
    await reader.head("a")
    await filled.append("a", text_batch("a", 4), expected=3)
    await filled.append("a", text_batch("a", 5), expected=4)
    async with asyncio.timeout(10):
        assert [each.sequence for each in (await anext(tail)).envelopes] == [4, 5]
    await tail.aclose()
    await reader.close()
    assert [batch async for batch in reader.tail()] == []
