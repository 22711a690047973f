"""What an agent is shown of a channel, kept as the channel grows.

Rule 1: it is a projection of the log and nothing else: thrown away, it is read again and is the same.
Rule 2: an agent's own answers stand where the message they answer stands, so that messages that came while it was
        busy read as if they had come one after the other.
Rule 3: a turn is shown what was said before it was assigned, whenever it is run: a second attempt reads the same.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Container, Iterable
from contextlib import suppress
from typing import NamedTuple

from antiphon.agents.mentions import mentioned
from antiphon.core.codec import Malformed, as_type, to_json
from antiphon.core.envelope import Envelope
from antiphon.core.events import EV_CALL_FINISHED, EV_HISTORY_IMPORTED
from antiphon.core.instants import Instant
from antiphon.core.summaries import Summary
from antiphon.core.views import Message, labelled, prompt_message

START = hashlib.sha256(b"history").digest()


class Voice(NamedTuple):
    """Something that was said: where in the log, by whom, and when."""

    sequence: int
    speaker: str
    at: Instant


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
        self._texts: list[str] = []
        """What was said in each, without a name before it."""
        self._speakers: list[str] = []
        self._meant: list[Message] = []
        """The messages as they are meant. One that was read stays the same object: readers count words by it."""
        self._unread: list[int] = []
        """The positions of messages that begin with a mention, and whose meaning has not been read."""
        self._reading: tuple[Container[str], Callable[[str], str]] = ((), str)
        """Whose mentions are read, and how."""
        self._digests: list[bytes] = []
        self._voices: dict[str, Voice] = {}
        """Who said what, by the envelope."""
        self._summaries: list[tuple[int, Summary]] = []
        """Those that were made, and where the turns stand that made them."""

    def extend(self, envelopes: Iterable[Envelope]) -> None:
        """Read on."""
        for envelope in envelopes:
            self.cursor = envelope.sequence
            message = prompt_message(envelope, self.reader, named=False)
            if message is not None:
                self._voices[envelope.envelope_id] = Voice(envelope.sequence, envelope.sender_id, envelope.created_at)
                # Whoever imports history has not said it here: it answers no question and addresses no agent.
                speaker = "" if envelope.event_type == EV_HISTORY_IMPORTED else envelope.sender_id
                self._put(self._place_of(envelope), message, speaker)
            elif envelope.event_type == EV_CALL_FINISHED:
                self._sum_up(envelope)

    def summary_before(self, sequence: int, by: str) -> Summary | None:
        """The last summary that was made for this reader in a turn assigned before this place in the log."""
        found = (summary for place, summary in reversed(self._summaries) if place < sequence and summary.by == by)
        return next(found, None)

    def until(
        self, sequence: int, *, people: Container[str] = (), meant: Callable[[str], str] = str
    ) -> tuple[list[Message], str]:
        """What was said before this place in the log, and the digest of what the log has.

        What these people said to an agent of the team (`@name …`) is shown as it is meant.
        """
        count = bisect_right(self._places, sequence)
        digest = self._digests[count - 1] if count else START
        if self._reading != (people, meant):
            self._reading, self._meant = (people, meant), list(self._messages)
            self._unread = [at for at, text in enumerate(self._texts) if mentioned(text) is not None]
        for at in self._unread:
            if self._speakers[at] in people:
                self._meant[at] = self._shown(self._messages[at].role, self._speakers[at], meant(self._texts[at]))
        self._unread.clear()
        return self._meant[:count], digest.hex()

    def voice(self, envelope_id: str | None) -> Voice | None:
        """Who said what is in this envelope; None if the reader was told nothing of it."""
        return self._voices.get(envelope_id or "")

    def heard(self, sequence: int, people: Container[str]) -> str | None:
        """The last thing that a person said before this place, and since the reader last spoke; None if nothing."""
        for at in reversed(range(bisect_right(self._places, sequence))):
            speaker = self._speakers[at]
            if speaker == self.reader:
                return None
            if speaker in people:
                return self._texts[at]
        return None

    def _shown(self, role: str, speaker: str, text: str) -> Message:
        labels = self.named and speaker not in ("", self.reader)
        return Message(role, labelled(speaker, text) if labels else text)

    def _place_of(self, envelope: Envelope) -> int:
        if envelope.sender_id != self.reader:
            return envelope.sequence
        voice = self._voices.get(envelope.causation_id or "")
        return envelope.sequence if voice is None else voice.sequence

    def _sum_up(self, envelope: Envelope) -> None:
        result, turn = envelope.event_data.get("result"), envelope.event_data.get("turn")
        made = result.get("summary") if isinstance(result, dict) else None
        if made is not None:
            with suppress(Malformed):  # a tool may have returned something of that name
                self._summaries.append((_standing(str(turn)), as_type(made, Summary)))

    def _put(self, place: int, message: Message, speaker: str) -> None:
        self.size += len(message.text)
        at = bisect_right(self._places, place)
        self._places.insert(at, place)
        self._texts.insert(at, message.text)
        self._messages.insert(at, self._shown(message.role, speaker, message.text))
        self._speakers.insert(at, speaker)
        self._digests.insert(at, b"")
        self._meant.insert(at, self._messages[at])
        self._unread = [position + (position >= at) for position in self._unread]
        if mentioned(message.text) is not None:
            self._unread.append(at)
        before = self._digests[at - 1] if at else START
        for later in range(at, len(self._messages)):
            before = hashlib.sha256(before + to_json(self._messages[later])).digest()
            self._digests[later] = before


def _standing(turn_id: str) -> int:
    """Where in the log a turn was assigned."""
    place = turn_id.partition("/")[0]
    return int(place) if place.isdecimal() else 0
