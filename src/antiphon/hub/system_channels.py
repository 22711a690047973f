"""The hub's own channels: the registry of participants, and the audit of what was refused.

Rule 1: they are channels like any other, so that nothing the hub knows is kept in a second way.
Rule 2: one that is damaged stays as it is, and is continued under the next name: `system:registry`,
        `system:registry-2` …
Rule 3: the audit is capped, so that refusals cannot fill a disk, and holds no content of what was refused.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from itertools import count

import msgspec
from msgspec import UNSET, UnsetType

from antiphon.core.codec import Malformed, as_type
from antiphon.core.creation import opening_batch
from antiphon.core.envelope import (
    HUB,
    NAME_PATTERN,
    NEVER,
    Envelope,
    IdSource,
    Instant,
    Json,
    check_name,
    derived_id,
    seconds_between,
)
from antiphon.core.errors import BadName, Denied, LogCorrupt, StoreError, UnknownChannel, UnknownParticipant, UsageError
from antiphon.core.event_data import EVENT_TYPE_PATTERN, data_of
from antiphon.core.events import (
    EV_CHANNEL_ERASED,
    EV_CHANNEL_QUARANTINED,
    EV_CLOCK_JUMPED,
    EV_DRAFT_REFUSED,
    EV_PARTICIPANT_REGISTERED,
    EV_TURN_FENCED,
    ChannelCreated,
)
from antiphon.core.ruleset import Fold, Ruleset
from antiphon.core.step import Admitted, hub_draft
from antiphon.core.text import describe, sanitize
from antiphon.hub.admission import RecordDraft
from antiphon.hub.clock import Clock
from antiphon.hub.known_secrets import redact_text
from antiphon.hub.live import Channels, LiveChannel
from antiphon.store.paging import all_envelopes


class SystemChannel:
    """One channel of the hub's own, made when it is first needed."""

    def __init__(self, channel_id: str, channels: Channels, knobs: Json | None = None) -> None:
        self.channel_id, self._knobs = channel_id, knobs or {}
        self._channels, self._new_id = channels, channels.deps.new_id
        self._current: LiveChannel | None = None
        self._lock = asyncio.Lock()

    async def say(self, event_type: str, data: Json) -> None:
        """Record something in the hub's name."""
        await (await self.current()).submit(RecordDraft(hub_draft(event_type, data), self._new_id))

    async def say_once(self, event_type: str, data: Json, envelope_id: str) -> None:
        """Record something in the hub's name under this id, unless the id is recorded already."""
        live = await self.current()
        draft = replace(hub_draft(event_type, data), envelope_id=envelope_id)
        try:
            await live.submit(RecordDraft(draft, self._new_id), draft=draft)
        except Denied as denied:
            if denied.reason != "conflict":
                raise

    async def read_all(self) -> AsyncIterator[Envelope]:
        """Everything that was recorded so far and can be read."""
        async for live in self.segments():
            async for envelope in all_envelopes(live.read):
                yield envelope

    async def segments(self) -> AsyncIterator[LiveChannel]:
        """The channel of each name there is, in order."""
        for channel_id in self._names():
            try:
                yield await self._channels.get(channel_id)
            except UnknownChannel:
                return

    def _names(self) -> Iterator[str]:
        yield self.channel_id
        for number in count(2):
            yield f"{self.channel_id}-{number}"

    async def current(self) -> LiveChannel:
        """The last of them, if it is sound; otherwise a new one."""
        if self._current is not None and self._current.damage is None:
            return self._current
        async with self._lock:
            if self._current is None or self._current.damage is not None:
                self._current = await self._choose_segment()
            return self._current

    async def _choose_segment(self) -> LiveChannel:
        names = self._names()
        channel_id, last = next(names), None
        async for live in self.segments():
            channel_id, last = next(names), live
        if last is not None and last.damage is None:
            return last
        ruleset = self._channels.deps.ruleset_for("system", self._knobs)
        return await self._channels.create(channel_id, ruleset, _OpenSystemChannel(self._knobs, self._new_id))


class _OpenSystemChannel(msgspec.Struct, frozen=True):
    """Records the creation of a system channel, unless another caller has made it."""

    knobs: Json
    new_id: IdSource

    def __call__(self, fold: Fold, ruleset: Ruleset, at: Instant) -> Admitted | None:
        if fold.state.sequence:
            return None
        created = ChannelCreated(type="system", creator=HUB, participants=[], knobs=self.knobs)
        return opening_batch(fold, created, (), ruleset=ruleset, at=at, new_id=self.new_id)


REGISTRY_CHANNEL = "system:registry"
PARTICIPANT_KINDS = ("agent", "human", "service")


class ParticipantRecord(msgspec.Struct, frozen=True):
    """One known participant."""

    name: str
    kind: str
    asks: bool = False
    """Whether it decides on each invitation; otherwise it accepts them all."""
    roles: tuple[str, ...] | UnsetType = UNSET
    """Of a person: what approvers it counts as, beside its name. Unset for none."""


