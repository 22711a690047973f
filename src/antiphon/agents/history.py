"""The messages of a channel as one agent reads them, extended as the channel grows, and the view that summarises them.

Rule 1: a history is a projection of the log and nothing else: dropped and read again, it is the same.
Rule 2: an agent's own answers stand where the message they answer stands, so that messages that arrived while it was
        busy read as if they had arrived one after the other.
Rule 3: a turn is shown what was said before it was assigned, whenever it runs: a second attempt reads the same.
Rule 4: a summary is a recorded fact: made once, by a call of its own, and the same for every later turn. It stands for
        the first so many messages; later messages are shown as they were said.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Container, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import NamedTuple

from antiphon.agents.call_results import Summary, summary_in
from antiphon.agents.team import mentioned_name
from antiphon.core.codec import to_json
from antiphon.core.envelope import Envelope, Instant
from antiphon.core.errors import UsageError
from antiphon.core.event_data import event_of
from antiphon.core.events import EV_HISTORY_IMPORTED, EV_PACKET, SPEECH_TYPES, Packet
from antiphon.core.execution_events import EV_CALL_FINISHED
from antiphon.core.text import describe
from antiphon.core.views import Message, View, indent_lines, prefix_speaker, prompt_message, transcript_messages

BRIEFING_TEMPLATE = "[Context from previous agent ({})]: {}"
EMPTY_HISTORY_DIGEST = hashlib.sha256(b"history").digest()


class MessageMeta(NamedTuple):
    """Something that was said: where in the log, by whom, and when."""

    sequence: int
    speaker: str
    at: Instant


class ShownHistory(NamedTuple):
    """The messages that a memory shows, and the digest of all messages before the turn."""

    messages: Sequence[Message]
    past: str


class History:
    """The messages of one channel as one reader sees them."""

    def __init__(self, reader: str, *, named: bool, threaded: bool = False) -> None:
        self.reader, self.named, self.threaded = reader, named, threaded
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
        """The messages without the mentions that open them: `@billing hello` is `hello`. One that was read stays the
        same object: readers count words by it."""
        self._unread: list[int] = []
        """The positions in `_meant` of messages that still begin with their mention."""
        self._reading: tuple[Container[str], Callable[[str], str]] = ((), str)
        """Whose mentions are read, and how."""
        self._digests: list[bytes] = []
        self._metas: dict[str, MessageMeta] = {}
        """Who said what, by the envelope."""
        self._ahead: set[int] = set()
        """The sequences of envelopes behind the cursor that are added already."""
        self._summaries: list[tuple[int, Summary]] = []
        """Those that were made, and where in the log the turns were assigned that made them."""
        self._briefings: list[tuple[int, str | None]] = []
        """What other agents have told the reader when they handed over, and where."""
        self.looked_ahead = 0
        """Up to where envelopes behind the cursor were looked at, of a channel in which every message has its turn."""

    def extend(self, envelopes: Iterable[Envelope]) -> None:
        """Read on."""
        for envelope in envelopes:
            self.cursor = envelope.sequence
            if envelope.sequence not in self._ahead:
                self._add(envelope)
            self._ahead.discard(envelope.sequence)

    def add_ahead(self, envelopes: Iterable[Envelope]) -> None:
        """Add what the reader's own turns have recorded behind the cursor: answers to messages before it, summaries.

        An answer to a message that is not read yet waits, because it could not be put in its place. Reading on later
        gives the same history as reading everything in order.
        """
        for envelope in envelopes:
            answers = (envelope.causation_id or "") in self._metas
            if self.threaded and envelope.event_type != EV_PACKET:
                answers = False
            placed = envelope.event_type == EV_CALL_FINISHED or answers
            if placed and envelope.sequence > self.cursor and envelope.sequence not in self._ahead:
                self._ahead.add(envelope.sequence)
                self._add(envelope)

    def _add(self, envelope: Envelope) -> None:
        message = prompt_message(envelope, self.reader, named=False)
        if self.threaded and envelope.event_type == EV_PACKET:
            self._add_briefing(envelope)
        if message is not None or (self.threaded and envelope.event_type in SPEECH_TYPES):
            # Also of a message that the reader may not see: an answer to it, or a handoff because of it, has its place.
            meta = MessageMeta(envelope.sequence, envelope.sender_id, envelope.created_at)
            self._metas[envelope.envelope_id] = meta
        if message is not None:
            # Imported history was not said here by its importer: it answers no question and addresses no agent.
            speaker = "" if envelope.event_type == EV_HISTORY_IMPORTED else envelope.sender_id
            self._put(self._place_of(envelope), message, speaker)
        elif envelope.event_type == EV_CALL_FINISHED:
            summary = summary_in(envelope.event_data.get("result"))
            if summary is not None:
                assigned_at = str(envelope.event_data.get("turn")).partition("/")[0]
                self._summaries.append((int(assigned_at) if assigned_at.isdecimal() else 0, summary))

    def _add_briefing(self, envelope: Envelope) -> None:
        routing = envelope.event_data.get("routing")
        event = event_of(envelope) if isinstance(routing, dict) and routing.get("briefing") else None
        if not isinstance(event, Packet) or event.routing.rejected:
            return
        text, summary = None, event.routing.summary
        if summary and event.routing.target == self.reader:  # also if the packet is kept from the reader otherwise
            text = BRIEFING_TEMPLATE.format(envelope.sender_id, indent_lines(summary) if self.named else summary)
        self._briefings.append((self._place_of(envelope), text))

    def briefing_before(self, sequence: int) -> str | None:
        """What the last handoff up to this place tells the reader; None if it was to another, or said nothing."""
        return next((text for place, text in reversed(self._briefings) if place <= sequence), None)

    def summary_before(self, sequence: int, by: str) -> Summary | None:
        """The last summary that was made for this reader in a turn assigned before this place in the log."""
        found = (summary for place, summary in reversed(self._summaries) if place < sequence and summary.by == by)
        return next(found, None)

    def messages_before(
        self, sequence: int, *, people: Container[str] = (), meant: Callable[[str], str] = str
    ) -> tuple[list[Message], str]:
        """What was said before this place in the log, and the digest of what the log has.

        What these people said to an agent of the team (`@name …`) is shown as it is meant.
        """
        count = bisect_right(self._places, sequence)
        digest = self._digests[count - 1] if count else EMPTY_HISTORY_DIGEST
        if self._reading != (people, meant):
            self._reading, self._meant = (people, meant), list(self._messages)
            self._unread = [at for at, text in enumerate(self._texts) if mentioned_name(text) is not None]
        for at in self._unread:
            if self._speakers[at] in people:
                self._meant[at] = self._shown(self._messages[at].role, self._speakers[at], meant(self._texts[at]))
        self._unread.clear()
        return self._meant[:count], digest.hex()

    def message_meta(self, envelope_id: str | None) -> MessageMeta | None:
        """Who said what is in this envelope; None if the reader was told nothing of it."""
        return self._metas.get(envelope_id or "")

    def last_user_text(self, sequence: int, people: Container[str]) -> str | None:
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
        return Message(role, prefix_speaker(speaker, text) if labels else text)

    def _place_of(self, envelope: Envelope) -> int:
        if envelope.event_type != EV_PACKET if self.threaded else envelope.sender_id != self.reader:
            return envelope.sequence  # people's words stand where they were said, also if they name a cause
        message_meta = self._metas.get(envelope.causation_id or "")
        return envelope.sequence if message_meta is None else message_meta.sequence

    def _put(self, place: int, message: Message, speaker: str) -> None:
        self.size += len(message.text)
        at = bisect_right(self._places, place)
        self._places.insert(at, place)
        self._texts.insert(at, message.text)
        self._messages.insert(at, self._shown(message.role, speaker, message.text))
        self._speakers.insert(at, speaker)
        self._digests.insert(at, b"")
        self._meant.insert(at, self._messages[at])
        if self._unread:
            self._unread = [position + (position >= at) for position in self._unread]
        if message.text[:1] == "@" and mentioned_name(message.text) is not None:
            self._unread.append(at)
        before = self._digests[at - 1] if at else EMPTY_HISTORY_DIGEST
        for later in range(at, len(self._messages)):
            before = hashlib.sha256(before + to_json(self._messages[later])).digest()
            self._digests[later] = before


Summariser = Callable[[Sequence[Message]], object | Awaitable[object]]
"""Sums up messages, the summary so far among them; gives a text, or a model's reply."""


