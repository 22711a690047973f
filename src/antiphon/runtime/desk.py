"""What a hub's handles share: where a draft is checked, admitted, and its refusal recorded."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from inspect import isawaitable

from antiphon.core.draft import check_draft
from antiphon.core.envelope import Envelope
from antiphon.core.errors import Denied, LogCorrupt, StoreError, UnknownChannel, UsageError
from antiphon.core.events import EV_CHANNEL_CLOSED, EV_CHANNEL_INVITE, Created
from antiphon.core.guard import Deny
from antiphon.core.ids import CHANNEL_ID
from antiphon.core.opening import answer, opening
from antiphon.core.step import record, said_by_hub, step
from antiphon.core.words import told
from antiphon.hub.audit import AUDIT, Audit
from antiphon.hub.channels import Channels
from antiphon.hub.clock import Clock
from antiphon.hub.directory import REGISTRY, Directory
from antiphon.hub.feed import Feed
from antiphon.hub.ids import TimeOrderedIds
from antiphon.hub.live import LiveChannel, Surroundings
from antiphon.hub.own import OwnChannel
from antiphon.hub.timers import Timers
from antiphon.orchestration.lawbook import laws_for
from antiphon.store.protocol import Store

log = logging.getLogger("antiphon.hub")

Accept = Callable[[Envelope], bool | Awaitable[bool]]
"""Decides on an invitation."""


class Desk:
    """The inside of one hub."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self.store, self.clock = store, clock
        self.new_id = TimeOrderedIds()
        self.feed = Feed()
        self.timers = Timers(store, clock, owner=self.new_id(), look=self._look, jumped=self._clock_jumped)
        around = Surroundings(store, clock, self.new_id, self.feed, self.timers.armed)
        self.channels = Channels(around, laws_for, self._quarantined)
        own = laws_for("system", {})
        self.directory = Directory(OwnChannel(REGISTRY, self.channels, laws=own, new_id=self.new_id))
        self.audit = Audit(OwnChannel(AUDIT, self.channels, laws=own, new_id=self.new_id), clock)
        self.acceptors: dict[str, Accept | None] = {}
        """Those registered in this hub, and how they decide on invitations."""
        self.seated: dict[str, str] = {}
        """Those registered here, and those about to be: the name in lower case to the name."""
        self.closing = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._opened = False
        self._closed = asyncio.Event()

    async def open(self) -> None:
        """Read who is known, and begin to watch the time. Once is enough."""
        if self._opened:
            return
        await self.directory.load()
        self._opened = True
        await self.timers.begin()
        self.spawn(self.timers.run(), "timers")

    async def close(self) -> None:
        """Finish what waits for admission, stop everything else, and let go of the store."""
        if self.closing.is_set():
            await self._closed.wait()
            return
        self.closing.set()
        self.feed.wake_all()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        try:
            await self.channels.settled()
            await self.store.close()
        finally:
            self._closed.set()

    def spawn(self, work: Awaitable[None], name: str) -> None:
        """Run something until it ends or the hub closes."""
        task = asyncio.ensure_future(work)
        task.set_name(name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def live(self, channel_id: str) -> LiveChannel:
        """The channel of this id."""
        self._check_id(channel_id)
        return await self.channels.get(channel_id)

    async def check_exists(self, channel_id: str) -> None:
        """`UnknownChannel` unless there is a log of this id. Its rules need not be known for that."""
        self._check_id(channel_id)
        if await self.store.head(channel_id) == 0:
            raise UnknownChannel(channel_id)

    def check_open(self) -> None:
        """`UsageError` if the hub was closed."""
        if self.closing.is_set():
            raise UsageError("this hub is closed; open it again")

    def _check_id(self, channel_id: object) -> None:
        self.check_open()
        if not isinstance(channel_id, str) or not CHANNEL_ID.match(channel_id):
            raise UnknownChannel(channel_id)

    async def admit(self, live: LiveChannel, draft: Envelope) -> Envelope:
        """Record a participant's draft, or raise `Denied` and note the refusal."""
        self.check_open()
        denial = check_draft(draft)
        if denial is not None:
            raise await self.audit.refusal(Denied(denial.reason, live.state.channel_id, denial.detail), draft)
        again = draft if draft.envelope_id else None
        try:
            envelope = await live.submit(
                lambda fold, laws, at: step(fold, draft, laws=laws, at=at, new_id=self.new_id), draft.priority, again
            )
        except Denied as denied:
            raise await self.audit.refusal(denied, draft) from None
        assert envelope is not None, "an admitted draft is recorded"
        return envelope

    async def create(self, created: Created) -> LiveChannel:
        """Record a new channel and its invitations, and ask those who decide on them."""
        laws = laws_for(created.type, created.knobs)
        guests = [seat.name for seat in created.participants if seat.name != created.creator]
        willing = {name for name in guests if not self.directory.find(name).asks}
        live = self.channels.create(self.new_id(), laws)
        await live.submit(lambda fold, laws, at: opening(fold, created, willing, laws=laws, at=at, new_id=self.new_id))
        for name in guests:
            if name not in willing:
                self.spawn(self.ask(live, name), f"invitation of {name}")
        return live

    async def ask(self, live: LiveChannel, name: str) -> None:
        """Let a guest decide on its invitation, if it is registered here; one that has no opinion accepts."""
        invite = await self._invitation(live, name)
        if name not in self.acceptors or invite is None:
            return
        accept = self.acceptors[name]
        try:
            verdict = accept(invite) if accept else True
            accepted = await verdict if isawaitable(verdict) else verdict
            draft = answer(invite, accepted=bool(accepted))
        except Exception as error:  # what a user's callable raises is a refusal with its words
            draft = answer(invite, accepted=False, reason=told(error))
        await live.submit(
            lambda fold, laws, at: (
                record(fold, draft, laws=laws, at=at, new_id=self.new_id)
                if name in fold.state.awaiting and not fold.state.ended
                else None
            )
        )

    async def _invitation(self, live: LiveChannel, name: str) -> Envelope | None:
        for envelope in (await self.store.read(live.state.channel_id)).envelopes:
            if envelope.event_type == EV_CHANNEL_INVITE and envelope.audience == [name]:
                return envelope
        return None

    async def end(self, live: LiveChannel, reason: str, by: str) -> None:
        """Close a channel. One that has ended stays as it is."""
        self.check_open()
        draft = said_by_hub(EV_CHANNEL_CLOSED, {"reason": reason, "by": by})
        await live.submit(
            lambda fold, laws, at: (
                _shut(fold.state.status)
                or (None if fold.state.ended else record(fold, draft, laws=laws, at=at, new_id=self.new_id))
            )
        )

    async def until(self, live: LiveChannel, statuses: Sequence[str]) -> None:
        """Wait until the channel has one of these statuses, or the hub closes."""
        with self.feed.watching(live.state.channel_id) as grown:
            while live.state.status not in statuses and not self.closing.is_set():
                grown.clear()
                await grown.wait()

    async def _look(self, channel_id: str) -> None:
        await (await self.channels.get(channel_id)).look()

    async def _clock_jumped(self, seconds: float) -> None:
        try:
            await self.audit.clock_jumped(seconds)
        except StoreError as error:
            log.warning("the jump of the clock could not be recorded: %s", error)

    async def _quarantined(self, error: LogCorrupt) -> None:
        record = self.audit.quarantined(error)
        if error.channel_id.startswith(AUDIT):  # it is being loaded right now, and must be before it can go on
            self.spawn(record, "quarantine")
        else:
            await record


def _shut(status: str) -> Deny | None:
    return Deny("quarantined", "it can only be read") if status == "quarantined" else None
