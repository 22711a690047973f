"""Views: a log as one reader may see it, turned into messages.

Rule 1: a view shows only what `visible_to` allows its reader.
Rule 2: what the reader said itself has the role `assistant`, everything else is `user`.
Rule 3: only what was said is shown, and to an agent what guards tell it. Bookkeeping and custom events are not part of
        a conversation.
Rule 4: imported history was not said in the channel. A transcript marks it for every reader. A model is shown it in the
        roles that the client gave it, because it is the client's conversation.
Rule 5: where names are shown, a line that begins with a name is that speaker's: further lines are indented.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import ClassVar, NamedTuple, Protocol

import msgspec

from antiphon.core.envelope import Envelope, visible_to
from antiphon.core.errors import UsageError
from antiphon.core.event_data import event_of
from antiphon.core.events import (
    EV_CHANNEL_INVITE,
    EV_CHANNEL_INVITE_REJECT,
    EV_HISTORY_IMPORTED,
    EV_TURN_FAILED,
    SPEECH_TYPES,
    HistoryImported,
    Packet,
    Text,
)
from antiphon.core.protection_events import EV_AGENT_CORRECTED, AgentCorrected
from antiphon.core.redaction import INVITE_FAILED_SENTENCE, public_detail
from antiphon.core.text import describe

LINE_BREAK = re.compile("\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")
"""Every character that Python, a terminal or a model may take for the end of a line."""
INDENT = "\n    "
SHOWN_TYPES = SPEECH_TYPES | {EV_HISTORY_IMPORTED, EV_AGENT_CORRECTED}
"""The event types that make up what an agent is shown."""


class Message(NamedTuple):
    """One thing said, as a model or a reader sees it."""

    role: str
    text: str


class View(Protocol):
    """A projection of a log for one reader."""

    @property
    def named(self) -> bool:
        """Whether the messages of others have their speaker's name before them."""
        ...

    def project(self, log: Sequence[Envelope], reader: str) -> list[Message]:
        """What the reader is shown of a log."""
        ...

    def shown(self, messages: Sequence[Message]) -> Sequence[Message]:
        """What is shown of everything that was said."""
        ...


def estimate_tokens(text: str) -> int:
    """How many tokens a text has, roughly: one for every four characters."""
    return (len(text) + 3) // 4


class FullTranscript(msgspec.Struct, frozen=True):
    """Everything the reader may see, from the beginning."""

    named: ClassVar[bool] = False

    def project(self, log: Sequence[Envelope], reader: str) -> list[Message]:
        return transcript_messages(log, reader, named=self.named)

    def shown(self, messages: Sequence[Message]) -> Sequence[Message]:
        return messages


class NamedTranscript(msgspec.Struct, frozen=True):
    """Everything the reader may see, each message of others with its speaker's name before it."""

    named: ClassVar[bool] = True

    def project(self, log: Sequence[Envelope], reader: str) -> list[Message]:
        return transcript_messages(log, reader, named=self.named)

    def shown(self, messages: Sequence[Message]) -> Sequence[Message]:
        return messages


class WindowedSummary(msgspec.Struct, frozen=True):
    """The last `recent_n` messages, after a line that says how many came before.

    Nothing is summed up: that is `SummarisedTranscript`.
    """

    named: ClassVar[bool] = False
    recent_n: int

    def __post_init__(self) -> None:
        _check_window(self.recent_n)

    def project(self, log: Sequence[Envelope], reader: str) -> list[Message]:
        return _recent_messages(transcript_messages(log, reader, named=self.named), self.recent_n)

    def shown(self, messages: Sequence[Message]) -> Sequence[Message]:
        return _recent_messages(messages, self.recent_n)


class NamedWindowedSummary(msgspec.Struct, frozen=True):
    """Like `WindowedSummary`, with names before the messages of others."""

    named: ClassVar[bool] = True
    recent_n: int

    def __post_init__(self) -> None:
        _check_window(self.recent_n)

    def project(self, log: Sequence[Envelope], reader: str) -> list[Message]:
        return _recent_messages(transcript_messages(log, reader, named=self.named), self.recent_n)

    def shown(self, messages: Sequence[Message]) -> Sequence[Message]:
        return _recent_messages(messages, self.recent_n)


@dataclass(frozen=True)
class TokenBudget:
    """As many of the last messages as fit into so many tokens, after a line that says how many came before.

    The last message is shown in any case, however long it is.
    """

    tokens: int
    _: KW_ONLY
    count: Callable[[str], int] = estimate_tokens
    """How many tokens a text has. If you say nothing, one for every four characters."""
    named: bool = False

    def __post_init__(self) -> None:
        if type(self.tokens) is not int or self.tokens < 1:
            raise UsageError(f"tokens is {describe(self.tokens)}; give a number of tokens, 1 or more")
        if not callable(self.count):
            raise UsageError(f"count is {describe(self.count)}; give a function of a text that counts its tokens")

    def project(self, log: Sequence[Envelope], reader: str) -> list[Message]:
        return list(self.shown(transcript_messages(log, reader, named=self.named)))

    def shown(self, messages: Sequence[Message]) -> Sequence[Message]:
        left, fitting = self.tokens, 0
        for message in reversed(messages):
            left -= self.count(message.text)
            if left < 0 and fitting:
                break
            fitting += 1
        return _recent_messages(messages, fitting)


