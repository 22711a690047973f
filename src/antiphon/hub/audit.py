"""What was refused, for whoever looks after the hub. Capped, so that refusals cannot fill a disk."""

from __future__ import annotations

import re

from antiphon.core.draft import EVENT_TYPE
from antiphon.core.envelope import Envelope
from antiphon.core.errors import Denied, LogCorrupt, StoreError
from antiphon.core.events import (
    EV_CHANNEL_ERASED,
    EV_CHANNEL_QUARANTINED,
    EV_CLOCK_JUMPED,
    EV_DRAFT_REFUSED,
    EV_TURN_FENCED,
    Json,
)
from antiphon.core.ids import NAME, derived_id
from antiphon.core.instants import NEVER, Instant, seconds_between
from antiphon.core.words import storable
from antiphon.hub.clock import Clock
from antiphon.hub.own import OwnChannel
from antiphon.hub.redacting import redacted

AUDIT = "system:audit"
BURST = 100
LONGEST = 128
MALFORMED = "malformed"
"""Stands for a sender or an event type that cannot be one, and so may be any text."""
PER_SECOND = 1.0


class Audit:
    """Records refusals: a hundred at once, then one a second; what was left out is counted in the next record."""

    def __init__(self, channel: OwnChannel, clock: Clock) -> None:
        self._channel, self._clock = channel, clock
        self._allowance = float(BURST)
        self._since: Instant = NEVER
        self._left_out = 0

    async def refusal(self, denied: Denied, draft: Envelope) -> Denied:
        """Record that a draft was refused, never its content, and give the refusal back to be raised."""
        try:
            await self._refused(denied, draft)
        except StoreError as error:
            denied.add_note(f"the refusal could not be recorded: {error}")
        return denied

    async def _refused(self, denied: Denied, draft: Envelope) -> None:
        if not self._may_record():
            self._left_out += 1
            return
        data: Json = {
            "reason": denied.reason,
            "channel_id": denied.channel_id,
            "sender_id": draft.sender_id if _fits(draft.sender_id, NAME) else MALFORMED,
            "event_type": draft.event_type if _fits(draft.event_type, EVENT_TYPE) else MALFORMED,
            "left_out": self._left_out,
        }
        told, self._left_out = self._left_out, 0
        try:
            await self._channel.say(EV_DRAFT_REFUSED, _plain(data))
        except BaseException:
            self._left_out += told + 1
            raise

    async def quarantined(self, error: LogCorrupt) -> None:
        """Record that a channel can no longer be trusted."""
        data: Json = {"channel_id": error.channel_id, "sequence": error.sequence, "error": error.why}
        await self._channel.say(EV_CHANNEL_QUARANTINED, _plain(data))

    async def erased(self, channel_id: str, records: int, by: str) -> None:
        """Record, once, that the content of a channel was erased, and by whom."""
        data: Json = {"channel_id": channel_id, "records": records, "by": by}
        await self._channel.say_once(EV_CHANNEL_ERASED, _plain(data), derived_id(channel_id, EV_CHANNEL_ERASED))

    async def fenced(self, channel_id: str, turn_id: str, why: str) -> None:
        """Record that somebody went on with a turn that was no longer theirs, and was stopped."""
        await self._channel.say(EV_TURN_FENCED, _plain({"channel_id": channel_id, "turn": turn_id, "why": why}))

    async def clock_jumped(self, seconds: float) -> None:
        """Record that the clock was set."""
        await self._channel.say(EV_CLOCK_JUMPED, {"delta_ms": round(seconds * 1000)})

    def _may_record(self) -> bool:
        now = self._clock.now()
        if self._since:
            earned = max(0.0, seconds_between(self._since, now)) * PER_SECOND
            self._allowance = min(float(BURST), self._allowance + earned)
        self._since = now
        if self._allowance < 1:
            return False
        self._allowance -= 1
        return True


def _fits(value: object, shape: re.Pattern[str]) -> bool:
    """Whether this is a name, and not any text that a sender put in its place: the audit keeps no content."""
    return isinstance(value, str) and len(value) <= LONGEST and shape.match(value) is not None


def _plain(data: Json) -> Json:
    return {key: redacted(storable(value)) if isinstance(value, str) else value for key, value in data.items()}
