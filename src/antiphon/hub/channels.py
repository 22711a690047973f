"""The channels of a hub: loaded on first use, kept while somebody uses them.

Rule 1: there is never more than one `LiveChannel` of a channel in a hub.
Rule 2: opening a hub loads none. A channel is folded when it is first touched, from its snapshot and what follows.
Rule 3: a channel that cannot be read is quarantined, and only that one.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Coroutine
from weakref import WeakValueDictionary

from msgspec.structs import replace

from antiphon.core.codec import Malformed, from_json, to_json
from antiphon.core.envelope import Envelope
from antiphon.core.erasing import ERASED, is_erased
from antiphon.core.errors import AntiphonError, LogCorrupt, RulesInvalid, UnknownChannel, UsageError
from antiphon.core.events import Created, Json, event_of
from antiphon.core.laws import Fold, LawBook, Laws, SavedFold
from antiphon.core.state import State
from antiphon.core.words import told
from antiphon.hub.live import LiveChannel, check_whole
from antiphon.hub.request import Plan
from antiphon.hub.surroundings import Surroundings
from antiphon.store.protocol import ChannelRow, Snapshot

KEPT = 1024
"""How many channels stay loaded although nobody holds them."""

LARGE_KNOBS = 16 * 1024
"""From how many bytes on knobs are read by a thread: a thousand rules take longer than the loop may stop."""

TIDY_EVERY = 64
"""How many more may be loaded before those that have ended are let go."""


class Channels:
    """Finds channels by id."""

    def __init__(self, around: Surroundings, lawbook: LawBook) -> None:
        self._around, self._lawbook = around, lawbook
        self._live: WeakValueDictionary[str, LiveChannel] = WeakValueDictionary()
        self._kept: OrderedDict[str, LiveChannel] = OrderedDict()
        self._limit = TIDY_EVERY
        self._loading: dict[str, asyncio.Future[LiveChannel]] = {}

    async def get(self, channel_id: str) -> LiveChannel:
        """The channel, loaded; `UnknownChannel` if there is none."""
        live = self._live.get(channel_id)
        if live is None:
            live = await self._load_once(channel_id)
        return self._keep(live)

    def loaded(self, channel_id: str) -> LiveChannel | None:
        """The channel, if somebody uses it."""
        return self._live.get(channel_id)

    def clock_set(self, seconds: float) -> None:
        """The hub's clock was set by so many seconds."""
        for live in list(self._live.values()):
            live.time.clock_set(seconds)

    async def create(self, channel_id: str, laws: Laws, plan: Plan) -> LiveChannel:
        """A new channel, whose log begins with what is planned. If that is not recorded, there is no channel."""
        live = self._keep(LiveChannel(laws, laws.begin(channel_id), self._around))
        try:
            await live.submit(plan)
        finally:
            if live.state.sequence == 0:
                self._forget(live)
        return live

    async def erase(self, channel_id: str) -> int:
        """Erase the content of a channel that has ended, also from memory; how many records there are.

        One that is not loaded is not: its rules may not be known here. Loading it waits until it is erased.
        """
        while channel_id in self._loading:
            await asyncio.wait([self._loading[channel_id]])
        live = self._live.get(channel_id)
        if live is not None:
            return await live.erase(self._lawbook(ERASED, {}))
        erasing = asyncio.ensure_future(self._around.store.erase(channel_id))
        self._load_behind(channel_id, self._load_after(erasing, channel_id))
        return await asyncio.shield(erasing)

    async def _load_after(self, erasing: asyncio.Future[int], channel_id: str) -> LiveChannel:
        await asyncio.gather(erasing, return_exceptions=True)  # who asked for it is told
        return await self._load(channel_id)

    async def settled(self) -> None:
        """Wait until no channel has anything left to admit. Who waits for the end of a turn is told not to."""
        while busy := [live for live in list(self._live.values()) if live.busy]:
            for live in busy:
                await live.settled()
        self._give_up(UsageError("the hub was closed before this could be said; nothing of it was recorded"))

    async def watch_store(self) -> None:
        """Once the store is gone, end every wait for a channel to grow and for a turn to end."""
        gone = await self._around.store.gone()
        self._around.feed.fail(gone)
        self._give_up(gone)

    def _give_up(self, error: AntiphonError) -> None:
        """Tell those who wait for the end of a turn that it does not come."""
        for live in list(self._live.values()):
            live.give_up(error)

    def _keep(self, live: LiveChannel) -> LiveChannel:
        channel_id = live.state.channel_id
        self._live[channel_id] = live
        self._kept[channel_id] = live
        self._kept.move_to_end(channel_id)
        if len(self._kept) > self._limit:
            self._tidy()
        return live

    def _forget(self, live: LiveChannel) -> None:
        channel_id = live.state.channel_id
        if self._live.get(channel_id) is live:
            del self._live[channel_id]
            self._kept.pop(channel_id, None)

    def _tidy(self) -> None:
        """Let go of what has ended, then of what was not used for longest."""
        for channel_id in [name for name, live in self._kept.items() if live.state.ended]:
            del self._kept[channel_id]
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        self._limit = len(self._kept) + TIDY_EVERY

    async def _load_once(self, channel_id: str) -> LiveChannel:
        loading = self._loading.get(channel_id)
        if loading is None:
            loading = self._load_behind(channel_id, self._load(channel_id))
        return await asyncio.shield(loading)

    def _load_behind(self, channel_id: str, work: Coroutine[None, None, LiveChannel]) -> asyncio.Future[LiveChannel]:
        """Have everybody who wants this channel wait for this."""
        loading = asyncio.ensure_future(work)
        self._loading[channel_id] = loading
        loading.add_done_callback(lambda done: self._loaded(channel_id, done))
        return loading

    def _loaded(self, channel_id: str, done: asyncio.Future[LiveChannel]) -> None:
        del self._loading[channel_id]
        if not done.cancelled():
            done.exception()  # whoever still waits is told; if nobody does, it is nobody's

    async def _load(self, channel_id: str) -> LiveChannel:
        store = self._around.store
        row = await store.row(channel_id)
        if row is None and await store.head(channel_id) == 0:
            raise UnknownChannel(channel_id)
        row = row or ChannelRow(channel_id)
        try:
            laws, begun = await self._begin(row)
            fold = await self._read_on(laws, begun)
        except LogCorrupt as error:
            return await self._quarantine(row, error)
        if row.status == "quarantined":  # somebody has mended it
            await store.mark(channel_id, status=fold.state.status)
        live = LiveChannel(laws, fold, self._around, due=row.due, snapshot_at=begun.state.sequence)
        self._live[channel_id] = live
        return live

    async def _begin(self, row: ChannelRow) -> tuple[Laws, Fold]:
        """The laws of a channel, and its fold as far as a snapshot goes; a damaged one is read from its beginning."""
        channel_id = row.channel_id
        snapshot = await self._around.store.get_snapshot(channel_id) if row.status != "quarantined" else None
        restored = await self._restored(snapshot) if snapshot else None
        if restored is not None:
            await check_whole(self._around.store, restored[1])
            return restored
        page = await self._around.store.read(channel_id, limit=1)
        if page.envelopes and is_erased(page.envelopes[0]):
            laws = self._lawbook(ERASED, {})
            return laws, laws.begin(channel_id)
        created = event_of(page.envelopes[0]) if page.envelopes else None
        if not isinstance(created, Created):
            raise LogCorrupt(channel_id, 1, "the log does not begin with the channel's creation")
        laws = await self._laws(created.type, created.knobs)
        return laws, laws.begin(channel_id)

    async def _laws(self, channel_type: str, knobs: Json) -> Laws:
        """The laws of a stored channel. The event loop goes on while large knobs are read."""
        if len(to_json(knobs)) < LARGE_KNOBS:
            return self._lawbook(channel_type, knobs)
        return await asyncio.to_thread(self._lawbook, channel_type, knobs)

    async def _restored(self, snapshot: Snapshot) -> tuple[Laws, Fold] | None:
        try:
            saved = from_json(snapshot.blob, SavedFold)
        except Malformed:
            return None
        laws = await self._laws(saved.state.type, saved.state.knobs)
        fold = laws.restore(saved) if laws.version == snapshot.version else None
        return None if fold is None else (laws, fold)

    async def _read_on(self, laws: Laws, fold: Fold) -> Fold:
        channel_id = fold.state.channel_id
        while envelopes := await self._page(channel_id, fold.state.sequence):
            try:
                fold = laws.fold_all(fold, envelopes)
            except Exception as error:
                raise RulesInvalid(f"the rules of {channel_id!r} fail on its log: {told(error)}") from error
        return fold

    async def _page(self, channel_id: str, after: int) -> list[Envelope]:
        return (await self._around.store.read(channel_id, after=after)).envelopes

    async def _quarantine(self, row: ChannelRow, error: LogCorrupt) -> LiveChannel:
        """A channel of which only the listing and the good part of the log are left."""
        laws = self._lawbook("quarantine", {})
        people = dict.fromkeys(row.participants, "service")
        state = State(channel_id=row.channel_id, type=row.type, creator_id=row.creator_id, participants=people)
        state = replace(state, sequence=error.sequence - 1, status="quarantined")
        if row.status != "quarantined":
            await self._around.damaged(error)
        live = LiveChannel(laws, Fold(state), self._around)
        live.damage = error
        return live
