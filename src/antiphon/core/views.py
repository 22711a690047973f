"""Views: a log as one reader may see it, turned into messages.

Rule 1: a view shows only what `visible_to` allows its reader.
Rule 2: what the reader said itself has the role `assistant`, everything else is `user`.
Rule 3: only what was said is shown. Bookkeeping and custom events are not part of a conversation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from antiphon.core.envelope import Envelope, visible_to
from antiphon.core.errors import UsageError
from antiphon.core.events import Packet, Text, event_of
from antiphon.core.words import shown


class Message(NamedTuple):
    """One thing said, as a model or a reader is told it."""

    role: str
    text: str


class View(Protocol):
    """A projection of a log for one reader."""

    def project(self, log: Sequence[Envelope], reader: str) -> list[Message]: ...


@dataclass(frozen=True, slots=True)
class FullTranscript:
    """Everything the reader may see, from the beginning."""

    def project(self, log: Sequence[Envelope], reader: str) -> list[Message]:
        return _messages(log, reader, named=False)


@dataclass(frozen=True, slots=True)
class NamedTranscript:
    """Everything the reader may see, each message of others with its speaker's name before it."""

    def project(self, log: Sequence[Envelope], reader: str) -> list[Message]:
        return _messages(log, reader, named=True)


@dataclass(frozen=True, slots=True)
class WindowedSummary:
    """The last `recent_n` messages, after a line that says how many came before."""

    recent_n: int

    def __post_init__(self) -> None:
        _check_window(self.recent_n)

    def project(self, log: Sequence[Envelope], reader: str) -> list[Message]:
        return _windowed(_messages(log, reader, named=False), self.recent_n)


@dataclass(frozen=True, slots=True)
class NamedWindowedSummary:
    """Like `WindowedSummary`, with names before the messages of others."""

    recent_n: int

    def __post_init__(self) -> None:
        _check_window(self.recent_n)

    def project(self, log: Sequence[Envelope], reader: str) -> list[Message]:
        return _windowed(_messages(log, reader, named=True), self.recent_n)


def default_view(participants: int) -> WindowedSummary:
    """The view of a channel that names none: two rounds of what everybody said."""
    return WindowedSummary(recent_n=2 * participants)


def _messages(log: Iterable[Envelope], reader: str, *, named: bool) -> list[Message]:
    seen = ((envelope, _said(envelope)) for envelope in log if visible_to(envelope, reader))
    return [_message(envelope, text, reader, named=named) for envelope, text in seen if text is not None]


def _message(envelope: Envelope, text: str, reader: str, *, named: bool) -> Message:
    if envelope.sender_id == reader:
        return Message("assistant", text)
    return Message("user", f"{envelope.sender_id}: {text}" if named else text)


def _said(envelope: Envelope) -> str | None:
    match event_of(envelope):
        case Text(text=text) | Packet(body=text):
            return text
        case _:
            return None


def _check_window(recent_n: object) -> None:
    if type(recent_n) is not int or recent_n < 0:
        raise UsageError(f"recent_n is {shown(recent_n)}; give a number of messages, 0 or more")


def _windowed(messages: list[Message], recent_n: int) -> list[Message]:
    earlier = len(messages) - recent_n
    if earlier <= 0:
        return messages
    noun = "message" if earlier == 1 else "messages"
    return [Message("user", f"[{earlier} earlier {noun} not shown]"), *messages[earlier:]]
