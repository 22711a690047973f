"""The terminal transport: lines that are typed are messages, and replies are printed.

Rule 1: nothing blocks the event loop. Input is read in a daemon thread, which the program does not wait for, and from
        the file descriptor, because the lock of a buffered stream would be held when the program ends.
Rule 2: what is printed cannot steer the terminal: invisible characters are escaped. Further lines of a text are
        indented, so that they do not look like a reply of another sender.
Rule 3: the id of a message is unique to the run of the program and the line. A line is kept until the next one is asked
        for, so one that could not be recorded is received again.
"""

from __future__ import annotations

import asyncio
import codecs
import os
import sys
import threading
import unicodedata
from collections import deque
from collections.abc import AsyncIterator
from concurrent.futures import Future
from functools import partial
from typing import TextIO
from uuid import uuid4

from antiphon.core.errors import TransportUnavailable, UsageError
from antiphon.core.text import describe, sanitize
from antiphon.core.transport import InboundMessage, OutboundReply
from antiphon.hub.blocking_calls import run_blocking

READ_BYTES = 65_536
INVISIBLE_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
CONTINUED_LINE = "\n  "


class TerminalTransport:
    """A person at a terminal, or a pipe."""

    def __init__(self, stdin: TextIO | None = None, stdout: TextIO | None = None, *, source: str = "terminal") -> None:
        if not isinstance(source, str) or not source:
            raise UsageError(f"the source of what is typed is {describe(source)}; give a name, such as 'terminal'")
        self._stdin, self._stdout, self._source = stdin, stdout, source
        self._run = uuid4().hex
        self._decoder: codecs.IncrementalDecoder | None = None
        self._read = 0
        """How many lines were read."""
        self._rest = ""
        """The beginning of a line whose end was not read yet."""
        self._lines: deque[InboundMessage] = deque()
        self._reading: Future[str | None] | None = None
        """A read in progress, which outlives its reader."""
        self._ended = False

    async def send(self, reply: OutboundReply) -> None:
        """Print a reply with its sender; `TransportUnavailable` if it cannot be written."""
        text = visible_text(reply.text).replace("\n", CONTINUED_LINE)
        await run_blocking(partial(self._print, f"{visible_text(reply.sender_id)}: {text}\n"), "terminal output")

    async def receive(self) -> AsyncIterator[InboundMessage]:
        """The lines that are typed, blank ones left out, until the input ends. There is one reader at a time."""
        while self._lines or not self._ended:
            while self._lines:
                yield self._lines[0]
                self._lines.popleft()
            if not self._ended:
                self._keep(await self._chunk())

    def _print(self, text: str) -> None:
        stream = self._stdout or sys.stdout
        try:
            encoding = stream.encoding or "utf-8"
            stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
            stream.flush()
        except (OSError, ValueError, AttributeError) as error:  # it is closed, or there is none
            raise TransportUnavailable(f"the reply cannot be printed: {error}") from error

    async def _chunk(self) -> str | None:
        """The next part of the input; None at its end."""
        if self._reading is None:
            self._reading = Future()
            self._reading.set_running_or_notify_cancel()  # from now on a cancellation leaves it alone
            threading.Thread(
                target=self._read_into, args=(self._reading,), name="antiphon terminal", daemon=True
            ).start()
        text = await asyncio.wrap_future(self._reading)
        self._reading = None
        return text

    def _read_into(self, outcome: Future[str | None]) -> None:
        try:
            outcome.set_result(self._read_text(self._stdin or sys.stdin))
        except (OSError, ValueError, AttributeError):  # it is closed, or there is none
            outcome.set_result(None)

    def _read_text(self, stream: TextIO) -> str | None:
        try:
            descriptor = stream.fileno()
        except (OSError, ValueError):  # a stream in memory
            return stream.readline() or None
        if self._decoder is None:
            self._decoder = codecs.getincrementaldecoder(stream.encoding or "utf-8")("backslashreplace")
        data = os.read(descriptor, READ_BYTES)
        return self._decoder.decode(data) if data else None

    def _keep(self, text: str | None) -> None:
        """Keep the lines that this part completes. At the end of the input the last line needs no line end."""
        self._ended = text is None
        *lines, self._rest = (self._rest + ("\n" if text is None else text)).split("\n")
        for line in lines:
            self._read += 1
            if line.strip():
                said = sanitize(line.removesuffix("\r"))
                self._lines.append(InboundMessage(said, self._source, f"{self._run}-{self._read}"))


def visible_text(text: str) -> str:
    """The text with its invisible characters escaped, except line ends and tabs."""
    return "".join(
        each.encode("unicode_escape").decode("ascii")
        if each not in "\n\t" and unicodedata.category(each) in INVISIBLE_CATEGORIES
        else each
        for each in text
    )
