"""Whether every log is what was written: sequences 1 … head, each record readable, each tied to the one before.

It goes through the protocol alone, so it can be run on any store, also on one that a hub is using. A log that lost its
end is noticed by a snapshot that was made of it; what cannot be seen is one that lost both.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from antiphon.core.errors import LogCorrupt, StoreError
from antiphon.store.protocol import Store


class Problem(msgspec.Struct, frozen=True):
    """The first sequence of a channel that cannot be trusted, and why."""

    channel_id: str
    sequence: int
    why: str


class Report(msgspec.Struct, frozen=True):
    """How much was read, and what was wrong with it."""

    channels: int
    envelopes: int
    problems: list[Problem]


async def verify_store(store: Store) -> Report:
    """Read every log of the store's tenant from its beginning, and compare the listing with them."""
    envelopes = 0
    problems: list[Problem] = []
    recorded, listed = [name async for name in _recorded(store)], {name async for name in _listed(store)}
    for channel_id in recorded:
        good, problem = await verify_channel(store, channel_id)
        envelopes += good
        if problem is None and channel_id not in listed:
            problem = Problem(channel_id, 1, "the listing has lost this channel; rebuild it")
        if problem is not None:
            problems.append(problem)
    gone = sorted(listed - set(recorded))
    problems.extend(Problem(channel_id, 1, "the listing has this channel, but its log is gone") for channel_id in gone)
    return Report(len(recorded), envelopes, problems)


async def verify_channel(store: Store, channel_id: str) -> tuple[int, Problem | None]:
    """How many envelopes of one channel are good, and what is wrong with the next."""
    good, more = 0, True
    try:
        folded = await _folded(store, channel_id)  # first, for a hub may be using the store: later, a log is longer
        while more:
            page = await store.read(channel_id, after=good)
            good, more = good + len(page.envelopes), page.more
        head = await store.head(channel_id)
    except LogCorrupt as error:
        return good, Problem(channel_id, error.sequence, error.why)
    if head < good:
        return good, Problem(channel_id, head + 1, f"the head is {head}, but {good} envelopes were read")
    if head < folded:
        return good, Problem(
            channel_id, head + 1, f"the log has lost its end: it had {folded} envelopes when a snapshot was made of it"
        )
    return good, None


async def _folded(store: Store, channel_id: str) -> int:
    """How long the log was when a snapshot was made of it; 0 if there is none, or none that can be read."""
    try:
        snapshot = await store.get_snapshot(channel_id)
    except StoreError:
        return 0  # it is only a cache: a hub makes it anew
    return snapshot.sequence if snapshot else 0


async def _recorded(store: Store) -> AsyncIterator[str]:
    after = ""
    while names := await store.names(after=after):
        for name in names:
            yield name
        after = names[-1]


async def _listed(store: Store) -> AsyncIterator[str]:
    after = ""
    while rows := await store.channels(after=after, limit=1000):
        for row in rows:
            yield row.channel_id
        after = rows[-1].channel_id