class Directory:
    """Every participant the store knows, folded from the registry channel."""

    def __init__(self, channels: Channels) -> None:
        self._channel = SystemChannel(REGISTRY_CHANNEL, channels)
        self._known: dict[str, ParticipantRecord] = {}

    async def load(self) -> None:
        """Read the registry."""
        async for envelope in self._channel.read_all():
            if envelope.event_type == EV_PARTICIPANT_REGISTERED:
                self._note(envelope.event_data)

    def knows(self, name: str) -> bool:
        """Whether there is a participant of this name."""
        return name.lower() in self._known

    def find(self, name: str) -> ParticipantRecord:
        """The participant of this name; `UnknownParticipant` if there is none."""
        listing = self._known.get(name.lower()) if isinstance(name, str) else None
        if listing is None or listing.name != name:
            raise UnknownParticipant(name, _unknown_name_advice(name, listing))
        return listing

    def roles_of(self, name: str) -> tuple[str, ...]:
        """The roles of the participant of this name, if there is one."""
        listing = self._known.get(name.lower())
        return () if listing is None else listing.roles or ()

    async def register(self, listing: ParticipantRecord) -> None:
        """Make a participant known, or attach to one that is. What does not fit is refused before it is recorded."""
        check_name(listing.name)
        if listing.kind not in PARTICIPANT_KINDS:
            raise UsageError(f"no kind is called {describe(listing.kind)}; there are: {', '.join(PARTICIPANT_KINDS)}")
        known = self._known.get(listing.name.lower())
        if known is not None and known.name != listing.name:
            raise BadName(f"{listing.name!r} differs from {known.name!r} only in case")
        if known is not None and known.kind != listing.kind:
            raise UsageError(f"{listing.name!r} is known as kind {known.kind!r}, not {listing.kind!r}")
        if known != listing:
            await self._channel.say(EV_PARTICIPANT_REGISTERED, data_of(listing))
            self._known[listing.name.lower()] = listing

    def _note(self, data: dict[str, object]) -> None:
        try:
            listing = as_type(data, ParticipantRecord)
        except Malformed:
            return
        self._known[listing.name.lower()] = listing


def _unknown_name_advice(name: object, near: ParticipantRecord | None) -> str:
    """What to do about a name that is not known; nothing special if it can simply be registered."""
    if near is not None:
        return f"did you mean {near.name!r}? the two differ only in case"
    try:
        check_name(name)
    except BadName as error:
        return str(error)
    return ""


AUDIT_CHANNEL = "system:audit"
REFUSAL_BURST = 100
MAX_AUDITED_CHARS = 128
MALFORMED_MARK = "malformed"
"""Stands for a sender or an event type that cannot be one, and so may be any text."""
REFUSALS_PER_SECOND = 1.0


class Audit:
    """Records refusals: a hundred at once, then one a second; what was left out is counted in the next record."""

    def __init__(self, channels: Channels, clock: Clock) -> None:
        self._channel, self._clock = SystemChannel(AUDIT_CHANNEL, channels), clock
        self._allowance = float(REFUSAL_BURST)
        self._since: Instant = NEVER
        self._left_out = 0

    async def refusal(self, denied: Denied, draft: Envelope) -> Denied:
        """Record that a draft was refused, never its content, and give the refusal back to be raised."""
        try:
            await self._record_refusal(denied, draft)
        except StoreError as error:
            denied.add_note(f"the refusal could not be recorded: {error}")
        return denied

    async def _record_refusal(self, denied: Denied, draft: Envelope) -> None:
        if not self._may_record():
            self._left_out += 1
            return
        data: Json = {
            "reason": denied.reason,
            "channel_id": denied.channel_id,
            "sender_id": _audited_name(draft.sender_id, NAME_PATTERN),
            "event_type": _audited_name(draft.event_type, EVENT_TYPE_PATTERN),
            "left_out": self._left_out,
        }
        left_out, self._left_out = self._left_out, 0
        try:
            await self._channel.say(EV_DRAFT_REFUSED, _sanitize_fields(data))
        except BaseException:
            self._left_out += left_out + 1
            raise

    async def quarantined(self, error: LogCorrupt) -> None:
        """Record that a channel can no longer be trusted."""
        data: Json = {"channel_id": error.channel_id, "sequence": error.sequence, "error": error.why}
        await self._channel.say(EV_CHANNEL_QUARANTINED, _sanitize_fields(data))

    async def erased(self, channel_id: str, records: int, by: str) -> None:
        """Record, once, that the content of a channel was erased, and by whom."""
        data: Json = {"channel_id": channel_id, "records": records, "by": by}
        envelope_id = derived_id(channel_id, EV_CHANNEL_ERASED)
        await self._channel.say_once(EV_CHANNEL_ERASED, _sanitize_fields(data), envelope_id)

    async def fenced(self, channel_id: str, turn_id: str, why: str) -> None:
        """Record that a process that had lost a turn went on with it, and was stopped."""
        data: Json = {"channel_id": channel_id, "turn": turn_id, "why": why}
        await self._channel.say(EV_TURN_FENCED, _sanitize_fields(data))

    async def clock_jumped(self, seconds: float) -> None:
        """Record that the clock was set."""
        await self._channel.say(EV_CLOCK_JUMPED, {"delta_ms": round(seconds * 1000)})

    def _may_record(self) -> bool:
        now = self._clock.now()
        if self._since:
            earned = max(0.0, seconds_between(self._since, now)) * REFUSALS_PER_SECOND
            self._allowance = min(float(REFUSAL_BURST), self._allowance + earned)
        self._since = now
        if self._allowance < 1:
            return False
        self._allowance -= 1
        return True


def _audited_name(value: object, shape: re.Pattern[str]) -> str:
    """The name, unless it may be any text that a sender put in its place: the audit keeps no content."""
    if isinstance(value, str) and len(value) <= MAX_AUDITED_CHARS and shape.match(value):
        return str.__str__(value)  # of an enum, its value
    return MALFORMED_MARK


def _sanitize_fields(data: Json) -> Json:
    return {key: redact_text(sanitize(value)) if isinstance(value, str) else value for key, value in data.items()}
