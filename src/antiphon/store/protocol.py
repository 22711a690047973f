"""What a store promises.

`Log` is safety, `Index` is convenience, `Leases` is liveness. A store is all three, bound to one tenant.

G1  Compare-and-set: `append(expected=n)` succeeds only at head n; the batch gets n+1 … n+k, all or nothing.
G2  A channel's sequences are 1 … head without holes, for ever.
G3  An acknowledged append has reached what `caps.survives` names.
G4  Ids are remembered for ever, per channel: a batch whose first id is recorded returns its first result with
    `duplicate=True`, regardless of `expected`; the same id with other content raises `IdReused`. Two contents are
    the same if they are the same JSON: 1 is neither true nor 1.0.
G5  A failure while committing raises `OutcomeUnknown`, never `Conflict`; repeating the same call is safe.
G6  What was acknowledged is read by the next read.
G7  `tail` gives each channel's envelopes in order, without holes, at least once.
G8  One round trip an append; nothing is held open across an await of the caller.
G9  Leases are hints. Nothing is lost or doubled if all of them are granted to all.
G10 The index is derived: `rebuild` makes it again from the logs, and nothing changes.
G11 After `erase` has returned, no file of the store holds the content of that channel: not the log, nor what lies
    beside it, nor the index. It is done whole or not at all, and repeating it completes it.
G12 Writes to one channel take effect in the order of their calls, also if the caller of one was cancelled: a `mark`
    made after a cancelled append returns once that append is recorded or lost.

What is damaged raises `LogCorrupt`, which names its channel; every other channel goes on. A call that can mean
nothing, such as reading behind -1, raises `UsageError`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Literal, Protocol

import msgspec

from antiphon.core.envelope import Envelope, Instant, to_instant
from antiphon.core.errors import StoreGone

MAX_CLOCK_SKEW_SECONDS = 60.0
"""By how many seconds the clocks of two hubs may differ. A time further ahead is from before a clock was set back."""

Durability = Literal["nothing", "process", "power", "node"]


class TimeSource(Protocol):
    """The clock of a store, for its leases."""

    def now(self) -> Instant: ...


class StoreCaps(msgspec.Struct, frozen=True):
    """What a store can do."""

    survives: Durability
    """The worst that can happen without losing an acknowledged envelope."""
    max_envelope_bytes: int
    many_hubs: bool
    """Whether several hubs may share it."""


class Appended(msgspec.Struct, frozen=True):
    """Where a batch stands in its log."""

    first: int
    last: int
    duplicate: bool = False


class Page(msgspec.Struct, frozen=True):
    """A stretch of a log, and whether more follows."""

    envelopes: list[Envelope]
    more: bool


class TailBatch(msgspec.Struct, frozen=True):
    """What was appended, over all channels, up to an opaque cursor."""

    envelopes: list[Envelope]
    cursor: str


class Snapshot(msgspec.Struct, frozen=True):
    """A cached fold. `version` names the code that folded it: another version is as good as none."""

    sequence: int
    version: str
    blob: bytes


class ChannelRow(msgspec.Struct, frozen=True):
    """One channel as a listing shows it."""

    channel_id: str
    type: str = ""
    status: str = "invited"
    close_reason: str = ""
    creator_id: str = ""
    participants: list[str] = []
    due: Instant = ""
    """When the hub must look at the channel again, at the latest; "" is never. May be early, never late."""


class Position(msgspec.Struct, frozen=True):
    """How far a participant has acknowledged one of its channels."""

    channel_id: str
    sequence: int


class Lease(msgspec.Struct, frozen=True):
    """A name held by an owner until an instant; the epoch grows with every change of owner."""

    name: str
    owner: str
    epoch: int
    until: Instant


class Due(msgspec.Struct, frozen=True):
    """A channel that wants the hub's attention since an instant."""

    channel_id: str
    at: Instant