@dataclass(frozen=True)
class SummarisedTranscript:
    """A summary of what is long ago, and what was said since. It is made anew when enough has been added."""

    summarise: Summariser
    recent_n: int = 20
    """How many messages are always shown as they are; a summary is due when there are twice as many."""
    _: KW_ONLY
    named: bool = False

    def __post_init__(self) -> None:
        if not callable(self.summarise):
            raise UsageError(f"summarise is {describe(self.summarise)}; give a function of the messages")
        if type(self.recent_n) is not int or self.recent_n < 1:
            raise UsageError(f"recent_n is {describe(self.recent_n)}; give a number of messages, 1 or more")

    def project(self, log: Sequence[Envelope], reader: str) -> list[Message]:
        return transcript_messages(log, reader, named=self.named)

    def shown(self, messages: Sequence[Message]) -> Sequence[Message]:
        return messages

    def due(self, messages: Sequence[Message], last: Summary | None) -> list[Message] | None:
        """What is to be summed up now, the last summary first; None if nothing is."""
        count = 0 if last is None else last.count
        if len(messages) - count <= 2 * self.recent_n:
            return None
        return [*self._summary_messages(last), *messages[count : len(messages) - self.recent_n]]

    def summary_of(self, messages: Sequence[Message], text: str, by: str) -> Summary:
        """The summary of all but the most recent of these."""
        return Summary(text, len(messages) - self.recent_n, by)

    def with_summary(self, messages: Sequence[Message], summary: Summary | None) -> Sequence[Message]:
        """The summary, if there is one, and what was said since."""
        return messages if summary is None else [*self._summary_messages(summary), *messages[summary.count :]]

    def _summary_messages(self, summary: Summary | None) -> list[Message]:
        """The summary as a message. Where names are shown its lines are indented, like further lines of a message."""
        if summary is None:
            return []
        text = f"[What the {summary.count} messages before came to]\n{summary.text}"
        return [Message("user", indent_lines(text) if self.named else text)]


def as_summarising(view: View) -> SummarisedTranscript | None:
    """The view as one that sums up, if it is one, or stands before one."""
    behind = getattr(view, "inner", view)
    return behind if isinstance(behind, SummarisedTranscript) else None
