"""What was refused in a channel, read from the hub's own audit channel of a store that is only read."""

from __future__ import annotations

from antiphon.core.envelope import Envelope, Instant
from antiphon.core.errors import LogCorrupt
from antiphon.core.events import EV_DRAFT_REFUSED
from antiphon.hub.system_channels import AUDIT_CHANNEL
from antiphon.store.protocol import Log


class RefusalReader:
    """Reads the refusals of one channel in order, each once.

    The audit channel of a hub is long, and in order of time: what is older than the channel is not read. If it is
    damaged, the refusals behind the damage are missing here; `antiphon verify` says so.
    """

    def __init__(self, store: Log, channel_id: str, since: Instant) -> None:
        self._store, self._channel, self._since = store, channel_id, since
        self._segment, self._number, self._after = AUDIT_CHANNEL, 1, -1

    async def read(self) -> list[Envelope]:
        """What was refused since it was last asked."""
        found: list[Envelope] = []
        while page := await self._next_page():
            found += [each for each in page if self._concerns(each)]
        return found

    def _concerns(self, envelope: Envelope) -> bool:
        return envelope.event_type == EV_DRAFT_REFUSED and envelope.event_data.get("channel_id") == self._channel

    async def _next_page(self) -> list[Envelope]:
        """The next page of this segment, or of the one that continues it; none at the end."""
        page = await self._read_segment()
        following = f"{AUDIT_CHANNEL}-{self._number + 1}"
        if page or not await self._store.head(following):
            return page
        self._segment, self._number, self._after = following, self._number + 1, -1
        return await self._read_segment()

    async def _read_segment(self) -> list[Envelope]:
        try:
            if self._after < 0:
                self._after = await self._sequence_before(self._since)
            page = (await self._store.read(self._segment, after=self._after)).envelopes
        except LogCorrupt:
            return []
        self._after = page[-1].sequence if page else self._after
        return page

    async def _sequence_before(self, since: Instant) -> int:
        """The last sequence of the segment whose record is older than this."""
        low, high = 0, await self._store.head(self._segment)
        while low < high:
            middle = (low + high) // 2
            [envelope] = (await self._store.read(self._segment, after=middle, limit=1)).envelopes
            low, high = (middle + 1, high) if envelope.created_at < since else (low, middle)
        return low
