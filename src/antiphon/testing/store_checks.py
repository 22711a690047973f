"""Conformance checks for any store: the promises of `store.protocol`, of which G9 to G11 are in `index_checks`.

    async def test_my_store(tmp_path):
        await check_store(lambda: MyStore.open(tmp_path / "log"))

Rule 1: a check opens the store itself, uses channels of its own, and closes it again; it can be run any number of
        times, and alone.
Rule 2: a check that fails says in a sentence which promise is broken.
Rule 3: a check sees only what the protocol shows.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from copy import deepcopy
from dataclasses import replace

from antiphon.core.envelope import Envelope
from antiphon.core.errors import Conflict, IdReused, StoreRefused, TooLarge, UsageError
from antiphon.store.protocol import Appended, Store, TailBatch
from antiphon.testing.index_checks import INDEX_CHECKS
from antiphon.testing.store_fixtures import (
    LATER_INSTANT,
    OpenStore,
    StoreCheck,
    new_id,
    require,
    require_error,
    text_batch,
    use_store,
    whole_log,
)

TAIL_TIMEOUT_SECONDS = 30.0


async def check_compare_and_set(open_store: OpenStore) -> None:
    """G1: one of several appends at the same head succeeds; the others raise `Conflict` with the head."""
    async with use_store(open_store) as store:
        channel = new_id()
        outcomes = await asyncio.gather(
            *(store.append(channel, text_batch(channel, 1), expected=0) for _ in range(8)), return_exceptions=True
        )
        conflicts = [outcome for outcome in outcomes if isinstance(outcome, Conflict)]
        require(outcomes.count(Appended(1, 1)) == 1, "G1: exactly one of eight racing appends succeeds")
        require(len(conflicts) == 7, "G1: the appends that lost a race are told so with Conflict")
        require({error.head for error in conflicts} == {1}, "G1: a Conflict tells the head")
        await require_error(Conflict, store.append(channel, text_batch(channel, 3), expected=2), "G1: a gap is refused")
        require(await store.head(channel) == 1, "G1: a refused append records nothing")


async def check_all_or_nothing(open_store: OpenStore) -> None:
    """G1: a batch with an envelope that cannot be recorded is not recorded at all, and affects no other."""
    async with use_store(open_store) as store:
        channel, other = new_id(), new_id()
        first = text_batch(channel, 1)
        await store.append(channel, first, expected=0)
        spoilt = [*text_batch(channel, 2), replace(first[0], sequence=3)]
        bad, good = await asyncio.gather(
            store.append(channel, spoilt, expected=1),
            store.append(other, text_batch(other, 1, 2, 3), expected=0),
            return_exceptions=True,
        )
        require(isinstance(bad, IdReused), "G4: an id that is recorded is refused behind the first place too")
        require(good == Appended(1, 3), "G1: a batch that is refused leaves other channels alone")
        require(await store.head(channel) == 1, "G1: a batch is recorded as a whole or not at all")


async def check_contiguous(open_store: OpenStore) -> None:
    """G2: sequences are 1 … head without holes, in pages of any size."""
    async with use_store(open_store) as store:
        channel = new_id()
        written: list[Envelope] = []
        for size in (1, 3, 1, 7, 2):
            batch = text_batch(channel, *range(len(written) + 1, len(written) + size + 1))
            appended = await store.append(channel, batch, expected=len(written))
            require(appended == Appended(len(written) + 1, len(written) + size), "G1: a batch gets n+1 … n+k")
            written += batch
        for limit in (1, 3, len(written), 1000):
            require(await whole_log(store, channel, limit) == written, f"G2: pages of {limit} give the whole log")
        page = await store.read(channel, limit=len(written))
        require(not page.more, "G2: the last page says that nothing follows")
        beyond = await store.read(channel, after=len(written) + 5)
        require(beyond.envelopes == [] and not beyond.more, "G2: nothing is behind the head")
        empty = await store.read(new_id())
        require(empty.envelopes == [] and await store.head(new_id()) == 0, "G2: a channel without a log is at 0")


async def check_durable(open_store: OpenStore) -> None:
    """G3: what was acknowledged is there after closing and opening, if the store survives anything at all."""
    channel = new_id()
    async with use_store(open_store) as store:
        written = text_batch(channel, 1, 2)
        await store.append(channel, written, expected=0)
        survives = store.caps.survives
    if survives == "nothing":
        return
    async with use_store(open_store) as store:
        require(await whole_log(store, channel) == written, "G3: an acknowledged batch survives closing the store")
        appended = await store.append(channel, text_batch(channel, 3), expected=2)
        require(appended == Appended(3, 3), "G3: a log goes on where it was")


async def check_ids(open_store: OpenStore) -> None:
    """G4: a repeated batch gets its first result; a reused id is refused; channels do not share ids."""
    async with use_store(open_store) as store:
        channel, other = new_id(), new_id()
        batch = text_batch(channel, 1, 2)
        await store.append(channel, batch, expected=0)
        again = Appended(1, 2, duplicate=True)
        for expected in (0, 2, 99):
            result = await store.append(channel, batch, expected=expected)
            require(result == again, f"G4: a repeated batch gets its first result at expected={expected}")
        restamped = [replace(envelope, sequence=envelope.sequence + 2, created_at=LATER_INSTANT) for envelope in batch]
        result = await store.append(channel, restamped, expected=2)
        require(result == again, "G4: the hub's stamps are no part of what an envelope says")
        changed = [replace(batch[0], event_data={"text": "other"}, sequence=3)]
        await require_error(IdReused, store.append(channel, changed, expected=2), "G4: an id says one thing only")
        await _keep_true_and_one_apart(store)
        twice = [replace(envelope, envelope_id="twice") for envelope in text_batch(channel, 3, 4)]
        await require_error(IdReused, store.append(channel, twice, expected=2), "G4: a batch names each id once")
        elsewhere = [replace(batch[0], channel_id=other)]
        result = await store.append(other, elsewhere, expected=0)
        require(result == Appended(1, 1), "G4: ids are remembered per channel")
        require(await store.head(channel) == 2, "G4: a repetition records nothing")


async def _keep_true_and_one_apart(store: Store) -> None:
    channel = new_id()
    [envelope] = text_batch(channel, 1)
    one, true, whole = ([replace(envelope, event_data={"x": value})] for value in (1, True, 1.0))
    await store.append(channel, one, expected=0)
    for other in (true, whole):
        await require_error(IdReused, store.append(channel, other, expected=0), "G4: 1, true and 1.0 are not the same")


async def check_repeatable(open_store: OpenStore) -> None:
    """G5: the same call again, as after a lost answer, never becomes a conflict."""
    async with use_store(open_store) as store:
        channel = new_id()
        batch = text_batch(channel, 1)
        results = await asyncio.gather(*(store.append(channel, batch, expected=0) for _ in range(4)))
        require({(each.first, each.last) for each in results} == {(1, 1)}, "G5: a repeated call has one result")
        require(sum(not each.duplicate for each in results) == 1, "G5: exactly one call is the first")
        await store.append(channel, text_batch(channel, 2), expected=1)
        late = await store.append(channel, batch, expected=0)
        require(late == Appended(1, 1, duplicate=True), "G5: a call repeated late is no conflict")


async def check_read_your_acknowledgement(open_store: OpenStore) -> None:
    """G6: read, head and find see what was acknowledged, at once; it cannot be changed afterwards."""
    async with use_store(open_store) as store:
        await asyncio.gather(*(_read_at_once(store, new_id()) for _ in range(8)))


async def _read_at_once(store: Store, channel: str) -> None:
    for sequence in range(1, 9):
        batch = text_batch(channel, sequence)
        await store.append(channel, batch, expected=sequence - 1)
        found = await store.find(channel, [batch[0].envelope_id, "unknown"])
        page = await store.read(channel, after=sequence - 1)
        require(await store.head(channel) == sequence, "G6: head sees what was acknowledged")
        require(dict(found) == {batch[0].envelope_id: batch[0]}, "G6: find sees what was acknowledged")
        require(page.envelopes == batch, "G6: read sees what was acknowledged")
        before = deepcopy(batch)
        for envelope in (*page.envelopes, *batch):
            envelope.event_data["text"] = "changed"
        page = await store.read(channel, after=sequence - 1)
        require(page.envelopes == before, "G6: what was recorded cannot be changed from outside")


async def check_tail(open_store: OpenStore) -> None:
    """G7: a tail gives each channel in order and without holes, live, and again from its cursor."""
    async with use_store(open_store) as store:
        seen: dict[str, list[int]] = {new_id(): [] for _ in range(4)}
        whole = list(range(1, 11))
        tail = store.tail()
        writers = asyncio.gather(*(_write_some(store, channel) for channel in seen))
        cursor = await _follow_tail(tail, seen, until=lambda _: all(each[-1:] == [10] for each in seen.values()))
        await writers
        require(all(each == whole for each in seen.values()), "G7: a tail gives every envelope once, in order")
        later = new_id()
        await store.append(later, text_batch(later, 1), expected=0)
        again: dict[str, list[int]] = {channel: [] for channel in seen}
        await _follow_tail(store.tail(cursor=cursor), again, until=lambda envelope: envelope.channel_id == later)
        require(
            all(each == whole[10 - len(each) :] for each in again.values()), "G7: a cursor is resumed without holes"
        )


async def _follow_tail(
    tail: AsyncIterator[TailBatch], seen: dict[str, list[int]], *, until: Callable[[Envelope], bool]
) -> str:
    """Note what a tail gives until an envelope ends it; the cursor of the first batch."""
    cursor = ""
    async with asyncio.timeout(TAIL_TIMEOUT_SECONDS):
        async for batch in tail:
            cursor = cursor or batch.cursor
            for envelope in batch.envelopes:
                seen.get(envelope.channel_id, []).append(envelope.sequence)
            if any(map(until, batch.envelopes)):
                break
    return cursor


async def _write_some(store: Store, channel: str) -> None:
    for sequence in range(1, 11):
        await store.append(channel, text_batch(channel, sequence), expected=sequence - 1)


async def check_abandoned_calls(open_store: OpenStore) -> None:
    """G8: a caller that stops waiting holds nothing open: others go on, and its batch is there or is not."""
    async with use_store(open_store) as store:
        channel = new_id()
        batch = text_batch(channel, 1)
        waiting = asyncio.ensure_future(store.append(channel, batch, expected=0))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        async with asyncio.timeout(TAIL_TIMEOUT_SECONDS):
            result = await store.append(channel, batch, expected=0)
        require((result.first, result.last) == (1, 1), "G8: a cancelled append can be repeated")
        require(await store.head(channel) == 1, "G8: a cancelled append is recorded at most once")


async def check_order_of_writes(open_store: OpenStore) -> None:
    """G12: a `mark` made after a cancelled append returns once that append is recorded or lost."""
    async with use_store(open_store) as store:
        for channel in [new_id() for _ in range(8)]:
            waiting = asyncio.ensure_future(store.append(channel, text_batch(channel, 1), expected=0))
            await asyncio.sleep(0)
            waiting.cancel()
            await store.mark(channel)
            head, other = await store.head(channel), new_id()
            await asyncio.gather(waiting, return_exceptions=True)
            await store.append(other, text_batch(other, 1), expected=0)
            require(await store.head(channel) == head, "G12: no cancelled append takes effect after a mark")


async def check_batches_are_taken_as_given(open_store: OpenStore) -> None:
    """G8: a batch that its caller changes during the append is recorded as it was given."""
    async with use_store(open_store) as store:
        channel, other = new_id(), new_id()
        batch = text_batch(channel, 1, 2)
        given = list(batch)
        waiting = asyncio.gather(
            store.append(channel, batch, expected=0), store.append(other, text_batch(other, 1), expected=0)
        )
        await asyncio.sleep(0)
        batch.clear()
        require([*await waiting] == [Appended(1, 2), Appended(1, 1)], "G8: a batch is taken as it was given")
        require(await whole_log(store, channel) == given, "G8: a batch is recorded as it was given")


async def check_arguments(open_store: OpenStore) -> None:
    """A call that can mean nothing is a `UsageError`, and leaves the store as it was."""
    async with use_store(open_store) as store:
        channel = new_id()
        await store.append(channel, text_batch(channel, 1, 2), expected=0)
        for after in (-1, 2**63):
            await require_error(UsageError, store.read(channel, after=after), f"nothing is behind {after}")
        for limit in (0, -1, 2**63):
            await require_error(UsageError, store.read(channel, limit=limit), f"no page has {limit} envelopes")
            await require_error(UsageError, store.names(limit=limit), f"no page has {limit} names")
            await require_error(UsageError, store.channels(limit=limit), f"no page has {limit} channels")
            due = store.take_due("owner", now=LATER_INSTANT, limit=limit, ttl=1)
            await require_error(UsageError, due, f"nobody takes {limit} channels")
        for sequence in (-1, 2**63):
            await require_error(UsageError, store.acknowledge("alice", channel, sequence), f"nobody is at {sequence}")
        page = await store.read(channel, after=2**63 - 1, limit=2**63 - 1)
        require(page.envelopes == [] and not page.more, "G2: nothing is behind the head, however far")
        require(len((await store.read(channel, limit=2**63 - 1)).envelopes) == 2, "G2: a page may be of any size")
        require(
            await store.append(channel, text_batch(channel, 3), expected=2) == Appended(3, 3),
            "a wrong call harms nobody",
        )


async def check_limits(open_store: OpenStore) -> None:
    """An envelope that is too large is refused before anything happens; a closed store refuses everything."""
    async with use_store(open_store) as store:
        channel = new_id()
        [envelope] = text_batch(channel, 1)
        large = replace(envelope, event_data={"text": "x" * store.caps.max_envelope_bytes})
        await require_error(TooLarge, store.append(channel, [large], expected=0), "a large envelope is TooLarge")
        require(await store.head(channel) == 0, "an envelope that is too large is not recorded")
    await store.close()
    await require_error(StoreRefused, store.append(channel, [envelope], expected=0), "a closed store takes nothing")
    await require_error(StoreRefused, store.read(channel), "a closed store gives nothing")


STORE_CHECKS: tuple[StoreCheck, ...] = (
    check_compare_and_set,
    check_all_or_nothing,
    check_contiguous,
    check_durable,
    check_ids,
    check_repeatable,
    check_read_your_acknowledgement,
    check_tail,
    check_abandoned_calls,
    check_order_of_writes,
    check_batches_are_taken_as_given,
    check_limits,
    check_arguments,
    *INDEX_CHECKS,
)


async def check_store(open_store: OpenStore) -> None:
    """Run every check. `open_store` is called for each, and again to see what was kept."""
    for check in STORE_CHECKS:
        await check(open_store)
