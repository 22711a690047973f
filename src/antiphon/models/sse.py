"""Server-sent events: what a stream of bytes says, however it is cut into chunks.

Rule 1: bytes go in and bytes come out. Only whole lines are looked at, so no character is ever split.
Rule 2: a line and an event have a size. More than that is `Overlong`, before it is kept.
Rule 3: an event that its empty line did not end is no event: whoever sent it was cut off.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

LARGEST = 1024 * 1024
"""How many bytes a line, or the data of an event, may have."""
MARK = b"\xef\xbb\xbf"
"""What some put before the first line, to say that it is UTF-8."""
LINE_END = re.compile(rb"\r\n|\n|\r")


class Overlong(ValueError):
    """A line or an event is larger than it may be."""


class Event(NamedTuple):
    """One event."""

    kind: bytes
    """Its name; empty, if it has none."""
    data: bytes
    """Its lines of data, joined by line ends."""


class Events:
    """Reads the events of one stream."""

    def __init__(self, largest: int = LARGEST) -> None:
        self._largest = largest
        self._line = bytearray()
        self._after_return = False
        self._first = True
        self._kind = b""
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> Iterator[Event]:
        """The events that are whole with this chunk; `Overlong` if one is too large."""
        if not chunk:
            return
        halved, self._after_return = self._after_return, chunk.endswith(b"\r")
        if halved:
            chunk = chunk.removeprefix(b"\n")  # the second half of a line end that was cut in two
        *whole, rest = LINE_END.split(chunk)
        for line in whole:
            self._keep(line)
            event = self._read(bytes(self._line))
            self._line.clear()
            if event is not None:
                yield event
        self._keep(rest)

    def _keep(self, part: bytes) -> None:
        self._check(len(self._line) + len(part))
        self._line += part

    def _check(self, size: int) -> None:
        if size > self._largest:
            raise Overlong(f"an event has more than {self._largest} bytes")

    def _read(self, line: bytes) -> Event | None:
        """The event that this line ends."""
        if self._first:
            self._first, line = False, line.removeprefix(MARK)
        if not line:
            return self._ended()
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"event":
            self._kind = value
        elif field == b"data":
            self._size += len(value) + 1
            self._check(self._size)
            self._data.append(value)
        return None  # a comment has no field; others are not for us

    def _ended(self) -> Event | None:
        event = Event(self._kind, b"\n".join(self._data)) if self._data else None
        self._kind, self._data, self._size = b"", [], 0
        return event
