"""A damaged page costs the channels in it, and nobody else; what it costs is said clearly, and every time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from antiphon.core.envelope import Envelope
from antiphon.core.errors import LogCorrupt, StoreRefused
from antiphon.core.events import EV_CHANNEL_CLOSED, ChannelClosed
from antiphon.store.protocol import Appended, Snapshot
from antiphon.store.sqlite import SqliteStore
from antiphon.store.sqlite_writer import MAX_GROUP_ROWS
from antiphon.store.verification import verify_store
from antiphon.testing.store_fixtures import hub_envelope, opening_envelopes, text_batch, whole_log
from tests.store.damaged_pages import Pages

NAMES = [f"ch{number:02}" for number in range(20)]
HEAD = 120
BAD = "ch09"
LONG = "a" * 600
"""So long a name that only a few fit into a page."""
Outcomes = dict[str, object]


async def filled(path: Path) -> Pages:
    """A closed file of some long channels."""
    store = await SqliteStore.open(path)
    for name in NAMES:
        batch = [*opening_envelopes(name, LONG + name, "bob"), *text_batch(name, *range(3, HEAD + 1))]
        await store.append(name, batch, expected=0)
    await store.close()
    return Pages(path)


async def spoilt(path: Path) -> SqliteStore:
    """A store in which the end of one channel cannot be found any more."""
    pages = await filled(path)
    for leaf in pages.leaves("log_seq"):
        before = path.read_bytes()
        pages.spoil(leaf)
        store = await SqliteStore.open(path)
        if await damaged_ends(store) == {BAD}:
            return store
        await store.close()
        path.write_bytes(before)
    raise AssertionError(f"no page holds the end of {BAD} alone")


async def damaged_ends(store: SqliteStore) -> set[str]:
    heads = await asyncio.gather(*map(store.head, NAMES), return_exceptions=True)
    return {name for name, head in zip(NAMES, heads, strict=True) if isinstance(head, LogCorrupt)}


async def together(store: SqliteStore, batches: dict[str, list[Envelope]], expected: int) -> Outcomes:
    appends = (store.append(name, batch, expected=expected) for name, batch in batches.items())
    return dict(zip(batches, await asyncio.gather(*appends, return_exceptions=True), strict=True))


def corrupt(outcomes: Outcomes) -> set[str]:
    """Whose log is said to be damaged, each by its own name."""
    found = {name: outcome for name, outcome in outcomes.items() if isinstance(outcome, LogCorrupt)}
    assert {name: error.channel_id for name, error in found.items()} == {name: name for name in found}
    return set(found)


async def test_a_group_goes_on_without_a_channel_whose_end_is_damaged(path: Path) -> None:
    store = await spoilt(path)
    for head in (HEAD, HEAD + 1):
        outcomes = await together(store, {name: text_batch(name, head + 1) for name in NAMES}, head)
        assert corrupt(outcomes) == {BAD}
        assert [outcomes[name] for name in NAMES if name != BAD] == [Appended(head + 1, head + 1)] * 19
    await store.close()


async def test_a_damaged_end_is_told_with_what_can_still_be_read(path: Path) -> None:
    store = await spoilt(path)
    with pytest.raises(LogCorrupt) as appending:
        await store.append(BAD, text_batch(BAD, HEAD + 1), expected=HEAD)
    assert appending.value.sequence == HEAD + 1
    with pytest.raises(LogCorrupt) as looking:
        await store.head(BAD)
    page = await store.read(BAD)
    assert len(page.envelopes) == looking.value.sequence - 1 > 0
    await store.close()


async def test_a_damaged_channel_can_be_quarantined(path: Path) -> None:
    store = await spoilt(path)
    await asyncio.gather(*(store.mark(name, status="quarantined", due="") for name in (BAD, "ch01")))
    assert [row.channel_id for row in await store.channels(status="quarantined")] == ["ch01", BAD]
    await store.close()


async def test_tasks_and_acknowledgements_go_on_beside_one_that_meets_damage(path: Path) -> None:
    store = await spoilt(path)
    for name in NAMES:
        await store.acknowledge("bob", name, HEAD)
    outcomes = await asyncio.gather(
        store.append("ch02", text_batch("ch02", HEAD + 1), expected=HEAD),
        store.mark(BAD, status="closed"),
        store.put_snapshot(BAD, Snapshot(HEAD, "v", b"fold")),
        store.mark("ch03", status="closed"),
        store.put_snapshot("ch03", Snapshot(HEAD, "v", b"fold")),
        return_exceptions=True,
    )
    assert [type(outcome) for outcome in outcomes] == [Appended, LogCorrupt, LogCorrupt, type(None), type(None)]
    assert await store.get_snapshot("ch03") == Snapshot(HEAD, "v", b"fold")
    positions = {each.channel_id: each.sequence for each in await store.positions("bob")}
    assert positions == {name: 0 if name == BAD else HEAD for name in NAMES if name != "ch03"}
    await store.close()


async def test_a_group_goes_on_without_those_whose_rows_meet_damage_late(path: Path) -> None:
    """Nothing is wrong with any log; what is damaged is only met once the transaction is under way."""
    pages = await filled(path)
    leaves = pages.leaves("member")
    assert len(leaves) > 2
    pages.spoil(leaves[1])
    store = await SqliteStore.open(path)
    closing = {name: [hub_envelope(name, HEAD + 1, EV_CHANNEL_CLOSED, event=ChannelClosed("over"))] for name in NAMES}
    outcomes = await together(store, closing, HEAD)
    bad = corrupt(outcomes)
    assert 0 < len(bad) < len(NAMES)
    for name in NAMES:
        assert outcomes[name] == Appended(HEAD + 1, HEAD + 1) or name in bad
        assert await store.head(name) == HEAD + (name not in bad)
        row = await store.row(name)
        assert row is not None
        assert row.status == ("active" if name in bad else "closed")
    await store.close()


async def test_damage_that_hits_everybody_is_told_to_everybody_and_every_time(path: Path) -> None:
    """Every new id goes to the same page."""
    pages = await filled(path)
    pages.spoil(pages.leaves("log_id")[-1])
    store = await SqliteStore.open(path)
    batches = {name: text_batch(name, HEAD + 1) for name in NAMES}
    for _ in range(2):
        async with asyncio.timeout(30):
            assert corrupt(await together(store, batches, HEAD)) == set(NAMES)
    assert [await store.head(name) for name in NAMES] == [HEAD] * len(NAMES)
    assert len(await whole_log(store, BAD)) == HEAD
    await store.close()


async def test_a_file_that_cannot_be_appended_to_is_refused_and_can_be_read(path: Path) -> None:
    pages = await filled(path)
    pages.spoil(pages.leaves("log")[-1])
    with pytest.raises(StoreRefused, match="is damaged"):
        await SqliteStore.open(path)
    reader = await SqliteStore.open(path, read_only=True)
    assert [problem.channel_id for problem in (await verify_store(reader)).problems] == [NAMES[-1]]
    await reader.close()


async def test_what_no_channel_can_be_blamed_for_is_refused(path: Path) -> None:
    pages = await filled(path)
    pages.spoil(pages.leaves("lease")[0])
    store = await SqliteStore.open(path)
    leased, appended = await asyncio.gather(
        store.lease("lead", "owner", 5),
        store.append(BAD, text_batch(BAD, HEAD + 1), expected=HEAD),
        return_exceptions=True,
    )
    assert isinstance(leased, StoreRefused)
    assert "restore it from a copy" in str(leased)
    assert appended == Appended(HEAD + 1, HEAD + 1)
    await store.close()


async def test_names_survive_a_damaged_page(path: Path) -> None:
    store = await spoilt(path)
    assert await store.names() == NAMES
    assert await store.names(after=BAD, limit=3) == ["ch10", "ch11", "ch12"]
    problems = (await verify_store(store)).problems
    assert BAD in {problem.channel_id for problem in problems}
    assert len(problems) <= 2, "a page holds the end of one channel and the beginning of another"
    await store.close()


async def test_a_listing_is_rebuilt_around_a_damaged_page(path: Path) -> None:
    store = await spoilt(path)
    await store.rebuild()
    assert [row.channel_id for row in await store.channels() if row.status == "active"] == NAMES
    await store.close()


async def test_a_tail_goes_on_over_a_damaged_page(path: Path) -> None:
    """Whole logs are followed without looking into an index."""
    store = await spoilt(path)
    seen = await followed(store, "0", len(NAMES) * HEAD)
    assert {name: seen.count(name) for name in NAMES} == dict.fromkeys(NAMES, HEAD)
    position = str(NAMES.index(BAD) * HEAD + HEAD - 1)
    last = await followed(store, position, 1)
    assert last[0] == NAMES[NAMES.index(BAD) + 1], "what cannot be tied to anything is not given"
    await store.close()


async def followed(store: SqliteStore, cursor: str, count: int) -> list[str]:
    """The channels of so many envelopes behind a cursor, or of a few more."""
    seen: list[str] = []
    tail = store.tail(cursor=cursor)
    async with asyncio.timeout(30):
        while len(seen) < count:
            seen += [envelope.channel_id for envelope in (await anext(tail)).envelopes]
    await tail.aclose()
    return seen


async def test_a_full_group_of_damaged_channels_is_answered_soon(path: Path) -> None:
    store = await SqliteStore.open(path)
    names = [f"c{number:03}" for number in range(MAX_GROUP_ROWS)]
    for name in names:
        await store.append(name, text_batch(name, 1), expected=0)
    await store.close()
    pages = Pages(path)
    pages.spoil(pages.leaves("log_id")[-1])
    store = await SqliteStore.open(path)
    async with asyncio.timeout(10):
        assert corrupt(await together(store, {name: text_batch(name, 2) for name in names}, 1)) == set(names)
    await store.close()
