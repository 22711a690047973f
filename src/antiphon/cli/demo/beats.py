"""What happens in the demonstration, as values.

The hub's process writes beats to a pipe, one JSON object a line; the one that watches reads them, adds its own, and
shows them: as a story, or as the same lines of JSON.
"""

from __future__ import annotations

import msgspec


class Beat(msgspec.Struct, frozen=True, tag_field="step", tag=str.lower):
    """Something that happened."""


class Began(Beat, frozen=True):
    """A process has opened a hub on the file."""

    process: int
    act: str


class Waits(Beat, frozen=True):
    """The process goes on when it is cued. This is between it and its watcher, and shown to nobody."""


class Opened(Beat, frozen=True):
    """A channel was opened."""

    channel_id: str
    type: str
    participants: list[str]


class Said(Beat, frozen=True):
    """A line was acknowledged: it is on disk."""

    channel_id: str
    sequence: int
    envelope_id: str
    speaker: str
    text: str


class Wired(Beat, frozen=True):
    """An item of the wire was acknowledged: it is on disk."""

    channel_id: str
    sequence: int
    envelope_id: str
    item: int


class Killed(Beat, frozen=True):
    """The hub's process was killed; these sequences it had acknowledged, by channel."""

    process: int
    exit_code: int
    acknowledged: dict[str, list[int]]


class Compared(Beat, frozen=True):
    """What was acknowledged, held against what is in the file."""

    acknowledged: int
    missing: int
    doubled: int
    unacknowledged: int
    """Recorded, but its acknowledgement was still on its way when the process died."""

    @property
    def holds(self) -> bool:
        """Whether every acknowledged envelope is there exactly once."""
        return self.missing == 0 and self.doubled == 0


class Found(Beat, frozen=True):
    """A channel, as the new hub found it."""

    channel_id: str
    type: str
    status: str
    turn_count: int
    next_speaker: str | None


class Refused(Beat, frozen=True):
    """A line that the hub did not admit."""

    channel_id: str
    speaker: str
    text: str
    reason: str
    detail: str


class Delivered(Beat, frozen=True):
    """Somebody found this in their inbox."""

    channel_id: str
    participant: str
    sequence: int
    text: str


class Repeated(Beat, frozen=True):
    """Items of the wire were sent again under their first ids."""

    channel_id: str
    items: int
    added: int
    """How many of them were not recorded before, and are now."""
    doubled: int
    """How many items stand in the log more than once."""


class Closed(Beat, frozen=True):
    """A channel has ended."""

    channel_id: str
    reason: str


class Verified(Beat, frozen=True):
    """Every record was decoded and held against the hash chain."""

    channels: int
    envelopes: int
    problems: int


class Ended(Beat, frozen=True):
    """The demonstration is over, and where to look."""

    store: str
    channel_id: str
    seconds: float


AnyBeat = (
    Began
    | Waits
    | Opened
    | Said
    | Wired
    | Killed
    | Compared
    | Found
    | Refused
    | Delivered
    | Repeated
    | Closed
    | Verified
    | Ended
)
