"""One random script gives equal results on both stores: every answer, every refusal, every row."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st

from antiphon.core.envelope import Envelope, add_seconds
from antiphon.core.errors import AntiphonError
from antiphon.core.events import EV_CHANNEL_CLOSED, EV_CHANNEL_CREATED, EV_CHANNEL_EXPIRED, EV_CHANNEL_OPENED, EV_TEXT
from antiphon.store.memory_store import MemoryStore
from antiphon.store.protocol import Lease, Snapshot, Store
from antiphon.store.sqlite import SqliteStore
from antiphon.testing import ManualClock

CHANNELS = ("a", "b", "c")
NAMES = ("alice", "bob")
EVENTS = {
    EV_CHANNEL_CREATED: {"type": "discussion", "creator": "alice", "participants": [{"name": name} for name in NAMES]},
    EV_CHANNEL_OPENED: {},
    EV_TEXT: {"text": "hello"},
    EV_CHANNEL_EXPIRED: {},
    EV_CHANNEL_CLOSED: {"reason": "done", "by": "bob"},
    "my.event": {"n": 1},
}
Act = tuple[object, ...]

channels = st.sampled_from(CHANNELS)
names = st.sampled_from(NAMES)
seconds = st.integers(-5, 5)
kinds = st.lists(st.sampled_from(sorted(EVENTS)), min_size=1, max_size=3)
ids = st.integers(1, 12)
offsets = st.sampled_from((0, 0, 0, 0, 0, -1, 1))
acts = st.one_of(
    st.tuples(st.just("append"), channels, kinds, ids, offsets, st.none() | seconds),
    st.tuples(st.just("append"), channels, kinds, st.integers(100, 10_000), st.just(0), st.none() | seconds),
    st.tuples(st.just("mark"), channels, st.sampled_from((None, "quarantined", "closed")), st.none() | seconds),
    st.tuples(st.just("acknowledge"), names, channels, st.integers(-1, 12)),
    st.tuples(st.just("take_due"), names, seconds, st.integers(1, 3), st.integers(0, 4)),
    st.tuples(st.just("lease"), st.sampled_from(("x", "y")), names, st.integers(0, 4)),
    st.tuples(st.just("release"), st.integers(0, 9)),
    st.tuples(st.just("snapshot"), channels, st.integers(1, 5)),
    st.tuples(st.just("advance"), st.integers(1, 5)),
    st.tuples(st.just("rebuild")),
)
scripts = st.lists(acts, max_size=40)


class Player:
    """Plays a script on one store and notes what it is told."""

    def __init__(self, store: Store, clock: ManualClock) -> None:
        self.store, self.clock = store, clock
        self.start = clock.now()
        self.told: list[object] = []
        self.leases: list[Lease] = []

    async def play(self, act: Act) -> None:
        perform: Callable[..., object] = getattr(self, f"do_{act[0]}")
        try:
            self.told.append(await perform(*act[1:]))
        except AntiphonError as error:
            self.told.append((type(error).__name__, str(error)))

    async def do_append(self, channel: str, kinds: list[str], number: int, offset: int, due: int | None) -> object:
        expected = await self.store.head(channel) + offset
        batch = [
            Envelope(f"{number + place:08}", channel, "alice", None, kind, EVENTS[kind], sequence=expected + place)
            for place, kind in enumerate(kinds, 1)
        ]
        return await self.store.append(channel, batch, expected=expected, due=self.at(due))

    async def do_mark(self, channel: str, status: str | None, due: int | None) -> None:
        await self.store.mark(channel, status=status, due=self.at(due))

    async def do_acknowledge(self, name: str, channel: str, sequence: int) -> None:
        await self.store.acknowledge(name, channel, sequence)

    async def do_take_due(self, name: str, now: int, limit: int, ttl: int) -> object:
        return await self.store.take_due(name, now=add_seconds(self.start, now), limit=limit, ttl=ttl)

    async def do_lease(self, name: str, owner: str, ttl: int) -> object:
        lease = await self.store.lease(name, owner, ttl)
        self.leases += [lease] if lease else []
        return lease

    async def do_release(self, number: int) -> None:
        if number < len(self.leases):
            await self.store.release(self.leases[number])

    async def do_snapshot(self, channel: str, sequence: int) -> None:
        await self.store.put_snapshot(channel, Snapshot(sequence, "v", b"blob"))

    async def do_advance(self, seconds: int) -> None:
        self.clock.advance(seconds)

    async def do_rebuild(self) -> None:
        await self.store.rebuild()

    def at(self, seconds: int | None) -> str | None:
        return None if seconds is None else "" if seconds == 0 else add_seconds(self.start, seconds)

    async def look(self) -> None:
        """Note everything that the store shows."""
        store, told = self.store, self.told
        told.append([await store.channels(status=status) for status in (None, "active", "closed", "expired")])
        told.append([await store.channels(participant=name, after="a", limit=1) for name in NAMES])
        told.append([await store.positions(name) for name in NAMES])
        told.append(await store.next_due())
        for channel in CHANNELS:
            told.append([await store.head(channel), await store.row(channel), await store.get_snapshot(channel)])
            told.append([await store.read(channel), await store.read(channel, after=1, limit=2)])
            told.append(dict(await store.find(channel, [f"{number:08}" for number in range(1, 15)])))


async def played(player: Player, script: list[Act]) -> list[object]:
    for act in script:
        await player.play(act)
        await player.look()
    tail = player.store.tail(cursor="0")
    if await player.store.channels():
        player.told.append((await anext(tail)).envelopes)
    await tail.aclose()
    await player.store.close()
    return player.told


CLOSED_TWICE: list[Act] = [
    ("advance", 2),
    ("append", "c", ["ag2.channel.closed"], 1, 0, 4),
    ("take_due", "alice", 4, 1, 3),
    ("append", "c", ["ag2.channel.closed"], 100, 0, 4),
]
"""A batch that takes the due away and gives the same again has not changed it: whoever holds the channel holds it."""


@given(scripts)
@example(CLOSED_TWICE)
def test_both_stores_tell_the_same(script: list[Act]) -> None:
    async def both() -> None:
        clock, other = ManualClock(), ManualClock()
        with tempfile.TemporaryDirectory() as folder:
            store = await SqliteStore.open(Path(folder) / "log.db", clock=other)
            expected = await played(Player(MemoryStore(clock=clock), clock), script)
            assert await played(Player(store, other), script) == expected

    asyncio.run(both())
