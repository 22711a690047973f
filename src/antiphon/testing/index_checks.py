"""Conformance checks for the index and the leases of any store: the promises G9 to G11 of `store.protocol`."""

from __future__ import annotations

import asyncio

from antiphon.core.envelope import NEVER, Envelope, is_tombstone
from antiphon.core.errors import UsageError
from antiphon.core.events import EV_CHANNEL_CLOSED, ChannelClosed
from antiphon.core.redaction import tombstone_of
from antiphon.store.protocol import Lease, Position, Snapshot, Store
from antiphon.testing.store_fixtures import (
    FIRST_INSTANT,
    LATER_INSTANT,
    OpenStore,
    StoreCheck,
    hub_envelope,
    new_id,
    opening_envelopes,
    require,
    require_error,
    text_batch,
    use_store,
    whole_log,
)


async def check_leases(open_store: OpenStore) -> None:
    """G9: one holder at a time, and an epoch that grows with every change of owner."""
    async with use_store(open_store) as store:
        name = new_id()
        first = await _take_lease(store, name, "a", promise="G9: a free lease is given")
        require(await store.lease(name, "b", 3600) is None, "G9: a held lease is given to nobody else")
        renewed = await _take_lease(store, name, "a", promise="G9: a lease is renewed by its owner")
        require(renewed.epoch == first.epoch, "G9: renewing a lease does not change its epoch")
        await store.release(first)
        second = await _take_lease(store, name, "b", promise="G9: a released lease is given to the next owner")
        require(second.epoch > first.epoch, "G9: a new owner has a higher epoch")
        await store.release(first)
        require(await store.lease(name, "c", 3600) is None, "G9: only the present epoch can be released")
        await store.lease(name, "b", 0)
        third = await _take_lease(store, name, "c", promise="G9: a lease that ran out is given to the next owner")
        require(third.epoch > second.epoch, "G9: a new owner has a higher epoch")


async def check_clock_set_back(open_store: OpenStore) -> None:
    """G9: a hold that ends later than its ttl allows was taken before the clock was set back, and has ended."""
    async with use_store(open_store) as store:
        name, channel = new_id(), new_id()
        await _take_lease(store, name, "a", promise="G9: a free lease is given")
        require(await store.lease(name, "b", 60) is not None, "G9: a lease that ends later than it could has ended")
        await store.append(channel, text_batch(channel, 1), expected=0, due=FIRST_INSTANT)
        await store.take_due("a", now=FIRST_INSTANT, limit=1000, ttl=3600)
        again = await store.take_due("b", now=FIRST_INSTANT, limit=1000, ttl=60)
        require(channel in [due.channel_id for due in again], "G9: a channel that is held for too long is given")
        await store.mark(channel, due=NEVER)


async def check_attendance(open_store: OpenStore) -> None:
    """G9: hubs have been open since the first attendance after a break."""
    async with use_store(open_store) as store:
        first = await store.attend(3600)
        require(await store.attend(3600) == first, "G9: while a note lasts, hubs have been open since before it")
        await asyncio.sleep(0.001)
        later = await store.attend(60)
        require(later > first, "G9: a note that lasts for too long was made before the clock was set back")
        await store.attend(0)
        await asyncio.sleep(0.001)
        require(await store.attend(60) > later, "G9: when no note lasts, hubs are open from now on")


async def check_presence(open_store: OpenStore) -> None:
    """A store that can be used is not gone."""
    async with use_store(open_store) as store:
        gone = asyncio.ensure_future(store.gone())
        channel = new_id()
        await store.append(channel, text_batch(channel, 1), expected=0)
        await store.head(channel)
        require(not gone.done(), "a store that can be used does not say that it is gone")
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)


async def _take_lease(store: Store, name: str, owner: str, *, promise: str) -> Lease:
    lease = await store.lease(name, owner, 3600)
    if lease is None:
        raise AssertionError(promise)
    return lease


async def check_due(open_store: OpenStore) -> None:
    """G9: a channel that is due is given to one owner, until it is settled by another due time."""
    async with use_store(open_store) as store:
        channel = new_id()
        early = "1990-01-01T00:00:00.000000Z"
        await store.append(channel, text_batch(channel, 1), expected=0, due=early)
        require(NEVER < await store.next_due() <= early, "G9: the earliest due time is known")
        taken = await store.take_due("a", now=early, limit=1000, ttl=3600)
        require(channel in [due.channel_id for due in taken], "G9: a channel that is due is given")
        again = await store.take_due("b", now=FIRST_INSTANT, limit=1000, ttl=3600)
        require(channel not in [due.channel_id for due in again], "G9: and is given to one owner only")
        await store.mark(channel, due=LATER_INSTANT)
        again = await store.take_due("b", now=FIRST_INSTANT, limit=1000, ttl=3600)
        require(channel not in [due.channel_id for due in again], "G9: a channel is not given before it is due")
        again = await store.take_due("b", now=LATER_INSTANT, limit=1000, ttl=3600)
        require(channel in [due.channel_id for due in again], "G9: a new due time is a new claim")
        await store.mark(channel, due=NEVER)
        row = await store.row(channel)
        require(row is not None and row.due == NEVER, "G9: a channel may be due never")


