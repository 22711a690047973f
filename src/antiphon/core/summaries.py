"""Views that keep a prompt short by summing up what is long ago.

Rule 1: a summary is a recorded fact: made once, with a call of its own, and the same for whoever reads the log.
Rule 2: it stands for the first so many messages. What came after is shown as it was said.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import KW_ONLY, dataclass

import msgspec

from antiphon.core.envelope import Envelope
from antiphon.core.errors import UsageError
from antiphon.core.views import Message, View, indented, messages_of
from antiphon.core.words import shown

Summariser = Callable[[Sequence[Message]], object | Awaitable[object]]
"""Sums up messages, the summary so far among them; gives a text, or a model's reply."""


class Summary(msgspec.Struct, frozen=True):
    """What the first so many messages came to."""

    text: str
    count: int
    """For how many messages it stands."""
    by: str = ""
    """For whom it was made."""


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
            raise UsageError(f"summarise is {shown(self.summarise)}; give a function of the messages")
        if type(self.recent_n) is not int or self.recent_n < 1:
            raise UsageError(f"recent_n is {shown(self.recent_n)}; give a number of messages, 1 or more")

    def project(self, log: Sequence[Envelope], reader: str) -> list[Message]:
        return messages_of(log, reader, named=self.named)

    def shown(self, messages: Sequence[Message]) -> Sequence[Message]:
        return messages

    def due(self, messages: Sequence[Message], last: Summary | None) -> list[Message] | None:
        """What is to be summed up now, the last summary first; None if nothing is."""
        count = 0 if last is None else last.count
        if len(messages) - count <= 2 * self.recent_n:
            return None
        return [*self._summed_up(last), *messages[count : len(messages) - self.recent_n]]

    def made(self, messages: Sequence[Message], text: str, by: str) -> Summary:
        """The summary of all but the most recent of these."""
        return Summary(text, len(messages) - self.recent_n, by)

    def shown_with(self, messages: Sequence[Message], summary: Summary | None) -> Sequence[Message]:
        """The summary, if there is one, and what was said since."""
        return messages if summary is None else [*self._summed_up(summary), *messages[summary.count :]]

    def _summed_up(self, summary: Summary | None) -> list[Message]:
        """The summary as a message. Where names are shown its lines are indented, like further lines of a message."""
        if summary is None:
            return []
        text = f"[What the {summary.count} messages before came to]\n{summary.text}"
        return [Message("user", indented(text) if self.named else text)]


def summarises(view: View) -> SummarisedTranscript | None:
    """The view as one that sums up, if it is one."""
    return view if isinstance(view, SummarisedTranscript) else None
