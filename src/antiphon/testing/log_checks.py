"""What every store's log must do: the promises G1 to G8 of `store.protocol`, a check for each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from copy import deepcopy
from dataclasses import replace

from antiphon.core.envelope import Envelope
from antiphon.core.errors import Conflict, IdReused, StoreRefused, TooLarge, UsageError
from antiphon.store.protocol import Appended, Store, TailBatch
from antiphon.testing.envelopes import LATER, OpenStore, hold, new_id, opened, refused, said, whole_log

PATIENCE = 30.0


async def check_compare_and_set(open_store: OpenStore) -> None:
    """G1: one of several appends at the same head succeeds; the others are told where the head is."""
    async with opened(open_store) as store:
        channel = new_id()
        outcomes = await asyncio.gather(
            *(store.append(channel, said(channel, 1), expected=0) for _ in range(8)), return_exceptions=True
        )
        conflicts = [outcome for outcome in outcomes if isinstance(outcome, Conflict)]
        hold(outcomes.count(Appended(1, 1)) == 1, "G1: exactly one of eight racing appends succeeds")
        hold(len(conflicts) == 7, "G1: the appends that lost a race are told so with Conflict")
        hold({error.head for error in conflicts} == {1}, "G1: a Conflict tells the head")
        await refused(Conflict, store.append(channel, said(channel, 3), expected=2), "G1: a gap is refused")
        hold(await store.head(channel) == 1, "G1: a refused append records nothing")


async def check_all_or_nothing(open_store: OpenStore) -> None:
    """G1: a batch of which one envelope cannot be recorded is not recorded at all, and harms nobody else."""
    async with opened(open_store) as store:
        channel, other = new_id(), new_id()
        first = said(channel, 1)
        await store.append(channel, first, expected=0)
        spoilt = [*said(channel, 2), replace(first[0], sequence=3)]
        bad, good = await asyncio.gather(
            store.append(channel, spoilt, expected=1),
            store.append(other, said(other, 1, 2, 3), expected=0),
            return_exceptions=True,
        )
        hold(isinstance(bad, IdReused), "G4: an id that is recorded is refused behind the first place too")
        hold(good == Appended(1, 3), "G1: a batch that is refused leaves other channels alone")
        hold(await store.head(channel) == 1, "G1: a batch is recorded as a whole or not at all")


async def check_contiguous(open_store: OpenStore) -> None:
    """G2: sequences are 1 … head without holes, in pages of any size."""
    async with opened(open_store) as store:
        channel = new_id()
        written: list[Envelope] = []
        for size in (1, 3, 1, 7, 2):
            batch = said(channel, *range(len(written) + 1, len(written) + size + 1))
            appended = await store.append(channel, batch, expected=len(written))
            hold(appended == Appended(len(written) + 1, len(written) + size), "G1: a batch gets n+1 … n+k")
            written += batch
        for limit in (1, 3, len(written), 1000):
            hold(await whole_log(store, channel, limit) == written, f"G2: pages of {limit} give the whole log")
        page = await store.read(channel, limit=len(written))
        hold(not page.more, "G2: the last page says that nothing follows")
        beyond = await store.read(channel, after=len(written) + 5)
        hold(beyond.envelopes == [] and not beyond.more, "G2: nothing is behind the head")
        empty = await store.read(new_id())
        hold(empty.envelopes == [] and await store.head(new_id()) == 0, "G2: a channel without a log is at 0")


async def check_durable(open_store: OpenStore) -> None:
    """G3: what was acknowledged is there after closing and opening, if the store survives anything at all."""
    channel = new_id()
    async with opened(open_store) as store:
        written = said(channel, 1, 2)
        await store.append(channel, written, expected=0)
        survives = store.caps.survives
    if survives == "nothing":
        return
    async with opened(open_store) as store:
        hold(await whole_log(store, channel) == written, "G3: an acknowledged batch survives closing the store")
        appended = await store.append(channel, said(channel, 3), expected=2)
        hold(appended == Appended(3, 3), "G3: a log goes on where it was")


async def check_ids(open_store: OpenStore) -> None:
    """G4: a repeated batch gets its first result; a reused id is refused; channels do not share ids."""
    async with opened(open_store) as store:
        channel, other = new_id(), new_id()
        batch = said(channel, 1, 2)
        await store.append(channel, batch, expected=0)
        again = Appended(1, 2, duplicate=True)
        for expected in (0, 2, 99):
            result = await store.append(channel, batch, expected=expected)
            hold(result == again, f"G4: a repeated batch gets its first result at expected={expected}")
        restamped = [replace(envelope, sequence=envelope.sequence + 2, created_at=LATER) for envelope in batch]
        result = await store.append(channel, restamped, expected=2)
        hold(result == again, "G4: the hub's stamps are no part of what an envelope says")
        changed = [replace(batch[0], event_data={"text": "other"}, sequence=3)]
        await refused(IdReused, store.append(channel, changed, expected=2), "G4: an id says one thing only")
        await _keep_true_and_one_apart(store)
        twice = [replace(envelope, envelope_id="twice") for envelope in said(channel, 3, 4)]
        await refused(IdReused, store.append(channel, twice, expected=2), "G4: a batch names each id once")
        elsewhere = [replace(batch[0], channel_id=other)]
        result = await store.append(other, elsewhere, expected=0)
        hold(result == Appended(1, 1), "G4: ids are remembered per channel")
        hold(await store.head(channel) == 2, "G4: a repetition records nothing")


async def _keep_true_and_one_apart(store: Store) -> None:
    channel = new_id()
    [envelope] = said(channel, 1)
    one, true, whole = ([replace(envelope, event_data={"x": value})] for value in (1, True, 1.0))
    await store.append(channel, one, expected=0)
    for other in (true, whole):
        await refused(IdReused, store.append(channel, other, expected=0), "G4: 1, true and 1.0 are not the same")


async def check_repeatable(open_store: OpenStore) -> None:
    """G5: the same call again, as after a lost answer, never becomes a conflict."""
    async with opened(open_store) as store:
        channel = new_id()
        batch = said(channel, 1)
        results = await asyncio.gather(*(store.append(channel, batch, expected=0) for _ in range(4)))
        hold({(each.first, each.last) for each in results} == {(1, 1)}, "G5: a repeated call has one result")
        hold(sum(not each.duplicate for each in results) == 1, "G5: exactly one call is the first")
        await store.append(channel, said(channel, 2), expected=1)
        late = await store.append(channel, batch, expected=0)
        hold(late == Appended(1, 1, duplicate=True), "G5: a call repeated late is no conflict")


async def check_read_your_acknowledgement(open_store: OpenStore) -> None:
    """G6: read, head and find see what was acknowledged, at once; nobody can change it afterwards."""
    async with opened(open_store) as store:
        await asyncio.gather(*(_read_at_once(store, new_id()) for _ in range(8)))


async def _read_at_once(store: Store, channel: str) -> None:
    for sequence in range(1, 9):
        batch = said(channel, sequence)
        await store.append(channel, batch, expected=sequence - 1)
        found = await store.find(channel, [batch[0].envelope_id, "unknown"])
        page = await store.read(channel, after=sequence - 1)
        hold(await store.head(channel) == sequence, "G6: head sees what was acknowledged")
        hold(dict(found) == {batch[0].envelope_id: batch[0]}, "G6: find sees what was acknowledged")
        hold(page.envelopes == batch, "G6: read sees what was acknowledged")
        before = deepcopy(batch)
        for envelope in (*page.envelopes, *batch):
            envelope.event_data["text"] = "changed"
        page = await store.read(channel, after=sequence - 1)
        hold(page.envelopes == before, "G6: what was recorded cannot be changed from outside")


async def check_tail(open_store: OpenStore) -> None:
    """G7: a tail gives each channel in order and without holes, live, and again from its cursor."""
    async with opened(open_store) as store:
        seen: dict[str, list[int]] = {new_id(): [] for _ in range(4)}
        whole = list(range(1, 11))
        tail = store.tail()
        writers = asyncio.gather(*(_write_some(store, channel) for channel in seen))
        cursor = await _follow(tail, seen, until=lambda _: all(each[-1:] == [10] for each in seen.values()))
        await writers
        hold(all(each == whole for each in seen.values()), "G7: a tail gives every envelope once, in order")
        later = new_id()
        await store.append(later, said(later, 1), expected=0)
        again: dict[str, list[int]] = {channel: [] for channel in seen}
        await _follow(store.tail(cursor=cursor), again, until=lambda envelope: envelope.channel_id == later)
        hold(all(each == whole[10 - len(each) :] for each in again.values()), "G7: a cursor is resumed without holes")


async def _follow(
    tail: AsyncIterator[TailBatch], seen: dict[str, list[int]], *, until: Callable[[Envelope], bool]
) -> str:
    """Note what a tail gives until an envelope ends it; the cursor of the first batch."""
    cursor = ""
    async with asyncio.timeout(PATIENCE):
        async for batch in tail:
            cursor = cursor or batch.cursor
            for envelope in batch.envelopes:
                seen.get(envelope.channel_id, []).append(envelope.sequence)
            if any(map(until, batch.envelopes)):
                break
    return cursor


async def _write_some(store: Store, channel: str) -> None:
    for sequence in range(1, 11):
        await store.append(channel, said(channel, sequence), expected=sequence - 1)


async def check_abandoned_calls(open_store: OpenStore) -> None:
    """G8: a caller that stops waiting holds nothing open: others go on, and its batch is there or is not."""
    async with opened(open_store) as store:
        channel = new_id()
        batch = said(channel, 1)
        waiting = asyncio.ensure_future(store.append(channel, batch, expected=0))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        async with asyncio.timeout(PATIENCE):
            result = await store.append(channel, batch, expected=0)
        hold((result.first, result.last) == (1, 1), "G8: a cancelled append can be repeated")
        hold(await store.head(channel) == 1, "G8: a cancelled append is recorded at most once")


async def check_batches_are_taken_as_given(open_store: OpenStore) -> None:
    """G8: what a caller does to its batch while it waits changes nothing, and harms nobody."""
    async with opened(open_store) as store:
        channel, other = new_id(), new_id()
        batch = said(channel, 1, 2)
        given = list(batch)
        waiting = asyncio.gather(
            store.append(channel, batch, expected=0), store.append(other, said(other, 1), expected=0)
        )
        await asyncio.sleep(0)
        batch.clear()
        hold([*await waiting] == [Appended(1, 2), Appended(1, 1)], "G8: a batch is taken as it was given")
        hold(await whole_log(store, channel) == given, "G8: a batch is recorded as it was given")


async def check_arguments(open_store: OpenStore) -> None:
    """A call that can mean nothing is a `UsageError`, and leaves the store as it was."""
    async with opened(open_store) as store:
        channel = new_id()
        await store.append(channel, said(channel, 1, 2), expected=0)
        for after in (-1, 2**63):
            await refused(UsageError, store.read(channel, after=after), f"nothing is behind {after}")
        for limit in (0, -1, 2**63):
            await refused(UsageError, store.read(channel, limit=limit), f"no page has {limit} envelopes")
            await refused(UsageError, store.names(limit=limit), f"no page has {limit} names")
            await refused(UsageError, store.channels(limit=limit), f"no page has {limit} channels")
            due = store.take_due("owner", now=LATER, limit=limit, ttl=1)
            await refused(UsageError, due, f"nobody takes {limit} channels")
        for sequence in (-1, 2**63):
            await refused(UsageError, store.acknowledge("alice", channel, sequence), f"nobody is at {sequence}")
        page = await store.read(channel, after=2**63 - 1, limit=2**63 - 1)
        hold(page.envelopes == [] and not page.more, "G2: nothing is behind the head, however far")
        hold(len((await store.read(channel, limit=2**63 - 1)).envelopes) == 2, "G2: a page may be of any size")
        hold(await store.append(channel, said(channel, 3), expected=2) == Appended(3, 3), "a wrong call harms nobody")


async def check_limits(open_store: OpenStore) -> None:
    """An envelope that is too large is refused before anything happens; a closed store refuses everything."""
    async with opened(open_store) as store:
        channel = new_id()
        [envelope] = said(channel, 1)
        large = replace(envelope, event_data={"text": "x" * store.caps.max_envelope_bytes})
        await refused(TooLarge, store.append(channel, [large], expected=0), "a large envelope is TooLarge")
        hold(await store.head(channel) == 0, "an envelope that is too large is not recorded")
    await store.close()
    await refused(StoreRefused, store.append(channel, [envelope], expected=0), "a closed store takes nothing")
    await refused(StoreRefused, store.read(channel), "a closed store gives nothing")
