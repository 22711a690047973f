"""A program in a real terminal: what is typed there, and what it shows."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from types import TracebackType

from tests.support.signals import heed_ctrl_c

SECONDS = 20
COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
CTRL_C, CTRL_D = "\x03", "\x04"


def _take_terminal() -> None:
    heed_ctrl_c()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Terminal:
    """The command line in a pseudo-terminal of its own."""

    def __init__(self, *words: str, **env: str) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
        self.before = termios.tcgetattr(self._ours)
        surroundings = {name: value for name, value in os.environ.items() if name != "ANTIPHON_STORE"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "antiphon", *words],
            env={**surroundings, "TERM": "xterm", "PYTHONIOENCODING": "utf-8", "INPUTRC": os.devnull, **env},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=_take_terminal,
        )
        self._theirs = theirs  # kept open, so that the terminal can be looked at when the program has ended
        self.raw, self._seen = "", 0

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._ours)
        os.close(self._theirs)

    @property
    def text(self) -> str:
        """Everything that was shown, without its colours."""
        return COLOURS.sub("", self.raw).replace("\r\n", "\n").replace("\r", "")

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def see(self, text: str) -> str:
        """Wait until this is shown, behind what was seen before; everything up to it."""
        deadline = time.monotonic() + SECONDS
        while (place := self.text.find(text, self._seen)) < 0:
            assert time.monotonic() < deadline, f"{text!r} is not shown: {self.text[self._seen :]!r}"
            self._read(0.1)
        between = self.text[self._seen : place]
        self._seen = place + len(text)
        return between

    def terminate(self) -> None:
        self._process.terminate()

    def hang_up(self) -> int:
        """Take the terminal away, and wait until the program has ended; its exit code."""
        self._ours, taken = os.dup(self._theirs), self._ours
        os.close(taken)
        return self._process.wait(SECONDS)

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def end(self) -> int:
        """Wait until the program has ended; its exit code."""
        deadline = time.monotonic() + SECONDS
        while self._process.poll() is None:
            assert time.monotonic() < deadline, f"it goes on: {self.text[self._seen :]!r}"
            self._read(0.05)
        while self._read(0.05):
            pass
        return self._process.returncode

    def is_as_before(self) -> bool:
        """Whether the terminal has been left as it was found."""
        return termios.tcgetattr(self._ours) == self.before

    def _read(self, seconds: float) -> bool:
        ready, _, _ = select.select([self._ours], [], [], seconds)
        if not ready:
            return False
        self.raw += os.read(self._ours, 65536).decode(errors="replace")
        return True