class Log(Protocol):
    """The logs of one tenant's channels."""

    @property
    def caps(self) -> StoreCaps: ...

    async def append(
        self, channel: str, batch: Sequence[Envelope], *, expected: int, due: Instant | None = None
    ) -> Appended:
        """Record a batch at `expected`; its sequences are stamped already and follow it.

        `due`, when given, is written to the channel's row in the same transaction. `LogCorrupt` if the end of the log
        is damaged; nothing was recorded then.
        """
        ...

    async def read(self, channel: str, *, after: int = 0, limit: int = 1000) -> Page:
        """The envelopes behind `after`, checked against the hash chain; `LogCorrupt` at the first bad one.

        A page ends after `limit` envelopes, or before it holds more than about a mebibyte; it has one at least.
        """
        ...

    async def head(self, channel: str) -> int:
        """The last sequence of a channel; 0 if there is no such channel."""
        ...

    async def find(self, channel: str, ids: Sequence[str]) -> Mapping[str, Envelope]:
        """The recorded envelopes of these ids; `LogCorrupt` if one of them does not fit the hash chain."""
        ...

    async def names(self, *, after: str = "", limit: int = 1000) -> list[str]:
        """The channels that have a log, in order of id, behind `after`. Found in the logs, not in the index."""
        ...

    async def erase(self, channel: str) -> int:
        """Replace every record of an ended channel by its tombstone (`core.redaction`). Returns their number.

        Sequence, time, type and hash of each record stay, so that the hash chain still holds. Everything derived from
        the content goes with it: envelope ids, the snapshot, positions of members, and of the row the close reason,
        creator and participants. A store must make sure that nothing is left where it freed space: overwrite free
        pages, truncate or rewrite journals. `UsageError` if the channel has not ended; `LogCorrupt` if its log is
        damaged; nothing was erased then. `StoreUnavailable` if the tombstones are written, but the content could not
        be removed from every file yet: repeat the call.
        """
        ...

    def tail(self, *, cursor: str | None = None) -> AsyncIterator[TailBatch]:
        """Everything appended behind the cursor (None: from this call on), then live, until the store closes.

        A channel that is damaged ends where the damage is.
        """
        ...


class Index(Protocol):
    """Derived from the logs, and rebuildable."""

    async def put_snapshot(self, channel: str, snapshot: Snapshot) -> None:
        """Keep a fold of a channel, unless it leads the log."""
        ...

    async def get_snapshot(self, channel: str) -> Snapshot | None:
        """The fold that was kept last; None if there is none, or none that can be trusted."""
        ...

    async def channels(
        self, *, status: str | None = None, participant: str | None = None, after: str = "", limit: int = 100
    ) -> list[ChannelRow]:
        """Rows in order of channel id, behind `after`. One that is damaged is shown as quarantined."""
        ...

    async def row(self, channel: str) -> ChannelRow | None: ...

    async def mark(self, channel: str, *, status: str | None = None, due: Instant | None = None) -> None:
        """Change what a listing shows of a channel: its status (quarantine) or when it is due."""
        ...

    async def positions(self, participant: str) -> list[Position]:
        """The acknowledged position in each channel that may still hold something for this participant."""
        ...

    async def acknowledge(self, participant: str, channel: str, sequence: int) -> None:
        """Move a position forward, at most to the head. It need not be durable yet: it may lag, it never leads."""
        ...

    async def rebuild(self) -> None:
        """Make the index again from the logs."""
        ...


class Leases(Protocol):
    """Which owner looks after what, for a limited time."""

    async def lease(self, name: str, owner: str, ttl: float) -> Lease | None:
        """Take or renew a lease; None while another owner holds it.

        One name is always leased for the same `ttl`. So a lease that ends later than that from now, by more than
        `MAX_CLOCK_SKEW_SECONDS`, was given before the clock was set back, and has ended. The same holds for a channel
        that `take_due` has given.
        """
        ...

    async def release(self, lease: Lease) -> None:
        """Release a lease, if it is still held in this epoch."""
        ...

    async def take_due(self, owner: str, *, now: Instant, limit: int, ttl: float) -> list[Due]:
        """Channels due at `now`, earliest first, each given to one owner for `ttl` seconds.

        The owner settles a channel by writing another `due`; otherwise it is given again after that time.
        """
        ...

    async def attend(self, ttl: float) -> Instant:
        """Renew the attendance of hubs for `ttl` seconds. Returns since when one has been open without a break.

        That is now, if no attendance lasts. One that lasts longer than `ttl` from now, by more than
        `MAX_CLOCK_SKEW_SECONDS`, was written before the clock was set back, and does not count. Every open hub calls
        this repeatedly.
        """
        ...

    async def next_due(self) -> Instant:
        """The earliest instant at which `take_due` may give a channel; "" if none is due at all."""
        ...


class Store(Log, Index, Leases, Protocol):
    """A whole store."""

    tenant: str
    """The tenant whose logs it holds."""

    async def gone(self) -> StoreGone:
        """Wait until the store is lost for good; the error that every call raises from then on.

        The hub waits for this to end everything else that waits. It must return soon after the loss, also if nothing
        is read or written. A store that cannot be lost waits until cancelled.
        """
        ...

    async def close(self) -> None:
        """Write what is queued and release everything. Closing twice is fine."""
        ...


class SystemTimeSource:
    """The system clock, for a store that was given none."""

    def now(self) -> Instant:
        """The current time."""
        return to_instant(datetime.now(UTC))
