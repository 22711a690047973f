"""What happens in the demonstration, as values.

The hub's process writes beats to a pipe, one JSON object a line; the one that watches reads them, adds its own, and
shows them: as a story, or as the same lines of JSON.
"""

from __future__ import annotations

import msgspec

GO_ON, BOOKED = "go on", "booked"
"""The words that the hub's process reads in return, one a line: a cue, and the bank's answer."""


class Beat(msgspec.Struct, frozen=True, tag_field="step", tag=str.lower):
    """Something that happened."""


class Began(Beat, frozen=True):
    """A process has opened a hub on the file."""

    process: int
    act: str


class Waits(Beat, frozen=True):
    """The process waits for a cue. This step is not shown."""


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


class Called(Beat, frozen=True):
    """An agent's model or one of its tools was called, in this process."""

    agent: str
    name: str
    wants: str = ""
    """The tool that the model asks for."""
    answer: str = ""


class Pays(Beat, frozen=True):
    """An agent's tool asks the bank to pay, and waits for its answer. The watching process plays the bank."""

    agent: str
    key: str
    payee: str
    shillings: int


class Booked(Beat, frozen=True):
    """The bank was asked to pay under this key."""

    key: str
    known: bool
    """Whether this key was booked before, so that nothing was booked now."""
    entries: int
    """How many the ledger holds."""


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


class Recalled(Beat, frozen=True):
    """A call of a turn, as its journal in the log tells of it."""

    agent: str
    sequence: int
    name: str
    wants: str = ""
    answer: str = ""
    key: str = ""
    in_flight: bool = False
    """Whether it has left, and no result is recorded."""


class Accounted(Beat, frozen=True):
    """The calls of a turn that two processes have taken, held against its journal and the bank's ledger."""

    channel_id: str
    calls: int
    """How many the turn has, by its journal."""
    read: int
    """How many the second process read there, and did not make."""
    again: int
    """How many both processes have made, under one key each."""
    anew: int
    """How many only the second process has made."""
    payments: int
    """How often the bank was asked to pay."""
    entries: int
    """How many its ledger holds."""

    @property
    def holds(self) -> bool:
        """Whether each call was made once, but for the payment, which was made twice and booked once."""
        once = self.read + self.again + self.anew == self.calls
        return once and self.read > 0 and self.again == self.entries == 1 and self.payments == 2


class Refused(Beat, frozen=True):
    """A line that the hub did not admit."""

    channel_id: str
    speaker: str
    text: str
    reason: str
    detail: str


class Delivered(Beat, frozen=True):
    """A participant found this in the inbox."""

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


class Commanded(Beat, frozen=True):
    """A command of ours was run as a process on the same file, and where it is reached, if it can be."""

    name: str
    file: str
    url: str = ""


class Heard(Beat, frozen=True):
    """Something that was told of a conversation with an agent, at a terminal or over HTTP."""

    command: str
    event: str
    agent: str
    text: str = ""
    tool: str = ""


class Verified(Beat, frozen=True):
    """Every record was decoded and held against the hash chain."""

    channels: int
    envelopes: int
    problems: int


class Finished(Beat, frozen=True):
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
    | Called
    | Pays
    | Booked
    | Killed
    | Compared
    | Found
    | Recalled
    | Accounted
    | Refused
    | Delivered
    | Repeated
    | Closed
    | Commanded
    | Heard
    | Verified
    | Finished
)
