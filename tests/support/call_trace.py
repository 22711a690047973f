"""Which functions of the package run between two points of a program, in the order of their first calls.

All threads that begin after `record_calls` is entered are covered, so enter it before the hub is opened and use
`CallTrace.on` and `CallTrace.off` around the part that counts.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import antiphon

PACKAGE = Path(antiphon.__file__).parent


class CallTrace:
    """The functions seen so far, as (file below the package, qualified name)."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], None] = {}
        self._counting = False
        self._root = f"{PACKAGE}/"

    def on(self) -> None:
        self._counting = True

    def off(self) -> None:
        self._counting = False

    def note(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if self._counting and event == "call" and code.co_filename.startswith(self._root):
            self._seen[code.co_filename[len(self._root) :], code.co_qualname] = None

    @property
    def functions(self) -> list[tuple[str, str]]:
        """Lambdas and comprehensions left out."""
        return [(file, name) for file, name in self._seen if not name.rsplit(".", 1)[-1].startswith("<")]

    @property
    def files(self) -> list[str]:
        return sorted({file for file, _ in self._seen})


@contextmanager
def record_calls() -> Iterator[CallTrace]:
    trace = CallTrace()
    before = sys.getprofile()
    threading.setprofile(trace.note)
    sys.setprofile(trace.note)
    try:
        yield trace
    finally:
        trace.off()
        sys.setprofile(before)
        threading.setprofile(None)
