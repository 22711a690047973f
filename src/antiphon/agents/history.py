"""What an agent is shown of a channel, kept as the channel grows.

Rule 1: it is a projection of the log and nothing else: thrown away, it is read again and is the same.
Rule 2: an agent's own answers stand where the message they answer stands, so that messages that came while it was
        busy read as if they had come one after the other.
Rule 3: a turn is shown what was said before it was assigned, whenever it is run: a second attempt reads the same.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterable

from antiphon.core.codec import to_json
from antiphon.core.envelope import Envelope
from antiphon.core.views import Message, message_of

START = hashlib.sha256(b"history").digest()


class History:
    """The messages of one channel as one reader sees them."""

    def __init__(self, reader: str, *, named: bool) -> None:
        self.reader, self.named = reader, named
        self.cursor = 0
        """How far the log has been read."""
        self.size = 0
        """How many characters there are in all messages."""
        self._places: list[int] = []
        self._messages: list[Message] = []
        self._digests: list[bytes] = []
        self._sequences: dict[str, int] = {}

    def extend(self, envelopes: Iterable[Envelope]) -> None:
        """Read on."""
        for envelope in envelopes:
            self.cursor = envelope.sequence
            message = message_of(envelope, self.reader, named=self.named)
            if message is not None:
                self._sequences[envelope.envelope_id] = envelope.sequence
                self._put(self._place_of(envelope), message)

    def until(self, sequence: int) -> tuple[list[Message], str]:
        """What was said before this place in the log, and its digest."""
        count = bisect_right(self._places, sequence)
        digest = self._digests[count - 1] if count else START
        return self._messages[:count], digest.hex()

    def _place_of(self, envelope: Envelope) -> int:
        if envelope.sender_id != self.reader:
            return envelope.sequence
        return self._sequences.get(envelope.causation_id or "", envelope.sequence)

    def _put(self, place: int, message: Message) -> None:
        self.size += len(message.text)
        at = bisect_right(self._places, place)
        self._places.insert(at, place)
        self._messages.insert(at, message)
        self._digests.insert(at, b"")
        before = self._digests[at - 1] if at else START
        for later in range(at, len(self._messages)):
            before = hashlib.sha256(before + to_json(self._messages[later])).digest()
            self._digests[later] = before
