"""Views for conversations that are handed over: the last messages, and what the agent before has told.

In a routed channel the hub puts the context from the previous agent before the history of every agent, once. A
`HandoffMemoryProvider` does the same for a log that is projected by hand, and passes everything else on to its view.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

from antiphon.agents.history import History
from antiphon.core.envelope import Envelope
from antiphon.core.errors import UsageError
from antiphon.core.text import describe
from antiphon.core.views import FullTranscript, Message, View, transcript_messages


@dataclass(frozen=True)
class SlidingWindowMemory:
    """The last messages of a channel, and nothing about those before them."""

    max_events: int = 50
    _: KW_ONLY
    named: bool = False

    def __post_init__(self) -> None:
        if type(self.max_events) is not int or self.max_events < 1:
            raise UsageError(f"max_events is {describe(self.max_events)}; give a number of messages, 1 or more")

    def project(self, log: Sequence[Envelope], reader: str) -> list[Message]:
        return list(self.shown(transcript_messages(log, reader, named=self.named)))

    def shown(self, messages: Sequence[Message]) -> Sequence[Message]:
        return messages[-self.max_events :]


WHOLE_TRANSCRIPT = FullTranscript()


@dataclass(frozen=True)
class HandoffMemoryProvider:
    """A view behind the context from the agent that handed the conversation over."""

    inner: View = WHOLE_TRANSCRIPT

    def __post_init__(self) -> None:
        inner: object = self.inner
        if isinstance(inner, type) or not callable(getattr(inner, "shown", None)):
            raise UsageError(f"inner is {describe(inner)}; give a view such as SlidingWindowMemory(50)")

    @property
    def named(self) -> bool:
        return self.inner.named

    def project(self, log: Sequence[Envelope], reader: str) -> list[Message]:
        history = History(reader, named=self.named, threaded=True)
        history.extend(log)
        briefing = history.briefing_before(history.cursor)
        context = [] if briefing is None else [Message("user", briefing)]
        return [*context, *self.inner.project(log, reader)]

    def shown(self, messages: Sequence[Message]) -> Sequence[Message]:
        return self.inner.shown(messages)