def transcript_messages(log: Iterable[Envelope], reader: str, *, named: bool) -> list[Message]:
    """Everything that a reader sees of a log."""
    told = (transcript_message(envelope, reader, named=named) for envelope in log)
    return [message for message in told if message is not None]


def transcript_message(envelope: Envelope, reader: str, *, named: bool) -> Message | None:
    """The message of an envelope to a reader; None if nothing was said in it, or not to this reader."""
    if envelope.event_type == EV_HISTORY_IMPORTED:
        brought = _imported_event(envelope, reader)
        mark = f"[imported by {envelope.sender_id} as {brought.role}]" if brought else ""
        return Message("user", f"{mark} {indent_lines(brought.text)}") if brought else None
    return _spoken_message(envelope, reader, named=named)


def prompt_message(envelope: Envelope, reader: str, *, named: bool) -> Message | None:
    """What a reader's model is shown of an envelope: `transcript_message`, with imported history in its own roles."""
    if envelope.event_type != EV_HISTORY_IMPORTED:
        return _spoken_message(envelope, reader, named=named)
    brought = _imported_event(envelope, reader)
    if brought is None or brought.role == "assistant":
        return Message("assistant", brought.text) if brought else None
    return Message("user", prefix_speaker(envelope.sender_id, brought.text) if named else brought.text)


def _imported_event(envelope: Envelope, reader: str) -> HistoryImported | None:
    event = event_of(envelope)
    return event if isinstance(event, HistoryImported) and visible_to(envelope, reader) else None


def _spoken_message(envelope: Envelope, reader: str, *, named: bool) -> Message | None:
    text = _spoken_text(envelope) if envelope.event_type in SHOWN_TYPES and visible_to(envelope, reader) else None
    if text is None:
        return None
    if envelope.sender_id == reader:
        return Message("assistant", text)
    return Message("user", prefix_speaker(envelope.sender_id, text) if named else text)


def prefix_speaker(speaker: str, text: str) -> str:
    """What a speaker said with its name before it. Further lines are indented, so that none can begin with a name."""
    return f"{speaker}: {indent_lines(text)}"


def indent_lines(text: str) -> str:
    """A text whose lines but the first are indented, for any line break."""
    if text.isprintable():  # no line break is
        return text
    return LINE_BREAK.sub(INDENT, text)


def _spoken_text(envelope: Envelope) -> str | None:
    match event_of(envelope):
        case Text(text=text):
            return text
        case Packet(body=body, routing=routing) if routing.briefing:
            return body or None
        case Packet(body=body, routing=routing):
            return f"{body}\n\n{routing.summary}" if routing.summary not in body else body
        case AgentCorrected(text=text):
            return f"[note] {text}"
        case _:
            return None


def _check_window(recent_n: object) -> None:
    if type(recent_n) is not int or recent_n < 0:
        raise UsageError(f"recent_n is {describe(recent_n)}; give a number of messages, 0 or more")


def _recent_messages(messages: Sequence[Message], recent_n: int) -> list[Message]:
    earlier = len(messages) - recent_n
    if earlier <= 0:
        return list(messages)
    noun = "message" if earlier == 1 else "messages"
    return [Message("user", f"[{earlier} earlier {noun} not shown]"), *messages[earlier:]]


def envelope_for_participants(envelope: Envelope, participants: Iterable[str]) -> Envelope:
    """An envelope of a channel with these participants as they are shown it, if they may see it at all."""
    data = envelope.event_data
    match envelope.event_type, data:
        case str(kind), {"reason": str(reason), "detail": str(detail)} if kind == EV_TURN_FAILED:
            shown = public_detail(reason, detail)
            return envelope if shown == detail else replace(envelope, event_data={**data, "detail": shown})
        case str(kind), {"reason": str(reason)} if kind == EV_CHANNEL_INVITE_REJECT and reason:
            return replace(envelope, event_data={**data, "reason": INVITE_FAILED_SENTENCE})
        case str(kind), {"creator": str()} if kind == EV_CHANNEL_INVITE and "participants" not in data:
            return replace(envelope, event_data={**data, "participants": list(participants)})
        case _:
            return envelope


def view_by_size(participants: int) -> View:
    """The whole transcript, with the speakers' names where there are more than two participants."""
    return FullTranscript() if participants <= 2 else NamedTranscript()
