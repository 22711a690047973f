"""An answer in pieces: what is sent, and when.

Rule 1: what is sent, put together, ends with the answer, whatever was streamed of it. White space is not compared: an
        answer whose words were streamed is not sent again. One with other words follows whole, behind an empty line.
Rule 2: what an agent says before it calls a tool or hands over is followed by an empty line.
Rule 3: the memory is told before the client can be: whoever has read the end is known when it asks on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from itertools import islice
from typing import Protocol

from antiphon.core.codec import to_json
from antiphon.runtime.events import (
    AgentEvent,
    AIMessageEvent,
    FinalStateEvent,
    TokenEvent,
    ToolResponseEvent,
    ToolUsageEvent,
)
from antiphon.runtime.following import Numbered
from antiphon.server.chat_shapes import ChatChunk, ChatNote, ChunkChoice, Finish, usage_of
from antiphon.server.outward import outward
from antiphon.server.problems import CHAT, problem_of

GAP = "\n\n"
DONE = b"data: [DONE]\n\n"


class Speech:
    """What has been sent of an answer."""

    def __init__(self) -> None:
        self.said = ""
        """Everything, put together."""
        self._part, self._last = "", ""

    def piece(self, text: str) -> str:
        """What is sent when this is said next."""
        if not text:
            return ""
        sent = text if self._part or not self.said else GAP + text
        self._part += text
        self.said += sent
        return sent

    def ends_part(self) -> None:
        """Something else happens before anything more is said."""
        if self._part.strip():
            self._last = self._part
        self._part = ""

    def whole(self, answer: str) -> str:
        """What is left to be sent when this is the answer."""
        sent, wanted = _bare(self._part), _bare(answer)
        if sent.endswith(wanted) if sent else wanted in ("", _bare(self._last)):
            return ""
        if answer.startswith(self._part):
            return self.piece(answer[len(self._part) :])
        if wanted.startswith(sent):
            left = _behind(answer, len(sent))
            return self.piece(left.lstrip() if self._part[-1:].isspace() else left)
        self.ends_part()
        return self.piece(answer)


def _bare(text: str) -> str:
    """A text without its white space."""
    return "".join(text.split())


def _behind(text: str, count: int) -> str:
    """What follows the first `count` characters that are no white space."""
    places = (place for place, character in enumerate(text) if not character.isspace())
    return text[next(islice(places, count - 1, None)) + 1 :] if count else text


class Ended(Protocol):
    """Takes note of an answer that has been sent whole; `TurnFailed` if there is none."""

    def __call__(self, final: FinalStateEvent, sequence: int, said: str) -> ChatNote: ...


class Head:
    """What all chunks of one answer have in common."""

    def __init__(self, chat_id: str, created: int, model: str) -> None:
        self.id, self.created, self.model = chat_id, created, model

    def chunk(self, delta: dict[str, str], finish: Finish | None = None) -> ChatChunk:
        """A chunk with a piece of the answer."""
        choice = ChunkChoice(0, delta, finish)
        return ChatChunk(self.id, "chat.completion.chunk", self.created, self.model, [choice])

    def told(self, what: object) -> ChatChunk:
        """A chunk that says nothing, and tells of something beyond the protocol."""
        choice = ChunkChoice(0, {})
        return ChatChunk(self.id, "chat.completion.chunk", self.created, self.model, [choice], antiphon=what)


class Telling:
    """One answer on its way, as chunks."""

    def __init__(self, head: Head, ended: Ended, *, events: bool, usage: bool) -> None:
        self._head, self._ended, self._events, self._usage = head, ended, events, usage
        self._speech = Speech()
        self._who = ""

    def begin(self) -> ChatChunk:
        """The first chunk."""
        return self._head.chunk({"role": "assistant", "content": ""})

    def of(self, sequence: int, event: AgentEvent) -> Iterator[ChatChunk]:
        """What is sent because of an event."""
        speech = self._speech
        yield from self._handoff(event.agent)
        match event:
            case TokenEvent(text=text):
                yield from self._said(speech.piece(text))
            case ToolUsageEvent():
                speech.ends_part()
                yield from self._told({"tool": event, "status": "called"})
            case ToolResponseEvent(failed=failed):
                yield from self._told({"tool": event, "status": "failed" if failed else "returned"})
            case AIMessageEvent(text=text):
                yield from self._said(speech.whole(text))
            case FinalStateEvent():
                yield from self._finished(event, sequence)

    def _finished(self, final: FinalStateEvent, sequence: int) -> Iterator[ChatChunk]:
        note = self._ended(final, sequence, self._speech.said)
        yield from self._told(note)
        head = self._head
        yield head.chunk({}, finish_of(note))
        if self._usage:
            usage = usage_of(final.usage)
            yield ChatChunk(head.id, "chat.completion.chunk", head.created, head.model, [], usage)

    def _handoff(self, who: str) -> Iterator[ChatChunk]:
        before, self._who = self._who, who or self._who
        if before and before != self._who:
            self._speech.ends_part()
            yield from self._told({"handoff": {"from": before, "to": self._who}})

    def _said(self, text: str) -> Iterator[ChatChunk]:
        if text:
            yield self._head.chunk({"content": text})

    def _told(self, what: object) -> Iterator[ChatChunk]:
        if self._events:
            yield self._head.told(what)


def finish_of(note: ChatNote) -> Finish:
    """Why an answer ends where it does."""
    return "stop" if note.stopped is None else "length"


async def frames(
    events: AsyncGenerator[Numbered, None], telling: Telling, *, closing: asyncio.Event
) -> AsyncGenerator[bytes, None]:
    """An answer as it is sent. What goes wrong on the way is the last that is."""
    try:
        async with aclosing(_told(events, telling)) as chunks:
            async for chunk in chunks:
                yield b"data: " + to_json(chunk) + b"\n\n"
    except Exception as error:
        yield b"data: " + bytes(problem_of(error, path=CHAT, closing=closing.is_set()).body) + b"\n\n"
    else:
        yield DONE


async def _told(events: AsyncGenerator[Numbered, None], telling: Telling) -> AsyncGenerator[ChatChunk, None]:
    async with aclosing(events):
        yield telling.begin()
        async for sequence, event in events:
            for chunk in () if event is None else telling.of(sequence, outward(event)):
                yield chunk