async def check_index(open_store: OpenStore) -> None:
    """G10: the listing follows from the logs, positions from acknowledgements, and rebuilding changes nothing."""
    async with use_store(open_store) as store:
        channel, alice, bob = new_id(), new_id(), new_id()
        await store.append(channel, opening_envelopes(channel, alice, bob), expected=0, due=LATER_INSTANT)
        row = await store.row(channel)
        require(row is not None and row.status == "active", "G10: the row follows the log")
        require(row is not None and row.participants == [alice, bob], "G10: the row names who takes part, in order")
        for sequence in (2, 1):
            await store.acknowledge(alice, channel, sequence)
            require(await store.positions(alice) == [Position(channel, 2)], "G10: a position only moves forward")
        await store.acknowledge(bob, channel, 99)
        require(await store.positions(bob) == [Position(channel, 2)], "G10: a position never leads")
        listed = await store.channels(participant=alice)
        require([each.channel_id for each in listed] == [channel], "G10: channels are listed by participant")
        await _check_rebuild(store, channel, alice, bob)
        closing = hub_envelope(channel, 3, EV_CHANNEL_CLOSED, event=ChannelClosed("done", alice))
        await store.append(channel, [closing], expected=2)
        row = await store.row(channel)
        require(row is not None and row.close_reason == "done", "G10: the row tells why a channel ended")
        require(row is not None and row.due == NEVER, "G10: a closed channel is never due")
        await store.acknowledge(alice, channel, 3)
        require(await store.positions(alice) == [], "G10: an ended channel that was read to its end is done")
        require(await store.positions(bob) == [Position(channel, 2)], "G10: one that was not read is not done")
        await _check_rebuild(store, channel, alice, bob)


async def check_marks(open_store: OpenStore) -> None:
    """G10: a mark is seen by every later call, and by an append that was in progress at the same time."""
    async with use_store(open_store) as store:
        channel, alice = new_id(), new_id()
        await store.append(channel, opening_envelopes(channel, alice), expected=0)
        await asyncio.gather(
            store.append(channel, text_batch(channel, 3), expected=2),
            store.mark(channel, status="closed", due=LATER_INSTANT),
        )
        row = await store.row(channel)
        require(row is not None and (row.status, row.due) == ("closed", LATER_INSTANT), "G10: a mark is shown")
        await store.acknowledge(alice, channel, 3)
        require(await store.positions(alice) == [], "G10: a channel that is marked as ended can be done")
        await store.append(channel, text_batch(channel, 4), expected=3)
        require(await store.positions(alice) == [Position(channel, 3)], "G10: what comes behind the end is still owed")


async def _check_rebuild(store: Store, channel: str, *members: str) -> None:
    before = [await store.row(channel), *[await store.positions(member) for member in members]]
    await store.rebuild()
    after = [await store.row(channel), *[await store.positions(member) for member in members]]
    require(before == after, "G10: rebuilding the index changes nothing")


async def check_snapshots(open_store: OpenStore) -> None:
    """G10: a snapshot comes back as it was put, and the last one counts, if it does not lead the log."""
    async with use_store(open_store) as store:
        channel = new_id()
        await store.append(channel, text_batch(channel, 1), expected=0)
        require(await store.get_snapshot(channel) is None, "G10: a channel has no snapshot by itself")
        for snapshot in (Snapshot(1, "a", b"\x00\xff"), Snapshot(1, "b", b"")):
            await store.put_snapshot(channel, snapshot)
            require(await store.get_snapshot(channel) == snapshot, "G10: a snapshot comes back as it was put")
        await store.put_snapshot(channel, Snapshot(2, "c", b"ahead"))
        require(await store.get_snapshot(channel) == snapshot, "G10: a fold of what is not recorded is not kept")


async def check_erase(open_store: OpenStore) -> None:
    """G11: tombstones replace the records of a channel that has ended; nothing else of it is left, nor touched."""
    channel, other, alice = new_id(), new_id(), new_id()
    async with use_store(open_store) as store:
        survives = store.caps.survives
        for each in (channel, other):
            await store.append(each, opening_envelopes(each, alice, "bob"), expected=0)
            await store.append(each, text_batch(each, 3), expected=2)
        await require_error(UsageError, store.erase(channel), "G11: a channel that has not ended is not erased")
        for each in (channel, other):
            closing = hub_envelope(each, 4, EV_CHANNEL_CLOSED, event=ChannelClosed("secret"))
            await store.append(each, [closing], expected=3)
            await store.put_snapshot(each, Snapshot(4, "v", b"secret"))
        before, untouched = await whole_log(store, channel), await whole_log(store, other)
        require(await store.erase(channel) == 4, "G11: erase says how many records there are")
        await _check_erased(store, channel, before)
        require(await store.erase(channel) == 4, "G11: erasing again changes nothing")
        require(await store.erase(new_id()) == 0, "G11: a channel without a log has nothing to erase")
        require(channel not in {each.channel_id for each in await store.positions(alice)}, "G11: no position is left")
        require(await whole_log(store, other) == untouched, "G11: other channels are not touched")
        require(await store.get_snapshot(other) == Snapshot(4, "v", b"secret"), "G11: nor are their snapshots")
        await store.rebuild()
        await _check_erased(store, channel, before)
    if survives != "nothing":
        async with use_store(open_store) as store:
            await _check_erased(store, channel, before)


async def _check_erased(store: Store, channel: str, before: list[Envelope]) -> None:
    after, row = await whole_log(store, channel), await store.row(channel)
    require(all(map(is_tombstone, after)), "G11: every record is a tombstone")
    require([*map(tombstone_of, before)] == after, "G11: a tombstone keeps sequence, time and a type of ours")
    found = await store.find(channel, [each.envelope_id for each in before])
    require(not found, "G11: an id of what was erased is not found any more")
    require(await store.get_snapshot(channel) is None, "G11: no snapshot is left")
    shown = None if row is None else (row.type, row.status, row.close_reason, row.creator_id, row.participants)
    require(shown == ("discussion", "closed", "erased", "", []), "G11: a listing shows that it was erased")


INDEX_CHECKS: tuple[StoreCheck, ...] = (
    check_leases,
    check_clock_set_back,
    check_attendance,
    check_due,
    check_index,
    check_marks,
    check_snapshots,
    check_erase,
    check_presence,
)
